//! Properties of limits that exclude each other: the loader and the policy set refuse the same pairs.

use weir_engine::plans::Plans;
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Limit, Mode, PolicySet, Property, Role, exclusion};
use weir_policies::{Dialect, parse, parse_with};

/// The keys of a limit and of its rule, and the lines of the domain, that give a property.
fn keys(property: Property) -> [&'static str; 3] {
    match property {
        Property::Hold => ["hold: true", "", ""],
        Property::Lease => ["lease: 100ms", "", ""],
        Property::Drain => ["drain: true", "", ""],
        Property::PostPaid => ["post_paid: true", "", ""],
        Property::Trial => ["shadow: true", "", ""],
        Property::Term => ["until: 2042-01-01", "", ""],
        Property::Rows => ["", "rows: {default: free}", ""],
        Property::ShadowMode => ["", "shadow_mode: true", ""],
        Property::QuotaMode => ["", "quota_mode: true", ""],
        Property::Independent => ["", "", "charging: independent\n"],
    }
}

/// The loader's problems with a policy of one limit that has both properties.
fn problems(one: Property, other: Property) -> Option<String> {
    let with = |place: usize| {
        let keys = [keys(one)[place], keys(other)[place]];
        keys.iter().filter(|key| !key.is_empty()).map(|key| format!("{key}, ")).collect::<String>()
    };
    let of_domain = [keys(one)[2], keys(other)[2]].concat();
    let yaml = format!(
        "domain: shop\n{of_domain}descriptors:\n  - {{key: user, {}rate_limit: {{{}rate: 10_000/s}}}}\n",
        with(1),
        with(0)
    );
    parse(&[("shop.yaml", &yaml)]).err().map(|problems| problems.to_string())
}

/// A limit of these keys.
fn limit_with(keys: &str) -> Limit {
    let yaml = format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {{{keys}rate: 10_000/s}}}}]\n");
    let loaded = parse(&[("shop.yaml", &yaml)]).unwrap_or_else(|problems| panic!("{problems}"));
    loaded.policies.rules()[0].limits[0].clone()
}

/// Whether a policy set that was not read from a file is refused with both.
fn refused(one: Property, other: Property) -> bool {
    let has = |property| [one, other].contains(&property);
    let mut limit = limit_with("");
    if has(Property::Lease) {
        limit.lease = limit_with("lease: 100ms, ").lease;
    }
    if has(Property::Term) {
        limit.term = limit_with("until: 2042-01-01, ").term;
    }
    limit.hold = has(Property::Hold);
    limit.drain = has(Property::Drain);
    limit.shadow = has(Property::Trial);
    limit.set_post_paid(has(Property::PostPaid));
    let plans = Plans::of("free", std::slice::from_ref(&limit), &[vec![]]).expect("plans");
    let rule = RuleSpec {
        role: Role::of(has(Property::ShadowMode), has(Property::QuotaMode)),
        is_quota: has(Property::QuotaMode),
        rows: has(Property::Rows).then_some(plans),
        ..RuleSpec::of(RuleKind::Limits(vec![limit]))
    };
    let node = NodeSpec { key: "user".into(), rule: Some(rule), ..NodeSpec::default() };
    let mode = has(Property::Independent).then_some(Mode::Independent);
    let spec = DomainSpec { name: "shop".into(), mode, on_error: None, descriptors: vec![node] };
    PolicySet::compile(vec![spec]).is_err()
}

#[test]
fn the_loader_and_the_policy_set_refuse_the_same_pairs() {
    for one in Property::ALL {
        for other in Property::ALL.into_iter().filter(|other| *other != one) {
            let (one_name, other_name) = (one.name(), other.name());
            match exclusion(one, other) {
                None => {
                    assert_eq!(problems(one, other), None, "{one_name} with {other_name}");
                    assert!(!refused(one, other), "{one_name} with {other_name}");
                }
                Some(excluded) => {
                    let problems = problems(one, other).unwrap_or_default();
                    assert!(problems.contains(excluded.reason), "{one_name} with {other_name}: {problems}");
                    assert!(refused(one, other), "{one_name} with {other_name}");
                }
            }
        }
    }
}

/// The first file of a domain can set `charging` for a lease in a later file.
#[test]
fn a_lease_is_refused_if_the_first_file_of_its_domain_is_independent() {
    let first = "domain: shop\ncharging: independent\ndescriptors: [{key: tenant, rate_limit: 1/s}]\n";
    let second = "domain: shop\ndescriptors: [{key: user, rate_limit: {rate: 10_000/s, lease: 100ms}}]\n";
    let files = [("a.yaml", first), ("b.yaml", second)];
    let dialect = Dialect { compatible: false, merge_domains: true };
    let problems = parse_with(&files, dialect).expect_err("a mistake").to_string();
    assert!(problems.contains("b.yaml:2:56: lease in a domain with charging: independent"), "{problems}");
}
