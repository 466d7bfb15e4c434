//! What must be true of every decision, tried on random ones; and the engine against a second opinion (support/oracle.rs).
//! `WEIR_PROPTEST_CASES` sets the number of cases for each property. Not in here: the stores (differential.rs).

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

#[allow(dead_code, unreachable_pub, reason = "each test binary uses a part of these")]
mod support {
    pub mod arbitrary;
    pub mod manual;
    pub mod oracle;
}

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, proptest};
use support::arbitrary::{config, hits, limit, limits, mode, role, step, step_on, take};
use support::manual::START_US;
use support::oracle::{Oracle, Told};
use weir::engine::decision::{self, Change};
use weir::engine::{
    Algorithm, Charge, Decision, Limit, Micros, Mode, Outcome, Receipt, Role, State, Take, Verdict, algorithm,
};

/// A clock that goes on by more than this lets what has expired go, as every store does: after 2^20 windows a window's
/// stored number would mean another window.
const LEAP_US: i64 = 600 * 1_000_000;

/// One key's state, and a clock.
#[derive(Clone, Debug)]
struct Key {
    now: Micros,
    state: Option<State>,
    /// When the state expires.
    ends: Micros,
}

impl Key {
    fn new() -> Self {
        Self { now: START_US, state: None, ends: 0 }
    }

    fn step(&mut self, us: i64) {
        self.now = self.now.checked_add_signed(us).unwrap();
        if us > LEAP_US && self.ends <= self.now {
            self.state = None;
        }
    }

    fn decide(&mut self, limit: &Limit, take: Take, mode: Mode) -> Decision {
        let charges = [charge("k", limit, take, Role::Enforced)];
        let (decision, changes) = decision::decide(&charges, &[0], &[self.state], mode, self.now);
        match changes[0] {
            Change::Keep => {}
            Change::Put(state) => self.put(limit, state),
            Change::Delete => self.state = None,
        }
        decision
    }

    fn put(&mut self, limit: &Limit, state: State) {
        self.state = Some(state);
        self.ends = self.now + algorithm::reset_after(limit, &state, self.now);
    }

    fn take(&mut self, limit: &Limit, take: Take) -> Outcome {
        self.decide(limit, take, Mode::Atomic).outcomes[0].clone()
    }

    fn undo(&mut self, limit: &Limit, receipt: Receipt) {
        let Some(stored) = self.state else { return };
        let seen = algorithm::seen(limit, Some(&stored), self.now);
        let undone = algorithm::undone(limit, &seen, receipt, self.now);
        if algorithm::is_empty(&undone, self.now) {
            self.state = None;
        } else if undone != seen || algorithm::is_far_ahead(limit, &stored, self.now) {
            self.put(limit, undone);
        }
    }

    /// The same key with the state that an outcome showed, so long after it.
    fn after(&self, outcome: &Outcome, us: Micros) -> Self {
        Self { now: self.now + us, state: Some(outcome.state), ends: self.now + outcome.reset_after }
    }
}

fn charge<'a>(key: &'a str, limit: &'a Limit, take: Take, role: Role) -> Charge<'a> {
    Charge { key, limit, take, group: 0, role, share: 0, bounds: None }
}

/// Hits that were admitted, and when.
type Admitted = Vec<(Micros, u32)>;

/// Checks that no span holds more than the limit's stated bound. Spans that start and end with an admission are enough.
fn check_bound(limit: &Limit, admitted: &Admitted) -> Result<(), TestCaseError> {
    let (requests, window_us) = (i128::from(limit.requests()), i128::from(limit.window().us()));
    for (i, &(start, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for &(at, hits) in &admitted[i..] {
            sum += i128::from(hits);
            let span = i128::from(at - start);
            match limit.algorithm() {
                Algorithm::FixedWindow if at / limit.window().us() == start / limit.window().us() => {
                    prop_assert!(sum <= requests, "{sum} hits in one window of {requests}");
                }
                Algorithm::FixedWindow if span < window_us => {
                    prop_assert!(sum <= 2 * requests, "{sum} hits within a window's length of {requests}");
                }
                Algorithm::FixedWindow => break,
                Algorithm::Gcra { burst } => {
                    let most = i128::from(burst) * window_us + requests * span;
                    prop_assert!(sum * window_us <= most, "{sum} hits in {span} us with a burst of {burst}");
                }
            }
        }
    }
    Ok(())
}

/// Steps of the clock and charges.
fn story(
    steps: impl Strategy<Value = i64>,
    takes: impl Strategy<Value = Take>,
) -> impl Strategy<Value = Vec<(i64, Take)>> {
    vec((steps, takes), 1..60)
}

proptest! {
    #![proptest_config(config(1))]

    /// Over any span no more is admitted than the stated bound, whatever is asked.
    #[test]
    fn admitted_hits_stay_within_the_bound(limit in limit(), story in story(step_on(), hits().prop_map(Take::Take))) {
        let (mut key, mut admitted) = (Key::new(), Admitted::new());
        for (us, take) in story {
            key.step(us);
            let outcome = key.take(&limit, take);
            if let (Verdict::Within, Take::Take(hits)) = (outcome.verdict, take) {
                admitted.push((key.now, hits));
            }
        }
        check_bound(&limit, &admitted)?;
    }

    /// A caller that asks again exactly when told is admitted then, and not a microsecond before, all else equal.
    #[test]
    fn retry_after_is_exact(limit in limit(), story in story(step(), take()), asked in hits()) {
        let mut key = Key::new();
        for (us, take) in story {
            key.step(us);
            key.take(&limit, take);
            let outcome = key.clone().take(&limit, Take::Take(asked));
            if let Verdict::Over { retry_after } = outcome.verdict {
                prop_assert!(retry_after >= 1);
                let early = key.after(&outcome, retry_after - 1).take(&limit, Take::Take(asked));
                let left = Verdict::Over { retry_after: 1 };
                prop_assert_eq!(early.verdict, left, "one microsecond early");
                let then = key.after(&outcome, retry_after).take(&limit, Take::Take(asked));
                prop_assert_eq!(then.verdict, Verdict::Within, "in time");
            }
        }
    }

    /// A take fits if and only if it is not larger than what remained, in both modes.
    #[test]
    fn a_take_fits_what_remains(limit in limit(), story in story(step(), take()), asked in hits(), mode in mode()) {
        let mut key = Key::new();
        for (us, take) in story {
            key.step(us);
            key.decide(&limit, take, mode);
            let before = key.clone().take(&limit, Take::Look).remaining_before;
            for hits in [asked, before, before.saturating_add(1)] {
                if hits > 0 {
                    let outcome = &key.clone().decide(&limit, Take::Take(hits), mode).outcomes[0];
                    prop_assert_eq!(outcome.remaining_before, before);
                    prop_assert_eq!(outcome.verdict == Verdict::Within, hits <= before);
                    let never = hits > limit.capacity();
                    prop_assert_eq!(outcome.verdict == Verdict::Never, never && hits > before);
                }
            }
        }
    }

    /// A state that is not empty equals an empty one at its reset, and not a microsecond before.
    #[test]
    fn reset_after_is_the_first_instant_of_emptiness(limit in limit(), story in story(step(), take())) {
        let mut key = Key::new();
        for (us, take) in story {
            key.step(us);
            let outcome = key.take(&limit, take);
            if algorithm::is_empty(&outcome.state, key.now) {
                continue;
            }
            prop_assert!(outcome.reset_after >= 1);
            for (us, empty) in [(outcome.reset_after - 1, false), (outcome.reset_after, true)] {
                let at = key.now + us;
                let seen = algorithm::seen(&limit, Some(&outcome.state), at);
                let equal = seen == algorithm::seen(&limit, None, at);
                prop_assert_eq!(equal, empty, "{} us after {:?}", us, outcome);
            }
        }
    }

    /// What remains never falls while nobody takes.
    #[test]
    fn remaining_only_grows_with_time(limit in limit(), story in story(step_on(), take()), later in step_on()) {
        let mut key = Key::new();
        for (us, take) in story {
            key.step(us);
            let outcome = key.take(&limit, take);
            let then = key.after(&outcome, later.unsigned_abs()).take(&limit, Take::Look);
            prop_assert!(then.remaining >= outcome.remaining, "{then:?} after {outcome:?}");
        }
    }

    /// Hits that were taken back do not count; those that stand stay within the bound whatever was undone, and when.
    #[test]
    fn an_undo_never_lets_more_than_the_bound_in(
        limit in limit(),
        story in vec((step_on(), hits(), any::<bool>(), any::<proptest::sample::Index>()), 1..60),
    ) {
        let mut key = Key::new();
        let mut standing: Vec<(Micros, u32, Receipt)> = Vec::new();
        for (us, hits, undoes, which) in story {
            key.step(us);
            if undoes && !standing.is_empty() {
                let (_, _, receipt) = standing.remove(which.index(standing.len()));
                key.undo(&limit, receipt);
            } else if let Some(receipt) = key.take(&limit, Take::Take(hits)).receipt {
                standing.push((key.now, hits, receipt));
            }
            check_bound(&limit, &standing.iter().map(|&(at, hits, _)| (at, hits)).collect())?;
        }
    }

    /// A denied atomic decision writes nothing but forces, and what limits that are over themselves drain; an admitted one
    /// charges only limits that are within.
    #[test]
    fn a_denied_decision_changes_nothing(
        limits in vec(limit(), 3),
        story in vec((step_on(), vec((0..3_usize, take(), role()), 1..6)), 1..30),
    ) {
        let names = ["a", "b", "c"];
        let mut states = [None; 3];
        let mut now = START_US;
        for (us, asked) in story {
            now = now.checked_add_signed(us).unwrap();
            let mut charges = Vec::new();
            for &(i, take, role) in &asked {
                charges.push(charge(names[i], &limits[i], take, role));
            }
            let (slots, firsts) = decision::slots(&charges);
            let read: Vec<_> = firsts.iter().map(|&first| states[asked[usize::from(first)].0]).collect();
            let (decision, changes) = decision::decide(&charges, &slots, &read, Mode::Atomic, now);
            for (slot, change) in changes.iter().enumerate() {
                let mut may_change = false;
                for (i, charge) in charges.iter().enumerate().filter(|(i, _)| usize::from(slots[*i]) == slot) {
                    let over = decision.outcomes[i].verdict.is_over();
                    may_change |= match charge.take {
                        Take::Force(_) => true,
                        Take::Take(_) if decision.denied => over && charge.limit.drain,
                        Take::Take(_) => !over,
                        Take::Give(_) => !decision.denied,
                        Take::Look => false,
                    };
                }
                // A force under a limit that was forced before may be far past what that limit believes.
                let far = read[slot].is_some_and(|state| {
                    algorithm::is_far_ahead(&limits[asked[usize::from(firsts[slot])].0], &state, now)
                });
                prop_assert!(may_change || far || *change == Change::Keep, "{change:?} in {decision:?}");
                let i = asked[usize::from(firsts[slot])].0;
                match change {
                    Change::Keep => {}
                    Change::Put(state) => states[i] = Some(*state),
                    Change::Delete => states[i] = None,
                }
            }
        }
    }

    /// The engine and the oracle tell the same story, under a clock that steps and limits that change.
    #[test]
    fn the_engine_agrees_with_the_oracle(
        limits in limits(),
        story in vec((step(), take(), mode(), 0..8_usize, 0..8_u8), 1..60),
    ) {
        let mut key = Key::new();
        let mut oracle = Oracle::new(&limits[0]);
        let mut receipts: Vec<(usize, Receipt)> = Vec::new();
        for (us, take, mode, which, undoes) in story {
            key.step(us);
            if key.state.is_none() {
                oracle = Oracle::new(&limits[0]);
            }
            // The second limit one time in eight, so that a state lives on under the first.
            let i = usize::from(which == 0);
            if undoes == 0 && let Some((i, receipt)) = receipts.pop() {
                key.undo(&limits[i], receipt);
                oracle.undo(&limits[i], receipt, key.now);
                continue;
            }
            let decision = key.decide(&limits[i], take, mode);
            let outcome = &decision.outcomes[0];
            prop_assert_eq!(decision.denied, outcome.verdict.is_over());
            let told = Told {
                verdict: outcome.verdict,
                remaining_before: outcome.remaining_before,
                remaining: outcome.remaining,
                reset_after: outcome.reset_after,
                took: outcome.receipt.map_or(0, |receipt| receipt.hits),
            };
            prop_assert_eq!(told, oracle.decide(&limits[i], take, mode, key.now));
            receipts.extend(outcome.receipt.map(|receipt| (i, receipt)));
        }
    }
}
