//! Sends a request and its answer to open taps.
//!
//! Not here: the taps, and their filters (telemetry/tap.rs).

use std::cell::OnceCell;

use weir_engine::observer::{AnsweredDescriptor, AnsweredRequest, DecisionResult, DescriptorVerdict, Tap};
use weir_engine::{Count, Entry, Group, Hits, Operation, RowContent, Rule};

use super::plan::Plan;
use super::{Answer, DescriptorRequest, Query};

/// Not called for requests without a tap.
#[cold]
pub(super) fn tap_request(
    tap: &dyn Tap,
    (query, sent): (&Query<'_>, &[DescriptorRequest<'_>]),
    result: DecisionResult,
    plan: Option<&Plan<'_, '_>>,
) {
    tap.answered(&TappedRequest { query, sent, result, plan, answer: OnceCell::new() });
}

/// One request. Its parts are computed only when they are used.
struct TappedRequest<'r, 'q, 'a, 'p> {
    query: &'r Query<'q>,
    /// As the caller sent them. [mt-12]
    sent: &'r [DescriptorRequest<'r>],
    result: DecisionResult,
    /// `None` if no policy has the domain.
    plan: Option<&'r Plan<'a, 'p>>,
    answer: OnceCell<Answer>,
}

impl TappedRequest<'_, '_, '_, '_> {
    /// The hits that a descriptor held, and the hits that its settle gave back.
    fn hold_hits(&self, plan: &Plan<'_, '_>, group: Group) -> (Option<Count>, Option<Count>) {
        let (mut held, mut given_back) = (None, None);
        let add = |to: &mut Option<Count>, hits: Hits| *to = Some(to.unwrap_or(0) + Count::from(hits));
        for (charge, outcome) in plan.decided() {
            if let (Operation::Consume(_), Some(receipt)) = (charge.operation, outcome.receipt)
                && charge.limit.hold
                && charge.origin.group == group
            {
                add(&mut held, receipt.hits);
            }
        }
        for (undo, hits) in plan.undos.iter().zip(&plan.decision.given_back) {
            let settles = plan.charges.iter().find(|charge| charge.key == undo.key);
            if settles.is_some_and(|charge| charge.origin.group == group) {
                add(&mut given_back, *hits);
            }
        }
        (held, given_back)
    }

    fn outcome(&self, plan: &Plan<'_, '_>, group: Group) -> (Option<DescriptorVerdict>, Option<Count>) {
        if plan.matched.rule(group).is_none() && self.query.descriptor(group).limit.is_none() {
            return (None, None);
        }
        let answer = self.answer.get_or_init(|| plan.answer(self.query));
        let status = &answer.statuses[group.index()];
        let mut of_descriptor = plan.decided().filter(|(charge, _)| charge.origin.group == group);
        let is_over = of_descriptor.any(|(_, outcome)| outcome.verdict.is_over());
        let verdict = match status.over {
            true if !plan.matched.modes.shadow => DescriptorVerdict::Over,
            // A settle is never denied. [hd-5]
            over if (over || is_over) && (plan.matched.modes.shadow || !self.query.settles(group)) => {
                DescriptorVerdict::Shadow
            }
            _ => DescriptorVerdict::Ok,
        };
        (Some(verdict), status.limit.as_ref().map(|_| status.remaining))
    }
}

impl AnsweredRequest for TappedRequest<'_, '_, '_, '_> {
    fn domain(&self) -> &str {
        self.query.domain
    }

    fn result(&self) -> DecisionResult {
        self.result
    }

    fn caller(&self) -> Option<&str> {
        self.query.caller
    }

    fn descriptors(&self) -> usize {
        self.query.descriptors.len()
    }

    fn entries(&self, group: Group) -> &[Entry<'_>] {
        self.sent[group.index()].entries
    }

    fn row(&self, group: Group) -> Option<&RowContent> {
        self.plan.and_then(|plan| plan.matched.row_content(group)).map(|content| &**content)
    }

    fn rule(&self, group: Group) -> Option<&Rule> {
        self.plan.and_then(|plan| plan.matched.rule(group))
    }

    fn descriptor(&self, group: Group) -> AnsweredDescriptor {
        let asked = &self.sent[group.index()];
        let ((verdict, remaining), (held, given_back)) = match self.plan {
            Some(plan) if self.result != DecisionResult::StoreFailed => {
                (self.outcome(plan, group), self.hold_hits(plan, group))
            }
            Some(_) | None => Default::default(),
        };
        AnsweredDescriptor {
            operation: asked.operation,
            limit: asked.limit,
            verdict,
            remaining,
            settles: self.query.settles(group),
            held,
            given_back,
            factor: self.plan.and_then(|plan| plan.matched.factor(group)),
        }
    }
}
