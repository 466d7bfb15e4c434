//! Plays every recorded case of what envoyproxy/ratelimit answers, by gRPC and HTTP, on both stores, against weir started
//! with the case's own variables, and compares the answers and the statistics after them: those of Prometheus with the
//! embedded store, those of StatsD with Redis.
//!
//! tests/data/parity/README.md has the format, and what weir answers otherwise on purpose.
//! `WEIR_TEST_PARITY` may name one more directory of such files: every case there is played too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use super::started::{Environment, Ratelimit, Runtime};
use crate::support::process::{LogLine, POLICIES_LOADED, POLICIES_REFUSED};
use crate::support::redis::RedisServer;
use crate::support::statsd::Lines;
use crate::support::wait::{PATIENCE, within};
use crate::support::{http, rls};

/// The files to play.
const GROUPS: [&str; 5] = ["core.json", "charging.json", "modes.json", "policies.json", "stats.json"];

/// Cases are played by this many threads, each with one weir at a time.
const PLAYERS: usize = 4;

/// How often a case is played at most, where a window turned while it was.
const ROUNDS_MAX: u32 = 3;

/// How long a change of the policy directory may take to be seen.
const RELOAD_PATIENCE: Duration = Duration::from_secs(20);

/// Units of the format and their seconds, shortest first. A month is 30 days and a year 365.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", 86_400),
    ("week", 604_800),
    ("month", 2_592_000),
    ("year", 31_536_000),
];

#[test]
fn memory_answers_as_recorded() {
    play_all(Sink::Prometheus, &|_| Environment::default());
}

#[test]
fn redis_answers_as_recorded() {
    let redis = RedisServer::start();
    // One server for all: what a case may not see of another's is kept apart by the prefix.
    play_all(Sink::Statsd, &|run| {
        Environment::default()
            .with("REDIS_SOCKET_TYPE", "tcp")
            .with("REDIS_URL", &format!("127.0.0.1:{}", redis.port()))
            .with("REDIS_TIMEOUT", "5s")
            .with("CACHE_KEY_PREFIX", &format!("{run}:"))
    });
}

/// A file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    group: String,
    cases: Vec<Case>,
}

/// One recorded case.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    about: String,
    env: BTreeMap<String, String>,
    policies: BTreeMap<String, String>,
    steps: Vec<Step>,
    prometheus: Counters,
    statsd: Counters,
}

/// Counters above 0 by name. Whole numbers, which floats of 64 bits hold exactly.
type Counters = BTreeMap<String, f64>;

/// Where the statistics of a case are read.
#[derive(Clone, Copy)]
enum Sink {
    Prometheus,
    Statsd,
}

/// What is done, and what came of it.
#[derive(Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Step {
    Answered { request: Value, response: Value },
    Refused { request: Value, error: GrpcError },
    Http { http: HttpRequest, status: u16, body: Value },
    Policies { policies: BTreeMap<String, String> },
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrpcError {
    code: String,
    message: String,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpRequest {
    port: String,
    path: String,
    method: String,
    #[serde(default)]
    body: String,
}

/// Plays every case and panics with all that differed. `store` gives the variables that choose a store which is empty
/// for a run of that name.
fn play_all(sink: Sink, store: &(dyn Fn(&str) -> Environment + Sync)) {
    let cases = load_cases();
    let waiting = Mutex::new(cases.iter().enumerate());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PLAYERS {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no player panics").next();
                    let Some((number, (title, case))) = next else {
                        break;
                    };
                    let problems = play(number, case, sink, store);
                    if !problems.is_empty() {
                        let text = format!("{title}: {}\n{problems}", case.about);
                        failures.lock().expect("no player panics").push(text);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no player panics");
    failures.sort();
    let (failed, played) = (failures.len(), cases.len());
    assert!(failures.is_empty(), "{failed} of {played} cases differ\n\n{}", failures.join("\n"));
    println!("{played} cases answer as recorded");
}

/// All cases to play, each with its title.
fn load_cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity");
    for file in GROUPS {
        load(&ours.join(file), &mut cases);
    }
    if let Some(more) = std::env::var_os("WEIR_TEST_PARITY") {
        let more = PathBuf::from(more);
        let entries = std::fs::read_dir(&more);
        let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", more.display()));
        let mut files: Vec<_> = entries
            .map(|entry| entry.expect("a directory entry").path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .collect();
        files.sort();
        assert!(!files.is_empty(), "no cases in {}", more.display());
        for file in files {
            load(&file, &mut cases);
        }
    }
    cases
}

/// Adds the cases of one file.
fn load(file: &Path, cases: &mut Vec<(String, Case)>) {
    let text = std::fs::read_to_string(file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let group: Group = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(!group.cases.is_empty(), "no cases in {}", file.display());
    for case in group.cases {
        cases.push((format!("{}/{}", group.group, case.name), case));
    }
}

/// Plays one case, again from an empty store where a window turned meanwhile; returns what differed.
fn play(number: usize, case: &Case, sink: Sink, store: &dyn Fn(&str) -> Environment) -> String {
    let mut round = 1;
    loop {
        let started = unix_seconds();
        let problems = play_once(case, sink, &store(&format!("case-{number}-{round}")));
        let unit = shortest_unit(case);
        let turned = started / unit != unix_seconds() / unit;
        if problems.is_empty() || !turned || round == ROUNDS_MAX {
            return problems;
        }
        round += 1;
    }
}

/// Plays one case on its own weir; returns what differed, of every step.
fn play_once(case: &Case, sink: Sink, store: &Environment) -> String {
    let mut policies = Runtime::with(texts(&case.policies));
    let (statsd, lines) = crate::support::statsd::tcp();
    let sends = match sink {
        Sink::Prometheus => {
            Environment::default().with("USE_PROMETHEUS", "true").with("PROMETHEUS_ADDR", "127.0.0.1:0")
        }
        Sink::Statsd => Environment::default()
            .with("USE_STATSD", "true")
            .with("STATSD_HOST", "127.0.0.1")
            .with("STATSD_PORT", &statsd.port().to_string())
            .with("STATS_FLUSH_INTERVAL", "5ms"),
    };
    let mut given = policies.variables().and(store).and(&sends).and(&case.env).with("WEIR__SHUTDOWN__PAUSE", "0s");
    if case.env.contains_key("LOCAL_CACHE_SIZE_IN_BYTES") {
        // The recorded cache kept each denial until its window ended.
        given = given.with("WEIR__DENY_CACHE__MAX_AGE", "60s");
    }
    let mut weir = match Ratelimit::try_start(&given) {
        Ok(weir) => weir,
        Err(problem) => return problem,
    };
    let mut client = rls::Client::connect(weir.grpc);

    let mut problems = String::new();
    for (index, step) in case.steps.iter().enumerate() {
        let mut differences = Differences::default();
        match step {
            Step::Answered { request, response } => {
                play_answered(&mut client, request, response, &mut differences);
            }
            Step::Refused { request, error } => {
                play_refused(&mut client, request, error, &mut differences);
            }
            Step::Http { http, status, body } => {
                play_http(&weir, http, *status, body, &mut differences);
            }
            Step::Policies { policies: next } => {
                play_policies(&weir, &mut policies, next, &mut differences);
            }
        }
        for line in differences.0 {
            let _ = writeln!(problems, "  step {index}: {line}");
        }
    }
    let mut differences = Differences::default();
    match sink {
        Sink::Prometheus => compare_prometheus(&mut weir, &case.prometheus, &mut differences),
        Sink::Statsd => compare_statsd(&weir, &lines, &case.statsd, &mut differences),
    }
    for line in differences.0 {
        let _ = writeln!(problems, "  statistics: {line}");
    }
    if !problems.is_empty() {
        let _ = writeln!(problems, "  weir wrote:\n{}", weir.process.written());
    }
    problems
}

/// Compares what Prometheus scrapes. The embedded store needs no cache of denials, so nothing is counted for that.
fn compare_prometheus(weir: &mut Ratelimit, expected: &Counters, differences: &mut Differences) {
    let mut expected = expected.clone();
    expected.retain(|name, _| !name.ends_with("_over_limit_with_local_cache"));
    let address = weir.process.address_of("metrics").expect("a listener for metrics");
    let page = http::get(address, "/metrics").expect("the metrics").body;
    let is_counter = |name: &str| page.contains(&format!("# TYPE {name} counter\n"));
    let found: Counters = page
        .lines()
        .filter(|line| line.starts_with("ratelimit_service") && is_counter(line.split(['{', ' ']).next().unwrap()))
        .map(|line| line.rsplit_once(' ').expect("a series and a value"))
        .map(|(series, value)| (series.to_owned(), value.parse().expect("a number")))
        .collect();
    differences.compare_counters(&expected, &found);
}

/// Compares the sums of all that was sent until weir ended.
fn compare_statsd(weir: &Ratelimit, lines: &Lines, expected: &Counters, differences: &mut Differences) {
    weir.process.terminate();
    let sent = || -> Counters {
        let sums = lines.counters().into_iter().filter(|(name, _)| name.starts_with("ratelimit.service."));
        sums.map(|(name, sum)| (name, sum as f64)).collect()
    };
    // The last lines may still be on their way.
    let _ = within(PATIENCE, || (sent() == *expected).then_some(()));
    differences.compare_counters(expected, &sent());
}

fn play_answered(client: &mut rls::Client, request: &Value, expected: &Value, differences: &mut Differences) {
    let message = match rls::request_from_json(request) {
        Ok(message) => message,
        Err(problem) => return differences.add(format!("cannot send {request}: {problem}")),
    };
    match client.ask(message) {
        Ok(answer) => {
            let answer = rls::response_to_json(&answer);
            differences.compare("response", expected, &answer);
        }
        Err(status) => differences.add(format!("{request} was refused: {status}")),
    }
}

fn play_refused(client: &mut rls::Client, request: &Value, expected: &GrpcError, differences: &mut Differences) {
    let message = match rls::request_from_json(request) {
        Ok(message) => message,
        Err(problem) => return differences.add(format!("cannot send {request}: {problem}")),
    };
    // UNKNOWN says nothing, and Envoy lets such a request pass.
    let code = match expected.code.as_str() {
        "UNKNOWN" => "INVALID_ARGUMENT",
        code => code,
    };
    match client.ask(message) {
        Ok(answer) => differences.add(format!("{request} was answered: {answer:?}")),
        Err(status) => {
            differences.equal("code", code, &rls::code_name(status.code()));
            differences.equal("message", &expected.message, status.message());
        }
    }
}

fn play_http(weir: &Ratelimit, request: &HttpRequest, status: u16, expected: &Value, differences: &mut Differences) {
    let address = match request.port.as_str() {
        "http" => weir.http,
        "debug" => weir.debug,
        port => return differences.add(format!("unknown port {port}")),
    };
    let headers: &[_] = match request.body.is_empty() {
        true => &[],
        false => &[("content-type", "application/json")],
    };
    let (method, path) = (&request.method, &request.path);
    let answer = match http::request(address, method, path, headers, &request.body) {
        Ok(answer) => answer,
        Err(error) => return differences.add(format!("{method} {path}: {error}")),
    };
    if answer.status != status {
        differences.add(format!(
            "{method} {path} {:?}: expected {status}, got {} {:?}",
            request.body, answer.status, answer.body
        ));
        return;
    }
    match expected {
        // weir says what is wrong instead.
        Value::String(text) if status == 400 && text.trim() == "Bad Request" => {
            let said = answer.body.trim();
            if said.is_empty() || said.eq_ignore_ascii_case("bad request") {
                differences.add(format!("a 400 that does not say what is wrong: {said:?}"));
            }
        }
        Value::String(text) => differences.equal("body", text, &answer.body),
        Value::Array(_) => {
            let mut lines: Vec<_> = answer.body.lines().filter(|l| !l.is_empty()).collect();
            lines.sort_unstable();
            differences.compare("body", expected, &lines.into());
        }
        _ => match serde_json::from_str(&answer.body) {
            Ok(body) => differences.compare("body", expected, &body),
            Err(error) => differences.add(format!("{error} in the body {:?}", answer.body)),
        },
    }
}

fn play_policies(
    weir: &Ratelimit,
    directory: &mut Runtime,
    next: &BTreeMap<String, String>,
    differences: &mut Differences,
) {
    let settled = |line: &LogLine| matches!(line.message(), Some(POLICIES_LOADED | POLICIES_REFUSED));
    let before = weir.process.count_in_log(settled);
    directory.replace(texts(next));
    if !weir.wait_for_log(before, RELOAD_PATIENCE, settled) {
        differences.add(format!("no reload within {RELOAD_PATIENCE:?}"));
    }
}

fn texts(files: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    files.iter().map(|(name, text)| (name.as_str(), text.as_str()))
}

/// The seconds of the shortest unit that this case names, at most a minute's.
fn shortest_unit(case: &Case) -> u64 {
    let mut text = format!("{:?}", case.policies).to_lowercase();
    for step in &case.steps {
        match step {
            Step::Answered { request, .. } | Step::Refused { request, .. } => {
                text.push_str(&request.to_string().to_lowercase());
            }
            Step::Http { http, .. } => text.push_str(&http.body.to_lowercase()),
            Step::Policies { policies } => {
                text.push_str(&format!("{policies:?}").to_lowercase());
            }
        }
    }
    let named = UNITS.iter().find(|(unit, _)| text.contains(unit));
    named.map_or(60, |(_, seconds)| (*seconds).min(60))
}

fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a clock after 1970").as_secs()
}

/// What one step answered otherwise than recorded.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn add(&mut self, text: String) {
        self.0.push(text);
    }

    fn equal(&mut self, place: &str, expected: &str, actual: &str) {
        if expected != actual {
            self.add(format!("{place}: expected {expected:?}, got {actual:?}"));
        }
    }

    fn compare_counters(&mut self, expected: &Counters, found: &Counters) {
        let names: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        for name in names {
            let (expected, found) = (expected.get(name).unwrap_or(&0.0), found.get(name).unwrap_or(&0.0));
            if expected.total_cmp(found).is_ne() {
                self.add(format!("{name}: expected {expected}, got {found}"));
            }
        }
    }

    /// Compares everything below two values. Two texts stand for a range: `<=3600s` for a duration
    /// of whole seconds from 0, and `seconds` for a header's number.
    fn compare(&mut self, place: &str, expected: &Value, actual: &Value) {
        match (expected, actual) {
            (Value::Object(expected), Value::Object(actual)) => {
                for (name, value) in expected {
                    let place = format!("{place}.{name}");
                    match actual.get(name) {
                        Some(found) => self.compare(&place, value, found),
                        None => self.add(format!("{place}: expected {value}, got nothing")),
                    }
                }
                for (name, value) in actual {
                    if !expected.contains_key(name) {
                        self.add(format!("{place}.{name}: expected nothing, got {value}"));
                    }
                }
            }
            (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
                for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                    self.compare(&format!("{place}[{index}]"), expected, actual);
                }
            }
            (Value::String(expected), Value::String(actual)) if expected.starts_with("<=") => {
                let most = whole_seconds(&expected[2..]);
                let found = whole_seconds(actual);
                if found.is_none() || found > most {
                    self.add(format!("{place}: expected {expected}, got {actual}"));
                }
            }
            (Value::String(expected), Value::String(actual)) if expected == "seconds" => {
                if actual.parse::<u64>().is_err() {
                    self.add(format!("{place}: expected seconds, got {actual:?}"));
                }
            }
            _ if expected == actual => {}
            _ => self.add(format!("{place}: expected {expected}, got {actual}")),
        }
    }
}

fn whole_seconds(text: &str) -> Option<u64> {
    text.strip_suffix('s')?.parse().ok()
}

/// The comparison is what everything above relies on: it must be able to fail.
#[test]
fn differences_are_found() {
    let expected: Value = serde_json::json!({"a": 1, "b": ["<=60s", "seconds"], "c": {"d": "x"}});
    let check = |actual: Value| {
        let mut differences = Differences::default();
        differences.compare("it", &expected, &actual);
        differences.0
    };
    let same = serde_json::json!({"a": 1, "b": ["60s", "7"], "c": {"d": "x"}});
    assert_eq!(check(same), Vec::<String>::new());
    let other = serde_json::json!({"b": ["61s", "x"], "c": {"d": "y", "e": null}});
    assert_eq!(
        check(other),
        [
            "it.a: expected 1, got nothing",
            "it.b[0]: expected <=60s, got 61s",
            "it.b[1]: expected seconds, got \"x\"",
            "it.c.d: expected \"x\", got \"y\"",
            "it.c.e: expected nothing, got null",
        ]
    );
    let counters = |value: f64| Counters::from([("same".to_owned(), 1.0), ("other".to_owned(), value)]);
    let mut differences = Differences::default();
    differences.compare_counters(&counters(2.0), &counters(0.0));
    assert_eq!(differences.0, ["other: expected 2, got 0"]);
    let fraction = serde_json::json!({"a": 1, "b": ["0.5s", "7"], "c": {"d": "x"}});
    assert_eq!(check(fraction), ["it.b[0]: expected <=60s, got 0.5s"]);
    let shorter = serde_json::json!({"a": 1, "b": ["1s"], "c": {"d": "x"}});
    assert_eq!(check(shorter).len(), 1);
}
