//! The plan of a request: its charges on their way, and their outcomes once they have them.
//!
//! Leases, known denials and stores decide a plan (decide.rs). Then holds, counting and the answer read it.

use smallvec::SmallVec;
use weir_engine::{Charge, Decision, Outcome, Verdict};
use weir_store::{RowVersion, Undo};

use super::Query;
use super::deny_cache::Denials;
use super::matched::Matched;

pub(super) struct Plan<'a, 'p> {
    pub(super) matched: &'a Matched<'p>,
    /// In the order of the descriptors. Once the plan is decided: those that were decided. A descriptor whose store did not
    /// answer then has none.
    pub(super) charges: SmallVec<[Charge<'a>; 2]>,
    /// What a settle takes back by the call of the decision. Once the plan is decided: what was taken back. [hd-5]
    pub(super) undos: Vec<Undo<'a>>,
    /// The answer of the store. It has one outcome for each charge, and one number of hits for each undo. Of several parts,
    /// and of known denials, it has no time: the outcomes have theirs.
    pub(super) decision: Decision,
    /// The descriptors whose store did not answer, without those that the store of this process decided. One bit each.
    pub(super) unanswered: u64,
    /// Those of them that are denied.
    pub(super) denied_groups: u64,
    /// The known denials, if they are not enough for an answer.
    pub(super) known: Option<Box<Denials>>,
    /// Whether leases can admit the request, and one of its keys is hot. Then its answer can begin a lease. [ls-2]
    pub(super) is_hot: bool,
    /// Whether leases admitted the request.
    pub(super) is_leased: bool,
}

impl<'a, 'p> Plan<'a, 'p> {
    pub(super) fn of(matched: &'a Matched<'p>, query: &Query<'_>) -> Self {
        Self {
            matched,
            charges: matched.charges(query),
            undos: Vec::new(),
            decision: Decision::default(),
            unanswered: 0,
            denied_groups: 0,
            known: None,
            is_hot: false,
            is_leased: false,
        }
    }

    /// Whether no store is needed.
    pub(super) fn is_empty(&self) -> bool {
        self.charges.is_empty() && self.matched.rows.is_empty()
    }

    /// The rows on which the decision depends. [rw-2]
    pub(super) fn row_versions(&self) -> SmallVec<[RowVersion<'a>; 1]> {
        self.matched.rows.iter().map(|row| self.matched.row_version(row)).collect()
    }

    /// Keeps the charges that have an outcome, and drops the others. There is one outcome, or none, for each charge.
    pub(super) fn keep_decided(&mut self, outcomes: impl IntoIterator<Item = Option<Outcome>>) {
        let mut outcomes = outcomes.into_iter();
        let Self { charges, decision, .. } = self;
        charges.retain(|_| {
            let outcome = outcomes.next().flatten();
            let is_decided = outcome.is_some();
            decision.outcomes.extend(outcome);
            is_decided
        });
    }

    /// Marks the charges on keys with a known denial. There is one denial, or none, for each charge.
    pub(super) fn mark_known(&mut self, denials: &Denials) {
        let denied = |(charge, denial): (&Charge<'a>, &Option<Outcome>)| denial.as_ref().map(|_| charge.key);
        let keys: SmallVec<[&str; 2]> = self.charges.iter().zip(denials).filter_map(denied).collect();
        for charge in &mut self.charges {
            charge.origin.is_known = keys.contains(&charge.key);
        }
    }

    /// Denies the request by known denials.
    pub(super) fn deny(&mut self, denials: Denials) {
        self.decision.denied = true;
        self.keep_decided(denials);
    }

    /// The decided charges with their outcomes.
    pub(super) fn decided<'s>(&'s self) -> impl Iterator<Item = (&'s Charge<'s>, &'s Outcome)> + Clone {
        let charges: &'s [Charge<'s>] = &self.charges;
        charges.iter().zip(&self.decision.outcomes)
    }

    /// Bounds each wait by the end of its limit's term. [te-3]
    pub(super) fn end_waits(&mut self) {
        for (charge, outcome) in self.charges.iter().zip(&mut self.decision.outcomes) {
            let Some(end) = charge.origin.ends_after else { continue };
            match &mut outcome.verdict {
                Verdict::Within => {}
                Verdict::Over { retry_after } => *retry_after = end.get().min(*retry_after),
                never @ Verdict::Never => *never = Verdict::Over { retry_after: end.get() },
            }
        }
    }
}
