//! The program knows the commit that it was built from.

use std::path::Path;
use std::process::Command;

fn printed(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

#[test]
fn the_version_has_the_commit_that_is_checked_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = ["rev-parse", "--short=12", "HEAD"];
    let commit = root.join(".git").exists().then(|| printed(Command::new("git").current_dir(root).args(git))).flatten();
    let commit = commit.or_else(|| std::env::var("WEIR_COMMIT").ok()).unwrap_or_else(|| "unknown".to_owned());
    let version = printed(Command::new(env!("CARGO_BIN_EXE_weir")).arg("--version"));
    assert_eq!(version, Some(format!("weir {} (commit {commit})", env!("CARGO_PKG_VERSION"))));
}
