//! Which descriptor a value meets: the engine against a matcher that compares with one descriptor after the other. [mt-2]
//!
//! Not here: what files may say about values (policies.rs).

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use proptest::collection::{hash_set, vec};
use proptest::option;
use proptest::prelude::{Just, Strategy};
use proptest::sample::select;
use proptest::{prop_assert_eq, prop_oneof, proptest};
use weir_engine::automaton::{PATTERNS_MAX, Regex};
use weir_engine::key::{parse, write_key};
use weir_engine::matcher::Matcher;
use weir_engine::network::Network;
use weir_engine::pattern::Pattern;
use weir_engine::policy::{DomainSpec, NodeSpec, PolicyError, RuleKind, RuleSpec};
use weir_engine::{Entry, Limit, PolicySet, Unit};

use crate::support::arbitrary::config;
use crate::support::wildcards::{bits, stars};

/// The values of one descriptor, as a policy has them.
#[derive(Clone, Debug)]
enum Form {
    Alone,
    Text(String),
    List(Vec<String>),
    Networks(Vec<String>),
    Regex(String),
}

impl Form {
    fn matcher(&self) -> Option<Matcher> {
        Some(match self {
            Self::Alone => return None,
            Self::Text(text) => text.as_str().into(),
            Self::List(values) => Matcher::List(values.iter().map(|value| value.as_str().into()).collect()),
            Self::Networks(networks) => {
                Matcher::Networks(networks.iter().map(|text| Network::parse(text).unwrap()).collect())
            }
            Self::Regex(text) => Matcher::Regex(Regex::new(text).unwrap().into()),
        })
    }

    /// How good a match of the value is, the least first; none if it does not match.
    fn rank(&self, value: &str) -> Option<(u8, usize)> {
        match self {
            Self::Alone => Some((3, 0)),
            Self::Text(text) if text == value => Some((0, 0)),
            Self::List(values) if values.iter().any(|listed| listed == value) => Some((0, 0)),
            Self::Text(text) if text.contains('*') && stars(text.as_bytes(), value.as_bytes()) => Some((2, 0)),
            Self::Regex(text) if regex::Regex::new(&format!("^(?:{text})$")).unwrap().is_match(value) => Some((2, 0)),
            Self::Networks(networks) => {
                let value = bits(value)?;
                let longest =
                    networks.iter().filter_map(|network| bits(network)).filter(|network| value.starts_with(network));
                longest.map(|network| network.len()).max().map(|length| (1, 1_000 - length))
            }
            _ => None,
        }
    }
}

/// The same without descriptors, and items of lists, that an earlier one has.
fn without_twins(forms: Vec<Form>) -> Vec<Form> {
    let mut known = HashSet::new();
    let mut kept = Vec::new();
    for mut form in forms {
        match &mut form {
            Form::List(values) => values.retain(|value| known.insert(value.clone())),
            Form::Networks(networks) => {
                networks.retain(|network| known.insert(Network::parse(network).unwrap().to_string()));
            }
            Form::Alone | Form::Text(_) | Form::Regex(_) => {}
        }
        let is_new = match &form {
            Form::List(values) => !values.is_empty() && (values.len() == 1 || known.insert(name(&form))),
            Form::Networks(networks) => !networks.is_empty() && (networks.len() == 1 || known.insert(name(&form))),
            Form::Alone | Form::Text(_) | Form::Regex(_) => known.insert(name(&form)),
        };
        if is_new {
            kept.push(form);
        }
    }
    kept
}

fn name(form: &Form) -> String {
    form.matcher().map_or_else(|| "the key alone".to_owned(), |matcher| matcher.name().into_owned())
}

/// A policy as a compatible reading makes it of keys that are patterns and of a key with wildcards.
fn compile_keys(keys: &[(String, Option<String>)], wildcards: &[String]) -> Result<PolicySet, PolicyError> {
    let rule = || Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)])));
    let of_keys = keys.iter().map(|(key, value)| NodeSpec {
        key: key.clone(),
        value: value.as_deref().map(Matcher::from),
        key_pattern: true,
        rule: rule(),
        ..NodeSpec::default()
    });
    let of_values = wildcards.iter().map(|text| NodeSpec {
        key: "k".into(),
        value: Some(text.as_str().into()),
        rule: rule(),
        ..NodeSpec::default()
    });
    let descriptors = of_keys.chain(of_values).collect();
    PolicySet::compile(vec![DomainSpec { name: "d".into(), mode: None, on_error: None, descriptors }])
}

fn compile(forms: &[Form], share_threshold: bool) -> Result<PolicySet, PolicyError> {
    let descriptors = forms.iter().map(|form| NodeSpec {
        key: "k".into(),
        value: form.matcher(),
        share_threshold,
        rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)]))),
        ..NodeSpec::default()
    });
    let descriptors = descriptors.collect();
    PolicySet::compile(vec![DomainSpec { name: "d".into(), mode: None, on_error: None, descriptors }])
}

/// The number of the rule that a value meets, which is that of its descriptor.
fn met(set: &PolicySet, value: &str) -> Option<u32> {
    let domain = set.domain("d").unwrap();
    set.find(domain, &[Entry { key: "k", value }]).rule.map(|rule| rule.id)
}

/// By the naive matcher.
fn expected(forms: &[Form], value: &str) -> Option<u32> {
    let ranked = (0..).zip(forms).filter_map(|(number, form)| Some((form.rank(value)?, number)));
    ranked.min().map(|(_, number)| number)
}

fn text() -> impl Strategy<Value = String> {
    "[ab/]{1,4}".prop_map(String::from)
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..4u8, 0..4u8).prop_map(|(a, b)| format!("10.{a}.{b}.1")),
        (0..4u8).prop_map(|a| format!("::ffff:10.{a}.0.1")),
        (0..4u8, 0..4u8).prop_map(|(a, b)| format!("2001:db8:{a}::{b}")),
    ]
}

fn network() -> impl Strategy<Value = String> {
    (address(), 0..=128u8).prop_map(|(address, length)| {
        let (bits, is_v6) = match address.parse().unwrap() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, false),
            IpAddr::V6(address) => (address.to_bits(), true),
        };
        let length = if is_v6 { length } else { length % 33 };
        let cut = bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        if is_v6 {
            format!("{}/{length}", std::net::Ipv6Addr::from_bits(cut))
        } else {
            format!("{}/{length}", std::net::Ipv4Addr::from_bits(u32::try_from(cut >> 96).unwrap()))
        }
    })
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![
        1 => Just(Form::Alone),
        3 => text().prop_map(Form::Text),
        1 => address().prop_map(Form::Text),
        6 => "[ab/]{0,2}\\*[ab/]{0,2}(\\*[ab/]{0,1})?".prop_map(Form::Text),
        3 => vec(text(), 1..4).prop_map(Form::List),
        4 => vec(network(), 1..4).prop_map(Form::Networks),
        3 => "[ab]{0,2}(\\(a\\|/\\)|\\.|\\[ab\\])[+*?]?[ab/]{0,2}".prop_map(Form::Regex),
        1 => select(vec![r"10\.0\..*", r"10\.[12]\.[0-9.]+", r"2001:db8:.*"]).prop_map(|text| Form::Regex(text.into())),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab/*]{0,5}",
        4 => address(),
        2 => network(),
    ]
}

proptest! {
    #![proptest_config(config(4))]

    #[test]
    fn a_value_meets_what_a_naive_matcher_finds(forms in vec(form(), 0..24), values in vec(value(), 1..32)) {
        let forms = without_twins(forms);
        let set = compile(&forms, false).unwrap();
        for value in &values {
            prop_assert_eq!(met(&set, value), expected(&forms, value), "{} of {:?}", value, forms);
        }
    }

    #[test]
    fn a_shared_state_has_the_key_of_its_descriptor(forms in vec(form(), 0..24), values in vec(value(), 1..32)) {
        let forms = without_twins(forms);
        let set = compile(&forms, true).unwrap();
        let domain = set.domain("d").unwrap();
        let mut keys: Vec<(String, u32, bool)> = Vec::new();
        for value in &values {
            let entries = [Entry { key: "k", value }];
            let found = set.find(domain, &entries);
            let Some(rule) = found.rule else { continue };
            let mut key = String::new();
            write_key(&mut key, "d", entries.iter().copied(), &found.shared, &rule.limits[0]);
            // What is read back from the key meets the same rule, so that stored states are shown with their rule.
            let read = parse(&key).unwrap();
            prop_assert_eq!(set.find_parsed(domain, &read.entries).map(|rule| rule.id), Some(rule.id), "{}", key);
            keys.push((key, rule.id, !found.shared.is_empty()));
        }
        for (key, rule, is_shared) in &keys {
            for (other_key, other, _) in &keys {
                if rule == other && *is_shared {
                    prop_assert_eq!(key, other_key);
                } else if rule != other {
                    proptest::prop_assert_ne!(key, other_key);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn many_keys_with_stars_and_wildcards_are_found_in_their_order(
        keys in hash_set(("k?[_ab]{0,2}\\*([ab]{0,2}\\*){0,3}", option::of("[ab]{1,2}\\*?")), 0..24),
        wildcards in hash_set("[ab]{0,2}\\*([ab]{1,2}\\*){0,3}[ab]{0,2}", 0..9),
        values in vec("[ab]{0,12}", 1..32),
        long in "[ab]{257,300}",
    ) {
        let (keys, wildcards) = (Vec::from_iter(keys), Vec::from_iter(wildcards));
        let set = compile_keys(&keys, &wildcards).unwrap();
        for value in values.iter().chain([&long]) {
            let of_key = keys.iter().position(|(key, value_of_key)| {
                let pattern = value_of_key.as_ref().map_or_else(|| key.clone(), |value| format!("{key}_{value}"));
                Pattern::new(&pattern).unwrap().matches(&format!("k_{value}"))
            });
            let of_value = wildcards.iter().position(|text| Pattern::new(text).unwrap().matches(value));
            let expected = of_key.or(of_value.map(|at| keys.len() + at)).map(|at| u32::try_from(at).unwrap());
            prop_assert_eq!(met(&set, value), expected, "{}", value);
        }
    }
}

#[expect(clippy::disallowed_types, reason = "measures what the engine takes")]
fn took(work: impl FnOnce()) -> Duration {
    let begin = std::time::Instant::now();
    work();
    begin.elapsed()
}

// One request of 60 such values took 3.7 s of a core with wildcards, and 20 s with keys.
#[test]
fn long_values_cost_little_with_many_wildcards_and_many_keys_with_stars() {
    let wildcards: Vec<String> = (0..1_024).map(|n| format!("*a{n}*a*b*")).collect();
    let keys: Vec<_> = (0..10_000).map(|n| (format!("*a{n}*c*a*"), None)).collect();
    let sets = [compile_keys(&[], &wildcards).unwrap(), compile_keys(&keys, &[]).unwrap()];
    let value: String = (0..12_000).map(|n| format!("a{} ", n % 1_100)).collect();
    let took = took(|| {
        for set in &sets {
            for _ in 0..10 {
                assert_eq!(met(set, &value), None);
            }
        }
    });
    assert!(took < Duration::from_secs(5), "20 values took {took:?}");
}

#[test]
fn a_hundred_thousand_wildcards_cost_a_value_nothing() {
    let wildcards: Vec<String> = (0..100_000).map(|n| format!("user-{n}/*")).collect();
    let set = compile_keys(&[], &wildcards).unwrap();
    let took = took(|| {
        for n in (0..100_000).step_by(100) {
            assert_eq!(met(&set, &format!("user-{n}/x")), Some(n));
        }
    });
    assert!(took < Duration::from_secs(5), "1,000 values took {took:?}");
}

#[test]
fn a_hundred_thousand_of_each_are_found() {
    let text = |n: u32| format!("value-{n}");
    let network = |n: u32| format!("10.{}.{}.{}/32", n >> 16, n >> 8 & 255, n & 255);
    let forms = [
        Form::List((0..100_000).map(text).collect()),
        Form::Networks((0..100_000).map(network).collect()),
        Form::Text("value-*".into()),
        Form::Alone,
    ];
    let set = compile(&forms, false).unwrap();
    for (value, expected) in [
        ("value-0", 0),
        ("value-99999", 0),
        ("value-100000", 2),
        ("10.0.0.0", 1),
        ("10.1.134.159", 1),
        ("10.1.134.160", 3),
    ] {
        assert_eq!(met(&set, value), Some(expected), "{value}");
    }
    assert_eq!(&*set.rules()[0].path, "k=value-0,...");
    assert_eq!(&*set.rules()[1].path, "k=10.0.0.0/32,...");
}

#[test]
fn patterns_have_a_bound() {
    let wildcards = |count: usize| (0..count).map(|n| Form::Text(format!("/v{n}/*/items")));
    let with_regex = |count: usize| {
        let mut forms: Vec<Form> = wildcards(count).collect();
        forms.push(Form::Regex("/v[0-9]+/.*".into()));
        forms
    };
    let set = compile(&with_regex(PATTERNS_MAX - 1), false).unwrap();
    assert_eq!(met(&set, "/v1022/x/items"), Some(1022));
    assert_eq!(met(&set, "/v1022/x"), Some(1023), "the regular expression stands last");
    let error = compile(&with_regex(PATTERNS_MAX), false).unwrap_err();
    assert_eq!(error, PolicyError::TooManyPatterns("d|k=~/v[0-9]+/.*".into()));
    // Without a regular expression they need no automaton.
    let many: Vec<Form> = wildcards(PATTERNS_MAX + 1).collect();
    assert_eq!(met(&compile(&many, false).unwrap(), "/v1024/x/items"), Some(1024));
}
