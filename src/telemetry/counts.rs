//! The counters of one limit, and how the hits of a charge are split among them.
//!
//! Not here: the names of the counters (metrics/rules.rs for weir's, statistics.rs for those of envoyproxy/ratelimit).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_engine::arith::{Fraction, mul_div};
use weir_engine::observer::{AnsweredBy, Charged, LimitOf};
use weir_engine::{Count, Hits, Mode, Operation, Role};

/// Declares the counters of one limit.
macro_rules! counters {
    ($($(#[doc = $about:literal])+ $name:ident,)+) => {
        /// The counters of one limit, in hits. On its own cache line, so that busy limits do not slow each other down.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub(super) struct Counts {
            $($name: AtomicU64,)+
        }

        /// The numbers of [`Counts`] at one moment, in hits.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(super) struct Values {
            $($(#[doc = $about])+ pub(super) $name: u64,)+
        }

        impl Values {
            /// Adds others to these. Counters wrap, as atomics do.
            pub(super) fn add(&mut self, other: Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)+
            }
        }

        impl Counts {
            pub(super) fn values(&self) -> Values {
                Values { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Requested hits.
    hits,
    /// Above the limit.
    over,
    /// Charged within the limit, and above the near threshold.
    near,
    /// Charged within the limit.
    within,
    /// All hits of requests that a limit in shadow mode would have denied.
    shadow,
    /// Hits above a limit whose rule is in shadow mode, or that is on trial.
    shadow_over,
    /// Above the limit, and denied from the cache of denials.
    over_cached,
    /// As `near`, for hits that were not charged because another limit denied the request.
    uncharged_near,
    /// As `within`, for hits that were not charged because another limit denied the request.
    uncharged_within,
}

/// One of the numbers.
pub(super) type Number = fn(&Values) -> u64;

impl Counts {
    pub(super) fn add(&self, split: &SplitHits) {
        self.hits.fetch_add(split.hits, Relaxed);
        let (near, within) = if split.is_uncharged {
            (&self.uncharged_near, &self.uncharged_within)
        } else {
            (&self.near, &self.within)
        };
        for (count, hits) in [(&self.over, split.over), (near, split.near), (within, split.within)] {
            if hits > 0 {
                count.fetch_add(hits, Relaxed);
            }
        }
        if split.is_shadow {
            self.shadow.fetch_add(split.hits, Relaxed);
        }
        if split.is_shadow_by_policy {
            self.shadow_over.fetch_add(split.over, Relaxed);
        }
        if split.is_cached {
            self.over_cached.fetch_add(split.over, Relaxed);
        }
    }
}

/// The hits of one charge, split at its limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SplitHits {
    pub(super) hits: u64,
    pub(super) over: u64,
    pub(super) near: u64,
    pub(super) within: u64,
    /// Whether the limit is over and in shadow mode: it is on trial, or its rule or the setting `shadow_mode` sets
    /// that.
    pub(super) is_shadow: bool,
    /// Whether the limit is over, and its rule is in shadow mode.
    pub(super) is_shadow_by_policy: bool,
    /// Whether the cache of denials answered.
    pub(super) is_cached: bool,
    /// Whether the hits are within this limit, and were not charged because another limit denied the request. [dc-4]
    pub(super) is_uncharged: bool,
}

/// Splits the hits of a charge at the limit and at the near threshold, as envoyproxy/ratelimit does. If a charge
/// crosses the limit, the part above it is over, and the part between threshold and limit is near. If a limit that is
/// over charges nothing, all hits are over.
pub(super) fn split(charged: &Charged<'_>, near_limit: Fraction) -> SplitHits {
    let Charged { charge, outcome, mode, .. } = charged;
    let (hits, counted_when_over) = match charge.operation {
        Operation::Consume(hits) => {
            let counts = *mode == Mode::Independent && charge.limit.kind().counts_denied();
            (u64::from(hits), counts)
        }
        Operation::Report(hits) => (u64::from(hits), true),
        Operation::Peek | Operation::Refund(_) => return SplitHits::default(),
    };
    let is_over = outcome.verdict.is_over();
    let is_shadow = is_over && charge.origin.shown_role == Role::Shadow;
    let is_cached = is_over && charged.by == AnsweredBy::Cache;
    let is_shadow_by_policy = is_over
        && (charge.limit.shadow || matches!(charged.limit, LimitOf::Rule(rule, _) if rule.role == Role::Shadow));
    let mut split = SplitHits { hits, is_shadow, is_shadow_by_policy, is_cached, ..SplitHits::default() };
    if is_cached {
        split.over = hits;
        return split;
    }
    let limit = charge.limit.capacity();
    let threshold = near_threshold(limit, near_limit);
    let before = limit.saturating_sub(outcome.remaining_before);
    let after = before + hits;
    if !is_over {
        split.is_uncharged = outcome.receipt.is_none() && matches!(charge.operation, Operation::Consume(_));
        // A report can be within the limit and still end above it. [dc-9]
        split.over = after.saturating_sub(limit);
        split.within = hits - split.over;
        split.near = after.min(limit).saturating_sub(threshold.max(before));
    } else if counted_when_over && before < limit {
        split.over = after - limit;
        split.near = limit - threshold.max(before);
    } else {
        split.over = hits;
    }
    split
}

/// How many hits of a limit are not near it, rounded down. In 32-bit floats, as in envoyproxy/ratelimit: for limits
/// above 2^24 an exact product would give another threshold. envoyproxy/ratelimit has no limit above 2^32 - 1: there the
/// product is exact.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "metrics only, and the reference's own arithmetic"
)]
fn near_threshold(limit: Count, near_limit: Fraction) -> Count {
    let Ok(limit) = Hits::try_from(limit) else {
        return mul_div(limit, near_limit.billionths().into(), 1_000_000_000).0;
    };
    let ratio = (f64::from(near_limit.billionths()) / 1e9) as f32;
    // The product can round up to more than the limit.
    ((limit as f32 * ratio) as u64).min(u64::from(limit))
}

#[cfg(test)]
mod tests {
    use weir_engine::{Algorithm, COUNT_MAX, Charge, Limit, State, Unit, decision};

    use super::*;

    const NOW: u64 = 2_000_000_000_000_000;

    /// Charges one key several times, and sums the counts.
    fn counted(limit: &Limit, mode: Mode, near_limit: &str, takes: &[Operation]) -> SplitHits {
        let mut state: Option<State> = None;
        let mut sum = SplitHits::default();
        for &operation in takes {
            let charge = Charge::alone("k", limit, operation);
            let charges = [charge];
            let decided = decision::decide(&charges, &[0], std::slice::from_mut(&mut state), mode, NOW);
            let decision = decided.expect("no calendar");
            let charged = Charged {
                limit: LimitOf::Request { domain: "shop" },
                entries: &[],
                row: None,
                mode,
                charge: &charges[0],
                outcome: &decision.outcomes[0],
                by: AnsweredBy::Store,
            };
            let one = split(&charged, near_limit.parse().expect("a fraction"));
            sum.hits += one.hits;
            sum.over += one.over;
            sum.near += one.near;
            sum.within += one.within;
        }
        sum
    }

    fn hits(hits: u64, over: u64, near: u64, within: u64) -> SplitHits {
        SplitHits { hits, over, near, within, ..SplitHits::default() }
    }

    fn per_hour(requests: u32) -> Limit {
        Limit::per_unit(requests, Unit::Hour)
    }

    /// Counts as recorded from envoyproxy/ratelimit.
    #[test]
    fn hits_are_split_as_the_reference_splits_them() {
        let one_by_one = [Operation::Consume(1); 13];
        let plain = counted(&per_hour(10), Mode::Independent, "0.8", &one_by_one);
        assert_eq!(plain, hits(13, 3, 2, 10));
        let crossing =
            counted(&per_hour(10), Mode::Independent, "0.8", &[Operation::Consume(9), Operation::Consume(4)]);
        assert_eq!(crossing, hits(13, 3, 2, 9));
        let all_at_once = counted(&per_hour(10), Mode::Independent, "0.8", &[Operation::Consume(15)]);
        assert_eq!(all_at_once, hits(15, 5, 2, 0));
        let half = counted(&per_hour(7), Mode::Independent, "0.5", &[Operation::Consume(5), Operation::Consume(3)]);
        assert_eq!(half, hits(8, 1, 4, 5));
        let to_the_brim = counted(&per_hour(7), Mode::Independent, "0.5", &[Operation::Consume(7), Operation::Peek]);
        assert_eq!(to_the_brim, hits(7, 0, 4, 7));
        let largest = [Operation::Consume(1), Operation::Consume(u32::MAX - 1), Operation::Consume(1)];
        let largest = counted(&Limit::per_unit(u32::MAX, Unit::Year), Mode::Independent, "0.8", &largest);
        assert_eq!(largest, hits(4_294_967_296, 1, 858_993_407, 4_294_967_295));
    }

    #[test]
    fn the_threshold_is_at_most_the_limit() {
        let threshold = |limit, ratio: &str| near_threshold(limit, ratio.parse().expect("a fraction"));
        assert_eq!(threshold(16_777_219, "1"), 16_777_219);
        assert_eq!(threshold(4_294_967_295, "1"), 4_294_967_295);
        assert_eq!((threshold(COUNT_MAX, "1"), threshold(10_000_000_000_000, "0.8")), (COUNT_MAX, 8_000_000_000_000));
        assert_eq!((threshold(10, "0.7"), threshold(7, "0.8"), threshold(5, "0.8")), (7, 5, 4));
        assert_eq!((threshold(0, "0.8"), threshold(9, "0")), (0, 0));
    }

    #[test]
    fn if_a_denied_charge_takes_nothing_all_its_hits_are_over() {
        let takes = [Operation::Consume(9), Operation::Consume(4), Operation::Consume(1)];
        let atomic = counted(&per_hour(10), Mode::Atomic, "0.8", &takes);
        assert_eq!(atomic, hits(14, 4, 2, 10));
        let gcra = Limit::new(10, Unit::Day.window(), Algorithm::Gcra { burst: 10 }).unwrap();
        assert_eq!(counted(&gcra, Mode::Independent, "0.8", &takes), atomic);
    }

    #[test]
    fn reported_hits_are_split_and_refunds_are_not_counted() {
        let takes = [Operation::Report(9), Operation::Report(4), Operation::Report(2), Operation::Refund(5)];
        for mode in Mode::ALL {
            let reported = counted(&per_hour(10), mode, "0.8", &takes);
            assert_eq!(reported, hits(15, 5, 2, 10));
        }
        // More than the limit in one report: what fits is within, and the rest of the limit is near.
        let at_once = counted(&per_hour(10), Mode::Atomic, "0.8", &[Operation::Report(25)]);
        assert_eq!(at_once, hits(25, 15, 2, 10));
        let gcra = Limit::new(10, Unit::Day.window(), Algorithm::Gcra { burst: 5 }).unwrap();
        let paced =
            counted(&gcra, Mode::Atomic, "0.8", &[Operation::Report(3), Operation::Report(3), Operation::Report(1)]);
        assert_eq!(paced, hits(7, 2, 1, 5));
    }
}
