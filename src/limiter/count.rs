//! Counts the results of requests: their limits, their domain, their decision.

use std::sync::Arc;
use std::time::Instant;

use weir_engine::Rise;
use weir_engine::decision::key_indices;
use weir_engine::observer::{AnsweredBy, Charged, Crossed, DecisionResult, Observer, RefusedCaller, Tap, Trace};

use super::plan::Plan;
use super::policies::InForce;
use super::request::{Request, observers};
use super::tapped::tap_request;
use super::{DescriptorRequest, Query, Undecided};

pub(super) struct Counts {
    observer: Arc<dyn Observer>,
    /// The observer's lane.
    lane: usize,
}

impl Counts {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        let lane = observer.lane();
        Self { observer, lane }
    }

    /// Counts a request, and reports it to the trace. If its plan is not decided, no store gave an answer.
    pub(super) fn request(&self, request: &Request<'_, '_>, plan: &Plan<'_, '_>, is_decided: bool) {
        if is_decided {
            self.charges(request, plan);
        }
        let result = match plan.decision.denied {
            _ if !is_decided => DecisionResult::StoreFailed,
            true => DecisionResult::OverLimit,
            false => DecisionResult::Ok,
        };
        request.in_force.tally.decided(request.domain, self.lane, result, plan.matched.unmatched);
        plan.matched.unused_limits.iter().for_each(|why| self.observer.unused_limit(*why));
        self.decided(result, request.started, request.trace);
        self.tapped((request.query, request.sent), result, Some(plan), request.trace);
    }

    fn charges(&self, request: &Request<'_, '_>, plan: &Plan<'_, '_>) {
        let Request { query, mode, .. } = *request;
        if plan.is_shadowed() {
            self.observer.shadowed();
        }
        let mut has_alerts = false;
        for (charge, outcome) in plan.decided() {
            let group = charge.origin.group;
            let entries = query.descriptor(group).entries;
            let by = match charge.origin.is_known {
                _ if plan.is_leased => AnsweredBy::Lease,
                true => AnsweredBy::Cache,
                false => AnsweredBy::Store,
            };
            let row = plan.matched.row_content(group);
            let charged =
                Charged { limit: plan.matched.charged(charge.origin), entries, row, mode, charge, outcome, by };
            request.tallies().for_each(|tally| tally.charged(&charged));
            if outcome.verdict.is_over() && !query.settles(group) {
                self.observer.over(&charged);
            }
            // The call that took the hits of a lease ahead has reported its crossings. [al-4]
            has_alerts |= !charge.limit.alert_at.is_empty() && !plan.is_leased;
        }
        if has_alerts {
            report_shares(request, plan);
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
        self.tapped((query, &query.descriptors), result, None, trace);
        if in_force.is_loaded { Ok(()) } else { Err(Undecided::NoPolicies) }
    }

    fn decided(&self, result: DecisionResult, started: Instant, trace: Option<&dyn Trace>) {
        let ids = trace.map(Trace::ids);
        for observer in observers(&*self.observer, trace) {
            observer.decided(result, &|| started.elapsed(), ids);
        }
    }

    /// Sends a request to open taps, and to its trace.
    fn tapped(
        &self,
        (query, sent): (&Query<'_>, &[DescriptorRequest<'_>]),
        result: DecisionResult,
        plan: Option<&Plan<'_, '_>>,
        trace: Option<&dyn Trace>,
    ) {
        let trace = trace.map(|trace| trace as &dyn Tap);
        for tap in self.observer.tap().into_iter().chain(trace) {
            tap_request(tap, (query, sent), result, plan);
        }
    }

    /// The lane of this runtime's counters.
    pub(super) const fn lane(&self) -> usize {
        self.lane
    }

    /// Counts a request that its caller may not send. It began at `started`.
    #[cold]
    pub(super) fn not_allowed(&self, refused: &RefusedCaller<'_>, started: Instant, trace: Option<&dyn Trace>) {
        self.observer.not_allowed(refused);
        self.decided(DecisionResult::NotAllowed, started, trace);
    }

    /// Counts a request that cannot be decided. It began at `started`.
    pub(super) fn refused(&self, started: Instant) {
        self.decided(DecisionResult::Invalid, started, None);
    }

    #[cold]
    pub(super) fn unknown_limit_field(&self, number: u32) {
        self.observer.unknown_limit_field(number);
    }

    /// Counts a request that cannot be read. It began at `started`.
    pub(super) fn unreadable(&self, started: Instant) {
        self.observer.unreadable();
        self.refused(started);
    }
}

/// Reports the shares that the decision crossed. [al-1]
#[cold]
fn report_shares(request: &Request<'_, '_>, plan: &Plan<'_, '_>) {
    let Plan { charges, decision, .. } = plan;
    let (places, _) = key_indices(charges);
    for (i, rise) in Rise::of_keys(charges, &places, decision, request.mode) {
        let (charge, at) = (&charges[i], decision.outcomes[i].now);
        let limit = plan.matched.charged(charge.origin);
        for share in rise.shares(charge) {
            request.in_force.tally.crossed(&Crossed { limit, charge, share, window: rise.window, at });
        }
    }
}
