//! The generic cell rate algorithm: a steady rate with a burst. [pc-3]
//!
//! Known from ATM networks (ITU-T I.371) and redis-cell. The state is a debt in time, stored as the instant at which it
//! is paid (the theoretical arrival time). Each hit costs `P / L` microseconds. The debt drains by one microsecond in
//! each microsecond, and hits fit while the debt is at most that of a full burst. Debts are exact: whole microseconds
//! and a fraction over `L`, so a rate such as 7 per second has no rounding error. [ex-1] Its Lua twin is
//! lua/algorithms/gcra.lua.

use super::counting::{AHEAD_US_MIN, Counting, DEBT_US_MAX, Effect, Receipt, StoredFormat, Written, small};
use crate::arith::mul_div;
use crate::descriptor::Hits;
use crate::time::{Bounds, Micros, Window};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BurstError {
    Zero,
    /// It would take this many microseconds to drain: more than 2^48.
    TooLong(u64),
}

impl Pacing {
    /// A limit of 0 has no capacity, with any burst. [lm-2]
    pub(super) fn new(pace: Pace, requests: u32, period: Window, burst: u32) -> Result<Self, BurstError> {
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

    /// The largest debt that is believed: a full burst, or 2^48 us for post-paid limits. [pc-5]
    const fn ceiling(&self) -> Span {
        if self.post_paid { (DEBT_US_MAX, 0) } else { self.full }
    }

    /// The debt plus the cost of hits; it stops at 2^48 us. [pc-3]
    fn added(&self, before: Debt, hits: Hits, now: Micros) -> Debt {
        let debt = self.plus(span(&before, now), self.cost(hits));
        self.made(debt.min((DEBT_US_MAX, 0)), now)
    }

    /// The debt minus the cost of hits, never below zero. [pc-8]
    fn refunded(&self, before: Debt, hits: Hits, now: Micros) -> Debt {
        self.made(self.minus(span(&before, now), self.cost(hits)), now)
    }

    /// The debt after undoing one charge: minus the part of its cost that has not drained since. An undo therefore
    /// never saves idle time. [un-3]
    fn undone(&self, before: Debt, receipt: Receipt, now: Micros) -> Debt {
        let drained = (now.saturating_sub(receipt.at), 0);
        let left = self.minus(self.cost(receipt.hits), drained);
        self.made(self.minus(span(&before, now), left), now)
    }

    const fn stored(left: Debt) -> Debt {
        left
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
    type State = Debt;
    type Observed = Debt;
    type Numbers = [u64; 8];

    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 2;

    small_state!();

    fn requests(&self) -> Hits {
        self.requests
    }

    fn capacity(&self) -> Hits {
        self.burst
    }

    fn with_post_paid(self, post_paid: bool) -> Self {
        Self { post_paid, ..self }
    }

    fn id(&self, _zone: &str) -> String {
        let letter = match self.pace {
            Pace::Gcra => 'g',
            Pace::TokenBucket => 't',
            Pace::LeakyBucket => 'b',
        };
        format!("{letter}{}", self.period)
    }

    /// The debt as it is at `now`. [pc-3] [pc-5] [pc-6]
    fn observe(&self, stored: Option<&Debt>, _asked: Hits, _bounds: Option<Bounds>, now: Micros) -> Debt {
        let nothing = Debt { tat: now, fraction: 0, requests: self.requests };
        let Some(stored) = stored else { return nothing };
        if self.requests == 0 || stored.requests == 0 || stored.tat < now {
            return nothing;
        }
        let mut debt = span(stored, now);
        if stored.requests != self.requests {
            debt = self.converted(debt.min((DEBT_US_MAX, 0)), stored.requests);
        }
        self.made(debt.min(self.ceiling()), now)
    }

    /// Whether the debt must be stored as observed. Either another limit wrote it, or the clock has stepped back too
    /// far for the debt to be believed. [tm-3]
    fn is_stale(&self, stored: &Debt, _bounds: Option<Bounds>, now: Micros) -> bool {
        let foreign = stored.requests != self.requests;
        let owed = stored.tat > now || (stored.tat == now && stored.fraction > 0);
        owed && (foreign || stored.tat - now > self.ceiling().0 + AHEAD_US_MIN)
    }

    fn reobserved(&self, found: Debt, now: Micros) -> Debt {
        self.observe(Some(&found), 0, None, now)
    }

    fn later(&self, found: Debt, now: Micros) -> Debt {
        self.observe(Some(&found), 0, None, now)
    }

    fn as_written(&self, stored: &Debt, _bounds: Option<Bounds>, _now: Micros) -> Debt {
        *stored
    }

    /// How many hits fit: the gap to a full debt, in hits, rounded down. [pc-4]
    fn remaining(&self, observed: &Debt, now: Micros) -> Hits {
        let debt = span(observed, now);
        if debt >= self.full {
            return 0;
        }
        let (requests, period) = (u64::from(self.requests), self.period.us());
        let gap = self.minus(self.full, debt);
        let (hits, rest) = mul_div(gap.0, requests, period);
        let hits = hits + (rest + gap.1) / period;
        u32::try_from(hits).unwrap_or(u32::MAX)
    }

    /// The debt after adding the hits, minus a full debt, rounded up. [pc-4]
    fn retry_after(&self, observed: &Debt, hits: Hits, now: Micros) -> Micros {
        let would_be = self.plus(span(observed, now), self.cost(hits));
        would_be.0.saturating_sub(self.full.0) + u64::from(would_be.1 > self.full.1)
    }

    /// The time until the debt is paid, rounded up. [pc-4]
    fn reset_after(&self, observed: &Debt, now: Micros) -> Micros {
        observed.tat - now + u64::from(observed.fraction > 0)
    }

    fn is_past(&self, observed: &Debt, now: Micros) -> bool {
        span(observed, now) > self.full
    }

    /// The debt before the request, rounded up. [lb-2]
    fn turn_after(&self, before: &Debt, now: Micros) -> Micros {
        match self.pace {
            Pace::LeakyBucket => self.reset_after(before, now),
            Pace::Gcra | Pace::TokenBucket => 0,
        }
    }

    fn is_empty(observed: &Debt, now: Micros) -> bool {
        span(observed, now) == (0, 0)
    }

    fn mark(_observed: &Debt) -> u64 {
        0
    }

    fn proof(receipt: Receipt) -> u64 {
        receipt.at
    }

    fn script_numbers(&self, hits: Hits, _bounds: Option<Bounds>) -> Self::Numbers {
        let (cost, requests, burst) = (self.cost(hits), u64::from(self.requests), u64::from(self.burst));
        let post_paid = u64::from(self.post_paid);
        [cost.0, cost.1, self.period.us(), requests, burst, self.full.0, self.full.1, post_paid]
    }

    fn read_reply(&self, numbers: &[u64], now: Micros) -> Option<(Debt, Option<Debt>)> {
        match *numbers {
            [us, fraction] => {
                let debt = Debt { tat: now.checked_add(us)?, fraction: small(fraction)?, requests: self.requests };
                Some((debt, None))
            }
            _ => None,
        }
    }

    fn read_stored(numbers: &[u64]) -> Option<Debt> {
        match *numbers {
            [tat, fraction, requests] => Some(Debt { tat, fraction: small(fraction)?, requests: small(requests)? }),
            _ => None,
        }
    }
}

/// The debt of a full burst. [pc-2]
pub(super) fn full_burst(requests: u32, period: Window, burst: u32) -> Result<Span, BurstError> {
    if requests == 0 {
        return Ok((0, 0));
    }
    if burst == 0 {
        return Err(BurstError::Zero);
    }
    let full = mul_div(u64::from(burst), period.us(), u64::from(requests));
    if full > (DEBT_US_MAX, 0) { Err(BurstError::TooLong(full.0)) } else { Ok(full) }
}

fn span(debt: &Debt, now: Micros) -> Span {
    (debt.tat - now, u64::from(debt.fraction))
}
