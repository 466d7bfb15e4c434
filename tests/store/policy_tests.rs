//! `weir test`: that examples pass in both stores, that every kind of expectation can fail, and what a
//! file of tests cannot have.

mod bounds;
mod mistakes;
mod page;
mod reports;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use weir_cli::test::{NoTests, TestFormat, Tests, Verdict, run};
use weir_lab::testing::Strictness;
use weir_policies::files::{is_callers, is_traffic};
use weir_policies::test_file;
use weir_settings::Secret;

use crate::support::redis::RedisServer;

/// A path below the root of the repository.
fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn tests(paths: &[PathBuf]) -> Tests {
    let (redis_url, filter, fail_under) = (None, None, None);
    let strictness = Strictness::Lenient;
    Tests {
        paths: paths.to_vec(),
        redis_url,
        filter,
        format: TestFormat::Text,
        coverage: false,
        strictness,
        fail_under,
    }
}

/// How tests end, and their report.
fn ran(tests: &Tests) -> (Verdict, String) {
    let mut out = Vec::new();
    let verdict = run(tests, &mut out).unwrap_or_else(|error| panic!("{error}"));
    (verdict, String::from_utf8(out).expect("a report is text"))
}

fn refused(tests: &Tests) -> String {
    match run(tests, &mut Vec::new()) {
        Err(error @ NoTests::NotRun(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(verdict) => panic!("ran, and {verdict:?}"),
    }
}

/// A directory with a policy and a file of tests.
struct Written {
    directory: TempDir,
}

const SHOP: &str = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: 3/h}\n  - {key: path, rate_limit: 1/s}\n";

impl Written {
    fn new(text: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        fs::write(directory.path().join("shop.yaml"), SHOP).expect("a policy");
        fs::write(directory.path().join("shop.test.yaml"), text).expect("a file of tests");
        Self { directory }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).expect("a file is written");
    }

    fn tests(&self) -> Tests {
        tests(&[self.directory.path().to_owned()])
    }

    /// A text with the directory left out.
    fn shown(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.directory.path().display()), "")
    }
}

#[test]
fn the_examples_pass_and_meet_every_rule() {
    let tests = Tests {
        coverage: true,
        strictness: Strictness::Strict,
        fail_under: Some("100".parse().expect("a percentage")),
        ..tests(&[at_root("examples")])
    };
    let (verdict, report) = ran(&tests);
    assert_eq!(verdict, Verdict::Passed, "{report}");
    assert!(report.ends_with("rules met (100.0 %)\n"), "{report}");
}

#[test]
fn every_directory_of_examples_has_tests() {
    let mut policies = 0;
    let mut open = vec![at_root("examples")];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        let entries: Vec<PathBuf> = entries.collect();
        let is_yaml = |path: &&PathBuf| {
            path.extension().is_some_and(|extension| extension == "yaml") && !is_traffic(path) && !is_callers(path)
        };
        let (tests, own): (Vec<_>, Vec<_>) =
            entries.iter().filter(is_yaml).partition(|path| path.to_string_lossy().ends_with(".test.yaml"));
        policies += own.len();
        assert_eq!(own.is_empty(), tests.is_empty(), "{}", directory.display());
        open.extend(entries.into_iter().filter(|path| path.is_dir()));
    }
    assert!(policies >= 20, "{policies} policies");
}

#[test]
fn the_same_files_pass_on_redis_and_leave_nothing_there() {
    let server = RedisServer::start();
    let redis_url = Some(Secret::from(&*server.url()));
    let directory = at_root("examples");
    let (verdict, report) = ran(&Tests { redis_url, ..tests(&[directory]) });
    assert_eq!(verdict, Verdict::Passed, "{report}");
    assert!(!report.contains("skipped:"), "{report}");
    assert_eq!(server.command(&["DBSIZE"]).as_deref(), Some("0\n"));
    assert!(server.runs("evalsha") > 1_000, "Redis decided");
}

#[test]
fn redis_skips_cases_of_the_past_and_trouble_with_it_is_no_failure() {
    let text = "domain: shop\ncases:\n\
                - {name: past, at: \"2020-01-01T00:00:00Z\", steps: [{ask: user=ann, expect: over}]}\n\
                - {name: future, steps: [{ask: user=ann, times: 4, expect: {passed: 3}}]}\n";
    let written = Written::new(text);
    let mut server = RedisServer::start();
    let on_redis = || Tests { redis_url: Some(Secret::from(&*server.url())), ..written.tests() };
    let (verdict, report) = ran(&on_redis());
    assert_eq!(verdict, Verdict::Passed, "{report}");
    assert!(report.contains("test past ... skipped: it begins in the past"), "{report}");
    let (verdict, _) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Failed, "in memory it is run");

    let tests = on_redis();
    server.kill();
    // Said once, and not by each case.
    let said = refused(&tests);
    assert!(said.starts_with("redis at 127.0.0.1:") && said.contains("does not answer"), "{said}");
    // CI systems show nothing for a report without a test.
    let mut report = Vec::new();
    run(&Tests { format: TestFormat::Junit, ..tests }, &mut report).expect_err("no Redis");
    let report = String::from_utf8(report).expect("text");
    assert!(report.contains("tests=\"1\" failures=\"0\" errors=\"1\""), "{report}");
    assert!(report.contains("<testcase name=\"redis\"") && report.contains("does not answer"), "{report}");
}

#[test]
fn no_case_waits_for_a_redis_that_failed_before() {
    let text = "domain: shop\ncases:\n\
                - {name: long, steps: [{ask: user=ann, times: 999000}]}\n\
                - {name: second, steps: [{ask: user=ann, expect: ok}]}\n\
                - {name: third, steps: [{ask: user=ann, expect: ok}]}\n";
    let written = Written::new(text);
    let mut server = RedisServer::start();
    let tests = Tests { redis_url: Some(Secret::from(&*server.url())), ..written.tests() };
    let killer = std::thread::spawn(move || {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while server.runs("evalsha") < 50 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        server.kill();
    });
    let (verdict, report) = ran(&tests);
    killer.join().expect("Redis is killed");
    assert_eq!(verdict, Verdict::Broken, "{report}");
    let report = written.shown(&report);
    assert!(report.contains("---- long ----\nshop.test.yaml:3:3: Redis: "), "{report}");
    for line in ["4:3", "5:3"] {
        let expected = format!("shop.test.yaml:{line}: not run: Redis failed in the case \"long\"\n");
        assert!(report.contains(&expected), "{report}");
    }
}

/// [hd-5]
#[test]
fn a_settle_is_never_over_a_limit_on_trial() {
    let policy = "domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n  - {rate: 100/d, hold: true, name: h}\n\
                  \x20 - {rate: 1/d, algorithm: sliding_window, shadow: true, name: t}\n";
    let written = Written::new(
        "domain: shop\ncases:\n- name: full\n  steps:\n\
         \x20   - {ask: user=ann, receipt: first, expect: {trial: ok}}\n\
         \x20   - {ask: user=ann, settle: first, used: 0, expect: {trial: ok}}\n\
         \x20   - {ask: user=ann, expect: {trial: over}}\n",
    );
    written.write("shop.yaml", policy);
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Passed, "{report}");
}

#[test]
fn states_outlive_a_swap_of_policies_unless_they_are_forgotten() {
    let text = r#"domain: shop
cases:
- name: kept
  steps:
    - {ask: user=ann, times: 3, expect: ok}
    - swap: {shop.yaml: "domain: shop\ndescriptors: [{key: user, rate_limit: 5/h}]"}
    - {ask: user=ann, expect: {answer: ok, remaining: 1, limit: 5/hour}}
- name: forgotten
  steps:
    - {ask: user=ann, times: 3, expect: ok}
    - swap: shop.yaml
      state: forgotten
    - {ask: user=ann, expect: {answer: ok, remaining: 2}}
- name: refused policies leave those before them in force
  steps:
    - swap: {shop.yaml: "domain: shop\ndescriptors: [{key: user, rate_limit: 5/fortnight}]"}
      expect: refused
    - {ask: user=ann, expect: {remaining: 2}}
"#;
    let written = Written::new(text);
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Passed, "{report}");
    let server = RedisServer::start();
    let redis_url = Some(Secret::from(&*server.url()));
    let (verdict, report) = ran(&Tests { redis_url, ..written.tests() });
    assert_eq!(verdict, Verdict::Passed, "{report}");
}

#[test]
fn rows_of_a_test_come_from_a_file_or_stand_in_place_and_change_in_steps() {
    let policy = "domain: shop\ndescriptors:\n- key: tenant\n  rows: {default: free}\n  \
                  rate_limit: {rate: 2/h, plans: {gold: 5/h, max: unlimited}}\n";
    let text = r#"domain: shop
rows: customers.csv
cases:
- name: by the file
  steps:
    - {ask: tenant=acme, times: 6, expect: {passed: 5, denied: 1}}
    - {ask: tenant=hooli, times: 9, expect: {passed: 3, limit: 3/hour}}
    - {ask: tenant=other, times: 6, expect: {passed: 2}}
- name: in place, until an end
  at: 2040-01-01
  rows: |
    domain,descriptor,plan,until
    shop,tenant=acme,max,2040-01-01T01:00:00Z
  steps:
    - {ask: tenant=acme, times: 100, expect: {passed: 100, limit: none}}
    - {ask: tenant=hooli, times: 9, expect: {passed: 2}}
    - {wait: 1h}
    - {ask: tenant=acme, times: 9, expect: {passed: 2}}
- name: a customer upgrades, and what was used stays
  steps:
    - {ask: tenant=other, times: 3, expect: {passed: 2}}
    - rows: |
        domain,tenant,plan
        shop,other,gold
    - {ask: tenant=other, times: 9, expect: {passed: 3}}
    - {ask: tenant=acme, times: 9, expect: {passed: 5}}
    - {swap: shop.yaml, state: forgotten}
    - {ask: tenant=other, times: 9, expect: {passed: 5}}
"#;
    let written = Written::new(text);
    written.write("shop.yaml", policy);
    written.write("customers.csv", "domain,tenant,plan,limits\nshop,acme,gold,\nshop,hooli,,3/h\n");
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Passed, "{report}");
    let server = RedisServer::start();
    let redis_url = Some(Secret::from(&*server.url()));
    let (verdict, report) = ran(&Tests { redis_url, ..written.tests() });
    assert_eq!(verdict, Verdict::Passed, "{report}");
    assert_eq!(server.command(&["DBSIZE"]).as_deref(), Some("0\n"));

    written.write("customers.csv", "domain,tenant,plan\nshop,acme,gold\nshop,hooli,lead\n");
    let (verdict, report) = ran(&written.tests());
    assert_eq!(verdict, Verdict::Broken, "{report}");
    let place = "shop.test.yaml:2:1: customers.csv:3:12: the rule has no plan \"lead\": there is free, gold, max";
    assert!(written.shown(&report).contains(place), "{report}");
}

#[test]
fn check_validates_a_file_of_tests() {
    let checked = |path: &Path| {
        let mut out = Vec::new();
        let strict = Strictness::Lenient;
        let result = weir_cli::check::run(path, Default::default(), strict, &mut out);
        result.map(|()| String::from_utf8(out).expect("text")).map_err(|error| error.to_string())
    };
    let path = at_root("examples/on_error/shop.test.yaml");
    let asks: u64 = test_file::read(&path).expect("valid").cases.iter().map(|case| case.asks).sum();
    let said = checked(&path).expect("valid");
    assert!(said.ends_with(&format!("shop.test.yaml: 4 test cases, {asks} requests\n")), "{said}");
    let written = Written::new("cases: []");
    let said = checked(&written.directory.path().join("shop.test.yaml")).expect_err("no cases");
    assert!(said.ends_with("no cases: a file of tests has at least one"), "{said}");
}
