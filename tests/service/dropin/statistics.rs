//! The statistics of envoyproxy/ratelimit, through the real binary: what was recorded of it, on the ways on which it is shown.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use serde_json::{Value, json};

use super::started::{Environment, Ratelimit, Runtime};
use crate::support::process::{LogLine, POLICIES_LOADED, POLICIES_REFUSED, PolicyDirectory, Process, Weir};
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, rls, statsd};

const POLICY: &str = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n";

fn numbers(recorded: &Value) -> BTreeMap<String, u64> {
    let entries = recorded.as_object().unwrap().iter();
    entries.map(|(name, value)| (name.clone(), value.to_string().trim_end_matches(".0").parse().unwrap())).collect()
}

/// The series of all counters that are above 0, as Prometheus reads them, but for those of the process.
fn counters(text: &str) -> BTreeMap<String, u64> {
    let mut is_counter = false;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            is_counter = rest.ends_with(" counter") && !rest.starts_with("process_");
        } else if is_counter && !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            found.insert(series.to_owned(), value.parse().unwrap());
        }
    }
    found
}

fn texts(files: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    files.iter().map(|(name, text)| (name.as_str(), text.as_str()))
}

fn files(policies: &Value) -> Vec<(String, String)> {
    let files = policies.as_object().unwrap().iter();
    files.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect()
}

fn ask(grpc: SocketAddr, request: &Value) {
    let mut client = rls::Client::connect(grpc);
    // What was answered is the matter of other tests; bad requests are refused.
    let _ = client.ask(rls::request_from_json(request).unwrap());
}

fn user(name: &str) -> Value {
    json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": name}]}]})
}

/// Variables of a replica with a store in this Redis.
fn with_redis(runtime: &Runtime, redis: &RedisServer) -> Environment {
    runtime
        .variables()
        .with("REDIS_SOCKET_TYPE", "tcp")
        .with("REDIS_URL", &format!("127.0.0.1:{}", redis.port()))
        .with("REDIS_TIMEOUT", "5s")
        .with("WEIR__SHUTDOWN__PAUSE", "0s")
}

/// The same with a local cache, whose denials have an age that no test reaches. envoyproxy/ratelimit keeps each denial until its
/// window ends.
fn with_local_cache(environment: Environment) -> Environment {
    environment.with("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").with("WEIR__DENY_CACHE__MAX_AGE", "60s")
}

/// Plays a case, and answers the counters of Prometheus and of StatsD at its end.
fn play(case: &Value, redis: &RedisServer) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let name = case["name"].as_str().unwrap();
    let (address, lines) = statsd::tcp();
    let given: BTreeMap<String, String> = serde_json::from_value(case["env"].clone()).unwrap();
    let mut policies = Runtime::with(texts(&files(&case["policies"])));
    let mut environment = with_redis(&policies, redis).with("CACHE_KEY_PREFIX", &format!("{name}:"));
    if given.contains_key("LOCAL_CACHE_SIZE_IN_BYTES") {
        environment = with_local_cache(environment);
    }
    for (setting, text) in [
        ("WEIR__STATSD__ADDRESS", address.to_string().as_str()),
        ("WEIR__STATSD__INTERVAL", "5ms"),
        ("WEIR__METRICS__WEIR_NAMES", "off"),
    ] {
        environment = environment.with(setting, text);
    }
    let mut weir = Ratelimit::try_start(&environment.and(&given)).unwrap();
    for step in case["steps"].as_array().unwrap() {
        if let Some(next) = step.get("policies") {
            let settled = |line: &LogLine| matches!(line.message(), Some(POLICIES_LOADED | POLICIES_REFUSED));
            let before = weir.process.count_in_log(settled);
            policies.replace(texts(&files(next)));
            assert!(weir.wait_for_log(before, PATIENCE, settled), "the policies were not read again");
        } else {
            ask(weir.grpc, &step["request"]);
        }
    }
    let mut shown = counters(&http::get(weir.debug, "/metrics").unwrap().body);
    shown.retain(|name, _| !name.starts_with("ratelimit_redis_pool"));
    weir.process.terminate();
    assert!(weir.process.wait_for_exit().success());
    // The last lines were sent before the end, and may still be on their way to the test.
    let expected = numbers(&case["statsd"]);
    let sent = || {
        let mut sent = lines.counters();
        sent.retain(|name, _| name.starts_with("ratelimit.service."));
        sent
    };
    let _ = crate::support::wait::within(PATIENCE, || (sent() == expected).then_some(()));
    (shown, sent())
}

#[test]
fn statistics_are_those_that_were_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity/stats.json");
    let group: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let redis = RedisServer::start();
    let cases = group["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 11);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let expected = (numbers(&case["prometheus"]), numbers(&case["statsd"]));
        let mut found = play(case, &redis);
        if found != expected {
            // A window may have turned meanwhile.
            redis.command(&["flushall"]);
            found = play(case, &redis);
        }
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn dogstatsd_gets_tags_and_names_of_its_own() {
    let (address, lines) = statsd::udp();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mogrifiers = r#"statsd.mogrifiers=[{"pattern": "^ratelimit\\.service\\.rate_limit\\.([^.]+)\\.([^.]+)\\.total_hits$",
        "name": "hits", "tags": {"domain": "$1", "key": "$2"}}]"#;
    let address = format!("statsd.address={address}");
    let sets = [&address, "statsd.format=dogstatsd", "statsd.interval=5ms", "statsd.tags=build:7", mogrifiers];
    let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let weir = Weir::start(&policies.path(), &arguments);
    ask(weir.grpc, &user("ann"));
    until("the lines", PATIENCE, || {
        let has = |wanted: &str| lines.any(|line| line == wanted);
        (has("hits:1|c|#build:7,domain:shop,key:user")
            && has("ratelimit.service.rate_limit.shop.user.within_limit:1|c|#build:7")
            && lines.any(|line| {
                line.starts_with("ratelimit_server.ShouldRateLimit.response_time:") && line.ends_with("|ms|#build:7")
            }))
        .then_some(())
    });
}

#[test]
fn a_server_that_comes_late_gets_all_that_was_counted() {
    // A port on which nobody listens, until the test does.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let address_set = format!("statsd.address={address}");
    let sets = [&address_set, "statsd.interval=5ms", "statsd.tags=zone:a.b", "shutdown.pause=0s"];
    let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let mut weir = Weir::start(&policies.path(), &arguments);
    let missing = |line: &LogLine| line.message().is_some_and(|message| message.starts_with("no statsd server"));
    assert!(weir.wait_for_log(0, PATIENCE, missing));
    (0..4).for_each(|_| ask(weir.grpc, &user("ann")));
    let (_, lines) = statsd::tcp_at(address);
    let name = |statistic: &str| format!("ratelimit.service.rate_limit.shop.user.{statistic}.__zone=a_b");
    until("what was counted before", PATIENCE, || {
        (lines.counters().get(&name("total_hits")) == Some(&4)).then_some(())
    });
    assert_eq!(lines.counters()[&name("over_limit")], 1);
    assert_eq!(weir.count_in_log(missing), 1, "one warning");
    ask(weir.grpc, &user("ann"));
    weir.terminate();
    assert!(weir.wait_for_exit().success());
    until("the last one", PATIENCE, || (lines.counters()[&name("total_hits")] == 5).then_some(()));
    assert_eq!(lines.counters()[&name("over_limit")], 2, "each hit once");
}

#[test]
fn the_debug_port_shows_each_statistic_on_a_line() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--set", "admin.endpoints=ratelimit"]);
    ask(weir.grpc, &user("ann"));
    let text = http::get(weir.admin, "/stats").unwrap().body;
    for line in [
        "ratelimit.service.config_load_success: 1",
        "ratelimit.service.rate_limit.shop.user.over_limit: 0",
        "ratelimit.service.rate_limit.shop.user.total_hits: 1",
        "ratelimit_server.ShouldRateLimit.total_requests: 1",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    assert!(text.lines().is_sorted(), "{text}");
}

#[test]
fn a_mapping_file_makes_the_metrics() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let file = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    };
    let start = |file: &tempfile::NamedTempFile| {
        let mapper = format!("metrics.mapper={}", file.path().display());
        let arguments = ["--set", &mapper, "--set", "metrics.ratelimit_names=on"].map(str::to_owned);
        Process::start(&policies.path(), &arguments, &[])
    };
    let good = file(
        "mappings:\n\
         - match: '^ratelimit\\.service\\.rate_limit\\.([^.]+)\\.(.+)\\.total_hits$'\n  match_type: regex\n\
         \x20 name: hits\n  labels: {domain: '$1', rule: '$2'}\n  help: All of them.\n\
         - {match: '*.*.rate_limit.*.*.within_limit', action: drop, name: dropped}\n\
         - match: '*.*.response_time'\n  timer_type: histogram\n  name: times\n  buckets: [1, 1000000]\n",
    );
    let weir = Weir::from_process(start(&good)).unwrap();
    ask(weir.grpc, &user("ann"));
    let text = http::get(weir.http, "/metrics").unwrap().body;
    assert!(text.contains("# HELP hits All of them.\n"), "{text}");
    let found = counters(&text);
    assert_eq!(found["hits{domain=\"shop\",rule=\"user\"}"], 1);
    assert_eq!(found["ratelimit_service_config_load_success"], 1, "what nothing matches has its own name");
    assert!(!text.contains("within_limit{") || text.contains("weir_"), "{text}");
    assert!(!found.keys().any(|name| name.starts_with("ratelimit_") && name.contains("within")), "{text}");
    assert!(text.contains("times_bucket{le=\"1000000\"} 1\n"), "{text}");
    assert!(text.contains("weir_hits_total{"), "both stand there");

    let bad = file("mappings:\n- match: a.b\n  name: a\n  action: keep\n");
    let (status, text) = start(&bad).finish();
    assert!(!status.success());
    let expected = format!("metrics.mapper: {}:4:11: action: \"keep\" is not one of map, drop", bad.path().display());
    assert!(text.contains(&expected), "{text}");
}

/// Report 1230 of envoyproxy/ratelimit: a replica with a local cache denied until the window ended, although hits had been given
/// back at another replica and its own peek had seen them.
#[test]
fn envoyproxy_ratelimit_1230_hits_given_back_at_another_replica_are_admitted() {
    let redis = RedisServer::start();
    let policy = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 4}}\n";
    let runtime = Runtime::with([("shop.yaml", policy)]);
    let environment =
        with_local_cache(with_redis(&runtime, &redis)).with("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true");
    let replicas = [(); 2].map(|()| Ratelimit::try_start(&environment).unwrap());
    let [mut a, mut b] = [0, 1].map(|at: usize| rls::Client::connect(replicas[at].grpc));
    let ask = |client: &mut rls::Client, hits: u32, refund: bool| {
        let descriptor = json!({
            "entries": [{"key": "user", "value": "ann"}], "hitsAddend": hits, "isNegativeHits": refund,
        });
        let request = json!({"domain": "shop", "descriptors": [descriptor]});
        let answer = client.ask(rls::request_from_json(&request).unwrap()).unwrap();
        let status = &rls::response_to_json(&answer)["statuses"][0];
        (status["code"].as_str().unwrap().to_owned(), status["limitRemaining"].as_u64().unwrap_or(0))
    };
    assert_eq!(ask(&mut a, 4, false), ("OK".to_owned(), 0));
    assert_eq!(ask(&mut b, 1, false).0, "OVER_LIMIT");
    ask(&mut a, 4, true);
    assert_eq!(ask(&mut b, 1, false).0, "OVER_LIMIT", "the cache of B denies");
    assert_eq!(ask(&mut b, 0, false), ("OK".to_owned(), 4));
    assert_eq!(ask(&mut b, 1, false), ("OK".to_owned(), 3));
}

const USER_AND_IP: &str = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                           - {key: ip, rate_limit: {unit: day, requests_per_unit: 9}}\n";

/// A request with a descriptor for each of these keys.
fn of_keys(keys: &[&str]) -> Value {
    let descriptors: Vec<Value> = keys.iter().map(|key| json!({"entries": [{"key": key, "value": "x"}]})).collect();
    json!({"domain": "shop", "descriptors": descriptors})
}

#[test]
fn every_status_is_complete_if_the_cache_answers_as_the_local_cache_does() {
    let redis = RedisServer::start();
    let runtime = Runtime::with([("shop.yaml", USER_AND_IP)]);
    for charging in ["atomic", "independent"] {
        let environment = with_local_cache(with_redis(&runtime, &redis))
            .with("CACHE_KEY_PREFIX", &format!("{charging}:"))
            .with("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", if charging == "atomic" { "true" } else { "false" });
        let weir = Ratelimit::try_start(&environment).unwrap();
        let mut client = rls::Client::connect(weir.grpc);
        let both = of_keys(&["user", "ip"]);
        let mut statuses = |request: &Value| {
            let answer = client.ask(rls::request_from_json(request).unwrap()).unwrap();
            rls::response_to_json(&answer)["statuses"].clone()
        };
        statuses(&both);
        for round in 0..3 {
            let shown = statuses(&both);
            assert_eq!(shown[0]["code"], "OVER_LIMIT", "{charging}");
            assert_eq!(shown[1]["code"], "OK", "{charging}");
            assert_eq!(shown[1]["currentLimit"]["requestsPerUnit"], 9, "{charging}: {shown}");
            let left = if charging == "atomic" { 8 } else { 7 - round };
            assert_eq!(shown[1]["limitRemaining"], left, "{charging}: {shown}");
        }
        // This one alone is answered without Redis.
        assert_eq!(statuses(&of_keys(&["user"]))[0]["code"], "OVER_LIMIT");
        let text = http::get(weir.debug, "/metrics").unwrap().body;
        let found = counters(&text);
        assert_eq!(found["weir_deny_cache_hits_total"], 1, "{charging}");
        assert_eq!(found["ratelimit_service_rate_limit_shop_user_over_limit_with_local_cache"], 3, "{charging}");
        for line in ["ratelimit_localcache_lookupCount 9", "ratelimit_localcache_hitCount 3"] {
            assert!(text.contains(&format!("{line}\n")), "{charging} {line}\n{text}");
        }
    }
}

/// The setting was the way to complete answers without the name `ratelimit`.
#[test]
fn the_old_setting_of_the_cache_has_no_effect_and_is_named_in_the_log() {
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file("shop.yaml", USER_AND_IP);
    let url = format!("redis.url={}", redis.url());
    let old = "deny_cache.until_window_end=on";
    let sets = ["store=redis", &url, "redis.timeout=5s", "deny_cache.max_age=60s", old];
    let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let weir = Weir::start(&policies.path(), &arguments);
    let is_named = |line: &LogLine| {
        line.message() == Some("deny_cache.until_window_end has no effect: remove it, the next version refuses it")
    };
    assert_eq!(weir.count_in_log(is_named), 1);
    let mut client = rls::Client::connect(weir.grpc);
    let mut statuses = || {
        let answer = client.ask(rls::request_from_json(&of_keys(&["user", "ip"])).unwrap()).unwrap();
        rls::response_to_json(&answer)["statuses"].clone()
    };
    statuses();
    assert_eq!(statuses()[1]["limitRemaining"], 8);
    // One known denial answers, so nothing is known about the other limit.
    let shown = statuses();
    assert_eq!((shown[0]["code"].as_str(), shown[1].get("currentLimit")), (Some("OVER_LIMIT"), None), "{shown}");
}
