//! A scrape of a running weir, as different readers ask for it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::http::{self, Answer};
use crate::support::served::{Served, sum_of};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: hourly, requests_per_unit: 10, unit: hour}
      - {name: daily, requests_per_unit: 2, unit: day}
";

/// What Prometheus 2 sends.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                      text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

fn ask(served: &Served, key: &str, count: usize) {
    let entries = json!([{"entries": [{"key": key, "value": "ann"}]}]);
    for _ in 0..count {
        let body = json!({"domain": "shop", "descriptors": entries});
        http::post_json(served.at.http, "/json", &body.to_string()).expect("an answer");
    }
}

fn scrape(served: &Served, accept: &str) -> Answer {
    let answer = http::request(served.at.http, "GET", "/metrics", &[("accept", accept)], "").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

#[test]
fn readers_that_prefer_openmetrics_get_it() {
    let served = Served::start(POLICY, &[]);
    ask(&served, "user", 1);
    let plain = scrape(&served, "*/*");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(plain.body.contains("# TYPE weir_requests_total counter\n") && !plain.body.contains("# EOF"));
    let open = scrape(&served, ACCEPT);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.header("content-type"), Some(kind));
    assert!(open.body.contains("# TYPE weir_requests counter\nweir_requests_total{"), "{}", open.body);
    assert!(open.body.ends_with("\n# EOF\n") && open.body.matches("# EOF").count() == 1);
    assert_eq!(plain.header("transfer-encoding"), Some("chunked"), "no whole copy is made");
}

#[test]
fn what_another_limit_kept_from_being_charged_is_not_within() {
    let served = Served::start(POLICY, &[]);
    ask(&served, "user", 5);
    let text = scrape(&served, "").body;
    let of = |metric: &str, limit: &str| sum_of(&text, &format!("{metric}{{limit=\"{limit}\"}}"));
    assert_eq!((of("weir_hits_total", "hourly"), of("weir_hits_total", "daily")), (Some(5), Some(5)));
    let within = "weir_within_limit_hits_total";
    assert_eq!((of(within, "hourly"), of(within, "daily")), (Some(2), Some(2)));
    let over = "weir_over_limit_hits_total";
    assert_eq!((of(over, "hourly"), of(over, "daily")), (Some(0), Some(3)));
}

#[test]
fn the_process_and_its_descriptors_without_a_rule_are_shown() {
    let served = Served::start(POLICY, &["metrics.per_rule=off"]);
    ask(&served, "usr", 3);
    let text = scrape(&served, "").body;
    assert_eq!(sum_of(&text, "weir_unmatched_descriptors_total{domain=\"shop\"}"), Some(3));
    assert!(!text.contains("rule="), "{text}");
    assert_eq!(sum_of(&text, "weir_requests_total{domain=\"shop\",result=\"ok\"}"), Some(3));
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_threads"] {
        assert!(sum_of(&text, name) > Some(0), "{name}\n{text}");
    }
    for name in ["process_cpu_seconds_total", "process_start_time_seconds", "process_virtual_memory_bytes"] {
        assert!(text.contains(&format!("\n{name} ")), "{name}\n{text}");
    }
    let loaded = sum_of(&text, "weir_config_last_load_success_timestamp_seconds");
    assert!(loaded > Some(1_700_000_000), "{loaded:?}");
}

#[test]
fn a_decision_that_is_traced_is_an_exemplar_in_openmetrics_only() {
    // No collector listens there, and none is needed.
    let served = Served::start(POLICY, &["tracing.exporter=otlp", "tracing.otlp.endpoint=http://127.0.0.1:9"]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}).to_string();
    for (flags, is_sampled) in [("00", false), ("01", true)] {
        let parent = format!("00-{trace}-b7ad6b7169203331-{flags}");
        let headers = [("content-type", "application/json"), ("traceparent", parent.as_str())];
        http::request(served.at.http, "POST", "/json", &headers, &body).expect("an answer");
        let open = scrape(&served, ACCEPT).body;
        let exemplars: Vec<&str> = open.lines().filter(|line| line.contains(" # {")).collect();
        let named = format!(" # {{trace_id=\"{trace}\",span_id=\"");
        let is_there = exemplars
            .iter()
            .any(|line| line.starts_with("weir_decision_duration_seconds_bucket{") && line.contains(&named));
        assert_eq!((is_there, exemplars.is_empty()), (is_sampled, !is_sampled), "{exemplars:?}");
    }
    assert!(!scrape(&served, "text/plain").body.contains("trace_id"));
}

/// What Prometheus' own linter says of a real scrape. Names of envoyproxy/ratelimit are not ours to change.
#[test]
fn promtool_finds_nothing_wrong_with_the_names() {
    let served = Served::start(POLICY, &[]);
    ask(&served, "user", 3);
    let text = scrape(&served, "").body;
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("NOT CHECKED: the names of metrics, since promtool does not start: {error}");
            return;
        }
    };
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.trim().is_empty(), "promtool: {said}");
}
