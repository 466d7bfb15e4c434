//! Every algorithm that a policy can name, through the real binary on both stores: the limit is admitted and the next hit
//! is not, an operator sees what is stored, and forgets it. Not in here: what each algorithm decides over time, which is
//! proven where no clock runs.

use std::fmt::Write as _;

use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{Value, json};
use weir_engine::Algorithm;

use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::metric;

/// What every rule admits at once.
const LIMIT: u32 = 3;

/// A user whose hits nobody resets.
const STAYS: &str = "zoe";

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
const RULES: [Named; 17] = [
    named("window", "{unit: week, requests_per_unit: 3}", "fixed_window", "f604800s"),
    named("short_form", "3/month", "fixed_window", "f2592000s"),
    named("drained", "{rate: 3/year, name: quota, drain: true}", "fixed_window", "f31536000s"),
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
fn each_algorithm_admits_its_limit_on_the_memory_store() {
    for charging in ["atomic", "independent"] {
        check_all(charging, &["--store", "memory"]);
    }
}

#[test]
fn each_algorithm_admits_its_limit_on_redis() {
    for charging in ["atomic", "independent"] {
        let redis = RedisServer::start();
        // Busy machines: how long Redis may take.
        let timeout = ["--set", "redis.timeout=5s"];
        check_all(charging, &[&["--store", "redis", "--redis-url", &redis.url()][..], &timeout[..]].concat());
        let keys = redis.command(&["KEYS", "*"]).expect("redis answers");
        let keys: Vec<&str> = keys.lines().collect();
        let staying = keys.iter().filter(|key| key.contains(&format!("={STAYS}}}"))).count();
        assert_eq!(staying, RULES.len() + MIXED_LIMITS, "{keys:?}");
        for key in keys {
            let left_ms = redis.command(&["PTTL", key]).expect("redis answers");
            assert!(left_ms.trim().parse::<i64>().is_ok_and(|ms| ms > 0), "{key} expires in {left_ms:?} ms");
        }
    }
}

#[test]
fn there_is_a_rule_of_each_algorithm() {
    for name in Algorithm::NAMES {
        let is_tested = name == "concurrency" || RULES.iter().any(|rule| rule.algorithm == name);
        assert!(is_tested, "no rule has {name}");
    }
}

/// What differs from the others: a request takes one permit whatever its hits, refunds take out none, and the wait of a denial
/// is a bound. Its domain is atomic with any setting. [cc-3] [cc-4] [cc-7]
#[test]
fn requests_hold_permits_on_both_stores() {
    const PERMITS: &str = "{requests_per_unit: 3, window: 1h, algorithm: concurrency}";
    let policies = PolicyDirectory::with_file(
        "p.yaml",
        &format!("domain: all\ndescriptors: [{{key: k, rate_limit: {PERMITS}}}]\n"),
    );
    let redis = RedisServer::start();
    let on_redis = ["--store", "redis", "--redis-url", &redis.url(), "--set", "redis.timeout=5s"].map(str::to_owned);
    let in_memory = ["--store", "memory"].map(str::to_owned);
    for store in [&on_redis[..], &in_memory[..]] {
        let store: Vec<&str> = store.iter().map(String::as_str).chain(["--charging", "independent"]).collect();
        let weir = Weir::start(&policies.path(), &store);
        let ask = |hits: &str, refund: bool| {
            let descriptor = json!({
                "entries": [{"key": "k", "value": "ann"}], "hitsAddend": hits, "isNegativeHits": refund,
            });
            let body = json!({"domain": "all", "descriptors": [descriptor]}).to_string();
            http::post_json(weir.http, "/json?detail=true", &body).expect("an answer")
        };
        let told = |answer: &http::Answer| {
            let status = json_of(answer)["statuses"][0].clone();
            let detail = &status["detail"];
            (
                answer.status,
                status["limitRemaining"].as_u64().unwrap_or(0),
                detail["at_latest"].as_bool(),
                detail["charged"] == true,
            )
        };
        assert_eq!(told(&ask("1", false)), (200, 2, None, true), "{store:?}");
        assert_eq!(told(&ask("5", false)), (200, 1, None, true), "{store:?}");
        assert_eq!(told(&ask("0", false)), (200, 1, None, false), "{store:?}");
        assert_eq!(told(&ask("1000000", false)), (200, 0, Some(true), true), "{store:?}");
        assert_eq!(told(&ask("3", true)), (200, 0, None, false), "{store:?}");
        // Twice: with Redis the second denial comes from Redis too.
        for _ in 0..2 {
            let denied = ask("1", false);
            assert_eq!(told(&denied), (429, 0, Some(true), false), "{store:?}");
            assert_eq!(denied.header("retry-after"), None, "{denied:?}");
        }
        assert_eq!(metric(weir.admin, "weir_deny_cache_hits_total").unwrap_or(0), 0, "{store:?}");
        let path = "/state?domain=all&descriptor=k=ann";
        let state = json_of(&http::get(weir.admin, path).expect("an answer"));
        let limit = &state["limits"][0];
        assert_eq!((&limit["key"], &limit["remaining"]), (&json!("w1:{all|k=ann}p3600s"), &json!(0)), "{state}");
        assert_eq!(json_of(&http::request(weir.admin, "DELETE", path, &[], "").expect("an answer"))["stored"], 1);
        assert_eq!(told(&ask("1", false)), (200, 2, None, true), "{store:?}");
    }
}

fn check_all(charging: &str, store: &[&str]) {
    let policies = policies();
    let weir = Weir::start(&policies.path(), &[store, &["--charging", charging]].concat());
    let mut client = Client::connect(weir.grpc);
    for rule in &RULES {
        let told = format!("{} with {charging} charging on {store:?}", rule.key);
        let user = fill(&mut client, rule.key, &told);

        // What an operator sees is what the requests have used.
        let path = format!("/state?domain=all&descriptor={}={user}", rule.key);
        let state = json_of(&http::get(weir.admin, &path).expect("an answer"));
        let limit = &state["limits"][0];
        assert_eq!(limit["key"], format!("w1:{{all|{}={user}}}{}", rule.key, rule.id), "{told}");
        assert_eq!((&limit["algorithm"], &limit["stored"]), (&json!(rule.algorithm), &json!(true)), "{told}: {state}");
        assert_eq!(limit["remaining"], 0, "{told}: {state}");
        assert!(limit["reset_after_us"].as_u64().is_some_and(|us| us > 0), "{told}: {state}");

        if charging == "atomic" {
            // What is given back can be taken again, once.
            let mut refund = rls::request("all", &[(rule.key, user)]);
            refund.descriptors[0].is_negative_hits = true;
            let given = client.ask(refund).expect("an answer");
            assert_eq!((rls::admits(&given), given.statuses[0].limit_remaining), (true, 1), "{told}");
            assert!(client.admits("all", rule.key, user), "{told}");
            assert!(!client.admits("all", rule.key, user), "{told}");
        }

        // Forgotten, there is all of it again; and more than all of it never fits.
        let reset = http::request(weir.admin, "DELETE", &path, &[], "").expect("an answer");
        assert_eq!(json_of(&reset)["stored"], 1, "{told}: {reset:?}");
        let look = client.ask(rls::look("all", &[(rule.key, user)])).expect("an answer");
        assert_eq!((rls::admits(&look), look.statuses[0].limit_remaining), (true, LIMIT), "{told}");
        let mut heavy = rls::request("all", &[(rule.key, "heavy")]);
        heavy.descriptors[0].hits_addend = Some(UInt64Value { value: u64::from(LIMIT) + 1 });
        assert!(!rls::admits(&client.ask(heavy).expect("an answer")), "{told}");
        assert!(client.admits("all", rule.key, STAYS), "{told}");
    }

    let told = format!("a list with {charging} charging on {store:?}");
    let user = fill(&mut client, "mixed", &told);
    let path = format!("/state?domain=all&descriptor=mixed={user}");
    let state = json_of(&http::get(weir.admin, &path).expect("an answer"));
    let limits = state["limits"].as_array().expect("a list");
    assert_eq!(limits.len(), MIXED_LIMITS, "{told}");
    assert!(limits.iter().all(|limit| limit["remaining"] == 0), "{told}: {state}");
    let reset = http::request(weir.admin, "DELETE", &path, &[], "").expect("an answer");
    assert_eq!(json_of(&reset)["stored"], MIXED_LIMITS, "{told}: {reset:?}");
    assert!(client.admits("all", "mixed", STAYS), "{told}");
}

/// Takes hits of a rule until it denies one; they are exactly its limit. Answers for which user: a window may turn
/// between two hits, and then another user has the whole of the next.
fn fill(client: &mut Client, key: &str, told: &str) -> &'static str {
    let expected: Vec<(bool, u32)> = (0..=LIMIT).rev().skip(1).map(|left| (true, left)).chain([(false, 0)]).collect();
    let mut seen = Vec::new();
    for user in ["ann", "bob"] {
        seen.clear();
        for _ in 0..=LIMIT {
            let answer = client.ask(rls::request("all", &[(key, user)])).expect("an answer");
            let [status] = &answer.statuses[..] else { panic!("one status each: {answer:?}") };
            let reset = status.duration_until_reset.as_ref().expect("a time");
            assert!(reset.seconds > 0, "{told}: {answer:?}");
            seen.push((rls::admits(&answer), status.limit_remaining));
        }
        if seen == expected {
            return user;
        }
    }
    panic!("{told}: {seen:?}, expected {expected:?}");
}

fn json_of(answer: &http::Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}
