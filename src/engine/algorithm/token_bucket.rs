//! A bucket that is refilled in steps: `requests` tokens at the end of each period. [tb-1]
//!
//! Known from AWS' and Stripe's limiters. The state is the used tokens, never the remaining ones, so it stays right if
//! the limit or the burst changes. A bucket that is refilled continuously is a debt: gcra.rs. Its Lua twin is
//! lua/algorithms/token_bucket.lua.

use super::counting::{Counting, DEBT_US_MAX, Effect, Receipt, StoredFormat, Written, is_believed, small};
use crate::descriptor::Hits;
use crate::time::{Bounds, Micros, Window};

/// The used tokens of a bucket. [tb-5]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// When the current period began.
    pub anchor: Micros,
    /// The used tokens that are not yet refilled, at most 2^32 - 1.
    pub used: u32,
}

/// A bucket of `burst` tokens that gets `requests` tokens at the end of each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    requests: u32,
    period: Window,
    burst: u32,
    post_paid: bool,
}

impl TokenBucket {
    /// A limit of 0 has no capacity, with any burst.
    pub(super) const fn new(requests: u32, period: Window, burst: u32) -> Self {
        Self { requests, period, burst: if requests == 0 { 0 } else { burst }, post_paid: false }
    }

    /// The most used tokens: as many as are refilled within 2^48 us, but at least a burst. [tb-3]
    fn most(&self) -> Hits {
        let periods = DEBT_US_MAX / self.period.us();
        let tokens = periods.saturating_mul(u64::from(self.requests));
        u32::try_from(tokens).unwrap_or(Hits::MAX).max(self.burst)
    }

    /// The most used tokens that are believed: a burst, or [`TokenBucket::most`] for post-paid limits. [tb-2]
    fn ceiling(&self) -> Hits {
        if self.post_paid { self.most() } else { self.burst }
    }

    /// The wait for `tokens` to be refilled. [tb-3]
    fn refilled_after(&self, observed: &Bucket, tokens: u64, now: Micros) -> Micros {
        if tokens == 0 {
            return 0;
        }
        let periods = tokens.div_ceil(u64::from(self.requests.max(1)));
        observed.anchor + periods * self.period.us() - now
    }

    /// The bucket after using tokens; the count stops at [`TokenBucket::most`]. [tb-3]
    fn added(&self, before: Bucket, hits: Hits, _now: Micros) -> Bucket {
        Bucket { anchor: before.anchor, used: before.used.saturating_add(hits).min(self.most()) }
    }

    /// The bucket after a refund. [tb-4]
    const fn refunded(&self, before: Bucket, hits: Hits, _now: Micros) -> Bucket {
        Bucket { anchor: before.anchor, used: before.used.saturating_sub(hits) }
    }

    /// The bucket after undoing the part of one charge that was not refilled since. [un-5]
    fn undone(&self, before: Bucket, receipt: Receipt, now: Micros) -> Bucket {
        let periods = before.anchor.saturating_sub(receipt.mark) / self.period.us();
        let refilled = periods.saturating_mul(u64::from(self.requests));
        let left = u64::from(receipt.hits).saturating_sub(refilled);
        self.refunded(before, u32::try_from(left).unwrap_or(Hits::MAX), now)
    }

    const fn stored(left: Bucket) -> Bucket {
        left
    }
}

impl Counting for TokenBucket {
    type State = Bucket;
    type Observed = Bucket;
    type Numbers = [u64; 5];

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
        format!("i{}", self.period)
    }

    /// The bucket at `now`, refilled by each period that has ended. An empty bucket begins its period now. [tb-2]
    /// [tb-6] [tb-7]
    fn observe(&self, stored: Option<&Bucket>, _asked: Hits, bounds: Option<Bounds>, now: Micros) -> Bucket {
        let (period, requests) = (self.period.us(), u64::from(self.requests));
        let full = Bucket { anchor: now, used: 0 };
        let Some(stored) = stored else { return full };
        if requests == 0 {
            return full;
        }
        let believed = stored.used.min(self.ceiling());
        if stored.anchor > now {
            let anchor = if self.is_stale(stored, bounds, now) { now } else { stored.anchor };
            return Bucket { anchor, used: believed };
        }
        let periods = (now - stored.anchor) / period;
        if periods >= u64::from(believed).div_ceil(requests) {
            return full;
        }
        let refilled = periods * requests;
        Bucket {
            anchor: stored.anchor + periods * period,
            // Fewer tokens are refilled than `believed`, so they fit 32 bits.
            used: believed - u32::try_from(refilled).unwrap_or(believed),
        }
    }

    fn is_stale(&self, stored: &Bucket, _bounds: Option<Bounds>, now: Micros) -> bool {
        !is_believed(u128::from(stored.anchor.saturating_sub(now)), self.period.us())
    }

    fn reobserved(&self, found: Bucket, now: Micros) -> Bucket {
        self.observe(Some(&found), 0, None, now)
    }

    fn later(&self, found: Bucket, now: Micros) -> Bucket {
        self.observe(Some(&found), 0, None, now)
    }

    fn as_written(&self, stored: &Bucket, _bounds: Option<Bounds>, _now: Micros) -> Bucket {
        *stored
    }

    fn remaining(&self, observed: &Bucket, _now: Micros) -> Hits {
        self.burst.saturating_sub(observed.used)
    }

    fn retry_after(&self, observed: &Bucket, hits: Hits, now: Micros) -> Micros {
        let short = (u64::from(observed.used) + u64::from(hits)).saturating_sub(u64::from(self.burst));
        self.refilled_after(observed, short, now)
    }

    fn reset_after(&self, observed: &Bucket, now: Micros) -> Micros {
        self.refilled_after(observed, u64::from(observed.used), now)
    }

    fn is_past(&self, observed: &Bucket, _now: Micros) -> bool {
        observed.used > self.burst
    }

    fn is_empty(observed: &Bucket, _now: Micros) -> bool {
        observed.used == 0
    }

    fn mark(observed: &Bucket) -> u64 {
        observed.anchor
    }

    fn script_numbers(&self, _hits: Hits, _bounds: Option<Bounds>) -> Self::Numbers {
        let (burst, ceiling, most) = (self.burst, self.ceiling(), self.most());
        [self.period.us(), u64::from(self.requests), u64::from(burst), u64::from(ceiling), u64::from(most)]
    }

    fn read_reply(&self, numbers: &[u64], _now: Micros) -> Option<(Bucket, Option<Bucket>)> {
        Some((Self::read_stored(numbers)?, None))
    }

    fn read_stored(numbers: &[u64]) -> Option<Bucket> {
        match *numbers {
            [anchor, used] => Some(Bucket { anchor, used: small(used)? }),
            _ => None,
        }
    }
}
