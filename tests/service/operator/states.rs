//! `/states`: the states of one rule, page by page, in memory and in Redis.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::http;
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::Served;

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, requests_per_unit: 3, unit: hour}}
  - {key: us, rate_limit: {requests_per_unit: 3, unit: hour}}
  - key: plan
    value: free
    rate_limit: {requests_per_unit: 10, unit: day}
    descriptors:
      - {key: path, rate_limit: {requests_per_unit: 10, unit: day, algorithm: token_bucket}}
  - {key: client, value: 10.*, share_threshold: true, rate_limit: {requests_per_unit: 7, unit: hour}}
  - {key: vip, rate_limit: {unlimited: true}}
";

fn ask(served: &Served, times: usize, entries: &[(&str, &str)]) {
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..times {
        client.ask(rls::request("shop", entries)).unwrap();
    }
}

fn page(served: &Served, path: &str) -> Value {
    let answer = http::get(served.at.admin, path).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// All pages of a rule: used and remaining, by descriptor. And how many pages there were.
fn all(served: &Served, rule: &str, max: usize) -> (BTreeMap<String, (u64, u64)>, usize) {
    let (mut states, mut pages, mut from) = (BTreeMap::new(), 0, String::new());
    loop {
        let page = page(served, &format!("/states?domain=shop&rule={rule}&max={max}{from}"));
        pages += 1;
        for state in page["states"].as_array().unwrap() {
            let number = |name: &str| state[name].as_u64().unwrap();
            assert!(
                number("reset_after_us") > 0 && number("capacity") == number("used") + number("remaining"),
                "{state}"
            );
            let descriptor = state["descriptor"].as_str().unwrap().to_owned();
            states.insert(descriptor, (number("used"), number("remaining")));
        }
        match page["next"].as_str() {
            Some(next) => from = format!("&from={next}"),
            None => return (states, pages),
        }
        assert!(pages < 1_000);
    }
}

fn states_are_listed_by_rule(served: &Served) {
    ask(served, 2, &[("user", "ann")]);
    ask(served, 5, &[("user", "a,b*[?")]);
    ask(served, 1, &[("us", "er=ann")]);
    ask(served, 1, &[("plan", "free"), ("path", "/x")]);
    ask(served, 1, &[("plan", "free")]);
    ask(served, 2, &[("client", "10.0.0.1")]);
    ask(served, 2, &[("client", "10.0.0.2")]);
    let of = |rule: &str| all(served, rule, 100).0.into_iter().collect::<Vec<_>>();
    assert_eq!(of("user"), [("user=a\\,b*[?".into(), (3, 0)), ("user=ann".into(), (2, 1))]);
    assert_eq!(of("us"), [("us=er=ann".into(), (1, 2))]);
    assert_eq!(of("plan=free%7Cpath"), [("plan=free,path=/x".into(), (1, 9))]);
    assert_eq!(of("plan=free"), [("plan=free".into(), (1, 9))]);
    assert_eq!(of("client=10.*"), [("client=10.*".into(), (4, 3))]);
    assert_eq!(of("vip"), []);

    // A value that is too long for a key is cut, and the answer says so.
    ask(served, 1, &[("user", &"x".repeat(250))]);
    let page = page(served, "/states?domain=shop&rule=user");
    let cut: Vec<&Value> = page["states"].as_array().unwrap().iter().filter(|state| state["cut"] == true).collect();
    assert_eq!(cut.len(), 1, "{page}");
    assert!(cut[0]["descriptor"].as_str().unwrap().starts_with("user=xxxx") && cut[0]["used"] == 1, "{page}");
}

fn many_states_come_in_pages(served: &Served, states_max: usize) {
    let mut client = Client::connect(served.at.grpc);
    for number in 0..700 {
        client.ask(rls::request("shop", &[("user", &format!("u{number:03}"))])).unwrap();
    }
    let (states, pages) = all(served, "user", 50);
    assert_eq!(states.len(), 700);
    assert!(pages > 3, "{pages}");
    let first = page(served, "/states?domain=shop&rule=user&max=50");
    assert!(first["states"].as_array().unwrap().len() <= states_max, "{}", first["states"].as_array().unwrap().len());
}

#[test]
fn states_in_memory_are_listed_by_rule() {
    states_are_listed_by_rule(&Served::start(POLICY, &[]));
}

#[test]
fn many_states_in_memory_come_in_pages() {
    many_states_come_in_pages(&Served::start(POLICY, &["memory.max_keys=1000"]), 50 + 256);
}

#[test]
fn states_in_redis_are_listed_by_rule() {
    let redis = RedisServer::start();
    let settings = ["store=redis".to_owned(), format!("redis.url={}", redis.url()), "redis.timeout=2s".to_owned()];
    let served = Served::start(POLICY, &settings.each_ref().map(String::as_str));
    states_are_listed_by_rule(&served);
    many_states_come_in_pages(
        &Served::start(POLICY, &[&settings[0], &settings[1], &settings[2], "redis.key_prefix=e*:"]),
        50 + 256,
    );
}

#[test]
fn wrong_questions_are_answered_with_what_is_wrong() {
    let served = Served::start(POLICY, &["admin.values=hidden"]);
    for (path, status, expected) in [
        ("/states?domain=shop&rule=usr", 404, "no rule of the policies in force"),
        ("/states?domain=shop&rule=user&max=257", 400, "max = 257: must be from 1 to 256"),
        ("/states?domain=shop&rule=user&from=x", 400, "from: must be the"),
        ("/states?domain=shop", 400, "missing field `rule`"),
    ] {
        let answer = http::get(served.at.admin, path).unwrap();
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body.contains(expected), "{path}: {}", answer.body);
    }
    let far = page(&served, "/states?domain=shop&rule=user&from=4000000000-7");
    assert_eq!((far["states"].as_array().unwrap().len(), &far["next"]), (0, &Value::Null));
    ask(&served, 1, &[("user", "ann")]);
    let hidden = page(&served, "/states?domain=shop&rule=user");
    assert!(hidden["states"][0]["descriptor"] == "user=*" && !hidden.to_string().contains("ann"), "{hidden}");
}
