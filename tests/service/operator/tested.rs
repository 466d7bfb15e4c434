//! `weir test` and `weir schema` as a script in continuous integration sees them: exit codes, and what is printed where.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
