//! Who is limited, at the admin listener and in the log: `/top`, `/limited`, how values are shown, and the token.

use serde_json::Value;

use crate::support::http;
use crate::support::process::{LogLine, PolicyDirectory, Weir};
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, requests_per_unit: 2, unit: hour}}
  - {key: watched, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}
  - {key: tenant, rate_limit: {requests_per_unit: 1000, unit: hour}}
";
/// An answer is smaller than this, whatever callers send.
const ANSWER_BYTES_MAX: usize = 2 << 20;

fn ask(served: &Served, times: usize, key: &str, value: &str) {
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..times {
        client.ask(rls::request("shop", &[(key, value)])).unwrap();
    }
}

fn json_at(served: &Served, path: &str) -> Value {
    let answer = http::get(served.at.admin, path).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    serde_json::from_str(&answer.body).unwrap()
}

/// A report is repeated for a second, so a test waits until one has what it asked for.
fn report(served: &Served, path: &str, is_complete: impl Fn(&Value) -> bool) -> Value {
    until("a complete report", PATIENCE, || Some(json_at(served, path)).filter(&is_complete))
}

#[test]
fn keys_that_are_denied_are_listed_by_rule_with_counts_and_times() {
    let served = Served::start(POLICY, &[]);
    ask(&served, 5, "user", "ann,\"b\\");
    ask(&served, 3, "user", "bob");
    ask(&served, 3, "watched", "eve");
    ask(&served, 3, "tenant", "acme");
    let top = report(&served, "/top", |top| top["limits"].as_array().unwrap().len() == 2);
    let [per_user, watched] = &top["limits"].as_array().unwrap()[..] else { panic!("{top}") };
    assert_eq!(
        (&per_user["rule"], &per_user["limit"], &per_user["role"]),
        (&"user".into(), &"per-user".into(), &"enforced".into())
    );
    assert_eq!(per_user["denials"], 4);
    let history: u64 = per_user["history"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(history, 4);
    let keys = per_user["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0]["descriptor"], "user=ann\\,\"b\\\\");
    assert_eq!((&keys[0]["denials_min"], &keys[0]["denials_max"]), (&3.into(), &3.into()));
    let now = top["now_ms"].as_u64().unwrap();
    let (first, last) = (keys[0]["first_ms"].as_u64().unwrap(), keys[0]["last_ms"].as_u64().unwrap());
    assert!(first <= last && last <= now && now - first < 600_000, "{first} {last} {now}");
    assert_eq!((&watched["role"], &watched["denials"]), (&"shadow".into(), &2.into()));
    assert_eq!(top["store"], serde_json::json!({"name": "memory", "answered": true, "circuit": "closed", "queue": 0}));
    assert_eq!((&top["values"], &top["minutes"], &top["denials_left_out"]), (&"shown".into(), &5.into(), &0.into()));

    let of_rule = json_at(&served, "/limited?domain=shop&rule=user");
    assert_eq!(of_rule["limits"].as_array().unwrap().len(), 1);
    assert_eq!(of_rule["limits"][0], *per_user);
    assert_eq!(json_at(&served, "/limited?domain=shop&rule=tenant")["limits"], serde_json::json!([]));
    // The descriptor is what /state reads.
    let state = "/state?domain=shop&descriptor=user=ann%5C,%22b%5C%5C";
    let state: Value = serde_json::from_str(&http::get(served.at.admin, state).unwrap().body).unwrap();
    assert_eq!(state["limits"][0]["stored"], true);
}

#[test]
fn a_filter_finds_keys_beyond_those_that_an_answer_has() {
    let served = Served::start(POLICY, &[]);
    ask(&served, 3, "watched", "eve");
    for number in 0..20 {
        ask(&served, 5, "user", &format!("often{number}"));
    }
    ask(&served, 3, "user", "seldom");
    let all = report(&served, "/top?keys=16", |top| top["limits"].as_array().unwrap().len() == 2);
    assert!(!all.to_string().contains("seldom"), "{all}");
    let found = json_at(&served, "/top?keys=16&filter=user=sel");
    let limits = found["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 1, "{found}");
    let keys: Vec<&Value> = limits[0]["keys"].as_array().unwrap().iter().map(|key| &key["descriptor"]).collect();
    assert_eq!(keys, ["user=seldom"]);
    // The name of a limit lets all its keys through.
    assert_eq!(json_at(&served, "/top?keys=16&filter=per-user")["limits"][0]["keys"].as_array().unwrap().len(), 16);
    let long = http::get(served.at.admin, &format!("/top?filter={}", "x".repeat(257))).unwrap();
    assert_eq!((long.status, long.body.contains("filter: more than 256 bytes")), (400, true), "{long:?}");
}

#[test]
fn the_limits_asked_most_are_those_since_the_last_look() {
    let served = Served::start(POLICY, &[]);
    ask(&served, 3, "user", "ann");
    json_at(&served, "/top");
    let top = until("a second look", PATIENCE, || {
        ask(&served, 4, "tenant", "acme");
        ask(&served, 3, "user", "ann");
        let top = json_at(&served, "/top");
        (top["busiest"]["limits"].as_array().unwrap().len() == 2).then_some(top)
    });
    let busiest = &top["busiest"];
    assert!(busiest["interval_ms"].as_u64().unwrap() >= 1_000, "{busiest}");
    assert_eq!(busiest["limits"][0]["rule"], "tenant");
    assert_eq!(busiest["limits"][0]["over_limit_hits"], 0);
    let user = &busiest["limits"][1];
    assert_eq!(user["hits"], user["over_limit_hits"], "ann had used her limit: {user}");
    assert_eq!(busiest["requests"]["over_limit"], user["hits"]);
    assert_eq!(busiest["requests"]["ok"], busiest["limits"][0]["hits"]);
    // The times are bounds of a histogram.
    let [p50, p99] = ["p50_us", "p99_us"].map(|name| busiest[name].as_u64().unwrap());
    assert!(0 < p50 && p50 <= p99, "{busiest}");
    assert_eq!(busiest["on_error"], serde_json::json!({"error": 0, "allow": 0, "deny": 0, "local": 0}));
    assert!(top["uptime_s"].as_u64().unwrap() >= 1, "{top}");
}

#[test]
fn the_descriptors_that_on_error_decides_are_counted_by_action() {
    let settings = ["store=redis", "redis.url=redis://127.0.0.1:1", "redis.timeout=100ms", "on_error=local"];
    let served = Served::starting(POLICY, &settings);
    json_at(&served, "/top");
    let by = until("decisions without a store", PATIENCE, || {
        let mut client = rls::Client::connect(served.at.grpc);
        let _ = client.ask(rls::request("shop", &[("user", "ann")]));
        let by = json_at(&served, "/top")["busiest"]["on_error"].clone();
        (by["local"].as_u64() > Some(0)).then_some(by)
    });
    assert_eq!((&by["error"], &by["allow"], &by["deny"]), (&0.into(), &0.into(), &0.into()), "{by}");
}

#[test]
fn wrong_questions_are_answered_with_what_is_wrong() {
    let served = Served::start(POLICY, &[]);
    for (path, status, expected) in [
        ("/top?minutes=6", 400, "minutes = 6: must be from 1 to 5"),
        ("/top?minutes=0", 400, "minutes = 0: must be from 1 to 5"),
        ("/top?limits=65", 400, "limits = 65: must be from 1 to 64"),
        ("/top?keys=17", 400, "keys = 17: must be from 1 to 16"),
        ("/top?rules=3", 400, "the query has no parameter rules, only minutes, limits, keys, filter"),
        ("/limited?domain=shop", 400, "the query has no rule: write ?rule=..."),
        ("/states?rule=user", 400, "the query has no domain: write ?domain=..."),
        ("/states?domain=shop&rule=user&max=x", 400, "the query is wrong: max: invalid digit"),
        ("/rows?domain=shop&domain=shop", 400, "the query has domain twice"),
        ("/limited?domain=shop&rule=usr", 404, "no rule of the policies in force"),
        ("/limited?domain=shp&rule=user", 404, "no rule of the policies in force"),
    ] {
        let answer = http::get(served.at.admin, path).unwrap();
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body.contains(expected), "{path}: {}", answer.body);
    }
    // The public listener has none of it.
    assert_eq!(http::get(served.at.http, "/top").unwrap().status, 404);
}

#[test]
fn values_are_hashed_or_hidden_where_the_settings_ask_for_it() {
    // printf ann | sha256sum
    for (values, expected) in [("hashed", "user=49915e0d7d4b402e"), ("hidden", "user=*")] {
        let served = Served::start(POLICY, &[&format!("admin.values={values}")]);
        ask(&served, 3, "user", "ann");
        let top = report(&served, "/top", |top| top["limits"].as_array().unwrap().len() == 1);
        assert_eq!(top["limits"][0]["keys"][0]["descriptor"], expected);
        assert_eq!(top["values"], values);
        assert!(!top.to_string().contains("ann"), "{top}");
    }
}

/// With hashed values the audit lines showed whose limit was changed.
#[test]
fn audit_lines_show_values_as_the_settings_ask_for_it() {
    const SECRET: &str = "s3cret-s3cret-s3";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("ops {SECRET} all *\n")).unwrap();
    let policy = "domain: shop\ndescriptors:\n- key: user\n  rows: {default: free}\n  \
                  rate_limit: {rate: 3/day, plans: {gold: 7/day}}\n";
    let policies = PolicyDirectory::with_file("shop.yaml", policy);
    for (values, descriptor) in [("shown", "user=ann"), ("hashed", "user=49915e0d7d4b402e"), ("hidden", "user=*")] {
        let settings = [format!("admin.values={values}"), format!("admin.token_file={}", file.path().display())];
        let weir = Weir::start(&policies.path(), &["--set", &settings[0], "--set", &settings[1]]);
        let send = |method: &str, path: &str, body: &str| {
            let headers = [("authorization", &*format!("Bearer {SECRET}"))];
            let answer = http::request(weir.admin, method, path, &headers, body).unwrap();
            assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        };
        let of_shop = "?domain=shop&descriptor=user=ann";
        send("DELETE", &format!("/state{of_shop}"), "");
        let set = r#"{"domain": "shop", "descriptor": "user=ann", "limits": [{"requests": 9, "window_us": 86400000000}],
            "for_us": 60000000, "reason": "test"}"#;
        send("PUT", "/overrides", set);
        send("DELETE", &format!("/overrides{of_shop}"), "");
        send("PUT", "/rows", r#"{"domain": "shop", "descriptor": "user=ann", "plan": "gold"}"#);
        send("DELETE", &format!("/rows{of_shop}"), "");
        send("GET", "/tap?values=shown&descriptor=user=ann&seconds=1", "");
        for message in [
            "state reset by the admin listener",
            "override set",
            "override deleted",
            "row set",
            "row removed",
            "a tap with values is open",
        ] {
            let is_it = |line: &LogLine| {
                line.message() == Some(message) && line.field("descriptor").is_some_and(|shown| shown == descriptor)
            };
            assert!(weir.wait_for_log(0, PATIENCE, is_it), "{values}: {message}: {}", weir.written());
        }
        assert_eq!(weir.written().contains("=ann"), values == "shown", "{}", weir.written());
    }
}

#[test]
fn a_flood_of_long_keys_gets_bounded_answers() {
    let rules: Vec<String> = (0..100)
        .map(|number| format!("  - {{key: key{number}, rate_limit: {{requests_per_unit: 0, unit: hour}}}}\n"))
        .collect();
    let served = Served::start(&format!("domain: shop\ndescriptors:\n{}", rules.concat()), &["runtime.cores=1"]);
    let mut client = Client::connect(served.at.grpc);
    // Each byte of the value takes six in JSON.
    let value = "\u{1}".repeat(200);
    for number in 0..3_000 {
        let key = format!("key{}", number % 100);
        client.ask(rls::request("shop", &[(&key, &format!("{number}{value}"))])).unwrap();
    }
    let path = "/top?limits=64&keys=16";
    let top = report(&served, path, |top| top["denials_left_out"].as_u64().unwrap() > 0);
    assert!(top["limits"].as_array().unwrap().len() == 64, "{}", top["limits"].as_array().unwrap().len());
    assert!(http::get(served.at.admin, path).unwrap().body.len() < ANSWER_BYTES_MAX);
    assert!(http::get(served.at.admin, "/limited?domain=shop&rule=key99").unwrap().body.len() < ANSWER_BYTES_MAX);
}

#[test]
fn a_denial_at_debug_is_one_line_with_rule_key_and_limit() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--set", "log.level=debug", "--set", "admin.values=hashed"]);
    let mut client = Client::connect(weir.grpc);
    for _ in 0..3 {
        client.admits("shop", "user", "ann");
    }
    let fields = |line: &crate::support::process::LogLine| {
        ["domain", "rule", "key", "limit", "requests", "window", "role"]
            .map(|name| line.field(name).cloned().unwrap_or_default())
    };
    let expected: [Value; 7] = [
        "shop".into(),
        "user".into(),
        "user=49915e0d7d4b402e".into(),
        "per-user".into(),
        2.into(),
        "3600s".into(),
        "enforced".into(),
    ];
    let is_it =
        |line: &crate::support::process::LogLine| line.message() == Some("over limit") && fields(line) == expected;
    assert!(weir.wait_for_log(0, PATIENCE, is_it), "{}", weir.written());
    assert_eq!(weir.count_in_log(|line| line.message() == Some("over limit")), 1);
    assert!(!weir.written().contains("=ann"), "{}", weir.written());
}

#[test]
fn what_changes_something_or_shows_keys_needs_the_token() {
    const SECRET: &str = "s3cret-s3cret-s3";
    const OTHER: &str = "0ther-0ther-0the";
    let file = tempfile::NamedTempFile::new().unwrap();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--set", &format!("admin.token_file={}", file.path().display())]);
    let path = "/state?domain=shop&descriptor=user=ann";
    let delete = |header: Option<&str>| {
        let headers: Vec<_> = header.map(|value| ("authorization", value)).into_iter().collect();
        http::request(weir.admin, "DELETE", path, &headers, "").unwrap()
    };
    let with = |token: &str| delete(Some(&format!("Bearer {token}"))).status;
    let write = |text: String| std::fs::write(file.path(), text).unwrap();
    assert_eq!((with("ann"), delete(None).status), (503, 503), "without any token nothing passes");
    write(format!("ann {SECRET}\n"));
    let basic = format!("Basic {SECRET}");
    let no_bearer = "the header \\\"authorization\\\" does not begin with \\\"Bearer \\\": ";
    for (refused, reason) in [
        (None, "the request has no header \\\"authorization\\\": "),
        (Some("Bearer ann"), "the token is none of the server's: "),
        (Some(&*basic), no_bearer),
        (Some("Bearer "), no_bearer),
        (Some(SECRET), no_bearer),
    ] {
        let answer = delete(refused);
        assert!(answer.body.contains(reason), "{refused:?}: {}", answer.body);
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")), "{refused:?}");
        assert!(answer.body.contains("admin.token_file") && !answer.body.contains(SECRET), "{}", answer.body);
    }
    assert_eq!(delete(Some(&format!("bearer {SECRET}"))).status, 200);
    // A new token is in force at once, and a file that was cut changes nothing.
    write(format!("bob {OTHER}\n"));
    assert_eq!((with(SECRET), with(OTHER)), (401, 200));
    for cut in ["bob", "bo", ""] {
        write(cut.to_owned());
        assert_eq!((with(cut), with(OTHER)), (401, 200), "{cut:?}");
        let ready = http::get(weir.http, "/readyz").unwrap().body;
        assert!(ready.contains("\"tokens\":{\"problem_count\":1}"), "{ready}");
    }
    // Other log statements write 100 lines in 10 s.
    let by_bob = |line: &LogLine| {
        line.message() == Some("state reset by the admin listener")
            && line.field("by").is_some_and(|by| by == "bob")
            && line.field("target").is_some_and(|target| target == "weir_audit")
    };
    (0..150).for_each(|_| assert_eq!(with(OTHER), 200));
    assert!(weir.wait_for_log(153, PATIENCE, by_bob), "{}", weir.count_in_log(by_bob));
    assert!(!weir.written().contains(SECRET) && !weir.written().contains(OTHER), "{}", weir.written());
}
