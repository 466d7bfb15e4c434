//! How often a decision asks for memory, counted and not timed: from the decoded request to the response that is to be
//! encoded. Each count is an upper bound; whoever needs fewer lowers it. And how much is held of those who are denied. Not here:
//! what HTTP/2 allocates for a call, and what a decision costs (bench/run).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prost::Message as _;
use tokio::runtime::Runtime;
use tonic::codegen::http::HeaderMap;
use weir_engine::arith::Fraction;
use weir_engine::observer::Silent;
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Limit, PolicySet, Unit};
use weir_limiter::deny_cache::DenyCache;
use weir_limiter::{Limiter, Options, Policies};
use weir_rls::convert::{self, Bounds, Extras};
use weir_rls::lenient;
use weir_rls::proto::rate_limit_descriptor::Entry;
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest};
use weir_settings::PropagatorFormats;
use weir_store::memory::Memory;
use weir_store::redis::{Endpoint, Redis, pipeline};
use weir_store::{Store, SystemClock};
use weir_telemetry::limited::LIMITS_MAX;
use weir_telemetry::metrics::{self, Metrics, Protocol};
use weir_telemetry::traces::{self, Batches, Sampler, Spans, Tracer};

use crate::support::redis::RedisServer;

const BOUNDS: Bounds =
    Bounds { descriptors: 64, entries: 16, domain_bytes: 255, key_bytes: 255, value_bytes: 255, hits: 1_000 };
/// Decisions in flight together.
const TOGETHER: u64 = 32;
/// How far below its bound a count may be: what a debug build does not optimise away.
const SLACK: u64 = 1;
/// What one core holds of those who were denied, in bytes, as docs/admin.md says; and what else a flood of keys leaves.
const LIMITED_BYTES_MAX: u64 = 4 << 20;
const OTHER_BYTES_MAX: u64 = 1 << 20;
/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Limits on four keys that nothing here uses up, and one on `full` that the first request does.
fn policies() -> Arc<Policies> {
    let node = |(key, requests): (&str, u32)| NodeSpec {
        key: key.into(),
        rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(requests, Unit::Year)]))),
        ..NodeSpec::default()
    };
    let plenty = 4_000_000_000;
    let keys = [("user", plenty), ("tenant", plenty), ("client", plenty), ("path", plenty), ("full", 1)];
    let descriptors = keys.map(node).to_vec();
    let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
    Arc::new(Policies::new(PolicySet::compile(vec![domain]).unwrap(), Arc::new(Silent)))
}

fn request(keys: &[&str]) -> Vec<u8> {
    message(keys).encode_to_vec()
}

fn message(keys: &[&str]) -> RateLimitRequest {
    let descriptor = |key: &&str| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).to_owned(), value: "0123456789".to_owned() }],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: keys.iter().map(descriptor).collect(),
        ..RateLimitRequest::default()
    }
}

fn one() -> Vec<u8> {
    request(&["user"])
}

fn four() -> Vec<u8> {
    request(&["user", "tenant", "client", "path"])
}

fn memory() -> Limiter {
    let store: Arc<dyn Store> = Arc::new(Memory::new(1_000, Arc::new(SystemClock), Arc::new(Silent)));
    Limiter::new(policies(), Options::new(store), Arc::new(Silent))
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A limiter on this Redis, its pipeline on `runtime`.
fn redis(server: &RedisServer, runtime: &Runtime) -> Limiter {
    let _entered = runtime.enter();
    let mut options = pipeline::Options::new(Endpoint::parse(&server.url()).unwrap());
    options.connections = 1;
    let store: Arc<dyn Store> = Arc::new(Redis::start(options, "weir:"));
    let deny_cache = Some(Arc::new(DenyCache::new(PATIENCE, 1_000)));
    let options = Options { deny_cache, budget: PATIENCE, ..Options::new(store) };
    Limiter::new(policies(), options, Arc::new(Silent))
}

/// Answers a message from the network.
async fn answered(limiter: &Limiter, bytes: &[u8]) {
    let mut texts = Vec::new();
    let request = lenient::decode(bytes, &mut texts).unwrap();
    let query = convert::query(&request, &BOUNDS).unwrap();
    let started = Instant::now();
    let answer = if limiter.is_immediate() {
        limiter.decide_now(&query, started, None).unwrap()
    } else {
        limiter.decide(&query, started, None, None).await.unwrap()
    };
    let response = convert::response(&request, answer, &Extras::default());
    assert_eq!(response.statuses.len(), request.descriptors.len());
}

/// Allocations of a later run of `work`: the first ones make what stays.
fn allocations<F: Future>(runtime: &Runtime, work: impl Fn() -> F) -> u64 {
    for _ in 0..3 {
        runtime.block_on(work());
    }
    // Pinned here: tokio puts a future of more than 2 KiB in a box of its own in a debug build.
    let counted = allocation_counter::measure(|| {
        runtime.block_on(pin!(work()));
    });
    counted.count_total
}

/// Fails where a decision needed more allocations than `most`, or so few that `most` is out of date.
fn check(what: &str, counted: u64, most: u64) {
    assert!(counted <= most, "{what}: {counted} allocations, at most {most}");
    assert!(counted + SLACK >= most, "{what}: {counted} allocations are fewer than {most}: lower the bound");
}

/// Takes spans and keeps none.
#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// Half of all requests, and those whose callers say so.
fn tracer() -> Arc<Tracer> {
    let second = Duration::from_secs(1);
    let batches = Batches { queue: 8, batch_max: 8, delay: second, export_timeout: second };
    let options = traces::Options {
        propagators: PropagatorFormats { w3c: true, b3: true },
        sampler: Sampler::ratio(Fraction::percent(50), true),
        descriptor_values: false,
    };
    Arc::new(Tracer::new(options, Spans::new(batches, Nowhere, &Metrics::new(metrics::Options::default())).0))
}

#[test]
fn a_request_that_is_not_sampled_allocates_nothing_for_traces() {
    let tracer = tracer();
    let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    let headers =
        |name: &'static str, value: String| HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
    let forms = [
        headers("traceparent", format!("00-{ids}-00")),
        headers("traceparent", "malformed".to_owned()),
        headers("b3", format!("{ids}-0")),
        headers("x-b3-sampled", "0".to_owned()),
        HeaderMap::new(),
    ];
    // The source of ids is made once for each thread.
    let _ = tracer.begin(Protocol::Grpc, &HeaderMap::new());
    let mut unsampled = [0; 5];
    for _ in 0..64 {
        for (form, unsampled) in forms.iter().zip(&mut unsampled) {
            let mut is_sampled = false;
            let counted = allocation_counter::measure(|| {
                let trace = tracer.begin(Protocol::Grpc, form);
                is_sampled = trace.is_some();
                // Its spans are made when it is dropped, which is not what is counted here.
                std::mem::forget(trace);
            });
            if !is_sampled {
                *unsampled += 1;
                assert_eq!(counted.count_total, 0, "{form:?}");
            }
        }
    }
    assert!(unsampled.iter().all(|count| *count > 0), "{unsampled:?}");
    assert_eq!((unsampled[0], unsampled[2], unsampled[3]), (64, 64, 64), "the caller decided");
}

/// Keys, and the list of statuses in the response. Of several descriptors also those of the request, their outcomes and their
/// statuses.
#[test]
fn a_decision_in_memory_allocates_next_to_nothing() {
    let (runtime, limiter) = (runtime(), memory());
    for (what, request, most) in [("one", one(), 2), ("denied", request(&["full"]), 2), ("four", four(), 7)] {
        check(what, allocations(&runtime, || answered(&limiter, &request)), most);
    }
}

/// Besides: the command, the channel that its answer comes back through, the future that waits, and the reply.
#[test]
fn a_decision_on_redis_allocates_a_known_number_of_times() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let limiter = redis(&server, &runtime);
    for (what, request, most) in [("one", one(), 7), ("four", four(), 13)] {
        let together = allocations(&runtime, || join_all((0..TOGETHER).map(|_| answered(&limiter, &request))));
        check(what, together / TOGETHER, most);
    }
}

#[test]
fn a_denial_from_the_cache_allocates_as_in_memory() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let limiter = redis(&server, &runtime);
    let full = request(&["full"]);
    check("cached", allocations(&runtime, || answered(&limiter, &full)), 2);
}

/// A flood of distinct keys, each of which is denied by one of more rules than are remembered.
#[test]
fn who_is_limited_is_held_in_bounded_memory_whatever_is_denied() {
    const RULES: usize = LIMITS_MAX + 36;
    let metrics = Arc::new(Metrics::new(metrics::Options::default()));
    let node = |number: usize| NodeSpec {
        key: format!("key{number}"),
        rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(0, Unit::Hour)]))),
        ..NodeSpec::default()
    };
    let descriptors = (0..RULES).map(node).collect();
    let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
    let policies = Arc::new(Policies::new(PolicySet::compile(vec![domain]).unwrap(), metrics.observer()));
    let store: Arc<dyn Store> = Arc::new(Memory::new(1_000, Arc::new(SystemClock), Arc::new(Silent)));
    let limiter = Limiter::new(policies, Options::new(store), metrics.observer());
    let runtime = runtime();
    let flood = |from: usize, to: usize| {
        for number in from..to {
            // As long as a value may be here, so that each key is as long as a key can be.
            let mut request = message(&[&format!("key{}", number % RULES)]);
            request.descriptors[0].entries[0].value = format!("{number:0>255}");
            runtime.block_on(answered(&limiter, &request.encode_to_vec()));
        }
    };
    let held = allocation_counter::measure(|| flood(0, 60_000));
    assert!(metrics.limited().report(1).left_out > 0, "more limits than there is room for");
    let most = LIMITED_BYTES_MAX + OTHER_BYTES_MAX;
    assert!(held.bytes_max <= most, "{} bytes, at most {most}", held.bytes_max);
    assert!(held.bytes_max > 100_000, "{} bytes: nothing was remembered", held.bytes_max);
}
