//! Requests that no single call decides: those over several stores or slots, and those whose store gives no answer.
//!
//! Each part is asked for a decision of its own, all at the same time; where one denies, the charges of the others are
//! taken back by their receipts [st-3]. What becomes of a part that does not answer, policies say [st-4].
//! Not here: the usual way of a request, by one call (limiter.rs).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::plan::{Decided, Plan, Planned};
use super::{DenyCache, Limiter, Request, calendar};
use crate::engine::{Bounds, Charge, Decision, Limit, Mode, Observer, OnError, Outcome, Receipt, Role, Take, Verdict};
use crate::store::{Failure, Store, StoreError, Undo};

/// The part of a request's time that is kept for taking back what must not stand: a quarter.
const UNDO_SHARE: u32 = 4;

/// A decision that was put together.
#[derive(Default)]
pub(super) struct Resolved<'a> {
    pub(super) charges: SmallVec<[Charge<'a>; 2]>,
    planned: SmallVec<[Planned; 4]>,
    pub(super) decision: Decision,
    denied_groups: u64,
}

impl<'a> Resolved<'a> {
    /// The charges that have an outcome.
    fn of(
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        outcomes: Vec<Option<Outcome>>,
        is_denied: bool,
        denied_groups: u64,
    ) -> Self {
        let mut resolved = Self { denied_groups, ..Self::default() };
        resolved.decision.denied = is_denied;
        for ((charge, planned), outcome) in charges.iter().zip(&request.plan.planned).zip(outcomes) {
            if let Some(outcome) = outcome {
                resolved.push(charge.clone(), *planned, outcome);
            }
        }
        resolved
    }

    pub(super) fn push(&mut self, charge: Charge<'a>, planned: Planned, outcome: Outcome) {
        self.charges.push(charge);
        self.planned.push(planned);
        self.decision.outcomes.push(outcome);
    }

    pub(super) fn decided(&self) -> Decided<'_> {
        let Self { charges, planned, decision, denied_groups } = self;
        Decided { charges, planned, decision, denied_groups: *denied_groups, known: &[] }
    }
}

/// Charges that one call can decide.
struct Part<'a> {
    store: &'a Arc<dyn Store>,
    slot: u16,
    /// Which of the request's charges they are.
    at: Vec<usize>,
    /// As they are asked for.
    charges: Vec<Charge<'a>>,
}

/// What is known of a request's charges so far.
struct Pieces {
    /// One for each charge; nothing where its store gave no answer, or has not been asked.
    outcomes: Vec<Option<Outcome>>,
    denied: bool,
    /// The charges that got no answer, by the call that failed.
    failures: Vec<(Vec<usize>, StoreError)>,
    /// What stands and would have to be taken back.
    reserved: Reserved,
    /// Something was charged or given back that is not: it stands, whatever becomes of the request.
    is_final: bool,
    /// The refunds that wait until the request is known to pass.
    held_back: Vec<usize>,
}

impl Limiter {
    /// Decides what one call cannot, or has failed to.
    ///
    /// # Errors
    /// When a part gave no answer and that is an error by policy. What the others charged has been taken back.
    pub(super) async fn decide_split<'a>(
        &'a self,
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        failed: Option<StoreError>,
    ) -> Result<Resolved<'a>, StoreError> {
        let refunds = Refunds::of(request.mode, charges);
        let mut pieces = match failed {
            None => {
                let now = Instant::now();
                let kept = request.deadline.saturating_duration_since(now) / UNDO_SHARE;
                let reserving = Request { deadline: request.deadline - kept, ..*request };
                self.reserve(&reserving, charges, refunds).await
            }
            Some(error) => self.unanswered(charges, error),
        };
        let denied_groups = match self.fall_back(request, charges, &mut pieces) {
            Ok(denied_groups) => denied_groups,
            Err(error) => {
                let is_undone = self.take_back(request, &mut pieces.reserved).await;
                return Err(if is_undone && !pieces.is_final { error } else { as_unknown(error) });
            }
        };
        let is_denied = pieces.denied || quotas_are_over(charges, &pieces.outcomes);
        if is_denied && request.mode == Mode::Atomic {
            self.take_back(request, &mut pieces.reserved).await;
            for (charge, outcome) in charges.iter().zip(&mut pieces.outcomes) {
                if let Some(outcome) = outcome {
                    outcome.show_before(charge);
                }
            }
        } else {
            pieces.reserved.keep();
            if !pieces.held_back.is_empty() {
                self.give_back(request, charges, &mut pieces).await;
            }
        }
        Ok(Resolved::of(request, charges, pieces.outcomes, is_denied, denied_groups))
    }

    /// Decides a request that no store was asked about, by policy and without waiting.
    ///
    /// # Errors
    /// When that is an error by policy.
    pub(super) fn decide_unanswered<'a>(
        &'a self,
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        error: StoreError,
    ) -> Result<Resolved<'a>, StoreError> {
        let mut pieces = self.unanswered(charges, error);
        let denied_groups = self.fall_back(request, charges, &mut pieces)?;
        let is_denied = pieces.denied || quotas_are_over(charges, &pieces.outcomes);
        if is_denied && request.mode == Mode::Atomic {
            // Dropped with what is reserved, which takes it back.
            for (charge, outcome) in charges.iter().zip(&mut pieces.outcomes) {
                if let Some(outcome) = outcome {
                    outcome.show_before(charge);
                }
            }
        } else {
            pieces.reserved.keep();
        }
        Ok(Resolved::of(request, charges, pieces.outcomes, is_denied, denied_groups))
    }

    /// What is known of charges that got no answer, all for one reason.
    fn unanswered(&self, charges: &[Charge<'_>], error: StoreError) -> Pieces {
        let mut pieces = self.pieces(charges);
        pieces.failures.push(((0..charges.len()).collect(), error));
        pieces
    }

    /// Asks every part at once.
    async fn reserve<'a>(&'a self, request: &Request<'_, '_>, charges: &[Charge<'a>], refunds: Refunds) -> Pieces {
        let mut parts = self.parts(request.plan, charges);
        let quotas_are_split = parts.iter().filter(|part| part.charges.iter().any(is_quota)).count() > 1;
        for part in &mut parts {
            for charge in &mut part.charges {
                match charge.take {
                    // Nothing is given back before it is known that the request passes.
                    Take::Refund(_) if refunds == Refunds::Last => {
                        (charge.take, charge.role) = (Take::Peek, Role::Shadow);
                    }
                    // No part knows whether all of them are over.
                    _ if quotas_are_split && is_quota(charge) => charge.role = Role::Shadow,
                    _ => {}
                }
            }
        }
        let mut pieces = self.pieces(charges);
        let mut asked = self.ask_each(request, parts);
        while let Some((part, answer)) = asked.next().await {
            let decision = match answer {
                Ok(decision) => decision,
                Err(error) => {
                    pieces.failures.push((part.at, error));
                    continue;
                }
            };
            pieces.denied |= decision.denied;
            let stands = request.mode == Mode::Atomic && !decision.denied;
            for ((&at, charge), mut outcome) in part.at.iter().zip(&part.charges).zip(decision.outcomes) {
                match (charges[at].take, outcome.receipt) {
                    (Take::Consume(_), Some(receipt)) if stands => pieces.reserved.add(part.store, charge, receipt),
                    // It was only looked at so far.
                    (Take::Refund(_), _) if refunds == Refunds::Last => {
                        outcome.verdict = Verdict::Within;
                        pieces.held_back.push(at);
                    }
                    (Take::Refund(_), _) | (_, Some(_)) => pieces.is_final = true,
                    (_, None) => {}
                }
                pieces.outcomes[at] = Some(outcome);
            }
        }
        pieces
    }

    /// The charges by the calls that can decide them, in their order.
    fn parts<'a>(&'a self, plan: &Plan<'_>, charges: &[Charge<'a>]) -> Vec<Part<'a>> {
        let mut parts: Vec<Part<'a>> = Vec::new();
        for (i, (charge, planned)) in charges.iter().zip(&plan.planned).enumerate() {
            let store = self.store_of(charge.limit, planned.is_single);
            let slot = store.part_of(charge.key);
            match parts.iter_mut().find(|part| Arc::ptr_eq(part.store, store) && part.slot == slot) {
                Some(part) => {
                    part.at.push(i);
                    part.charges.push(charge.clone());
                }
                None => parts.push(Part { store, slot, at: vec![i], charges: vec![charge.clone()] }),
            }
        }
        parts
    }

    /// Does what the policies say with the charges that got no answer. Answers which descriptors are denied by that. [st-4]
    ///
    /// # Errors
    /// When it is an error that there was none.
    fn fall_back<'a>(
        &'a self,
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        pieces: &mut Pieces,
    ) -> Result<u64, StoreError> {
        let action = |group| request.plan.on_error(group).unwrap_or(self.options.on_error);
        let mut denied_groups = 0;
        let mut local = Vec::new();
        let mut is_error = false;
        for (at, error) in &pieces.failures {
            let mut last = None;
            for &i in at {
                let group = charges[i].group;
                let action = action(group);
                if last.replace(group) != Some(group) {
                    self.observer.fell_back(action, error.kind());
                    if let Some(trace) = request.trace {
                        trace.fell_back(action, error.kind());
                    }
                }
                match action {
                    OnError::Error => is_error = true,
                    // A rule that only watches denies nobody, and what is given back is never over.
                    OnError::Deny if charges[i].role != Role::Shadow && !is_refund(&charges[i]) => {
                        denied_groups |= 1 << group;
                    }
                    OnError::Local => local.push(i),
                    OnError::Deny | OnError::Allow => {}
                }
            }
        }
        let local_store = self.options.local.as_ref();
        if is_error || (local_store.is_none() && !local.is_empty()) {
            return Err(worst(std::mem::take(&mut pieces.failures)));
        }
        pieces.denied |= denied_groups != 0;
        let Some(store) = local_store.filter(|_| !local.is_empty()) else {
            return Ok(denied_groups);
        };
        if pieces.denied && request.mode == Mode::Atomic {
            return Ok(denied_groups);
        }
        let mut alone: Vec<Charge<'a>> = local.iter().map(|&i| charges[i].clone()).collect();
        // Quota limits are judged together with those that other stores have answered.
        alone.iter_mut().filter(|charge| is_quota(charge)).for_each(|charge| charge.role = Role::Shadow);
        let decision = self.ask_now(store, request, &mut alone)?;
        pieces.denied |= decision.denied;
        let stands = request.mode == Mode::Atomic && !decision.denied;
        for ((i, charge), outcome) in local.into_iter().zip(&alone).zip(decision.outcomes) {
            if let (Take::Consume(_), Some(receipt), true) = (charges[i].take, outcome.receipt, stands) {
                pieces.reserved.add(store, charge, receipt);
            }
            pieces.outcomes[i] = Some(outcome);
        }
        Ok(denied_groups)
    }

    /// Makes the refunds of a request that passes. One that fails is lost, which can only admit less.
    async fn give_back<'a>(&'a self, request: &Request<'_, '_>, charges: &[Charge<'a>], pieces: &mut Pieces) {
        let mut parts = self.parts(request.plan, charges);
        for part in &mut parts {
            part.at.retain(|at| pieces.held_back.contains(at));
            part.charges = part.at.iter().map(|&at| charges[at].clone()).collect();
        }
        parts.retain(|part| !part.at.is_empty());
        let request = &Request { started: Instant::now(), ..*request };
        let mut asked = self.ask_each(request, parts);
        while let Some((part, answer)) = asked.next().await {
            for (at, outcome) in part.at.into_iter().zip(answer.into_iter().flat_map(|decision| decision.outcomes)) {
                pieces.outcomes[at] = Some(outcome);
            }
        }
    }

    /// Nothing known yet of these charges.
    fn pieces(&self, charges: &[Charge<'_>]) -> Pieces {
        let reserved = Reserved {
            charges: Vec::new(),
            deny_cache: self.options.deny_cache.clone(),
            observer: self.observer.clone(),
            budget: self.options.budget,
        };
        Pieces {
            outcomes: vec![None; charges.len()],
            denied: false,
            failures: Vec::new(),
            reserved,
            is_final: false,
            held_back: Vec::new(),
        }
    }

    /// Asks for a decision of each part, all at the same time.
    fn ask_each<'a>(
        &'a self,
        request: &Request<'_, '_>,
        parts: Vec<Part<'a>>,
    ) -> FuturesUnordered<impl Future<Output = (Part<'a>, Result<Decision, StoreError>)>> {
        let ask = async |mut part: Part<'a>| {
            let decision = self.ask(part.store, request, &mut part.charges).await;
            (part, decision)
        };
        parts.into_iter().map(ask).collect()
    }

    /// Takes back what stands, and waits for that as long as the request may. Answers whether nothing stands any more,
    /// for certain.
    async fn take_back(&self, request: &Request<'_, '_>, reserved: &mut Reserved) -> bool {
        let Some(undoing) = reserved.undo() else {
            return true;
        };
        match tokio::time::timeout_at(request.deadline.into(), undoing).await {
            Ok(Ok(undone)) => undone,
            // It goes on without us, or its runtime ends.
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

/// When the refunds of a request are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refunds {
    /// With all else: nothing can deny the request.
    AtOnce,
    /// When it is known that the request passes: a denied one gives nothing back. [dc-4]
    Last,
}

impl Refunds {
    fn of(mode: Mode, charges: &[Charge<'_>]) -> Self {
        let can_deny = |charge: &Charge<'_>| charge.role != Role::Shadow && !is_refund(charge);
        if mode == Mode::Atomic && charges.iter().any(can_deny) { Self::Last } else { Self::AtOnce }
    }
}

fn is_quota(charge: &Charge<'_>) -> bool {
    charge.role == Role::Quota
}

/// Whether a charge gives hits back.
fn is_refund(charge: &Charge<'_>) -> bool {
    matches!(charge.take, Take::Refund(_))
}

/// Whether there are quota limits and all of them are over. One that was let pass without an answer is not. [dc-3]
fn quotas_are_over(charges: &[Charge<'_>], outcomes: &[Option<Outcome>]) -> bool {
    let mut quotas = charges.iter().zip(outcomes).filter(|(charge, _)| is_quota(charge)).peekable();
    let is_over = |outcome: &Outcome| outcome.verdict.is_over();
    quotas.peek().is_some() && quotas.all(|(_, outcome)| outcome.as_ref().is_some_and(is_over))
}

/// Of several failures the one that says least about what was charged.
fn worst(failures: Vec<(Vec<usize>, StoreError)>) -> StoreError {
    let mut worst = None;
    for (_, error) in failures {
        if worst.is_none() || matches!(error, StoreError::Unknown(_)) {
            worst = Some(error);
        }
    }
    worst.unwrap_or_else(|| StoreError::NotSent(Failure { kind: "none", message: "no store was asked".into() }))
}

/// The same failure, where something else of the request may still be charged.
fn as_unknown(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(_) => error,
        error => {
            let message = format!("a part of the request was not decided: {error}; another part was");
            StoreError::Unknown(Failure { kind: error.kind(), message })
        }
    }
}

/// Charges that stand until the whole request is known to pass. Dropped before that (its caller has gone, say), they are
/// taken back all the same.
struct Reserved {
    charges: Vec<Taken>,
    deny_cache: Option<Arc<DenyCache>>,
    observer: Arc<dyn Observer>,
    /// How long taking back may take.
    budget: Duration,
}

struct Taken {
    store: Arc<dyn Store>,
    key: String,
    limit: Limit,
    receipt: Receipt,
    bounds: Option<Bounds>,
}

impl Reserved {
    fn add(&mut self, store: &Arc<dyn Store>, charge: &Charge<'_>, receipt: Receipt) {
        self.charges.push(Taken {
            store: store.clone(),
            key: charge.key.to_owned(),
            limit: charge.limit.clone(),
            receipt,
            bounds: charge.bounds,
        });
    }

    /// Lets everything stand.
    fn keep(&mut self) {
        self.charges.clear();
    }

    /// Begins to take everything back, in a task that ends of itself, whoever waits for it. It tells whether nothing
    /// stands any more. None where there is nothing to take back.
    fn undo(&mut self) -> Option<JoinHandle<bool>> {
        if self.charges.is_empty() {
            return None;
        }
        // Without a runtime nobody could ask a store either.
        let runtime = Handle::try_current().ok()?;
        let charges = std::mem::take(&mut self.charges);
        let (deny_cache, deadline) = (self.deny_cache.clone(), Instant::now() + self.budget);
        let observer = self.observer.clone();
        Some(runtime.spawn(async move {
            let undone = undo_all(&charges, deadline).await;
            observer.undone(undone);
            // What was denied meanwhile may have been denied because of these charges.
            if let Some(cache) = deny_cache {
                charges.iter().for_each(|taken| cache.forget(&taken.key));
            }
            undone
        }))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Not awaited by anybody: what it answers is of no use any more.
        drop(self.undo());
    }
}

/// Takes charges back, each store's at once. Answers whether all stores have said that they did.
async fn undo_all(charges: &[Taken], deadline: Instant) -> bool {
    let mut stores: Vec<(&Arc<dyn Store>, Vec<Undo<'_>>)> = Vec::new();
    let mut calendars = Vec::new();
    for taken in charges {
        if taken.bounds.is_some() {
            calendars.push(taken);
            continue;
        }
        match stores.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &taken.store)) {
            Some((_, undos)) => undos.push(taken.undo()),
            None => stores.push((&taken.store, vec![taken.undo()])),
        }
    }
    let undo =
        async |(store, undos): &(&Arc<dyn Store>, Vec<Undo<'_>>)| store.undo(undos, deadline).get().await.is_ok();
    let together = join_all(stores.iter().map(undo));
    let alone = join_all(calendars.into_iter().map(|taken| taken.undo_in_its_calendar(deadline)));
    let (together, alone) = join(together, alone).await;
    together.into_iter().chain(alone).all(|is_undone| is_undone)
}

impl Taken {
    fn undo(&self) -> Undo<'_> {
        Undo { key: &self.key, limit: &self.limit, receipt: self.receipt, bounds: self.bounds }
    }

    /// Takes a charge of a calendar window back. The store's clock may have left the boundaries of the charge: then the
    /// store is asked once more, with those around its clock. [cl-3]
    async fn undo_in_its_calendar(&self, deadline: Instant) -> bool {
        let mut undo = self.undo();
        match self.store.undo(std::slice::from_ref(&undo), deadline).get().await {
            Err(StoreError::StaleBounds { now }) => undo.bounds = calendar::computed_bounds(&self.limit, now),
            end => return end.is_ok(),
        }
        self.store.undo(std::slice::from_ref(&undo), deadline).get().await.is_ok()
    }
}
