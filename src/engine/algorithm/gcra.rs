//! The generic cell rate algorithm: a steady rate with a burst. [pc-3]
//!
//! Known from ATM networks (ITU-T I.371) and redis-cell. The state is a debt in time, stored as the instant at which it
//! is paid (the theoretical arrival time). Each hit costs `P / L` microseconds. The debt drains by one microsecond in
//! each microsecond, and hits fit while the debt is at most that of a full burst. Debts are exact: whole microseconds
//! and a fraction over `L`, so a rate such as 7 per second has no rounding error. [ex-1] Its Lua twin is
//! lua/algorithms/gcra.lua.
//!
//! Six hits per minute, so one each ten seconds, with a burst of two:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Unit};
//!
//! let limit = Limit::new(6, Unit::Minute.window(), Algorithm::Gcra { burst: 2 }).unwrap();
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(2, 100), Verdict::Within, "a burst: a debt of 20 seconds, paid at 120");
//! assert_eq!(hits(1, 103), wait(7), "one hit fits when the debt is at most 10 seconds, at 110");
//! assert_eq!(hits(1, 110), Verdict::Within);
//! assert_eq!(hits(1, 110), wait(10));
//! assert_eq!(hits(3, 300), Verdict::Never, "more than a burst never fits");
//! ```

use super::counting::{
    AHEAD_US_MIN, Counting, DEBT_US_MAX, Effect, Found, Level, Receipt, StateNumbers, StoredFormat, UndoScript, View,
    small,
};
use super::{LimitError, Observed, State};
use crate::arith::mul_div;
use crate::descriptor::{Count, Hits, saturated};
use crate::time::{Micros, Window};

/// If the limit changes, a debt above this many hits becomes the largest debt. [pc-6]
const CONVERTED_HITS_MAX: u64 = (1 << 49) - 1;

/// A debt as stored. [pc-9]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The instant at which the whole microseconds of the debt are paid.
    pub tat: Micros,
    /// The fraction of a microsecond: `fraction / requests`.
    pub fraction: u32,
    /// The limit's hits per period when the debt was written: the denominator of the fraction.
    pub requests: u32,
}

/// Whole microseconds, and a fraction over the limit's requests; compared as pairs.
type Span = (u64, u64);

/// The algorithms that share this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Gcra,
    TokenBucket,
    /// As `Gcra`, but an admitted request waits until its turn. [lb-1]
    LeakyBucket,
}

/// A rate of `requests` per period with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    requests: u32,
    period: Window,
    burst: u32,
    /// The debt of a full burst. [pc-2]
    full: Span,
    post_paid: bool,
    pace: Pace,
}

impl Pacing {
    /// A limit of 0 has no capacity, with any burst. [lm-2]
    pub(super) fn new(pace: Pace, requests: u32, period: Window, burst: u32) -> Result<Self, LimitError> {
        let full = full_burst(requests, period, burst)?;
        Ok(Self { requests, period, burst: if requests == 0 { 0 } else { burst }, full, post_paid: false, pace })
    }

    /// The cost of hits: at most 2^48 us. None for a limit of 0, which keeps no state. [pc-1] [pc-7]
    fn cost(&self, hits: Hits) -> Span {
        if self.requests == 0 {
            return (0, 0);
        }
        mul_div(u64::from(hits), self.period.us(), u64::from(self.requests)).min((DEBT_US_MAX, 0))
    }

    /// What a debt is cut to that is too large to be believed: a full burst, or 2^48 us for post-paid limits. [pc-5]
    const fn ceiling(&self) -> Span {
        if self.post_paid { (DEBT_US_MAX, 0) } else { self.full }
    }

    /// Whether a debt is too large to be believed. A smaller excess is believed, and not cut: the answer would have a wait
    /// that is too short as long as the cut is not stored. [pc-5]
    const fn is_too_far_ahead(&self, debt: Span) -> bool {
        debt.0 > self.ceiling().0 + AHEAD_US_MIN
    }

    /// The debt after undoing one charge: minus the part of its cost that has not drained since. An undo therefore
    /// never saves idle time. [un-3]
    fn undone(&self, before: Debt, receipt: Receipt, now: Micros) -> Debt {
        let drained = (now.saturating_sub(receipt.at), 0);
        let left = self.minus(self.cost(receipt.hits), drained);
        self.made(self.minus(span(&before, now), left), now)
    }

    /// How many hits fit: the gap to a full debt, in hits, rounded down. [pc-4]
    fn remaining(&self, debt: Span) -> Hits {
        if debt >= self.full {
            return 0;
        }
        let (requests, period) = (u64::from(self.requests), self.period.us());
        let gap = self.minus(self.full, debt);
        let (hits, rest) = mul_div(gap.0, requests, period);
        let hits = hits + (rest + gap.1) / period;
        u32::try_from(hits).unwrap_or(u32::MAX)
    }

    /// The same limit with `post_paid` set. [dc-5]
    pub(super) const fn with_post_paid(self, post_paid: bool) -> Self {
        Self { post_paid, ..self }
    }

    /// Whether an admitted request waits until its turn: as long as the debt before it lasts. [lb-2]
    pub(super) const fn has_turns(&self) -> bool {
        matches!(self.pace, Pace::LeakyBucket)
    }

    /// Converts a debt under another limit's requests to the debt of the same hits under this limit's requests. Exact.
    /// [pc-6]
    fn converted(&self, debt: Span, stored_requests: u32) -> Span {
        let (period, requests) = (self.period.us(), u64::from(self.requests));
        let (hits, rest) = mul_div(debt.0, u64::from(stored_requests), period);
        // mul_div and these sums stop at the largest u64, which is more than any bound below.
        let (hits, rest) = (hits.saturating_add((rest + debt.1) / period), (rest + debt.1) % period);
        let (hits_max, rest_max) = if self.post_paid { (CONVERTED_HITS_MAX, 0) } else { (u64::from(self.burst), 0) };
        if (hits, rest) > (hits_max, rest_max) {
            return self.ceiling();
        }
        let (us, part) = mul_div(hits, period, requests);
        let part = part + rest % requests;
        (us.saturating_add(rest / requests + part / requests), part % requests)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a fraction is below its denominator")]
    fn made(&self, debt: Span, now: Micros) -> Debt {
        Debt { tat: now + debt.0, fraction: debt.1 as u32, requests: self.requests }
    }

    fn plus(&self, a: Span, b: Span) -> Span {
        let requests = u64::from(self.requests);
        let fraction = a.1 + b.1;
        if fraction >= requests && requests > 0 { (a.0 + b.0 + 1, fraction - requests) } else { (a.0 + b.0, fraction) }
    }

    /// `a - b`, or zero if b is larger.
    fn minus(&self, a: Span, b: Span) -> Span {
        if a <= b {
            return (0, 0);
        }
        if a.1 >= b.1 { (a.0 - b.0, a.1 - b.1) } else { (a.0 - b.0 - 1, a.1 + u64::from(self.requests) - b.1) }
    }
}

impl Counting for Pacing {
    type View = Debt;

    const NUMBER: u8 = 2;
    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 2;
    const UNDO: UndoScript = UndoScript::ByTime;

    fn capacity(&self) -> Count {
        self.burst.into()
    }

    fn id(&self, _zone: &str) -> String {
        let letter = match self.pace {
            Pace::Gcra => 'g',
            Pace::TokenBucket => 't',
            Pace::LeakyBucket => 'b',
        };
        format!("{letter}{}", self.period)
    }

    /// The debt as it is at `now`. It is stale if another limit wrote it, or if the clock has stepped back too far for it
    /// to be believed. [pc-3] [pc-5] [pc-6] [tm-3]
    fn find(&self, state: Option<&State>, _asked: Hits, now: Micros) -> Found<Debt> {
        let nothing = Debt { tat: now, fraction: 0, requests: self.requests };
        let stored = match state {
            Some(&State::Pacing(stored)) if stored.tat >= now => stored,
            _ => return Found::fresh(nothing),
        };
        let debt = span(&stored, now);
        if debt == (0, 0) || self.requests == 0 {
            return Found::fresh(nothing);
        }
        if stored.requests == self.requests {
            return if self.is_too_far_ahead(debt) {
                Found::stale(self.made(self.ceiling(), now))
            } else {
                Found::fresh(stored)
            };
        }
        if stored.requests == 0 {
            return Found::stale(nothing);
        }
        let debt = self.converted(debt.min((DEBT_US_MAX, 0)), stored.requests).min(self.ceiling());
        Found::stale(self.made(debt, now))
    }

    fn write(&self, state: &mut Option<State>, left: Debt, _: Effect, _: Micros) {
        *state = Some(State::Pacing(left));
    }

    fn script_numbers(&self, hits: Hits) -> StateNumbers {
        let (cost, requests, burst) = (self.cost(hits), u64::from(self.requests), u64::from(self.burst));
        let post_paid = u64::from(self.post_paid);
        StateNumbers::from([cost.0, cost.1, self.period.us(), requests, burst, self.full.0, self.full.1, post_paid])
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        match *numbers {
            [tat, fraction, requests] => {
                Some(State::Pacing(Debt { tat, fraction: small(fraction)?, requests: small(requests)? }))
            }
            _ => None,
        }
    }
}

impl View<Pacing> for Debt {
    const OBSERVED: fn(Self) -> Observed = Observed::Pacing;

    /// The debt plus or minus the cost of hits: never above 2^48 us, and never below zero. [pc-3] [pc-8]
    fn step(self, limit: &Pacing, effect: Effect, now: Micros) -> Self {
        let debt = span(&self, now);
        match effect {
            Effect::Add(hits) => limit.made(limit.plus(debt, limit.cost(saturated(hits))).min((DEBT_US_MAX, 0)), now),
            Effect::Refund(hits) => limit.made(limit.minus(debt, limit.cost(hits)), now),
            Effect::Undo(receipt) => limit.undone(self, receipt, now),
            Effect::Nothing | Effect::Drain => self,
        }
    }

    /// The time until the debt is paid is rounded up. [pc-4]
    fn level(&self, limit: &Pacing, now: Micros) -> Level {
        let debt = span(self, now);
        Level {
            remaining: limit.remaining(debt).into(),
            reset_after: debt.0 + u64::from(debt.1 > 0),
            is_past: debt > limit.full,
            is_empty: debt == (0, 0),
            mark: 0,
            counted: 0,
        }
    }

    /// The debt after adding the hits, minus a full debt, rounded up. [pc-4]
    fn retry_after(&self, limit: &Pacing, hits: Hits, now: Micros) -> Micros {
        let would_be = limit.plus(span(self, now), limit.cost(hits));
        would_be.0.saturating_sub(limit.full.0) + u64::from(would_be.1 > limit.full.1)
    }

    fn read(limit: &Pacing, numbers: &[u64], now: Micros) -> Option<Self> {
        match *numbers {
            [us, fraction] => {
                Some(Self { tat: now.checked_add(us)?, fraction: small(fraction)?, requests: limit.requests })
            }
            _ => None,
        }
    }
}

/// The debt of a full burst. [pc-2]
pub(super) fn full_burst(requests: u32, period: Window, burst: u32) -> Result<Span, LimitError> {
    if requests == 0 {
        return Ok((0, 0));
    }
    if burst == 0 {
        return Err(LimitError::BurstZero);
    }
    let full = mul_div(u64::from(burst), period.us(), u64::from(requests));
    if full > (DEBT_US_MAX, 0) { Err(LimitError::BurstTooLong { us: full.0 }) } else { Ok(full) }
}

fn span(debt: &Debt, now: Micros) -> Span {
    (debt.tat - now, u64::from(debt.fraction))
}
