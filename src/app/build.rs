//! Stamps the commit that `weir --version` prints.

use std::env;
use std::path::Path;
use std::process::Command;

/// The root of the repository.
const ROOT: &str = "../..";

/// The hexadecimal digits of a commit that are shown.
const COMMIT_DIGITS: &str = "--short=12";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    stamp_commit();
}

/// Sets `WEIR_COMMIT` for the crate: the commit of git, else the variable of that name in the environment of the build (a
/// container image is built without .git), else `unknown`.
fn stamp_commit() {
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    let commit = commit_by_git()
        .or_else(|| env::var("WEIR_COMMIT").ok())
        .map(|commit| commit.trim().to_owned())
        .filter(|commit| !commit.is_empty() && !commit.contains(char::is_whitespace))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEIR_COMMIT={commit}");
}

/// The commit that is checked out. `None` outside of a clone, or if git does not run.
fn commit_by_git() -> Option<String> {
    // Without this check, sources unpacked inside some other repository would show its commit.
    if !Path::new(ROOT).join(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", COMMIT_DIGITS, "HEAD"])?;

    // HEAD changes with the branch; its log and the branch's own file change with each commit. Only files that exist are named,
    // because cargo would build again each time for a missing one.
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
