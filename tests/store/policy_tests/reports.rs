//! The reports: what each kind of difference looks like, for people and for machines.

use std::fs;
use std::io::{self, Write};

use weir_cli::pipe::UntilClosed;
use weir_cli::test::{TestFormat, Tests, Verdict, run};
use weir_lab::testing::{FAILURES_MAX, Strictness};
use weir_settings::Secret;

use super::{SHOP, Written, at_root, ran, refused, tests};

/// One of each expectation, all of them wrong.
const WRONG: &str = r#"domain: shop
settings: {response: {ietf_headers: on}}
cases:
- name: right
  steps: [{ask: user=ann, expect: ok}]
- name: all wrong
  steps:
    - ask: user=ann
      times: 2
      expect:
        answer: over
        passed: 3..4
        denied: 1
        retry_after: 1m
        delay: 5ms
        headers: {RateLimit: none, Retry-After: "5"}
        request_headers: {x: y}
        metadata: {a: 1}
        rule: path
        limit: 4/hour
        name: x
        algorithm: gcra
        remaining: <= 1
        reset: 30m..31m
    - {ask: [user=bob, other=1], expect: {answer: over, trial: over, statuses: [over, {rule: user}]}}
    - {ask: user=ann, domain: "", expect: ok}
    - {ask: user=ann, expect: {error: no}}
    - {ask: [], expect: {error: no}}
"#;

#[test]
fn every_expectation_can_fail_and_says_where() {
    let written = Written::new(WRONG);
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Failed);
    let took = report.rfind("; finished in").expect("how long it took");
    insta::assert_snapshot!(written.shown(&report[..took]), @r#"
    running 2 tests in shop.test.yaml
    test right ... ok
    test all wrong ... FAILED

    failures:

    ---- all wrong ----
    shop.test.yaml:8:7: ask user=ann in "shop", request 1 of 2, at 2040-01-02T00:00:00Z
      decided by user 3/hour: 2 left, reset 1h   shop.yaml:3:5
      answer   shop.test.yaml:11:9
        - expected over
        + got      ok
      retry_after   shop.test.yaml:14:9
        - expected 1m
        + got      none
      delay   shop.test.yaml:15:9
        - expected 5ms
        + got      0s
      headers.RateLimit   shop.test.yaml:16:19
        - expected none
        + got      "\"user\";r=2;t=3600"
      headers.Retry-After   shop.test.yaml:16:36
        - expected "5"
        + got      none
      request_headers.x   shop.test.yaml:17:27
        - expected "y"
        + got      none
      metadata   shop.test.yaml:18:9
        - expected {"a":1.0}
        + got      null
      rule   shop.test.yaml:19:9
        - expected path
        + got      user   shop.yaml:3:5
      limit   shop.test.yaml:20:9
        - expected 4/hour
        + got      3/hour
      name   shop.test.yaml:21:9
        - expected x
        + got      none
      algorithm   shop.test.yaml:22:9
        - expected gcra
        + got      fixed_window
      remaining   shop.test.yaml:23:9
        - expected <= 1
        + got      2
      reset   shop.test.yaml:24:9
        - expected 30m..31m
        + got      1h
      and in 1 more of the requests of this step
    shop.test.yaml:8:7: 2 requests from 2040-01-02T00:00:00Z
      passed   shop.test.yaml:12:9
        - expected 3..4
        + got      2
      denied   shop.test.yaml:13:9
        - expected 1
        + got      0
    shop.test.yaml:25:7: ask user=bob other=1 in "shop", at 2040-01-02T00:00:00Z
      decided by user 3/hour: 2 left, reset 1h   shop.yaml:3:5
      answer   shop.test.yaml:25:43
        - expected over
        + got      ok
      trial   shop.test.yaml:25:57
        - expected over
        + got      none
      statuses[0].answer   shop.test.yaml:25:81
        - expected over
        + got      ok
      statuses[1].rule   shop.test.yaml:25:88
        - expected user
        + got      none
    shop.test.yaml:26:7: ask user=ann in "", at 2040-01-02T00:00:00Z
      answer   shop.test.yaml:26:43
        - expected an answer
        + got      the error "rate limit domain must not be empty"
    shop.test.yaml:27:7: ask user=ann in "shop", at 2040-01-02T00:00:00Z
      decided by user 3/hour: 0 left, reset 1h   shop.yaml:3:5
      error   shop.test.yaml:27:32
        - expected the error "no"
        + got      the answer ok
    shop.test.yaml:28:7: ask no descriptor in "shop", at 2040-01-02T00:00:00Z
      error   shop.test.yaml:28:26
        - expected no
        + got      rate limit descriptor list must not be empty

    test result: FAILED. 1 passed; 1 failed; 0 skipped; 0 filtered out
    "#);
}

#[test]
fn a_receipt_or_an_end_that_no_request_has_is_a_failure_and_a_settle_is_named() {
    let policy =
        "domain: shop\ndescriptors: [{key: user, rate_limit: {rate: 5/h, hold: true}}, {key: path, rate_limit: 1/s}]";
    let written = Written::new(
        "domain: shop\ncases:\n- name: c\n  steps:\n  - {ask: path=/, receipt: none-held}\n  - {ask: user=ann, hits: 3, receipt: a}\n\
         \x20 - {ask: user=ann, settle: a, used: 1, expect: {remaining: 3}}\n  - {ask: path=/x, lasts: 1s}\n\
         \x20 - {ask: user=bob, lasts: 1s}\n",
    );
    written.write("shop.yaml", policy);
    let (_, report) = ran(&written.tests());
    let failures = report.split("----\n").nth(1).expect("failures").split("\n\n").next().expect("an end").to_owned();
    insta::assert_snapshot!(written.shown(&failures), @r#"
    shop.test.yaml:5:5: 1 request from 2040-01-02T00:00:00Z
      receipt   shop.test.yaml:5:5
        - expected a receipt
        + got      no hold
    shop.test.yaml:7:5: ask user=ann in "shop", settle a, at 2040-01-02T00:00:00Z
      decided by user 5/hour: 4 left, reset 1h   shop.yaml:2:15
      remaining   shop.test.yaml:7:50
        - expected 3
        + got      4
    shop.test.yaml:8:5: 1 request from 2040-01-02T00:00:00Z
      lasts   shop.test.yaml:8:5
        - expected a hold or a permit that ends
        + got      none
    "#);
}

/// The lines had `10000000/month` and 7000000 left, and no factor.
#[test]
fn a_decision_is_shown_in_its_amount_and_with_its_factor() {
    let policy = "domain: shop\ndescriptors: [{key: team, weigh: {entry: model, by: {large: 30}, default: 1}, \
                  rate_limit: {rate: 10_000_000/month, calendar: true, amount: {in: usd, scale: 1_000_000}, name: dollars}}]";
    let written = Written::new(
        "domain: shop\ncases:\n- name: c\n  steps:\n  \
         - {ask: \"team=a,model=large\", hits: 100_000, expect: {remaining: 6000000}}\n",
    );
    written.write("shop.yaml", policy);
    let (_, report) = ran(&written.tests());
    let expected = "  decided by team 10.00 usd/month (dollars): 7.00 usd left, reset 30d, hits times 30   ";
    assert!(report.contains(expected) && report.contains("    + got      7000000\n"), "{report}");
    let (_, report) = ran(&Tests { format: TestFormat::Json, ..written.tests() });
    let json: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let decided_by = &json["files"][0]["cases"][0]["failures"][0]["decided_by"];
    assert_eq!((&decided_by["remaining"], &decided_by["factor"]), (&7_000_000.into(), &30.into()), "{decided_by}");
}

#[test]
fn json_and_junit_say_the_same() {
    let written = Written::new(WRONG);
    let (verdict, report) = ran(&Tests { format: TestFormat::Json, coverage: true, ..written.tests() });
    assert_eq!(verdict, Verdict::Failed);
    let json: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&json["passed"], &json["failed"], &json["errors"]), (&1.into(), &1.into(), &0.into()));
    let failure = &json["files"][0]["cases"][1]["failures"][0];
    assert_eq!((&failure["line"], &failure["further_requests"]), (&8.into(), &1.into()));
    assert_eq!(failure["differences"][0]["expected"], "over");
    assert_eq!(failure["differences"][0]["line"], 11);
    let decided_by = &failure["decided_by"];
    assert_eq!((&decided_by["limit"], &decided_by["remaining"]), (&"user 3/hour".into(), &2.into()), "{decided_by}");
    assert_eq!((&json["coverage"]["percent"], &json["coverage"]["rules"]), (&50.0.into(), &2.into()));
    assert_eq!(json["coverage"]["not_met"][0]["rule"], "path");
    assert_eq!(json["coverage"]["not_met"][0]["line"], 4);

    let (verdict, report) = ran(&Tests { format: TestFormat::Junit, ..written.tests() });
    assert_eq!(verdict, Verdict::Failed);
    assert!(report.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\""), "{report}");
    assert!(report.contains("<testcase name=\"right\""), "{report}");
    assert!(report.contains("&lt;= 1"), "{report}");
    assert_eq!(report.matches("<testcase").count(), 2);
    assert_eq!(report.matches("<failure").count(), 1);
}

#[test]
fn a_name_cannot_become_markup() {
    let text = "domain: shop\ncases: [{name: '<a & \"b\">', steps: [{ask: user=ann}]}]";
    let (_, report) = ran(&Tests { format: TestFormat::Junit, ..Written::new(text).tests() });
    assert!(report.contains("name=\"&lt;a &amp; &quot;b&quot;&gt;\""), "{report}");
}

#[test]
fn the_filter_picks_cases_by_their_names() {
    let written = Written::new(WRONG);
    let only = |filter: &str| Tests { filter: Some(filter.to_owned()), ..written.tests() };
    let (verdict, report) = ran(&only("righ"));
    assert_eq!(verdict, Verdict::Passed);
    assert!(report.contains("1 passed; 0 failed; 0 skipped; 1 filtered out"), "{report}");
    assert_eq!(refused(&only("nothing")), "no case has \"nothing\" in its name");
}

#[test]
fn too_little_coverage_fails() {
    let written = Written::new("domain: shop\ncases: [{name: c, steps: [{ask: user=ann, expect: ok}]}]");
    for (least, expected) in [("50", Verdict::Passed), ("50.1", Verdict::Failed), ("51", Verdict::Failed)] {
        let fail_under = Some(least.parse().expect("a percentage"));
        let (verdict, report) = ran(&Tests { fail_under, ..written.tests() });
        assert_eq!(verdict, expected, "{report}");
        let missed =
            if verdict == Verdict::Failed { format!(": --fail-under {least} is not reached") } else { String::new() };
        let expected = format!("coverage: 1 of 2 rules met (50.0 %){missed}\n  not met: path in \"shop\"   ");
        assert!(report.contains(&expected), "{report}");
        assert!(report.trim_end().ends_with("shop.yaml:4:5"), "{report}");
    }
}

#[test]
fn junit_and_json_say_that_coverage_is_not_reached() {
    let written = Written::new("domain: shop\ncases: [{name: c, steps: [{ask: user=ann, expect: ok}]}]");
    for (least, failures) in [("50", 0), ("50.5", 1)] {
        let fail_under = Some(least.parse().expect("a percentage"));
        let (_, junit) = ran(&Tests { format: TestFormat::Junit, fail_under, ..written.tests() });
        let suite = format!("<testsuite name=\"coverage\" tests=\"1\" failures=\"{failures}\"");
        assert!(junit.contains(&suite) && junit.contains(&format!("name=\"--fail-under {least}\"")), "{junit}");
        let message = "<failure message=\"coverage: 1 of 2 rules met (50.0 %): --fail-under 50.5 is not reached\">";
        assert_eq!(junit.contains(message), failures == 1, "{junit}");
        let (_, report) = ran(&Tests { format: TestFormat::Json, fail_under, ..written.tests() });
        let json: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let said = (&json["coverage"]["fail_under"], &json["coverage"]["reached"]);
        assert_eq!(said, (&least.into(), &(failures == 0).into()));
    }
    let (_, junit) = ran(&Tests { format: TestFormat::Junit, coverage: true, ..written.tests() });
    assert!(!junit.contains("name=\"coverage\""), "{junit}");
}

/// Each step passes whatever the policies say, for a word that is misspelled.
const UNMET: &str = r#"domain: shop
cases:
- name: a domain
  domain: shpo
  steps: [{ask: user=ann, times: 3, expect: ok}]
- name: a key
  steps:
    - {ask: usre=u<n>, callers: 2, expect: {passed: 2}}
    - {ask: "user=ann,path=/", expect: {answer: ok, headers: {Retry-After: none}}}
- name: right
  steps:
    - {ask: [user=ann, other=1], expect: ok}
    - {ask: other=1, expect: {answer: ok, rule: none}}
    - {ask: other=1, expect: {answer: ok, limit: none}}
    - {ask: [a=1, b=1], expect: {answer: ok, statuses: [{rule: none}, {answer: ok, rule: none}]}}
    - {ask: other=1, limit: 1/hour, expect: ok}
    - {ask: other=1}
    - {ask: user=ann, domain: "", expect: {error: rate limit domain must not be empty}}
"#;

#[test]
fn a_step_whose_requests_meet_no_rule_tests_nothing() {
    let written = Written::new(UNMET);
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Passed);
    let took = report.rfind("; finished in").expect("how long it took");
    insta::assert_snapshot!(written.shown(&report[..took]), @r#"
    running 3 tests in shop.test.yaml
    test a domain ... ok, with 1 warning
    test a key ... ok, with 2 warnings
    test right ... ok

    warnings:

    ---- a domain ----
    shop.test.yaml:5:11: ask user=ann in "shpo", request 1 of 3, at 2040-01-02T00:00:00Z
      tests nothing: it meets no rule: no policy has the domain "shpo", did you mean "shop"?

    ---- a key ----
    shop.test.yaml:8:7: ask usre=u1 in "shop", request 1 of 2, at 2040-01-02T00:00:00Z
      tests nothing: it meets no rule: no descriptor begins with the key "usre", did you mean "user"?
    shop.test.yaml:9:7: ask user=ann,path=/ in "shop", at 2040-01-02T00:00:00Z
      tests nothing: it meets no rule

    test result: ok. 3 passed; 0 failed; 0 skipped; 0 filtered out; 3 warnings
    "#);

    let (_, json) = ran(&Tests { format: TestFormat::Json, ..written.tests() });
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["warnings"], &json["failed"]), (&3.into(), &0.into()));
    let warning = &json["files"][0]["cases"][0]["warnings"][0];
    assert_eq!((&warning["line"], &warning["column"]), (&5.into(), &11.into()));
    assert!(warning["reason"].as_str().expect("a text").ends_with("did you mean \"shop\"?"), "{warning}");
    let (_, junit) = ran(&Tests { format: TestFormat::Junit, ..written.tests() });
    assert_eq!(junit.matches("<system-out>").count(), 2, "{junit}");
    assert!(
        junit.contains("tests nothing: it meets no rule: no descriptor begins with the key &quot;usre&quot;"),
        "{junit}"
    );
}

/// Another rule weighs by the entry, so the rule is meant for the descriptor without it. [mt-13]
#[test]
fn a_step_names_the_rule_that_does_not_weigh() {
    let written = Written::new("domain: ai\ncases: [{name: c, steps: [{ask: \"team=search,model=x\", expect: ok}]}]");
    written.write(
        "ai.yaml",
        "domain: ai\ndescriptors:\n- {key: team, weigh: {entry: model, by: {x: 2}, default: 1}, rate_limit: 9/h}\n\
         - {key: team, value: search, rate_limit: 9/h}\n",
    );
    let (_, report) = ran(&written.tests());
    assert!(
        report.contains("tests nothing: it meets no rule: the rule \"team=search\" does not weigh by \"model\"\n"),
        "{report}"
    );
}

#[test]
fn strict_tests_fail_where_they_test_nothing() {
    let written = Written::new(UNMET);
    let strict = |format| Tests { format, strictness: Strictness::Strict, ..written.tests() };
    let (verdict, report) = ran(&strict(TestFormat::Text));
    assert_eq!(verdict, Verdict::Failed);
    assert!(report.contains("test result: FAILED. 1 passed; 2 failed; "), "{report}");
    assert!(
        report.contains("    - expected a rule, or rule: none in the test (--strict)\n    + got      no rule"),
        "{report}"
    );
    let (_, junit) = ran(&strict(TestFormat::Junit));
    assert!(junit.contains("failures=\"2\"") && junit.matches("<failure").count() == 2, "{junit}");
    let (_, json) = ran(&strict(TestFormat::Json));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["failed"], &json["warnings"]), (&2.into(), &0.into()));
    assert_eq!(json["files"][0]["cases"][1]["failures"].as_array().map(Vec::len), Some(2));
}

#[test]
fn warnings_of_a_case_are_bounded() {
    let step = "{ask: usre=ann, expect: ok}, ".repeat(FAILURES_MAX + 2);
    let written = Written::new(&format!("domain: shop\ncases: [{{name: c, steps: [{step}]}}]"));
    let (_, report) = ran(&written.tests());
    assert!(report.contains("and 2 more steps that test nothing\n") && report.contains("; 12 warnings; "), "{report}");
    let (_, report) = ran(&Tests { strictness: Strictness::Strict, ..written.tests() });
    assert!(report.contains("and 2 more steps failed\n"), "{report}");
}

#[test]
fn percentages_have_one_decimal() {
    let written = Written::new("domain: shop\ncases: [{name: c, steps: [{ask: user=ann}, {ask: path=a}]}]");
    let third = format!("{SHOP}  - {{key: ip, rate_limit: 1/s}}\n");
    fs::write(written.directory.path().join("shop.yaml"), third).expect("a policy");
    let fail_under = Some("66.6".parse().expect("a percentage"));
    let (verdict, report) = ran(&Tests { format: TestFormat::Json, fail_under, ..written.tests() });
    assert_eq!(verdict, Verdict::Passed);
    let json: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let coverage = &json["coverage"];
    assert_eq!((&coverage["percent"], &coverage["met"], &coverage["rules"]), (&66.7.into(), &2.into(), &3.into()));
    let fail_under = Some("66.7".parse().expect("a percentage"));
    assert_eq!(ran(&Tests { fail_under, ..written.tests() }).0, Verdict::Failed, "two of three are less than 66.7 %");
}

#[test]
fn coverage_of_nothing_is_no_coverage() {
    let written = Written::new(
        "domain: d\npolicies: {a.yaml: 'domain: d'}\ncases: [{name: c, steps: [{ask: user=ann, expect: ok}]}]",
    );
    for (least, expected) in [("0", Verdict::Passed), ("1", Verdict::Failed)] {
        let fail_under = Some(least.parse().expect("a percentage"));
        let (verdict, report) = ran(&Tests { fail_under, ..written.tests() });
        assert_eq!(verdict, expected, "{report}");
        let missed = if verdict == Verdict::Failed { ": --fail-under 1 is not reached" } else { "" };
        let expected = format!("coverage: no rules, since no test loads policies from files{missed}\n");
        assert!(report.ends_with(&expected), "{report}");
    }
    let (_, report) = ran(&Tests { format: TestFormat::Json, coverage: true, ..written.tests() });
    let json: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(json["coverage"]["percent"], serde_json::Value::Null);
}

/// Texts of a test can contain control characters, and a terminal would execute them.
#[test]
fn requests_are_spelled_as_they_are_typed_and_no_terminal_obeys_them() {
    let text = r#"domain: shop
cases:
- name: "a \u202e name"
  steps:
    - {ask: [{entries: [{key: user, value: "a,b\\\e[31m\n"}]}, {entries: []}], expect: over}
    - {ask: k<n>=u<n>, expect: over}
"#;
    let (verdict, report) = ran(&Written::new(text).tests());
    assert_eq!(verdict, Verdict::Failed);
    assert!(report.contains("test a \\u{202e} name ... FAILED"), "{report}");
    assert!(report.contains(r"ask user=a\,b\\\u{1b}[31m\n (no entries) in "), "{report}");
    // As in simulations, the number of the only caller is 1.
    assert!(report.contains("ask k1=u1 in "), "{report}");
    assert!(report.chars().all(|c| c == '\n' || (!c.is_control() && c != '\u{202e}')), "{report:?}");
}

/// A reader that closes the pipe after some bytes.
struct ClosedAfter(usize);

impl Write for ClosedAfter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_verdict_does_not_depend_on_how_much_of_the_report_is_read() {
    let written = Written::new(
        "domain: shop\ncases:\n- {name: a, steps: [{ask: user=ann, expect: ok}]}\n- {name: b, steps: [{ask: user=ann, expect: over}]}\n",
    );
    for bytes in [0, 30, 60] {
        for format in [TestFormat::Text, TestFormat::Junit, TestFormat::Json] {
            let tests = Tests { format, ..written.tests() };
            let verdict =
                run(&tests, &mut UntilClosed::new(ClosedAfter(bytes))).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(verdict, Verdict::Failed, "{format:?}, {bytes} bytes");
        }
    }
}

#[test]
fn programs_get_a_report_also_if_no_case_was_run() {
    let written = Written::new("domain: shop\ncases: [{name: c, steps: [{aks: user=ann}]}]");
    fs::write(written.directory.path().join("other.test.yaml"), "cases: <&>").expect("a file of tests");
    let report = |tests: &Tests| {
        let mut out = Vec::new();
        let error = run(tests, &mut out).expect_err("no case can be run").to_string();
        (written.shown(&String::from_utf8(out).expect("text")), written.shown(&error))
    };
    let (text, problems) = report(&written.tests());
    assert_eq!(text, "");
    let (json, _) = report(&Tests { format: TestFormat::Json, ..written.tests() });
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["errors"], &json["passed"], &json["files"]), (&2.into(), &0.into(), &serde_json::json!([])));
    let texts: Vec<&str> = (0..2).map(|i| json["problems"][i]["text"].as_str().expect("a text")).collect();
    assert_eq!(texts.join("\n"), problems);
    assert!(texts[1].starts_with("shop.test.yaml:2:"), "{texts:?}");
    let (junit, _) = report(&Tests { format: TestFormat::Junit, ..written.tests() });
    assert!(junit.contains("tests=\"2\" failures=\"0\" errors=\"2\""), "{junit}");
    assert!(junit.contains("<testcase name=\"shop.test.yaml\" classname=\"weir test\""), "{junit}");
    assert!(junit.contains("<error message=\"other.test.yaml:1:8: ") && junit.contains("&lt;&amp;&gt;"), "{junit}");

    let filter = Some("nothing".to_owned());
    let right = Written::new("domain: shop\ncases: [{name: c, steps: [{ask: user=ann}]}]");
    let (junit, _) = report(&Tests { format: TestFormat::Junit, filter, ..right.tests() });
    assert!(junit.contains("<error message=\"no case has &quot;nothing&quot; in its name\">"), "{junit}");
    let redis_url = Some(Secret::from("nonsense"));
    let (junit, _) = report(&Tests { format: TestFormat::Junit, redis_url, ..right.tests() });
    assert!(junit.contains("<error message=\"--redis-url: cannot use this redis url"), "{junit}");
}

#[test]
fn what_cannot_be_run_is_another_end_than_a_failure() {
    let written =
        Written::new("domain: shop\npolicies: {a.yaml: 'domain: [x]'}\ncases: [{name: c, steps: [{ask: user=ann}]}]");
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Broken);
    assert!(report.contains("test c ... ERROR"), "{report}");
    assert!(written.shown(&report).contains("shop.test.yaml:3:9: the policies at "), "{report}");
    assert!(report.contains("a.yaml:1:9: domain must be text, not a list"), "{report}");
    assert!(report.contains("0 failed; 1 in error"), "{report}");

    let nothing = refused(&tests(&[at_root("proto"), at_root("missing")]));
    assert!(nothing.contains("proto: no tests: no file here is named *.test.yaml"), "{nothing}");
    assert!(nothing.contains("missing: "), "{nothing}");
}
