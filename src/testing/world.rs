//! What a case runs in: a limiter with its store, policies and clock.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::compare::verdict;
use super::coverage::Load;
use crate::app::decisions;
use crate::config::policy_file::test_file::Verdict;
use crate::config::settings::Settings;
use crate::engine::observer::{Charged, Observer, Silent, Tally};
use crate::engine::{Micros, PolicySet};
use crate::limiter::{Answer, Limiter, Options, Policies, Query, Undecided};
use crate::store::memory::Memory;
use crate::store::redis::{Endpoint, Redis, pipeline};
use crate::store::{Clock, ScanPosition, Store, StoreError, SystemClock};

/// How long a call to Redis may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How every key of a test in Redis begins.
const PREFIX: &str = "weir-test";

/// A clock that stands where the case has put it.
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the limits on trial said about the last request, which its answer does not tell.
#[derive(Clone, Default)]
struct Trials(Arc<Trial>);

#[derive(Default)]
struct Trial {
    is_met: AtomicBool,
    is_over: AtomicBool,
}

impl Trials {
    /// What was heard since it was last asked; none where no limit was on trial.
    fn take(&self) -> Option<Verdict> {
        let is_over = self.0.is_over.swap(false, Ordering::Relaxed);
        self.0.is_met.swap(false, Ordering::Relaxed).then(|| verdict(is_over))
    }
}

impl Observer for Trials {
    fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
        self.0.clone()
    }
}

impl Tally for Trial {
    fn charged(&self, charged: &Charged<'_>) {
        if charged.charge.limit.shadow {
            self.is_met.store(true, Ordering::Relaxed);
            self.is_over.fetch_or(charged.outcome.verdict.is_over(), Ordering::Relaxed);
        }
    }
}

/// A limiter, and what belongs to it.
pub(super) struct World<'r> {
    runtime: &'r Runtime,
    clock: Arc<VirtualClock>,
    redis: Option<Arc<Redis>>,
    policies: Arc<Policies>,
    pub(super) load: Rc<Load>,
    settings: Arc<Settings>,
    trials: Trials,
    limiter: Limiter,
}

impl<'r> World<'r> {
    /// An empty store under these policies. `number` is that of the case in this run: each has keys of its own in Redis.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub(super) fn new(
        runtime: &'r Runtime,
        redis: Option<&Endpoint>,
        number: u64,
        load: Rc<Load>,
        settings: &Arc<Settings>,
    ) -> Result<Self, StoreError> {
        let clock = Arc::new(VirtualClock(AtomicU64::new(0)));
        let redis = match redis {
            None => None,
            Some(endpoint) => {
                // Starting spawns tasks.
                let _entered = runtime.enter();
                let mut options = pipeline::Options::new(endpoint.clone());
                options.connections = 1;
                options.connect_timeout = TIMEOUT;
                // Of another run at the same time too.
                let run = format!("{}-{}", std::process::id(), SystemClock.now());
                let redis = Arc::new(Redis::start(options, &format!("{PREFIX}:{run}:{number}:")));
                runtime.block_on(redis.prepare(deadline()).get())?;
                Some(redis)
            }
        };
        let trials = Trials::default();
        let policies = Arc::new(Policies::new(load.policies.clone(), Arc::new(trials.clone())));
        let limiter = limiter(&policies, redis.as_ref(), &clock, settings);
        let settings = settings.clone();
        Ok(Self { runtime, clock, redis, policies, load, settings, trials, limiter })
    }

    /// Moves the clock.
    pub(super) fn set_now(&self, now: Micros) {
        self.clock.0.store(now, Ordering::Relaxed);
        if let Some(redis) = &self.redis {
            redis.set_now(now);
        }
    }

    /// Decides one request. Also answers what the limits on trial say; none where the request meets none.
    pub(super) fn decide(&self, query: &Query<'_>) -> Result<(Answer, Option<Verdict>), Undecided> {
        let started = Instant::now();
        let answer = if self.limiter.is_immediate() {
            self.limiter.decide_now(query, started, None)
        } else {
            self.runtime.block_on(self.limiter.decide(query, started, None, None))
        };
        let trial = self.trials.take();
        answer.map(|answer| (answer, trial))
    }

    /// Puts other policies in force; states stay.
    pub(super) fn swap(&mut self, load: Rc<Load>) {
        self.policies.replace(load.policies.clone());
        self.load = load;
    }

    /// Forgets all states.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub(super) fn forget(&mut self) -> Result<(), StoreError> {
        match &self.redis {
            Some(redis) => self.runtime.block_on(delete_all(&**redis)),
            None => {
                self.limiter = limiter(&self.policies, None, &self.clock, &self.settings);
                Ok(())
            }
        }
    }
}

fn limiter(
    policies: &Arc<Policies>,
    redis: Option<&Arc<Redis>>,
    clock: &Arc<VirtualClock>,
    settings: &Settings,
) -> Limiter {
    let store: Arc<dyn Store> = match redis {
        Some(redis) => redis.clone(),
        None => Arc::new(Memory::new(settings.memory.max_keys, clock.clone(), Arc::new(Silent))),
    };
    let options = Options {
        mode: settings.charging,
        modes: decisions::modes(settings),
        budget: TIMEOUT,
        clock: clock.clone(),
        ..Options::new(store)
    };
    Limiter::new(policies.clone(), options, Arc::new(Silent))
}

/// Deletes all keys of the store, which has a prefix of its own.
async fn delete_all(store: &dyn Store) -> Result<(), StoreError> {
    let mut next = Some(ScanPosition::default());
    while let Some(from) = next {
        let scanned = store.scan("", from, deadline()).get().await?;
        let keys: Vec<&str> = scanned.keys.iter().map(String::as_str).collect();
        store.reset(&keys, deadline()).get().await?;
        next = scanned.next;
    }
    Ok(())
}

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}
