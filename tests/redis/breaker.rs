//! The circuit breaker before a real Redis: when it opens and when not, what it costs callers, and how it finds back.
//!
//! Its transitions one by one are tested beside it (src/store/redis/routing/breaker.rs), and what an operator sees of it in
//! redis/health.rs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};
use weir_store::redis::breaker::{Circuit, TRIALS};
use weir_store::redis::node::Node;
use weir_store::redis::pipeline::{Call, CallError, Options, Reason};
use weir_store::redis::{Endpoint, RedisObserver};

use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, eventually};

/// What calls usually have.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Calls at the same time: enough to open the breaker.
const MANY: usize = 30;

/// A time between probes after which a half-open node is not yet helped by them.
const CALLS_ONLY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Changes(Mutex<Vec<(Circuit, Circuit)>>, Mutex<Vec<Circuit>>);

impl RedisObserver for Changes {
    fn circuit_changed(&self, _: &str, from: Circuit, to: Circuit) {
        self.0.lock().unwrap().push((from, to));
    }

    fn circuit_gone(&self, _: &str, was: Circuit) {
        self.1.lock().unwrap().push(was);
    }
}

impl Changes {
    fn all(&self) -> Vec<(Circuit, Circuit)> {
        self.0.lock().unwrap().clone()
    }
}

struct Rig {
    node: Arc<Node>,
    changes: Arc<Changes>,
}

fn start(url: &str, change: impl FnOnce(&mut Options)) -> Rig {
    let changes = Arc::new(Changes::default());
    let mut options = Options::new(Endpoint::parse(url).unwrap());
    options.observer = changes.clone();
    options.breaker.timeout = TIMEOUT;
    options.breaker.probe = Duration::from_millis(50);
    change(&mut options);
    Rig { node: Arc::new(Node::start(options)), changes }
}

fn incr() -> Cmd {
    let mut command = cmd("INCR");
    command.arg("n");
    command
}

impl Rig {
    async fn call(&self, within: Duration) -> Result<Value, CallError> {
        self.node.call(Call::command(incr()), Instant::now() + within).await
    }

    /// Many calls at once, to their ends.
    async fn many(&self, within: Duration) -> Vec<Result<Value, CallError>> {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..MANY {
            let node = self.node.clone();
            calls.spawn(async move { node.call(Call::command(incr()), Instant::now() + within).await });
        }
        calls.join_all().await
    }

    /// Redis stops after an answer for so long that the breaker opens, and goes on.
    async fn opens_and_redis_goes_on(&self, server: &RedisServer) {
        self.call(PATIENCE).await.expect("an answer of a healthy redis");
        server.freeze();
        self.opens().await;
        server.thaw();
    }

    /// Has many calls fail, twice: whether the first ones were in a hurry is not known.
    async fn opens(&self) {
        for _ in 0..2 {
            assert!(self.many(TIMEOUT).await.iter().all(Result::is_err));
        }
        assert_eq!(self.node.circuit(), Circuit::Open);
    }

    /// Waits for this circuit, and calls meanwhile if asked to.
    async fn becomes(&self, circuit: Circuit, calling: bool) {
        eventually(&format!("the circuit to be {circuit:?}"), PATIENCE, async || {
            if calling && self.node.circuit() != circuit {
                let _ = self.call(TIMEOUT).await;
            }
            self.node.circuit() == circuit
        })
        .await;
    }
}

fn is_refused(answer: &Result<Value, CallError>) -> bool {
    matches!(answer, Err(CallError::NotSent { reason: Reason::CircuitOpen }))
}

#[tokio::test]
async fn an_open_breaker_answers_at_once_and_sends_nothing() {
    let server = RedisServer::start();
    let rig = start(&server.url(), |_| {});
    rig.call(PATIENCE).await.unwrap();
    server.freeze();
    rig.opens().await;
    // Answered when first asked, with no wait at all.
    for _ in 0..1000 {
        let answer = tokio::time::timeout(Duration::ZERO, rig.call(PATIENCE)).await.expect("an answer at once");
        assert!(is_refused(&answer), "{answer:?}");
    }
    server.thaw();
    rig.becomes(Circuit::HalfOpen, false).await;
    // One that was frozen ran what was in its sockets: of the calls since, it has seen none.
    assert!(server.runs("incr") <= 1 + 2 * MANY as u64);
    rig.becomes(Circuit::Closed, true).await;
    assert!(rig.many(PATIENCE).await.iter().all(Result::is_ok));
    use Circuit::{Closed, HalfOpen, Open};
    assert_eq!(rig.changes.all(), [(Closed, Open), (Open, HalfOpen), (HalfOpen, Closed)]);
}

#[tokio::test]
async fn callers_in_a_hurry_open_nothing() {
    let server = RedisServer::start();
    let rig = start(&server.url(), |_| {});
    rig.call(PATIENCE).await.unwrap();
    server.freeze();
    // Less than half of what calls usually have: late answers to those say nothing about Redis.
    for _ in 0..5 {
        assert!(rig.many(TIMEOUT / 3).await.iter().all(Result::is_err));
    }
    assert_eq!(rig.changes.all(), []);
    rig.opens().await;
}

/// Fewer calls than [`BreakerSettings::calls`] in a window opened nothing, and each waited for its deadline.
#[tokio::test]
async fn a_redis_that_refuses_connections_opens_it_at_the_first_call() {
    let mut server = RedisServer::start();
    let rig = start(&server.url(), |_| {});
    rig.call(PATIENCE).await.unwrap();
    server.kill();
    rig.call(TIMEOUT).await.expect_err("nothing listens there");
    rig.becomes(Circuit::Open, false).await;
    server.restart();
    rig.becomes(Circuit::Closed, false).await;
    rig.call(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_answers_nothing_opens_it_after_one_call() {
    let server = RedisServer::start();
    let rig = start(&server.url(), |options| options.breaker.window = TIMEOUT * 2);
    rig.call(PATIENCE).await.unwrap();
    server.freeze();
    rig.call(TIMEOUT).await.expect_err("it is frozen");
    rig.becomes(Circuit::Open, false).await;
    server.thaw();
    rig.becomes(Circuit::Closed, false).await;
    rig.call(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn one_late_answer_of_a_redis_that_answers_pings_opens_nothing() {
    let server = RedisServer::start();
    let rig = start(&server.url(), |options| options.breaker.window = PATIENCE);
    rig.call(PATIENCE).await.unwrap();
    let pings = server.runs("ping");
    server.freeze();
    rig.call(TIMEOUT).await.expect_err("it is frozen");
    server.thaw();
    eventually("a ping", PATIENCE, async || server.runs("ping") > pings).await;
    rig.call(PATIENCE).await.unwrap();
    assert_eq!(rig.changes.all(), []);
}

#[tokio::test]
async fn a_breaker_that_is_turned_off_lets_everything_pass() {
    let mut server = RedisServer::start();
    let rig = start(&server.url(), |options| options.breaker.error_percent = 0);
    server.kill();
    for _ in 0..5 {
        assert!(!rig.many(TIMEOUT).await.iter().any(is_refused));
    }
    assert_eq!(rig.changes.all(), []);
}

#[tokio::test]
async fn a_few_calls_try_redis_out_before_the_others_follow() {
    let server = RedisServer::start();
    let rig = start(&server.url(), |options| options.breaker.probe = CALLS_ONLY);
    rig.opens_and_redis_goes_on(&server).await;
    rig.becomes(Circuit::HalfOpen, false).await;
    let answers = rig.many(PATIENCE).await;
    let refused = answers.iter().filter(|answer| is_refused(answer)).count();
    assert_eq!(refused, MANY - TRIALS as usize, "{answers:?}");
    assert_eq!(rig.node.circuit(), Circuit::Closed);
}

#[tokio::test]
async fn a_trial_whose_caller_has_gone_makes_room_for_another() {
    let server = RedisServer::start();
    let rig = start(&server.url(), |options| options.breaker.probe = CALLS_ONLY);
    rig.opens_and_redis_goes_on(&server).await;
    rig.becomes(Circuit::HalfOpen, false).await;
    server.freeze();
    let mut trials = Vec::new();
    for _ in 0..TRIALS {
        let node = rig.node.clone();
        let deadline = Instant::now() + PATIENCE;
        trials.push(tokio::spawn(async move { node.call(Call::command(incr()), deadline).await }));
    }
    tokio::task::yield_now().await;
    assert!(is_refused(&rig.call(PATIENCE).await), "all places are taken");
    for trial in trials {
        trial.abort();
        assert!(trial.await.unwrap_err().is_cancelled());
    }
    assert_eq!(rig.node.circuit(), Circuit::HalfOpen, "nothing was learnt");
    server.thaw();
    rig.becomes(Circuit::Closed, true).await;
}

#[tokio::test]
async fn a_node_that_goes_takes_its_open_circuit_with_it() {
    let mut server = RedisServer::start();
    let rig = start(&server.url(), |_| {});
    server.kill();
    rig.opens().await;
    let changes = rig.changes.clone();
    drop(rig);
    assert_eq!(changes.all(), [(Circuit::Closed, Circuit::Open)], "it has not closed");
    assert_eq!(*changes.1.lock().unwrap(), [Circuit::Open]);
}
