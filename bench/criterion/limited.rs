//! What remembering who is limited costs a denial. `cargo bench --bench limited`.
//!
//! A request within its limits costs nothing here. Divide by the CPU of a denial as a whole, which `bench/run` measures as "memory, hot
//! key, denied", for the share. Not here: what the report costs, which no decision waits for.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_engine::observer::{AnsweredBy, Charged, LimitOf, Silent};
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Charge, Entry, Limit, Mode, Operation, Outcome, PolicySet, Unit};
use weir_settings::ShownValues;
use weir_store::memory::Memory;
use weir_store::{Deciding as _, Reply, SystemClock};
use weir_telemetry::limited::{LIMITS_MAX, Limited};

/// One that is hammered, as many as are remembered for certain, and far more.
const KEYS: [usize; 3] = [1, 32, 65_536];
/// One, and as many as are remembered.
const RULES: [usize; 2] = [1, LIMITS_MAX];

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    targets = denials
}
criterion_main!(benches);

fn policies(rules: usize) -> PolicySet {
    let node = |number: usize| NodeSpec {
        key: format!("user{number}"),
        rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(0, Unit::Hour)]))),
        ..NodeSpec::default()
    };
    let descriptors = (0..rules).map(node).collect();
    PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap()
}

fn charge<'a>(key: &'a str, limit: &'a Limit) -> Charge<'a> {
    Charge::alone(key, limit, Operation::Consume(1))
}

fn denial(limit: &Limit) -> Outcome {
    let store = Memory::new(1, Arc::new(SystemClock), Arc::new(Silent));
    let Reply::Ready(decision) = store.decide(&[charge("k", limit)], Mode::Atomic, Instant::now()) else {
        panic!("the memory store does not wait");
    };
    let outcome = decision.unwrap().outcomes[0].clone();
    assert!(outcome.verdict.is_over());
    outcome
}

fn denials(c: &mut Criterion) {
    let mut group = c.benchmark_group("record");
    for rules in RULES {
        let policies = policies(rules);
        for count in KEYS {
            let limited = Limited::new(1, ShownValues::Shown);
            let keys: Vec<String> =
                (0..count).map(|key| format!("w1:{{shop|user{}=client-{key}}}f3600s", key % rules)).collect();
            let outcome = denial(&policies.rules()[0].limits[0]);
            let record = |at: usize| {
                let rule = &policies.rules()[at % rules];
                let entries = [Entry { key: &rule.path, value: "client" }];
                let charge = charge(&keys[at], &rule.limits[0]);
                let (mode, by, limit) = (Mode::Atomic, AnsweredBy::Store, LimitOf::Rule(rule, 0));
                let charged =
                    Charged { limit, entries: &entries, row: None, mode, charge: &charge, outcome: &outcome, by };
                limited.record(0, black_box(&charged));
            };
            let mut at = 0;
            group.bench_function(BenchmarkId::new(format!("{rules} rules, keys"), count), |b| {
                b.iter(|| {
                    // Steps that share no factor with the number of keys meet all of them.
                    at = (at + 7_919) % count;
                    record(at);
                });
            });
            assert!(!limited.report(5).limits.is_empty(), "something was remembered");
        }
    }
}
