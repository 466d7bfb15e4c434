//! The generic cell rate algorithm: a steady rate with a burst. [pc-3]
//!
//! Known from ATM networks (ITU-T I.371) and redis-cell. The state is a debt in time, kept as the instant at which it is
//! paid (the theoretical arrival time): each hit costs `P / L` microseconds, the debt drains by one microsecond in each,
//! and hits fit while the debt stays within that of a full burst. Debts are exact: whole microseconds and a fraction over
//! `L`, so that a rate such as 7 per second loses nothing over time. [ex-1] Its Lua twin is lua/algorithms/gcra.lua.

use super::{AHEAD_US_MIN, View};
use crate::engine::arith::mul_div;
use crate::engine::charge::Receipt;
use crate::engine::descriptor::Hits;
use crate::engine::limit::{DEBT_US_MAX, Limit};
use crate::engine::time::Micros;

/// Debts above this many hits are taken as the largest debt when the limit changes. [pc-6]
const CONVERTED_HITS_MAX: u64 = (1 << 49) - 1;

/// A debt as stored. [pc-9]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The instant at which the whole microseconds of the debt are paid.
    pub tat: Micros,
    /// The rest of the debt: `fraction / requests` microseconds.
    pub fraction: u32,
    /// The limit's hits per period when the debt was written: what the fraction is over.
    pub requests: u32,
}

/// Whole microseconds, and a fraction over the limit's requests; compared as pairs.
type Span = (u64, u64);

/// The debt as it is at `now`. [pc-3] [pc-5] [pc-6]
#[must_use]
pub fn seen(limit: &Limit, stored: Option<Debt>, now: Micros) -> Debt {
    let requests = limit.requests();
    let nothing = Debt { tat: now, fraction: 0, requests };
    let Some(stored) = stored else { return nothing };
    if requests == 0 || stored.requests == 0 || stored.tat < now {
        return nothing;
    }
    let mut debt = (stored.tat - now, u64::from(stored.fraction));
    if stored.requests != requests {
        debt = converted(limit, debt.min((DEBT_US_MAX, 0)), stored.requests);
    }
    made(limit, debt.min(ceiling(limit)), now)
}

/// Whether the debt has to be stored as it was seen: another limit wrote it, or it lies so far past the largest that is
/// believed that the difference is no flicker of the clock. [tm-3]
#[must_use]
pub fn is_stale(limit: &Limit, stored: Debt, now: Micros) -> bool {
    let foreign = stored.requests != limit.requests();
    let owed = stored.tat > now || (stored.tat == now && stored.fraction > 0);
    owed && (foreign || stored.tat - now > ceiling(limit).0 + AHEAD_US_MIN)
}

/// The debt with the cost of hits on top; it stops at 2^48 us. [pc-3]
#[must_use]
pub fn added(limit: &Limit, seen: Debt, hits: Hits, now: Micros) -> Debt {
    let debt = plus(limit, span(seen, now), cost(limit, hits));
    made(limit, debt.min((DEBT_US_MAX, 0)), now)
}

/// The debt less the cost of hits, never below none. [pc-8]
#[must_use]
pub fn given(limit: &Limit, seen: Debt, hits: Hits, now: Micros) -> Debt {
    made(limit, minus(limit, span(seen, now), cost(limit, hits)), now)
}

/// The debt without one charge: its cost less what has drained since, so that no idle time is banked. [un-3]
#[must_use]
pub fn undone(limit: &Limit, seen: Debt, receipt: Receipt, now: Micros) -> Debt {
    let drained = (now.saturating_sub(receipt.at), 0);
    let left = minus(limit, cost(limit, receipt.hits), drained);
    made(limit, minus(limit, span(seen, now), left), now)
}

impl View for Debt {
    /// How many hits fit: what is missing to a full debt, in hits, rounded down. [pc-4]
    fn remaining(&self, limit: &Limit, now: Micros) -> Hits {
        let (full, debt) = (limit.full(), span(*self, now));
        if debt >= full {
            return 0;
        }
        let (requests, period) = (u64::from(limit.requests()), limit.window().us());
        let gap = minus(limit, full, debt);
        let (hits, rest) = mul_div(gap.0, requests, period);
        let hits = hits + (rest + gap.1) / period;
        u32::try_from(hits).unwrap_or(u32::MAX)
    }

    /// The debt that the hits would make, less a full one, rounded up. [pc-4]
    fn retry_after(&self, limit: &Limit, hits: Hits, now: Micros) -> Micros {
        let full = limit.full();
        let would_be = plus(limit, span(*self, now), cost(limit, hits));
        would_be.0.saturating_sub(full.0) + u64::from(would_be.1 > full.1)
    }

    /// The time until the debt is paid, rounded up. [pc-4]
    fn reset_after(&self, _limit: &Limit, now: Micros) -> Micros {
        self.tat - now + u64::from(self.fraction > 0)
    }

    fn is_empty(&self, now: Micros) -> bool {
        span(*self, now) == (0, 0)
    }

    fn is_past(&self, limit: &Limit, now: Micros) -> bool {
        span(*self, now) > limit.full()
    }

    fn mark(&self) -> u64 {
        0
    }
}

/// What hits cost: at most 2^48 us. Nothing for a limit of 0, which keeps no state. [pc-1] [pc-7]
#[must_use]
pub fn cost(limit: &Limit, hits: Hits) -> Span {
    if limit.requests() == 0 {
        return (0, 0);
    }
    mul_div(u64::from(hits), limit.window().us(), u64::from(limit.requests())).min((DEBT_US_MAX, 0))
}

/// The largest debt that a state is believed to hold: full, or for post-paid limits whatever was forced. [pc-5]
#[must_use]
pub const fn ceiling(limit: &Limit) -> Span {
    if limit.post_paid { (DEBT_US_MAX, 0) } else { limit.full() }
}

/// A debt over another limit's requests as the same hits' debt over this one's; exact. [pc-6]
fn converted(limit: &Limit, debt: Span, stored_requests: u32) -> Span {
    let (period, requests) = (limit.window().us(), u64::from(limit.requests()));
    let (hits, rest) = mul_div(debt.0, u64::from(stored_requests), period);
    // mul_div stops at the largest u64, and so do these sums: that is more than any bound below.
    let (hits, rest) = (hits.saturating_add((rest + debt.1) / period), (rest + debt.1) % period);
    let (hits_max, rest_max) = if limit.post_paid { (CONVERTED_HITS_MAX, 0) } else { (u64::from(limit.capacity()), 0) };
    if (hits, rest) > (hits_max, rest_max) {
        return ceiling(limit);
    }
    let (us, part) = mul_div(hits, period, requests);
    let part = part + rest % requests;
    (us.saturating_add(rest / requests + part / requests), part % requests)
}

fn span(debt: Debt, now: Micros) -> Span {
    (debt.tat - now, u64::from(debt.fraction))
}

#[expect(clippy::cast_possible_truncation, reason = "a fraction is below the requests that it is over")]
fn made(limit: &Limit, debt: Span, now: Micros) -> Debt {
    Debt { tat: now + debt.0, fraction: debt.1 as u32, requests: limit.requests() }
}

fn plus(limit: &Limit, a: Span, b: Span) -> Span {
    let requests = u64::from(limit.requests());
    let fraction = a.1 + b.1;
    if fraction >= requests && requests > 0 { (a.0 + b.0 + 1, fraction - requests) } else { (a.0 + b.0, fraction) }
}

/// `a - b`, or nothing where b is more.
fn minus(limit: &Limit, a: Span, b: Span) -> Span {
    if a <= b {
        return (0, 0);
    }
    if a.1 >= b.1 { (a.0 - b.0, a.1 - b.1) } else { (a.0 - b.0 - 1, a.1 + u64::from(limit.requests()) - b.1) }
}
