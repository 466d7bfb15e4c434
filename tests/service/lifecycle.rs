//! How weir starts and ends, as its supervisor sees it: signals, exit status, ports, standard input.

mod service_manager;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regex::Regex;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::process::{PolicyDirectory, Process, Weir, serve};
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, rls};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
";

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// A request for `/json` that the policy admits.
const JSON_REQUEST: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;

#[test]
fn sigterm_takes_weir_out_of_service_first() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut weir = Weir::start(&policies.path(), &["--set", "shutdown.pause=4s"]);
    let mut client = rls::Client::connect(weir.grpc);
    assert_eq!(health(weir.grpc, ""), ServingStatus::Serving);
    assert_eq!(health(weir.grpc, SERVICE), ServingStatus::Serving);

    weir.terminate();
    // Whoever watches health is told, and who does not see it yet is still served: by a connection
    // that was there, and by new ones (each look at the health is one).
    for service in ["", SERVICE] {
        until("NOT_SERVING", PATIENCE, || (health(weir.grpc, service) == ServingStatus::NotServing).then_some(()));
    }
    let ready = http::get(weir.http, "/readyz").expect("an answer during the pause");
    assert_ne!(ready.status, 200, "{ready:?}");
    assert!(client.admits("shop", "user", "ann"));
    assert!(rls::Client::connect(weir.grpc).admits("shop", "user", "ann"));
    assert!(weir.is_running());

    assert_eq!(weir.wait_for_exit().code(), Some(0));
    assert_refused(weir.grpc);
}

/// Scripts that reopen logs send these to other servers. They killed weir, and SIGQUIT ended it with a core dump.
#[test]
fn sigusr1_and_sigusr2_are_ignored_and_sigquit_drains() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut weir = Weir::start(&policies.path(), &["--set", "shutdown.pause=10ms", "--set", "shutdown.grace=15s"]);
    let mut stream = half_a_request(weir.http);
    for _ in 0..3 {
        weir.signal("USR1");
        weir.signal("USR2");
    }
    weir.signal("QUIT");
    wait_until_refused(weir.http);
    assert!(weir.is_running(), "it waits for the request in flight");
    let (_, rest) = JSON_REQUEST.split_at(JSON_REQUEST.len() / 2);
    stream.write_all(rest.as_bytes()).expect("the connection stands");
    assert_eq!(http::read_answer(stream).expect("an answer").status, 200);
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

/// The lines of a start in the log, with `_` for what differs from start to start.
fn shape(log: &str) -> Vec<String> {
    let varies = Regex::new(r"^\S+Z |took=\S+|commit \w+|[\d.]+:\d+|^  (?:cores|policies) .*").expect("a pattern");
    log.lines().map(|line| varies.replace_all(line, "_").into_owned()).collect()
}

/// The same command with the log for people.
fn with_text_log(command: &Command) -> Command {
    let mut with = Command::new(command.get_program());
    for (name, value) in command.get_envs() {
        assert_eq!(value, None, "{name:?}");
        with.env_remove(name);
    }
    let arguments = command.get_args().map(|argument| match argument.to_str() {
        Some("log.format=json") => "log.format=text".as_ref(),
        _ => argument,
    });
    with.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    with
}

#[test]
fn the_log_of_a_start_is_as_documented() {
    let page = include_str!("../../docs/running.md");
    let documented = page.split("\n## Starting\n\n```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart");
    let weir = Process::spawn(with_text_log(&serve::<&str>(&policies, &[])));
    until("the line that weir is ready", PATIENCE, || weir.written().contains(": ready store=").then_some(()));
    weir.terminate();
    let (_, written) = weir.finish();
    let documented = shape(documented.expect("the log of a start"));
    assert_eq!(shape(&written)[..documented.len()], documented);
}

/// envoyproxy/ratelimit 1103: at a rolling update, requests in flight failed, and callers saw 500.
#[test]
fn envoyproxy_ratelimit_1103_a_grpc_request_in_flight_is_finished() {
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = redis.url();
    let store = ["--store", "redis", "--redis-url", &url];
    let waits = ["--set", "redis.timeout=15s", "--set", "shutdown.pause=10ms", "--set", "shutdown.grace=15s"];
    let mut weir = Weir::start(&policies.path(), &[&store[..], &waits[..]].concat());
    let grpc = weir.grpc;

    // Redis holds every write back until it is told to go on: the request stays in flight.
    redis.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let asking = std::thread::spawn(move || rls::Client::connect(grpc).ask(rls::request("shop", &[("user", "ann")])));
    until("a call that Redis holds back", PATIENCE, || {
        let clients = redis.command(&["INFO", "clients"])?;
        let held = clients.lines().any(|l| l.trim() == "blocked_clients:1");
        held.then_some(())
    });

    weir.terminate();
    wait_until_refused(weir.grpc);
    assert!(weir.is_running(), "it waits for the request in flight");
    redis.command(&["CLIENT", "UNPAUSE"]);
    let answer = asking.join().expect("a client that does not panic");
    let answer = answer.expect("an answer, although weir was told to end");
    assert!(rls::admits(&answer));
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

/// Who keeps a request open for ever does not keep weir from ending.
#[test]
fn the_drain_ends_with_its_grace() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let waits = ["--set", "shutdown.pause=10ms", "--set", "shutdown.grace=500ms"];
    let mut weir = Weir::start(&policies.path(), &waits);
    let _held_open = half_a_request(weir.http);
    let told = Instant::now();
    weir.terminate();
    assert_eq!(weir.wait_for_exit().code(), Some(0));
    println!("ended {:?} after SIGTERM", told.elapsed());
}

/// docs/performance.md has the bound. The rest of the memory is the program's file, which is larger in a debug build.
#[test]
fn an_idle_server_takes_no_more_memory_than_the_page_has() {
    let page = include_str!("../../docs/performance.md");
    let sentence = Regex::new(r"Heap and stacks are less than\s(\d+) MiB").unwrap();
    let most_kib = 1_024 * sentence.captures(page).expect("the sentence")[1].parse::<u64>().unwrap();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    for store in [&[][..], &["--set", "store=redis", "--set", &url]] {
        let weir = Weir::start(&policies.path(), &[&["--set", "runtime.cores=2"], store].concat());
        until("the answer that it is ready", PATIENCE, || {
            http::get(weir.http, "/readyz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        let idle_kib = weir.anonymous_memory_kib();
        assert!(idle_kib < most_kib, "{idle_kib} KiB with {store:?}");
    }
}

/// An open connection without a request, as every Envoy has some, is no reason to wait.
#[test]
fn idle_connections_do_not_delay_the_end() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let waits = ["--set", "shutdown.pause=10ms", "--set", "shutdown.grace=1h"];
    let mut weir = Weir::start(&policies.path(), &waits);
    let mut client = rls::Client::connect(weir.grpc);
    assert!(client.admits("shop", "user", "ann"));
    weir.terminate();
    // The client's side of the connection has to take part: it answers GOAWAY by hanging up.
    let ended = client.drive_until(PATIENCE, || !weir.is_running());
    assert!(ended, "weir waits for a connection without a request");
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_an_error_with_its_address() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    for listener in ["--grpc", "--http", "--admin"] {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = taken.local_addr().expect("its address").to_string();
        let process = Process::start(&policies.path(), &[listener, &address], &[]);
        let (status, written) = process.finish();
        assert_ne!(status.code(), Some(0), "{listener}: {written}");
        assert!(status.code().is_some(), "{listener}: {status}: {written}");
        assert!(written.contains(&address), "{listener}: {written}");
    }
}

#[test]
fn sigterm_during_the_start_ends_it() {
    // A Redis that accepts connections and says nothing: the start waits for it.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", silent.local_addr().expect("its address"));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let arguments = ["--store", "redis", "--redis-url", &url];
    let waits = ["--set", "shutdown.pause=10ms", "--set", "redis.timeout=1s"];
    let arguments = [&arguments[..], &waits[..]].concat();
    let process = Process::start(&policies.path(), &arguments, &[]);

    silent.set_nonblocking(true).expect("a listener to poll");
    let _connection = until("weir to connect to Redis", PATIENCE, || silent.accept().ok());
    process.terminate();
    let (status, written) = process.finish();
    assert_eq!(status.code(), Some(0), "{written}");
}

/// Supervisors start services without a standard input; some close it altogether.
#[test]
fn a_closed_standard_input_does_not_matter() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let plain = serve(&policies.path(), &["--set", "shutdown.pause=10ms"]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" <&-", "sh"]);
    command.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        assert!(value.is_none(), "serve only takes variables away");
        command.env_remove(name);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());

    let weir = Weir::from_process(Process::spawn(command));
    let mut weir = weir.unwrap_or_else(|problem| panic!("{problem}"));
    assert!(rls::Client::connect(weir.grpc).admits("shop", "user", "ann"));
    weir.terminate();
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

/// What grpc.health.v1 says, asked on a new connection.
fn health(address: SocketAddr, service: &str) -> ServingStatus {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut client = HealthClient::new(rls::channel(address).await);
        let service = service.to_owned();
        let answer = client.check(HealthCheckRequest { service }).await;
        answer.expect("an answer about health").into_inner().status()
    })
}

/// A request of which weir has read the head, and is waiting for the second half of the body: it
/// says so by `100 Continue`.
fn half_a_request(address: SocketAddr) -> TcpStream {
    let mut stream = http::connect(address).expect("a connection");
    let headers = [("content-type", "application/json"), ("expect", "100-continue")];
    let head = http::head("POST", "/json", &headers, JSON_REQUEST.len());
    stream.write_all(head.as_bytes()).expect("the head is sent");

    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("100 Continue");
        answer.extend(byte);
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");

    let (half, _) = JSON_REQUEST.split_at(JSON_REQUEST.len() / 2);
    stream.write_all(half.as_bytes()).expect("half is sent");
    stream
}

fn wait_until_refused(address: SocketAddr) {
    until("new connections to be refused", PATIENCE, || is_refused(address).then_some(()));
}

fn assert_refused(address: SocketAddr) {
    assert!(is_refused(address), "{address} still takes connections");
}

fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err()
}
