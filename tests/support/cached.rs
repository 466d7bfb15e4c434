//! A memory store with a cache of denials before it, on clocks that the test moves. Not in here: what is checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::descriptor::saturated;
use weir_engine::observer::Silent;
use weir_engine::{Charge, Decision, Limit, Micros, Mode, Operation, Outcome, Precision, Role, Unit, decision};
use weir_limiter::deny_cache::DenyCache;
use weir_store::memory::Memory;
use weir_store::{Clock as _, Deciding as _, Inspected as _};

use super::algorithms::every_algorithm;
use super::arbitrary::{bounds, fitting};
use super::manual::{ManualClock, answer, far};
use super::watched::Watched;

/// A key like any other.
pub const KEY: &str = "w1:{shop|user=ann}";
/// One set, and many.
pub const KEYS_MAX: [usize; 2] = [8, 1_024];
pub const MS: u64 = 1_000;
pub const SECOND: Duration = Duration::from_secs(1);
/// Longer than any window.
pub const AGES: Duration = Duration::from_secs(10 * 366 * 86_400);

/// A store and a cache before it. Local time goes on as the store's does.
pub struct Scene {
    /// See [`Scene`].
    pub store: Memory,
    /// See [`Scene`].
    pub clock: Arc<ManualClock>,
    /// See [`Scene`].
    pub cache: DenyCache,
    /// The local instant at which it began.
    began: Instant,
    /// The local time since then, in microseconds.
    passed: u64,
}

impl Scene {
    pub fn new(max_age: Duration, keys_max: usize) -> Self {
        let clock = Arc::new(ManualClock::in_2041());
        let store = Memory::new(1_024, clock.clone(), Arc::new(Silent));
        Self { store, clock, cache: DenyCache::new(max_age, keys_max), began: Instant::now(), passed: 0 }
    }

    /// Local time and the store's go on.
    pub fn step(&mut self, us: u64) {
        self.passed += us;
        self.clock.set(self.clock.now() + us);
    }

    /// Only the store's clock is moved.
    pub fn set_clock(&self, us: i64) {
        self.clock.set(self.clock.now().checked_add_signed(us).unwrap());
    }

    pub fn now(&self) -> Instant {
        self.began + Duration::from_micros(self.passed)
    }

    pub fn charge<'a>(&self, key: &'a str, limit: &'a Limit, operation: Operation, role: Role) -> Charge<'a> {
        let bounds = bounds(limit, self.clock.now());
        Charge { role, bounds, ..Charge::alone(key, limit, fitting(limit, operation)) }
    }

    pub fn decide(&self, charges: &[Charge<'_>], mode: Mode) -> Decision {
        answer(self.store.decide(charges, mode, far()))
    }

    pub fn decide_one(&self, charge: &Charge<'_>, mode: Mode) -> Outcome {
        self.decide(std::slice::from_ref(charge), mode).outcomes[0].clone()
    }

    /// What the store would decide now, without doing so, and whether each charge would change what its state shows.
    pub fn would(&self, charges: &[Charge<'_>], mode: Mode) -> (Decision, Vec<bool>) {
        let (places, firsts) = decision::key_indices(charges);
        let asked: Vec<(&str, &Limit)> =
            firsts.iter().map(|&first| (charges[usize::from(first)].key, charges[usize::from(first)].limit)).collect();
        let mut peeked = answer(self.store.read_states(&asked, far()));
        let mut states = Watched::new(&mut peeked.states, peeked.now);
        let decision = decision::decide(charges, &places, &mut states, mode, peeked.now).unwrap();
        (decision, charges.iter().map(|charge| states.has_changed(charge)).collect())
    }

    pub fn would_take(&self, limit: &Limit, hits: u32) -> Outcome {
        let (decision, _) =
            self.would(&[self.charge(KEY, limit, Operation::Consume(hits), Role::Enforced)], Mode::Atomic);
        decision.outcomes[0].clone()
    }

    /// What the store would say so long after, if nobody came meanwhile.
    pub fn would_take_after(&self, us: Micros, limit: &Limit, hits: u32) -> Outcome {
        let now = self.clock.now();
        self.clock.set(now + us);
        let outcome = self.would_take(limit, hits);
        self.clock.set(now);
        outcome
    }

    /// What the cache says to a take.
    pub fn cached(&self, limit: &Limit, hits: u32) -> Option<Outcome> {
        self.cache.denies(&self.charge(KEY, limit, Operation::Consume(hits), Role::Enforced), self.now())
    }

    /// Takes from the store, whose answer is learnt, by a way of so many microseconds there and back.
    pub fn ask(&mut self, limit: &Limit, hits: u32, mode: Mode, there: u64, back: u64) -> Outcome {
        let (sent, generation) = (self.now(), self.cache.generation());
        self.step(there);
        let charge = self.charge(KEY, limit, Operation::Consume(hits), Role::Enforced);
        let outcome = self.decide_one(&charge, mode);
        self.step(back);
        self.cache.insert(&charge, &outcome, sent, self.now(), generation);
        outcome
    }

    /// Uses a limit up, and lets the cache see that.
    pub fn use_up(&mut self, limit: &Limit) {
        let all = self.charge(KEY, limit, Operation::Consume(saturated(limit.capacity())), Role::Enforced);
        self.decide(&[all], Mode::Atomic);
        assert!(self.ask(limit, 1, Mode::Atomic, 0, 0).verdict.is_over());
    }
}

pub fn per_hour(requests: u32) -> Limit {
    Limit::per_unit(requests, Unit::Hour)
}

/// 10 per hour by every algorithm of which denials are kept, and every variant of one.
pub fn every_limit() -> Vec<Limit> {
    let hour = Unit::Hour.window();
    let mut algorithms = every_algorithm(Precision::new(60_000_000).unwrap(), 10);
    algorithms.retain(|algorithm| !algorithm.counts_permits());
    algorithms.into_iter().map(|algorithm| Limit::new(10, hour, algorithm).unwrap()).collect()
}

pub fn is_summed_up(limit: &Limit) -> bool {
    limit.kind().is_summary()
}

/// The limit as one that can be answered from the cache.
pub fn plain(limit: &Limit) -> Limit {
    let mut limit = limit.clone();
    limit.drain = false;
    limit.set_post_paid(false);
    limit
}
