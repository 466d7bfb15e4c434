//! The steps that scripts/test leaves out: each runs if a file changes that it reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testkit::tools::repository;

#[test]
fn a_change_runs_each_step_that_reads_the_file() {
    for (file, step) in [
        ("Cargo.lock", "image"),
        ("src/cli/Cargo.toml", "image"),
        ("src/store/build.rs", "image"),
        ("scripts/crates.py", "image"),
        ("proto/ratelimit.proto", "clients"),
        ("examples/clients/node/client.js", "clients"),
        ("src/settings/redis.rs", "deploy"),
        ("deploy/helm/weir/values.yaml", "deploy"),
        ("docs/running.md", "deploy"),
        ("bench/load/src/main.rs", "bench"),
        ("src/telemetry/metrics/table.rs", "docs weir-telemetry"),
        ("Cargo.toml", "docs"),
    ] {
        assert!(affected(&[file]).iter().any(|affected| affected == step), "{step} reads {file}");
    }
}

/// What a step reads is named in its script: a change of any of these files runs the step.
#[test]
fn a_step_runs_if_a_file_changes_that_its_script_names() {
    let scripts = [
        ("image", "Dockerfile"),
        ("image", "scripts/image"),
        ("deploy", "scripts/check-deploy"),
        ("deploy", "scripts/render-deploy"),
        ("deploy", "tests/deploy/check.py"),
    ];
    for (step, script) in scripts {
        let text = fs::read_to_string(repository().join(script)).unwrap();
        let words = text.split(|character: char| !(character.is_alphanumeric() || "/._-".contains(character)));
        let mut named: BTreeSet<&str> = words.filter(|word| is_read(word)).collect();
        named.insert(script);
        for file in named {
            assert!(
                affected(&[file]).iter().any(|affected| affected == step),
                "{script} names {file}: {step} reads it"
            );
        }
    }
}

/// Whether this is a file of the repository. A page is for the reader of the script.
fn is_read(word: &str) -> bool {
    let path = Path::new(word);
    let is_source = path.is_relative() && word.contains('/') && !word.starts_with("target/");
    is_source && !word.ends_with(".md") && repository().join(path).is_file()
}

#[test]
fn a_page_runs_no_step_and_the_scripts_themselves_run_all() {
    assert_eq!(affected(&["CHANGELOG.md", "tests/README.md"]), [""; 0]);
    let all = affected(&["--all"]);
    for file in ["scripts/test", "scripts/affected", ".ci/run", ".config/nextest.toml"] {
        assert_eq!(affected(&[file]), all, "{file}");
    }
}

/// What scripts/affected prints.
fn affected(arguments: &[&str]) -> Vec<String> {
    let output = Command::new(repository().join("scripts/affected")).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .split_terminator('\n')
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
