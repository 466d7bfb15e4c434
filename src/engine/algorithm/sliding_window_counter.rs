//! Two windows of the clock, the earlier one weighted by how much of it the sliding window still covers. [sc-1]
//!
//! Known from Cloudflare. No burst at the edge of a window on average; over one span as long as the window it can still
//! admit twice the limit. The weighted part rounds down: rounding up would lose a seventh of 7 per second. Its Lua twin
//! is lua/algorithms/sliding_window_counter.lua.

use super::{View, is_believed};
use crate::engine::arith::mul_div;
use crate::engine::charge::Receipt;
use crate::engine::descriptor::Hits;
use crate::engine::limit::Limit;
use crate::engine::time::Micros;

/// The hits of the window that holds now, and of the one before; stored as it is. [sc-6]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// When the later window began: a multiple of its length.
    pub start: Micros,
    /// The hits of the earlier window, at most 2^32 - 1.
    pub previous: u32,
    /// The hits of the later window, at most 2^32 - 1.
    pub count: u32,
}

/// The counts as they are at `now`. [sc-2] [sc-7] [tm-2]
#[must_use]
pub fn seen(limit: &Limit, stored: Option<Counts>, now: Micros) -> Counts {
    let window_us = limit.window().us();
    let start = now - now % window_us;
    let nothing = Counts { start, previous: 0, count: 0 };
    let Some(stored) = stored else { return nothing };
    if stored.start >= start {
        // Of this window, or of one ahead of a clock that has stepped back.
        let believed = is_believed(u128::from(stored.start.saturating_sub(now)), window_us);
        if believed { stored } else { Counts { start, ..stored } }
    } else if stored.start + window_us == start {
        Counts { previous: stored.count, ..nothing }
    } else {
        nothing
    }
}

/// The counts with hits added; they stop at 2^32 - 1. [sc-3]
#[must_use]
pub const fn added(seen: Counts, hits: Hits) -> Counts {
    Counts { start: seen.start, previous: seen.previous, count: seen.count.saturating_add(hits) }
}

/// The counts with hits given back: to the later window first, then to the earlier. [sc-5]
#[must_use]
pub const fn given(seen: Counts, hits: Hits) -> Counts {
    let rest = hits.saturating_sub(seen.count);
    Counts { start: seen.start, previous: seen.previous.saturating_sub(rest), count: seen.count.saturating_sub(hits) }
}

/// The counts without one charge, if one of the two windows is still the receipt's. [un-2]
#[must_use]
pub fn undone(limit: &Limit, seen: Counts, receipt: Receipt) -> Counts {
    if seen.start == receipt.mark {
        Counts { count: seen.count.saturating_sub(receipt.hits), ..seen }
    } else if seen.start == receipt.mark + limit.window().us() {
        Counts { previous: seen.previous.saturating_sub(receipt.hits), ..seen }
    } else {
        seen
    }
}

impl Counts {
    /// The time since the later window began: none where the clock has stepped back before it.
    fn elapsed(&self, now: Micros) -> Micros {
        now.saturating_sub(self.start)
    }

    /// The earlier window's hits that still count, rounded down. [sc-2]
    fn weighted(&self, window_us: u64, now: Micros) -> u64 {
        mul_div(u64::from(self.previous), window_us - self.elapsed(now), window_us).0
    }
}

impl View for Counts {
    /// What is left of the limit as it is now: the counts hold what was used. [sc-4] [sc-8]
    fn remaining(&self, limit: &Limit, now: Micros) -> Hits {
        let used = u64::from(self.count) + self.weighted(limit.window().us(), now);
        limit.requests().saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// The wait until enough of the earlier window's hits have faded, in this window or in the next. [sc-4]
    fn retry_after(&self, limit: &Limit, hits: Hits, now: Micros) -> Micros {
        let (window_us, count) = (limit.window().us(), u64::from(self.count));
        let room = u64::from(limit.requests().saturating_sub(hits));
        let fits_at = if room >= count {
            window_us + 1 - ceil_mul_div(room - count + 1, window_us, u64::from(self.previous))
        } else {
            window_us + window_us + 1 - ceil_mul_div(room + 1, window_us, count)
        };
        self.start + fits_at - now
    }

    fn reset_after(&self, limit: &Limit, now: Micros) -> Micros {
        let window_us = limit.window().us();
        let end = self.start + window_us + if self.count > 0 { window_us } else { 0 };
        end - now
    }

    fn is_empty(&self, _now: Micros) -> bool {
        self.count == 0 && self.previous == 0
    }

    fn is_past(&self, limit: &Limit, now: Micros) -> bool {
        u64::from(self.count) + self.weighted(limit.window().us(), now) > u64::from(limit.requests())
    }

    fn mark(&self) -> u64 {
        self.start
    }
}

/// `ceil(a * b / c)`
fn ceil_mul_div(a: u64, b: u64, c: u64) -> u64 {
    let (quotient, rest) = mul_div(a, b, c);
    quotient + u64::from(rest > 0)
}
