//! `request_limit` and `weigh` in policies: what `weir explain` and `weir diff` show of them, overlays, and bounds.

use std::fs;

use tempfile::TempDir;
use weir_cli::diff::{self, DialectArguments, Diff, DiffFormat};
use weir_cli::explain;
use weir_engine::weigh::{FACTORS_MAX, WEIGHING_ENTRIES_MAX};
use weir_policies::{Dialect, OverlayFile, Reading, parse, parse_with};

const WEIGHED: &str = "domain: ai
descriptors:
- key: team
  weigh: {entry: model, by: {large: 30, small: 1}, default: 10}
  request_limit: {numbers: budget}
  rate_limits: [{rate: 1000/d, name: budget}, 50/min]
- {key: model, rate_limit: 5/s}
";

fn directory(policy: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.yaml"), policy).unwrap();
    dir
}

fn explained(policy: &str, descriptors: &[&[(&str, &str)]]) -> String {
    let dir = directory(policy);
    let of = |entries: &&[(&str, &str)]| {
        entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    let descriptors: Vec<_> = descriptors.iter().map(of).collect();
    let mut out = Vec::new();
    explain::run(dir.path(), Dialect::default(), "ai", &descriptors, &mut out).unwrap();
    String::from_utf8(out).unwrap().replace(&format!("{}/", dir.path().display()), "")
}

/// [mt-12] [mt-13]
#[test]
fn explain_shows_the_factor_and_the_descriptor_without_the_entry() {
    let told = explained(
        WEIGHED,
        &[
            &[("model", "large"), ("team", "red")],
            &[("team", "red")],
            &[("model", "large")],
            &[("model", "a"), ("team", "red"), ("model", "b")],
        ],
    );
    insta::assert_snapshot!(told, @r#"
    domain ai   p.yaml:1:9   on_error the server's

    descriptor 1   model=large, team=red
      hits times 30, by model=large, which is no part of the descriptor below
      team=red   key alone   p.yaml:3:3
      rule team   p.yaml:3:3
        1000 per day   fixed_window, name budget, request_limit numbers of budget, weigh model: large=30, small=1, default=10
          key w1:{ai|team=red}f86400s
        50 per minute   fixed_window, request_limit numbers of budget, weigh model: large=30, small=1, default=10
          key w1:{ai|team=red}f60s
        on_error the server's

    descriptor 2   team=red
      hits times 10, the default of weigh
      team=red   key alone   p.yaml:3:3
      rule team   p.yaml:3:3
        1000 per day   fixed_window, name budget, request_limit numbers of budget, weigh model: large=30, small=1, default=10
          key w1:{ai|team=red}f86400s
        50 per minute   fixed_window, request_limit numbers of budget, weigh model: large=30, small=1, default=10
          key w1:{ai|team=red}f60s
        on_error the server's

    descriptor 3   model=large
      model=large   key alone   p.yaml:7:3
      rule model   p.yaml:7:3
        5 per second   fixed_window
          key w1:{ai|model=large}f1s
        on_error the server's

    descriptor 4   model=a, team=red, model=b
      an error: two entries "model", by which its rule weighs hits, at most 1
    "#);
}

fn differences(old: &str, new: &str) -> String {
    let (old, new) = (directory(old), directory(new));
    let mut out = Vec::new();
    let (old_path, new_path) = (old.path().to_owned(), new.path().to_owned());
    let diff = Diff {
        old: old_path,
        new: new_path,
        format: DiffFormat::Text,
        traffic: None,
        fail_on: Vec::new(),
        dialect: DialectArguments::default(),
        old_overlay: None,
    };
    diff::run(&diff, &mut out).unwrap();
    let told = String::from_utf8(out).unwrap();
    told.replace(&format!("{}/", old.path().display()), "OLD/").replace(&format!("{}/", new.path().display()), "NEW/")
}

/// A request of a value is denied sooner by a larger factor, and later by a smaller one.
#[test]
fn other_factors_are_stricter_if_they_only_grow_and_looser_if_they_only_fall() {
    for (by, directions) in [
        ("by: {large: 60, small: 2}, default: 20", "stricter"),
        ("by: {large: 30, small: 1}, default: 11", "stricter"),
        ("by: {large: 30}, default: 10", "stricter"),
        ("by: {large: 20, small: 1}, default: 10", "looser"),
        ("by: {large: 30, small: 1, tiny: 9}, default: 10", "looser"),
        ("by: {large: 60, small: 1}, default: 9", "stricter and looser"),
        ("by: {large: 30, small: 1, same: 10}, default: 10", "otherwise"),
    ] {
        let told = differences(WEIGHED, &WEIGHED.replace("by: {large: 30, small: 1}, default: 10", by));
        let found = told.lines().find(|line| line.contains("weigh ")).unwrap_or(&told);
        let word = |word: &str| found.contains(word);
        assert_eq!(word("stricter"), directions.contains("stricter"), "{by}: {told}");
        assert_eq!(word("looser"), directions.contains("looser"), "{by}: {told}");
    }
    let told = differences(WEIGHED, &WEIGHED.replace("large: 30", "large: 20").replace("{numbers: budget}", "ignored"));
    assert!(told.contains("large=30") && told.contains("large=20"), "{told}");
    assert!(told.contains("numbers of budget") && told.contains("ignored"), "{told}");
    assert!(!differences(WEIGHED, WEIGHED).contains("weigh"));
}

/// Report: a team got a rule of its own without `weigh`, and its requests with a model had no limit any more.
#[test]
fn a_rule_without_weigh_that_frees_a_team_is_shown() {
    let own = WEIGHED.replace("- {key: model, rate_limit: 5/s}\n", "- {key: team, value: search, rate_limit: 100/d}\n");
    let freed = "  moved     team -> no rule   looser   OLD/p.yaml:3:3
    - 1000 per day, fixed_window, name budget
    - 50 per minute, fixed_window
      for example team=search,model=large: 1000 per day and 50 per minute -> no limit
";
    let told = differences(WEIGHED, &own);
    assert!(told.contains(&format!("{freed}  added     team=search ")), "the states are those of team=search\n{told}");
    let told = differences(&own, WEIGHED);
    assert!(told.contains("  moved     no rule -> team   stricter   NEW/p.yaml:3:3\n"), "{told}");
    let weigh = "  weigh: {entry: model, by: {large: 30, small: 1}, default: 10}\n";
    let nested = WEIGHED.replace(weigh, "  descriptors: [{key: model, rate_limit: 9/s}]\n");
    let told = differences(&nested, WEIGHED);
    assert!(told.contains("for example team=x,model=x: 9 per second -> 1000 per day and 50 per minute"), "{told}");
    assert!(told.contains("now these descriptors match team\n"), "{told}");
    let told = explained(&own, &[&[("team", "search"), ("model", "large")]]);
    let why = "  no rule, so it passes: the rule at p.yaml:7:3 does not weigh by \"model\", so this descriptor is one level deeper \
               than the rule\n";
    assert!(told.ends_with(why), "{told}");
}

/// Report: a team got `weigh` by model, and the rule of one model, which had limited this team, no longer did. No line said so.
#[test]
fn a_descriptor_that_a_new_weigh_takes_from_another_rule_is_shown() {
    const TEAMS: &str = "\
domain: ai
descriptors:
- key: team
  value: red
  rate_limit: {name: budget, requests_per_unit: 1000, unit: day}
- {key: model, value: gpt-4, descriptors: [{key: team, rate_limit: 5/s}]}
- {key: model, value: 'o*', descriptors: [{key: team, rate_limit: 6/s}]}
- {key: model, descriptors: [{key: team, value: blue, rate_limit: 7/s}]}
";
    let weighs = |by: &str| {
        TEAMS.replace("  value: red\n", &format!("  value: red\n  weigh: {{entry: model, {by}, default: 10}}\n"))
    };
    let taken =
        ["model=gpt-4,team=red: 5 per second -> 1000 per day", "model=o,team=red: 6 per second -> 1000 per day"];
    for by in ["by: {large: 30, small: 1}", "by: {gpt-4: 30}"] {
        let told = differences(TEAMS, &weighs(by));
        for taken in taken {
            assert!(told.contains(&format!("for example {taken}")), "{taken}: {told}");
        }
        assert!(told.contains("  moved     no rule -> team=red "), "{told}");
        assert!(!told.contains("blue") && !told.contains("could not tell"), "{told}");
    }
    // The rule of a model gets the team back.
    let told = differences(&weighs("by: {large: 30}"), TEAMS);
    assert!(told.contains("for example model=gpt-4,team=red: 1000 per day -> 5 per second"), "{told}");
    // Both sides weigh: another limit of the model's rule says nothing of the team.
    let (old, new) = (weighs("by: {large: 30}"), weighs("by: {large: 30}").replace("5/s", "8/s"));
    let told = differences(&old, &new);
    assert!(told.contains("5 per second -> 8 per second") && !told.contains("red"), "{told}");
    // The team's rule matches more.
    let told = differences(&old, &old.replace("value: red", "values: [red, green]"));
    assert!(told.contains("model=gpt-4,team=green: 5 per second -> 1000 per day"), "{told}");
}

/// Which of two entries is left out depends on their order: with the model first, the requests of a size go to another rule.
#[test]
fn what_a_new_weigh_takes_from_another_weigh_could_not_be_told() {
    const BOTH: &str = "\
domain: ai
descriptors:
- {key: model, descriptors: [{key: team, weigh: {entry: size, by: {large: 3}, default: 1}, rate_limit: 5/s}]}
- {key: size, descriptors: [{key: team, rate_limit: 1000/d}]}
";
    let weighs =
        BOTH.replace("rate_limit: 1000", "weigh: {entry: model, by: {gpt-4: 9}, default: 1}, rate_limit: 1000");
    let told = differences(BOTH, &weighs);
    let unsure = "rules weigh by several entries of descriptors such as size=x,team=x,model=gpt-4";
    assert!(told.contains("could not tell") && told.contains(unsure), "{told}");
    assert!(!differences(BOTH, &BOTH.replace("1000/d", "900/d")).contains("could not tell"));
}

#[test]
fn overlays_give_both_keys() {
    let plain = "domain: ai\ndescriptors: [{key: team, rate_limit: {rate: 9/h, name: a}}]\n";
    let keys = "weigh: {entry: model, by: {large: 3}, default: 1}\n  request_limit: {numbers: a}";
    let overlays = |keys: &str| format!("overlays:\n- domain: ai\n  descriptors: [team]\n  {keys}\n");
    let overlay = OverlayFile::of("o.yaml", overlays(keys)).unwrap();
    let reading = Reading { overlay: Some(overlay), ..Reading::default() };
    let overlaid = parse_with(&[("p.yaml", plain)], reading).unwrap();
    let written = plain.replace(
        "{key: team,",
        "{key: team, weigh: {entry: model, by: {large: 3}, default: 1}, request_limit: {numbers: a},",
    );
    let written = parse(&[("p.yaml", &written)]).unwrap();
    assert_eq!(format!("{:?}", overlaid.policies.rules()), format!("{:?}", written.policies.rules()));
    for (policy, entry, problem) in [
        (plain.to_owned(), "team", "p.yaml:2:15: \"ai|team\": weigh by \"team\", a key of the rule"),
        (
            plain.replace("}}]", "}, descriptors: [{key: m, rate_limit: 1/s}]}]"),
            "m",
            "p.yaml:2:75: \"ai|team|m\": no descriptor meets it, because the rule at \"team\" weighs by \"m\"",
        ),
    ] {
        let overlay = overlays(&format!("weigh: {{entry: {entry}, by: {{large: 3}}, default: 1}}"));
        let reading = Reading { overlay: Some(OverlayFile::of("o.yaml", overlay).unwrap()), ..Reading::default() };
        let found = parse_with(&[("p.yaml", &policy)], reading).unwrap_err().to_string();
        assert!(found.starts_with(problem) && found.ends_with(" (with the overlay at o.yaml:4:3)"), "{found}");
    }
    let wrong = OverlayFile::of("o.yaml", overlays("weigh: {entry: model, by: {large: 0}, default: 1}")).unwrap_err();
    assert!(wrong.to_string().starts_with("o.yaml:4:37: the factor of \"large\""), "{wrong}");
}

/// A limit of the request always replaces where policies are those of envoyproxy/ratelimit.
#[test]
fn a_compatible_reading_has_only_limits_that_replace() {
    let read = |word: &str| {
        let text = format!(
            "domain: d\ndescriptors: [{{key: k, request_limit: {word}, rate_limit: {{unit: hour, requests_per_unit: 3}}}}]"
        );
        parse_with(&[("p.yaml", &text)], Dialect { compatible: true, ..Dialect::default() }).map(drop)
    };
    assert!(read("replaces").is_ok());
    for word in ["numbers", "ignored", "{numbers: x}"] {
        let problems = read(word).unwrap_err().to_string();
        assert!(problems.starts_with("p.yaml:2:24: request_limit: "), "{problems}");
    }
}

#[test]
fn factors_and_entries_have_bounds() {
    let of = |values: usize| {
        let by: Vec<String> = (0..values).map(|value| format!("v{value}: 2")).collect();
        let by = by.join(", ");
        parse(&[(
            "p.yaml",
            &format!(
                "domain: d\ndescriptors: [{{key: k, weigh: {{entry: e, by: {{{by}}}, default: 1}}, rate_limit: 1/s}}]"
            ),
        )])
    };
    assert!(of(FACTORS_MAX).is_ok());
    let problems = of(FACTORS_MAX + 1).unwrap_err().to_string();
    assert!(problems.contains("by has 1025 values: 1 to 1024"), "{problems}");
    let of = |entries: usize| {
        let rule = |n| format!("- {{key: k{n}, weigh: {{entry: e{n}, by: {{a: 2}}, default: 1}}, rate_limit: 1/s}}\n");
        let rules: String = (0..entries).map(rule).collect();
        parse(&[("p.yaml", &format!("domain: d\ndescriptors:\n{rules}"))])
    };
    assert!(of(WEIGHING_ENTRIES_MAX).is_ok());
    assert!(of(WEIGHING_ENTRIES_MAX + 1).unwrap_err().to_string().starts_with("p.yaml:11:3: "));
}
