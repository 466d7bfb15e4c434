//! Pauses before the next attempt. They double, and have jitter, so that runtimes and replicas do not retry at the same time.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A pause, less up to half of it at random.
pub fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let micros = usize::try_from(half.as_micros()).unwrap_or(usize::MAX).max(1);
    half + Duration::from_micros(random(micros) as u64)
}

/// The `first` pause, doubled `times` times, up to `most`.
pub fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(most)
}

/// Limits a rate: allows a burst at once, and then one use in each `every`.
#[derive(Debug)]
pub struct Pace {
    every: Duration,
    burst: Duration,
    /// The time up to which the uses so far are paid.
    paid: Mutex<Option<Instant>>,
}

impl Pace {
    /// A pace that allows `burst` uses at once.
    pub const fn new(every: Duration, burst: u32) -> Self {
        Self { every, burst: every.saturating_mul(burst), paid: Mutex::new(None) }
    }

    /// Counts a use at `now`. Returns how long to wait before it.
    pub fn wait(&self, now: Instant) -> Duration {
        let mut paid = self.paid.lock();
        let next = paid.map_or(now, |paid| paid.max(now)) + self.every;
        *paid = Some(next);
        next.saturating_duration_since(now).saturating_sub(self.burst)
    }
}

/// A random number below `bound`, which is more than zero. Not for secrets.
pub fn random(bound: usize) -> usize {
    let bits = RandomState::new().hash_one(bound);
    usize::try_from(bits % (bound as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_half_of_a_pause_is_left_out() {
        let whole = Duration::from_millis(200);
        let pauses: Vec<Duration> = (0..1_000).map(|_| jittered(whole)).collect();
        assert!(pauses.iter().all(|&pause| pause >= whole / 2 && pause <= whole), "{pauses:?}");
        assert!(pauses.iter().any(|&pause| pause < whole * 6 / 10), "short ones too");
        assert!(pauses.iter().any(|&pause| pause > whole * 9 / 10), "long ones too");
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
        assert!(jittered(Duration::MAX) >= Duration::MAX / 2);
    }

    #[test]
    fn a_pace_allows_a_burst_and_then_one_at_a_time() {
        let (every, start) = (Duration::from_millis(100), Instant::now());
        let pace = Pace::new(every, 3);
        let waits: Vec<u128> = (0..5).map(|_| pace.wait(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = start + every * 5;
        assert_eq!(pace.wait(later), Duration::ZERO);
        let much_later = later + every * 100;
        let waits: Vec<u128> = (0..4).map(|_| pace.wait(much_later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100], "unused time is saved up to the burst");
    }

    #[test]
    fn a_pause_is_doubled_up_to_its_bound() {
        let (first, most) = (Duration::from_millis(5), Duration::from_millis(250));
        let pauses = [0, 1, 5, 6, 31, 32, u32::MAX].map(|times| doubled(first, times, most).as_millis());
        assert_eq!(pauses, [5, 10, 160, 250, 250, 250, 250]);
        assert_eq!(doubled(most, 9, first), first);
    }
}
