//! Charges hits ahead for a lease, and takes the rest back at the end of the lease.
//!
//! Each lease runs in its own task. If the caller disconnects, the task still finishes, so no hits are lost. leases.rs
//! holds the hits and decides when to take them.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use weir_engine::observer::{Crossed, LeaseHits, LeaseResult, LimitOf};
use weir_engine::{Charge, Count, Hits, Lease, Limit, Mode, Operation, Outcome, Receipt, Rise};
use weir_store::{Store, StoreError};

use super::calendar::Windows;
use super::leases::{Granted, Leases};
use super::policies::InForce;
use super::request::Request;
use super::stores::Stores;
use super::undo::Reversible;

/// Hits to take ahead of one key.
struct Ahead {
    taking: Taking,
    stores: Arc<Stores>,
    store: Arc<dyn Store>,
    limit: Limit,
    lease: Lease,
    owner: u32,
    /// The limit's position in its rule.
    position: u8,
    hits: Hits,
    /// The policies that report crossings. None if the limit has no alerts, and after its call.
    in_force: Option<Arc<InForce>>,
    /// True during shutdown.
    ends: watch::Receiver<bool>,
}

/// The key. Its owner is the only task that takes hits ahead of it.
struct Taking {
    leases: Arc<Leases>,
    key: String,
    is_over: bool,
}

impl Taking {
    fn end(&mut self, remaining: Option<Count>, granted: Option<Granted>) -> Option<u64> {
        self.is_over = true;
        self.leases.asked(&self.key, remaining, granted)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(None, None);
        }
    }
}

/// How long an undo of the rest of a lease may take. No caller waits for it, and at the end of the process the
/// drain bounds it.
const UNDO_MAX: Duration = Duration::from_secs(5);

impl Stores {
    /// Starts a task that takes hits ahead of the key of this charge. The caller does not wait for it. [ls-2]
    pub(super) fn take_ahead(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        charge: &Charge<'_>,
        hits: Hits,
    ) {
        let leases = &self.options.leases;
        let taking = Taking { leases: leases.clone(), key: charge.key.to_owned(), is_over: false };
        // Without a runtime there is no store to ask. During shutdown, weir takes no hits ahead.
        let Ok(runtime) = Handle::try_current() else { return };
        let Some((lease, ends)) = charge.limit.lease.zip(leases.listen()) else { return };
        let ahead = Ahead {
            taking,
            stores: self.clone(),
            store: store.clone(),
            limit: charge.limit.clone(),
            lease,
            owner: charge.owner,
            position: charge.origin.position,
            hits,
            in_force: (!charge.limit.alert_at.is_empty()).then(|| request.in_force.clone()),
            ends,
        };
        runtime.spawn(ahead.run());
    }
}

impl Ahead {
    async fn run(mut self) {
        let sent = self.taking.leases.now();
        let stores = self.stores.clone();
        let observer = &stores.observer;
        let outcome = match self.charge().await {
            Ok(outcome) => outcome,
            Err(error) => {
                observer.lease_asked(LeaseResult::Failed);
                if let StoreError::Unknown(_) = error {
                    // The store may have charged these hits, but no lease admits requests with them.
                    observer.lease_hits(LeaseHits::Leased, self.hits);
                    observer.lease_hits(LeaseHits::Lost, self.hits);
                    if self.in_force.is_some() {
                        observer.alerts_lost(1);
                    }
                }
                // No request begins another call before the store has answered one.
                self.taking.end(Some(0), None);
                return;
            }
        };
        self.report_shares(&outcome);
        let (kind, now) = (self.limit.kind(), outcome.now);
        let remaining = Some(outcome.remaining);
        let Some((receipt, step_after)) = outcome.receipt.zip(kind.step_after(&outcome.state, now)) else {
            observer.lease_asked(LeaseResult::Denied);
            self.taking.end(remaining, None);
            return;
        };
        observer.lease_asked(LeaseResult::Taken);
        observer.lease_hits(LeaseHits::Leased, receipt.hits);
        let (lasts, received) = (self.lease.lasts(step_after), self.taking.leases.now());
        let (requests, state, until) = (self.limit.requests(), outcome.state, sent + lasts);
        let granted = Granted { requests, receipt, state, now, received, until };
        let generation = self.taking.end(remaining, Some(granted));
        let left = match generation {
            None => receipt.hits,
            Some(generation) => {
                let lasts = Duration::from_micros(until.saturating_sub(received));
                // The lease ends when its time is over or when the process shuts down.
                let _ = tokio::time::timeout(lasts, self.ends.wait_for(|ends| *ends)).await;
                self.taking.leases.end(&self.taking.key, generation)
            }
        };
        observer.lease_hits(LeaseHits::Used, receipt.hits - left);
        if left > 0 {
            let ends_with_step = step_after <= self.lease.us() && !kind.is_summary();
            let came_to = if ends_with_step { LeaseHits::Ended } else { self.undo(&outcome, left).await };
            observer.lease_hits(came_to, left);
        }
    }

    fn charged(&self) -> Charge<'_> {
        let operation = Operation::Consume(self.hits);
        Charge { owner: self.owner, ..Charge::alone(&self.taking.key, &self.limit, operation) }
    }

    /// Charges all hits or none.
    async fn charge(&self) -> Result<Outcome, StoreError> {
        let mut windows = Windows::default();
        let decided = loop {
            let charge = Charge { bounds: self.stores.bounds(&self.limit, windows), ..self.charged() };
            let deadline = Instant::now() + self.stores.options.budget;
            let decided = self.store.decide(slice::from_ref(&charge), Mode::Atomic, deadline).get().await;
            if !windows.are_stale(&decided) {
                break decided?;
            }
        };
        Ok(decided.outcomes.into_iter().next().unwrap_or_else(|| unreachable!("one charge")))
    }

    /// Reports the shares that the charge crossed. [al-4]
    fn report_shares(&mut self, outcome: &Outcome) {
        let Some(in_force) = self.in_force.take() else { return };
        let charge = self.charged();
        let Some(rule) = in_force.policies.rules().get(self.owner as usize) else { return };
        let Some(rise) = Rise::of_outcome(&charge, outcome) else { return };
        let limit = LimitOf::Rule(rule, self.position.into());
        for share in rise.shares(&charge) {
            let crossed = Crossed { limit, charge: &charge, share, window: rise.window, at: outcome.now };
            in_force.tally.crossed(&crossed);
        }
    }

    /// Takes back the remaining hits. [ls-6]
    async fn undo(self, outcome: &Outcome, left: Hits) -> LeaseHits {
        let Some(receipt) = outcome.receipt else { return LeaseHits::Lost };
        let receipt = Receipt { hits: left, ..receipt };
        let Self { taking, stores, store, limit, .. } = self;
        let rest = Reversible { store, key: taking.key.clone(), limit, receipt };
        let is_undone = stores.undo(slice::from_ref(&rest), Instant::now() + UNDO_MAX).await;
        if is_undone { LeaseHits::GivenBack } else { LeaseHits::Lost }
    }
}
