//! The schema of files of traffic.

use serde_json::{Map, Value, json};

use super::fragments::{bounded_list, length, length_pattern, list, number, or_default, rate, reference, text, words};
use super::test_files::{instant, of_descriptor, of_entry, of_request, short_form};
use super::{document, mapping, settings};
use crate::traffic_file::{Arrivals, KEYS_MAX, KINDS, SOURCES_MAX, TimeFormat};

type Described = (Value, &'static str);

pub(super) fn schema() -> Value {
    let [file, source, access_log, descriptor, entry] = KINDS;
    let mut definitions = Map::new();
    let mut define = |name: &str, schema: Value| definitions.insert(name.to_owned(), schema);
    let mut of_source = mapping(source, |key| of_asked(key).or_else(|| of_source(key)));
    of_source["required"] = json!(["ask", "rate"]);
    define("source", of_source);
    let mut log = mapping(access_log, |key| of_log(key).or_else(|| of_asked(key)));
    log["required"] = json!(["file", "time", "ask"]);
    define("access_log", log);
    define("descriptor_in_full", mapping(descriptor, of_descriptor));
    define("entry", mapping(entry, of_entry));
    define("settings", settings::of_tests());
    define("descriptor", json!({ "anyOf": [short_form(), reference("descriptor_in_full")] }));
    let mut root = mapping(file, of_file);
    root["anyOf"] = json!([{ "required": ["sources", "duration"] }, { "required": ["access_log"] }]);
    let given = json!({ "not": { "type": "null" } });
    root["not"] = json!({
        "required": ["sources", "access_log"],
        "properties": { "sources": given, "access_log": given },
    });
    document("Traffic, for weir simulate and weir diff", &root, definitions)
}

fn of_file(key: &str) -> Option<Described> {
    Some(match key {
        "duration" => (length(), "How long the sources send"),
        "start" => (instant(), "When they begin. Without it, on Monday, 2040-01-02T00:00:00Z"),
        "seed" => (or_default(number(0, u32::MAX.into()), 0), "What all random numbers follow from"),
        "domain" => (text(), "The domain of requests that have none of their own"),
        "settings" => (reference("settings"), "Settings that answers depend on"),
        "rows" => (text(), "The path of a file of rows below the directory of the file, or its lines after a |"),
        "sources" => (bounded_list(&reference("source"), 1, SOURCES_MAX), "Where requests come from"),
        "access_log" => (reference("access_log"), "A log of JSON lines, and what its fields mean"),
        _ => return None,
    })
}

/// The keys that sources and access logs share.
fn of_asked(key: &str) -> Option<Described> {
    let ask = || json!({ "anyOf": [reference("descriptor"), list(&reference("descriptor"))] });
    match key {
        "ask" => Some((ask(), "The descriptors of each request")),
        "domain" => Some((text(), "The domain of its requests. Without it, that of the file")),
        _ => of_request(key),
    }
}

fn of_source(key: &str) -> Option<Described> {
    Some(match key {
        "rate" => (rate(), "How many requests per how long, such as 10/s"),
        "arrivals" => (or_default(words(&Arrivals::NAMES), Arrivals::NAMES[0]), "How requests follow each other"),
        "burst" => (number(1, u32::MAX.into()), "The requests of a burst, for arrivals: bursts"),
        "lasts" => (
            spread(),
            "How long an admitted request takes until it settles its holds and permits, such as 5s or 1s..10s. Without it, it never does",
        ),
        "from" => (length(), "When it begins, after the start"),
        "until" => (length(), "When it ends, after the start"),
        "keys" => (
            or_default(number(1, KEYS_MAX.into()), 1),
            "How many keys it has, all equally frequent: <n> in ask is the number of one",
        ),
        _ => return None,
    })
}

/// One length, or the shortest and the longest.
fn spread() -> Value {
    let one = length_pattern();
    json!({ "type": "string", "pattern": format!("^{one}( *\\.\\. *{one})?$"), "examples": ["5s", "1s..10s"] })
}

fn of_log(key: &str) -> Option<Described> {
    Some(match key {
        "file" => (text(), "The path of the log, below the directory of this file"),
        "time" => (text(), "The field that has the time, such as start_time"),
        "hits" => (
            json!({ "anyOf": [number(1, u32::MAX.into()), { "type": "string", "pattern": "^[^-+.0-9]" }] }),
            "What each request costs: a number, or the field of the log that has it",
        ),
        "time_format" => (or_default(words(&TimeFormat::NAMES), TimeFormat::NAMES[0]), "How the log writes times"),
        _ => return None,
    })
}
