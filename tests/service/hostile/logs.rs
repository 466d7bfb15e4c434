//! A log that cannot be written, that no process reads, or that a peer tries to fill: decisions, health, reloads and the end
//! go on, and the log stays small.

use std::fs;
use std::io::{PipeReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::bare::{Bare, full_pipe, signal};
use crate::support::http;
use crate::support::process::{POLICIES_REFUSED, PolicyDirectory, Process, Weir, serve};
use crate::support::redis::RedisServer;
use crate::support::rls::Client;
use crate::support::seen::{self, TROUBLE_BEGINS, TROUBLE_ENDS};
use crate::support::served::metric;
use crate::support::wait::{PATIENCE, until};

const FILE: &str = "shop.yaml";
const TENANTS: &str = "domain: shop\ndescriptors:\n- {key: tenant, rows: {default: free}, rate_limit: {rate: 3/day, plans: {gold: 7/day}}}\n";
const LOADS: &str = "weir_config_loads_total";
const REFUSED: &str = "weir_config_load_errors_total";
/// Lines of one call site in ten seconds, and the edge of a period within a test.
const CALL_SITE_LINES_MAX: usize = 2 * 100;

fn policy(requests: u32) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - {{key: user, rate_limit: {{unit: year, requests_per_unit: {requests}}}}}\n"
    )
}

/// A policy with so many mistakes.
fn mistakes(count: usize) -> String {
    let mut text = String::from("domain: shop\ndescriptors:\n");
    for number in 0..count {
        text.push_str(&format!(
            "  - {{key: user, value: u{number}, rate_limit: {{unit: fortnight, requests_per_unit: 1}}}}\n"
        ));
    }
    text
}

fn lost(http: SocketAddr, reason: &str) -> u64 {
    metric(http, &format!("weir_log_lines_lost_total{{reason=\"{reason}\"}}")).expect("the metric")
}

fn wait_for(http: SocketAddr, name: &str, value: u64) {
    until(name, PATIENCE, || (metric(http, name) == Some(value)).then_some(()));
}

/// Everything that logs: loads, refused loads, a state that is reset, an outage of Redis. Each has to go on.
fn goes_on_without_a_log(weir: &mut Bare, policies: &mut PolicyDirectory, redis: RedisServer) {
    let mut client = Client::connect(weir.grpc);
    assert!(client.admits("shop", "user", "ann"));
    policies.replace(&[(FILE.to_owned(), mistakes(1_000))]);
    wait_for(weir.http, REFUSED, 1);
    policies.replace(&[(FILE.to_owned(), policy(20))]);
    wait_for(weir.http, LOADS, 2);
    signal(weir.id(), "HUP");
    wait_for(weir.http, LOADS, 3);
    let reset = http::request(weir.admin, "DELETE", "/state?domain=shop&descriptor=user=ann", &[], "");
    assert_eq!(reset.expect("an answer").status, 200);
    drop(redis);
    for _ in 0..100 {
        assert!(client.admits("shop", "user", "ann"), "on_error is allow");
    }
    assert_eq!(http::get(weir.http, "/healthz").expect("an answer").status, 200);
    assert!(weir.is_running());
    signal(weir.id(), "TERM");
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

fn with_redis(redis: &RedisServer) -> Vec<String> {
    let mut arguments = vec!["--store".to_owned(), "redis".to_owned(), "--redis-url".to_owned(), redis.url()];
    for setting in ["on_error=allow", "shutdown.pause=10ms", "log.level=trace,h2=trace,hyper=trace,tonic=trace"] {
        arguments.extend(["--set".to_owned(), setting.to_owned()]);
    }
    arguments
}

fn start(policies: &PolicyDirectory, redis: &RedisServer, stderr: impl Into<Stdio>) -> Bare {
    let arguments = with_redis(redis);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Bare::start(&policies.path(), &arguments, stderr)
}

#[test]
fn a_standard_error_that_was_closed_ends_nothing() {
    let redis = RedisServer::start();
    let mut policies = PolicyDirectory::with_file(FILE, &policy(1_000));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut weir = start(&policies, &redis, writer);
    assert!(lost(weir.http, "write_failed") > 0, "the lines of the start were lost and counted");
    goes_on_without_a_log(&mut weir, &mut policies, redis);
}

#[test]
fn a_full_disk_ends_nothing() {
    let redis = RedisServer::start();
    let mut policies = PolicyDirectory::with_file(FILE, &policy(1_000));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("the full device");
    let mut weir = start(&policies, &redis, full);
    assert!(lost(weir.http, "write_failed") > 0, "the lines of the start were lost and counted");
    goes_on_without_a_log(&mut weir, &mut policies, redis);
}

/// The system ends a process for a write past this limit, unless the process handles the signal.
#[test]
fn a_limit_on_the_size_of_files_ends_nothing() {
    let redis = RedisServer::start();
    let mut policies = PolicyDirectory::with_file(FILE, &policy(1_000));
    let directory = TempDir::new().expect("a temporary directory");
    let log = fs::File::create(directory.path().join("weir.log")).expect("a file");
    let mut weir = start(&policies, &redis, log);
    let process = weir.id().to_string();
    let limited = Command::new("prlimit").args(["--fsize=1:1", "--pid", &process]).status();
    assert!(limited.expect("prlimit of util-linux").success());
    goes_on_without_a_log(&mut weir, &mut policies, redis);
}

#[test]
fn a_standard_error_that_no_process_reads_stops_nothing() {
    let redis = RedisServer::start();
    let mut policies = PolicyDirectory::with_file(FILE, &policy(1_000));
    let (_reader, writer) = full_pipe();
    let mut weir = start(&policies, &redis, writer);
    goes_on_without_a_log(&mut weir, &mut policies, redis);
}

/// Reads a log with a pause after each 16 KiB, and counts the lines with this message.
fn count_lines(mut log: PipeReader, message: &str, pause: Duration) -> Arc<AtomicUsize> {
    let found = Arc::new(AtomicUsize::new(0));
    let (counted, field) = (found.clone(), format!("\"message\":\"{message}\""));
    std::thread::spawn(move || {
        let (mut text, mut piece) = (Vec::new(), [0; 16 << 10]);
        while let Ok(read @ 1..) = log.read(&mut piece) {
            std::thread::park_timeout(pause);
            text.extend(&piece[..read]);
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let lines: Vec<u8> = text.drain(..whole).collect();
            counted.fetch_add(String::from_utf8_lossy(&lines).matches(&field).count(), Relaxed);
        }
    });
    found
}

/// A holder of a token filled the queue with its changes, and the lines of the last ones were dropped.
#[test]
fn each_change_is_in_a_log_that_is_read_slowly() {
    const ROWS: usize = 5_000;
    const IMPORTS: usize = 3;
    let policies = PolicyDirectory::with_file(FILE, TENANTS);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let weir = Bare::start(&policies.path(), &[], writer);
    // About 0.7 MB a second, less than the imports write.
    let found = count_lines(reader, "row set", Duration::from_millis(25));
    let note = "x".repeat(250);
    for import in 0..IMPORTS {
        let row =
            |at| json!({"domain": "shop", "descriptor": format!("tenant={import}-{at}"), "plan": "gold", "note": note});
        let body: String = (0..ROWS).map(|at| format!("{}\n", row(at))).collect();
        assert_eq!(http::request(weir.admin, "POST", "/rows", &[], &body).expect("an answer").status, 200);
    }
    until("the last line", PATIENCE, || (found.load(Relaxed) == IMPORTS * ROWS).then_some(()));
    assert_eq!(lost(weir.http, "queue_full"), 0);
}

/// Where nobody reads the log, an operator can make some hundreds of changes, whose lines wait.
#[test]
fn changes_without_a_log_are_refused_when_their_lines_have_no_room() {
    let policies = PolicyDirectory::with_file(FILE, &policy(1_000));
    let (_reader, writer) = full_pipe();
    let weir = Bare::start(&policies.path(), &[], writer);
    let reset = |value: &str| {
        let path = format!("/state?domain=shop&descriptor=user={value}");
        http::request(weir.admin, "DELETE", &path, &[], "").expect("an answer")
    };
    let long = "x".repeat(8_000);
    assert_eq!(reset("ann").status, 200);
    let refused = (0..1_000).map(|_| reset(&long)).find(|answer| answer.status != 200).expect("a refusal");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("the log has no room for the line of a change"), "{}", refused.body);
}

/// Removes ended rows, page by page. Returns their number, and the error that ended it.
fn prune(admin: SocketAddr) -> (usize, Option<String>) {
    let (mut removed, mut after) = (0, String::new());
    loop {
        let path = format!("/rows?ended=true{after}");
        let answer = http::request(admin, "DELETE", &path, &[], "").expect("an answer");
        let body: Json = serde_json::from_str(&answer.body).expect("JSON");
        if answer.status != 200 {
            assert_eq!(answer.status, 503);
            let error = body["error"].as_str().expect("an error").to_owned();
            let of_page = error.split_whitespace().find_map(|word| word.parse::<usize>().ok()).expect("a number");
            return (removed + of_page, Some(error));
        }
        removed += usize::try_from(body["removed"].as_u64().expect("a number")).expect("it is small");
        match body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (removed, None),
        }
    }
}

/// A prune removed a page of rows before their lines had room, and the lines were lost.
#[test]
fn a_prune_without_a_log_removes_only_rows_whose_lines_have_room() {
    const ROWS: usize = 1_500;
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file(FILE, TENANTS);
    let url = redis.url();
    let arguments = ["--store", "redis", "--redis-url", &url];
    let other = Weir::start(&policies.path(), &arguments);
    let long = "x".repeat(3_000);
    let row = |at: &usize| {
        let (descriptor, until) = (format!("tenant={at}{long}"), "2020-01-01T00:00:00Z");
        format!("{}\n", json!({"domain": "shop", "descriptor": descriptor, "plan": "gold", "until": until}))
    };
    for rows in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        let body: String = rows.iter().map(row).collect();
        let answer = http::request(other.admin, "POST", "/rows", &[], &body).expect("an answer");
        assert_eq!(answer.body.matches("written").count(), rows.len(), "{:.300}", answer.body);
    }
    let (reader, writer) = full_pipe();
    let weir = Bare::start(&policies.path(), &arguments, writer);
    let (removed, error) = prune(weir.admin);
    let error = error.expect("no room for all lines");
    assert!(error.contains(", all others stay: the log has no room for the line of a change"), "{error}");
    // The target takes lines again.
    let found = count_lines(reader, "row removed", Duration::ZERO);
    until("the lines", PATIENCE, || (found.load(Relaxed) == removed).then_some(()));
    let (rest, error) = prune(weir.admin);
    assert_eq!((removed + rest, error), (ROWS, None));
    assert!(removed > 0 && rest > 0, "{removed} and {rest}");
    until("all lines", PATIENCE, || (found.load(Relaxed) == ROWS).then_some(()));
}

/// The reason of a start that fails cannot be written either.
#[test]
fn a_start_that_fails_ends_whatever_standard_error_does() {
    let policies = PolicyDirectory::with_file(FILE, &policy(1));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("its address").to_string();
    let (_reader, stuck) = full_pipe();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("the full device");
    for stderr in [Stdio::from(stuck), Stdio::from(full)] {
        let mut child = serve(&policies.path(), &["--grpc", &address]).stderr(stderr).spawn().expect("weir starts");
        let status = until("the process to end", PATIENCE, || child.try_wait().expect("ours"));
        assert_eq!(status.code(), Some(1), "{status}");
    }
}

#[test]
fn check_reports_its_exit_status_where_its_output_is_refused() {
    let good = PolicyDirectory::with_file(FILE, &policy(1));
    let bad = PolicyDirectory::with_file(FILE, &mistakes(3));
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("the full device");
    for (policies, code) in [(&good, 1), (&bad, 1)] {
        let mut command = Command::new(crate::support::process::binary());
        command.arg("check").arg(policies.path()).stdout(full()).stderr(full());
        assert_eq!(command.status().expect("weir runs").code(), Some(code));
    }
}

#[test]
fn a_thousand_mistakes_are_twenty_lines() {
    let mut policies = PolicyDirectory::with_file(FILE, &policy(1));
    let weir = Weir::start(&policies.path(), &[] as &[&str]);
    policies.replace(&[(FILE.to_owned(), mistakes(1_000))]);
    let more = "more problems: GET /readyz of the admin listener lists the first, weir check lists all";
    assert!(weir.wait_for_log(0, PATIENCE, |line| line.message() == Some(more)), "{}", weir.written());
    assert_eq!(weir.count_in_log(|line| line.message() == Some(POLICIES_REFUSED)), 20);
    let ready = http::get(weir.admin, "/readyz").expect("an answer");
    let ready: serde_json::Value = serde_json::from_str(&ready.body).expect("JSON");
    let problems = ready["policies"]["problems"].as_array().expect("a list");
    assert_eq!(problems.len(), 101);
    assert_eq!(problems[100], "and 1 more problem");
    let check = Command::new(crate::support::process::binary()).arg("check").arg(policies.path()).output();
    let check = check.expect("weir runs");
    assert_eq!(String::from_utf8_lossy(&check.stderr).lines().count(), 101);
}

/// The frames of one connection: HTTP/2's preface, SETTINGS, and then answers to PINGs that were never sent.
fn unsolicited_pings(address: SocketAddr, count: usize) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for _ in 0..count {
        bytes.extend(b"\0\0\x08\x06\x01\0\0\0\0weir-was");
    }
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time to read");
    // The peer may be cut off before it is done.
    if stream.write_all(&bytes).is_ok() {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
}

#[test]
fn a_peer_cannot_make_dependencies_fill_the_log() {
    const FRAMES: usize = 200_000;
    let policies = PolicyDirectory::with_file(FILE, &policy(1));
    let weir = Weir::start(&policies.path(), &[] as &[&str]);
    let before = weir.written().len();
    unsolicited_pings(weir.grpc, FRAMES);
    assert!(Client::connect(weir.grpc).admits("shop", "user", "ann"));
    assert!(weir.written().len() < before + 64 * 1_024, "{} bytes", weir.written().len());

    // Where an operator asks for their warnings, each call site is bounded.
    let weir = Weir::start(&policies.path(), &["--set", "log.level=info,h2=warn"]);
    unsolicited_pings(weir.grpc, FRAMES);
    assert!(Client::connect(weir.grpc).admits("shop", "user", "ann"));
    let from_h2 = |line: &crate::support::process::LogLine| {
        line.field("target").and_then(|target| target.as_str()).is_some_and(|target| target.starts_with("h2"))
    };
    // One line for each of few call sites of h2.
    assert!(weir.count_in_log(from_h2) <= 4 * CALL_SITE_LINES_MAX, "{}", weir.count_in_log(from_h2));
}

#[test]
fn what_one_call_site_drops_is_counted_and_reported() {
    let policies = PolicyDirectory::with_file(FILE, &policy(1));
    let weir = Weir::start(&policies.path(), &["--set", "log.level=debug"]);
    until("a line to be dropped", 2 * PATIENCE, || {
        // Each connection without the preface of HTTP/2 has a line of its own.
        for _ in 0..100 {
            let mut socket = TcpStream::connect(weir.grpc).expect("weir accepts");
            let _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
        (lost(weir.http, "call_site") > 0).then_some(())
    });
    let reported = "log lines dropped: one call site logs too often";
    let found = weir.wait_for_log(0, 2 * PATIENCE, |line| {
        line.message() == Some(reported)
            && line.field("call_site").is_some_and(|site| site.to_string().contains("weir_http2"))
    });
    assert!(found, "{}", weir.written());
}

#[test]
fn the_file_of_the_log_is_opened_again_at_sighup() {
    let directory = TempDir::new().expect("a temporary directory");
    let (log, rotated) = (directory.path().join("weir.log"), directory.path().join("weir.log.1"));
    let policies = PolicyDirectory::with_file(FILE, &policy(1));
    let setting = format!("log.file={}", log.display());
    let mut weir = Bare::start(&policies.path(), &["--set", &setting, "--set", "shutdown.pause=10ms"], Stdio::null());
    let has = |path: &Path, text: &str| fs::read_to_string(path).is_ok_and(|log| log.contains(text));
    until("the start in the log", PATIENCE, || has(&log, "policies loaded").then_some(()));
    fs::rename(&log, &rotated).expect("the log is rotated");
    signal(weir.id(), "HUP");
    until("a new log", PATIENCE, || log.exists().then_some(()));
    signal(weir.id(), "TERM");
    assert_eq!(weir.wait_for_exit().code(), Some(0));
    assert!(has(&log, "stopped") && !has(&rotated, "stopped"), "the last line is in the new file");
}

#[test]
fn a_log_file_that_cannot_be_opened_is_an_error_at_the_start() {
    let policies = PolicyDirectory::with_file(FILE, &policy(1));
    let process = Process::start(&policies.path(), &["--set", "log.file=/nowhere/weir.log"], &[]);
    let (status, written) = process.finish();
    assert_eq!(status.code(), Some(1));
    assert!(written.contains("cannot open the log file /nowhere/weir.log"), "{written}");
}

/// Each line that ends an outage is about the one that the line before it opened.
#[test]
fn each_outage_has_a_line_that_opens_and_one_that_ends_it() {
    let mut redis = RedisServer::start();
    let policies = PolicyDirectory::with_file(FILE, &policy(1_000_000));
    let url = redis.url();
    let weir = Weir::start(
        &policies.path(),
        &["--store", "redis", "--redis-url", &url, "--set", "on_error=allow", "--set", "deny_cache.max_age=0s"],
    );
    let mut client = Client::connect(weir.grpc);
    for outage in 0..2 {
        redis.kill();
        until("the line that opens it", PATIENCE, || {
            assert!(client.admits("shop", "user", "ann"));
            (seen::logged(&weir, TROUBLE_BEGINS) == outage + 1).then_some(())
        });
        redis.restart();
        until("the line that ends it", PATIENCE, || {
            assert!(client.admits("shop", "user", "ann"));
            (seen::logged(&weir, TROUBLE_ENDS) == outage + 1).then_some(())
        });
    }
}

/// What a child of the test below has in its environment: the file of its log.
const PANICS: &str = "WEIR_TEST_PANICS";

/// Runs itself in a process of its own, since a panic hook and a log are for a whole process.
#[test]
fn a_panic_is_a_line_of_the_log() {
    if let Some(log) = std::env::var_os(PANICS) {
        let log = weir_settings::Log {
            level: "info".to_owned(),
            format: weir_settings::LogFormat::Json,
            file: Some(log.into()),
        };
        weir_app::set_up_log(&log).expect("a log");
        let thread = std::thread::Builder::new().name("unlucky".to_owned()).spawn(|| panic!("index 7 of 3"));
        assert!(thread.expect("a thread").join().is_err());
        weir_app::flush_log();
        return;
    }
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("weir.log");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("the full device");
    let status = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "hostile::logs::a_panic_is_a_line_of_the_log", "--nocapture"])
        .env(PANICS, &log)
        .stdout(Stdio::null())
        .stderr(full)
        .status();
    assert!(status.expect("the test runs").success());
    let log = fs::read_to_string(&log).expect("the log");
    let line = log.lines().find(|line| line.contains("index 7 of 3")).expect("the panic");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["level"], &line["thread"]), (&"ERROR".into(), &"unlucky".into()), "{line}");
}
