//! Counts the results of requests: their limits, their domain, their decision.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use weir_engine::Rise;
use weir_engine::decision::key_indices;
use weir_engine::observer::{AnsweredBy, Charged, Crossed, DecisionResult, Observer, Trace};

use super::matched::Decided;
use super::policies::InForce;
use super::stores::Request;
use super::told::{Told, tell};
use super::unanswered::Unanswered;
use super::{Query, Undecided};

pub(super) struct Counts {
    observer: Arc<dyn Observer>,
    /// The observer's lane.
    lane: usize,
    unanswered: Arc<Unanswered>,
}

impl Counts {
    pub(super) fn new(observer: Arc<dyn Observer>, unanswered: Arc<Unanswered>) -> Self {
        let lane = observer.lane();
        Self { observer, lane, unanswered }
    }

    /// Counts a decision, and reports it to the trace. `decided` is None if no store gave a decision.
    pub(super) fn request(&self, request: &Request<'_, '_>, query: &Query<'_>, decided: Option<&Decided<'_>>) {
        let Request { matched, in_force, .. } = request;
        let result = match decided {
            None => DecisionResult::StoreFailed,
            Some(decided) => {
                self.charges(request, query, decided);
                if decided.decision.denied { DecisionResult::OverLimit } else { DecisionResult::Ok }
            }
        };
        in_force.tally.decided(matched.domain, self.lane, result, matched.unmatched);
        self.decided(result, request.started, request.trace);
        if let Some(tap) = self.observer.tap() {
            tell(tap, &Told::new(query, result, Some(matched), decided, request.given_back));
        }
    }

    fn charges(&self, request: &Request<'_, '_>, query: &Query<'_>, decided: &Decided<'_>) {
        let Request { matched, mode, trace, .. } = *request;
        if let Some(trace) = trace {
            matched.tell(trace, query);
        }
        if matched.is_shadowed(decided) {
            self.observer.shadowed();
        }
        let mut alerts_at = SmallVec::<[usize; 4]>::new();
        for (at, (charge, origin, outcome)) in decided.iter().enumerate() {
            let entries = query.descriptors[usize::from(charge.group)].entries;
            let by = match decided.known.contains(&charge.key) {
                _ if decided.is_leased => AnsweredBy::Lease,
                true => AnsweredBy::Cache,
                false => AnsweredBy::Store,
            };
            let row = matched.row_content(usize::from(charge.group));
            let charged = Charged { limit: matched.charged(origin), entries, row, mode, charge, outcome, by };
            request.in_force.tally.charged(&charged);
            let settles = || query.settle.as_ref().is_some_and(|settle| settle.has(usize::from(charge.group)));
            if outcome.verdict.is_over() && !settles() {
                self.observer.over(&charged);
            }
            if let Some(trace) = trace {
                trace.charged(&charged);
            }
            if !charge.limit.alert_at.is_empty() {
                alerts_at.push(at);
            }
        }
        if !alerts_at.is_empty() {
            self.report_shares(request, decided, &alerts_at);
        }
    }

    /// Reports the shares that the decision crossed, for the limits of these charges. [al-1]
    #[cold]
    fn report_shares(&self, request: &Request<'_, '_>, decided: &Decided<'_>, alerts_at: &[usize]) {
        let Decided { charges, origins, decision, .. } = decided;
        let (places, _) = key_indices(charges);
        for &i in alerts_at {
            let charge = &charges[i];
            let Some(mut rise) = Rise::of_key(charges, &places, decision, request.mode, i) else { continue };
            if !decided.is_taken_back && self.unanswered.take(charge.key, request.started) {
                // It is unknown which of these shares were reported, so all are. [al-4]
                rise.from = 0;
            }
            let (limit, at) = (request.matched.charged(&origins[i]), decision.outcomes[i].now);
            for share in rise.shares(charge) {
                request.in_force.tally.crossed(&Crossed { limit, charge, share, window: rise.window, at });
            }
        }
    }

    /// Counts a request whose domain no policy has. Only such requests pay for the lookup.
    /// Fails when no policies were loaded yet.
    pub(super) fn unmatched(
        &self,
        in_force: &InForce,
        query: &Query<'_>,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Result<(), Undecided> {
        let result = if in_force.is_loaded { DecisionResult::UnknownDomain } else { DecisionResult::NoPolicies };
        if in_force.is_loaded {
            self.observer.unknown_domain(query.domain, query.descriptors.len());
        }
        self.decided(result, started, trace);
        if let Some(tap) = self.observer.tap() {
            tell(tap, &Told::new(query, result, None, None, &[]));
        }
        if in_force.is_loaded { Ok(()) } else { Err(Undecided::NoPolicies) }
    }

    fn decided(&self, result: DecisionResult, started: Instant, trace: Option<&dyn Trace>) {
        let Some(trace) = trace else {
            self.observer.decided(result, &|| started.elapsed());
            return;
        };
        let took = started.elapsed();
        self.observer.decided(result, &|| took);
        trace.decided(result);
        self.observer.sampled(result, took, trace.ids());
    }

    /// Counts a request that cannot be decided. It began at `started`.
    pub(super) fn refused(&self, started: Instant) {
        self.observer.decided(DecisionResult::Invalid, &|| started.elapsed());
    }

    /// Counts a request that cannot be read. It began at `started`.
    pub(super) fn unreadable(&self, started: Instant) {
        self.observer.unreadable();
        self.refused(started);
    }
}
