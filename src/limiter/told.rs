//! Sends a request and its answer to open taps.
//!
//! Not here: the taps, and their filters (telemetry/tap.rs).

use std::cell::OnceCell;

use weir_engine::observer::{AnsweredDescriptor, AnsweredRequest, DecisionResult, DescriptorVerdict, Tap};
use weir_engine::{Entry, Hits, Operation, RowContent, Rule};
use weir_store::GivenBack;

use super::matched::{Decided, Matched};
use super::{Answer, Query};

/// Not called for requests without a tap.
#[cold]
pub(super) fn tell(tap: &dyn Tap, told: &Told<'_, '_, '_, '_>) {
    tap.answered(told);
}

/// One request. Its parts are computed only when they are used.
pub(super) struct Told<'a, 'q, 'p, 'd> {
    query: &'a Query<'q>,
    result: DecisionResult,
    /// `None` if no policy has the domain.
    matched: Option<&'a Matched<'p>>,
    /// `None` if nothing was decided.
    decided: Option<&'a Decided<'d>>,
    given_back: &'a [GivenBack],
    answer: OnceCell<Answer>,
}

impl<'a, 'q, 'p, 'd> Told<'a, 'q, 'p, 'd> {
    pub(super) const fn new(
        query: &'a Query<'q>,
        result: DecisionResult,
        matched: Option<&'a Matched<'p>>,
        decided: Option<&'a Decided<'d>>,
        given_back: &'a [GivenBack],
    ) -> Self {
        Self { query, result, matched, decided, given_back, answer: OnceCell::new() }
    }

    /// The hits that a descriptor held, and the hits that its settle gave back.
    fn hold_hits(&self, at: usize) -> (Option<Hits>, Option<Hits>) {
        let (Some(matched), Some(decided)) = (self.matched, self.decided) else { return (None, None) };
        let held = decided.iter().filter(|(charge, ..)| charge.limit.hold && usize::from(charge.group) == at);
        let held = held.filter_map(|(charge, _, outcome)| match charge.operation {
            Operation::Consume(_) => Some(outcome.receipt?.hits),
            _ => None,
        });
        let of_descriptor = |back: &&GivenBack| matched.origins[usize::from(back.charge)].group() == at;
        let given_back = self.given_back.iter().filter(of_descriptor).map(|back| back.receipt.hits);
        (held.reduce(Hits::saturating_add), given_back.reduce(Hits::saturating_add))
    }

    fn outcome(&self, at: usize) -> (Option<DescriptorVerdict>, Option<Hits>) {
        let (Some(matched), Some(decided)) = (self.matched, self.decided) else { return (None, None) };
        if matched.rule(at).is_none() && self.query.descriptors[at].limit.is_none() {
            return (None, None);
        }
        let answer = self.answer.get_or_init(|| matched.answer(self.query, decided));
        let status = &answer.statuses[at];
        let of_descriptor = decided.iter().filter(|(charge, ..)| usize::from(charge.group) == at);
        let is_over = of_descriptor.into_iter().any(|(_, _, outcome)| outcome.verdict.is_over());
        let verdict = match status.over {
            true if !matched.modes.shadow => DescriptorVerdict::Over,
            over if over || is_over => DescriptorVerdict::Shadow,
            _ => DescriptorVerdict::Ok,
        };
        (Some(verdict), status.limit.as_ref().map(|_| status.remaining))
    }
}

impl AnsweredRequest for Told<'_, '_, '_, '_> {
    fn domain(&self) -> &str {
        self.query.domain
    }

    fn result(&self) -> DecisionResult {
        self.result
    }

    fn descriptors(&self) -> usize {
        self.query.descriptors.len()
    }

    fn entries(&self, at: usize) -> &[Entry<'_>] {
        self.query.descriptors[at].entries
    }

    fn row(&self, at: usize) -> Option<&RowContent> {
        self.matched.and_then(|matched| matched.row_content(at)).map(|content| &**content)
    }

    fn rule(&self, at: usize) -> Option<&Rule> {
        self.matched.and_then(|matched| matched.rule(at))
    }

    fn descriptor(&self, at: usize) -> AnsweredDescriptor {
        let asked = &self.query.descriptors[at];
        let (verdict, remaining) = self.outcome(at);
        let (held, given_back) = self.hold_hits(at);
        let settles = self.query.settle.as_ref().is_some_and(|settle| settle.has(at));
        AnsweredDescriptor {
            operation: asked.operation,
            limit: asked.limit,
            verdict,
            remaining,
            settles,
            held,
            given_back,
        }
    }
}
