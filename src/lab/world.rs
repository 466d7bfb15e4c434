//! The environment of simulations, comparisons and tests: a limiter with its store, its policies and a clock that the caller sets.
//!
//! Requests with a duration settle their holds at its end (world/in_flight.rs).

mod in_flight;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use weir_engine::observer::Observer;
use weir_engine::{Micros, PolicySet};
use weir_limiter::rows::RowTable;
use weir_limiter::rows::known::KnownRows;
use weir_limiter::{Answer, HeldCharge, Limiter, Options, Policies, Query, Undecided};
use weir_policies::GivenRows;
use weir_rls::configured;
use weir_rls::convert::Bounds;
use weir_rls::proto::RateLimitRequest;
use weir_settings::Settings;
use weir_store::memory::Memory;
use weir_store::redis::{Endpoint, Redis, pipeline};
use weir_store::{Clock, Inspected as _, ScanPosition, Store, StoreError, SystemClock};

use self::in_flight::InFlight;

/// The prefix of all keys in Redis.
const PREFIX: &str = "weir-test";
/// The time limit of Redis for a decision.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A clock that only [`World::set_now`] changes.
#[derive(Debug, Default)]
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        self.0.load(Ordering::Relaxed)
    }
}

/// A Redis in place of the memory store, with a part of its keys.
#[derive(Clone)]
pub struct RedisPart {
    runtime: Arc<Runtime>,
    redis: Arc<Redis>,
}

impl RedisPart {
    /// Connects to a Redis. All keys have the number `part` in their prefix.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn connect(runtime: &Arc<Runtime>, endpoint: &Endpoint, part: u64) -> Result<Self, StoreError> {
        // The store spawns tasks.
        let _entered = runtime.enter();
        let mut options = pipeline::Options::new(endpoint.clone());
        options.connections = 1;
        options.connect_timeout = TIMEOUT;
        // Distinguishes simultaneous runs.
        let run = format!("{}-{}", std::process::id(), SystemClock.now());
        let redis = Arc::new(Redis::start(options, &format!("{PREFIX}:{run}:{part}:")));
        runtime.block_on(redis.prepare(deadline()).get())?;
        Ok(Self { runtime: runtime.clone(), redis })
    }

    /// Deletes all keys with its prefix.
    async fn delete_all(&self) -> Result<(), StoreError> {
        let mut next = Some(ScanPosition::default());
        while let Some(from) = next {
            let scanned = self.redis.scan("", from, deadline()).get().await?;
            let keys: Vec<&str> = scanned.keys.iter().map(String::as_str).collect();
            self.redis.reset(&keys, deadline()).get().await?;
            next = scanned.next;
        }
        Ok(())
    }
}

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

pub struct World {
    clock: Arc<VirtualClock>,
    policies: Arc<Policies>,
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    limiter: Limiter,
    known: Arc<KnownRows>,
    rows: RowTable,
    redis: Option<RedisPart>,
    in_flight: RefCell<InFlight>,
    bounds: Bounds,
    started: Instant,
}

impl World {
    /// A limiter with these policies and an empty memory store.
    pub fn new(policies: Arc<PolicySet>, settings: &Arc<Settings>, observer: Arc<dyn Observer>) -> Self {
        Self::in_store(policies, settings, observer, None)
    }

    /// A limiter with these policies, in Redis if one is given.
    pub fn in_store(
        policies: Arc<PolicySet>,
        settings: &Arc<Settings>,
        observer: Arc<dyn Observer>,
        redis: Option<RedisPart>,
    ) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let policies = Arc::new(Policies::new(policies, observer.clone()));
        let store: Arc<dyn Store> = match &redis {
            None => memory(&clock, settings, &observer),
            Some(part) => part.redis.clone(),
        };
        let known = Arc::new(KnownRows::of(&*store));
        let rows = RowTable::new(store.clone(), policies.clone(), known.clone(), clock.clone(), observer.clone());
        let limiter = limiter(&policies, store, &known, &clock, settings, &observer);
        let bounds = configured::bounds(&settings.limits);
        let (settings, in_flight, started) = (settings.clone(), RefCell::default(), Instant::now());
        Self { clock, policies, settings, observer, limiter, known, rows, redis, in_flight, bounds, started }
    }

    pub fn rows(&self) -> &RowTable {
        &self.rows
    }

    /// Replaces all rows, with the memory store. Rows that do not fit the policies are left out: returns how many, and the first of them
    /// with its place and why.
    pub fn replace_rows(&self, given: &GivenRows) -> Option<(usize, String)> {
        let (mut left_out, mut first) = (0, None);
        let rows = given.rows.iter().map(|line| line.row.clone());
        let fitting = self.rows.fitting(&self.policies.current(), rows, |at, refused| {
            left_out += 1;
            first.get_or_insert_with(|| given.problem(&given.rows[at], refused.field(), &refused));
            true
        });
        self.rows.replace_of_files(fitting);
        first.map(|first| (left_out, first))
    }

    pub fn set_now(&self, now: Micros) {
        self.clock.0.store(now, Ordering::Relaxed);
        if let Some(part) = &self.redis {
            part.redis.set_now(now);
        }
    }

    /// Moves the clock. Requests that end until then settle at their time. Calls `settling` with true before each
    /// settle and with false after it. Repeat it after an error: a request settles once.
    ///
    /// # Errors
    /// If the store gives no answer to a settle. The memory store has one.
    pub fn go_on(&self, now: Micros, settling: impl Fn(bool)) -> Result<(), StoreError> {
        loop {
            let Some((at, ending)) = self.in_flight.borrow_mut().next_ended(now) else { break };
            self.set_now(at);
            settling(true);
            let settled = ending.settle(&self.bounds, |query| self.decide(query).map(drop));
            settling(false);
            if let Some(Err(Undecided::Store(error))) = settled {
                return Err(error);
            }
        }
        self.set_now(now);
        Ok(())
    }

    /// Notes that an admitted request ends at this time. Then it settles its holds, with its own hits unless it has `used` others.
    pub fn begin(&self, ends: Micros, message: &RateLimitRequest, used: Option<u32>, holds: Vec<HeldCharge>) {
        self.in_flight.borrow_mut().begin(ends, message, used, holds);
    }

    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Decides one request, in the store of this world.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn decide(&self, query: &Query<'_>) -> Result<Answer, Undecided> {
        match &self.redis {
            None => self.decide_now(query),
            Some(part) => part.runtime.block_on(self.limiter.decide(query, Instant::now(), None, None)),
        }
    }

    /// Decides one request with the memory store.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn decide_now(&self, query: &Query<'_>) -> Result<Answer, Undecided> {
        // The memory store has no deadline, so the start of a request does not matter.
        self.limiter.decide_now(query, self.started, None)
    }

    /// Replaces the policies and keeps all states.
    pub fn swap(&self, policies: Arc<PolicySet>) {
        self.policies.replace(policies);
    }

    /// Removes all that is in the store. Rows stay with the memory store.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        if let Some(part) = &self.redis {
            return part.runtime.block_on(part.delete_all());
        }
        let store = memory(&self.clock, &self.settings, &self.observer);
        self.limiter = limiter(&self.policies, store, &self.known, &self.clock, &self.settings, &self.observer);
        Ok(())
    }
}

fn memory(clock: &Arc<VirtualClock>, settings: &Settings, observer: &Arc<dyn Observer>) -> Arc<dyn Store> {
    Arc::new(Memory::new(settings.memory.max_keys, clock.clone(), observer.clone()))
}

fn limiter(
    policies: &Arc<Policies>,
    store: Arc<dyn Store>,
    known: &Arc<KnownRows>,
    clock: &Arc<VirtualClock>,
    settings: &Settings,
    observer: &Arc<dyn Observer>,
) -> Limiter {
    let options = Options {
        mode: settings.charging,
        modes: configured::modes(settings),
        budget: TIMEOUT,
        clock: clock.clone(),
        rows: known.clone(),
        ..Options::new(store)
    };
    Limiter::new(policies.clone(), options, observer.clone())
}
