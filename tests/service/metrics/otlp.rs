//! Metrics as a collector of OpenTelemetry gets them, and that a collector that is slow or gone costs exports and nothing else.

use std::collections::BTreeMap;
use std::sync::mpsc;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, HistogramDataPoint, Metric, number_data_point};
use serde_json::{Value, json};

use crate::support::otlp::{By, Collector, Does, SeenMetrics, attributes};
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, rls};

const POLICY: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
";

fn exporting(collector: &str, by: By, settings: &[&str]) -> Served {
    let endpoint = format!("tracing.otlp.endpoint={collector}");
    let protocol = format!("tracing.otlp.protocol={}", by.setting());
    let own = ["metrics.exporter=otlp", &endpoint, &protocol];
    Served::start(POLICY, &[&own[..], settings].concat())
}

/// Asks so often, by HTTP.
fn ask(served: &Served, times: usize) -> Vec<u16> {
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}).to_string();
    let headers = [("content-type", "application/json")];
    let ask = |_| http::request(served.at.http, "POST", "/json", &headers, &body).expect("an answer").status;
    (0..times).map(ask).collect()
}

/// The last metric of this name, as a collector keeps it.
fn last(seen: &[SeenMetrics], name: &str) -> Option<Metric> {
    seen.iter().rev().flat_map(|request| &request.metrics).find(|metric| metric.name == name).cloned()
}

fn number(value: Option<number_data_point::Value>) -> f64 {
    match value.expect("a value") {
        number_data_point::Value::AsInt(number) => number as f64,
        number_data_point::Value::AsDouble(number) => number,
    }
}

/// The values of a cumulative counter by labels, which stand as `key=value`.
fn counter(seen: &[SeenMetrics], name: &str) -> BTreeMap<String, f64> {
    let Some(metric) = last(seen, name) else { return BTreeMap::new() };
    let Some(Data::Sum(sum)) = metric.data else { panic!("a counter: {metric:?}") };
    assert!(sum.is_monotonic, "{name}");
    assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32, "{name}");
    let points = sum.data_points.into_iter().map(|point| {
        assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano <= point.time_unix_nano, "{point:?}");
        (labels(&attributes(&point.attributes)), number(point.value))
    });
    points.collect()
}

fn labels(attributes: &BTreeMap<String, Value>) -> String {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    attributes.iter().map(|(key, value)| format!("{key}={}", text(value))).collect::<Vec<_>>().join(",")
}

fn durations(seen: &[SeenMetrics]) -> Option<HistogramDataPoint> {
    let Some(Data::Histogram(histogram)) = last(seen, "weir_decision_duration_seconds")?.data else { return None };
    assert_eq!(histogram.aggregation_temporality, AggregationTemporality::Cumulative as i32);
    assert_eq!(histogram.data_points.len(), 1);
    histogram.data_points.into_iter().next()
}

#[test]
fn a_counter_a_gauge_and_a_histogram_arrive_by_grpc_and_http() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        let settings = [
            "metrics.export_interval=100ms",
            "tracing.otlp.headers=x-scope:7",
            "tracing.otlp.compression=gzip",
            "tracing.service_name=limits",
            "tracing.resource_attributes=zone=eu-1",
        ];
        let served = exporting(&collector.url(), by, &settings);
        assert_eq!(ask(&served, 5), [200, 200, 200, 429, 429]);
        let seen = until("the decisions", PATIENCE, || {
            let seen = collector.metrics();
            let requests = counter(&seen, "weir_requests_total");
            (requests.get("domain=shop,result=over_limit") == Some(&2.0)).then_some(seen)
        });
        assert_eq!(counter(&seen, "weir_requests_total")["domain=shop,result=ok"], 3.0, "{by:?}");

        let resource = &seen.last().expect("one").resource;
        assert_eq!((&resource["service.name"], &resource["zone"]), (&json!("limits"), &json!("eu-1")));
        assert!(resource["service.instance.id"].is_string());

        // An export reads one part after the other: a later one has all of it, and cumulative numbers stay.
        let point = until("the times of the decisions", PATIENCE, || {
            durations(&collector.metrics()).filter(|point| point.count == 5)
        });
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), 5);
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(point.sum > Some(0.0) && point.explicit_bounds.is_sorted(), "{point:?}");
        let hits = counter(&collector.metrics(), "weir_hits_total");
        let of_rule: Vec<&f64> =
            hits.iter().filter(|(labels, _)| labels.contains("rule=user")).map(|of| of.1).collect();
        assert_eq!(of_rule, [&5.0], "{hits:?}");

        let metric = last(&seen, "weir_keys").expect("the gauge");
        let Some(Data::Gauge(gauge)) = metric.data else { panic!("a gauge: {metric:?}") };
        assert_eq!(number(gauge.data_points[0].value), 1.0);
        let build = last(&seen, "weir_build_info").expect("the gauge");
        let Some(Data::Gauge(gauge)) = build.data else { panic!("a gauge: {build:?}") };
        let version = format!("version={}", env!("CARGO_PKG_VERSION"));
        assert!(labels(&attributes(&gauge.data_points[0].attributes)).ends_with(&version));

        let requests = collector.requests();
        let (path, headers) = &requests[0];
        let (expected, coding) = match by {
            By::Grpc => ("grpc", "grpc-encoding"),
            By::Http => ("/v1/metrics", "content-encoding"),
        };
        assert_eq!((path.as_str(), headers["x-scope"].as_str(), headers[coding].as_str()), (expected, "7", "gzip"));
        assert!(collector.spans().is_empty(), "traces are off");
        until("the export to be counted", PATIENCE, || {
            (served.metric("weir_metrics_exports_total{result=\"ok\"}") > Some(0)).then_some(())
        });
        assert_eq!(served.metric("weir_metrics_exports_total{result=\"failed\"}"), Some(0));
    }
}

#[test]
fn the_last_decisions_are_exported_before_the_end() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        let served = exporting(&collector.url(), by, &["metrics.export_interval=1h"]);
        until("the first export", PATIENCE, || (!collector.metrics().is_empty()).then_some(()));
        assert_eq!(ask(&served, 2), [200, 200]);
        served.stop().expect("it ends well");
        let seen = collector.metrics();
        assert_eq!(counter(&seen, "weir_requests_total")["domain=shop,result=ok"], 2.0, "{by:?}");
        assert_eq!(durations(&seen).expect("the times").count, 2);
    }
}

#[test]
fn a_collector_that_is_gone_or_refuses_is_counted_and_decisions_go_on() {
    for (by, is_gone) in [(By::Grpc, true), (By::Http, true), (By::Grpc, false), (By::Http, false)] {
        let collector = Collector::start(by);
        collector.does(Does::Refuse);
        let url = if is_gone { Collector::start(by).url() } else { collector.url() };
        let served = exporting(&url, by, &["metrics.export_interval=100ms"]);
        let failed = || served.metric("weir_metrics_exports_total{result=\"failed\"}");
        until("exports to fail", PATIENCE, || (failed() >= Some(2)).then_some(()));
        assert_eq!(ask(&served, 4), [200, 200, 200, 429]);
        assert_eq!(served.metric("weir_metrics_exports_total{result=\"ok\"}"), Some(0));
        if !is_gone {
            collector.does(Does::Take);
            let seen = until("an export that is taken", PATIENCE, || {
                let seen = collector.metrics();
                counter(&seen, "weir_requests_total").contains_key("domain=shop,result=ok").then_some(seen)
            });
            let lost = counter(&seen, "weir_requests_total");
            assert_eq!(lost["domain=shop,result=ok"], 3.0, "nothing is lost: {lost:?}");
        }
    }
}

#[test]
fn a_collector_that_refuses_some_series_is_counted_as_failed() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        collector.does(Does::TakePart);
        let served = exporting(&collector.url(), by, &["metrics.export_interval=100ms"]);
        let failed = || served.metric("weir_metrics_exports_total{result=\"failed\"}");
        until("exports to fail", PATIENCE, || (failed() >= Some(1)).then_some(()));
        assert_eq!(served.metric("weir_metrics_exports_total{result=\"ok\"}"), Some(0), "{by:?}");
    }
}

#[test]
fn neither_decisions_nor_the_end_wait_for_a_silent_collector() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        collector.does(Does::Nothing);
        let served = exporting(&collector.url(), by, &["metrics.export_interval=100ms", "tracing.otlp.timeout=5m"]);
        until("the first export", PATIENCE, || (!collector.requests().is_empty()).then_some(()));
        assert_eq!(ask(&served, 4), [200, 200, 200, 429]);
        assert_eq!(collector.requests().len(), 1, "one export at a time");
        // It has minutes left.
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || sender.send(served.stop().is_ok()));
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "{by:?}");
    }
}

#[test]
fn the_log_has_one_line_when_exports_begin_to_fail_and_one_when_they_work() {
    let collector = Collector::start(By::Grpc);
    collector.does(Does::Refuse);
    let directory = PolicyDirectory::with_file("policy.yaml", POLICY);
    let variables = [
        ("OTEL_METRICS_EXPORTER", "otlp".to_owned()),
        ("OTEL_TRACES_EXPORTER", "none".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100".to_owned()),
    ];
    let variables: Vec<(String, String)> = variables.map(|(name, text)| (name.to_owned(), text)).into();
    let weir = Weir::try_start(&directory.path(), &[] as &[&str], &variables).expect("it starts");
    let lines = |text: &str| weir.count_in_log(|line| line.message() == Some(text));
    until("several exports", PATIENCE, || (collector.requests().len() > 3).then_some(()));
    assert_eq!(lines("the collector does not accept metrics"), 1, "{}", weir.written());
    collector.does(Does::Take);
    until("the line", PATIENCE, || (lines("the collector accepts metrics again") == 1).then_some(()));
    assert!(weir.written().contains("not these"), "the reason: {}", weir.written());
    assert!(rls::Client::connect(weir.grpc).admits("shop", "user", "ann"));
}

#[test]
fn without_the_setting_nothing_is_exported_or_counted() {
    let collector = Collector::start(By::Http);
    let endpoint = format!("tracing.otlp.endpoint={}", collector.url());
    let served = Served::start(POLICY, &[&endpoint]);
    assert_eq!(ask(&served, 1), [200]);
    assert_eq!(served.metric("weir_metrics_exports_total"), None);
    served.stop().expect("it ends well");
    assert!(collector.requests().is_empty());
}
