//! One call to one store that decides: its calendar windows, what weir learns from the answer, and what it reports, also of
//! the holds that it takes back.
//!
//! Not here: which calls a request needs (execute.rs).

use std::sync::Arc;
use std::time::Instant;

use weir_engine::observer::{HoldHits, HoldResult, Observer, StoreCall};
use weir_engine::{Charge, Decision};
use weir_store::{Before, Failure, Reply, RowVersion, Store, StoreError, Undo};

use super::calendar::Windows;
use super::deny_cache::{DenyCache, ForgetOnDrop};
use super::request::Request;
use super::stores::Stores;

/// The kind of failure of a part whose row has changed and which is not decided again. [rw-2]
pub(super) const STALE_ROW: &str = "stale_row";

/// What one call sends.
pub(super) struct Sent<'c, 'a> {
    /// The rows to compare. [rw-2]
    pub(super) rows: &'c [RowVersion<'c>],
    /// The holds that a settle takes back. [hd-5]
    pub(super) undos: &'c mut [Undo<'a>],
    pub(super) charges: &'c mut [Charge<'a>],
}

/// A call in flight with charges that can cross shares. Counts them if their answer is lost, also if the caller goes away.
/// [al-4]
struct Crossing<'a> {
    observer: &'a dyn Observer,
    charges: u64,
}

/// The values that the cache of denials needs from before the store call.
struct Learning<'a> {
    cache: &'a DenyCache,
    _refunds: ForgetOnDrop<'a>,
    generation: u64,
    sent: Instant,
}

impl Stores {
    /// Calls one store for a decision over charges that it can decide together. Counts the holds that were taken back.
    ///
    /// The decision is written in place: it is large, and each level that returned it would copy it.
    pub(super) async fn call(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        sent: Sent<'_, '_>,
        decision: &mut Decision,
    ) -> Result<(), StoreError> {
        let mut windows = Windows::default();
        let (began, mut result) = loop {
            for charge in &mut *sent.charges {
                charge.bounds = self.bounds(charge.limit, windows);
            }
            for undo in &mut *sent.undos {
                undo.bounds = self.bounds(undo.limit, windows);
            }
            // The time of a call in this process is a part of a trace only.
            let began = (request.trace.is_some() || !store.is_immediate()).then(Instant::now);
            let result = self.send(store, request, &sent, decision, began).await;
            if !windows.are_stale(&result) {
                break (began, result);
            }
        };
        if let Err(StoreError::StaleRow { found }) = &result {
            self.learn_rows(sent.rows, found);
            if request.can_repeat {
                return result;
            }
            let message = "the row of a descriptor changed each time that it was read".to_owned();
            result = Err(StoreError::NotSent(Failure { kind: STALE_ROW, message }));
        }
        if !sent.undos.is_empty() {
            self.count_settled(request, sent.undos, result.is_ok().then_some(&*decision));
        }
        if !store.is_immediate() {
            let error = result.as_ref().err();
            let was_asked = error.is_none_or(StoreError::was_asked);
            let took = if was_asked { began.map(|began| began.elapsed()) } else { None };
            self.observer.store_called(error.map(StoreError::kind), took);
        }
        result
    }

    /// Calls the store once. The cache of denials stores the answer of a store outside of this process. `began` is the time
    /// of the call, for a trace and a store outside of this process.
    async fn send(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        sent: &Sent<'_, '_>,
        decision: &mut Decision,
        began: Option<Instant>,
    ) -> Result<(), StoreError> {
        let Sent { rows, undos, charges } = sent;
        // The store may start at once, so this must come first.
        let (mut learning, mut crossing) = (None, None);
        if !store.is_immediate() {
            let cache = self.options.deny_cache.as_deref();
            learning = cache.zip(began).map(|(cache, began)| Learning::new(cache, charges, began));
            crossing = Crossing::of(&*self.observer, charges);
        }
        let mut write = |answer: Result<Decision, StoreError>| answer.map(|answer| *decision = answer);
        let before = Before { row_versions: rows, undos };
        // In two steps, so that a waiting request does not reserve memory for an answer that is ready.
        let reply = match store.decide_after(before, charges, request.mode, request.deadline) {
            Reply::Ready(answer) => Err(write(answer)),
            Reply::Pending(answer) => Ok(answer),
        };
        let result = match reply {
            Ok(pending) => write(pending.await),
            Err(result) => result,
        };
        if let Some(crossing) = crossing
            && !matches!(result, Err(StoreError::Unknown(_)))
        {
            crossing.answered();
        }
        if let (Some(learning), Ok(())) = (learning, &result) {
            learning.learn(charges, decision);
        }
        if let Some((trace, began)) = request.trace.zip(began) {
            trace.call_ended(store_call(store, charges, result.as_ref().err(), began));
        }
        result
    }

    /// Counts the holds that a call has taken back before its decision. Without a decision they are lost. [hd-8]
    pub(super) fn count_settled(&self, request: &Request<'_, '_>, undos: &[Undo<'_>], decision: Option<&Decision>) {
        for (at, undo) in undos.iter().enumerate() {
            let hits = decision.and_then(|decision| decision.given_back.get(at)).map_or(0, |hits| *hits);
            let result = match decision {
                None => HoldResult::Lost,
                Some(_) if hits >= undo.receipt.hits => HoldResult::Settled,
                Some(decision) if undo.limit.kind().within(undo.bounds).has_ended(undo.receipt, decision.now) => {
                    HoldResult::Late
                }
                Some(_) => HoldResult::Again,
            };
            request.report_holds(result, 1);
            request.report_hold_hits(HoldHits::GivenBack, hits.into());
            // These hits may have caused the denials in the cache.
            if let Some(cache) = &self.options.deny_cache {
                cache.forget(undo.key);
            }
        }
    }
}

/// How many of these charges can cross a share.
pub(super) fn can_cross<'a>(charges: impl Iterator<Item = &'a Charge<'a>>) -> u64 {
    charges.filter(|charge| charge.operation.adds() && !charge.limit.alert_at.is_empty()).count() as u64
}

impl<'a> Crossing<'a> {
    fn of(observer: &'a dyn Observer, charges: &[Charge<'_>]) -> Option<Self> {
        let charges = can_cross(charges.iter());
        (charges > 0).then_some(Self { observer, charges })
    }

    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Crossing<'_> {
    fn drop(&mut self) {
        self.observer.alerts_lost(self.charges);
    }
}

impl<'a> Learning<'a> {
    fn new(cache: &'a DenyCache, charges: &'a [Charge<'a>], sent: Instant) -> Self {
        let refunds = cache.forget_refunds(charges);
        Self { cache, _refunds: refunds, generation: cache.generation(), sent }
    }

    /// A denial under a row ends with the row. Only the store knows when, so the denial is not stored. [rw-2] An answer
    /// without a denial can end a known one. [dn-5]
    fn learn(&self, charges: &[Charge<'_>], decision: &Decision) {
        if self.cache.is_empty() && !decision.outcomes.iter().any(|outcome| outcome.verdict.is_over()) {
            return;
        }
        let received = Instant::now();
        for (charge, outcome) in charges.iter().zip(&decision.outcomes) {
            if !charge.origin.has_row {
                self.cache.insert(charge, outcome, self.sent, received, self.generation);
            }
        }
    }
}

#[cold]
fn store_call(store: &Arc<dyn Store>, charges: &[Charge<'_>], error: Option<&StoreError>, began: Instant) -> StoreCall {
    StoreCall {
        store: store.name(),
        place: store.place().map(str::to_owned),
        charges: charges.len(),
        error: error.map(StoreError::kind),
        took: began.elapsed(),
        is_immediate: store.is_immediate(),
    }
}
