//! Which shares of its limits a decision crossed, derived from the state that each charge found. [al-1]
//!
//! Exactly one decision raises the count of a window from below a share to the share or above it, on any replica. So no
//! script and no stored state is needed. Not here: where a crossing is reported (the observer).

use super::algorithm::{CountedWindow, Effect};
use super::charge::{Charge, Mode, Operation};
use super::decision::{Decision, Outcome};
use super::descriptor::Count;

/// The effect of a decision on the count of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rise {
    /// The hits in the window before the decision.
    pub from: Count,
    /// The window after the decision, with its hits.
    pub window: CountedWindow,
}

impl Rise {
    /// The effect of a charge that is the only charge on its key. The decision must be in force as its outcome shows.
    pub fn of_outcome(charge: &Charge<'_>, outcome: &Outcome) -> Option<Self> {
        let kind = charge.limit.kind();
        let before = kind.counted(&outcome.before, outcome.now)?;
        Some(Self::between(before, kind.counted(&outcome.state, outcome.now)?))
    }

    /// The effects of a decision on the counts of its keys, each with the position of the key's first charge. `places` are
    /// the indices of [`key_indices`](super::decision::key_indices). Algorithms without windows have none.
    pub fn of_keys(charges: &[Charge<'_>], places: &[u16], decision: &Decision, mode: Mode) -> Vec<(usize, Self)> {
        // A key in two stores has two states and two clocks.
        let state = |i: usize| (places[i], decision.outcomes[i].now);
        let mut sorted: Vec<usize> = (0..charges.len()).collect();
        sorted.sort_by_key(|&i| state(i));
        let of_state = sorted.chunk_by(|&one, &other| state(one) == state(other));
        of_state.filter_map(|same| Some((same[0], Self::of_state(charges, same, decision, mode)?))).collect()
    }

    /// The effect of these charges, which are all those on one state.
    fn of_state(charges: &[Charge<'_>], same: &[usize], decision: &Decision, mode: Mode) -> Option<Self> {
        let (kind, first) = (charges[same[0]].limit.kind(), &decision.outcomes[same[0]]);
        let before = kind.counted(&first.before, first.now)?;
        if decision.denied && mode == Mode::Atomic {
            // Then outcomes show the state before the decision, although some charges are in force. [dc-4] [dc-7]
            let written = |count, &i: &usize| written_when_denied(&charges[i], &decision.outcomes[i], count);
            let count = same.iter().fold(before.count, written);
            let written = kind.step(&first.before, Effect::Add(count - before.count), first.now);
            return Some(Self { from: before.count, window: kind.counted(&written, first.now)? });
        }
        let last = &decision.outcomes[same[same.len() - 1]];
        Some(Self::between(before, kind.counted(&last.state, first.now)?))
    }

    fn between(before: CountedWindow, after: CountedWindow) -> Self {
        // A refund can end a window from the first hit. The next charge then begins another window.
        let from = if before.start == after.start { before.count } else { 0 };
        Self { from, window: after }
    }

    pub fn shares(&self, charge: &Charge<'_>) -> impl Iterator<Item = u8> {
        charge.limit.alert_at.crossed(charge.limit.requests(), self.from, self.window.count)
    }
}

/// The count after a charge of a denied atomic decision. [dc-4]
fn written_when_denied(charge: &Charge<'_>, outcome: &Outcome, count: Count) -> Count {
    match &outcome.receipt {
        Some(receipt) => count.saturating_add(receipt.hits.into()),
        None if charge.limit.drain
            && outcome.verdict.is_over()
            && matches!(charge.operation, Operation::Consume(_)) =>
        {
            count.max(charge.limit.requests())
        }
        None => count,
    }
}
