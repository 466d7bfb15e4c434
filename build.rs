//! Generates the wire types from proto/, assembles the scripts of lua/, and stamps the commit that `weir --version` prints.
//!
//! There is no protoc here: protox compiles the files in-process, so a plain `cargo build` is all that
//! a fresh machine needs. Which modules hold the generated code is src/rls.rs' and src/xds/proto.rs' business.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use protox::prost::Message as _;

/// The kinds of state, each of which has a fragment in lua/.
#[path = "src/engine/algorithm/rows.rs"]
mod rows;

/// Assembles the scripts of lua/.
#[path = "lua/assemble.rs"]
mod assemble;

/// Where the proto files are, next to Cargo.toml.
const PROTO_ROOT: &str = "proto";

/// The folder of the Redis side of the algorithms.
const LUA_ROOT: &str = "lua";

/// The table of the kinds of state.
const KIND_ROWS: &str = "src/engine/algorithm/rows.rs";

/// The file that declares the service. It imports all the others.
const SERVICE_PROTO: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The files of configuration by xDS, which weir asks another server for. Reflection does not show them.
const XDS_PROTOS: [&str; 2] = ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

/// The messages that are written as JSON, with everything inside them. Requests are read by
/// src/rls/json.rs, which says where in the body a mistake is.
const JSON_MESSAGES: [&str; 2] = [".envoy.service.ratelimit.v3.RateLimitResponse", ".envoy.config.core.v3.HeaderValue"];

/// The types of google.protobuf, from a crate that also knows their JSON forms.
const GOOGLE_TYPES: (&str, &str) = (".google.protobuf", "::pbjson_types");

/// The same for xDS, which has no JSON and needs `Any`.
const XDS_GOOGLE_TYPES: (&str, &str) = (".google.protobuf", "::prost_types");

/// The hexadecimal digits of a commit that are shown.
const COMMIT_DIGITS: &str = "--short=12";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PROTO_ROOT}");
    println!("cargo::rerun-if-changed={LUA_ROOT}");
    println!("cargo::rerun-if-changed={KIND_ROWS}");
    stamp_commit();
    match generate().and_then(|()| assemble_scripts()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            for line in problem.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes the Rust code, its JSON half and the descriptor set that server reflection hands out.
fn generate() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);

    let mut compiler =
        protox::Compiler::new([PROTO_ROOT]).map_err(|e| format!("cannot compile {PROTO_ROOT}: {e:?}"))?;
    compiler
        .include_source_info(true)
        .include_imports(true)
        .open_file(SERVICE_PROTO)
        // The debug form is the one that names the file and the line.
        .map_err(|e| format!("cannot compile {PROTO_ROOT}/{SERVICE_PROTO}: {e:?}"))?;
    let mut descriptors = compiler.file_descriptor_set();

    tonic_prost_build::configure()
        .build_server(true)
        .build_client(true)
        .compile_well_known_types(true)
        .extern_path(GOOGLE_TYPES.0, GOOGLE_TYPES.1)
        .compile_fds(descriptors.clone())
        .map_err(|e| format!("cannot generate the wire types: {e}"))?;

    // The comments are in the Rust code by now. Clients that reflect have no use for them.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let encoded = descriptors.encode_to_vec();

    pbjson_build::Builder::new()
        .register_descriptors(&encoded)
        .map_err(|e| format!("cannot read back the descriptor set: {e}"))?
        .extern_path(GOOGLE_TYPES.0, GOOGLE_TYPES.1)
        .build(&JSON_MESSAGES)
        .map_err(|e| format!("cannot generate the JSON forms: {e}"))?;

    let file = out.join("descriptors.bin");
    fs::write(&file, encoded).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    generate_xds(&out.join("xds"))
}

/// Writes the scripts that run in Redis.
fn assemble_scripts() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    assemble::assemble(Path::new(LUA_ROOT), &out.join("lua"))?;
    Ok(())
}

/// Writes the messages of xDS; src/xds/codec.rs reads responses in their place. They have a folder of their own: a file is named by its package, and both
/// sides have messages of `envoy.config.core.v3`.
fn generate_xds(out: &Path) -> Result<(), Box<dyn Error>> {
    let mut compiler =
        protox::Compiler::new([PROTO_ROOT]).map_err(|e| format!("cannot compile {PROTO_ROOT}: {e:?}"))?;
    compiler
        .include_source_info(true)
        .include_imports(true)
        .open_files(XDS_PROTOS)
        .map_err(|e| format!("cannot compile {PROTO_ROOT}, xDS: {e:?}"))?;
    fs::create_dir_all(out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_client(false)
        .compile_well_known_types(true)
        .extern_path(XDS_GOOGLE_TYPES.0, XDS_GOOGLE_TYPES.1)
        .out_dir(out)
        .compile_fds(compiler.file_descriptor_set())
        .map_err(|e| format!("cannot generate the types of xDS: {e}"))?;
    Ok(())
}

/// Sets `WEIR_COMMIT` for the crate: what git says, else the variable of that name in the environment
/// of the build (a container image is built without .git), else `unknown`.
fn stamp_commit() {
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    let commit = commit_by_git()
        .or_else(|| env::var("WEIR_COMMIT").ok())
        .map(|commit| commit.trim().to_owned())
        .filter(|commit| !commit.is_empty() && !commit.contains(char::is_whitespace))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEIR_COMMIT={commit}");
}

/// The commit that is checked out. `None` outside of a clone, and where git does not run.
fn commit_by_git() -> Option<String> {
    // Without this check, sources unpacked inside some other repository would show its commit.
    if !Path::new(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", COMMIT_DIGITS, "HEAD"])?;

    // HEAD changes with the branch, its log and the branch's own file with each commit. Only files that exist
    // are named: cargo takes a missing one for changed, and would build anew each time.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let Some(path) = git(&["rev-parse", "--git-path", name]) else {
            continue;
        };
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Some(commit)
}

/// What a git command printed, without the line's end. `None` if it failed or git is not there.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        // A hook that builds has these set, to a repository that need not be ours.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
