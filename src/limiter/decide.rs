//! The path of a request: match, plan, known denials, ask, resolve failures, count, answer.
//!
//! One path for all stores: whether a store answers at once or later shows only where it is asked (stores.rs).

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use weir_engine::observer::Trace;
use weir_engine::weight::{self, TOO_HEAVY, WEIGHT_MAX};
use weir_engine::words::counted;
use weir_engine::{Charge, Mode};
use weir_store::{Failure, Store, StoreError};

use super::deny_cache::Known;
use super::holds::Settling;
use super::leases;
use super::plan::{Decided, Plan, Selected};
use super::policies::InForce;
use super::split::{as_unknown, decide_split};
use super::stores::Request;
use super::{Answer, Limiter, Query, Status, Undecided};

impl Limiter {
    /// Decides a request under these policies.
    pub(super) async fn decide_under(
        &self,
        in_force: &InForce,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        let Some(domain) = in_force.policies.domain(query.domain) else {
            self.counts.unmatched(in_force, query, started, trace)?;
            return Ok(unmatched(query));
        };
        let plan = Plan::of(in_force, domain, self.stores.options.modes, query, &*self.stores.options.clock);
        let mode = domain.mode.unwrap_or(self.stores.options.mode);
        let ours = started + self.stores.options.budget;
        let deadline = deadline.map_or(ours, |theirs| ours.min(theirs));
        let mut request = Request { in_force, plan: &plan, mode, started, deadline, is_leasable: false, trace };
        let mut charges = plan.charges(query);
        let settling = match &query.settle {
            // A box, because few requests settle.
            Some(settle) => Box::pin(self.stores.settle(&request, query, settle, &mut charges)).await,
            None => Settling::default(),
        };
        // Its limits wait for the store together with what is settled.
        request.is_leasable = plan.has_leases && query.settle.is_none() && self.is_leasable(mode, &charges);
        let mut decided = Decided::default();
        let result = if charges.is_empty()
            || (request.is_leasable && self.is_leased(&request, &charges, &mut decided))
            || self.is_known(&request, &charges, &mut decided)
        {
            Ok(())
        } else {
            self.decide_by_stores(&request, &mut charges, &mut decided).await
        };
        self.stores.settled(&settling, result.is_ok().then_some(&decided));
        plan.leave_out_absent(&mut decided);
        self.counts.request(&request, query, result.is_ok().then_some(&decided));
        match &query.settle {
            // It may have given hits back, so that nobody may send it again. [hd-6]
            Some(settle) if !settle.holds.is_empty() => result.map_err(as_unknown)?,
            _ => result?,
        }
        let mut answer = plan.answer(query, &decided);
        if domain.has_holds && !answer.denied {
            answer.holds = self.stores.opened(&decided);
        }
        Ok(answer)
    }

    /// Settles holds, and charges and counts nothing else.
    pub(super) async fn settle_alone(&self, in_force: &InForce, query: &Query<'_>) {
        let (Some(domain), Some(settle)) = (in_force.policies.domain(query.domain), &query.settle) else { return };
        let options = &self.stores.options;
        let plan = Plan::of(in_force, domain, options.modes, query, &*options.clock);
        let started = Instant::now();
        let deadline = started + options.budget;
        let (mode, is_leasable) = (Mode::Atomic, false);
        let request = Request { in_force, plan: &plan, mode, started, deadline, is_leasable, trace: None };
        self.stores.settle(&request, query, settle, &mut plan.charges(query)).await;
    }

    /// Whether leases can admit the request: each of its limits has one, and its store is not in this process. [ls-1]
    #[cold]
    fn is_leasable(&self, mode: Mode, charges: &[Charge<'_>]) -> bool {
        mode == Mode::Atomic && !self.stores.options.store.is_immediate() && charges.iter().all(leases::is_leasable)
    }

    /// Whether leases admit the request; then `decided` gets its outcomes. [ls-4]
    #[cold]
    fn is_leased<'a>(&self, request: &Request<'_, '_>, charges: &[Charge<'a>], decided: &mut Decided<'a>) -> bool {
        let Some(admitted) = self.stores.options.leases.admit(charges, request.started) else { return false };
        let planned = &request.plan.planned;
        for ((charge, planned), hits) in charges.iter().zip(planned).zip(admitted.ahead) {
            if let Some(hits) = hits {
                self.stores.begin_ahead(self.stores.store_of(charge.limit, planned.is_single), charge, hits);
            }
        }
        let outcomes = admitted.decision.outcomes.into_iter().map(Some);
        *decided = Decided { is_leased: true, ..Decided::of_some(charges, planned, outcomes) };
        true
    }

    /// Whether the cache of denials knows enough for an answer. `decided` gets all that it knows. [dn-1]
    fn is_known<'a>(&self, request: &Request<'_, '_>, charges: &[Charge<'a>], decided: &mut Decided<'a>) -> bool {
        let Some(cache) = &self.stores.options.deny_cache else { return false };
        let (denials, is_enough) = match cache.answers(charges, request.mode, request.started) {
            Known::Nothing => return false,
            Known::Part(denials) => (denials, false),
            Known::Enough(denials) => (denials, true),
        };
        *decided = Decided::of_some(charges, &request.plan.planned, denials);
        decided.decision.denied = true;
        decided.known = decided.charges.iter().map(|charge| charge.key).collect();
        is_enough
    }

    /// Asks the store that can decide all charges in one call. What one call cannot decide, or fails to, is split.
    async fn decide_by_stores<'c>(
        &self,
        request: &Request<'c, '_>,
        charges: &'c mut [Charge<'_>],
        decided: &mut Decided<'c>,
    ) -> Result<(), StoreError> {
        // A box, because a part is seldom known.
        let known = (!decided.known.is_empty()).then(|| Box::new(std::mem::take(decided)));
        let failed = match self.one_call(request.plan, charges) {
            Ok(Some(store)) => match self.stores.ask(store, request, charges, &mut decided.decision).await {
                Ok(()) => {
                    decided.charges = Selected::All(charges);
                    decided.planned = Selected::All(&request.plan.planned);
                    decided.known = known.map_or_else(SmallVec::new, |known| known.known);
                    return Ok(());
                }
                Err(error) => Some(error),
            },
            Ok(None) => None,
            Err(too_heavy) => Some(too_heavy),
        };
        // A box, so that a request for which one call was enough does not carry the room for this.
        *decided = match (Box::pin(decide_split(&self.stores, request, charges, failed)).await, known) {
            // What is known denies the request though its other limits cannot be looked up.
            (Err(_), Some(known)) if request.mode == Mode::Atomic => *known,
            (Ok(decided), Some(known)) => Decided { known: known.known, ..decided },
            (decided, _) => decided?,
        };
        Ok(())
    }

    /// The store that can decide all of these charges in one call, if one can.
    ///
    /// # Errors
    /// When the decision would take Redis too long, whichever store makes it. [dc-11]
    fn one_call(&self, plan: &Plan<'_>, charges: &[Charge<'_>]) -> Result<Option<&Arc<dyn Store>>, StoreError> {
        if let [charge] = charges {
            return Ok(Some(self.stores.store_of(charge.limit, plan.planned[0].is_single)));
        }
        let weight = weight::of_charges(charges);
        if weight > WEIGHT_MAX {
            self.stores.observer.store_called(Some(TOO_HEAVY), None);
            let message = format!(
                "{} of one request: a weight of {weight}, more than {WEIGHT_MAX}",
                counted(charges.len(), "charge")
            );
            return Err(StoreError::NotSent(Failure { kind: TOO_HEAVY, message }));
        }
        let mut parts = charges.iter().zip(&plan.planned).map(|(charge, planned)| self.stores.part_of(charge, planned));
        let Some((first, slot)) = parts.next() else { return Ok(None) };
        Ok(parts.all(|(store, other)| Arc::ptr_eq(store, first) && other == slot).then_some(first))
    }
}

/// The answer where nothing can match. [mt-7]
fn unmatched(query: &Query<'_>) -> Answer {
    let statuses = query.descriptors.iter().map(|_| Status::default()).collect();
    Answer { statuses, ..Answer::default() }
}
