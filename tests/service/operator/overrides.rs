//! Overrides by `weir override` and `/overrides`: what they do to decisions, who sets them, and what keeps them in Redis.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{self, Answer};
use crate::support::process::{PolicyDirectory, Weir, binary};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 3, unit: day}}
  - key: plan
    rate_limits:
      - {rate: 5/day, name: daily}
      - {rate: 2/h, name: hourly}
  - {key: vip, rate_limit: {unlimited: true}}
  - {key: path, value: /a*, share_threshold: true, rate_limit: 9/h}
";
/// How long an override may take to be in force on all servers.
const SOON: Duration = Duration::from_secs(1);

/// How many of the next requests of this descriptor pass, up to `most`.
fn passes(grpc: SocketAddr, key: &str, value: &str, most: usize) -> usize {
    let mut client = Client::connect(grpc);
    let is_ok = |_: &usize| client.admits("shop", key, value);
    (0..most).take_while(is_ok).count()
}

/// The hits of the limit that a look at a user's shows.
fn limit_of(grpc: SocketAddr, user: &str) -> u32 {
    let answer = Client::connect(grpc).ask(rls::look("shop", &[("user", user)])).unwrap();
    answer.statuses[0].current_limit.as_ref().expect("a limit").requests_per_unit
}

fn weir(admin: SocketAddr, arguments: &[&str]) -> Output {
    let server = admin.to_string();
    let words = ["override"].iter().chain(arguments).chain(&["--server"]);
    Command::new(binary()).args(words).arg(server).output().expect("weir runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn put(admin: SocketAddr, token: Option<&str>, body: &str) -> Answer {
    let token = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = token.iter().map(|value| ("authorization", value.as_str())).collect();
    http::request(admin, "PUT", "/overrides", &headers, body).unwrap()
}

/// A body that sets the limit of a user for an hour.
fn body(user: &str, requests: u32) -> String {
    format!(
        r#"{{"domain":"shop","descriptor":"user={user}","limits":[{{"requests":{requests},"window_us":86400000000}}],
            "for_us":3600000000,"reason":"a launch"}}"#
    )
}

fn json_at(admin: SocketAddr, path: &str) -> Value {
    let answer = http::get(admin, path).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

#[test]
fn an_override_of_a_shared_state_says_whom_it_changes_too() {
    let served = Served::start(POLICY, &[]);
    let set = |descriptor: &str, limit: &str| {
        let output = weir(
            served.at.admin,
            &["set", "shop", descriptor, "--limit", limit, "--for", "1h", "--reason", "a launch"],
        );
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let shared = set("path=/abc", "5/hour");
    assert!(shared.contains("also path=/a*: share_threshold gives all of these one state\n"), "{shared}");
    assert_eq!(passes(served.at.grpc, "path", "/another", 9), 5, "it is in force for them too");
    let own = set("user=ann", "5/day");
    assert!(!own.contains("also"), "{own}");
}

#[test]
fn an_override_is_set_shown_and_deleted_by_the_command() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann s3cret-s3cret-s3\nbot 0ther-0ther-0ther\n").unwrap();
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "s3cret-s3cret-s3\n").unwrap();
    let token = token.path().to_str().unwrap();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir_server = Weir::start(&policies.path(), &["--set", &format!("admin.token_file={}", file.path().display())]);
    let (admin, grpc) = (weir_server.admin, weir_server.grpc);
    assert_eq!(passes(grpc, "user", "eve", 9), 3);

    let set = ["set", "shop", "user=eve", "--limit", "5/day", "--until", "2099-01-01", "--reason", "x"];
    let refused = weir(admin, &set);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("401") && said.contains("a token of admin.token_file"), "{said}");
    assert!(said.ends_with("give the command a file with the token: --token-file FILE\n"), "{said}");
    let wrong = weir(admin, &["delete", "shop", "user=eve", "--token-file", file.path().to_str().unwrap()]);
    assert!(wrong.status.code() == Some(2) && text(&wrong.stderr).contains("one ASCII word"), "{wrong:?}");
    let far = weir(admin, &[&set[..], &["--token-file", token]].concat());
    assert!(text(&far.stderr).contains("366 days"), "{far:?}");
    let set = ["set", "shop", "user=eve", "--limit", "5/day", "--for", "2h", "--reason", "a \u{1b}[1m launch"];
    let done = weir(admin, &[&set[..], &["--token-file", token]].concat());
    assert!(done.status.success(), "{done:?}");
    assert!(text(&done.stdout).contains("shop user=eve   5/day   until 2"), "{done:?}");
    assert!(text(&done.stdout).contains("in the memory of this server"), "{done:?}");
    // What was used before counts, and others have the rule's.
    assert_eq!((passes(grpc, "user", "eve", 9), passes(grpc, "user", "bob", 9)), (2, 3));

    let audited = |line: &crate::support::process::LogLine| {
        let fields =
            ["by", "domain", "descriptor", "limits", "reason"].map(|name| line.field(name).and_then(Value::as_str));
        line.message() == Some("override set")
            && fields == [Some("ann"), Some("shop"), Some("user=eve"), Some("5/day"), Some("a \u{1b}[1m launch")]
    };
    assert!(weir_server.wait_for_log(0, PATIENCE, audited), "{}", weir_server.written());
    let list = weir(admin, &["list", "--token-file", token]);
    assert!(text(&list.stdout).contains("by ann   a \\u{1b}[1m launch\n"), "{list:?}");
    let listed: Value =
        serde_json::from_slice(&weir(admin, &["list", "--json", "--token-file", token]).stdout).unwrap();
    let one = &listed["overrides"][0];
    assert_eq!((&one["rule"], &one["unused"], &one["by"]), (&"user".into(), &Value::Null, &"ann".into()));

    let json_with = |path: &str| -> Value {
        let headers = [("authorization", "Bearer s3cret-s3cret-s3")];
        serde_json::from_str(&http::request(admin, "GET", path, &headers, "").unwrap().body).unwrap()
    };
    let explained = |descriptor: &str| {
        let server = admin.to_string();
        let words = ["explain", "--server", &server, "--token-file", token, "shop", descriptor];
        text(&Command::new(binary()).args(words).output().expect("weir runs").stdout)
    };
    let shown = explained("user=eve");
    assert!(shown.contains("by ann: a \\u{1b}[1m launch\n      5 per day   fixed_window\n"), "{shown}");
    assert!(!explained("user=bob").contains("overridden"));
    let rules = json_with("/policies")["domains"][0]["rules"].clone();
    assert_eq!(rules[0]["overrides"][0]["descriptor"], "user=eve");
    assert!(rules[1].get("overrides").is_none(), "{rules}");
    assert_eq!(json_with("/state?domain=shop&descriptor=user=eve")["limits"][0]["requests"], 5);
    assert_eq!(json_at(admin, "/readyz")["overrides"]["in_force"], 1);
    let top = Command::new(binary())
        .args(["top", "--once", "--server", &admin.to_string(), "--token-file", token])
        .output()
        .unwrap();
    assert!(
        text(&top.stdout).lines().next().is_some_and(|line| line.contains("\t0\t1\t0\t0\t0\t0.0\t0.0\t")),
        "{top:?}"
    );

    let delete = ["delete", "shop", "user=eve", "--token-file", token];
    let deleted = weir(admin, &delete);
    assert!(deleted.status.success() && text(&deleted.stdout).starts_with("deleted   shop user=eve"), "{deleted:?}");
    assert_eq!((passes(grpc, "user", "eve", 9), limit_of(grpc, "eve")), (0, 3));
    assert!(weir_server.wait_for_log(0, PATIENCE, |line| {
        let limits = line.field("limits").and_then(Value::as_str);
        line.message() == Some("override deleted") && limits == Some("5/day")
    }));
    let again = weir(admin, &delete);
    assert!(again.status.code() == Some(1) && text(&again.stderr).contains("there is no override"), "{again:?}");
}

#[test]
fn what_fits_no_rule_or_bound_is_refused_with_the_reason() {
    let served = Served::start(POLICY, &[]);
    let admin = served.at.admin;
    let set = |descriptor: &str, limit: &str| {
        weir(admin, &["set", "shop", descriptor, "--limit", limit, "--for", "1h", "--reason", "x"])
    };
    let unknown = set("usr=ann", "1/h");
    assert_eq!(unknown.status.code(), Some(1));
    let said = text(&unknown.stderr);
    assert!(said.contains("no such key, did you mean \"user\"?") && said.contains("meets no rule"), "{said}");
    for (descriptor, limit, reason) in [
        ("plan=a", "1/h", "the rule has 2 limits: name one of daily, hourly"),
        ("plan=a", "monthly=1/h", "no limit of the rule is called \"monthly\": there is daily, hourly"),
        ("vip=a", "1/h", "the rule is unlimited"),
    ] {
        let refused = set(descriptor, limit);
        assert!(text(&refused.stderr).contains(reason), "{refused:?}");
    }
    assert!(set("plan=a", "hourly=4/h").status.success());
    assert_eq!(passes(served.at.grpc, "plan", "a", 9), 4, "the other limit of the rule is as it was");
    for (end, reason) in [
        (&[][..], "<--until <TIME>|--for <DURATION>>"),
        (&["--until", "2040-03-25T02:30[Europe/Berlin]"], "2040-03-25T02:30:00 does not exist in Europe/Berlin"),
        (&["--until", "2040-03-25T02:30[Europe/Brlin]"], "did you mean \"Europe/Berlin\"?"),
        (&["--until", "2040-01-01", "--for", "1h"], "cannot be used with"),
    ] {
        let words = ["set", "shop", "user=ann", "--limit", "1/h", "--reason", "x"];
        let refused = weir(admin, &[&words[..], end].concat());
        assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains(reason), "{refused:?}");
    }
    assert!(set("path=/a\\,b", "5/h").status.success());
    let taken = set("path=/a\\,c", "6/h");
    let said = text(&taken.stderr);
    assert!(said.contains("409") && said.contains("the override of path=/a\\,b applies to the same state"), "{said}");
    assert!(weir(admin, &["delete", "shop", "path=/a\\,b"]).status.success());

    for (body, status, reason) in [
        ("{", 400, "body: EOF"),
        (r#"{"domain":"shop"}"#, 400, "missing field"),
        (&body("ann", 1).replace("\"reason\"", "\"why\""), 400, "unknown field `why`"),
        (&body("ann", 1).replace("\"for_us\":3600000000,", ""), 400, "either until or for_us"),
        (&body("ann", 1).replace("\"for_us\":3600000000", "\"until\":\"tomorrow\""), 400, "not an instant: write"),
        (&body("ann", 1).replace("\"for_us\":3600000000", "\"until\":\"2001-01-01\""), 400, "not in the future"),
        (&body("ann", 1).replace("86400000000", "1"), 400, "too short"),
        (&body("ann", 1).replace("a launch", " "), 400, "write why"),
        (&body("ann", 1).replace("a launch", &"x".repeat(257)), 400, "reason: 257 bytes, must be from 0 to 256"),
        (&body("ann", 1).replace("a launch", &"x".repeat(20_000)), 413, "more than 16384 bytes"),
        (&body("ann", 1).replace("user=ann", "user"), 400, "has no"),
    ] {
        let answer = put(admin, None, body);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(reason), "{}", answer.body);
    }
    assert_eq!(json_at(admin, "/overrides")["overrides"].as_array().unwrap().len(), 1);
}

fn on(redis: &RedisServer) -> Served {
    Served::start(POLICY, &["store=redis", &format!("redis.url={}", redis.url()), "redis.timeout=500ms"])
}

#[test]
fn replicas_on_one_redis_share_overrides_within_a_second() {
    let redis = RedisServer::start();
    let (one, other) = (on(&redis), on(&redis));
    for (number, requests) in [7, 8, 9].into_iter().enumerate() {
        let (set, seen) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let answer = put(set.at.admin, None, &body("ann", requests));
        assert_eq!(answer.status, 200);
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((&answer["store"], &answer["is_shared"]), (&json!("redis"), &json!(true)));
        assert_eq!(limit_of(set.at.grpc, "ann"), requests, "at once where it is set");
        until("the other replica to have it", SOON, || (limit_of(seen.at.grpc, "ann") == requests).then_some(()));
    }
    let path = "/overrides?domain=shop&descriptor=user=ann";
    assert_eq!(http::request(other.at.admin, "DELETE", path, &[], "").unwrap().status, 200);
    until("the other replica to lose it", SOON, || (limit_of(one.at.grpc, "ann") == 3).then_some(()));
    // One that starts later has them before its first request.
    assert_eq!(put(one.at.admin, None, &body("bob", 11)).status, 200);
    assert_eq!(limit_of(on(&redis).at.grpc, "bob"), 11);
}

#[test]
fn overrides_survive_a_restart_of_weir_and_of_redis() {
    let mut redis = RedisServer::start_with(None, &["--appendonly", "yes", "--appendfsync", "always"]);
    let served = on(&redis);
    assert_eq!(put(served.at.admin, None, &body("ann", 7)).status, 200);
    served.stop().unwrap();
    redis.restart();
    let served = on(&redis);
    assert_eq!(limit_of(served.at.grpc, "ann"), 7);
    // While Redis is away nothing is confirmed, and what is known stays in force.
    redis.kill();
    let refused = put(served.at.admin, None, &body("ann", 9));
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(json_at(served.at.admin, "/readyz")["overrides"]["in_force"], 1);
    redis.restart();
    until("redis to confirm again", PATIENCE, || {
        (put(served.at.admin, None, &body("ann", 9)).status == 200).then_some(())
    });
    assert_eq!(limit_of(served.at.grpc, "ann"), 9);
}

#[test]
fn the_log_has_both_versions_if_one_is_written_back_or_replaced() {
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = format!("redis.url={}", redis.url());
    let settings = ["store=redis", &url, "redis.timeout=500ms"];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let weir_server = Weir::start(&policies.path(), &arguments);
    let (key, version_key) = ("w1:{weir}overrides", "w1:{weir}overrides-version");
    assert_eq!(put(weir_server.admin, None, &body("ann", 7)).status, 200);
    let text = redis.command(&["GET", key]).unwrap();
    let own = redis.command(&["GET", version_key]).unwrap().trim().to_owned();
    let logged = |message: &str, kept: &str, lost: &str, lost_at: bool| {
        let is_it = |line: &crate::support::process::LogLine| {
            let fields = ["target", "store", "kept", "lost"].map(|name| line.field(name).and_then(Value::as_str));
            line.message() == Some(message)
                && fields == [Some("weir_audit"), Some("redis"), Some(kept), Some(lost)]
                && line.field("kept_at").and_then(Value::as_str).is_some_and(|at| at.starts_with("20"))
                && line.field("lost_at").is_some() == lost_at
        };
        assert!(weir_server.wait_for_log(0, PATIENCE, is_it), "{message}: {}", weir_server.written());
    };
    assert_eq!(redis.command(&["FLUSHALL"]).unwrap().trim(), "OK");
    logged("overrides written back over an older version", &own, "", false);
    assert_eq!(limit_of(weir_server.grpc, "ann"), 7);
    // Another server has made a change without this one: decades later.
    let newer = "4000000000000000";
    let write = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[2])";
    let other = text.trim_end().replace(":7,", ":8,");
    redis.command(&["EVAL", write, "2", key, version_key, &other, newer]).unwrap();
    logged("overrides replaced by a newer version", newer, &own, true);
    until("the newer text", PATIENCE, || (limit_of(weir_server.grpc, "ann") == 8).then_some(()));
}

#[test]
fn a_server_without_redis_decides_by_the_policies_and_says_so() {
    let mut redis = RedisServer::start();
    let served = on(&redis);
    assert_eq!(put(served.at.admin, None, &body("ann", 7)).status, 200);
    let text = redis.command(&["GET", "w1:{weir}overrides"]).unwrap();
    let version = redis.command(&["GET", "w1:{weir}overrides-version"]).unwrap();
    served.stop().unwrap();
    redis.kill();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = format!("redis.url={}", redis.url());
    let settings = ["store=redis", &url, "redis.ready_after=100ms", "on_error=local", "redis.timeout=500ms"];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let weir_server = Weir::start(&policies.path(), &arguments);
    let warned = "overrides cannot be read yet: only the policies apply";
    assert!(weir_server.wait_for_log(0, PATIENCE, |line| line.message() == Some(warned)), "{}", weir_server.written());
    let shown = json_at(weir_server.admin, "/readyz")["overrides"].clone();
    assert_eq!(shown["read"], false);
    assert!(
        shown["problem"].as_str().is_some_and(|problem| problem.starts_with("the store cannot be read: ")),
        "{shown}"
    );
    let is_refused = |address| crate::support::served::metric(address, "weir_input_refused{input=\"overrides\"}");
    assert_eq!(is_refused(weir_server.http), Some(1));
    assert_eq!(limit_of(weir_server.grpc, "ann"), 3);
    let noted = weir(weir_server.admin, &["list"]);
    assert!(self::text(&noted.stderr).contains("could not read its store yet"), "{noted:?}");

    redis.restart();
    assert_eq!(redis.command(&["SET", "w1:{weir}overrides", text.trim_end()]).unwrap().trim(), "OK");
    assert_eq!(redis.command(&["SET", "w1:{weir}overrides-version", version.trim_end()]).unwrap().trim(), "OK");
    until("the override", PATIENCE, || (limit_of(weir_server.grpc, "ann") == 7).then_some(()));
    assert!(weir_server.wait_for_log(0, PATIENCE, |line| line.message() == Some("overrides can be read again")));
    assert_eq!(json_at(weir_server.admin, "/readyz")["overrides"]["read"], true);
    assert_eq!(is_refused(weir_server.http), Some(0));
}

#[test]
fn what_others_write_to_the_keys_is_skipped_and_bounded() {
    let redis = RedisServer::start();
    let served = on(&redis);
    assert_eq!(put(served.at.admin, None, &body("ann", 7)).status, 200);
    let (key, version_key) = ("w1:{weir}overrides", "w1:{weir}overrides-version");
    let good = redis.command(&["GET", key]).unwrap();
    let write = |text: &str, version: &str| {
        assert_eq!(redis.command(&["SET", key, text]).unwrap().trim(), "OK");
        assert_eq!(redis.command(&["SET", version_key, version]).unwrap().trim(), "OK");
    };
    // A broken line costs itself alone.
    let hostile = format!("{{\"domain\":\"shop\"}}\n{}", good.trim_end().replace(":7,", ":8,"));
    write(&hostile, "9000000000000000");
    until("the good line", PATIENCE, || (limit_of(served.at.grpc, "ann") == 8).then_some(()));
    assert_eq!(json_at(served.at.admin, "/overrides")["overrides"].as_array().unwrap().len(), 1);
    // What is too large, or of another type, leaves the last known in force.
    let large =
        "redis.call('SET', KEYS[1], string.rep('x', 3000000)) redis.call('SET', KEYS[2], string.rep('y', 100000))";
    redis.command(&["EVAL", large, "2", key, version_key]).unwrap();
    until("a refusal to read", PATIENCE, || {
        // A change takes the place of the strange text.
        (put(served.at.admin, None, &body("bob", 9)).status == 200).then_some(())
    });
    assert_eq!((limit_of(served.at.grpc, "ann"), limit_of(served.at.grpc, "bob")), (8, 9));
    // A server that starts with such a text has lines that it skips until the next change.
    let other = RedisServer::start();
    for (key, value) in [(key, &*hostile), (version_key, "9000000000000000")] {
        assert_eq!(other.command(&["SET", key, value]).unwrap().trim(), "OK");
    }
    let late = on(&other);
    let problem = || json_at(late.at.admin, "/readyz")["overrides"]["problem"].clone();
    until("the problem", PATIENCE, || (problem() == "skipped 1 line: the log has the first").then_some(()));
    assert_eq!(late.metric("weir_input_refused{input=\"overrides\"}"), Some(1));
    assert_eq!(put(late.at.admin, None, &body("bob", 9)).status, 200);
    assert_eq!((problem(), late.metric("weir_input_refused{input=\"overrides\"}")), (Value::Null, Some(0)));
    // In one step: a server may write the key between two.
    let list = "redis.call('DEL', KEYS[1]) return redis.call('RPUSH', KEYS[1], 'x')";
    assert_eq!(redis.command(&["EVAL", list, "1", version_key]).unwrap().trim(), "1");
    assert_eq!(put(served.at.admin, None, &body("bob", 10)).status, 503);
    assert_eq!((limit_of(served.at.grpc, "ann"), limit_of(served.at.grpc, "bob")), (8, 9));
    assert_eq!(redis.command(&["DEL", version_key]).unwrap().trim(), "1");
    until("the key to be weir's again", PATIENCE, || {
        (put(served.at.admin, None, &body("bob", 10)).status == 200).then_some(())
    });
}
