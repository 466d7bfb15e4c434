//! What asking the cache of denials costs. `cargo bench --bench deny_cache`.
//!
//! An empty one has to cost a request next to nothing; one that denies has to cost less than any store. Not here: what a
//! denial costs as a whole, which bench/run measures.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_engine::observer::Silent;
use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Outcome, Unit};
use weir_limiter::deny_cache::DenyCache;
use weir_store::memory::Memory;
use weir_store::{Deciding as _, Reply, SystemClock};

/// As many keys as the cache has room for by default.
const KEYS_MAX: usize = 65_536;
/// How many keys are denied: one that is hammered, and half of the room.
const DENIED: [usize; 2] = [1, 32_768];
/// Longer than the benchmark.
const MAX_AGE: Duration = Duration::from_secs(3_600);

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    targets = lookups, changes
}
criterion_main!(benches);

fn charge<'a>(key: &'a str, limit: &'a Limit) -> Charge<'a> {
    Charge::alone(key, limit, Operation::Consume(1))
}

fn keys(count: usize, name: &str) -> Vec<String> {
    (0..count).map(|n| format!("w1:{{shop|{name}={n}}}f3600s")).collect()
}

/// What a store says to a take when all is used up.
fn denial(limit: &Limit) -> Outcome {
    let store = Memory::new(1, Arc::new(SystemClock), Arc::new(Silent));
    let all = Charge {
        operation: Operation::Consume(weir_engine::descriptor::saturated(limit.capacity())),
        ..charge("k", limit)
    };
    let mut outcome = None;
    for charge in [all, charge("k", limit)] {
        let Reply::Ready(decision) = store.decide(&[charge], Mode::Atomic, Instant::now()) else {
            panic!("the memory store does not wait");
        };
        outcome = Some(decision.unwrap().outcomes[0].clone());
    }
    outcome.filter(|outcome| outcome.verdict.is_over()).unwrap()
}

fn lookups(c: &mut Criterion) {
    let limits = [Algorithm::FIXED_WINDOW, Algorithm::Gcra { burst: 100 }];
    let mut group = c.benchmark_group("lookup");
    let empty = DenyCache::new(MAX_AGE, KEYS_MAX);
    let others = keys(KEYS_MAX, "tenant");
    for limit in limits.map(|algorithm| Limit::new(100, Unit::Day.window(), algorithm).unwrap()) {
        let name = limit.algorithm().name();
        let ask = |cache: &DenyCache, key: &str| {
            cache.answers(black_box(&[charge(key, &limit)]), Mode::Atomic, Instant::now()).enough().is_some()
        };
        group.bench_function(format!("{name}, empty"), |b| b.iter(|| ask(&empty, &others[0])));
        for count in DENIED {
            let (cache, outcome, denied) = (DenyCache::new(MAX_AGE, KEYS_MAX), denial(&limit), keys(count, "user"));
            let now = Instant::now();
            for key in &denied {
                cache.insert(&charge(key, &limit), &outcome, now, now, cache.generation());
            }
            assert!(ask(&cache, &denied[count - 1]) && !ask(&cache, &others[0]));
            // Steps that share no factor with the number of keys meet all of them.
            let mut at = 0;
            group.bench_function(BenchmarkId::new(format!("{name}, hit"), count), |b| {
                b.iter(|| {
                    at = (at + 7_919) % count;
                    ask(&cache, &denied[at])
                });
            });
            group.bench_function(BenchmarkId::new(format!("{name}, miss"), count), |b| {
                b.iter(|| {
                    at = (at + 7_919) % others.len();
                    ask(&cache, &others[at])
                });
            });
        }
    }
}

fn changes(c: &mut Criterion) {
    let limit = Limit::per_unit(100, Unit::Day);
    let (cache, outcome) = (DenyCache::new(MAX_AGE, KEYS_MAX), denial(&limit));
    // More than there is room for, so that each that is new drops another.
    let keys = keys(KEYS_MAX * 4, "user");
    let now = Instant::now();
    let mut group = c.benchmark_group("change");
    let insert = |key: &str| cache.insert(&charge(key, &limit), &outcome, now, now, cache.generation());
    group.bench_function("insert, known", |b| b.iter(|| insert(&keys[0])));
    let mut at = 0;
    group.bench_function("insert, new", |b| {
        b.iter(|| {
            at = (at + 7_919) % keys.len();
            insert(&keys[at]);
        });
    });
    group.bench_function("forget, unknown", |b| b.iter(|| cache.forget(black_box("w1:{shop|user=ann}f3600s"))));
}
