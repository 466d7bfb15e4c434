//! Fixed windows, aligned to the clock: the easiest quota to understand, and the cheapest. [fw-1]
//!
//! Known from INCR and EXPIRE counters. Admits at most the limit in each window, so at most twice the limit over a span
//! as long as one window. Its Lua twin is lua/algorithms/fixed_window.lua. Windows that begin elsewhere: anchored_window.rs.

use super::counting::{CountedWindow, Counting, Effect, Receipt, StoredFormat, Written, is_believed};
use crate::descriptor::Hits;
use crate::time::{Bounds, Micros, Window};

/// Window numbers are stored modulo this, so number and count together fit into 53 bits. [fw-2]
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
    /// The counter from the one integer, below 2^53, that scripts keep.
    #[expect(clippy::cast_possible_truncation, reason = "both are remainders that fit")]
    pub const fn unpacked(packed: u64) -> Self {
        Self { window: ((packed >> 32) % WINDOW_NUMBERS) as u32, count: (packed % COUNTS) as u32 }
    }
}

/// Limits hits in each window of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    requests: u32,
    window: Window,
}

impl FixedWindow {
    pub(super) const fn new(requests: u32, window: Window) -> Self {
        Self { requests, window }
    }

    /// The counter after adding hits; it stops at 2^32 - 1. [fw-3]
    const fn added(&self, before: Counter, hits: Hits, _now: Micros) -> Counter {
        Counter { window: before.window, count: before.count.saturating_add(hits) }
    }

    /// The counter after a refund. [fw-6]
    const fn refunded(&self, before: Counter, hits: Hits, _now: Micros) -> Counter {
        Counter { window: before.window, count: before.count.saturating_sub(hits) }
    }

    /// The counter after undoing one charge. Changes nothing if the receipt is of another window. [un-2]
    fn undone(&self, before: Counter, receipt: Receipt, now: Micros) -> Counter {
        if u64::from(before.window) == receipt.mark { self.refunded(before, receipt.hits, now) } else { before }
    }

    const fn stored(left: Counter) -> Counter {
        left
    }

    /// The counter with the instants of its window. [fw-1] [fw-5]
    pub(super) fn counted(&self, observed: Counter, now: Micros) -> CountedWindow {
        let end = now + self.reset_after(&observed, now);
        CountedWindow { start: end - self.window.us(), end, count: observed.count }
    }
}

impl Counting for FixedWindow {
    type State = Counter;
    type Observed = Counter;
    type Numbers = [u64; 2];

    const COUNTS_DENIED: bool = true;
    const FORMAT: StoredFormat = StoredFormat::Integer;
    const REPLY: usize = 1;

    small_state!();

    fn requests(&self) -> Hits {
        self.requests
    }

    fn id(&self, _zone: &str) -> String {
        format!("f{}", self.window)
    }

    fn weight(&self) -> u32 {
        1
    }

    /// The counter as it is at `now`. [fw-3] [tm-2]
    fn observe(&self, stored: Option<&Counter>, _asked: Hits, bounds: Option<Bounds>, now: Micros) -> Counter {
        let here = window_here(now, self.window.us());
        let Some(&stored) = stored else {
            return Counter { window: here, count: 0 };
        };
        if windows_ahead(stored.window, here) > WINDOW_NUMBERS / 2 {
            return Counter { window: here, count: 0 };
        }
        if self.is_stale(&stored, bounds, now) { Counter { window: here, count: stored.count } } else { stored }
    }

    /// Whether the clock has stepped back too far for the window to be believed. [fw-5] [tm-2]
    fn is_stale(&self, stored: &Counter, _bounds: Option<Bounds>, now: Micros) -> bool {
        let window_us = self.window.us();
        let ahead = windows_ahead(stored.window, window_here(now, window_us));
        if ahead == 0 || ahead > WINDOW_NUMBERS / 2 {
            return false;
        }
        let ahead_us = u128::from(now / window_us + ahead) * u128::from(window_us) - u128::from(now);
        !is_believed(ahead_us, window_us)
    }

    /// A window up to 2^20 windows ahead counts as later.
    fn later(&self, found: Counter, now: Micros) -> Counter {
        self.observe(Some(&found), 0, None, now)
    }

    /// The remaining hits of the limit; the counter stores the used hits. [fw-4] [fw-7]
    fn remaining(&self, observed: &Counter, _now: Micros) -> Hits {
        self.requests.saturating_sub(observed.count)
    }

    fn retry_after(&self, observed: &Counter, _hits: Hits, now: Micros) -> Micros {
        self.reset_after(observed, now)
    }

    /// The time to the end of the window, from `now`. [fw-4]
    fn reset_after(&self, observed: &Counter, now: Micros) -> Micros {
        let window_us = self.window.us();
        let ahead = windows_ahead(observed.window, window_here(now, window_us));
        (now / window_us + ahead + 1) * window_us - now
    }

    fn is_past(&self, observed: &Counter, _now: Micros) -> bool {
        observed.count > self.requests
    }

    fn is_empty(observed: &Counter, _now: Micros) -> bool {
        observed.count == 0
    }

    fn mark(observed: &Counter) -> u64 {
        u64::from(observed.window)
    }

    fn script_numbers(&self, _hits: Hits, _bounds: Option<Bounds>) -> Self::Numbers {
        [self.window.us(), u64::from(self.requests)]
    }

    fn read_reply(&self, numbers: &[u64], _now: Micros) -> Option<(Counter, Option<Counter>)> {
        Some((Self::read_stored(numbers)?, None))
    }

    fn read_stored(numbers: &[u64]) -> Option<Counter> {
        match *numbers {
            [packed] => Some(Counter::unpacked(packed)),
            _ => None,
        }
    }
}

fn window_here(now: Micros, window_us: u64) -> u32 {
    ((now / window_us) % WINDOW_NUMBERS) as u32
}

/// How many windows `window` is after `here`, modulo 2^21. A result above half of that means before.
fn windows_ahead(window: u32, here: u32) -> u64 {
    (u64::from(window) + WINDOW_NUMBERS - u64::from(here)) % WINDOW_NUMBERS
}
