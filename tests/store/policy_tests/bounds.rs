//! What a file of tests can hold at most, and that one more is refused.

use std::fs;
use std::path::Path;

use weir_policies::test_file::{ASKS_MAX, CALLERS_MAX, CASES_MAX, FILE_BYTES_MAX, STEPS_MAX, parse};

use super::{Written, refused};

/// How many requests a text's cases send, or its problems without the name of the file.
fn asks(text: &str) -> Result<u64, String> {
    let name = "t".into();
    match parse(&name, text, Path::new("")) {
        Ok(file) => Ok(file.cases.iter().map(|case| case.asks).sum()),
        Err(problems) => Err(problems.to_string()),
    }
}

fn cases(number: usize, asks: u64) -> String {
    let case = |i| format!("- {{name: c{i}, domain: d, steps: [{{ask: a=1, times: {asks}}}]}}\n");
    format!("cases:\n{}", (0..number).map(case).collect::<String>())
}

#[test]
fn requests_are_bounded_over_all_cases() {
    assert_eq!(asks(&cases(4, ASKS_MAX / 4)), Ok(ASKS_MAX));
    let error = asks(&cases(5, ASKS_MAX / 4)).unwrap_err();
    assert_eq!(error, "t:6:3: the cases up to here send 1250000 requests: at most 1000000 in one file");
    let product =
        "cases: [{name: c, domain: d, steps: [{ask: a=1, times: 1000000, callers: 100000, every: 1us, for: 2d}]}]";
    assert!(asks(product).unwrap_err().contains("at most 1000000 in one file"));
}

#[test]
fn cases_steps_and_callers_are_bounded() {
    assert_eq!(asks(&cases(CASES_MAX, 1)), Ok(CASES_MAX as u64));
    assert!(asks(&cases(CASES_MAX + 1, 1)).unwrap_err().ends_with("1001 cases: at most 1000 in one file"));

    let steps = |number| format!("cases:\n- name: c\n  domain: d\n  steps:\n{}", "  - {ask: a=1}\n".repeat(number));
    assert_eq!(asks(&steps(STEPS_MAX)), Ok(STEPS_MAX as u64));
    assert!(asks(&steps(STEPS_MAX + 1)).unwrap_err().ends_with("1001 steps: at most 1000 in one case"));

    let callers = |number| format!("cases: [{{name: c, domain: d, steps: [{{ask: a=1, callers: {number}}}]}}]");
    assert_eq!(asks(&callers(CALLERS_MAX)), Ok(CALLERS_MAX.into()));
    assert!(asks(&callers(CALLERS_MAX + 1)).unwrap_err().contains("callers must be from 1 to 100000, not 100001"));
}

#[test]
fn a_large_file_is_refused_without_being_read_whole() {
    let written = Written::new("");
    let path = written.directory.path().join("shop.test.yaml");
    let text = format!("{}{}", cases(1, 1), "#".repeat(FILE_BYTES_MAX));
    fs::write(path, text).unwrap();
    assert_eq!(written.shown(&refused(&written.tests())), "shop.test.yaml: larger than 4 MiB");
}

#[test]
fn no_case_leaves_the_years_that_clocks_have() {
    let case = |step: &str| asks(&format!("cases: [{{name: c, domain: d, steps: [{{ask: a=1}}, {step}]}}]"));
    assert_eq!(case("{at: \"2100-01-01T00:00:00Z\"}"), Ok(1));
    for step in ["{wait: 22000d}", "{ask: a=1, every: 365d, for: 36500d}"] {
        assert!(case(step).unwrap_err().ends_with("the case goes on past the year 2100"), "{step}");
    }
    assert!(case("{at: \"2100-01-01T00:00:01Z\"}").unwrap_err().ends_with("not after 2100-01-01T00:00:00Z"));
}
