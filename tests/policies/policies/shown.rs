//! The texts of `weir check` and `weir explain`.

use std::fs;
use std::path::{Path, PathBuf};

use weir_cli::{check, explain};
use weir_lab::testing::Strictness;
use weir_policies::Dialect;

use super::{data, directory, rule};

/// A request's descriptor, as `explain` takes it.
fn descriptor(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|entry| entry.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The texts, with the directory's name taken out of them.
fn checked(dir: &Path) -> Result<String, String> {
    let mut out = Vec::new();
    let told = check::run(dir, Dialect::default(), Strictness::Lenient, &mut out).map_err(|failed| failed.to_string());
    let clean = |text: String| text.replace(&format!("{}/", dir.display()), "");
    match told {
        Ok(()) => Ok(clean(String::from_utf8(out).unwrap())),
        Err(problems) => {
            assert!(out.is_empty(), "wrote a summary of a broken directory");
            Err(clean(problems))
        }
    }
}

fn explained(dir: &Path, domain: &str, descriptors: &[&str]) -> String {
    let descriptors: Vec<_> = descriptors.iter().map(|text| descriptor(text)).collect();
    let mut out = Vec::new();
    explain::run(dir, Dialect::default(), domain, &descriptors, &mut out).unwrap();
    String::from_utf8(out).unwrap().replace(&format!("{}/", dir.display()), "")
}

fn quickstart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart")
}

const SHOP: &str = "domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 100, name: basic}
    descriptors:
      - key: path
        value: /pay
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: path
        descriptors:
          - key: method
            value: POST
            rate_limit: {algorithm: gcra, window: 1m30s, requests_per_unit: 7, burst: 20}
  - key: tenant
    value: t9
    descriptors:
      - key: path
        value: /files/*
        share_threshold: true
        rate_limit: {unit: hour, requests_per_unit: 9}
  - key: plan
    value: gold
    shadow_mode: true
    rate_limits:
      - {unit: second, requests_per_unit: 50, replaces: [{name: basic}], drain: true}
      - {unit: month, requests_per_unit: 0, name: monthly, post_paid: true, alert_at: [80, 100]}
  - key: staff
    rate_limit: {unlimited: true, name: staff}
  - key: \"odd\\n\\e[1m\"
";

#[test]
fn check_prints_warnings_and_strict_makes_errors_of_them() {
    let dir = directory(&[("shop.yaml", "name: x\ndomain: shop\ndescriptors:\n  - {key: user, rate_limit: }\n")]);
    let expected = "domain shop   shop.yaml:2:9   on_error the server's\n  user   no limit\n\n\
         shop.yaml:1:1: warning: name has no effect in a policy file [ignored_key]\n\
         shop.yaml:4:17: warning: rate_limit is empty: nothing is limited here [empty_rate_limit]\n\n\
         1 domain, 0 rules, 0 limits in 1 file\n";
    assert_eq!(checked(dir.path()).unwrap(), expected);

    let mut out = Vec::new();
    let failed = check::run(dir.path(), Dialect::default(), Strictness::Strict, &mut out).unwrap_err();
    assert_eq!(failed.to_string(), "2 warnings, which --strict makes errors");
    assert!(String::from_utf8(out).unwrap().ends_with("1 domain, 0 rules, 0 limits in 1 file\n"));
    check::run(&quickstart(), Dialect::default(), Strictness::Strict, &mut Vec::new()).unwrap();
}

#[test]
fn check_prints_a_tree() {
    let dir = directory(&[("shop.yaml", SHOP), ("void.yml", "domain: void\n")]);
    insta::assert_snapshot!(checked(dir.path()).unwrap(), @r#"
    domain shop   shop.yaml:1:9   on_error the server's
      tenant                         100 per hour    fixed_window, name basic
        path=/pay                    2 per minute    fixed_window
        path
          method=POST                7 per 1m30s     gcra burst 20
      tenant=t9
        path=/files/* (all as one)   9 per hour      fixed_window
      plan=gold                      50 per second   fixed_window, drain, shadow: never denies, replaces basic
                                     0 per month     fixed_window, name monthly, denies everything, post_paid, alert_at 80, 100 %, shadow: never denies, replaces basic
      staff                          unlimited       name staff
      odd\n\u{1b}[1m                 no limit

    domain void   void.yml:1:9   on_error the server's
      no descriptors: everything passes

    void.yml:1:9: warning: no descriptors: this file limits nothing, write descriptors: [] if that is meant [no_descriptors]
    shop.yaml:6:9: warning: (path=/pay, method=POST) has no limit here, because the limit at shop.yaml:11:13 is below the key alone at shop.yaml:9:9: copy what this descriptor lacks from the other descriptor: its nested limits, or its weigh. If no limit is meant, write unlimited: true [hides_below]
    shop.yaml:14:5: warning: (tenant=t9, path=/pay) has no limit here, because the limit at shop.yaml:6:9 is below the key alone at shop.yaml:3:5: copy what this descriptor lacks from the other descriptor: its nested limits, or its weigh. If no limit is meant, write unlimited: true [hides_below]
    shop.yaml:21:5: warning: in shadow mode, and no comment says why: write the reason in a comment: on a line of the descriptor, or on the line above the descriptor [no_reason]
    shop.yaml:27:5: warning: unlimited, and no comment says why: write the reason in a comment: on a line of the descriptor, or on the line above the descriptor [no_reason]
    shop.yaml:29:5: warning: no limit here and below, so this limits nothing: write rate_limit: {unlimited: true} to let requests pass, or remove the descriptor [no_limit]

    2 domains, 6 rules, 6 limits in 2 files
    "#);
}

#[test]
fn check_and_explain_show_what_shapes_a_limit() {
    let text = fs::read_to_string(data("good/all_algorithms.yaml")).unwrap();
    let dir = directory(&[("shop.yaml", &text)]);
    insta::assert_snapshot!(checked(dir.path()).unwrap(), @"
    domain shop   shop.yaml:2:9   charging atomic   on_error the server's
      fixed_window                           100 per hour     fixed_window
      fixed_window of the clock              100 per hour     fixed_window
      fixed_window of the first hit          100 per 1m30s    fixed_window anchor first_hit, drain
      fixed_window of the calendar           1000 per month   fixed_window calendar UTC
      fixed_window of a calendar             1000 per week    fixed_window calendar Europe/Berlin
      fixed_window of the calendar by name   1000 per month   fixed_window calendar UTC
      sliding_window_counter                 100 per hour     sliding_window_counter, post_paid
      sliding_window                         100 per hour     sliding_window precision 1m
      sliding_window of its own precision    100 per 4m16s    sliding_window precision 1s, post_paid
      sliding_window_log                     10000 per hour   sliding_window_log
      token_bucket                           10 per second    token_bucket burst 10
      token_bucket with a purse              10 per second    token_bucket burst 50
      token_bucket by interval               10 per second    token_bucket burst 5 refill interval
      leaky_bucket                           10 per second    leaky_bucket burst 10
      leaky_bucket with a queue              10 per second    leaky_bucket burst 50, drain
      gcra                                   10 per second    gcra burst 10
      gcra with a burst                      1 per 366d       gcra burst 8
      concurrency                            50 in flight     concurrency window 30s

    shop.yaml:8:86: warning: timezone has no value, so it has no effect: write one, or remove timezone [empty_value]
    shop.yaml:37:5: warning: limit 1 takes 2928d to refill its burst of 8: write a smaller burst, or a higher rate [slow_burst]

    1 domain, 18 rules, 18 limits in 1 file
    ");
    let text = explained(dir.path(), "shop", &["fixed_window of a calendar=x", "sliding_window=x"]);
    insta::assert_snapshot!(text, @"
    domain shop   shop.yaml:2:9   charging atomic   on_error the server's

    descriptor 1   fixed_window of a calendar=x
      fixed_window of a calendar=x   key alone   shop.yaml:13:5
      rule fixed_window of a calendar   shop.yaml:13:5
        1000 per week   fixed_window calendar Europe/Berlin
          key w1:{shop|fixed_window%20of%20a%20calendar=x}kweek@Europe/Berlin
        on_error the server's

    descriptor 2   sliding_window=x
      sliding_window=x   key alone   shop.yaml:19:5
      rule sliding_window   shop.yaml:19:5
        100 per hour   sliding_window precision 1m
          key w1:{shop|sliding_window=x}w3600s/60s
        on_error the server's
    ");
}

#[test]
fn check_and_explain_show_who_says_what_becomes_of_a_failed_charge() {
    let text = fs::read_to_string(data("good/on_error.yaml")).unwrap();
    let dir = directory(&[("shop.yaml", &text)]);
    insta::assert_snapshot!(checked(dir.path()).unwrap(), @"
    domain shop   shop.yaml:2:9   on_error deny
      user      10 per second   fixed_window, on_error local
                100 per hour    fixed_window, on_error local
        path    5 per second    fixed_window
      client    20 per second   fixed_window, on_error allow
      partner   20 per second   fixed_window, on_error error
      nothing   20 per second   fixed_window
      level     no limit
      staff     unlimited

    shop.yaml:18:5: warning: on_error has no value, so it has no effect: write one, or remove on_error [empty_value]
    shop.yaml:21:5: warning: on_error has no value, so it has no effect: write one, or remove on_error [empty_value]
    shop.yaml:20:5: warning: no limit here and below, so this limits nothing: write rate_limit: {unlimited: true} to let requests pass, or remove the descriptor [no_limit]
    shop.yaml:23:5: warning: unlimited, and no comment says why: write the reason in a comment: on a line of the descriptor, or on the line above the descriptor [no_reason]

    1 domain, 6 rules, 6 limits in 1 file
    ");
    let text = explained(dir.path(), "shop", &["user=ann", "user=ann,path=/", "staff=x"]);
    insta::assert_snapshot!(text, @"
    domain shop   shop.yaml:2:9   on_error deny

    descriptor 1   user=ann
      user=ann   key alone   shop.yaml:5:5
      rule user   shop.yaml:5:5
        10 per second   fixed_window
          key w1:{shop|user=ann}f1s
        100 per hour   fixed_window
          key w1:{shop|user=ann}f3600s
        on_error local, from the rule

    descriptor 2   user=ann, path=/
      user=ann   key alone   shop.yaml:5:5
      path=/     key alone   shop.yaml:9:9
      rule user|path   shop.yaml:9:9
        5 per second   fixed_window
          key w1:{shop|user=ann|path=/}f1s
        on_error deny, from the domain

    descriptor 3   staff=x
      staff=x   key alone   shop.yaml:23:5
      rule staff   shop.yaml:23:5
        unlimited
          passes, and no state is kept
    ");
}

#[test]
fn check_prints_problems_and_nothing_else() {
    let dir = directory(&[("shop.yaml", &SHOP.replace("unit: minute", "unit: minutes")), ("void.yml", "")]);
    insta::assert_snapshot!(checked(dir.path()).unwrap_err(), @r#"
    shop.yaml:8:28: no unit "minutes", did you mean "minute"?
    void.yml:1:1: empty: a policy file has a domain and descriptors
    "#);
}

#[test]
fn explain_tells_which_rule_and_where() {
    let dir = directory(&[("shop.yaml", SHOP)]);
    let text = explained(
        dir.path(),
        "shop",
        &[
            "tenant=t1",
            "tenant=t1,path=/pay",
            "tenant=t9,path=/files/a=b",
            "tenant=t1,path=/x,method=POST",
            "staff=ann",
        ],
    );
    insta::assert_snapshot!(text, @"
    domain shop   shop.yaml:1:9   on_error the server's

    descriptor 1   tenant=t1
      tenant=t1   key alone   shop.yaml:3:5
      rule tenant   shop.yaml:3:5
        100 per hour   fixed_window, name basic
          key w1:{shop|tenant=t1}f3600s
        on_error the server's

    descriptor 2   tenant=t1, path=/pay
      tenant=t1   key alone   shop.yaml:3:5
      path=/pay   key and value   shop.yaml:6:9
      rule tenant|path=/pay   shop.yaml:6:9
        2 per minute   fixed_window
          key w1:{shop|tenant=t1|path=/pay}f60s
        on_error the server's

    descriptor 3   tenant=t9, path=/files/a=b
      tenant=t9         key and value   shop.yaml:14:5
      path=/files/a=b   pattern /files/*, all as one   shop.yaml:17:9
      rule tenant=t9|path=/files/*   shop.yaml:17:9
        9 per hour   fixed_window
          key w1:{shop|tenant=t9|path=/files/*}f3600s
        on_error the server's

    descriptor 4   tenant=t1, path=/x, method=POST
      tenant=t1     key alone   shop.yaml:3:5
      path=/x       key alone   shop.yaml:9:9
      method=POST   key and value   shop.yaml:11:13
      rule tenant|path|method=POST   shop.yaml:11:13
        7 per 1m30s   gcra burst 20
          key w1:{shop|tenant=t1|path=/x|method=POST}g90s
        on_error the server's

    descriptor 5   staff=ann
      staff=ann   key alone   shop.yaml:27:5
      rule staff   shop.yaml:27:5
        unlimited   name staff
          passes, and no state is kept
    ");
}

#[test]
fn explain_tells_what_a_request_replaces() {
    let dir = directory(&[("shop.yaml", SHOP)]);
    insta::assert_snapshot!(explained(dir.path(), "shop", &["tenant=t1", "plan=gold"]), @"
    domain shop   shop.yaml:1:9   on_error the server's

    descriptor 1   tenant=t1
      tenant=t1   key alone   shop.yaml:3:5
      rule tenant   shop.yaml:3:5
        100 per hour   fixed_window, name basic
          left out: descriptor 2 replaces it by name
        on_error the server's

    descriptor 2   plan=gold
      plan=gold   key and value   shop.yaml:21:5
      rule plan=gold   shop.yaml:21:5
        50 per second   fixed_window, drain, shadow: never denies, replaces basic
          key w1:{shop|plan=gold}f1s
        0 per month   fixed_window, name monthly, denies everything, post_paid, alert_at 80, 100 %, shadow: never denies, replaces basic
          key w1:{shop|plan=gold}f2592000s
        on_error the server's
    ");
}

#[test]
fn check_and_explain_show_a_lease() {
    let policy = "domain: shop\ndescriptors:\n  - {key: tenant, rate_limit: {rate: 100_000/min, lease: 100ms}}\n";
    let dir = directory(&[("shop.yaml", policy)]);
    let line = "100000 per minute   fixed_window, lease 100ms";
    for text in [checked(dir.path()).unwrap(), explained(dir.path(), "shop", &["tenant=t1"])] {
        assert!(text.contains(line), "{text}");
    }
}

/// [te-5] [lm-7]
#[test]
fn check_and_explain_show_spans_and_what_is_counted() {
    let text = "domain: shop
descriptors:
  - key: user
    rate_limits:
      - {rate: 9/min, counts: requests}
      - {rate: 5/h, name: all, during: [00:00-12:00, 'Mon-Sun 12:00-24:00']}
      - {rate: 4/h, name: sunday, during: sun 02:00-06:00 europe/berlin, from: 2099-01-01}
      - {rate: 3/h, name: january, from: 2001-01-01, until: 2099-02-01}
      - {rate: 2/h, name: over, until: 2001-01-01}
";
    let dir = directory(&[("shop.yaml", text)]);
    let shown = checked(dir.path()).unwrap();
    for detail in [
        "9 per minute   fixed_window, counts requests",
        "5 per hour     fixed_window, name all, during daily 00:00-12:00 UTC; daily 12:00-24:00 UTC",
        "4 per hour     fixed_window, name sunday, from 2099-01-01T00:00:00Z, during Sun 02:00-06:00 Europe/Berlin",
    ] {
        assert!(shown.contains(detail), "{detail}\n{shown}");
    }
    let shown = explained(dir.path(), "shop", &["user=ann"]);
    let keyed: Vec<&str> =
        shown.lines().skip_while(|line| !line.contains("rule user")).skip(1).map(str::trim).collect();
    let after = |key: &str| keyed[keyed.iter().position(|line| line.ends_with(key)).expect(key) + 1];
    assert!(after("}rf60s").starts_with("5 per hour"), "always: {shown}");
    assert_eq!(after("}f3600s:all"), "applies now", "{shown}");
    assert_eq!(after("}f3600s:sunday"), "does not apply now, next from 2099-01-04T01:00:00Z", "{shown}");
    assert_eq!(after("}f3600s:january"), "applies now, until 2099-02-01T00:00:00Z", "{shown}");
    assert_eq!(after("}f3600s:over"), "does not apply any more", "{shown}");
}

#[test]
fn explain_tells_why_nothing_matches() {
    let dir = directory(&[("shop.yaml", SHOP)]);
    let text = explained(
        dir.path(),
        "shop",
        &[
            "tenat=t1",
            "plan=silver",
            "colour=red",
            "tenant=t9,path=/pay",
            "tenant=t9",
            "tenant=t1,path=/pay,x=1",
            "odd\n\u{1b}[1m=1",
            "",
        ],
    );
    insta::assert_snapshot!(text, @r#"
    domain shop   shop.yaml:1:9   on_error the server's

    descriptor 1   tenat=t1
      tenat=t1   no such key, did you mean "tenant"?
      no rule, so it passes

    descriptor 2   plan=silver
      plan=silver   no such value, there is plan=gold
      no rule, so it passes

    descriptor 3   colour=red
      colour=red   no such key, there is tenant, tenant=t9, plan=gold, staff, odd\n\u{1b}[1m
      no rule, so it passes

    descriptor 4   tenant=t9, path=/pay
      tenant=t9   key and value   shop.yaml:14:5
      path=/pay   no such value, there is path=/files/*
      no rule, so it passes

    descriptor 5   tenant=t9
      tenant=t9   key and value   shop.yaml:14:5
      no rule, so it passes: rules are deeper, below path=/files/*

    descriptor 6   tenant=t1, path=/pay, x=1
      tenant=t1   key alone   shop.yaml:3:5
      path=/pay   key and value   shop.yaml:6:9
      x=1         no descriptors are deeper here
      no rule, so it passes: the rule at shop.yaml:6:9 counts only for a descriptor that ends with path=/pay

    descriptor 7   odd\n\u{1b}[1m=1
      odd\n\u{1b}[1m=1   key alone   shop.yaml:29:5
      no rule, so it passes: this descriptor of the policy has no limit

    descriptor 8
      no rule, so it passes: a descriptor without entries matches nothing
    "#);
}

#[test]
fn explain_prints_a_descriptor_as_it_is_typed() {
    let mut out = Vec::new();
    let asked = vec![("user".to_owned(), r"a,b\c".to_owned())];
    explain::run(&quickstart(), Dialect::default(), "quickstart", &[asked], &mut out).unwrap();
    let printed = String::from_utf8(out).unwrap();
    assert!(printed.contains(r"user=a\,b\\c"), "{printed}");
}

#[test]
fn explain_tells_of_an_unknown_domain() {
    let dir = directory(&[("shop.yaml", SHOP), ("other.yaml", "domain: other\n")]);
    insta::assert_snapshot!(explained(dir.path(), "shpo", &["a=b"]), @r#"
    no domain "shpo", did you mean "shop"?
    a request of an unknown domain passes
    "#);
    insta::assert_snapshot!(explained(dir.path(), "nothing-like-it", &["a=b"]), @r#"
    no domain "nothing-like-it", there is other, shop
    a request of an unknown domain passes
    "#);
}

#[test]
fn the_quickstart_limits_a_user_to_three_an_hour() {
    let loaded = weir_policies::load_dir(&quickstart()).unwrap();
    let limits = &rule(&loaded, "quickstart", &[("user", "ann")]).unwrap().limits;
    assert_eq!((limits.len(), limits[0].requests(), limits[0].window().us()), (1, 3, 3_600_000_000));
}

#[test]
fn a_writer_that_fails_is_told() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no space"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let failed = check::run(&quickstart(), Dialect::default(), Strictness::Lenient, &mut Full).unwrap_err();
    assert!(matches!(failed, check::Failed::Output(_)), "{failed}");
    assert_eq!(failed.to_string(), "cannot write: no space");
}
