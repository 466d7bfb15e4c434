//! The statistics of envoyproxy/ratelimit as metrics of Prometheus, using a mapper.
//!
//! Not here: which statistic becomes which metric (mapper.rs), and the numbers (statistics.rs, latency.rs).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::families::{Bucket, Family, FamilyKind, Histogram, Source, Summary, Value, Visitor};
use super::latency::{Distribution, Latencies, Protocol};
use super::table::metric;
use crate::mapper::{Mapped, Mapper, MetricType, ObserverKind};
use crate::statistics::Statistics;

/// The only statistic that is a time.
pub(crate) const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";
/// How many names are stored with their metrics.
const REMEMBERED_MAX: usize = 100_000;
/// The period of a summary has this many parts. The oldest part is dropped when a new one begins.
const AGE_PARTS: u32 = 5;
/// The bounds for the times of a summary: each is this percentage above the one before.
const SUMMARY_STEP_PERCENT: u64 = 5;
/// The first and the last bound, in nanoseconds.
const SUMMARY_BOUNDS_NS: (u64, u64) = (10_000, 10_000_000_000);

/// The help of a metric whose mapping has none.
const HELP: &str = "A statistic of envoyproxy/ratelimit, under the name that it has there.";

type Labels = Vec<(String, String)>;

pub(super) struct MappedStatistics {
    mapper: Mapper,
    statistics: Arc<Statistics>,
    requests: Arc<Latencies>,
    remembered: Mutex<HashMap<Box<str>, Mapped>>,
    /// Earlier times for a summary, oldest first: [`AGE_PARTS`] of them, and one that has expired.
    earlier: Mutex<VecDeque<(Instant, Distribution)>>,
}

const BATCH: usize = 64;

/// The metrics of one name, while they are summed.
struct Sums {
    kind: FamilyKind,
    help: String,
    values: BTreeMap<Labels, f64>,
}

/// A copy of the metrics, which readers share.
#[derive(Debug, Default)]
pub(super) struct MappedFamilies(Vec<MappedFamily>);

#[derive(Debug)]
struct MappedFamily {
    name: String,
    help: String,
    kind: FamilyKind,
    series: Vec<(Labels, MappedValue)>,
}

#[derive(Debug)]
enum MappedValue {
    Number(f64),
    Histogram(Histogram),
    Summary(Summary),
}

impl MappedValue {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Number(number) => Value::Number(*number),
            Self::Histogram(histogram) => Value::Histogram(histogram),
            Self::Summary(summary) => Value::Summary(summary),
        }
    }
}

pub(super) struct ReadMapped {
    families: Arc<MappedFamilies>,
    /// The index of the family, and of its next series.
    at: (usize, usize),
}

impl ReadMapped {
    pub(super) fn new(families: Arc<MappedFamilies>) -> Self {
        Self { families, at: (0, 0) }
    }
}

impl Source for ReadMapped {
    fn advance(&mut self, to: &mut dyn Visitor) -> bool {
        let Some(family) = self.families.0.get(self.at.0) else { return false };
        if self.at.1 == 0 {
            to.family(Family { name: &family.name, help: &family.help, kind: family.kind });
        }
        let end = family.series.len().min(self.at.1 + BATCH);
        for (labels, shown) in &family.series[self.at.1..end] {
            let labels: SmallVec<[(&str, &str); 4]> =
                labels.iter().map(|(label, value)| (label.as_str(), value.as_str())).collect();
            to.series(&labels, shown.value());
        }
        self.at = if end == family.series.len() { (self.at.0 + 1, 0) } else { (self.at.0, end) };
        true
    }
}

/// The bounds in nanoseconds that the metric of response times needs.
pub(super) fn response_time_bounds(mapper: &Mapper) -> Vec<u64> {
    match mapper.find(RESPONSE_TIME, MetricType::Observer) {
        Mapped::Drop => Vec::new(),
        Mapped::Metric { scale, times: ObserverKind::Histogram(bounds), .. } => {
            bounds.iter().map(|bound| nanoseconds(*bound, scale)).collect()
        }
        Mapped::Metric { times: ObserverKind::Summary(..), .. } => {
            let (first, last) = SUMMARY_BOUNDS_NS;
            std::iter::successors(Some(first), |bound| Some(bound + bound * SUMMARY_STEP_PERCENT / 100))
                .take_while(|bound| *bound <= last)
                .collect()
        }
    }
}

/// A bound of a metric as a time. A metric is a time in milliseconds, multiplied by `scale`.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounds are floats in mapping files; one that no time reaches is the largest, one below 0 is 0"
)]
fn nanoseconds(bound: f64, scale: f64) -> u64 {
    // Rounded, because 0.005 / 0.001 is slightly more than 5.
    (bound / scale * 1_000_000.0).round() as u64
}

#[expect(clippy::float_arithmetic, reason = "scales are floats in mapping files")]
fn scaled(nanoseconds: u64, scale: f64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64() * 1_000.0 * scale
}

impl MappedStatistics {
    pub(super) fn new(mapper: Mapper, statistics: Arc<Statistics>, requests: Arc<Latencies>) -> Self {
        Self { mapper, statistics, requests, remembered: Mutex::default(), earlier: Mutex::default() }
    }

    /// All metrics. If weir's own metrics are shown too, without those that have the same name. As in
    /// envoyproxy/ratelimit, a counter of 0 is not shown.
    pub(super) fn families(&self, now: Instant, weir_names: bool) -> MappedFamilies {
        let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
        self.statistics.visit(|name, kind, value| {
            if value > 0 || kind == FamilyKind::Gauge {
                self.add(&mut sums, name, kind, value);
            }
        });
        let shown = sums.into_iter().map(|(name, Sums { kind, help, values })| {
            let series = values.into_iter().map(|(labels, value)| (labels, MappedValue::Number(value))).collect();
            MappedFamily { name, help, kind, series }
        });
        let mut families: Vec<MappedFamily> = shown.collect();
        // A metric has one type: if a mapping gives the same name to times and to numbers, the numbers are used.
        families.extend(self.times(now).filter(|times| families.iter().all(|other| other.name != times.name)));
        families.retain(|family| {
            let is_taken = metric(&family.name).is_some_and(|_| weir_names || family.name.starts_with("process_"));
            if is_taken {
                tracing::debug!(name = family.name, "a mapping gives the name of one of weir's metrics");
            }
            !is_taken
        });
        MappedFamilies(families)
    }

    fn add(&self, families: &mut BTreeMap<String, Sums>, statistic: &str, kind: FamilyKind, value: u64) {
        let metric_type = if kind == FamilyKind::Counter { MetricType::Counter } else { MetricType::Gauge };
        let Mapped::Metric { name, labels, help, scale, .. } = self.find(statistic, metric_type) else {
            return;
        };
        let family = families.entry(name).or_insert_with(|| Sums {
            kind,
            help: help.unwrap_or_else(|| HELP.to_owned()),
            values: BTreeMap::new(),
        });
        if family.kind == kind {
            add_up(family.values.entry(labels).or_default(), value, scale);
        }
    }

    fn find(&self, statistic: &str, metric_type: MetricType) -> Mapped {
        let mut remembered = self.remembered.lock();
        if let Some(mapped) = remembered.get(statistic) {
            return mapped.clone();
        }
        if remembered.len() == REMEMBERED_MAX {
            remembered.clear();
        }
        let mapped = self.mapper.find(statistic, metric_type);
        remembered.insert(statistic.into(), mapped.clone());
        mapped
    }

    fn times(&self, now: Instant) -> Option<MappedFamily> {
        let times = self.requests.distribution(&[Protocol::Grpc]);
        let Mapped::Metric { name, labels, help, scale, times: kind } =
            self.mapper.find(RESPONSE_TIME, MetricType::Observer)
        else {
            return None;
        };
        let count = times.count();
        if count == 0 {
            return None;
        }
        let sum = scaled(times.sum_ns, scale);
        let (kind, shown) = match kind {
            ObserverKind::Histogram(bounds) => {
                let bucket = |bound, cumulative| Bucket { bound, cumulative, exemplar: None };
                let mut buckets: Vec<Bucket> =
                    bounds.into_iter().map(|bound| bucket(bound, times.up_to(nanoseconds(bound, scale)))).collect();
                if buckets.last().is_none_or(|last| last.bound.is_finite()) {
                    buckets.push(bucket(f64::INFINITY, count));
                }
                (FamilyKind::Histogram, MappedValue::Histogram(Histogram { buckets, count, sum }))
            }
            ObserverKind::Summary(quantiles, max_age) => {
                let recent = self.recent(&times, max_age, now);
                let quantiles = quantiles.into_iter().map(|quantile| {
                    let bound = recent.bound_of(rank(quantile, recent.count()));
                    (quantile, bound.map_or(f64::NAN, |bound| scaled(bound, scale)))
                });
                (FamilyKind::Summary, MappedValue::Summary(Summary { quantiles: quantiles.collect(), count, sum }))
            }
        };
        let help = help.unwrap_or_else(|| HELP.to_owned());
        Some(MappedFamily { name, help, kind, series: vec![(labels, shown)] })
    }

    /// The times of about the last `max_age`. Precise only if it is called often enough.
    fn recent(&self, times: &Distribution, max_age: Duration, now: Instant) -> Distribution {
        let mut earlier = self.earlier.lock();
        let is_due = |(at, _): &(Instant, Distribution)| now.saturating_duration_since(*at) >= max_age / AGE_PARTS;
        if earlier.back().is_none_or(is_due) {
            earlier.push_back((now, times.clone()));
        }
        // The period begins with the newest distribution that is old enough, or with the first.
        while earlier.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= max_age) {
            earlier.pop_front();
        }
        match earlier.front() {
            Some((at, first)) if now.saturating_duration_since(*at) >= max_age => times.since(first),
            _ => times.clone(),
        }
    }
}

/// The rank of a quantile among `count` times, from 1.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a quantile is a float from 0 to 1"
)]
fn rank(quantile: f64, count: u64) -> u64 {
    ((quantile * count as f64).ceil() as u64).max(1)
}

#[expect(clippy::float_arithmetic, reason = "metrics are floats")]
fn add_up(sum: &mut f64, value: u64, scale: f64) {
    *sum += value as f64 * scale;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::registry::Registry;
    use crate::metrics::text::{Format, TextWriter};

    struct Scene {
        registry: Arc<Registry>,
        requests: Arc<Latencies>,
        mapped: MappedStatistics,
    }

    impl Scene {
        fn new(mapper: Mapper) -> Self {
            let registry = Arc::<Registry>::default();
            let statistics = Arc::new(Statistics::new(registry.clone(), 100, true, false));
            let bounds = response_time_bounds(&mapper);
            let requests = Arc::new(Latencies::new(&bounds, false));
            let mapped = MappedStatistics::new(mapper, statistics, requests.clone());
            Self { registry, requests, mapped }
        }

        /// Without the lines of comment.
        fn text(&self, now: Instant) -> String {
            let mut read = ReadMapped::new(Arc::new(self.mapped.families(now, true)));
            let mut writer = TextWriter::new(Format::Text);
            while read.advance(&mut writer) {}
            let text = writer.take();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| format!("{line}\n")).collect()
        }
    }

    #[test]
    fn equal_labels_add_up_zeros_and_what_is_dropped_are_left_out() {
        let mapper = "mappings:\n- {match: 'ratelimit.redis_per_second_pool.*', name: sum, scale: 2, labels: {l: same}}\n\
                      - {match: 'ratelimit.service.config_load_error', action: drop}\n\
                      - {match: 'ratelimit.redis_pool.cx_active', name: sum}";
        let scene = Scene::new(Mapper::parse(mapper).unwrap());
        for (name, value) in [
            ("ratelimit.redis_per_second_pool.cx_local_close", 3),
            ("ratelimit.redis_per_second_pool.cx_total", 4),
            ("ratelimit.service.config_load_success", 0),
            ("ratelimit.localcache.hitCount", 0),
            ("ratelimit.service.config_load_error", 1),
            ("ratelimit.redis_pool.cx_active", 9),
        ] {
            scene.registry.show(name, &[], &value, |value| *value);
        }
        let expected = "ratelimit_localcache_hitCount 0\nsum{l=\"same\"} 14\n";
        assert_eq!(scene.text(Instant::now()), expected, "a gauge has no place in a counter");
        assert_eq!(scene.text(Instant::now()), expected, "from what is remembered");
    }

    #[test]
    fn response_times_are_in_the_buckets_of_the_mapping() {
        let scene = Scene::new(Mapper::built_in(false));
        assert_eq!(scene.text(Instant::now()), "", "not before there are any");
        let recorder = scene.requests.recorder(Protocol::Grpc);
        scene.requests.recorder(Protocol::Http).record(Duration::from_secs(1));
        for time in [5_000, 5_001, 2_500_000] {
            recorder.record(Duration::from_micros(time));
        }
        let text = scene.text(Instant::now());
        let name = "ratelimit_service_response_time_seconds";
        for line in [
            "_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.005\"} 1",
            "_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.01\"} 2",
            "_bucket{grpc_method=\"ShouldRateLimit\",le=\"1\"} 2",
            "_bucket{grpc_method=\"ShouldRateLimit\",le=\"2.5\"} 3",
            "_bucket{grpc_method=\"ShouldRateLimit\",le=\"+Inf\"} 3",
            "_count{grpc_method=\"ShouldRateLimit\"} 3",
        ] {
            assert!(text.contains(&format!("{name}{line}\n")), "{line}\n{text}");
        }
        let milliseconds = Scene::new(Mapper::built_in(true));
        milliseconds.requests.recorder(Protocol::Grpc).record(Duration::from_micros(2_500));
        let text = milliseconds.text(Instant::now());
        assert!(text.contains("le=\"2.5\"} 1\n") && text.contains("le=\"1\"} 0\n"), "{text}");
        assert!(text.contains("_sum{grpc_method=\"ShouldRateLimit\"} 2.5\n"), "{text}");
    }

    #[test]
    fn a_summary_forgets_what_is_too_old() {
        let scene = Scene::new(Mapper::parse("").unwrap());
        let recorder = scene.requests.recorder(Protocol::Grpc);
        let start = Instant::now();
        let median = |now: Instant| {
            let text = scene.text(now);
            let line = text.lines().find(|line| line.contains("quantile=\"0.5\"")).expect("a median").to_owned();
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        };
        let is_about = |found: f64, expected: f64| assert!((expected..=expected * 1.06).contains(&found), "{found}");
        for _ in 0..10 {
            recorder.record(Duration::from_millis(20));
        }
        is_about(median(start), 20.0);
        recorder.record(Duration::from_millis(300));
        is_about(median(start + Duration::from_secs(599)), 20.0);
        is_about(median(start + Duration::from_secs(601)), 300.0);
        assert!(scene.text(start + Duration::from_secs(601)).contains("_count 11\n"), "the count is of all");
    }
}
