//! Stamps the commit that `weir --version` prints.

use std::env;
use std::path::Path;
use std::process::Command;

const ROOT: &str = "../..";

const COMMIT_DIGITS: &str = "--short=12";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    stamp_commit();
}

/// Sets `WEIR_COMMIT` for the crate: the commit from git; otherwise the environment variable of that name (a container
/// image is built without .git); otherwise `unknown`.
fn stamp_commit() {
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    let commit = commit_by_git()
        .or_else(|| env::var("WEIR_COMMIT").ok())
        .map(|commit| commit.trim().to_owned())
        .filter(|commit| !commit.is_empty() && !commit.contains(char::is_whitespace))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEIR_COMMIT={commit}");
}

/// The commit that is checked out. `None` outside of a clone, or if git fails.
fn commit_by_git() -> Option<String> {
    // Without this check, sources unpacked inside another repository would show its commit.
    if !Path::new(ROOT).join(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", COMMIT_DIGITS, "HEAD"])?;

    // HEAD changes with the branch; its log and the branch's own file change with each commit. Only existing files are
    // listed, because cargo would rebuild each time for a missing one.
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

/// The output of a git command, without its line end. `None` if it failed or git is missing.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        // In a git hook these variables are set, perhaps to another repository.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
