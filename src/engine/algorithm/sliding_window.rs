//! A sliding window in sub-buckets of `precision`: a hard bound in any window, at bounded memory. [sw-1]
//!
//! Known from Josiah Carlson's sliding windows. A bucket counts until its last instant has left the window, so no span
//! as long as the window admits more than the limit. The cost: of an even stream at the nominal rate, `n / (n + 1)` is
//! admitted, where n is the number of buckets. `concurrency` uses the same state: a hit is a permit, which its
//! receipt releases from its bucket. [cc-1] Its Lua twin is lua/algorithms/sliding_window.lua.

mod buckets;

use std::borrow::Borrow;
use std::ops::RangeInclusive;

pub use self::buckets::Buckets;
use super::counting::{Counting, Effect, Receipt, StoredFormat, Summary, Written, is_believed, small};
use super::parameters::Precision;
use crate::descriptor::Hits;
use crate::time::{Bounds, Duration, Micros, Window};

/// The shortest and the longest time that a request with a permit may take, in microseconds. [cc-2]
pub const PERMIT_US: RangeInclusive<u64> = 1_000_000..=3_600_000_000;
/// The window of permits is a multiple of this, in microseconds. Then 50 or more sub-buckets divide it. [cc-2]
const PERMIT_STEP_US: u64 = 1_000;
/// The most sub-buckets of a window. [sw-1]
pub const BUCKETS_MAX: u64 = 256;
/// If the first bucket's number is below this, the numbers of all buckets of a stored state are below 2^53.
const FIRST_END: u64 = (1 << 53) - (BUCKETS_MAX + 1);

/// The window over the buckets at one instant.
struct LiveBuckets<'a> {
    stored: Option<&'a Buckets>,
    /// How many of the oldest buckets do not count.
    dead: usize,
    /// The hits of the buckets that count.
    used: u64,
    /// The bucket that new hits go to.
    here: u64,
    /// The hits of all buckets, if they move to now because the clock has stepped back too far. [tm-2]
    rebased: Option<u32>,
}

impl<'a> LiveBuckets<'a> {
    fn of(counting: &SlidingWindow, stored: Option<&'a Buckets>, now: Micros) -> Self {
        let precision = counting.precision.get();
        let here = now / precision;
        let Some((stored, newest)) = stored.and_then(|stored| Some((stored, stored.newest()?))) else {
            return Self { stored: None, dead: 0, used: 0, here, rebased: None };
        };
        let oldest = counting.oldest(newest, now);
        let (mut dead, mut used) = (0, stored.sum());
        if newest < oldest {
            (dead, used) = (stored.len(), 0);
        } else {
            for (_, hits) in stored.iter().take_while(|&(number, _)| number < oldest) {
                dead += 1;
                used -= u64::from(hits);
            }
        }
        if counting.believes(newest, now) {
            Self { stored: Some(stored), dead, used, here: here.max(newest), rebased: None }
        } else {
            let all = u32::try_from(used).unwrap_or(u32::MAX);
            Self { stored: None, dead: stored.len(), used: all.into(), here, rebased: Some(all) }
        }
    }

    /// Number and hits of the buckets that count, oldest first.
    fn counts(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> {
        let rebased = self.rebased.map(|hits| (self.here, hits));
        self.stored.into_iter().flat_map(|stored| stored.iter_from(self.dead)).chain(rebased)
    }
}

/// The algorithms that share this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Hits,
    /// Each request in flight holds one permit. [cc-1]
    Permits,
}

/// Limits hits in any window, by sub-buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    requests: u32,
    /// The sub-buckets of a window.
    buckets: u32,
    window: Window,
    precision: Precision,
    counted: Counted,
}

impl SlidingWindow {
    /// None if the sub-buckets do not divide the window, or are more than [`BUCKETS_MAX`]. [sw-1]
    pub(super) fn new(requests: u32, window: Window, precision: Precision) -> Option<Self> {
        let (us, window_us) = (precision.get(), window.us());
        let is_divided = window_us.is_multiple_of(us) && window_us / us <= BUCKETS_MAX;
        let buckets = u32::try_from(window_us / us).ok()?;
        is_divided.then_some(Self { requests, buckets, window, precision, counted: Counted::Hits })
    }

    /// Permits of requests that run for at most one window. None for a window out of its bounds. [cc-2]
    pub(super) fn of_permits(requests: u32, window: Window, precision: Precision) -> Option<Self> {
        let is_fitting = PERMIT_US.contains(&window.us()) && window.us().is_multiple_of(PERMIT_STEP_US);
        let sliding = is_fitting.then(|| Self::new(requests, window, precision))?;
        Some(Self { counted: Counted::Permits, ..sliding? })
    }

    /// The oldest bucket that counts at `now`. If the clock has stepped back before the newest bucket, the time is the
    /// start of that bucket. [sw-2] [sw-6]
    fn oldest(&self, newest: u64, now: Micros) -> u64 {
        let precision = self.precision.get();
        let at = now.max(newest.saturating_mul(precision));
        ((at + 1) / precision).saturating_sub(self.buckets.into())
    }

    /// Where a bucket ends. [sw-1]
    pub(super) fn bucket_end(&self, number: u64) -> Micros {
        (number + 1) * self.precision.get()
    }

    /// Whether a state with this newest bucket is believed: the clock has stepped back only a little. [tm-2]
    fn believes(&self, newest: u64, now: Micros) -> bool {
        let start = u128::from(newest) * u128::from(self.precision.get());
        is_believed(start.saturating_sub(now.into()), self.window.us())
    }

    /// The observation of a charge of `hits`, before or after its effect, under the limit as it is now. [sw-2] [sw-3]
    /// [sw-7] [cc-6]
    fn summary(&self, stored: Option<&Buckets>, hits: Hits, effect: Effect, now: Micros) -> Summary {
        let (window_us, precision) = (self.window.us(), self.precision.get());
        let live = LiveBuckets::of(self, stored, now);
        let leaves_at = |number: u64| (number + 1) * precision + window_us - 1;
        let found = live.used;
        let (added, mut given) = match effect {
            Effect::Add(hits) => (u64::from(hits), 0),
            Effect::Refund(hits) => (0, u64::from(hits)),
            Effect::Nothing | Effect::Drain | Effect::Rewrite => (0, 0),
        };
        let used = (found + added).saturating_sub(given);
        let newest = if added > 0 {
            Some(live.here)
        } else {
            let left = live.counts().rev().find(|&(_, hits)| {
                let gone = given.min(u64::from(hits));
                given -= gone;
                u64::from(hits) > gone
            });
            left.map(|(number, _)| number)
        };

        let excess = (used + u64::from(hits)).saturating_sub(u64::from(self.requests));
        let mut fits_at = 0;
        if excess > 0 && hits > 0 && hits <= self.requests && used > 0 {
            let mut before = 0;
            let last = live.counts().find(|&(_, hits)| {
                before += u64::from(hits);
                before >= excess
            });
            fits_at = leaves_at(last.map_or(live.here, |(number, _)| number));
        }
        Summary {
            used: u32::try_from(used).unwrap_or(u32::MAX),
            fits_at,
            empty_at: if used > 0 { newest.map_or(0, leaves_at) } else { 0 },
            mark: newest.unwrap_or(0),
        }
    }

    /// Changes the state to the next state; the state has no buckets if nothing counts any more. [sw-2] [sw-4]
    fn change(&self, stored: &mut Buckets, effect: Effect, now: Micros) {
        let live = LiveBuckets::of(self, Some(stored), now);
        let (here, dead, rebased) = (live.here, live.dead, live.rebased);
        stored.drop_oldest(dead);
        if let Some(hits) = rebased.filter(|&hits| hits > 0) {
            stored.add(here, hits);
        }
        match effect {
            Effect::Add(hits) => stored.add(here, hits),
            Effect::Refund(hits) => stored.refund(hits),
            Effect::Nothing | Effect::Drain | Effect::Rewrite => {}
        }
    }

    /// Undoes one charge if its bucket still counts. Returns whether it did. [un-2] [cc-5]
    fn take_back(&self, stored: &mut Buckets, receipt: Receipt, now: Micros) -> bool {
        let live = LiveBuckets::of(self, Some(stored), now);
        if live.rebased.is_some() || live.counts().all(|(number, _)| number != receipt.mark) {
            return false;
        }
        let left = |(number, hits): (u64, u32)| {
            let gone = if number == receipt.mark { receipt.hits } else { 0 };
            (number, hits.saturating_sub(gone))
        };
        let left = live.counts().map(left).filter(|&(_, hits)| hits > 0).collect();
        *stored = left;
        true
    }

    fn holds_nothing(stored: &Buckets) -> bool {
        stored.is_empty()
    }
}

impl Counting for SlidingWindow {
    type State = Buckets;
    type Observed = Summary;
    type Numbers = [u64; 3];

    const FORMAT: StoredFormat = StoredFormat::Counts;

    long_state!();

    fn requests(&self) -> Hits {
        self.requests
    }

    fn id(&self, _zone: &str) -> String {
        match self.counted {
            Counted::Hits => format!("w{}/{}", self.window, Duration(self.precision.get())),
            Counted::Permits => format!("p{}", self.window),
        }
    }

    /// A charge reads, sums and writes each sub-bucket.
    fn weight(&self) -> u32 {
        4 + self.buckets.div_ceil(20)
    }

    /// Whether the clock has stepped back so far that all counted hits move to now. [sw-6] [tm-2]
    fn is_stale(&self, stored: &Buckets, _bounds: Option<Bounds>, now: Micros) -> bool {
        stored.newest().is_some_and(|newest| !self.believes(newest, now))
    }

    fn script_numbers(&self, _hits: Hits, _bounds: Option<Bounds>) -> Self::Numbers {
        [self.window.us(), self.precision.get(), u64::from(self.requests)]
    }

    fn read_stored(numbers: &[u64]) -> Option<Buckets> {
        let (&first, counts) = numbers.split_first()?;
        if first >= FIRST_END || *counts.last()? == 0 {
            return None;
        }
        let buckets = (first..).zip(counts).filter(|&(_, &count)| count > 0);
        buckets.map(|(number, &count)| Some((number, small(count)?))).collect()
    }
}
