//! Plays recorded cases of what envoyproxy/ratelimit answers through the real binary, by gRPC and
//! HTTP, on both stores, and compares the answers.
//!
//! tests/data/parity/README.md has the format, and what weir answers otherwise on purpose.
//! `WEIR_TEST_PARITY` may name one more directory of such files: every case there is played too.
//! The counters that a case recorded are not compared here.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use weir::config::policy_file::{Reading, parse_with};
use weir::rls::rlconfig;

use support::http;
use support::process::{LogLine, POLICIES_LOADED, POLICIES_REFUSED, PolicyDirectory, Weir};
use support::redis::RedisServer;
use support::rls;

/// The files to play, by name, and which of their cases are left out, with the reason.
const GROUPS: [(&str, &[(&str, &str)]); 5] =
    [("core.json", &[]), ("charging.json", &[]), ("modes.json", &[]), ("policies.json", &[]), ("stats.json", &[])];

/// The settings of weir that stand for environment variables of the service. Switches are `on` where the variable is true.
const SETTINGS: [(&str, &str); 8] = [
    ("SHADOW_MODE", "shadow_mode"),
    ("QUOTA_MODE", "quota_mode"),
    ("MERGE_DOMAIN_CONFIG", "policies.merge_domains"),
    ("RESPONSE_DYNAMIC_METADATA", "response.limit_metadata"),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "response.limit_headers"),
    ("LIMIT_LIMIT_HEADER", "response.limit_header"),
    ("LIMIT_REMAINING_HEADER", "response.remaining_header"),
    ("LIMIT_RESET_HEADER", "response.reset_header"),
];

/// Variables that change the counters only, which are not compared here.
const OF_COUNTERS: [&str; 2] = ["NEAR_LIMIT_RATIO", "LOCAL_CACHE_SIZE_IN_BYTES"];

/// Cases are played by this many threads, each with one weir at a time.
const PLAYERS: usize = 4;

/// How often a case is played at most, where a window turned while it was.
const ROUNDS_MAX: u32 = 3;

/// How long a change of the policy directory may take to be seen.
const RELOAD_PATIENCE: Duration = Duration::from_secs(5);

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
    play_all(&|_| vec!["--store".to_owned(), "memory".to_owned()]);
}

#[test]
fn redis_answers_as_recorded() {
    let redis = RedisServer::start();
    // One server for all: what a case may not see of another's is kept apart by the prefix.
    play_all(&|run| {
        let set_prefix = format!("redis.key_prefix={run}:");
        let mut arguments = vec!["--store", "redis", "--redis-url"];
        let url = redis.url();
        arguments.extend([url.as_str(), "--set", &set_prefix]);
        arguments.extend(["--set", "redis.timeout=5s"]);
        arguments.into_iter().map(str::to_owned).collect()
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
    #[serde(rename = "prometheus")]
    _prometheus: Value,
    #[serde(rename = "statsd")]
    _statsd: Value,
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

/// Plays every case and panics with all that differed. `store` gives the arguments that choose a
/// store which is empty for a run of that name.
fn play_all(store: &(dyn Fn(&str) -> Vec<String> + Sync)) {
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
                    let problems = play(number, case, store);
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
    for (file, left_out) in GROUPS {
        let known = load(&ours.join(file), &mut cases, left_out);
        for (name, _) in left_out {
            assert!(known.contains(&(*name).to_owned()), "{file} has no {name}");
        }
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
            load(&file, &mut cases, &[]);
        }
    }
    cases
}

/// Adds the cases of one file; returns the names of all, those left out too.
fn load(file: &Path, cases: &mut Vec<(String, Case)>, left_out: &[(&str, &str)]) -> Vec<String> {
    let text = std::fs::read_to_string(file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let group: Group = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut names = Vec::new();
    for case in group.cases {
        names.push(case.name.clone());
        if !left_out.iter().any(|(name, _)| *name == case.name) {
            let title = format!("{}/{}", group.group, case.name);
            cases.push((title, case));
        }
    }
    assert!(!names.is_empty(), "no cases in {}", file.display());
    names
}

/// Plays one case, again from an empty store where a window turned meanwhile; returns what differed.
fn play(number: usize, case: &Case, store: &dyn Fn(&str) -> Vec<String>) -> String {
    let mut round = 1;
    loop {
        let started = unix_seconds();
        let problems = play_once(case, &store(&format!("case-{number}-{round}")));
        let unit = shortest_unit(case);
        let turned = started / unit != unix_seconds() / unit;
        if problems.is_empty() || !turned || round == ROUNDS_MAX {
            return problems;
        }
        round += 1;
    }
}

/// Plays one case on its own weir; returns what differed, of every step.
fn play_once(case: &Case, store: &[String]) -> String {
    let mut policies = PolicyDirectory::with_files(&files(&case.policies));
    let mut arguments = store.to_vec();
    let (settings, reading) = match settings(&case.env) {
        Ok(settings) => settings,
        Err(problem) => return problem,
    };
    arguments.extend(settings);
    let weir = match Weir::try_start(&policies.path(), &arguments, &[]) {
        Ok(weir) => weir,
        Err(problem) => return problem,
    };
    let mut client = rls::Client::connect(weir.grpc);
    let mut in_force = case.policies.clone();

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
            Step::Http { http, body, .. } if http.path == "/rlconfig" => {
                play_rlconfig(&in_force, reading, body, &mut differences);
            }
            Step::Http { http, status, body } => {
                play_http(&weir, http, *status, body, &mut differences);
            }
            Step::Policies { policies: next } => {
                play_policies(&weir, &mut policies, next, &mut differences);
                in_force.clone_from(next);
            }
        }
        for line in differences.0 {
            let _ = writeln!(problems, "  step {index}: {line}");
        }
    }
    if !problems.is_empty() {
        let _ = writeln!(problems, "  weir wrote:\n{}", weir.written());
    }
    problems
}

/// The arguments that set up weir as these variables set up the service, and how it reads policies then.
fn settings(environment: &BTreeMap<String, String>) -> Result<(Vec<String>, Reading), String> {
    // The service has no cache of denials unless it is asked for.
    let mut settings = vec!["policies.compatible=on".to_owned(), "deny_cache.max_age=0s".to_owned()];
    let mut charging = "independent";
    let mut reading = Reading { compatible: true, merge_domains: false };
    for (name, value) in environment {
        if OF_COUNTERS.contains(&name.as_str()) {
            continue;
        }
        let value = if value == "true" { "on" } else { value };
        if name == "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" {
            charging = if value == "on" { "atomic" } else { charging };
            continue;
        }
        reading.merge_domains |= name == "MERGE_DOMAIN_CONFIG" && value == "on";
        let Some((_, setting)) = SETTINGS.iter().find(|(known, _)| known == name) else {
            return Err(format!("no setting of weir stands for {name}"));
        };
        settings.push(format!("{setting}={value}"));
    }
    let mut arguments = vec!["--charging".to_owned(), charging.to_owned()];
    for setting in settings {
        arguments.extend(["--set".to_owned(), setting]);
    }
    Ok((arguments, reading))
}

/// The page is compared by the function that makes it; weir serves it where it is started in the service's place.
fn play_rlconfig(
    policies: &BTreeMap<String, String>,
    reading: Reading,
    expected: &Value,
    differences: &mut Differences,
) {
    let files: Vec<_> = policies.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    match parse_with(&files, reading) {
        Ok(loaded) => {
            let page = rlconfig::render(&loaded.policies);
            let mut lines: Vec<_> = page.lines().collect();
            lines.sort_unstable();
            differences.compare("body", expected, &lines.into());
        }
        Err(problems) => differences.add(problems.to_string()),
    }
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

fn play_http(weir: &Weir, request: &HttpRequest, status: u16, expected: &Value, differences: &mut Differences) {
    let address = match request.port.as_str() {
        "http" => weir.http,
        "debug" => weir.admin,
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
    weir: &Weir,
    directory: &mut PolicyDirectory,
    next: &BTreeMap<String, String>,
    differences: &mut Differences,
) {
    let settled = |line: &LogLine| matches!(line.message(), Some(POLICIES_LOADED | POLICIES_REFUSED));
    let before = weir.count_in_log(settled);
    directory.replace(&files(next));
    if !weir.wait_for_log(before, RELOAD_PATIENCE, settled) {
        differences.add(format!("no reload within {RELOAD_PATIENCE:?}"));
    }
}

fn files(files: &BTreeMap<String, String>) -> Vec<(String, String)> {
    files.clone().into_iter().collect()
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
    let fraction = serde_json::json!({"a": 1, "b": ["0.5s", "7"], "c": {"d": "x"}});
    assert_eq!(check(fraction), ["it.b[0]: expected <=60s, got 0.5s"]);
    let shorter = serde_json::json!({"a": 1, "b": ["1s"], "c": {"d": "x"}});
    assert_eq!(check(shorter).len(), 1);
}
