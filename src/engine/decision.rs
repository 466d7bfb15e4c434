//! A decision over several charges: the order of its steps, and the outcome of each charge. [dc-2]
//!
//! [`decide`] makes the whole decision, for a store that calls the engine under its own lock. A store that makes the
//! transition elsewhere (the scripts in lua/) returns the state that each charge found, and [`evaluate`] derives the
//! decision.

use smallvec::SmallVec;

use super::algorithm::{Effect, Observed, Receipt, State, anchored_window};
use super::charge::{Charge, Mode, Operation, Role};
use super::descriptor::Hits;
use super::time::Micros;

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
    pub remaining_before: Hits,
    /// The most hits that would be admitted in [`Outcome::state`].
    pub remaining: Hits,
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
    /// Changes the outcome to that of a denied atomic decision, for a part that was charged before another part denied
    /// the request. The outcome then shows the state before the decision: consumed hits were undone, reported hits
    /// remain charged. [dc-7] [dc-4]
    pub fn show_before(&mut self, charge: &Charge<'_>) {
        let limit = charge.limit;
        if !matches!(charge.operation, Operation::Report(_)) {
            self.receipt = None;
        }
        let before = limit.kind().reobserved(&self.before, self.now);
        self.remaining = limit.kind().remaining(&before, self.now);
        self.reset_after = limit.kind().reset_after(&before, self.now);
        self.state = before;
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundState {
    /// The state just before the charge.
    pub before: Observed,
    /// The state just after the charge, for a summary: it cannot be computed from the state before.
    pub after: Option<Observed>,
}

impl FoundState {
    /// The result for a charge on a limit that does not apply now: an empty, unchanged state. [te-1]
    pub fn nothing(charge: &Charge<'_>, now: Micros) -> Self {
        // The boundaries of a calendar's charge need not contain the clock's time.
        let bounds = charge.limit.calendar().map(|_| [now, now + 1, now + 1, now + 1]);
        Self { before: charge.limit.kind().observe(None, charge.operation.asked(), bounds, now), after: None }
    }
}

/// The decision was not made, because the boundaries of a calendar charge do not contain the store's clock. [cl-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleBounds;

/// The index of each charge's distinct key, numbered by first use: `places[i]` for charge `i`.
pub type KeyIndices = SmallVec<[u16; 4]>;

/// Numbers the distinct keys of a decision. Returns the index of each charge's key, and the first charge of each index.
#[expect(clippy::cast_possible_truncation, reason = "at most 512 charges")]
pub fn key_indices(charges: &[Charge<'_>]) -> (KeyIndices, KeyIndices) {
    let mut places = KeyIndices::new();
    let mut firsts = KeyIndices::new();
    for (i, charge) in charges.iter().enumerate() {
        let known = firsts.iter().position(|&first| charges[usize::from(first)].key == charge.key);
        let place = known.unwrap_or_else(|| {
            firsts.push(i as u16);
            firsts.len() - 1
        });
        places.push(place as u16);
    }
    (places, firsts)
}

/// Decides over the states that the store has read, one for each key. Returns the effect of each charge on its state,
/// in order; the store applies it with [`apply`](super::algorithm::StateKind::apply). [dc-2]
///
/// # Errors
/// When the boundaries of a calendar charge do not contain `now`. Then the store must change nothing.
pub fn decide<'s>(
    charges: &[Charge<'_>],
    places: &[u16],
    read: impl Fn(u16) -> Option<&'s State>,
    mode: Mode,
    now: Micros,
) -> Result<(Decision, SmallVec<[Effect; 4]>), StaleBounds> {
    let mut found = SmallVec::<[FoundState; 4]>::new();
    let mut effects = SmallVec::<[Effect; 4]>::new();
    let mut verdicts = SmallVec::<[Verdict; 4]>::new();
    // A charge of no hits may still have to rewrite the state. If several charges share a key, the result depends on
    // all of them, so `StateKind::apply` decides.
    let rewrite = |i: usize, state: Option<&State>, effect: Effect| match (effect, state) {
        (Effect::Nothing, _) if places.iter().filter(|&&place| place == places[i]).count() > 1 => Effect::Rewrite,
        (Effect::Nothing, Some(state)) if charges[i].limit.kind().is_stale(state, charges[i].bounds, now) => {
            Effect::Rewrite
        }
        (effect, _) => effect,
    };
    // Copies of the states of keys with more than one charge. A single charge needs none.
    let mut copies = SmallVec::<[(u16, Option<State>); 2]>::new();
    for (i, (charge, &place)) in charges.iter().zip(places).enumerate() {
        if !charge.limit.applies_at(now) {
            found.push(FoundState::nothing(charge, now));
            effects.push(Effect::Nothing);
            verdicts.push(Verdict::Within);
            continue;
        }
        if charge.bounds.is_some_and(|bounds| anchored_window::window_at(&bounds, now).is_none()) {
            return Err(StaleBounds);
        }
        let (kind, hits) = (charge.limit.kind(), charge.operation.asked());
        let copy = copies.iter().position(|(other, _)| *other == place);
        let state = copy.map_or_else(|| read(place), |copy| copies[copy].1.as_ref());
        let before = kind.observe(state, hits, charge.bounds, now);
        let (verdict, _) = verdict(charge, &before, mode, now);
        let effect = rewrite(i, state, effect(charge, verdict, mode, false));
        let after = kind.is_summary().then(|| kind.left_of(state, &before, hits, effect, now));
        if places[i + 1..].contains(&place) {
            let next = kind.apply(state.cloned(), effect, charge.bounds, now).into_state();
            match copy {
                Some(copy) => copies[copy].1 = next,
                None => copies.push((place, next)),
            }
        }
        found.push(FoundState { before, after });
        effects.push(effect);
        verdicts.push(verdict);
    }
    if mode == Mode::Atomic && is_denied(charges, verdicts.iter().copied(), now) {
        for (i, charge) in charges.iter().enumerate().filter(|(_, charge)| charge.limit.applies_at(now)) {
            effects[i] = rewrite(i, read(places[i]), effect(charge, verdicts[i], mode, true));
        }
    }
    Ok((evaluate(charges, places, &found, mode, now), effects))
}

/// Derives a decision from the state that each charge found. Every store uses it. [dc-3] [dc-7] [dc-10]
pub fn evaluate(charges: &[Charge<'_>], places: &[u16], found: &[FoundState], mode: Mode, now: Micros) -> Decision {
    let judged: SmallVec<[(Verdict, Hits); 4]> =
        charges.iter().zip(found).map(|(charge, found)| verdict(charge, &found.before, mode, now)).collect();
    let denied = is_denied(charges, judged.iter().map(|&(verdict, _)| verdict), now);
    let nothing_taken = denied && mode == Mode::Atomic;

    let mut outcomes = SmallVec::new();
    outcomes.reserve_exact(charges.len());
    for (i, charge) in charges.iter().enumerate() {
        let (kind, (verdict, remaining_before)) = (charge.limit.kind(), judged[i]);
        let FoundState { before, after } = found[i];
        let applies = charge.limit.applies_at(now);
        let effect = if applies { effect(charge, verdict, mode, denied) } else { Effect::Nothing };
        let left = after.or_else(|| kind.left(&before, effect, now)).unwrap_or(before);
        // A charge on a limit that does not apply has not read the state of its key.
        let is_first = |(place, other): (&u16, &Charge<'_>)| *place == places[i] && other.limit.applies_at(now);
        let first = if applies { places.iter().zip(charges).position(is_first).unwrap_or(i) } else { i };
        let at_first = found[first].before;
        let state = if nothing_taken { kind.reobserved(&at_first, now) } else { left };
        let taken = match effect {
            Effect::Add(hits) => hits,
            Effect::Drain if !nothing_taken => remaining_before,
            Effect::Drain | Effect::Refund(_) | Effect::Nothing | Effect::Rewrite => 0,
        };
        outcomes.push(Outcome {
            verdict,
            remaining_before,
            remaining: kind.remaining(&state, now),
            now,
            before: at_first,
            wait: if verdict.is_over() { 0 } else { kind.turn_after(&before, now) },
            reset_after: kind.reset_after(&state, now),
            state,
            receipt: (taken > 0).then(|| Receipt { hits: taken, at: now, mark: left.mark() }),
        });
    }
    Decision { denied, now, outcomes }
}

/// The verdict for a charge that finds this state, and the most hits that fit. [dc-6] [dc-9]
fn verdict(charge: &Charge<'_>, observed: &Observed, mode: Mode, now: Micros) -> (Verdict, Hits) {
    let kind = charge.limit.kind();
    let remaining = kind.remaining(observed, now);
    let over = |hits: Hits| {
        let own = (hits <= kind.capacity()).then(|| kind.retry_after(observed, hits, now));
        // A wait ends at the latest when the limit's term ends. [te-3]
        match own.into_iter().chain(charge.limit.ends_after(now)).min() {
            Some(retry_after) => Verdict::Over { retry_after },
            None => Verdict::Never,
        }
    };
    if !charge.limit.applies_at(now) {
        return (Verdict::Within, remaining);
    }
    let verdict = match charge.operation {
        Operation::Refund(_) => Verdict::Within,
        // The verdict of a report is the verdict for one hit, because its hits are charged in any case.
        Operation::Consume(_) | Operation::Report(_) => {
            let hits = charge.operation.asked();
            if hits <= remaining { Verdict::Within } else { over(hits) }
        }
        Operation::Peek => {
            let fits = match mode {
                Mode::Atomic => remaining >= 1,
                Mode::Independent => !kind.is_past(observed, now),
            };
            if fits { Verdict::Within } else { over(1) }
        }
    };
    (verdict, remaining)
}

/// Whether the verdicts of all limits together deny the request. [dc-3] A limit that does not apply does not count as a
/// quota. [te-2]
fn is_denied(charges: &[Charge<'_>], verdicts: impl Iterator<Item = Verdict>, now: Micros) -> bool {
    let counts = |charge: &Charge<'_>| charge.role != Role::Quota || charge.limit.applies_at(now);
    let counted = charges.iter().zip(verdicts).filter(|(charge, _)| counts(charge));
    deny(counted.map(|(charge, verdict)| (charge.role, verdict.is_over())))
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
        (Operation::Report(hits), _) => Effect::Add(hits),
        (Operation::Refund(_), Mode::Atomic) if denied => Effect::Nothing,
        (Operation::Refund(hits), _) => Effect::Refund(hits),
        (Operation::Consume(_), Mode::Atomic) if denied => {
            if over && limit.drain {
                Effect::Drain
            } else {
                Effect::Nothing
            }
        }
        (Operation::Consume(hits), _) if !over => Effect::Add(hits),
        (Operation::Peek, _) | (Operation::Consume(_), Mode::Atomic) => Effect::Nothing,
        (Operation::Consume(hits), Mode::Independent) => {
            if limit.kind().counts_denied() {
                Effect::Add(hits)
            } else if limit.drain {
                Effect::Drain
            } else {
                Effect::Nothing
            }
        }
    }
}
