//! A real Envoy in front of weir: what Envoy's clients see when a limit is used up.

mod support;

use support::envoy::Envoy;
use support::http::{self, Answer};
use support::process::{PolicyDirectory, Weir};
use support::redis::RedisServer;

/// Three an hour for each user; the configuration of Envoy sends the header `x-user`.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
";

const HOUR_SECONDS: u64 = 3600;

#[test]
fn three_of_five_pass_on_the_memory_store() {
    three_of_five_pass(&["--store", "memory"]);
}

#[test]
fn three_of_five_pass_on_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    // Busy machines: the time that Envoy waits for an answer.
    let patience = ["--set", "redis.timeout=900ms"];
    let store = ["--store", "redis", "--redis-url", &url];
    three_of_five_pass(&[&store[..], &patience[..]].concat());
}

fn three_of_five_pass(arguments: &[&str]) {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), arguments);
    let envoy = Envoy::start(weir.grpc);

    // An hour may end between two requests; then the next user has a whole hour.
    let mut answers = ask_five_times(&envoy, "ann");
    if statuses(&answers) != [200, 200, 200, 429, 429] {
        answers = ask_five_times(&envoy, "bob");
    }
    assert_eq!(statuses(&answers), [200, 200, 200, 429, 429], "{answers:?}");

    for (index, answer) in answers.iter().enumerate() {
        let left = [2, 1, 0, 0, 0][index];
        assert_eq!(number(answer, "x-ratelimit-remaining"), left, "{answer:?}");
        let reset = number(answer, "x-ratelimit-reset");
        assert!(reset <= HOUR_SECONDS, "{answer:?}");
        // The limit now in force, then every limit with its window.
        let limit = answer.header("x-ratelimit-limit");
        assert_eq!(limit, Some("3, 3;w=3600"), "{answer:?}");
    }
    for passed in &answers[..3] {
        assert_eq!(passed.body, "upstream\n");
        assert_eq!(passed.header("x-envoy-ratelimited"), None);
    }
    for denied in &answers[3..] {
        assert_eq!(denied.body, "", "a denied request reaches no upstream");
        assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    }

    // Another user has a count of its own, and a request that no limit is about just passes.
    let other = get(&envoy, &[("x-user", "zoe")]);
    assert_eq!(other.status, 200, "{other:?}");
    assert_eq!(number(&other, "x-ratelimit-remaining"), 2, "{other:?}");
    let unlimited = get(&envoy, &[]);
    assert_eq!(unlimited.status, 200, "{unlimited:?}");
    assert_eq!(unlimited.header("x-ratelimit-limit"), None);
}

/// With `failure_mode_deny` a weir that is gone stops the traffic; this shows that the filter asks.
#[test]
fn without_weir_nothing_passes() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let envoy = Envoy::start(weir.grpc);
    assert_eq!(get(&envoy, &[("x-user", "ann")]).status, 200);

    weir.terminate();
    weir.wait_for_exit();
    assert_eq!(get(&envoy, &[("x-user", "ann")]).status, 500);
}

fn ask_five_times(envoy: &Envoy, user: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(get(envoy, &[("x-user", user)]));
    }
    answers
}

fn get(envoy: &Envoy, headers: &[(&str, &str)]) -> Answer {
    http::request(envoy.ingress, "GET", "/", headers, "").expect("envoy answers")
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no number in {header}: {answer:?}"))
}
