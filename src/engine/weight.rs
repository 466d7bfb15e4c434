//! The weight of a charge: the most work that a store can need for it. [dc-11]
//!
//! A weight is the longest time that Redis can need for the charge, in charges of `fixed_window` (about 2 us of Redis
//! CPU). `bench/redis-scripts weights` measures it. It depends only on the limit and the operation, so it is the same
//! for every store. Not here: what happens to a decision that is too heavy (limiter), and how heavy calls are sent
//! (store/redis/routing/node.rs). See docs/adr/0016-charges-have-a-weight.md.

use super::algorithm::Work;
use super::charge::{Charge, Operation};
use super::limit::Limit;

/// The maximum sum of the weights of one decision's charges. 512 charges on short states have this sum. Redis needs a
/// few milliseconds for it, which is less than the default of `redis.timeout`.
pub const WEIGHT_MAX: u32 = 1_024;

/// A decision above this weight never shares a round trip to Redis, because other decisions would wait for it. 64
/// charges on short states have this weight.
pub const WEIGHT_SHARED_MAX: u32 = 128;

/// The kind of failure of a decision above [`WEIGHT_MAX`], in metrics and logs.
pub const TOO_HEAVY: &str = "too_heavy";

/// The most descriptors in a request.
pub const DESCRIPTORS_MAX: u32 = 64;

/// The weight of a charge on the limit, if it is not a refund.
pub fn of_limit(limit: &Limit) -> u32 {
    limit.kind().weight(Work::Charge)
}

pub fn of_charge(charge: &Charge<'_>) -> u32 {
    match charge.operation {
        Operation::Refund(hits) => charge.limit.kind().weight(Work::Refund(hits)),
        Operation::Consume(_) | Operation::Peek | Operation::Report(_) => of_limit(charge.limit),
    }
}

/// The sum of the weights of the charges.
pub fn of_charges(charges: &[Charge<'_>]) -> u32 {
    charges.iter().fold(0, |sum: u32, charge| sum.saturating_add(of_charge(charge)))
}

/// The weight of undoing one charge of the limit.
pub fn of_undo(limit: &Limit) -> u32 {
    limit.kind().weight(Work::Undo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::algorithm::counting::WEIGHT_OF_SHORT_STATE;
    use crate::algorithm::parameters::{Anchor, Parameters, Precision, Refill};
    use crate::charge::CHARGES_MAX;
    use crate::time::Unit;

    fn limit(requests: u32, algorithm: Algorithm) -> Limit {
        Limit::new(requests.into(), Unit::Hour.window(), algorithm).unwrap()
    }

    fn sliding(buckets: u64) -> Limit {
        let precision = Precision::new(Unit::Hour.window().us() / buckets).unwrap();
        limit(100, Algorithm::SlidingWindow { precision })
    }

    fn charge(limit: &Limit, operation: Operation) -> Charge<'_> {
        Charge::alone("k", limit, operation)
    }

    /// Every algorithm, including a window from the first hit and a bucket refilled by interval.
    fn every_limit(requests: u32) -> Vec<Limit> {
        let clock = Parameters { precision: Precision::new(60_000_000).unwrap(), burst: 7, ..Parameters::LEAST };
        let others = Parameters { anchor: Anchor::FirstHit, refill: Refill::Interval, ..clock };
        let all = [&clock, &others].into_iter().flat_map(Algorithm::all);
        all.map(|algorithm| limit(requests, algorithm)).collect()
    }

    #[test]
    fn a_decision_of_512_charges_on_short_states_is_never_too_heavy() {
        let mut short = 0;
        for limit in every_limit(100).iter().filter(|limit| !limit.kind().format().is_list()) {
            short += 1;
            for operation in [Operation::Consume(9), Operation::Peek, Operation::Refund(u32::MAX), Operation::Report(9)]
            {
                let charges = vec![charge(limit, operation); CHARGES_MAX];
                assert!(of_charges(&charges) <= WEIGHT_MAX, "{limit:?}, {operation:?}");
            }
        }
        assert!(short > 3, "{short} limits have short states");
        assert_eq!(of_limit(&limit(100, Algorithm::FIXED_WINDOW)), 1);
        assert_eq!(WEIGHT_MAX as usize, CHARGES_MAX * WEIGHT_OF_SHORT_STATE as usize, "and not more than it takes");
    }

    #[test]
    fn a_long_state_weighs_as_much_as_it_can_be_long() {
        assert_eq!(of_limit(&sliding(10)), 5);
        assert_eq!(of_limit(&sliding(60)), 7);
        assert_eq!(of_limit(&sliding(120)), 10);
        assert_eq!(of_limit(&sliding(256)), 17);
        assert_eq!(of_limit(&limit(1, Algorithm::SlidingWindowLog)), 16);
        assert_eq!(of_limit(&limit(10_000, Algorithm::SlidingWindowLog)), 42);
        let log = limit(10_000, Algorithm::SlidingWindowLog);
        assert_eq!(of_charge(&charge(&log, Operation::Consume(9_999))), 42);
        assert_eq!(of_charge(&charge(&log, Operation::Refund(u32::MAX))), 42 + 625);
        assert_eq!(of_undo(&log), 42 + 5_000);
    }

    #[test]
    fn one_charge_is_never_too_heavy() {
        let log = limit(10_000, Algorithm::SlidingWindowLog);
        for (limit, operation) in [(&log, Operation::Refund(u32::MAX)), (&sliding(256), Operation::Consume(1))] {
            assert!(of_charge(&charge(limit, operation)) <= WEIGHT_MAX);
        }
    }
}
