//! What the pure part costs: matching, writing keys, deciding. `cargo bench --bench engine`.
//!
//! Matching is asked in policies of very different sizes, since its cost must grow with the depth of a descriptor and
//! not with the number of rules.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::collections::HashSet;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_engine::algorithm::parameters::Parameters;
use weir_engine::algorithm::{Change, Effect};
use weir_engine::automaton::Regex;
use weir_engine::decision::States;
use weir_engine::network::Network;
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{
    Algorithm, Charge, Entry, Limit, Matcher, Micros, Mode, Operation, PolicySet, Refill, State, Unit, decision, key,
};

/// How many rules the policies have.
const RULES: [usize; 3] = [10, 1_000, 100_000];
/// How deep the descriptors are.
const DEPTHS: [usize; 4] = [1, 2, 3, 4];
/// Patterns that stand before the one that matches.
const PATTERNS: usize = 8;
/// A time in 2026, in microseconds.
const NOW: Micros = 1_790_000_000_000_000;

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    targets = matching, matchers, keys, decisions
}
criterion_main!(benches);

fn node(key: &str, value: Option<String>, descriptors: Vec<NodeSpec>) -> NodeSpec {
    let limits = vec![Limit::per_unit(100, Unit::Hour)];
    NodeSpec {
        key: key.into(),
        value: value.map(Into::into),
        rule: Some(RuleSpec::of(RuleKind::Limits(limits))),
        descriptors,
        ..NodeSpec::default()
    }
}

/// A domain of `rules` tenants, the last of which has a path of rules four levels deep, and a key with patterns.
fn policies(rules: usize) -> PolicySet {
    let mut below = Vec::new();
    for key in ["action", "plan", "region"] {
        below = vec![node(key, None, below)];
    }
    let mut descriptors: Vec<NodeSpec> =
        (1..rules).map(|n| node("tenant", Some(format!("tenant-{n}")), Vec::new())).collect();
    descriptors.push(node("tenant", Some("tenant-0".into()), below));
    for n in 0..PATTERNS {
        descriptors.push(node("path", Some(format!("/v{n}/*/items")), Vec::new()));
    }
    PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap()
}

const ENTRIES: [Entry<'_>; 4] = [
    Entry { key: "tenant", value: "tenant-0" },
    Entry { key: "region", value: "eu-central-1" },
    Entry { key: "plan", value: "free" },
    Entry { key: "action", value: "search" },
];

fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("matching");
    for rules in RULES {
        let policies = policies(rules);
        let domain = policies.domain("shop").unwrap();
        let mut ask = |name: String, entries: &[Entry<'_>], expected: bool| {
            assert_eq!(policies.find(domain, entries).rule.is_some(), expected, "{name}");
            group.bench_function(BenchmarkId::new(name, rules), |b| {
                b.iter(|| policies.find(domain, black_box(entries)));
            });
        };
        for depth in DEPTHS {
            ask(format!("depth {depth}"), &ENTRIES[..depth], true);
        }
        ask("last pattern".into(), &[Entry { key: "path", value: "/v7/17/items" }], true);
        ask("no pattern".into(), &[Entry { key: "path", value: "/v9/17/items" }], false);
        ask("no value".into(), &[Entry { key: "tenant", value: "nobody" }], false);
        ask("no key".into(), &[Entry { key: "user", value: "ann" }], false);
    }
}

/// A domain with as many values and networks, and one with as many wildcards and a regular expression behind them.
fn matchers(c: &mut Criterion) {
    let mut group = c.benchmark_group("matchers");
    let compile = |matchers: Vec<Matcher>| {
        let of_matcher = |matcher| NodeSpec { value: Some(matcher), ..node("k", None, Vec::new()) };
        let descriptors = matchers.into_iter().map(of_matcher).collect();
        PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap()
    };
    let mut ask = |name: &str, count: usize, policies: &PolicySet, value: &str| {
        let domain = policies.domain("shop").unwrap();
        assert!(policies.find(domain, &[Entry { key: "k", value }]).rule.is_some(), "{name}");
        group.bench_function(BenchmarkId::new(name, count), |b| {
            b.iter(|| policies.find(domain, black_box(&[Entry { key: "k", value }])));
        });
    };
    for count in [10, 100_000] {
        let values = (0..count).map(|n| format!("value-{n}").into());
        let networks = (0..count).map(|n| match n % 3 {
            0 => format!("10.{}.{}.0/24", n >> 8 & 255, n & 255),
            1 => format!("172.{}.{}.{}/32", n >> 16, n >> 8 & 255, n & 255),
            _ => format!("2001:db8:{:x}:{:x}::/64", n >> 16, n & 0xffff),
        });
        let mut known = HashSet::new();
        let networks = networks.filter(|text| known.insert(text.clone())).map(|text| Network::parse(&text).unwrap());
        let policies = compile(vec![Matcher::List(values.collect()), Matcher::Networks(networks.collect())]);
        ask("value in a list", count, &policies, "value-7");
        ask("IPv4 network", count, &policies, "10.0.3.77");
        ask("IPv6 network", count, &policies, "2001:db8:0:5:1:2:3:4");
    }
    for count in [10, 100, 1_000] {
        let mut patterns: Vec<Matcher> = (0..count).map(|n| format!("/v{n}/*/items").into()).collect();
        patterns.push(Matcher::Regex(Regex::new("/orders/[0-9]+/[a-z]+").unwrap().into()));
        let policies = compile(patterns);
        ask("last wildcard", count, &policies, &format!("/v{}/17/items", count - 1));
        ask("regular expression behind wildcards", count, &policies, "/orders/170017/items");
    }
}

fn keys(c: &mut Criterion) {
    let limit = Limit::per_unit(100, Unit::Hour);
    let long = "x".repeat(1_000);
    let mut group = c.benchmark_group("key");
    let mut write = |name: &str, entries: &[Entry<'_>]| {
        let mut out = String::with_capacity(2_048);
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                key::write_key(&mut out, "shop", black_box(entries).iter().copied(), &[], &limit);
                out.len()
            });
        });
    };
    write("1 entry", &ENTRIES[..1]);
    write("4 entries", &ENTRIES);
    write("escaped", &[Entry { key: "path", value: "/a b|c=d/{e}" }]);
    write("hashed, 1000 bytes", &[Entry { key: "path", value: &long }]);
}

/// A state that each decision finds: a change is made on a copy of it.
struct Unchanged<'a>(Option<&'a State>);

impl States for Unchanged<'_> {
    fn read(&self, _: u16) -> Option<&State> {
        self.0
    }

    fn change(&mut self, _: u16, _: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
        black_box(change(&mut self.0.cloned()));
    }
}

fn decisions(c: &mut Criterion) {
    let hour = Unit::Hour.window();
    let with = Parameters {
        precision: Algorithm::default_precision(hour),
        burst: 100,
        refill: Refill::Interval,
        ..Parameters::LEAST
    };
    let limits = Algorithm::all(&with).map(|algorithm| Limit::new(100, hour, algorithm).unwrap());
    let mut group = c.benchmark_group("decide");
    for limit in &limits {
        let name = limit.algorithm().name();
        let charge = |operation| Charge::alone("w1:{shop|user=ann}", limit, operation);
        let decide = |charges: &[Charge<'_>], slots: &[u16], state: Option<&State>| {
            let mut state = Unchanged(black_box(state));
            decision::decide(black_box(charges), slots, &mut state, Mode::Atomic, NOW).unwrap().denied
        };
        let with = |hits| {
            let mut state = None;
            limit.kind().change(&mut state, Effect::Add(hits), NOW);
            state
        };
        let (one, used, full) = ([charge(Operation::Consume(1))], with(1), with(100));
        assert!(!decide(&one, &[0], used.as_ref()));
        assert!(decide(&one, &[0], full.as_ref()));
        group.bench_function(BenchmarkId::new(name, "new"), |b| b.iter(|| decide(&one, &[0], None)));
        group.bench_function(BenchmarkId::new(name, "admitted"), |b| b.iter(|| decide(&one, &[0], used.as_ref())));
        group.bench_function(BenchmarkId::new(name, "denied"), |b| b.iter(|| decide(&one, &[0], full.as_ref())));
        let four = [(); 4].map(|()| charge(Operation::Consume(1)));
        group.bench_function(BenchmarkId::new(name, "4 charges"), |b| {
            b.iter(|| decide(&four, &[0, 1, 2, 3], used.as_ref()));
        });
    }
}
