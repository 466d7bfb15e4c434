//! Every query of deploy/grafana/weir.json, in a real Prometheus that scraped a weir through denials, an outage of Redis, a
//! flood of keys, a reload that failed, overrides, a row, a tap, and alerts that a webhook does not take.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::prometheus::{Prometheus, number};
use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::wait::{PATIENCE, until};
use crate::support::webhook::{Does, Webhook};

const FILE: &str = "shop.yaml";
const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, requests_per_unit: 10, unit: hour, alert_at: [50]}}
  - {key: watched, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}
  - {key: tokens, rate_limit: {requests_per_unit: 1000000, unit: hour, hold: true}}
  - {key: tenant, rows: {default: free}, rate_limit: {requests_per_unit: 1000000, unit: hour}}
  - {key: hot, rate_limit: {requests_per_unit: 1000000, unit: hour, lease: 1s}}
  - {key: flood, rate_limit: {requests_per_unit: 1000, unit: hour}}
";

/// Within a second: more than makes a key hot.
const HOT_ASKS: u32 = 50;
/// How far back a rate looks: long enough that a busy machine scrapes twice.
const RATE_INTERVAL: &str = "10s";
/// Longer than the story takes.
const LOOK_BACK_SECONDS: u64 = 600;

/// Panels that a healthy weir shows at 0 throughout this story. All others must rise above it.
const MAY_BE_ZERO: [&str; 2] = ["Queue", "Refused and lost"];

/// The title of each panel, and its queries with the variables of the dashboard filled in.
fn queries() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana/weir.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).expect("the dashboard")).expect("JSON");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a query");
            let query = query.replace("$__rate_interval", RATE_INTERVAL).replace("$deadline", "0.01");
            let query = query.replace("$job", "weir").replace("$instance", ".*");
            assert!(!query.contains('$'), "a variable that this test does not know: {query}");
            queries.push((panel["title"].as_str().expect("a title").to_owned(), query));
        }
    }
    queries
}

/// Requests of every kind. Answers do not matter here.
struct Callers {
    client: Client,
    number: u64,
}

impl Callers {
    fn send(&mut self, domain: &str, key: &str, value: &str) {
        let _ = self.client.ask(rls::request(domain, &[(key, value)]));
    }

    fn some(&mut self) {
        for _ in 0..4 {
            self.number += 1;
            self.send("shop", "user", "ann");
            self.send("shop", "user", &format!("u{}", self.number / 12));
            self.send("shop", "watched", "ann");
            self.send("shop", "tokens", "ann");
            self.send("shop", "tenant", &self.number.to_string());
            self.send("shop", "usr", "ann");
            self.send("nowhere", "user", "ann");
        }
        (0..HOT_ASKS).for_each(|_| self.send("shop", "hot", "all"));
    }

    fn flood(&mut self) {
        for _ in 0..200 {
            self.number += 1;
            let value = self.number.to_string();
            self.send("shop", "flood", &value);
        }
        self.some();
    }
}

/// Sets the override of one descriptor.
fn override_of(admin: SocketAddr, descriptor: &str) {
    let limits = r#"[{"requests":7,"window_us":3600000000}]"#;
    let body = format!(
        r#"{{"domain":"shop","descriptor":"{descriptor}","limits":{limits},"for_us":3600000000,"reason":"a launch"}}"#
    );
    let answer = http::request(admin, "PUT", "/overrides", &[], &body).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Sets the row of one descriptor.
fn row_of(admin: SocketAddr, descriptor: &str) {
    let body = format!(r#"{{"domain":"shop","descriptor":"{descriptor}","plan":"free"}}"#);
    let answer = http::request(admin, "PUT", "/rows", &[], &body).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Opens a tap, and reads it on a thread until weir ends.
fn tap(admin: SocketAddr) {
    let mut stream = http::connect(admin).expect("a connection");
    stream.write_all(http::head("GET", "/tap", &[], 0).as_bytes()).expect("a request");
    // It may end in the middle of a record.
    std::thread::spawn(move || drop(io::copy(&mut stream, &mut io::sink())));
}

#[test]
fn every_query_of_the_dashboard_has_data() {
    let mut redis = RedisServer::start();
    let webhook = Webhook::start(Does::Answer(503));
    let mut directory = PolicyDirectory::with_file(FILE, POLICY);
    let own = ["on_error=local", "memory.max_keys=64", "tap.records_per_second=1", "alerts.webhook_attempts=2"];
    let mut settings = own.map(str::to_owned).to_vec();
    settings.push(format!("redis.url={}", redis.url()));
    settings.extend(webhook.settings());
    let mut arguments = vec!["--store", "redis"];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting.as_str()]));
    let weir = Weir::start(&directory.path(), &arguments);
    let Some(prometheus) = Prometheus::start(weir.http) else { return };
    let mut callers = Callers { client: Client::connect(weir.grpc), number: 0 };

    override_of(weir.admin, "user=ann");
    override_of(weir.admin, "flood=ann");
    row_of(weir.admin, "tenant=ann");
    tap(weir.admin);
    prometheus.wait_for("weir_rows_stored", || ());
    prometheus.wait_for("rate(weir_over_limit_hits_total{rule=\"user\"}[10s])", || callers.some());
    redis.kill();
    prometheus.wait_for("rate(weir_on_error_total{action=\"local\"}[10s])", || callers.some());
    prometheus.wait_for("weir_redis_circuit_open", || callers.some());
    prometheus.wait_for("rate(weir_evicted_hits_total[10s])", || callers.flood());
    prometheus.wait_for("increase(weir_redis_dial_errors_total[1m])", || callers.some());
    redis.restart();
    prometheus.wait_for("weir_redis_circuit_open == bool 0", || callers.some());
    directory.replace(&[(FILE.to_owned(), "domain: [".to_owned())]);
    prometheus.wait_for("increase(weir_config_load_errors_total[1m])", || callers.some());
    prometheus.wait_for("count(ALERTS{alertname=\"WeirPolicyLoadFailed\"})", || callers.some());
    prometheus.wait_for("weir_input_refused{input=\"policies\"}", || callers.some());
    // Without a rule that has an override.
    let (fewer, _) = POLICY.split_once("  - {key: flood").expect("its last rule");
    directory.replace(&[(FILE.to_owned(), fewer.to_owned())]);
    prometheus.wait_for("increase(weir_config_loads_total[1m])", || callers.some());
    prometheus.wait_for("weir_overrides{state=\"unused\"}", || callers.some());
    prometheus.wait_for("increase(weir_alert_webhook_alerts_total{result=\"given_up\"}[1m])", || callers.some());

    let queries = queries();
    assert!(queries.len() > 20, "{queries:?}");
    for (title, query) in queries {
        let wants_more = !MAY_BE_ZERO.contains(&title.as_str());
        until(&format!("data of {title}: {query}"), PATIENCE, || {
            callers.some();
            let series = prometheus.range(&query, LOOK_BACK_SECONDS);
            let values = series.iter().flat_map(|series| series["values"].as_array().expect("values"));
            let values: Vec<f64> = values.map(|value| number(&value[1])).filter(|value| value.is_finite()).collect();
            let has_data = values.iter().any(|value| *value > 0.0 || !wants_more);
            has_data.then_some(())
        });
    }

    // What the alerts say of this story: they know its metrics.
    for alert in ["WeirAlertsUndelivered", "WeirOverridesUnused"] {
        prometheus.wait_for(&format!("count(ALERTS{{alertname=\"{alert}\"}})"), || callers.some());
    }
    let down = prometheus.query("up == 0");
    assert!(down.is_empty(), "Prometheus cannot read a scrape: {}", json!(down));
}
