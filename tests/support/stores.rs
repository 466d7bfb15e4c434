//! The three that must agree, side by side under one clock that the test sets: the engine over a plain map, the memory
//! store and Redis. Not in here: what they should answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_engine::algorithm::anchored_window::window_at;
use weir_engine::algorithm::fixed_window::{Counter, WINDOW_NUMBERS};
use weir_engine::algorithm::{Change, Effect};
use weir_engine::decision::{self, StaleBounds, States};
use weir_engine::observer::Silent;
use weir_engine::{Bounds, Charge, Decision, Limit, Micros, Mode, State};
use weir_store::memory::Memory;
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{
    Before, Clock as _, Deciding, Inspected, Reply, ScanPosition, Scanned, StatesRead, Store, StoreError, Undo,
};

use super::algorithms::sub_bucket;
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
    states: Mutex<HashMap<String, Kept>>,
}

/// A state, and what it was written under.
#[derive(Clone, Debug)]
struct Kept {
    state: State,
    limit: Limit,
    bounds: Option<Bounds>,
    /// The clock when it was written.
    at: Micros,
}

impl Kept {
    fn ends(&self) -> Micros {
        ends(&self.limit, &self.state, self.bounds, self.at)
    }
}

impl Engine {
    /// An empty one.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, states: Mutex::new(HashMap::new()) }
    }

    /// Keys whose states have ended; where `only` says so, of those kinds.
    fn expired(&self, only: impl Fn(&State) -> bool) -> Vec<String> {
        let now = self.clock.now();
        let states = self.states.lock().unwrap();
        let expired = states.iter().filter(|(_, kept)| kept.ends() <= now && only(&kept.state));
        expired.map(|(key, _)| key.clone()).collect()
    }

    fn kept(&self, key: &str) -> Option<Kept> {
        self.states.lock().unwrap().get(key).cloned()
    }
}

fn change(
    states: &mut HashMap<String, Kept>,
    key: &str,
    (limit, bounds, at): (&Limit, Option<Bounds>, Micros),
    change: impl FnOnce(&mut Option<State>) -> Change,
) {
    let mut state = states.get(key).map(|kept| kept.state.clone());
    match change(&mut state) {
        Change::Kept => {}
        Change::Put(level) => {
            let kept = Kept { state: state.expect("it was put"), limit: limit.clone(), bounds, at };
            assert_eq!(at + level.reset_after, kept.ends(), "when {kept:?} ends");
            states.insert(key.to_owned(), kept);
        }
        Change::Gone => {
            states.remove(key);
        }
    }
}

/// The states of a decision at `now`, by the first charges of its keys.
struct KeptStates<'a> {
    states: &'a mut HashMap<String, Kept>,
    charges: &'a [Charge<'a>],
    firsts: &'a [u16],
    now: Micros,
}

impl States for KeptStates<'_> {
    fn read(&self, place: u16) -> Option<&State> {
        let key = self.charges[usize::from(self.firsts[usize::from(place)])].key;
        self.states.get(key).map(|kept| &kept.state)
    }

    fn change(&mut self, _: u16, charge: &Charge<'_>, by: impl FnOnce(&mut Option<State>) -> Change) {
        change(self.states, charge.key, (charge.limit, charge.bounds, self.now), by);
    }
}

impl Store for Engine {}

impl Deciding for Engine {
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        _: Instant,
    ) -> Reply<'a, Decision> {
        let mut states = self.states.lock().unwrap();
        let now = self.clock.now();
        let of_undos = before.undos.iter().filter_map(|undo| undo.bounds);
        let mut bounds = charges.iter().filter_map(|charge| charge.bounds).chain(of_undos);
        if bounds.any(|bounds| window_at(&bounds, now).is_none()) {
            return Reply::Ready(Err(StoreError::StaleBounds { now }));
        }
        for &Undo { key, limit, receipt, bounds } in before.undos {
            let given_back = |state: &mut _| limit.kind().within(bounds).change(state, Effect::Undo(receipt), now).0;
            change(&mut states, key, (limit, bounds, now), given_back);
        }
        let (places, firsts) = decision::key_indices(charges);
        let mut states = KeptStates { states: &mut states, charges, firsts: &firsts, now };
        let decided = decision::decide(charges, &places, &mut states, mode, now);
        Reply::Ready(decided.map_err(|StaleBounds| StoreError::StaleBounds { now }))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], _: Instant) -> Reply<'a, ()> {
        let mut states = self.states.lock().unwrap();
        let now = self.clock.now();
        for undo in charges {
            let Undo { key, limit, receipt, bounds } = *undo;
            if bounds.is_some_and(|bounds| window_at(&bounds, now).is_none()) {
                return Reply::Ready(Err(StoreError::StaleBounds { now }));
            }
            change(&mut states, key, (limit, bounds, now), |state| {
                limit.kind().within(bounds).change(state, Effect::Undo(receipt), now).0
            });
        }
        Reply::Ready(Ok(()))
    }
}

impl Inspected for Engine {
    fn name(&self) -> &'static str {
        NAMES[0]
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], _: Instant) -> Reply<'a, u64> {
        let mut states = self.states.lock().unwrap();
        let gone = keys.iter().filter(|&&key| states.remove(key).is_some()).count();
        Reply::Ready(Ok(gone as u64))
    }

    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], _: Instant) -> Reply<'a, StatesRead> {
        let states = self.states.lock().unwrap();
        let states = keys.iter().map(|(key, _)| states.get(*key).map(|kept| kept.state.clone())).collect();
        Reply::Ready(Ok(StatesRead { now: self.clock.now(), states }))
    }

    fn ping(&self, _: Instant) -> Reply<'_, ()> {
        Reply::Ready(Ok(()))
    }

    fn scan<'a>(&'a self, _: &'a str, _: ScanPosition, _: Instant) -> Reply<'a, Scanned> {
        unreachable!("no test asks")
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
        Self::with_redis_at(&server.url(), prefix, now)
    }

    /// The same with the Redis at this URL.
    pub fn with_redis_at(url: &str, prefix: &str, now: Micros) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let clock = Arc::new(ManualClock::default());
        clock.set(now);
        let entered = runtime.enter();
        let mut options = Options::new(Endpoint::parse(url).expect("its url"));
        options.connections = 1;
        let redis = Redis::start(options, prefix).at(now);
        drop(entered);
        let raw = redis::Client::open(url).expect("its url").get_connection().expect("redis answers");
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
    /// choosing, and a step back would bring what is left of them to life again, in the one and not in the other. When
    /// a bucket that is refilled in steps ends depends on the limit that wrote it, so that such a key goes in time.
    pub fn set_now(&mut self, now: Micros) {
        if now < self.now() {
            self.drop_expired(|_| true);
        }
        let leaps = now > self.now() + LEAP_US;
        self.clock.set(now);
        self.redis.set_now(now);
        self.drop_expired(|state| leaps || matches!(state, State::TokenBucket(_)));
    }

    fn drop_expired(&self, only: impl Fn(&State) -> bool) {
        let expired = self.engine.expired(only);
        if !expired.is_empty() {
            let keys: Vec<&str> = expired.iter().map(String::as_str).collect();
            self.reset(&keys);
        }
    }

    /// The clock.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// One decision by each, or that no window of a calendar holds the clock.
    pub fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode) -> [Result<Decision, StaleBounds>; 3] {
        self.ask(|_, store, deadline| store.decide(charges, mode, deadline)).map(|answer| match answer {
            Ok(decision) => Ok(decision),
            Err(StoreError::StaleBounds { now }) if now == self.now() => Err(StaleBounds),
            Err(error) => panic!("{error}"),
        })
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
        self.each(|_, store, deadline| store.read_states(keys, deadline)).map(|peeked| {
            assert_eq!(peeked.now, self.now(), "the clock of a peek");
            let mut states = peeked.states;
            for (state, (key, _)) in states.iter_mut().zip(keys) {
                if self.engine.kept(key).is_some_and(|kept| kept.ends() <= peeked.now) {
                    *state = None;
                }
            }
            states
        })
    }

    fn each<'a, T: Send>(&'a self, call: impl Fn(usize, &'a dyn Store, Instant) -> Reply<'a, T>) -> [T; 3] {
        let mut names = NAMES.iter();
        self.ask(call).map(|answer| {
            let name = names.next().expect("one for each");
            answer.unwrap_or_else(|error| panic!("{name}: {error}"))
        })
    }

    fn ask<'a, T: Send>(
        &'a self,
        call: impl Fn(usize, &'a dyn Store, Instant) -> Reply<'a, T>,
    ) -> [Result<T, StoreError>; 3] {
        let deadline = Instant::now() + PATIENCE;
        let stores: [&dyn Store; 3] = [&self.engine, &self.memory, &self.redis];
        let mut i = 0;
        stores.map(|store| {
            let answer = self.runtime.block_on(call(i, store, deadline).get());
            i += 1;
            answer
        })
    }

    /// Checks that Redis will drop each key when its state has ceased to matter, not before, and at most a second later.
    /// Counted on the clock that the test set.
    pub fn check_expiries(&mut self) {
        let kept = self.engine.states.lock().unwrap().clone();
        for (key, kept) in kept {
            let stored = format!("{}{key}", self.prefix);
            let expires_ms: i64 =
                redis::cmd("PEXPIRETIME").arg(&stored).query(&mut self.raw).expect("redis answers PEXPIRETIME");
            let expires = Micros::try_from(expires_ms).map(|ms| ms * 1_000);
            let expires = expires.unwrap_or_else(|_| panic!("{stored} never expires, or is not there: {expires_ms}"));
            let ends = kept.ends();
            assert!(expires >= ends, "{stored} expires {} us before {kept:?} ends", ends - expires);
            assert!(expires <= ends + TTL_SLACK_US, "{stored} expires {} us after {kept:?} ends", expires - ends);
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

/// When a stored state ceases to matter, for the limit that wrote it at `now`: worked out apart from the engine.
fn ends(limit: &Limit, state: &State, bounds: Option<Bounds>, now: Micros) -> Micros {
    let window_us = limit.window().us();
    match state {
        State::FixedWindow(Counter { window, .. }) => {
            let (window_us, numbers) = (i128::from(window_us), i128::from(WINDOW_NUMBERS));
            let here = i128::from(now) / window_us;
            // The number nearest to here's; half the numbers away counts as after it [fw-2].
            let mut away = (i128::from(*window) - here).rem_euclid(numbers);
            if away > numbers / 2 {
                away -= numbers;
            }
            Micros::try_from((here + away + 1) * window_us).expect("after the epoch")
        }
        State::AnchoredWindow(window) => {
            let Some(bounds) = bounds else { return window.start + window_us };
            let after = bounds.iter().copied().filter(|bound| *bound > window.start).min();
            // A window past all of them is taken to be as long as the one of now.
            let here = bounds.iter().rposition(|bound| *bound <= now).expect("the bounds hold the clock");
            after.unwrap_or_else(|| window.start + bounds[here + 1] - bounds[here])
        }
        State::SlidingWindowCounter(counts) => counts.start + if counts.count > 0 { 2 * window_us } else { window_us },
        State::SlidingWindow(state) => {
            let length = sub_bucket(limit).expect("its kind has some");
            // Its last instant leaves the window a window later.
            let newest = state.newest().expect("an empty one is not stored");
            newest * length + length - 1 + window_us
        }
        State::SlidingWindowLog(log) => log.entries.back().expect("an empty one is not stored").at + window_us,
        State::TokenBucket(bucket) => {
            let refills = u64::from(bucket.used).div_ceil(limit.requests());
            bucket.anchor + refills * window_us
        }
        State::Pacing(debt) => debt.tat + u64::from(debt.fraction > 0),
    }
}
