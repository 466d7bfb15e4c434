//! What an operator sees of Redis through a running weir: `/readyz`, metrics and log while Redis hangs, refuses, is badly
//! set up or is not there at all; and that weir starts, stays and stops all the same.
//!
//! What each error of Redis means to a decision is in redis/errors.rs.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_store::Inspected as _;
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};

use crate::support::fake_node::{FakeNode, bulk};
use crate::support::http;
use crate::support::process::{LogLine, PolicyDirectory, Process, Weir, serve};
use crate::support::redis::RedisServer;
use crate::support::rls::{Client, request};
use crate::support::served::metric;
use crate::support::stepped_clock::SteppedClock;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, calendar: false, requests_per_unit: 1000000}
";

const REQUEST: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;

/// Clients at the same time.
const CLIENTS: usize = 8;

/// A weir of one core on this Redis, with the directory of its policies.
fn start(redis_url: &str, more: &[&str]) -> (Weir, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut arguments = vec!["--store", "redis", "--redis-url", redis_url];
    for setting in ["shutdown.pause=0s", "runtime.cores=1"].iter().chain(more) {
        arguments.extend(["--set", setting]);
    }
    match Weir::from_process(Process::spawn(serve(&policies.path(), &arguments))) {
        Ok(weir) => (weir, policies),
        Err(problem) => panic!("{problem}"),
    }
}

/// Clients that ask without a pause until they are dropped.
struct Load {
    done: &'static AtomicBool,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(address: SocketAddr) -> Load {
        let done: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let client = || {
            thread::spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    // Its answer is not the point here.
                    let _ = http::post_json(address, "/json", REQUEST);
                }
            })
        };
        Load { done, clients: (0..CLIENTS).map(|_| client()).collect() }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            assert!(client.join().is_ok() || thread::panicking(), "a client failed");
        }
    }
}

/// What `/readyz` says of the store, with its status.
fn store(weir: &Weir) -> (u16, Value) {
    let answer = http::get(weir.http, "/readyz").expect("an answer");
    let detail: Value = serde_json::from_str(&answer.body).expect("json");
    (answer.status, detail["store"].clone())
}

fn says(text: &str) -> impl Fn(&LogLine) -> bool + use<'_> {
    move |line| line.message().is_some_and(|message| message.starts_with(text))
}

/// A field of the last such event.
fn field(weir: &Weir, text: &str, name: &str) -> Option<Value> {
    let mut found = None;
    for line in weir.written().lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let fields = event.get("fields").unwrap_or(&event);
        if fields["message"].as_str().is_some_and(|message| message.starts_with(text)) {
            found = Some(fields[name].clone());
        }
    }
    found
}

/// envoyproxy/ratelimit 462: while Redis was down, every request waited for it, up to ten seconds.
#[test]
fn envoyproxy_ratelimit_462_a_redis_that_hangs_is_left_alone_and_found_again() {
    let server = RedisServer::start();
    let (weir, _policies) = start(&server.url(), &["redis.timeout=100ms"]);
    let address = format!("127.0.0.1:{}", server.port());
    let series = |name: &str| metric(weir.http, &format!("{name}{{address=\"{address}\"}}")).unwrap_or_default();
    assert_eq!(store(&weir).1["circuit"], "closed");
    until("the first answer to be told", PATIENCE, || (store(&weir).1["answered"] == true).then_some(()));
    let load = Load::on(weir.http);
    until("calls to be counted", PATIENCE, || {
        // In this order, since both grow.
        let batches = metric(weir.http, "weir_redis_batches_total").expect("a number");
        let calls = metric(weir.http, "weir_redis_batched_calls_total").expect("a number");
        assert!(batches <= calls, "{batches} batches of {calls} calls");
        (calls > 100).then_some(())
    });
    assert!(metric(weir.http, "weir_redis_connections").expect("a number") >= 1);
    assert_eq!(series("weir_redis_circuit_open"), 0);

    server.freeze();
    until("the circuit to open", PATIENCE, || (store(&weir).1["circuit"] != "closed").then_some(()));
    until("the silence to be told", PATIENCE, || (store(&weir).1["answered"] == false).then_some(()));
    assert_eq!(store(&weir).0, 200, "readiness does not depend on Redis");
    assert!(series("weir_redis_circuit_opened_total") >= 1);
    assert!(metric(weir.http, "weir_store_errors_total{kind=\"deadline\"}").expect("a number") >= 20);
    until("calls to be refused at once", PATIENCE, || {
        let refused = metric(weir.http, "weir_store_errors_total{kind=\"circuit_open\"}").expect("a number");
        (refused > 100).then_some(())
    });
    let waiting = metric(weir.http, "weir_redis_queue").expect("a number");
    // At most one each: the PING for `/readyz`, the probe of the circuit, and a read of overrides that began before the
    // circuit opened.
    assert!(waiting <= 3, "{waiting} calls wait: no request should");
    assert!(weir.wait_for_log(0, PATIENCE, says("circuit open")));
    assert!(weir.wait_for_log(0, PATIENCE, says("redis does not answer PINGs")));
    assert_eq!(
        field(&weir, "a store does not answer", "kind"),
        Some("deadline".into()),
        "the cause, not the open circuit"
    );

    server.thaw();
    until("the circuit to close", PATIENCE, || (store(&weir).1["circuit"] == "closed").then_some(()));
    until("an answer to be told", PATIENCE, || (store(&weir).1["answered"] == true).then_some(()));
    assert_eq!(series("weir_redis_circuit_open"), 0);
    drop(load);
    assert!(weir.wait_for_log(0, PATIENCE, says("circuit closed")));
    assert!(weir.wait_for_log(0, PATIENCE, says("redis answers PINGs again")));
    // Once for each change, however many requests there were.
    let (opened, closed) = (weir.count_in_log(says("circuit open")), weir.count_in_log(says("circuit closed")));
    assert_eq!(opened, closed);
    assert!(opened <= 3, "{opened} times");
}

#[test]
fn the_store_that_carries_on_without_redis_is_counted() {
    let mut server = RedisServer::start();
    let (weir, _policies) = start(&server.url(), &["on_error=local"]);
    assert_eq!(metric(weir.http, "weir_keys"), Some(0));
    server.kill();
    assert_eq!(http::post_json(weir.http, "/json", REQUEST).expect("an answer").status, 200);
    assert_eq!(metric(weir.http, "weir_keys"), Some(1));
}

#[test]
fn a_refusal_is_logged_now_and_then_with_its_count() {
    let server = RedisServer::start_with(None, &["--maxmemory-policy", "noeviction"]);
    let (weir, _policies) = start(&server.url(), &["redis.timeout=5s"]);
    assert_eq!(http::post_json(weir.http, "/json", REQUEST).expect("an answer").status, 200);
    server.command(&["LPUSH", "other", "x"]).expect("redis answers");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).expect("redis answers");
    for _ in 0..5 {
        let answer = http::post_json(weir.http, "/json", REQUEST).expect("an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("OOM") && answer.body.contains("nothing was charged"), "{answer:?}");
    }
    assert_eq!(metric(weir.http, "weir_store_errors_total{kind=\"oom\"}"), Some(5));
    assert_eq!(metric(weir.http, "weir_store_errors_total{kind=\"readonly\"}"), Some(0), "known before it happens");
    assert!(weir.wait_for_log(0, PATIENCE, says("redis returned an error: OOM ")));
    assert_eq!(weir.count_in_log(says("redis returned an error: OOM ")), 1);
    assert_eq!(field(&weir, "redis returned an error: OOM ", "kind"), Some("oom".into()));
    assert_eq!(field(&weir, "redis returned an error: OOM ", "count"), Some(1.into()));
}

/// Each outage of several short ones has a line that opens it, the reason, and a line that ends it with its own counts and
/// its own duration.
#[test]
fn short_outages_are_logged_each_for_itself() {
    let mut server = RedisServer::start();
    // Nothing but these requests ends or fails: no circuit that answers instead of Redis.
    let settings = ["redis.breaker.error_percent=0", "redis.timeout=200ms", "redis.pool_size=1"];
    let (weir, _policies) = start(&server.url(), &settings);
    let ask = || http::post_json(weir.http, "/json", REQUEST).expect("an answer").status;
    assert_eq!(ask(), 200);
    for (outage, failures) in [1, 3, 2].into_iter().enumerate() {
        let (seen, began) = (weir.written().len(), Instant::now());
        let refused = weir.count_in_log(says("no connection to redis"));
        server.kill();
        let mut failed = 0;
        for _ in 0..failures {
            assert_eq!(ask(), 503);
            failed += 1;
        }
        assert!(weir.wait_for_log(refused, PATIENCE, says("no connection to redis")), "{}", weir.written());
        server.restart();
        until("a request to be decided again", PATIENCE, || {
            let decided = ask() == 200;
            failed += u64::from(!decided);
            decided.then_some(())
        });
        assert!(weir.wait_for_log(outage, PATIENCE, says("stores answer again")), "{}", weir.written());

        let written = weir.written();
        let lines: Vec<Value> = written[seen..].lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let those = |text: &str| -> Vec<&Value> {
            let fields = lines.iter().map(|line| line.get("fields").unwrap_or(line));
            fields.filter(|line| line["message"].as_str().is_some_and(|message| message.starts_with(text))).collect()
        };
        assert_eq!(those("a store does not answer").len(), 1, "{written}");
        assert_eq!(those("no connection to redis")[0]["count"], 1, "{written}");
        let [end] = those("stores answer again")[..] else { panic!("{written}") };
        assert_eq!(end["error"], failed, "{written}");
        let after = duration(end["after"].as_str().expect("a duration"));
        assert!(after <= began.elapsed(), "{after:?}: {written}");
    }
}

/// A duration as the log has it, such as `1.5s`.
#[allow(clippy::float_arithmetic, reason = "the log writes fractions")]
fn duration(text: &str) -> Duration {
    let units = [("ns", 1e9), ("µs", 1e6), ("ms", 1e3), ("s", 1.0)];
    let found = units.into_iter().find_map(|(unit, parts)| Some((text.strip_suffix(unit)?, parts)));
    let (number, parts) = found.unwrap_or_else(|| panic!("no unit: {text}"));
    Duration::from_secs_f64(number.parse::<f64>().expect("a number") / parts)
}

/// A Redis that repeats, in its error, the arguments of a command that it does not know.
struct Repeating {
    renamed: &'static str,
    /// As it stands in the URL.
    login: &'static str,
    /// What an operator is told.
    logged: &'static str,
}

#[test]
fn what_redis_repeats_of_what_it_was_sent_is_shown_to_nobody() {
    const PASSWORD: &str = "TOPSECRETpw";
    const PERSON: &str = "ann.the.person";
    let cases = [
        Repeating { renamed: "AUTH", login: "weir:TOPSECRETpw@", logged: "ERR unknown command 'AUTH'" },
        Repeating { renamed: "AUTH", login: ":TOPSECRETpw@", logged: "ERR unknown command 'AUTH'" },
        Repeating { renamed: "EVALSHA", login: "", logged: "ERR unknown command 'EVALSHA'" },
    ];
    for case in cases {
        let server = RedisServer::start_with(None, &["--rename-command", case.renamed, ""]);
        let repeated = server.command(&[case.renamed, PASSWORD, PERSON]).expect("redis answers");
        assert!(repeated.contains(PASSWORD) && repeated.contains(PERSON), "nothing would be proved: {repeated}");
        let url = format!("redis://{}127.0.0.1:{}", case.login, server.port());
        // Ready at once: a Redis without EVALSHA would end the start.
        let (weir, _policies) = start(&url, &["redis.ready_after=0s", "redis.timeout=100ms"]);
        let entries = [("user", PERSON)];
        let status = Client::connect(weir.grpc).ask(request("shop", &entries)).expect_err("redis decides nothing");
        let body = REQUEST.replace("ann", PERSON);
        let json = http::post_json(weir.http, "/json", &body).expect("an answer");
        assert_eq!(json.status, 503, "{json:?}");
        assert!(weir.wait_for_log(0, PATIENCE, |line| line.raw().contains(case.logged)), "{}", weir.written());
        let ready = http::get(weir.http, "/readyz").expect("an answer");
        for told in [status.message(), &json.body, &ready.body, &weir.written()] {
            assert!(!told.contains(PASSWORD) && !told.contains(PERSON), "{}: {told}", case.renamed);
            assert!(!told.contains("with args"), "{}: {told}", case.renamed);
        }
        for told in [status.message(), &json.body] {
            assert!(told.contains("redis") && !told.contains(case.logged), "a sentence of ours: {told}");
        }
    }
}

#[test]
fn an_eviction_policy_that_drops_live_limits_is_warned_about_once() {
    const WARNING: &str = "redis at ";
    let cases = [("allkeys-lru", "100mb", 1), ("noeviction", "100mb", 0), ("allkeys-lru", "0", 0)];
    for (policy, maxmemory, expected) in cases {
        let server = RedisServer::start_with(None, &["--maxmemory-policy", policy, "--maxmemory", maxmemory]);
        let (weir, _policies) = start(&server.url(), &[]);
        assert!(weir.wait_for_log(0, PATIENCE, says("ready")));
        until("pings after the question", PATIENCE, || (server.runs("ping") > 2).then_some(()));
        assert_eq!(weir.count_in_log(says(WARNING)), expected, "{policy} {maxmemory}");
        if expected > 0 {
            assert!(weir.written().contains("allkeys-lru"), "it says which");
        }
    }
}

/// A server that did not return its time hid the warnings about eviction, also those of other servers.
#[tokio::test]
async fn a_server_without_a_clock_hides_no_warning_about_eviction() {
    let node = FakeNode::start();
    node.says(|command| match &*command[0] {
        "INFO" => bulk("maxmemory:5\r\nmaxmemory_policy:allkeys-lru\r\n"),
        // It closes the connection.
        _ => String::new(),
    });
    let endpoint = Endpoint::parse(&format!("redis://127.0.0.1:{}", node.port())).expect("its url");
    let redis = Redis::start(Options::new(endpoint), "");
    let found = redis.findings(Instant::now() + PATIENCE).get().await.expect("findings");
    assert!(node.heard().contains(&"TIME".to_owned()), "{:?}", node.heard());
    assert!(matches!(&found.evicting[..], [one] if one.contains("allkeys-lru")), "{found:?}");
}

#[test]
fn a_user_who_may_not_ask_is_told_nothing() {
    let server = RedisServer::start_with(None, &["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"]);
    server.command(&["ACL", "SETUSER", "weir", "on", ">pw", "~*", "+@all", "-info"]).expect("redis answers");
    let (weir, _policies) = start(&format!("redis://weir:pw@127.0.0.1:{}", server.port()), &["redis.timeout=5s"]);
    assert_eq!(http::post_json(weir.http, "/json", REQUEST).expect("an answer").status, 200);
    until("pings after the question", PATIENCE, || (server.runs("ping") > 2).then_some(()));
    assert_eq!(weir.count_in_log(|line| matches!(line.level(), Some("WARN" | "ERROR"))), 0);
}

/// Dials that may take place within a second: of one core and the control runtime, 4 connections each, with pauses that
/// grow from 5 to 250 ms.
const DIALS_PER_SECOND_MAX: u64 = 80;

/// A way in which Redis can be absent: the URL that leads there, and the kind under which dials are counted.
struct Absent {
    url: String,
    kind: &'static str,
    /// What makes it so, kept as long as the test wants.
    _kept: (Option<RedisServer>, Option<TcpListener>),
}

fn absent() -> Vec<Absent> {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let hanging = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hanging_at = hanging.local_addr().expect("its address");
    let (one, other) = (RedisServer::start_with(Some("geheim"), &[]), RedisServer::start_with(Some("geheim"), &[]));
    let wrong = format!("redis://:falsch@127.0.0.1:{}", one.port());
    let bare = format!("redis://127.0.0.1:{}", other.port());
    let unknown = "redis://no-such-host.invalid:6379".to_owned();
    vec![
        Absent { url: format!("redis://{nobody}"), kind: "no_connection", _kept: (None, None) },
        Absent { url: unknown, kind: "no_connection", _kept: (None, None) },
        // Accepted by the kernel, and by nobody else: each dial takes redis.connect_timeout.
        Absent { url: format!("redis://{hanging_at}"), kind: "no_connection", _kept: (None, Some(hanging)) },
        Absent { url: wrong, kind: "wrongpass", _kept: (Some(one), None) },
        Absent { url: bare, kind: "noauth", _kept: (Some(other), None) },
    ]
}

#[test]
fn without_redis_weir_starts_serves_and_stops_and_dials_with_pauses() {
    for absent in absent() {
        let begun = Instant::now();
        let (mut weir, _policies) = start(
            &absent.url,
            &["redis.ready_after=300ms", "on_error=allow", "redis.connect_timeout=100ms", "log.level=info"],
        );
        assert!(begun.elapsed() >= Duration::from_millis(300), "it was waited for");
        assert!(weir.wait_for_log(0, PATIENCE, says("ready, although")), "{}", absent.url);
        assert_eq!(store(&weir), (200, serde_json::json!({"name": "redis", "answered": false, "circuit": "closed"})));
        assert_eq!(http::post_json(weir.http, "/json", REQUEST).expect("an answer").status, 200, "on_error: allow");

        let dials = || metric(weir.http, &format!("weir_redis_dial_errors_total{{kind=\"{}\"}}", absent.kind));
        let load = Load::on(weir.http);
        let (before, begun) = (dials().unwrap_or_default(), Instant::now());
        let end = begun + Duration::from_secs(2);
        while Instant::now() < end {
            assert_eq!(store(&weir).0, 200);
        }
        let (made, took) = (dials().unwrap_or_default() - before, begun.elapsed());
        drop(load);
        let most = DIALS_PER_SECOND_MAX * (took.as_secs() + 1);
        assert!(made <= most, "{}: {made} dials in {took:?}", absent.url);
        until("dials to be counted", PATIENCE, || dials().is_some_and(|dials| dials > 0).then_some(()));
        assert_eq!(store(&weir).1["circuit"], "open", "{}", absent.url);
        assert!(!weir.written().contains("falsch"), "no secret is logged");

        // It ends, although it still tries to reach Redis.
        weir.terminate();
        assert_eq!(weir.wait_for_exit().code(), Some(0), "{}", absent.url);
        assert_eq!(weir.count_in_log(says("circuit closed")), 0, "{}: Redis is not back", absent.url);
    }
}

#[test]
fn sigterm_works_before_redis_has_ever_answered() {
    let server = RedisServer::start();
    server.freeze();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = server.url();
    let settings = ["shutdown.pause=0s", "redis.ready_after=300s"];
    let arguments = ["--store", "redis", "--redis-url", &url, "--set", settings[0], "--set", settings[1]];
    let mut process = Process::spawn(serve(&policies.path(), &arguments));
    let http = process.address_of("http").expect("an address");
    until("weir to wait for redis", PATIENCE, || {
        http::get(http, "/readyz").is_ok_and(|answer| answer.status == 503).then_some(())
    });
    process.terminate();
    assert_eq!(process.wait_for_exit().code(), Some(0), "it ends before `redis.ready_after`");
}

#[test]
fn a_redis_whose_clock_differs_is_a_warning_in_the_log_and_a_metric() {
    let Some((clock, redis)) = SteppedClock::start() else { return };
    for (ahead_s, words, most) in [(0, None, 0), (5, Some("ahead of"), 5), (-7, Some("behind"), 7)] {
        clock.set(ahead_s);
        let (weir, _policies) = start(&redis.url(), &[]);
        let difference = || metric(weir.http, "weir_redis_clock_difference_seconds");
        // What a slow answer can explain does not count.
        until(&format!("the difference of {ahead_s} s"), PATIENCE, || {
            difference().filter(|found| (most.min(1)..=most).contains(found))
        });
        if let Some(words) = words {
            let warning =
                format!("the clock of redis at 127.0.0.1:{} is a second or more {words} this machine's", redis.port());
            assert!(weir.wait_for_log(0, PATIENCE, says(&warning)), "{warning}");
        }
    }
}
