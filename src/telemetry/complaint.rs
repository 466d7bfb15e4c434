//! Limits the log lines about one kind of problem: one at once, then at most one in each interval, and one at the end.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
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
        self.is_due(now).then(|| {
            self.logged = Some(now);
            std::mem::take(&mut self.since_line)
        })
    }

    fn is_due(&self, now: Instant) -> bool {
        self.logged.is_none_or(|last| now.duration_since(last) >= self.every)
    }

    /// Ends the problem. If it was logged, returns the number of all its failures.
    pub fn ended(&mut self) -> Option<u64> {
        let Self { failures, logged, .. } = std::mem::replace(self, Self::new(self.every));
        logged.map(|_| failures)
    }
}

/// The most names of [`Complaints`]. Further names share one complaint.
pub const COMPLAINTS_MAX: usize = 256;

/// Problems that differ by a name. Each name has its own lines, so that one does not hide another.
#[derive(Debug)]
pub struct Complaints {
    every: Duration,
    hasher: RandomState,
    /// By the hash of the name.
    named: HashMap<u64, Complaint>,
    others: Complaint,
    /// When quiet names were last removed. It takes time, so it happens at most once in [`SWEEP_EVERY`].
    swept: Option<Instant>,
}

const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Complaints {
    /// Problems of which each name is logged at most once in `every`.
    pub fn new(every: Duration) -> Self {
        Self { every, hasher: RandomState::new(), named: HashMap::new(), others: Complaint::new(every), swept: None }
    }

    /// Counts one failure of this name. If a line is due, returns the number of failures since the name's last line.
    pub fn failed(&mut self, name: impl Hash) -> Option<u64> {
        self.failed_at(name, Instant::now())
    }

    fn failed_at(&mut self, name: impl Hash, now: Instant) -> Option<u64> {
        let name = self.hasher.hash_one(name);
        let is_rested = self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_EVERY);
        if self.named.len() >= COMPLAINTS_MAX && is_rested && !self.named.contains_key(&name) {
            self.swept = Some(now);
            // Names without a line in the last interval. The count in the next line of such a name is too low.
            self.named.retain(|_, one| !one.is_due(now));
        }
        if self.named.len() >= COMPLAINTS_MAX && !self.named.contains_key(&name) {
            return self.others.failed_at(1, now);
        }
        self.named.entry(name).or_insert_with(|| Complaint::new(self.every)).failed_at(1, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_lines_and_names_beyond_the_most_share_theirs() {
        let (mut by_name, start) = (Complaints::new(Duration::from_secs(10)), Instant::now());
        let mut after = |seconds, name: usize| by_name.failed_at(name, start + Duration::from_secs(seconds));
        assert_eq!([after(0, 1), after(0, 2), after(1, 1), after(11, 1)], [Some(1), Some(1), None, Some(2)]);
        let further: Vec<_> = (3..=COMPLAINTS_MAX).map(|name| after(11, name)).collect();
        assert!(further.iter().all(|line| *line == Some(1)));
        assert_eq!(after(11, 1_000), Some(1), "the place of 2");
        assert_eq!([after(11, 1_001), after(11, 1_002), after(12, 1)], [Some(1), None, None], "they share one");
        assert_eq!([after(21, 1_003), after(21, 1)], [Some(1), Some(1)], "the places of quiet names");
    }

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
