//! Takes hits ahead for a lease, and gives back what is left of it at its end.
//!
//! Each call is a task of its own. A caller that goes away meanwhile ends neither, so it leaves no hits behind that no process holds.
//! Not here: what is held (leases.rs), and when hits are taken ahead.

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
    /// Whether the process ends.
    ends: watch::Receiver<bool>,
}

/// The key, for which no other call takes hits ahead meanwhile.
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
    /// Begins to take hits ahead of the key of this charge. None of it is waited for.
    pub(super) fn begin(
        options: &Options,
        observer: &Arc<dyn Observer>,
        store: &Arc<dyn Store>,
        charge: &Charge<'_>,
        bounds: Option<Bounds>,
        hits: Hits,
    ) {
        let taking = Taking { leases: options.leases.clone(), key: charge.key.to_owned(), is_over: false };
        // Without a runtime no store could be asked, and a process that ends takes nothing more.
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
                    // They may have been charged, and nobody admits by them.
                    self.observer.lease_hits(LeaseHits::Leased, self.hits);
                    self.observer.lease_hits(LeaseHits::Lost, self.hits);
                }
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
                // Whether it ends by itself or with the process, it ends in the same way.
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

    /// Charges the hits, all or none. A store that finds no window of the calendar is asked once more, with those around its
    /// clock. [cl-3]
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

    /// Gives back the hits that were left at the end. Once: a call that failed may have been made. [ls-6]
    async fn give_back(&self, outcome: &Outcome, left: Hits) -> LeaseHits {
        let Some(receipt) = outcome.receipt else { return LeaseHits::Lost };
        let receipt = Receipt { hits: left, ..receipt };
        let undo = Undo { key: &self.taking.key, limit: &self.limit, receipt, bounds: self.bounds };
        let is_undone = undo_all(&[(&self.store, undo)], Instant::now() + self.budget).await == [true];
        // What was denied meanwhile may have been denied because of these hits, and shares that others found crossed may be crossed
        // again.
        if let Some(cache) = &self.deny_cache {
            cache.forget(&self.taking.key);
        }
        if !self.limit.alert_at.is_empty() {
            self.unanswered.add(&self.taking.key);
        }
        if is_undone { LeaseHits::GivenBack } else { LeaseHits::Lost }
    }
}
