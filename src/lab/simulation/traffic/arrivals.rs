//! The times of the requests of one source.
//!
//! All times except Poisson intervals are computed in whole numbers, so nothing drifts.

use weir_policies::traffic_file::{Arrivals, Source};

use super::random::Random;

/// Times are computed in nanoseconds, because a rate may exceed one request per microsecond.
type Nanos = u64;

const NANOS: Nanos = 1_000;

#[derive(Debug)]
pub(super) struct Times {
    random: Random,
    requests: u64,
    period: Nanos,
    arrivals: Arrivals,
    /// The requests so far, or the bursts.
    count: u64,
    /// The remaining requests of a burst.
    left: u32,
    /// The last time, since the source's start.
    now: Nanos,
    /// The source's start.
    from: Nanos,
    /// The source's end, since its start.
    end: Nanos,
}

impl Times {
    pub(super) fn new(source: &Source, random: Random) -> Self {
        let from = source.from * NANOS;
        Self {
            random,
            requests: u64::from(source.requests),
            period: source.period * NANOS,
            arrivals: source.arrivals,
            count: 0,
            left: 0,
            now: 0,
            from,
            end: (source.until - source.from) * NANOS,
        }
    }

    /// The next time, in nanoseconds since the start of the traffic.
    pub(super) fn next(&mut self) -> Option<Nanos> {
        self.now = match self.arrivals {
            Arrivals::Constant => self.nth(1),
            Arrivals::Poisson => {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::float_arithmetic,
                    reason = "a mean, of which the last bits do not matter"
                )]
                let mean = self.period as f64 / self.requests as f64;
                self.now.saturating_add(self.random.exponential(mean))
            }
            Arrivals::Bursts(_) if self.left > 0 => {
                self.left -= 1;
                return Some(self.from + self.now);
            }
            Arrivals::Bursts(size) => {
                self.left = size - 1;
                self.nth(u64::from(size))
            }
        };
        self.count += 1;
        (self.now < self.end).then(|| self.from + self.now)
    }

    /// When request or burst `count`, of `size` requests, is due, since the source's start.
    fn nth(&self, size: u64) -> Nanos {
        let due = u128::from(self.count) * u128::from(self.period) * u128::from(size) / u128::from(self.requests);
        Nanos::try_from(due).unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_policies::traffic_file::{Origin, parse};

    use super::*;

    /// The times of a source, in microseconds after the start.
    fn times(duration: &str, source: &str) -> Vec<u64> {
        let text =
            format!("duration: {duration}\nstart: 2040-01-02T00:00:00Z\ndomain: d\nsources: [{{ask: a=1, {source}}}]");
        let file = parse(&"t".into(), &text, Path::new("")).unwrap_or_else(|problems| panic!("{problems}"));
        let Origin::Sources(sources) = file.origin else { panic!("no sources") };
        let mut times = Times::new(&sources.sources[0], Random::new(1, 0));
        std::iter::from_fn(|| times.next()).map(|time| time / NANOS).collect()
    }

    #[test]
    fn constant_requests_come_at_equal_distances_that_never_drift() {
        let all = times("1h", "rate: 3/s");
        assert_eq!(all.len(), 3 * 3_600);
        assert_eq!(all[..4], [0, 333_333, 666_666, 1_000_000]);
        assert_eq!(all[3 * 3_599], 3_599_000_000);
    }

    #[test]
    fn a_source_sends_from_its_beginning_to_its_end() {
        assert_eq!(times("10s", "rate: 1/s, from: 3s, until: 6s"), [3_000_000, 4_000_000, 5_000_000]);
    }

    #[test]
    fn bursts_come_at_once_and_keep_the_rate() {
        let all = times("1m", "rate: 30/min, arrivals: bursts, burst: 10");
        assert_eq!(all.len(), 30);
        assert!(all[..10].iter().all(|time| *time == 0));
        assert!(all[10..20].iter().all(|time| *time == 20_000_000));
    }

    #[test]
    fn poisson_requests_have_their_rate() {
        let all = times("1000s", "rate: 100/s, arrivals: poisson");
        assert!((98_500..101_500).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted());
    }
}
