//! Counts the requests for each key, in bounded memory. The counts decide which keys are hot. [ls-2]
//!
//! Each count covers the current period of one lease time and a part of the period before. Keys with equal hash bits
//! share a count. A cold key can then count as hot, which costs a lease that is given back. A hot key can briefly count
//! as cold, which costs calls to the store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use weir_engine::Lease;

const COUNTS: usize = 8_192;
/// The bits of each of the two numbers of a count. The other bits hold its period.
const NUMBER_BITS: u32 = 20;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;
const PERIOD_MAX: u64 = (1 << (u64::BITS - 2 * NUMBER_BITS)) - 1;

/// The counts of all keys. Threads never wait for each other. If two threads count at the same time, one request may
/// not be counted.
#[derive(Debug)]
pub(super) struct Asks {
    made: Instant,
    /// Each count has the number of a period, the requests of that period, and the requests of the period before.
    counts: Box<[AtomicU64]>,
}

/// An instant, in the periods of one lease.
#[derive(Clone, Copy)]
struct When {
    period: u64,
    /// The time since the start of the period, in microseconds.
    into: u64,
    lease_us: u64,
}

impl Asks {
    pub(super) fn new() -> Self {
        Self { made: Instant::now(), counts: (0..COUNTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts one request for the key of this hash. Returns the number of requests during the last lease time.
    pub(super) fn count(&self, hash: u64, lease: Lease, now: Instant) -> u32 {
        let place = self.place(hash);
        let count = place.load(Relaxed);
        let when = self.when(lease, now).not_before(count);
        let (current, before) = numbers(count, when.period);
        let current = (current + 1).min(NUMBER_MAX);
        let period = when.period & PERIOD_MAX;
        place.store(period << (2 * NUMBER_BITS) | current << NUMBER_BITS | before, Relaxed);
        when.estimate(current, before)
    }

    /// The same as `count`, without counting a request.
    pub(super) fn of(&self, hash: u64, lease: Lease, now: Instant) -> u32 {
        let count = self.place(hash).load(Relaxed);
        let when = self.when(lease, now).not_before(count);
        let (current, before) = numbers(count, when.period);
        when.estimate(current, before)
    }

    fn when(&self, lease: Lease, now: Instant) -> When {
        let since = u64::try_from(now.saturating_duration_since(self.made).as_micros()).unwrap_or(u64::MAX);
        // Periods start at 1, so a count of 0 belongs to no period.
        When { period: since / lease.us() + 1, into: since % lease.us(), lease_us: lease.us() }
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.counts[usize::try_from(hash % COUNTS as u64).unwrap_or_default()]
    }
}

impl When {
    /// The same time. If another core has already started the next period, the start of that period.
    fn not_before(self, count: u64) -> Self {
        let next = self.period + 1;
        if count >> (2 * NUMBER_BITS) == next & PERIOD_MAX { Self { period: next, into: 0, ..self } } else { self }
    }

    /// The requests of this period, and the part of the period before that is within one lease time.
    fn estimate(self, current: u64, before: u64) -> u32 {
        let estimate = current + before * (self.lease_us - self.into) / self.lease_us;
        u32::try_from(estimate).unwrap_or(u32::MAX)
    }
}

/// The requests of this period and of the period before.
fn numbers(count: u64, period: u64) -> (u64, u64) {
    let (of, current, before) = (count >> (2 * NUMBER_BITS), count >> NUMBER_BITS & NUMBER_MAX, count & NUMBER_MAX);
    if of == period & PERIOD_MAX {
        (current, before)
    } else if of == (period - 1) & PERIOD_MAX {
        (0, current)
    } else {
        (0, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lease() -> Lease {
        Lease::from_micros(100_000).unwrap()
    }

    #[test]
    fn counts_are_those_of_the_last_time_of_a_lease() {
        let asks = Asks::new();
        let at = |ms| asks.made + Duration::from_millis(ms);
        let counted: Vec<u32> = (0..40).map(|_| asks.count(7, lease(), at(50))).collect();
        assert_eq!(counted, (1..=40).collect::<Vec<_>>());
        // Half of the previous period counts, then nothing.
        let later: Vec<u32> = [99, 100, 150, 190, 200, 5_000].map(|ms| asks.of(7, lease(), at(ms))).into();
        assert_eq!(later, [40, 40, 20, 4, 0, 0]);
        assert_eq!(asks.count(7, lease(), at(150)), 21);
        assert_eq!(asks.of(8, lease(), at(50)), 0, "another key");
    }

    #[test]
    fn counts_are_bounded() {
        let asks = Asks::new();
        let period = 3_u64;
        asks.place(7).store(period << (2 * NUMBER_BITS) | NUMBER_MAX << NUMBER_BITS | NUMBER_MAX, Relaxed);
        let now = asks.made + Duration::from_millis(200);
        assert_eq!(u64::from(asks.count(7, lease(), now)), 2 * NUMBER_MAX);
        assert_eq!(numbers(asks.place(7).load(Relaxed), period), (NUMBER_MAX, NUMBER_MAX));
        // A time before the first period counts in the first period.
        assert_eq!(asks.count(9, lease(), asks.made.checked_sub(Duration::from_secs(1)).unwrap_or(asks.made)), 1);
    }
}
