//! Policy files as an operator writes them: what is refused and how it is told, and what is accepted; below it the
//! texts of `weir check` and `weir explain` (shown.rs), and the page and
//! the examples about them (page.rs).
//!
//! tests/data/policies/bad.txt has a policy for each kind of mistake, with its problems.

mod dialect;
mod page;
mod shown;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use weir_engine::algorithm::parameters::Parameters;
use weir_engine::automaton::PATTERNS_MAX;
use weir_engine::policy::SaidBy;
use weir_engine::wildcards::{INNER_MAX, STEPS_MAX};
use weir_engine::{Algorithm, Anchor, CalendarUnit, Entry, Limit, Mode, OnError, Precision, Refill, Role, Rule, Unit};
use weir_policies::{
    DOMAIN_BYTES_MAX, Dialect, FILE_BYTES_MAX, KEY_BYTES_MAX, KINDS, LEVELS_MAX, Loaded, Needs, PROBLEMS_MAX,
    REGEXES_MAX, SHORT_UNITS, VALUE_BYTES_MAX, VALUES_MAX, check_warnings, load_dir, parse, parse_with,
};
use weir_text::nearest;

use crate::support::arbitrary::config;

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/policies").join(folder)
}

/// The cases of a file: each begins with `=== ` and its name, and has `--- expected` after its policy.
fn cases(file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(data(file)).unwrap();
    let cases = text.split("=== ").skip(1).map(|case| {
        let (policy, _) = case.split_once("--- expected\n").expect(case);
        let (name, policy) = policy.split_once('\n').expect(policy);
        (name.to_owned(), policy.to_owned())
    });
    cases.collect()
}

/// Compares what `found` makes of each policy of a file with what the file has; UPDATE_EXPECTED=1 writes the file anew.
fn compare(file: &str, found: impl Fn(&str) -> String) {
    let expected = fs::read_to_string(data(file)).unwrap();
    let mut all = expected.split("=== ").next().unwrap().to_owned();
    for (name, policy) in cases(file) {
        write!(all, "=== {name}\n{policy}--- expected\n{}\n", found(&policy)).unwrap();
    }
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        return fs::write(data(file), &all).unwrap();
    }
    let first = all.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(all == expected, "{file}: found and expected: {first:#?}");
}

/// The texts of the good policies.
fn good_texts() -> Vec<String> {
    let entries = fs::read_dir(data("good")).unwrap();
    entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn problems(text: &str) -> String {
    parse(&[("p.yaml", text)]).unwrap_err().to_string()
}

fn good(name: &str) -> Loaded {
    let text = fs::read_to_string(data("good").join(name)).unwrap();
    parse(&[(name, &text)]).unwrap()
}

fn rule<'l>(loaded: &'l Loaded, domain: &str, entries: &[(&str, &str)]) -> Option<&'l Rule> {
    let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
    let domain = loaded.policies.domain(domain).expect("the domain is there");
    loaded.policies.find(domain, &entries).rule
}

#[test]
fn each_mistake_is_reported_as_expected() {
    compare("bad.txt", |policy| format!("{}\n", parse(&[("p.yaml", policy)]).expect_err(policy)));
}

/// What envoyproxy/ratelimit served with in the recorded cases.
#[test]
fn all_recorded_policies_load() {
    let mut loaded = 0;
    for group in ["core.json", "charging.json", "modes.json", "policies.json", "stats.json"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity").join(group);
        let cases: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        for case in cases["cases"].as_array().unwrap() {
            let policies = case["policies"].as_object().unwrap();
            let files: Vec<_> = policies.iter().map(|(name, text)| (name.as_str(), text.as_str().unwrap())).collect();
            let merge_domains = case["env"].get("MERGE_DOMAIN_CONFIG").is_some();
            if let Err(problems) =
                parse_with(&files, Dialect { compatible: false, merge_domains, ..Dialect::default() })
            {
                panic!("{}: {problems}", case["name"]);
            }
            loaded += 1;
        }
    }
    assert!(loaded > 30, "only {loaded} cases");
}

#[test]
fn values_are_texts_as_written() {
    let loaded = good("odd_values.yaml");
    let path = |entries: &[(&str, &str)]| rule(&loaded, "shop", entries).map(|rule| rule.path.to_string());
    assert_eq!(path(&[("port", "8080")]).as_deref(), Some("port=8080"));
    assert_eq!(path(&[("version", "1.10")]).as_deref(), Some("version=1.10"));
    assert_eq!(path(&[("version", "1.1")]), None);
    assert_eq!(path(&[("flag", "true")]).as_deref(), Some("flag=true"));
    assert_eq!(path(&[("nothing", "~")]), None);
    let last = rule(&loaded, "shop", &[("no", "010")]).unwrap();
    assert_eq!(last.role, Role::Shadow);
    assert_eq!((last.limits[0].requests(), last.limits[0].name.as_deref()), (u64::from(u32::MAX), None));
    assert_eq!(rule(&loaded, "shop", &[("version", "1.10")]).unwrap().limits[0].requests(), 1_000);
    assert_eq!(rule(&loaded, "shop", &[("flag", "true")]).unwrap().limits[0].requests(), 0);
}

#[test]
fn aliases_and_merges_stand_for_what_they_name() {
    let loaded = good("aliases_and_merges.yaml");
    let requests = |entries: &[(&str, &str)]| rule(&loaded, "shop", entries).map(|rule| rule.limits[0].requests());
    assert_eq!(requests(&[("user", "a")]), Some(3));
    assert_eq!(requests(&[("tenant", "a"), ("path", "/")]), Some(3));
    // The mapping's own key wins over the merged one.
    assert_eq!(requests(&[("client", "a")]), Some(9));
}

#[test]
fn limits_of_every_kind_are_as_written() {
    let loaded = good("limits_of_every_kind.yaml");
    let limits = |key: &str| &*rule(&loaded, "shop", &[(key, "x")]).unwrap().limits;
    // The burst is the rate unless it is given.
    assert_eq!(limits("steady")[0].algorithm(), Algorithm::Gcra { burst: 7 });
    assert_eq!(limits("purse")[0].algorithm(), Algorithm::Gcra { burst: 25 });
    assert_eq!(limits("purse")[0].window().us(), 90_000_000);
    assert_eq!(limits("closed")[0].capacity(), 0);
    assert!(limits("tokens")[0].post_paid() && limits("tokens")[0].drain);
    // Only those that have a twin are told apart by name.
    let ids: Vec<_> = limits("several").iter().map(weir_engine::Limit::id).collect();
    assert_eq!(ids, ["f3600s:soft", "f3600s:hard", "f86400s"]);
    let several = rule(&loaded, "shop", &[("several", "x")]).unwrap();
    assert_eq!(several.role, Role::Shadow);
    assert_eq!(several.replaces.len(), 1);
    let free = rule(&loaded, "shop", &[("free", "x")]).unwrap();
    assert!(free.unlimited && free.unlimited_name.as_deref() == Some("basic"));
}

#[test]
fn each_algorithm_has_its_parameters_and_defaults() {
    let loaded = good("all_algorithms.yaml");
    let limit = |key: &str| &rule(&loaded, "shop", &[(key, "x")]).unwrap().limits[0];
    let seconds = |seconds: u64| Precision::new(seconds * 1_000_000).unwrap();
    let calendar = |unit| Algorithm::FixedWindow { anchor: Anchor::Calendar(unit) };
    for (key, algorithm) in [
        ("fixed_window", Algorithm::FIXED_WINDOW),
        ("fixed_window of the clock", Algorithm::FIXED_WINDOW),
        ("fixed_window of the first hit", Algorithm::FixedWindow { anchor: Anchor::FirstHit }),
        ("fixed_window of the calendar", calendar(CalendarUnit::Month)),
        ("fixed_window of a calendar", calendar(CalendarUnit::Week)),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter),
        ("sliding_window", Algorithm::SlidingWindow { precision: seconds(60) }),
        ("sliding_window of its own precision", Algorithm::SlidingWindow { precision: seconds(1) }),
        ("sliding_window_log", Algorithm::SlidingWindowLog),
        ("token_bucket", Algorithm::TokenBucket { burst: 10, refill: Refill::Continuous }),
        ("token_bucket with a purse", Algorithm::TokenBucket { burst: 50, refill: Refill::Continuous }),
        ("token_bucket by interval", Algorithm::TokenBucket { burst: 5, refill: Refill::Interval }),
        ("leaky_bucket", Algorithm::LeakyBucket { burst: 10 }),
        ("leaky_bucket with a queue", Algorithm::LeakyBucket { burst: 50 }),
        ("gcra", Algorithm::Gcra { burst: 10 }),
        ("gcra with a burst", Algorithm::Gcra { burst: 8 }),
        ("concurrency", Algorithm::Concurrency),
    ] {
        assert_eq!(limit(key).algorithm(), algorithm, "{key}");
    }
    assert_eq!(limit("fixed_window of a calendar").zone(), "Europe/Berlin");
    // UTC by name is no other calendar than UTC by default: they share their states.
    let by_default = limit("fixed_window of the calendar");
    assert_eq!(by_default.id(), limit("fixed_window of the calendar by name").id());
    assert_eq!(by_default.zone(), "");
    assert_eq!(loaded.policies.domain("shop").unwrap().mode, Some(Mode::Atomic));
}

/// The first file of a domain says how it is charged, and else its permits do. [cc-7]
#[test]
fn permits_need_atomic_charging() {
    const PERMITS: &str = "{window: 30s, requests_per_unit: 10, algorithm: concurrency}";
    let file = |charging: &str, limit: &str| {
        format!("domain: d\n{charging}\ndescriptors: [{{key: {}, rate_limit: {limit}}}]\n", limit.len())
    };
    let (silent, rate) = (file("", PERMITS), file("", "10/s"));
    let (independent, atomic) = (file("charging: independent", "10/s"), file("charging: atomic", PERMITS));
    let load = |first: &str, second: &str| {
        let files = [("a.yaml", first), ("b.yaml", second)];
        let loaded = parse_with(&files, Dialect { compatible: false, merge_domains: true, ..Dialect::default() });
        loaded.map(|loaded| loaded.policies.domain("d").unwrap().mode).map_err(|problems| problems.to_string())
    };
    assert_eq!(load(&atomic, &rate), Ok(Some(Mode::Atomic)));
    assert_eq!(load(&rate, &silent), Ok(Some(Mode::Atomic)));
    assert_eq!(load(&rate, &rate.replace("key: 4", "key: 5")), Ok(None));
    let refused = load(&independent, &silent).unwrap_err();
    assert!(refused.starts_with("b.yaml:3:74: concurrency with charging: independent: "), "{refused}");
}

#[test]
fn charging_is_what_the_file_says() {
    let text = "domain: d\ncharging: independent\ndescriptors: [{key: a, rate_limit: 1/s}]";
    let loaded = parse(&[("p.yaml", text)]).unwrap();
    assert_eq!(loaded.policies.domain("d").unwrap().mode, Some(Mode::Independent));
}

#[test]
fn what_becomes_of_a_failed_charge_is_said_by_rule_or_domain() {
    let loaded = good("on_error.yaml");
    let domain = loaded.policies.domain("shop").unwrap();
    let said = |entries: &[(&str, &str)]| domain.on_error_of(rule(&loaded, "shop", entries));
    assert_eq!(said(&[("user", "ann")]), Some((OnError::Local, SaidBy::Rule)));
    assert_eq!(said(&[("user", "ann"), ("path", "/")]), Some((OnError::Deny, SaidBy::Domain)), "not inherited");
    assert_eq!(said(&[("client", "x")]), Some((OnError::Allow, SaidBy::Rule)));
    assert_eq!(said(&[("partner", "x")]), Some((OnError::Error, SaidBy::Rule)));
    assert_eq!(said(&[("nothing", "x")]), Some((OnError::Deny, SaidBy::Domain)));
    let silent = good("short_forms.yaml");
    let domain = silent.policies.domain("shop").unwrap();
    assert_eq!(domain.on_error_of(rule(&silent, "shop", &[("list", "x")])), None);
}

#[test]
fn short_forms_stand_for_unit_and_number() {
    let loaded = good("short_forms.yaml");
    let limits = |key: &str| &*rule(&loaded, "shop", &[(key, "x")]).unwrap().limits;
    let mut per_ten = Vec::new();
    for unit in Unit::ALL {
        per_ten.push((unit.name(), unit));
    }
    per_ten.extend(SHORT_UNITS);
    for (word, unit) in per_ten {
        assert_eq!(limits(word), [Limit::per_unit(10, unit)], "{word}");
    }
    let shape = |key: &str| (limits(key)[0].requests(), limits(key)[0].window().us());
    assert_eq!(shape("length"), (5, 90_000_000));
    assert_eq!(shape("none"), (0, 1_000_000));
    assert_eq!(shape("most"), (u64::from(u32::MAX), 1_000_000));
    let ids = |key: &str| limits(key).iter().map(|limit| limit.id().to_owned()).collect::<Vec<_>>();
    assert_eq!(ids("list"), ["f1s", "f60s", "g3600s"]);
    assert_eq!(ids("twins"), ["f1s:soft", "f1s:hard"]);
    assert_eq!(limits("bucket")[0].algorithm(), Algorithm::LeakyBucket { burst: 10 });
    assert_eq!(loaded.policies.domain("shop").unwrap().mode, Some(Mode::Atomic));
}

/// What is refused and what is taken, for every key and algorithm, is what the table of keys says.
#[test]
fn a_parameter_is_taken_by_the_algorithms_of_its_table_and_by_no_other() {
    let value = |key: &str| match key {
        "burst" => "5",
        "refill" => "interval",
        "precision" => "12h",
        "anchor" => "first_hit",
        "calendar" | "post_paid" | "hold" | "drain" => "true",
        "timezone" => "Europe/Berlin, calendar: true",
        "alert_at" => "[80]",
        "amount" => "{in: usd, scale: 100}",
        "counts" => "requests",
        "lease" => "100ms",
        "unit" => "day",
        "rate" => "9/day",
        other => panic!("no value for {other}"),
    };
    let mut parameters = BTreeSet::new();
    for key in KINDS.iter().flat_map(|kind| kind.keys) {
        let Some(only) = &key.only else { continue };
        if let Needs::Parameter(name) = only.needs {
            parameters.insert(name);
        }
        for algorithm in Algorithm::NAMES {
            let (name, value) = (key.name, value(key.name));
            let amount = match (name, algorithm) {
                ("rate", _) => "",
                ("unit", _) => "requests_per_unit: 9, ",
                (_, "concurrency") => "requests_per_unit: 9, window: 1h, ",
                ("lease", _) => "rate: 1000/day, ",
                _ => "rate: 9/day, ",
            };
            let text = format!(
                "domain: d\ndescriptors: [{{key: a, rate_limit: {{{amount}algorithm: {algorithm}, {name}: {value}}}}}]"
            );
            let told = parse(&[("p.yaml", &text)]).err().map(|problems| problems.to_string());
            let refused = told.as_ref().is_some_and(|told| told.contains(&format!("{name} on {algorithm}: ")));
            assert_eq!(refused, !only.algorithms().any(|taker| taker == algorithm), "{text}: {told:?}");
            assert_eq!(told.is_some(), refused, "{text}: {told:?}");
        }
    }
    let all = Algorithm::all(&Parameters::LEAST);
    let named: BTreeSet<_> = all.iter().flat_map(|algorithm| algorithm.parameter_names()).copied().collect();
    assert_eq!(parameters, named, "each parameter of an algorithm has a key");
}

/// `/policies`, weir check and weir diff follow from these keys: a new key of the table is in them, or named here.
#[test]
fn every_key_of_a_descriptor_and_of_a_limit_is_shown() {
    const IN_PATH_OR_BELOW: [&str; 9] =
        ["key", "value", "values", "cidr", "regex", "rate_limit", "rate_limits", "allow_warnings", "descriptors"];
    const NUMBERS: [&str; 15] = [
        "unit",
        "requests_per_unit",
        "window",
        "rate",
        "algorithm",
        "burst",
        "refill",
        "precision",
        "anchor",
        "calendar",
        "timezone",
        "plans",
        "unlimited",
        "name",
        "replaces",
    ];
    let loaded = parse(&[("a.yaml", "domain: d\ndescriptors: [{key: a, rate_limit: 1/s}]")]).expect("valid");
    let rule = &loaded.policies.rules()[0];
    let of_rule = rule.keys().into_iter().chain(rule.levels[0].keys()).map(|(key, _)| key);
    let of_rule: Vec<_> = of_rule.chain(IN_PATH_OR_BELOW).collect();
    let of_limit: Vec<_> = rule.limits[0].keys().into_iter().map(|(key, _)| key).chain(NUMBERS).collect();
    for (kind, shown) in [(KINDS[1], of_rule), (KINDS[2], of_limit)] {
        let forgotten: Vec<_> = kind.keys.iter().map(|row| row.name).filter(|name| !shown.contains(name)).collect();
        assert!(forgotten.is_empty(), "{}: {forgotten:?}", kind.name);
    }
}

#[test]
fn every_rule_knows_its_place() {
    let loaded = good("limits_of_every_kind.yaml");
    assert_eq!(loaded.places.len(), loaded.policies.rules().len());
    let text = fs::read_to_string(data("good/limits_of_every_kind.yaml")).unwrap();
    for rule in loaded.policies.rules() {
        let place = &loaded.places[rule.id as usize];
        let line = text.lines().nth(place.position.line as usize - 1).unwrap();
        let key = rule.path.rsplit('|').next().unwrap().split('=').next().unwrap();
        assert_eq!(line.trim_start(), format!("- key: {key}"), "{}", rule.path);
        assert_eq!(place.position.column as usize, line.find("key").unwrap() + 1);
    }
}

#[test]
fn problems_of_all_files_come_at_once_in_file_order() {
    let files = [
        ("b.yaml", "domain: shop\ndescriptors: [{key: ''}]\n"),
        ("a.yaml", "domain: [\n"),
        ("c.yaml", "domain: shop\ndescriptors: [{key: x, colour: red}]\n"),
        ("d.yaml", "domain: fine\n"),
        ("e.yaml", "domain: fine\n"),
    ];
    insta::assert_snapshot!(parse(&files).unwrap_err(), @r#"
    b.yaml:2:16: key is empty
    a.yaml:2:1: not valid YAML: while parsing a node, did not find expected node content
    c.yaml:1:9: domain "shop" is defined already, at b.yaml:1:9
    c.yaml:2:24: unknown key "colour" in a descriptor: it has key, value, values, cidr, regex, rate_limit, rate_limits, shadow_mode, quota_mode, on_error, share_threshold, detailed_metric, value_to_metric, metadata, rows, request_limit, weigh, allow_warnings, descriptors
    e.yaml:1:9: domain "fine" is defined already, at d.yaml:1:9
    "#);
    let dir = directory(&files);
    let told = load_dir(dir.path()).unwrap_err();
    let names: Vec<_> = told.list().iter().map(|problem| name_of(Path::new(&*problem.file))).collect();
    assert_eq!(names, ["a.yaml", "b.yaml", "c.yaml", "c.yaml", "e.yaml"]);
    assert_eq!(told.count(), 5);
}

#[test]
fn lengths_are_accepted_to_their_bound() {
    let text = |domain: usize, key: usize, value: usize| {
        format!(
            "domain: {}\ndescriptors: [{{key: {}, value: {}}}]\n",
            "d".repeat(domain),
            "k".repeat(key),
            "v".repeat(value)
        )
    };
    let bounds = (DOMAIN_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX);
    assert!(parse(&[("p.yaml", &text(bounds.0, bounds.1, bounds.2))]).is_ok());
    assert_eq!(
        problems(&text(bounds.0 + 1, bounds.1 + 1, bounds.2 + 1)),
        "p.yaml:1:9: domain has 257 bytes: at most 256\n\
         p.yaml:2:21: key has 4097 bytes: at most 4096\n\
         p.yaml:2:4127: value has 4097 bytes: at most 4096"
    );
    let compatible = Dialect { compatible: true, merge_domains: false, ..Dialect::default() };
    let longer = text(bounds.0 + 1, bounds.1 + 1, bounds.2 + 1);
    assert!(parse_with(&[("p.yaml", &longer)], compatible).is_ok());
    let nested = |levels: usize| {
        let open: String = (1..levels).map(|level| format!("[{{key: k{level}, descriptors: ")).collect();
        format!("domain: d\ndescriptors: {open}[{{key: last}}]{}", "}]".repeat(levels - 1))
    };
    assert!(parse(&[("p.yaml", &nested(LEVELS_MAX))]).is_ok());
    assert!(problems(&nested(LEVELS_MAX + 1)).contains("more than 16 levels"));
}

#[test]
fn a_directory_without_policies_is_told() {
    let dir = directory(&[("notes.txt", "domain: shop")]);
    let name = dir.path().display();
    let told = |dir: &Path| load_dir(dir).unwrap_err().to_string();
    assert_eq!(told(dir.path()), format!("{name}: no policy files: no file is named *.yaml or *.yml"));
    std::fs::write(dir.path().join("shop.test.yaml"), "").unwrap();
    let besides = "no policy files: no file is named *.yaml or *.yml, besides tests and traffic";
    assert_eq!(told(dir.path()), format!("{name}: {besides}"));
    std::fs::remove_file(dir.path().join("shop.test.yaml")).unwrap();
    let missing = dir.path().join("missing");
    assert_eq!(told(&missing), format!("{name}/missing: No such file or directory (os error 2)"));
}

#[test]
fn files_that_are_no_text_are_told() {
    let dir = directory(&[("fine.yml", "domain: fine\n")]);
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    write("latin1.yaml", b"domain: shop\ndescriptors: [{key: caf\xe9}]\n");
    write("utf16.yaml", b"\xff\xfed\0o\0m\0");
    write("nul.yaml", b"domain: shop\0\n");
    std::os::unix::fs::symlink("nowhere", dir.path().join("lost.yaml")).unwrap();
    let told = load_dir(dir.path()).unwrap_err().to_string();
    let told = told.replace(&format!("{}/", dir.path().display()), "");
    insta::assert_snapshot!(told, @"
    latin1.yaml:2:24: not UTF-8: the byte 0xe9
    lost.yaml: No such file or directory (os error 2)
    nul.yaml:1:13: not valid YAML: found unprintable character
    utf16.yaml: it has the byte order mark of UTF-16: save it as UTF-8
    ");
}

#[test]
fn a_huge_file_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    // A sparse file: large, and nothing on the disk.
    let file = fs::File::create(dir.path().join("huge.yaml")).unwrap();
    file.set_len(1 << 40).unwrap();
    let told = load_dir(dir.path()).unwrap_err().to_string();
    let bound = format!("and policies.file_bytes allows {FILE_BYTES_MAX}: split it by domain, or set more");
    assert!(told.ends_with(&format!("huge.yaml: {} bytes, {bound}", 1_u64 << 40)), "{told}");
    let text = " ".repeat(FILE_BYTES_MAX + 1);
    assert_eq!(problems(&text), format!("p.yaml: {} bytes, {bound}", text.len()));
}

#[test]
fn hostile_texts_are_refused_within_bounds() {
    for deep in ["[".repeat(1_000_000), "- ".repeat(100_000), "{a: ".repeat(100_000), "? ".repeat(100_000)] {
        let told = problems(&deep);
        let reasons = [
            "nested deeper than 64",
            "a key must be text",
            "recursion limit exceeded",
            "1000000 of the characters , [ ] { }",
        ];
        assert!(reasons.iter().any(|reason| told.contains(reason)), "{told}");
    }

    // Ten aliases of ten aliases of ...: ten to the ninth values in a few hundred bytes.
    let mut bomb = String::from("l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let aliases = vec![format!("*l{}", level - 1); 10].join(", ");
        writeln!(bomb, "l{level}: &l{level} [{aliases}]").unwrap();
    }
    assert!(problems(&bomb).contains("more than 4000000 values in one file"), "{}", problems(&bomb));

    // The same with descriptors, of which each level is legal.
    let mut bomb = String::from("domain: d\nx: &l0 [{key: a}]\n");
    for level in 1..9 {
        let items = (0..10).map(|i| format!("{{key: k{i}, descriptors: *l{}}}", level - 1));
        writeln!(bomb, "x{level}: &l{level} [{}]", items.collect::<Vec<_>>().join(", ")).unwrap();
    }
    assert!(problems(&bomb).contains("more than 4000000 values in one file"), "{}", problems(&bomb));

    let long_line = format!("domain: {}\n", "x".repeat(8 << 20));
    assert_eq!(problems(&long_line), "p.yaml:1:9: domain has 8388608 bytes: at most 256");
    let long_key = format!("{}: x\n", "x".repeat(1_000));
    assert!(problems(&long_key).len() < 300);
    let nul = "domain: a\0b\n";
    assert!(problems(nul).starts_with("p.yaml:1:"), "{}", problems(nul));
}

#[test]
fn problems_past_the_bound_are_counted() {
    let many = PROBLEMS_MAX + 5;
    let text = format!("domain: d\ndescriptors:\n{}", "  - key: ''\n".repeat(many));
    let told = parse(&[("p.yaml", &text), ("q.yaml", "")]).unwrap_err();
    assert_eq!((told.list().len(), told.count()), (PROBLEMS_MAX, PROBLEMS_MAX + 1));
    assert!(told.to_string().ends_with("\nand more: a file is read up to its problem number 100"), "{told}");
    let few = format!("domain: d\ndescriptors:\n{}", "  - key: ''\n".repeat(60));
    let told = parse(&[("p.yaml", &few), ("q.yaml", &few.replace("domain: d", "domain: e"))]).unwrap_err();
    assert!(told.to_string().ends_with("\nand 20 more problems"), "{told}");
}

#[test]
fn too_many_values_and_regular_expressions_are_told_once() {
    let half = VALUES_MAX / 2 + 1;
    let list = |domain: &str, count: usize| {
        let mut text = format!("domain: {domain}\ndescriptors:\n- key: a\n  values:\n");
        for i in 0..count {
            writeln!(text, "  - {i}").unwrap();
        }
        text
    };
    let told =
        parse(&[("a.yaml", &list("a", half)), ("b.yaml", &list("b", half)), ("c.yaml", &list("c", 1))]).unwrap_err();
    assert_eq!(told.to_string(), "b.yaml:4:3: more than 1000000 values and networks in all files");

    let mut text = String::from("domain: d\ndescriptors:\n");
    for i in 0..REGEXES_MAX + 2 {
        writeln!(text, "- {{key: k{i}, regex: a}}").unwrap();
    }
    let told = parse(&[("p.yaml", &text)]).unwrap_err();
    let line = REGEXES_MAX + 3;
    assert_eq!(told.list()[0].position.unwrap().line as usize, line);
    assert_eq!((told.count(), &*told.list()[0].message), (1, "more than 10000 regular expressions in all files"));
}

#[test]
fn a_key_has_so_many_wildcards_and_regular_expressions() {
    let patterns = |count: usize| {
        let mut text = String::from("domain: d\ndescriptors:\n- {key: a, value: v}\n");
        for i in 0..count {
            writeln!(text, "- {{key: a, value: p{i}*}}").unwrap();
        }
        text
    };
    let full = patterns(PATTERNS_MAX);
    parse(&[("p.yaml", &full)]).expect("as many as there may be");
    let told = |text: &str, reading| parse_with(&[("p.yaml", text)], reading).unwrap_err().to_string();
    let line = PATTERNS_MAX + 4;
    let expected =
        format!("p.yaml:{line}:3: more than 1024 wildcards and regular expressions of the key \"a\" at one level");
    assert_eq!(told(&patterns(PATTERNS_MAX + 1), Dialect::default()), expected);
    assert_eq!(told(&format!("{full}- {{key: a, regex: x}}\n"), Dialect::default()), expected);
    // A compatible reading has the bound where a regular expression is among them.
    let compatible = Dialect { compatible: true, merge_domains: false, ..Dialect::default() };
    assert_eq!(told(&format!("{full}- {{key: a, regex: x}}\n"), compatible), expected);
    let warnings = |text: &str| {
        let loaded = parse_with(&[("p.yaml", text)], compatible).expect("wildcards only");
        loaded.warnings.list().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warnings(&full).is_empty());
    let expected = format!(
        "p.yaml:{line}:3: warning: more than 1024 wildcards of the key \"a\" at one level, which weir refuses by default \
         [many_wildcards]"
    );
    assert_eq!(warnings(&patterns(PATTERNS_MAX + 5)), [expected]);
    let allowed = format!("{full}- {{key: a, value: x*, allow_warnings: {{many_wildcards: one for each tenant}}}}\n");
    assert!(warnings(&allowed).is_empty());
    let keys: String = (0..=PATTERNS_MAX).map(|i| format!("- {{key: a{i}*}}\n")).collect();
    let expected = format!(
        "p.yaml:{}:3: warning: more than 1024 keys with a * at one level, each of which is a pattern [many_wildcards]",
        line - 1
    );
    assert_eq!(warnings(&format!("domain: d\ndescriptors:\n{keys}")), [expected]);
}

#[test]
fn wildcards_that_cost_a_value_too_much_are_refused_with_their_place() {
    let refused = |lines: &str| {
        let text = format!("domain: d\ndescriptors:\n- {{key: a, value: v}}\n- key: b\n  descriptors:\n{lines}");
        parse_with(&[("p.yaml", &text)], Dialect { compatible: true, merge_domains: false, ..Dialect::default() })
            .unwrap_err()
            .to_string()
    };
    let many = |form: fn(usize) -> String, count: usize| (0..count).map(form).collect::<String>();
    let values = many(|i| format!("  - {{key: a, value: '*a{i}*b*'}}\n"), STEPS_MAX / 2);
    let expected = "p.yaml:16390:5: a value can take more than 32768 steps through the wildcards of the key of \
                    \"d|b|a=*c*d*e*\", which takes the most: one step for each text between stars, and one for a text \
                    before them";
    assert_eq!(refused(&format!("{values}  - {{key: a, value: '*c*d*e*'}}\n")), expected);
    let keys = many(|i| format!("  - {{key: 'x*{i}*', value: y}}\n"), STEPS_MAX / 2 + 1);
    assert_eq!(refused(&keys), expected.replace("16390", "6").replace("a=*c*d*e*", "x*0*=y"));
    let inner = many(|i| format!("  - {{key: a, value: '*b*{}*'}}\n", "a".repeat(i + 1)), INNER_MAX + 1);
    let expected = "p.yaml:22:5: \"d|b|a=*b*aaaaaaaaaaaaaaaaa*\" has the longest of more than 16 texts between two *, in \
                    wildcards of its key, where each ends with the next shorter one, such as cba, ba and a: the maximum \
                    is 16";
    // More wildcards than an automaton takes, none of which needs a search for a text in the middle.
    let others = many(|i| format!("  - {{key: a, value: 'p{i}*'}}\n"), PATTERNS_MAX);
    assert_eq!(refused(&format!("{inner}{others}")), expected);
}

/// Ten times the rules may take ten times as long; comparing all to all would take a hundred times.
#[test]
fn rules_load_without_comparing_all_to_all() {
    let took = |rules: usize| {
        let mut text = String::from("domain: d\ndescriptors:\n");
        for i in 0..rules / 2 {
            writeln!(text, "- {{key: a, value: v{i}, rate_limit: {{unit: hour, requests_per_unit: 5}}}}").unwrap();
            writeln!(text, "- {{key: a, value: p{i}*, rate_limit: {{unit: hour, requests_per_unit: 5}}}}").unwrap();
        }
        let started = std::time::Instant::now();
        // Only a compatible reading takes so many wildcards of one key.
        let compatible = Dialect { compatible: true, merge_domains: false, ..Dialect::default() };
        let mut loaded = parse_with(&[("p.yaml", &text)], compatible).unwrap();
        assert_eq!(loaded.policies.rules().len(), rules);
        check_warnings(&mut loaded);
        started.elapsed()
    };
    // A busy machine can only make a run look slower, so the best of a few counts.
    let few = (0..3).map(|_| took(500)).min().unwrap();
    let many = (0..3).map(|_| took(5_000)).find(|&many| many < few * 40);
    assert!(many.is_some(), "500 rules took {few:?}, ten times as many over 40 times that");
}

#[test]
fn the_nearest_word_is_near() {
    let known = ["unit", "requests_per_unit", "minute", "second"];
    assert_eq!(nearest("request_per_unit", known), Some("requests_per_unit"));
    assert_eq!(nearest("requests_per_minute", known), Some("requests_per_unit"));
    assert_eq!(nearest("Unit", known), Some("unit"));
    assert_eq!(nearest("min", known), Some("minute"));
    assert_eq!(nearest("colour", known), None);
    assert_eq!(nearest("b", ["a"]), None);
    assert_eq!(nearest(&"x".repeat(100_000), known), None);
}

proptest! {
    #![proptest_config(config(1))]

    /// What loads and is damaged by one byte either loads or is told, with a place.
    #[test]
    fn a_damaged_policy_is_told(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = fs::read(data("good/limits_of_every_kind.yaml")).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        if let Err(problems) = parse(&[("p.yaml", &text)]) {
            for problem in problems.list() {
                prop_assert!(problem.position.is_some(), "{problem}");
            }
        }
    }
}
