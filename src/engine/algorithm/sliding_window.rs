//! A sliding window in sub-buckets of `precision`: a hard bound in any window, at bounded memory. [sw-1]
//!
//! Known from Josiah Carlson's sliding windows. A bucket counts until its last instant has left the window, so that no
//! span as long as the window ever admits more than the limit; the price is that an even stream at the nominal rate
//! passes n / (n + 1) of it, where n is the number of buckets. Its Lua twin is lua/algorithms/sliding_window.lua.

use super::counting::{Counting, Effect, Format, Receipt, Summary, Written, is_believed, small};
use super::parameters::Precision;
use crate::engine::descriptor::Hits;
use crate::engine::time::{Bounds, Duration, Micros, Window};

/// The most sub-buckets of a window. [sw-1]
pub const BUCKETS_MAX: u64 = 256;
/// The numbers of all buckets of a stored state are below 2^53 with a first one below this.
const FIRST_END: u64 = (1 << 53) - (BUCKETS_MAX + 1);

/// Hits by bucket number (`floor(t / precision)`), oldest first, none of them 0. [sw-5]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Number and hits, each at most 2^32 - 1.
    pub buckets: Vec<(u64, u32)>,
}

/// The window over the buckets at one instant.
struct Live<'a> {
    /// The buckets that count.
    buckets: &'a [(u64, u32)],
    /// The bucket that new hits go to.
    here: u64,
    /// The hits of all buckets, moved here because the clock has stepped back too far to believe them. [tm-2]
    rebased: Option<u32>,
}

impl<'a> Live<'a> {
    fn of(counting: &SlidingWindow, stored: &'a [(u64, u32)], now: Micros) -> Self {
        let (window_us, precision) = (counting.window.us(), counting.precision.get());
        let newest = stored.last().map_or(0, |&(number, _)| number);
        let here = now / precision;
        let (here, believed) = if newest > here {
            let ahead = u128::from(newest) * u128::from(precision) - u128::from(now);
            (newest, is_believed(ahead, window_us))
        } else {
            (here, true)
        };
        // The clock's own now, or the start of the newest bucket where the clock has stepped back.
        let at = now.max(here.saturating_mul(precision));
        let oldest = (at + 1).saturating_sub(window_us) / precision;
        let buckets = &stored[stored.partition_point(|&(number, _)| number < oldest)..];
        if believed {
            Self { buckets, here, rebased: None }
        } else {
            Self { buckets: &[], here: now / precision, rebased: Some(saturating_sum(buckets)) }
        }
    }

    fn counts(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> {
        let rebased = self.rebased.map(|hits| (self.here, hits));
        self.buckets.iter().copied().chain(rebased.filter(|&(_, hits)| hits > 0))
    }
}

/// So many hits in any window, by sub-buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    requests: u32,
    window: Window,
    precision: Precision,
}

impl SlidingWindow {
    /// None if the sub-buckets do not divide the window, or are more than [`BUCKETS_MAX`]. A limit of 0 needs none. [lm-2]
    pub(super) fn new(requests: u32, window: Window, precision: Precision) -> Option<Self> {
        let (us, window_us) = (precision.get(), window.us());
        let is_divided = window_us.is_multiple_of(us) && window_us / us <= BUCKETS_MAX;
        (requests == 0 || is_divided).then_some(Self { requests, window, precision })
    }

    /// What a charge of `hits` finds, or leaves behind after its effect, by the limit as it is now. [sw-2] [sw-3] [sw-7]
    fn summary(&self, stored: Option<&Buckets>, hits: Hits, effect: Effect, now: Micros) -> Summary {
        let (window_us, precision) = (self.window.us(), self.precision.get());
        let live = Live::of(self, stored.map_or(&[][..], |stored| &stored.buckets), now);
        let leaves_at = |number: u64| (number + 1) * precision + window_us - 1;

        let found: u64 = live.counts().map(|(_, hits)| u64::from(hits)).sum();
        let (added, mut given) = match effect {
            Effect::Add(hits) => (u64::from(hits), 0),
            Effect::Give(hits) => (0, u64::from(hits)),
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

    /// Makes it the next state; without buckets where nothing counts any more. [sw-2] [sw-4]
    fn change(&self, stored: &mut Buckets, effect: Effect, now: Micros) {
        let live = Live::of(self, &stored.buckets, now);
        let (here, rebased, dead) = (live.here, live.rebased, stored.buckets.len() - live.buckets.len());
        let buckets = &mut stored.buckets;
        buckets.drain(..dead);
        if let Some(hits) = rebased.filter(|&hits| hits > 0) {
            buckets.push((here, hits));
        }
        match effect {
            Effect::Add(hits) => match buckets.last_mut() {
                Some((number, count)) if *number == here => *count = count.saturating_add(hits),
                _ => {
                    if buckets.is_empty() {
                        // Many keys never have more than one, and room for four would double what they take.
                        buckets.reserve_exact(1);
                    }
                    buckets.push((here, hits));
                }
            },
            Effect::Give(mut hits) => {
                while let Some((_, count)) = buckets.last_mut() {
                    let gone = hits.min(*count);
                    *count -= gone;
                    hits -= gone;
                    if *count > 0 {
                        break;
                    }
                    buckets.pop();
                }
            }
            Effect::Nothing | Effect::Drain | Effect::Rewrite => {}
        }
    }

    /// Takes one charge out of the state, if its bucket still counts. Returns whether it does. [un-2]
    fn take_back(&self, stored: &mut Buckets, receipt: Receipt, now: Micros) -> bool {
        let live = Live::of(self, &stored.buckets, now);
        let at = live.buckets.binary_search_by_key(&receipt.mark, |&(number, _)| number);
        let (None, Ok(at)) = (live.rebased, at) else {
            return false;
        };
        let dead = stored.buckets.len() - live.buckets.len();
        stored.buckets.drain(..dead);
        let count = &mut stored.buckets[at].1;
        *count = count.saturating_sub(receipt.hits);
        if *count == 0 {
            stored.buckets.remove(at);
        }
        true
    }

    fn holds_nothing(stored: &Buckets) -> bool {
        stored.buckets.is_empty()
    }
}

impl Counting for SlidingWindow {
    type State = Box<Buckets>;
    type Observed = Summary;
    type Numbers = [u64; 3];

    const FORMAT: Format = Format::Counts;

    long_state!();

    fn requests(&self) -> Hits {
        self.requests
    }

    fn id(&self, _zone: &str) -> String {
        format!("w{}/{}", self.window, Duration(self.precision.get()))
    }

    /// Each sub-bucket is read, added up and written.
    fn weight(&self) -> u32 {
        let buckets = self.window.us().div_ceil(self.precision.get());
        u32::try_from(4 + buckets.div_ceil(20)).unwrap_or(u32::MAX)
    }

    /// Whether the clock has stepped back by so much that what counts moves to now. [sw-6] [tm-2]
    fn is_stale(&self, stored: &Box<Buckets>, _bounds: Option<Bounds>, now: Micros) -> bool {
        Live::of(self, &stored.buckets, now).rebased.is_some_and(|hits| hits > 0)
    }

    fn script_numbers(&self, _hits: Hits, _bounds: Option<Bounds>) -> Self::Numbers {
        [self.window.us(), self.precision.get(), u64::from(self.requests)]
    }

    fn read_stored(numbers: &[u64]) -> Option<Box<Buckets>> {
        let (&first, counts) = numbers.split_first()?;
        if first >= FIRST_END || *counts.last()? == 0 {
            return None;
        }
        let mut buckets = Vec::new();
        for (number, &count) in (first..).zip(counts).filter(|&(_, &count)| count > 0) {
            buckets.push((number, small(count)?));
        }
        Some(Box::new(Buckets { buckets }))
    }
}

fn saturating_sum(buckets: &[(u64, u32)]) -> u32 {
    buckets.iter().fold(0, |sum: u32, &(_, hits)| sum.saturating_add(hits))
}
