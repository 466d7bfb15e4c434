//! The times of the requests of one source.
//!
//! A source has its own clock, which stops in pauses and is slow when the daily curve is low. By that clock, requests
//! come at the full rate. All times except Poisson intervals are computed in whole numbers, so nothing drifts.

use weir_engine::Micros;
use weir_policies::traffic_file::{Arrivals, HOURS, Source};

use super::random::Random;

/// Times are computed in nanoseconds, because a rate may exceed one request per microsecond.
type Nanos = u64;

const NANOS: Nanos = 1_000;
const MINUTE: Nanos = 60_000_000_000;
const MINUTES: usize = HOURS * 60;
/// The full rate, in hundredths of a percent.
const FULL: u64 = 10_000;

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
    /// The source's own clock, since its start.
    own: Nanos,
    /// The common clock, since the source's start.
    now: Nanos,
    /// The source's start.
    from: Nanos,
    /// The source's end, since its start.
    end: Nanos,
    pace: Pace,
}

impl Times {
    pub(super) fn new(source: &Source, start: Micros, random: Random) -> Self {
        let from = source.from * NANOS;
        Self {
            random,
            requests: u64::from(source.requests),
            period: source.period * NANOS,
            arrivals: source.arrivals,
            count: 0,
            left: 0,
            own: 0,
            now: 0,
            from,
            end: (source.until - source.from) * NANOS,
            pace: Pace {
                daily: source.daily.map(minutes),
                phases: source.phases.map(|(on, off)| (on * NANOS, off * NANOS)),
                since_midnight: start * NANOS + from,
            },
        }
    }

    /// The next time, in nanoseconds since the start of the traffic.
    pub(super) fn next(&mut self) -> Option<Nanos> {
        let due = match self.arrivals {
            Arrivals::Constant => self.nth(1),
            Arrivals::Poisson => {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::float_arithmetic,
                    reason = "a mean, of which the last bits do not matter"
                )]
                let mean = self.period as f64 / self.requests as f64;
                self.own.saturating_add(self.random.exponential(mean))
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
        self.advance(due);
        (self.now < self.end).then(|| self.from + self.now)
    }

    /// When request or burst `count`, of `size` requests, is due by the source's own clock.
    fn nth(&self, size: u64) -> Nanos {
        let due = u128::from(self.count) * u128::from(self.period) * u128::from(size) / u128::from(self.requests);
        Nanos::try_from(due).unwrap_or(Nanos::MAX)
    }

    /// Advances both clocks until the source's own clock reaches `due`, or the source ends.
    fn advance(&mut self, due: Nanos) {
        let mut missing = due - self.own;
        self.own = due;
        if self.pace.is_full() {
            self.now = self.now.saturating_add(missing);
            return;
        }
        while self.now < self.end {
            let (pace, until) = self.pace.at(self.now);
            let most = u128::from(until - self.now) * u128::from(pace) / u128::from(FULL);
            match Nanos::try_from(most) {
                Ok(most) if most <= missing => {
                    missing -= most;
                    self.now = until;
                }
                _ => {
                    let passed = u128::from(missing) * u128::from(FULL) / u128::from(pace);
                    self.now += Nanos::try_from(passed).unwrap_or(Nanos::MAX).min(until - self.now);
                    return;
                }
            }
        }
    }
}

/// The part of its full rate at which a source sends.
#[derive(Debug)]
struct Pace {
    /// For each minute of the day.
    daily: Option<Box<[u32; MINUTES]>>,
    phases: Option<(Nanos, Nanos)>,
    /// The source's start, since a midnight.
    since_midnight: Nanos,
}

impl Pace {
    fn is_full(&self) -> bool {
        self.daily.is_none() && self.phases.is_none()
    }

    /// The pace at an instant since the source's start, and when it changes.
    fn at(&self, now: Nanos) -> (u64, Nanos) {
        let (mut pace, mut until) = (FULL, Nanos::MAX);
        if let Some((on, off)) = self.phases {
            let phase = now % (on + off);
            if phase < on {
                until = now - phase + on;
            } else {
                (pace, until) = (0, now - phase + on + off);
            }
        }
        if let (Some(daily), true) = (&self.daily, pace > 0) {
            let minute = (self.since_midnight + now) / MINUTE;
            pace = u64::from(daily[usize::try_from(minute).unwrap_or(0) % MINUTES]);
            until = until.min((minute + 1) * MINUTE - self.since_midnight);
        }
        (pace, until)
    }
}

/// The paces of all minutes of a day, interpolated linearly between the hours.
fn minutes(hours: [u32; HOURS]) -> Box<[u32; MINUTES]> {
    Box::new(std::array::from_fn(|minute| {
        let (hour, past) = (minute / 60, u32::try_from(minute % 60).unwrap_or(0));
        (hours[hour] * (60 - past) + hours[(hour + 1) % HOURS] * past) * 100 / 60
    }))
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
        let mut times = Times::new(&sources.sources[0], sources.start, Random::new(1, 0));
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
    fn pauses_stop_the_clock_of_the_source() {
        let all = times("30s", "rate: 1/s, on: 2s500ms, off: 7s500ms");
        let seconds: Vec<u64> = all.iter().map(|time| time / 100_000).collect();
        // Pauses delay all later requests.
        assert_eq!(seconds, [0, 10, 20, 105, 115, 200, 210, 220]);
    }

    #[test]
    fn poisson_requests_have_their_rate() {
        let all = times("1000s", "rate: 100/s, arrivals: poisson");
        assert!((98_500..101_500).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted());
        let half = times("1000s", "rate: 100/s, arrivals: poisson, on: 1s, off: 1s");
        assert!((49_000..51_000).contains(&half.len()), "{}", half.len());
        assert!(half.iter().all(|time| (time / 1_000_000) % 2 == 0));
    }

    #[test]
    fn a_day_has_its_curve() {
        let all = times("1d", "rate: 60/min, daily: {peak: 12, trough: 0, low: 0}");
        let of_hour = |hour: u64| all.iter().filter(|time| *time / 3_600_000_000 == hour).count();
        assert!((140..=160).contains(&of_hour(0)), "{}", of_hour(0));
        assert!((1_620..=1_670).contains(&of_hour(5)), "{}", of_hour(5));
        assert!((3_420..=3_470).contains(&of_hour(12)), "{}", of_hour(12));
        // The points of the hours are whole percentages: 1,192 of them in a day.
        assert!((42_900..=42_925).contains(&all.len()), "{}", all.len());
        let points = "[0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]";
        let office = times("1d", &format!("rate: 60/min, daily: {points}"));
        assert!(office.iter().all(|time| (8 * 3_600..11 * 3_600).contains(&(time / 1_000_000))));
        assert!((7_100..=7_210).contains(&office.len()), "{}", office.len());
    }
}
