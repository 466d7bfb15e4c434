//! Another language's gRPC as weir's client: Python's grpcio, with messages of its own and with what
//! it learns by reflection.

use serde_json::{Value, json};

use crate::support::process::{PolicyDirectory, Weir};
use crate::support::python;

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3, name: per-user}
";

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Numbers of the enums as they are on the wire.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;
const HOUR: u64 = 3;

#[test]
fn a_client_asks_until_it_is_limited() {
    let (_policies, weir) = start();
    // An hour may end between two calls; then the next user has a whole hour.
    let mut answers = ask_five_times(&weir, "ann");
    if codes(&answers) != [OK, OK, OK, OVER_LIMIT, OVER_LIMIT] {
        answers = ask_five_times(&weir, "bob");
    }
    assert_eq!(codes(&answers), [OK, OK, OK, OVER_LIMIT, OVER_LIMIT]);

    for (index, answer) in answers.iter().enumerate() {
        let statuses = answer["statuses"].as_array().expect("a list of statuses");
        assert_eq!(statuses.len(), 1, "{answer}");
        let status = &statuses[0];
        assert_eq!(status["code"], answer["overall_code"], "{answer}");
        assert_eq!(status["limit_remaining"], [2, 1, 0, 0, 0][index]);
        let limit = json!({"requests_per_unit": 3, "unit": HOUR, "name": "per-user"});
        assert_eq!(status["current_limit"], limit);
        let reset = &status["duration_until_reset"];
        let seconds = reset["seconds"].as_str().expect("64 bits are a text");
        let seconds: u64 = seconds.parse().expect("a number of seconds");
        assert!(seconds <= 3600 && reset["nanos"] == 0, "{answer}");
    }
}

#[test]
fn bad_requests_are_refused_by_the_field() {
    let (_policies, weir) = start();
    let refusals = run(&["bad", &weir.grpc.to_string()]);
    let refusals = refusals.as_array().expect("a list");
    assert_eq!(refusals.len(), 2);
    for (refusal, field) in refusals.iter().zip(["domain", "descriptor"]) {
        assert_eq!(refusal["code"], "INVALID_ARGUMENT", "{refusal}");
        let details = refusal["details"].as_str().expect("a text");
        assert!(details.contains(field), "{refusal}");
    }
}

#[test]
fn health_answers_for_the_server_and_the_service() {
    let (_policies, weir) = start();
    let states = run(&["health", &weir.grpc.to_string(), "", SERVICE, "no.such"]);
    let expected = json!({"": "SERVING", SERVICE: "SERVING", "no.such": "NOT_FOUND"});
    assert_eq!(states, expected);
}

#[test]
fn a_client_that_knows_nothing_asks_by_reflection() {
    let (_policies, weir) = start();
    let found = run(&["reflect", &weir.grpc.to_string(), "shop", "user", "ann"]);
    let services = found["services"].as_array().expect("a list");
    for service in [SERVICE, "grpc.health.v1.Health"] {
        assert!(services.contains(&service.into()), "{found}");
    }
    assert_eq!(found["request"], "envoy.service.ratelimit.v3.RateLimitRequest");
    assert_eq!(found["response"], "envoy.service.ratelimit.v3.RateLimitResponse");

    let mut answer = found["answer"].clone();
    let status = answer["statuses"][0].as_object_mut().expect("a status");
    let reset = status.remove("durationUntilReset");
    assert!(reset.is_some(), "{found}");
    let limit = json!({"name": "per-user", "requestsPerUnit": 3, "unit": "HOUR"});
    let status = json!({"code": "OK", "currentLimit": limit, "limitRemaining": 1});
    let expected = json!({"overallCode": "OK", "statuses": [status]});
    assert_eq!(answer, expected);
}

fn start() -> (PolicyDirectory, Weir) {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--store", "memory"]);
    (policies, weir)
}

fn ask_five_times(weir: &Weir, user: &str) -> Vec<Value> {
    let address = weir.grpc.to_string();
    let answers = run(&["ask", &address, "shop", "user", user, "5"]);
    let answers = answers.as_array().expect("a list").clone();
    assert_eq!(answers.len(), 5);
    answers
}

fn codes(answers: &[Value]) -> Vec<u64> {
    let mut codes = Vec::new();
    for answer in answers {
        codes.push(answer["overall_code"].as_u64().expect("a number"));
    }
    codes
}

/// Runs the client and reads what it reports.
fn run(arguments: &[&str]) -> Value {
    let output = python::run("client.py", arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}\n{stderr}");
    serde_json::from_slice(&output.stdout).expect("the client reports JSON")
}
