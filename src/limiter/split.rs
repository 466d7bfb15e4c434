//! Requests that one call cannot decide: those over several stores or slots, and those whose store does not answer.
//!
//! Each part is decided separately, all at the same time. If one denies, the charges of the others are taken back by
//! their receipts [st-3]. `on_error` determines what happens to a part without an answer [st-4]. Not here: the usual
//! path of a request, with one call (decide.rs), and how charges are taken back (reserved.rs).

use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use weir_engine::decision::deny;
use weir_engine::{Charge, Decision, Mode, OnError, Operation, Outcome, Rise, Role, Verdict};
use weir_store::{Before, Failure, GivenBack, RowVersion, Store, StoreError};

use super::matched::{Decided, Matched};
use super::reserved::Reserved;
use super::stores::{Request, Stores};

/// The part of a request's time that is reserved for taking charges back: a quarter.
const UNDO_SHARE: u32 = 4;

/// Charges that one call can decide.
struct Part<'a> {
    store: &'a Arc<dyn Store>,
    slot: u16,
    /// The rows that determine the charges, and the descriptors of these rows.
    row_versions: Vec<RowVersion<'a>>,
    row_groups: Vec<u16>,
    /// The hits to give back, by the positions of charges in the part.
    given_back: Vec<GivenBack>,
    /// The positions of the charges in the request.
    at: Vec<usize>,
    /// The charges as sent to the store.
    charges: Vec<Charge<'a>>,
}

/// A call that gave no answer.
struct FailedPart {
    /// The positions of its charges in the request.
    at: Vec<usize>,
    /// The descriptors whose rows it checks.
    row_groups: Vec<u16>,
    error: StoreError,
}

/// Whether a part failed because the store does not have the row that was sent. [rw-2]
fn is_stale(part: &FailedPart) -> bool {
    matches!(part.error, StoreError::StaleRow { .. })
}

/// The results for a request's charges so far.
struct Pieces {
    /// One for each charge. None if its store gave no answer, or was not called yet.
    outcomes: Vec<Option<Outcome>>,
    denied: bool,
    /// The charges without an answer, grouped by the failed call.
    failures: Vec<FailedPart>,
    /// The charges that would have to be taken back.
    reserved: Reserved,
    /// A change that cannot be undone was made.
    is_final: bool,
    /// The refunds that wait until the request certainly passes.
    held_back: Vec<usize>,
    /// The charges that the store of this process has decided.
    local: Vec<usize>,
}

/// Decides what one call cannot decide, or has failed to decide.
/// Fails when a part gave no answer and `on_error` is `error`. The charges of the other parts have been taken back.
pub(super) async fn decide_split<'a>(
    stores: &Stores,
    request: &Request<'_, '_>,
    charges: &[Charge<'a>],
    failed: Option<StoreError>,
) -> Result<Decided<'a>, StoreError> {
    let refunds = Refunds::of(request.mode, charges);
    let mut pieces = match failed {
        None => {
            let now = Instant::now();
            let kept = request.deadline.saturating_duration_since(now) / UNDO_SHARE;
            let reserving = Request { deadline: request.deadline - kept, ..*request };
            reserve(stores, &reserving, charges, refunds).await
        }
        Some(error) => unanswered(stores, request.matched, charges, error),
    };
    if pieces.failures.iter().any(is_stale) {
        let is_unsure = |part: &FailedPart| matches!(part.error, StoreError::Unknown(_));
        if !pieces.is_final && !pieces.failures.iter().any(is_unsure) {
            let is_undone = stores.take_back(request, &mut pieces.reserved).await;
            let error = StoreError::StaleRow { found: Vec::new() };
            return Err(if is_undone { error } else { as_unknown(error) });
        }
        // Another part may have made a charge that cannot be taken back, so nothing is decided again: `on_error`
        // applies to these parts.
        for part in pieces.failures.iter_mut().filter(|part| is_stale(part)) {
            let is_of_part = |back: &&GivenBack| part.at.contains(&usize::from(back.charge));
            let lost: Vec<_> = request.given_back.iter().filter(is_of_part).copied().collect();
            stores.gave_back(request, &lost, charges, false);
            let message =
                "the row of a descriptor has changed, and another part of the request cannot be taken back".to_owned();
            part.error = StoreError::NotSent(Failure { kind: "stale_row", message });
        }
    }
    let denied_groups = match fall_back(stores, request, charges, &mut pieces).await {
        Ok(denied_groups) => denied_groups,
        Err(error) => {
            doubt(stores, charges, &pieces.outcomes);
            let is_undone = stores.take_back(request, &mut pieces.reserved).await;
            return Err(if is_undone && !pieces.is_final { error } else { as_unknown(error) });
        }
    };
    let is_denied = pieces.denied || quotas_are_over(charges, &pieces.outcomes);
    if is_denied && request.mode == Mode::Atomic {
        stores.take_back(request, &mut pieces.reserved).await;
        for (charge, outcome) in charges.iter().zip(&mut pieces.outcomes) {
            if let Some(outcome) = outcome {
                outcome.show_before(charge);
            }
        }
    } else {
        pieces.reserved.keep();
        if !pieces.held_back.is_empty() {
            give_back(stores, request, charges, &mut pieces).await;
        }
    }
    let mut origins = request.matched.origins.clone();
    pieces.local.iter().for_each(|&at| origins[at].is_local = true);
    let mut decided = Decided::of_some(charges, &origins, pieces.outcomes);
    (decided.decision.denied, decided.denied_groups) = (is_denied, denied_groups);
    decided.is_taken_back = is_denied && request.mode == Mode::Atomic;
    Ok(decided)
}

/// Stores the keys whose charges crossed a share although the request fails: some charges remain, and some are taken
/// back. [al-4]
fn doubt(stores: &Stores, charges: &[Charge<'_>], outcomes: &[Option<Outcome>]) {
    for (charge, outcome) in charges.iter().zip(outcomes).filter(|(charge, _)| !charge.limit.alert_at.is_empty()) {
        let rise = outcome.as_ref().and_then(|outcome| Rise::of_outcome(charge, outcome));
        if rise.is_some_and(|rise| rise.shares(charge).next().is_some()) {
            stores.options.unanswered.add(charge.key);
        }
    }
}

impl<'a> Part<'a> {
    fn of(store: &'a Arc<dyn Store>, slot: u16, at: Vec<usize>, charges: Vec<Charge<'a>>) -> Self {
        Self { store, slot, row_versions: Vec::new(), row_groups: Vec::new(), given_back: Vec::new(), at, charges }
    }
}

/// The result for charges that all failed for one reason.
fn unanswered(stores: &Stores, matched: &Matched<'_>, charges: &[Charge<'_>], error: StoreError) -> Pieces {
    let mut pieces = pieces(stores, charges);
    let row_groups = matched.rows.iter().map(|row| row.group).collect();
    pieces.failures.push(FailedPart { at: (0..charges.len()).collect(), row_groups, error });
    pieces
}

/// Calls the store for every part at the same time.
async fn reserve<'a>(
    stores: &'a Stores,
    request: &Request<'a, '_>,
    charges: &[Charge<'a>],
    refunds: Refunds,
) -> Pieces {
    let mut parts = parts(stores, request.matched, charges);
    let quotas_are_split = parts.iter().filter(|part| part.charges.iter().any(is_quota)).count() > 1;
    for part in &mut parts {
        let given_back = request.given_back.iter().filter_map(|back| {
            let charge = part.at.iter().position(|&at| at == usize::from(back.charge))?;
            Some(GivenBack { charge: u16::try_from(charge).ok()?, ..*back })
        });
        part.given_back = given_back.collect();
        for charge in &mut part.charges {
            match charge.operation {
                // Nothing is refunded before the request certainly passes.
                Operation::Refund(_) if refunds == Refunds::Last => {
                    (charge.operation, charge.role) = (Operation::Peek, Role::Shadow);
                }
                // No part can determine whether all quotas are over.
                _ if quotas_are_split && is_quota(charge) => charge.role = Role::Shadow,
                _ => {}
            }
        }
    }
    let mut pieces = pieces(stores, charges);
    let mut asked = ask_each(stores, request, parts);
    while let Some((part, answer)) = asked.next().await {
        let is_row_stale = matches!(answer, Err(StoreError::StaleRow { .. }));
        // A settle is sent once. [hd-6]
        pieces.is_final |= !part.given_back.is_empty() && !is_row_stale;
        let decision = match answer {
            Ok(decision) => decision,
            Err(error) => {
                pieces.failures.push(FailedPart { at: part.at, row_groups: part.row_groups, error });
                continue;
            }
        };
        pieces.denied |= decision.denied;
        let stands = request.mode == Mode::Atomic && !decision.denied;
        for ((&at, charge), mut outcome) in part.at.iter().zip(&part.charges).zip(decision.outcomes) {
            match (charges[at].operation, outcome.receipt) {
                (Operation::Consume(_), Some(receipt)) if stands => {
                    pieces.reserved.add(part.store, charge, &outcome, receipt);
                }
                // So far it was only a peek.
                (Operation::Refund(_), _) if refunds == Refunds::Last => {
                    outcome.verdict = Verdict::Within;
                    pieces.held_back.push(at);
                }
                (Operation::Refund(_), _) | (_, Some(_)) => pieces.is_final = true,
                (_, None) => {}
            }
            pieces.outcomes[at] = Some(outcome);
        }
    }
    pieces
}

/// Groups the charges by the calls that can decide them, in their order.
fn parts<'a>(stores: &'a Stores, matched: &'a Matched<'_>, charges: &[Charge<'a>]) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    for (i, (charge, origin)) in charges.iter().zip(&matched.origins).enumerate() {
        let (store, slot) = stores.slot_of(charge, origin);
        match parts.iter_mut().find(|part| Arc::ptr_eq(part.store, store) && part.slot == slot) {
            Some(part) => {
                part.at.push(i);
                part.charges.push(charge.clone());
            }
            None => parts.push(Part::of(store, slot, vec![i], vec![charge.clone()])),
        }
    }
    for row in &matched.rows {
        let version = matched.row_version(row);
        let store = stores.store_of_row(matched, row);
        let slot = store.slot_of(version.key);
        let place = parts.iter().position(|part| Arc::ptr_eq(part.store, store) && part.slot == slot);
        let place = place.unwrap_or_else(|| {
            parts.push(Part::of(store, slot, Vec::new(), Vec::new()));
            parts.len() - 1
        });
        parts[place].row_versions.push(version);
        parts[place].row_groups.push(row.group);
    }
    parts
}

/// Applies `on_error` to the charges without an answer. Returns the descriptors that this denies. [st-4]
/// Fails when `on_error` is `error` for any of them.
async fn fall_back<'a>(
    stores: &'a Stores,
    request: &Request<'_, '_>,
    charges: &[Charge<'a>],
    pieces: &mut Pieces,
) -> Result<u64, StoreError> {
    let action = |group| request.matched.on_error(group).unwrap_or(stores.options.on_error);
    let mut denied_groups = 0;
    let mut local = Vec::new();
    let mut is_error = false;
    for FailedPart { at, row_groups, error } in &pieces.failures {
        let mut last = None;
        for &i in at {
            let group = charges[i].group;
            let action = action(group);
            if !charges[i].limit.applies_at(stores.options.clock.now()) {
                // No store has returned the time. [te-4]
                continue;
            }
            if charges[i].limit.shadow {
                // A limit on trial is skipped, unless this process decides the limits beside it. [tr-4]
                if action == OnError::Local && stores.options.local.is_some() {
                    local.push(i);
                }
                continue;
            }
            if last.replace(group) != Some(group) {
                stores.observer.fell_back(action, error.kind());
                if let Some(trace) = request.trace {
                    trace.fell_back(action, error.kind());
                }
            }
            match action {
                OnError::Error => is_error = true,
                // A rule in shadow mode denies no request, and a refund is never over the limit.
                OnError::Deny if charges[i].role != Role::Shadow && !is_refund(&charges[i]) => {
                    denied_groups |= 1 << group;
                }
                OnError::Local => local.push(i),
                OnError::Deny | OnError::Allow => {}
            }
        }
        // A descriptor whose row has no limit has no charge. [rw-5]
        for &group in row_groups.iter().filter(|group| !at.iter().any(|&i| charges[i].group == **group)) {
            let action = action(group);
            stores.observer.fell_back(action, error.kind());
            if let Some(trace) = request.trace {
                trace.fell_back(action, error.kind());
            }
            match action {
                OnError::Error => is_error = true,
                OnError::Deny if request.matched.can_deny(group) => denied_groups |= 1 << group,
                OnError::Deny | OnError::Allow | OnError::Local => {}
            }
        }
    }
    let local_store = stores.options.local.as_ref();
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
    // This store does not decide quotas alone: they are judged later, together with the quotas of the other stores.
    alone.iter_mut().filter(|charge| is_quota(charge)).for_each(|charge| charge.role = Role::Shadow);
    let mut decision = Decision::default();
    stores.ask(store, request, Before::default(), &mut alone, &mut decision).await?;
    pieces.denied |= decision.denied;
    let stands = request.mode == Mode::Atomic && !decision.denied;
    for ((i, charge), outcome) in local.into_iter().zip(&alone).zip(decision.outcomes) {
        if let (Operation::Consume(_), Some(receipt), true) = (charges[i].operation, outcome.receipt, stands) {
            pieces.reserved.add(store, charge, &outcome, receipt);
        }
        pieces.outcomes[i] = Some(outcome);
        pieces.local.push(i);
    }
    Ok(denied_groups)
}

/// Makes the refunds of a request that passes. A failed refund is lost, which can only admit less.
async fn give_back<'a>(stores: &'a Stores, request: &Request<'a, '_>, charges: &[Charge<'a>], pieces: &mut Pieces) {
    let mut parts = parts(stores, request.matched, charges);
    for part in &mut parts {
        part.at.retain(|at| pieces.held_back.contains(at));
        part.charges = part.at.iter().map(|&at| charges[at].clone()).collect();
    }
    parts.retain(|part| !part.at.is_empty());
    // The rows were checked by the peek of the refunds.
    parts.iter_mut().for_each(|part| part.row_versions.clear());
    let request = &Request { started: Instant::now(), ..*request };
    let mut asked = ask_each(stores, request, parts);
    while let Some((part, answer)) = asked.next().await {
        for (at, outcome) in part.at.into_iter().zip(answer.into_iter().flat_map(|decision| decision.outcomes)) {
            pieces.outcomes[at] = Some(outcome);
        }
    }
}

/// No results yet for these charges.
fn pieces(stores: &Stores, charges: &[Charge<'_>]) -> Pieces {
    let reserved = Reserved::new(&stores.options, stores.observer.clone());
    Pieces {
        outcomes: vec![None; charges.len()],
        denied: false,
        failures: Vec::new(),
        reserved,
        is_final: false,
        held_back: Vec::new(),
        local: Vec::new(),
    }
}

/// Decides each part, all at the same time.
fn ask_each<'a>(
    stores: &'a Stores,
    request: &Request<'_, '_>,
    parts: Vec<Part<'a>>,
) -> FuturesUnordered<impl Future<Output = (Part<'a>, Result<Decision, StoreError>)>> {
    let ask = async |mut part: Part<'a>| {
        let mut decision = Decision::default();
        let before = Before { row_versions: &part.row_versions, given_back: &part.given_back };
        let result = stores.ask(part.store, request, before, &mut part.charges, &mut decision).await;
        (part, result.map(|()| decision))
    };
    parts.into_iter().map(ask).collect()
}

/// When the refunds of a request are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refunds {
    /// With all other charges: nothing can deny the request.
    AtOnce,
    /// When the request certainly passes: a denied request refunds nothing. [dc-4]
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

fn is_refund(charge: &Charge<'_>) -> bool {
    matches!(charge.operation, Operation::Refund(_))
}

/// Whether there are quotas and all of them are over. A quota that passed without an answer is not over. [dc-3]
fn quotas_are_over(charges: &[Charge<'_>], outcomes: &[Option<Outcome>]) -> bool {
    let applies = |charge: &Charge<'_>, outcome: &Option<Outcome>| {
        outcome.as_ref().is_none_or(|outcome| charge.limit.applies_at(outcome.now))
    };
    let quotas = charges.iter().zip(outcomes).filter(|(charge, outcome)| is_quota(charge) && applies(charge, outcome));
    let is_over = |outcome: &Outcome| outcome.verdict.is_over();
    deny(quotas.map(|(charge, outcome)| (charge.role, outcome.as_ref().is_some_and(is_over))))
}

/// The failure with the least certainty about its charges.
fn worst(failures: Vec<FailedPart>) -> StoreError {
    let mut worst = None;
    for FailedPart { error, .. } in failures {
        if worst.is_none() || matches!(error, StoreError::Unknown(_)) {
            worst = Some(error);
        }
    }
    worst.unwrap_or_else(|| StoreError::NotSent(Failure { kind: "none", message: "no store was asked".into() }))
}

/// The same failure, if other parts of the request may remain charged.
pub(super) fn as_unknown(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(_) => error,
        error => {
            let message = format!("a part of the request was not decided: {error}; another part was");
            StoreError::Unknown(Failure { kind: error.kind(), message })
        }
    }
}
