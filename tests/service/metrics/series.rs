//! Callers add no series, whatever they send.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use smallvec::smallvec;
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Entry, Limit, Operation, PolicySet, Unit, Window};
use weir_limiter::{DescriptorRequest, Limiter, Options, Policies, Query};
use weir_store::SystemClock;
use weir_store::memory::Memory;
use weir_telemetry::mapper::Mapper;
use weir_telemetry::metrics::{self, Metrics};

/// How many requests are sent, each with a domain and a value of its own.
const REQUESTS: usize = 100_000;
/// How many names requests may give to statistics.
const DYNAMIC_SERIES: usize = 100;

/// The series of a text, without their values.
fn series(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').expect("a value").0).collect()
}

#[test]
fn hostile_domains_keys_and_values_add_no_series_beyond_the_bound() {
    let options = metrics::Options {
        dynamic_series: DYNAMIC_SERIES,
        mapper: Some(Mapper::built_in(false)),
        statsd: true,
        ..metrics::Options::default()
    };
    let metrics = Arc::new(Metrics::new(options));
    let observer = metrics.observer();
    // Both have names that requests give, as far as there is room.
    let node = |key: &str| NodeSpec {
        key: key.into(),
        detailed_metric: true,
        rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(10, Unit::Hour)]))),
        ..NodeSpec::default()
    };
    let descriptors = vec![node("user"), node("path")];
    let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
    let policies = Arc::new(Policies::new(PolicySet::compile(vec![domain]).unwrap(), observer.clone()));
    let store = Arc::new(Memory::new(1_000, Arc::new(SystemClock), observer.clone()));
    let limiter = Limiter::new(policies, Options::new(store), observer);
    let decide = |domain: &str, key: &str, value: &str, limit: Option<(u32, Window)>| {
        let asked = DescriptorRequest { entries: &[Entry { key, value }], operation: Operation::Consume(1), limit };
        let query = Query { domain, caller: None, descriptors: smallvec![asked], settle: None };
        limiter.decide_now(&query, Instant::now(), None).expect("an answer");
    };

    decide("shop", "user", "ann", None);
    decide("shop", "user", "ann", Some((5, Unit::Day.window())));
    decide("nowhere", "user", "ann", None);
    let before = metrics.text();
    for number in 0..REQUESTS / 4 {
        let hostile = format!("{number}\n\"}} 1\nweir_fake{{x=\"{number}\u{202e}\0\\");
        decide(&hostile, "user", "ann", None);
        decide("shop", "user", &hostile, None);
        decide("shop", &hostile, "ann", None);
        decide("shop", "path", &hostile, Some((5, Unit::Day.window())));
    }
    let after = metrics.text();
    let (before, now) = (series(&before), series(&after));
    let weirs = |series: &BTreeSet<&str>| -> BTreeSet<String> {
        series.iter().filter(|series| series.starts_with("weir_")).map(|series| (*series).to_owned()).collect()
    };
    assert_eq!(weirs(&now), weirs(&before));
    // Each name has at most six series.
    let added = now.difference(&before).count();
    assert!((1..=6 * DYNAMIC_SERIES).contains(&added), "{added} series more");
    assert!(!after.lines().any(|line| line.starts_with("weir_fake") || line.starts_with("\"}")), "a line was made up");
    let quarter = REQUESTS / 4;
    for line in [
        format!("weir_requests_total{{domain=\"(unknown)\",result=\"unknown_domain\"}} {}", quarter + 1),
        format!("weir_unmatched_descriptors_total{{domain=\"(unknown)\"}} {}", quarter + 1),
        format!("weir_unmatched_descriptors_total{{domain=\"shop\"}} {quarter}"),
        format!("weir_dynamic_series {DYNAMIC_SERIES}"),
    ] {
        assert!(after.contains(&format!("{line}\n")), "{line}\n{after}");
    }
}
