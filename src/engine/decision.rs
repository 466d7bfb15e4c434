//! A decision over several charges: the order of its steps, and what each charge learns. [dc-2]
//!
//! [`decide`] is the whole of it for a store that can call the engine under its own lock. A store that runs the
//! transition elsewhere (the scripts in lua/) sends back each charge's state as that charge found it, and
//! [`settle`] derives the rest.

use smallvec::SmallVec;

use super::algorithm::{self, State};
use super::charge::{Charge, Mode, Receipt, Role, Take};
use super::{Hits, Micros};

/// What a limit says to a charge. [dc-9]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits.
    Within,
    /// It does not fit now.
    Over {
        /// The wait in microseconds until it would, all else equal; exact.
        retry_after: Micros,
    },
    /// It can never fit: more hits than the limit can hold.
    Never,
}

impl Verdict {
    /// Whether it does not fit.
    #[must_use]
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Within)
    }
}

/// What one charge learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it fits.
    pub verdict: Verdict,
    /// The most hits that would have been admitted just before this charge.
    pub remaining_before: Hits,
    /// The most hits that a take would be admitted for in [`Outcome::state`].
    pub remaining: Hits,
    /// How long an admitted request waits for its turn, in microseconds; 0 for all but `leaky_bucket`.
    pub wait: Micros,
    /// The time in microseconds until [`Outcome::state`] equals an empty one.
    pub reset_after: Micros,
    /// The state that the charge shows: after it; for a denied atomic decision, before the decision. [dc-7]
    pub state: State,
    /// Proof of what was added, if anything was.
    pub receipt: Option<Receipt>,
}

/// What a decision says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may not pass.
    pub denied: bool,
    /// The store's clock when it was made.
    pub now: Micros,
    /// One for each charge, in the same order.
    pub outcomes: SmallVec<[Outcome; 2]>,
}

/// What a decision does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays as it is.
    Keep,
    /// It becomes this.
    Put(State),
    /// It goes.
    Delete,
}

/// What one charge does to the working copy of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    Add(Hits),
    Give(Hits),
    /// Adds whatever is left.
    Drain,
}

/// Which distinct key each charge is on, numbered by first use: `slots[i]` for charge `i`.
pub type Slots = SmallVec<[u16; 4]>;

/// Numbers the distinct keys of a decision. Returns the slot of each charge, and the charge that first used each slot.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "at most 512 charges")]
pub fn slots(charges: &[Charge<'_>]) -> (Slots, Slots) {
    let mut slots = Slots::new();
    let mut firsts = Slots::new();
    for (i, charge) in charges.iter().enumerate() {
        let known = firsts.iter().position(|&first| charges[usize::from(first)].key == charge.key);
        let slot = known.unwrap_or_else(|| {
            firsts.push(i as u16);
            firsts.len() - 1
        });
        slots.push(slot as u16);
    }
    (slots, firsts)
}

/// Makes a decision over states as read, one for each slot, and says what becomes of each. [dc-2]
#[must_use]
pub fn decide(
    charges: &[Charge<'_>],
    slots: &[u16],
    read: &[Option<State>],
    mode: Mode,
    now: Micros,
) -> (Decision, SmallVec<[Change; 2]>) {
    let mut seen = SmallVec::<[State; 2]>::new();
    let mut verdicts = SmallVec::<[Verdict; 2]>::new();
    let mut working = Working::new(read);
    for (charge, &slot) in charges.iter().zip(slots) {
        let state = algorithm::seen(charge.limit, working.state(slot), now);
        let (verdict, _) = verdict(charge, &state, mode, now);
        working.apply(charge, slot, &state, effect(charge, verdict, mode, false), now);
        seen.push(state);
        verdicts.push(verdict);
    }
    let denied = is_denied(charges, &verdicts);
    if denied && mode == Mode::Atomic {
        working = Working::new(read);
        for ((charge, &slot), &verdict) in charges.iter().zip(slots).zip(&verdicts) {
            let state = algorithm::seen(charge.limit, working.state(slot), now);
            working.apply(charge, slot, &state, effect(charge, verdict, mode, true), now);
        }
    }
    (settle(charges, slots, &seen, mode, now), working.changes)
}

/// Derives a decision from the state that each charge found. [dc-7] [dc-10]
#[must_use]
pub fn settle(charges: &[Charge<'_>], slots: &[u16], seen: &[State], mode: Mode, now: Micros) -> Decision {
    let judged: SmallVec<[(Verdict, Hits); 2]> =
        charges.iter().zip(seen).map(|(charge, state)| verdict(charge, state, mode, now)).collect();
    let verdicts: SmallVec<[Verdict; 2]> = judged.iter().map(|&(verdict, _)| verdict).collect();
    let denied = is_denied(charges, &verdicts);
    let nothing_written = denied && mode == Mode::Atomic;

    let mut outcomes = SmallVec::new();
    for (i, charge) in charges.iter().enumerate() {
        let (limit, (verdict, remaining_before)) = (charge.limit, judged[i]);
        let effect = effect(charge, verdict, mode, denied);
        let (state, taken) = if nothing_written {
            let first = slots.iter().position(|&slot| slot == slots[i]).unwrap_or(i);
            let before = algorithm::seen(limit, Some(&seen[first]), now);
            let forced = if let Effect::Add(hits) = effect { hits } else { 0 };
            (before, forced)
        } else {
            match effect {
                Effect::Nothing => (seen[i], 0),
                Effect::Give(hits) => (algorithm::given(limit, &seen[i], hits, now), 0),
                Effect::Add(hits) => (algorithm::added(limit, &seen[i], hits, now), hits),
                Effect::Drain => (algorithm::added(limit, &seen[i], remaining_before, now), remaining_before),
            }
        };
        let receipt = (taken > 0).then(|| Receipt { hits: taken, at: now, mark: algorithm::mark(&state) });
        outcomes.push(Outcome {
            verdict,
            remaining_before,
            remaining: algorithm::remaining(limit, &state, now),
            wait: 0,
            reset_after: algorithm::reset_after(limit, &state, now),
            state,
            receipt,
        });
    }
    Decision { denied, now, outcomes }
}

/// Working copies of the states of one decision, and what has become of each.
struct Working<'a> {
    read: &'a [Option<State>],
    changes: SmallVec<[Change; 2]>,
}

impl<'a> Working<'a> {
    fn new(read: &'a [Option<State>]) -> Self {
        Self { read, changes: SmallVec::from_elem(Change::Keep, read.len()) }
    }

    fn state(&self, slot: u16) -> Option<&State> {
        match &self.changes[usize::from(slot)] {
            Change::Keep => self.read[usize::from(slot)].as_ref(),
            Change::Put(state) => Some(state),
            Change::Delete => None,
        }
    }

    fn apply(&mut self, charge: &Charge<'_>, slot: u16, seen: &State, effect: Effect, now: Micros) {
        let limit = charge.limit;
        let hits = match effect {
            Effect::Nothing => 0,
            Effect::Add(hits) => hits,
            Effect::Drain => algorithm::remaining(limit, seen, now),
            Effect::Give(hits) => {
                if !algorithm::is_empty(seen, now) {
                    self.put(slot, algorithm::given(limit, seen, hits, now), now);
                }
                return;
            }
        };
        if hits > 0 {
            self.put(slot, algorithm::added(limit, seen, hits, now), now);
        } else if self.state(slot).is_some_and(|stored| algorithm::is_far_ahead(limit, stored, now)) {
            self.put(slot, *seen, now);
        }
    }

    fn put(&mut self, slot: u16, state: State, now: Micros) {
        self.changes[usize::from(slot)] =
            if algorithm::is_empty(&state, now) { Change::Delete } else { Change::Put(state) };
    }
}

/// What the limit says to a charge that finds this state, and how many hits would have fitted. [dc-6] [dc-9]
fn verdict(charge: &Charge<'_>, seen: &State, mode: Mode, now: Micros) -> (Verdict, Hits) {
    let limit = charge.limit;
    let remaining = algorithm::remaining(limit, seen, now);
    let over = |hits: Hits| {
        if hits > limit.capacity() {
            Verdict::Never
        } else {
            Verdict::Over { retry_after: algorithm::retry_after(limit, seen, hits, now) }
        }
    };
    let verdict = match charge.take {
        Take::Give(_) => Verdict::Within,
        Take::Take(hits) | Take::Force(hits) if hits <= remaining => Verdict::Within,
        Take::Take(hits) | Take::Force(hits) => over(hits),
        Take::Look => {
            let fits = match mode {
                Mode::Atomic => remaining >= 1,
                Mode::Independent => !algorithm::is_past(limit, seen, now),
            };
            if fits { Verdict::Within } else { over(1) }
        }
    };
    (verdict, remaining)
}

/// Whether the verdicts of all limits together deny the request. [dc-3]
fn is_denied(charges: &[Charge<'_>], verdicts: &[Verdict]) -> bool {
    let mut quotas = 0_usize;
    let mut quotas_over = 0_usize;
    for (charge, verdict) in charges.iter().zip(verdicts) {
        match charge.role {
            Role::Enforced if verdict.is_over() => return true,
            Role::Quota => {
                quotas += 1;
                quotas_over += usize::from(verdict.is_over());
            }
            Role::Enforced | Role::Shadow => {}
        }
    }
    quotas > 0 && quotas == quotas_over
}

/// What a charge does, given its own verdict and the decision's. [dc-4]
fn effect(charge: &Charge<'_>, verdict: Verdict, mode: Mode, denied: bool) -> Effect {
    let limit = charge.limit;
    if algorithm::is_stateless(limit) {
        return Effect::Nothing;
    }
    let over = verdict.is_over();
    match (charge.take, mode) {
        (Take::Force(hits), _) => Effect::Add(hits),
        (Take::Give(_), Mode::Atomic) if denied => Effect::Nothing,
        (Take::Give(hits), _) => Effect::Give(hits),
        (Take::Take(_), Mode::Atomic) if denied => {
            if over && limit.drain {
                Effect::Drain
            } else {
                Effect::Nothing
            }
        }
        (Take::Take(hits), _) if !over => Effect::Add(hits),
        (Take::Look, _) | (Take::Take(_), Mode::Atomic) => Effect::Nothing,
        (Take::Take(hits), Mode::Independent) => {
            if algorithm::counts_denied(limit) {
                Effect::Add(hits)
            } else if limit.drain {
                Effect::Drain
            } else {
                Effect::Nothing
            }
        }
    }
}
