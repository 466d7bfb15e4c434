//! `weir diff`: what it finds, how it tells stricter from looser, and how it is written.

use std::fs;
use std::path::{Path, PathBuf};

use weir_cli::diff::{DialectArguments, Diff, DiffFormat, FailOn, NoDiff, Outcome, run};
use weir_lab::comparison::{Comparison, Direction, Kind, compare};
use weir_policies::{Loaded, parse};

fn loaded(text: &str) -> Loaded {
    parse(&[("p", text)]).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn policy(descriptors: &str) -> String {
    format!("domain: shop\ndescriptors: [{descriptors}]\n")
}

/// Each change of a rule in one line.
fn changes(old: &str, new: &str) -> Vec<String> {
    let (old, new) = (loaded(&policy(old)), loaded(&policy(new)));
    lines(&compare(&old.policies, &new.policies))
}

fn lines(comparison: &Comparison<'_>) -> Vec<String> {
    let path = |rule: Option<&weir_engine::Rule>| rule.map_or_else(|| "-".to_owned(), |rule| rule.path.to_string());
    let line = |change: &weir_lab::comparison::RuleChange<'_>| {
        let example = change.example.as_ref().filter(|_| change.kind == Kind::Moved);
        let example = example.map_or_else(String::new, |example| format!(" ({example})"));
        format!(
            "{} {} > {}{example}: {}",
            change.kind.name(),
            path(change.old),
            path(change.new),
            change.direction.name()
        )
    };
    comparison.rules.iter().map(line).collect()
}

#[test]
fn each_kind_of_change_is_found() {
    for (old, new, expected) in [
        ("{key: a, rate_limit: 5/h}", "{key: a, rate_limit: 5/h}", &[][..]),
        ("{key: a, rate_limit: 5/h}", "{key: a, rate_limit: 4/h}", &["changed a > a: stricter"]),
        ("{key: a, rate_limit: 5/h}", "{key: a, rate_limit: 6/h}", &["changed a > a: looser"]),
        ("", "{key: a, rate_limit: 5/h}", &["added - > a: stricter"]),
        ("{key: a, rate_limit: 5/h}", "", &["removed a > -: looser"]),
        // What a rule takes from another one, and gives back.
        (
            "{key: a, rate_limit: 5/h}",
            "{key: a, rate_limit: 5/h}, {key: a, value: x, rate_limit: 9/h}",
            &["added a > a=x: looser"],
        ),
        (
            "{key: a, rate_limit: 5/h}",
            "{key: a, rate_limit: 5/h}, {key: a, regex: x+, rate_limit: 1/h}",
            &["added a > a=~x+: stricter"],
        ),
        (
            "{key: a, rate_limit: 5/h}, {key: a, cidr: 10.0.0.0/8, rate_limit: 9/h}",
            "{key: a, rate_limit: 5/h}",
            &["removed a=10.0.0.0/8 > a: stricter"],
        ),
        // The same rule for other words.
        (
            "{key: user, rate_limit: 5/h}",
            "{key: tenant, rate_limit: 5/h}",
            &["renamed user > tenant: stricter and looser"],
        ),
        (
            "{key: a, values: [x, y], rate_limit: 5/h}",
            "{key: a, values: [y, z], rate_limit: 5/h}",
            &["renamed a=x,... > a=y,...: stricter and looser"],
        ),
        (
            "{key: a, value: x, rate_limit: 5/h}",
            "{key: a, values: [x, y], rate_limit: 4/h}",
            &["renamed a=x > a=x,...: stricter"],
        ),
        (
            "{key: a, values: [x, y], rate_limit: 5/h}",
            "{key: a, values: [x, z], rate_limit: 5/h}",
            &["changed a=x,... > a=x,...: stricter and looser"],
        ),
        // What the descriptors of a new value met before, and what those of a value that is gone meet.
        (
            "{key: a, values: [x, y], rate_limit: 5/h}",
            "{key: a, values: [x, y, z], rate_limit: 5/h}",
            &["changed a=x,... > a=x,...: stricter"],
        ),
        (
            "{key: a, values: [x, y], rate_limit: 5/h}, {key: a, rate_limit: 3/h}",
            "{key: a, values: [x, y, z], rate_limit: 5/h}, {key: a, rate_limit: 3/h}",
            &["changed a=x,... > a=x,...: looser"],
        ),
        (
            "{key: a, values: [x, y], rate_limit: 5/h}, {key: a, rate_limit: 3/h}",
            "{key: a, value: x, rate_limit: 5/h}, {key: a, rate_limit: 3/h}",
            &["renamed a=x,... > a=x: stricter"],
        ),
        (
            "{key: a, values: [x, y], rate_limit: 5/h}, {key: a, rate_limit: 5/h}",
            "{key: a, values: [x, y, z], rate_limit: 5/h}, {key: a, rate_limit: 5/h}",
            &["changed a=x,... > a=x,...: otherwise"],
        ),
        (
            "{key: a, cidr: 10.0.0.0/8, rate_limit: 5/h}",
            "{key: a, cidr: [10.0.0.0/8, 192.168.0.0/16], rate_limit: 5/h}",
            &["renamed a=10.0.0.0/8 > a=10.0.0.0/8,...: stricter"],
        ),
        (
            "{key: p, descriptors: [{key: a, values: [x, y], rate_limit: 5/h}]}",
            "{key: p, descriptors: [{key: a, values: [x], rate_limit: 5/h}]}",
            &["renamed p|a=x,... > p|a=x: looser"],
        ),
        // Two candidates are no rule with another name.
        (
            "{key: u, rate_limit: 5/h}, {key: v, rate_limit: 5/h}",
            "{key: x, rate_limit: 5/h}, {key: y, rate_limit: 5/h}",
            &["added - > x: stricter", "added - > y: stricter", "removed u > -: looser", "removed v > -: looser"],
        ),
        // The first wildcard of the file is met.
        (
            "{key: a, value: x*, rate_limit: 5/h}, {key: a, value: xy*, rate_limit: 9/h}",
            "{key: a, value: xy*, rate_limit: 9/h}, {key: a, value: x*, rate_limit: 5/h}",
            &["moved a=x* > a=xy* (a=xy): looser"],
        ),
        (
            "{key: a, value: xy*, rate_limit: 9/h}, {key: a, value: x*, rate_limit: 5/h}",
            "{key: a, value: x*, rate_limit: 5/h}, {key: a, value: xy*, rate_limit: 9/h}",
            &["moved a=xy* > a=x* (a=xy): stricter"],
        ),
    ] {
        assert_eq!(changes(old, new), expected, "{old}\n{new}");
    }
}

/// Not here: pairs of algorithms and of flags (amounts.rs).
#[test]
fn stricter_is_told_from_looser() {
    for (old, new, expected) in [
        ("5/h", "120/day", Direction::Looser),
        ("120/day", "5/h", Direction::Stricter),
        ("5/h", "100/day", Direction::Both),
        ("{rate: 5/h, algorithm: gcra, burst: 5}", "{rate: 5/h, algorithm: gcra, burst: 9}", Direction::Looser),
        ("{rate: 5/h, algorithm: gcra, burst: 5}", "{rate: 6/h, algorithm: gcra, burst: 4}", Direction::Both),
        ("5/h", "{rate: 5/h, algorithm: sliding_window_log}", Direction::Stricter),
        ("5/h", "{rate: 4/h, algorithm: gcra}", Direction::Both),
        ("{rate: 5/h, algorithm: gcra}", "{rate: 5/h, algorithm: token_bucket}", Direction::Neither),
        ("5/h", "0/h", Direction::Stricter),
        ("0/h", "1/day", Direction::Looser),
        ("5/h", "{unlimited: true}", Direction::Looser),
        ("{unlimited: true}", "5/h", Direction::Stricter),
        ("5/h", "{rate: 5/h, name: a}", Direction::Neither),
        ("5/h", "{rate: 5/h, alert_at: [80]}", Direction::Neither),
        ("500/h", "{rate: 500/h, lease: 100ms}", Direction::Neither),
        // Outside of its term a limit is not there.
        ("5/h", "{rate: 5/h, until: 2040-01-01}", Direction::Looser),
        ("5/h", "{rate: 5/h, from: 2040-01-01}", Direction::Looser),
        ("{rate: 5/h, from: 2040-01-01, until: 2041-01-01}", "5/h", Direction::Stricter),
        ("{rate: 5/h, until: 2040-01-01}", "{rate: 5/h, until: 2041-01-01}", Direction::Stricter),
        ("{rate: 5/h, until: 2040-01-01}", "{rate: 5/h, from: 2040-01-01}", Direction::Both),
        ("{rate: 5/h, until: 2040-01-01}", "{rate: 4/h, until: 2041-01-01}", Direction::Stricter),
        ("0/h", "{rate: 0/h, until: 2040-01-01}", Direction::Looser),
        // A span within another one leaves more time without the limit.
        ("5/h", "{rate: 5/h, during: Sun 02:00-06:00}", Direction::Looser),
        ("{rate: 5/h, during: Sun 02:00-06:00}", "5/h", Direction::Stricter),
        ("{rate: 5/h, during: Sun 02:00-06:00}", "{rate: 5/h, during: '01:00-06:00'}", Direction::Stricter),
        ("{rate: 5/h, during: Sun 02:00-06:00}", "{rate: 5/h, during: Sun 03:00-07:00}", Direction::Both),
        ("{rate: 5/h, during: Sun 02:00-06:00}", "{rate: 5/h, during: Sun 02:00-06:00 Europe/Berlin}", Direction::Both),
        ("5/h", "{rate: 5/h, during: ['00:00-13:00', '12:00-24:00']}", Direction::Neither),
        ("{rate: 5/h, during: Sun 02:00-06:00}", "{rate: 4/h, during: '01:00-06:00'}", Direction::Stricter),
        ("{rate: 5/h, anchor: first_hit}", "{rate: 5/h, anchor: first_hit, during: '01:00-06:00'}", Direction::Both),
        ("5/h", "{rate: 5/h, counts: requests}", Direction::Both),
        ("{rate: 5/h, counts: requests}", "{rate: 4/h, counts: requests}", Direction::Stricter),
        ("{rate: 31/month, calendar: true}", "{rate: 30/month, calendar: true}", Direction::Stricter),
    ] {
        let of = |limit: &str| policy(&format!("{{key: a, rate_limit: {limit}}}"));
        let (before, after) = (loaded(&of(old)), loaded(&of(new)));
        let comparison = compare(&before.policies, &after.policies);
        let tends: Vec<Direction> = comparison.rules.iter().map(|change| change.direction).collect();
        assert_eq!(tends, [expected], "{old} {new}");
    }
    for (old, new, expected) in [
        ("rate_limit: 5/h", "rate_limits: [5/h, 50/day]", "changed a > a: stricter"),
        ("rate_limits: [5/h, 50/day]", "rate_limit: 5/h", "changed a > a: looser"),
        ("rate_limits: [5/h, 50/day]", "rate_limits: [6/h, 40/day]", "changed a > a: stricter and looser"),
        ("rate_limit: 5/h", "rate_limits: [5/h, {rate: 50/day, shadow: true}]", "changed a > a: otherwise"),
        ("rate_limits: [5/h, {rate: 50/day, shadow: true}]", "rate_limits: [5/h, 50/day]", "changed a > a: stricter"),
        ("rate_limits: [5/h, 50/day]", "rate_limits: [5/h, {rate: 9/day, shadow: true}]", "changed a > a: looser"),
        ("rate_limit: 5/h", "shadow_mode: true, rate_limit: 1/h", "changed a > a: looser"),
        ("shadow_mode: true, rate_limit: 1/h", "rate_limit: 5/h", "changed a > a: stricter"),
        ("shadow_mode: true, rate_limit: 1/h", "shadow_mode: true, rate_limit: 5/h", "changed a > a: otherwise"),
        ("rate_limit: 5/h", "quota_mode: true, rate_limit: 5/h", "changed a > a: looser"),
        ("rate_limit: 5/h", "on_error: deny, rate_limit: 5/h", "changed a > a: otherwise"),
        (
            "value: x*, rate_limit: 5/h",
            "value: x*, share_threshold: true, rate_limit: 5/h",
            "changed a=x* > a=x*: stricter",
        ),
        ("rate_limit: 5/h", "metadata: {a: b}, rate_limit: 5/h", "changed a > a: otherwise"),
        ("metadata: {a: c}, rate_limit: 5/h", "metadata: {a: b}, rate_limit: 5/h", "changed a > a: otherwise"),
        ("rate_limit: 5/h", "detailed_metric: true, rate_limit: 5/h", "changed a > a: otherwise"),
        // Plans: a row whose plan a rule lacks has the default.
        (&*planned("gold: 9/h"), &*planned("gold: 8/h"), "changed a > a: stricter"),
        (&planned("gold: 9/h"), &planned("gold: 10/h"), "changed a > a: looser"),
        (&planned("gold: 9/h"), &planned("gold: unlimited"), "changed a > a: looser"),
        (&planned("gold: unlimited"), &planned("gold: 900/h"), "changed a > a: stricter"),
        (&planned("gold: 9/h, lead: 1/h"), &planned("lead: 1/h"), "changed a > a: stricter"),
        (&planned("gold: 9/h"), &planned("gold: 9/h, lead: 1/h"), "changed a > a: stricter"),
        (&planned("gold: 9/h, lead: 1/h"), &planned("gold: 8/h, lead: 2/h"), "changed a > a: stricter and looser"),
        (&planned("gold: 9/h"), &planned("gold: 9/min"), "changed a > a: looser"),
        (
            &planned("gold: 9/h"),
            "rows: {default: basic}, rate_limit: {rate: 5/h, plans: {gold: 9/h}}",
            "changed a > a: otherwise",
        ),
        (
            &planned("gold: 9/h"),
            "rows: {default: free}, rate_limit: {rate: 4/h, plans: {gold: 9/h}}",
            "changed a > a: stricter",
        ),
        // Before, no customer had numbers of its own; when rows end, some may have had any.
        ("rate_limit: 5/h", "rows: {default: free}, rate_limit: 5/h", "changed a > a: otherwise"),
        ("rows: {default: free}, rate_limit: 5/h", "rate_limit: 5/h", "changed a > a: stricter and looser"),
        // Rows that name a limit have no effect without it. Those of an only limit can leave the name out.
        (&named("", "rpm", ""), &named("", "rate", ""), "changed a > a: stricter and looser"),
        (&named("", "rpm", ""), &planned("gold: 9/h"), "changed a > a: stricter and looser"),
        (&planned("gold: 9/h"), &named("", "rpm", ""), "changed a > a: otherwise"),
        (&named("", "rpm", ""), &named("", "rpm", ", 90/day"), "changed a > a: stricter and looser"),
        (&named("", "rpm", ", 90/day"), &named("", "rpm", ", 90/30h"), "changed a > a: stricter and looser"),
        (
            &named("", "rpm", ", {rate: 90/day, name: rpd}"),
            &named("", "rpm", ", {rate: 80/day, name: rpd}"),
            "changed a > a: stricter",
        ),
        (
            &named("shadow_mode: true, ", "rpm", ""),
            &named("shadow_mode: true, ", "rate", ""),
            "changed a > a: otherwise",
        ),
        (&named("", "rpm", ""), &named("shadow_mode: true, ", "rate", ""), "changed a > a: looser"),
        ("rate_limit: {rate: 5/h, name: rpm}", "rate_limit: {rate: 5/h, name: rate}", "changed a > a: otherwise"),
        (
            &format!("quota_mode: true, {}", planned("gold: 9/h")),
            &format!("quota_mode: true, {}", planned("gold: unlimited")),
            "changed a > a: looser",
        ),
        (
            &format!("shadow_mode: true, {}", planned("gold: 9/h")),
            &format!("shadow_mode: true, {}", planned("gold: 1/h")),
            "changed a > a: otherwise",
        ),
    ] {
        let of = |rest: &str| format!("{{key: a, {rest}}}");
        assert_eq!(changes(&of(old), &of(new)), [expected], "{old} {new}");
    }
}

/// A rule with 5 hits an hour under this name, and more limits.
fn named(mode: &str, name: &str, more: &str) -> String {
    format!("{mode}rows: {{default: free}}, rate_limits: [{{rate: 5/h, name: {name}, plans: {{gold: 9/h}}}}{more}]")
}

/// A rule with 5 hits an hour and plans.
fn planned(plans: &str) -> String {
    format!("rows: {{default: free}}, rate_limit: {{rate: 5/h, plans: {{{plans}}}}}")
}

#[test]
fn a_changed_plan_is_shown_with_its_name_and_the_states_of_its_customers() {
    let of = |default: u32, gold: &str| {
        policy(&format!(
            "{{key: a, rows: {{default: free}}, rate_limits: [{{rate: {default}/h, plans: {{gold: {gold}}}}}, 50/day]}}"
        ))
    };
    let (_, text) = diff(&of(5, "9/h"), &of(5, "90/min"), DiffFormat::Text, &[]);
    insta::assert_snapshot!(text, @"
    domain shop
      changed   a   looser   new.yaml:2:15
        - plan gold: 9 per hour, fixed_window
        + plan gold: 90 per minute, fixed_window
          for example a=x
          state of 5 per hour: kept: used hits count
          state of 50 per day: kept: used hits count
          state of plan gold: 9 per hour: forgotten (window)
          state of plan gold: 90 per minute: begins empty

    1 changed, 1 looser, states of 1 change forgotten; 0 rules as before
    ");
    // What a plan takes from the default is said once.
    let (_, text) = diff(&of(5, "9/h"), &of(4, "9/h"), DiffFormat::Text, &[]);
    assert!(text.contains("4 per hour") && !text.contains("plan gold"), "{text}");
    let (_, json) = diff(&of(5, "9/h"), &of(5, "unlimited"), DiffFormat::Json, &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rule = &json["rules"][0];
    assert_eq!(
        (&rule["tend"], &rule["effects"][0]["what"], &rule["effects"][0]["plan"]),
        (&"looser".into(), &"plan".into(), &"gold".into())
    );
    assert!(rule["effects"][0]["new"].is_null(), "{json}");
    assert_eq!(
        (&rule["states"][0]["plan"], &rule["states"][0]["fate"]),
        (&serde_json::Value::Null, &"kept".into()),
        "{json}"
    );
}

/// [rw-5]
#[test]
fn states_that_rows_move_from_a_second_redis_are_named() {
    let of = |rest: &str| format!("domain: shop\ndescriptors: [{{key: a, {rest}rate_limit: 5/s}}]\n");
    let (_, text) = diff(&of(""), &of("rows: {default: free}, "), DiffFormat::Text, &[]);
    let moved = "state of 5 per second: moved: used hits count, but with redis.per_second.url it begins empty\n";
    assert!(text.contains(moved), "{text}");
}

#[test]
fn domains_are_compared() {
    let of = |name: &str, rest: &str| format!("domain: {name}\n{rest}descriptors: [{{key: a, rate_limit: 5/h}}]\n");
    let compared = |old: &str, new: &str| {
        let (old, new) = (loaded(old), loaded(new));
        let comparison = compare(&old.policies, &new.policies);
        let domains: Vec<_> = comparison
            .domains
            .iter()
            .map(|change| (change.kind, change.name.to_owned(), change.was.map(str::to_owned)))
            .collect();
        (domains, lines(&comparison))
    };
    let (shop, store) = (of("shop", ""), of("store", ""));
    let renamed = vec![(Kind::Renamed, "store".to_owned(), Some("shop".to_owned()))];
    assert_eq!(compared(&shop, &store), (renamed, vec!["renamed a > a: stricter and looser".to_owned()]));
    let changed = vec![(Kind::Changed, "shop".to_owned(), None)];
    assert_eq!(compared(&shop, &of("shop", "on_error: deny\n")), (changed.clone(), vec![]));
    assert_eq!(compared(&of("shop", "charging: atomic\n"), &shop), (changed, vec![]));
    let counted = |old: &str, new: &str| {
        let (old, new) = (loaded(old), loaded(new));
        let comparison = compare(&old.policies, &new.policies);
        [Direction::Stricter, Direction::Looser].map(|direction| comparison.with_direction(direction))
    };
    assert_eq!(counted(&shop, &of("shop", "on_error: deny\n")), [0, 0]);
    assert_eq!(counted(&shop, &of("shop", "charging: independent\n")), [1, 1]);
    let other = "domain: store\ndescriptors: [{key: b, rate_limit: 6/h}]\n";
    let (domains, rules) = compared(&shop, other);
    assert_eq!(domains, [(Kind::Removed, "shop".to_owned(), None), (Kind::Added, "store".to_owned(), None)]);
    assert_eq!(rules, ["removed a > -: looser", "added - > b: stricter"]);
}

/// A comparison as a text for people, without options.
fn plain(old: impl Into<PathBuf>, new: impl Into<PathBuf>) -> Diff {
    Diff {
        old: old.into(),
        new: new.into(),
        dialect: DialectArguments::default(),
        traffic: None,
        format: DiffFormat::Text,
        fail_on: Vec::new(),
        old_overlay: None,
    }
}

fn diff(old: &str, new: &str, format: DiffFormat, fail_on: &[FailOn]) -> (Outcome, String) {
    let directory = tempfile::TempDir::new().unwrap();
    let [old, new] = [("old.yaml", old), ("new.yaml", new)].map(|(name, text)| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    });
    let diff = Diff { format, fail_on: fail_on.to_vec(), ..plain(old, new) };
    let mut out = Vec::new();
    let outcome = run(&diff, &mut out).unwrap();
    let place = format!("{}/", directory.path().display());
    (outcome, String::from_utf8(out).unwrap().replace(&place, ""))
}

/// Callers are no policies: other rights beside the same policies are no difference.
#[test]
fn files_of_callers_beside_policies_are_not_compared() {
    let directory = tempfile::TempDir::new().unwrap();
    let side = |name: &str, callers: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("shop.yaml"), "domain: shop\ndescriptors: [{key: user, rate_limit: 5/h}]\n").unwrap();
        fs::write(path.join("mesh.callers.yaml"), callers).unwrap();
        path
    };
    let diff = plain(
        side("old", "callers: [{name: a, listeners: [grpc], domains: [shop], may: [charge]}]\n"),
        side("new", "callers: [{name: b, listeners: [grpc], domains: [bank], may: [peek]}]\n"),
    );
    let mut out = Vec::new();
    assert_eq!(run(&diff, &mut out).unwrap(), Outcome::Same, "{}", String::from_utf8_lossy(&out));
}

#[test]
fn rows_of_files_that_lose_their_effect_are_counted() {
    let directory = tempfile::TempDir::new().unwrap();
    let write = |side: &str, name: &str, text: &str| {
        let path = directory.path().join(side);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(name), text).unwrap();
        path
    };
    let policy = |name: &str| {
        let limits = format!("[{{rate: 5/h, name: {name}, plans: {{gold: 9/h}}}}]");
        policy(&format!(
            "{{key: a, rows: {{default: free}}, rate_limits: {limits}}}, {{key: b, rows: {{default: free}}, rate_limits: {limits}}}"
        ))
    };
    let old = write("old", "p.yaml", &policy("rpm"));
    let rows = "domain,descriptor,plan,limits\nshop,a=1,gold,\nshop,a=2,,rpm=9/h\nshop,a=3,,7/h\nshop,b=4,,rpm=9/h\nshop,b=5,,rpm=8/h\n";
    write("old", "c.rows.csv", rows);
    let new = write("new", "p.yaml", &policy("rate"));
    let compared = |format| {
        let mut out = Vec::new();
        run(&Diff { format, ..plain(&old, &new) }, &mut out).unwrap();
        String::from_utf8(out).unwrap().replace(&format!("{}/", directory.path().display()), "")
    };
    insta::assert_snapshot!(compared(DiffFormat::Text), @"
    domain shop
      changed   a   stricter and looser   new/p.yaml:2:15
        - 5 per hour, fixed_window, name rpm
        + 5 per hour, fixed_window, name rate
        - plan gold: 9 per hour, fixed_window, name rpm
        + plan gold: 9 per hour, fixed_window, name rate
          names in rows: none, rpm -> none, rate
          1 row without effect now: the default plan applies
          for example a=x
          state of 5 per hour: kept: used hits count
          state of plan gold: 9 per hour: kept: used hits count
      changed   b   stricter and looser   new/p.yaml:2:108
        - 5 per hour, fixed_window, name rpm
        + 5 per hour, fixed_window, name rate
        - plan gold: 9 per hour, fixed_window, name rpm
        + plan gold: 9 per hour, fixed_window, name rate
          names in rows: none, rpm -> none, rate
          2 rows without effect now: the default plan applies
          for example b=x
          state of 5 per hour: kept: used hits count
          state of plan gold: 9 per hour: kept: used hits count

    2 changed, 2 stricter, 2 looser, 3 rows without effect now; 0 rules as before
    ");
    let json: serde_json::Value = serde_json::from_str(&compared(DiffFormat::Json)).unwrap();
    assert_eq!(json["summary"]["lost_rows"], 3);
    let of_rule = |number: usize| json["rules"][number]["effects"].as_array().unwrap().last().unwrap()["old"].clone();
    assert_eq!((of_rule(0), of_rule(1)), (1.into(), 2.into()));
    assert!(compared(DiffFormat::Markdown).contains("3 rows without effect now"));
    // The files beside the new policies count, if there are any.
    write("new", "c.rows.csv", &rows.replace("rpm=", "rate="));
    assert!(!compared(DiffFormat::Text).contains("without effect"));
    write("new", "c.rows.csv", "domain,tenant\n");
    let refused = run(&plain(&old, &new), &mut Vec::new());
    assert!(matches!(refused, Err(NoDiff::Rows(problems)) if problems[0].contains("no column plan")));
}

const OLD: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: 10/s
  - key: card
    rate_limit: 5/h
  - key: path
    value: /pay/*
    rate_limits: [{rate: 100/h, algorithm: gcra}, 5/s]
  - key: same
    rate_limit: 1/s
";
const NEW: &str = "\
domain: shop
on_error: deny
descriptors:
  - key: user
    rate_limit: 10/min
  - key: user
    value: staff
    rate_limit: 50/s
  - key: path
    value: /pay/*
    rate_limits: [{rate: 200/h, algorithm: gcra}, 5/s]
  - key: same
    rate_limit: 1/s
";

#[test]
fn the_text_is_for_people() {
    let (outcome, text) = diff(OLD, NEW, DiffFormat::Text, &[]);
    assert_eq!(outcome, Outcome::Differs);
    insta::assert_snapshot!(text, @"
    domain shop changed
          on_error: the server's -> deny

    domain shop
      changed   user   stricter   new.yaml:4:5
        - 10 per second, fixed_window
        + 10 per minute, fixed_window
          for example user=x: 10 per second -> 10 per minute
          state of 10 per second: forgotten (window)
          state of 10 per minute: begins empty
      added     user=staff   looser   new.yaml:6:5
        - 10 per second, fixed_window
        + 50 per second, fixed_window
          before, these descriptors matched user
          for example user=staff: 10 per second -> 50 per second
          state of 10 per second: kept: used hits count
      changed   path=/pay/*   looser   new.yaml:9:5
        - 100 per hour, gcra burst 100
        + 200 per hour, gcra burst 200
          for example path=/pay/: 100 per hour and 5 per second -> 200 per hour and 5 per second
          state of 100 per hour: rescaled: used hits count, and drain at the new rate
          state of 5 per second: kept: used hits count
      removed   card   looser   old.yaml:5:5
        - 5 per hour, fixed_window
          now these descriptors match no rule and pass
          for example card=x: 5 per hour -> no limit
          state of 5 per hour: forgotten (no rule)

    1 added, 1 removed, 2 changed, 1 stricter, 3 looser, states of 2 changes forgotten, 1 domain; 1 rule as before
    ");
    let (outcome, text) = diff(OLD, OLD, DiffFormat::Text, &[]);
    assert_eq!((outcome, text.as_str()), (Outcome::Same, "no change in 4 rules\n"));
}

#[test]
fn a_rule_that_is_gone_says_so_and_nothing_else() {
    let both = "domain: shop\ndescriptors: [{key: a, rate_limit: 1/s}, {key: b, rate_limit: {unlimited: true}}]";
    let one = "domain: shop\ndescriptors: [{key: a, rate_limit: 1/s}]";
    let (_, text) = diff(both, one, DiffFormat::Text, &[]);
    assert!(
        text.contains("removed   b   otherwise   old.yaml:2:42\n      now these descriptors match no rule and pass"),
        "{text}"
    );
    let (_, text) = diff(one, both, DiffFormat::Text, &[]);
    assert!(text.contains("unlimited: false -> true"), "{text}");
    // An example is spelled as weir explain reads it.
    let lists = ["{key: a, value: 'x,*', rate_limit: 5/h}", "{key: a, value: 'x,y*', rate_limit: 9/h}"];
    let moved = changes(&lists.join(", "), &[lists[1], lists[0]].join(", "));
    assert_eq!(moved, ["moved a=x,* > a=x,y* (a=x\\,y): looser"]);
}

#[test]
fn the_markdown_is_for_a_pull_request() {
    let (_, text) = diff(OLD, NEW, DiffFormat::Markdown, &[]);
    insta::assert_snapshot!(text, @"
    **weir diff**: 1 added, 1 removed, 2 changed, 1 stricter, 3 looser, states of 2 changes forgotten, 1 domain; 1 rule as before

    | domain | |
    | --- | --- |
    | <code>shop</code> | changed<br>on&#95;error&#58; the server&#39;s -&#62; deny |

    | domain | rule | | change | states |
    | --- | --- | --- | --- | --- |
    | <code>shop</code> | <code>user</code><br>new.yaml&#58;4&#58;5 | changed, **stricter** | <del>10 per second, fixed&#95;window</del><br><ins>10 per minute, fixed&#95;window</ins><br>for example user=x&#58; 10 per second -&#62; 10 per minute | 10 per second&#58; forgotten &#40;window&#41;<br>10 per minute&#58; begins empty |
    | <code>shop</code> | <code>user=staff</code><br>new.yaml&#58;6&#58;5 | added, **looser** | <del>10 per second, fixed&#95;window</del><br><ins>50 per second, fixed&#95;window</ins><br>before, these descriptors matched user<br>for example user=staff&#58; 10 per second -&#62; 50 per second | 10 per second&#58; kept&#58; used hits count |
    | <code>shop</code> | <code>path=/pay/&#42;</code><br>new.yaml&#58;9&#58;5 | changed, **looser** | <del>100 per hour, gcra burst 100</del><br><ins>200 per hour, gcra burst 200</ins><br>for example path=/pay/&#58; 100 per hour and 5 per second -&#62; 200 per hour and 5 per second | 100 per hour&#58; rescaled&#58; used hits count, and drain at the new rate<br>5 per second&#58; kept&#58; used hits count |
    | <code>shop</code> | <code>card</code><br>old.yaml&#58;5&#58;5 | removed, **looser** | <del>5 per hour, fixed&#95;window</del><br>now these descriptors match no rule and pass<br>for example card=x&#58; 5 per hour -&#62; no limit | 5 per hour&#58; forgotten &#40;no rule&#41; |
    ");
}

#[test]
fn the_json_has_all_of_it() {
    let (_, text) = diff(OLD, NEW, DiffFormat::Json, &[]);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["summary"]["added"], 1);
    assert_eq!(document["summary"]["same"], 1);
    assert_eq!(document["domains"][0]["effects"][0]["what"], "on_error");
    let rules = document["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 4);
    insta::assert_snapshot!(rules[0], @r#"{"change":"changed","domain":"shop","effects":[{"new":"10 per minute, fixed_window","old":"10 per second, fixed_window","tend":"stricter","what":"limit"}],"example":"user=x","met":true,"new":{"column":5,"file":"new.yaml","line":4,"path":"user"},"old":{"column":5,"file":"old.yaml","line":3,"path":"user"},"states":[{"causes":["window"],"fate":"forgotten","limit":"10 per second, fixed_window"},{"causes":[],"fate":"empty","limit":"10 per minute, fixed_window"}],"tend":"stricter"}"#);
}

/// Names and values come from whoever writes a policy, and a comment on a pull request is shown to all.
#[test]
fn no_name_or_value_becomes_markup() {
    let value = r#"|<img src=x onerror=alert(1)>`@team`\n[a](http://b)~~*_#\u{202e}"#;
    let text = format!(
        "domain: {value:?}\ndescriptors: [{{key: {value:?}, value: {value:?}, rate_limit: {{rate: 5/h, name: {value:?}}}}}]\n"
    );
    let text = text.replace("\\u{202e}", "\\u202e").replace("\\\\", "\\");
    let (_, markdown) = diff("domain: d\n", &text, DiffFormat::Markdown, &[]);
    for forbidden in ["<img", "`@", "@team", "[a]", "~~", "\u{202e}", "onerror=alert(1)"] {
        assert!(!markdown.contains(forbidden), "{forbidden}: {markdown}");
    }
    for line in markdown.lines().filter(|line| line.starts_with('|')) {
        let columns = line.matches('|').count();
        assert!(columns == 3 || columns == 6, "{line}");
    }
    let (_, plain) = diff("domain: d\n", &text, DiffFormat::Text, &[]);
    assert!(!plain.contains('\u{202e}') && plain.is_ascii(), "{plain}");
}

#[test]
fn a_long_report_is_cut_in_markdown_only() {
    let rules: Vec<String> = (0..300).map(|i| format!("{{key: k{i}, rate_limit: {}/h}}", i + 1)).collect();
    let new = policy(&rules.join(", "));
    let (_, markdown) = diff("domain: shop\n", &new, DiffFormat::Markdown, &[]);
    assert!(markdown.contains("and 200 more rules") && markdown.len() < 65_536, "{} bytes", markdown.len());
    let (_, text) = diff("domain: shop\n", &new, DiffFormat::Text, &[]);
    assert_eq!(text.matches("  added ").count(), 300);

    // Long names and several limits fill a comment with fewer rules.
    let limits =
        |i: usize| format!("[{{rate: {}/min, name: a_b_c_{i}}}, {{rate: 9/h, algorithm: gcra, name: d_e_{i}}}]", i + 1);
    let wide = |i: usize| format!("{{key: {}_{i}, rate_limits: {}}}", "a_".repeat(60), limits(i));
    let new = policy(&(0..100).map(wide).collect::<Vec<_>>().join(", "));
    let (_, markdown) = diff("domain: shop\n", &new, DiffFormat::Markdown, &[]);
    let rows = markdown.lines().filter(|line| line.starts_with("| <code>shop")).count();
    let more = format!("and {} more rules: `weir diff` prints all of them", 100 - rows);
    assert!(
        markdown.contains(&more) && (10..100).contains(&rows) && markdown.len() < 65_536,
        "{rows} {}",
        markdown.len()
    );
}

#[test]
fn the_exit_says_what_was_asked_for() {
    let (strict, loose) = (policy("{key: a, rate_limit: 5/h}"), policy("{key: a, rate_limit: 6/h}"));
    let other = policy("{key: a, rate_limit: {rate: 5/h, algorithm: sliding_window_log}}");
    for (old, new, fail_on, expected) in [
        (&strict, &strict, &[][..], Outcome::Same),
        (&strict, &loose, &[], Outcome::Differs),
        (&strict, &loose, &[FailOn::Stricter], Outcome::Same),
        (&strict, &loose, &[FailOn::Stricter, FailOn::Looser], Outcome::Differs),
        (&loose, &strict, &[FailOn::Stricter], Outcome::Differs),
        (&strict, &loose, &[FailOn::Forgotten], Outcome::Same),
        (&strict, &other, &[FailOn::Forgotten], Outcome::Differs),
    ] {
        assert_eq!(diff(old, new, DiffFormat::Text, fail_on).0, expected, "{old}{new}{fail_on:?}");
    }
}

fn told(old: &str, new: &str, fail_on: &[FailOn]) -> (Outcome, String) {
    diff(&policy(old), &policy(new), DiffFormat::Text, fail_on)
}

fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
}

/// Report: after another scale the example told of a thousandth of the budget.
#[test]
fn another_unit_of_a_limit_is_shown_with_its_hits() {
    let of =
        |scale: u32| format!("{{key: a, rate_limit: {{rate: 5_000_000/day, amount: {{in: usd, scale: {scale}}}}}}}");
    let (_, text) = told(&of(1_000), &of(1_000_000), &[]);
    let lines = ["changed   a   otherwise", "- 5000.00 usd per day", ", 5000000 hits", "+ 5.00 usd per day"];
    assert_has(&text, &lines);
    assert_has(&text, &["for example a=x\n"]);
}

#[test]
fn a_renamed_limit_is_no_longer_replaced() {
    let tenant = "{key: tenant, rate_limit: {rate: 500/s, replaces: [{name: per_user}]}}";
    let of = |name: &str| format!("{tenant}, {{key: user, rate_limit: {{rate: 5/s, name: {name}}}}}");
    let (outcome, text) = told(&of("per_user"), &of("of_user"), &[FailOn::Stricter]);
    assert_eq!(outcome, Outcome::Differs, "{text}");
    let example = "for example tenant=x and user=x in one request: replaced -> 5 per second";
    assert_has(&text, &["changed   user   stricter", example]);
    let (_, text) = told(&of("of_user"), &of("per_user"), &[]);
    let example = "for example tenant=x and user=x in one request: 5 per second -> replaced";
    assert_has(&text, &["changed   user   looser", example]);
    // The same where it is the other rule that changes.
    let silent = of("per_user").replace(", replaces: [{name: per_user}]", "");
    let (_, text) = told(&of("per_user"), &silent, &[]);
    assert_has(&text, &["changed   tenant   stricter", "for example tenant=x and user=x in one request: replaced"]);
}

#[test]
fn a_change_of_a_rule_that_nothing_can_meet_is_not_stricter() {
    let of =
        |hits| format!("{{key: a, regex: '(?s)x.*', rate_limit: 5/h}}, {{key: a, regex: xy, rate_limit: {hits}/h}}");
    let (outcome, text) = told(&of(9), &of(1), &[FailOn::Stricter, FailOn::Looser, FailOn::Forgotten]);
    assert_eq!(outcome, Outcome::Same, "{text}");
    assert_has(&text, &["changed   a=~xy   otherwise", "no request matches it, before and now"]);
    let (_, text) = told(&of(9), "{key: a, regex: '(?s)x.*', rate_limit: 5/h}", &[]);
    assert_has(&text, &["removed   a=~xy   otherwise", "no request can match it"]);
}

#[test]
fn a_quota_that_is_new_opens_requests_beside_other_quotas() {
    let old = "{key: user, quota_mode: true, rate_limit: 5/h}";
    let new = format!("{old}, {{key: tenant, quota_mode: true, rate_limit: 9/h}}");
    assert!(told(old, &new, &[]).1.contains("added     tenant   stricter and looser"));
    assert!(told(&new, old, &[]).1.contains("removed   tenant   stricter and looser"));
    let alone = "{key: tenant, quota_mode: true, rate_limit: 9/h}";
    assert!(told("{key: tenant, rate_limit: {unlimited: true}}", alone, &[]).1.contains("tenant   stricter "));
}

#[test]
fn what_could_not_be_told_is_an_exit_of_its_own() {
    // Each value of both is an address in the network, which does not follow from its text.
    let rules = ["{key: a, regex: 'b::[0-9]', rate_limit: 5/h}", "{key: a, regex: '[b]::[0-9]', rate_limit: 9/h}"];
    let network = "{key: a, cidr: '::/0', rate_limit: 7/h}";
    let (old, new) = ([rules[0], rules[1], network].join(", "), [rules[1], rules[0], network].join(", "));
    let (outcome, text) = told(&old, &new, &[]);
    assert_eq!(outcome, Outcome::Unknown, "{text}");
    assert_has(
        &text,
        &["could not tell   shop   a=~[b]::[0-9]", "networks beside patterns", "in 1 case; no other change"],
    );
    assert_eq!(told(&old, &new, &[FailOn::Unknown]).0, Outcome::Differs);
    assert_eq!(told(&old, &new, &[FailOn::Stricter]).0, Outcome::Unknown);
    let (_, json) = diff(&policy(&old), &policy(&new), DiffFormat::Json, &[]);
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["summary"]["unknown"], 1);
    assert!(document["unknown"][0]["old"]["line"].is_u64() && document["unknown"][0]["why"].is_string(), "{json}");
    // A change that is known decides the exit.
    let (outcome, _) = told(&old, &format!("{new}, {{key: b, rate_limit: 1/h}}"), &[]);
    assert_eq!(outcome, Outcome::Differs);
}

#[test]
fn policies_that_are_wrong_are_told() {
    let error = run(&plain("examples/quickstart", "no such directory"), &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, NoDiff::Policies(problems) if problems.contains("no such directory")), "{error}");
    // Of both sides at once.
    let error = run(&plain("nor this one", "no such directory"), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("nor this one: ") && error.contains("\nno such directory: "), "{error}");
}

#[test]
fn the_first_policies_are_compared_with_nothing() {
    let directory = tempfile::TempDir::new().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    for path in [&old, &new] {
        fs::create_dir(path).unwrap();
    }
    fs::write(new.join("shop.yaml"), policy("{key: user, rate_limit: 5/h}")).unwrap();
    let ran = |old: &Path, new: &Path| {
        let mut out = Vec::new();
        run(&plain(old, new), &mut out).map(|_| String::from_utf8(out).unwrap()).map_err(|error| error.to_string())
    };
    let report = ran(&old, &new).unwrap();
    assert!(report.contains("domain shop added") && report.contains("1 added, 1 stricter"), "{report}");
    // Neither a missing directory nor policies that are all gone.
    assert!(ran(&directory.path().join("missing"), &new).unwrap_err().contains("missing: No such file"));
    assert!(ran(&new, &old).unwrap_err().contains("old: no policy files"));
}

/// Ten times the rules may take ten times as long; comparing all to all would take a hundred times.
#[test]
fn rules_are_compared_without_comparing_all_to_all() {
    let took = |rules: usize| {
        let of = |first: usize, hits: usize| {
            let rule = |i| format!("- {{key: a, value: v{i}, rate_limit: {hits}/h}}\n");
            format!("domain: d\ndescriptors:\n{}", (first..first + rules).map(rule).collect::<String>())
        };
        // Half of them change, a quarter each is new or gone.
        let (old, new) = (loaded(&of(0, 5)), loaded(&of(rules / 2, 6)));
        let started = std::time::Instant::now();
        let comparison = compare(&old.policies, &new.policies);
        assert_eq!(comparison.rules.len(), rules / 2 * 3);
        started.elapsed()
    };
    // A busy machine can only make a run look slower, so the best of a few counts.
    let few = (0..3).map(|_| took(1_000)).min().unwrap();
    let many = (0..3).map(|_| took(10_000)).find(|&many| many < few * 40);
    assert!(many.is_some(), "1,000 rules took {few:?}, ten times as many over 40 times that");
}
