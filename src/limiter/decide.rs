//! The path of a request: match, plan, filters, execute, answer.
//!
//! A filter answers a plan, so that no store is called, or leaves it undecided. All stores use this path. Only the call itself
//! distinguishes stores that answer at once from others (call.rs).

use std::sync::Arc;
use std::time::Instant;

use weir_engine::observer::{RowEvent, Trace};
use weir_engine::{Decision, Mode};
use weir_lifecycle::Turns;
use weir_store::StoreError;

use super::deny_cache::Known;
use super::execute::as_unknown;
use super::holds::former_limits;
use super::leases::{CountedCharge, ToTake};
use super::long;
use super::matched::Matched;
use super::plan::Plan;
use super::policies::InForce;
use super::request::{Reading, Request};
use super::rows::known::KnownRows;
use super::weighed::Weighing;
use super::{Answer, Limiter, Query, Status, Undecided};

/// The most times that the stores decide one request. They decide again if they find that one of its rows has changed.
/// [rw-2]
const DECISIONS_MAX: u32 = 16;

impl Limiter {
    pub(super) async fn decide_under(
        &self,
        in_force: &Arc<InForce>,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
        trace: Option<&dyn Trace>,
        turns: Option<&Turns>,
    ) -> Result<Answer, Undecided> {
        let Some(domain) = in_force.policies.domain(query.domain) else {
            self.counts.unmatched(in_force, query, started, trace)?;
            return Ok(unmatched(query));
        };
        let found = match turns {
            // The futures of other requests have no room for waiting.
            Some(turns) if query.is_long() && !domain.weighs() => {
                Box::pin(long::find(turns, &in_force.policies, domain, query)).await
            }
            _ => Vec::new(),
        };
        let options = &self.stores.options;
        let reading = Reading::of(&*options.clock, &self.stores.recurring);
        let own = Request::new(in_force, domain, query, &reading, started, options.budget);
        let request = Request {
            found: &found,
            mode: domain.mode.unwrap_or(options.mode),
            deadline: deadline.map_or(own.deadline, |theirs| own.deadline.min(theirs)),
            trace,
            ..own
        };
        if domain.weighs() {
            // The futures of other requests have no room for weighed hits.
            return Box::pin(self.decide_weighed(request, turns)).await;
        }
        if domain.has_rows {
            // The futures of other requests have no room for reading rows.
            return Box::pin(self.decide_under_rows(request)).await;
        }
        let matched = self.matched(&request, None);
        self.decide_matched(&request, &matched, None).await
    }

    /// Decides a request of a domain with rules that weigh hits. [mt-12]
    async fn decide_weighed(&self, sent: Request<'_, '_>, turns: Option<&Turns>) -> Result<Answer, Undecided> {
        let mut weighing = Weighing::default();
        weighing.fill(&sent, turns).await.inspect_err(|_| self.counts.refused(sent.started))?;
        if weighing.by_default > 0 {
            sent.in_force.tally.weighed_by_default(sent.domain, weighing.by_default);
        }
        let query = weighing.query(sent.query);
        let request = sent.weighed(&query, &weighing.found);
        if request.domain.has_rows {
            return self.decide_under_rows(request).await;
        }
        self.decide_matched(&request, &self.matched(&request, None), None).await
    }

    fn matched<'a>(&self, request: &Request<'a, '_>, rows: Option<&KnownRows>) -> Matched<'a> {
        Matched::of(request, self.stores.options.modes, rows)
    }

    /// Decides a request that can meet rules with rows. Reads the rows that are unknown, and decides again if the store
    /// has a different row. [rw-2]
    async fn decide_under_rows(&self, mut request: Request<'_, '_>) -> Result<Answer, Undecided> {
        let rows = &self.stores.options.rows;
        for decision in 1.. {
            let mut matched = self.matched(&request, Some(rows));
            let mut unread = None;
            if matched.unknown_rows().next().is_some() {
                unread = self.stores.read_rows(&matched, request.deadline).await.err();
                // A row is still unknown if it was not read, or if it has left the cache in the meantime. The decision then assumes
                // that there is none, and the store compares that.
                matched = self.matched(&request, Some(rows));
            }
            request.is_repeated = decision > 1;
            request.can_repeat = decision < DECISIONS_MAX && Instant::now() < request.deadline;
            match self.decide_matched(&request, &matched, unread).await {
                Err(Undecided::Store(StoreError::StaleRow { .. })) => {
                    self.stores.observer.rows(RowEvent::AskedAgain, 1);
                }
                decided => {
                    let unfit = matched.rows.iter().filter(|row| row.is_unfit).count();
                    if unfit > 0 {
                        self.stores.observer.rows(RowEvent::Unfit, unfit as u64);
                    }
                    return decided;
                }
            }
        }
        unreachable!("the last decision has an answer")
    }

    /// Decides a request whose limits are known: plan, filters, execute, answer. `unread` is why rows are unknown.
    async fn decide_matched(
        &self,
        request: &Request<'_, '_>,
        matched: &Matched<'_>,
        unread: Option<StoreError>,
    ) -> Result<Answer, Undecided> {
        let query = request.query;
        let former;
        let mut plan = Plan::of(matched, query);
        let mut settling = None;
        if let Some(settle) = &query.settle {
            former = former_limits(settle, &plan);
            settling = Some(self.stores.begin_settle(request, settle, &former, &mut plan).await);
        }
        let result = if plan.is_empty()
            || (matched.has_leases && self.answer_by_leases(request, &mut plan))
            || self.answer_by_denials(request, &mut plan)
        {
            Ok(())
        } else {
            self.stores.execute(request, &mut plan, unread).await
        };
        if let Err(stale @ StoreError::StaleRow { .. }) = result {
            // Only the last decision of a request is counted.
            return Err(Undecided::Store(stale));
        }
        plan.end_waits();
        let mut holds = Vec::new();
        if request.domain.has_holds && result.is_ok() && !plan.decision.denied {
            holds = self.stores.opened(request, &plan);
        }
        if let Some(settling) = &settling {
            self.stores.end_settle(request, settling, &plan);
        }
        self.counts.request(request, &plan, result.is_ok());
        // The settle may have given hits back. [hd-6]
        let is_settle = query.settle.as_ref().is_some_and(|settle| !settle.holds.is_empty());
        result.map_err(|error| if is_settle { as_unknown(error, "a settle is sent once") } else { error })?;
        let mut answer = plan.answer(query);
        answer.holds = holds;
        Ok(answer)
    }

    /// Settles holds. Charges and counts nothing else.
    pub(super) async fn settle_alone(&self, in_force: &Arc<InForce>, query: &Query<'_>) {
        let (Some(domain), Some(settle)) = (in_force.policies.domain(query.domain), &query.settle) else { return };
        let options = &self.stores.options;
        let reading = Reading::of(&*options.clock, &self.stores.recurring);
        let request = Request::new(in_force, domain, query, &reading, Instant::now(), options.budget);
        let mut weighing = Weighing::default();
        if domain.weighs() && weighing.fill(&request, None).await.is_ok() {
            let query = weighing.query(query);
            let request = request.weighed(&query, &weighing.found);
            self.stores.settle_alone(&request, settle, &self.matched(&request, None)).await;
            return;
        }
        self.stores.settle_alone(&request, settle, &self.matched(&request, None)).await;
    }

    /// The filter of leases: admits the request if they can. Returns whether they did. They can if each of its limits has a lease, and its store is not in
    /// this process. The limits of a settle need the store anyway, for the settle itself. [ls-1] [ls-4]
    fn answer_by_leases(&self, request: &Request<'_, '_>, plan: &mut Plan<'_, '_>) -> bool {
        let options = &self.stores.options;
        if request.mode != Mode::Atomic
            || options.store.is_immediate()
            || !plan.matched.rows.is_empty()
            || request.query.settle.is_some()
        {
            return false;
        }
        let counted = options.leases.count(&plan.charges, request.started);
        plan.is_hot = counted.iter().any(CountedCharge::is_hot);
        if counted.is_empty() || !counted.iter().all(CountedCharge::is_hot) {
            return false;
        }
        let decision = self.admit_by_leases(request, &counted);
        drop(counted);
        let Some(decision) = decision else { return false };
        plan.decision = decision;
        plan.is_leased = true;
        true
    }

    /// Asks the leases, and begins to charge the hits ahead that hot keys lack.
    #[cold]
    fn admit_by_leases(&self, request: &Request<'_, '_>, counted: &[CountedCharge<'_>]) -> Option<Decision> {
        let mut to_take = ToTake::new();
        let decision = self.stores.options.leases.admit(counted, &mut to_take);
        for (charge, hits) in to_take {
            self.stores.take_ahead(self.stores.store_of_charge(charge), request, charge, hits);
        }
        decision
    }

    /// The filter of known denials: denies the request if they are enough for an answer. Returns whether they were. If not, the plan keeps those that are known. Only the
    /// store decides about limits that depend on a row, or of a settle that gives hits back. [dn-1] [rw-2] [hd-5]
    fn answer_by_denials(&self, request: &Request<'_, '_>, plan: &mut Plan<'_, '_>) -> bool {
        let Some(cache) = &self.stores.options.deny_cache else { return false };
        if !plan.matched.rows.is_empty() || !plan.undos.is_empty() {
            return false;
        }
        match cache.answers(&plan.charges, request.mode, request.started) {
            Known::Nothing => false,
            Known::Part(denials) => {
                plan.mark_known(&denials);
                plan.known = Some(Box::new(denials));
                false
            }
            Known::Enough(denials) => {
                plan.mark_known(&denials);
                plan.deny(denials);
                true
            }
        }
    }
}

/// The answer if nothing can match. [mt-7]
fn unmatched(query: &Query<'_>) -> Answer {
    let statuses = query.descriptors.iter().map(|_| Status::default()).collect();
    Answer { statuses, ..Answer::default() }
}
