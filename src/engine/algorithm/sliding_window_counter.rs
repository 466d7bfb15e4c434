//! Two windows of the clock, the earlier one weighted by how much of it the sliding window still covers. [sc-1]
//!
//! Known from Cloudflare. On average it has no burst at the edge of a window, but it can admit twice the limit over one
//! span as long as the window. The weighted part rounds down: rounding up would lose a seventh of 7 per second. Its Lua
//! twin is lua/algorithms/sliding_window_counter.lua.
//!
//! Six hits per minute:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Unit};
//!
//! let limit = Limit::new(6, Unit::Minute.window(), Algorithm::SlidingWindowCounter).unwrap();
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(6, 59), Verdict::Within);
//! assert_eq!(hits(1, 60), Verdict::Over { retry_after: 1 }, "all six count until an instant after the minute begins");
//! assert_eq!(hits(3, 90), Verdict::Within, "half of six still count: 3 + 3 are the limit");
//! assert_eq!(hits(1, 90), Verdict::Over { retry_after: 1 });
//! ```

use super::counting::{Counting, Effect, Found, Level, Receipt, StateNumbers, StoredFormat, View, is_believed, small};
use super::{Observed, State};
use crate::arith::mul_div;
use crate::descriptor::{Count, Hits, saturated};
use crate::time::{Micros, Window};

/// The hits of the current window and of the window before, as stored. [sc-6]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCounts {
    /// When the later window began: a multiple of its length.
    pub start: Micros,
    /// The hits of the earlier window, at most 2^32 - 1.
    pub previous: u32,
    /// The hits of the later window, at most 2^32 - 1.
    pub count: u32,
}

impl WindowCounts {
    /// The time since the later window began; zero if the clock has stepped back before it.
    fn elapsed(&self, now: Micros) -> Micros {
        now.saturating_sub(self.start)
    }

    /// The earlier window's hits that still count, rounded down. [sc-2]
    fn weighted(&self, window_us: u64, now: Micros) -> u64 {
        mul_div(u64::from(self.previous), window_us - self.elapsed(now), window_us).0
    }

    /// The counts after a refund: it reduces the later window first, then the earlier. [sc-5]
    const fn refunded(self, hits: Hits) -> Self {
        let rest = hits.saturating_sub(self.count);
        Self { previous: self.previous.saturating_sub(rest), count: self.count.saturating_sub(hits), ..self }
    }
}

/// Limits hits per window, by two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindowCounter {
    requests: u32,
    window: Window,
}

impl SlidingWindowCounter {
    pub(super) const fn new(requests: u32, window: Window) -> Self {
        Self { requests, window }
    }

    /// The counts after undoing one charge. Changes nothing if the receipt is of neither window. [un-2]
    const fn undone(&self, before: WindowCounts, receipt: Receipt) -> WindowCounts {
        if before.start == receipt.mark {
            WindowCounts { count: before.count.saturating_sub(receipt.hits), ..before }
        } else if before.start == receipt.mark + self.window.us() {
            WindowCounts { previous: before.previous.saturating_sub(receipt.hits), ..before }
        } else {
            before
        }
    }

    /// Whether the hits of the receipt's window have expired. [un-2]
    pub(super) const fn has_ended(&self, receipt: Receipt, now: Micros) -> bool {
        now >= receipt.mark.saturating_add(2 * self.window.us())
    }
}

impl Counting for SlidingWindowCounter {
    type View = WindowCounts;

    const NUMBER: u8 = 4;
    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 3;

    fn capacity(&self) -> Count {
        self.requests.into()
    }

    fn id(&self, _zone: &str) -> String {
        format!("c{}", self.window)
    }

    /// The counts as they are at `now`. They are stale if the clock has stepped back too far for them to be believed.
    /// [sc-2] [sc-7] [tm-2]
    fn find(&self, state: Option<&State>, _asked: Hits, now: Micros) -> Found<WindowCounts> {
        let window_us = self.window.us();
        let start = now - now % window_us;
        let nothing = WindowCounts { start, previous: 0, count: 0 };
        match state {
            // The state is of this window, or of a window ahead of a clock that has stepped back.
            Some(&State::SlidingWindowCounter(stored)) if stored.start >= start => {
                if is_believed(u128::from(stored.start.saturating_sub(now)), window_us) {
                    return Found::fresh(stored);
                }
                // All hits count: a part of the earlier window would admit hits of a full limit again.
                Found::stale(WindowCounts { count: stored.previous.saturating_add(stored.count), ..nothing })
            }
            Some(&State::SlidingWindowCounter(stored)) if stored.start + window_us == start => {
                Found::fresh(WindowCounts { previous: stored.count, ..nothing })
            }
            _ => Found::fresh(nothing),
        }
    }

    fn write(&self, state: &mut Option<State>, left: WindowCounts, _: Effect, _: Micros) {
        *state = Some(State::SlidingWindowCounter(left));
    }

    fn script_numbers(&self, _hits: Hits) -> StateNumbers {
        StateNumbers::from_slice(&[self.window.us(), u64::from(self.requests)])
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        WindowCounts::read(self, numbers, 0).map(State::SlidingWindowCounter)
    }
}

impl View<SlidingWindowCounter> for WindowCounts {
    const OBSERVED: fn(Self) -> Observed = Observed::SlidingWindowCounter;

    /// The counts stop at 2^32 - 1. [sc-3]
    fn step(self, limit: &SlidingWindowCounter, effect: Effect, _now: Micros) -> Self {
        match effect {
            Effect::Add(hits) => Self { count: self.count.saturating_add(saturated(hits)), ..self },
            Effect::Refund(hits) => self.refunded(hits),
            Effect::Undo(receipt) => limit.undone(self, receipt),
            Effect::Nothing | Effect::Drain => self,
        }
    }

    /// The remaining hits of the limit; the counts store the used hits. [sc-4] [lm-6]
    fn level(&self, limit: &SlidingWindowCounter, now: Micros) -> Level {
        let window_us = limit.window.us();
        let used = u64::from(self.count) + self.weighted(window_us, now);
        let end = self.start + window_us + if self.count > 0 { window_us } else { 0 };
        Level {
            remaining: Count::from(limit.requests).saturating_sub(used),
            reset_after: end - now,
            is_past: used > u64::from(limit.requests),
            is_empty: self.count == 0 && self.previous == 0,
            mark: self.start,
            counted: u64::from(self.previous) + u64::from(self.count),
        }
    }

    /// The wait until enough of the earlier window's hits have expired, in this window or in the next. [sc-4]
    fn retry_after(&self, limit: &SlidingWindowCounter, hits: Hits, now: Micros) -> Micros {
        let (window_us, count) = (limit.window.us(), u64::from(self.count));
        let room = u64::from(limit.requests.saturating_sub(hits));
        let fits_at = if room >= count {
            window_us + 1 - ceil_mul_div(room - count + 1, window_us, u64::from(self.previous))
        } else {
            window_us + window_us + 1 - ceil_mul_div(room + 1, window_us, count)
        };
        self.start + fits_at - now
    }

    fn read(_limit: &SlidingWindowCounter, numbers: &[u64], _now: Micros) -> Option<Self> {
        match *numbers {
            [start, previous, count] => Some(Self { start, previous: small(previous)?, count: small(count)? }),
            _ => None,
        }
    }
}

fn ceil_mul_div(a: u64, b: u64, c: u64) -> u64 {
    let (quotient, rest) = mul_div(a, b, c);
    quotient + u64::from(rest > 0)
}
