//! How long things took, and how decisions ended: each runtime writes numbers of its own, and readers add them up.
//!
//! Not here: what is measured (metrics.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::Desc;
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};

use super::families::{Source, counter, family};
use crate::engine::observer::DecisionResult;

/// The upper bounds of the latency histograms, in microseconds. The last bucket has none.
pub const BUCKETS_US: [u64; 15] =
    [50, 100, 200, 400, 800, 1_500, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// How decisions end, in the order in which they are counted.
pub(super) const RESULTS: [(DecisionResult, &str); 6] = [
    (DecisionResult::Ok, "ok"),
    (DecisionResult::OverLimit, "over_limit"),
    (DecisionResult::Invalid, "invalid"),
    (DecisionResult::UnknownDomain, "unknown_domain"),
    (DecisionResult::NoPolicies, "no_policies"),
    (DecisionResult::StoreFailed, "store_failed"),
];

/// How many of the last times each runtime keeps for StatsD.
const TIMES_KEPT: usize = 1024;

/// By which listener requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// gRPC.
    Grpc,
    /// HTTP.
    Http,
}

/// Latencies of all runtimes, with a count for each way to end where there are several.
pub(super) struct Latencies {
    descs: Vec<Desc>,
    /// The upper bounds that are counted, in nanoseconds, ascending: all of [`BUCKETS_US`] and those that others need.
    bounds_ns: Arc<[u64]>,
    keeps_times: bool,
    recorders: Mutex<Vec<Arc<Recorder>>>,
}

/// What one runtime has measured.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Recorder {
    door: Door,
    bounds_ns: Arc<[u64]>,
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    results: [AtomicU64; RESULTS.len()],
    /// Requests that could not be read, which are among those that are invalid.
    unreadable: AtomicU64,
    times: Option<Times>,
}

/// The last times of one runtime, in microseconds: a ring that nobody waits for.
#[derive(Debug)]
struct Times {
    kept: Box<[AtomicU32]>,
    /// How many times there were.
    count: AtomicU64,
}

/// How far a reader of [`Latencies::times_since`] has come, for each runtime.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct TimesSeen(Vec<u64>);

/// Times of several runtimes together.
#[derive(Clone, Debug)]
pub(super) struct Distribution {
    bounds_ns: Arc<[u64]>,
    /// One for each bound, and one for what is above all of them.
    buckets: Vec<u64>,
    /// The sum of all times.
    pub(super) sum_ns: u64,
}

impl Distribution {
    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many were at most as long as this bound, which must be one that is counted.
    pub(super) fn up_to(&self, bound_ns: u64) -> u64 {
        let buckets = self.bounds_ns.partition_point(|bound| *bound <= bound_ns);
        self.buckets[..buckets].iter().sum()
    }

    /// What came since an earlier look.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now.saturating_sub(*then));
        Self {
            bounds_ns: self.bounds_ns.clone(),
            buckets: buckets.collect(),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
        }
    }

    /// The bound of the bucket in which the `rank`-th of the times is, from 1; none where there are fewer.
    pub(super) fn bound_of(&self, rank: u64) -> Option<u64> {
        let mut count = 0;
        for (bucket, bound_ns) in self.buckets.iter().zip(self.bounds_ns.iter().chain(self.bounds_ns.last())) {
            count += bucket;
            if count >= rank {
                return Some(*bound_ns);
            }
        }
        None
    }
}

impl Recorder {
    pub(super) fn record(&self, result: usize, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds_ns.partition_point(|bound| *bound < ns);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.results[result].fetch_add(1, Relaxed);
        if let Some(times) = &self.times {
            times.keep(ns / 1_000);
        }
    }

    pub(super) fn unreadable(&self) {
        self.unreadable.fetch_add(1, Relaxed);
    }
}

impl Times {
    fn new() -> Self {
        Self { kept: (0..TIMES_KEPT).map(|_| AtomicU32::new(0)).collect(), count: AtomicU64::new(0) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a remainder below the number of times that are kept")]
    fn keep(&self, us: u64) {
        let count = self.count.fetch_add(1, Relaxed);
        let at = (count % TIMES_KEPT as u64) as usize;
        self.kept[at].store(u32::try_from(us).unwrap_or(u32::MAX), Relaxed);
    }
}

impl Latencies {
    /// None yet. `bounds_ns` are counted beside [`BUCKETS_US`].
    pub(super) fn new(
        name: &str,
        help: &str,
        results: Option<&str>,
        bounds_ns: &[u64],
        keeps_times: bool,
    ) -> Result<Self, prometheus::Error> {
        let desc = |name: &str, help: &str, labels: Vec<String>| {
            Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())
        };
        let mut descs = vec![desc(name, help, Vec::new())?];
        if let Some(results) = results {
            let help = "Requests, by how their decision ended.";
            descs.push(desc(results, help, vec!["result".to_owned()])?);
        }
        let mut all: Vec<u64> = BUCKETS_US.iter().map(|us| us * 1_000).chain(bounds_ns.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        Ok(Self { descs, bounds_ns: all.into(), keeps_times, recorders: Mutex::default() })
    }

    pub(super) fn recorder(&self, door: Door) -> Arc<Recorder> {
        let recorder = Arc::new(Recorder {
            door,
            bounds_ns: self.bounds_ns.clone(),
            buckets: (0..=self.bounds_ns.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            results: Default::default(),
            unreadable: AtomicU64::new(0),
            times: (self.keeps_times && door == Door::Grpc).then(Times::new),
        });
        self.recorders.lock().push(recorder.clone());
        recorder
    }

    /// How many decisions ended in this way.
    pub(super) fn ended(&self, result: DecisionResult) -> u64 {
        self.recorders.lock().iter().map(|recorder| recorder.results[result as usize].load(Relaxed)).sum()
    }

    /// How many requests could not be read.
    pub(super) fn unreadable(&self) -> u64 {
        self.recorders.lock().iter().map(|recorder| recorder.unreadable.load(Relaxed)).sum()
    }

    /// How many requests came by this door and could be read.
    pub(super) fn requests(&self, door: Door) -> u64 {
        let recorders = self.recorders.lock();
        let of_door = recorders.iter().filter(|recorder| recorder.door == door);
        let read = of_door.map(|recorder| {
            let all: u64 = recorder.results.iter().map(|count| count.load(Relaxed)).sum();
            all.saturating_sub(recorder.unreadable.load(Relaxed))
        });
        read.sum()
    }

    /// The times of the requests that came by these doors.
    pub(super) fn distribution(&self, doors: &[Door]) -> Distribution {
        let mut buckets = vec![0; self.bounds_ns.len() + 1];
        let mut sum_ns = 0_u64;
        for recorder in self.recorders.lock().iter().filter(|recorder| doors.contains(&recorder.door)) {
            for (sum, bucket) in buckets.iter_mut().zip(&recorder.buckets) {
                *sum += bucket.load(Relaxed);
            }
            sum_ns = sum_ns.wrapping_add(recorder.sum_ns.load(Relaxed));
        }
        Distribution { bounds_ns: self.bounds_ns.clone(), buckets, sum_ns }
    }

    /// Shows the times in microseconds that came since the last look, the last ones of each runtime. Answers how many there were.
    pub(super) fn times_since(&self, seen: &mut TimesSeen, mut see: impl FnMut(u32)) -> u64 {
        let recorders = self.recorders.lock();
        let mut came = 0;
        seen.0.resize(recorders.len(), 0);
        for (recorder, seen) in recorders.iter().zip(&mut seen.0) {
            let Some(times) = &recorder.times else { continue };
            let count = times.count.load(Relaxed);
            let kept = (count - *seen).min(TIMES_KEPT as u64);
            for number in count - kept..count {
                #[expect(clippy::cast_possible_truncation, reason = "a remainder below the number of times")]
                let at = (number % TIMES_KEPT as u64) as usize;
                see(times.kept[at].load(Relaxed));
            }
            came += count - *seen;
            *seen = count;
        }
        came
    }
}

impl Source for Latencies {
    fn descs(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn families(&self) -> Vec<MetricFamily> {
        let times = self.distribution(&[Door::Grpc, Door::Http]);
        let mut histogram = Histogram::default();
        let mut buckets = Vec::new();
        for bound_us in BUCKETS_US {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(Duration::from_micros(bound_us).as_secs_f64());
            bucket.set_cumulative_count(times.up_to(bound_us * 1_000));
            buckets.push(bucket);
        }
        histogram.set_bucket(buckets);
        histogram.set_sample_count(times.count());
        histogram.set_sample_sum(Duration::from_nanos(times.sum_ns).as_secs_f64());
        let mut metric = Metric::default();
        metric.set_histogram(histogram);
        let latency = &self.descs[0];
        let mut families = vec![family(&latency.fq_name, &latency.help, MetricType::HISTOGRAM, vec![metric])];
        if let Some(results) = self.descs.get(1) {
            let metrics = RESULTS.iter().map(|&(result, label)| counter(&[("result", label)], self.ended(result)));
            let metrics = metrics.collect();
            families.push(family(&results.fq_name, &results.help, MetricType::COUNTER, metrics));
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_is_counted_under_its_own_name() {
        for (i, (result, _)) in RESULTS.into_iter().enumerate() {
            assert_eq!(result as usize, i, "{result:?}");
        }
    }

    #[test]
    fn the_last_times_are_shown_once_and_all_are_counted() {
        let latencies = Latencies::new("a", "b", None, &[], true).unwrap();
        let (one, other, http) =
            (latencies.recorder(Door::Grpc), latencies.recorder(Door::Grpc), latencies.recorder(Door::Http));
        let mut seen = TimesSeen::default();
        let look = |seen: &mut TimesSeen| {
            let mut times = Vec::new();
            let came = latencies.times_since(seen, |us| times.push(us));
            (came, times)
        };
        one.record(0, Duration::from_micros(7));
        other.record(0, Duration::from_micros(9));
        http.record(0, Duration::from_micros(11));
        assert_eq!(look(&mut seen), (2, vec![7, 9]));
        assert_eq!(look(&mut seen), (0, vec![]));
        for us in 0..TIMES_KEPT as u64 + 5 {
            one.record(0, Duration::from_micros(us));
        }
        let (came, times) = look(&mut seen);
        assert_eq!((came, times.len(), times[0]), (TIMES_KEPT as u64 + 5, TIMES_KEPT, 5));
        assert_eq!((latencies.requests(Door::Http), latencies.ended(DecisionResult::Ok)), (1, TIMES_KEPT as u64 + 8));
    }

    #[test]
    fn a_rank_is_found_in_the_bucket_that_holds_it() {
        let latencies = Latencies::new("a", "b", None, &[70_000], false).unwrap();
        let recorder = latencies.recorder(Door::Grpc);
        for us in [60, 60, 90, 6_000_000] {
            recorder.record(0, Duration::from_micros(us));
        }
        let times = latencies.distribution(&[Door::Grpc]);
        let bounds: Vec<Option<u64>> = (1..=5).map(|rank| times.bound_of(rank)).collect();
        assert_eq!(bounds, [Some(70_000), Some(70_000), Some(100_000), Some(5_000_000_000), None]);
        assert_eq!((times.up_to(70_000), times.up_to(100_000), times.count()), (2, 3, 4));
        assert_eq!(times.since(&times).count(), 0);
    }
}
