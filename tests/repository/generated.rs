//! proto/generated is what the files of proto/ compile to.
//!
//! The generated code is part of the repository, so that a build needs no compiler of protos. There is no protoc here either: protox compiles
//! the files in-process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use protox::prost::Message as _;

/// The file that declares the service. It imports all the others.
pub(crate) const SERVICE_PROTO: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The files of configuration by xDS, which weir asks another server for. Reflection does not show them.
pub(crate) const XDS_PROTOS: [&str; 2] =
    ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

/// The messages that are written as JSON, with all messages inside them. src/rls/json.rs reads requests, since it names the place of a mistake.
const JSON_MESSAGES: [&str; 2] = [".envoy.service.ratelimit.v3.RateLimitResponse", ".envoy.config.core.v3.HeaderValue"];

/// The types of google.protobuf, from a crate that also knows their JSON forms.
const GOOGLE_TYPES: (&str, &str) = (".google.protobuf", "::pbjson_types");

/// The same for xDS, which has no JSON and needs `Any`.
const XDS_GOOGLE_TYPES: (&str, &str) = (".google.protobuf", "::prost_types");

const COMMAND: &str = "cargo test --test repository -- --ignored write_the_generated_code";

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")
}

/// Writes the Rust code, its JSON half and the descriptor set that server reflection returns.
fn generate(out: &Path) {
    let mut compiler = protox::Compiler::new([root()]).expect("proto/ is there");
    compiler.include_source_info(true).include_imports(true).open_file(SERVICE_PROTO).expect("the files are valid");
    let mut descriptors = compiler.file_descriptor_set();
    tonic_prost_build::configure()
        .build_server(true)
        .build_client(true)
        .compile_well_known_types(true)
        .extern_path(GOOGLE_TYPES.0, GOOGLE_TYPES.1)
        .out_dir(out)
        .compile_fds(descriptors.clone())
        .expect("the wire types are generated");

    // The comments are in the Rust code by now. Clients that reflect have no use for them.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let encoded = descriptors.encode_to_vec();
    pbjson_build::Builder::new()
        .register_descriptors(&encoded)
        .expect("the descriptor set is read back")
        .extern_path(GOOGLE_TYPES.0, GOOGLE_TYPES.1)
        .out_dir(out)
        .build(&JSON_MESSAGES)
        .expect("the JSON forms are generated");
    fs::write(out.join("descriptors.bin"), encoded).expect("the descriptor set is written");
    generate_xds(&out.join("xds"));
}

/// Writes the messages of xDS. They have a folder of their own: a file is named by its package, and both sides have messages of
/// `envoy.config.core.v3`.
fn generate_xds(out: &Path) {
    fs::create_dir_all(out).expect("the folder is made");
    let mut compiler = protox::Compiler::new([root()]).expect("proto/ is there");
    compiler.include_source_info(true).include_imports(true).open_files(XDS_PROTOS).expect("the files are valid");
    tonic_prost_build::configure()
        .build_server(false)
        .build_client(false)
        .compile_well_known_types(true)
        .extern_path(XDS_GOOGLE_TYPES.0, XDS_GOOGLE_TYPES.1)
        .out_dir(out)
        .compile_fds(compiler.file_descriptor_set())
        .expect("the types of xDS are generated");
}

/// The files of a folder and of those below it, by their paths from it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = PathBuf::from(entry.file_name().expect("a name"));
        if entry.is_dir() {
            found.extend(files(&entry).into_iter().map(|(below, bytes)| (name.join(below), bytes)));
        } else {
            found.insert(name, fs::read(&entry).expect("a file"));
        }
    }
    found
}

#[test]
fn the_generated_code_is_that_of_proto() {
    let fresh = tempfile::tempdir().expect("a folder");
    generate(fresh.path());
    let (fresh, kept) = (files(fresh.path()), files(&root().join("generated")));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&kept), names(&fresh), "proto/generated has other files: {COMMAND}");
    for (name, bytes) in &fresh {
        assert!(kept[name] == *bytes, "proto/generated/{} differs from proto/: {COMMAND}", name.display());
    }
}

#[test]
#[ignore = "writes proto/generated"]
fn write_the_generated_code() {
    let generated = root().join("generated");
    if generated.exists() {
        fs::remove_dir_all(&generated).expect("the old code is removed");
    }
    fs::create_dir_all(&generated).expect("the folder is made");
    generate(&generated);
}
