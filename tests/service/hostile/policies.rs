//! A policy directory that is written by half, holds what is no file, or changes without end; and what `weir check` makes of
//! single files and of names that are meant for a terminal.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::bare::signal;
use crate::support::http;
use crate::support::process::{POLICIES_LOADED, PolicyDirectory, Weir, binary};
use crate::support::rls::{self, Client};
use crate::support::served::{Served, metric};
use crate::support::wait::{PATIENCE, until, within};

const FILE: &str = "shop.yaml";
const LOADS: &str = "weir_config_loads_total";
/// How long a file that is written in place rests until it is loaded.
const REST: Duration = weir_policies::watch::REST;

/// Rules for so many keys; a prefix of its lines is valid too.
fn rules(count: usize, requests: u32) -> String {
    let mut text = String::from("domain: shop\ndescriptors:\n");
    for number in 0..count {
        text.push_str(&format!("  - {{key: k{number}, rate_limit: {{unit: year, requests_per_unit: {requests}}}}}\n"));
    }
    text
}

fn limit(client: &mut Client, key: &str) -> Option<u32> {
    let answer = client.ask(rls::look("shop", &[(key, "x")])).expect("an answer");
    answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
}

fn loads(weir: &Weir) -> u64 {
    metric(weir.http, LOADS).expect("the metric")
}

pub(super) fn problems(weir: &Weir) -> Vec<String> {
    let ready = http::get(weir.admin, "/readyz").expect("an answer");
    assert_eq!(ready.status, 200, "{ready:?}");
    let ready: Value = serde_json::from_str(&ready.body).expect("JSON");
    let problems = ready["policies"]["problems"].as_array().expect("a list");
    problems.iter().map(|problem| problem.as_str().expect("a text").to_owned()).collect()
}

/// What dropped limits before: a writer that pauses in the middle of a file, at a line after which it is valid.
#[test]
fn a_file_that_is_written_with_a_pause_is_loaded_whole() {
    const PAUSE: Duration = Duration::from_millis(1_200);
    // A machine that stops this test for as long as a file rests shows nothing.
    for _ in 0..5 {
        let directory = TempDir::new().expect("a temporary directory");
        let file = directory.path().join(FILE);
        fs::write(&file, rules(12, 10)).expect("the policy");
        let weir = Weir::start(directory.path(), &[] as &[&str]);
        let mut client = Client::connect(weir.grpc);
        let (before, started) = (loads(&weir), Instant::now());
        let whole = rules(12, 20);
        let half: String = whole.lines().take(6).map(|line| format!("{line}\n")).collect();
        fs::write(&file, &half).expect("half of the policy");
        let seen = within(PAUSE, || (limit(&mut client, "k11") != Some(10)).then_some(()));
        let elapsed = started.elapsed();
        fs::write(&file, &whole).expect("the whole policy");
        if elapsed >= REST {
            continue;
        }
        assert_eq!(seen, None, "half of the file is in force");
        until("the whole file", PATIENCE, || {
            let limit = limit(&mut client, "k11").expect("the rule of the second half never goes");
            (limit == 20).then_some(())
        });
        assert_eq!(loads(&weir), before + 1);
        let changed = weir.wait_for_log(0, PATIENCE, |line| {
            line.message() == Some(POLICIES_LOADED)
                && line.field("change").and_then(Value::as_str) == Some("rules 12 -> 12")
                && line.field("changed").and_then(Value::as_u64) == Some(12)
        });
        assert!(changed, "{}", weir.written());
        return;
    }
    panic!("the machine never let this test run for {REST:?}");
}

#[test]
fn each_load_logs_what_it_adds_removes_and_changes() {
    let mut policies = PolicyDirectory::with_file(FILE, &rules(12, 10));
    let weir = Weir::start(&policies.path(), &[] as &[&str]);
    policies.replace(&[(FILE.to_owned(), rules(4, 10))]);
    let logged = weir.wait_for_log(0, PATIENCE, |line| {
        let number = |name: &str| line.field(name).and_then(Value::as_u64);
        line.message() == Some(POLICIES_LOADED)
            && line.field("change").and_then(Value::as_str)
                == Some("rules 12 -> 4; removed shop k10, shop k11, shop k4 and 5 more")
            && (number("added"), number("removed"), number("changed")) == (Some(0), Some(8), Some(0))
    });
    assert!(logged, "{}", weir.written());
}

#[test]
fn sighup_loads_policies_that_never_come_to_rest() {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join(FILE);
    fs::write(&file, rules(1, 10)).expect("the policy");
    let weir = Weir::start(directory.path(), &[] as &[&str]);
    let mut client = Client::connect(weir.grpc);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Written anew all the time, complete at any time.
            let (other, next) = (directory.path().join("other.yaml"), directory.path().join(".next"));
            while !ended.load(Relaxed) {
                fs::write(&next, "domain: other\ndescriptors: []\n").expect("another policy");
                fs::rename(&next, &other).expect("the rename");
                // A pause far below the one between two looks.
                within(Duration::from_millis(20), || None::<()>);
            }
        });
        fs::write(&file, rules(1, 20)).expect("the policy");
        // An order is for what is there: it is given again until a load got between two renames.
        let loaded = within(PATIENCE, || {
            signal(weir.id(), "HUP");
            (limit(&mut client, "k0") == Some(20)).then_some(())
        });
        ended.store(true, Relaxed);
        assert_eq!(loaded, Some(()), "{}", weir.written());
    });
    let reloading = "reloading policies, certificates and the log file";
    assert!(weir.wait_for_log(0, PATIENCE, |line| line.message() == Some(reloading)), "{}", weir.written());
}

#[test]
fn a_file_that_is_rewritten_all_the_time_keeps_no_other_change_out() {
    let directory = TempDir::new().expect("a temporary directory");
    let (file, other) = (directory.path().join(FILE), directory.path().join("other.yaml"));
    let noise = |requests: u32| rules(1, requests).replace("domain: shop", "domain: other");
    fs::write(&file, rules(1, 10)).expect("the policy");
    fs::write(&other, noise(10)).expect("another policy");
    let weir = Weir::start(directory.path(), &[] as &[&str]);
    let mut client = Client::connect(weir.grpc);
    let before = loads(&weir);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for requests in 11.. {
                fs::write(&other, noise(requests)).expect("another policy");
                if within(Duration::from_millis(500), || ended.load(Relaxed).then_some(())).is_some() {
                    return;
                }
            }
        });
        fs::write(&file, rules(1, 20)).expect("the policy");
        let loaded = within(PATIENCE, || (limit(&mut client, "k0") == Some(20)).then_some(()));
        let answer = client.ask(rls::look("other", &[("k0", "x")])).expect("an answer");
        let of_other = answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit);
        ended.store(true, Relaxed);
        assert_eq!((loaded, of_other), (Some(()), Some(10)), "{}", weir.written());
    });
    assert_eq!(loads(&weir), before + 1);
    until("the other file at rest", PATIENCE, || (loads(&weir) == before + 2).then_some(()));
    assert_eq!(problems(&weir), Vec::<String>::new());
}

#[test]
fn a_pipe_or_a_device_is_a_problem_that_names_it_and_never_a_wait() {
    let directory = TempDir::new().expect("a temporary directory");
    fs::write(directory.path().join(FILE), rules(1, 10)).expect("the policy");
    let weir = Weir::start(directory.path(), &[] as &[&str]);
    let mut client = Client::connect(weir.grpc);
    let pipe = directory.path().join("pipe.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    until("the pipe at /readyz", PATIENCE, || {
        problems(&weir).iter().any(|problem| problem.ends_with("pipe.yaml: not a regular file")).then_some(())
    });
    fs::remove_file(&pipe).expect("the pipe is removed");
    let device = directory.path().join("device.yaml");
    symlink("/dev/zero", &device).expect("a link to a device");
    until("the device at /readyz", PATIENCE, || {
        problems(&weir).iter().any(|problem| problem.ends_with("device.yaml: not a regular file")).then_some(())
    });
    assert_eq!(limit(&mut client, "k0"), Some(10), "the last good policies stay in force");
    fs::remove_file(&device).expect("the link is removed");
    fs::write(directory.path().join(FILE), rules(1, 30)).expect("the policy");
    until("the next policies", PATIENCE, || (limit(&mut client, "k0") == Some(30)).then_some(()));
    assert_eq!(problems(&weir), Vec::<String>::new());
}

/// A link to a file of tokens, by which anyone at the public port read a token.
#[test]
fn a_file_that_is_no_policy_is_not_quoted_and_the_public_port_has_no_text_of_a_problem() {
    const SECRET: &str = "s3cret";
    let outside = TempDir::new().expect("a temporary directory");
    let directory = TempDir::new().expect("a temporary directory");
    fs::write(directory.path().join(FILE), rules(1, 10)).expect("the policy");
    let weir = Weir::start(directory.path(), &[] as &[&str]);
    let link = directory.path().join("x.yaml");
    for (name, text) in [
        ("admin.token", "ann s3cret-0123456789abcdef\n"),
        ("shadow", "root:$y$s3cret:19000:0:99999:7:::\nann:s3cret:1:2::\n"),
        ("secret.yaml", "s3cret-name: 1\npassword: s3cret\n"),
        ("key.pem", "-----BEGIN s3cret-----\ns3cret\n-----END s3cret-----\n"),
        ("environment", "TOKEN=s3cret\n"),
        ("list", "- s3cret\n"),
        ("broken", "s3cret: [\n"),
        ("account.json", r#"{"type": "s3cret", "s3cret": "-"}"#),
    ] {
        let file = outside.path().join(name);
        fs::write(&file, text).expect("the file");
        symlink(&file, &link).expect("a link");
        let problem = until("the problem of the link", PATIENCE, || {
            problems(&weir).into_iter().find(|problem| problem.contains("x.yaml"))
        });
        assert!(!problem.contains(SECRET), "{name}: {problem}");
        let public = http::get(weir.http, "/readyz").expect("an answer").body;
        assert!(!public.contains("x.yaml") && !public.contains(SECRET), "{name}: {public}");
        let public: Value = serde_json::from_str(&public).expect("JSON");
        let kind = if name == "broken" { "yaml" } else { "policy" };
        assert_eq!(public["policies"]["problem_count"], 1, "{name}");
        assert_eq!(public["policies"]["problem_kinds"], serde_json::json!([kind]), "{name}");
        for command in ["check", "test"] {
            let output = Command::new(binary()).arg(command).arg(&link).output().expect("weir runs");
            let said = String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).into_owned();
            assert!(!output.status.success() && !said.contains(SECRET), "{command} {name}: {said}");
        }
        let serve = Command::new(binary()).arg("serve").arg("--config").arg(&link).output().expect("weir runs");
        let said = String::from_utf8_lossy(&serve.stderr);
        assert!(!serve.status.success() && !said.contains(SECRET), "{name}: {said}");
        fs::remove_file(&link).expect("the link is removed");
        until("no problem", PATIENCE, || problems(&weir).is_empty().then_some(()));
    }
    assert!(!weir.written().contains(SECRET), "{}", weir.written());
}

fn check(path: &Path) -> Output {
    Command::new(binary()).arg("check").arg(path).output().expect("weir runs")
}

#[test]
fn check_takes_one_file() {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("one.txt");
    fs::write(&file, rules(2, 10)).expect("the policy");
    fs::write(directory.path().join("other.yaml"), "nonsense").expect("another file");
    let output = check(&file);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.ends_with("1 domain, 2 rules, 2 limits in 1 file\n"), "{output:?}");
}

#[test]
fn check_prints_no_control_characters_of_a_name() {
    let name = "shop\u{1b}[31m\r\u{202e}.yaml";
    for text in [rules(1, 1), "domain: [".to_owned()] {
        let directory = TempDir::new().expect("a temporary directory");
        fs::write(directory.path().join(name), text).expect("a policy");
        let output = check(directory.path());
        for printed in [output.stdout, output.stderr] {
            let printed = String::from_utf8_lossy(&printed).into_owned();
            assert!(!printed.chars().any(|c| c == '\u{202e}' || c.is_control() && c != '\n'), "{printed:?}");
        }
    }
}

#[test]
fn explain_prints_no_mark_of_direction_of_a_domain() {
    let directory = TempDir::new().expect("a temporary directory");
    let domain = "shop\u{202e}";
    fs::write(directory.path().join(FILE), rules(1, 1).replace("shop", domain)).expect("the policy");
    let explain = Command::new(binary()).arg("explain").arg(directory.path()).args([domain, "k0=x"]).output();
    let output = explain.expect("weir runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("key ") && text.matches("shop\\u{202e}").count() >= 2, "{output:?}");
    assert!(!text.contains('\u{202e}'), "{output:?}");
}

/// The example of `weir explain --help` is about a domain that its directory has.
#[test]
fn the_example_in_the_help_of_explain_works() {
    let help = Command::new(binary()).args(["explain", "--help"]).output().expect("weir runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let (_, examples) = help.split_once("Example:").expect("examples");
    let example = examples.lines().find_map(|line| line.trim().strip_prefix("weir explain ")).expect("an example");
    let output = Command::new(binary()).arg("explain").args(example.split_whitespace()).output().expect("weir runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("no domain") && text.contains("rule "), "{example}: {output:?}");
}

/// deploy/README.md states that the user `robot` of deploy/compose is never limited; Envoy asks about its address too.
#[test]
fn the_robot_of_the_compose_example_is_never_limited() {
    let policy = fs::read_to_string("deploy/compose/policies/shop.yaml").expect("the example");
    let served = Served::start(&policy, &[]);
    let mut client = Client::connect(served.at.grpc);
    let mut ask = |user: &str, hits: u32| {
        let mut request = rls::request("shop", &[("user", user)]);
        request.descriptors.extend(rls::request("shop", &[("remote_address", "10.0.0.1")]).descriptors);
        request.hits_addend = hits;
        rls::admits(&client.ask(request).expect("an answer"))
    };
    for _ in 0..100 {
        assert!(ask("robot", 100));
    }
    assert!(ask("ann", 3), "the robot has used up nobody's limit");
    assert!(!ask("ann", 1));
}
