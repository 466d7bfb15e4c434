//! A Redis in trouble, as those who call weir and those who run it see it: killed, stopped, failed over, locked, not
//! there. Load comes from real gRPC clients at a steady rate, and goes on through all of it.
//!
//! Not here: a network in trouble (redis/faults/network.rs), what becomes of what Redis stores (redis/faults/state.rs),
//! and what the transport promises for each call (redis/pipeline.rs).

mod network;
mod state;

use std::time::{Duration, Instant};

use tonic::Code;

use crate::support::http;
use crate::support::load::{Said, Sample, between, permille};
use crate::support::redis::RedisServer;
use crate::support::seen::{self, TROUBLE_BEGINS, TROUBLE_ENDS};
use crate::support::shop::{
    LIMIT, PATIENT, PER_SECOND, Shop, assert_as_configured, assert_charged_once, count, is_as_configured, is_by_redis,
};
use crate::support::wait::{PATIENCE, until};

/// For how many seconds Redis is stopped where `WEIR_FREEZE_SECONDS` does not say.
const FREEZE_SECONDS: usize = 4;

/// The deadline of a call by default, and what an answer may take on top of it.
const DEADLINE: Duration = Duration::from_millis(15);

/// How many times as long as that, and as a healthy weir takes at the same time, an answer may take in a test: the machine
/// has other things to do. A weir that waits for a connection, or for Redis, takes far longer.
const SLACK: u32 = 5;

/// What one process may need in addition when its Redis is gone: connections that are being made, and the memory of a
/// few thousand requests, kept by the allocator.
const FILES_MORE: usize = 16;
const MEMORY_MORE_KIB: u64 = 8 << 10;

/// An operator sees one warning when decisions begin to go by `on_error`, `weir_on_error_total` by action and
/// `weir_store_errors_total` by kind grow, /readyz stay 200, and one line with the counts when Redis answers again.
#[test]
fn a_redis_that_is_killed_is_used_again_by_itself_when_it_is_back() {
    let mut redis = RedisServer::start();
    let shop = Shop::open(&redis.url(), &[PATIENT]);
    shop.assert_exact("before");
    let load = shop.load();
    load.pass(150);
    redis.kill();
    let gone = Instant::now();
    shop.wait_until_open();
    seen::store_of_ready(&shop.weir);
    load.pass(200);
    assert_eq!((seen::logged(&shop.weir, TROUBLE_BEGINS), seen::logged(&shop.weir, TROUBLE_ENDS)), (1, 0));
    let back = Instant::now();
    redis.restart();
    load.wait_for("a decision by the new redis", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    // A machine that stops everything for half a second makes another trouble.
    until("the end of the trouble in the log", PATIENCE, || {
        (seen::logged(&shop.weir, TROUBLE_ENDS) >= 1).then_some(())
    });
    load.pass(4 * 2 * LIMIT);
    let samples = load.finish();
    assert_as_configured(&samples, gone, back);
    // Once by the Redis that was killed, once by the embedded store, and once by the Redis that knows of neither.
    assert_eq!(count(&samples, "carries_on", |said| said == Said::Within), 3 * LIMIT);
    for action in ["error", "allow", "deny", "local"] {
        assert!(seen::fallbacks(&shop.weir, action) > 0, "{action}");
    }
    let warnings = shop.weir.count_in_log(|line| line.level() == Some("WARN"));
    assert!(warnings < 10, "{warnings} warnings about one outage");
}

/// An operator sees what the test before saw. Callers wait for the deadline until the breakers open, and no longer than
/// those of a healthy weir after that; weir needs no more memory and no more connections than before.
#[test]
fn a_redis_that_is_stopped_keeps_nobody_waiting_and_is_used_again_by_itself() {
    let seconds = std::env::var("WEIR_FREEZE_SECONDS").map_or(FREEZE_SECONDS, |seconds| seconds.parse().unwrap());
    let redis = RedisServer::start();
    let shop = Shop::open(&redis.url(), &[]);
    let other_redis = RedisServer::start();
    let healthy_shop = Shop::open(&other_redis.url(), &[]);
    let (load, healthy_load) = (shop.load(), healthy_shop.load());
    load.pass(PER_SECOND as usize);
    let (memory, files) = (shop.weir.memory_kib(), shop.weir.open_files());

    redis.freeze();
    let gone = Instant::now();
    shop.wait_until_open();
    load.pass(PER_SECOND as usize / 2);
    let open_from = Instant::now();
    let (mut memory_max, mut files_max) = (0, 0);
    let by_circuit = seen::errors(&shop.weir, "circuit_open");
    let by_waiting = || ["deadline", "no_connection", "broken"].map(|kind| seen::errors(&shop.weir, kind));
    let waited = by_waiting();
    for _ in 1..seconds {
        load.pass(PER_SECOND as usize);
        memory_max = memory_max.max(shop.weir.memory_kib());
        files_max = files_max.max(shop.weir.open_files());
    }
    seen::store_of_ready(&shop.weir);
    let by_circuit = seen::errors(&shop.weir, "circuit_open") - by_circuit;
    // Of those that the load has passed, some were decided before the first look at the metric.
    let in_flight = u64::from(PER_SECOND / 10);
    assert!(by_circuit + in_flight >= (seconds as u64 - 1) * u64::from(PER_SECOND), "{by_circuit}");
    assert_eq!(by_waiting(), waited, "nobody waits for a redis that is known not to answer");
    let back = Instant::now();
    redis.thaw();
    load.wait_for("a decision by redis", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    let connections = redis.command(&["CLIENT", "LIST"]).unwrap().lines().filter(|l| l.contains("name=weir")).count();
    let samples = load.finish();
    assert_as_configured(&samples, gone, back);
    assert_charged_once(&shop, &samples);

    let (stopped, healthy) = (between(&samples, gone, back), between(&healthy_load.finish(), gone, back));
    let open = between(&samples, open_from, back);
    println!("stopped for {seconds} s: p50 {:?}, p99 {:?}", permille(&stopped, 500), permille(&stopped, 990));
    println!("breakers open: p50 {:?}, p99 {:?}", permille(&open, 500), permille(&open, 990));
    println!("healthy meanwhile: p50 {:?}, p99 {:?}", permille(&healthy, 500), permille(&healthy, 990));
    println!("memory {memory} KiB, then at most {memory_max}; files {files}, then at most {files_max}");
    println!("{connections} connections of weir when redis goes on");
    let allowed = (usual_p99(&healthy) + DEADLINE) * SLACK;
    assert!(usual_p99(&stopped) <= allowed, "{:?} of {allowed:?}", usual_p99(&stopped));
    assert!(memory_max <= memory + MEMORY_MORE_KIB, "{memory_max} KiB after {memory}");
    assert!(files_max <= files + FILES_MORE, "{files_max} files after {files}");
    assert!(connections <= files + FILES_MORE, "{connections} connections");
}

/// The 99th percentile of most seconds: one in which the machine was busy elsewhere does not count.
fn usual_p99(samples: &[Sample]) -> Duration {
    let mut seconds: Vec<_> = samples.chunks(PER_SECOND as usize).map(|second| permille(second, 990)).collect();
    seconds.sort_unstable();
    seconds[seconds.len() / 2]
}

/// An operator sees `weir_store_errors_total{kind="readonly"}` grow, and connections that are dropped for READONLY: where
/// the name leads now, there may be the new master. Callers are told that nothing was charged, and it was not.
#[test]
fn a_master_that_becomes_a_replica_charges_nothing_and_is_used_again_as_a_master() {
    let redis = RedisServer::start();
    let shop = Shop::open(&redis.url(), &[PATIENT, "log.level=info,weir_app=debug"]);
    let load = shop.load();
    load.pass(150);
    // A replica of nobody in particular: port 1 refuses.
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let gone = Instant::now();
    shop.wait_until_open();
    load.pass(150);
    seen::store_of_ready(&shop.weir);
    let back = Instant::now();
    redis.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    load.wait_for("a decision by the master", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    let samples = load.finish();
    assert_as_configured(&samples, gone, back);
    assert_charged_once(&shop, &samples);
    assert_eq!(count(&between(&samples, gone, back), "fails", |said| said != Said::Failed(Code::Unavailable)), 0);
    assert!(seen::errors(&shop.weir, "readonly") > 0);
    assert!(shop.weir.count_in_log(|line| line.raw().contains("redis answered READONLY")) > 0);
}

/// An operator sees a warning that says why there is no connection, and neither the old password nor the new one.
#[test]
fn a_password_that_is_changed_is_warned_about_and_never_shown() {
    const OLD: &str = "the-old-one";
    const NEW: &str = "the-new-one";
    let redis = RedisServer::start_with(Some(OLD), &[]);
    let shop = Shop::open(&redis.url(), &[PATIENT]);
    let load = shop.load();
    load.pass(100);
    redis.command(&["CONFIG", "SET", "requirepass", NEW]).unwrap();
    // Whoever is logged in may stay.
    redis.command(&["-a", NEW, "CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let gone = Instant::now();
    shop.wait_until_open();
    load.pass(100);
    seen::store_of_ready(&shop.weir);
    let why = "does not accept the user or the password";
    assert!(shop.weir.wait_for_log(0, PATIENCE, |line| seen::warns(line, why)));
    let back = Instant::now();
    redis.command(&["-a", NEW, "CONFIG", "SET", "requirepass", OLD]).unwrap();
    load.wait_for("a decision by redis", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    let samples = load.finish();
    assert_as_configured(&samples, gone, back);
    assert_charged_once(&shop, &samples);
    let written = shop.weir.written();
    assert!(!written.contains(OLD) && !written.contains(NEW), "{written}");
}

/// envoyproxy/ratelimit 1143: started before its Redis, the service crashed and started again and again.
///
/// An operator sees /readyz at 503 until the wait is over, then a warning that weir is ready without its store, and
/// /readyz at 200 from then on, with `"answered": false` until Redis has answered for the first time.
#[test]
fn envoyproxy_ratelimit_1143_a_redis_that_is_not_there_yet_delays_readiness_for_a_while_and_is_found_later() {
    let mut redis = RedisServer::start();
    redis.kill();
    let shop = Shop::opening(&redis.url(), &[PATIENT, "redis.ready_after=3s"]);
    let ready = || http::get(shop.weir.http, "/readyz").unwrap().status == 200;
    assert!(!ready(), "the wait has just begun");
    let check = || {
        for (key, said) in crate::support::shop::KEYS.into_iter().zip(shop.ask_each("early")) {
            assert!(is_as_configured(key, said), "{key} got {said:?}");
        }
    };
    check();
    until("readiness without a store", PATIENCE, || ready().then_some(()));
    check();
    assert_eq!(seen::logged(&shop.weir, "ready, although the store has not answered yet"), 1);
    assert_eq!(seen::store_of_ready(&shop.weir)["answered"], false);
    let load = shop.load();
    load.pass(50);
    redis.restart();
    until("redis to have answered", PATIENCE, || (seen::store_of_ready(&shop.weir)["answered"] == true).then_some(()));
    load.wait_for("a decision by redis", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    assert_eq!(seen::store_of_ready(&shop.weir)["answered"], true);
}
