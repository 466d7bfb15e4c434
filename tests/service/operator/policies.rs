//! `weir check` and `weir explain` of a running server: the same as of its files, whatever way they came.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use weir_api::policies::{DomainInForce, RuleInForce, RulesInForce};

use crate::support::ads::{Ads, shop};
use crate::support::http;
use crate::support::process::{LogLine, POLICIES_LOADED, POLICIES_REFUSED, PolicyDirectory, Process, Weir, binary};
use crate::support::served::Served;
use crate::support::wait::PATIENCE;

const POLICY: &str = "\
# Größe: \"quoted\" \\ and a tab\tin a comment
domain: shop
descriptors:
  - {key: user, rate_limit: {rate: 3/h, name: per-user}}
  - key: plan
    value: free*
    share_threshold: true
    rate_limits:
      - {rate: 10/day, algorithm: sliding_window_log}
      - {rate: 2/min, algorithm: gcra, burst: 5}
    descriptors:
      - {key: path, shadow_mode: true, on_error: deny, rate_limit: {rate: 1/s, replaces: [{name: per-user}]}}
";
const OTHER: &str = "domain: blog\ncharging: independent\non_error: allow\ndescriptors:\n  - {key: a}\n";

fn weir(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("weir runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn serving(files: &[(&str, &str)], arguments: &[&str]) -> (Weir, PolicyDirectory) {
    let files: Vec<_> = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let policies = PolicyDirectory::with_files(&files);
    (Weir::start(&policies.path(), arguments), policies)
}

/// Compares what both forms of a command print; what only the server knows is put back.
fn same(files: &[&str], server: &[&str]) {
    let (of_files, of_server) = (weir(files), weir(server));
    assert!(of_files.status.success() && of_server.status.success(), "{of_files:?}\n{of_server:?}");
    let shown = text(&of_server.stdout);
    assert_eq!(shown.replace("deny, from the server", "the server's"), text(&of_files.stdout));
    assert!(shown.contains("deny, from the server"), "{shown}");
    assert_eq!(text(&of_server.stderr), "");
}

/// A file of 26 MB ended weir, and a typo of one team held back the changes of all others.
#[test]
fn a_wrong_file_of_one_team_keeps_its_domain_and_the_files_of_others_change() {
    let policy =
        |domain: &str, rate: &str| format!("domain: {domain}\ndescriptors: [{{key: user, rate_limit: {rate}}}]\n");
    let (shop, blog) = (policy("shop", "7/s"), policy("blog", "7/s"));
    let settings = ["--set", "policies.isolate=on", "--set", "policies.file_bytes=65536"];
    let (running, mut policies) = serving(&[("a.yaml", &shop), ("b.yaml", &blog)], &settings);
    let huge = format!("{}{}", policy("shop", "8/s"), "unknown: 1\n".repeat(10_000));
    policies.replace(&[("a.yaml".to_owned(), huge), ("b.yaml".to_owned(), policy("blog", "9/s"))]);
    let is_refused = |line: &LogLine| line.message() == Some(POLICIES_REFUSED);
    assert!(running.wait_for_log(0, PATIENCE, is_refused), "{}", running.written());
    let get = |path: &str| -> Value {
        serde_json::from_str(&http::get(running.admin, path).expect("an answer").body).expect("JSON")
    };
    let ready = get("/readyz");
    let problems = ready["policies"]["problems"].as_array().expect("a list");
    let texts: Vec<&str> = problems.iter().filter_map(Value::as_str).collect();
    assert_eq!(texts[0], "the last policies of \"shop\" stay in force, those of all other domains are up to date");
    let size = policy("shop", "8/s").len() + 110_000;
    assert!(texts[1].contains(&format!("a.yaml: {size} bytes, and policies.file_bytes allows 65536")), "{texts:?}");
    let shown = get("/policies");
    let rates = shown["domains"].as_array().expect("a list").iter().map(|domain| {
        let requests = domain["rules"][0]["limits"][0]["requests"].as_u64().expect("a number");
        (domain["domain"].as_str().expect("a name"), requests)
    });
    let mut rates: Vec<_> = rates.collect();
    rates.sort_unstable();
    assert_eq!(rates, [("blog", 9), ("shop", 7)]);
}

#[test]
fn a_server_prints_what_its_files_print() {
    let files = [("a.yaml", POLICY), ("b.yaml", OTHER)];
    let (running, policies) = serving(&files, &["--set", "on_error=deny"]);
    let (directory, server) = (policies.path(), running.admin.to_string());
    let directory = directory.to_str().unwrap();
    same(&["check", directory], &["check", "--server", &server]);
    let request = ["shop", "user=ann", "plan=freebie,path=/x", "usr=ann"];
    same(
        &[&["explain", directory][..], &request].concat(),
        &[&["explain", "--server", &server][..], &request].concat(),
    );
    let strict = weir(&["check", "--strict", "--server", &server]);
    assert_eq!(strict.status.code(), weir(&["check", "--strict", directory]).status.code());
}

#[test]
fn the_rules_in_force_have_each_key_of_their_descriptors() {
    let (running, _policies) = serving(&[("a.yaml", POLICY), ("b.yaml", OTHER)], &[]);
    let body = http::get(running.admin, "/policies").expect("an answer").body;
    let RulesInForce { domains } = serde_json::from_str(&body).expect("the rules");
    let seen = |domain: &DomainInForce| {
        let DomainInForce { domain, charging, on_error, rules } = domain;
        (domain.clone(), charging.clone(), format!("{} of the {}", on_error.action, on_error.from), rules.len())
    };
    let expected = [
        ("blog".to_owned(), Some("independent".to_owned()), "allow of the domain".to_owned(), 0),
        ("shop".to_owned(), None, "error of the server".to_owned(), 3),
    ];
    assert_eq!(domains.iter().map(seen).collect::<Vec<_>>(), expected);
    let shown = |rule: &RuleInForce| (Value::from(rule.keys.clone()), json!(rule.entries));
    let keys = |shadow: bool, replaced: &[&str]| {
        json!({
            "metadata": false, "name": null, "quota_mode": false, "replaces": replaced, "request_limit": null,
            "shadow_mode": shadow, "unlimited": false, "weigh": null,
        })
    };
    let plan = json!({ "key": "plan", "share_threshold": true });
    let rules = &domains[1].rules;
    assert_eq!(shown(&rules[1]), (keys(false, &[]), json!([plan])));
    assert_eq!(shown(&rules[2]), (keys(true, &["per-user"]), json!([plan, { "key": "path" }])));
    let gcra = &rules[1].limits[1];
    assert_eq!((&*gcra.algorithm, gcra.capacity, &gcra.keys["shadow"]), ("gcra", 5, &json!(false)));
    let value: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(json!({ "domains": domains }), value, "the types have all of it");
}

#[test]
fn files_read_as_envoyproxy_ratelimit_reads_them_are_read_so_again() {
    let one = "domain: shop\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}\n";
    let two = "domain: shop\ndescriptors:\n  - {key: b, rate_limit: {unit: fortnight, unlimited: true}}\n";
    let two_files = [("a.yaml", one), ("b.yaml", two)];
    let settings = ["policies.merge_domains=on", "policies.compatible=on", "on_error=deny"];
    let compatible: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let (running, policies) = serving(&two_files, &compatible);
    let directory = policies.path();
    let files = ["check", "--merge-domains", "--compatible", directory.to_str().unwrap()];
    same(&files, &["check", "--server", &running.admin.to_string()]);
}

#[test]
fn newer_policies_that_are_refused_are_told() {
    let (running, mut policies) = serving(&[("a.yaml", POLICY)], &[]);
    let server = running.admin.to_string();
    policies.replace(&[("a.yaml".to_owned(), POLICY.replace("rate: 3/h", "rate: 3/hr"))]);
    assert!(
        running.wait_for_log(0, PATIENCE, |line| line.message() == Some(POLICIES_REFUSED)),
        "{}",
        running.written()
    );
    let checked = weir(&["check", "--server", &server]);
    let (shown, told) = (text(&checked.stdout), text(&checked.stderr));
    assert_eq!(checked.status.code(), Some(1));
    assert!(shown.contains("3 per hour") && shown.contains("3 rules"), "{shown}");
    assert!(told.starts_with("weir: these policies are in force, and newer ones are refused:\nweir: "), "{told}");
    assert!(told.contains("a.yaml:4:") && told.contains("hr"), "{told}");
    let explained = weir(&["explain", "--server", &server, "shop", "user=ann"]);
    assert!(explained.status.success() && text(&explained.stdout).contains("3 per hour"), "{explained:?}");
    let expected = format!("weir: newer policies are refused: weir check --server {server} prints why\n");
    assert_eq!(text(&explained.stderr), expected);

    policies.replace(&[("a.yaml".to_owned(), POLICY.replace("rate: 3/h", "rate: 4/h"))]);
    assert!(running.wait_for_log(1, PATIENCE, |line| line.message() == Some(POLICIES_LOADED)), "{}", running.written());
    let checked = weir(&["check", "--server", &server]);
    assert!(checked.status.success() && text(&checked.stdout).contains("4 per hour"), "{checked:?}");
}

#[test]
fn policies_of_a_control_plane_are_explained_with_their_places() {
    let ads = Ads::start();
    let source = format!("policies.xds.server={}", ads.server());
    let settings = ["policies.source=xds", &source, "policies.xds.start_without_config=on"];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let running = Weir::from_process(Process::start(Path::new("unused"), &arguments, &[])).unwrap();
    let server = running.admin.to_string();
    let early = weir(&["check", "--server", &server]);
    assert_eq!(early.status.code(), Some(1));
    assert!(
        text(&early.stderr)
            .contains("503 Service Unavailable: the source of the policies in force is not kept: there are none")
    );
    ads.set("1", vec![shop(7)]);
    assert!(running.wait_for_log(0, PATIENCE, |line| line.message() == Some(POLICIES_LOADED)), "{}", running.written());
    let explained = weir(&["explain", "--server", &server, "shop", "user=ann"]);
    let shown = text(&explained.stdout);
    assert!(explained.status.success(), "{explained:?}");
    assert!(shown.contains("rule user   rules-of-shop: descriptors[0] (user)\n    7 per year"), "{shown}");
}

#[test]
fn a_server_without_the_endpoint_is_named() {
    let served = Served::start(POLICY, &["admin.endpoints=ratelimit"]);
    for command in [&["check"][..], &["explain", "shop", "a=1"]] {
        let server = served.at.admin.to_string();
        let output = weir(&[&command[..1], &["--server", &server], &command[1..]].concat());
        let expected = format!("weir: {server} answers GET /policies/source with 404 Not Found: no /policies/source");
        assert!(text(&output.stderr).starts_with(&expected), "{output:?}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    }
}

/// A reader such as `head` that goes early is no error, and changes no exit code.
#[test]
fn a_command_whose_reader_goes_early_prints_no_error() {
    let (running, policies) = serving(&[("a.yaml", POLICY), ("b.yaml", OTHER)], &[]);
    let (directory, grpc, admin) = (policies.path(), running.grpc.to_string(), running.admin.to_string());
    let directory = directory.to_str().unwrap();
    for arguments in [
        &["ask", &grpc, "shop", "user=ann"][..],
        &["ask", &grpc, "shop", "other=ann", "--json"],
        &["ask", &grpc, "shop", "user=bob", "--hits", "100"],
        &["check", directory],
        &["check", "--strict", directory],
        &["check", "--server", &admin],
        &["diff", directory, "examples/quickstart"],
        &["explain", directory, "shop", "user=ann"],
        &["explain", "--server", &admin, "shop", "user=ann"],
        &["lua"],
        &["override", "list", "--server", &admin],
        &["schema", "policies"],
        &["test", "examples"],
        &["top", "--once", &admin],
    ] {
        let read = weir(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let unread = Command::new(binary()).args(arguments).stdout(writer).output().expect("weir runs");
        assert_eq!(unread.status.code(), read.status.code(), "{arguments:?}: {unread:?}");
        assert_eq!(text(&unread.stderr), text(&read.stderr), "{arguments:?}");
    }
}

/// Without the settings of the server, its policies would be refused: they are of the other program, in two files of one domain.
#[test]
fn check_reads_policies_as_serve_does_with_the_same_file_of_settings() {
    let files = [
        ("a.txt", "domain: shop\ndescriptors:\n  - {key: us*, rate_limit: {unit: hour, requests_per_unit: 010}}\n"),
        ("b.txt", "domain: shop\ndescriptors:\n  - {key: plan, rate_limit: {unit: hour, requests_per_unit: 5}}\n"),
    ];
    let files: Vec<_> = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let (policies, others) = (PolicyDirectory::with_files(&files), PolicyDirectory::with_files(&files[1..]));
    let config = tempfile::NamedTempFile::new().unwrap();
    let settings = format!(
        "on_error: deny\npolicies: {{directory: {}, compatible: true, merge_domains: true, files: all}}\n",
        policies.path().display()
    );
    std::fs::write(&config, &settings).unwrap();
    let file = config.path().to_str().unwrap();
    assert!(!weir(&["check", policies.path().to_str().unwrap()]).status.success());

    let checked = weir(&["check", "--config", file]);
    let shown = text(&checked.stdout);
    assert!(checked.status.success(), "{checked:?}");
    assert!(shown.contains("1 domain, 2 rules, 2 limits in 2 files") && shown.contains("8 per hour"), "{shown}");
    assert!(shown.contains("[odd_number]") && !shown.contains("[star_in_key]"), "{shown}");
    assert!(shown.contains("on_error deny, from the server"), "{shown}");
    assert_eq!(weir(&["check", "--strict", "--config", file]).status.code(), Some(1));
    let elsewhere = text(&weir(&["check", "--config", file, others.path().to_str().unwrap()]).stdout);
    assert!(elsewhere.contains("1 domain, 1 rule, 1 limit in 1 file"), "{elsewhere}");

    // The environment of the server is over its file.
    let strict = Command::new(binary())
        .args(["check", "--config", file])
        .env("WEIR__POLICIES__MERGE_DOMAINS", "false")
        .output()
        .expect("weir runs");
    assert_eq!(strict.status.code(), Some(1), "{strict:?}");
    assert!(text(&strict.stderr).contains("domain \"shop\" is defined already"), "{strict:?}");

    std::fs::write(&config, "policies: {compatibel: true}\n").unwrap();
    let wrong = weir(&["check", "--config", file]);
    assert_eq!((wrong.status.code(), text(&wrong.stdout).as_str()), (Some(2), ""));
    assert!(text(&wrong.stderr).contains("compatibel"), "{wrong:?}");

    std::fs::write(&config, "policies: {source: xds, xds: {server: 'control:18000', node_id: a}}\n").unwrap();
    let of_control_plane = weir(&["check", "--config", file]);
    assert!(of_control_plane.status.success(), "{of_control_plane:?}");
    assert!(text(&of_control_plane.stdout).contains("there are no files to check"), "{of_control_plane:?}");
    assert_eq!(weir(&["check", "--config", file, "--compatible"]).status.code(), Some(2));
}

/// The unit checks what it serves, by the same file of settings.
#[test]
fn the_unit_of_systemd_checks_the_policies_that_it_serves() {
    let unit =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/weir.service")).unwrap();
    let after = |name: &str| {
        unit.lines().find_map(|line| line.strip_prefix(name)?.split_once("--config ").map(|(_, file)| file.to_owned()))
    };
    let checked = after("ExecStartPre=/usr/local/bin/weir check ");
    assert!(checked.is_some());
    assert_eq!(checked, after("ExecStart=/usr/local/bin/weir serve "));
}
