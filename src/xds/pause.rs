//! The pause before the next attempt. It grows with each failure and has a random part, so that replicas do not retry
//! at the same time.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use weir_tls::backoff::doubled;

/// The first pause after a failed dial. It is short, because the server may be starting.
const DIAL_FIRST: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// The longest pause after a failed dial. The first one is 250 ms, or this if it is shorter.
    pub dial_max: Duration,
    /// The first pause after a stream that ended.
    pub stream_first: Duration,
    /// The longest pause after streams without a response.
    pub stream_max: Duration,
    /// The random part of a pause, in percent: 0 to 100.
    pub random_percent: u32,
}

impl Pauses {
    /// The pause after a failed dial. `failures` attempts failed before it.
    pub fn after_dial(&self, failures: u32) -> Duration {
        self.spread(doubled(DIAL_FIRST.min(self.dial_max), failures, self.dial_max))
    }

    /// The pause after a stream that ended. `failures` attempts failed before it.
    pub fn after_stream(&self, failures: u32) -> Duration {
        self.spread(doubled(self.stream_first, failures, self.stream_max.max(self.stream_first)))
    }

    /// A random pause within `random_percent` of this one.
    fn spread(&self, pause: Duration) -> Duration {
        let reach = pause / 100 * self.random_percent.min(100);
        let reach_us = u64::try_from(reach.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        if reach_us == 0 {
            return pause;
        }
        let drawn = RandomState::new().hash_one(reach_us) % (2 * reach_us + 1);
        pause.saturating_sub(reach).saturating_add(Duration::from_micros(drawn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses {
        dial_max: Duration::from_secs(3),
        stream_first: Duration::from_secs(10),
        stream_max: Duration::from_secs(60),
        random_percent: 0,
    };

    #[test]
    fn pauses_double_up_to_their_bound() {
        let dials = [0, 1, 2, 3, 4, 40].map(|failures| PAUSES.after_dial(failures).as_millis());
        assert_eq!(dials, [250, 500, 1000, 2000, 3000, 3000]);
        let streams = [0, 1, 2, 3, u32::MAX].map(|failures| PAUSES.after_stream(failures).as_secs());
        assert_eq!(streams, [10, 20, 40, 60, 60]);
        let short = Pauses { dial_max: Duration::from_millis(20), ..PAUSES };
        assert_eq!(short.after_dial(0), Duration::from_millis(20), "never longer than asked for");
    }

    #[test]
    fn chance_stays_within_its_part_on_both_sides() {
        let half = Pauses { random_percent: 50, ..PAUSES };
        let pauses: Vec<u128> = (0..1_000).map(|_| half.after_stream(0).as_millis()).collect();
        assert!(pauses.iter().all(|pause| (5_000..=15_000).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|&pause| pause < 7_000), "short ones too");
        assert!(pauses.iter().any(|&pause| pause > 13_000), "long ones too");
    }
}
