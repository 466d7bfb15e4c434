//! Properties of limits that exclude each other: the loader and the policy set refuse the same pairs.

use weir_engine::plans::Plans;
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Limit, Mode, PolicySet, Property, Role, exclusion};
use weir_policies::{Dialect, OverlayFile, Reading, parse, parse_with};

/// The keys of a limit and of its rule, and the lines of the domain, that give a property.
fn keys(property: Property) -> [&'static str; 3] {
    match property {
        Property::Hold => ["hold: true", "", ""],
        Property::Lease => ["lease: 100ms", "", ""],
        Property::Drain => ["drain: true", "", ""],
        Property::PostPaid => ["post_paid: true", "", ""],
        Property::Trial => ["shadow: true", "", ""],
        Property::Term => ["during: 22:00-06:00", "", ""],
        Property::Requests => ["counts: requests", "", ""],
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

/// The loader's problems with a policy of one limit that has the first property, if an overlay adds the other one.
fn problems_by_overlay(one: Property, other: Property) -> Option<String> {
    let [of_limit, of_rule, of_domain] =
        keys(one).map(|keys| if keys.is_empty() { String::new() } else { format!("{keys}, ") });
    let of_domain = of_domain.trim_end_matches(", ");
    let yaml = format!(
        "domain: shop\n{of_domain}descriptors:\n  - {{key: user, {of_rule}rate_limit: {{{of_limit}rate: 10_000/s}}}}\n"
    );
    let given = match keys(other) {
        [of_limit, "", ""] => format!("rate_limit: {{{of_limit}}}"),
        [_, of_rule, _] => of_rule.to_owned(),
    };
    let overlay = format!("overlays: [{{domain: shop, descriptors: [user], {given}}}]");
    let overlay = Some(OverlayFile::of("o.yaml", overlay).expect("an overlay"));
    let reading = Reading { overlay, ..Reading::default() };
    parse_with(&[("shop.yaml", &yaml)], reading).err().map(|problems| problems.to_string())
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
        limit.term = limit_with("during: 22:00-06:00, ").term;
    }
    if has(Property::Requests) {
        limit = limit.counting_requests();
    }
    limit.hold = has(Property::Hold);
    limit.drain = has(Property::Drain);
    limit.shadow = has(Property::Trial);
    limit.set_post_paid(has(Property::PostPaid));
    let plans = Plans::of("free", std::slice::from_ref(&limit), &[vec![]]).expect("plans");
    let rule = RuleSpec {
        role: Role::of(has(Property::ShadowMode), has(Property::QuotaMode)),
        is_quota: has(Property::QuotaMode),
        rows: has(Property::Rows).then(|| plans.into()),
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

/// Holds, leases, trials, terms, rows and all others: what an overlay adds is checked as if it was written.
#[test]
fn a_pair_that_is_refused_is_refused_by_an_overlay_too() {
    for one in Property::ALL {
        // A domain has no overlay.
        for other in Property::ALL.into_iter().filter(|other| ![one, Property::Independent].contains(other)) {
            let (one_name, other_name) = (one.name(), other.name());
            let found = problems_by_overlay(one, other);
            match exclusion(one, other) {
                None => assert_eq!(found, None, "{one_name} with {other_name}"),
                Some(excluded) => {
                    let problems = found.unwrap_or_default();
                    let is_whole = problems.contains(excluded.reason) && problems.contains("o.yaml:1:");
                    assert!(is_whole && problems.contains("shop.yaml"), "{one_name} with {other_name}: {problems}");
                }
            }
        }
    }
}

/// A limit of these keys, or the problems with it.
fn holding(keys: &str) -> Result<Limit, String> {
    let yaml = format!("domain: shop\ndescriptors:\n- {{key: user, rate_limit: {{{keys}}}}}\n");
    let loaded = parse(&[("shop.yaml", &yaml)]).map_err(|problems| problems.to_string())?;
    Ok(loaded.policies.rules()[0].limits[0].clone())
}

/// [hd-10]
#[test]
fn a_minimum_of_a_hold_is_a_whole_number_up_to_the_limit() {
    for (keys, at_least) in [
        ("rate: 100/h, hold: {at_least: 1}", 1),
        ("rate: 100/h, hold: {at_least: 100}", 100),
        ("rate: 10_000/h, hold: {at_least: 1_000}", 1_000),
        ("rate: 4294967295/h, hold: {at_least: 4294967295}", u32::MAX),
        ("rate: 0/h, hold: {at_least: 100}", 100),
        ("rate: 100/month, calendar: true, hold: {at_least: 5}, shadow: true, until: 2042-01-01", 5),
        ("rate: 100/h, algorithm: sliding_window, hold: {at_least: 5}", 5),
        ("rate: 100/h, algorithm: sliding_window_counter, hold: {at_least: 5}", 5),
        ("rate: 100/h, hold: true", 0),
    ] {
        let limit = holding(keys).unwrap_or_else(|problems| panic!("{keys}: {problems}"));
        assert_eq!((limit.hold, limit.at_least), (true, at_least), "{keys}");
    }
    for (keys, message) in [
        ("rate: 9/h, hold: {at_least: 0}", "at_least: 0 keeps nothing of a hold, write hold: true"),
        ("rate: 9/h, hold: {at_least: 10}", "at_least 10 of a limit of 9: a settle would give nothing back"),
        ("rate: 9/h, hold: {at_least: 4294967296}", "at_least must be a whole number from 1 to 4294967295, not"),
        ("rate: 9/h, hold: {at_least: -1}", "at_least must be a whole number"),
        ("rate: 9/h, hold: {at_least: 1.5}", "at_least must be a whole number"),
        ("rate: 9/h, hold: {at_least: ten}", "at_least must be a whole number"),
        ("rate: 9/h, hold: {}", "hold without at_least: give it a number of hits, or write hold: true"),
        ("rate: 9/h, hold: {at_least: }", "at_least must be a whole number"),
        ("rate: 9/h, hold: {at_last: 5}", "unknown key \"at_last\" in a hold, did you mean \"at_least\"?"),
        ("rate: 9/h, hold: 5", "hold must be true, false or a mapping such as {at_least: 100}, not"),
        ("rate: 9/h, hold: [5]", "hold must be true, false or a mapping such as {at_least: 100}, not a list"),
        ("rate: 9/h, at_least: 5", "at_least belongs in a hold, not in a rate limit"),
        ("rate: 9/h, hold: {at_least: 5}, drain: true", "drain with hold: true"),
        (
            "rate: 9/h, hold: {at_least: 5}, counts: requests",
            "at_least with counts: requests: a settle gives no request back",
        ),
        ("rate: 9/h, hold: {at_least: 5}, post_paid: true", "post_paid with hold: true"),
        ("rate: 1000/h, hold: {at_least: 5}, lease: 100ms", "its receipt must name the charge"),
        ("rate: 9/h, algorithm: gcra, hold: {at_least: 5}", "hold on gcra: "),
        ("requests_per_unit: 9, window: 1h, algorithm: concurrency, hold: {at_least: 1}", "hold on concurrency: "),
    ] {
        let problems = holding(keys).expect_err(keys);
        assert!(problems.contains(message), "{keys}: {problems}");
        assert_eq!(problems.lines().filter(|line| line.contains("shop.yaml:")).count(), 1, "{keys}: {problems}");
    }
}

/// The first file of a domain can set `charging` for a lease in a later file.
#[test]
fn a_lease_is_refused_if_the_first_file_of_its_domain_is_independent() {
    let first = "domain: shop\ncharging: independent\ndescriptors: [{key: tenant, rate_limit: 1/s}]\n";
    let second = "domain: shop\ndescriptors: [{key: user, rate_limit: {rate: 10_000/s, lease: 100ms}}]\n";
    let files = [("a.yaml", first), ("b.yaml", second)];
    let dialect = Dialect { compatible: false, merge_domains: true, ..Dialect::default() };
    let problems = parse_with(&files, dialect).expect_err("a mistake").to_string();
    assert!(problems.contains("b.yaml:2:56: lease in a domain with charging: independent"), "{problems}");
}
