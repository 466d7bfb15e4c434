//! Takes hits ahead for a lease, and gives back the rest at the end of the lease.
//!
//! Each lease runs in its own task. If the caller disconnects, the task still finishes, so no hits are lost. leases.rs
//! holds the hits and decides when to take them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use weir_engine::observer::{LeaseHits, LeaseResult, Observer};
use weir_engine::{Bounds, Charge, Hits, Lease, Limit, Mode, Operation, Outcome, Receipt, Role};
use weir_store::{Store, StoreError, Undo};

use super::Options;
use super::calendar;
use super::deny_cache::DenyCache;
use super::leases::{Granted, Leases};
use super::reserved::undo_all;
use super::unanswered::Unanswered;

/// Hits to take ahead of one key.
pub(super) struct Ahead {
    taking: Taking,
    store: Arc<dyn Store>,
    limit: Limit,
    lease: Lease,
    owner: u32,
    bounds: Option<Bounds>,
    hits: Hits,
    observer: Arc<dyn Observer>,
    deny_cache: Option<Arc<DenyCache>>,
    unanswered: Arc<Unanswered>,
    budget: Duration,
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
    fn end(&mut self, remaining: Option<Hits>, granted: Option<Granted>) -> Option<u64> {
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

impl Ahead {
    /// Starts a task that takes hits ahead of the key of this charge. The caller does not wait for it.
    pub(super) fn begin(
        options: &Options,
        observer: &Arc<dyn Observer>,
        store: &Arc<dyn Store>,
        charge: &Charge<'_>,
        bounds: Option<Bounds>,
        hits: Hits,
    ) {
        let taking = Taking { leases: options.leases.clone(), key: charge.key.to_owned(), is_over: false };
        // Without a runtime there is no store to ask. During shutdown, weir takes no hits ahead.
        let Ok(runtime) = Handle::try_current() else { return };
        let Some((lease, ends)) = charge.limit.lease.zip(options.leases.listen()) else { return };
        let ahead = Self {
            taking,
            store: store.clone(),
            limit: charge.limit.clone(),
            lease,
            owner: charge.owner,
            bounds,
            hits,
            observer: observer.clone(),
            deny_cache: options.deny_cache.clone(),
            unanswered: options.unanswered.clone(),
            budget: options.budget,
            ends,
        };
        runtime.spawn(ahead.run());
    }

    async fn run(mut self) {
        let sent = self.taking.leases.now();
        let outcome = match self.charge().await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.observer.lease_asked(LeaseResult::Failed);
                if let StoreError::Unknown(_) = error {
                    // The store may have charged these hits, but no lease admits requests with them.
                    self.observer.lease_hits(LeaseHits::Leased, self.hits);
                    self.observer.lease_hits(LeaseHits::Lost, self.hits);
                }
                // No request begins another call before the store has answered one.
                self.taking.end(Some(0), None);
                return;
            }
        };
        let (kind, now) = (self.limit.kind(), outcome.now);
        let remaining = Some(outcome.remaining);
        let Some((receipt, step_after)) = outcome.receipt.zip(kind.step_after(&outcome.state, now)) else {
            self.observer.lease_asked(LeaseResult::Denied);
            self.taking.end(remaining, None);
            return;
        };
        self.observer.lease_asked(LeaseResult::Taken);
        self.observer.lease_hits(LeaseHits::Leased, receipt.hits);
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
        self.observer.lease_hits(LeaseHits::Used, receipt.hits - left);
        if left > 0 {
            let ends_with_step = step_after <= self.lease.us() && !kind.is_summary();
            let came_to = if ends_with_step { LeaseHits::Ended } else { self.give_back(&outcome, left).await };
            self.observer.lease_hits(came_to, left);
        }
    }

    /// Charges all hits or none. If the store needs other calendar windows, weir retries once with the windows around
    /// the store's clock. [cl-3]
    async fn charge(&mut self) -> Result<Outcome, StoreError> {
        match self.charge_once().await {
            Err(StoreError::StaleBounds { now }) => {
                self.bounds = calendar::computed_bounds(&self.limit, now);
                self.charge_once().await
            }
            answer => answer,
        }
    }

    async fn charge_once(&self) -> Result<Outcome, StoreError> {
        let charge = Charge {
            key: &self.taking.key,
            limit: &self.limit,
            operation: Operation::Consume(self.hits),
            group: 0,
            role: Role::Enforced,
            owner: self.owner,
            bounds: self.bounds,
        };
        let charges = [charge];
        let decided = self.store.decide(&charges, Mode::Atomic, Instant::now() + self.budget).get().await;
        decided.map(|decision| decision.outcomes.into_iter().next().unwrap_or_else(|| unreachable!("one charge")))
    }

    /// Gives back the remaining hits. weir does not retry: a failed call may have been executed. [ls-6]
    async fn give_back(&self, outcome: &Outcome, left: Hits) -> LeaseHits {
        let Some(receipt) = outcome.receipt else { return LeaseHits::Lost };
        let receipt = Receipt { hits: left, ..receipt };
        let undo = Undo { key: &self.taking.key, limit: &self.limit, receipt, bounds: self.bounds };
        let is_undone = undo_all(&[(&self.store, undo)], Instant::now() + self.budget).await == [true];
        // These hits may have caused the denials in the cache. Shares of the limit that were crossed meanwhile may be
        // crossed again.
        if let Some(cache) = &self.deny_cache {
            cache.forget(&self.taking.key);
        }
        if !self.limit.alert_at.is_empty() {
            self.unanswered.add(&self.taking.key);
        }
        if is_undone { LeaseHits::GivenBack } else { LeaseHits::Lost }
    }
}
