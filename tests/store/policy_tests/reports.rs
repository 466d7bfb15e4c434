//! The reports: what each kind of difference looks like, for people and for machines.

use weir::cli::test::{Format, Tests, Verdict};

use super::{Written, at_root, ran, refused, tests};

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
      error   shop.test.yaml:27:32
        - expected the error "no"
        + got      the answer ok
    shop.test.yaml:28:7: ask  in "shop", at 2040-01-02T00:00:00Z
      error   shop.test.yaml:28:26
        - expected no
        + got      rate limit descriptor list must not be empty

    test result: FAILED. 1 passed; 1 failed; 0 skipped; 0 filtered out
    "#);
}

#[test]
fn json_and_junit_say_the_same() {
    let written = Written::new(WRONG);
    let (verdict, report) = ran(&Tests { format: Format::Json, coverage: true, ..written.tests() });
    assert_eq!(verdict, Verdict::Failed);
    let json: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&json["passed"], &json["failed"], &json["errors"]), (&1.into(), &1.into(), &0.into()));
    let failure = &json["files"][0]["cases"][1]["failures"][0];
    assert_eq!((&failure["line"], &failure["further_requests"]), (&8.into(), &1.into()));
    assert_eq!(failure["differences"][0]["expected"], "over");
    assert_eq!(failure["differences"][0]["line"], 11);
    assert_eq!((&json["coverage"]["percent"], &json["coverage"]["rules"]), (&50.into(), &2.into()));
    assert_eq!(json["coverage"]["not_met"][0]["rule"], "path");
    assert_eq!(json["coverage"]["not_met"][0]["line"], 4);

    let (verdict, report) = ran(&Tests { format: Format::Junit, ..written.tests() });
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
    let (_, report) = ran(&Tests { format: Format::Junit, ..Written::new(text).tests() });
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
    for (least, expected) in [(50, Verdict::Passed), (51, Verdict::Failed)] {
        let (verdict, report) = ran(&Tests { fail_under: Some(least), ..written.tests() });
        assert_eq!(verdict, expected, "{report}");
        assert!(report.contains("coverage: 1 of 2 rules met (50.0 %)\n  not met: path in \"shop\"   "), "{report}");
        assert!(report.trim_end().ends_with("shop.yaml:4:5"), "{report}");
    }
}

#[test]
fn what_cannot_be_run_is_another_end_than_a_failure() {
    let written =
        Written::new("domain: shop\npolicies: {a.yaml: 'domain: [x]'}\ncases: [{name: c, steps: [{ask: user=ann}]}]");
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Broken);
    assert!(report.contains("test c ... ERROR"), "{report}");
    assert!(report.contains("a.yaml:1:9: domain must be text, not a list"), "{report}");
    assert!(report.contains("0 failed; 1 in error"), "{report}");

    let nothing = refused(&tests(&[at_root("proto"), at_root("missing")]));
    assert!(nothing.contains("proto: no tests: no file here is named *.test.yaml"), "{nothing}");
    assert!(nothing.contains("missing: "), "{nothing}");
}
