//! Logs the start and the end of each outage: the time in which `on_error` applies because a store gives no answer.
//! Late answers alone are an outage only if they are one of ten calls ([`LATE_PERCENT_MIN`]).
//!
//! Decisions only add to atomics. A task reads them every [`TICK`] and logs, so no decision waits for a lock or for the
//! log.
//!
//! Not here: the counters (metrics.rs), and which connection or server failed (app/redis_health.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use weir_engine::OnError;

use super::complaint::Complaint;

/// How often to call [`Trouble::tick`].
pub(super) const TICK: Duration = Duration::from_millis(100);
/// An outage ends when no call has failed for this time. Without it, a store that fails half of its calls would start
/// and end an outage each time.
const QUIET: Duration = Duration::from_secs(1);
/// An outage also ends when no call has failed for this time and no store has decided, if the stores answer PINGs: there
/// were no requests. The next failure starts a new outage.
const UNASKED: Duration = Duration::from_secs(10);

/// The kind of failure of a call whose answer is late.
const LATE: &str = "deadline";
/// The kind of a call that is not sent, because the calls before it failed.
const NOT_SENT: &str = "circuit_open";
/// If late answers are all that fails, an outage begins when they are this share of all calls since the first, ...
const LATE_PERCENT_MIN: u64 = 10;
/// ... at least so many, ...
const LATE_MIN: u64 = 2;
/// ... at the earliest after this time. The share is measured anew after [`UNASKED`].
const MEASURED: Duration = Duration::from_secs(1);
/// The shortest time between two lines about late answers that are no outage.
const LATE_EVERY: Duration = Duration::from_secs(60);

/// How many descriptors each action decided, in the order of [`OnError::ALL`].
pub(super) type Counts = [u64; OnError::ALL.len()];

#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Whether an outage has started. While it is false, decisions write nothing.
    is_on: AtomicBool,
    /// Whether a store has answered since the last failure. False outside of an outage.
    answered: AtomicBool,
    /// How many calls a store has answered while `is_on`.
    answers: AtomicU64,
    /// Whether anything but a late answer has failed since the first failure.
    has_broken: AtomicBool,
    counts: [AtomicU64; OnError::ALL.len()],
    /// The failure that started the outage: the first one that shows a cause and is not a late answer, or else the first one.
    first: ArcSwapOption<Failure>,
    ended: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    action: OnError,
    kind: &'static str,
    at: Instant,
}

/// The state of the task between two ticks.
#[derive(Debug)]
pub(super) struct Outages {
    counted: Counts,
    current: Option<Outage>,
    /// Late answers that are no outage.
    late: Complaint,
}

impl Default for Outages {
    fn default() -> Self {
        Self { counted: Counts::default(), current: None, late: Complaint::new(LATE_EVERY) }
    }
}

#[derive(Debug)]
struct Outage {
    /// The failure with which it began.
    began: Failure,
    last: Instant,
    /// The counts when it started.
    before: Counts,
    /// Whether its start is logged. Late answers that are rare never start one.
    is_logged: bool,
    measured: Measured,
}

/// The counts at the time from which the share of late answers is measured.
#[derive(Clone, Copy, Debug)]
struct Measured {
    since: Instant,
    failures: u64,
    answers: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Begins {
        action: OnError,
        kind: &'static str,
    },
    Ends {
        after: Duration,
        counts: Counts,
        answered: bool,
    },
    /// Late answers that were no outage.
    Late {
        counts: Counts,
    },
}

impl Trouble {
    /// `on_error` was applied to a descriptor.
    pub(super) fn fell_back(&self, action: OnError, kind: &'static str, now: impl FnOnce() -> Instant) {
        // Counted before `is_on` is read, and `look` writes `is_on` before it reads the counts. So no failure is lost:
        // either this reads `is_on` as false, or `look` reads the count.
        self.counts[action as usize].fetch_add(1, SeqCst);
        // Cleared here and not in `look`, which could also clear an answer that came after this failure.
        self.answered.store(false, Relaxed);
        let is_first = !self.is_on.load(SeqCst) && !self.is_on.swap(true, SeqCst);
        let breaks = kind != LATE && !self.has_broken.load(Relaxed) && !self.has_broken.swap(true, Relaxed);
        // A circuit opens because of the failures before.
        if is_first || breaks && kind != NOT_SENT {
            self.first.store(Some(Arc::new(Failure { action, kind, at: now() })));
        }
    }

    pub(super) fn answered(&self) {
        if self.is_on.load(Relaxed) {
            self.answers.fetch_add(1, Relaxed);
            if !self.answered.load(Relaxed) {
                self.answered.store(true, Relaxed);
            }
        }
    }

    /// How many outages have ended. Log lines about a store belong to one outage while this number stays the same.
    pub(super) fn ended(&self) -> Arc<AtomicU64> {
        self.ended.clone()
    }

    /// Logs what started or ended since the last tick. `is_reached` is whether the stores answer PINGs.
    pub(super) fn tick(&self, outages: &mut Outages, now: Instant, is_reached: impl FnOnce() -> bool) {
        match self.look(outages, now, is_reached) {
            None => {}
            Some(Line::Begins { action, kind }) => {
                tracing::warn!(kind, on_error = action.name(), "a store does not answer: on_error applies");
            }
            Some(Line::Ends { after, counts: [error, allow, deny, local], answered: true }) => {
                tracing::info!(?after, error, allow, deny, local, "stores answer again");
            }
            Some(Line::Ends { after, counts: [error, allow, deny, local], answered: false }) => {
                tracing::info!(
                    ?after,
                    error,
                    allow,
                    deny,
                    local,
                    "outage ended without an answer: no request uses the store"
                );
            }
            Some(Line::Late { counts }) => {
                if let Some(count) = outages.late.failed(counts.iter().sum()) {
                    tracing::warn!(kind = LATE, count, "a few answers of a store were late: on_error applied");
                }
            }
        }
    }

    fn look(&self, outages: &mut Outages, now: Instant, is_reached: impl FnOnce() -> bool) -> Option<Line> {
        let counts = self.counts();
        let has_failed = counts != outages.counted;
        let Some(outage) = &mut outages.current else {
            if !has_failed {
                return None;
            }
            // The next tick begins it if the failure is not stored yet.
            let failure = **self.first.load().as_ref()?;
            let before = outages.counted;
            outages.counted = counts;
            let measured = Measured { since: now, failures: before.iter().sum(), answers: self.answers.load(Relaxed) };
            let last = failure.at.max(now);
            let outage = outages.current.insert(Outage { began: failure, last, before, is_logged: false, measured });
            return self.begins(outage, &counts, now);
        };
        if has_failed {
            outage.last = now;
            outages.counted = counts;
        }
        let begins = self.begins(outage, &counts, now);
        if has_failed || begins.is_some() {
            return begins;
        }
        let quiet = now.saturating_duration_since(outage.last);
        let answered = self.answered.load(Relaxed);
        if !(answered && quiet >= QUIET || quiet >= UNASKED && is_reached()) {
            return None;
        }
        self.first.store(None);
        self.has_broken.store(false, Relaxed);
        self.is_on.store(false, SeqCst);
        if self.counts() != counts {
            // A failure came in between: the outage continues.
            self.is_on.store(true, SeqCst);
            return None;
        }
        let after = outage.last.saturating_duration_since(outage.began.at);
        let mut of_outage = counts;
        for (count, before) in of_outage.iter_mut().zip(outage.before) {
            *count -= before;
        }
        let is_logged = outage.is_logged;
        outages.current = None;
        self.answered.store(false, Relaxed);
        if !is_logged {
            return Some(Line::Late { counts: of_outage });
        }
        self.ended.fetch_add(1, Relaxed);
        Some(Line::Ends { after, counts: of_outage, answered })
    }

    /// The line at the start of an outage, when it is known that it is one.
    fn begins(&self, outage: &mut Outage, counts: &Counts, now: Instant) -> Option<Line> {
        if outage.is_logged {
            return None;
        }
        let (failed, answered) = (counts.iter().sum::<u64>(), self.answers.load(Relaxed));
        let (failures, answers) = (failed - outage.measured.failures, answered - outage.measured.answers);
        let elapsed = now.saturating_duration_since(outage.measured.since);
        let are_many = failures >= LATE_MIN && failures * 100 >= (failures + answers) * LATE_PERCENT_MIN;
        outage.is_logged = self.has_broken.load(Relaxed) || elapsed >= MEASURED && are_many;
        if elapsed >= UNASKED {
            outage.measured = Measured { since: now, failures: failed, answers: answered };
        }
        let Failure { action, kind, .. } = self.first.load().as_ref().map_or(outage.began, |first| **first);
        outage.is_logged.then_some(Line::Begins { action, kind })
    }

    /// How many descriptors each action has decided, in the order of [`OnError::ALL`].
    pub(super) fn counts(&self) -> Counts {
        self.counts.each_ref().map(|count| count.load(SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks every [`TICK`] for this time, and returns the lines.
    fn ticks(trouble: &Trouble, outages: &mut Outages, now: &mut Instant, lasting: Duration) -> Vec<Line> {
        let end = *now + lasting;
        let mut lines = Vec::new();
        while *now < end {
            *now += TICK;
            lines.extend(trouble.look(outages, *now, || true));
        }
        lines
    }

    #[test]
    fn an_outage_ends_when_stores_answer_and_nothing_failed_for_a_while() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        assert_eq!(ticks(&trouble, &mut outages, &mut now, QUIET), []);
        trouble.fell_back(OnError::Local, "no_connection", || now);
        trouble.fell_back(OnError::Allow, "queue_full", || now);
        let begins = Line::Begins { action: OnError::Local, kind: "no_connection" };
        assert_eq!(ticks(&trouble, &mut outages, &mut now, QUIET / 2), [begins]);
        // An answer before the last failure does not end the outage.
        trouble.answered();
        trouble.fell_back(OnError::Local, "no_connection", || now);
        assert_eq!(ticks(&trouble, &mut outages, &mut now, 2 * QUIET), []);
        trouble.answered();
        let lines = ticks(&trouble, &mut outages, &mut now, QUIET);
        assert!(
            matches!(lines[..], [Line::Ends { counts: [0, 1, 0, 2], answered: true, after }] if after >= QUIET / 2 && after < QUIET),
            "{lines:?}"
        );
        assert_eq!(ticks(&trouble, &mut outages, &mut now, 2 * UNASKED), []);
    }

    /// The line at the end of an outage refers to the outage that the line before it started.
    #[test]
    fn an_outage_that_no_request_saw_the_end_of_is_not_counted_to_the_next() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        trouble.fell_back(OnError::Deny, "no_connection", || now);
        let lines = ticks(&trouble, &mut outages, &mut now, 360 * UNASKED);
        assert!(
            matches!(lines[..], [Line::Begins { .. }, Line::Ends { counts: [0, 0, 1, 0], answered: false, after }] if after < QUIET),
            "{lines:?}"
        );
        // A short outage, and then another one.
        for actions in [&[OnError::Error][..], &[OnError::Error, OnError::Allow]] {
            for action in actions {
                trouble.fell_back(*action, "no_connection", || now);
            }
            assert_eq!(
                ticks(&trouble, &mut outages, &mut now, TICK),
                [Line::Begins { action: OnError::Error, kind: "no_connection" }]
            );
            trouble.answered();
            let lines = ticks(&trouble, &mut outages, &mut now, 2 * QUIET);
            let allowed = actions.len() as u64 - 1;
            assert!(
                matches!(lines[..], [Line::Ends { counts: [1, allow, 0, 0], answered: true, after }] if after < QUIET && allow == allowed),
                "{lines:?}"
            );
        }
    }

    /// With a request a minute, the log said after each failure that the outage had ended, while Redis was dead.
    #[test]
    fn an_outage_goes_on_as_long_as_the_store_answers_no_ping() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        let mut lines = Vec::new();
        for _ in 0..3 {
            trouble.fell_back(OnError::Deny, "no_connection", || now);
            for _ in 0..60 {
                now += TICK * 10;
                lines.extend(trouble.look(&mut outages, now, || false));
            }
        }
        assert_eq!(lines, [Line::Begins { action: OnError::Deny, kind: "no_connection" }]);
        let lines = ticks(&trouble, &mut outages, &mut now, UNASKED);
        assert!(matches!(lines[..], [Line::Ends { counts: [0, 0, 3, 0], answered: false, .. }]), "{lines:?}");
    }

    /// A Redis that accepts connections and answers nothing showed only that its circuit was open.
    #[test]
    fn an_open_circuit_is_no_cause() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        for kind in [LATE, NOT_SENT, NOT_SENT] {
            trouble.fell_back(OnError::Local, kind, || now);
        }
        let begins = Line::Begins { action: OnError::Local, kind: LATE };
        assert_eq!(ticks(&trouble, &mut outages, &mut now, TICK), [begins]);
    }

    /// With little traffic a short failure is one failed call and one answer, both between two ticks.
    #[test]
    fn an_answer_right_after_the_only_failure_ends_the_outage() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        for ended in 0..2 {
            assert_eq!(trouble.ended().load(Relaxed), ended);
            trouble.fell_back(OnError::Local, "no_connection", || now);
            trouble.answered();
            let lines = ticks(&trouble, &mut outages, &mut now, 2 * UNASKED);
            assert!(
                matches!(lines[..], [Line::Begins { .. }, Line::Ends { counts: [0, 0, 0, 1], answered: true, after }] if after < QUIET),
                "{lines:?}"
            );
        }
    }

    /// On a busy machine single late answers made 173 lines in 24 minutes, each of which said that a store does not answer.
    #[test]
    fn late_answers_are_an_outage_only_if_they_are_many() {
        /// The lines of three seconds with 100 calls a second, of which so many are late.
        fn lines(late: usize) -> Vec<Line> {
            let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
            let mut lines = Vec::new();
            for call in 0..300 {
                match (call * late % 100) < late {
                    true => trouble.fell_back(OnError::Local, LATE, || now),
                    false => trouble.answered(),
                }
                if call % 10 == 9 {
                    lines.extend(ticks(&trouble, &mut outages, &mut now, TICK));
                }
            }
            trouble.answered();
            lines.extend(ticks(&trouble, &mut outages, &mut now, 2 * UNASKED));
            lines
        }
        let begins = Line::Begins { action: OnError::Local, kind: LATE };
        for late in [1, 8] {
            let lines = lines(late);
            assert!(lines.iter().all(|line| matches!(line, Line::Late { .. })), "{late} of 100: {lines:?}");
            assert!(!lines.is_empty());
        }
        for late in [15, 100] {
            let lines = lines(late);
            assert_eq!(lines[0], begins, "{late} of 100: {lines:?}");
            assert!(matches!(lines[1..], [Line::Ends { answered: true, .. }]), "{late} of 100: {lines:?}");
        }
    }

    /// A call that finds no store needs no share: it is an outage at once, also after a late answer.
    #[test]
    fn other_failures_begin_an_outage_at_once() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        trouble.fell_back(OnError::Local, LATE, || now);
        assert_eq!(ticks(&trouble, &mut outages, &mut now, TICK), []);
        trouble.fell_back(OnError::Deny, "broken", || now);
        let begins = Line::Begins { action: OnError::Deny, kind: "broken" };
        assert_eq!(ticks(&trouble, &mut outages, &mut now, TICK), [begins]);
    }

    #[test]
    fn no_failure_of_many_threads_is_lost() {
        const THREADS: usize = 4;
        const EACH: usize = 10_000;
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        let (mut begun, mut ended, mut counted) = (0, 0, 0);
        let mut note = |line: Option<Line>| match line {
            Some(Line::Begins { .. }) => begun += 1,
            Some(Line::Ends { counts, .. }) => {
                ended += 1;
                counted += counts.iter().sum::<u64>();
            }
            Some(Line::Late { counts }) => counted += counts.iter().sum::<u64>(),
            None => {}
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..EACH {
                            trouble.fell_back(OnError::Allow, "deadline", Instant::now);
                            trouble.answered();
                        }
                    })
                })
                .collect();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                // Every tick may end an outage.
                now += UNASKED;
                note(trouble.look(&mut outages, now, || true));
            }
        });
        for _ in 0..4 {
            now += UNASKED;
            note(trouble.look(&mut outages, now, || true));
        }
        assert_eq!((begun, counted), (ended, (THREADS * EACH) as u64));
        assert!(!trouble.is_on.load(SeqCst));
    }
}
