//! Results: the same for the same seed, adding up, and written whole or not at all.

use std::collections::BTreeSet;
use std::{fs, io};

use serde_json::Value;
use weir_cli::simulate::{SimulateArguments, SimulateError, run};
use weir_lab::simulation::KEYS_MAX;

use super::{Written, all, short};

/// All kinds of sources.
const TRAFFIC: &str = "duration: 2m
start: 2040-01-02T08:59:00Z
seed: 7
domain: shop
sources:
  - {ask: user=u<n>, rate: 20/s, arrivals: poisson, keys: 50}
  - {ask: [user=steady, path=/a/<n>], rate: 1/s, keys: 3}
  - {ask: path=/b, rate: 15/min, arrivals: bursts, burst: 5}
  - {ask: user=late, rate: 10/s, from: 90s, hits: 2}
  - {ask: user=ann, domain: nowhere, rate: 1/min}
";

fn json(written: &Written, arguments: &SimulateArguments) -> (String, Value) {
    written.ran(arguments);
    let text = fs::read_to_string(arguments.json.as_ref().expect("a file")).expect("the results");
    let value = serde_json::from_str(&text).expect("JSON");
    (text, value)
}

fn arguments(written: &Written, traffic: &str) -> SimulateArguments {
    let path = written.write("shop.traffic.yaml", traffic);
    SimulateArguments { json: Some(written.path("out.json")), ..written.arguments(path) }
}

fn sum(list: &Value) -> u64 {
    list.as_array().expect("a list").iter().map(|item| item.as_u64().expect("a number")).sum()
}

#[test]
fn a_seed_gives_the_same_results_to_the_byte() {
    let written = Written::new();
    let arguments = arguments(&written, TRAFFIC);
    let (first, _) = json(&written, &arguments);
    let (again, _) = json(&written, &arguments);
    assert_eq!(first, again);
    written.write("shop.traffic.yaml", &TRAFFIC.replace("seed: 7", "seed: 8"));
    let (other, _) = json(&written, &arguments);
    assert_ne!(first, other);
}

#[test]
fn results_add_up() {
    let written = Written::new();
    let arguments = SimulateArguments { keys: 1_000, ..arguments(&written, TRAFFIC) };
    let (_, results) = json(&written, &arguments);
    assert_eq!(results["weir_simulation"], 1);
    let traffic = &results["traffic"];
    let requests = traffic["requests"].as_u64().unwrap();
    assert_eq!(requests, all(&arguments.traffic).unwrap().len() as u64);
    assert_eq!((&traffic["seed"], &traffic["start"]), (&7.into(), &"2040-01-02T08:59:00Z".into()));

    let policies = &results["policies"][0];
    let count = |name: &str| policies[name].as_u64().unwrap();
    assert_eq!(count("passed") + count("denied"), requests);
    assert!(count("denied") > 500 && count("passed") > 300, "{policies}");
    assert_eq!((count("unknown_domain"), count("failed"), count("evicted")), (2, 0, 0));
    // Those for /b and those of the unknown domain.
    let unmatched = all(&arguments.traffic)
        .unwrap()
        .into_iter()
        .filter(|request| request.message.domain != "shop" || short(request) == ["path=/b"]);
    assert_eq!(count("unmatched_descriptors"), unmatched.count() as u64);
    assert_eq!(policies["retry_after"]["count"], policies["denied"]);
    assert!(policies["retry_after"]["max_us"].as_u64().unwrap() <= 60_000_000);

    let over_time = &policies["over_time"];
    assert_eq!((sum(&over_time["passed"]), sum(&over_time["denied"])), (count("passed"), count("denied")));
    assert_eq!((&over_time["slot_us"], &over_time["start"]), (&200_000.into(), &"2040-01-02T08:59:00Z".into()));

    let limits = policies["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 2, "{limits:?}");
    let mut of_limits = 0;
    for limit in limits {
        let over = limit["over"].as_u64().unwrap();
        of_limits += limit["requests"].as_u64().unwrap();
        assert_eq!(sum(&limit["over_time"]["over"]), over);
        assert_eq!(sum(&limit["over_time"]["within"]) + over, limit["requests"].as_u64().unwrap());
        let keys = policies["keys"].as_array().unwrap().iter().filter(|key| key["rule"] == limit["rule"]);
        assert_eq!(keys.map(|key| key["over"].as_u64().unwrap()).sum::<u64>(), over, "{limit}");
    }
    assert!(of_limits > requests, "requests of two descriptors charge two limits");
    assert_eq!(policies["other_keys"]["requests"], 0);
    assert!(count("keys_counted") <= KEYS_MAX as u64);
    // Of two hits one more than three fit never comes.
    let late = policies["keys"].as_array().unwrap().iter().find(|key| key["key"] == "user=late").unwrap();
    assert_eq!(late["hits"].as_u64(), late["requests"].as_u64().map(|requests| 2 * requests));
}

#[test]
fn rows_give_customers_their_plans_in_all_policies_and_misfits_are_noted() {
    let written = Written::new();
    let policy = |plans: &str| {
        format!(
            "domain: shop\ndescriptors:\n- {{key: tenant, rows: {{default: free}}, rate_limit: {{rate: 2/h, plans: {{{plans}}}}}}}\n"
        )
    };
    written.write("policies/shop.yaml", &policy("gold: 5/h"));
    let next = written.write("next.yaml", &policy("gold: 7/h, lead: 1/h"));
    written.write("customers.csv", "domain,tenant,plan\nshop,acme,gold\nshop,hooli,lead\n");
    let traffic = "duration: 1s\ndomain: shop\nrows: customers.csv\nsources:\n\
                   - {ask: tenant=acme, rate: 10/s}\n- {ask: tenant=hooli, rate: 10/s}\n- {ask: tenant=new, rate: 10/s}\n";
    let mut arguments = arguments(&written, traffic);
    arguments.policies.push(next);
    let (_, notes) = written.ran(&arguments);
    assert_eq!(
        notes,
        "weir: policies: 1 row without effect, so the default plan applies, such as customers.csv:3:12: the rule has no \
         plan \"lead\": there is free, gold\n"
    );
    let (_, results) = json(&written, &arguments);
    let passed = [&results["policies"][0]["passed"], &results["policies"][1]["passed"]];
    assert_eq!(passed, [5 + 2 + 2, 7 + 1 + 2]);
}

/// Report: requests with numbers of their own passed far beyond the limit in the table. [mt-10]
#[test]
fn requests_with_other_numbers_than_the_limit_are_marked() {
    let written = Written::new();
    let policy =
        "domain: shop\ndescriptors: [{key: t, request_limit: numbers, rate_limit: {rate: 2/min, name: tpm}}]\n";
    written.write("policies/shop.yaml", policy);
    let source = |limit: &str| format!("duration: 1s\ndomain: shop\nsources: [{{ask: t=a, rate: 10/s{limit}}}]\n");
    let arguments = arguments(&written, &source(", limit: 9/min"));
    let (text, _) = written.ran(&arguments);
    assert!(text.contains("tpm: 2 per minute fixed_window, other numbers in 10 requests "), "{text}");
    let (_, results) = json(&written, &arguments);
    assert_eq!(results["policies"][0]["limits"][0]["other_numbers"], 10);
    let arguments = self::arguments(&written, &source(""));
    assert!(!written.ran(&arguments).0.contains("other numbers"));
}

#[test]
fn the_report_is_for_people() {
    let written = Written::new();
    // A key is written to the terminal, and must not control it.
    let traffic = "duration: 1m\ndomain: shop\nsources:\n- {ask: user=ann, rate: 6/min}\n\
                   - {ask: \"user=\\e]0;x\\a<n>\", rate: 1/min, keys: 2}\n";
    let mut arguments = arguments(&written, traffic);
    arguments.policies.push(written.write("two.yaml", "domain: shop\ndescriptors: [{key: user, rate_limit: 1/m}]"));
    let (report, notes) = written.ran(&arguments);
    assert_eq!(notes, "");
    insta::assert_snapshot!(report, @r"
    shop.traffic.yaml: 7 requests, from 2040-01-02T00:00:00Z to 2040-01-02T00:00:50Z, seed 0

    differences  policies          two.yaml              limit
    passed              4  57.1 %         2  28.6 %  -2
    denied              3  42.9 %         5  71.4 %  +2
    over user           3  42.9 %         5  71.4 %  +2  3 per minute fixed_window -> 1 per minute fixed_window

              passed          denied          delayed  retry after: p50  p99  longest
    policies       4  57.1 %       3  42.9 %        0               20s  30s      30s
    two.yaml       2  28.6 %       5  71.4 %        0               30s  50s      50s

    each column is 1s, the highest is 2 requests
    policies  passed  █         ▄         ▄
              denied                                ▄         ▄         ▄
    two.yaml  passed  █
              denied            ▄         ▄         ▄         ▄         ▄

    limits    requests  over          limit                      rule  place
    policies         7     3  42.9 %  3 per minute fixed_window  user  policies/shop.yaml:3:5
    two.yaml         7     5  71.4 %  1 per minute fixed_window  user  two.yaml:2:15

    keys      requests  over          key                    limit
    policies         6     3  50.0 %  user=ann               3 per minute
    policies         1     0   0.0 %  user=\u{1b}]0;x\u{7}1  3 per minute
    two.yaml         6     5  83.3 %  user=ann               1 per minute
    two.yaml         1     0   0.0 %  user=\u{1b}]0;x\u{7}1  1 per minute
    ");
}

#[test]
fn two_policies_are_compared_by_limits_of_the_same_rule_and_name() {
    let written = Written::new();
    let policy = |limits: &str| format!("domain: shop\ndescriptors: [{{key: user, rate_limits: [{limits}]}}]\n");
    written.write("policies/shop.yaml", &policy("{rate: 3/min, name: a}, {rate: 100/h, name: b}"));
    let next = policy("{rate: 100/h, name: b}, {rate: 2/min, name: a}, {rate: 5/h, name: \"<c>\"}");
    let mut arguments = arguments(&written, "duration: 1m\ndomain: shop\nsources: [{ask: user=ann, rate: 6/min}]\n");
    arguments.policies.push(written.write("next.yaml", &next));
    arguments.html = Some(written.path("out.html"));
    let (_, results) = json(&written, &arguments);
    assert_eq!(results["differences"], serde_json::json!([[0, 1], [null, 2]]), "b has the same counts");
    let (report, _) = written.ran(&arguments);
    let differences = report.split("\n\n").nth(1).unwrap();
    insta::assert_snapshot!(differences, @r"
    differences  policies          next.yaml              limit
    passed              3  50.0 %          2  33.3 %  -1
    denied              3  50.0 %          4  66.7 %  +1
    over user           3  50.0 %          4  66.7 %  +1  a: 3 per minute fixed_window -> a: 2 per minute fixed_window
    over user           -                  0   0.0 %   0  none -> <c>: 5 per hour fixed_window
    ");
    let page = fs::read_to_string(written.path("out.html")).unwrap();
    let (first, _) = page.split_once("<h2>Totals</h2>").unwrap();
    assert!(first.contains("<h2>Differences</h2>") && first.contains("none -&gt; &lt;c&gt;: 5 per hour"), "{first}");
    assert_eq!(first.matches("<svg ").count(), 3);

    arguments.policies[1] = written.path("policies");
    let (report, _) = written.ran(&arguments);
    assert!(report.contains("\nno difference in any count\n"), "{report}");
    assert_eq!(json(&written, &arguments).1["differences"], serde_json::json!([]));
}

/// A request a second, each of which ends before the next one begins.
#[test]
fn what_requests_use_decides_how_many_pass_and_not_what_they_hold() {
    let written = Written::new();
    let limit = "{rate: 1000/h, hold: true}";
    written
        .write("policies/shop.yaml", &format!("domain: shop\ndescriptors:\n  - {{key: user, rate_limit: {limit}}}\n"));
    let passed = |used: &str| {
        let source = format!("{{ask: user=ann, rate: 1/s, hits: 100, lasts: 500ms{used}}}");
        let arguments = arguments(&written, &format!("duration: 1m\ndomain: shop\nsources: [{source}]\n"));
        json(&written, &arguments).1["policies"][0]["passed"].as_u64().unwrap()
    };
    // A request is admitted while what was used leaves room for its estimate of 100.
    assert_eq!([passed(""), passed(", used: 50"), passed(", used: 200")], [10, 19, 5]);
    let varied = passed(", used: 40..60");
    assert!((16..=23).contains(&varied) && varied == passed(", used: 40..60"), "{varied}");
    let lasting = |used: &str| format!("duration: 1m\ndomain: d\nsources: [{{ask: a=1, rate: 9/s, lasts: 1s{used}}}]");
    let used: BTreeSet<_> = all(&written.write("u.traffic.yaml", &lasting(", used: 3..5")))
        .unwrap()
        .into_iter()
        .map(|request| request.used)
        .collect();
    assert_eq!(used, BTreeSet::from([Some(3), Some(4), Some(5)]));
}

/// [dt-2]
#[test]
fn a_request_that_never_fits_is_denied_for_ever_also_if_it_waits_for_a_permit() {
    let written = Written::new();
    let policy = "domain: shop\ndescriptors: [{key: a, rate_limit: 3/h}, {key: b, rate_limit: LIMIT}, \
                  {key: q, quota_mode: true, rate_limit: 3/h}]\n";
    let permits = "{algorithm: concurrency, requests_per_unit: 1, window: 60s}";
    written.write("policies/shop.yaml", &policy.replace("LIMIT", permits));
    let counted = |asks: &[&str]| {
        let source = |ask: &&str| format!("{{ask: [{ask}], hits: 12, rate: 1/s}}");
        let sources: Vec<String> = asks.iter().map(source).collect();
        let text = format!("duration: 1s\ndomain: shop\nsources: [{}]\n", sources.join(", "));
        let policies = &json(&written, &arguments(&written, &text)).1["policies"][0];
        ["passed", "denied", "denied_for_ever"].map(|member| policies[member].as_u64().unwrap())
    };
    assert_eq!(counted(&["a=1", "b=1", "a=1, b=1"]), [1, 2, 2]);
    assert_eq!(counted(&["b=1", "b=1"]), [1, 1, 0], "a permit can come back");
    assert_eq!(counted(&["b=1", "q=1, b=1"]), [1, 1, 1], "its only quota never admits it");
    assert_eq!(counted(&["q=1, q=2, b=1", "q=1, z=1"]), [0, 2, 2]);
}

/// [hd-2] [hd-8]
#[test]
fn a_hold_of_a_limit_of_0_counts_all_hits_of_its_estimate() {
    let written = Written::new();
    let policy = "domain: shop\ndescriptors: [{key: user, rate_limit: {rate: 0/d, hold: true}}]\n";
    written.write("policies/shop.yaml", policy);
    let source = "duration: 1s\ndomain: shop\nsources: [{ask: user=ann, rate: 1/s, hits: 3}]\n";
    let limit = json(&written, &arguments(&written, source)).1["policies"][0]["limits"][0].clone();
    assert_eq!((&limit["hits"], &limit["hits_over"]), (&3.into(), &3.into()));
}

#[test]
fn too_many_requests_are_an_error() {
    let written = Written::new();
    let mut arguments = arguments(&written, TRAFFIC);
    arguments.max_requests = 100;
    assert!(written.refused(&arguments).starts_with("the traffic has about "), "{}", written.refused(&arguments));
    assert!(!written.path("out.json").exists());
}

#[test]
fn problems_of_all_policies_are_reported() {
    let written = Written::new();
    let mut arguments = arguments(&written, TRAFFIC);
    arguments.policies.push(written.write("bad.yaml", "domain: shop\ndescriptors: [{kee: user}]"));
    arguments.policies.push(written.write("worse.yaml", "descriptors: []"));
    let problems = written.refused(&arguments);
    assert!(problems.contains("bad.yaml:2:16: unknown key \"kee\""), "{problems}");
    assert!(problems.contains("worse.yaml:1:1"), "{problems}");
}

#[test]
fn files_are_written_whole_or_not_at_all() {
    let written = Written::new();
    let mut arguments = arguments(&written, TRAFFIC);
    arguments.json = Some(written.path("none/out.json"));
    match run(&arguments, io::sink(), io::sink()) {
        Err(SimulateError::Output(reason)) => {
            assert!(written.shown(&reason).starts_with("none/out.json: cannot write: No such file"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let left: Vec<_> = fs::read_dir(written.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");

    arguments.json = Some(written.path("out.json"));
    arguments.html = Some(written.path("policies"));
    match run(&arguments, io::sink(), io::sink()) {
        Err(SimulateError::Output(reason)) => assert!(reason.ends_with("policies: cannot write: is a directory")),
        other => panic!("{other:?}"),
    }
    assert!(!written.path("out.json").exists(), "no file is written if one cannot be");
}

#[test]
fn a_file_that_cannot_be_written_is_reported_before_the_simulation() {
    let written = Written::new();
    let mut arguments = arguments(&written, TRAFFIC);
    arguments.json = Some(written.path("none/out.json"));
    // Traffic that ends with an error of its own.
    arguments.max_requests = 1;
    assert!(matches!(run(&arguments, io::sink(), io::sink()), Err(SimulateError::Output(_))));
}

#[test]
fn results_replace_no_file_that_is_read_and_not_each_other() {
    let written = Written::new();
    let mut arguments = arguments(&written, TRAFFIC);
    for (path, expected) in [
        ("shop.traffic.yaml", "--html shop.traffic.yaml: the simulation reads this file: give another name"),
        ("policies/../policies/shop.yaml", "shop.yaml: the simulation reads this file: give another name"),
        ("policies/../out.json", "--json and --html name one file: give each its own name"),
    ] {
        arguments.html = Some(written.path(path));
        let refused = written.refused(&arguments);
        assert!(refused.ends_with(expected), "{refused}");
    }
    assert_eq!(fs::read_to_string(written.path("shop.traffic.yaml")).expect("traffic"), TRAFFIC);
    assert!(!written.path("out.json").exists());
}

#[test]
fn links_stay_links_and_devices_stay_devices() {
    let written = Written::new();
    let mut arguments = arguments(&written, TRAFFIC);
    for (name, to) in [("link.json", "real.json"), ("null", "/dev/null"), ("full", "/dev/full")] {
        std::os::unix::fs::symlink(to, written.path(name)).expect("a link");
    }
    arguments.json = Some(written.path("link.json"));
    arguments.html = Some(written.path("null"));
    written.ran(&arguments);
    let is_link = |name| fs::symlink_metadata(written.path(name)).expect("a name").is_symlink();
    assert!(is_link("link.json") && is_link("null"));
    let json: Value =
        serde_json::from_str(&fs::read_to_string(written.path("real.json")).expect("results")).expect("JSON");
    assert_eq!(json["weir_simulation"], 1);

    let output = |arguments: &SimulateArguments| match run(arguments, io::sink(), io::sink()) {
        Err(SimulateError::Output(reason)) => written.shown(&reason),
        other => panic!("{other:?}"),
    };
    arguments.html = Some(written.path("full"));
    assert!(output(&arguments).starts_with("full: cannot write: No space left"));
    // weir does not wait for somebody to read.
    let pipe = written.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    arguments.html = Some(pipe);
    assert_eq!(output(&arguments), "pipe: cannot write: no program reads from it");
}

#[test]
fn a_page_holds_hostile_keys() {
    let written = Written::new();
    let traffic = "duration: 1m\ndomain: shop\nsources:\n\
                   - {ask: {entries: [{key: user, value: '\"><script>alert(1)</script>'}]}, rate: 9/min}\n";
    // A list of one: `ask` takes a mapping in a list only.
    let traffic = traffic.replace("{ask: {entries", "{ask: [{entries").replace("}]}, rate: 9", "}]}], rate: 9");
    let mut arguments = arguments(&written, &traffic);
    arguments.html = Some(written.path("out.html"));
    arguments.policies.push(written.write("next.yaml", "domain: shop\ndescriptors: [{key: user, rate_limit: 1/m}]"));
    written.ran(&arguments);

    let page = fs::read_to_string(written.path("out.html")).unwrap();
    assert!(page.contains("&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    for absent in ["<script", "http:", "https:", "//", "url(", "@import", "<link", "<img", " src", " href"] {
        assert!(!page.contains(absent), "{absent}");
    }
    assert_eq!(page.matches("<figure>").count(), 2);
    for (open, close) in [("<svg ", "</svg>"), ("<table>", "</table>"), ("<tr>", "</tr>"), ("<td ", "</td>")] {
        assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn a_page_says_which_limits_it_leaves_out() {
    let written = Written::new();
    let limits = |count: u32| {
        let rules = (1..=count).map(|n| format!("  - {{key: k{n}, rate_limit: 1/m}}\n"));
        format!("domain: shop\ndescriptors:\n{}", rules.collect::<String>())
    };
    let page_of = |count: u32| {
        let traffic = format!(
            "duration: 1m\ndomain: shop\nsources:\n  - {{ask: k<n>=a, keys: {count}, rate: {}/min}}\n",
            20 * count
        );
        let mut arguments = arguments(&written, &traffic);
        arguments.policies = vec![written.write("many.yaml", &limits(count))];
        arguments.html = Some(written.path("out.html"));
        written.ran(&arguments);
        fs::read_to_string(written.path("out.html")).unwrap()
    };
    let page = page_of(203);
    assert!(page.contains(">Only the limits that were asked first have a plot.<"), "{page}");
    assert!(page.contains(">And 3 more limits: --json has all.<"), "{page}");
    let page = page_of(3);
    assert!(!page.contains("have a plot") && !page.contains("--json"), "{page}");
}

#[test]
fn shares_near_none_and_near_all_are_told_from_these() {
    let written = Written::new();
    let traffic =
        "duration: 1m\ndomain: shop\nsources:\n  - {ask: other=1, rate: 5000/min}\n  - {ask: user=ann, rate: 4/min}\n";
    let mut arguments = arguments(&written, traffic);
    arguments.html = Some(written.path("out.html"));
    let (report, _) = written.ran(&arguments);
    assert!(report.contains(" 5,003  >99.9 %       1  <0.1 % "), "{report}");
    let page = fs::read_to_string(written.path("out.html")).unwrap();
    assert!(page.contains(">&gt;99.9 %<") && page.contains(">&lt;0.1 %<"), "{page}");
}

/// "10 per minute" in the tables of a simulation: a limit of 10 requests in flight was shown as a rate.
#[test]
fn a_limit_on_requests_in_flight_is_shown_as_such() {
    let written = Written::new();
    let limit = "{algorithm: concurrency, requests_per_unit: 10, window: 60s}";
    written
        .write("policies/shop.yaml", &format!("domain: shop\ndescriptors:\n  - {{key: user, rate_limit: {limit}}}\n"));
    let arguments =
        arguments(&written, "duration: 1m\ndomain: shop\nsources: [{ask: user=ann, rate: 1/s, lasts: 5s}]\n");
    let (_, results) = json(&written, &arguments);
    assert_eq!(results["policies"][0]["limits"][0]["limit"], "10 in flight");
}
