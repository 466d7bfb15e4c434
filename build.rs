//! Assembles the scripts of lua/, and stamps the commit that `weir --version` prints.
//!
//! The wire types are not generated here: proto/generated has them, and tests/engine/generated.rs writes them.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The kinds of state, each of which has a fragment in lua/.
#[path = "src/engine/algorithm/rows.rs"]
mod rows;

/// Assembles the scripts of lua/.
#[path = "lua/assemble.rs"]
mod assemble;

/// The folder of the Redis side of the algorithms.
const LUA_ROOT: &str = "lua";

/// The table of the kinds of state.
const KIND_ROWS: &str = "src/engine/algorithm/rows.rs";

/// The hexadecimal digits of a commit that are shown.
const COMMIT_DIGITS: &str = "--short=12";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LUA_ROOT}");
    println!("cargo::rerun-if-changed={KIND_ROWS}");
    stamp_commit();
    match assemble_scripts() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            for line in problem.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes the scripts that run in Redis.
fn assemble_scripts() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    assemble::assemble(Path::new(LUA_ROOT), &out.join("lua"))?;
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
