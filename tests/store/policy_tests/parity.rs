//! The recorded answers of envoyproxy/ratelimit as tests of policies: made of the recordings, kept beside them, and run.
//!
//! `UPDATE_EXPECTED=1` writes the files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};
use weir_cli::test::Verdict;
use weir_policies::{Reading, parse_with};

use super::{at_root, ran, tests};

const GROUPS: [&str; 5] = ["core", "charging", "modes", "policies", "stats"];
/// The least number of recorded cases that become tests.
const CASES_MIN: usize = 70;

type Texts = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Group {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    about: String,
    env: Texts,
    policies: Texts,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    Answered { request: Value, response: Value },
    Refused { request: Value, error: Value },
    Http { http: Value, status: u16, body: Value },
    Policies { policies: Texts },
}

#[test]
fn the_recorded_answers_as_tests_are_those_of_the_recordings() {
    let mut cases = 0;
    for group in GROUPS {
        let recorded = fs::read_to_string(at_root(&format!("tests/data/parity/{group}.json"))).expect("a recording");
        let recorded: Group = serde_json::from_str(&recorded).expect("the format of recordings");
        let mut text = format!(
            "# Made of {group}.json by tests/store/policy_tests/parity.rs: what envoyproxy/ratelimit answered.\ncases:\n"
        );
        for case in &recorded.cases {
            let steps = steps(case);
            if steps.iter().any(|step| step.get("ask").is_some()) {
                cases += 1;
                write_case(case, &steps, &mut text);
            }
        }
        let path = at_root(&format!("tests/data/parity/{group}.test.yaml"));
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&path, &text).expect("a file that can be written");
        }
        let kept = fs::read_to_string(&path).expect("the file of tests");
        assert!(kept == text, "{group}.test.yaml differs: run this test with UPDATE_EXPECTED=1");
    }
    assert!(cases >= CASES_MIN, "{cases} cases");
}

#[test]
fn the_recorded_answers_pass() {
    let (verdict, report) = ran(&tests(&[at_root("tests/data/parity")]));
    assert_eq!(verdict, Verdict::Passed, "{report}");
}

fn write_case(case: &Case, steps: &[Value], text: &mut String) {
    let _ = writeln!(text, "  # {}", case.about);
    let _ = writeln!(text, "  - name: {}", case.name);
    let _ = writeln!(text, "    settings: {}", settings(&case.env));
    let _ = writeln!(text, "    policies: {}", json!(case.policies));
    text.push_str("    steps:\n");
    for step in steps {
        let _ = writeln!(text, "      - {step}");
    }
}

/// The settings that the variables of a case mean, as far as answers depend on them.
fn settings(env: &Texts) -> Value {
    let mut settings = json!({ "charging": "independent", "policies.compatible": "on" });
    let is_on = |value: &String| if value == "true" { "on" } else { "off" };
    for (name, value) in env {
        let (setting, value) = match &**name {
            "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" if value == "true" => ("charging", "atomic"),
            "SHADOW_MODE" => ("shadow_mode", is_on(value)),
            "QUOTA_MODE" => ("quota_mode", is_on(value)),
            "MERGE_DOMAIN_CONFIG" => ("policies.merge_domains", is_on(value)),
            "RESPONSE_DYNAMIC_METADATA" => ("response.limit_metadata", is_on(value)),
            "LIMIT_RESPONSE_HEADERS_ENABLED" => ("response.limit_headers", is_on(value)),
            "LIMIT_LIMIT_HEADER" => ("response.limit_header", &**value),
            "LIMIT_REMAINING_HEADER" => ("response.remaining_header", &**value),
            "LIMIT_RESET_HEADER" => ("response.reset_header", &**value),
            "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" | "NEAR_LIMIT_RATIO" | "LOCAL_CACHE_SIZE_IN_BYTES" => continue,
            _ => panic!("the variable {name} is new: does an answer depend on it?"),
        };
        settings[setting] = value.into();
    }
    settings
}

fn steps(case: &Case) -> Vec<Value> {
    let merge_domains = case.env.get("MERGE_DOMAIN_CONFIG").is_some_and(|value| value == "true");
    let reading = Reading { compatible: true, merge_domains };
    let mut steps = Vec::new();
    for step in &case.steps {
        match step {
            Step::Answered { request, response } => steps.push(asked(request, &expected(response))),
            Step::Refused { request, error } => steps.push(asked(request, &json!({ "error": error["message"] }))),
            Step::Http { http, status: 200 | 429, body } if http["path"] == "/json" => {
                let request = http["body"].as_str().expect("a body");
                let request = serde_json::from_str(request).expect("a request in JSON");
                steps.push(asked(&request, &expected(body)));
            }
            Step::Http { .. } => {}
            Step::Policies { policies } => {
                let files: Vec<(&str, &str)> = policies.iter().map(|(name, text)| (&**name, &**text)).collect();
                let mut step = json!({ "swap": policies });
                if parse_with(&files, reading).is_err() {
                    step["expect"] = "refused".into();
                }
                steps.push(step);
            }
        }
    }
    steps
}

/// A step that sends a request. Fields that are not known here would be lost.
fn asked(request: &Value, expect: &Value) -> Value {
    let none = Vec::new();
    let descriptors = request["descriptors"].as_array().unwrap_or(&none);
    let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
    let domain = request["domain"].as_str().unwrap_or("");
    let mut step = json!({ "ask": descriptors, "domain": domain, "expect": expect });
    for (name, value) in request.as_object().expect("a request") {
        match &**name {
            "domain" | "descriptors" => {}
            "hitsAddend" if *value == 0 => {}
            "hitsAddend" => step["hits"] = value.clone(),
            _ => panic!("the field {name} of a request is new"),
        }
    }
    step
}

fn descriptor(descriptor: &Value) -> Value {
    let mut written = json!({ "entries": [] });
    for (name, value) in descriptor.as_object().expect("a descriptor") {
        match &**name {
            "entries" => written["entries"] = value.clone(),
            "hitsAddend" => written["hits"] = value.clone(),
            "limit" => {
                let unit = value["unit"].as_str().expect("a unit").to_lowercase();
                written["limit"] = format!("{}/{unit}", value["requestsPerUnit"].as_u64().unwrap_or(0)).into();
            }
            _ => panic!("the field {name} of a descriptor is new"),
        }
    }
    written
}

fn word(code: &Value) -> &'static str {
    match code.as_str() {
        Some("OK") => "ok",
        Some("OVER_LIMIT") => "over",
        other => panic!("the code {other:?}"),
    }
}

fn expected(response: &Value) -> Value {
    let none = Vec::new();
    let statuses = response["statuses"].as_array().unwrap_or(&none);
    let statuses: Vec<Value> = statuses.iter().map(status).collect();
    let mut expect = json!({ "answer": word(&response["overallCode"]), "statuses": statuses });
    for (name, value) in response.as_object().expect("a response") {
        match &**name {
            "overallCode" | "statuses" => {}
            "dynamicMetadata" => expect["metadata"] = value.clone(),
            "responseHeadersToAdd" => {
                let headers = value.as_array().expect("a list of headers").iter();
                // The clock is in those.
                let known = headers.filter(|header| header["value"] != "seconds");
                let named = known.map(|header| {
                    let text = |name: &str| header[name].as_str().expect("a text").to_owned();
                    (text("key"), Value::from(text("value")))
                });
                expect["headers"] = Value::Object(named.collect());
            }
            _ => panic!("the field {name} of a response is new"),
        }
    }
    expect
}

fn status(status: &Value) -> Value {
    let mut written = json!({
        "answer": word(&status["code"]),
        "remaining": status["limitRemaining"].as_u64().unwrap_or(0),
        "limit": "none",
        "name": "none",
        "reset": "none",
    });
    for (name, value) in status.as_object().expect("a status") {
        match &**name {
            "code" | "limitRemaining" => {}
            "currentLimit" => {
                let unit = value["unit"].as_str().expect("a unit").to_lowercase();
                written["limit"] = format!("{}/{unit}", value["requestsPerUnit"].as_u64().unwrap_or(0)).into();
                written["name"] = value["name"].as_str().unwrap_or("none").into();
            }
            // `<=3600s`: a whole number of seconds, by the clock of the recording.
            "durationUntilReset" => written["reset"] = value.clone(),
            _ => panic!("the field {name} of a status is new"),
        }
    }
    written
}
