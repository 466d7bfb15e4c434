//! By Redis' own clock: every key that any script writes expires, not before its state is worth nothing and at most a
//! second later. Under clocks that tests set, the vectors and the random sequences check the same, step by step.

use std::time::{Duration, Instant};

use weir_engine::{Charge, Limit, Micros, Mode, Observed, Operation, Precision, Receipt, Role, State, Unit};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{Clock, Deciding as _, Inspected as _, SystemClock, Undo};

use crate::support::algorithms::every_algorithm;
use crate::support::arbitrary::bounds;
use crate::support::redis::RedisServer;

/// How much longer than it can matter a state may live.
const SLACK_US: u64 = 1_000_000;

/// A limit of every kind of state, for the longest of windows and for a short one.
fn limits() -> Vec<Limit> {
    let mut limits = Vec::new();
    for (unit, requests) in [(Unit::Minute, 50), (Unit::Year, 7)] {
        let window = unit.window();
        let precision = Precision::new(window.us() / 60).unwrap();
        for algorithm in every_algorithm(precision, requests.min(20)) {
            // No request of `concurrency` takes a year.
            let window = if algorithm.counts_permits() { Unit::Minute.window() } else { window };
            let mut limit = Limit::new(requests.into(), window, algorithm).unwrap();
            limit.drain = true;
            limits.push(limit);
        }
    }
    limits
}

/// What is done to a key, one after the other; each is a key of its own for each prefix of the list.
const TAKES: [Operation; 7] = [
    Operation::Consume(3),
    Operation::Consume(2),
    Operation::Refund(1),
    Operation::Peek,
    Operation::Report(2),
    Operation::Consume(90),
    Operation::Refund(2),
];

struct Setup {
    server: RedisServer,
    runtime: tokio::runtime::Runtime,
    store: Redis,
}

impl Setup {
    fn new() -> Self {
        let server = RedisServer::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let entered = runtime.enter();
        let mut options = Options::new(Endpoint::parse(&server.url()).unwrap());
        options.connections = 1;
        let store = Redis::start(options, "");
        drop(entered);
        Self { server, runtime, store }
    }

    /// One decision of every charge; its receipts.
    fn decide(&self, keys: &[String], limits: &[&Limit], operation: Operation) -> Vec<Option<Receipt>> {
        let now = SystemClock.now();
        let mut charges = Vec::new();
        for (key, &limit) in keys.iter().zip(limits) {
            let operation = crate::support::arbitrary::fitting(limit, operation);
            let bounds = bounds(limit, now);
            charges.push(Charge { role: Role::Shadow, bounds, ..Charge::alone(key, limit, operation) });
        }
        let decision = self.runtime.block_on(self.store.decide(&charges, Mode::Independent, deadline()).get()).unwrap();
        decision.outcomes.iter().map(|outcome| outcome.receipt).collect()
    }

    fn undo(&self, key: &str, limit: &Limit, receipt: Receipt) {
        let undo = [Undo { key, limit, receipt, bounds: bounds(limit, SystemClock.now()) }];
        self.runtime.block_on(self.store.undo(&undo, deadline()).get()).unwrap();
    }

    fn check(&self, key: &str, limit: &Limit) -> bool {
        let peeked = self.runtime.block_on(self.store.read_states(&[(key, limit)], deadline()).get()).unwrap();
        let Some(state) = &peeked.states[0] else { return false };
        let bounds = bounds(limit, peeked.now);
        // As written: an observation cuts these two to what the limit believes.
        let written = match state {
            State::Pacing(debt) if debt.tat > peeked.now => Observed::Pacing(*debt),
            State::TokenBucket(bucket) => Observed::TokenBucket(*bucket),
            state => limit.kind().within(bounds).observe(Some(state), 0, peeked.now),
        };
        let ends = peeked.now + limit.kind().reset_after(&written, peeked.now);
        let expires = self.server.command(&["PEXPIRETIME", key]).unwrap();
        let expires_ms: i64 = expires.trim().parse().unwrap();
        if expires_ms == GONE {
            return false;
        }
        let expires = Micros::try_from(expires_ms).unwrap_or_else(|_| panic!("{key} never expires")) * 1_000;
        assert!(expires >= ends, "{key} expires {} us before {state:?} of {limit:?} ends", ends - expires);
        assert!(expires <= ends + SLACK_US, "{key} expires {} us after {state:?} of {limit:?} ends", expires - ends);
        true
    }
}

/// What PEXPIRETIME says of a key that is not there: it expired after it was read.
const GONE: i64 = -2;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn every_key_expires_when_its_state_is_worth_nothing() {
    let setup = Setup::new();
    let limits = limits();
    let mut stored = 0;
    for (i, limit) in limits.iter().enumerate() {
        for done in 1..=TAKES.len() {
            // By the script of one charge, and by the one of several.
            let (alone, beside, other) = (format!("a{i}:{done}"), format!("b{i}:{done}"), format!("c{i}:{done}"));
            let mut receipts = Vec::new();
            for operation in &TAKES[..done] {
                receipts.extend(setup.decide(std::slice::from_ref(&alone), &[limit], *operation));
                // Shorter lists are there for what is taken back after them.
                if done < TAKES.len() {
                    continue;
                }
                setup.decide(&[beside.clone(), other.clone()], &[limit, limit], *operation);
                for key in [&alone, &beside, &other] {
                    stored += usize::from(setup.check(key, limit));
                }
            }
            for receipt in receipts.into_iter().flatten() {
                setup.undo(&alone, limit, receipt);
                stored += usize::from(setup.check(&alone, limit));
            }
        }
    }
    assert!(stored > limits.len() * TAKES.len(), "only {stored} states were looked at");
    let keys = setup.server.command(&["--scan"]).unwrap();
    assert!(keys.lines().count() > limits.len(), "{keys}");
    for key in keys.lines() {
        let ttl_ms: i64 = setup.server.command(&["PTTL", key]).unwrap().trim().parse().unwrap();
        assert!(ttl_ms >= 0 || ttl_ms == GONE, "{key} has a TTL of {ttl_ms} ms");
    }
}
