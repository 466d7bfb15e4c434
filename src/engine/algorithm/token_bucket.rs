//! A bucket that is refilled in steps: `requests` tokens at the end of each period. [tb-1]
//!
//! Known from AWS' and Stripe's limiters. What is stored is what was used, never what is left, so that a change of limit
//! or burst keeps it. A bucket that is refilled continuously is a debt: gcra.rs. Its Lua twin is lua/algorithms/token_bucket.lua.

use super::{View, is_believed};
use crate::engine::charge::Receipt;
use crate::engine::descriptor::Hits;
use crate::engine::limit::{DEBT_US_MAX, Limit};
use crate::engine::time::Micros;

/// What has been used of a bucket. [tb-5]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// When the running period began.
    pub anchor: Micros,
    /// The tokens used and not yet refilled, at most 2^32 - 1.
    pub used: u32,
}

/// The bucket as it is at `now`: refilled by each period that has ended. An empty one begins its period now. [tb-2]
/// [tb-6] [tb-7]
#[must_use]
pub fn seen(limit: &Limit, stored: Option<Bucket>, now: Micros) -> Bucket {
    let (period, requests) = (limit.window().us(), u64::from(limit.requests()));
    let full = Bucket { anchor: now, used: 0 };
    let Some(stored) = stored else { return full };
    if requests == 0 {
        return full;
    }
    let believed = stored.used.min(ceiling(limit));
    if stored.anchor > now {
        let anchor = if is_believed(u128::from(stored.anchor - now), period) { stored.anchor } else { now };
        return Bucket { anchor, used: believed };
    }
    let periods = (now - stored.anchor) / period;
    if periods >= u64::from(believed).div_ceil(requests) {
        return full;
    }
    let refilled = periods * requests;
    Bucket {
        anchor: stored.anchor + periods * period,
        // Fewer periods than it takes to refill all, so that something is left of 32 bits.
        used: believed - u32::try_from(refilled).unwrap_or(believed),
    }
}

/// The bucket with tokens taken; it stops at what [`most`] says. [tb-3]
#[must_use]
pub fn added(limit: &Limit, seen: Bucket, hits: Hits) -> Bucket {
    Bucket { anchor: seen.anchor, used: seen.used.saturating_add(hits).min(most(limit)) }
}

/// The bucket with tokens put back. [tb-4]
#[must_use]
pub const fn given(seen: Bucket, hits: Hits) -> Bucket {
    Bucket { anchor: seen.anchor, used: seen.used.saturating_sub(hits) }
}

/// The bucket without one charge, less what has been refilled since. [un-5]
#[must_use]
pub fn undone(limit: &Limit, seen: Bucket, receipt: Receipt) -> Bucket {
    let periods = seen.anchor.saturating_sub(receipt.mark) / limit.window().us();
    let refilled = periods.saturating_mul(u64::from(limit.requests()));
    let left = u64::from(receipt.hits).saturating_sub(refilled);
    given(seen, u32::try_from(left).unwrap_or(Hits::MAX))
}

/// The most tokens that can be used at all: those that are refilled within 2^48 us, and a burst in any case. [tb-3]
#[must_use]
pub fn most(limit: &Limit) -> Hits {
    let periods = DEBT_US_MAX / limit.window().us();
    let tokens = periods.saturating_mul(u64::from(limit.requests()));
    u32::try_from(tokens).unwrap_or(Hits::MAX).max(limit.capacity())
}

/// The most used tokens that a state is believed to hold: a burst, or for post-paid limits whatever was forced. [tb-2]
#[must_use]
pub fn ceiling(limit: &Limit) -> Hits {
    if limit.post_paid { most(limit) } else { limit.capacity() }
}

impl Bucket {
    /// The wait for `tokens` to be refilled. [tb-3]
    fn refilled_after(&self, limit: &Limit, tokens: u64, now: Micros) -> Micros {
        if tokens == 0 {
            return 0;
        }
        let periods = tokens.div_ceil(u64::from(limit.requests().max(1)));
        self.anchor + periods * limit.window().us() - now
    }
}

impl View for Bucket {
    fn remaining(&self, limit: &Limit, _now: Micros) -> Hits {
        limit.capacity().saturating_sub(self.used)
    }

    fn retry_after(&self, limit: &Limit, hits: Hits, now: Micros) -> Micros {
        let short = (u64::from(self.used) + u64::from(hits)).saturating_sub(u64::from(limit.capacity()));
        self.refilled_after(limit, short, now)
    }

    fn reset_after(&self, limit: &Limit, now: Micros) -> Micros {
        self.refilled_after(limit, u64::from(self.used), now)
    }

    fn is_empty(&self, _now: Micros) -> bool {
        self.used == 0
    }

    fn is_past(&self, limit: &Limit, _now: Micros) -> bool {
        self.used > limit.capacity()
    }

    fn mark(&self) -> u64 {
        self.anchor
    }
}
