//! Policies that change while weir runs: every way in which files are replaced is seen, a mistake
//! keeps the last good policies and is shown, and what was used up stays used up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir, point};
use crate::support::rls::{self, Client};
use crate::support::wait::until;

/// The promise is a second on an idle machine. How long it took is printed, and a busy machine gets
/// more.
const RELOAD_PATIENCE: Duration = Duration::from_secs(10);

/// Raised by one for each change that was found wrong.
const REFUSED_METRIC: &str = "weir_config_load_errors_total";

const FILE: &str = "shop.yaml";

#[test]
fn warnings_of_a_load_are_logged_up_to_a_bound() {
    let items: Vec<_> = (0..25).map(|i| format!("  - {{key: k{i}, rate_limit: }}\n")).collect();
    let directory = PolicyDirectory::with_file(FILE, &format!("domain: shop\ndescriptors:\n{}", items.concat()));
    let weir = Weir::start(&directory.path(), &["--store", "memory"]);
    let warned = weir.count_in_log(|line| line.message() == Some("policies load with a warning"));
    assert_eq!(warned, 20);
    let more =
        |line: &crate::support::process::LogLine| line.field("more").and_then(serde_json::Value::as_u64) == Some(5);
    assert_eq!(weir.count_in_log(more), 1);
}

/// How Kubernetes mounts a ConfigMap: each file is a link to `..data/file`, and `..data` a link to a
/// directory with a date. An update makes a new directory, renames `..data`, removes the old one.
#[test]
fn a_config_map_that_is_swapped_is_loaded() {
    let directory = TempDir::new().expect("a temporary directory");
    let root = directory.path().to_owned();
    let mut current = config_map_generation(&root, 1, &policy(10));
    std::os::unix::fs::symlink(Path::new("..data").join(FILE), root.join(FILE)).expect("a link");
    let mut generation = 1;
    loads_and_keeps_what_was_used(&root, |text| {
        generation += 1;
        let next = config_map_generation(&root, generation, text);
        fs::remove_dir_all(std::mem::replace(&mut current, next)).expect("the old directory");
    });
}

#[test]
fn overlays_are_loaded_when_they_change_and_refused_with_what_they_contradict() {
    let directory = PolicyDirectory::with_file(FILE, &policy(1_000));
    let file = TempDir::new().expect("a temporary directory");
    let overlay = file.path().join("shop.overlay.yaml");
    let write = |keys: &str| {
        let next = file.path().join("next");
        fs::write(&next, format!("overlays:\n- {{domain: shop, descriptors: ['**'], rate_limit: {keys}}}\n"))
            .expect("a file");
        fs::rename(next, &overlay).expect("the rename");
    };
    write("{algorithm: gcra}");
    let setting = format!("policies.overlay={}", overlay.display());
    let weir = Weir::start(&directory.path(), &["--store", "memory", "--set", &setting]);
    let shown = || http::get(weir.admin, "/policies").expect("an answer").body;
    assert!(shown().contains("gcra"), "{}", shown());
    write("{algorithm: sliding_window, lease: 100ms}");
    until("the changed overlay", RELOAD_PATIENCE, || shown().contains("sliding_window").then_some(()));
    write("{requests_per_unit: 5}");
    let ready = || http::get(weir.admin, "/readyz").expect("an answer").body;
    until("the problem", RELOAD_PATIENCE, || {
        ready().contains(":2:52: requests_per_unit: the policy gives").then_some(())
    });
    assert!(shown().contains("sliding_window"), "the last good pair stays: {}", shown());
    fs::remove_file(&overlay).expect("the file");
    until("the missing file", RELOAD_PATIENCE, || ready().contains("shop.overlay.yaml: No such file").then_some(()));
    assert!(shown().contains("sliding_window"), "{}", shown());
    write("{algorithm: gcra}");
    until("the corrected overlay", RELOAD_PATIENCE, || shown().contains("gcra").then_some(()));
    assert!(ready().contains("\"problem_count\":0"), "{}", ready());
}

#[test]
fn files_come_and_go() {
    let mut directory = PolicyDirectory::with_file(FILE, &policy(10));
    let weir = Weir::start(&directory.path(), &["--store", "memory"]);
    let mut client = Client::connect(weir.grpc);
    assert_eq!(limit(&mut client, "shop"), Some(10));
    assert_eq!(limit(&mut client, "bank"), None);
    for _ in 0..4 {
        assert!(client.admits("shop", "user", "ann"));
    }

    // Another domain comes: the state of the rules that did not change is kept.
    let bank = policy(7).replace("domain: shop", "domain: bank");
    directory.replace(&[(FILE.to_owned(), policy(10)), ("bank.yaml".to_owned(), bank.clone())]);
    wait_for_limit(&mut client, "bank", Some(7));
    assert_eq!(remaining(&mut client, "shop"), 6);

    directory.replace(&[("bank.yaml".to_owned(), bank)]);
    wait_for_limit(&mut client, "shop", None);
    assert_eq!(limit(&mut client, "bank"), Some(7));
}

#[test]
fn a_mistake_keeps_the_last_good_policies_and_is_shown() {
    let mut directory = PolicyDirectory::with_file(FILE, &policy(10));
    let weir = Weir::start(&directory.path(), &["--store", "memory"]);
    let mut client = Client::connect(weir.grpc);
    for _ in 0..4 {
        assert!(client.admits("shop", "user", "ann"));
    }
    let good = ready_detail(&weir);
    let refused = metric(&weir, REFUSED_METRIC);

    // Two mistakes in two files, and both are to be told.
    let misspelled = policy(3).replace("requests_per_unit", "request_per_unit");
    let bad_unit = policy(3).replace("domain: shop", "domain: bank").replace("year", "fortnight");
    directory.replace(&[(FILE.to_owned(), misspelled), ("bank.yaml".to_owned(), bad_unit)]);
    let bad = until("the mistake to be shown by /readyz", RELOAD_PATIENCE, || {
        let detail = ready_detail(&weir);
        (detail != good).then_some(detail)
    });
    let bad: serde_json::Value = serde_json::from_str(&bad).expect("JSON");
    assert_eq!(bad["policies"]["problem_count"], 2);
    assert_eq!(bad["policies"]["problem_kinds"], serde_json::json!(["policy"]));
    until("the metric to rise", RELOAD_PATIENCE, || (metric(&weir, REFUSED_METRIC) == refused + 1).then_some(()));
    for told in ["shop.yaml", "request_per_unit", "bank.yaml", "fortnight"] {
        let seen = weir.wait_for_log(0, RELOAD_PATIENCE, |line| line.raw().contains(told));
        assert!(seen, "the log does not name {told}");
    }
    assert_eq!(limit(&mut client, "shop"), Some(10));
    assert_eq!(remaining(&mut client, "shop"), 6);
    assert_eq!(metric(&weir, "weir_input_refused"), 1, "for as long as /readyz lists the problem");

    // Put right again, all is as before.
    directory.replace(&[(FILE.to_owned(), policy(12))]);
    wait_for_limit(&mut client, "shop", Some(12));
    assert_eq!(remaining(&mut client, "shop"), 8);
    until("/readyz to be as before", RELOAD_PATIENCE, || (ready_detail(&weir) == good).then_some(()));
    assert_eq!(metric(&weir, REFUSED_METRIC), refused + 1);
    assert_eq!(metric(&weir, "weir_input_refused"), 0);
}

/// Uses a limit of 10, raises it and lowers it below what was used, and checks each time that the
/// change is in force at once and that nothing used was forgotten.
fn loads_and_keeps_what_was_used(directory: &Path, mut replace: impl FnMut(&str)) {
    let weir = Weir::start(directory, &["--store", "memory"]);
    let mut client = Client::connect(weir.grpc);
    for _ in 0..4 {
        assert!(client.admits("shop", "user", "ann"));
    }
    assert_eq!(remaining(&mut client, "shop"), 6);

    replace(&policy(20));
    wait_for_limit(&mut client, "shop", Some(20));
    assert_eq!(remaining(&mut client, "shop"), 16);
    assert!(client.admits("shop", "user", "ann"));

    replace(&policy(5));
    wait_for_limit(&mut client, "shop", Some(5));
    assert_eq!(remaining(&mut client, "shop"), 0);
    assert!(!client.admits("shop", "user", "ann"));
    assert!(client.admits("shop", "user", "bob"));

    replace(&policy(6));
    wait_for_limit(&mut client, "shop", Some(6));
    assert!(client.admits("shop", "user", "ann"));
    assert!(!client.admits("shop", "user", "ann"));
}

/// A limit whose window does not turn while a test runs.
fn policy(requests_per_unit: u32) -> String {
    format!(
        "domain: shop\n\
         descriptors:\n  \
           - key: user\n    \
             rate_limit: {{unit: year, requests_per_unit: {requests_per_unit}}}\n"
    )
}

/// Makes the directory of one generation and points `..data` at it.
fn config_map_generation(root: &Path, generation: u32, text: &str) -> PathBuf {
    let name = format!("..2026_01_01_00_00_0{generation}.1");
    let directory = root.join(&name);
    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join(FILE), text).expect("the policy");
    point(&root.join("..data"), Path::new(&name));
    directory
}

/// Waits until this limit is in force, and prints how long it took.
fn wait_for_limit(client: &mut Client, domain: &str, wanted: Option<u32>) {
    let start = Instant::now();
    until("the new limit", RELOAD_PATIENCE, || (limit(client, domain) == wanted).then_some(()));
    println!("{domain}: {wanted:?} in force after {:?}", start.elapsed());
}

/// The limit in force for `user=ann`, if any; asking takes nothing.
fn limit(client: &mut Client, domain: &str) -> Option<u32> {
    let answer = client.ask(rls::look(domain, &[("user", "ann")]));
    let answer = answer.expect("an answer");
    let limit = answer.statuses[0].current_limit.as_ref();
    limit.map(|limit| limit.requests_per_unit)
}

/// What remains for `user=ann`; asking takes nothing.
fn remaining(client: &mut Client, domain: &str) -> u32 {
    let answer = client.ask(rls::look(domain, &[("user", "ann")]));
    answer.expect("an answer").statuses[0].limit_remaining
}

/// What `/readyz` says; weir is ready all the time.
fn ready_detail(weir: &Weir) -> String {
    let answer = http::get(weir.http, "/readyz").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// The sum over all series of one metric.
fn metric(weir: &Weir, name: &str) -> u64 {
    let answer = http::get(weir.http, "/metrics").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut found = None;
    for line in answer.body.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        if series.split('{').next() == Some(name) {
            let value: u64 = value.parse().expect("a counter is a whole number");
            found = Some(found.unwrap_or(0) + value);
        }
    }
    found.unwrap_or_else(|| panic!("no metric {name} in\n{}", answer.body))
}
