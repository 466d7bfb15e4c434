//! `weir diff`: what it says about states is what the store does when the policies are swapped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use weir_cli::diff::{DialectArguments, Diff, DiffFormat, FailOn, NoDiff, Outcome as Compared, run};
use weir_lab::comparison::{Comparison, Fate, compare};
use weir_lab::testing::{Outcome, Runner, Strictness};
use weir_policies::{Dialect, Loaded, parse_with, test_file};

use crate::members::{members, members_of_form};

/// A change of policies, and what becomes of the state of one descriptor.
struct Case {
    /// The descriptors before and now, and which of their requests is sent.
    old: &'static str,
    new: &'static str,
    ask: &'static str,
    /// What is sent after the change, where that is another descriptor.
    ask_new: Option<&'static str>,
    /// What the comparison says of the states of all limits that change, in its order.
    says: &'static [&'static str],
}

const fn case(old: &'static str, new: &'static str, says: &'static [&'static str]) -> Case {
    Case { old, new, ask: "user=ann", ask_new: None, says }
}

const USED: u64 = 2;

const CASES: &[Case] = &[
    // Numbers are in no key.
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limit: 9/h}", &["kept"]),
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limit: 3/h}", &["kept"]),
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limit: {rate: 5/h, post_paid: true}}", &["kept"]),
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limit: {rate: 5/h, drain: true}}", &["kept"]),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: sliding_window_log}}",
        "{key: user, rate_limit: {rate: 9/h, algorithm: sliding_window_log}}",
        &["kept"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: sliding_window_counter}}",
        "{key: user, rate_limit: {rate: 9/h, algorithm: sliding_window_counter}}",
        &["kept"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: sliding_window, precision: 10m}}",
        "{key: user, rate_limit: {rate: 9/h, algorithm: sliding_window, precision: 10m}}",
        &["kept"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: token_bucket, refill: interval}}",
        "{key: user, rate_limit: {rate: 9/h, algorithm: token_bucket, refill: interval}}",
        &["kept"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: gcra, burst: 5}}",
        "{key: user, rate_limit: {rate: 5/h, algorithm: gcra, burst: 9}}",
        &["kept"],
    ),
    // A debt is converted to the new rate.
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: gcra}}",
        "{key: user, rate_limit: {rate: 9/h, algorithm: gcra}}",
        &["rescaled"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: token_bucket}}",
        "{key: user, rate_limit: {rate: 3/h, algorithm: token_bucket}}",
        &["rescaled"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: leaky_bucket, burst: 7}}",
        "{key: user, rate_limit: {rate: 9/h, algorithm: leaky_bucket, burst: 7}}",
        &["rescaled"],
    ),
    // All that shapes a state is in its key.
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limit: 5/day}", &["forgotten (window)", "empty"]),
    case(
        "{key: user, rate_limit: 5/h}",
        "{key: user, rate_limit: {rate: 5/h, algorithm: gcra}}",
        &["forgotten (algorithm)", "empty"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: sliding_window, precision: 1m}}",
        "{key: user, rate_limit: {rate: 5/h, algorithm: sliding_window, precision: 10m}}",
        &["forgotten (parameter)", "empty"],
    ),
    case(
        "{key: user, rate_limit: 5/h}",
        "{key: user, rate_limit: {rate: 5/h, anchor: first_hit}}",
        &["forgotten (parameter)", "empty"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/h, algorithm: token_bucket}}",
        "{key: user, rate_limit: {rate: 5/h, algorithm: token_bucket, refill: interval}}",
        &["forgotten (parameter)", "empty"],
    ),
    case(
        "{key: user, rate_limit: {rate: 5/day, calendar: true}}",
        "{key: user, rate_limit: {rate: 5/day, calendar: true, timezone: Europe/Berlin}}",
        &["forgotten (timezone)", "empty"],
    ),
    // With a second Redis for limits per second, the state would move.
    case("{key: user, rate_limit: 5/s}", "{key: user, rows: {default: free}, rate_limit: 5/s}", &["moved"]),
    case("{key: user, rows: {default: free}, rate_limit: 5/s}", "{key: user, rate_limit: 5/s}", &["moved"]),
    case("{key: user, rate_limit: 5/s}", "{key: user, rate_limits: [5/s, 9/h]}", &["moved", "empty"]),
    case(
        "{key: user, rows: {default: free}, rate_limit: 5/s}",
        "{key: user, rows: {default: free}, rate_limit: 6/s}",
        &["kept"],
    ),
    case("{key: user, rate_limit: 5/h}", "{key: user, rows: {default: free}, rate_limit: 5/h}", &["kept"]),
    case(
        "{key: user, rate_limits: [5/s, 9/h]}",
        "{key: user, rows: {default: free}, rate_limits: [5/s, 9/h]}",
        &["kept", "kept"],
    ),
    // A second limit of the same shape makes the name a part of the key.
    case(
        "{key: user, rate_limit: {rate: 5/h, name: a}}",
        "{key: user, rate_limits: [{rate: 5/h, name: a}, {rate: 7/h, name: b}]}",
        &["forgotten (name)", "empty", "empty"],
    ),
    case("{key: user, rate_limit: {rate: 5/h, name: a}}", "{key: user, rate_limit: {rate: 6/h, name: b}}", &["kept"]),
    case(
        "{key: user, rate_limits: [5/h, 50/day]}",
        "{key: user, rate_limit: 5/h}",
        &["kept", "forgotten (no such limit)"],
    ),
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limits: [50/day, 6/h]}", &["kept", "empty"]),
    case(
        "{key: user, rate_limits: [{rate: 50/day}, {rate: 5/h, shadow: true}]}",
        "{key: user, rate_limits: [5/h, 50/day]}",
        &["kept", "kept"],
    ),
    // A limit of 0 has no states.
    case("{key: user, rate_limit: 0/h}", "{key: user, rate_limit: 5/h}", &["empty"]),
    case("{key: user, rate_limit: 5/h}", "{key: user, rate_limit: {unlimited: true}}", &["forgotten (no rule)"]),
    // A state is of the descriptor and not of the rule.
    case(
        "{key: user, rate_limit: 5/h}",
        "{key: user, rate_limit: 5/h}, {key: user, value: ann, rate_limit: 9/h}",
        &["kept"],
    ),
    case(
        "{key: user, rate_limit: 5/h}, {key: user, value: ann, rate_limit: 9/h}",
        "{key: user, rate_limit: 5/h}",
        &["kept"],
    ),
    case(
        "{key: user, rate_limit: 5/h}, {key: user, value: ann, rate_limit: 9/min}",
        "{key: user, rate_limit: 5/h}",
        &["forgotten (window)", "empty"],
    ),
    case(
        "{key: user, value: ann, rate_limit: 5/h}",
        "{key: other, value: ann, rate_limit: 7/day}",
        &["empty", "forgotten (no rule)"],
    ),
    case(
        "{key: user, values: [ann, bob], rate_limit: 5/h}",
        "{key: user, values: [bob, ann, zoe], rate_limit: 6/h}",
        &["kept"],
    ),
    // The name of a list stands in the key where its values share a state.
    case(
        "{key: user, values: [ann, bob], share_threshold: true, rate_limit: 5/h}",
        "{key: user, values: [bob, ann], share_threshold: true, rate_limit: 5/h}",
        &["forgotten (share_threshold)", "empty"],
    ),
    case(
        "{key: user, values: [ann, bob], share_threshold: true, rate_limit: 5/h}",
        "{key: user, values: [ann, bob, zoe], share_threshold: true, rate_limit: 5/h}",
        &["kept"],
    ),
    case(
        "{key: user, value: a*, rate_limit: 5/h}",
        "{key: user, value: a*, share_threshold: true, rate_limit: 5/h}",
        &["forgotten (share_threshold)", "empty"],
    ),
    case(
        "{key: user, value: a*, rate_limit: 5/h}",
        "{key: user, regex: '(?s)a.*', rate_limit: 6/h}",
        &["kept", "kept"],
    ),
    Case {
        ask_new: Some("tenant=ann"),
        ..case("{key: user, rate_limit: 5/h}", "{key: tenant, rate_limit: 5/h}", &["forgotten (key)", "empty"])
    },
    Case {
        ask: "plan=gold,user=ann",
        ..case(
            "{key: plan, value: gold, descriptors: [{key: user, rate_limit: 5/h}]}",
            "{key: plan, descriptors: [{key: user, rate_limit: 8/h}]}, {key: plan, value: gold, descriptors: []}",
            &["empty", "forgotten (no rule)"],
        )
    },
    // The first wildcard of the file is met.
    case(
        "{key: user, value: a*, rate_limit: 5/h}, {key: user, value: an*, rate_limit: 9/day}",
        "{key: user, value: an*, rate_limit: 9/day}, {key: user, value: a*, rate_limit: 5/h}",
        &["forgotten (window)", "empty"],
    ),
];

fn policy(descriptors: &str) -> String {
    format!("domain: shop\ndescriptors: [{descriptors}]\n")
}

fn loaded(text: &str) -> Loaded {
    parse_with(&[("p.yaml", text)], Dialect::default()).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn said(comparison: &Comparison<'_>) -> Vec<String> {
    let states = comparison.rules.iter().flat_map(|change| &change.states);
    let told = |fate: &Fate| match fate {
        Fate::Forgotten(causes) => {
            let causes: Vec<&str> = causes.iter().map(|cause| cause.name()).collect();
            format!("forgotten ({})", causes.join(", "))
        }
        other => other.name().to_owned(),
    };
    states.map(|state| told(&state.fate)).collect()
}

#[test]
fn what_is_said_of_the_states_of_a_plan_is_what_its_customers_meet() {
    let of = |gold: &str| {
        policy(&format!("{{key: user, rows: {{default: free}}, rate_limit: {{rate: 5/h, plans: {{gold: {gold}}}}}}}"))
    };
    for (new, fate, passed) in
        [("9/h", "kept", 9 - USED), ("9/day", "forgotten (window)", 9), ("unlimited", "forgotten (no such limit)", 20)]
    {
        let (old, new) = (of("7/h"), of(new));
        let (before, now) = (loaded(&old), loaded(&new));
        let comparison = compare(&before.policies, &now.policies);
        let states = &comparison.rules[0].states;
        let of_plan: Vec<_> = states.iter().filter(|state| state.plan == Some("gold")).collect();
        assert_eq!(of_plan[0].limit.requests(), 7);
        assert!(said(&comparison).contains(&fate.to_owned()), "{new}");
        let steps = json!([
            { "rows": "domain,user,plan\nshop,ann,gold\n" },
            { "ask": "user=ann", "domain": "shop", "times": USED, "expect": "ok" },
            { "swap": { "p.yaml": new } },
            { "ask": "user=ann", "domain": "shop", "times": 20, "expect": { "passed": passed } },
        ]);
        assert_passes(&steps, &old, &new);
    }
}

/// Runs one case of steps by the store in memory.
fn assert_passes(steps: &Value, old: &str, about: &str) {
    let text = json!({ "cases": [{ "name": "swap", "policies": { "p.yaml": old }, "steps": steps }] }).to_string();
    let name: Arc<str> = "swap.test.yaml".into();
    let file = test_file::parse(&name, &text, Path::new(".")).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    let report = Runner::new(None, None, Strictness::Lenient).expect("a runtime").run(&file);
    let [case] = &report.cases[..] else { panic!("one case") };
    assert!(matches!(case.outcome, Outcome::Passed), "{about}\n{:?}", case.outcome);
}

/// The remaining hits of the limit that answers, by what the comparison says of the states that the descriptor had and has.
fn remaining_as_said(case: &Case, old: &Loaded, new: &Loaded) -> Option<u64> {
    let entries = |ask: &'static str| -> Vec<weir_engine::Entry<'static>> {
        let pairs = ask.split(',').map(|pair| pair.split_once('=').expect("an entry"));
        pairs.map(|(key, value)| weir_engine::Entry { key, value }).collect()
    };
    let met = |loaded: &'_ Loaded, ask| {
        let domain = loaded.policies.domain("shop").expect("the domain");
        loaded.policies.find(domain, &entries(ask)).rule.map(|rule| rule.id)
    };
    let (before, now) = (met(old, case.ask), met(new, case.ask_new.unwrap_or(case.ask))?);
    let comparison = compare(&old.policies, &new.policies);
    let is_it = |change: &&weir_lab::comparison::RuleChange<'_>| {
        change.new.map(|rule| rule.id) == Some(now) && change.old.map(|rule| rule.id) == before
    };
    let change = comparison.rules.iter().find(is_it);
    let limits = &new.policies.rules()[now as usize].limits;
    let kept = |limit: &weir_engine::Limit| match change {
        // The comparison says nothing of rules that stay as they are.
        None => before == Some(now),
        Some(change) => change.states.iter().any(|state| {
            state.limit.id() == limit.id() && matches!(state.fate, Fate::Kept | Fate::Rescaled | Fate::Moved)
        }),
    };
    limits.iter().map(|limit| limit.capacity() - if kept(limit) { USED } else { 0 }).min()
}

#[test]
fn what_is_said_of_states_is_what_a_swap_does() {
    for case in CASES {
        let (old_text, new_text) = (policy(case.old), policy(case.new));
        let about = format!("{}\n{}", case.old, case.new);
        let (old, new) = (loaded(&old_text), loaded(&new_text));
        assert_eq!(said(&compare(&old.policies, &new.policies)), case.says, "{about}");
        let expect = match remaining_as_said(case, &old, &new) {
            Some(remaining) => json!({ "remaining": remaining }),
            None => json!({ "answer": "ok", "limit": "none" }),
        };
        let ask_new = case.ask_new.unwrap_or(case.ask);
        let steps = json!([
            { "ask": case.ask, "domain": "shop", "hits": USED },
            { "swap": { "p.yaml": new_text } },
            { "ask": ask_new, "domain": "shop", "look": true, "expect": expect },
        ]);
        assert_passes(&steps, &old_text, &about);
    }
}

/// The example of pc-6: 4 of 10 an hour are 4 of 20 an hour, and drain twice as fast.
#[test]
fn a_rescaled_state_drains_at_the_new_rate() {
    let of = |rate: &str| policy(&format!("{{key: user, rate_limit: {{rate: {rate}, algorithm: gcra}}}}"));
    let steps = json!([
        { "ask": "user=ann", "domain": "shop", "hits": 4, "expect": { "remaining": 6 } },
        { "swap": { "p.yaml": of("20/h") } },
        { "ask": "user=ann", "domain": "shop", "look": true, "expect": { "remaining": 16 } },
        { "wait": "6m" },
        { "ask": "user=ann", "domain": "shop", "look": true, "expect": { "remaining": 18 } },
    ]);
    assert_passes(&steps, &of("10/h"), "gcra");
}

#[test]
fn a_domain_with_another_name_begins_empty() {
    let of = |name: &str| format!("domain: {name}\ndescriptors: [{{key: user, rate_limit: 5/h}}]\n");
    let (old_text, new_text) = (of("shop"), of("store"));
    let (old, new) = (loaded(&old_text), loaded(&new_text));
    let comparison = compare(&old.policies, &new.policies);
    assert_eq!(said(&comparison), ["forgotten (domain)", "empty"]);
    let steps = json!([
        { "ask": "user=ann", "domain": "shop", "hits": USED, "expect": { "remaining": 3 } },
        { "swap": { "p.yaml": new_text } },
        { "ask": "user=ann", "domain": "store", "look": true, "expect": { "remaining": 5 } },
        { "ask": "user=ann", "domain": "shop", "look": true, "expect": { "rule": "none" } },
    ]);
    assert_passes(&steps, &old_text, "domain");
}

/// A record of requests, one each second: descriptors in the short form.
fn record(asks: &[&str], values: &str) -> String {
    let header = json!({ "weir_record": 1, "started": "2026-12-01T10:00:00.000000Z", "sample": 1, "values": values });
    let mut lines = vec![header.to_string()];
    for (second, ask) in asks.iter().enumerate() {
        let descriptor = |text: &str| json!({ "entries": [text.split_once('=').expect("an entry")] });
        let descriptors: Vec<Value> = ask.split(' ').map(descriptor).collect();
        let time = format!("2026-12-01T10:00:{second:02}.000000Z");
        lines.push(
            json!({ "time": time, "domain": "shop", "hits": 1, "descriptors": descriptors, "verdict": "ok" })
                .to_string(),
        );
    }
    lines.join("\n") + "\n"
}

/// Compares with traffic.
fn with_traffic(
    old: &str,
    new: &str,
    traffic: &str,
    format: DiffFormat,
    fail_on: &[FailOn],
) -> Result<(Compared, String), NoDiff> {
    let directory = tempfile::TempDir::new().expect("a directory");
    let [old, new, traffic] = [("old.yaml", old), ("new.yaml", new), ("traffic.jsonl", traffic)].map(|(name, text)| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    });
    let diff = Diff {
        old,
        new,
        dialect: DialectArguments::default(),
        traffic: Some(traffic),
        format,
        fail_on: fail_on.to_vec(),
        old_overlay: None,
    };
    let mut out = Vec::new();
    let outcome = run(&diff, &mut out)?;
    Ok((outcome, String::from_utf8(out).expect("text")))
}

fn of_traffic(old: &str, new: &str, traffic: &str) -> Value {
    let (_, text) = with_traffic(&policy(old), &policy(new), traffic, DiffFormat::Json, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str::<Value>(&text).expect("JSON")["traffic"].take()
}

#[test]
fn traffic_tells_whose_answers_change() {
    let asks = [["user=ann"; 8].as_slice(), &["user=bob"; 4], &["card=1"; 3], &["user=ann card=2"; 2]].concat();
    let old = "{key: user, rate_limit: 5/min}, {key: card, rate_limit: 1/min}";
    let new = "{key: user, rate_limit: 3/min}, {key: card, rate_limit: 2/min}";
    let traffic = of_traffic(old, new, &record(&asks, "shown"));
    // Ann: 5 of 8 passed, 3 of 8 do now. Bob: 4 of 4, now 3. Card 1: 1 of 3, now 2. Ann is denied before and now with card 2.
    assert_eq!(
        [&traffic["requests"], &traffic["now_denied"], &traffic["now_passed"]],
        [&json!(17), &json!(3), &json!(1)]
    );
    let rules = json!([
        { "domain": "shop", "old": "user", "new": "user", "now_denied": 3, "now_passed": 0, "errors": 0 },
        { "domain": "shop", "old": "card", "new": "card", "now_denied": 0, "now_passed": 1, "errors": 0 },
    ]);
    assert_eq!(traffic["rules"], rules);
    let descriptors: Vec<_> =
        traffic["descriptors"].as_array().expect("a list").iter().map(|key| &key["descriptor"]).collect();
    assert_eq!(descriptors, ["user=ann", "card=1", "user=bob"]);
}

#[test]
fn traffic_tells_which_rule_is_met_now() {
    let asks = ["user=ann"; 5];
    let (old, new) = (
        "{key: user, rate_limit: 2/min}",
        "{key: user, rate_limit: 2/min}, {key: user, value: ann, rate_limit: 4/min}",
    );
    let traffic = of_traffic(old, new, &record(&asks, "shown"));
    let rules =
        json!([{ "domain": "shop", "old": "user", "new": "user=ann", "now_denied": 0, "now_passed": 2, "errors": 0 }]);
    assert_eq!(traffic["rules"], rules);
    let gone = of_traffic(old, "", &record(&asks, "shown"));
    assert_eq!(
        gone["rules"],
        json!([{ "domain": "shop", "old": "user", "new": null, "now_denied": 0, "now_passed": 3, "errors": 0 }])
    );
}

#[test]
fn traffic_of_domains_that_neither_side_has_is_told() {
    let policy = policy("{key: user, rate_limit: 5/min}");
    let both = record(&["user=ann"; 2], "shown").replacen("\"shop\"", "\"shp\"", 1);
    let (_, text) =
        with_traffic(&policy, &policy, &both, DiffFormat::Text, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert!(text.ends_with("note: 1 request of domains that neither side has: shp\n"), "{text}");
    let lines: Vec<String> = record(&["user=ann"; 12], "shown")
        .lines()
        .enumerate()
        .map(|(number, line)| line.replace("\"shop\"", &format!("\"d{number:02}\"")))
        .collect();
    let many = lines.join("\n");
    let (_, text) =
        with_traffic(&policy, &policy, &many, DiffFormat::Text, &[]).unwrap_or_else(|error| panic!("{error}"));
    let note = "12 requests of domains that neither side has: d01, d02, d03, d04, d05, d06, d07, d08, and more";
    assert!(text.contains(note), "{text}");
}

#[test]
fn descriptors_are_counted_apart_whatever_their_values_hold() {
    let old = "{key: a, rate_limit: 1/min, descriptors: [{key: b, rate_limit: 1/min}]}";
    let asks = [["a=1,b=2"; 3], ["a=1&"; 3]].concat();
    let record = record(&asks, "shown").replace("[\"a\",\"1&\"]", "[\"a\",\"1\"],[\"b\",\"2\"]");
    let traffic = of_traffic(old, &old.replace("1/min", "9/min"), &record);
    let mut descriptors: Vec<_> =
        traffic["descriptors"].as_array().expect("a list").iter().map(|key| key["descriptor"].to_string()).collect();
    descriptors.sort();
    assert_eq!(descriptors, [r#""a=1,b=2""#, r#""a=1\\,b=2""#]);
}

#[test]
fn answers_decide_the_exit() {
    let (old, new) = (policy("{key: user, rate_limit: 5/min}"), policy("{key: user, rate_limit: 3/min}"));
    let (many, few) = (record(&["user=ann"; 5], "shown"), record(&["user=ann"; 3], "shown"));
    for (new, traffic, fail_on, expected) in [
        (&new, &many, &[FailOn::Answers][..], Compared::Differs),
        (&new, &few, &[FailOn::Answers], Compared::Same),
        (&new, &few, &[], Compared::Differs),
        (&old, &many, &[], Compared::Same),
    ] {
        let (outcome, text) =
            with_traffic(&old, new, traffic, DiffFormat::Text, fail_on).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome, expected, "{text}");
    }
    let (old, new) = ("old".into(), "new".into());
    let fail_on = vec![FailOn::Answers];
    let diff = Diff {
        old,
        new,
        dialect: DialectArguments::default(),
        traffic: None,
        format: DiffFormat::Text,
        fail_on,
        old_overlay: None,
    };
    assert!(matches!(run(&diff, &mut Vec::new()), Err(NoDiff::NoTraffic)));
}

#[test]
fn traffic_that_cannot_be_used_is_told_with_its_place() {
    let policy = policy("{key: user, rate_limit: 5/min}");
    let traffic = record(&["user=ann"], "shown") + "{\"time\":\"never\"}\n";
    let error = with_traffic(&policy, &policy, &traffic, DiffFormat::Text, &[]).expect_err("wrong").to_string();
    assert!(error.contains("traffic.jsonl:3:"), "{error}");
    let hidden = record(&["user=~3f9c01d2a47b"], "hidden");
    let after_shown = record(&["user=ann"], "shown") + &hidden;
    for (traffic, place) in [(hidden, "traffic.jsonl:1:1"), (after_shown, "traffic.jsonl:3:1")] {
        let error = with_traffic(&policy, &policy, &traffic, DiffFormat::Text, &[]).expect_err("hidden").to_string();
        let expected = "values: the record hides values, so the rules that they meet are unknown: record with weir tap --values shown";
        assert!(error.ends_with(&format!("{place}: {expected}")), "{error}");
    }
}

#[test]
fn the_page_has_each_member_of_the_json() {
    let (old, new) = (policy("{key: user, rate_limit: 1/min}"), policy("{key: user, rate_limit: 5/min}"));
    let new = new.replace("domain: shop", "domain: shop\non_error: deny");
    let (_, json) = with_traffic(&old, &new, &record(&["user=ann"; 3], "shown"), DiffFormat::Json, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut found = BTreeSet::new();
    members(&serde_json::from_str(&json).expect("JSON"), &mut found);
    let of = |gold: &str| {
        policy(&format!("{{key: user, rows: {{default: free}}, rate_limit: {{rate: 1/min, plans: {{gold: {gold}}}}}}}"))
    };
    let (_, json) = with_traffic(&of("5/min"), &of("5/h"), &record(&["user=ann"; 3], "shown"), DiffFormat::Json, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    members(&serde_json::from_str(&json).expect("JSON"), &mut found);
    let rules = "{key: ip, value: '2001:*', rate_limit: 5/min}, {key: ip, rate_limit: 9/min}";
    let networks = format!("{rules}, {{key: ip, cidr: '2001:db8::/32', rate_limit: 1/min}}");
    let shown = record(&["user=ann"], "shown");
    let (_, json) = with_traffic(&policy(rules), &policy(&networks), &shown, DiffFormat::Json, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    members(&serde_json::from_str(&json).expect("JSON"), &mut found);
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/testing.md")).expect("the page");
    let form = page.split("With `--format json` the report is").nth(1).expect("the section");
    let form = form.split("```").nth(1).expect("the form");
    let written: BTreeSet<String> = members_of_form(form).map(str::to_owned).collect();
    assert_eq!(written, found);
}

/// Values come from callers, and a comment on a pull request is shown to all.
#[test]
fn no_value_of_traffic_becomes_markup() {
    let (old, new) = (policy("{key: user, rate_limit: 1/min}"), policy("{key: user, rate_limit: 5/min}"));
    let traffic = record(&["user=|<img/src=x>`@team`[a](b)\u{202e}\u{1b}[1m"; 3], "shown");
    let (_, markdown) =
        with_traffic(&old, &new, &traffic, DiffFormat::Markdown, &[]).unwrap_or_else(|error| panic!("{error}"));
    let (_, text) = with_traffic(&old, &new, &traffic, DiffFormat::Text, &[]).unwrap_or_else(|error| panic!("{error}"));
    for forbidden in ["<img", "`@", "[a]", "\u{202e}", "\u{1b}"] {
        assert!(!markdown.contains(forbidden), "{forbidden}: {markdown}");
    }
    assert!(text.contains("by descriptor") && !text.contains('\u{202e}') && !text.contains('\u{1b}'), "{text}");
}
