//! The environment of simulations and tests: a limiter with its store, its policies and a clock that they set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_engine::observer::Observer;
use weir_engine::{Micros, PolicySet};
use weir_limiter::{Answer, Limiter, Options, Policies, Query, Undecided};
use weir_rls::configured;
use weir_settings::Settings;
use weir_store::memory::Memory;
use weir_store::{Clock, Store};

/// The time that a store outside of this process has for a decision.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A clock that only [`World::set_now`] changes.
#[derive(Debug, Default)]
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        self.0.load(Ordering::Relaxed)
    }
}

/// A limiter with its own clock.
pub struct World {
    clock: Arc<VirtualClock>,
    policies: Arc<Policies>,
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    limiter: Limiter,
    started: Instant,
}

impl World {
    /// A limiter with these policies and an empty memory store.
    #[must_use]
    pub fn new(policies: Arc<PolicySet>, settings: &Arc<Settings>, observer: Arc<dyn Observer>) -> Self {
        Self::made(policies, settings, observer, None)
    }

    /// A limiter with these policies and another store, whose clock [`World::set_now`] does not set.
    #[must_use]
    pub fn in_store(
        policies: Arc<PolicySet>,
        settings: &Arc<Settings>,
        observer: Arc<dyn Observer>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::made(policies, settings, observer, Some(store))
    }

    fn made(
        policies: Arc<PolicySet>,
        settings: &Arc<Settings>,
        observer: Arc<dyn Observer>,
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let policies = Arc::new(Policies::new(policies, observer.clone()));
        let store = store.unwrap_or_else(|| memory(&clock, settings, &observer));
        let limiter = limiter(&policies, store, &clock, settings, &observer);
        Self { clock, policies, settings: settings.clone(), observer, limiter, started: Instant::now() }
    }

    /// Moves the clock.
    pub fn set_now(&self, now: Micros) {
        self.clock.0.store(now, Ordering::Relaxed);
    }

    /// Makes the decisions.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Decides one request by the memory store.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn decide_now(&self, query: &Query<'_>) -> Result<Answer, Undecided> {
        // The memory store has no deadline, so the start of a request does not matter.
        self.limiter.decide_now(query, self.started, None)
    }

    /// Puts other policies in force and keeps all states.
    pub fn swap(&self, policies: Arc<PolicySet>) {
        self.policies.replace(policies);
    }

    /// Removes all states from the memory store.
    pub fn forget(&mut self) {
        let store = memory(&self.clock, &self.settings, &self.observer);
        self.limiter = limiter(&self.policies, store, &self.clock, &self.settings, &self.observer);
    }
}

fn memory(clock: &Arc<VirtualClock>, settings: &Settings, observer: &Arc<dyn Observer>) -> Arc<dyn Store> {
    Arc::new(Memory::new(settings.memory.max_keys, clock.clone(), observer.clone()))
}

fn limiter(
    policies: &Arc<Policies>,
    store: Arc<dyn Store>,
    clock: &Arc<VirtualClock>,
    settings: &Settings,
    observer: &Arc<dyn Observer>,
) -> Limiter {
    let options = Options {
        mode: settings.charging,
        modes: configured::modes(settings),
        budget: TIMEOUT,
        clock: clock.clone(),
        ..Options::new(store)
    };
    Limiter::new(policies.clone(), options, observer.clone())
}
