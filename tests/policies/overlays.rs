//! Overlays: what they meet and add, what they contradict, and where each problem has its place.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weir_cli::check::{self, CheckFormat};
use weir_cli::diff::{self, DialectArguments, Diff, DiffFormat, Outcome};
use weir_cli::explain;
use weir_lab::testing::Strictness;
use weir_policies::files::Source;
use weir_policies::overlay::{OVERLAY_BYTES_MAX, OVERLAYS_MAX, PATTERN_BYTES_MAX, PATTERNS_MAX, STARS_MAX};
use weir_policies::{
    Code, Dialect, Kind, Loaded, OverlayFile, Problems, Reading, Restless, Tree, check_warnings, load, load_and_keep,
    load_isolated, overlay, parse, parse_with, read_trees,
};

fn file(text: &str) -> Result<OverlayFile, Problems> {
    OverlayFile::of("o.yaml", text)
}

fn loaded(policy: &str, overlays: &str) -> Result<Loaded, Problems> {
    let reading = Reading { overlay: Some(file(overlays)?), ..Reading::default() };
    parse_with(&[("p.yaml", policy)], reading)
}

fn problems(policy: &str, overlays: &str) -> String {
    loaded(policy, overlays).expect_err(overlays).to_string()
}

fn rules(loaded: &Loaded) -> String {
    format!("{:#?}", loaded.policies.rules())
}

/// An overlay of the domain `shop`.
fn shop(descriptors: &str, keys: &str) -> String {
    format!("overlays:\n- domain: shop\n  descriptors: {descriptors}\n  {keys}\n")
}

/// The policy with an overlay is the same as the other one, to the last field.
#[track_caller]
fn assert_same(policy: &str, overlays: &str, written: &str) {
    let overlaid = loaded(policy, overlays).unwrap_or_else(|problems| panic!("{problems}"));
    let written = parse(&[("p.yaml", written)]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(rules(&overlaid), rules(&written));
    assert_eq!(overlaid.overlays.expect("overlays").unmet, [], "{overlays}");
}

const POLICY: &str = "domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1000}
- key: path
  value: /pay/*
  rate_limits: [10/s, {rate: 100/h, name: hourly}]
";

#[test]
fn a_key_of_an_overlay_is_as_a_written_one() {
    assert_same(
        POLICY,
        &shop(
            "[user]",
            "rate_limit: {algorithm: sliding_window, lease: 100ms}\n  on_error: local\n  detailed_metric: true",
        ),
        &POLICY
            .replace("- key: user", "- key: user\n  on_error: local\n  detailed_metric: true")
            .replace("requests_per_unit: 1000", "requests_per_unit: 1000, algorithm: sliding_window, lease: 100ms"),
    );
    // All limits of a list, or the one with the name. A short form becomes a mapping.
    let in_full = |more: [&str; 2]| {
        let [one, two] = more;
        POLICY.replace(
            "[10/s, {rate: 100/h, name: hourly}]",
            &format!("[{{rate: 10/s{one}}}, {{rate: 100/h, name: hourly{two}}}]"),
        )
    };
    let gcra = ", algorithm: gcra";
    assert_same(POLICY, &shop("[path]", "rate_limit: {algorithm: gcra}"), &in_full([gcra, gcra]));
    assert_same(POLICY, &shop("[path]", "name: hourly\n  rate_limit: {algorithm: gcra}"), &in_full(["", gcra]));
    // Two overlays add to each other. A null is no key.
    let two = "overlays:\n- {domain: s*, descriptors: ['**'], rate_limit: {drain: true}}\n\
               - {domain: shop, descriptors: [user], rate_limit: {alert_at: [50]}, on_error: ~}\n";
    let drained = in_full([", drain: true"; 2])
        .replace("requests_per_unit: 1000", "requests_per_unit: 1000, drain: true, alert_at: [50]");
    assert_same(&POLICY.replace("1000}", "1000, drain: ~}"), two, &drained);
    // Values of every form.
    let keys = "metadata: {a: [1, {b: c}]}\n  allow_warnings: {no_reason: x}\n  rate_limit: {hold: {at_least: 5}, replaces: [{name: hourly}]}";
    let written = POLICY
        .replace("- key: user", "- key: user\n  metadata: {a: [1, {b: c}]}\n  allow_warnings: {no_reason: x}")
        .replace("requests_per_unit: 1000", "requests_per_unit: 1000, hold: {at_least: 5}, replaces: [{name: hourly}]");
    assert_same(POLICY, &shop("[user]", keys), &written);
}

#[test]
fn a_policy_is_replaced_only_where_that_is_permitted() {
    let stays = shop("[user]", "rate_limit: {rate: 5/min}");
    assert_eq!(
        problems(POLICY, &stays),
        "o.yaml:4:16: rate: the policy gives unit already, at p.yaml:4:16: remove one, or write replace: true"
    );
    let replaced = |with: &str| POLICY.replace("{unit: hour, requests_per_unit: 1000}", with);
    for (given, expected) in [
        ("5/min", "5/min"),
        ("{rate: 5/min, algorithm: gcra}", "{rate: 5/min, algorithm: gcra}"),
        ("{unit: day}", "{unit: day, requests_per_unit: 1000}"),
        ("{requests_per_unit: 0}", "{unit: hour, requests_per_unit: 0}"),
        ("{window: 90s}", "{window: 90s, requests_per_unit: 1000}"),
        ("{unlimited: true}", "{unlimited: true}"),
    ] {
        assert_same(POLICY, &shop("[user]", &format!("replace: true\n  rate_limit: {given}")), &replaced(expected));
        let without = shop("[user]", &format!("rate_limit: {given}"));
        assert!(problems(POLICY, &without).contains("the policy gives "), "{given}");
    }
    let unlimited = replaced("{unlimited: true}");
    assert_same(&unlimited, &shop("[user]", "replace: true\n  rate_limit: 5/min"), &replaced("{rate: 5/min}"));
    assert!(
        problems(&unlimited, &shop("[user]", "rate_limit: 5/min")).contains("gives unlimited already, at p.yaml:4:16")
    );
    let shadow = POLICY.replace("- key: user", "- key: user\n  shadow_mode: true");
    assert_same(&shadow, &shop("[user]", "replace: true\n  shadow_mode: false"), POLICY);
}

/// A limit without a number would deny everything.
#[test]
fn a_replaced_number_needs_a_new_one() {
    for (limit, given, word) in [
        ("{rate: 5/min}", "{unit: hour}", "rate"),
        ("5/min", "{window: 90s}", "rate"),
        ("{unlimited: true}", "{unit: hour}", "unlimited"),
        ("{unit: hour, requests_per_unit: 3}", "{unlimited: false}", "requests_per_unit"),
    ] {
        let policy = format!("domain: shop\ndescriptors:\n- key: user\n  rate_limit: {limit}\n");
        let text = problems(&policy, &shop("[user]", &format!("replace: true\n  rate_limit: {given}")));
        let start = format!("replaces {word} at p.yaml:4:");
        assert!(text.starts_with("o.yaml:5:16: ") && text.contains(&start), "{text}");
        assert!(text.ends_with(", which leaves no number: write requests_per_unit too"), "{text}");
    }
    let policy = "domain: shop\ndescriptors:\n- key: user\n  rate_limit: 5/min\n";
    let in_full = shop("[user]", "replace: true\n  rate_limit: {unit: hour, requests_per_unit: 3}");
    assert_same(policy, &in_full, &policy.replace("5/min", "{unit: hour, requests_per_unit: 3}"));
}

#[test]
fn only_an_overlay_of_numbers_meets_an_unlimited_limit() {
    let policy = format!("{POLICY}- key: free\n  rate_limit: {{unlimited: true}}\n");
    for keys in ["rate_limit: {drain: true}", "on_error: local"] {
        let all = loaded(&policy, &shop("['**']", keys)).unwrap_or_else(|problems| panic!("{problems}"));
        let apart = format!(
            "overlays:\n- {{domain: shop, descriptors: [user], {keys}}}\n\
             - {{domain: shop, descriptors: [path], {keys}}}\n"
        );
        assert_eq!(rules(&all), rules(&loaded(&policy, &apart).unwrap()), "{keys}");
        assert_eq!(loaded(&policy, &shop("[free]", keys)).unwrap().overlays.unwrap().unmet.len(), 1, "{keys}");
    }
    for keys in ["rate_limit: 5/min", "rate_limit: {unit: day}", "rate_limit: {unlimited: false}"] {
        assert!(problems(&policy, &shop("[free]", keys)).contains("the policy gives "), "{keys}");
    }
}

/// An overlay is for limits as the policy writes them, so the order of overlays does not matter.
#[test]
fn the_order_of_overlays_does_not_matter() {
    let policy = format!("{POLICY}- key: free\n  rate_limit: {{unlimited: true}}\n");
    for (one, other, unmet) in [
        (
            "descriptors: [free], replace: true, rate_limit: 7/s",
            "descriptors: ['f*'], rate_limit: {algorithm: gcra}",
            1,
        ),
        ("descriptors: [user], rate_limit: {name: n}", "descriptors: [user], name: n, rate_limit: {drain: true}", 1),
    ] {
        let of = |list: [&str; 2]| {
            let [first, second] = list;
            let text = format!("overlays:\n- {{domain: shop, {first}}}\n- {{domain: shop, {second}}}\n");
            let loaded = loaded(&policy, &text).unwrap_or_else(|problems| panic!("{problems}"));
            (rules(&loaded), loaded.overlays.unwrap().unmet.len())
        };
        assert_eq!(of([one, other]), of([other, one]), "{one}");
        assert_eq!(of([one, other]).1, unmet, "{one}");
    }
}

#[test]
fn overlays_never_replace_each_other() {
    let two = |keys: &str| {
        format!(
            "overlays:\n- {{domain: shop, descriptors: ['**'], on_error: deny}}\n- {{domain: '*', descriptors: [us*], {keys}}}\n"
        )
    };
    for replace in ["", "replace: true, "] {
        assert_eq!(
            problems(POLICY, &two(&format!("{replace}on_error: local"))),
            format!(
                "o.yaml:3:{}: on_error: the overlay at line 2 gives it too, to the descriptor at p.yaml:3:3",
                37 + replace.len()
            )
        );
    }
    let amounts = "overlays:\n- {domain: shop, descriptors: [user], replace: true, rate_limit: {unit: day}}\n\
                   - {domain: shop, descriptors: [user], replace: true, rate_limit: {window: 5s}}\n";
    assert!(
        problems(POLICY, amounts).contains("window: the overlay at line 2 gives unit too"),
        "{}",
        problems(POLICY, amounts)
    );
    // One overlay contradicts itself as a policy does.
    let both = shop("[user]", "replace: true\n  rate_limit: {unit: day, window: 5s}");
    assert!(
        problems(POLICY, &both).starts_with("o.yaml:5:27: unit and window together"),
        "{}",
        problems(POLICY, &both)
    );
}

/// The paths of the rules that an overlay of all these patterns meets.
fn met(policy: &str, descriptors: &str) -> Vec<String> {
    let loaded = loaded(policy, &shop(descriptors, "on_error: deny")).unwrap_or_else(|problems| panic!("{problems}"));
    let is_met = |rule: &&weir_engine::Rule| rule.on_error.is_some();
    loaded.policies.rules().iter().filter(is_met).map(|rule| rule.path.to_string()).collect()
}

#[test]
fn patterns_go_from_the_root_to_the_descriptor_with_the_limits() {
    let policy = "domain: shop
descriptors:
- {key: a/b, value: a/b, descriptors: [{key: rule-0-match-0, rate_limit: 1/s, descriptors: [{key: c, rate_limit: 2/s}]}]}
- {key: user, rate_limit: 1/s}
- {key: user, value: ann, rate_limit: 1/s}
- {key: user, values: [bob, eve], rate_limit: 1/s}
- {key: ip, cidr: 10.0.0.0/8, rate_limit: 1/s}
- {key: ip, regex: 'fe80.+', rate_limit: 1/s}
- {key: nothing, rate_limit: ~, descriptors: []}
";
    let all = [
        "a/b=a/b|rule-0-match-0",
        "a/b=a/b|rule-0-match-0|c",
        "user",
        "user=ann",
        "user=bob,...",
        "ip=10.0.0.0/8",
        "ip=~fe80.+",
    ];
    let of = |indexes: &[usize]| indexes.iter().map(|index| all[*index].to_owned()).collect::<Vec<_>>();
    let everything: Vec<usize> = (0..all.len()).collect();
    for (patterns, expected) in [
        ("['**']", &everything[..]),
        ("['*', '**']", &everything),
        ("['*']", &[2, 3, 4, 5, 6]),
        ("[a/b, rule-0-*]", &[0]),
        ("['a*', '*-match-*', '**']", &[0, 1]),
        ("[a/b, rule-0-*, c]", &[1]),
        ("['a/b=a/b', '*', '*']", &[1]),
        ("['a/b=', '**']", &[]),
        ("[a/b]", &[]),
        ("[user]", &[2, 3, 4]),
        ("['user=']", &[2]),
        ("['user=*']", &[3, 4]),
        ("['user=a*']", &[3]),
        ("['user=eve']", &[4]),
        ("['ip=10.*']", &[5]),
        ("['ip=~fe80*']", &[6]),
        ("[nothing, '**']", &[]),
    ] {
        assert_eq!(met(policy, patterns), of(expected), "{patterns}");
    }
}

#[test]
fn descriptors_that_share_an_alias_are_met_apart() {
    let policy = "domain: shop
descriptors:
- {key: user, value: ann, rate_limit: &hour {unit: hour, requests_per_unit: 9}, descriptors: &below [{key: path, rate_limit: *hour}]}
- {key: user, value: bob, rate_limit: *hour, descriptors: *below}
";
    assert_eq!(met(policy, "['user=bob']"), ["user=bob"]);
    assert_eq!(met(policy, "['user=bob', path]"), ["user=bob|path"]);
    assert_same(
        policy,
        &shop("['user=ann', path]", "rate_limit: {algorithm: gcra}"),
        &policy
            .replace("rate_limit: *hour}]}", "rate_limit: {unit: hour, requests_per_unit: 9, algorithm: gcra}}]}")
            .replace("descriptors: *below", "descriptors: [{key: path, rate_limit: *hour}]"),
    );
}

#[test]
fn a_problem_of_the_result_names_both_places() {
    // The overlay's value is wrong for this limit.
    assert_eq!(
        problems(POLICY, &shop("[user]", "rate_limit: {burst: 5}")),
        "o.yaml:4:16: burst on fixed_window, the default: a window admits all of its hits at once, only token_bucket, leaky_bucket and \
         gcra have a burst (for the descriptor at p.yaml:3:3)"
    );
    // The policy's value is wrong with the overlay.
    let drained = POLICY.replace("requests_per_unit: 1000", "requests_per_unit: 1000, alert_at: [50]");
    let text = problems(&drained, &shop("[user]", "rate_limit: {algorithm: gcra}"));
    assert!(text.starts_with("p.yaml:4:") && text.ends_with("(with the overlay at o.yaml:2:3)"), "{text}");
    // Another descriptor is as written.
    let text = problems(&POLICY.replace("[10/s,", "[10/x,"), &shop("[user]", "rate_limit: {algorithm: gcra}"));
    assert!(text.starts_with("p.yaml:7:17: ") && !text.contains("overlay"), "{text}");
}

#[test]
fn policies_of_a_control_plane_have_overlays_too() {
    let text = |text: &'static str| Tree::Text(text.into());
    let mapping = |entries: Vec<(&'static str, Tree<'static>)>| {
        Tree::Mapping(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    };
    let tree = |more: Vec<(&'static str, Tree<'static>)>| {
        let mut limit = vec![("unit", text("hour")), ("requests_per_unit", Tree::Plain("3".into()))];
        limit.extend(more);
        let user = mapping(vec![("key", text("user")), ("rate_limit", mapping(limit))]);
        mapping(vec![("domain", text("shop")), ("descriptors", Tree::List(vec![user]))])
    };
    let read = |tree, overlays: &str| {
        let reading = Reading { overlay: Some(file(overlays).unwrap()), ..Reading::default() };
        read_trees([("shop".to_owned(), Ok(tree))], reading)
    };
    let gcra = shop("[user]", "rate_limit: {algorithm: gcra}");
    let written =
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 3, algorithm: gcra}}]";
    assert_eq!(rules(&read(tree(vec![]), &gcra).unwrap()), rules(&parse(&[("p", written)]).unwrap()));
    assert_eq!(
        read(tree(vec![("algorithm", text("gcra"))]), &gcra).unwrap_err().to_string(),
        "o.yaml:4:16: algorithm: the policy gives it already, at shop: descriptors[0].rate_limit (user): remove one, or write \
         replace: true"
    );
    assert_eq!(
        read(tree(vec![]), &shop("[user]", "rate_limit: {burst: 5}"))
            .unwrap_err()
            .to_string()
            .split(": a window")
            .next(),
        Some("o.yaml:4:16: burst on fixed_window, the default")
    );
}

#[test]
fn an_overlay_that_no_limit_meets_is_a_warning() {
    let all = "overlays:
- {domain: shop, descriptors: [user], on_error: deny}
- {domain: shop, descriptors: [usr], on_error: deny}
- {domain: shop, descriptors: [user], name: x, rate_limit: {drain: true}}
- {domain: chop, descriptors: [user], on_error: deny}
- {domain: sh*, descriptors: [org, team=r*, path=], on_error: deny}
- {domain: shop, descriptors: [org], on_error: deny}
- {domain: shop, descriptors: [org, team, any], on_error: deny}
";
    let policy = format!("{POLICY}- key: org\n  descriptors: [{{key: team, value: blue, rate_limit: 1/s}}]\n");
    let mut loaded = loaded(&policy, all).unwrap();
    assert_eq!(loaded.overlays.as_ref().map(|used| used.count), Some(7));
    check_warnings(&mut loaded);
    let warnings: Vec<_> = loaded.warnings.list().iter().filter(|found| found.code == Code::UnmetOverlay).collect();
    let texts: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    let expected = [
        (3, "no descriptor matches \"usr\", did you mean \"user\"?"),
        (4, "its descriptors have no limit with the name \"x\""),
        (5, "no policy has the domain \"chop\""),
        (6, "no descriptor matches \"team=r*\", there is \"team=blue\""),
        (7, "its descriptors have no limit, or only unlimited ones"),
        (8, "no descriptor matches \"any\""),
    ];
    let expected = expected.map(|(line, why)| {
        format!(
            "o.yaml:{line}:3: warning: no limit meets this overlay, because {why}: correct the domain, descriptors or name of \
             the overlay, or remove the overlay [unmet_overlay]"
        )
    });
    assert_eq!(texts, expected);
}

/// The reason of a limit on trial can be in the overlay that makes it one.
#[test]
fn a_comment_of_an_overlay_is_a_reason() {
    let trial = "- {domain: shop, descriptors: [user], rate_limit: {shadow: true}}\n";
    for (overlays, warned) in [
        (format!("overlays:\n{trial}"), true),
        (format!("# of all\n\noverlays:\n{trial}"), true),
        (format!("overlays:\n# we try the lower number\n{trial}"), false),
        (format!("overlays:\n{} # we try it\n", trial.trim_end()), false),
    ] {
        let mut loaded = loaded(POLICY, &overlays).unwrap();
        check_warnings(&mut loaded);
        let has_warning = loaded.warnings.list().iter().any(|found| found.code == Code::NoReason);
        assert_eq!(has_warning, warned, "{overlays}");
    }
}

/// Each mistake of a file by itself.
#[test]
fn mistakes_of_a_file_have_their_places() {
    let long = "a".repeat(PATTERN_BYTES_MAX + 1);
    let stars = "a*".repeat(STARS_MAX + 1);
    let levels = ["a"; PATTERNS_MAX + 1].join(", ");
    for (text, expected) in [
        ("", "1:1: empty: a file of overlays has overlays"),
        ("overlays: ~", "1:1: no overlays: write overlays: [] if none are meant"),
        (
            "domain: shop\ndescriptors: []",
            "1:1: a file of overlays must be a mapping with the keys overlays: it has none of them",
        ),
        ("overlays: [", "2:1: not valid YAML"),
        ("overlays: [1]", "1:12: an overlay must be a mapping of keys and values"),
        ("overlays: [{domain: shop, descriptors: [a]}]", "1:12: an overlay that gives nothing"),
        ("overlays: [{domain: shop, descriptors: [a], rate_limit: {}}]", "1:57: rate_limit of an overlay is empty"),
        ("overlays: [{descriptors: [a], on_error: deny}]", "1:12: an overlay without a domain"),
        ("overlays: [{domain: shop, on_error: deny}]", "1:12: descriptors has 0 patterns: 1 to 64"),
        (
            "overlays: [{domain: shop, descriptor: [user], on_error: deny}]",
            "1:27: unknown key \"descriptor\" in an overlay, did you mean \"descriptors\"?",
        ),
        ("overlays: [{domain: s**, descriptors: [a], on_error: deny}]", "1:21: domain: ** stands alone"),
        ("overlays: [{domain: s, descriptors: ['**', a], on_error: deny}]", "1:38: ** must be the last of descriptors"),
        ("overlays: [{domain: s, descriptors: [a**], on_error: deny}]", "1:38: ** stands alone"),
        ("overlays: [{domain: s, descriptors: [''], on_error: deny}]", "1:38: empty: write * for any text"),
        ("overlays: [{domain: s, descriptors: ['=a'], on_error: deny}]", "1:38: empty: write * for any text"),
        ("overlays: [{domain: s, descriptors: [[a]], on_error: deny}]", "1:38: a pattern must be text, not a list"),
        (&format!("overlays: [{{domain: s, descriptors: ['{stars}'], on_error: deny}}]"), "1:38: 17 stars: at most 16"),
        (
            &format!("overlays: [{{domain: s, descriptors: [{long}], on_error: deny}}]"),
            "1:38: a pattern has 8194 bytes",
        ),
        (
            &format!("overlays: [{{domain: s, descriptors: [{levels}], on_error: deny}}]"),
            "1:24: descriptors has 65 patterns",
        ),
        (
            "overlays: [{domain: s, descriptors: [a], on_eror: deny}]",
            "1:42: unknown key \"on_eror\" in an overlay, did you mean \"on_error\"?",
        ),
        (
            "overlays: [{domain: s, descriptors: [a], algorithm: gcra}]",
            "1:42: algorithm belongs in a rate limit, not in an overlay",
        ),
        ("overlays: [{domain: s, descriptors: [a], on_error: denied}]", "1:52: no on_error \"denied\": it is one of "),
        (
            "overlays: [{domain: s, descriptors: [a], rate_limit: {brst: 5}}]",
            "1:55: unknown key \"brst\" in a rate limit",
        ),
        ("overlays: [{domain: s, descriptors: [a], rate_limit: {burst: x}}]", "1:62: burst must be a whole number"),
        ("overlays: [{domain: s, descriptors: [a], rate_limit: {unit: fortnight}}]", "1:61: no unit \"fortnight\""),
        ("overlays: [{domain: s, descriptors: [a], rate_limit: 5}]", "1:54: "),
        ("overlays: [{domain: s, descriptors: [a], rate_limit: {lease: 5h}}]", "1:62: lease \"5h\": "),
        ("overlays: [{domain: s, domain: s, descriptors: [a], on_error: deny}]", "1:24: domain appears twice"),
    ] {
        let problem = file(text).expect_err(text).to_string();
        assert!(problem.starts_with(&format!("o.yaml:{expected}")), "{text}\n{problem}");
    }
    let one = "- {domain: s, descriptors: [a], on_error: deny}\n";
    assert!(file(&format!("overlays:\n{}", one.repeat(OVERLAYS_MAX))).is_ok());
    let problem = file(&format!("overlays:\n{}", one.repeat(OVERLAYS_MAX + 1))).unwrap_err().to_string();
    assert_eq!(problem, "o.yaml:2:3: 1001 overlays: at most 1000");
    let large = format!("overlays: []\n#{}", "-".repeat(OVERLAY_BYTES_MAX));
    assert_eq!(file(&large).unwrap_err().to_string(), "o.yaml: larger than 1 MiB");
}

/// All keys except those that say what a descriptor is, and those that say what an overlay is for.
#[test]
fn an_overlay_has_the_keys_of_a_descriptor() {
    let names = |kind: &Kind| kind.keys.iter().map(|row| row.name).collect::<Vec<_>>();
    let kind = |kinds: &[&'static Kind], name: &str| *kinds.iter().find(|kind| kind.name == name).expect("a kind");
    let of_descriptor = names(kind(&weir_policies::KINDS, "a descriptor"));
    let own = ["domain", "descriptors", "name", "replace"];
    let never = ["key", "value", "values", "cidr", "regex", "rate_limits", "descriptors"];
    let expected: Vec<_> = of_descriptor.into_iter().filter(|name| !never.contains(name)).collect();
    let mut given: Vec<_> = names(kind(&overlay::KINDS, "an overlay"));
    given.retain(|name| !own.contains(name));
    assert_eq!(given, expected);
}

#[test]
fn files_have_overlays_and_a_file_of_overlays_is_no_policy() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let path = dir.path().join("shop.overlay.yaml");
    write("p.yaml", POLICY);
    write("shop.overlay.yaml", &shop("[user]", "rate_limit: {algorithm: gcra}"));
    let source = Source { overlay: Some(path.clone()), ..Source::from(dir.path()) };
    let algorithm =
        |source: &Source| load(source, Dialect::default()).unwrap().policies.rules()[0].limits[0].algorithm().name();
    assert_eq!(algorithm(&source), "gcra");
    assert_eq!(algorithm(&Source::from(dir.path())), "fixed_window");
    assert!(load(&Source::from(&path), Dialect::default()).unwrap_err().to_string().contains("a file of overlays"));

    let checked = |source: Source| {
        let mut out = Vec::new();
        let ended = check::run(source, Dialect::default(), Strictness::Lenient, &mut out);
        ended.map(|()| String::from_utf8(out).unwrap()).map_err(|failed| failed.to_string())
    };
    let text = checked(source.clone()).unwrap();
    assert!(
        text.contains("gcra") && text.ends_with("1 domain, 2 rules, 3 limits in 1 file, with 1 overlay\n"),
        "{text}"
    );
    assert!(
        checked(Source::from(&path))
            .unwrap()
            .ends_with("shop.overlay.yaml: 1 overlay; --overlay adds them to policies\n")
    );
    write("shop.overlay.yaml", &shop("[usr]", "rate_limit: {algorithm: gcra}"));
    assert!(checked(source.clone()).unwrap().contains("shop.overlay.yaml:2:3: warning: no limit meets this overlay"));

    write("shop.overlay.yaml", &shop("[user]", "rate_limit: {unit: day}"));
    assert!(
        checked(source.clone()).unwrap_err().contains("shop.overlay.yaml:4:16: unit: the policy gives it already, at ")
    );
    let mut out = Vec::new();
    check::report(source.clone(), Dialect::default(), Strictness::Lenient, CheckFormat::Json, &mut out).unwrap_err();
    let found: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let finding = &found["findings"][0];
    assert_eq!(finding["file"], path.display().to_string());
    assert_eq!((&finding["line"], &finding["column"]), (&4.into(), &16.into()));

    // With a name of policies, and with another spelling of its directory.
    write("o.yaml", &shop("[user]", "rate_limit: {algorithm: gcra}"));
    let spelled = dir.path().join(".").join("..").join(dir.path().file_name().unwrap()).join("o.yaml");
    assert_eq!(algorithm(&Source { overlay: Some(spelled), ..source.clone() }), "gcra");
    fs::remove_file(dir.path().join("o.yaml")).unwrap();

    fs::remove_file(&path).unwrap();
    let missing = checked(source).unwrap_err();
    assert!(missing.starts_with(&format!("{}: No such file", path.display())), "{missing}");
    assert!(!Path::new(&path).exists());
}

/// With `policies.isolate`, as for any other mistake.
#[test]
fn a_policy_that_contradicts_an_overlay_holds_back_its_domain_and_an_overlay_all() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let policy = |domain: &str, limit: &str| {
        format!("domain: {domain}\ndescriptors: [{{key: user, rate_limit: {{{limit}}}}}]\n")
    };
    let overlay = |keys: &str| format!("overlays: [{{domain: '*', descriptors: [user], rate_limit: {{{keys}}}}}]\n");
    let path = dir.path().join("o.overlay.yaml");
    let source = Source { overlay: Some(path), ..Source::from(dir.path()) };
    write("a.yaml", &policy("a", "rate: 1/s"));
    write("b.yaml", &policy("b", "rate: 1/s"));
    write("o.overlay.yaml", &overlay("algorithm: gcra"));
    let first = load_and_keep(&source, Dialect::default(), &Restless::default()).unwrap();
    let load = || load_isolated(&source, Dialect::default(), &Restless::of(BTreeSet::new(), first.last_good()));

    write("a.yaml", &policy("a", "rate: 2/s, algorithm: gcra"));
    write("b.yaml", &policy("b", "rate: 2/s"));
    let (loaded, held_back) = load().unwrap();
    let hits: Vec<_> = loaded.policies.rules().iter().map(|rule| rule.limits[0].requests()).collect();
    let held_back: Vec<_> = held_back.unwrap().domains.into_iter().collect();
    assert_eq!((hits, held_back), (vec![1, 2], vec!["a".into()]));

    write("a.yaml", &policy("a", "rate: 2/s"));
    write("o.overlay.yaml", &overlay("rate: 3/s"));
    let problems = load().unwrap_err().to_string();
    assert!(problems.contains("o.overlay.yaml:1:60: rate: the policy gives it already, at "), "{problems}");
    // Each once: the last policies contradict it too.
    assert_eq!(problems.lines().count(), 2, "{problems}");
    write("o.overlay.yaml", "overlays: [");
    assert!(load().unwrap_err().to_string().contains("o.overlay.yaml:2:1: not valid YAML"));
}

#[test]
fn a_changed_overlay_is_a_difference_and_explain_has_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    write("p.yaml", POLICY);
    let new = write("new.overlay.yaml", &shop("[user]", "replace: true\n  rate_limit: 5/h"));
    let old = write("old.overlay.yaml", "overlays: []");
    let unmet = write("unmet.overlay.yaml", &shop("[usr]", "rate_limit: 5/h"));
    let warning = "unmet.overlay.yaml:2:3: warning: no limit meets this overlay, because no descriptor matches \"usr\", did you mean \"user\"?\n";
    let report = |overlay: &Path, old_overlay: Option<PathBuf>, out: &mut Vec<u8>| {
        let dialect = DialectArguments { overlay: Some(overlay.to_owned()), ..DialectArguments::default() };
        let (old, new) = (dir.path().to_owned(), dir.path().to_owned());
        let diff =
            Diff { old, new, format: DiffFormat::Text, traffic: None, fail_on: Vec::new(), dialect, old_overlay };
        diff::run(&diff, out).unwrap()
    };
    let diff = |old_overlay| report(&new, old_overlay, &mut Vec::new());
    assert_eq!((diff(None), diff(Some(old))), (Outcome::Same, Outcome::Differs));
    let mut out = Vec::new();
    assert_eq!(report(&unmet, None, &mut out), Outcome::Same);
    let told = String::from_utf8(out).unwrap();
    assert_eq!(told.matches(warning).count(), 1, "{told}");

    let explained = |overlay: PathBuf| {
        let mut out = Vec::new();
        let source = Source { overlay: Some(overlay), ..Source::from(dir.path()) };
        let descriptor = vec![("user".to_owned(), "ann".to_owned())];
        explain::run(source, Dialect::default(), "shop", &[descriptor], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let told = explained(new.clone());
    assert!(told.contains("5/hour") || told.contains("5 per hour"), "{told}");
    assert!(!told.contains("no limit meets"), "{told}");
    assert!(explained(unmet).ends_with(warning));
}
