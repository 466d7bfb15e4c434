//! The three that must agree, side by side under one clock that the test sets: the engine over a plain map, the memory
//! store and Redis. Not in here: what they should answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir::engine::algorithm::fixed_window::{Counter, WINDOW_NUMBERS};
use weir::engine::decision::{self, Change};
use weir::engine::observer::Silent;
use weir::engine::{Algorithm, Charge, Decision, Limit, Micros, Mode, State, algorithm};
use weir::store::memory::Memory;
use weir::store::redis::Redis;
use weir::store::redis::pipeline::Options;
use weir::store::redis::pool::Endpoint;
use weir::store::{Clock as _, Peeked, Reply, Store, Undo};

use super::manual::ManualClock;
use super::redis::RedisServer;

/// Their names, in the order of every answer.
pub const NAMES: [&str; 3] = ["engine", "memory", "redis"];
/// Longer than any healthy call takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// More keys than any test here uses: nothing is evicted.
const KEYS_MAX: usize = 100_000;
/// How much longer than it can matter a key may live.
const TTL_SLACK_US: Micros = 1_000_000;
/// A clock that goes on by more than this lets expired keys go first. It is less than the 2^20 windows of 1 ms after which
/// a window's stored number would mean another window: states rely on their expiry for that.
const LEAP_US: Micros = 600 * 1_000_000;

/// The engine with a map for its states: the least that makes it a store.
#[derive(Debug)]
pub struct Engine {
    clock: Arc<ManualClock>,
    /// By key: the state, and when it equals an empty one.
    states: Mutex<HashMap<String, (State, Micros)>>,
}

impl Engine {
    /// An empty one.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, states: Mutex::new(HashMap::new()) }
    }

    fn put(states: &mut HashMap<String, (State, Micros)>, key: &str, limit: &Limit, state: State, now: Micros) {
        let ends = now + algorithm::reset_after(limit, &state, now);
        states.insert(key.to_owned(), (state, ends));
    }

    fn expired(&self) -> Vec<String> {
        let now = self.clock.now();
        let states = self.states.lock().unwrap();
        states.iter().filter(|(_, (_, ends))| *ends <= now).map(|(key, _)| key.clone()).collect()
    }
}

impl Store for Engine {
    fn name(&self) -> &'static str {
        NAMES[0]
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode, _: Instant) -> Reply<'a, Decision> {
        let mut states = self.states.lock().unwrap();
        let now = self.clock.now();
        let (slots, firsts) = decision::slots(charges);
        let mut read = Vec::new();
        for &first in &firsts {
            read.push(states.get(charges[usize::from(first)].key).map(|(state, _)| *state));
        }
        let (decision, changes) = decision::decide(charges, &slots, &read, mode, now);
        for (&first, change) in firsts.iter().zip(changes) {
            let Charge { key, limit, .. } = charges[usize::from(first)];
            match change {
                Change::Keep => {}
                Change::Put(state) => Self::put(&mut states, key, limit, state, now),
                Change::Delete => {
                    states.remove(key);
                }
            }
        }
        Reply::Ready(Ok(decision))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], _: Instant) -> Reply<'a, ()> {
        let mut states = self.states.lock().unwrap();
        let now = self.clock.now();
        for undo in charges {
            let Some((stored, _)) = states.get(undo.key) else { continue };
            let seen = algorithm::seen(undo.limit, Some(stored), now);
            if algorithm::is_empty(&seen, now) {
                continue;
            }
            let state = algorithm::undone(undo.limit, &seen, undo.receipt, now);
            if algorithm::is_empty(&state, now) {
                states.remove(undo.key);
            } else if state != seen || algorithm::is_far_ahead(undo.limit, stored, now) {
                Self::put(&mut states, undo.key, undo.limit, state, now);
            }
        }
        Reply::Ready(Ok(()))
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], _: Instant) -> Reply<'a, u64> {
        let mut states = self.states.lock().unwrap();
        let gone = keys.iter().filter(|&&key| states.remove(key).is_some()).count();
        Reply::Ready(Ok(gone as u64))
    }

    fn peek<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], _: Instant) -> Reply<'a, Peeked> {
        let states = self.states.lock().unwrap();
        let states = keys.iter().map(|(key, _)| states.get(*key).map(|(state, _)| *state)).collect();
        Reply::Ready(Ok(Peeked { now: self.clock.now(), states }))
    }

    fn ping(&self, _: Instant) -> Reply<'_, ()> {
        Reply::Ready(Ok(()))
    }

    fn supports(&self, _: &Limit) -> Result<(), String> {
        Ok(())
    }
}

/// The three.
pub struct Stores {
    runtime: tokio::runtime::Runtime,
    clock: Arc<ManualClock>,
    engine: Engine,
    memory: Memory,
    redis: Redis,
    /// For what no store answers: expiry times.
    raw: redis::Connection,
    prefix: String,
}

impl Stores {
    /// Three empty stores; Redis' keys start with `prefix`.
    pub fn new(server: &RedisServer, prefix: &str, now: Micros) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let clock = Arc::new(ManualClock::default());
        clock.set(now);
        let entered = runtime.enter();
        let mut options = Options::new(Endpoint::parse(&server.url()).expect("its url"));
        options.connections = 1;
        let redis = Redis::start(options, prefix).at(now);
        drop(entered);
        let raw = redis::Client::open(server.url()).expect("its url").get_connection().expect("redis answers");
        Self {
            engine: Engine::new(clock.clone()),
            memory: Memory::new(KEYS_MAX, clock.clone(), Arc::new(Silent)),
            redis,
            raw,
            runtime,
            clock,
            prefix: prefix.to_owned(),
        }
    }

    /// Moves the clock of all three.
    ///
    /// Where it steps back, or leaps ahead, keys that have expired go first. Stores drop those at a time of their own
    /// choosing, and a step back would bring what is left of them to life again, in the one and not in the other.
    pub fn set_now(&mut self, now: Micros) {
        if now < self.now() {
            self.drop_expired();
        }
        let leaps = now > self.now() + LEAP_US;
        self.clock.set(now);
        self.redis.set_now(now);
        if leaps {
            self.drop_expired();
        }
    }

    fn drop_expired(&self) {
        let expired = self.engine.expired();
        if !expired.is_empty() {
            let keys: Vec<&str> = expired.iter().map(String::as_str).collect();
            self.reset(&keys);
        }
    }

    /// The clock.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// One decision by each.
    pub fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode) -> [Decision; 3] {
        self.each(|_, store, deadline| store.decide(charges, mode, deadline))
    }

    /// Takes charges back from each, by its own receipts.
    pub fn undo<'a>(&'a self, undos: &'a [Vec<Undo<'a>>; 3]) {
        self.each(|i, store, deadline| store.undo(&undos[i], deadline));
    }

    /// Forgets keys. Answers how many each had.
    pub fn reset<'a>(&'a self, keys: &'a [&'a str]) -> [u64; 3] {
        self.each(|_, store, deadline| store.reset(keys, deadline))
    }

    /// What each has stored that still matters.
    pub fn states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)]) -> [Vec<Option<State>>; 3] {
        self.each(|_, store, deadline| store.peek(keys, deadline)).map(|peeked| {
            assert_eq!(peeked.now, self.now(), "the clock of a peek");
            let mut states = peeked.states;
            for (state, (_, limit)) in states.iter_mut().zip(keys) {
                *state = state.filter(|state| ends(limit, state, peeked.now) > peeked.now);
            }
            states
        })
    }

    fn each<'a, T>(&'a self, call: impl Fn(usize, &'a dyn Store, Instant) -> Reply<'a, T>) -> [T; 3] {
        let deadline = Instant::now() + PATIENCE;
        let stores: [&dyn Store; 3] = [&self.engine, &self.memory, &self.redis];
        let mut i = 0;
        stores.map(|store| {
            let reply = self.runtime.block_on(call(i, store, deadline).get());
            i += 1;
            reply.unwrap_or_else(|error| panic!("{}: {error}", store.name()))
        })
    }

    /// Checks that Redis will drop each of these keys when its state has ceased to matter, not before, and at most a
    /// second later. Counted on the clock that the test set.
    pub fn check_expiries(&mut self, keys: &BTreeMap<&str, &Limit>) {
        let deadline = Instant::now() + PATIENCE;
        let asked: Vec<(&str, &Limit)> = keys.iter().map(|(key, limit)| (*key, *limit)).collect();
        let peeked = self.runtime.block_on(self.redis.peek(&asked, deadline).get()).expect("redis answers");
        for ((key, limit), state) in asked.iter().zip(peeked.states) {
            let Some(state) = state else { continue };
            let stored = format!("{}{key}", self.prefix);
            let expires_ms: i64 =
                redis::cmd("PEXPIRETIME").arg(&stored).query(&mut self.raw).expect("redis answers PEXPIRETIME");
            let expires = Micros::try_from(expires_ms).map(|ms| ms * 1_000);
            let expires = expires.unwrap_or_else(|_| panic!("{stored} never expires"));
            let ends = ends(limit, &state, self.now());
            assert!(expires >= ends, "{stored} expires {} us before {state:?} ends", ends - expires);
            assert!(expires <= ends + TTL_SLACK_US, "{stored} expires {} us after {state:?} ends", expires - ends);
        }
    }

    /// Checks that every key of the whole server has an expiry in Redis. Answers how many keys there are.
    pub fn check_every_key_expires(&mut self) -> usize {
        let mut count = 0;
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<String>) =
                redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(1_000).query(&mut self.raw).expect("SCAN");
            let mut ask = redis::pipe();
            for key in &keys {
                ask.cmd("PEXPIRETIME").arg(key);
            }
            let expiries: Vec<i64> = ask.query(&mut self.raw).expect("PEXPIRETIME");
            for (key, expires) in keys.iter().zip(&expiries) {
                assert!(*expires > 0, "{key} never expires");
            }
            count += keys.len();
            cursor = next;
            if cursor == 0 {
                return count;
            }
        }
    }
}

/// When a stored state ceases to matter, for the limit that wrote it: worked out apart from the engine.
fn ends(limit: &Limit, state: &State, now: Micros) -> Micros {
    match (limit.algorithm(), state) {
        (Algorithm::FixedWindow, State::FixedWindow(Counter { window, .. })) => {
            let (window_us, numbers) = (i128::from(limit.window().us()), i128::from(WINDOW_NUMBERS));
            let here = i128::from(now) / window_us;
            // The number nearest to here's; half the numbers away counts as after it [fw-2].
            let mut away = (i128::from(*window) - here).rem_euclid(numbers);
            if away > numbers / 2 {
                away -= numbers;
            }
            Micros::try_from((here + away + 1) * window_us).expect("after the epoch")
        }
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => debt.tat + u64::from(debt.fraction > 0),
        (algorithm, state) => panic!("{state:?} is stored for {}", algorithm.name()),
    }
}
