//! The export of metrics to a collector of OpenTelemetry, and contradictions between its settings.
//!
//! The collector is that of traces, with its protocol, headers and TLS. Not here: the variables of OpenTelemetry
//! (otel.rs).

use std::time::Duration;

use super::contradictions::ProblemList;
use super::setting::Preset::{Is, Unset};
use super::setting::{Kind, ms, secs};
use super::traces::{ENDPOINT as TRACES_ENDPOINT, Otlp, Tracing};

/// The suffixes of the URLs for spans and for metrics.
const TRACES_PATH: &str = "/v1/traces";
const METRICS_PATH: &str = "/v1/metrics";

const ENDPOINT: &str = "metrics.otlp.endpoint";

settings! {
    /// The export of metrics to a collector.
    pub struct MetricsExport {
        /// where metrics go beside /metrics: nowhere, or to the collector of tracing.otlp by OTLP
        enabled: bool = "metrics.exporter", Kind::Choice(&["none", "otlp"]), Is("none"), |text| Ok(text == "otlp");
        /// the collector of metrics; none: that of tracing.otlp.endpoint, with the path /v1/metrics
        own_endpoint: Option<String> = "metrics.otlp.endpoint", Kind::Url, Unset;
        /// how often metrics are sent to the collector
        interval: Duration = "metrics.export_interval", Kind::duration(ms(100), secs(3_600)), Is("60s");
    }
}

impl MetricsExport {
    /// The URL of the collector: its own, or the URL for traces with the path for metrics. None if neither is set.
    ///
    /// # Errors
    /// When the path for metrics cannot be derived from the path for traces.
    pub fn endpoint(&self, traces: &Otlp) -> Result<Option<String>, String> {
        let Some(url) = self.own_endpoint.as_ref().or(traces.endpoint.as_ref()) else { return Ok(None) };
        if self.own_endpoint.is_some() || traces.is_grpc {
            return Ok(Some(url.clone()));
        }
        let authority = url.find("://").map_or(0, |at| at + 3);
        let path = url[authority..].find('/').map_or(url.len(), |at| authority + at);
        let base = match &url[path..] {
            "" | "/" => &url[..path],
            _ => url
                .strip_suffix(TRACES_PATH)
                .ok_or_else(|| format!("{TRACES_ENDPOINT} does not end with {TRACES_PATH}: set {ENDPOINT} too"))?,
        };
        Ok(Some(format!("{base}{METRICS_PATH}")))
    }

    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, tracing: &Tracing, problems: &mut ProblemList<'_>) {
        if let (true, Err(reason)) = (self.enabled, self.endpoint(&tracing.otlp)) {
            problems.add_for(ENDPOINT, TRACES_ENDPOINT, None, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    fn endpoint(assignments: &[&str]) -> Option<String> {
        let settings = Settings::of_test(&[&["metrics.exporter=otlp"], assignments].concat()).unwrap();
        settings.metrics.export.endpoint(&settings.tracing.otlp).unwrap()
    }

    #[test]
    fn the_collector_of_traces_takes_metrics_at_the_path_of_metrics() {
        assert_eq!(endpoint(&[]), None);
        for (traces, expected) in [
            ("http://c:4318", "http://c:4318/v1/metrics"),
            ("http://c:4318/", "http://c:4318/v1/metrics"),
            ("http://c:4318/v1/traces", "http://c:4318/v1/metrics"),
            ("https://c/otlp/v1/traces", "https://c/otlp/v1/metrics"),
        ] {
            let traces = format!("tracing.otlp.endpoint={traces}");
            assert_eq!(endpoint(&[&traces]).as_deref(), Some(expected), "{traces}");
            let own = endpoint(&[&traces, "metrics.otlp.endpoint=http://m/own"]);
            assert_eq!(own.as_deref(), Some("http://m/own"), "{traces}");
        }
        let grpc = ["tracing.otlp.protocol=grpc", "tracing.otlp.endpoint=http://c:4317/any"];
        assert_eq!(endpoint(&grpc).as_deref(), Some("http://c:4317/any"));
    }

    #[test]
    fn a_path_of_traces_that_shows_none_for_metrics_is_refused() {
        let other = "tracing.otlp.endpoint=http://c:4318/spans";
        insta::assert_snapshot!(
            Settings::of_test(&[other, "metrics.exporter=otlp"]).unwrap_err(),
            @"--set: metrics.otlp.endpoint: tracing.otlp.endpoint does not end with /v1/traces: set metrics.otlp.endpoint too"
        );
        assert!(Settings::of_test(&[other]).is_ok());
        assert!(
            Settings::of_test(&[other, "metrics.exporter=otlp", "metrics.otlp.endpoint=http://c:4318/numbers"]).is_ok()
        );
    }
}
