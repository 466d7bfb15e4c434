//! A real Envoy in front of weir: what Envoy's clients see when a limit is used up.

mod free_tokens;
mod holds;
mod permits;
mod rolling_restart;
mod security;

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::envoy::Envoy;
use crate::support::http::{self, Answer};
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, until};

/// Three an hour for each user; the configuration of Envoy sends the header `x-user`.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
";

const HOUR_SECONDS: u64 = 3600;

#[test]
fn three_of_five_pass() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let envoy = Envoy::start(weir.grpc);

    // An hour may end between two requests; then the next user has a whole hour.
    let mut answers = ask_five_times(&envoy, "ann");
    if statuses(&answers) != [200, 200, 200, 429, 429] {
        answers = ask_five_times(&envoy, "bob");
    }
    assert_eq!(statuses(&answers), [200, 200, 200, 429, 429], "{answers:?}");

    for (index, answer) in answers.iter().enumerate() {
        let left = [2, 1, 0, 0, 0][index];
        assert_eq!(number(answer, "x-ratelimit-remaining"), left, "{answer:?}");
        let reset = number(answer, "x-ratelimit-reset");
        assert!(reset <= HOUR_SECONDS, "{answer:?}");
        // The limit now in force, then every limit with its window.
        let limit = answer.header("x-ratelimit-limit");
        assert_eq!(limit, Some("3, 3;w=3600"), "{answer:?}");
    }
    for passed in &answers[..3] {
        assert_eq!(passed.body, "upstream\n");
        assert_eq!(passed.header("x-envoy-ratelimited"), None);
    }
    for denied in &answers[3..] {
        assert_eq!(denied.body, "", "a denied request reaches no upstream");
        assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    }

    // Another user has a count of its own, and a request that no limit is about just passes.
    let other = get(&envoy, &[("x-user", "zoe")]);
    assert_eq!(other.status, 200, "{other:?}");
    assert_eq!(number(&other, "x-ratelimit-remaining"), 2, "{other:?}");
    let unlimited = get(&envoy, &[]);
    assert_eq!(unlimited.status, 200, "{unlimited:?}");
    assert_eq!(unlimited.header("x-ratelimit-limit"), None);
}

/// Envoy sends the name of its cluster as `:authority`. HTTP/2 reset such requests, and they passed.
#[test]
fn three_of_five_pass_where_the_name_of_the_cluster_is_no_host_name() {
    for name in ["outbound|8081||weir.default.svc.cluster.local", "weir/100%", "the weir"] {
        let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
        let weir = Weir::start(&policies.path(), &["--store", "memory"]);
        let envoy = Envoy::start_with_cluster(weir.grpc, name);
        let mut answers = ask_five_times(&envoy, "ann");
        if statuses(&answers) != [200, 200, 200, 429, 429] {
            // An hour ended between two of them.
            answers = ask_five_times(&envoy, "bob");
        }
        assert_eq!(statuses(&answers), [200, 200, 200, 429, 429], "{name}: {answers:?}");
    }
}

/// The headers of `response.ietf_headers`, as Envoy passes them on.
#[test]
fn clients_behind_envoy_see_when_to_come_back() {
    let name = r#"'say "hi" \ é'"#;
    let policy = POLICY.replace("requests_per_unit: 3", &format!("requests_per_unit: 3, name: {name}"));
    let policies = PolicyDirectory::with_file("shop.yaml", &policy);
    let weir = Weir::start(&policies.path(), &["--store", "memory", "--set", "response.ietf_headers=on"]);
    let envoy = Envoy::start(weir.grpc);
    let mut answers = ask_five_times(&envoy, "ann");
    if statuses(&answers) != [200, 200, 200, 429, 429] {
        // An hour ended between two of them.
        answers = ask_five_times(&envoy, "bob");
    }
    assert_eq!(statuses(&answers), [200, 200, 200, 429, 429], "{answers:?}");
    let name = r#""say \"hi\" \\ %C3%A9""#;
    for (answer, left) in answers.iter().zip([2, 1, 0, 0, 0]) {
        let reset = number(answer, "x-ratelimit-reset");
        assert_eq!(answer.header("ratelimit"), Some(&*format!("{name};r={left};t={reset}")), "{answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), Some(&*format!("{name};q=3;w=3600")), "{answer:?}");
        match answer.status {
            200 => assert_eq!(answer.header("retry-after"), None, "{answer:?}"),
            _ => assert_eq!(number(answer, "retry-after"), reset, "{answer:?}"),
        }
    }
    let unlimited = get(&envoy, &[]);
    for header in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert_eq!(unlimited.header(header), None, "{unlimited:?}");
    }
}

/// Envoy's own `Retry-After` is the reset of a status that is over, which is weir's wait.
#[test]
fn the_retry_after_of_envoy_is_the_wait_and_that_of_weir_replaces_it() {
    const OPTIONS: [&str; 2] = ["failure_mode_deny: true", "enable_retry_after_header: true"];
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    for of_weir in [None, Some("response.ietf_headers=on")] {
        let settings = of_weir.map_or(vec![], |setting| vec!["--set", setting]);
        let weir = Weir::start(&policies.path(), &[&["--store", "memory"][..], &settings].concat());
        let envoy = Envoy::start_with_options(weir.grpc, &OPTIONS);
        // An hour may end between two of them, but not for both users.
        let answers: Vec<_> = ["ann", "bob"].iter().flat_map(|user| ask_five_times(&envoy, user)).collect();
        assert!(answers.iter().any(|answer| answer.status == 429), "{answers:?}");
        for answer in &answers {
            match answer.status {
                200 => assert_eq!(answer.header("retry-after"), None, "{answer:?}"),
                _ => {
                    assert_eq!(number(answer, "retry-after"), number(answer, "x-ratelimit-reset"), "{answer:?}");
                    let lines = answer.headers.iter().filter(|(name, _)| name == "retry-after").count();
                    assert_eq!(lines, 1, "{answer:?}");
                }
            }
        }
    }
}

/// The option decides for requests that weir does not answer. What weir answers, `on_error: deny` included, is not its matter.
#[test]
fn failure_mode_deny_percent_is_about_requests_without_an_answer() {
    const NONE: &str = "failure_mode_deny_percent: {default_value: {numerator: 0}}";
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    for (on_error, expected) in [("deny", 429), ("error", 200)] {
        let on_error = format!("on_error={on_error}");
        let no_redis = ["--store", "redis", "--redis-url", "redis://127.0.0.1:1", "--set", "redis.ready_after=0s"];
        let mut weir = Weir::start(&policies.path(), &[&no_redis[..], &["--set", &on_error]].concat());
        let envoy = Envoy::start_with_options(weir.grpc, &["failure_mode_deny: true", NONE]);
        assert_eq!(get(&envoy, &[("x-user", "ann")]).status, expected, "{on_error}");
        weir.terminate();
        weir.wait_for_exit();
        assert_eq!(get(&envoy, &[("x-user", "ann")]).status, 200, "{on_error}");
    }
}

/// With `failure_mode_deny` a weir that is gone stops the traffic; this shows that the filter asks.
#[test]
fn without_weir_nothing_passes() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let envoy = Envoy::start(weir.grpc);
    assert_eq!(get(&envoy, &[("x-user", "ann")]).status, 200);

    weir.terminate();
    weir.wait_for_exit();
    assert_eq!(get(&envoy, &[("x-user", "ann")]).status, 500);
}

/// A client chooses how long its headers are, and Envoy takes 60 KiB of them. Were a long one refused, it would pass by the
/// default of Envoy's filter: here that shows as a 500.
#[test]
fn a_header_of_60_kb_is_limited_like_any_other() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let redis = RedisServer::start();
    let on_redis = ["--store", "redis", "--redis-url", &redis.url(), "--set", "redis.timeout=900ms"].map(str::to_owned);
    for arguments in [&["--store", "memory"].map(str::to_owned)[..], &on_redis[..]] {
        let weir = Weir::start(&policies.path(), arguments);
        let envoy = Envoy::start(weir.grpc);
        let long = "u".repeat(60_000);
        let mut answers = ask_five_times(&envoy, &long);
        if statuses(&answers) != [200, 200, 200, 429, 429] {
            // An hour ended between two of them.
            answers = ask_five_times(&envoy, &"v".repeat(60_000));
        }
        assert_eq!(statuses(&answers), [200, 200, 200, 429, 429], "{arguments:?}");
        // One that differs only in its last byte is another user.
        let other = format!("{}w", &long[1..]);
        assert_eq!(get(&envoy, &[("x-user", &other)]).status, 200, "{arguments:?}");
    }
}

/// Bytes of a header need not be UTF-8, as those of a string in protobuf must be.
#[test]
fn a_header_that_is_no_utf8_is_limited_too() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let envoy = Envoy::start(weir.grpc);
    let ask_once = |user: &[u8]| {
        let mut socket = http::connect(envoy.ingress).expect("a connection");
        let parts = [b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nx-user: ", user, b"\r\n\r\n"];
        socket.write_all(&parts.concat()).expect("a request");
        http::read_answer(socket).expect("an answer").status
    };
    let five_times = |user: &[u8]| [(); 5].map(|()| ask_once(user));
    let mut answers = five_times(b"caf\xe9\xff");
    if answers != [200, 200, 200, 429, 429] {
        answers = five_times(b"th\xe9\xff");
    }
    assert_eq!(answers, [200, 200, 200, 429, 429]);
    assert_eq!(ask_once(&[0xff; 60_000]), 200, "however many there are");
}

/// Five a second for each user, and each has its turn 200 ms after the one before it.
const QUEUES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 5, burst: 5}
";

/// From one turn to the next.
const TURN: Duration = Duration::from_millis(200);
/// The hits that a queue holds.
const BURST: usize = 5;
/// As many requests at once pass a queue's end, unless deciding on them takes longer than this many turns past the burst.
const AT_ONCE: usize = 12;
/// Timers of Envoy count from when its event loop last woke up, a little before they are set.
const TIMERS_EARLY: Duration = Duration::from_millis(10);

/// One request that went through the queue: what its client saw, and what Envoy wrote about it.
#[derive(Debug)]
struct Queued {
    status: u16,
    /// From just before any of them was sent to the answer.
    answered_after: Duration,
    /// From just before it was sent to the answer.
    took: Duration,
    logged: Value,
}

impl Queued {
    /// How long Envoy was told to hold it.
    fn delay(&self) -> Duration {
        let header = self.logged["delay_ms"].as_str().map_or(0, |text| text.parse().expect("whole milliseconds"));
        Duration::from_millis(header)
    }
}

/// Sends requests of one user at once, with more headers.
fn queue(envoy: &Envoy, user: &str, headers: &[(&str, &str)]) -> Vec<Queued> {
    let start = Instant::now();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for i in 0..AT_ONCE {
            threads.push(scope.spawn(move || {
                let request = format!("{user}-{i}");
                let own = [("x-user", user), ("x-request", &request)];
                let sent = Instant::now();
                let answer = get(envoy, &[&own[..], headers].concat());
                (request, answer.status, start.elapsed(), sent.elapsed())
            }));
        }
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    let mut queued = Vec::new();
    for (request, status, answered_after, took) in answers {
        let logged = until("the request in the access log", PATIENCE, || {
            envoy.access_log(1).into_iter().find(|line| line["request"] == request)
        });
        queued.push(Queued { status, answered_after, took, logged });
    }
    queued.sort_by_key(|queued| queued.answered_after);
    queued
}

/// Checks what holds of every queue, however slow the machine is. Answers how many were denied.
fn check_queue(queued: &[Queued]) -> usize {
    let (passed, denied): (Vec<_>, Vec<_>) = queued.iter().partition(|queued| queued.status == 200);
    assert!(passed.len() >= BURST, "{queued:#?}");
    for (i, passed) in passed.iter().enumerate() {
        assert!(passed.took + TIMERS_EARLY >= passed.delay(), "not held: {passed:#?}");
        let flags = if passed.delay().is_zero() { "-" } else { "DI" };
        assert_eq!(passed.logged["flags"].as_str().unwrap_or("-"), flags, "{passed:#?}");
        // No two turns are closer together, and the first is not before the first request was sent.
        let turn = TURN * u32::try_from(i).expect("a few");
        assert!(passed.answered_after + TIMERS_EARLY >= turn, "before turn {i}: {queued:#?}");
    }
    let waits = passed.iter().filter(|passed| !passed.delay().is_zero()).count();
    assert!(waits > 0, "nothing had to wait: {queued:#?}");
    for denied in &denied {
        assert_eq!((denied.status, denied.delay()), (429, Duration::ZERO), "{denied:#?}");
    }
    denied.len()
}

#[test]
fn envoy_holds_each_request_until_its_turn() {
    let policies = PolicyDirectory::with_file("shop.yaml", QUEUES);
    let arguments = ["--store", "memory", "--set", "response.delay_header=on", "--set", "response.dynamic_metadata=on"];
    let weir = Weir::start(&policies.path(), &arguments);
    let envoy = Envoy::start_holding(weir.grpc);

    // A machine that stalls for seconds may decide on the last when the first have had their turns; then once more.
    let users = ["ann", "bob", "cid"];
    let queued = users.iter().map(|user| queue(&envoy, user, &[])).find(|queued| check_queue(queued) > 0);
    let queued = queued.expect("a request past the end of the queue");
    for queued in &queued {
        // What the log says of the wait is what the header was made of.
        let detail = &queued.logged["weir"]["detail"][0];
        assert_eq!(detail["algorithm"], "leaky_bucket", "{queued:#?}");
        let wait_us = detail["wait_us"].as_f64().expect("a wait");
        assert_eq!((wait_us / 1_000.0).ceil(), queued.delay().as_millis() as f64, "{queued:#?}");
        let fits_after_us = detail["fits_after_us"].as_f64().expect("it fits again");
        assert!(queued.status == 200 || fits_after_us > 0.0, "{queued:#?}");
        assert!(fits_after_us <= TURN.as_micros() as f64, "{queued:#?}");
    }
}

/// Whoever sends the header that the fault filter obeys neither jumps the queue nor holds a request for a minute.
#[test]
fn a_header_of_the_clients_own_changes_no_turn() {
    let policies = PolicyDirectory::with_file("shop.yaml", QUEUES);
    let weir = Weir::start(&policies.path(), &["--store", "memory", "--set", "response.delay_header=on"]);
    let envoy = Envoy::start_holding(weir.grpc);
    for (user, delay) in [("ann", "0"), ("bob", "60000")] {
        let own = [("x-envoy-fault-delay-request", delay), ("x-envoy-fault-delay-request-percentage", "0")];
        check_queue(&queue(&envoy, user, &own));
    }
}

/// Without the settings, nothing reaches Envoy that it did not ask for.
#[test]
fn nobody_waits_and_nothing_is_added_by_default() {
    let policies = PolicyDirectory::with_file("shop.yaml", QUEUES);
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let envoy = Envoy::start_holding(weir.grpc);
    for queued in queue(&envoy, "ann", &[]) {
        assert_eq!((queued.delay(), &queued.logged["weir"]), (Duration::ZERO, &json!(null)), "{queued:#?}");
    }
}

fn ask_five_times(envoy: &Envoy, user: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(get(envoy, &[("x-user", user)]));
    }
    answers
}

fn get(envoy: &Envoy, headers: &[(&str, &str)]) -> Answer {
    http::request(envoy.ingress, "GET", "/", headers, "").expect("envoy answers")
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no number in {header}: {answer:?}"))
}
