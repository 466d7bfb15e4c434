//! Limits the log lines about one kind of problem: one at once, then at most one in each interval, and one at the end.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub struct Complaint {
    every: Duration,
    /// The time of the last line. None while there is no problem.
    logged: Option<Instant>,
    failures: u64,
}

impl Complaint {
    /// A problem that is logged at most once in `every`.
    pub const fn new(every: Duration) -> Self {
        Self { every, logged: None, failures: 0 }
    }

    /// Counts failures. If a line is due, returns their number since the problem began.
    pub fn failed(&mut self, failures: u64) -> Option<u64> {
        self.failures += failures;
        let now = Instant::now();
        let is_due = self.logged.is_none_or(|last| now.duration_since(last) >= self.every);
        is_due.then(|| {
            self.logged = Some(now);
            self.failures
        })
    }

    /// Ends the problem. If it was logged, returns the number of its failures.
    pub fn ended(&mut self) -> Option<u64> {
        let failures = std::mem::take(&mut self.failures);
        self.logged.take().map(|_| failures)
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
        let mut frequent = Complaint::new(Duration::ZERO);
        assert_eq!([frequent.failed(2), frequent.failed(1)], [Some(2), Some(3)]);
    }
}
