//! weir by the names of envoyproxy/ratelimit's programs: what counts, what is ignored, and how each ends.

use std::net::{SocketAddr, TcpListener};
use std::process::Output;
use std::time::Duration;

use super::started::{Environment, Ratelimit, Runtime, launch, program};
use crate::support::fake_node::FakeNode;
use crate::support::http;
use crate::support::process::{POLICIES_LOADED, Weir};
use crate::support::wait::PATIENCE;

const SHOP: [(&str, &str); 1] =
    [("shop.yaml", "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 2}\n")];

fn output(name: &str, arguments: &[&str]) -> Output {
    program(name, &Environment::default()).args(arguments).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The status and the body of a request about this user.
fn ask(http: SocketAddr, user: &str) -> u16 {
    let body =
        format!(r#"{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "user", "value": "{user}"}}]}}]}}"#);
    http::post_json(http, "/json", &body).expect("an answer").status
}

#[test]
fn arguments_are_ignored_and_unknown_variables_too() {
    let runtime = Runtime::with(SHOP);
    let environment = runtime.variables().with("GRPC_SERVER_TLS_CA_CERT", "/no/such/file").with("PORT_NAME", "tcp://x");
    let mut process = launch(&environment, &["serve", "--no-such-flag", "x"]);
    let http = process.address_of("http").unwrap();
    assert_eq!([ask(http, "ann"), ask(http, "ann"), ask(http, "ann")], [200, 200, 429]);
}

#[test]
fn weir_serve_ignores_their_variables() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(SHOP[0].0), SHOP[0].1).unwrap();
    // Each of them would end the start, or make every request pass.
    let theirs = [("PORT", "x"), ("HOST", "nowhere.invalid"), ("LOG_LEVEL", "loud"), ("SHADOW_MODE", "true")];
    let more = [("REDIS_URL", "127.0.0.1:1"), ("BACKEND_TYPE", "memcache")];
    let environment: Vec<_> =
        theirs.iter().chain(&more).map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let weir =
        Weir::try_start::<&str>(directory.path(), &[], &environment).unwrap_or_else(|problem| panic!("{problem}"));
    assert_eq!([ask(weir.http, "ann"), ask(weir.http, "ann"), ask(weir.http, "ann")], [200, 200, 429]);
}

#[test]
fn a_malformed_variable_ends_the_start_and_is_named() {
    for (name, text, told) in [
        ("REDIS_TIMEOUT", "10", "weir: REDIS_TIMEOUT: \"10\": not a duration"),
        ("BACKEND_TYPE", "memcache", "weir: BACKEND_TYPE: memcache: weir has no Memcached backend"),
        ("LOG_LEVEL", "loud", "weir: LOG_LEVEL: \"loud\": must be"),
    ] {
        let (status, written) = launch(&Environment::default().with(name, text), &[]).finish();
        assert_eq!(status.code(), Some(2), "{written}");
        assert!(written.starts_with(told), "{written}");
    }
}

#[test]
fn the_log_names_the_store_and_each_variable_without_effect_once() {
    let runtime = Runtime::with(SHOP);
    let environment =
        runtime.variables().with("REDIS_CLUSTER_PIPELINE_PARALLELISM", "2").with("REDIS_PIPELINE_LIMIT", "3");
    let started = Ratelimit::try_start(&environment).unwrap();
    for text in [
        "REDIS_URL is unset: weir keeps",
        "REDIS_CLUSTER_PIPELINE_PARALLELISM has no effect",
        "REDIS_PIPELINE_LIMIT has no effect",
    ] {
        let times =
            started.process.count_in_log(|line| line.message().is_some_and(|message| message.starts_with(text)));
        assert_eq!(times, 1, "{text}\n{}", started.process.written());
    }
}

#[test]
fn a_directory_may_be_empty_and_policies_come_later() {
    let mut runtime = Runtime::with([]);
    let environment = runtime.variables();
    let started = Ratelimit::try_start(&environment).unwrap();
    assert_eq!(ask(started.http, "ann"), 200);
    let loaded = |line: &crate::support::process::LogLine| line.message() == Some(POLICIES_LOADED);
    let before = started.process.count_in_log(loaded);
    runtime.replace(SHOP);
    assert!(started.wait_for_log(before, PATIENCE, loaded), "{}", started.process.written());
    assert_eq!([ask(started.http, "ann"), ask(started.http, "ann"), ask(started.http, "ann")], [200, 200, 429]);
}

/// RUNTIME_SUBDIRECTORY unset, every ending, a file beside the directory, and names with dots.
#[test]
fn every_file_below_the_directory_and_beside_it_is_a_policy() {
    let root = tempfile::tempdir().unwrap();
    let policy = |domain: &str| SHOP[0].1.replace("shop", domain);
    for (path, domain) in
        [("config/a.yaml", "a"), ("config/b", "b"), ("config/deep/c.txt", "c"), ("config/.d", "d"), ("config.yml", "e")]
    {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, policy(domain)).unwrap();
    }
    let rlconfig = |environment: Environment| {
        let started = Ratelimit::try_start(&environment).unwrap();
        let body = http::get(started.debug, "/rlconfig").unwrap().body;
        let mut domains: Vec<String> = body.lines().map(|line| line.split('.').next().unwrap().to_owned()).collect();
        domains.sort();
        domains.concat()
    };
    let all = Environment::default().with("RUNTIME_ROOT", root.path().to_str().unwrap());
    assert_eq!(rlconfig(all.clone()), "abcde");
    assert_eq!(rlconfig(all.with("RUNTIME_IGNOREDOTFILES", "true").with("RUNTIME_WATCH_ROOT", "false")), "abc");
}

#[test]
fn it_is_unhealthy_without_a_policy_where_that_is_asked_for() {
    let mut runtime = Runtime::with([]);
    let environment = runtime.variables().with("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let started = Ratelimit::listening(&environment).unwrap();
    assert!(started.wait_for_log(0, PATIENCE, |line| line.message() == Some("ready")), "{}", started.process.written());
    let health = || http::get(started.http, "/healthcheck").unwrap().status;
    assert_eq!(health(), 500);
    runtime.replace(SHOP);
    crate::support::wait::until("it to be healthy", PATIENCE, || (health() == 200).then_some(()));
    runtime.replace([]);
    crate::support::wait::until("it to be unhealthy again", PATIENCE, || (health() == 500).then_some(()));
}

#[test]
fn a_redis_that_never_comes_ends_it_only_where_that_is_asked_for() {
    let runtime = Runtime::with(SHOP);
    // A port that nothing listens on, as long as this holds it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("127.0.0.1:{port}");
    let absent = runtime.variables().with("REDIS_SOCKET_TYPE", "tcp").with("REDIS_URL", &url);

    let waits = Ratelimit::listening(&absent.clone().with("WEIR__REDIS__READY_AFTER", "300s")).unwrap();
    assert_eq!(http::get(waits.http, "/healthcheck").unwrap().status, 500);
    assert_eq!(ask(waits.http, "ann"), 503);
    drop(waits);
    let ready = Ratelimit::try_start(&absent.clone().with("WEIR__REDIS__READY_AFTER", "10ms")).unwrap();
    assert_eq!(ask(ready.http, "ann"), 503);
    drop(ready);
    let needs =
        absent.clone().with("WEIR__REDIS__READY_AFTER", "10ms").with("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");
    let needs = Ratelimit::listening(&needs).unwrap();
    let ready = |line: &crate::support::process::LogLine| {
        line.message().is_some_and(|text| text.starts_with("ready, although"))
    };
    assert!(needs.wait_for_log(0, PATIENCE, ready), "{}", needs.process.written());
    assert_eq!(http::get(needs.http, "/healthcheck").unwrap().status, 500);
    drop(needs);

    let (status, written) = launch(&absent.with("REDIS_STARTUP_MAX_ELAPSED_TIME", "50ms"), &[]).finish();
    assert_eq!(status.code(), Some(1), "{written}");
    assert!(written.contains("redis gave no answer within 50ms of the start"), "{written}");
}

#[test]
fn policies_are_checked_as_envoyproxy_ratelimit_would() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    // No ending, and an odd form that only its dialect takes.
    std::fs::write(directory.path().join("shop"), "name: x\ndomain: shop\ndescriptors:\n  - key: a\n    rate_limit:\n")
        .unwrap();
    for arguments in [&["-config_dir", path][..], &[&format!("--config_dir={path}")]] {
        let good = output("ratelimit_config_check", arguments);
        assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
        assert!(stdout(&good).contains("domain shop"), "{}", stdout(&good));
    }
    std::fs::write(directory.path().join("second"), SHOP[0].1).unwrap();
    let twice = output("ratelimit_config_check", &["-config_dir", path]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(stderr(&twice).contains("shop"), "{}", stderr(&twice));
    let merged = output("ratelimit_config_check", &["-merge_domain_configs", "-config_dir", path]);
    assert_eq!(merged.status.code(), Some(0), "{}", stderr(&merged));
    assert_eq!(output("ratelimit_config_check", &["-config_dir", "/no/such/directory"]).status.code(), Some(1));
    assert_eq!(output("ratelimit_config_check", &["-config"]).status.code(), Some(2));
}

#[test]
fn a_server_is_asked_from_the_command_line() {
    let runtime = Runtime::with(SHOP);
    let started = Ratelimit::try_start(&runtime.variables()).unwrap();
    let address = started.grpc.to_string();
    let ask = |arguments: &[&str]| output("weir", &[&["ask", &address, "shop"], arguments].concat());

    let first = ask(&["user=ann", "path=/a,user=b"]);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let text = stdout(&first);
    assert!(text.starts_with("OK\n  user=ann   OK   1 of 2 per hour left, resets in "), "{text}");
    let no_rule = "path=/a,user=b   OK   no limit: no rule of the domain shop limits it, or no store has decided\n";
    assert!(text.ends_with(&format!(" s\n  {no_rule}")), "{text}");
    // Zero hits charge nothing.
    for _ in 0..2 {
        let peeked = stdout(&ask(&["user=ann", "--hits", "0"]));
        assert!(peeked.starts_with("OK\n  user=ann   OK   1 of 2 per hour left"), "{peeked}");
    }
    for (domain, user, hits, expected) in [
        ("shop", "user=ann", "0", "ok"),
        ("shop", "user=ann", "2", "over-limit"),
        ("shop", "usr=ann", "0", "no-limit"),
        ("shpo", "user=ann", "0", "no-limit"),
    ] {
        for answer in ["ok", "over-limit", "no-limit"] {
            let asked = output("weir", &["ask", &address, domain, user, "--hits", hits, "--expect", answer]);
            let code = if answer == expected { 0 } else { 1 };
            assert_eq!(asked.status.code(), Some(code), "{domain} {user} {answer}: {}", stdout(&asked));
        }
    }
    // Each descriptor has its own hits, and a limit of the request.
    let own = ["user=cat", "user=dan", "--hits", "1", "--hits", "3", "--limit", "9/90s"];
    let text = stdout(&ask(&own));
    assert!(
        text.starts_with("OK\n  user=cat   OK   8 of 9 left") && text.contains("user=dan   OK   6 of 9 left"),
        "{text}"
    );
    let refused = ask(&[&own[..], &["user=eve"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("2 times --hits for 3 descriptors: give it once for all"),
        "{}",
        stderr(&refused)
    );
    let unknown = stdout(&output("weir", &["ask", &address, "shpo", "user=ann"]));
    assert!(unknown.contains("no rule of the domain shpo limits it"), "{unknown}");
    let over = ask(&["user=ann", "--hits", "2", "--json"]);
    assert_eq!(over.status.code(), Some(1), "{}", stderr(&over));
    let body: serde_json::Value = serde_json::from_str(&stdout(&over)).unwrap();
    assert_eq!(body["overallCode"], "OVER_LIMIT");
    let refused = output("weir", &["ask", &address, "", "user=ann"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("rate limit domain must not be empty"), "{}", stderr(&refused));
    assert_eq!(output("weir", &["ask", "127.0.0.1:1", "shop", "user=ann"]).status.code(), Some(2));

    let client = |arguments: &[&str]| output("ratelimit_client", &[&["-dial_string", &address], arguments].concat());
    let answer = client(&["-domain", "shop", "-descriptors", "user=bob,a=b", "-descriptors=user=ann"]);
    assert_eq!(answer.status.code(), Some(0), "over a limit is an answer: {}", stderr(&answer));
    assert!(stdout(&answer).starts_with("response: {\"overallCode\":\"OVER_LIMIT\""), "{}", stdout(&answer));
    assert_eq!(client(&["-domain", "", "-descriptors", "a=b"]).status.code(), Some(1));
    assert_eq!(client(&["-descriptors", "a"]).status.code(), Some(2));
}

/// How long a wait may be that only a stuck process reaches.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn sigterm_and_sighup_drain_it() {
    let runtime = Runtime::with(SHOP);
    let environment = runtime.variables().with("WEIR__SHUTDOWN__PAUSE", "0s");
    for signal in ["TERM", "HUP"] {
        let started = Ratelimit::try_start(&environment).unwrap();
        started.process.signal(signal);
        let draining = |line: &crate::support::process::LogLine| line.message() == Some("draining");
        assert!(started.wait_for_log(0, LONG, draining), "{signal}: {}", started.process.written());
        let (status, written) = started.process.finish();
        assert!(status.success(), "{signal}: {written}");
    }
}

#[test]
fn the_log_in_json_has_their_names_for_time_and_message() {
    let runtime = Runtime::with(SHOP);
    let environment = runtime.variables().with("LOG_FORMAT", "json").with("WEIR__LOG__FORMAT", "json_at");
    let process = launch(&environment, &[]);
    assert!(process.wait_for_log(0, PATIENCE, |line| line.field("@message").is_some()), "{}", process.written());
    assert_eq!(process.count_in_log(|line| line.field("@timestamp").is_none()), 0, "{}", process.written());
}

/// A server before 6.2, or a proxy: what it lacks is named in one error.
#[test]
fn a_redis_that_lacks_a_command_ends_the_start_and_what_is_missing_is_named() {
    let old = FakeNode::start();
    old.says(|command| match command[0].to_ascii_uppercase().as_str() {
        "EVALSHA" => "-ERR unknown command 'EVALSHA', with args beginning with: \r\n".to_owned(),
        "SET" => "-ERR syntax error\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    });
    let runtime = Runtime::with(SHOP);
    let url = format!("127.0.0.1:{}", old.port());
    let environment = runtime.variables().with("REDIS_SOCKET_TYPE", "tcp").with("REDIS_URL", &url);
    let (status, written) = launch(&environment.with("WEIR__REDIS__READY_AFTER", "60s"), &[]).finish();
    assert_eq!(status.code(), Some(1), "{written}");
    assert!(
        written.contains(&format!("redis at {url} lacks EVALSHA, PXAT, an option of SET: weir needs Redis 6.2")),
        "{written}"
    );
}
