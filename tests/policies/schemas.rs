//! The schemas: that they accept what weir accepts, and that they find mistakes.

mod checker;

use std::fs;
use std::path::{Path, PathBuf};

use checker::{problems, yaml};
use serde_json::Value;
use weir_policies::files::{is_callers, is_overlay, is_test, is_traffic};
use weir_policies::schema::Schema;
use weir_policies::traffic_file;

fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn schema(name: &str) -> Value {
    Schema::ALL.into_iter().find(|schema| schema.name() == name).expect("a schema").document()
}

/// The YAML files below a directory, with their texts.
fn files(directory: &str, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut open = vec![at_root(directory)];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                open.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                files.push((path.clone(), fs::read_to_string(&path).expect("a text")));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn all_policies_that_weir_accepts_are_valid() {
    let schema = schema("policies");
    let mut policies = files("examples", &[".yaml"]);
    policies.extend(files("tests/data/policies/good", &[".yaml"]));
    policies.retain(|(path, _)| !is_test(path) && !is_traffic(path) && !is_overlay(path) && !is_callers(path));
    assert!(policies.len() >= 30, "{} files", policies.len());
    for (path, text) in policies {
        assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn all_tests_are_valid() {
    let schema = schema("tests");
    let tests = files("examples", &[".test.yaml"]);
    assert!(tests.len() >= 15, "{} files", tests.len());
    for (path, text) in tests {
        assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn all_traffic_that_weir_accepts_is_valid() {
    let schema = schema("traffic");
    let mut traffic = files("examples", &[".traffic.yaml"]);
    assert!(!traffic.is_empty());
    for (number, text) in TRAFFIC.iter().enumerate() {
        traffic.push((format!("{number}.traffic.yaml").into(), (*text).to_owned()));
    }
    for (path, text) in traffic {
        let read = traffic_file::parse(&path.display().to_string().into(), &text, Path::new(""));
        assert!(read.is_ok(), "{}", read.unwrap_err());
        assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn all_overlays_that_weir_accepts_are_valid() {
    let schema = schema("overlays");
    let mut overlays = files("examples", &[".overlay.yaml"]);
    assert!(!overlays.is_empty());
    for text in [
        "overlays: []",
        "overlays: [{domain: d, descriptors: [a], replace: true, name: n, rate_limit: 10/s, on_error: ~}]",
        "overlays: [{domain: d, descriptors: ['**'], rate_limit: {burst: 5, lease: 10ms, hold: {at_least: 5}}}]",
        "overlays: [{domain: d, descriptors: [a], rows: {default: free}, metadata: {a: 1}, allow_warnings: {no_reason: x}, \
         shadow_mode: on, quota_mode: off, share_threshold: true, detailed_metric: true, value_to_metric: true}]",
    ] {
        overlays.push(("text".into(), text.to_owned()));
    }
    for (path, text) in overlays {
        let read = weir_policies::OverlayFile::of("text", text.as_str());
        assert!(read.is_ok(), "{}", read.unwrap_err());
        assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn all_callers_that_weir_accepts_are_valid() {
    let schema = schema("callers");
    let mut callers = files("examples", &[".callers.yaml"]);
    assert!(!callers.is_empty());
    for text in [
        "callers: []",
        "callers: [{name: a, certificates: [a.b, 'spiffe://m/*'], listeners: [http], domains: ['*'], may: [peek], hits_max: 1_000}]",
    ] {
        callers.push(("text".into(), text.to_owned()));
    }
    for (path, text) in callers {
        let read = weir_policies::parse_callers("text", &text, None);
        assert!(read.is_ok(), "{}", read.unwrap_err());
        assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new(), "{}", path.display());
    }
}

/// Every key of the format.
const TRAFFIC: [&str; 4] = [
    "duration: 1h\nstart: 2040-03-25T00:30[Europe/Berlin]\nseed: 7\nsettings: {charging: independent}\naccess_log: ~\n\
     sources: [{ask: user=u<n>, domain: shop, hits: 2, rate: 90/min, arrivals: bursts, burst: 5, \
     from: 5m, until: 10m, keys: 1_000}]",
    "duration: 1m\ndomain: shop\nsources: [{ask: [user=ann, {descriptor: a=1, hits: 2}], rate: 1/s, refund: true}, \
     {ask: {entries: [{key: a, value: b}]}, rate: 1/90s, look: true, arrivals: poisson, limit: 3/day}]",
    "access_log: {file: a.log, time: t, time_format: unix_ms, domain: <d>, ask: user=<u>, hits: 2}",
    "access_log: {file: a.log, time: t, domain: d, ask: user=<u>, hits: usage.total}",
];

#[test]
fn every_default_of_a_setting_is_valid() {
    let schema = schema("settings");
    let mut text = String::new();
    for setting in weir_settings::SETTINGS {
        if let weir_settings::Preset::Is(default) = setting.default {
            let is_number = matches!(setting.kind, weir_settings::Kind::Integer { .. });
            let value = if is_number { default.to_owned() } else { format!("{default:?}") };
            text.push_str(&format!("{}: {value}\n", setting.name));
        }
    }
    assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new());
    for word in ["true", "false", "yes", "off"] {
        assert_eq!(problems(&schema, &yaml(&format!("quota_mode: {word}"))), Vec::<String>::new(), "{word}");
    }
    for level in ["off", "WARN", "info,weir_app::policies=debug,h2=3", "info,weir[decide{domain=shop}]=trace"] {
        let setting = weir_settings::Setting::find("log.level").expect("a setting");
        assert_eq!(setting.kind.check(level), Ok(()), "{level}");
        assert_eq!(problems(&schema, &yaml(&format!("log: {{level: {level:?}}}"))), Vec::<String>::new(), "{level}");
    }
    assert_eq!(
        problems(&schema, &yaml("redis: {timeout: 5ms, url: \"redis://a\"}\npolicies: {directory: p}")),
        Vec::<String>::new()
    );
}

#[test]
fn mistakes_are_found() {
    for (name, text) in [
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limt: 3/s}]"),
        ("policies", "descriptors: []"),
        ("policies", "domain: d\ndescriptors: [{value: a}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: 3 per hour}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}]"),
        ("policies", "domain: ''\ndescriptors: []"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: 3/fortnight}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, unit: second}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, window: 1h, requests_per_unit: 1}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, alert_at: [0]}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, algorithm: gcra, alert_at: [80]}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, burst: 5}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, algorithm: gcra, precision: 1s}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, algorithm: tokenbucket}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: 1/s, rate_limits: [2/s]}]"),
        ("policies", "domain: d\non_error: pass"),
        ("policies", "domain: d\ndescriptors: [{key: a, values: [], rate_limit: 1/s}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, values: ['x*'], rate_limit: 1/s}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, cidr: [], rate_limit: 1/s}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, regex: '', rate_limit: 1/s}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: 01/s}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, from: tomorrow}}]"),
        ("policies", "domain: d\ndescriptors: [{key: a, rate_limit: {rate: 3/s, until: 2040-12-01T08:00}}]"),
        ("tests", "cases: []"),
        ("tests", "cases: [{name: a, steps: [{ask: a=1, expct: ok}]}]"),
        ("tests", "cases: [{name: a, steps: [{ask: a=1, wait: 1s}]}]"),
        ("tests", "cases: [{name: a, steps: [{ask: a=1, expect: maybe}]}]"),
        ("tests", "cases: [{name: a, steps: [{ask: a=1, expect: {remaining: few}}]}]"),
        ("tests", "settings: {redis: {url: x}}\ncases: [{name: a, steps: [{ask: a=1}]}]"),
        ("callers", "callers: [{name: a, listeners: [grpc], domains: [], may: [peek]}]"),
        ("callers", "callers: [{name: a, listeners: [grpc], domains: [d], may: [all]}]"),
        ("callers", "callers: [{name: a, listeners: [grpc], domains: [d], may: [peek], hits: 5}]"),
        ("callers", "callers: [{listeners: [grpc], domains: [d], may: [peek]}]"),
        ("overlays", "overlays: [{domain: d, descriptors: [a], on_eror: deny}]"),
        ("overlays", "overlays: [{domain: d, on_error: deny}]"),
        ("overlays", "overlays: [{domain: d, descriptors: [], on_error: deny}]"),
        ("overlays", "overlays: [{domain: d, descriptors: [a], rate_limit: {brst: 5}}]"),
        ("traffic", "duration: 1m"),
        ("traffic", "sources: [{ask: a=1, rate: 1/s}]"),
        ("traffic", "duration: 1m\nsources: []"),
        ("traffic", "duration: 1m\nsources: [{ask: a=1}]"),
        ("traffic", "duration: 1m\nsources: [{ask: a=1, rate: 0.5/s}]"),
        ("traffic", "duration: 1m\nsources: [{ask: a=1, rate: 1/s, arivals: poisson}]"),
        ("traffic", "duration: 1m\nsources: [{ask: a=1, rate: 1/s}]\naccess_log: {file: a, time: t, ask: a=<b>}"),
        ("traffic", "access_log: {file: a, time: t}"),
        ("traffic", "access_log: {file: a, time: t, time_format: unix, ask: a=<b>}"),
        ("settings", "redis: {timout: 5ms}"),
        ("settings", "store: disk"),
        ("settings", "redis: {timeout: 5}"),
        ("settings", "redis: {pool_size: 0}"),
        ("settings", "log: {level: verbose}"),
        ("settings", "log: {level: 'info,weir=debg'}"),
        ("settings", "log: {level: 'info,'}"),
    ] {
        assert!(!problems(&schema(name), &yaml(text)).is_empty(), "{name}: {text}");
    }
}

#[test]
fn instants_are_valid_in_every_form_that_a_load_takes() {
    let schema = schema("policies");
    for instant in [
        "2040-12-01",
        "2040-12-01T08:00:00Z",
        "2040-12-01t08z",
        "2040-12-01 08:00+01:00",
        "2040-12-01T08:00:00.5-03",
        "2040-12-01[Europe/Berlin]",
        "2040-12-01T08:00[+01:00]",
        "2040-12-01T08:00+01:00[Europe/Berlin]",
    ] {
        let text = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{rate: 1/s, from: \"{instant}\"}}}}]");
        assert!(weir_policies::parse(&[("p", &text)]).is_ok(), "{text}");
        assert_eq!(problems(&schema, &yaml(&text)), Vec::<String>::new(), "{text}");
    }
}

/// As the reading has it: a descriptor has one of four forms, and nothing is the same as leaving a key out.
#[test]
fn forms_exclude_each_other_as_in_a_load() {
    let forms = [("value", "x"), ("values", "[x]"), ("cidr", "10.0.0.0/8"), ("regex", "x")];
    let schema = schema("policies");
    for (one, of_one) in forms {
        for (other, of_other) in forms.into_iter().filter(|(other, _)| *other != one) {
            for (first, second) in [(of_one, of_other), (of_one, "~"), ("~", of_other), ("~", "~")] {
                let text =
                    format!("domain: d\ndescriptors: [{{key: a, {one}: {first}, {other}: {second}, rate_limit: 1/s}}]");
                let loads = weir_policies::parse(&[("p", &text)]).is_ok();
                assert_eq!(problems(&schema, &yaml(&text)).is_empty(), loads, "{text}");
                assert_eq!(loads, first == "~" || second == "~", "{text}");
            }
        }
    }
}
