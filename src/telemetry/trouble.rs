//! Logs the start and the end of each outage: the time in which `on_error` applies because a store gives no answer.
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

/// How often to call [`Trouble::tick`].
pub(super) const TICK: Duration = Duration::from_millis(100);
/// An outage ends when no call has failed for this time. Without it, a store that fails half of its calls would start
/// and end an outage each time.
const QUIET: Duration = Duration::from_secs(1);
/// An outage also ends when no call has failed for this time and no store has answered: there were no requests. The
/// next failure starts a new outage.
const UNASKED: Duration = Duration::from_secs(10);

/// How many descriptors each action decided, in the order of [`OnError::ALL`].
type Counts = [u64; OnError::ALL.len()];

#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Whether an outage has started. While it is false, decisions write nothing.
    is_on: AtomicBool,
    /// Whether a store has answered since the last failure. False outside of an outage.
    answered: AtomicBool,
    counts: [AtomicU64; OnError::ALL.len()],
    /// The failure that started the outage.
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
#[derive(Debug, Default)]
pub(super) struct Outages {
    counted: Counts,
    current: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    began: Instant,
    last: Instant,
    /// The counts when it started.
    before: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Begins { action: OnError, kind: &'static str },
    Ends { after: Duration, counts: Counts, answered: bool },
}

impl Trouble {
    /// `on_error` was applied to a descriptor.
    pub(super) fn fell_back(&self, action: OnError, kind: &'static str, now: impl FnOnce() -> Instant) {
        // Counted before `is_on` is read, and `look` writes `is_on` before it reads the counts. So no failure is lost:
        // either this reads `is_on` as false, or `look` reads the count.
        self.counts[action as usize].fetch_add(1, SeqCst);
        // Cleared here and not in `look`, which could also clear an answer that came after this failure.
        self.answered.store(false, Relaxed);
        if !self.is_on.load(SeqCst) && !self.is_on.swap(true, SeqCst) {
            self.first.store(Some(Arc::new(Failure { action, kind, at: now() })));
        }
    }

    pub(super) fn answered(&self) {
        if self.is_on.load(Relaxed) && !self.answered.load(Relaxed) {
            self.answered.store(true, Relaxed);
        }
    }

    /// How many outages have ended. Log lines about a store belong to one outage while this number stays the same.
    pub(super) fn ended(&self) -> Arc<AtomicU64> {
        self.ended.clone()
    }

    /// Logs what started or ended since the last tick.
    pub(super) fn tick(&self, outages: &mut Outages, now: Instant) {
        match self.look(outages, now) {
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
        }
    }

    fn look(&self, outages: &mut Outages, now: Instant) -> Option<Line> {
        let counts = self.counts();
        let has_failed = counts != outages.counted;
        let Some(outage) = &mut outages.current else {
            if !has_failed {
                return None;
            }
            // The next tick logs it if the failure is not stored yet.
            let failure = **self.first.load().as_ref()?;
            let before = outages.counted;
            outages.counted = counts;
            outages.current = Some(Outage { began: failure.at, last: failure.at.max(now), before });
            return Some(Line::Begins { action: failure.action, kind: failure.kind });
        };
        if has_failed {
            outage.last = now;
            outages.counted = counts;
            return None;
        }
        let quiet = now.saturating_duration_since(outage.last);
        let answered = self.answered.load(Relaxed);
        if !(answered && quiet >= QUIET || quiet >= UNASKED) {
            return None;
        }
        self.first.store(None);
        self.is_on.store(false, SeqCst);
        if self.counts() != counts {
            // A failure came in between: the outage continues.
            self.is_on.store(true, SeqCst);
            return None;
        }
        let after = outage.last.saturating_duration_since(outage.began);
        let mut of_outage = counts;
        for (count, before) in of_outage.iter_mut().zip(outage.before) {
            *count -= before;
        }
        outages.current = None;
        self.answered.store(false, Relaxed);
        self.ended.fetch_add(1, Relaxed);
        Some(Line::Ends { after, counts: of_outage, answered })
    }

    fn counts(&self) -> Counts {
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
            lines.extend(trouble.look(outages, *now));
        }
        lines
    }

    #[test]
    fn an_outage_ends_when_stores_answer_and_nothing_failed_for_a_while() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        assert_eq!(ticks(&trouble, &mut outages, &mut now, QUIET), []);
        trouble.fell_back(OnError::Local, "deadline", || now);
        trouble.fell_back(OnError::Allow, "queue_full", || now);
        let begins = Line::Begins { action: OnError::Local, kind: "deadline" };
        assert_eq!(ticks(&trouble, &mut outages, &mut now, QUIET / 2), [begins]);
        // An answer before the last failure does not end the outage.
        trouble.answered();
        trouble.fell_back(OnError::Local, "deadline", || now);
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
                trouble.fell_back(*action, "deadline", || now);
            }
            assert_eq!(
                ticks(&trouble, &mut outages, &mut now, TICK),
                [Line::Begins { action: OnError::Error, kind: "deadline" }]
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

    /// With little traffic a short failure is one failed call and one answer, both between two ticks.
    #[test]
    fn an_answer_right_after_the_only_failure_ends_the_outage() {
        let (trouble, mut outages, mut now) = (Trouble::default(), Outages::default(), Instant::now());
        for ended in 0..2 {
            assert_eq!(trouble.ended().load(Relaxed), ended);
            trouble.fell_back(OnError::Local, "deadline", || now);
            trouble.answered();
            let lines = ticks(&trouble, &mut outages, &mut now, 2 * UNASKED);
            assert!(
                matches!(lines[..], [Line::Begins { .. }, Line::Ends { counts: [0, 0, 0, 1], answered: true, after }] if after < QUIET),
                "{lines:?}"
            );
        }
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
                note(trouble.look(&mut outages, now));
            }
        });
        for _ in 0..4 {
            now += UNASKED;
            note(trouble.look(&mut outages, now));
        }
        assert_eq!((begun, counted), (ended, (THREADS * EACH) as u64));
        assert!(!trouble.is_on.load(SeqCst));
    }
}
