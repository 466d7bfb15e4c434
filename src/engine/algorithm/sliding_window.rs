//! A sliding window in sub-buckets of `precision`: a hard bound in any window, at bounded memory. [sw-1]
//!
//! Known from Josiah Carlson's sliding windows. A bucket counts until its last instant has left the window, so no span
//! as long as the window admits more than the limit. The cost: of an even stream at the nominal rate, `n / (n + 1)` is
//! admitted, where n is the number of buckets. `concurrency` uses the same state: a hit is a permit, which its
//! receipt releases from its bucket. [cc-1] Its Lua twin is lua/algorithms/sliding_window.lua.
//!
//! Three hits in any minute, counted in sub-buckets of 10 seconds:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Precision, Unit};
//!
//! let limit = {
//!     let precision = Precision::new(10_000_000).unwrap();
//!     Limit::new(3, Unit::Minute.window(), Algorithm::SlidingWindow { precision }).unwrap()
//! };
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(2, 5), Verdict::Within);
//! assert_eq!(hits(1, 30), Verdict::Within);
//! let until_gone = 70_000_000 - 1 - 31_000_000;
//! assert_eq!(hits(1, 31), Verdict::Over { retry_after: until_gone }, "the bucket from 0 to 10 counts until 70");
//! assert_eq!(hits(2, 70), Verdict::Within, "one of 30 still counts");
//! ```

mod buckets;

use std::ops::RangeInclusive;

pub use self::buckets::Buckets;
use super::State;
use super::counting::{
    Counting, Effect, Found, Receipt, StateNumbers, StoredFormat, Summary, Work, is_believed, small,
};
use super::parameters::Precision;
use crate::descriptor::{Count, Hits, saturated};
use crate::time::{Duration, Micros, Window};

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

    /// What a charge of `hits` finds in these buckets, under the limit as it is now. [sw-2] [sw-3] [lm-6] [cc-6]
    fn summary(&self, live: &LiveBuckets<'_>, hits: Hits) -> Summary {
        let (window_us, precision) = (self.window.us(), self.precision.get());
        let leaves_at = |number: u64| (number + 1) * precision + window_us - 1;
        let newest = live.counts().next_back().map(|(number, _)| number);
        let excess = (live.used + u64::from(hits)).saturating_sub(u64::from(self.requests));
        let mut fits_at = 0;
        if excess > 0 && hits > 0 && hits <= self.requests && live.used > 0 {
            let mut before = 0;
            let last = live.counts().find(|&(_, hits)| {
                before += u64::from(hits);
                before >= excess
            });
            fits_at = leaves_at(last.map_or(live.here, |(number, _)| number));
        }
        Summary {
            used: live.used,
            fits_at,
            empty_at: if live.used > 0 { newest.map_or(0, leaves_at) } else { 0 },
            mark: newest.unwrap_or(0),
        }
    }

    /// Changes the state to the next state; the state has no buckets if nothing counts any more. [sw-2] [sw-4]
    fn change(&self, stored: &mut Buckets, effect: Effect, now: Micros) {
        if let Effect::Undo(receipt) = effect {
            return self.take_back(stored, receipt, now);
        }
        let live = LiveBuckets::of(self, Some(stored), now);
        let (here, dead, rebased) = (live.here, live.dead, live.rebased);
        stored.drop_oldest(dead);
        if let Some(hits) = rebased.filter(|&hits| hits > 0) {
            stored.add(here, hits);
        }
        match effect {
            Effect::Add(hits) => stored.add(here, saturated(hits)),
            Effect::Refund(hits) => stored.refund(hits),
            Effect::Nothing | Effect::Drain | Effect::Undo(_) => {}
        }
    }

    /// Undoes one charge if its bucket still counts. [un-2] [cc-5]
    fn take_back(&self, stored: &mut Buckets, receipt: Receipt, now: Micros) {
        let live = LiveBuckets::of(self, Some(stored), now);
        if live.rebased.is_some() || live.counts().all(|(number, _)| number != receipt.mark) {
            return;
        }
        let left = |(number, hits): (u64, u32)| {
            let gone = if number == receipt.mark { receipt.hits } else { 0 };
            (number, hits.saturating_sub(gone))
        };
        let left = live.counts().map(left).filter(|&(_, hits)| hits > 0).collect();
        *stored = left;
    }

    /// Whether the bucket of the receipt has left the window. [un-2]
    pub(super) const fn has_ended(&self, receipt: Receipt, now: Micros) -> bool {
        let end = receipt.mark.saturating_add(1).saturating_mul(self.precision.get());
        now >= end.saturating_add(self.window.us())
    }
}

impl Counting for SlidingWindow {
    type View = Summary;

    const NUMBER: u8 = 5;
    const FORMAT: StoredFormat = StoredFormat::Counts;
    const REPLY: usize = 8;

    fn capacity(&self) -> Count {
        self.requests.into()
    }

    fn id(&self, _zone: &str) -> String {
        match self.counted {
            Counted::Hits => format!("w{}/{}", self.window, Duration(self.precision.get())),
            Counted::Permits => format!("p{}", self.window),
        }
    }

    /// A charge reads, sums and writes each sub-bucket.
    fn weight(&self, _work: Work) -> u32 {
        4 + self.buckets.div_ceil(20)
    }

    /// The buckets are stale if the clock has stepped back so far that all counted hits move to now. [sw-6] [tm-2]
    fn find(&self, state: Option<&State>, asked: Hits, now: Micros) -> Found<Summary> {
        let buckets = if let Some(State::SlidingWindow(buckets)) = state { Some(buckets) } else { None };
        let live = LiveBuckets::of(self, buckets, now);
        Found { view: self.summary(&live, asked), is_stale: live.rebased.is_some() }
    }

    fn write(&self, state: &mut Option<State>, _: Summary, effect: Effect, now: Micros) {
        let empty = || State::SlidingWindow(Buckets::default());
        if let State::SlidingWindow(buckets) = state.get_or_insert_with(empty) {
            self.change(buckets, effect, now);
        }
    }

    fn script_numbers(&self, _hits: Hits) -> StateNumbers {
        StateNumbers::from_slice(&[self.window.us(), self.precision.get(), u64::from(self.requests)])
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        let (&first, counts) = numbers.split_first()?;
        if first >= FIRST_END || *counts.last()? == 0 {
            return None;
        }
        let buckets = (first..).zip(counts).filter(|&(_, &count)| count > 0);
        let buckets: Option<Buckets> = buckets.map(|(number, &count)| Some((number, small(count)?))).collect();
        buckets.map(State::SlidingWindow)
    }
}
