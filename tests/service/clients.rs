//! What callers can copy: the examples of docs/protocol.md, and the programs of examples/clients, each against a real weir.
//!
//! A program whose toolchain is not installed is skipped, and the test prints that. With CI=true it fails instead.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::process::{PolicyDirectory, Weir, end};
use crate::support::redis::RedisServer;
use crate::support::served::metric;
use crate::support::tools::{self, is_missing, prepared, repository, succeed};
use crate::support::wait::within;
use crate::support::{http, python};

/// What each program prints where weir answers; `N` stands for seconds.
const ANSWERED: [&str; 10] = [
    "request 1: admitted, 2 left",
    "request 2: admitted, 1 left",
    "request 3: admitted, 0 left",
    "request 4: denied, try again in N s",
    "peek: denied, try again in N s",
    "refund: admitted, 1 left",
    "peek: admitted, 1 left",
    "before the work: admitted, 1000 left",
    "report of 1200 tokens: admitted, 0 left",
    "before more work: denied, try again in N s",
];

/// What each program of guards prints where weir answers.
const GUARDED: [&str; 11] = [
    "job 1: started, 1 free",
    "job 2: started, 0 free",
    "job 2: ended, 1 free",
    "job 3: denied, try again later",
    "job 4: started, 0 free",
    "job 4: ended, 1 free",
    "job 1: ended, 2 free",
    "answer 1: holds 400, 600 left",
    "answer 1: used 37, 963 left",
    "answer 2: holds 400, 563 left",
    "answer 2: used 500, 463 left",
];

/// How long a program may run. It asks ten times, and each time it waits at most twice for [`GENEROUS_MS`].
const RUN_PATIENCE: Duration = Duration::from_secs(300);
/// The deadline of one call where weir answers, for a busy machine.
const GENEROUS_MS: u32 = 15_000;
/// The same where no answer comes.
const SHORT_MS: u32 = 300;
const SECONDS_A_YEAR: u64 = 365 * 86_400;

#[test]
fn python_asks_and_guards_permits() {
    let wanted = fs::read_to_string(clients().join("python/requirements.txt")).expect("the requirements");
    let installed = fs::read_to_string(repository().join("tests/python/requirements.txt")).expect("the requirements");
    for line in wanted.lines() {
        assert!(installed.lines().any(|other| other == line), "{line} is not what tests/python/requirements.txt has");
    }
    check(|arguments| {
        let mut command = Command::new(python::venv().join("bin/python"));
        command.arg("-B").arg(clients().join("python/client.py")).args(arguments);
        command
    });
    check_guards(Reflection::Needed, |arguments| {
        let mut command = Command::new(python::venv().join("bin/python"));
        command.arg("-B").arg(clients().join("python/permits.py")).args(arguments);
        command
    });
}

/// A block that failed before it knew what it had used gave the whole estimate back.
#[test]
fn a_guard_whose_block_fails_leaves_the_estimate_charged() {
    const BROKEN: &str = "\
import permits
limits, user = permits.connect()
try:
    with permits.budget(limits, 'answer', user, 400):
        raise EOFError
except EOFError:
    pass
";
    let policies = policies();
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let mut command = Command::new(python::venv().join("bin/python"));
    command.current_dir(clients().join("python")).args(["-B", "-c", BROKEN, &weir.grpc.to_string(), "ann"]);
    command.env("DEADLINE_MS", GENEROUS_MS.to_string());
    assert_eq!(printed(command), ["answer: holds 400, 600 left", "answer: used 400, 600 left"]);
}

#[test]
fn go_asks_and_guards_permits() {
    if is_missing("go", &["version"]) {
        return;
    }
    let binary = tools::go_build("clients/go", &clients().join("go"));
    check(|arguments| {
        let mut command = Command::new(&binary);
        command.args(arguments);
        command
    });
    let binary = tools::go_build("clients/go-permits", &clients().join("go/permits"));
    check_guards(Reflection::Absent, |arguments| {
        let mut command = Command::new(&binary);
        command.args(arguments);
        command
    });
}

#[test]
fn rust_asks_and_guards_permits() {
    let binary = prepared("clients/rust", |target| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "--quiet", "--manifest-path"]).arg(clients().join("rust/Cargo.toml"));
        build.arg("--target-dir").arg(target);
        // What cargo sets for this test is not for the other package.
        build.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        succeed(build);
        target.join("debug/weir-client")
    });
    check(|arguments| {
        let mut command = Command::new(&binary);
        command.args(arguments);
        command
    });
    check_guards(Reflection::Absent, |arguments| {
        let mut command = Command::new(binary.with_file_name("permits"));
        command.args(arguments);
        command
    });
}

#[test]
fn node_asks_and_guards_permits() {
    if is_missing("node", &["--version"]) || is_missing("npm", &["--version"]) {
        return;
    }
    let modules = prepared("clients/node", |target| {
        let lock = fs::read_to_string(clients().join("node/package-lock.json")).expect("the lock file");
        let installed = target.join("installed.json");
        if fs::read_to_string(&installed).ok().as_ref() != Some(&lock) {
            fs::write(target.join("package-lock.json"), &lock).expect("a copy of the lock file");
            fs::copy(clients().join("node/package.json"), target.join("package.json")).expect("a copy of the manifest");
            let mut install = Command::new("npm");
            install.current_dir(target).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
            succeed(install);
            fs::write(installed, &lock).expect("a note of what is installed");
        }
        target.join("node_modules")
    });
    check(|arguments| {
        let mut command = Command::new("node");
        command.arg(clients().join("node/client.js")).args(arguments).env("NODE_PATH", &modules);
        command
    });
    check_guards(Reflection::Absent, |arguments| {
        let mut command = Command::new("node");
        command.arg(clients().join("node/permits.js")).args(arguments).env("NODE_PATH", &modules);
        command
    });
}

/// Whether a program learns the messages from weir.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reflection {
    Needed,
    Absent,
}

/// Runs a program of guards where weir answers, and where nothing does.
fn check_guards(reflection: Reflection, command: impl Fn(&[&str]) -> Command) {
    let policies = policies();
    let run = |address: &str, deadline_ms: u32| {
        let mut command = command(&[address, "ann"]);
        command.env("DEADLINE_MS", deadline_ms.to_string());
        printed(command)
    };
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let address = weir.grpc.to_string();
    assert_eq!(run(&address, GENEROUS_MS), GUARDED);
    let holds = |result| metric(weir.http, &format!("weir_holds_total{{result=\"{result}\"}}")).unwrap_or(0);
    assert_eq!(["opened", "settled", "lost"].map(holds), [5, 5, 0], "each settles once");
    drop(weir);
    if reflection == Reflection::Absent {
        let lines = run(&address, GENEROUS_MS);
        let guarded = ["job 1", "job 2", "job 3", "job 4", "answer 1", "answer 2"];
        assert_eq!(lines, guarded.map(|what| format!("{what}: no answer (UNAVAILABLE), started by the fallback")));
    }
}

/// Runs a program, which `command` makes of its arguments, where weir answers, where it cannot, and where nothing comes back.
fn check(command: impl Fn(&[&str]) -> Command) {
    let policies = policies();
    let run = |weir: &Weir, deadline_ms: u32| {
        let mut command = command(&[&weir.grpc.to_string(), "ann"]);
        command.env("DEADLINE_MS", deadline_ms.to_string());
        printed(command)
    };

    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    let lines = run(&weir, GENEROUS_MS);
    assert_eq!(lines.iter().map(|line| without_wait(line)).collect::<Vec<_>>(), ANSWERED);
    assert_eq!((count(&weir, "ok"), count(&weir, "over_limit")), (7, 3), "a denial is not asked again");
    drop(weir);

    // UNAVAILABLE: it asks once more, and goes on without an answer.
    let mut redis = RedisServer::start();
    let url = redis.url();
    let on_redis = |setting| ["--store", "redis", "--redis-url", &url, "--set", setting];
    redis.kill();
    let weir = Weir::start(&policies.path(), &on_redis("redis.ready_after=1ms"));
    let lines = run(&weir, GENEROUS_MS);
    assert_eq!(lines.len(), ANSWERED.len(), "{lines:?}");
    for (line, answered) in lines.iter().zip(ANSWERED) {
        let what = answered.split(": ").next().expect("what was asked");
        assert_eq!(*line, format!("{what}: no answer (UNAVAILABLE), attempts: 2, admitted by the fallback"));
    }
    assert_eq!(count(&weir, "store_failed"), 2 * lines.len() as u64);
    drop(weir);

    // DEADLINE_EXCEEDED: the first call was sent to a Redis that does not answer, so it is not repeated.
    redis.restart();
    let weir = Weir::start(&policies.path(), &on_redis("redis.timeout=30s"));
    redis.freeze();
    let lines = run(&weir, SHORT_MS);
    redis.thaw();
    assert_eq!(lines.len(), ANSWERED.len(), "{lines:?}");
    assert_eq!(lines[0], "request 1: no answer (DEADLINE_EXCEEDED), attempts: 1, admitted by the fallback");
    for line in &lines {
        assert!(line.contains(": no answer (") && line.ends_with(", admitted by the fallback"), "{lines:?}");
    }
}

/// The policies of the examples with years in place of hours, so that no window ends meanwhile.
fn policies() -> PolicyDirectory {
    let policy = fs::read_to_string(clients().join("policies/clients.yaml")).expect("the policies of the examples");
    let hour = "unit: hour";
    assert_eq!(policy.matches(hour).count(), 3, "{policy}");
    PolicyDirectory::with_file("clients.yaml", &policy.replace(hour, "unit: year"))
}

fn count(weir: &Weir, result: &str) -> u64 {
    metric(weir.http, &format!("weir_requests_total{{result=\"{result}\"}}")).expect("a counter of requests")
}

/// A line with `N` in place of a wait, which is checked.
fn without_wait(line: &str) -> String {
    let Some((what, wait)) = line.split_once("try again in ") else { return line.to_owned() };
    let seconds: u64 = wait.strip_suffix(" s").and_then(|seconds| seconds.parse().ok()).expect("seconds");
    assert!((1..=SECONDS_A_YEAR).contains(&seconds), "{line}");
    format!("{what}try again in N s")
}

/// Runs a program to its end and returns the lines that it printed.
fn printed(mut command: Command) -> Vec<String> {
    let stdout = tempfile::NamedTempFile::new().expect("a file for what it prints");
    let stderr = tempfile::NamedTempFile::new().expect("a file for its errors");
    command.stdin(Stdio::null());
    command.stdout(stdout.reopen().expect("the file")).stderr(stderr.reopen().expect("the file"));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let status = within(RUN_PATIENCE, || child.try_wait().expect("the program is ours"));
    end(&mut child);
    let errors = fs::read_to_string(stderr.path()).expect("its errors");
    assert!(status.is_some_and(|status| status.success()), "{command:?} ended with {status:?}:\n{errors}");
    let text = fs::read_to_string(stdout.path()).expect("what it printed");
    text.lines().map(str::to_owned).collect()
}

fn clients() -> PathBuf {
    repository().join("examples/clients")
}

/// Sends each request of docs/protocol.md, in order, and compares the answer that stands below it.
#[test]
fn the_examples_of_the_protocol_are_what_weir_answers() {
    let page = fs::read_to_string(repository().join("docs/protocol.md")).expect("the page");
    let blocks = |language: &str| {
        let start = format!("```{language}\n");
        let parts = page.split(&start).skip(1);
        parts.map(|part| part.split("\n```").next().expect("the block's end").to_owned()).collect::<Vec<_>>()
    };
    // A year in place of each hour, so that no window ends meanwhile.
    let policy = blocks("yaml").first().expect("the policies").replace("unit: hour", "unit: year");
    let policies = PolicyDirectory::with_file("shop.yaml", &policy);
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);

    let examples = blocks("json");
    assert!(examples.len() >= 16 && examples.len().is_multiple_of(2), "{} blocks", examples.len());
    for pair in examples.chunks(2) {
        let (request, expected) = (pair[0].replace("HOUR", "YEAR"), pair[1].replace("HOUR", "YEAR"));
        let answer = http::post_json(weir.http, "/json", &request).expect("an answer");
        let body = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        let expected = serde_json::from_str(&expected).unwrap_or_else(|error| panic!("{error}: {expected}"));
        assert_eq!(without_times(body), without_times(expected), "{request}");
        let denied = answer.body.contains(r#""overallCode":"OVER_LIMIT""#);
        assert_eq!(answer.status, if denied { 429 } else { 200 }, "{answer:?}");
        assert_eq!(answer.header("retry-after").is_some(), denied, "{answer:?}");
    }
}

/// A response without its times, each of which has to be whole seconds.
fn without_times(mut response: Value) -> Value {
    for status in response["statuses"].as_array_mut().expect("statuses") {
        let time = status["durationUntilReset"].take();
        let seconds = time.as_str().and_then(|time| time.strip_suffix('s')?.parse::<u64>().ok());
        assert!(seconds.is_some(), "{time} in {status}");
        status["durationUntilReset"] = json!("Ns");
    }
    response
}

/// The page of the examples names every program.
#[test]
fn the_page_names_each_program() {
    let page = fs::read_to_string(clients().join("README.md")).expect("the page of the examples");
    let guards = ["python/permits.py", "go/permits/main.go", "rust/src/bin/permits.rs", "node/permits.js"];
    for program in ["python/client.py", "go/main.go", "rust/src/main.rs", "node/client.js"].into_iter().chain(guards) {
        assert!(page.contains(&format!("]({program})")), "{program} is not on the page");
    }
}
