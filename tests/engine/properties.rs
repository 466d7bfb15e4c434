//! What must be true of every decision, tried on random ones; and the engine against a second opinion (support/oracle.rs).
//! `WEIR_PROPTEST_CASES` sets the number of cases for each property. Not in here: the stores (store/differential.rs).

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, proptest};
use weir_engine::algorithm::{Change, Effect};
use weir_engine::decision::States;
use weir_engine::descriptor::saturated;
use weir_engine::{
    Algorithm, Anchor, Charge, Count, Decision, Limit, Micros, Mode, Observed, Operation, Outcome, Receipt, Refill,
    Role, State, Verdict, decision,
};

use crate::support::algorithms::burst;
use crate::support::arbitrary::START_US;
use crate::support::arbitrary::{
    bounds, config, fitting, hits, leaky, limit, limits, mode, operation, role, step, step_on,
};
use crate::support::oracle::{Expected, Oracle};
use crate::support::watched::Watched;

/// A clock that goes on by more than this lets what has expired go, as every store does: after 2^20 windows a window's
/// stored number would mean another window.
const LEAP_US: i64 = 600 * 1_000_000;

/// One key's state, and a clock.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) now: Micros,
    pub(super) state: Option<State>,
    /// When the state expires.
    ends: Micros,
}

impl Key {
    pub(super) fn new() -> Self {
        Self { now: START_US, state: None, ends: 0 }
    }

    /// Moves the clock. When a bucket that is refilled in steps ends depends on the limit that wrote it, so that it goes
    /// in time, as in every store.
    pub(super) fn step(&mut self, us: i64) {
        self.now = self.now.checked_add_signed(us).unwrap();
        let early = us > LEAP_US || matches!(self.state, Some(State::TokenBucket(_)));
        if early && self.ends <= self.now {
            self.state = None;
        }
    }

    /// The same key so long after, if nobody comes.
    fn after(&self, us: Micros) -> Self {
        let mut key = self.clone();
        key.step(i64::try_from(us).unwrap());
        key
    }

    fn decide(&mut self, limit: &Limit, operation: Operation, mode: Mode) -> Decision {
        let charges = [charge("k", limit, operation, Role::Enforced, self.now)];
        let now = self.now;
        decision::decide(&charges, &[0], self, mode, now).unwrap()
    }

    fn changed(&mut self, change: &Change) {
        if let Change::Put(level) = change {
            self.ends = self.now + level.reset_after;
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, operation: Operation) -> Outcome {
        self.decide(limit, operation, Mode::Atomic).outcomes[0].clone()
    }

    pub(super) fn undo(&mut self, limit: &Limit, receipt: Receipt) {
        let bounds = bounds(limit, self.now);
        let (change, _) = limit.kind().within(bounds).change(&mut self.state, Effect::Undo(receipt), self.now);
        self.changed(&change);
    }

    /// The same key with a debt as its limit believes it. One that a clock set back by less than a minute has left past
    /// full is shown as full, but not stored so: the clock may just flicker [tm-3].
    fn believed(mut self, limit: &Limit) -> Self {
        if let Observed::Pacing(debt) = self.seen(limit, 0) {
            let level = limit.kind().level(&self.seen(limit, 0), self.now);
            self.state = (!level.is_empty).then_some(State::Pacing(debt));
        }
        self
    }

    /// The state as a charge of so many hits finds it.
    pub(super) fn seen(&self, limit: &Limit, hits: u32) -> Observed {
        limit.kind().within(bounds(limit, self.now)).observe(self.state.as_ref(), hits, self.now)
    }
}

impl States for Key {
    fn read(&self, _: u16) -> Option<&State> {
        self.state.as_ref()
    }

    fn change(&mut self, _: u16, _: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
        let change = change(&mut self.state);
        self.changed(&change);
    }
}

fn charge<'a>(key: &'a str, limit: &'a Limit, operation: Operation, role: Role, now: Micros) -> Charge<'a> {
    Charge { role, bounds: bounds(limit, now), ..Charge::alone(key, limit, fitting(limit, operation)) }
}

/// A charge that keeps to what pacing limits believe: more than a full burst is reported only where usage is post-paid.
fn believable(limit: &Limit, operation: Operation) -> Operation {
    match operation {
        Operation::Report(hits) if burst(limit.algorithm()).is_some() && !limit.post_paid() => Operation::Consume(hits),
        operation => operation,
    }
}

/// The limit without its drain, so that asking changes nothing.
fn undrained(limit: &Limit) -> Limit {
    let mut limit = limit.clone();
    limit.drain = false;
    limit
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
            let most = match limit.algorithm() {
                Algorithm::FixedWindow { anchor: Anchor::Clock }
                    if at / limit.window().us() == start / limit.window().us() =>
                {
                    requests
                }
                Algorithm::FixedWindow { anchor: Anchor::FirstHit } if span < window_us => 2 * requests - 1,
                Algorithm::FixedWindow { .. } | Algorithm::SlidingWindowCounter if span < window_us => 2 * requests,
                Algorithm::SlidingWindow { .. } | Algorithm::SlidingWindowLog | Algorithm::Concurrency
                    if span < window_us =>
                {
                    requests
                }
                Algorithm::TokenBucket { burst, refill: Refill::Interval } => {
                    i128::from(burst) + requests * (span / window_us + 1)
                }
                Algorithm::TokenBucket { burst, .. } | Algorithm::LeakyBucket { burst } | Algorithm::Gcra { burst } => {
                    i128::from(burst) + requests * span / window_us
                }
                Algorithm::FixedWindow { .. }
                | Algorithm::SlidingWindowCounter
                | Algorithm::SlidingWindow { .. }
                | Algorithm::SlidingWindowLog
                | Algorithm::Concurrency => break,
            };
            prop_assert!(sum <= most, "{sum} hits in {span} us, and not {most}, of {limit:?}");
        }
    }
    Ok(())
}

/// Steps of the clock and charges.
fn story(
    steps: impl Strategy<Value = i64>,
    takes: impl Strategy<Value = Operation>,
) -> impl Strategy<Value = Vec<(i64, Operation)>> {
    vec((steps, takes), 1..60)
}

proptest! {
    #![proptest_config(config(1))]

    /// Over any span no more is admitted than the stated bound, whatever is asked.
    #[test]
    fn admitted_hits_stay_within_the_bound(limit in limit(), story in story(step_on(), hits().prop_map(Operation::Consume))) {
        let (mut key, mut admitted) = (Key::new(), Admitted::new());
        for (us, operation) in story {
            key.step(us);
            let outcome = key.take(&limit, operation);
            if let (Verdict::Within, Operation::Consume(hits)) = (outcome.verdict, operation) {
                admitted.push((key.now, hits));
            }
        }
        check_bound(&limit, &admitted)?;
    }

    /// A caller that asks again exactly when told is admitted then, and not a microsecond before, all else equal.
    #[test]
    fn retry_after_is_exact(limit in limit(), story in story(step(), operation()), asked in hits()) {
        let (mut key, asking) = (Key::new(), undrained(&limit));
        for (us, operation) in story {
            key.step(us);
            key.take(&limit, believable(&limit, operation));
            let mut asker = key.clone().believed(&limit);
            let outcome = asker.take(&asking, Operation::Consume(asked));
            if let Verdict::Over { retry_after } = outcome.verdict {
                prop_assert!(retry_after >= 1);
                let early = asker.after(retry_after - 1).take(&asking, Operation::Consume(asked));
                let left = Verdict::Over { retry_after: 1 };
                prop_assert_eq!(early.verdict, left, "one microsecond before {} of {:?}", retry_after, asker);
                let then = asker.after(retry_after).take(&asking, Operation::Consume(asked));
                prop_assert_eq!(then.verdict, Verdict::Within, "after {} of {:?}", retry_after, asker);
            }
        }
    }

    /// When the same request would fit again is exact too, for requests that were admitted.
    #[test]
    fn fits_after_is_exact(limit in limit(), story in story(step(), operation())) {
        let mut key = Key::new();
        for (us, operation) in story {
            key.step(us);
            let operation = believable(&limit, operation);
            let outcome = key.take(&limit, operation);
            let (Operation::Consume(hits), Verdict::Within) = (operation, outcome.verdict) else { continue };
            let wait = limit.kind().fits_after(&outcome.state, hits, key.now);
            let wait = wait.unwrap();
            prop_assert_eq!(key.after(wait).take(&limit, operation).verdict, Verdict::Within, "after {} of {:?}", wait, key);
            if wait > 0 {
                let early = key.after(wait - 1).take(&limit, operation).verdict;
                prop_assert_eq!(early, Verdict::Over { retry_after: 1 }, "before {} of {:?}", wait, key);
            }
        }
    }

    /// A take fits if and only if it is not larger than what remained, in both modes.
    #[test]
    fn a_take_fits_what_remains(limit in limit(), story in story(step(), operation()), asked in hits(), mode in mode()) {
        let mut key = Key::new();
        for (us, operation) in story {
            key.step(us);
            key.decide(&limit, operation, mode);
            let before = key.clone().take(&limit, Operation::Peek).remaining_before;
            for hits in [asked, saturated(before), saturated(before + 1)] {
                if hits > 0 {
                    let outcome = &key.clone().decide(&limit, Operation::Consume(hits), mode).outcomes[0];
                    prop_assert_eq!(outcome.remaining_before, before);
                    prop_assert_eq!(outcome.verdict == Verdict::Within, Count::from(hits) <= before);
                    let never = Count::from(hits) > limit.capacity();
                    prop_assert_eq!(outcome.verdict == Verdict::Never, never && Count::from(hits) > before);
                }
            }
        }
    }

    /// A state that is not empty equals an empty one at its reset, and not a microsecond before.
    #[test]
    fn reset_after_is_the_first_instant_of_emptiness(limit in limit(), story in story(step(), operation())) {
        let mut key = Key::new();
        for (us, operation) in story {
            key.step(us);
            key.take(&limit, believable(&limit, operation));
            let key = key.clone().believed(&limit);
            let seen = key.seen(&limit, 0);
            if limit.kind().level(&seen, key.now).is_empty {
                continue;
            }
            let reset_after = limit.kind().reset_after(&seen, key.now);
            prop_assert!(reset_after >= 1);
            for (us, empty) in [(reset_after - 1, false), (reset_after, true)] {
                let then = Key { now: key.now + us, ..key.clone() };
                let equal = then.seen(&limit, 0) == Key { state: None, ..then.clone() }.seen(&limit, 0);
                prop_assert_eq!(equal, empty, "{} us after {:?}", us, key);
            }
        }
    }

    /// What remains never falls while nobody takes.
    #[test]
    fn remaining_only_grows_with_time(limit in limit(), story in story(step_on(), operation()), later in step_on()) {
        let mut key = Key::new();
        for (us, operation) in story {
            key.step(us);
            key.take(&limit, operation);
            let remaining = limit.kind().remaining(&key.seen(&limit, 0), key.now);
            let then = key.after(later.unsigned_abs());
            let left = limit.kind().remaining(&then.seen(&limit, 0), then.now);
            prop_assert!(left >= remaining, "{then:?} after {key:?}");
        }
    }

    /// Requests that a leaky bucket admits are told turns that keep its rate: each is later than the one before by what
    /// the hits between them cost, to the microsecond that each is rounded up by.
    #[test]
    fn turns_of_a_leaky_bucket_keep_its_rate(limit in leaky(), story in story(step_on(), hits().prop_map(Operation::Consume))) {
        let mut key = Key::new();
        let mut last: Option<(Micros, u32)> = None;
        for (us, operation) in story {
            key.step(us);
            let outcome = key.take(&limit, operation);
            let (Operation::Consume(hits), Verdict::Within) = (operation, outcome.verdict) else { continue };
            let turn = key.now + outcome.wait;
            if let Some((turn_before, hits)) = last {
                let apart = u128::from(turn - turn_before) + 1;
                let cost = u128::from(hits) * u128::from(limit.window().us());
                prop_assert!(apart * u128::from(limit.requests()) >= cost, "{apart} us apart after {hits} hits");
            }
            last = Some((turn, hits));
        }
    }

    /// Hits that were taken back do not count; those that stand stay within the bound whatever was undone, and when.
    #[test]
    fn an_undo_never_lets_more_than_the_bound_in(
        limit in limit(),
        story in vec((step_on(), hits(), any::<bool>(), any::<proptest::sample::Index>(), 1..=4_u8), 1..60),
    ) {
        // Parts of a charge are for windows: which part of a debt has drained, no state knows.
        let has_parts = matches!(
            limit.algorithm(),
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindowCounter | Algorithm::SlidingWindow { .. }
        );
        let mut key = Key::new();
        let mut standing: Vec<(Micros, u32, Receipt)> = Vec::new();
        for (us, hits, undoes, which, fourths) in story {
            key.step(us);
            if undoes && !standing.is_empty() {
                let which = which.index(standing.len());
                let (_, stands, receipt) = &mut standing[which];
                let part = u32::try_from(u64::from(*stands) * u64::from(fourths) / 4).unwrap().max(1);
                let part = if has_parts { part } else { *stands };
                *stands -= part;
                key.undo(&limit, Receipt { hits: part, ..*receipt });
                standing.retain(|&(_, stands, _)| stands > 0);
            } else if let Some(receipt) = key.take(&limit, Operation::Consume(hits)).receipt {
                standing.push((key.now, hits, receipt));
            }
            check_bound(&limit, &standing.iter().map(|&(at, hits, _)| (at, hits)).collect())?;
        }
    }

    /// A denied atomic decision writes nothing but reports, and what limits that are over themselves drain; an admitted one
    /// charges only limits that are within.
    #[test]
    fn a_denied_decision_changes_nothing(
        limits in vec(limit(), 3),
        story in vec((step_on(), vec((0..3_usize, operation(), role()), 1..6)), 1..30),
    ) {
        let names = ["a", "b", "c"];
        let mut states = [const { None }; 3];
        let mut now = START_US;
        for (us, asked) in story {
            now = now.checked_add_signed(us).unwrap();
            let mut charges = Vec::new();
            for &(i, operation, role) in &asked {
                charges.push(charge(names[i], &limits[i], operation, role, now));
            }
            let (places, firsts) = decision::key_indices(&charges);
            let of_place = |place: usize| asked[usize::from(firsts[place])].0;
            let mut found: Vec<Option<State>> = (0..firsts.len()).map(|place| states[of_place(place)].clone()).collect();
            let mut watched = Watched::new(&mut found, now);
            let decision = decision::decide(&charges, &places, &mut watched, Mode::Atomic, now).unwrap();
            for (i, charge) in charges.iter().enumerate() {
                let over = decision.outcomes[i].verdict.is_over();
                let may_change = match charge.operation {
                    Operation::Report(_) => true,
                    Operation::Consume(_) if decision.denied => over && charge.limit.drain,
                    Operation::Consume(_) => !over,
                    Operation::Refund(_) => !decision.denied,
                    Operation::Peek => false,
                };
                prop_assert!(may_change || !watched.has_changed(charge), "{charge:?} in {decision:?}");
            }
            for (place, state) in found.into_iter().enumerate() {
                states[of_place(place)] = state;
            }
        }
    }

    /// The engine and the oracle tell the same story, under a clock that steps and limits that change.
    #[test]
    fn the_engine_agrees_with_the_oracle(
        limits in limits(),
        story in vec((step(), operation(), mode(), 0..8_usize, 0..8_u8), 1..60),
    ) {
        let mut key = Key::new();
        let mut oracle = Oracle::new(&limits[0]);
        let mut receipts: Vec<(usize, Receipt)> = Vec::new();
        for (us, operation, mode, which, undoes) in story {
            key.step(us);
            if key.state.is_none() {
                oracle = Oracle::new(&limits[0]);
            }
            // The second limit one time in eight, so that a state lives on under the first.
            let i = usize::from(which == 0);
            if undoes < 2 && let Some((i, receipt)) = receipts.pop() {
                // All of its hits, or a part.
                let hits = if undoes == 0 { receipt.hits } else { receipt.hits.div_ceil(2) };
                let part = Receipt { hits, ..receipt };
                key.undo(&limits[i], part);
                oracle.undo(&limits[i], part, bounds(&limits[i], key.now), key.now);
                if hits < receipt.hits {
                    receipts.push((i, Receipt { hits: receipt.hits - hits, ..receipt }));
                }
                continue;
            }
            let operation = fitting(&limits[i], operation);
            let decision = key.decide(&limits[i], operation, mode);
            let outcome = &decision.outcomes[0];
            prop_assert_eq!(decision.denied, outcome.verdict.is_over());
            let told = Expected {
                verdict: outcome.verdict,
                remaining_before: outcome.remaining_before,
                remaining: outcome.remaining,
                wait: outcome.wait,
                fits_after: limits[i].kind().fits_after(&outcome.state, operation.asked(), key.now),
                reset_after: outcome.reset_after,
                took: outcome.receipt.map_or(0, |receipt| receipt.hits),
            };
            prop_assert_eq!(told, oracle.decide(&limits[i], operation, mode, bounds(&limits[i], key.now), key.now));
            receipts.extend(outcome.receipt.map(|receipt| (i, receipt)));
        }
    }
}
