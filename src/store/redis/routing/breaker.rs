//! A circuit breaker: when most calls to a Redis fail, no further call waits for that Redis.
//!
//! A pure state machine; time is an argument. Not here: what counts as a failure, and the probes (node.rs), and the
//! settings (base/circuit.rs).
//!
//! The strategy. *Closed*: every call passes. The first failure opens a window of time. The breaker opens if enough
//! calls end within the window and too many of them have failed. A Redis that is *down* opens it at any call rate.
//! Between windows the breaker is *calm*: successes are not reported, so a healthy Redis costs neither lock nor clock.
//! Then the start time of a late call may be unknown, and so whether its deadline was short. Such a call is a
//! *suspicion*: it opens a window, and is not counted. *Open*: no call passes, and probes are sent from time to time.
//! After an answered probe the breaker is *half open*: a few calls pass as trials. If all of them succeed the breaker
//! closes; the first failure opens it again. If there are too few calls, probes count as trials: otherwise the circuit
//! of a Redis without calls would stay half open.

use std::time::{Duration, Instant};

pub use crate::redis::base::circuit::{BreakerSettings, Circuit};

/// The trial calls to a Redis that has answered a probe. All must succeed before other calls pass.
pub const TRIALS: u32 = 5;

/// The most doublings of the time between two probes. It becomes at most 8 times as long.
pub const DOUBLINGS_MAX: u32 = 3;

/// The meaning of a call's result for the state of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Redis works.
    Success,
    /// Redis does not work.
    Failure,
    /// Redis is unreachable: it refuses connections, or has answered no PING for a window.
    Down,
    /// No meaning.
    Neutral,
}

/// The permission to make one call. The caller returns it with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// A call of a closed breaker.
    Ordinary,
    /// A trial of the half-open phase with this number.
    Trial(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitChange {
    pub from: Circuit,
    pub to: Circuit,
}

/// Decides whether calls may pass, from the outcomes of earlier calls.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: BreakerState,
    /// The number of half-open phases. An outcome of an earlier phase does not count in the current one.
    phase: u32,
}

#[derive(Debug)]
enum BreakerState {
    Closed(Option<CallWindow>),
    /// `setbacks`: probes and trials that failed since the breaker was closed.
    Open {
        setbacks: u32,
    },
    HalfOpen {
        setbacks: u32,
        running: u32,
        succeeded: u32,
    },
}

/// The calls that ended since a failure (including it) or since a suspicion.
#[derive(Clone, Copy, Debug)]
struct CallWindow {
    ends: Instant,
    calls: u32,
    failed: u32,
}

impl Breaker {
    /// A closed breaker.
    /// Panics when the share is more than 100 percent.
    pub fn new(settings: BreakerSettings) -> Self {
        assert!(settings.error_percent <= 100, "{} is more than 100 percent", settings.error_percent);
        Self { settings, state: BreakerState::Closed(None), phase: 0 }
    }

    pub const fn circuit(&self) -> Circuit {
        match self.state {
            BreakerState::Closed(_) => Circuit::Closed,
            BreakerState::HalfOpen { .. } => Circuit::HalfOpen,
            BreakerState::Open { .. } => Circuit::Open,
        }
    }

    /// Whether every call may pass as an ordinary one, and its success need not be reported.
    pub const fn is_calm(&self) -> bool {
        matches!(self.state, BreakerState::Closed(None))
    }

    /// Permits one call. None if it may not pass.
    pub const fn admit(&mut self) -> Option<Pass> {
        match &mut self.state {
            BreakerState::Closed(_) => Some(Pass::Ordinary),
            BreakerState::HalfOpen { running, succeeded, .. } if *running + *succeeded < TRIALS => {
                *running += 1;
                Some(Pass::Trial(self.phase))
            }
            BreakerState::HalfOpen { .. } | BreakerState::Open { .. } => None,
        }
    }

    /// Requests that a probe counts as a trial of the half-open phase; without calls, the phase would never end. None
    /// if the breaker is not half open, or if enough trials are running or have succeeded.
    pub const fn admit_probe(&mut self) -> Option<Pass> {
        match self.state {
            BreakerState::HalfOpen { .. } => self.admit(),
            BreakerState::Closed(_) | BreakerState::Open { .. } => None,
        }
    }

    /// A call ended at `now`. Ignores an outcome from before the last change.
    pub fn ended(&mut self, pass: Pass, outcome: CallOutcome, now: Instant) -> Option<CircuitChange> {
        match (&mut self.state, pass) {
            (BreakerState::Closed(window), Pass::Ordinary) => {
                if !Self::counted(&self.settings, window, outcome, now) {
                    return None;
                }
                self.state = BreakerState::Open { setbacks: 0 };
                Some(CircuitChange { from: Circuit::Closed, to: Circuit::Open })
            }
            (BreakerState::HalfOpen { setbacks, running, succeeded }, Pass::Trial(phase)) if phase == self.phase => {
                *running -= 1;
                match outcome {
                    CallOutcome::Neutral => None,
                    CallOutcome::Failure | CallOutcome::Down => {
                        let setbacks = *setbacks + 1;
                        self.state = BreakerState::Open { setbacks };
                        Some(CircuitChange { from: Circuit::HalfOpen, to: Circuit::Open })
                    }
                    CallOutcome::Success => {
                        *succeeded += 1;
                        if *succeeded < TRIALS {
                            return None;
                        }
                        self.state = BreakerState::Closed(None);
                        Some(CircuitChange { from: Circuit::HalfOpen, to: Circuit::Closed })
                    }
                }
            }
            _ => None,
        }
    }

    /// A call may have failed at `now`. Counts calls from now on, except this one.
    pub fn suspect(&mut self, now: Instant) {
        if let BreakerState::Closed(window) = &mut self.state
            && self.settings.error_percent > 0
            && window.is_none_or(|window| now >= window.ends)
        {
            *window = Some(CallWindow { ends: now + self.settings.window, calls: 0, failed: 0 });
        }
    }

    /// A probe was answered, or not.
    pub const fn probed(&mut self, answered: bool) -> Option<CircuitChange> {
        let BreakerState::Open { setbacks } = &mut self.state else {
            return None;
        };
        if !answered {
            *setbacks = setbacks.saturating_add(1);
            return None;
        }
        self.phase = self.phase.wrapping_add(1);
        self.state = BreakerState::HalfOpen { setbacks: *setbacks, running: 0, succeeded: 0 };
        Some(CircuitChange { from: Circuit::Open, to: Circuit::HalfOpen })
    }

    /// The time before the next probe: longer after each setback. Half open, it is the time for calls to be trials;
    /// afterwards probes are trials. None if no probe is needed.
    pub fn next_probe(&self) -> Option<Duration> {
        let setbacks = match self.state {
            BreakerState::Closed(_) => return None,
            BreakerState::Open { setbacks } => setbacks,
            BreakerState::HalfOpen { .. } => 0,
        };
        Some(self.settings.probe.saturating_mul(1 << setbacks.min(DOUBLINGS_MAX)))
    }

    /// Counts the end of a call. Returns whether the failures exceed the limit.
    fn counted(
        settings: &BreakerSettings,
        window: &mut Option<CallWindow>,
        outcome: CallOutcome,
        now: Instant,
    ) -> bool {
        if settings.error_percent == 0 || outcome == CallOutcome::Neutral {
            return false;
        }
        if window.is_some_and(|window| now >= window.ends) {
            *window = None;
        }
        let failed = outcome != CallOutcome::Success;
        if window.is_none() && !failed {
            return false;
        }
        let window = window.get_or_insert(CallWindow { ends: now + settings.window, calls: 0, failed: 0 });
        window.calls = window.calls.saturating_add(1);
        window.failed = window.failed.saturating_add(u32::from(failed));
        let has_failed_often = window.calls >= settings.calls
            && u64::from(window.failed) * 100 >= u64::from(settings.error_percent) * u64::from(window.calls);
        outcome == CallOutcome::Down || failed && has_failed_often
    }
}

#[cfg(test)]
mod tests {
    use CallOutcome::{Down, Failure, Neutral, Success};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A breaker and its clock.
    struct Rig {
        breaker: Breaker,
        now: Instant,
    }

    impl Rig {
        /// Opens if half of at least 4 calls within a second fail.
        fn new() -> Rig {
            Rig::with(|_| {})
        }

        fn with(change: impl FnOnce(&mut BreakerSettings)) -> Rig {
            let mut settings = BreakerSettings { calls: 4, ..BreakerSettings::default() };
            change(&mut settings);
            Rig { breaker: Breaker::new(settings), now: Instant::now() }
        }

        fn open() -> Rig {
            let mut rig = Rig::new();
            rig.run(&[Failure, Failure, Failure, Failure]);
            assert_eq!(rig.breaker.circuit(), Circuit::Open);
            rig
        }

        /// A rig whose breaker has had an answered probe.
        fn half_open() -> Rig {
            let mut rig = Rig::open();
            rig.breaker.probed(true).unwrap();
            rig
        }

        fn pass(&mut self) -> Pass {
            self.breaker.admit().expect("a pass")
        }

        fn ended(&mut self, pass: Pass, outcome: CallOutcome) -> Option<(Circuit, Circuit)> {
            let change = self.breaker.ended(pass, outcome, self.now);
            change.map(|change| (change.from, change.to))
        }

        /// Makes calls one after the other, and returns the change that the last one made.
        fn run(&mut self, outcomes: &[CallOutcome]) -> Option<(Circuit, Circuit)> {
            let mut change = None;
            for &outcome in outcomes {
                assert_eq!(change, None, "only the last call changes something");
                let pass = self.pass();
                change = self.ended(pass, outcome);
            }
            change
        }
    }

    #[test]
    fn it_opens_with_enough_failures_among_enough_calls() {
        let opened = Some((Circuit::Closed, Circuit::Open));
        assert_eq!(Rig::new().run(&[Failure, Failure, Failure]), None, "too few calls");
        assert_eq!(Rig::new().run(&[Failure, Failure, Failure, Failure]), opened);
        assert_eq!(Rig::new().run(&[Failure, Success, Success, Failure]), opened, "half of them");
        assert_eq!(Rig::new().run(&[Failure, Success, Success, Success, Failure]), None, "2 of 5");
        assert_eq!(Rig::new().run(&[Failure, Success, Success, Success, Failure, Failure]), opened, "3 of 6");
        assert_eq!(Rig::new().run(&[Failure, Neutral, Neutral, Failure, Failure]), None, "neutral ones do not count");
        assert!(Rig::open().breaker.admit().is_none());
    }

    #[test]
    fn a_redis_that_is_down_opens_it_at_any_rate() {
        assert_eq!(Rig::new().run(&[Down]), Some((Circuit::Closed, Circuit::Open)));
        assert_eq!(Rig::half_open().run(&[Down]), Some((Circuit::HalfOpen, Circuit::Open)));
        assert_eq!(Rig::with(|settings| settings.error_percent = 0).run(&[Down]), None, "it is turned off");
    }

    #[test]
    fn a_success_never_opens_it() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[Failure, Failure, Failure, Success]), None, "3 of 4 failed, and it is better now");
        assert_eq!(rig.run(&[Failure]), Some((Circuit::Closed, Circuit::Open)));
    }

    #[test]
    fn the_share_is_exact() {
        let mut rig = Rig::with(|settings| (settings.calls, settings.error_percent) = (1, 67));
        assert_eq!(rig.run(&[Failure]), Some((Circuit::Closed, Circuit::Open)));
        let mut rig = Rig::with(|settings| (settings.calls, settings.error_percent) = (3, 67));
        assert_eq!(rig.run(&[Failure, Success, Failure]), None, "66.7 percent");
        assert_eq!(rig.run(&[Failure]), Some((Circuit::Closed, Circuit::Open)));
        let mut rig = Rig::with(|settings| (settings.calls, settings.error_percent) = (3, 100));
        assert_eq!(rig.run(&[Failure, Failure, Success, Failure, Failure, Failure]), None);
    }

    #[test]
    fn a_window_begins_with_a_failure_and_ends_in_time() {
        let mut rig = Rig::new();
        rig.run(&[Success; 100]);
        assert_eq!(rig.run(&[Failure, Failure, Failure]), None);
        rig.now += 999 * MS;
        assert!(!rig.breaker.is_calm());
        assert_eq!(
            rig.run(&[Failure]),
            Some((Circuit::Closed, Circuit::Open)),
            "successes before the first do not count"
        );

        let mut rig = Rig::new();
        assert_eq!(rig.run(&[Failure, Failure, Failure]), None);
        rig.now += 1000 * MS;
        assert_eq!(rig.run(&[Failure]), None, "the first of a new window");
        rig.now += 1000 * MS;
        assert_eq!(rig.run(&[Success]), None);
        assert!(rig.breaker.is_calm(), "the window is over");
    }

    #[test]
    fn it_is_calm_while_nothing_fails() {
        let mut rig = Rig::new();
        assert!(rig.breaker.is_calm());
        rig.run(&[Success, Neutral, Success]);
        assert!(rig.breaker.is_calm());
        rig.run(&[Failure]);
        assert!(!rig.breaker.is_calm());
        assert!(!Rig::open().breaker.is_calm());
        assert!(!Rig::half_open().breaker.is_calm());
    }

    #[test]
    fn a_suspicion_counts_for_nothing_and_ends_the_calm() {
        let mut rig = Rig::new();
        rig.breaker.suspect(rig.now);
        assert!(!rig.breaker.is_calm());
        rig.breaker.suspect(rig.now);
        assert_eq!(rig.run(&[Success, Failure, Success]), None);
        rig.breaker.suspect(rig.now);
        assert_eq!(rig.run(&[Failure]), Some((Circuit::Closed, Circuit::Open)), "what was counted stays counted");
        rig.breaker.suspect(rig.now);
        assert_eq!(rig.breaker.circuit(), Circuit::Open);

        let mut rig = Rig::new();
        rig.breaker.suspect(rig.now);
        rig.now += 1000 * MS;
        assert_eq!(rig.run(&[Success]), None);
        assert!(rig.breaker.is_calm(), "nothing came of it");
    }

    #[test]
    fn no_share_turns_it_off() {
        let mut rig = Rig::with(|settings| settings.error_percent = 0);
        assert_eq!(rig.run(&[Failure; 1000]), None);
        rig.breaker.suspect(rig.now);
        assert!(rig.breaker.is_calm());
    }

    #[test]
    fn what_ends_while_it_is_open_is_too_old_to_matter() {
        let mut rig = Rig::new();
        let early = rig.pass();
        rig.run(&[Failure; 4]);
        for outcome in [Success, Failure, Neutral] {
            assert_eq!(rig.ended(early, outcome), None);
        }
        assert_eq!(rig.breaker.circuit(), Circuit::Open);
        rig.breaker.probed(true);
        for outcome in [Success, Failure, Neutral] {
            assert_eq!(rig.ended(early, outcome), None);
        }
        let passes: Vec<_> = std::iter::from_fn(|| rig.breaker.admit()).collect();
        assert_eq!(passes.len(), TRIALS as usize, "no trial was used up by it");
    }

    #[test]
    fn only_an_answered_probe_lets_trials_pass() {
        let mut rig = Rig::open();
        assert_eq!(rig.breaker.probed(false), None);
        assert!(rig.breaker.admit().is_none());
        assert_eq!(rig.breaker.probed(true), Some(CircuitChange { from: Circuit::Open, to: Circuit::HalfOpen }));
        assert_eq!(rig.breaker.probed(true), None);
        assert_eq!(rig.breaker.probed(false), None);
        assert_eq!(rig.breaker.circuit(), Circuit::HalfOpen);
        assert_eq!(Rig::new().breaker.probed(true), None, "a closed one needs none");
    }

    #[test]
    fn it_closes_when_all_trials_have_succeeded() {
        let mut rig = Rig::half_open();
        let passes: Vec<_> = std::iter::from_fn(|| rig.breaker.admit()).collect();
        assert_eq!(passes.len(), TRIALS as usize);
        let (last, others) = passes.split_last().unwrap();
        for &pass in others {
            assert_eq!(rig.ended(pass, Success), None);
        }
        assert!(rig.breaker.admit().is_none(), "a trial that succeeded makes no room");
        assert_eq!(rig.ended(*last, Success), Some((Circuit::HalfOpen, Circuit::Closed)));
        assert!(rig.breaker.is_calm());
    }

    #[test]
    fn a_trial_that_says_nothing_makes_room_for_another() {
        let mut rig = Rig::half_open();
        assert_eq!(rig.run(&[Neutral; 50]), None);
        assert_eq!(rig.run(&[Success, Neutral, Success, Success, Success]), None);
        assert_eq!(rig.run(&[Success]), Some((Circuit::HalfOpen, Circuit::Closed)));
    }

    #[test]
    fn one_failed_trial_opens_it_again() {
        let mut rig = Rig::half_open();
        let (one, other) = (rig.pass(), rig.pass());
        assert_eq!(rig.run(&[Success, Success]), None);
        assert_eq!(rig.ended(one, Failure), Some((Circuit::HalfOpen, Circuit::Open)));
        assert_eq!(rig.ended(other, Failure), None, "it is open already");
        rig.breaker.probed(true);
        assert_eq!(rig.ended(other, Failure), None, "a trial of an earlier phase");
        assert_eq!(rig.run(&[Success; 5]), Some((Circuit::HalfOpen, Circuit::Closed)));
    }

    #[test]
    fn probes_stand_in_for_the_trials_that_nobody_makes() {
        assert!(Rig::new().breaker.admit_probe().is_none());
        assert!(Rig::open().breaker.admit_probe().is_none());

        let mut rig = Rig::half_open();
        for left in (0..TRIALS).rev() {
            let pass = rig.breaker.admit_probe().unwrap();
            let closed = (left == 0).then_some((Circuit::HalfOpen, Circuit::Closed));
            assert_eq!(rig.ended(pass, Success), closed, "{left} more");
        }
        assert!(rig.breaker.is_calm());

        let mut rig = Rig::half_open();
        rig.run(&[Success, Success]);
        let running = [rig.pass(), rig.pass()];
        let probe = rig.breaker.admit_probe().unwrap();
        assert!(rig.breaker.admit_probe().is_none(), "what runs is enough");
        assert_eq!(rig.ended(probe, Success), None);
        assert!(rig.breaker.admit_probe().is_none(), "two calls are still out");
        assert_eq!(rig.ended(running[0], Success), None);
        assert_eq!(rig.ended(running[1], Success), Some((Circuit::HalfOpen, Circuit::Closed)));

        let mut rig = Rig::half_open();
        let probe = rig.breaker.admit_probe().unwrap();
        assert_eq!(rig.ended(probe, Failure), Some((Circuit::HalfOpen, Circuit::Open)));
    }

    #[test]
    fn probes_come_later_and_later_up_to_a_bound_until_it_closes() {
        let mut rig = Rig::open();
        let check = |rig: &Rig, ms: u32| assert_eq!(rig.breaker.next_probe(), Some(ms * MS));
        check(&rig, 250);
        rig.breaker.probed(false);
        check(&rig, 500);
        rig.breaker.probed(true);
        check(&rig, 250);
        rig.run(&[Success, Failure]);
        check(&rig, 1000);
        rig.breaker.probed(false);
        check(&rig, 2000);
        for _ in 0..100 {
            rig.breaker.probed(false);
        }
        check(&rig, 2000);
        rig.breaker.probed(true);
        rig.run(&[Success; 5]);
        assert_eq!(rig.breaker.next_probe(), None);
        rig.run(&[Failure; 4]);
        check(&rig, 250);
    }

    #[test]
    fn the_worst_circuit_is_the_greatest() {
        assert!(Circuit::Closed < Circuit::HalfOpen && Circuit::HalfOpen < Circuit::Open);
        assert_eq!(
            [Circuit::Closed, Circuit::HalfOpen, Circuit::Open].map(Circuit::name),
            ["closed", "half_open", "open"]
        );
    }
}
