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

/// Charges that stand until the whole request is known to pass. Dropped before that (its caller is gone, for example), they are
/// taken back all the same.
pub(super) struct Reserved {
    charges: Vec<Taken>,
    deny_cache: Option<Arc<DenyCache>>,
    unanswered: Arc<Unanswered>,
    observer: Arc<dyn Observer>,
    budget: Duration,
}

pub(super) struct Taken {
    store: Arc<dyn Store>,
    key: String,
    limit: Limit,
    receipt: Receipt,
    bounds: Option<Bounds>,
    /// It crossed a share of its limit, which is reported only if it stands.
    crossed: bool,
}

impl Reserved {
    /// No charges yet. Taking them back may take as long as the budget of a decision.
    pub(super) fn new(options: &Options, observer: Arc<dyn Observer>) -> Self {
        let Options { deny_cache, unanswered, budget, .. } = options;
        let (deny_cache, unanswered) = (deny_cache.clone(), unanswered.clone());
        Self { charges: Vec::new(), deny_cache, unanswered, observer, budget: *budget }
    }

    pub(super) fn add(&mut self, store: &Arc<dyn Store>, charge: &Charge<'_>, outcome: &Outcome, receipt: Receipt) {
        let crossed = !charge.limit.alert_at.is_empty()
            && Rise::of_outcome(charge, outcome).is_some_and(|rise| rise.shares(charge).next().is_some());
        let taken = Taken::new(store, charge.key, charge.limit, receipt, charge.bounds);
        self.charges.push(Taken { crossed, ..taken });
    }

    /// Lets everything stand.
    pub(super) fn keep(&mut self) {
        self.charges.clear();
    }

    /// Begins to take everything back, in a task that ends also if no one waits for it. It returns whether nothing
    /// stands any more. None if there is nothing to take back.
    pub(super) fn undo(&mut self) -> Option<JoinHandle<bool>> {
        if self.charges.is_empty() {
            return None;
        }
        // Without a runtime no store could be asked.
        let runtime = Handle::try_current().ok()?;
        let charges = std::mem::take(&mut self.charges);
        // Charges that came meanwhile found the count above the share.
        charges.iter().filter(|taken| taken.crossed).for_each(|taken| self.unanswered.add(&taken.key));
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

/// Takes charges back, each store's at once. Returns whether all stores have confirmed it.
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
    /// Hits of a charge that crossed nothing.
    pub(super) fn new(
        store: &Arc<dyn Store>,
        key: &str,
        limit: &Limit,
        receipt: Receipt,
        bounds: Option<Bounds>,
    ) -> Self {
        let (store, key, limit) = (store.clone(), key.to_owned(), limit.clone());
        Self { store, key, limit, receipt, bounds, crossed: false }
    }

    fn undo(&self) -> Undo<'_> {
        Undo { key: &self.key, limit: &self.limit, receipt: self.receipt, bounds: self.bounds }
    }

    /// Takes a charge of a calendar window back. The store's clock may have left the boundaries of the charge: then the
    /// store is asked once more, with those around its clock. [cl-3]
    pub(super) async fn undo_in_its_calendar(&self, deadline: Instant) -> bool {
        let mut undo = self.undo();
        match self.store.undo(std::slice::from_ref(&undo), deadline).get().await {
            Err(StoreError::StaleBounds { now }) => undo.bounds = calendar::computed_bounds(&self.limit, now),
            end => return end.is_ok(),
        }
        self.store.undo(std::slice::from_ref(&undo), deadline).get().await.is_ok()
    }
}
