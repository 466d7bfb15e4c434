//! A bucket that is refilled in steps: `requests` tokens at the end of each period. [tb-1]
//!
//! Known from AWS' and Stripe's limiters. The state is the used tokens, never the remaining ones, so it stays right if
//! the limit or the burst changes. A bucket that is refilled continuously is a debt: gcra.rs. Its Lua twin is
//! lua/algorithms/token_bucket.lua.
//!
//! Two tokens at the end of each minute, and at most three:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Refill, Unit};
//!
//! let limit = {
//!     let refilled_in_steps = Algorithm::TokenBucket { burst: 3, refill: Refill::Interval };
//!     Limit::new(2, Unit::Minute.window(), refilled_in_steps).unwrap()
//! };
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(3, 10), Verdict::Within, "the bucket is full, and its period begins with the first hit");
//! assert_eq!(hits(1, 69), wait(1));
//! assert_eq!(hits(2, 70), Verdict::Within, "two tokens after a period");
//! assert_eq!(hits(3, 71), wait(119), "three tokens take two periods");
//! assert_eq!(hits(4, 71), Verdict::Never, "the bucket never has four");
//! ```

use super::counting::{
    Counting, DEBT_US_MAX, Effect, Found, Level, Receipt, StateNumbers, StoredFormat, View, is_believed, small,
};
use super::{Observed, State};
use crate::descriptor::{Count, Hits, saturated};
use crate::time::{Micros, Window};

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

    /// The most used tokens that are believed: a burst, or `TokenBucket::most` for post-paid limits. [tb-2]
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

    /// The bucket after undoing the part of one charge that was not refilled since. [un-5]
    fn undone(&self, before: Bucket, receipt: Receipt) -> Bucket {
        let periods = before.anchor.saturating_sub(receipt.mark) / self.period.us();
        let refilled = periods.saturating_mul(u64::from(self.requests));
        let left = u64::from(receipt.hits).saturating_sub(refilled);
        Bucket { used: before.used.saturating_sub(u32::try_from(left).unwrap_or(Hits::MAX)), ..before }
    }

    /// The same limit with `post_paid` set. [dc-5]
    pub(super) const fn with_post_paid(self, post_paid: bool) -> Self {
        Self { post_paid, ..self }
    }
}

impl Counting for TokenBucket {
    type View = Bucket;

    const NUMBER: u8 = 7;
    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 2;

    fn capacity(&self) -> Count {
        self.burst.into()
    }

    fn id(&self, _zone: &str) -> String {
        format!("i{}", self.period)
    }

    /// The bucket at `now`, refilled by each period that has ended. An empty bucket begins its period now. It is stale if
    /// the clock has stepped back too far for its period to be believed. [tb-2] [tb-6] [lm-6]
    fn find(&self, state: Option<&State>, _asked: Hits, now: Micros) -> Found<Bucket> {
        let (period, requests) = (self.period.us(), u64::from(self.requests));
        let full = Found::fresh(Bucket { anchor: now, used: 0 });
        let Some(State::TokenBucket(stored)) = state else { return full };
        if requests == 0 {
            return full;
        }
        let believed = stored.used.min(self.ceiling());
        if stored.anchor > now {
            return if is_believed(u128::from(stored.anchor - now), period) {
                Found::fresh(Bucket { anchor: stored.anchor, used: believed })
            } else {
                Found::stale(Bucket { anchor: now, used: believed })
            };
        }
        let periods = (now - stored.anchor) / period;
        if periods >= u64::from(believed).div_ceil(requests) {
            return full;
        }
        let refilled = periods * requests;
        Found::fresh(Bucket {
            anchor: stored.anchor + periods * period,
            // Fewer tokens are refilled than `believed`, so they fit 32 bits.
            used: believed - u32::try_from(refilled).unwrap_or(believed),
        })
    }

    fn write(&self, state: &mut Option<State>, left: Bucket, _: Effect, _: Micros) {
        *state = Some(State::TokenBucket(left));
    }

    fn script_numbers(&self, _hits: Hits) -> StateNumbers {
        let hits = [self.requests, self.burst, self.ceiling(), self.most()].map(u64::from);
        std::iter::once(self.period.us()).chain(hits).collect()
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        Bucket::read(self, numbers, 0).map(State::TokenBucket)
    }
}

impl View<TokenBucket> for Bucket {
    const OBSERVED: fn(Self) -> Observed = Observed::TokenBucket;

    /// The used tokens stop at `TokenBucket::most`. [tb-3] [tb-4]
    fn step(self, limit: &TokenBucket, effect: Effect, _now: Micros) -> Self {
        match effect {
            Effect::Add(hits) => Self { used: self.used.saturating_add(saturated(hits)).min(limit.most()), ..self },
            Effect::Refund(hits) => Self { used: self.used.saturating_sub(hits), ..self },
            Effect::Undo(receipt) => limit.undone(self, receipt),
            Effect::Nothing | Effect::Drain => self,
        }
    }

    fn level(&self, limit: &TokenBucket, now: Micros) -> Level {
        Level {
            remaining: limit.burst.saturating_sub(self.used).into(),
            reset_after: limit.refilled_after(self, u64::from(self.used), now),
            is_past: self.used > limit.burst,
            is_empty: self.used == 0,
            mark: self.anchor,
            counted: 0,
        }
    }

    fn retry_after(&self, limit: &TokenBucket, hits: Hits, now: Micros) -> Micros {
        let short = (u64::from(self.used) + u64::from(hits)).saturating_sub(u64::from(limit.burst));
        limit.refilled_after(self, short, now)
    }

    fn read(_limit: &TokenBucket, numbers: &[u64], _now: Micros) -> Option<Self> {
        match *numbers {
            [anchor, used] => Some(Self { anchor, used: small(used)? }),
            _ => None,
        }
    }
}
