//! Times, and failures by result. Each runtime writes its own numbers, and readers sum them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use weir_engine::observer::{DecisionResult, TraceIds};

use super::families::{Bucket, Exemplar, Histogram};

/// The upper bounds of the latency histograms, in microseconds. One more bucket has no bound.
pub const BUCKETS_US: [u64; 15] =
    [50, 100, 200, 400, 800, 1_500, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// How many of the latest times each runtime stores for StatsD.
const TIMES_KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// ShouldRateLimit.
    Grpc,
    /// `POST /json`.
    Http,
}

pub(super) struct Latencies {
    /// The upper bounds, in nanoseconds, ascending: [`BUCKETS_US`], and those of mapped metrics.
    bounds_ns: Arc<[u64]>,
    keeps_times: bool,
    recorders: Mutex<Vec<Arc<Recorder>>>,
    /// The last traced observation of each bucket of [`BUCKETS_US`], and of the one above.
    exemplars: Mutex<[Option<Exemplar>; BUCKETS_US.len() + 1]>,
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Recorder {
    protocol: Protocol,
    bounds_ns: Arc<[u64]>,
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    /// By result. Results of known domains are counted in domains.rs.
    failures: [AtomicU64; DecisionResult::ALL.len()],
    /// Requests that could not be read. They also count as invalid.
    unreadable: AtomicU64,
    times: Option<Times>,
}

/// The latest times of one runtime, in microseconds: a ring that never blocks.
#[derive(Debug)]
struct Times {
    kept: Box<[AtomicU32]>,
    count: AtomicU64,
}

/// The position of a reader of [`Latencies::times_since`], for each runtime.
#[derive(Debug, Default)]
pub(crate) struct TimesSeen(Vec<u64>);

/// The sum of the times of several runtimes.
#[derive(Clone, Debug)]
pub(super) struct Distribution {
    bounds_ns: Arc<[u64]>,
    /// One for each bound, and one for larger times.
    buckets: Vec<u64>,
    pub(super) sum_ns: u64,
}

impl Distribution {
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many are at most `bound_ns`, which must be one of the bounds.
    pub(super) fn up_to(&self, bound_ns: u64) -> u64 {
        let buckets = self.bounds_ns.partition_point(|bound| *bound <= bound_ns);
        self.buckets[..buckets].iter().sum()
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now.saturating_sub(*then));
        Self {
            bounds_ns: self.bounds_ns.clone(),
            buckets: buckets.collect(),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
        }
    }

    /// The bound of the bucket with the `rank`-th time, from 1. None if there are fewer.
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
    pub(super) fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds_ns.partition_point(|bound| *bound < ns);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        if let Some(times) = &self.times {
            times.keep(ns / 1_000);
        }
    }

    /// Counts the result of a decision that failed. Other results are counted by domain (domains.rs).
    pub(super) fn ended(&self, result: DecisionResult) {
        if !matches!(result, DecisionResult::Ok | DecisionResult::OverLimit) {
            self.failures[result as usize].fetch_add(1, Relaxed);
        }
    }

    pub(super) fn unreadable(&self) {
        self.unreadable.fetch_add(1, Relaxed);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
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
    /// Starts with no times. `bounds_ns` are counted in addition to [`BUCKETS_US`].
    pub(super) fn new(bounds_ns: &[u64], keeps_times: bool) -> Self {
        let mut all: Vec<u64> = BUCKETS_US.iter().map(|us| us * 1_000).chain(bounds_ns.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        Self { bounds_ns: all.into(), keeps_times, recorders: Mutex::default(), exemplars: Mutex::default() }
    }

    pub(super) fn recorder(&self, protocol: Protocol) -> Arc<Recorder> {
        let recorder = Arc::new(Recorder {
            protocol,
            bounds_ns: self.bounds_ns.clone(),
            buckets: (0..=self.bounds_ns.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            failures: Default::default(),
            unreadable: AtomicU64::new(0),
            times: (self.keeps_times && protocol == Protocol::Grpc).then(Times::new),
        });
        self.recorders.lock().push(recorder.clone());
        recorder
    }

    /// How many decisions had this result, which is neither `Ok` nor `OverLimit`.
    pub(super) fn failures(&self, result: DecisionResult) -> u64 {
        self.recorders.lock().iter().map(|recorder| recorder.failures[result as usize].load(Relaxed)).sum()
    }

    /// Stores a sampled observation as the exemplar of its bucket.
    pub(super) fn sampled(&self, took: Duration, ids: TraceIds) {
        let bucket = BUCKETS_US.partition_point(|us| Duration::from_micros(*us) < took);
        let exemplar = Exemplar { ids, value: took.as_secs_f64(), at: SystemTime::now() };
        self.exemplars.lock()[bucket] = Some(exemplar);
    }

    pub(super) fn unreadable(&self) -> u64 {
        self.recorders.lock().iter().map(|recorder| recorder.unreadable.load(Relaxed)).sum()
    }

    /// How many requests used this protocol and could be read.
    pub(super) fn requests(&self, protocol: Protocol) -> u64 {
        let recorders = self.recorders.lock();
        let of_protocol = recorders.iter().filter(|recorder| recorder.protocol == protocol);
        of_protocol.map(|recorder| recorder.count().saturating_sub(recorder.unreadable.load(Relaxed))).sum()
    }

    pub(super) fn distribution(&self, protocols: &[Protocol]) -> Distribution {
        let mut buckets = vec![0; self.bounds_ns.len() + 1];
        let mut sum_ns = 0_u64;
        for recorder in self.recorders.lock().iter().filter(|recorder| protocols.contains(&recorder.protocol)) {
            for (sum, bucket) in buckets.iter_mut().zip(&recorder.buckets) {
                *sum += bucket.load(Relaxed);
            }
            sum_ns = sum_ns.wrapping_add(recorder.sum_ns.load(Relaxed));
        }
        Distribution { bounds_ns: self.bounds_ns.clone(), buckets, sum_ns }
    }

    /// All times, by [`BUCKETS_US`], in seconds.
    pub(super) fn histogram(&self) -> Histogram {
        let times = self.distribution(&[Protocol::Grpc, Protocol::Http]);
        let (count, sum) = (times.count(), Duration::from_nanos(times.sum_ns).as_secs_f64());
        let exemplars = *self.exemplars.lock();
        let bounded = BUCKETS_US.map(|us| (Duration::from_micros(us).as_secs_f64(), times.up_to(us * 1_000)));
        let all = bounded.into_iter().chain([(f64::INFINITY, count)]);
        let buckets = all.zip(exemplars).map(|((bound, cumulative), exemplar)| Bucket { bound, cumulative, exemplar });
        Histogram { buckets: buckets.collect(), count, sum }
    }

    /// Passes the latest times since the last call to `see`, in microseconds. Returns how many were recorded since then.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traced_observation_is_the_example_of_its_bucket() {
        let latencies = Latencies::new(&[70_000], false);
        for (us, trace) in [(50, 1), (51, 2), (60, 3), (9_000_000, 4)] {
            latencies.sampled(Duration::from_micros(us), TraceIds { trace, span: 1 });
        }
        let found = latencies.histogram().buckets.into_iter().filter_map(|bucket| {
            let exemplar = bucket.exemplar?;
            assert!(exemplar.value <= bucket.bound, "{exemplar:?}");
            Some((bucket.bound, exemplar.ids.trace))
        });
        assert_eq!(found.collect::<Vec<_>>(), [(0.000_05, 1), (0.000_1, 3), (f64::INFINITY, 4)]);
    }

    #[test]
    fn the_last_times_are_shown_once_and_all_are_counted() {
        let latencies = Latencies::new(&[], true);
        let (one, other, http) = (
            latencies.recorder(Protocol::Grpc),
            latencies.recorder(Protocol::Grpc),
            latencies.recorder(Protocol::Http),
        );
        let mut seen = TimesSeen::default();
        let look = |seen: &mut TimesSeen| {
            let mut times = Vec::new();
            let came = latencies.times_since(seen, |us| times.push(us));
            (came, times)
        };
        one.record(Duration::from_micros(7));
        other.record(Duration::from_micros(9));
        http.record(Duration::from_micros(11));
        assert_eq!(look(&mut seen), (2, vec![7, 9]));
        assert_eq!(look(&mut seen), (0, vec![]));
        for us in 0..TIMES_KEPT as u64 + 5 {
            one.record(Duration::from_micros(us));
        }
        let (came, times) = look(&mut seen);
        assert_eq!((came, times.len(), times[0]), (TIMES_KEPT as u64 + 5, TIMES_KEPT, 5));
        assert_eq!(
            (latencies.requests(Protocol::Http), latencies.requests(Protocol::Grpc)),
            (1, TIMES_KEPT as u64 + 7)
        );
    }

    #[test]
    fn a_rank_is_found_in_the_bucket_that_holds_it() {
        let latencies = Latencies::new(&[70_000], false);
        let recorder = latencies.recorder(Protocol::Grpc);
        for us in [60, 60, 90, 6_000_000] {
            recorder.record(Duration::from_micros(us));
        }
        let times = latencies.distribution(&[Protocol::Grpc]);
        let bounds: Vec<Option<u64>> = (1..=5).map(|rank| times.bound_of(rank)).collect();
        assert_eq!(bounds, [Some(70_000), Some(70_000), Some(100_000), Some(5_000_000_000), None]);
        assert_eq!((times.up_to(70_000), times.up_to(100_000), times.count()), (2, 3, 4));
        assert_eq!(times.since(&times).count(), 0);
    }
}
