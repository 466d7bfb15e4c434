//! Leases: hits of a hot key that a process charges ahead, and for how long it may admit requests from them. [ls-1]
//!
//! Only the arithmetic is here. The limiter finds the hot keys and keeps the hits.

use super::descriptor::{Count, Hits, saturated};
use super::time::Micros;

/// A key is hot in a process if it gets this many requests within the length of a lease. [ls-2]
pub const HOT_ASKS: u32 = 32;
/// The fewest hits for which a separate call pays off. [ls-2]
pub const LEASE_HITS_MIN: Hits = 8;
/// With fewer remaining hits, nothing is charged ahead. [ls-2]
pub const LEASE_REMAINING_MIN: Count = 128;
/// The shortest and the longest lease, in microseconds.
const LEASE_US: std::ops::RangeInclusive<u64> = 10_000..=1_000_000;

/// This part of the demand is not charged ahead, so most leases are used up before they end, and nothing has to be given back.
const DEMAND_LEFT: Hits = 8;
/// A lease charges at most this part of the remaining hits, so leases get smaller near the limit.
const REMAINING_PER_LEASE: Count = 16;
/// A lease charges at most this part of the limit.
const LIMIT_PER_LEASE: Count = 20;
/// A limit below this many hits has no leases, because they would be too small.
pub const LIMIT_MIN: Count = LEASE_HITS_MIN as Count * LIMIT_PER_LEASE;
/// A lease ends early by this part of its length, because two clocks may drift apart by almost as much.
const DRIFT: u64 = 1_000;

/// How long a process may admit requests from hits that it charged ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(u32);

impl Lease {
    /// A lease of this many microseconds. None if it is too short or too long.
    #[must_use]
    pub fn from_micros(us: u64) -> Option<Self> {
        u32::try_from(us).ok().filter(|us| LEASE_US.contains(&u64::from(*us))).map(Self)
    }

    /// The length in microseconds.
    #[must_use]
    pub const fn us(self) -> Micros {
        self.0 as Micros
    }

    /// How long a lease lasts, counted from the instant when its call was sent. `step_after` is the time from the
    /// store's clock in the reply to the end of the step, in microseconds. Rounded down. [ls-3]
    ///
    /// ```
    /// use weir_engine::Lease;
    ///
    /// let lease = Lease::from_micros(100_000).unwrap();
    /// assert_eq!(lease.lasts(2_800_000_000), 99_900);
    /// assert_eq!(lease.lasts(40_001), 39_960);
    /// ```
    #[must_use]
    pub fn lasts(self, step_after: Micros) -> Micros {
        let longest = self.us().min(step_after);
        longest - longest.div_ceil(DRIFT)
    }
}

/// How many hits to charge ahead for a key: seven eighths of the demand, less `held`, for a whole number of requests. `asks` is the
/// number of its requests in the last lease time, `hits` what the current request asks for, and `held` what the process holds. None if
/// a lease does not pay off. [ls-2]
///
/// ```
/// use weir_engine::hits_ahead;
///
/// assert_eq!(hits_ahead(500, 1, 0, 1_000_000, 1_000_000), Some(438));
/// assert_eq!(hits_ahead(500, 1, 0, 4_000, 100_000), Some(250));
/// assert_eq!(hits_ahead(500, 1, 400, 1_000_000, 1_000_000), Some(38));
/// assert_eq!(hits_ahead(500, 1, 0, 127, 100_000), None);
/// // 250 would admit two requests of 100 hits, and 50 would be left. They admit no request of 300.
/// assert_eq!(hits_ahead(500, 100, 0, 4_000, 100_000), Some(200));
/// assert_eq!(hits_ahead(500, 300, 0, 4_000, 100_000), None);
/// ```
#[must_use]
pub fn hits_ahead(asks: u32, hits: Hits, held: Hits, remaining: Count, requests: Count) -> Option<Hits> {
    let demand = asks.saturating_mul(hits);
    let wanted = (demand - demand / DEMAND_LEFT).saturating_sub(held);
    let most = saturated(Count::from(wanted).min(remaining / REMAINING_PER_LEASE).min(requests / LIMIT_PER_LEASE));
    let ahead = most - most.checked_rem(hits)?;
    (remaining >= LEASE_REMAINING_MIN && ahead >= LEASE_HITS_MIN).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::COUNT_MAX;

    #[test]
    fn a_lease_is_10_ms_to_1_s() {
        assert_eq!([9_999, 1_000_001, u64::MAX].map(Lease::from_micros), [None; 3]);
        assert_eq!(
            [10_000, 1_000_000].map(|us| Lease::from_micros(us).map(Lease::us)),
            [Some(10_000), Some(1_000_000)]
        );
    }

    #[test]
    fn a_lease_ends_before_its_step_also_by_a_clock_that_is_slower_by_a_thousandth() {
        let lease = Lease::from_micros(1_000_000).unwrap();
        for step_after in [1, 2, 999, 1_000, 1_001, 123_457, 1_000_000, u64::MAX] {
            let lasts = lease.lasts(step_after);
            // The time by the faster clock, rounded up.
            assert!(lasts + lasts.div_ceil(DRIFT) <= step_after, "{step_after}");
            assert!(lasts < lease.us());
        }
        assert_eq!(lease.lasts(0), 0);
    }

    #[test]
    fn near_the_limit_nothing_is_taken_ahead() {
        assert_eq!(hits_ahead(u32::MAX, 1, 0, 128, 1_000), Some(8));
        assert_eq!(hits_ahead(u32::MAX, 1, 0, 127, 1_000), None);
        assert_eq!(hits_ahead(u32::MAX, 1, 0, COUNT_MAX, COUNT_MAX), Some(3_758_096_384), "the demand bounds it");
        assert_eq!(hits_ahead(u32::MAX, 1, 0, 1_000, 159), None);
        assert_eq!(hits_ahead(7, 1, 0, 1_000, 1_000), None);
        assert_eq!(hits_ahead(10, 1, 20, 1_000, 1_000), None);
    }

    #[test]
    fn a_lease_is_for_whole_requests() {
        assert_eq!(hits_ahead(32, 3, 0, 160, 1_000), Some(9));
        assert_eq!(hits_ahead(32, 5, 0, 144, 1_000), None, "only 5 of 9");
        assert_eq!(hits_ahead(32, 51, 0, 1_000, 1_000), None);
        assert_eq!(hits_ahead(32, 0, 0, 1_000, 1_000), None);
        assert_eq!(hits_ahead(32, Hits::MAX, 0, COUNT_MAX, COUNT_MAX), None);
    }
}
