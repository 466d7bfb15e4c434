//! A decision over several charges: the order of its steps, and the outcome of each charge. [dc-2]
//!
//! A charge is one transition: the view that it finds (`Outcome::found`), its effect, and the view that it leaves
//! (`Outcome::leave`). [`decide`] makes the transitions of a store that calls the engine under its own lock. A store
//! that makes them elsewhere (the scripts in lua/) returns the views, and [`evaluate`] derives the decision.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::algorithm::{Change, Effect, Found, Level, Observed, Receipt, State, anchored_window};
use super::charge::{Charge, Mode, Operation, Role};
use super::descriptor::{Count, Hits, saturated};
use super::time::{Bounds, Micros};

/// The answer of a limit to a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Within,
    /// The charge does not fit now.
    Over {
        /// The exact wait in microseconds until the charge would fit without other requests.
        retry_after: Micros,
    },
    /// The charge can never fit: more hits than the limit can hold.
    Never,
}

impl Verdict {
    /// Whether the charge does not fit.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Within)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The most hits that were admissible just before this charge.
    pub remaining_before: Count,
    /// The most hits that would be admitted in [`Outcome::state`].
    pub remaining: Count,
    /// The clock of the store that made the decision. All times count from it.
    pub now: Micros,
    /// The state at the key before the decision.
    pub before: Observed,
    /// How long an admitted request waits for its turn, in microseconds; 0 for all but `leaky_bucket`.
    pub wait: Micros,
    /// The time in microseconds until [`Outcome::state`] equals an empty one.
    pub reset_after: Micros,
    /// The state after the charge. For a denied atomic decision: the state before the decision. [dc-7]
    pub state: Observed,
    /// Proof of the added hits, if any were added.
    pub receipt: Option<Receipt>,
}

impl Outcome {
    /// The outcome of a charge that finds this view, before any effect.
    fn found(charge: &Charge<'_>, before: Observed, mode: Mode, now: Micros) -> Self {
        let kind = charge.limit.kind();
        let level = kind.level(&before, now);
        let verdict = verdict(charge, &before, &level, mode, now);
        Self {
            verdict,
            remaining_before: level.remaining,
            remaining: level.remaining,
            now,
            before,
            wait: if verdict.is_over() { 0 } else { kind.turn_after(&level) },
            reset_after: level.reset_after,
            state: before,
            receipt: None,
        }
    }

    /// The charge leaves this view, of this level. Does not show it if the decision takes `nothing`: the outcome of a
    /// denied atomic decision shows the state before it. [dc-7]
    fn leave(&mut self, effect: Effect, left: Observed, level: &Level, nothing: bool) {
        let hits = match effect {
            // A charge adds at most its hits. A drain adds less: the hits that it denies are more than what remained.
            Effect::Add(hits) => saturated(hits),
            Effect::Drain if !nothing => saturated(self.remaining_before),
            Effect::Drain | Effect::Refund(_) | Effect::Undo(_) | Effect::Nothing => 0,
        };
        self.receipt = (hits > 0).then_some(Receipt { hits, at: self.now, mark: level.mark });
        if !nothing {
            (self.state, self.remaining, self.reset_after) = (left, level.remaining, level.reset_after);
        }
    }

    /// Changes the outcome to that of a denied atomic decision, for a part that was charged before another part denied
    /// the request. The outcome then shows the state before the decision: consumed hits were undone, reported hits
    /// remain charged. [dc-7] [dc-4]
    pub fn show_before(&mut self, charge: &Charge<'_>) {
        let kind = charge.limit.kind();
        if !matches!(charge.operation, Operation::Report(_)) {
            self.receipt = None;
        }
        self.state = kind.later(&self.before, self.now);
        let level = kind.level(&self.state, self.now);
        (self.remaining, self.reset_after) = (level.remaining, level.reset_after);
    }
}

#[derive(Default, Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub denied: bool,
    /// The store's clock when it was made.
    pub now: Micros,
    /// One outcome for each charge, in the same order. One is stored inline: an outcome is large, and a decision is
    /// moved several times.
    pub outcomes: SmallVec<[Outcome; 1]>,
    /// The hits that the store gave back before the decision, for each part that it had to give back. Usually empty, so
    /// it is not stored inline.
    pub given_back: Vec<Hits>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundState {
    /// The state just before the charge.
    pub before: Observed,
    /// The state just after the charge, for a summary: it cannot be computed from the state before.
    pub after: Option<Observed>,
}

/// The decision was not made, because the boundaries of a calendar charge do not contain the store's clock. [cl-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleBounds;

/// Whether these are boundaries of a calendar of which no window holds now. [cl-3]
pub fn has_no_window(bounds: Option<Bounds>, now: Micros) -> bool {
    bounds.is_some_and(|bounds| anchored_window::window_at(&bounds, now).is_none())
}

/// The index of each charge's distinct key, numbered by first use: `places[i]` for charge `i`.
pub type KeyIndices = SmallVec<[u16; 4]>;

/// Up to this many keys are compared with each other. More are hashed.
const KEYS_COMPARED_MAX: usize = 8;

/// Numbers the distinct keys of a decision. Returns the index of each charge's key, and the first charge of each index.
pub fn key_indices(charges: &[Charge<'_>]) -> (KeyIndices, KeyIndices) {
    indices_of(charges.len(), |i| charges[i].key)
}

/// Numbers the distinct keys of `count` items, at most 65,536. Returns the index of each item's key, and the first item
/// of each index.
#[expect(clippy::cast_possible_truncation, reason = "at most 65,536 items")]
pub fn indices_of<'k>(count: usize, key: impl Fn(usize) -> &'k str) -> (KeyIndices, KeyIndices) {
    let (mut places, mut firsts) = (KeyIndices::new(), KeyIndices::new());
    let mut known = HashMap::new();
    for i in 0..count {
        let next = firsts.len();
        let place = if count <= KEYS_COMPARED_MAX {
            firsts.iter().position(|&first| key(usize::from(first)) == key(i)).unwrap_or(next)
        } else {
            *known.entry(key(i)).or_insert(next)
        };
        if place == next {
            firsts.push(i as u16);
        }
        places.push(place as u16);
    }
    (places, firsts)
}

/// The states of a decision in a store that has locked them, by the indices of their keys.
pub trait States {
    fn read(&self, place: u16) -> Option<&State>;

    /// A charge does not fit in this state. Called before the state changes.
    fn over(&mut self, _place: u16) {}

    /// Changes the state of the charge's key in place.
    fn change(&mut self, place: u16, charge: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change);
}

impl States for [Option<State>] {
    fn read(&self, place: u16) -> Option<&State> {
        self[usize::from(place)].as_ref()
    }

    fn change(&mut self, place: u16, _charge: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
        change(&mut self[usize::from(place)]);
    }
}

/// A key with several charges.
struct SharedKey {
    /// The view of its first charge.
    first: Option<Observed>,
    /// A copy of its state. Each of its charges finds what those before it leave.
    copy: Option<State>,
}

/// The keys with several charges, by their index. Usually there are none, and the list is empty.
fn shared_keys(places: &[u16], states: &(impl States + ?Sized)) -> Vec<Option<SharedKey>> {
    if places.iter().enumerate().all(|(i, &place)| usize::from(place) == i) {
        return Vec::new();
    }
    let mut counts = vec![0; places.len()];
    for &place in places {
        counts[usize::from(place)] += 1;
    }
    let shared = |place| SharedKey { first: None, copy: states.read(place).cloned() };
    (0..).zip(counts).map(|(place, count)| (count > 1).then(|| shared(place))).collect()
}

/// Decides over the states, one for each key, and makes the effects. [dc-2]
///
/// # Errors
/// When the boundaries of a calendar charge do not contain `now`. Then nothing has changed.
pub fn decide(
    charges: &[Charge<'_>],
    places: &[u16],
    states: &mut (impl States + ?Sized),
    mode: Mode,
    now: Micros,
) -> Result<Decision, StaleBounds> {
    if charges.iter().any(|charge| has_no_window(charge.bounds, now)) {
        return Err(StaleBounds);
    }
    let mut shared = shared_keys(places, states);
    let mut decision = Decision { now, ..Decision::default() };
    let stale = find_all(charges, places, states, &mut shared, mode, &mut decision);
    decision.denied = is_denied(charges, &decision.outcomes);
    let nothing_taken = decision.denied && mode == Mode::Atomic;
    for (outcome, &place) in decision.outcomes.iter().zip(places) {
        if outcome.verdict.is_over() {
            states.over(place);
        }
    }
    for (i, (charge, &place)) in charges.iter().zip(places).enumerate() {
        let (kind, outcome) = (charge.limit.kind(), &mut decision.outcomes[i]);
        let effect = effect(charge, outcome.verdict, mode, nothing_taken);
        if shared.get(usize::from(place)).is_some_and(Option::is_some) {
            if nothing_taken {
                outcome.show_before(charge);
            }
            // The effect of a charge before it can be another one now, so the charge finds its state anew.
            states.change(place, charge, |state| charge.kind().change(state, effect, now).0);
        } else if effect != Effect::Nothing || stale[i] {
            let found = Found { view: outcome.before, is_stale: stale[i] };
            states.change(place, charge, |state| {
                let (change, left) = kind.change_found(state, &found, effect, charge.operation.asked(), now);
                let level = if let Change::Put(level) = change { level } else { kind.level(&left, now) };
                outcome.leave(effect, left, &level, nothing_taken);
                change
            });
        }
    }
    Ok(decision)
}

/// Adds the outcome of each charge on the view that it finds, with its effect only for the charges after it on the same
/// key. Returns whether each view must be stored even if nothing is charged.
fn find_all(
    charges: &[Charge<'_>],
    places: &[u16],
    states: &(impl States + ?Sized),
    shared: &mut [Option<SharedKey>],
    mode: Mode,
    decision: &mut Decision,
) -> SmallVec<[bool; 8]> {
    let now = decision.now;
    decision.outcomes.reserve_exact(charges.len());
    let mut stale = SmallVec::new();
    for (charge, &place) in charges.iter().zip(places) {
        let (kind, asked) = (charge.kind(), charge.operation.asked());
        let key = shared.get_mut(usize::from(place)).and_then(Option::as_mut);
        let state = key.as_ref().map_or_else(|| states.read(place), |key| key.copy.as_ref());
        let found = kind.find(state, asked, now);
        let mut outcome = Outcome::found(charge, found.view, mode, now);
        if let Some(key) = key {
            let effect = effect(charge, outcome.verdict, mode, false);
            let (_, left) = kind.change_found(&mut key.copy, &found, effect, asked, now);
            outcome.leave(effect, left, &kind.level(&left, now), false);
            outcome.before = *key.first.get_or_insert(found.view);
        }
        decision.outcomes.push(outcome);
        stale.push(found.is_stale);
    }
    stale
}

/// Derives a decision from the view that each charge found. [dc-3] [dc-7] [dc-10]
pub fn evaluate(charges: &[Charge<'_>], places: &[u16], found: &[FoundState], mode: Mode, now: Micros) -> Decision {
    let mut decision = Decision { now, ..Decision::default() };
    decision.outcomes.reserve_exact(charges.len());
    for (charge, found) in charges.iter().zip(found) {
        decision.outcomes.push(Outcome::found(charge, found.before, mode, now));
    }
    decision.denied = is_denied(charges, &decision.outcomes);
    let nothing_taken = decision.denied && mode == Mode::Atomic;
    // The first charge of each key.
    let mut firsts = SmallVec::<[Option<usize>; 4]>::from_elem(None, charges.len());
    for (i, charge) in charges.iter().enumerate() {
        let (kind, outcome) = (charge.limit.kind(), &mut decision.outcomes[i]);
        let effect = effect(charge, outcome.verdict, mode, decision.denied);
        let stepped = || (effect != Effect::Nothing).then(|| kind.step(&found[i].before, effect, now));
        if let Some(left) = found[i].after.or_else(stepped) {
            outcome.leave(effect, left, &kind.level(&left, now), nothing_taken);
        }
        let first = *firsts[usize::from(places[i])].get_or_insert(i);
        if first != i {
            outcome.before = found[first].before;
            if nothing_taken {
                outcome.show_before(charge);
            }
        }
    }
    decision
}

/// The verdict for a charge that finds this view, of this level. [dc-6] [dc-9]
fn verdict(charge: &Charge<'_>, before: &Observed, level: &Level, mode: Mode, now: Micros) -> Verdict {
    let kind = charge.limit.kind();
    let hits = charge.operation.asked();
    let fits = match (charge.operation, mode) {
        (Operation::Peek, Mode::Independent) => !level.is_past,
        // The verdict of a report is the verdict for one hit, because its hits are charged in any case. A refund asks
        // for none.
        _ => Count::from(hits) <= level.remaining,
    };
    if fits {
        Verdict::Within
    } else if Count::from(hits) <= kind.capacity() {
        Verdict::Over { retry_after: kind.retry_after(before, hits, now) }
    } else {
        Verdict::Never
    }
}

/// Whether the verdicts of all limits together deny the request. [dc-3]
fn is_denied(charges: &[Charge<'_>], outcomes: &[Outcome]) -> bool {
    deny(charges.iter().zip(outcomes).map(|(charge, outcome)| (charge.role, outcome.verdict.is_over())))
}

/// Whether limits with these roles deny the request, given whether each of them is over. [dc-3]
pub fn deny(limits: impl Iterator<Item = (Role, bool)>) -> bool {
    let (mut quotas, mut quotas_over) = (0_usize, 0_usize);
    for (role, is_over) in limits {
        match role {
            Role::Enforced if is_over => return true,
            Role::Quota => {
                quotas += 1;
                quotas_over += usize::from(is_over);
            }
            Role::Enforced | Role::Shadow => {}
        }
    }
    quotas > 0 && quotas == quotas_over
}

/// The effect of a charge, from its own verdict and the decision's. [dc-4]
fn effect(charge: &Charge<'_>, verdict: Verdict, mode: Mode, denied: bool) -> Effect {
    let limit = charge.limit;
    if limit.kind().is_stateless() {
        return Effect::Nothing;
    }
    let over = verdict.is_over();
    match (charge.operation, mode) {
        (Operation::Report(hits), _) => Effect::Add(hits.into()),
        (Operation::Refund(_), Mode::Atomic) if denied => Effect::Nothing,
        (Operation::Refund(hits), _) => Effect::Refund(hits),
        (Operation::Consume(_), Mode::Atomic) if denied => {
            if over && limit.drain {
                Effect::Drain
            } else {
                Effect::Nothing
            }
        }
        (Operation::Consume(hits), _) if !over => Effect::Add(hits.into()),
        (Operation::Peek, _) | (Operation::Consume(_), Mode::Atomic) => Effect::Nothing,
        (Operation::Consume(hits), Mode::Independent) => {
            if limit.kind().counts_denied() {
                Effect::Add(hits.into())
            } else if limit.drain {
                Effect::Drain
            } else {
                Effect::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::CHARGES_MAX;
    use crate::limit::Limit;
    use crate::time::Unit;

    /// Numbered by comparing each key with all before it.
    fn compared(keys: &[&str]) -> (KeyIndices, KeyIndices) {
        let (mut places, mut firsts) = (KeyIndices::new(), KeyIndices::new());
        for (i, key) in keys.iter().enumerate() {
            let first = keys.iter().position(|other| other == key).unwrap();
            if first == i {
                firsts.push(u16::try_from(i).unwrap());
            }
            let place = firsts.iter().position(|&other| usize::from(other) == first).unwrap();
            places.push(u16::try_from(place).unwrap());
        }
        (places, firsts)
    }

    #[test]
    fn many_keys_are_numbered_as_few() {
        for count in [0, 1, 2, KEYS_COMPARED_MAX, KEYS_COMPARED_MAX + 1, 100] {
            for distinct in [1, 3, 100] {
                let keys: Vec<String> = (0..count).map(|i| format!("key-{}", i * 7 % distinct)).collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                assert_eq!(indices_of(count, |i| keys[i]), compared(&keys), "{count} charges on {distinct} keys");
            }
        }
    }

    /// States that count how often they are read and changed.
    struct Counted {
        states: Vec<Option<State>>,
        reads: std::cell::Cell<usize>,
        changes: usize,
    }

    impl States for Counted {
        fn read(&self, place: u16) -> Option<&State> {
            self.reads.set(self.reads.get() + 1);
            self.states.read(place)
        }

        fn change(&mut self, place: u16, charge: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
            self.changes += 1;
            self.states.change(place, charge, change);
        }
    }

    /// A hit in memory observed its state three times.
    #[test]
    fn a_decision_reads_each_state_once_and_changes_it_once() {
        let limit = Limit::per_unit(3, Unit::Hour);
        for keys in [vec!["a"], vec!["a", "b", "c", "d"], vec!["a"; CHARGES_MAX]] {
            let charges: Vec<_> = keys.iter().map(|key| Charge::alone(key, &limit, Operation::Consume(1))).collect();
            let (places, firsts) = key_indices(&charges);
            let states = vec![None; firsts.len()];
            let mut states = Counted { states, reads: 0.into(), changes: 0 };
            let decision = decide(&charges, &places, &mut states, Mode::Independent, 1_000_000).unwrap();
            assert_eq!(decision.denied, charges.len() == CHARGES_MAX, "only one key has more than 3 hits");
            assert_eq!(
                (states.reads.get(), states.changes),
                (firsts.len(), charges.len()),
                "{} charges",
                charges.len()
            );
        }
    }

    /// 512 distinct keys were compared 131,000 times.
    #[test]
    fn the_keys_of_the_largest_decision_are_read_a_few_thousand_times() {
        let keys: Vec<String> = (0..CHARGES_MAX).map(|i| format!("{:03}", i * 7 % CHARGES_MAX)).collect();
        let read = std::cell::Cell::new(0);
        let (_, firsts) = indices_of(CHARGES_MAX, |i| {
            read.set(read.get() + 1);
            &keys[i]
        });
        assert_eq!(firsts.len(), CHARGES_MAX);
        assert!(read.get() < 40 * CHARGES_MAX, "{} reads", read.get());
    }
}
