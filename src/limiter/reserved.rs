//! Charges that are taken back unless the whole request passes.
//!
//! Not here: which charges those are (split.rs).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use weir_engine::observer::Observer;
use weir_engine::{Bounds, Charge, Limit, Outcome, Receipt, Rise};
use weir_store::{Store, StoreError, Undo};

use super::deny_cache::DenyCache;
use super::unanswered::Unanswered;
use super::{Options, calendar};

/// Charges that are final only when the whole request passes. If this is dropped before (for example because the caller
/// is gone), they are taken back.
pub(super) struct Reserved {
    charges: Vec<Taken>,
    deny_cache: Option<Arc<DenyCache>>,
    unanswered: Arc<Unanswered>,
    observer: Arc<dyn Observer>,
    budget: Duration,
}

struct Taken {
    store: Arc<dyn Store>,
    key: String,
    limit: Limit,
    receipt: Receipt,
    bounds: Option<Bounds>,
    /// Whether the charge crossed a share of its limit. This is reported only if the charge is final.
    crossed: bool,
}

impl Reserved {
    /// No charges yet. Taking them back may take as long as the time limit of a decision.
    pub(super) fn new(options: &Options, observer: Arc<dyn Observer>) -> Self {
        let Options { deny_cache, unanswered, budget, .. } = options;
        let (deny_cache, unanswered) = (deny_cache.clone(), unanswered.clone());
        Self { charges: Vec::new(), deny_cache, unanswered, observer, budget: *budget }
    }

    pub(super) fn add(&mut self, store: &Arc<dyn Store>, charge: &Charge<'_>, outcome: &Outcome, receipt: Receipt) {
        let crossed = !charge.limit.alert_at.is_empty()
            && Rise::of_outcome(charge, outcome).is_some_and(|rise| rise.shares(charge).next().is_some());
        self.charges.push(Taken {
            store: store.clone(),
            key: charge.key.to_owned(),
            limit: charge.limit.clone(),
            receipt,
            bounds: charge.bounds,
            crossed,
        });
    }

    /// Makes all charges final.
    pub(super) fn keep(&mut self) {
        self.charges.clear();
    }

    /// Starts to take all charges back, in a task that runs to its end even if nothing waits for it. The task returns
    /// whether all were taken back. None if there is nothing to take back.
    pub(super) fn undo(&mut self) -> Option<JoinHandle<bool>> {
        if self.charges.is_empty() {
            return None;
        }
        // Without a runtime no store can be called.
        let runtime = Handle::try_current().ok()?;
        let charges = std::mem::take(&mut self.charges);
        // Charges that came in between found the count above the share.
        charges.iter().filter(|taken| taken.crossed).for_each(|taken| self.unanswered.add(&taken.key));
        let (deny_cache, deadline) = (self.deny_cache.clone(), Instant::now() + self.budget);
        let observer = self.observer.clone();
        Some(runtime.spawn(async move {
            let undos: Vec<_> = charges.iter().map(|taken| (&taken.store, taken.undo())).collect();
            let undone = undo_all(&undos, deadline).await.into_iter().all(|is_undone| is_undone);
            observer.undone(undone);
            // Requests denied in between may have been denied because of these charges.
            if let Some(cache) = deny_cache {
                charges.iter().for_each(|taken| cache.forget(&taken.key));
            }
            undone
        }))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Nothing waits for the task, so its result is not used.
        drop(self.undo());
    }
}

/// The undos of one store, and their positions in the list of all.
type OfStore<'a> = (&'a Arc<dyn Store>, Vec<usize>, Vec<Undo<'a>>);

/// Takes charges back, in all stores at the same time. Returns whether each store has confirmed it.
pub(super) async fn undo_all(undos: &[(&Arc<dyn Store>, Undo<'_>)], deadline: Instant) -> Vec<bool> {
    let mut together: Vec<OfStore<'_>> = Vec::new();
    let mut calendars = Vec::new();
    for (at, &(store, undo)) in undos.iter().enumerate() {
        if undo.bounds.is_some() {
            calendars.push(at);
            continue;
        }
        match together.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, store)) {
            Some((_, places, of_store)) => {
                places.push(at);
                of_store.push(undo);
            }
            None => together.push((store, vec![at], vec![undo])),
        }
    }
    let of_stores = join_all(together.iter().map(|(store, _, undos)| store.undo(undos, deadline).get()));
    let alone = join_all(calendars.iter().map(|&at| undo_in_its_calendar(undos[at].0, undos[at].1, deadline)));
    let (of_stores, alone) = join(of_stores, alone).await;
    let mut confirmed = vec![false; undos.len()];
    for ((_, places, _), undone) in together.iter().zip(of_stores) {
        places.iter().for_each(|&at| confirmed[at] = undone.is_ok());
    }
    for (&at, is_undone) in calendars.iter().zip(alone) {
        confirmed[at] = is_undone;
    }
    confirmed
}

/// Takes back a charge of a calendar window. If the store's clock is outside of the charge's boundaries, calls the
/// store once more, with the boundaries around its clock. [cl-3]
async fn undo_in_its_calendar(store: &Arc<dyn Store>, mut undo: Undo<'_>, deadline: Instant) -> bool {
    match store.undo(std::slice::from_ref(&undo), deadline).get().await {
        Err(StoreError::StaleBounds { now }) => undo.bounds = calendar::computed_bounds(undo.limit, now),
        end => return end.is_ok(),
    }
    store.undo(std::slice::from_ref(&undo), deadline).get().await.is_ok()
}

impl Taken {
    fn undo(&self) -> Undo<'_> {
        Undo { key: &self.key, limit: &self.limit, receipt: self.receipt, bounds: self.bounds }
    }
}
