//! What a decision costs on the memory store, by itself and below the limiter. `cargo bench --bench memory_store`.
//!
//! Not here: gRPC, which costs more than all of this; bench/run measures the whole.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use smallvec::smallvec;
use weir_engine::observer::Silent;
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Charge, Decision, Entry, Limit, Mode, Operation, PolicySet, Unit};
use weir_limiter::{Answer, DescriptorRequest, Limiter, Options, Policies, Query};
use weir_store::memory::Memory;
use weir_store::{Deciding as _, Inspected as _, Reply, SystemClock};

/// How many keys the store holds.
const KEYS: [usize; 2] = [1_000, 1_000_000];
/// Room for all of them and a few more, so that nothing is evicted.
const KEYS_MAX: usize = 4_000_000;
/// A limit that nothing here uses up, unless it asks for all of it.
const REQUESTS: u32 = 4_000_000_000;

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    targets = store, limiter
}
criterion_main!(benches);

fn memory() -> Memory {
    Memory::new(KEYS_MAX, Arc::new(SystemClock), Arc::new(Silent))
}

/// The memory store answers at once.
fn ready<T>(reply: Reply<'_, T>) -> T {
    match reply {
        Reply::Ready(answer) => answer.unwrap(),
        Reply::Pending(_) => panic!("the memory store does not wait"),
    }
}

fn decide(memory: &Memory, charges: &[Charge<'_>]) -> Decision {
    ready(memory.decide(black_box(charges), Mode::Atomic, Instant::now()))
}

fn charge<'a>(key: &'a str, limit: &'a Limit, hits: u32) -> Charge<'a> {
    Charge::alone(key, limit, Operation::Consume(hits))
}

fn store(c: &mut Criterion) {
    let limit = Limit::per_unit(REQUESTS, Unit::Year);
    let mut group = c.benchmark_group("store");
    for count in KEYS {
        let memory = memory();
        let keys: Vec<String> = (0..count).map(|n| format!("w1:{{shop|user={n}}}f3600s")).collect();
        for key in &keys {
            decide(&memory, &[charge(key, &limit, 1)]);
        }
        assert_eq!(memory.keys(), Some(count as u64));

        let hot = [charge(&keys[0], &limit, 1)];
        assert!(!decide(&memory, &hot).denied);
        group.bench_function(BenchmarkId::new("one hot key", count), |b| b.iter(|| decide(&memory, &hot)));

        // A step that shares no factor with the number of keys meets all of them, never two neighbours in a row.
        let mut at = 0;
        group.bench_function(BenchmarkId::new("many keys", count), |b| {
            b.iter(|| {
                at = (at + 7_919) % count;
                decide(&memory, &[charge(&keys[at], &limit, 1)])
            });
        });

        let four = [0, 1, 2, 3].map(|n| charge(&keys[n * count / 4], &limit, 1));
        assert!(!decide(&memory, &four).denied);
        group.bench_function(BenchmarkId::new("4 charges", count), |b| b.iter(|| decide(&memory, &four)));

        let full = Limit::per_unit(1, Unit::Year);
        let denied = [charge(&keys[0], &full, 1)];
        assert!(decide(&memory, &denied).denied);
        group.bench_function(BenchmarkId::new("denied", count), |b| b.iter(|| decide(&memory, &denied)));
    }
}

fn limiter(c: &mut Criterion) {
    let node = |key: &str| NodeSpec {
        key: key.into(),
        rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(REQUESTS, Unit::Year)]))),
        ..NodeSpec::default()
    };
    let names = ["user", "tenant", "client", "path"];
    let descriptors = names.map(node).to_vec();
    let policies =
        PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap();
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let limiter = Limiter::new(policies, Options::new(Arc::new(memory())), Arc::new(Silent));

    let asked = |key: &'static str| DescriptorRequest {
        entries: vec![Entry { key, value: "0123456789" }].leak(),
        operation: Operation::Consume(1),
        limit: None,
    };
    let one = Query { domain: "shop", caller: None, descriptors: smallvec![asked("user")], settle: None };
    let four =
        Query { domain: "shop", caller: None, descriptors: names.into_iter().map(asked).collect(), settle: None };
    let none = Query { domain: "shop", caller: None, descriptors: smallvec![asked("nobody")], settle: None };
    let elsewhere = Query { domain: "elsewhere", caller: None, descriptors: smallvec![asked("user")], settle: None };

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decide = |query: &Query<'_>| -> Answer {
        runtime.block_on(limiter.decide(black_box(query), Instant::now(), None, None)).unwrap()
    };
    let mut group = c.benchmark_group("limiter");
    for (name, query, limited) in [
        ("1 descriptor", &one, true),
        ("4 descriptors", &four, true),
        ("no rule", &none, false),
        ("unknown domain", &elsewhere, false),
    ] {
        assert!(decide(query).statuses.iter().all(|status| status.limit.is_some() == limited), "{name}");
        group.bench_function(name, |b| b.iter(|| decide(query)));
    }
}
