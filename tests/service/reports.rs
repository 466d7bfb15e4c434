//! What users of rate limiters reported, each as a test that is named for its report and says what its user saw.
//!
//! Bugs of weir's own become vectors. Some reports are beside tests that have what they need: `envoyproxy_ratelimit_462_...` in
//! tests/redis/health.rs, `envoyproxy_ratelimit_1143_...` in tests/redis/faults.rs, `envoyproxy_ratelimit_1103_...` in
//! tests/service/lifecycle.rs, and `envoyproxy_ratelimit_1230_...` in tests/service/dropin/statistics.rs and
//! tests/store/deny_cache.rs.

mod algorithms;

use std::process::Command;

use serde_json::{Value, json};

use super::dropin::started::{Ratelimit, Runtime};
use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir, binary};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::{Served, metric};
use crate::support::wait::{PATIENCE, until};

/// The last status of this many requests with these entries.
fn after(served: &Served, count: u32, entries: &[(&str, &str)]) -> Value {
    let mut client = Client::connect(served.at.grpc);
    let mut last = Value::Null;
    for _ in 0..count {
        let answer = client.ask(rls::request("shop", entries)).unwrap();
        last = rls::response_to_json(&answer)["statuses"][0].clone();
    }
    last
}

fn is_over(status: &Value) -> bool {
    status["code"] == "OVER_LIMIT"
}

/// `weir check` of this policy: whether it succeeds, and its errors.
fn check(policy: &str) -> (bool, String) {
    let directory = PolicyDirectory::with_file("shop.yaml", policy);
    let output = Command::new(binary()).arg("check").arg(directory.path()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// A limit was raised from 10 to 20 an hour after 40 denials. The counter had them, so the caller got nothing more.
#[test]
fn envoyproxy_ratelimit_185_a_raised_limit_is_there_after_denials() {
    let policy = |limit: u32| format!("domain: shop\ndescriptors:\n- {{key: user, rate_limit: {limit}/year}}\n");
    let mut directory = PolicyDirectory::with_file("shop.yaml", &policy(10));
    let weir = Weir::start(&directory.path(), &["--store", "memory"]);
    let mut client = Client::connect(weir.grpc);
    let mut admitted = |count: u32| (0..count).filter(|_| client.admits("shop", "user", "ann")).count();
    assert_eq!(admitted(50), 10);
    directory.replace(&[("shop.yaml".to_owned(), policy(20))]);
    until("the raised limit", PATIENCE, || (admitted(1) == 1).then_some(()));
    assert_eq!(admitted(50), 9);
}

/// Two files of one domain were needed, one for each team. The second was refused, and there was no way to have both.
#[test]
fn envoyproxy_ratelimit_206_two_files_may_share_a_domain_by_a_setting() {
    let file = |key: &str| format!("domain: shop\ndescriptors:\n- {{key: {key}, rate_limit: 1/year}}\n");
    let files = [("a.yaml".to_owned(), file("user")), ("b.yaml".to_owned(), file("path"))];
    let directory = PolicyDirectory::with_files(&files);
    let weir = Weir::start(&directory.path(), &["--store", "memory", "--set", "policies.merge_domains=on"]);
    let mut client = Client::connect(weir.grpc);
    for key in ["user", "path"] {
        assert!(client.admits("shop", key, "x"), "{key}");
        assert!(!client.admits("shop", key, "x"), "{key}");
    }
}

/// Two rules were refused as duplicates, and nothing said that one descriptor may have both below it.
#[test]
fn envoyproxy_ratelimit_287_a_descriptor_that_comes_twice_is_named_with_both_places() {
    let (is_good, errors) = check(
        "domain: shop\ndescriptors:\n\
         - {key: generic_key, value: abc, descriptors: [{key: PATH, rate_limit: 3/min}]}\n\
         - {key: generic_key, value: abc, descriptors: [{key: PATH, value: /foo, rate_limit: 100/min}]}\n",
    );
    assert!(!is_good);
    assert!(
        errors.contains(r#"shop.yaml:4:3: key "generic_key" with value "abc" appears twice, first at line 3"#),
        "{errors}"
    );
    let (is_good, errors) = check(
        "domain: shop\ndescriptors:\n\
         - key: generic_key\n  value: abc\n  \
           descriptors: [{key: PATH, rate_limit: 3/min}, {key: PATH, value: /foo, rate_limit: 100/min}]\n",
    );
    assert!(is_good, "{errors}");
}

/// An editor made a swap file beside a policy, and the service took it for one and refused all policies.
#[test]
fn envoyproxy_ratelimit_302_a_swap_file_of_an_editor_is_no_policy() {
    let policy = "domain: shop\ndescriptors:\n- {key: user, rate_limit: 1/year}\n";
    let files =
        [(".shop.yaml.swp", "b0VIM 8.2\0"), (".#shop.yaml", "b0VIM"), ("shop.yaml~", "domain:"), ("shop.yaml", policy)];
    let directory = PolicyDirectory::with_files(&files.map(|(name, text)| (name.to_owned(), text.to_owned())));
    let output = Command::new(binary()).arg("check").arg(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `/rlconfig` crashed the handler while no policies were loaded.
#[test]
fn envoyproxy_ratelimit_306_rlconfig_answers_without_policies() {
    let runtime = Runtime::with([]);
    let started = Ratelimit::try_start(&runtime.variables()).unwrap();
    let answer = http::get(started.debug, "/rlconfig").unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
}

/// A limit for `/api/` held for no path below it, and a wildcard in a value was an ordinary text.
#[test]
fn envoyproxy_ratelimit_317_a_wildcard_meets_every_path_below() {
    let served = Served::start(
        "domain: shop\ndescriptors:\n- {key: PATH, value: /api/*, share_threshold: true, rate_limit: 2/year}\n",
        &[],
    );
    assert!(!is_over(&after(&served, 1, &[("PATH", "/api/feed")])));
    assert!(!is_over(&after(&served, 1, &[("PATH", "/api/whatever")])));
    assert!(is_over(&after(&served, 1, &[("PATH", "/api/other")])));
    assert_eq!(after(&served, 1, &[("PATH", "/events")]), json!({"code": "OK"}));
}

/// `*.example.com` met no host: a star worked at the end of a value only.
#[test]
fn envoyproxy_ratelimit_458_a_wildcard_may_begin_a_value() {
    let served =
        Served::start("domain: shop\ndescriptors:\n- {key: HOST, value: \"*.example.com\", rate_limit: 1/year}\n", &[]);
    assert!(is_over(&after(&served, 2, &[("HOST", "foo.example.com")])));
    assert_eq!(after(&served, 2, &[("HOST", "foo.example.org")]), json!({"code": "OK"}));
}

/// With a local cache, the statistic of a rule in shadow mode stood still at the first request over its limit.
#[test]
fn envoyproxy_ratelimit_423_shadow_mode_counts_each_request_with_a_local_cache() {
    let policy = "domain: shop\ndescriptors:\n\
                  - {key: user, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}\n";
    let redis = RedisServer::start();
    let runtime = Runtime::with([("shop.yaml", policy)]);
    let environment = runtime
        .variables()
        .with("REDIS_SOCKET_TYPE", "tcp")
        .with("REDIS_URL", &format!("127.0.0.1:{}", redis.port()))
        .with("LOCAL_CACHE_SIZE_IN_BYTES", "1000000");
    let started = Ratelimit::try_start(&environment).unwrap();
    let mut client = Client::connect(started.grpc);
    for _ in 0..5 {
        assert!(client.admits("shop", "user", "ann"));
    }
    for name in ["over_limit", "shadow_mode"] {
        let series = format!("ratelimit_service_rate_limit_{name}{{domain=\"shop\",key1=\"user\"}}");
        assert_eq!(metric(started.debug, &series), Some(4), "{name}");
    }
}

/// A second and a minute were to be limited for one value, and a descriptor could have one limit only.
#[test]
fn envoyproxy_ratelimit_693_a_descriptor_may_have_two_limits() {
    let served = Served::start(
        "domain: shop\ndescriptors:\n- {key: method, value: get, rate_limits: [{rate: 5/year}, {rate: 2/month}]}\n",
        &[],
    );
    assert!(!is_over(&after(&served, 2, &[("method", "get")])));
    let denied = after(&served, 1, &[("method", "get")]);
    assert!(is_over(&denied));
    assert_eq!(denied["currentLimit"]["requestsPerUnit"], 2);
}

/// Hits of 0 counted as 1, so nobody could look at a quota without using it.
#[test]
fn envoyproxy_ratelimit_730_hits_of_0_look_and_take_nothing() {
    let served = Served::start("domain: shop\ndescriptors:\n- {key: user, rate_limit: 2/year}\n", &[]);
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..5 {
        let answer = client.ask(rls::look("shop", &[("user", "ann")])).unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 2);
    }
    assert!(is_over(&after(&served, 3, &[("user", "ann")])));
}

/// Each value of a request with a limit of its own became a series of metrics, until memory ran out.
#[test]
fn envoyproxy_ratelimit_1132_values_with_a_limit_of_the_request_are_no_series() {
    let served = Served::start("domain: shop\ndescriptors:\n- {key: user, rate_limit: 2/year}\n", &[]);
    let series = || http::get(served.at.http, "/metrics").unwrap().body.lines().count();
    let ask = |value: &str| {
        let entries = json!([{"key": "user", "value": value}]);
        let limit = json!({"requestsPerUnit": 9, "unit": "DAY"});
        let request = json!({"domain": "shop", "descriptors": [{"entries": entries, "limit": limit}]});
        http::post_json(served.at.http, "/json", &request.to_string()).unwrap().status
    };
    assert_eq!(ask("first"), 200);
    let before = series();
    for number in 0..100 {
        assert_eq!(ask(&format!("user-{number}")), 200);
    }
    assert_eq!(series(), before);
}

/// The headers of a request that a limit a minute denied had the wait of the limit a year beside it.
#[test]
fn threescale_apisonator_54_a_denial_has_the_wait_of_the_limit_that_denied() {
    let served = Served::start(
        "domain: shop\ndescriptors:\n- {key: user, rate_limits: [{rate: 100000/year}, {rate: 5/hour}]}\n",
        &[],
    );
    let denied = after(&served, 6, &[("user", "ann")]);
    assert!(is_over(&denied));
    let reset = denied["durationUntilReset"].as_str().unwrap().trim_end_matches('s').parse::<f64>().unwrap();
    assert!(reset <= 3_600.0, "{denied}");
}

/// A rule for the key `type_example` limited requests whose key is `type` and whose value is `example`.
#[test]
fn kgateway_3801_a_key_is_not_a_key_and_a_value_that_are_joined() {
    let served = Served::start("domain: shop\ndescriptors:\n- {key: type_example, rate_limit: 1/year}\n", &[]);
    assert_eq!(after(&served, 2, &[("type", "example")]), json!({"code": "OK"}));
    assert!(is_over(&after(&served, 2, &[("type_example", "")])));
}

/// Below a key without a value all callers shared one counter: the caller's value was not part of it.
#[test]
fn kgateway_6225_values_of_every_level_are_part_of_the_count() {
    let served = Served::start(
        "domain: shop\ndescriptors:\n- {key: uid, descriptors: [{key: user-agent, rate_limit: 1/year}]}\n",
        &[],
    );
    for uid in ["1", "2", "3"] {
        assert!(!is_over(&after(&served, 1, &[("uid", uid), ("user-agent", "curl")])), "{uid}");
    }
    assert!(is_over(&after(&served, 1, &[("uid", "1"), ("user-agent", "curl")])));
}

/// After a limit was changed, each request failed in the service, and the gateway let all of them pass.
#[test]
fn kuadrant_limitador_388_a_changed_limit_still_limits() {
    let policy = |limit: u32| format!("domain: shop\ndescriptors:\n- {{key: user, rate_limit: {limit}/year}}\n");
    let mut directory = PolicyDirectory::with_file("shop.yaml", &policy(5));
    let weir = Weir::start(&directory.path(), &["--store", "memory"]);
    let mut client = Client::connect(weir.grpc);
    assert!(client.admits("shop", "user", "ann"));
    directory.replace(&[("shop.yaml".to_owned(), policy(3))]);
    until("the changed limit", PATIENCE, || {
        let answer = client.ask(rls::look("shop", &[("user", "ann")])).unwrap();
        (answer.statuses[0].current_limit.as_ref()?.requests_per_unit == 3).then_some(())
    });
    let admitted = (0..10).filter(|_| client.admits("shop", "user", "ann")).count();
    assert_eq!(admitted, 2);
}
