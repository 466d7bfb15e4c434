//! What the tests of a Redis Cluster share: limits that give nothing back, one hit and its answer, and load that ends
//! when its keys are used up. Not in here: the cluster itself (cluster.rs).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use weir_engine::{Algorithm, Anchor, Count, Limit, Mode, Operation, Verdict, Window};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{Deciding as _, StoreError};

use super::cluster::RedisCluster;
use super::manual::charge;
use super::wait::{PATIENCE, eventually};

/// A deadline that a healthy node is never near, and that a sick one is to reach.
pub const SHORT: Duration = Duration::from_secs(1);

const DAY_US: u64 = 86_400 * 1_000_000;

/// So many hits and no more: a paced limit of a day gives none back for longer than any test runs.
pub fn daily(requests: u32) -> Limit {
    let window = Window::from_micros(DAY_US).unwrap();
    Limit::new(requests.into(), window, Algorithm::Gcra { burst: requests }).unwrap()
}

/// The same number of hits, under a key of another shape.
pub fn daily_log(requests: u32) -> Limit {
    Limit::new(requests.into(), Window::from_micros(DAY_US).unwrap(), Algorithm::SlidingWindowLog).unwrap()
}

/// More hits than any test takes, all counted until the day is over: a paced limit of that size would give some back.
pub fn plenty() -> Limit {
    let algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstHit };
    Limit::new(1_000_000, Window::from_micros(DAY_US).unwrap(), algorithm).unwrap()
}

/// A store on that cluster.
pub fn store(cluster: &RedisCluster) -> Redis {
    open(cluster.seeds(), |_| {})
}

/// A store whose breaker stays closed, unless `change` says otherwise.
pub fn open(seeds: Vec<Endpoint>, change: impl FnOnce(&mut Options)) -> Redis {
    let mut options = Options::new(seeds[0].clone());
    options.connections = 2;
    options.breaker.error_percent = 0;
    change(&mut options);
    Redis::start_cluster(seeds, options, "weir:")
}

/// Whether one hit was admitted.
pub async fn hit(store: &Redis, key: &str, limit: &Limit, within: Duration) -> Result<bool, StoreError> {
    let charges = [charge(key, limit, Operation::Consume(1))];
    let decision = store.decide(&charges, Mode::Atomic, Instant::now() + within).get().await?;
    Ok(decision.outcomes[0].verdict == Verdict::Within)
}

/// What a key has used of its limit.
pub async fn used(store: &Redis, key: &str, limit: &Limit) -> Count {
    let charges = [charge(key, limit, Operation::Peek)];
    let decision = store.decide(&charges, Mode::Atomic, Instant::now() + PATIENCE).get().await.unwrap();
    limit.capacity() - decision.outcomes[0].remaining
}

/// The kind of an error that says that nothing was charged.
pub fn not_sent<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> &'static str {
    match answer {
        Err(StoreError::NotSent(failure)) => failure.kind,
        other => panic!("expected a call that was not sent: {other:?}"),
    }
}

/// A key in that slot, and others like it.
pub fn key_in(store: &Redis, slots: impl Fn(u16) -> bool, number: u32) -> String {
    let tag = (0_u32..).find(|tag| slots(store.slot_of(&format!("w1:{{{tag}}}")))).unwrap();
    format!("w1:{{{tag}}}{number}")
}

/// What a key has used of its limit, where that is answered soon.
pub async fn used_soon(store: &Redis, key: &str, limit: &Limit) -> Option<Count> {
    let charges = [charge(key, limit, Operation::Peek)];
    let decision = store.decide(&charges, Mode::Atomic, Instant::now() + SHORT).get().await.ok()?;
    Some(limit.capacity() - decision.outcomes[0].remaining)
}

/// Load on some keys of one slot, until each of them is used up.
pub struct Load {
    answered: Cell<u32>,
    /// How many hits of each key were admitted.
    pub admitted: RefCell<BTreeMap<String, Count>>,
    /// How many decisions failed, by what was told.
    pub failed: RefCell<BTreeMap<String, u32>>,
    full: Cell<bool>,
    limit: Limit,
}

impl Load {
    pub fn new(limit: Limit) -> Rc<Self> {
        Rc::new(Self {
            answered: Cell::new(0),
            admitted: RefCell::default(),
            failed: RefCell::default(),
            full: Cell::new(false),
            limit,
        })
    }

    /// Hits the keys in turn, on and on: at first only as long as less than half of each is used, and then until all
    /// are denied.
    pub async fn run(self: Rc<Self>, store: Rc<Redis>, keys: Vec<String>) {
        loop {
            let mut denied = 0;
            for key in &keys {
                let spent = self.admitted.borrow().get(key).copied().unwrap_or(0);
                if !self.full.get() && spent >= self.limit.capacity() / 2 {
                    // Its state is used all the same, by what takes nothing.
                    used(&store, key, &self.limit).await;
                    self.answered.set(self.answered.get() + 1);
                    continue;
                }
                match hit(&store, key, &self.limit, PATIENCE).await {
                    Ok(true) => *self.admitted.borrow_mut().entry(key.clone()).or_default() += 1,
                    Ok(false) => denied += 1,
                    Err(error) => *self.failed.borrow_mut().entry(error.to_string()).or_default() += 1,
                }
                self.answered.set(self.answered.get() + 1);
            }
            if denied == keys.len() {
                return;
            }
        }
    }

    /// Lets the load use up what the limits hold, and waits until it has.
    pub async fn finish(&self, tasks: Vec<JoinHandle<()>>) {
        self.full.set(true);
        for task in tasks {
            task.await.expect("a task that does not panic");
        }
    }

    /// Checks that no decision failed and that each of these keys admitted exactly its limit.
    pub fn check(&self, keys: &[String]) {
        assert_eq!(*self.failed.borrow(), BTreeMap::new(), "no caller is told anything");
        let expected: BTreeMap<String, Count> = keys.iter().map(|key| (key.clone(), self.limit.capacity())).collect();
        assert_eq!(*self.admitted.borrow(), expected);
    }

    /// Waits until so many more decisions are made.
    pub async fn more(&self, decisions: u32) {
        let enough = self.answered.get() + decisions;
        eventually("decisions to go on", PATIENCE, async || self.answered.get() >= enough).await;
    }
}
