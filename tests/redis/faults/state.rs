//! What Redis stores in trouble, as callers and operators see it: scripts and states that vanish, memory that runs out,
//! restarts from what was persisted, and what is not asked of Redis at all.
//!
//! Not here: a Redis that does not answer (redis/faults.rs), and the network (redis/faults/network.rs).

use std::time::{Duration, Instant};

use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::Code;

use crate::support::load::{Load, Said, Sample, summary};
use crate::support::process::POLICIES_LOADED;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::rls::{self, RateLimitRequest};
use crate::support::shop::{
    AMPLE, HOT, KEYS, LIMIT, PATIENT, PER_SECOND, Shop, assert_as_configured, assert_charged_once, count,
    is_as_configured, is_by_redis,
};
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, seen};

/// How often scripts are flushed under load.
const FLUSHES: usize = 20;

/// Memory that Redis is left with, and what fills more than that, in bytes.
const MEMORY_BYTES: &str = "16777216";
const BALLAST_BYTES: &str = "33554432";

/// An operator sees `script|load` in Redis' own statistics, and nothing in weir's: no request was held up by it, none
/// was decided by anything but Redis, and each was charged once.
#[test]
fn scripts_that_are_flushed_under_load_are_loaded_again_and_charge_nothing_twice() {
    let redis = RedisServer::start();
    let shop = Shop::open(&redis.url(), &["redis.timeout=2s"]);
    let load = shop.load();
    for _ in 0..FLUSHES {
        load.pass(10);
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
    }
    load.pass(10);
    let samples = load.finish();
    println!("{}, {} scripts loaded", summary(&samples), redis.runs("script|load"));
    assert!(samples.iter().all(|sample| sample.said.is_counted()), "{}", summary(&samples));
    assert_eq!(shop.used("fails", HOT, AMPLE), count(&samples, "fails", |said| said == Said::Within));
    assert_eq!(count(&samples, "carries_on", |said| said == Said::Within), LIMIT);
    assert!(redis.runs("script|load") > 2);
}

/// An operator sees nothing in weir: nothing has failed. Each limit starts anew, by the second at the latest in which a
/// denial is known again without Redis.
#[test]
fn states_that_are_flushed_under_load_begin_anew_and_nothing_fails() {
    let redis = RedisServer::start();
    let shop = Shop::open(&redis.url(), &["redis.timeout=2s", "deny_cache.max_age=100ms"]);
    let load = shop.load();
    for flushed in 0..=2 {
        if flushed > 0 {
            redis.command(&["FLUSHALL"]).unwrap();
        }
        until("a limit that is used up again", PATIENCE, || {
            let within = count(&load.samples(), "carries_on", |said| said == Said::Within);
            (within >= (flushed + 1) * LIMIT).then_some(())
        });
    }
    let samples = load.finish();
    assert!(samples.iter().all(|sample| sample.said.is_counted()), "{}", summary(&samples));
    assert_eq!(count(&samples, "carries_on", |said| said == Said::Within), 3 * LIMIT);
}

/// An operator sees `weir_store_errors_total{kind="oom"}` grow until there is memory again. What would have to be written
/// is decided by `on_error`, whether its key is known or new; a key that is over its limit is denied by Redis all along,
/// which writes nothing for that.
#[test]
fn a_redis_that_runs_out_of_memory_charges_nothing_and_still_denies() {
    let redis = RedisServer::start_with(None, &["--maxmemory-policy", "noeviction"]);
    let shop = Shop::open(&redis.url(), &[PATIENT, "redis.breaker.error_percent=0", "deny_cache.max_age=0s"]);
    let mut client = rls::Client::connect(shop.weir.grpc);
    while client.admits("shop", "carries_on", HOT) {}
    let load = shop.load();
    load.pass(PER_SECOND as usize / 2);
    redis.command(&["SETRANGE", "ballast", BALLAST_BYTES, "x"]).unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory", MEMORY_BYTES]).unwrap();
    let gone = Instant::now();
    let local = seen::fallbacks(&shop.weir, "local");
    load.pass(PER_SECOND as usize / 2);
    assert_eq!(seen::fallbacks(&shop.weir, "local"), local, "what is denied needs no memory");
    for (key, said) in KEYS.into_iter().zip(shop.ask_each("new")) {
        assert!(is_as_configured(key, said), "{key} got {said:?}");
    }
    assert_eq!(seen::fallbacks(&shop.weir, "local"), local + 1);
    assert!(seen::errors(&shop.weir, "oom") > 0);
    seen::store_of_ready(&shop.weir);
    let back = Instant::now();
    redis.command(&["DEL", "ballast"]).unwrap();
    load.wait_for("a decision by redis", is_by_redis);
    shop.wait_until_healthy(&load);
    shop.assert_exact("after");
    let samples = load.finish();
    assert_as_configured(&samples, gone, back);
    assert_eq!(count(&samples, "carries_on", |said| said != Said::Over), 0);
    let failed = count(&samples, "fails", |said| !said.is_counted());
    assert_eq!(count(&samples, "fails", |said| said == Said::Failed(Code::Unavailable)), failed, "nothing was charged");
    assert_charged_once(&shop, &samples);
}

/// Requests a key may have in the test of restarts. More than are admitted before the last of them.
const KEPT: usize = 600;

/// Requests a second that use up the rest of it then.
const PER_SECOND_AFTER: u32 = 600;

const KEPT_POLICY: &str = "\
domain: shop
descriptors:
  - key: kept
    rate_limit: {unit: day, requests_per_unit: 600, anchor: first_hit}
  - key: logged
    rate_limit: {unit: day, requests_per_unit: 600, algorithm: sliding_window_log}
";

/// How often Redis is killed there, and how many weir processes use it.
const KILLS: usize = 3;
const REPLICAS: usize = 3;

/// An operator who has Redis persist each write sees, whatever happens to Redis, no limit exceeded, by however many
/// replicas: what is missing at most are requests whose end is unknown, told DEADLINE_EXCEEDED.
#[test]
fn three_replicas_exceed_no_limit_on_a_redis_that_restarts_from_its_log() {
    const LIMITED: [&str; 2] = ["kept", "logged"];
    let mut redis = RedisServer::start_with(None, &["--appendonly", "yes", "--appendfsync", "always"]);
    let settings = [PATIENT, "deny_cache.max_age=0s"];
    let shops = [(); REPLICAS].map(|()| Shop::open_with(KEPT_POLICY, &redis.url(), &settings));
    let servers: Vec<_> = shops.iter().map(|shop| shop.weir.grpc).collect();
    let ask = |number: usize| rls::request("shop", &[(LIMITED[number % LIMITED.len()], HOT)]);
    let load = Load::start(&servers, PER_SECOND, ask);
    for _ in 0..KILLS {
        load.pass(40);
        redis.kill();
        load.wait_for("a decision that is missing", |sample| !sample.said.is_counted());
        redis.restart();
        load.wait_for("a decision by the new redis", |sample| sample.said.is_counted());
    }
    let before = load.finish();
    let load = Load::start(&servers, PER_SECOND_AFTER, ask);
    let of_key = |samples: &[Sample], which: usize| -> Vec<Said> {
        samples.iter().filter(|sample| sample.number % LIMITED.len() == which).map(|sample| sample.said).collect()
    };
    for (which, key) in LIMITED.into_iter().enumerate() {
        let is_over = |sample: &Sample| sample.number % LIMITED.len() == which && sample.said == Said::Over;
        load.wait_for(&format!("the limit of {key}"), is_over);
    }
    let after = load.finish();
    println!("through {KILLS} kills: {}; then: {}", summary(&before), summary(&after));
    for (which, key) in LIMITED.into_iter().enumerate() {
        let [before, after] = [&before, &after].map(|samples| of_key(samples, which));
        let count = |wanted: Said| before.iter().chain(&after).filter(|said| **said == wanted).count();
        let (admitted, unknown) = (count(Said::Within), count(Said::Failed(Code::DeadlineExceeded)));
        let rest = count(Said::Over) + count(Said::Failed(Code::Unavailable));
        println!("{key}: {admitted} admitted, {unknown} with an unknown end");
        assert_eq!(admitted + unknown + rest, before.len() + after.len(), "{key} was told something else");
        assert!(before.iter().all(|said| *said != Said::Over), "{key} was used up before the last restart");
        assert!((KEPT - unknown..=KEPT).contains(&admitted), "{key}");
    }
}

/// Limits of two stores, in the windows of the test: a count for the day, and a bucket that gets a hit back each second.
const DAILY: usize = 40;
const BUCKET: usize = 60;

const APART_POLICY: &str = "\
domain: shop
descriptors:
  - key: daily
    rate_limit: {unit: day, requests_per_unit: 40, anchor: first_hit}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 60}
";

/// How often the second Redis is killed: at least so often, and more often until it was in between.
const KILLS_OF_THE_SECOND: usize = 3;
const KILLS_OF_THE_SECOND_MAX: usize = 12;

/// What the second Redis' answers take longer: so there is always a charge that stands and is about to be taken back.
const SECOND_IS_SLOWER: Duration = Duration::from_millis(20);

/// The values that a request asks for: a few of each key, in an order without a pattern.
fn values_of(number: usize) -> [usize; 2] {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [(mixed >> 33) as usize % 3, (mixed >> 50) as usize % 2]
}

/// An operator who keeps limits per second in a Redis of their own, and loses that Redis, sees requests over both fail,
/// and in `weir_undone_total{result="unconfirmed"}` for how many of them it is not known whether their charge was taken
/// back. Neither limit is exceeded by one request, and no more charges stand than that says.
#[test]
fn a_second_redis_that_is_killed_leaves_no_more_charges_than_are_unconfirmed() {
    let first = RedisServer::start();
    let mut second = RedisServer::start_with(None, &["--appendonly", "yes", "--appendfsync", "always"]);
    let proxy = Proxy::start(second.port());
    proxy.delay(SECOND_IS_SLOWER);
    let elsewhere = format!("redis.per_second.url={}", proxy.url());
    let shop = Shop::open_with(APART_POLICY, &first.url(), &[PATIENT, "deny_cache.max_age=0s", &elsewhere]);
    let undone = |result: &str| seen::metric(&shop.weir, &format!("weir_undone_total{{result=\"{result}\"}}"));
    let begun = Instant::now();
    let load = Load::start(&[shop.weir.grpc], PER_SECOND, |number| {
        let [daily, bucket] = values_of(number).map(|value| value.to_string());
        let mut request = rls::request("shop", &[("daily", &daily)]);
        request.descriptors.extend(rls::request("shop", &[("bucket", &bucket)]).descriptors);
        request
    });
    for kill in 0..KILLS_OF_THE_SECOND_MAX {
        if kill >= KILLS_OF_THE_SECOND && undone("unconfirmed") > 0 {
            break;
        }
        load.pass(40);
        second.kill();
        load.wait_for("a request that fails", |sample| !sample.said.is_counted());
        second.restart();
        load.wait_for("a request that does not", |sample| sample.said.is_counted());
    }
    load.wait_for("a denial", |sample| sample.said == Said::Over);
    let samples = load.finish();
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    println!("{}, {} unconfirmed of {}", summary(&samples), undone("unconfirmed"), undone("confirmed"));
    for sample in &samples {
        let is_stated = matches!(sample.said, Said::Failed(Code::Unavailable | Code::DeadlineExceeded));
        assert!(sample.said.is_counted() || is_stated, "{sample:?}");
    }
    assert!(undone("unconfirmed") > 0 && undone("confirmed") > 0);
    let unknown = samples.iter().filter(|sample| sample.said == Said::Failed(Code::DeadlineExceeded)).count();
    let may_stand = unknown + usize::try_from(undone("unconfirmed")).unwrap();
    for (which, (key, limit, returned)) in [("daily", DAILY, 0), ("bucket", BUCKET, seconds)].into_iter().enumerate() {
        let (mut admitted, mut used) = (0, 0);
        for value in 0..3 {
            let of_value = samples.iter().filter(|sample| values_of(sample.number)[which] == value);
            let within = of_value.filter(|sample| sample.said == Said::Within).count();
            assert!(within <= limit + returned, "{key} {value}: {within} admitted");
            admitted += within;
            used += shop.used(key, &value.to_string(), limit);
        }
        println!("{key}: {admitted} admitted, {used} charged");
        assert!(used <= admitted + may_stand, "{key}: {used} charged, {admitted} admitted, {may_stand} may stand");
    }
}

const CACHED_POLICY: &str = "\
domain: shop
descriptors:
  - key: cached
    rate_limit: {unit: day, requests_per_unit: 3, anchor: first_hit}
";

/// The shop with a cache of denials that outlasts the test.
fn with_denials_cached(redis: &RedisServer) -> Shop {
    Shop::open_with(CACHED_POLICY, &redis.url(), &[PATIENT, "deny_cache.max_age=60s"])
}

fn cached() -> RateLimitRequest {
    rls::request("shop", &[("cached", HOT)])
}

/// Asks until it is denied, and once more: a denial that is known. Returns how often it was admitted.
fn use_up(client: &mut rls::Client) -> usize {
    let mut admitted = 0;
    while rls::admits(&client.ask(cached()).unwrap()) {
        admitted += 1;
    }
    assert!(!rls::admits(&client.ask(cached()).unwrap()));
    admitted
}

/// An operator sees `weir_deny_cache_hits_total` grow with the denials of a hot key, and nothing at Redis.
#[test]
fn a_hot_key_that_is_over_its_limit_costs_redis_nothing() {
    const REQUESTS: usize = 200;
    let redis = RedisServer::start();
    let shop = with_denials_cached(&redis);
    let mut client = rls::Client::connect(shop.weir.grpc);
    assert_eq!(use_up(&mut client), 3);
    let began = Instant::now();
    let (calls, hits) = (redis.runs("evalsha"), seen::metric(&shop.weir, "weir_deny_cache_hits_total"));
    let load = Load::start(&[shop.weir.grpc], PER_SECOND, |_| cached());
    load.pass(REQUESTS);
    let samples = load.finish();
    assert!(samples.iter().all(|sample| sample.said == Said::Over), "{}", summary(&samples));
    let calls = redis.runs("evalsha") - calls;
    assert!(calls <= seen::override_reads_max(began), "{calls} calls for {REQUESTS} requests");
    assert_eq!(seen::metric(&shop.weir, "weir_deny_cache_hits_total") - hits, samples.len() as u64);
}

/// An operator who resets a key, or raises its limit, sees it admitted at once, and so does a caller who gives hits back.
#[test]
fn a_denial_that_is_known_ends_with_a_reset_a_refund_and_another_limit() {
    let redis = RedisServer::start();
    let mut shop = with_denials_cached(&redis);
    let mut client = rls::Client::connect(shop.weir.grpc);
    assert_eq!(use_up(&mut client), 3);

    let path = format!("/state?domain=shop&descriptor=cached={HOT}");
    let answer = http::request(shop.weir.admin, "DELETE", &path, &[], "").unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(use_up(&mut client), 3, "after a reset");

    let mut refund = cached();
    refund.descriptors[0].hits_addend = Some(UInt64Value { value: 2 });
    refund.descriptors[0].is_negative_hits = true;
    client.ask(refund).unwrap();
    assert_eq!(use_up(&mut client), 2, "after a refund");

    let loaded = shop.weir.count_in_log(|line| line.message() == Some(POLICIES_LOADED));
    let raised = CACHED_POLICY.replace("requests_per_unit: 3", "requests_per_unit: 5");
    shop.policies.replace(&[("shop.yaml".to_owned(), raised)]);
    assert!(shop.weir.wait_for_log(loaded, PATIENCE, |line| line.message() == Some(POLICIES_LOADED)));
    assert_eq!(use_up(&mut client), 2, "after the limit was raised");
}
