//! A Redis in trouble, as those who call weir and those who run it see it: killed, stopped, failed over, locked. Load
//! comes from real gRPC clients, at a steady rate, and goes on through all of it.
//!
//! Not here: a network in trouble (redis_faults_network.rs), what is in Redis (redis_faults_state.rs), and what the
//! transport promises for each call (redis_pipeline.rs).

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod support;

use std::time::Instant;

use support::load::{Load, Sample, Said, between, summary};
use support::process::{PolicyDirectory, Weir};
use support::redis::RedisServer;
use support::rls;
use support::seen::{self, TROUBLE_BEGINS, TROUBLE_ENDS};
use support::wait::{PATIENCE, until};
use tonic::Code;

/// The keys of the policy that say what becomes of them without a store, in the order in which a load asks for them.
const KEYS: [&str; 4] = ["fails", "passes", "denies", "carries_on"];

/// The limit of `carries_on` and `exact`, in a window that outlasts the test.
const LIMIT: usize = 20;

const POLICY: &str = "\
domain: shop
on_error: deny
descriptors:
  - key: fails
    on_error: error
    rate_limit: {unit: day, requests_per_unit: 1000000, anchor: first_hit}
  - key: passes
    on_error: allow
    rate_limit: {unit: day, requests_per_unit: 1000000, anchor: first_hit}
  - key: denies
    rate_limit: {unit: day, requests_per_unit: 1000000, anchor: first_hit}
  - key: carries_on
    on_error: local
    rate_limit: {unit: day, requests_per_unit: 20, anchor: first_hit}
  - key: exact
    rate_limit: {unit: day, requests_per_unit: 20, anchor: first_hit}
";

/// Requests a second: enough to open a breaker at once, and far from what a machine can do.
const PER_SECOND: u32 = 200;

/// A deadline that a healthy Redis is never near, however busy the machine.
const PATIENT: &str = "redis.timeout=500ms";

fn start(url: &str, settings: &[&str]) -> Weir {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut arguments = vec!["--store", "redis", "--redis-url", url];
    // Short times between probes: a test is not to wait for the longest of them.
    for setting in ["runtime.cores=2", "redis.breaker.probe=50ms"].iter().chain(settings) {
        arguments.extend(["--set", setting]);
    }
    Weir::start(&policies.path(), &arguments)
}

/// A load over the four keys in turn.
fn load(weir: &Weir) -> Load {
    Load::start(&[weir.grpc], PER_SECOND, |number| rls::request("shop", &[(key_of(number), "hot")]))
}

fn key_of(number: usize) -> &'static str {
    KEYS[number % KEYS.len()]
}

/// Whether a request was told what its policy says for the time without a store.
fn is_as_configured(sample: &Sample) -> bool {
    match key_of(sample.number) {
        "fails" => matches!(sample.said, Said::Failed(Code::Unavailable | Code::DeadlineExceeded)),
        "passes" => sample.said == Said::Passed,
        "denies" => sample.said == Said::Refused,
        _ => sample.said.is_counted(),
    }
}

/// Every request was told what a store has decided, or what its policy says for the time without; and nothing but the
/// latter from the time on when Redis was gone until it came back.
fn assert_as_configured(samples: &[Sample], gone: Instant, back: Instant) {
    for sample in samples {
        assert!(sample.said.is_counted() || is_as_configured(sample), "{} got {sample:?}", key_of(sample.number));
    }
    let meanwhile = between(samples, gone, back);
    println!("without redis: {}", summary(&meanwhile));
    assert!(!meanwhile.is_empty());
    for sample in &meanwhile {
        assert!(is_as_configured(sample), "{} got {sample:?}", key_of(sample.number));
    }
}

/// Admits exactly the limit of a key that was not used before.
fn assert_exact(weir: &Weir, value: &str) {
    let mut client = rls::Client::connect(weir.grpc);
    let mut admitted = 0;
    for _ in 0..LIMIT + 5 {
        let answer = client.ask(rls::request("shop", &[("exact", value)]));
        match Said::of(&answer) {
            Said::Within => admitted += 1,
            Said::Over => {}
            said => panic!("{said:?}, {answer:?}"),
        }
    }
    assert_eq!(admitted, LIMIT, "{value}");
}

fn is_counted(sample: &Sample) -> bool {
    sample.said.is_counted() && key_of(sample.number) != "carries_on"
}

/// Waits until every runtime decides by Redis again: for so long, no request was decided without it.
fn wait_until_healthy(weir: &Weir, load: &Load) {
    let fallbacks = || ["error", "allow", "deny", "local"].map(|action| seen::fallbacks(weir, action));
    until("decisions by redis alone", PATIENCE, || {
        let before = fallbacks();
        load.pass(PER_SECOND as usize / 5);
        (fallbacks() == before).then_some(())
    });
}

/// An operator sees one warning when decisions begin to go by `on_error`, and one line when stores answer again, with
/// counts by action; `weir_on_error_total` grows meanwhile; /readyz stays 200.
#[test]
fn a_redis_that_is_killed_and_comes_back() {
    let mut redis = RedisServer::start();
    let weir = start(&redis.url(), &[PATIENT]);
    assert_exact(&weir, "before");
    let load = load(&weir);
    load.pass(150);
    redis.kill();
    let gone = Instant::now();
    until("the circuit breakers to open", PATIENCE, || (seen::errors(&weir, "circuit_open") > 0).then_some(()));
    seen::store_of_ready(&weir);
    load.pass(200);
    assert_eq!((seen::logged(&weir, TROUBLE_BEGINS), seen::logged(&weir, TROUBLE_ENDS)), (1, 0));
    let back = Instant::now();
    redis.restart();
    load.wait_for("a decision by the new redis", is_counted);
    wait_until_healthy(&weir, &load);
    assert_exact(&weir, "after");
    until("the end of the trouble in the log", PATIENCE, || (seen::logged(&weir, TROUBLE_ENDS) == 1).then_some(()));
    load.pass(4 * 2 * LIMIT);
    let samples = load.finish();
    println!("{}", summary(&samples));
    assert_as_configured(&samples, gone, back);
    // Once by the Redis that was killed, once by the embedded store, and once by the Redis that knows of neither.
    let carried_on = samples.iter().filter(|sample| key_of(sample.number) == "carries_on");
    assert_eq!(carried_on.filter(|sample| sample.said == Said::Within).count(), 3 * LIMIT);
    assert_eq!(seen::logged(&weir, TROUBLE_BEGINS), 1);
    for action in ["error", "allow", "deny", "local"] {
        assert!(seen::fallbacks(&weir, action) > 0, "{action}");
    }
}
