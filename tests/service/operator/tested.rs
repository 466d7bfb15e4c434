//! Commands as a script in continuous integration sees them: exit codes, and what is printed where.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::process::binary;

const POLICY: &str = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: 1/h}\n";

fn tests_expecting(second: &str) -> String {
    format!(
        "domain: shop\ncases:\n  - name: one an hour\n    steps:\n      - {{ask: user=ann, expect: ok}}\n      - {{ask: user=ann, expect: {second}}}\n"
    )
}

fn run(arguments: &[&str], directory: &Path) -> Output {
    Command::new(binary()).args(arguments).current_dir(directory).output().expect("weir runs")
}

/// The exit code of `weir test` with these files, and what it writes to its outputs.
fn tested(files: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        fs::write(directory.path().join(name), text).expect("a file is written");
    }
    let output = run(&[&["test", "."], arguments].concat(), directory.path());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_exit_code_tells_passed_from_failed_and_from_bad_input() {
    let (passes, fails) = (tests_expecting("over"), tests_expecting("ok"));
    let broken = tests_expecting("maybe");
    let policy = ("shop.yaml", POLICY);
    for (files, arguments, code, word) in [
        (vec![policy, ("a.test.yaml", &*passes)], &[][..], 0, "1 passed"),
        (vec![policy, ("a.test.yaml", &*passes)], &["--fail-under=100"], 0, "1 passed"),
        (vec![policy, ("a.test.yaml", &*fails)], &[], 1, "1 failed"),
        (
            vec![
                policy,
                ("more.yaml", "domain: more\ndescriptors: [{key: a, rate_limit: 1/s}]\n"),
                ("a.test.yaml", &*passes),
            ],
            &["--fail-under=100"],
            1,
            "1 passed",
        ),
        (vec![policy, ("a.test.yaml", &*broken)], &[], 2, "maybe"),
        (vec![("shop.yaml", "domain: shop\ndescriptor: []\n"), ("a.test.yaml", &*passes)], &[], 2, "descriptor"),
        (vec![policy], &[], 2, "test"),
        (vec![policy, ("a.test.yaml", &*passes)], &["--format=xml"], 2, "xml"),
    ] {
        let (found, out, err) = tested(&files, arguments);
        assert_eq!(found, Some(code), "{files:?} {arguments:?}\n{out}\n{err}");
        assert!(format!("{out}{err}").contains(word), "{word}:\n{out}\n{err}");
    }
}

/// A script that reads the beginning alone, such as `weir test | head`, must not take a failure for a success.
#[test]
fn the_exit_code_is_the_same_if_the_reader_goes() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("a file is written");
    // More than a pipe holds.
    let name = "n".repeat(100);
    let case = |i| format!("  - {{name: {name}{i}, steps: [{{ask: user=ann, expect: over}}]}}\n");
    write("shop.test.yaml", &format!("domain: shop\ncases:\n{}", (0..900).map(case).collect::<String>()));
    let rule = |i| format!("  - {{key: {name}{i}, rate_limit: 1/h}}\n");
    write("shop.yaml", &format!("{POLICY}{}", (0..900).map(rule).collect::<String>()));
    write("old.txt", POLICY);
    for arguments in [&["test", "shop.test.yaml"][..], &["diff", "old.txt", "shop.yaml"]] {
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(directory.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut weir = command.spawn().expect("weir runs");
        let mut start = [0; 10];
        weir.stdout.take().expect("a pipe").read_exact(&mut start).expect("the report begins");
        let output = weir.wait_with_output().expect("weir ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.is_empty(), "{arguments:?}: {}, {errors}", output.status);
    }
}

#[test]
fn the_schemas_are_printed_as_they_are_kept() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["policies", "settings", "tests", "traffic"] {
        let output = run(&["schema", name], root);
        let kept = fs::read(root.join(format!("schemas/{name}.json"))).expect("a schema");
        assert!(output.status.success() && output.stdout == kept, "{name}: {:?}", output.status);
    }
    assert_eq!(run(&["schema", "metrics"], root).status.code(), Some(2));
}

#[test]
fn wrong_input_is_named_with_what_it_is() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in [
        ("shop.yaml", POLICY),
        ("shop.test.yaml", "cases: []"),
        ("shop.traffic.yaml", "duration: 1m\ndomain: shop\nsources: [{ask: user=ann, rate: 1/s}]"),
        ("empty", ""),
        ("noise", "\u{1}\u{2}"),
    ] {
        fs::write(directory.path().join(name), text).expect("a file");
    }
    let traffic = ["simulate", "--traffic", "shop.traffic.yaml", "shop.yaml"];
    for (arguments, code, reason) in [
        (&["check", "/dev/null"][..], 1, "/dev/null: neither a directory nor a regular file"),
        (&["explain", "shop.test.yaml", "shop", "user=ann"], 1, "shop.test.yaml: its name marks it as a file of tests"),
        (&["diff", "shop.yaml", "shop.traffic.yaml"], 2, "shop.traffic.yaml: its name marks it as a file of traffic"),
        (&["test", "shop.traffic.yaml"], 2, "shop.traffic.yaml: its name marks it as a file of traffic"),
        (
            &["simulate", "--traffic", "shop.test.yaml", "shop.yaml"],
            2,
            "shop.test.yaml: its name marks it as a file of tests",
        ),
        (&["simulate", "--traffic", "empty", "shop.yaml"], 2, "empty:1:1: empty: a record begins with a header"),
        (&["simulate", "--traffic", "noise", "shop.yaml"], 2, "noise:1:1: no header: the first line of a record"),
        (&[&traffic[..], &["--html", "out", "--json", "out"]].concat(), 2, "--json and --html name one file"),
        (&[&traffic[..], &["--keys", "many"]].concat(), 2, "must be a whole number from 0 to 1000"),
        (&["ask", "localhost", "shop", "user=ann"], 2, "has no port: write localhost:8081"),
        (&["ask", "localhost:x", "shop", "user=ann"], 2, "not an address such as localhost:8081"),
        (&["test", "shop.test.yaml", "--fail-under", "101"], 2, "must be a percentage from 0 to 100"),
    ] {
        let output = run(arguments, directory.path());
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(code) && errors.contains(reason), "{arguments:?}: {errors}");
    }
    let checked = run(&["check", "shop.traffic.yaml"], directory.path());
    assert_eq!(String::from_utf8_lossy(&checked.stdout), "shop.traffic.yaml: 1 source of traffic over 1m\n");
    assert!(!directory.path().join("out").exists());
}
