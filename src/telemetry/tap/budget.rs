//! The bound on records of all taps in a second, in total.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// A request counts as one more record for each of this many bytes.
const BYTES_PER_RECORD: usize = 1_024;

/// The time for which unused places are saved.
const BURST: Duration = Duration::from_secs(1);

/// Places, which become free at a steady rate. Each record takes at least one.
pub(super) struct Budget {
    began: Instant,
    /// The time between two places.
    step_ns: u64,
    /// When the next place is free, since `began`.
    next_ns: AtomicU64,
}

impl Budget {
    pub(super) fn new(records_per_second: u32) -> Self {
        let step_ns = NANOS_PER_SECOND / u64::from(records_per_second.max(1));
        // It starts with a whole burst.
        let began = Instant::now();
        let began = began.checked_sub(BURST).unwrap_or(began);
        Self { began, step_ns, next_ns: AtomicU64::new(0) }
    }

    /// Takes the places of a request of `bytes` bytes. Returns false if none is free.
    pub(super) fn take(&self, bytes: usize, now: Instant) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = nanos(now.saturating_duration_since(self.began));
        let earliest_ns = now_ns.saturating_sub(nanos(BURST));
        let cost_ns = (1 + (bytes / BYTES_PER_RECORD) as u64).saturating_mul(self.step_ns);
        let taken = self.next_ns.fetch_update(Relaxed, Relaxed, |next_ns| {
            let next_ns = next_ns.max(earliest_ns);
            (next_ns < now_ns).then_some(next_ns.saturating_add(cost_ns))
        });
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_as_many_places_as_it_should_and_a_burst_is_one_second() {
        let budget = Budget::new(100);
        let start = budget.began + BURST;
        let taken = |bytes: usize, now: Instant| (0..1_000).filter(|_| budget.take(bytes, now)).count();
        assert_eq!(taken(0, start), 100);
        assert_eq!(taken(0, start + Duration::from_millis(500)), 50);
        assert_eq!(taken(0, start + Duration::from_secs(100)), 100, "no more than one second's are saved up");
        // Four places each.
        assert_eq!(taken(3 * BYTES_PER_RECORD, start + Duration::from_secs(101)), 25);
        // A clock that seems to go back gets no place, and does no harm.
        assert_eq!(taken(0, start), 0);
        assert_eq!(taken(0, start + Duration::from_secs(102)), 100);
    }
}
