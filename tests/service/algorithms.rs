//! Every algorithm that a policy can name, through the real binary on Redis: the limit is admitted, the next hit is not, and each
//! state has its key and expires. Not in here: what each algorithm decides over time, on both stores (store/conformance.rs), and
//! what an operator sees of a state (operator/states.rs).

use std::fmt::Write as _;

use weir_engine::Algorithm;

use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};

/// What every rule admits at once.
const LIMIT: u32 = 3;

/// A user with one hit on each rule.
const NEWCOMER: &str = "zoe";

/// A rule for every algorithm and each of its parameters.
struct Named {
    key: &'static str,
    /// The limit as policies write it.
    limit: &'static str,
    algorithm: &'static str,
    /// The end of the key of its state.
    id: &'static str,
}

const fn named(key: &'static str, limit: &'static str, algorithm: &'static str, id: &'static str) -> Named {
    Named { key, limit, algorithm, id }
}

/// Windows are long, and rates slow: a test that sees one turn begins anew.
const RULES: [Named; 19] = [
    named("window", "{unit: week, requests_per_unit: 3}", "fixed_window", "f604800s"),
    named("short_form", "3/month", "fixed_window", "f2592000s"),
    named("drained", "{rate: 3/year, name: quota, drain: true}", "fixed_window", "f31536000s"),
    named("requests", "{rate: 3/year, counts: requests}", "fixed_window", "rf31536000s"),
    named("spans", "{rate: 3/year, during: [00:00-12:00, '12:00-24:00']}", "fixed_window", "f31536000s"),
    named("first_hit", "{window: 30d, requests_per_unit: 3, anchor: first_hit}", "fixed_window", "h2592000s"),
    named("calendar", "{rate: 3/week, calendar: true}", "fixed_window", "kweek@"),
    named("tokyo", "{rate: 3/month, calendar: true, timezone: Asia/Tokyo}", "fixed_window", "kmonth@Asia/Tokyo"),
    named(
        "kathmandu",
        "{rate: 3/year, calendar: true, timezone: asia/kathmandu}",
        "fixed_window",
        "kyear@Asia/Kathmandu",
    ),
    named("weighted", "{rate: 3/week, algorithm: sliding_window_counter}", "sliding_window_counter", "c604800s"),
    named("sliding", "{rate: 3/60d, algorithm: sliding_window}", "sliding_window", "w5184000s/86400s"),
    named("fine", "{rate: 3/256h, algorithm: sliding_window, precision: 1h}", "sliding_window", "w921600s/3600s"),
    named("log", "{rate: 3/30d, algorithm: sliding_window_log}", "sliding_window_log", "l2592000s"),
    named("bucket", "{rate: 1/d, algorithm: token_bucket, burst: 3}", "token_bucket", "t86400s"),
    named("interval", "{rate: 1/d, algorithm: token_bucket, burst: 3, refill: interval}", "token_bucket", "i86400s"),
    named("leaky", "{rate: 1/d, algorithm: leaky_bucket, burst: 3}", "leaky_bucket", "b86400s"),
    named("cells", "{rate: 1/d, algorithm: gcra, burst: 3}", "gcra", "g86400s"),
    named("default_burst", "{rate: 3/d, algorithm: gcra}", "gcra", "g86400s"),
    named("seventh", "{rate: 7/366d, algorithm: gcra, burst: 3}", "gcra", "g31622400s"),
];

/// How the policies begin: with a limit of each algorithm in one list.
const MIXED: &str = "\
domain: all
descriptors:
  - key: mixed
    rate_limits:
      - 3/week
      - {rate: 3/month, calendar: true, timezone: Europe/Berlin}
      - {rate: 3/week, algorithm: sliding_window_counter}
      - {rate: 3/30d, algorithm: sliding_window}
      - {rate: 3/30d, algorithm: sliding_window_log}
      - {rate: 1/d, algorithm: token_bucket, burst: 3, refill: interval}
      - {rate: 1/d, algorithm: leaky_bucket, burst: 3}
      - {rate: 1/d, algorithm: gcra, burst: 3}
";
const MIXED_LIMITS: usize = 8;

fn policies() -> PolicyDirectory {
    let mut text = MIXED.to_owned();
    for Named { key, limit, .. } in &RULES {
        writeln!(text, "  - {{key: {key}, rate_limit: {limit}}}").expect("a string takes all");
    }
    PolicyDirectory::with_file("all.yaml", &text)
}

#[test]
fn each_algorithm_admits_its_limit() {
    let (policies, redis) = (policies(), RedisServer::start());
    let url = redis.url();
    let weir = Weir::start(&policies.path(), &["--store", "redis", "--redis-url", &url, "--set", "redis.timeout=5s"]);
    let mut client = Client::connect(weir.grpc);
    for key in RULES.iter().map(|rule| rule.key).chain(["mixed"]) {
        fill(&mut client, key);
        assert!(client.admits("all", key, NEWCOMER), "{key}");
    }
    let keys = redis.command(&["KEYS", "*"]).expect("redis answers");
    let keys: Vec<&str> = keys.lines().collect();
    for Named { key, id, .. } in &RULES {
        let state = format!("w1:{{all|{key}={NEWCOMER}}}{id}");
        assert!(keys.contains(&&*state), "{state} is not in {keys:?}");
    }
    let of_newcomer = keys.iter().filter(|key| key.contains(NEWCOMER)).count();
    assert_eq!(of_newcomer, RULES.len() + MIXED_LIMITS, "{keys:?}");
    for key in keys {
        let left_ms = redis.command(&["PTTL", key]).expect("redis answers");
        assert!(left_ms.trim().parse::<i64>().is_ok_and(|ms| ms > 0), "{key} expires in {left_ms:?} ms");
    }
}

#[test]
fn there_is_a_rule_of_each_algorithm() {
    for name in Algorithm::NAMES {
        let is_tested = name == "concurrency" || RULES.iter().any(|rule| rule.algorithm == name);
        assert!(is_tested, "no rule has {name}");
    }
}

/// Takes hits of a rule until it denies one; they are exactly its limit. A window may turn between two hits, and then another user
/// has the whole of the next.
fn fill(client: &mut Client, key: &str) {
    let expected: Vec<(bool, u32)> = (0..=LIMIT).rev().skip(1).map(|left| (true, left)).chain([(false, 0)]).collect();
    let mut seen = Vec::new();
    for user in ["ann", "bob"] {
        seen.clear();
        for _ in 0..=LIMIT {
            let answer = client.ask(rls::request("all", &[(key, user)])).expect("an answer");
            let [status] = &answer.statuses[..] else { panic!("one status each: {answer:?}") };
            let reset = status.duration_until_reset.as_ref().expect("a time");
            assert!(reset.seconds > 0, "{key}: {answer:?}");
            seen.push((rls::admits(&answer), status.limit_remaining));
        }
        if seen == expected {
            return;
        }
    }
    panic!("{key}: {seen:?}, expected {expected:?}");
}
