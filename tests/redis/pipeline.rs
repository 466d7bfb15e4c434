//! The transport under the Redis store against a real redis-server: calls share round trips, nothing is
//! sent twice, every call is answered by its deadline, and its error says whether it can have run.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};
use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Window};
use weir_store::redis::pipeline::{
    Call, CallError, Load, Options, Pipeline, Reason, SILENCE_MAX, SILENCE_TIMEOUTS, Script,
};
use weir_store::redis::{Endpoint, REPLIES_BYTES_MAX, Redis, RedisObserver};
use weir_store::{Deciding as _, StoreError, Undo};

use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, eventually};

/// A deadline that a healthy Redis is never near, and that a sick one is to reach.
const SHORT: Duration = Duration::from_millis(200);

static COUNT: LazyLock<Script> =
    LazyLock::new(|| Script::new("count", "return redis.call('INCRBY', KEYS[1], ARGV[1])"));
static ECHO: LazyLock<Script> = LazyLock::new(|| Script::new("echo", "return {KEYS[1], ARGV[1]}"));

/// What the pipeline told its observer.
#[derive(Debug, Default)]
struct Tally {
    batches: Mutex<Vec<usize>>,
    dropped: Mutex<Vec<String>>,
    load: OnceLock<Load>,
}

impl Tally {
    fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }

    fn waiting(&self) -> usize {
        self.load.get().and_then(Load::waiting).unwrap()
    }

    fn dropped(&self) -> Vec<String> {
        self.dropped.lock().unwrap().clone()
    }
}

impl RedisObserver for Tally {
    fn started(&self, _: &str, load: Load) {
        self.load.set(load).unwrap();
    }

    fn batch_answered(&self, calls: usize, _: Duration) {
        self.batches.lock().unwrap().push(calls);
    }

    fn connection_dropped(&self, reason: &str) {
        self.dropped.lock().unwrap().push(reason.to_owned());
    }
}

struct Setup {
    pipeline: Arc<Pipeline>,
    tally: Arc<Tally>,
}

/// A pipeline of one connection, so that what is in flight and what waits is certain.
fn start(url: &str, change: impl FnOnce(&mut Options)) -> Setup {
    let tally = Arc::new(Tally::default());
    let mut options = Options::new(Endpoint::parse(url).unwrap());
    options.connections = 1;
    options.observer = tally.clone();
    change(&mut options);
    Setup { pipeline: Arc::new(Pipeline::start(options)), tally }
}

fn incr(key: &str) -> Cmd {
    let mut command = cmd("INCR");
    command.arg(key);
    command
}

fn get(key: &str) -> Cmd {
    let mut command = cmd("GET");
    command.arg(key);
    command
}

impl Setup {
    async fn call(&self, command: Cmd, within: Duration) -> Result<Value, CallError> {
        let deadline = Instant::now() + within;
        self.pipeline.call(Call::command(command), deadline).await
    }

    /// The answer to a call that has all the time it wants.
    async fn answer(&self, command: Cmd) -> Value {
        self.call(command, PATIENCE).await.unwrap()
    }

    /// Makes calls at the same time, in their order, and returns their answers in it.
    async fn together(&self, calls: Vec<(Call, Duration)>) -> Vec<Result<Value, CallError>> {
        let now = Instant::now();
        let mut tasks = Vec::new();
        for (call, within) in calls {
            let pipeline = self.pipeline.clone();
            tasks.push(tokio::spawn(async move { pipeline.call(call, now + within).await }));
        }
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers
    }

    /// Calls until Redis answers.
    async fn recovered(&self) {
        let end = Instant::now() + PATIENCE;
        while self.call(cmd("PING"), SHORT).await.is_err() {
            assert!(Instant::now() < end, "no answer from a Redis that is back");
        }
    }
}

/// Lets the runtime learn what has happened to its sockets meanwhile. In a test this thread was blocked;
/// a runtime that serves requests looks all the time.
async fn turn_the_reactor() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn pong() -> Value {
    Value::SimpleString("PONG".into())
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.into())
}

/// The reason of a call that was not sent.
fn not_sent(answer: Result<Value, CallError>) -> Reason {
    match answer {
        Err(CallError::NotSent { reason }) => reason,
        other => panic!("expected a call that was not sent: {other:?}"),
    }
}

/// The reason of a call that may have run.
fn unknown(answer: Result<Value, CallError>) -> Reason {
    match answer {
        Err(CallError::Unknown { reason }) => reason,
        other => panic!("expected a call with an unknown outcome: {other:?}"),
    }
}

/// The code of Redis' refusal.
fn refused(answer: Result<Value, CallError>) -> String {
    match answer {
        Err(CallError::Refused(error)) => error.code().to_owned(),
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn calls_in_flight_share_round_trips() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |options| options.batch_max = 64);
    setup.answer(cmd("PING")).await;
    let reads = proxy.reads();
    let calls = (0..200).map(|_| (Call::command(incr("n")), PATIENCE));
    let mut counts = Vec::new();
    for answer in setup.together(calls.collect()).await {
        counts.push(answer.unwrap());
    }
    // In their order too: the first caller got the first count.
    let expected: Vec<_> = (1..=200).map(Value::Int).collect();
    assert_eq!(counts, expected);
    let batches = setup.tally.batches();
    assert_eq!(batches.iter().sum::<usize>(), 201);
    assert_eq!(batches.iter().max(), Some(&64), "{batches:?}");
    assert!(batches.len() <= 10, "{batches:?}");
    assert!(proxy.reads() - reads <= 20, "{} reads", proxy.reads());
}

#[tokio::test]
async fn an_idle_pipeline_sends_a_call_alone_and_pings_only_when_it_dials() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |options| options.connections = 4);
    for n in 1..=20 {
        assert_eq!(setup.answer(incr("n")).await, Value::Int(n));
    }
    assert_eq!(setup.tally.batches(), [1; 20]);
    assert_eq!(proxy.connections(), 1, "one at a time needs one connection");
    assert_eq!(server.runs("ping"), 1);
    assert!(server.command(&["CLIENT", "LIST"]).unwrap().contains("name=weir"));
}

#[tokio::test]
async fn callers_on_other_threads_are_each_counted_once() {
    const THREADS: i64 = 4;
    const CALLS: i64 = 250;
    let server = RedisServer::start();
    let setup = start(&server.url(), |options| options.connections = 4);
    let mut threads = tokio::task::JoinSet::new();
    for _ in 0..THREADS {
        let pipeline = setup.pipeline.clone();
        threads.spawn_blocking(move || {
            let caller = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..CALLS {
                let pipeline = pipeline.clone();
                let call = async move {
                    let call = Call::script(&COUNT, &["n"], &["1"]);
                    pipeline.call(call, Instant::now() + PATIENCE).await
                };
                calls.spawn_on(call, caller.handle());
            }
            caller.block_on(calls.join_all())
        });
    }
    let mut counts = Vec::new();
    for answer in threads.join_all().await.into_iter().flatten() {
        match answer.unwrap() {
            Value::Int(count) => counts.push(count),
            other => panic!("{other:?}"),
        }
    }
    counts.sort_unstable();
    assert_eq!(counts, (1..=THREADS * CALLS).collect::<Vec<_>>());
    assert_eq!(setup.tally.dropped(), Vec::<String>::new());
}

#[tokio::test]
async fn a_script_that_redis_forgot_is_loaded_and_only_its_calls_are_sent_again() {
    let server = RedisServer::start();
    let setup = start(&server.url(), |_| {});
    for round in 1..=2 {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let calls = vec![
            (Call::script(&COUNT, &["n"], &["5"]), PATIENCE),
            (Call::command(incr("plain")), PATIENCE),
            (Call::script(&ECHO, &["k|=\r\n"], &[b"\xff\0"]), PATIENCE),
            (Call::script(&COUNT, &["n"], &["5"]), PATIENCE),
            (Call::command(incr("plain")), PATIENCE),
        ];
        let answers: Vec<_> = setup.together(calls).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(
            answers,
            [
                Value::Int(10 * round - 5),
                Value::Int(2 * round - 1),
                Value::Array(vec![bulk("k|=\r\n"), Value::BulkString(b"\xff\0".into())]),
                Value::Int(10 * round),
                Value::Int(2 * round),
            ]
        );
    }
    assert_eq!(server.runs("script|load"), 4, "each script, each round");
    assert_eq!(server.runs("incr"), 4);
    assert_eq!(server.runs("incrby"), 4);
    assert_eq!(setup.tally.batches(), [5, 3, 5, 3]);
}

#[tokio::test]
async fn a_script_that_cannot_be_loaded_is_refused_with_the_reason() {
    static BROKEN: LazyLock<Script> = LazyLock::new(|| Script::new("broken", "return ("));
    let server = RedisServer::start();
    let setup = start(&server.url(), |_| {});
    let call = Call::script(&BROKEN, &["k"], &["1"]);
    let deadline = Instant::now() + PATIENCE;
    let error = setup.pipeline.call(call, deadline).await.unwrap_err();
    let CallError::Refused(answer) = error else { panic!("{error:?}") };
    assert!(answer.details().unwrap().contains("Error compiling script"), "{answer:?}");
    assert_eq!(setup.answer(cmd("PING")).await, pong());
}

#[tokio::test]
async fn an_error_of_one_call_is_its_own() {
    let server = RedisServer::start();
    let setup = start(&server.url(), |_| {});
    setup.answer(cmd("LPUSH").arg("list").arg("x").take()).await;
    let calls = vec![
        (Call::command(incr("n")), PATIENCE),
        (Call::command(incr("list")), PATIENCE),
        (Call::script(&COUNT, &["n"], &["many"]), PATIENCE),
        (Call::command(cmd("NONSENSE")), PATIENCE),
        (Call::command(incr("n")), PATIENCE),
    ];
    let mut answers = setup.together(calls).await.into_iter();
    let mut next = || answers.next().unwrap();
    assert_eq!(next().unwrap(), Value::Int(1));
    assert_eq!(refused(next()), "WRONGTYPE");
    assert_eq!(refused(next()), "ERR");
    assert_eq!(refused(next()), "ERR");
    assert_eq!(next().unwrap(), Value::Int(2));
    assert_eq!(setup.tally.dropped(), Vec::<String>::new());
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let server = RedisServer::start();
    server.freeze();
    let setup = start(&server.url(), |options| options.queue_max = 3);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let pipeline = setup.pipeline.clone();
        calls.spawn(async move {
            let deadline = Instant::now() + PATIENCE;
            pipeline.call(Call::command(incr("n")), deadline).await
        });
    }
    eventually("three calls to wait", PATIENCE, async || setup.tally.waiting() == 3).await;
    // Answered when first asked, with no wait at all.
    let answer = tokio::time::timeout(Duration::ZERO, setup.call(incr("n"), PATIENCE)).await;
    let reason = not_sent(answer.unwrap());
    assert!(matches!(reason, Reason::QueueFull { max: 3 }), "{reason}");
    assert_eq!(reason.to_string(), "the queue is full (3 calls)");
    server.thaw();
    while let Some(answer) = calls.join_next().await {
        answer.unwrap().unwrap();
    }
    assert_eq!(setup.answer(get("n")).await, bulk("3"));
}

#[tokio::test]
async fn a_call_that_is_given_up_while_it_waits_is_not_sent() {
    let server = RedisServer::start();
    server.freeze();
    let setup = start(&server.url(), |_| {});
    let pipeline = setup.pipeline.clone();
    let deadline = Instant::now() + PATIENCE;
    let given_up = tokio::spawn(async move { pipeline.call(Call::command(incr("a")), deadline).await });
    eventually("the call to wait", PATIENCE, async || setup.tally.waiting() == 1).await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    assert_eq!(setup.tally.waiting(), 0);
    server.thaw();
    assert_eq!(setup.answer(incr("b")).await, Value::Int(1));
    assert_eq!(setup.answer(get("a")).await, Value::Nil);
    assert_eq!(server.runs("incr"), 1);
}

#[tokio::test]
async fn a_call_whose_deadline_passes_while_it_waits_is_not_sent() {
    let server = RedisServer::start();
    server.freeze();
    let setup = start(&server.url(), |options| {
        // It is never this dial's end that answers the call.
        options.connect_timeout = PATIENCE;
    });
    let begun = Instant::now();
    let reason = not_sent(setup.call(incr("a"), SHORT).await);
    assert!(matches!(reason, Reason::Deadline), "{reason}");
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(setup.tally.waiting(), 0);
    server.thaw();
    assert_eq!(setup.answer(incr("b")).await, Value::Int(1));
    assert_eq!(setup.answer(get("a")).await, Value::Nil);
}

#[tokio::test]
async fn a_redis_that_accepts_and_does_not_answer_is_found_before_anything_is_sent() {
    let server = RedisServer::start();
    server.freeze();
    let setup = start(&server.url(), |options| options.connect_timeout = SHORT / 4);
    let reason = not_sent(setup.call(incr("a"), SHORT).await);
    let expected = format!("no connection to redis at 127.0.0.1:{}: no answer within 50ms", server.port());
    assert_eq!(reason.to_string(), expected);
    server.thaw();
    setup.recovered().await;
    assert_eq!(setup.answer(get("a")).await, Value::Nil);
}

#[tokio::test]
async fn a_call_to_a_frozen_redis_ends_at_its_deadline_and_runs_at_most_once() {
    let server = RedisServer::start();
    let setup = start(&server.url(), |_| {});
    setup.answer(cmd("PING")).await;
    server.freeze();
    let begun = Instant::now();
    let reason = unknown(setup.call(incr("n"), SHORT).await);
    assert!(matches!(reason, Reason::Deadline), "{reason}");
    assert!(begun.elapsed() >= SHORT);
    server.thaw();
    setup.recovered().await;
    // The request was in the socket before the connection closed: Redis reads it, once.
    let runs = || server.runs("incr");
    eventually("the call to run", PATIENCE, async || runs() == 1).await;
    setup.recovered().await;
    assert_eq!(runs(), 1);
    assert_eq!(setup.tally.dropped(), ["1 call not answered in time"], "the connection that owes an answer is closed");
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_never_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |_| {});
    // So that the script is known, and the connection is in use.
    let first = vec![(Call::script(&COUNT, &["s"], &["1"]), PATIENCE)];
    setup.together(first).await.remove(0).unwrap();
    proxy.swallow(true);
    let calls = vec![
        (Call::command(incr("n")), SHORT),
        (Call::script(&COUNT, &["s"], &["1"]), SHORT),
        (Call::command(incr("n")), SHORT),
    ];
    for answer in setup.together(calls).await {
        let reason = unknown(answer);
        assert!(matches!(reason, Reason::Deadline), "{reason}");
    }
    proxy.swallow(false);
    setup.recovered().await;
    assert_eq!(proxy.connections(), 2, "the old connection is not used");
    assert_eq!(setup.answer(get("n")).await, bulk("2"));
    assert_eq!(setup.answer(get("s")).await, bulk("2"));
    assert_eq!(server.runs("incr"), 2);
}

#[tokio::test]
async fn a_connection_that_breaks_between_two_answers_resends_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |_| {});
    setup.answer(cmd("PING")).await;
    // ":1\r\n" and a part of ":2\r\n".
    proxy.cut_after(6);
    let calls = (0..3).map(|_| (Call::command(incr("n")), PATIENCE));
    for answer in setup.together(calls.collect()).await {
        let reason = unknown(answer);
        assert!(matches!(reason, Reason::Broken(_)), "{reason}");
    }
    setup.recovered().await;
    assert_eq!(setup.answer(get("n")).await, bulk("3"));
    assert_eq!(server.runs("incr"), 3);
}

#[tokio::test]
async fn each_call_of_a_batch_has_its_own_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |_| {});
    setup.answer(cmd("PING")).await;
    proxy.swallow(true);
    let begun = Instant::now();
    let timed = |within: Duration| {
        let pipeline = setup.pipeline.clone();
        tokio::spawn(async move {
            let call = Call::command(incr("n"));
            let answer = pipeline.call(call, begun + within).await;
            (answer, begun.elapsed())
        })
    };
    let (long, short) = (timed(SHORT * 10), timed(SHORT));
    let (answer, took) = short.await.unwrap();
    unknown(answer);
    assert!(took >= SHORT && took < SHORT * 10, "{took:?}");
    // Its neighbour still waits: on the same connection, which is not given up.
    assert_eq!(setup.tally.dropped(), Vec::<String>::new());
    let (answer, took) = long.await.unwrap();
    unknown(answer);
    assert!(took >= SHORT * 10, "{took:?}");
    assert_eq!(setup.tally.dropped(), ["2 calls not answered in time"], "one batch");
}

#[tokio::test]
async fn calls_in_a_hurry_cost_the_others_no_connection() {
    /// One answer takes that long on the line: more than the hurried have, far less than the patient.
    const ROUND_TRIP: Duration = Duration::from_millis(8);
    const HURRIED: Duration = Duration::from_millis(3);
    const CONNECTIONS: u32 = 2;
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |options| {
        options.connections = CONNECTIONS;
        options.breaker.timeout = PATIENCE;
    });
    setup.answer(cmd("PING")).await;
    proxy.delay(ROUND_TRIP);
    let mut late = 0;
    for round in 0..40 {
        let calls = vec![
            (Call::command(incr("hurried")), HURRIED),
            (Call::command(incr("hurried")), HURRIED),
            (Call::command(incr("hurried")), HURRIED),
        ];
        let begun = Instant::now();
        for answer in setup.together(calls).await {
            // On a busy machine an answer may be there when somebody looks for the first time.
            match answer {
                Err(CallError::Unknown { reason: Reason::Deadline }) => late += 1,
                Ok(_) | Err(CallError::NotSent { reason: Reason::Deadline }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(begun.elapsed() < PATIENCE / 2, "they are not held up by the answers that they do not want");
        // Its answer is its own, and not one that is owed to those before it.
        let answers = setup.together(vec![(Call::command(incr("patient")), PATIENCE)]).await;
        assert!(matches!(answers[..], [Ok(Value::Int(count))] if count == round + 1), "{answers:?}");
    }
    assert!(late > 0, "some were sent, and gave up before their answer came");
    assert_eq!(setup.tally.dropped(), Vec::<String>::new());
    assert!(proxy.connections() <= u64::from(CONNECTIONS), "{} dials", proxy.connections());
}

/// Connections were closed at the timeout of calls, and the bound on dials then left none: half of the calls failed that
/// were sent while Redis answered.
#[tokio::test]
async fn a_redis_that_stops_often_for_longer_than_the_timeout_costs_no_connection() {
    /// More than are dialled at once.
    const STALLS: u64 = 12;
    let timeout = Duration::from_millis(20);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let setup = start(&proxy.url(), |options| options.breaker.timeout = timeout);
    setup.answer(cmd("PING")).await;
    for stall in 1..=STALLS {
        server.freeze();
        let reason = unknown(setup.call(incr("n"), timeout).await);
        assert!(matches!(reason, Reason::Deadline), "{reason}");
        let reason = not_sent(setup.call(incr("n"), timeout).await);
        assert!(matches!(reason, Reason::Deadline), "{reason}");
        server.thaw();
        // Its own answer, on the same connection, behind the late one.
        assert_eq!(setup.answer(get("n")).await, bulk(&stall.to_string()));
    }
    assert_eq!(setup.tally.dropped(), Vec::<String>::new());
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn answers_that_nobody_waits_for_are_awaited_no_longer_than_others() {
    let server = RedisServer::start();
    // Below a tenth of the longest silence, above it, and above the longest silence itself.
    for (timeout, silence) in [(SHORT / 4, SHORT / 4 * SILENCE_TIMEOUTS), (SHORT, SILENCE_MAX), (SHORT * 8, SHORT * 8)]
    {
        let setup = start(&server.url(), |options| options.breaker.timeout = timeout);
        setup.answer(cmd("PING")).await;
        server.freeze();
        let begun = Instant::now();
        let reason = unknown(setup.call(incr("n"), SHORT / 4).await);
        assert!(matches!(reason, Reason::Deadline), "{reason}");
        assert_eq!(setup.tally.dropped(), Vec::<String>::new(), "the answer may still come");
        eventually("the connection to be given up", PATIENCE, async || !setup.tally.dropped().is_empty()).await;
        assert!(begun.elapsed() >= silence, "{timeout:?}");
        assert_eq!(setup.tally.dropped(), ["1 call not answered in time"]);
        server.thaw();
        setup.recovered().await;
    }
}

#[tokio::test]
async fn a_redis_that_dies_and_comes_back_is_found_again() {
    let mut server = RedisServer::start();
    let setup = start(&server.url(), |options| options.connections = 2);
    setup.answer(incr("n")).await;
    server.kill();
    turn_the_reactor().await;
    // The idle connection is seen to be closed before it is used: so nothing is sent, and no outcome
    // is unknown.
    let begun = Instant::now();
    let reason = not_sent(setup.call(incr("n"), SHORT).await);
    assert!(reason.to_string().contains("Connection refused"), "{reason}");
    assert!(begun.elapsed() >= SHORT, "it was tried until the deadline");
    assert_eq!(setup.tally.dropped(), ["redis closed the idle connection"]);
    server.restart();
    setup.recovered().await;
    assert_eq!(setup.answer(incr("n")).await, Value::Int(1));
}

#[tokio::test]
async fn a_user_who_may_not_ping_may_still_call() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "weir", "on", ">pw", "~*", "+incr"]).unwrap();
    let url = format!("redis://weir:pw@127.0.0.1:{}", server.port());
    let setup = start(&url, |_| {});
    assert_eq!(setup.answer(incr("n")).await, Value::Int(1));
    assert_eq!(refused(setup.call(get("n"), PATIENCE).await), "NOPERM");
}

#[tokio::test]
async fn a_redis_that_is_still_loading_is_found_before_anything_is_sent() {
    // Ours is never loading for long enough, so this one only talks like it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = tokio::task::spawn_blocking(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut greeting = [0; 256];
        let _ = client.read(&mut greeting).unwrap();
        let answers = "+OK\r\n-LOADING Redis is loading the dataset in memory\r\n";
        client.write_all(answers.as_bytes()).unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        // The listener stays, so that later dials wait and the first one's reason is the last.
        (rest, listener)
    });
    let setup = start(&url, |_| {});
    let reason = not_sent(setup.call(incr("n"), SHORT).await).to_string();
    let expected = "LOADING Redis is loading the dataset in memory";
    assert!(reason.ends_with(expected), "{reason}");
    let (rest, _listener) = server.await.unwrap();
    assert_eq!(rest, b"", "the call was not sent");
}

#[tokio::test]
async fn a_worker_that_dies_is_reported_and_leaves_no_caller_waiting() {
    struct Faulty;
    impl RedisObserver for Faulty {
        fn batch_answered(&self, _: usize, _: Duration) {
            panic!("a fault in a test");
        }
    }
    let server = RedisServer::start();
    let setup = start(&server.url(), |options| options.observer = Arc::new(Faulty));
    let reason = unknown(setup.call(incr("n"), PATIENCE).await);
    assert_eq!(reason.to_string(), "the connection broke: its worker died");
    let report = setup.pipeline.died().await;
    assert!(report.contains("a fault in a test"), "{report}");
}

#[tokio::test]
async fn an_answer_beyond_the_bound_ends_the_connection() {
    let server = RedisServer::start();
    let setup = start(&server.url(), |_| {});
    let offset = REPLIES_BYTES_MAX.to_string();
    server.command(&["SETRANGE", "big", &offset, "x"]).unwrap();
    let reason = unknown(setup.call(get("big"), PATIENCE).await).to_string();
    assert!(reason.contains("too many bytes"), "{reason}");
    assert_eq!(setup.answer(cmd("PING")).await, pong());
}

#[tokio::test]
async fn dropping_the_pipeline_ends_its_tasks_and_connections() {
    let server = RedisServer::start();
    let setup = start(&server.url(), |options| options.connections = 3);
    setup.answer(cmd("PING")).await;
    let connected = || {
        let clients = server.command(&["CLIENT", "LIST"]).unwrap();
        clients.contains("name=weir")
    };
    assert!(connected());
    drop(setup);
    eventually("the connections to close", PATIENCE, async || !connected()).await;
}

/// Charges of logs have an undo call each. One after the other, 40 of them would take twice the time that is given.
#[tokio::test]
async fn undos_of_many_logs_share_round_trips_and_one_that_fails_stops_no_other() {
    const DELAY: Duration = Duration::from_millis(50);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut options = Options::new(Endpoint::parse(&proxy.url()).unwrap());
    options.connections = 1;
    let store = Redis::start(options, "");
    let day = Window::from_micros(86_400_000_000).unwrap();
    let limit = Limit::new(3, day, Algorithm::SlidingWindowLog).unwrap();
    let keys: Vec<String> = (0..40).map(|n| format!("log-{n}")).collect();
    let charge = |key, operation| Charge::alone(key, &limit, operation);
    let decide = async |operation| {
        let charges: Vec<_> = keys.iter().map(|key| charge(key.as_str(), operation)).collect();
        store.decide(&charges, Mode::Atomic, Instant::now() + PATIENCE).get().await.unwrap().outcomes
    };
    // Twice each, so that undos of one key have an order to keep.
    let mut undos = Vec::new();
    for _ in 0..2 {
        for (key, outcome) in keys.iter().zip(decide(Operation::Consume(1)).await) {
            undos.push(Undo { key, limit: &limit, receipt: outcome.receipt.unwrap(), bounds: None });
        }
    }
    assert!(decide(Operation::Peek).await.iter().all(|outcome| outcome.remaining == 1));
    // The script is known from then on.
    store.undo(&undos[40..41], Instant::now() + PATIENCE).get().await.unwrap();
    let broken = server.command(&["SET", &keys[1], "no log"]).unwrap();
    assert_eq!(broken.trim(), "OK");

    proxy.delay(DELAY);
    let error = store.undo(&undos, Instant::now() + 20 * DELAY).get().await.unwrap_err();
    assert!(matches!(&error, StoreError::NotSent(failure) if failure.kind == "wrongtype"), "{error:?}");
    proxy.delay(Duration::ZERO);
    server.command(&["DEL", &keys[1]]).unwrap();
    for (key, outcome) in keys.iter().zip(decide(Operation::Peek).await) {
        assert_eq!(outcome.remaining, 3, "{key}");
    }
}
