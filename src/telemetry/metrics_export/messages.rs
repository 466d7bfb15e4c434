//! Converts families to messages of OTLP, in requests of a bounded size.
//!
//! Names are those of /metrics, including `_total`. Numbers are cumulative since weir started. Not here: when they are
//! sent (metrics_export.rs), and to which collector (otlp.rs).

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, Summary, SummaryDataPoint, exemplar, number_data_point, summary_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::metrics::families::{self, Family, FamilyKind, Value, Visitor};

/// The number of series that makes a request full. The step of a [`Cursor`](crate::metrics::Cursor) that fills it may
/// add a few hundred more.
const SERIES_MAX: usize = 2_000;
/// The bytes of labels that make a request full. gRPC servers accept 4 MiB by default.
const LABEL_BYTES_MAX: usize = 1024 * 1024;

/// Collects families until they are taken as a request.
pub(super) struct Messages {
    resource: Resource,
    started: u64,
    now: u64,
    metrics: Vec<Metric>,
    series: usize,
    label_bytes: usize,
    /// The head of the current family, for the next request.
    head: Option<Metric>,
}

impl Messages {
    /// Starts empty. Counters began at 0 at `started`; all series are of `now`.
    pub(super) fn new(resource: Resource, started: SystemTime, now: SystemTime) -> Self {
        Self {
            resource,
            started: nanoseconds(started),
            now: nanoseconds(now),
            metrics: Vec::new(),
            series: 0,
            label_bytes: 0,
            head: None,
        }
    }

    /// Whether there is enough for a request.
    pub(super) fn is_full(&self) -> bool {
        self.series >= SERIES_MAX || self.label_bytes >= LABEL_BYTES_MAX
    }

    /// The collected families as a request. None if there are none.
    pub(super) fn take(&mut self) -> Option<ExportMetricsServiceRequest> {
        self.series = 0;
        self.label_bytes = 0;
        let mut metrics = std::mem::take(&mut self.metrics);
        metrics.retain(has_points);
        if metrics.is_empty() {
            return None;
        }
        let scope = InstrumentationScope {
            name: "weir".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
        Some(ExportMetricsServiceRequest { resource_metrics })
    }
}

impl Visitor for Messages {
    fn family(&mut self, family: Family<'_>) {
        let cumulative = AggregationTemporality::Cumulative as i32;
        let data = match family.kind {
            FamilyKind::Counter => {
                Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality: cumulative, is_monotonic: true })
            }
            FamilyKind::Gauge => Data::Gauge(Gauge::default()),
            FamilyKind::Histogram => {
                Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality: cumulative })
            }
            FamilyKind::Summary => Data::Summary(Summary::default()),
        };
        let metric = Metric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: unit(family.name).to_owned(),
            data: Some(data),
            ..Metric::default()
        };
        self.head = Some(metric.clone());
        self.metrics.push(metric);
    }

    fn series(&mut self, labels: &[(&str, &str)], value: Value<'_>) {
        self.series += 1;
        self.label_bytes += labels.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if self.metrics.is_empty() {
            // The family began in an earlier request.
            self.metrics.extend(self.head.clone());
        }
        let (started, now) = (self.started, self.now);
        let Some(data) = self.metrics.last_mut().and_then(|metric| metric.data.as_mut()) else { return };
        let attributes = labels.iter().map(|(key, value)| attribute(key, value)).collect();
        let number = match value {
            Value::Count(count) => i64::try_from(count).map_or_else(
                |_| Some(number_data_point::Value::AsDouble(count as f64)),
                |count| Some(number_data_point::Value::AsInt(count)),
            ),
            Value::Number(number) => Some(number_data_point::Value::AsDouble(number)),
            Value::Histogram(_) | Value::Summary(_) => None,
        };
        let point = NumberDataPoint { time_unix_nano: now, value: number, ..NumberDataPoint::default() };
        match (data, value) {
            (Data::Sum(sum), Value::Count(_) | Value::Number(_)) => {
                sum.data_points.push(NumberDataPoint { attributes, start_time_unix_nano: started, ..point });
            }
            (Data::Gauge(gauge), Value::Count(_) | Value::Number(_)) => {
                gauge.data_points.push(NumberDataPoint { attributes, ..point });
            }
            (Data::Histogram(histogram), Value::Histogram(value)) => {
                histogram.data_points.push(HistogramDataPoint { attributes, ..histogram_point(value, started, now) });
            }
            (Data::Summary(summary), Value::Summary(value)) => {
                // Without recent observations a quantile has no value, and OTLP cannot represent that.
                let quantiles = value.quantiles.iter().filter(|(_, value)| !value.is_nan());
                let quantiles =
                    quantiles.map(|&(quantile, value)| summary_data_point::ValueAtQuantile { quantile, value });
                summary.data_points.push(SummaryDataPoint {
                    attributes,
                    start_time_unix_nano: started,
                    time_unix_nano: now,
                    count: value.count,
                    sum: value.sum,
                    quantile_values: quantiles.collect(),
                    flags: 0,
                });
            }
            // A source shows only values of its family's kind.
            _ => {}
        }
    }
}

fn histogram_point(histogram: &families::Histogram, started: u64, now: u64) -> HistogramDataPoint {
    let mut below = 0;
    let counts = histogram.buckets.iter().map(|bucket| {
        let count = bucket.cumulative.saturating_sub(below);
        below = bucket.cumulative;
        count
    });
    let bounds = histogram.buckets.iter().map(|bucket| bucket.bound).filter(|bound| bound.is_finite());
    let exemplars = histogram.buckets.iter().filter_map(|bucket| bucket.exemplar.as_ref());
    let exemplars = exemplars.map(|exemplar| Exemplar {
        time_unix_nano: nanoseconds(exemplar.at),
        trace_id: exemplar.ids.trace.to_be_bytes().to_vec(),
        span_id: exemplar.ids.span.to_be_bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
        ..Exemplar::default()
    });
    HistogramDataPoint {
        start_time_unix_nano: started,
        time_unix_nano: now,
        count: histogram.count,
        sum: Some(histogram.sum),
        bucket_counts: counts.collect(),
        explicit_bounds: bounds.collect(),
        exemplars: exemplars.collect(),
        ..HistogramDataPoint::default()
    }
}

fn has_points(metric: &Metric) -> bool {
    match &metric.data {
        Some(Data::Sum(sum)) => !sum.data_points.is_empty(),
        Some(Data::Gauge(gauge)) => !gauge.data_points.is_empty(),
        Some(Data::Histogram(histogram)) => !histogram.data_points.is_empty(),
        Some(Data::Summary(summary)) => !summary.data_points.is_empty(),
        _ => false,
    }
}

/// The unit in UCUM, from the end of the name. Empty for numbers of things: readers that make names for Prometheus
/// would add `_ratio` to a gauge of the unit `1`.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_bytes") {
        "By"
    } else {
        ""
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Messages {
        let now = UNIX_EPOCH + std::time::Duration::from_nanos(2);
        Messages::new(Resource::default(), UNIX_EPOCH + std::time::Duration::from_nanos(1), now)
    }

    fn family(name: &'static str, kind: FamilyKind) -> Family<'static> {
        Family { name, help: "What it counts.", kind }
    }

    fn metrics(request: ExportMetricsServiceRequest) -> Vec<Metric> {
        request.resource_metrics.into_iter().flat_map(|of| of.scope_metrics).flat_map(|of| of.metrics).collect()
    }

    #[test]
    fn a_family_that_does_not_fit_continues_in_the_next_request() {
        let mut messages = messages();
        messages.family(family("empty", FamilyKind::Gauge));
        messages.family(family("weir_hits_total", FamilyKind::Counter));
        let mut requests = Vec::new();
        for number in 0..5_000_u64 {
            messages.series(&[("rule", &number.to_string())], Value::Count(number));
            if messages.is_full() {
                requests.extend(messages.take());
            }
        }
        requests.extend(messages.take());
        assert!(messages.take().is_none(), "nothing is sent twice");
        let mut seen = Vec::new();
        for request in requests.into_iter().map(metrics) {
            let [metric] = &request[..] else { panic!("one family has series: {request:?}") };
            assert_eq!((metric.name.as_str(), metric.description.as_str()), ("weir_hits_total", "What it counts."));
            let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
            assert!(sum.is_monotonic && sum.data_points.len() <= SERIES_MAX);
            for point in &sum.data_points {
                assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
                seen.extend(point.value);
            }
        }
        assert!(seen.into_iter().eq((0..5_000).map(number_data_point::Value::AsInt)));
    }

    #[test]
    fn long_labels_fill_a_request_too() {
        let mut messages = messages();
        messages.family(family("a", FamilyKind::Gauge));
        let long = "x".repeat(LABEL_BYTES_MAX / 2);
        messages.series(&[("rule", &long)], Value::Count(1));
        assert!(!messages.is_full());
        messages.series(&[("rule", &long)], Value::Count(1));
        assert!(messages.is_full());
    }

    #[test]
    fn buckets_count_apart_and_the_last_has_no_bound() {
        let bucket = |bound, cumulative| families::Bucket { bound, cumulative, exemplar: None };
        let buckets = vec![bucket(0.5, 2), bucket(1.0, 2), bucket(f64::INFINITY, 5)];
        let mut messages = messages();
        messages.family(family("weir_decision_duration_seconds", FamilyKind::Histogram));
        messages.series(&[], Value::Histogram(&families::Histogram { buckets, count: 5, sum: 7.5 }));
        let metric = metrics(messages.take().expect("a request")).remove(0);
        assert_eq!(metric.unit, "s");
        let Some(Data::Histogram(histogram)) = metric.data else { panic!("{metric:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[2, 0, 3][..], &[0.5, 1.0][..]));
        assert_eq!((point.count, point.sum), (5, Some(7.5)));
        assert_eq!(histogram.aggregation_temporality, AggregationTemporality::Cumulative as i32);
    }

    #[test]
    fn a_quantile_without_a_value_is_left_out() {
        let mut messages = messages();
        messages.family(family("response_time", FamilyKind::Summary));
        let summary = families::Summary { quantiles: vec![(0.5, 3.0), (0.99, f64::NAN)], count: 4, sum: 9.0 };
        messages.series(&[], Value::Summary(&summary));
        let metric = metrics(messages.take().expect("a request")).remove(0);
        let Some(Data::Summary(summary)) = metric.data else { panic!("{metric:?}") };
        let quantiles = &summary.data_points[0].quantile_values;
        assert_eq!(*quantiles, [summary_data_point::ValueAtQuantile { quantile: 0.5, value: 3.0 }]);
    }
}
