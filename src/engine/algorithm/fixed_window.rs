//! Fixed windows, aligned to the clock: the easiest quota to understand, and the cheapest. [fw-1]
//!
//! Known from INCR and EXPIRE counters. Admits at most the limit in each window, so at most twice the limit over a span
//! as long as one window. Its Lua twin is lua/algorithms/fixed_window.lua. Windows that begin elsewhere: anchored_window.rs.
//!
//! Three hits per minute of the clock:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Charge, Limit, Mode, Operation, Unit};
//!
//! let limit = Limit::per_unit(3, Unit::Minute);
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(2, 59), Verdict::Within);
//! assert_eq!(hits(2, 59), wait(1), "the window has one hit left, and ends in a second");
//! assert_eq!(hits(3, 60), Verdict::Within, "the next window is empty: five hits in one second");
//! ```

use super::counting::{
    CountedWindow, Counting, Effect, Found, Level, Receipt, StateNumbers, StoredFormat, View, Work, is_believed,
};
use super::{Observed, State};
use crate::descriptor::{Count, Hits, saturated};
use crate::time::{Micros, Window};

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

    /// When the window ends; it can be later than that of `now`. [fw-1]
    fn end(&self, observed: &Counter, now: Micros) -> Micros {
        let window_us = self.window.us();
        let ahead = windows_ahead(observed.window, window_here(now, window_us));
        (now / window_us + ahead + 1) * window_us
    }

    /// Whether the window of the receipt has ended. [un-2]
    pub(super) fn has_ended(&self, receipt: Receipt, now: Micros) -> bool {
        now / self.window.us() > receipt.at / self.window.us()
    }

    /// The counter with the instants of its window. [fw-1] [fw-5]
    pub(super) fn counted(&self, observed: &Counter, now: Micros) -> CountedWindow {
        let end = self.end(observed, now);
        CountedWindow { start: end - self.window.us(), end, count: observed.count.into() }
    }
}

impl Counting for FixedWindow {
    type View = Counter;

    const NUMBER: u8 = 1;
    const FORMAT: StoredFormat = StoredFormat::Integer;
    const REPLY: usize = 1;
    const COUNTS_DENIED: bool = true;

    fn capacity(&self) -> Count {
        self.requests.into()
    }

    fn id(&self, _zone: &str) -> String {
        format!("f{}", self.window)
    }

    fn weight(&self, _work: Work) -> u32 {
        1
    }

    /// The counter as it is at `now`. It is stale if the clock has stepped back too far for its window to be believed.
    /// [fw-3] [fw-5] [tm-2]
    fn find(&self, state: Option<&State>, _asked: Hits, now: Micros) -> Found<Counter> {
        let window_us = self.window.us();
        let here = window_here(now, window_us);
        let Some(&State::FixedWindow(stored)) = state else {
            return Found::fresh(Counter { window: here, count: 0 });
        };
        let ahead = windows_ahead(stored.window, here);
        if ahead == 0 {
            return Found::fresh(stored);
        }
        if ahead > WINDOW_NUMBERS / 2 {
            return Found::fresh(Counter { window: here, count: 0 });
        }
        let ahead_us = u128::from(now / window_us + ahead) * u128::from(window_us) - u128::from(now);
        if is_believed(ahead_us, window_us) {
            Found::fresh(stored)
        } else {
            Found::stale(Counter { window: here, count: stored.count })
        }
    }

    fn write(&self, state: &mut Option<State>, left: Counter, _: Effect, _: Micros) {
        *state = Some(State::FixedWindow(left));
    }

    fn script_numbers(&self, _hits: Hits) -> StateNumbers {
        StateNumbers::from_slice(&[self.window.us(), u64::from(self.requests)])
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        Counter::read(self, numbers, 0).map(State::FixedWindow)
    }
}

impl View<FixedWindow> for Counter {
    const OBSERVED: fn(Self) -> Observed = Observed::FixedWindow;

    /// The count stops at 2^32 - 1. An undo changes nothing if the receipt is of another window. [fw-3] [fw-6] [un-2]
    fn step(self, _limit: &FixedWindow, effect: Effect, _now: Micros) -> Self {
        let count = match effect {
            Effect::Add(hits) => self.count.saturating_add(saturated(hits)),
            Effect::Refund(hits) => self.count.saturating_sub(hits),
            Effect::Undo(receipt) if u64::from(self.window) == receipt.mark => self.count.saturating_sub(receipt.hits),
            Effect::Undo(_) | Effect::Nothing | Effect::Drain => self.count,
        };
        Self { count, ..self }
    }

    /// The remaining hits of the limit, and the time to the end of the window; the counter stores the used hits. [fw-4]
    /// [lm-6]
    fn level(&self, limit: &FixedWindow, now: Micros) -> Level {
        Level {
            remaining: limit.requests.saturating_sub(self.count).into(),
            reset_after: limit.end(self, now) - now,
            is_past: self.count > limit.requests,
            is_empty: self.count == 0,
            mark: self.window.into(),
            counted: self.count.into(),
        }
    }

    fn retry_after(&self, limit: &FixedWindow, _hits: Hits, now: Micros) -> Micros {
        limit.end(self, now) - now
    }

    fn read(_limit: &FixedWindow, numbers: &[u64], _now: Micros) -> Option<Self> {
        match *numbers {
            [packed] => Some(Self::unpacked(packed)),
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
