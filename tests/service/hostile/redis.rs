//! One caller's heavy requests, and a Redis that answers nonsense: neither costs other callers a decision, and neither
//! makes weir dial without a bound.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Value, cmd};
use tonic::Code;
use weir_engine::weight::{WEIGHT_MAX, WEIGHT_SHARED_MAX};
use weir_store::redis::breaker::Circuit;
use weir_store::redis::node::Node;
use weir_store::redis::pipeline::{Call, CallError, Options, Reason};
use weir_store::redis::{Endpoint, RedisObserver};

use crate::support::fake_node::FakeNode;
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client, RateLimitRequest, RateLimitResponse, admits};
use crate::support::served::Served;
use crate::support::wait::PATIENCE;

/// `window` weighs 4 x 7, and 64 descriptors of it more than a decision may.
const POLICY: &str = "
domain: shop
descriptors:
  - key: window
    rate_limits:
      - {window: 1m, requests_per_unit: 100000, algorithm: sliding_window}
      - {window: 1h, requests_per_unit: 100000, algorithm: sliding_window}
      - {window: 2h, requests_per_unit: 100000, algorithm: sliding_window}
      - {window: 1d, requests_per_unit: 100000, algorithm: sliding_window}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";

/// One request about so many values of a key.
fn many(key: &str, count: usize) -> RateLimitRequest {
    let mut request = rls::request("shop", &[]);
    request.descriptors.clear();
    for i in 0..count {
        request.descriptors.extend(rls::request("shop", &[(key, &format!("v{i}"))]).descriptors);
    }
    request
}

/// What a request of 64 windows is told, and what metrics say then.
fn refused(settings: &[&str]) -> (Served, Result<RateLimitResponse, tonic::Status>) {
    let served = Served::start(POLICY, settings);
    let series = "weir_store_errors_total{kind=\"too_heavy\"}";
    assert_eq!(served.metric(series), Some(0), "known before it happens");
    let mut client = Client::connect(served.at.grpc);
    let answer = client.ask(many("window", 64));
    assert_eq!(served.metric(series), Some(1));
    assert!(admits(&client.ask(many("window", 36)).unwrap()), "1008 is not too heavy");
    assert!(admits(&client.ask(many("user", 64)).unwrap()));
    assert_eq!(served.metric(series), Some(1));
    (served, answer)
}

#[test]
fn a_request_too_heavy_for_redis_is_a_failure_of_the_store_on_both_stores() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    for store in [&["store=memory"][..], &["store=redis", &url, "redis.timeout=10s"]] {
        let with = |on_error: &'static str| [store, &[on_error]].concat();
        let (_served, answer) = refused(&with("on_error=error"));
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "nothing was charged: {status}");
        assert!(status.message().contains("256 charges") && status.message().contains("1024"), "{status}");

        let (served, answer) = refused(&with("on_error=allow"));
        let answer = answer.unwrap();
        assert!(admits(&answer) && answer.statuses.iter().all(|status| status.current_limit.is_none()), "{answer:?}");
        assert_eq!(served.metric("weir_on_error_total{action=\"allow\"}"), Some(64));

        let (_served, answer) = refused(&with("on_error=deny"));
        assert!(!admits(&answer.unwrap()));
    }
}

/// The embedded store decides at once whatever it weighs, so `local` is an answer to a request too heavy for Redis.
#[test]
fn a_request_too_heavy_for_redis_is_decided_locally_if_policies_say_so() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    let (_served, answer) = refused(&["store=redis", &url, "redis.timeout=10s", "on_error=local"]);
    let answer = answer.unwrap();
    assert!(admits(&answer) && answer.statuses.iter().all(|status| status.limit_remaining == 99_999), "{answer:?}");
}

/// Heavy requests of one caller, as heavy as they may be and heavier, beside light ones of another: before there was a
/// bound, they opened the circuit breaker for everybody.
#[test]
fn heavy_requests_of_one_caller_fail_no_request_of_another() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    let settings =
        ["store=redis", &url, "redis.timeout=10s", "runtime.cores=1", "on_error=error", "deny_cache.max_age=0s"];
    let served = Served::start(POLICY, &settings);
    let at = served.at.grpc;
    let heavy = thread::spawn(move || {
        let mut client = Client::connect(at);
        let answers = (0..40).map(|i| client.ask(many("window", if i % 2 == 0 { 64 } else { 36 })));
        answers.filter(Result::is_err).count()
    });
    let mut client = Client::connect(at);
    let mut asked = 0;
    while asked < 200 || !heavy.is_finished() {
        asked += 1;
        client.ask(many("user", 1)).unwrap();
    }
    assert_eq!(heavy.join().unwrap(), 20, "those of 64 descriptors, and no other");
    let address = redis.url().replace("redis://", "");
    assert_eq!(served.metric(&format!("weir_redis_circuit_opened_total{{address=\"{address}\"}}")), Some(0));
}

fn command(name: &str, weight: u32) -> Call {
    Call::command(cmd(name)).weighing(weight)
}

fn node(port: u16, change: impl FnOnce(&mut Options)) -> (tokio::runtime::Runtime, Node) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let entered = runtime.enter();
    let mut options = Options::new(Endpoint::parse(&format!("redis://127.0.0.1:{port}")).unwrap());
    change(&mut options);
    let node = Node::start(options);
    drop(entered);
    (runtime, node)
}

fn soon(time: Duration) -> Instant {
    Instant::now() + time
}

/// A heavy call that Redis does not answer, beside light ones on a pipeline of one connection: they have another.
#[test]
fn light_calls_do_not_wait_behind_a_heavy_one() {
    let fake = FakeNode::start();
    let held = Arc::new(Mutex::new(()));
    let gate = held.clone();
    fake.says(move |words| {
        if words[0] == "HEAVY" {
            drop(gate.lock());
        }
        ":1\r\n".into()
    });
    let (runtime, node) = node(fake.port(), |options| options.connections = 1);
    let holding = held.lock().unwrap();
    runtime.block_on(async {
        let mut heavy = Box::pin(node.call(command("HEAVY", WEIGHT_MAX), soon(PATIENCE)));
        while !fake.heard().contains(&"HEAVY".to_owned()) {
            tokio::select! {
                answer = heavy.as_mut() => panic!("{answer:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        for _ in 0..50 {
            let light = node.call(command("LIGHT", WEIGHT_SHARED_MAX), soon(PATIENCE));
            tokio::select! {
                biased;
                answer = light => assert_eq!(answer.unwrap(), Value::Int(1)),
                answer = heavy.as_mut() => panic!("{answer:?}"),
            }
        }
        drop(holding);
        assert_eq!(heavy.await.unwrap(), Value::Int(1));
    });
}

/// Two runtimes on one server, as two cores have it: heavy calls take turns, so that Redis never has two to run.
#[test]
fn heavy_calls_to_one_server_take_turns() {
    let fake = FakeNode::start();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (running, most.clone());
    fake.says(move |_| {
        let now = counted.0.fetch_add(1, SeqCst) + 1;
        counted.1.fetch_max(now, SeqCst);
        thread::yield_now();
        counted.0.fetch_sub(1, SeqCst);
        ":1\r\n".into()
    });
    let mut shared = None;
    let (runtime, one) = node(fake.port(), |options| shared = Some(options.turns.clone()));
    let entered = runtime.enter();
    let mut options = Options::new(Endpoint::parse(&format!("redis://127.0.0.1:{}", fake.port())).unwrap());
    options.turns = shared.unwrap();
    let other = Node::start(options);
    drop(entered);
    runtime.block_on(async {
        let calls = (0..60).map(|i| {
            let node = if i % 2 == 0 { &one } else { &other };
            node.call(command("HEAVY", WEIGHT_SHARED_MAX + 1), soon(PATIENCE))
        });
        for answer in join_all(calls).await {
            assert_eq!(answer.unwrap(), Value::Int(1));
        }
    });
    assert_eq!(most.load(SeqCst), 1);
}

/// That a heavy call is late says nothing about Redis; as many late light ones open the circuit.
#[test]
fn late_heavy_calls_do_not_open_the_circuit() {
    let silent = FakeNode::start();
    let held = Arc::new(Mutex::new(()));
    let gate = held.clone();
    silent.says(move |_| {
        drop(gate.lock());
        ":1\r\n".into()
    });
    let timeout = Duration::from_millis(20);
    let (runtime, node) = node(silent.port(), |options| options.breaker.timeout = timeout);
    let _holding = held.lock().unwrap();
    runtime.block_on(async {
        for _ in 0..30 {
            let error = node.call(command("HEAVY", WEIGHT_SHARED_MAX + 1), soon(timeout)).await.unwrap_err();
            let (CallError::Unknown { reason } | CallError::NotSent { reason }) = error else { panic!("{error}") };
            assert!(matches!(reason, Reason::Deadline), "{reason}");
        }
        assert_eq!(node.circuit(), Circuit::Closed);
        let end = soon(PATIENCE);
        while node.circuit() != Circuit::Open {
            assert!(Instant::now() < end, "light calls open it");
            join_all((0..40).map(|_| node.call(command("LIGHT", 1), soon(timeout)))).await;
        }
    });
}

/// A server that greets well, and answers the n-th command of each connection as `answers` says; after the last answer
/// it closes the connection.
struct Nonsense {
    port: u16,
    dials: Arc<AtomicU64>,
}

impl Nonsense {
    fn start(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let dials = Arc::new(AtomicU64::new(0));
        let counted = dials.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                counted.fetch_add(1, SeqCst);
                thread::spawn(move || Self::answer(client, answers));
            }
        });
        Self { port, dials }
    }

    fn answer(mut client: TcpStream, answers: &[&str]) {
        let mut buffer = [0; 65_536];
        let mut answers = answers.iter();
        loop {
            let read = match client.read(&mut buffer) {
                Ok(read) if read > 0 => &buffer[..read],
                _ => return,
            };
            let answer = match String::from_utf8_lossy(read) {
                text if text.contains("SETNAME") => "+OK\r\n+PONG\r\n",
                _ => match answers.next() {
                    Some(answer) => answer,
                    None => return,
                },
            };
            if client.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

#[derive(Default)]
struct Recorder {
    broke: Mutex<Vec<String>>,
    held: AtomicU64,
}

impl Recorder {
    fn broke(&self) -> Vec<String> {
        self.broke.lock().unwrap().clone()
    }
}

impl RedisObserver for Recorder {
    fn connection_broke(&self, _: &str, reason: &str) {
        self.broke.lock().unwrap().push(reason.to_owned());
    }

    fn dial_held(&self, _: &str, _: Duration) {
        self.held.fetch_add(1, SeqCst);
    }
}

/// A connection that works for one call and then breaks, again and again: each good answer was taken for the end of the
/// trouble, so that the next dial followed at once.
#[test]
fn nonsense_of_a_redis_draws_a_bounded_number_of_dials() {
    const CONNECTIONS: u64 = 2;
    // As DIALS_AT_ONCE and DIAL_EVERY of src/store/redis/transport/pool.rs.
    const AT_ONCE: u64 = 8 * CONNECTIONS;
    const EVERY: Duration = Duration::from_millis(125);
    for answers in [&[":1\r\n", "hello\r\n"][..], &[":1\r\n", "$-7x\r\n"], &[":1\r\n"]] {
        let nonsense = Nonsense::start(answers);
        let told = Arc::new(Recorder::default());
        let (runtime, node) = node(nonsense.port, |options| {
            options.observer = told.clone();
            // The breaker would bound the dials too, where enough calls fail.
            options.breaker.error_percent = 0;
        });
        let start = Instant::now();
        runtime.block_on(async {
            while start.elapsed() < Duration::from_secs(2) {
                let _ = node.call(command("DBSIZE", 1), soon(Duration::from_millis(10))).await;
            }
        });
        let dials = nonsense.dials.load(SeqCst);
        let allowed = AT_ONCE + 1 + u64::try_from(start.elapsed().as_millis() / EVERY.as_millis()).unwrap();
        assert!(dials <= allowed, "{answers:?}: {dials} dials, of {allowed}");
        assert!(dials > 1, "{answers:?}: it goes on trying");
        assert!(!told.broke().is_empty() || told.held.load(SeqCst) > 0, "{answers:?}: somebody hears of it");
    }
}

/// Asks a server that sends `surplus` after its answer to the first call: each later call gets its own answer. Returns
/// why connections broke.
fn answers_after(surplus: &'static str) -> Vec<String> {
    let fake = FakeNode::start();
    fake.says(move |words| match words[1].as_str() {
        "0" => format!(":0\r\n{surplus}"),
        n => format!(":{n}\r\n"),
    });
    let told = Arc::new(Recorder::default());
    let (runtime, node) = node(fake.port(), |options| {
        options.observer = told.clone();
        options.connections = 1;
    });
    runtime.block_on(async {
        for n in 0..5 {
            let mut asked = cmd("ASKED");
            asked.arg(n);
            let answer = node.call(Call::command(asked), soon(PATIENCE)).await;
            assert_eq!(answer.unwrap(), Value::Int(n), "after {surplus:?}");
        }
    });
    told.broke()
}

#[test]
fn a_reply_too_many_is_no_answer_to_a_later_call() {
    for (surplus, shown) in [
        (":666\r\n", r#"":666\r\n""#),
        (":666\r\n:667\r\n", r#"":666\r\n:667\r\n""#),
        // The answer to the next call would be its text.
        ("$2\r\n", r#""$2\r\n""#),
        ("*", r#""*""#),
        ("x", r#""x""#),
    ] {
        let broke = answers_after(surplus);
        assert_eq!(broke, [format!("a reply without a request: {shown}")]);
    }
    assert!(answers_after("").is_empty());
}

#[test]
fn the_log_shows_what_a_server_answers_that_is_no_redis() {
    for (answer, why) in [
        ("hello\r\n", r#"a value begins with "hello\r\n""#),
        ("$-7x\r\n", r#"the length is not a number in "$-7x\r\n""#),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", r#"a value begins with "HTTP/1.1 400 Bad Request\r\n\r\n""#),
    ] {
        let fake = FakeNode::start();
        fake.says(move |_| answer.into());
        let told = Arc::new(Recorder::default());
        let (runtime, node) = node(fake.port(), |options| options.observer = told.clone());
        let error = runtime.block_on(node.call(command("DBSIZE", 1), soon(PATIENCE))).unwrap_err();
        assert!(matches!(error, CallError::Unknown { reason: Reason::Broken(_) }), "{error}");
        let broke = told.broke();
        assert!(broke[0].contains(&format!("a reply that is not RESP: {why}")), "{broke:?}");
    }
}
