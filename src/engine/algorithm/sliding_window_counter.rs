//! Two windows of the clock, the earlier one weighted by how much of it the sliding window still covers. [sc-1]
//!
//! Known from Cloudflare. On average it has no burst at the edge of a window, but it can admit twice the limit over one
//! span as long as the window. The weighted part rounds down: rounding up would lose a seventh of 7 per second. Its Lua
//! twin is lua/algorithms/sliding_window_counter.lua.

use super::counting::{Counting, Effect, Receipt, StoredFormat, Written, is_believed, small};
use crate::arith::mul_div;
use crate::descriptor::Hits;
use crate::time::{Bounds, Micros, Window};

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

    fn used(&self, observed: &WindowCounts, now: Micros) -> u64 {
        u64::from(observed.count) + observed.weighted(self.window.us(), now)
    }

    /// The counts after adding hits; they stop at 2^32 - 1. [sc-3]
    const fn added(&self, before: WindowCounts, hits: Hits, _now: Micros) -> WindowCounts {
        WindowCounts { count: before.count.saturating_add(hits), ..before }
    }

    /// The counts after a refund: it reduces the later window first, then the earlier. [sc-5]
    const fn refunded(&self, before: WindowCounts, hits: Hits, _now: Micros) -> WindowCounts {
        let rest = hits.saturating_sub(before.count);
        WindowCounts {
            start: before.start,
            previous: before.previous.saturating_sub(rest),
            count: before.count.saturating_sub(hits),
        }
    }

    /// The counts after undoing one charge. Changes nothing if the receipt is of neither window. [un-2]
    fn undone(&self, before: WindowCounts, receipt: Receipt, _now: Micros) -> WindowCounts {
        if before.start == receipt.mark {
            WindowCounts { count: before.count.saturating_sub(receipt.hits), ..before }
        } else if before.start == receipt.mark + self.window.us() {
            WindowCounts { previous: before.previous.saturating_sub(receipt.hits), ..before }
        } else {
            before
        }
    }

    const fn stored(left: WindowCounts) -> WindowCounts {
        left
    }
}

impl Counting for SlidingWindowCounter {
    type State = WindowCounts;
    type Observed = WindowCounts;
    type Numbers = [u64; 2];

    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 3;

    small_state!();

    fn requests(&self) -> Hits {
        self.requests
    }

    fn id(&self, _zone: &str) -> String {
        format!("c{}", self.window)
    }

    /// The counts as they are at `now`. [sc-2] [sc-7] [tm-2]
    fn observe(
        &self,
        stored: Option<&WindowCounts>,
        _asked: Hits,
        bounds: Option<Bounds>,
        now: Micros,
    ) -> WindowCounts {
        let window_us = self.window.us();
        let start = now - now % window_us;
        let nothing = WindowCounts { start, previous: 0, count: 0 };
        let Some(&stored) = stored else { return nothing };
        if stored.start >= start {
            // The state is of this window, or of a window ahead of a clock that has stepped back.
            if self.is_stale(&stored, bounds, now) { WindowCounts { start, ..stored } } else { stored }
        } else if stored.start + window_us == start {
            WindowCounts { previous: stored.count, ..nothing }
        } else {
            nothing
        }
    }

    fn is_stale(&self, stored: &WindowCounts, _bounds: Option<Bounds>, now: Micros) -> bool {
        !is_believed(u128::from(stored.start.saturating_sub(now)), self.window.us())
    }

    fn later(&self, found: WindowCounts, now: Micros) -> WindowCounts {
        self.observe(Some(&found), 0, None, now)
    }

    /// The remaining hits of the limit; the counts store the used hits. [sc-4] [sc-8]
    fn remaining(&self, observed: &WindowCounts, now: Micros) -> Hits {
        self.requests.saturating_sub(u32::try_from(self.used(observed, now)).unwrap_or(u32::MAX))
    }

    /// The wait until enough of the earlier window's hits have expired, in this window or in the next. [sc-4]
    fn retry_after(&self, observed: &WindowCounts, hits: Hits, now: Micros) -> Micros {
        let (window_us, count) = (self.window.us(), u64::from(observed.count));
        let room = u64::from(self.requests.saturating_sub(hits));
        let fits_at = if room >= count {
            window_us + 1 - ceil_mul_div(room - count + 1, window_us, u64::from(observed.previous))
        } else {
            window_us + window_us + 1 - ceil_mul_div(room + 1, window_us, count)
        };
        observed.start + fits_at - now
    }

    fn reset_after(&self, observed: &WindowCounts, now: Micros) -> Micros {
        let window_us = self.window.us();
        let end = observed.start + window_us + if observed.count > 0 { window_us } else { 0 };
        end - now
    }

    fn is_past(&self, observed: &WindowCounts, now: Micros) -> bool {
        self.used(observed, now) > u64::from(self.requests)
    }

    fn is_empty(observed: &WindowCounts, _now: Micros) -> bool {
        observed.count == 0 && observed.previous == 0
    }

    fn mark(observed: &WindowCounts) -> u64 {
        observed.start
    }

    fn script_numbers(&self, _hits: Hits, _bounds: Option<Bounds>) -> Self::Numbers {
        [self.window.us(), u64::from(self.requests)]
    }

    fn read_reply(&self, numbers: &[u64], _now: Micros) -> Option<(WindowCounts, Option<WindowCounts>)> {
        Some((Self::read_stored(numbers)?, None))
    }

    fn read_stored(numbers: &[u64]) -> Option<WindowCounts> {
        match *numbers {
            [start, previous, count] => Some(WindowCounts { start, previous: small(previous)?, count: small(count)? }),
            _ => None,
        }
    }
}

fn ceil_mul_div(a: u64, b: u64, c: u64) -> u64 {
    let (quotient, rest) = mul_div(a, b, c);
    quotient + u64::from(rest > 0)
}
