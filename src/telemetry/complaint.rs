//! Limits the log lines about one kind of problem: one at once, then at most one in each interval, and one at the end.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub struct Complaint {
    every: Duration,
    /// The time of the last line. None while there is no problem.
    logged: Option<Instant>,
    since_line: u64,
    failures: u64,
}

impl Complaint {
    /// A problem that is logged at most once in `every`.
    pub const fn new(every: Duration) -> Self {
        Self { every, logged: None, since_line: 0, failures: 0 }
    }

    /// Counts failures. If a line is due, returns their number since the last line.
    pub fn failed(&mut self, failures: u64) -> Option<u64> {
        self.failed_at(failures, Instant::now())
    }

    fn failed_at(&mut self, failures: u64, now: Instant) -> Option<u64> {
        self.failures += failures;
        self.since_line += failures;
        let is_due = self.logged.is_none_or(|last| now.duration_since(last) >= self.every);
        is_due.then(|| {
            self.logged = Some(now);
            std::mem::take(&mut self.since_line)
        })
    }

    /// Ends the problem. If it was logged, returns the number of all its failures.
    pub fn ended(&mut self) -> Option<u64> {
        let Self { failures, logged, .. } = std::mem::replace(self, Self::new(self.every));
        logged.map(|_| failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_logged_at_once_then_once_in_a_time_and_at_its_end() {
        let mut rare = Complaint::new(Duration::MAX);
        assert_eq!(rare.ended(), None);
        assert_eq!([rare.failed(2), rare.failed(1)], [Some(2), None]);
        assert_eq!([rare.ended(), rare.ended()], [Some(3), None]);
        assert_eq!(rare.failed(1), Some(1), "the next trouble is news");
        let (mut frequent, start) = (Complaint::new(Duration::from_secs(10)), Instant::now());
        let mut after = |seconds, failures| frequent.failed_at(failures, start + Duration::from_secs(seconds));
        assert_eq!([after(0, 2), after(1, 1), after(9, 3)], [Some(2), None, None]);
        assert_eq!([after(10, 1), after(19, 1), after(20, 1)], [Some(5), None, Some(2)], "those since the last line");
        assert_eq!(frequent.ended(), Some(9), "all of them");
    }
}
