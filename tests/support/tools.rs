//! Tools that cannot be installed everywhere, and what they build.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Whether a tool cannot be run here. Prints it, or panics with CI=true.
pub fn is_missing(tool: &str, version: &[&str]) -> bool {
    let ran = Command::new(tool).args(version).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let is_missing = !ran.is_ok_and(|status| status.success());
    if is_missing {
        skip(tool);
    }
    is_missing
}

/// Prints that a test is skipped because this tool is missing. With CI=true it panics.
pub fn skip(tool: &str) {
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(
        !is_ci,
        "{tool} is not installed, and with CI=true nothing is skipped: run scripts/test, which installs it"
    );
    eprintln!("SKIPPED: {tool} is not installed");
}

/// Builds a program in Go.
pub fn go_build(name: &str, source: &Path) -> PathBuf {
    prepared(name, |target| {
        let binary = target.join("program");
        let mut build = Command::new("go");
        build.current_dir(source).args(["build", "-mod=readonly", "-o"]).arg(&binary).arg(".");
        succeed(build);
        binary
    })
}

/// Builds or installs something in a folder of its own below target, one test at a time.
pub fn prepared(name: &str, make: impl FnOnce(&Path) -> PathBuf) -> PathBuf {
    let target = repository().join("target").join(name);
    fs::create_dir_all(&target).expect("a folder below target");
    let lock = File::create(target.with_extension("lock")).expect("a lock file");
    lock.lock().expect("the lock");
    make(&target)
}

/// Runs a command to its end.
pub fn succeed(mut command: Command) {
    command.stdin(Stdio::null());
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} failed:\n{stdout}{stderr}");
}

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/support has parents")
}
