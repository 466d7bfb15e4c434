//! docs/testing.md: that its examples run, and that it has every bound.

use std::collections::BTreeSet;
use std::fs;

use weir_cli::test::{TestFormat, Tests, Verdict, run};
use weir_lab::testing::FAILURES_MAX;
use weir_policies::test_file::{ASKS_MAX, CALLERS_MAX, CASES_MAX, FILE_BYTES_MAX, ROWS_MAX, STEPS_MAX, setting_names};

use super::{Written, at_root, ran};
use crate::members::{members, members_of_form};

fn page() -> String {
    fs::read_to_string(at_root("docs/testing.md")).expect("the page")
}

/// The blocks of a language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(&*fence).skip(1).map(|rest| rest.split("```").next().expect("text before the next fence")).collect()
}

#[test]
fn every_setting_of_tests_is_named_and_the_bounds_are_those_of_the_code() {
    let page = page();
    for name in setting_names() {
        let group = name.split_once('.').map(|(group, _)| format!("`{group}.*`"));
        let is_named = page.contains(&format!("`{name}`")) || group.is_some_and(|group| page.contains(&group));
        assert!(is_named, "{name}");
    }
    let number = |number: u64| {
        let digits = number.to_string();
        let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
        groups.collect::<Vec<_>>().join(",")
    };
    for row in [
        format!("| size of a file | {} MiB |", FILE_BYTES_MAX >> 20),
        format!("| cases in a file | {} |", number(CASES_MAX as u64)),
        format!("| steps of a case | {} |", number(STEPS_MAX as u64)),
        format!("| requests that all cases of a file send | {} |", number(ASKS_MAX)),
        format!("| callers of a step | {} |", number(CALLERS_MAX.into())),
        format!("| rows of a case or a step | {} |", number(ROWS_MAX as u64)),
        format!("| failed steps of a case that are shown | {FAILURES_MAX} |"),
    ] {
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn the_page_has_each_member_of_the_json() {
    let mut found = BTreeSet::new();
    let cases = [
        "[{name: a, steps: [{ask: user=ann, times: 2, expect: over}]}, {name: b, policies: no, steps: [{ask: a=1}]}, \
         {name: w, steps: [{ask: a=1, expect: ok}]}]",
        "[{name: c, steps: []}]",
    ];
    for cases in cases {
        let written = Written::new(&format!("domain: shop\ncases: {cases}"));
        let mut out = Vec::new();
        // The second has no case that can be run.
        let _ = run(&Tests { format: TestFormat::Json, coverage: true, ..written.tests() }, &mut out);
        members(&serde_json::from_slice(&out).expect("JSON"), &mut found);
    }
    let page = page();
    let form = page.split("### JSON").nth(1).expect("the section").split("```").nth(1).expect("the form");
    let written: BTreeSet<String> = members_of_form(form).map(str::to_owned).collect();
    assert_eq!(written, found);
}

#[test]
fn the_tutorial_is_what_happens() {
    let page = page();
    let yaml = blocks(&page, "yaml");
    let [first, policy, second, calendar, rows, receipts] = yaml[..] else { panic!("{} examples", yaml.len()) };
    let written = Written::new(&format!("{first}{second}"));
    let shop = written.directory.path().join("shop.yaml");
    fs::write(&shop, policy).expect("a policy");
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Passed, "{report}");

    fs::write(&shop, policy.replace("sliding_window_log", "token_bucket")).expect("a policy");
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Failed, "{report}");
    let shown = written.shown(&report).replace("shop.test.yaml", "policies/shop.test.yaml");
    let difference =
        shown.split_once("failures:").expect("failures").1.split_once("\ntest result").expect("a result").0;
    let text = blocks(&page, "text").into_iter().find(|text| text.starts_with("running 2 tests")).expect("the report");
    assert!(text.contains(difference.trim()), "{shown}");

    for example in [calendar, rows, receipts] {
        let (verdict, report) = ran(&Written::new(example).tests());
        assert_eq!(verdict, Verdict::Passed, "{report}");
    }
}
