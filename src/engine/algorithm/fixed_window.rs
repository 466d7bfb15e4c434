//! Fixed windows, aligned to the clock: quotas that people understand, and the cheapest algorithm. [fw-1]
//!
//! Known from INCR and EXPIRE counters. Admits at most the limit in each window, so at most twice the limit over a span
//! as long as one window. Its Lua twin is lua/algorithms/fixed_window.lua. Windows that begin elsewhere: anchored_window.rs.

use super::{View, is_believed};
use crate::engine::charge::Receipt;
use crate::engine::descriptor::Hits;
use crate::engine::limit::Limit;
use crate::engine::time::Micros;

/// Window numbers are stored modulo this, so that number and count fit 53 bits together. [fw-2]
pub const WINDOW_NUMBERS: u64 = 1 << 21;
/// One more than the largest count. [fw-2]
const COUNTS: u64 = 1 << 32;

/// The hits of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `floor(now / W) mod 2^21`.
    pub window: u32,
    /// The hits counted in it, at most 2^32 - 1.
    pub count: u32,
}

impl Counter {
    /// The counter out of the one integer, below 2^53, that scripts keep.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "both are remainders that fit")]
    pub const fn unpacked(packed: u64) -> Self {
        Self { window: ((packed >> 32) % WINDOW_NUMBERS) as u32, count: (packed % COUNTS) as u32 }
    }
}

/// The counter as it is at `now`. [fw-3] [tm-2]
#[must_use]
pub fn seen(limit: &Limit, stored: Option<Counter>, now: Micros) -> Counter {
    let window_us = limit.window().us();
    let here = window_here(now, window_us);
    let Some(stored) = stored else {
        return Counter { window: here, count: 0 };
    };
    if windows_ahead(stored.window, here) > WINDOW_NUMBERS / 2 {
        return Counter { window: here, count: 0 };
    }
    if is_far_ahead(limit, stored, now) { Counter { window: here, count: stored.count } } else { stored }
}

/// Whether the clock has stepped back by so much that the window is not believed any more. [fw-5] [tm-2]
#[must_use]
pub fn is_far_ahead(limit: &Limit, stored: Counter, now: Micros) -> bool {
    let window_us = limit.window().us();
    let ahead = windows_ahead(stored.window, window_here(now, window_us));
    if ahead == 0 || ahead > WINDOW_NUMBERS / 2 {
        return false;
    }
    let ahead_us = u128::from(now / window_us + ahead) * u128::from(window_us) - u128::from(now);
    !is_believed(ahead_us, window_us)
}

/// The counter with hits added; it stops at 2^32 - 1. [fw-3]
#[must_use]
pub const fn added(seen: Counter, hits: Hits) -> Counter {
    Counter { window: seen.window, count: seen.count.saturating_add(hits) }
}

/// The counter with hits given back. [fw-6]
#[must_use]
pub const fn given(seen: Counter, hits: Hits) -> Counter {
    Counter { window: seen.window, count: seen.count.saturating_sub(hits) }
}

/// The counter without one charge, if its window is still the receipt's. [un-2]
#[must_use]
pub fn undone(seen: Counter, receipt: Receipt) -> Counter {
    if u64::from(seen.window) == receipt.mark { given(seen, receipt.hits) } else { seen }
}

impl View for Counter {
    /// What is left of the limit as it is now: the counter holds what was used. [fw-4] [fw-7]
    fn remaining(&self, limit: &Limit, _now: Micros) -> Hits {
        limit.requests().saturating_sub(self.count)
    }

    fn retry_after(&self, limit: &Limit, _hits: Hits, now: Micros) -> Micros {
        self.reset_after(limit, now)
    }

    /// The time to the end of the window, from the clock's own now. [fw-4]
    fn reset_after(&self, limit: &Limit, now: Micros) -> Micros {
        let window_us = limit.window().us();
        let ahead = windows_ahead(self.window, window_here(now, window_us));
        (now / window_us + ahead + 1) * window_us - now
    }

    fn is_empty(&self, _now: Micros) -> bool {
        self.count == 0
    }

    fn is_past(&self, limit: &Limit, _now: Micros) -> bool {
        self.count > limit.requests()
    }

    fn mark(&self) -> u64 {
        u64::from(self.window)
    }
}

fn window_here(now: Micros, window_us: u64) -> u32 {
    ((now / window_us) % WINDOW_NUMBERS) as u32
}

/// How many windows `window` lies after `here`, modulo 2^21; more than half of that means before.
fn windows_ahead(window: u32, here: u32) -> u64 {
    (u64::from(window) + WINDOW_NUMBERS - u64::from(here)) % WINDOW_NUMBERS
}
