//! Charges that are taken back: at once, or unless the whole request passes.
//!
//! Not here: which charges those are (execute.rs, ahead.rs), and what a settle gives back (holds.rs).

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use weir_engine::{Charge, Limit, Receipt};
use weir_store::{Store, Undo};

use super::calendar::Windows;
use super::stores::Stores;

/// A charge that can be taken back after its request has ended.
pub(super) struct Reversible {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: String,
    pub(super) limit: Limit,
    pub(super) receipt: Receipt,
}

/// Charges that are final only when the whole request passes. If this is dropped before (for example because the caller
/// is gone), they are taken back.
pub(super) struct Reserved {
    stores: Arc<Stores>,
    charges: Vec<Reversible>,
}

impl Reserved {
    /// No charges yet.
    pub(super) fn new(stores: &Arc<Stores>) -> Self {
        Self { stores: stores.clone(), charges: Vec::new() }
    }

    pub(super) fn add(&mut self, store: &Arc<dyn Store>, charge: &Charge<'_>, receipt: Receipt) {
        let (key, limit) = (charge.key.to_owned(), charge.limit.clone());
        self.charges.push(Reversible { store: store.clone(), key, limit, receipt });
    }

    /// Makes all charges final.
    pub(super) fn keep(&mut self) {
        self.charges.clear();
    }

    /// Takes all charges back, and waits for that until the deadline. Returns whether all were certainly taken back.
    pub(super) async fn undo_by(&mut self, deadline: Instant) -> bool {
        let Some(undoing) = self.undo() else {
            return true;
        };
        match tokio::time::timeout_at(deadline.into(), undoing).await {
            Ok(Ok(is_undone)) => is_undone,
            // The task continues without this one, or its runtime ends.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Starts to take all charges back, in a task that runs to its end even if nothing waits for it, with the time limit of a
    /// decision. The task returns whether all were taken back. None if there is nothing to take back.
    fn undo(&mut self) -> Option<JoinHandle<bool>> {
        if self.charges.is_empty() {
            return None;
        }
        // Without a runtime no store can be called.
        let runtime = Handle::try_current().ok()?;
        let (stores, charges) = (self.stores.clone(), std::mem::take(&mut self.charges));
        let deadline = Instant::now() + stores.options.budget;
        Some(runtime.spawn(async move {
            let is_undone = stores.undo(&charges, deadline).await;
            stores.observer.undone(is_undone);
            is_undone
        }))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Nothing waits for the task, so its result is not used.
        drop(self.undo());
    }
}

impl Stores {
    /// Takes charges back, in all stores at the same time. Returns whether all were certainly taken back. weir does not
    /// repeat a failed call: it may have been executed.
    pub(super) async fn undo(&self, charges: &[Reversible], deadline: Instant) -> bool {
        let mut calls: Vec<(&Arc<dyn Store>, Vec<Undo<'_>>)> = Vec::new();
        for Reversible { store, key, limit, receipt } in charges {
            let undo = Undo { key, limit, receipt: *receipt, bounds: None };
            // A charge of a calendar has its own call: only that one is sent again with other boundaries.
            let is_shared = |undo: &Undo<'_>| undo.limit.calendar().is_none();
            let of_store = calls.iter_mut().find(|(of, undos)| Arc::ptr_eq(of, store) && undos.iter().all(is_shared));
            match of_store {
                Some((_, undos)) if is_shared(&undo) => undos.push(undo),
                Some(_) | None => calls.push((store, vec![undo])),
            }
        }
        let calls = calls.into_iter().map(|(store, undos)| self.undo_by_call(store, undos, deadline));
        let is_undone = join_all(calls).await.into_iter().all(|is_undone| is_undone);
        // Requests may have been denied because of these charges.
        if let Some(cache) = &self.options.deny_cache {
            charges.iter().for_each(|charge| cache.forget(&charge.key));
        }
        is_undone
    }

    async fn undo_by_call(&self, store: &Arc<dyn Store>, mut undos: Vec<Undo<'_>>, deadline: Instant) -> bool {
        let mut windows = Windows::default();
        loop {
            for undo in &mut undos {
                undo.bounds = self.bounds(undo.limit, windows);
            }
            let undone = store.undo(&undos, deadline).get().await;
            if !windows.are_stale(&undone) {
                return undone.is_ok();
            }
        }
    }
}
