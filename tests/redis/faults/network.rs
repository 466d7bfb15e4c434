//! A network in trouble between weir and a healthy Redis, as callers and operators see it: a line that goes dead without
//! a word, one that is slow, answers that are lost or cut in the middle.
//!
//! Not here: a Redis in trouble (redis/faults.rs), and the same of each call below the store (redis/pipeline.rs).

use std::time::{Duration, Instant};

use tonic::Code;

use crate::support::load::{Load, Said, between, permille};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::shop::{
    AMPLE, HOT, PATIENT, PER_SECOND, Shop, assert_as_configured, assert_charged_once, count, is_by_redis,
};
use crate::support::wait::{PATIENCE, until};
use crate::support::{rls, seen};

/// How much longer than before an answer takes on the slow line: five deadlines of the default.
const SLOW: Duration = Duration::from_millis(50);

/// What the deadline has to be there: a call may wait for a dial, and then behind another call.
const PATIENT_WITH_THE_SLOW: &str = "redis.timeout=1s";

/// How many descriptors weir may have open in addition when all of its connections are dead: those being made.
const FILES_MORE: usize = 16;

/// How often an answer is cut: fewer failures than open a breaker.
const CUTS: usize = 8;

/// How many callers have to lose an answer to a call that was made.
const LOST: usize = 3;

/// An operator sees `weir_store_errors_total` of kind `deadline` at first: those calls were written, and nobody knows of
/// what became of them. Then dials fail, with a warning that says for how long there was no answer, until the line is
/// back; that the old connections are dead makes no difference to anybody.
#[test]
fn a_line_that_goes_dead_without_a_word_is_used_again_by_itself() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let shop = Shop::open(&proxy.url(), &["redis.timeout=100ms", "redis.connect_timeout=200ms"]);
    let load = shop.load();
    load.pass(PER_SECOND as usize);
    let files = shop.weir.open_files();
    proxy.silence(true);
    let gone = Instant::now();
    shop.wait_until_open();
    load.pass(PER_SECOND as usize);
    seen::store_of_ready(&shop.weir);
    let files_later = shop.weir.open_files();
    assert!(files_later <= files + FILES_MORE, "{files_later} files after {files}");
    assert!(seen::errors(&shop.weir, "deadline") > 0);
    assert!(shop.weir.wait_for_log(0, PATIENCE, |line| seen::warns(line, "no answer within 200ms")));
    let back = Instant::now();
    proxy.silence(false);
    load.wait_for("a decision by redis", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    let samples = load.finish();
    assert_as_configured(&samples, gone, back);
    assert_charged_once(&shop, &samples);
}

/// An operator who runs one weir with the default deadline, and one with a longer one, sees the first decide by
/// `on_error`, its breakers open and never tried for longer than a probe, and the second do its work.
#[test]
fn a_line_that_is_slower_than_the_deadline_serves_who_waits_longer() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let hasty = Shop::open(&proxy.url(), &["redis.key_prefix=hasty:"]);
    let patient = Shop::open(&proxy.url(), &["redis.key_prefix=patient:", PATIENT_WITH_THE_SLOW]);
    let loads = [&hasty, &patient].map(Shop::load);
    loads.iter().for_each(|load| load.pass(PER_SECOND as usize / 2));
    proxy.delay(SLOW);
    let slow_from = Instant::now();
    hasty.wait_until_open();
    loads.iter().for_each(|load| load.pass(PER_SECOND as usize));
    seen::store_of_ready(&hasty.weir);
    let slow_to = Instant::now();
    let [of_hasty, of_patient] = loads.map(Load::finish);
    proxy.delay(Duration::ZERO);
    assert_as_configured(&of_hasty, slow_from, slow_to);
    assert_charged_once(&hasty, &of_hasty);
    for (deadline, samples) in [("10 ms", &of_hasty), ("1 s", &of_patient)] {
        let slow = between(samples, slow_from, slow_to);
        println!("a deadline of {deadline}: p50 {:?}, p99 {:?}", permille(&slow, 500), permille(&slow, 990));
    }
    for sample in &of_patient {
        assert!(sample.said.is_counted(), "{sample:?}");
    }
    assert_eq!(patient.used("fails", HOT, AMPLE), count(&of_patient, "fails", |said| said == Said::Within));
}

/// An operator sees nothing: who is ready has connections on every core, and a Redis that knows the scripts, so that the
/// first callers wait for one round trip each. Proportions are those of the default deadline and a Redis that is 4 ms
/// away, ten times slower, so that a busy machine does not count: a dial, or a script that is missing, takes too long.
#[test]
fn the_first_callers_on_every_core_after_readiness() {
    const CORES: usize = 2;
    const CLIENTS: usize = 2 * CORES;
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    proxy.delay(Duration::from_millis(40));
    let shop = Shop::open(&proxy.url(), &["runtime.cores=2", "redis.timeout=100ms", "redis.connect_timeout=2s"]);
    // The start has asked Redis whether it can run scripts.
    let (began, loaded, asked) = (Instant::now(), redis.runs("script|load"), redis.runs("evalsha"));
    // Connections that stay go to the cores in turn.
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rls::Client::connect(shop.weir.grpc)).collect();
    for client in &mut clients {
        assert_eq!(Said::of(&client.ask(rls::request("shop", &[("fails", HOT)]))), Said::Within);
    }
    for core in 0..CORES {
        let series = format!("weir_connections{{runtime=\"{core}\"}}");
        assert_eq!(seen::metric(&shop.weir, &series), (CLIENTS / CORES) as u64, "core {core}");
    }
    let (calls, least) = (redis.runs("evalsha") - asked, CLIENTS as u64);
    let most = least + seen::override_reads_max(began);
    assert!((least..=most).contains(&calls), "{calls} calls: one was sent twice for want of a script");
    assert_eq!(redis.runs("script|load"), loaded);
    // One for each core, and one or two for /json, readiness and overrides.
    let made = proxy.connections() - CORES as u64;
    assert!((1..=2).contains(&made), "{made} beside those of the cores");
    assert_eq!(shop.used("fails", HOT, AMPLE), CLIENTS);
}

/// An operator sees `weir_store_errors_total` of kind `broken`. Each caller whose answer was cut is told
/// DEADLINE_EXCEEDED, on which nobody tries again, and was charged once: the call was not sent again.
#[test]
fn answers_that_are_cut_in_the_middle_charge_nothing_twice() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let shop = Shop::open(&proxy.url(), &[PATIENT, "runtime.cores=1", "redis.pool_size=1"]);
    let mut client = rls::Client::connect(shop.weir.grpc);
    let mut ask = || Said::of(&client.ask(rls::request("shop", &[("fails", HOT)])));
    let mut asked = 0;
    for _ in 0..CUTS {
        // A connection that is made here, so that it is no greeting that is cut.
        assert_eq!(ask(), Said::Within);
        asked += 1;
        loop {
            proxy.cut_after(3);
            asked += 1;
            match ask() {
                Said::Failed(Code::DeadlineExceeded) => break,
                // The answer to another call of weir, such as a read of the overrides, was cut.
                said => assert_eq!(said, Said::Within),
            }
        }
    }
    assert_eq!(shop.used("fails", HOT, AMPLE), asked);
    assert!(seen::errors(&shop.weir, "broken") >= CUTS as u64);
    assert_eq!(seen::fallbacks(&shop.weir, "error"), CUTS as u64);
}

/// An operator sees `weir_store_errors_total` of kind `deadline`, although Redis does all that it is asked: it has charged
/// each of those callers once, and none of them twice.
#[test]
fn answers_that_are_lost_under_load_charge_nothing_twice() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let shop = Shop::open(&proxy.url(), &["redis.timeout=100ms", "redis.breaker.error_percent=0"]);
    let load = shop.load();
    load.pass(PER_SECOND as usize / 2);
    // Only the first calls are lost each time: a new connection has to be answered before there are others.
    let is_unknown = |said| said == Said::Failed(Code::DeadlineExceeded);
    let unknown = until("callers who do not know their end", PATIENCE, || {
        proxy.swallow(true);
        let gone = Instant::now();
        load.wait_for("a decision that is missing", |sample| !sample.said.is_counted());
        let meanwhile = between(&load.samples(), gone, Instant::now());
        assert!(meanwhile.iter().all(|sample| !is_by_redis(sample)), "nobody else has the answers");
        proxy.swallow(false);
        load.wait_for("a decision by redis", is_by_redis);
        let unknown = count(&load.samples(), "fails", is_unknown);
        (unknown >= LOST).then_some(unknown)
    });
    shop.wait_until_healthy(&load);
    let samples = load.finish();
    assert_charged_once(&shop, &samples);
    assert!(seen::errors(&shop.weir, "deadline") >= unknown as u64);
    let within = count(&samples, "fails", |said| said == Said::Within);
    assert!(shop.used("fails", HOT, AMPLE) > within, "an answer that was lost told of a charge");
}
