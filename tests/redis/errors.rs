//! Every error of Redis that weir knows, from a real redis-server in the state that gives it: what a decision is told,
//! that nothing was charged where that is said, whether the breaker opens, and that all is well by itself afterwards.
//!
//! Errors of the network are in redis/pipeline.rs, and what a node of a cluster says to a client of a cluster in
//! redis/cluster.rs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::ServerError;
use weir_engine::algorithm::StoredFormat;
use weir_engine::descriptor::saturated;
use weir_engine::{Algorithm, Anchor, Limit, Mode, Operation, Window};
use weir_store::redis::breaker::{Circuit, TRIALS};
use weir_store::redis::error_class::{After, Blame, ERROR_CLASSES, Proof, RedisErrorClass};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, KINDS, Redis, RedisObserver};
use weir_store::{Deciding as _, Failure, Inspected as _, StoreError, Undo};

use crate::support::algorithms::without_calendars;
use crate::support::fake_node::FakeNode;
use crate::support::manual::charge;
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, eventually, until};

/// A deadline that Redis' errors arrive well before, and that a dial which is refused again and again reaches.
const SHORT: Duration = Duration::from_millis(200);
/// Calls at the same time: more than the breaker wants to see.
const MANY: u32 = 30;
/// More than any test here charges.
const REQUESTS: u32 = 1_000_000;

/// What the node told its observer.
#[derive(Debug, Default)]
struct Heard {
    refused: Mutex<BTreeMap<&'static str, u32>>,
    dropped: Mutex<Vec<String>>,
    changes: Mutex<Vec<(Circuit, Circuit)>>,
}

impl RedisObserver for Heard {
    fn connection_dropped(&self, reason: &str) {
        self.dropped.lock().unwrap().push(reason.to_owned());
    }

    fn refused(&self, _: &str, class: &RedisErrorClass, _: &ServerError) {
        *self.refused.lock().unwrap().entry(class.kind).or_default() += 1;
    }

    fn circuit_changed(&self, _: &str, from: Circuit, to: Circuit) {
        self.changes.lock().unwrap().push((from, to));
    }
}

impl Heard {
    fn has_opened(&self) -> bool {
        self.changes.lock().unwrap().iter().any(|(_, to)| *to == Circuit::Open)
    }
}

/// A store, and what was charged through it.
struct Rig {
    store: Redis,
    heard: Arc<Heard>,
    charged: AtomicU32,
}

fn limit() -> Limit {
    // A window that does not end while the test runs.
    let day = Window::from_micros(86_400_000_000).unwrap();
    Limit::new(REQUESTS.into(), day, Algorithm::FixedWindow { anchor: Anchor::FirstHit }).unwrap()
}

impl Rig {
    fn start(url: &str) -> Arc<Rig> {
        Rig::with(url, |_| {})
    }

    fn with(url: &str, change: impl FnOnce(&mut Options)) -> Arc<Rig> {
        let heard = Arc::new(Heard::default());
        let mut options = Options::new(Endpoint::parse(url).unwrap());
        options.observer = heard.clone();
        options.breaker.timeout = SHORT;
        change(&mut options);
        Arc::new(Rig { store: Redis::start(options, ""), heard, charged: AtomicU32::new(0) })
    }

    /// One charge by the script of its algorithm.
    async fn one(&self) -> Result<(), StoreError> {
        let limit = limit();
        let charges = [charge("{k}one", &limit, Operation::Consume(1))];
        self.store.decide(&charges, Mode::Atomic, Instant::now() + SHORT).get().await?;
        self.charged.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The same hit and one on another key, by the script for several charges.
    async fn two(&self) -> Result<(), StoreError> {
        let limit = limit();
        let charges =
            [charge("{k}one", &limit, Operation::Consume(1)), charge("{k}two", &limit, Operation::Consume(1))];
        self.store.decide(&charges, Mode::Atomic, Instant::now() + SHORT).get().await?;
        self.charged.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Many charges at once, and how each ended: `ok`, or the kind of its error. All errors prove that nothing was
    /// charged.
    async fn many(self: &Arc<Self>) -> BTreeMap<&'static str, u32> {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..MANY {
            let rig = self.clone();
            calls.spawn(async move { rig.one().await });
        }
        let mut ends = BTreeMap::new();
        for answer in calls.join_all().await {
            *ends.entry(answer.map_or_else(|error| not_sent(&error).kind, |()| "ok")).or_default() += 1;
        }
        ends
    }

    /// Charges until Redis does it.
    async fn recovered(&self) {
        let end = Instant::now() + PATIENCE;
        while let Err(error) = self.one().await {
            assert!(Instant::now() < end, "not recovered: {error}");
            // An open breaker answers without a wait: others want to run too.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Everything that was charged was told so, and the other way round.
    async fn assert_charged(&self) {
        let limit = limit();
        let look = [charge("{k}one", &limit, Operation::Peek)];
        let seen = self.store.decide(&look, Mode::Atomic, Instant::now() + SHORT).get().await.unwrap();
        let used = REQUESTS - saturated(seen.outcomes[0].remaining);
        assert_eq!(used, self.charged.load(Ordering::SeqCst), "charged at Redis, and told so");
    }
}

fn not_sent(error: &StoreError) -> &Failure {
    match error {
        StoreError::NotSent(failure) => failure,
        other => panic!("expected proof that nothing was charged: {other:?}"),
    }
}

fn row(kind: &str) -> RedisErrorClass {
    *ERROR_CLASSES.iter().find(|row| row.kind == kind).unwrap()
}

/// A Redis that is brought into a state by `begin` and out of it by `end`, and what weir makes of that.
async fn ordeal(rig: &Arc<Rig>, kind: &'static str, begin: impl FnOnce(), end: impl FnOnce()) {
    let row = row(kind);
    begin();
    // A connection that was closed meanwhile is seen to be, as on a runtime that was not blocked by its test.
    tokio::time::sleep(Duration::from_millis(1)).await;
    for answer in [rig.one().await, rig.two().await, rig.one().await] {
        let error = answer.unwrap_err();
        assert_eq!(not_sent(&error).kind, kind, "{error}");
    }
    // Its breaker opens for what concerns the whole server, and only for that.
    let ends = rig.many().await;
    let ends_later = rig.many().await;
    if row.blame == Blame::Server {
        assert!(rig.heard.has_opened(), "{ends:?}");
        assert!(ends_later.contains_key("circuit_open"), "{ends_later:?}");
        for other in ends.keys().chain(ends_later.keys()) {
            assert!([kind, "circuit_open"].contains(other), "{ends:?} {ends_later:?}");
        }
    } else {
        assert_eq!((ends, ends_later), (BTreeMap::from([(kind, MANY)]), BTreeMap::from([(kind, MANY)])));
        assert!(!rig.heard.has_opened());
    }
    if row.connection == After::Keep {
        assert_eq!(*rig.heard.dropped.lock().unwrap(), Vec::<String>::new());
    }
    end();
    rig.recovered().await;
    // More than the trials: the breaker has closed again.
    for _ in 0..TRIALS {
        rig.recovered().await;
    }
    rig.two().await.unwrap();
    assert_eq!(rig.many().await, BTreeMap::from([("ok", MANY)]));
    rig.assert_charged().await;
}

/// The same where the error comes with an answer, and not at the greeting.
fn assert_heard(rig: &Rig, kind: &str) {
    let refused = rig.heard.refused.lock().unwrap();
    assert!(refused.get(kind).is_some_and(|&count| count >= 1), "{refused:?}");
}

fn config(server: &RedisServer, name: &str, value: &str) {
    let answer = server.command(&["CONFIG", "SET", name, value]).unwrap_or_default();
    assert_eq!(answer.trim(), "OK", "CONFIG SET {name} {value}");
}

fn ok(server: &RedisServer, command: &[&str]) {
    let answer = server.command(command).unwrap_or_default();
    assert_eq!(answer.trim(), "OK", "{command:?}");
}

#[tokio::test]
async fn a_replica_refuses_to_write() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    // A replica of nobody in particular: port 1 refuses.
    let begin = || ok(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    ordeal(&rig, "readonly", begin, || ok(&server, &["REPLICAOF", "NO", "ONE"])).await;
    assert_heard(&rig, "readonly");
    assert!(rig.heard.dropped.lock().unwrap().iter().all(|reason| reason == "redis answered READONLY"));
}

#[tokio::test]
async fn a_replica_that_serves_no_stale_data_refuses_everything() {
    let server = RedisServer::start_with(None, &["--replica-serve-stale-data", "no"]);
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    let begin = || ok(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    ordeal(&rig, "masterdown", begin, || ok(&server, &["REPLICAOF", "NO", "ONE"])).await;
    assert_heard(&rig, "masterdown");
}

#[tokio::test]
async fn a_redis_that_is_loading_refuses_everything() {
    let server = RedisServer::start_with(None, &["--enable-debug-command", "yes"]);
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    // It looks at its clients between two keys, which it takes its time for.
    ok(&server, &["DEBUG", "POPULATE", "400", "filler", "4096"]);
    config(&server, "rdbcompression", "no");
    config(&server, "loading-process-events-interval-bytes", "1024");
    config(&server, "key-load-delay", "20000");
    let mut reload = None;
    let begin = || {
        reload = Some(cli(&server, &["DEBUG", "RELOAD"]));
        until("the load to begin", PATIENCE, || {
            let info = server.command(&["INFO", "persistence"])?;
            info.contains("loading:1").then_some(())
        });
    };
    ordeal(&rig, "loading", begin, || config(&server, "key-load-delay", "0")).await;
    assert_heard(&rig, "loading");
    drop(reload);
}

#[tokio::test]
async fn a_redis_that_runs_a_long_script_refuses_everything() {
    let server = RedisServer::start_with(None, &["--busy-reply-threshold", "10"]);
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    let mut script = None;
    let begin = || {
        script = Some(cli(&server, &["EVAL", "while true do end", "0"]));
        until("redis to be busy", PATIENCE, || server.command(&["PING"])?.starts_with("BUSY").then_some(()));
    };
    ordeal(&rig, "busy", begin, || ok(&server, &["SCRIPT", "KILL"])).await;
    assert_heard(&rig, "busy");
    drop(script);
}

#[tokio::test]
async fn a_full_redis_refuses_to_grow() {
    let server = RedisServer::start_with(None, &["--maxmemory-policy", "noeviction"]);
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    ordeal(&rig, "oom", || config(&server, "maxmemory", "1"), || config(&server, "maxmemory", "0")).await;
    assert_heard(&rig, "oom");
}

#[tokio::test]
async fn a_redis_that_cannot_save_refuses_to_write() {
    let server = RedisServer::start_with(None, &["--enable-protected-configs", "yes"]);
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    let directory = tempfile::TempDir::new().unwrap();
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).unwrap();
    config(&server, "dir", gone.to_str().unwrap());
    config(&server, "save", "3600 1000000");
    let save = |expected: &str| {
        until("the save to end", PATIENCE, || {
            // Refused while the last one still runs.
            server.command(&["BGSAVE"])?;
            let info = server.command(&["INFO", "persistence"])?;
            info.contains(&format!("rdb_last_bgsave_status:{expected}")).then_some(())
        });
    };
    let begin = || {
        fs::remove_dir(&gone).unwrap();
        save("err");
    };
    let end = || {
        fs::create_dir(&gone).unwrap();
        config(&server, "dir", gone.to_str().unwrap());
        save("ok");
    };
    ordeal(&rig, "misconf", begin, end).await;
    assert_heard(&rig, "misconf");
}

#[tokio::test]
async fn a_redis_with_too_few_replicas_refuses_to_write() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    let begin = || config(&server, "min-replicas-to-write", "1");
    ordeal(&rig, "noreplicas", begin, || config(&server, "min-replicas-to-write", "0")).await;
    assert_heard(&rig, "noreplicas");
}

#[tokio::test]
async fn a_redis_that_wants_a_password_is_found_at_the_greeting() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    // Whoever is in stays in.
    let raw = Mutex::new(Raw::connect(&server));
    let begin = || {
        let mut raw = raw.lock().unwrap();
        assert_eq!(raw.command("CONFIG SET requirepass geheim"), "+OK");
        raw.command("CLIENT KILL TYPE normal SKIPME yes");
    };
    let end = || assert_eq!(raw.lock().unwrap().command("CONFIG SET requirepass \"\""), "+OK");
    ordeal(&rig, "noauth", begin, end).await;
}

#[tokio::test]
async fn a_user_with_a_password_of_yesterday_is_found_at_the_greeting() {
    let server = RedisServer::start();
    ok(&server, &["ACL", "SETUSER", "weir", "on", ">pw", "~*", "+@all"]);
    let rig = Rig::start(&format!("redis://weir:pw@127.0.0.1:{}", server.port()));
    rig.recovered().await;
    let begin = || {
        ok(&server, &["ACL", "SETUSER", "weir", "resetpass", ">other"]);
        server.command(&["CLIENT", "KILL", "USER", "weir"]).unwrap();
    };
    ordeal(&rig, "wrongpass", begin, || ok(&server, &["ACL", "SETUSER", "weir", ">pw"])).await;
}

#[tokio::test]
async fn a_user_who_may_not_run_scripts_is_told_so() {
    let server = RedisServer::start();
    ok(&server, &["ACL", "SETUSER", "weir", "on", ">pw", "~*", "+@all"]);
    let rig = Rig::start(&format!("redis://weir:pw@127.0.0.1:{}", server.port()));
    rig.recovered().await;
    let begin = || ok(&server, &["ACL", "SETUSER", "weir", "-evalsha"]);
    ordeal(&rig, "noperm", begin, || ok(&server, &["ACL", "SETUSER", "weir", "+evalsha"])).await;
    assert_heard(&rig, "noperm");
}

#[tokio::test]
async fn a_right_that_only_a_script_misses_proves_nothing() {
    let server = RedisServer::start();
    ok(&server, &["ACL", "SETUSER", "weir", "on", ">pw", "~*", "+@all", "-set"]);
    let rig = Rig::start(&format!("redis://weir:pw@127.0.0.1:{}", server.port()));
    for answer in [rig.one().await, rig.two().await] {
        let error = answer.unwrap_err();
        assert!(matches!(&error, StoreError::Unknown(Failure { kind: "noperm", .. })), "{error:?}");
    }
    ok(&server, &["ACL", "SETUSER", "weir", "+set"]);
    rig.recovered().await;
    rig.assert_charged().await;
}

#[tokio::test]
async fn a_redis_with_too_many_clients_says_so_and_hangs_up() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    rig.recovered().await;
    // The one client that is left.
    let raw = Mutex::new(Raw::connect(&server));
    let begin = || {
        let mut raw = raw.lock().unwrap();
        raw.command("CLIENT KILL TYPE normal SKIPME yes");
        assert_eq!(raw.command("CONFIG SET maxclients 1"), "+OK");
    };
    let end = || assert_eq!(raw.lock().unwrap().command("CONFIG SET maxclients 100"), "+OK");
    ordeal(&rig, "max_clients", begin, end).await;
}

#[tokio::test]
async fn a_redis_without_scripts_is_told_as_such() {
    for command in ["EVALSHA", "SCRIPT"] {
        let server = RedisServer::start_with(None, &["--rename-command", command, ""]);
        let rig = Rig::start(&server.url());
        for answer in [rig.one().await, rig.two().await] {
            let error = answer.unwrap_err();
            assert_eq!(not_sent(&error).kind, "unknown_command", "{error}");
        }
        assert_heard(&rig, "unknown_command");
    }
}

/// NOSCRIPT is never seen outside: the script is loaded, and the call sent once more.
#[tokio::test]
async fn a_redis_that_forgot_the_scripts_is_taught_them() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    for _ in 0..5 {
        ok(&server, &["SCRIPT", "FLUSH"]);
        assert_eq!(rig.many().await, BTreeMap::from([("ok", MANY)]));
        rig.two().await.unwrap();
    }
    assert_eq!(*rig.heard.refused.lock().unwrap(), BTreeMap::new(), "not even noscript");
    rig.assert_charged().await;
}

/// A value that weir has not written fails decisions with this kind, and is not overwritten. `write` and `read` are commands.
async fn a_foreign_value_is_kept(write: &[&str], read: &[&str], value: &str, kind: &'static str) {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    let begin = || drop(server.command(write).unwrap());
    let end = || {
        assert_eq!(server.command(read).unwrap().trim(), value, "not overwritten");
        assert_eq!(server.command(&["EXISTS", "{k}two"]).unwrap().trim(), "0", "nor half charged");
        server.command(&["DEL", "{k}one"]).unwrap();
    };
    ordeal(&rig, kind, begin, end).await;
    assert_heard(&rig, kind);
}

#[tokio::test]
async fn a_key_of_another_type_is_kept() {
    a_foreign_value_is_kept(&["LPUSH", "{k}one", "x"], &["LRANGE", "{k}one", "0", "-1"], "x", "wrongtype").await;
}

#[tokio::test]
async fn a_value_that_is_no_state_is_kept() {
    a_foreign_value_is_kept(&["SET", "{k}one", "garbage"], &["GET", "{k}one"], "garbage", "state").await;
}

/// GET /state of a key with a text of 17 MB broke the connection, which counted as a failure of Redis for all callers.
#[tokio::test]
async fn a_text_of_any_length_at_the_key_of_a_state_is_a_foreign_value_of_that_key_alone() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    rig.two().await.unwrap();
    server.command(&["SETRANGE", "{k}long", "17000000", "x"]).unwrap();
    let hour = Window::from_micros(3_600_000_000).unwrap();
    for algorithm in [Algorithm::FixedWindow { anchor: Anchor::Clock }, Algorithm::Gcra { burst: 5 }] {
        let limit = Limit::new(5, hour, algorithm).unwrap();
        for _ in 0..MANY {
            let read = rig.store.read_states(&[("{k}long", &limit)], Instant::now() + PATIENCE).get().await;
            assert_eq!(not_sent(&read.unwrap_err()).kind, "state");
        }
    }
    assert_eq!(*rig.heard.dropped.lock().unwrap(), Vec::<String>::new());
    assert!(!rig.heard.has_opened());
    let read = rig.store.read_states(&[("{k}one", &limit())], Instant::now() + PATIENCE).get().await.unwrap();
    assert!(read.states[0].is_some());
}

#[tokio::test]
async fn every_algorithm_refuses_what_it_has_not_written() {
    let server = RedisServer::start();
    let rig = Rig::start(&server.url());
    let hour = Window::from_micros(3_600_000_000).unwrap();
    let minute = NonZeroU64::new(60_000_000).unwrap();
    let good = limit();
    for algorithm in without_calendars(minute, 9) {
        let limit = Limit::new(9, hour, algorithm).unwrap();
        server.command(&["FLUSHALL"]).unwrap();
        let garbage: &[&str] = match limit.kind().format() {
            StoredFormat::SortedSet => &["ZADD", "{k}bad", "7", "ann"],
            StoredFormat::Integer | StoredFormat::Doubles | StoredFormat::Counts => &["SET", "{k}bad", "garbage"],
        };
        server.command(garbage).unwrap();
        let alone = [charge("{k}bad", &limit, Operation::Consume(1))];
        let several =
            [charge("{k}good", &good, Operation::Consume(1)), charge("{k}bad", &limit, Operation::Consume(1))];
        for charges in [&alone[..], &several[..]] {
            let answer = rig.store.decide(charges, Mode::Independent, Instant::now() + SHORT).get().await;
            let error = answer.unwrap_err();
            assert_eq!(not_sent(&error).kind, "state", "{algorithm:?}: {error}");
        }
        assert_eq!(server.command(&["EXISTS", "{k}good"]).unwrap().trim(), "0", "{algorithm:?}");
    }
}

#[tokio::test]
async fn an_error_that_nobody_knows_proves_nothing() {
    // A script finds a command missing, which it may after a write.
    let server = RedisServer::start_with(None, &["--rename-command", "ZRANGE", "OTHER"]);
    let rig = Rig::start(&server.url());
    let limit = Limit::new(9, Window::from_micros(3_600_000_000).unwrap(), Algorithm::SlidingWindowLog).unwrap();
    let charges = [charge("k", &limit, Operation::Consume(1))];
    let error = rig.store.decide(&charges, Mode::Atomic, Instant::now() + SHORT).get().await.unwrap_err();
    assert!(matches!(&error, StoreError::Unknown(Failure { kind: "refused", .. })), "{error:?}");
    assert_heard(&rig, "refused");
}

/// One of two nodes of a cluster, seen by a client that takes it for a single Redis.
#[tokio::test]
async fn a_node_of_a_cluster_sends_a_client_of_a_single_redis_away() {
    let (one, other) = (cluster_node(), cluster_node());
    let rig = Rig::start(&one.url());
    let slot = one.command(&["CLUSTER", "KEYSLOT", "{k}one"]).unwrap();
    let slot = slot.trim();
    let all = || {
        ok(&one, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        until("the cluster to be up", PATIENCE, || {
            one.command(&["CLUSTER", "INFO"])?.contains("cluster_state:ok").then_some(())
        });
    };
    ordeal(&rig, "clusterdown", || {}, all).await;
    assert_heard(&rig, "clusterdown");

    let rig = Rig::start(&one.url());
    one.command(&["FLUSHALL"]).unwrap();
    rig.two().await.unwrap();
    let id = |server: &RedisServer| server.command(&["CLUSTER", "MYID"]).unwrap().trim().to_owned();
    let (one_id, other_id) = (id(&one), id(&other));
    ok(&one, &["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
    until("the nodes to know each other", PATIENCE, || {
        let met = |server: &RedisServer, id: &str| server.command(&["CLUSTER", "NODES"]).unwrap().contains(id);
        (met(&one, &other_id) && met(&other, &one_id)).then_some(())
    });

    let limit = limit();
    let apart =
        [charge("{k}one", &limit, Operation::Consume(1)), charge("{another}one", &limit, Operation::Consume(1))];
    let error = rig.store.decide(&apart, Mode::Atomic, Instant::now() + SHORT).get().await.unwrap_err();
    assert_eq!(not_sent(&error).kind, "crossslot", "{error}");

    // While a slot moves: keys that are not here any more are asked for there, and of two keys one may be here yet.
    ok(&one, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &other_id]);
    assert_eq!(one.command(&["DEL", "{k}two"]).unwrap().trim(), "1");
    let error = rig.two().await.unwrap_err();
    assert_eq!(not_sent(&error).kind, "tryagain", "{error}");
    let gone = [charge("{k}two", &limit, Operation::Consume(1))];
    let error = rig.store.decide(&gone, Mode::Atomic, Instant::now() + SHORT).get().await.unwrap_err();
    assert_eq!(not_sent(&error).kind, "ask", "{error}");
    ok(&one, &["CLUSTER", "SETSLOT", slot, "STABLE"]);
    rig.recovered().await;
    rig.two().await.unwrap();

    // Redis lets a slot go only when it is empty.
    one.command(&["DEL", "{k}one", "{k}two"]).unwrap();
    rig.charged.store(0, Ordering::SeqCst);
    let moved = || ok(&one, &["CLUSTER", "SETSLOT", slot, "NODE", &other_id]);
    ordeal(&rig, "moved", moved, || ok(&one, &["CLUSTER", "SETSLOT", slot, "NODE", &one_id])).await;
    for kind in ["moved", "ask", "tryagain", "crossslot"] {
        assert_heard(&rig, kind);
    }
}

#[test]
fn every_error_of_the_table_has_a_test_here() {
    let tests = include_str!("errors.rs");
    for row in &ERROR_CLASSES {
        assert!(tests.contains(&format!("\"{}\"", row.kind)) || row.kind == "noscript", "{}", row.kind);
    }
}

#[test]
fn the_page_for_operators_has_the_same_table() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/stores.md")).unwrap();
    let (_, table) = page.split_once("| kind | error | charged | breaker | connection |").expect("the table");
    let mut rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    for row in &ERROR_CLASSES {
        let charged = match row.proof {
            Proof::NothingRan => "no",
            Proof::UnlessInScript => "no; within a script perhaps",
            Proof::Nothing => "perhaps",
        };
        let breaker = if row.blame == Blame::Server { "counts" } else { "ignores" };
        let connection = if row.connection == After::Redial { "anew" } else { "kept" };
        let expected = format!("| `{}` | `{}` | {charged} | {breaker} | {connection} | ", row.kind, row.code);
        let found = rows.next().unwrap_or_default();
        assert!(found.starts_with(&expected), "expected {expected:?}, found {found:?}");
    }
    assert_eq!(rows.next(), None, "a row too many");

    let (_, table) = page.split_once("| kind | charged | breaker |").expect("the other table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let kinds: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(kinds, KINDS);
}

fn cluster_node() -> RedisServer {
    RedisServer::start_with(None, &["--cluster-enabled", "yes"])
}

/// A redis-cli that stays with its command, and is killed at the end.
struct Background(Child);

fn cli(server: &RedisServer, command: &[&str]) -> Background {
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", "127.0.0.1", "-p", &server.port().to_string()]).args(command);
    Background(cli.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

impl Drop for Background {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection of the test's own, kept where no other can be made.
struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    fn connect(server: &RedisServer) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Raw { stream: BufReader::new(stream) }
    }

    /// The first line of the answer.
    fn command(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// The script deleted the later entries first, and failed then: charges were lost, under an error that denies any write.
#[tokio::test]
async fn an_undo_that_meets_a_foreign_member_writes_nothing() {
    // By Redis' own clock the states must not have expired.
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let server = RedisServer::start();
    let store = Redis::start(Options::new(Endpoint::parse(&server.url()).unwrap()), "");
    let limit = Limit::new(10, Window::from_micros(3_600_000_000).unwrap(), Algorithm::SlidingWindowLog).unwrap();
    let deadline = || Instant::now() + PATIENCE;
    let mut receipts = Vec::new();
    for second in 0..4 {
        store.set_now(now + second * 1_000_000);
        let charges = [charge("k", &limit, Operation::Consume(2))];
        let decision = store.decide(&charges, Mode::Atomic, deadline()).get().await.unwrap();
        receipts.push(decision.outcomes[0].receipt.unwrap());
    }
    let members = || server.command(&["ZRANGE", "k", "0", "-1", "WITHSCORES"]).unwrap();
    let undo = [Undo { key: "k", limit: &limit, receipt: receipts[1], bounds: None }];
    // No text of ours, a sum below the charge's, more hits than its sum, and a sum that is no number of a double.
    for foreign in ["ann", "0000000000000001:1", "0000000000000005:9", "9999999999999999:1"] {
        let later = (now + 2_500_000).to_string();
        server.command(&["ZADD", "k", &later, foreign]).unwrap();
        let before = members();
        let error = store.undo(&undo, deadline()).get().await.unwrap_err();
        assert!(matches!(&error, StoreError::NotSent(failure) if failure.kind == "state"), "{foreign}: {error:?}");
        assert_eq!(members(), before, "{foreign}");
        server.command(&["ZREM", "k", foreign]).unwrap();
    }
    store.undo(&undo, deadline()).get().await.unwrap();
    assert_eq!(members().matches(':').count(), 3);
}

/// Any break of a connection counted as a lack, and ended the start with a false reason.
#[tokio::test]
async fn a_connection_that_breaks_in_a_trial_is_no_lack_and_one_that_always_breaks_is() {
    let node = FakeNode::start();
    let store = Redis::start(Options::new(Endpoint::parse(&format!("redis://127.0.0.1:{}", node.port())).unwrap()), "");
    for (breaks, lack) in [(0, false), (1, false), (2, false), (u32::MAX, true)] {
        let asked = AtomicU32::new(0);
        node.says(move |command| match command[0].as_str() {
            "TIME" if asked.fetch_add(1, Ordering::SeqCst) < breaks => String::new(),
            _ => "+OK\r\n".to_owned(),
        });
        let found = store.lacks(Instant::now() + PATIENCE).get().await.unwrap();
        assert_eq!(found.is_some_and(|text| text.contains("lacks TIME:")), lack, "{breaks} breaks");
    }
}

/// What cannot be asked is not known to be complete: the start asks again.
#[tokio::test]
async fn a_trial_without_an_answer_is_no_verdict() {
    let mut server = RedisServer::start();
    let store = Redis::start(Options::new(Endpoint::parse(&server.url()).unwrap()), "");
    server.kill();
    store.lacks(Instant::now() + SHORT).get().await.unwrap_err();
    server.restart();
    eventually("the trials to pass", PATIENCE, async || {
        matches!(store.lacks(Instant::now() + PATIENCE).get().await, Ok(None))
    })
    .await;
}

#[tokio::test]
async fn a_clock_beyond_all_bounds_is_an_error() {
    let node = FakeNode::start();
    let store = Redis::start(Options::new(Endpoint::parse(&format!("redis://127.0.0.1:{}", node.port())).unwrap()), "");
    let limit = limit();
    for seconds in ["9223372036854775807", "18446744073710", "9007199255", "-1"] {
        let time = format!("*2\r\n:{seconds}\r\n:0\r\n");
        node.says(move |command| if command[0] == "TIME" { time.clone() } else { "$-1\r\n".to_owned() });
        let read = store.read_states(&[("k", &limit)], Instant::now() + PATIENCE).get().await;
        assert!(read.is_err(), "{seconds}: {read:?}");
    }
    node.says(|_| "*4\r\n:9223372036854775807\r\n:0\r\n:9223372036854775807\r\n:0\r\n".to_owned());
    let charges = [charge("k", &limit, Operation::Consume(1))];
    let decided = store.decide(&charges, Mode::Atomic, Instant::now() + PATIENCE).get().await;
    assert!(decided.is_err(), "{decided:?}");
}
