//! The schema of files of tests.

use serde_json::{Map, Value, json};
use weir_engine::Algorithm;
use weir_engine::words::IN_FLIGHT;

use super::fragments::{
    bounded_list, bounded_text, flag, length, length_pattern, list, number, or_default, or_nothing, rate, reference,
    text, words,
};
use super::{document, mapping, settings};
use crate::test_file::{ASKS_MAX, CALLERS_MAX, CASES_MAX, KINDS, STEPS_MAX, Verdict};
use crate::{Kind, NAME_BYTES_MAX};

type Described = (Value, &'static str);

pub(super) fn schema() -> Value {
    let [file, case, step, descriptor, entry, expect, status] = KINDS;
    let mut definitions = Map::new();
    let mut define = |name: &str, schema: Value| definitions.insert(name.to_owned(), schema);
    define("case", case_schema(case));
    define("step", step_schema(step));
    define("descriptor_in_full", mapping(descriptor, of_descriptor));
    define("entry", mapping(entry, of_entry));
    define("expectation", mapping(expect, |key| of_expectation(key).or_else(|| of_status(key))));
    define("status_in_full", mapping(status, of_status));
    define("policies", policies());
    define("settings", settings::of_tests());
    define("descriptor", json!({ "anyOf": [short_form(), reference("descriptor_in_full")] }));
    define("status", json!({ "anyOf": [words(&Verdict::NAMES), reference("status_in_full")] }));
    define("range", range());
    define("lengths", lengths());
    let mut root = mapping(file, |key| match key {
        "cases" => Some((bounded_list(&reference("case"), 1, CASES_MAX), "What is tested")),
        _ => of_file_or_case(key),
    });
    root["required"] = json!(["cases"]);
    document("Tests of policies, for weir test", &root, definitions)
}

fn case_schema(kind: &Kind) -> Value {
    let mut schema = mapping(kind, |key| match key {
        "name" => Some((bounded_text(1, NAME_BYTES_MAX), "What is tested; different for each case of a file")),
        "at" => Some((instant(), "When it begins. Without it, on Monday, 2040-01-02T00:00:00Z")),
        "steps" => Some((bounded_list(&reference("step"), 1, STEPS_MAX), "What happens, from an empty store on")),
        _ => of_file_or_case(key),
    });
    schema["required"] = json!(["name", "steps"]);
    schema
}

fn of_file_or_case(key: &str) -> Option<Described> {
    Some(match key {
        "policies" => (reference("policies"), "A path below the directory of the file, or texts by names of files"),
        "domain" => (text(), "The domain of requests that have none of their own"),
        "settings" => (reference("settings"), "Settings that answers depend on"),
        "rows" => (text(), "The path of a file of rows below the directory of the file, or its lines after a |"),
        _ => return None,
    })
}

fn step_schema(kind: &Kind) -> Value {
    let mut schema = mapping(kind, |key| of_step(key).or_else(|| of_request(key)));
    let actions = ["ask", "wait", "at", "swap", "rows"].map(|key| json!({ "required": [key] }));
    schema["oneOf"] = actions.into();
    schema
}

fn of_step(key: &str) -> Option<Described> {
    let ask = json!({ "anyOf": [reference("descriptor"), list(&reference("descriptor"))] });
    let [ok, over] = Verdict::NAMES;
    let expect = json!({ "anyOf": [words(&[ok, over, "refused"]), reference("expectation")] });
    Some(match key {
        "ask" => (ask, "The descriptors of a request"),
        "domain" => (text(), "The domain of the request. Without it, that of the case"),
        "times" => (or_default(number(1, ASKS_MAX), 1), "How often it is sent, one right after the other"),
        "callers" => {
            (or_default(number(1, CALLERS_MAX.into()), 1), "How many callers send it; <n> is the number of the caller")
        }
        "every" => (length(), "How much later each round begins than the one before"),
        "lasts" => (
            length(),
            "How long an admitted request takes until it settles its holds and permits. Without it, it never does",
        ),
        "used" => (
            number(0, u32::MAX.into()),
            "The hits that each descriptor has used when it settles. Without it, those that it asked for",
        ),
        "for" => (length(), "How long all rounds take"),
        "expect" => (expect, "What the answers must be; refused after a swap"),
        "wait" => (length(), "How much time passes"),
        "at" => (instant(), "The instant to which the clock goes on"),
        "swap" => (reference("policies"), "Policies that are put in force"),
        "rows" => (text(), "Rows that are set: the path of their file, or its lines after a |"),
        "state" => {
            (or_default(words(&["kept", "forgotten"]), "kept"), "What becomes of states when policies are swapped")
        }
        _ => return None,
    })
}

/// The keys that requests and descriptors share.
pub(super) fn of_request(key: &str) -> Option<Described> {
    Some(match key {
        "hits" => (number(0, u32::MAX.into()), "What it costs"),
        "refund" => (flag(), "The hits are given back"),
        "look" => (flag(), "The request costs nothing"),
        "limit" => (rate(), "A limit that the request brings along, in place of the rules"),
        _ => return None,
    })
}

pub(super) fn of_descriptor(key: &str) -> Option<Described> {
    match key {
        "descriptor" => Some((short_form(), "Its entries, such as user=ann,path=/pay")),
        "entries" => Some((list(&reference("entry")), "Its entries, each with key and value")),
        _ => of_request(key),
    }
}

pub(super) fn of_entry(key: &str) -> Option<Described> {
    match key {
        "key" => Some((text(), "The key")),
        "value" => Some((text(), "The value")),
        _ => None,
    }
}

fn of_expectation(key: &str) -> Option<Described> {
    let headers = || json!({ "type": "object", "additionalProperties": text() });
    let [ok, over] = Verdict::NAMES;
    Some(match key {
        "error" => (text(), "The message that the request gets in place of an answer"),
        "passed" => (reference("range"), "How many requests of the step pass"),
        "denied" => (reference("range"), "How many requests of the step are denied"),
        "retry_after" => (reference("lengths"), "When the denied request would pass; none where no wait helps"),
        "delay" => (reference("lengths"), "How long an admitted request waits for its turn"),
        "headers" => (headers(), "Headers for the client of the caller; none for one that must not be there"),
        "request_headers" => (headers(), "Headers for the request; none for one that must not be there"),
        "trial" => (words(&[ok, over, "none"]), "What limits with shadow: true say; none where the request meets none"),
        "metadata" => (json!({ "type": "object" }), "The whole dynamic metadata of the response"),
        "statuses" => (list(&reference("status")), "What is expected of each descriptor, in their order"),
        _ => return None,
    })
}

fn of_status(key: &str) -> Option<Described> {
    Some(match key {
        "answer" => (words(&Verdict::NAMES), "Whether the request may pass"),
        "rule" => (text(), "The path of the rule that the descriptor meets; none for no rule"),
        "limit" => {
            let in_flight = json!({ "type": "string", "pattern": format!("^[0-9]+ *{IN_FLIGHT}$") });
            let limit = json!({ "anyOf": [rate(), in_flight, words(&["none"])] });
            (limit, "The limit that the status speaks of, such as 3/hour or 3 in flight; none for no limit")
        }
        "name" => (text(), "The name of that limit, or none"),
        "algorithm" => (words(&Algorithm::NAMES), "The algorithm of that limit"),
        "remaining" => (reference("range"), "How many hits it would admit now"),
        "reset" => (reference("lengths"), "Over: until the request would fit; else until the state is empty"),
        _ => return None,
    })
}

pub(super) fn short_form() -> Value {
    json!({ "type": "string", "pattern": "=" })
}

pub(super) fn instant() -> Value {
    json!({ "type": "string", "examples": ["2040-03-25T00:30[Europe/Berlin]"] })
}

/// A path, or a mapping of file names to texts.
fn policies() -> Value {
    or_nothing(
        &json!({ "anyOf": [{ "type": "string" }, { "type": "object", "additionalProperties": { "type": "string" } }] }),
    )
}

fn range() -> Value {
    let pattern = "^(((<=|>=) *)?[0-9_]+|[0-9_]+ *\\.\\. *[0-9_]+)$";
    json!({ "anyOf": [
        { "type": "integer", "minimum": 0 },
        { "type": "string", "pattern": pattern, "examples": ["<= 3", ">= 3", "1..3"] },
    ] })
}

fn lengths() -> Value {
    let one = length_pattern();
    let pattern = format!("^(none|((<=|>=) *)?{one}|{one} *\\.\\. *{one})$");
    json!({ "type": "string", "pattern": pattern, "examples": ["1m30s", "<= 1h", "5s..10s", "none"] })
}
