//! Which shares of its limits a decision crossed, derived from the state that each charge found. [al-1]
//!
//! Exactly one decision raises the count of a window from below a share to the share or above it, on any replica. So no
//! script and no stored state is needed. Not here: where a crossing is reported (the observer).

use super::algorithm::{CountedWindow, Effect};
use super::charge::{Charge, Mode, Operation};
use super::decision::{Decision, Outcome};
use super::descriptor::Hits;

/// The effect of a decision on the count of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rise {
    /// The hits in the window before the decision.
    pub from: Hits,
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

    /// The effect of a decision on the count of the key of `charges[at]`; `places` are the indices of
    /// [`key_indices`](super::decision::key_indices). None if the algorithm has no windows, or if an earlier charge is
    /// on the same key: the result for that charge covers both.
    pub fn of_key(charges: &[Charge<'_>], places: &[u16], decision: &Decision, mode: Mode, at: usize) -> Option<Self> {
        let kind = charges[at].limit.kind();
        let first = &decision.outcomes[at];
        let before = kind.counted(&first.before, first.now)?;
        // A key in two stores has two states and two clocks.
        let is_same = |i: usize| places[i] == places[at] && decision.outcomes[i].now == first.now;
        if (0..at).any(is_same) {
            return None;
        }
        let mut same = (at..charges.len()).filter(|&i| is_same(i));
        if decision.denied && mode == Mode::Atomic {
            // Then outcomes show the state before the decision, although some charges are in force. [dc-4] [dc-7]
            let count =
                same.fold(before.count, |count, i| written_when_denied(&charges[i], &decision.outcomes[i], count));
            let written = kind.left(&first.before, Effect::Add(count - before.count), first.now)?;
            return Some(Self { from: before.count, window: kind.counted(&written, first.now)? });
        }
        let last = same.next_back().unwrap_or(at);
        Some(Self::between(before, kind.counted(&decision.outcomes[last].state, first.now)?))
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
fn written_when_denied(charge: &Charge<'_>, outcome: &Outcome, count: Hits) -> Hits {
    match &outcome.receipt {
        Some(receipt) => count.saturating_add(receipt.hits),
        None if charge.limit.drain
            && outcome.verdict.is_over()
            && matches!(charge.operation, Operation::Consume(_)) =>
        {
            count.max(charge.limit.requests())
        }
        None => count,
    }
}
