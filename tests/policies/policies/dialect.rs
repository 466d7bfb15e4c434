//! The two readings of policy files: what weir refuses, what it warns about, and what it loads as envoyproxy/ratelimit
//! does.

use std::fs;

use weir_engine::metadata::Value;
use weir_engine::{Algorithm, Anchor, CalendarUnit, Role};
use weir_policies::{Code, Dialect, Loaded, WARNINGS_MAX, load_dir_with, parse, parse_with};
use weir_rls::rlconfig;

use super::{cases, compare, directory, good, good_texts, rule};

const COMPATIBLE: Dialect = Dialect { compatible: true, merge_domains: false, calendar_months: false };
const MERGING: Dialect = Dialect { compatible: false, merge_domains: true, calendar_months: false };

fn loaded(name: &str, text: &str, reading: Dialect) -> Loaded {
    parse_with(&[(name, text)], reading).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn what_is_probably_a_mistake_loads_with_a_warning() {
    compare("warned.txt", |policy| {
        let loaded = loaded("p.yaml", policy, Dialect::default());
        assert!(loaded.warnings.count() > 0, "{policy}");
        format!("{}\n", loaded.warnings)
    });
}

#[test]
fn good_files_load_and_have_no_warnings() {
    for text in good_texts() {
        for reading in [Dialect::default(), COMPATIBLE] {
            let warnings = loaded("p.yaml", &text, reading).warnings;
            // A file with the most sub-buckets that a limit may have is right and heavy.
            // A key without a value is one too, if nothing is meant.
            let good = [Code::Heavy, Code::EmptyValue];
            assert!(warnings.list().iter().all(|warning| good.contains(&warning.code)), "{warnings}");
        }
    }
}

/// `USE_CALENDAR_MONTH_RATE_LIMIT`: a month was 30 days since 1970, so it ended at any day.
#[test]
fn envoyproxy_ratelimit_1206_a_month_is_one_of_the_calendar() {
    let text = "domain: shop\ndescriptors:\n\
                - {key: month, rate_limit: {unit: month, requests_per_unit: 5}}\n\
                - {key: year, rate_limit: {unit: year, requests_per_unit: 5}}\n\
                - {key: days, rate_limit: {unit: month, requests_per_unit: 5, calendar: false}}\n\
                - {key: first, rate_limit: {unit: month, requests_per_unit: 5, anchor: first_hit}}\n\
                - {key: other, rate_limit: {unit: month, requests_per_unit: 5, algorithm: gcra}}\n";
    for calendar_months in [true, false] {
        let reading = Dialect { calendar_months, ..COMPATIBLE };
        let loaded = loaded("p.yaml", text, reading);
        let follow = |key: &str| {
            let anchor = Anchor::Calendar(CalendarUnit::Month);
            rule(&loaded, "shop", &[(key, "x")]).unwrap().spec.limits[0].algorithm()
                == Algorithm::FixedWindow { anchor }
        };
        assert_eq!(
            ["month", "year", "days", "first", "other"].map(follow),
            [calendar_months, false, false, false, false]
        );
    }
}

/// The limits as `/rlconfig` shows them.
fn shown(loaded: &Loaded) -> String {
    let mut text = String::new();
    loaded.policies.rules().iter().for_each(|rule| rlconfig::add_rule(&mut text, rule));
    text
}

/// What envoyproxy/ratelimit makes of these files, as it prints what it has loaded, and the warnings.
#[test]
fn a_compatible_reading_means_what_envoyproxy_ratelimit_means() {
    compare("compatible.txt", |policy| {
        let loaded = loaded("p.yaml", policy, COMPATIBLE);
        let meaning = shown(&loaded);
        let ours = parse(&[("p.yaml", policy)]).map(|loaded| shown(&loaded));
        assert_ne!(ours.ok().as_deref(), Some(&*meaning), "no compatible reading is needed for\n{policy}");
        format!("{meaning}{}\n", loaded.warnings)
    });
}

/// The refused files that envoyproxy/ratelimit loads; all others it refuses too, or they use keys that it does not know.
#[test]
fn a_compatible_reading_refuses_what_envoyproxy_ratelimit_refuses() {
    let loads = [
        "domain_too_long",
        "key_in_the_wrong_place",
        "mapping_key_twice",
        "replaces_too_many",
        "requests_maybe_octal",
        "tagged",
        "too_many_levels",
        "two_documents",
    ];
    let mut loaded = cases("bad.txt");
    // It takes seconds, and has nothing to do with the reading.
    loaded.retain(|(name, _)| name != "regex_too_large_together");
    loaded.retain(|(_, policy)| parse_with(&[("p.yaml", policy)], COMPATIBLE).is_ok());
    assert!(loaded.iter().map(|(name, _)| name).eq(loads), "{loaded:?}");
}

#[test]
fn marks_of_a_descriptor_reach_its_rule() {
    let loaded = good("every_mark.yaml");
    let gold = rule(&loaded, "shop", &[("tier", "gold")]).unwrap();
    assert_eq!((gold.role, gold.is_quota), (Role::Quota, true));
    assert!(gold.levels[0].detailed_metric && gold.levels[0].value_to_metric);
    let metadata = gold.metadata.as_deref().unwrap();
    let number = |text: &str| Value::Number(text.into());
    let text = |text: &str| Value::Text(text.into());
    let plan = [("big", number("-1000")), ("name", text("gold")), ("seats", number("5")), ("share", number("0.5"))];
    let plan = plan.into_iter().map(|(name, value)| (name.into(), value)).collect();
    assert_eq!(metadata["plan"], Value::Map(plan));
    assert_eq!(metadata["tags"], Value::List([text("x"), text("y"), Value::Null].into()));
    assert_eq!((&metadata["flag"], &metadata["none"]), (&Value::Bool(true), &Value::Null));
    let both = rule(&loaded, "shop", &[("both", "1")]).unwrap();
    assert_eq!((both.role, both.is_quota), (Role::Shadow, true));
    assert!(!both.levels[0].detailed_metric && both.metadata.is_none());
}

#[test]
fn a_star_in_a_key_stands_for_any_text_in_a_compatible_reading() {
    let text = "{domain: shop, descriptors: [{key: route/*, rate_limit: 1/s}]}";
    let meets = |loaded: &Loaded| rule(loaded, "shop", &[("route/a", "1")]).is_some();
    assert!(!meets(&loaded("p.yaml", text, Dialect::default())));
    assert!(meets(&loaded("p.yaml", text, COMPATIBLE)));
    let shared = text.replace("rate_limit", "share_threshold: true, rate_limit");
    assert!(parse(&[("p.yaml", &shared)]).is_err());
    assert!(meets(&loaded("p.yaml", &shared, COMPATIBLE)));
}

#[test]
fn metadata_that_is_none_is_refused() {
    for (metadata, expected) in [
        ("5", "p.yaml:1:63: metadata must be a mapping of keys and values, not \"5\""),
        ("[a]", "p.yaml:1:63: metadata must be a mapping of keys and values, not a list"),
        ("{a: 1, a: 2}", "p.yaml:1:70: \"a\" appears twice"),
    ] {
        let text = format!("{{domain: d, descriptors: [{{key: k, rate_limit: 1/s, metadata: {metadata}}}]}}");
        assert_eq!(parse(&[("p.yaml", &text)]).unwrap_err().to_string(), expected);
    }
    let many = |count: usize| {
        let list = vec!["1"; count].join(",");
        format!("{{domain: d, descriptors: [{{key: k, rate_limit: 1/s, metadata: {{a: [{list}]}}}}]}}")
    };
    assert!(parse(&[("p.yaml", &many(9_998))]).is_ok());
    let told = parse(&[("p.yaml", &many(9_999))]).unwrap_err().to_string();
    assert!(told.ends_with("metadata has more than 10000 values"), "{told}");
}

#[test]
fn files_of_one_domain_are_joined_where_that_is_asked_for() {
    let first = "{domain: shop, charging: independent, descriptors: [{key: a, value: x*, rate_limit: 1/s}]}";
    let other = "{domain: other, descriptors: [{key: o, rate_limit: 2/s}]}";
    let second = "{domain: shop, descriptors: [{key: a, value: xy*, rate_limit: 3/s}, {key: b, rate_limit: 4/s}]}";
    let files = [("1.yaml", first), ("2.yaml", other), ("3.yaml", second)];
    assert_eq!(
        parse(&files).unwrap_err().to_string(),
        "3.yaml:1:10: domain \"shop\" is defined already, at 1.yaml:1:10"
    );
    let loaded = parse_with(&files, MERGING).unwrap();
    let path = |domain: &str, key: &str, value: &str| {
        let rule = rule(&loaded, domain, &[(key, value)]).unwrap();
        (rule.path.to_string(), loaded.places[rule.id as usize].file.to_string())
    };
    // Patterns are tried in the order of the files.
    assert_eq!(path("shop", "a", "xy1"), ("a=x*".into(), "1.yaml".into()));
    assert_eq!(path("shop", "b", "1"), ("b".into(), "3.yaml".into()));
    assert_eq!(path("other", "o", "1"), ("o".into(), "2.yaml".into()));
    assert_eq!(loaded.domains.len(), 2);
    assert_eq!(loaded.domains[0].descriptors.len(), 3);
    for (outline, file) in loaded.domains[0].descriptors.iter().zip(["1.yaml", "3.yaml", "3.yaml"]) {
        assert_eq!(&*outline.note.place().file, file);
        assert_eq!(loaded.places[outline.note.rule.unwrap() as usize], outline.note.place());
    }
    let twin = "{domain: shop, on_error: deny, descriptors: [{key: a, value: x*, rate_limit: 1/s}]}";
    assert_eq!(
        parse_with(&[("1.yaml", first), ("2.yaml", twin)], MERGING).unwrap_err().to_string(),
        "2.yaml:1:16: on_error belongs in the first file of the domain, which is at 1.yaml:1:10\n\
         2.yaml:1:46: key \"a\" with value \"x*\" appears twice, first at 1.yaml:1:53"
    );
}

#[test]
fn an_empty_directory_and_utf_16_load_in_a_compatible_reading_only() {
    let dir = directory(&[]);
    assert!(load_dir_with(dir.path(), Dialect::default()).is_err());
    assert_eq!(load_dir_with(dir.path(), COMPATIBLE).unwrap().policies.domains().len(), 0);
    let text = "domain: größe\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";
    let little: Vec<u8> = "\u{feff}".chars().chain(text.chars()).flat_map(|c| (c as u16).to_le_bytes()).collect();
    let big: Vec<u8> = little.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    for bytes in [little, big] {
        let path = dir.path().join("p.yaml");
        fs::write(&path, &bytes).unwrap();
        assert!(load_dir_with(dir.path(), Dialect::default()).is_err());
        assert!(load_dir_with(dir.path(), COMPATIBLE).unwrap().policies.domain("größe").is_some());
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let told = load_dir_with(dir.path(), COMPATIBLE).unwrap_err().to_string();
        assert!(told.ends_with("not UTF-16, although its byte order mark is that of UTF-16"), "{told}");
    }
}

#[test]
fn warnings_past_the_bound_are_counted() {
    let items: Vec<_> = (0..WARNINGS_MAX + 5).map(|i| format!("{{key: k{i}, rate_limit: }}")).collect();
    let text = format!("{{domain: d, descriptors: [{}]}}", items.join(", "));
    let warnings = loaded("p.yaml", &text, Dialect::default()).warnings;
    assert_eq!((warnings.list().len(), warnings.count()), (WARNINGS_MAX, WARNINGS_MAX + 5));
    assert!(warnings.to_string().ends_with("\nand 5 more warnings"));
}
