//! The executor: decides a plan by its stores.
//!
//! A plan has a part for each store and slot. Usually there is one, and one call decides the plan. The parts of other plans are
//! decided at the same time: if one denies, the charges of the others are taken back by their receipts [st-3]. `on_error`
//! determines what happens to a part without an answer, also if it is the only one [st-4]. Not here: one call (call.rs),
//! and how charges are taken back (undo.rs).

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use weir_engine::decision::deny;
use weir_engine::weight::{self, TOO_HEAVY, WEIGHT_MAX};
use weir_engine::words::counted;
use weir_engine::{Charge, Decision, Group, Hits, Mode, OnError, Operation, Outcome, Role, Verdict};
use weir_store::{Failure, Store, StoreError, Undo};

use super::call::{STALE_ROW, Sent, can_cross};
use super::matched::{Matched, MatchedRow};
use super::plan::Plan;
use super::request::Request;
use super::stores::Stores;
use super::undo::Reserved;

/// The part of a request's time that is reserved for taking charges back: a quarter.
const UNDO_SHARE: u32 = 4;

/// A charge of a part, as the request has it, and its outcome.
struct Planned<'a> {
    charge: Charge<'a>,
    /// None if its store gave no answer, or was not called yet.
    outcome: Option<Outcome>,
}

/// What one call can decide.
struct Part<'s, 'a> {
    store: &'s Arc<dyn Store>,
    slot: u16,
    /// The rows that determine the charges.
    rows: Vec<&'a MatchedRow>,
    undos: Vec<Undo<'a>>,
    planned: Vec<Planned<'a>>,
    /// What the undos took back.
    given_back: Vec<Hits>,
    /// Why its call gave no answer.
    failure: Option<StoreError>,
}

/// The parts of a plan whose calls have ended.
struct Parts<'s, 'a> {
    ended: Vec<Part<'s, 'a>>,
    refunds: Refunds,
    denied: bool,
    /// The charges that would have to be taken back.
    reserved: Reserved,
    /// The request must not be decided again, because a change cannot be taken back, or because a part settles holds. [hd-6]
    must_not_repeat: bool,
}

/// When the refunds of a request are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refunds {
    /// With all other charges: nothing can deny the request.
    AtOnce,
    /// When the request certainly passes: a denied request refunds nothing. [dc-4] Before that its calls peek.
    Last,
}

impl Stores {
    /// Decides a plan. If rows are `unread`, no store is called, and `on_error` decides.
    /// Fails when a part gave no answer and `on_error` is `error`. The charges of the other parts have been taken back.
    pub(super) async fn execute(
        self: &Arc<Self>,
        request: &Request<'_, '_>,
        plan: &mut Plan<'_, '_>,
        unread: Option<StoreError>,
    ) -> Result<(), StoreError> {
        let mut failure = unread.or_else(|| self.refuse_heavy(&plan.charges));
        if failure.is_some() {
            self.count_settled(request, &plan.undos, None);
        } else if let Some(store) = self.only_store(plan) {
            match self.decide_whole(store, request, plan).await {
                Err(error @ StoreError::StaleRow { .. }) => return Err(error),
                Err(error) => failure = Some(error),
                Ok(()) => return Ok(()),
            }
        }
        // The future of a request whose only call answers has no room for parts.
        let result = Box::pin(self.decide_parts(request, plan, failure)).await;
        match plan.known.take() {
            // A known denial denies the request, although its other limits could not be checked.
            Some(known) if result.is_err() && request.mode == Mode::Atomic => {
                plan.deny(*known);
                Ok(())
            }
            _ => result,
        }
    }

    /// Refuses, and counts, a decision that would take Redis too long. The memory store gets the same refusals. `on_error`
    /// decides. [dc-11]
    fn refuse_heavy(&self, charges: &[Charge<'_>]) -> Option<StoreError> {
        // No charge alone is too heavy.
        let weight = if charges.len() > 1 { weight::of_charges(charges) } else { 0 };
        if weight <= WEIGHT_MAX {
            return None;
        }
        self.observer.store_called(Some(TOO_HEAVY), None);
        let charges = counted(charges.len(), "charge");
        let message = format!("{charges} of one request: a weight of {weight}, more than {WEIGHT_MAX}");
        Some(StoreError::NotSent(Failure { kind: TOO_HEAVY, message }))
    }

    /// The store that can decide a plan in one call. None if no store can.
    fn only_store(&self, plan: &Plan<'_, '_>) -> Option<&Arc<dyn Store>> {
        let (charges, rows) = (&plan.charges, &plan.matched.rows);
        if let ([charge], []) = (&**charges, &**rows) {
            return Some(self.store_of_charge(charge));
        }
        let of_charges = charges.iter().map(|charge| self.slot_of(charge));
        let of_rows = rows.iter().map(|row| self.slot_of_row(plan.matched, row));
        let mut all = of_charges.chain(of_rows);
        let (first, slot) = all.next()?;
        all.all(|(store, other)| Arc::ptr_eq(store, first) && other == slot).then_some(first)
    }

    fn slot_of_row(&self, matched: &Matched<'_>, row: &MatchedRow) -> (&Arc<dyn Store>, u16) {
        let store = &self.options.store;
        (store, store.slot_of(matched.row_version(row).key))
    }

    /// Decides a plan by one call.
    async fn decide_whole(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        plan: &mut Plan<'_, '_>,
    ) -> Result<(), StoreError> {
        let rows = plan.row_versions();
        let sent = Sent { rows: &rows, undos: &mut plan.undos, charges: &mut plan.charges };
        self.call(store, request, sent, &mut plan.decision).await?;
        if plan.is_hot {
            self.begin_leases(store, request, &plan.charges, &plan.decision);
        }
        Ok(())
    }

    /// Decides a plan by a call for each part, or without an answer of its only call.
    async fn decide_parts<'a>(
        self: &Arc<Self>,
        request: &Request<'_, '_>,
        plan: &mut Plan<'a, '_>,
        failure: Option<StoreError>,
    ) -> Result<(), StoreError> {
        let mut parts = Parts::new(self, Refunds::of(request.mode, plan));
        match failure {
            Some(error) => {
                let split = self.split(plan).into_iter();
                parts.ended = split.map(|part| Part { failure: Some(error.clone()), ..part }).collect();
            }
            None => self.reserve(request, plan, &mut parts).await,
        }
        let result = self.conclude(request, plan, &mut parts).await;
        let outcomes = parts.put_back(plan);
        plan.decision.denied = result?;
        plan.keep_decided(outcomes);
        Ok(())
    }

    /// Divides a plan into the parts that one call each can decide.
    fn split<'a>(&self, plan: &mut Plan<'a, '_>) -> Vec<Part<'_, 'a>> {
        let mut parts = Vec::new();
        for charge in plan.charges.drain(..) {
            let (store, slot) = self.slot_of(&charge);
            part_of(&mut parts, store, slot).planned.push(Planned::new(charge));
        }
        for row in &plan.matched.rows {
            let (store, slot) = self.slot_of_row(plan.matched, row);
            part_of(&mut parts, store, slot).rows.push(row);
        }
        for undo in plan.undos.drain(..) {
            let has_key = |part: &&mut Part<'_, '_>| part.planned.iter().any(|planned| planned.charge.key == undo.key);
            let part = parts.iter_mut().find(has_key);
            part.unwrap_or_else(|| unreachable!("an undo has the key of a charge")).undos.push(undo);
        }
        parts
    }

    /// Calls the store for every part at the same time.
    async fn reserve<'s, 'a>(
        self: &'s Arc<Self>,
        request: &Request<'_, '_>,
        plan: &mut Plan<'a, '_>,
        parts: &mut Parts<'s, 'a>,
    ) {
        let kept = request.deadline.saturating_duration_since(Instant::now()) / UNDO_SHARE;
        let request = &Request { deadline: request.deadline - kept, ..*request };
        let (matched, is_hot) = (plan.matched, plan.is_hot);
        let split = self.split(plan);
        let has_quotas = |part: &&Part<'_, '_>| part.planned.iter().any(|planned| is_quota(&planned.charge));
        let quotas_are_split = split.iter().filter(has_quotas).count() > 1;
        let refunds = parts.refunds;
        let as_sent = |planned: &Planned<'a>| refunds.as_sent(&planned.charge, quotas_are_split);
        let ask = async |mut part: Part<'s, 'a>| {
            let rows: Vec<_> = part.rows.iter().map(|row| matched.row_version(row)).collect();
            let mut charges: Vec<_> = part.planned.iter().map(as_sent).collect();
            let mut decision = Decision::default();
            let sent = Sent { rows: &rows, undos: &mut part.undos, charges: &mut charges };
            let result = self.call(part.store, request, sent, &mut decision).await;
            if is_hot && result.is_ok() {
                self.begin_leases(part.store, request, &charges, &decision);
            }
            (part, result.map(|()| decision))
        };
        let mut asked: FuturesUnordered<_> = split.into_iter().map(ask).collect();
        while let Some((part, answer)) = asked.next().await {
            parts.add(request.mode, part, answer);
        }
    }

    /// Concludes from the ended parts whether the request is denied. Takes charges back, or makes the refunds.
    async fn conclude(
        self: &Arc<Self>,
        request: &Request<'_, '_>,
        plan: &mut Plan<'_, '_>,
        parts: &mut Parts<'_, '_>,
    ) -> Result<bool, StoreError> {
        if parts.failures().any(is_stale) {
            let is_unsure = parts.failures().any(StoreError::is_unknown);
            if !parts.must_not_repeat && !is_unsure {
                if parts.reserved.undo_by(request.deadline).await {
                    return Err(StoreError::StaleRow { found: Vec::new() });
                }
                self.give_up_undone(parts);
            }
            self.give_up_rows(request, parts);
        }
        if let Err(error) = self.fall_back(request, plan, parts).await {
            if parts.reserved.undo_by(request.deadline).await && !parts.must_not_repeat {
                return Err(error);
            }
            let decided = parts.planned().filter(|planned| planned.outcome.is_some());
            self.observer.alerts_lost(can_cross(decided.map(|planned| &planned.charge)));
            return Err(as_unknown(error, "another part of the request may be charged"));
        }
        let is_denied = parts.denied || parts.quotas_are_over();
        if is_denied && request.mode == Mode::Atomic {
            parts.reserved.undo_by(request.deadline).await;
            for Planned { charge, outcome } in parts.ended.iter_mut().flat_map(|part| &mut part.planned) {
                if let Some(outcome) = outcome {
                    outcome.show_before(charge);
                }
            }
        } else {
            parts.reserved.keep();
            if parts.refunds == Refunds::Last {
                self.refund(request, parts).await;
            }
        }
        Ok(is_denied)
    }

    /// The charges of these parts may have been taken back, so their answers do not hold: `on_error` applies to them.
    fn give_up_undone(&self, parts: &mut Parts<'_, '_>) {
        let is_charged =
            |planned: &Planned<'_>| planned.outcome.as_ref().is_some_and(|outcome| outcome.receipt.is_some());
        for part in parts.ended.iter_mut().filter(|part| part.planned.iter().any(is_charged)) {
            self.observer.alerts_lost(can_cross(part.planned.iter().map(|planned| &planned.charge)));
            part.planned.iter_mut().for_each(|planned| planned.outcome = None);
            let message = "it was not certainly taken back, after the row of another descriptor had changed";
            part.failure = Some(StoreError::Unknown(Failure { kind: STALE_ROW, message: message.to_owned() }));
        }
    }

    /// Another part may have made a charge that cannot be taken back, so a part whose row has changed is not decided
    /// again: `on_error` applies to it.
    fn give_up_rows(&self, request: &Request<'_, '_>, parts: &mut Parts<'_, '_>) {
        for part in &mut parts.ended {
            if part.failure.as_ref().is_some_and(is_stale) {
                self.count_settled(request, &part.undos, None);
                let message = "the row of a descriptor has changed, and another part of the request may be charged";
                part.failure = Some(StoreError::NotSent(Failure { kind: STALE_ROW, message: message.to_owned() }));
            }
        }
    }

    /// Applies `on_error` to the parts without an answer. [st-4]
    /// Fails when `on_error` is `error` for any of them.
    async fn fall_back(
        &self,
        request: &Request<'_, '_>,
        plan: &mut Plan<'_, '_>,
        parts: &mut Parts<'_, '_>,
    ) -> Result<(), StoreError> {
        let matched = plan.matched;
        let action_of = |group| matched.on_error(group).unwrap_or(self.options.on_error);
        let (mut is_error, mut unanswered, mut denied_groups) = (false, 0, 0);
        let mut apply = |group: Group, can_deny: bool, failure: &StoreError| {
            let action = action_of(group);
            self.report_fallback(request, action, failure.kind());
            is_error |= action == OnError::Error;
            if action == OnError::Deny && can_deny {
                denied_groups |= group.bit();
            }
            if action != OnError::Local {
                unanswered |= group.bit();
            }
        };
        let (mut local, all) = (Vec::new(), parts.planned().count());
        for Part { planned, rows, failure, .. } in &mut parts.ended {
            let Some(failure) = failure else { continue };
            for row in rows {
                // A descriptor whose row has no limit has no charge. [rw-5]
                if !planned.iter().any(|planned| planned.charge.origin.group == row.group) {
                    apply(row.group, matched.row_can_deny(row, request.query), failure);
                }
            }
            for charged in planned.chunk_by_mut(|one, next| one.charge.origin.group == next.charge.origin.group) {
                let group = charged[0].charge.origin.group;
                // Limits on trial are skipped, unless this process decides the other limits of the descriptor. [tr-4]
                let charges = charged.iter().map(|planned| &planned.charge).filter(|charge| !charge.limit.shadow);
                if charges.clone().next().is_some() {
                    apply(group, charges.clone().any(|charge| matched.charge_can_deny(charge)), failure);
                }
                if action_of(group) == OnError::Local {
                    local.extend(charged);
                }
            }
        }
        let needs_local = local.iter().any(|planned| !planned.charge.limit.shadow);
        if is_error || (self.options.local.is_none() && needs_local) {
            return Err(parts.worst_failure());
        }
        (plan.unanswered, plan.denied_groups) = (unanswered, denied_groups);
        parts.denied |= denied_groups != 0;
        if let Some(store) = &self.options.local
            && !local.is_empty()
            && !(parts.denied && request.mode == Mode::Atomic)
        {
            // Then it decides as the only store of a request.
            let has_all = local.len() == all;
            if has_all {
                parts.refunds = Refunds::AtOnce;
            }
            parts.denied |=
                self.decide_locally(store, request, local, has_all, parts.refunds, &mut parts.reserved).await?;
        }
        Ok(())
    }

    /// Decides charges by the store of this process: all charges of the request, or some of them. Returns whether that denies.
    async fn decide_locally(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        planned: Vec<&mut Planned<'_>>,
        has_all: bool,
        refunds: Refunds,
        reserved: &mut Reserved,
    ) -> Result<bool, StoreError> {
        // Quotas are otherwise judged later, together with those of the other stores.
        let mut charges: Vec<_> = planned.iter().map(|planned| refunds.as_sent(&planned.charge, !has_all)).collect();
        let mut decision = Decision::default();
        let sent = Sent { rows: &[], undos: &mut [], charges: &mut charges };
        self.call(store, request, sent, &mut decision).await?;
        let stands = request.mode == Mode::Atomic && !decision.denied;
        for (Planned { charge, outcome }, mut decided) in planned.into_iter().zip(decision.outcomes) {
            charge.origin.is_local = true;
            if charge.operation.is_refund() && refunds == Refunds::Last {
                decided.verdict = Verdict::Within;
            }
            if let (Operation::Consume(_), Some(receipt), true) = (charge.operation, decided.receipt, stands) {
                reserved.add(store, charge, receipt);
            }
            *outcome = Some(decided);
        }
        Ok(decision.denied)
    }

    /// Makes the refunds of a request that passes, where they have peeked: in the store of their part, or in that of this process.
    /// A failed refund is lost, which can only admit less. The rows were compared when the refunds peeked.
    async fn refund(&self, request: &Request<'_, '_>, parts: &mut Parts<'_, '_>) {
        let refund = async |Part { store, planned, failure, .. }: &mut Part<'_, '_>| {
            let has_peeked = |charge: &Charge<'_>| failure.is_none() || charge.origin.is_local;
            let is_due =
                |planned: &&mut Planned<'_>| planned.charge.operation.is_refund() && has_peeked(&planned.charge);
            let mut refunds: Vec<_> = planned.iter_mut().filter(is_due).collect();
            let store = if failure.is_none() { Some(*store) } else { self.options.local.as_ref() };
            let (Some(store), false) = (store, refunds.is_empty()) else { return };
            let mut charges: Vec<_> = refunds.iter().map(|planned| planned.charge.clone()).collect();
            let mut decision = Decision::default();
            let sent = Sent { rows: &[], undos: &mut [], charges: &mut charges };
            if self.call(store, request, sent, &mut decision).await.is_ok() {
                for (planned, outcome) in refunds.iter_mut().zip(decision.outcomes) {
                    planned.outcome = Some(outcome);
                }
            }
        };
        join_all(parts.ended.iter_mut().map(refund)).await;
    }

    /// Begins to charge hits ahead for hot keys, based on the store's answer. [ls-2]
    #[cold]
    fn begin_leases(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        charges: &[Charge<'_>],
        decision: &Decision,
    ) {
        let now = Instant::now();
        for (charge, outcome) in charges.iter().zip(&decision.outcomes) {
            if let Some(hits) = self.options.leases.answered(charge, outcome, now) {
                self.take_ahead(store, request, charge, hits);
            }
        }
    }
}

impl<'a> Planned<'a> {
    fn new(charge: Charge<'a>) -> Self {
        Self { charge, outcome: None }
    }
}

impl<'s> Part<'s, '_> {
    fn new(store: &'s Arc<dyn Store>, slot: u16) -> Self {
        let (rows, undos, planned, given_back) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { store, slot, rows, undos, planned, given_back, failure: None }
    }
}

/// The part of this store and slot. Adds it if there is none.
fn part_of<'p, 's, 'a>(parts: &'p mut Vec<Part<'s, 'a>>, store: &'s Arc<dyn Store>, slot: u16) -> &'p mut Part<'s, 'a> {
    let at = parts.iter().position(|part| Arc::ptr_eq(part.store, store) && part.slot == slot);
    let at = at.unwrap_or_else(|| {
        parts.push(Part::new(store, slot));
        parts.len() - 1
    });
    &mut parts[at]
}

impl<'s, 'a> Parts<'s, 'a> {
    fn new(stores: &Arc<Stores>, refunds: Refunds) -> Self {
        Self { ended: Vec::new(), refunds, denied: false, reserved: Reserved::new(stores), must_not_repeat: false }
    }

    /// Adds a part whose call has ended.
    fn add(&mut self, mode: Mode, mut part: Part<'s, 'a>, answer: Result<Decision, StoreError>) {
        // A settle is sent once. [hd-6]
        self.must_not_repeat |= !part.undos.is_empty() && !answer.as_ref().is_err_and(is_stale);
        match answer {
            Err(error) => part.failure = Some(error),
            Ok(decision) => {
                self.denied |= decision.denied;
                part.given_back = decision.given_back;
                let stands = mode == Mode::Atomic && !decision.denied;
                for (planned, mut outcome) in part.planned.iter_mut().zip(decision.outcomes) {
                    match (planned.charge.operation, outcome.receipt) {
                        (Operation::Consume(_), Some(receipt)) if stands => {
                            self.reserved.add(part.store, &planned.charge, receipt);
                        }
                        // It has only peeked. A refund is never over.
                        (Operation::Refund(_), _) if self.refunds == Refunds::Last => {
                            outcome.verdict = Verdict::Within;
                        }
                        (Operation::Refund(_), _) | (_, Some(_)) => self.must_not_repeat = true,
                        (_, None) => {}
                    }
                    planned.outcome = Some(outcome);
                }
            }
        }
        self.ended.push(part);
    }

    fn planned(&self) -> impl Iterator<Item = &Planned<'a>> {
        self.ended.iter().flat_map(|part| &part.planned)
    }

    fn failures(&self) -> impl Iterator<Item = &StoreError> {
        self.ended.iter().filter_map(|part| part.failure.as_ref())
    }

    /// The failure with the least certainty about its charges.
    fn worst_failure(&self) -> StoreError {
        let unknown = self.failures().find(|error| error.is_unknown());
        let worst = unknown.or_else(|| self.failures().next());
        worst.cloned().unwrap_or_else(|| unreachable!("a call has failed"))
    }

    /// Whether there are quotas and all of them are over. A quota that passed without an answer is not over. [dc-3]
    fn quotas_are_over(&self) -> bool {
        let quotas = self.planned().filter(|planned| is_quota(&planned.charge));
        let is_over = |outcome: &Outcome| outcome.verdict.is_over();
        deny(quotas.map(|planned| (Role::Quota, planned.outcome.as_ref().is_some_and(is_over))))
    }

    /// Puts all charges back into their plan, in the order of the request, and the undos that were made. Returns the outcomes.
    fn put_back(self, plan: &mut Plan<'a, '_>) -> Vec<Option<Outcome>> {
        let mut planned = Vec::new();
        for part in self.ended {
            planned.extend(part.planned);
            if part.failure.is_none() {
                plan.undos.extend(part.undos);
                plan.decision.given_back.extend(part.given_back);
            }
        }
        planned.sort_by_key(|Planned { charge, .. }| (charge.origin.group, charge.origin.position));
        let (charges, outcomes): (Vec<_>, _) = planned.into_iter().map(|one| (one.charge, one.outcome)).unzip();
        plan.charges = charges.into();
        outcomes
    }
}

impl Refunds {
    fn of(mode: Mode, plan: &Plan<'_, '_>) -> Self {
        let can_deny = plan.charges.iter().any(|charge| plan.matched.charge_can_deny(charge));
        if mode == Mode::Atomic && can_deny { Self::Last } else { Self::AtOnce }
    }

    /// The charge of a call that decides a part of the request. A refund that is made last only peeks. If `quotas_are_split`,
    /// other parts have quotas too, so no call judges a quota.
    fn as_sent<'a>(self, charge: &Charge<'a>, quotas_are_split: bool) -> Charge<'a> {
        let charge = charge.clone();
        match charge.operation {
            Operation::Refund(_) if self == Self::Last => {
                Charge { operation: Operation::Peek, role: Role::Shadow, ..charge }
            }
            _ if quotas_are_split && is_quota(&charge) => Charge { role: Role::Shadow, ..charge },
            _ => charge,
        }
    }
}

fn is_quota(charge: &Charge<'_>) -> bool {
    charge.role == Role::Quota
}

/// Whether the store does not have the row that was sent. [rw-2]
fn is_stale(error: &StoreError) -> bool {
    matches!(error, StoreError::StaleRow { .. })
}

/// The same failure, of a request that must not be sent again for this reason.
pub(super) fn as_unknown(error: StoreError, reason: &str) -> StoreError {
    match error {
        StoreError::Unknown(_) => error,
        error => StoreError::Unknown(Failure { kind: error.kind(), message: format!("{error}; {reason}") }),
    }
}
