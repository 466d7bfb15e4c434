//! The schema of policy files.

use serde_json::{Map, Value, json};
use weir_engine::automaton::REGEX_BYTES_MAX;
use weir_engine::policy::LIMITS_PER_RULE_MAX;
use weir_engine::{Algorithm, Mode, OnError, SHARES_MAX};

use super::fragments::{
    bounded_list, bounded_text, flag, length, list, number, or_default, rate, reference, text, unit, words,
};
use super::{document, mapping};
use crate::{
    Code, DOMAIN_BYTES_MAX, FORMS, KEY_BYTES_MAX, KINDS, Kind, NAME_BYTES_MAX, REPLACES_MAX, VALUE_BYTES_MAX,
    VALUES_MAX,
};

pub(super) fn schema() -> Value {
    let [file, descriptor, limit, replaced, rows] = KINDS;
    let mut definitions = Map::new();
    definitions.insert("descriptor".to_owned(), descriptor_schema(descriptor));
    let of_rows = |key: &str| {
        (key == "default").then(|| (bounded_text(1, NAME_BYTES_MAX), "The plan of descriptors without a row"))
    };
    definitions.insert("rows".to_owned(), required(mapping(rows, of_rows), &["default"]));
    definitions.insert("limit".to_owned(), json!({ "anyOf": [rate(), reference("limit_in_full")] }));
    definitions.insert("limit_in_full".to_owned(), limit_schema(limit));
    let of_replaced = |key: &str| {
        (key == "name").then(|| (bounded_text(1, NAME_BYTES_MAX), "The name of a limit of any rule of the domain"))
    };
    definitions.insert("replaced".to_owned(), required(mapping(replaced, of_replaced), &["name"]));
    document("A policy file of weir", &required(mapping(file, of_file), &["domain"]), definitions)
}

fn required(mut schema: Value, keys: &[&str]) -> Value {
    schema["required"] = json!(keys);
    schema
}

fn of_file(key: &str) -> Option<(Value, &'static str)> {
    Some(match key {
        "domain" => (bounded_text(1, DOMAIN_BYTES_MAX), "The name that requests use"),
        "charging" => (
            words(&Mode::NAMES),
            "Whether a denied request is charged nowhere (atomic), or each limit charges by itself (independent). Without it, \
             the setting of that name",
        ),
        "on_error" => (
            words(&OnError::NAMES),
            "What happens to requests when the store does not answer. Without it, the setting of that name",
        ),
        "allow_warnings" => {
            (allowed_warnings(), "Warnings about the file and its domain that are not mistakes, each with the reason")
        }
        "descriptors" => {
            (list(&reference("descriptor")), "What is limited, by the first entry of a request's descriptor")
        }
        _ => return None,
    })
}

fn allowed_warnings() -> Value {
    let reason = json!({ "type": ["string", "number", "boolean"], "minLength": 1 });
    let names = Code::allowable().map(|code| (code.name().to_owned(), reason.clone()));
    json!({ "type": "object", "properties": names.collect::<Map<_, _>>(), "additionalProperties": false })
}

fn descriptor_schema(kind: &Kind) -> Value {
    let mut schema = required(mapping(kind, of_descriptor), &["key"]);
    let one_or_many = json!({
        "required": ["rate_limit", "rate_limits"],
        "properties": { "rate_limit": given() },
    });
    let mut refused = vec![one_or_many];
    for (i, one) in FORMS.iter().enumerate() {
        let with = |other: &&str| json!({ "required": [one, other], "properties": { *one: given(), *other: given() } });
        refused.extend(FORMS[..i].iter().map(with));
    }
    schema["not"] = json!({ "anyOf": refused });
    schema
}

/// Any value except null.
fn given() -> Value {
    json!({ "not": { "type": "null" } })
}

fn of_descriptor(key: &str) -> Option<(Value, &'static str)> {
    Some(match key {
        "key" => (bounded_text(1, KEY_BYTES_MAX), "The key of an entry"),
        "value" => (bounded_text(0, VALUE_BYTES_MAX), "Its value; a * stands for any text. Without it, any value"),
        "values" => {
            let mut value = bounded_text(0, VALUE_BYTES_MAX);
            // A wildcard needs its own descriptor.
            value["pattern"] = "^[^*]*$".into();
            (bounded_list(&value, 1, VALUES_MAX), "Values, any of which matches; in place of value")
        }
        "cidr" => (
            json!({ "anyOf": [
                { "type": "string", "minLength": 1 },
                bounded_list(&json!({ "type": "string", "minLength": 1 }), 1, VALUES_MAX),
            ] }),
            "A network such as 10.0.0.0/8, or a list of them, which the value is in; in place of value",
        ),
        "regex" => {
            (bounded_text(1, REGEX_BYTES_MAX), "A regular expression that the whole value matches; in place of value")
        }
        "rate_limit" => (reference("limit"), "One limit: a mapping, or a short form such as 10/s"),
        "rate_limits" => (bounded_list(&reference("limit"), 1, LIMITS_PER_RULE_MAX), "Limits, all of which apply"),
        "shadow_mode" => (flag(), "The limits count and report, and never deny"),
        "quota_mode" => (flag(), "The limits are quotas: a request is denied when all of its quotas are over"),
        "on_error" => (
            words(&OnError::NAMES),
            "What happens to requests for these limits when the store does not answer. Without it, what the domain says",
        ),
        "share_threshold" => (flag(), "All values that match the * share one state"),
        "detailed_metric" => (flag(), "Statistics of this rule are named by the values of the request"),
        "value_to_metric" => (
            flag(),
            "The request's value stands in place of the rule's in names of statistics, of this rule and of those below",
        ),
        "metadata" => (json!({ "type": "object" }), "Metadata for responses to requests that pass"),
        "rows" => (reference("rows"), "Each descriptor of this rule can have a row, with a plan or numbers of its own"),
        "allow_warnings" => {
            (allowed_warnings(), "Warnings about this descriptor that are not mistakes, each with the reason")
        }
        "descriptors" => (list(&reference("descriptor")), "Rules for the next entry of the request's descriptor"),
        _ => return None,
    })
}

fn limit_schema(kind: &Kind) -> Value {
    let mut schema = mapping(kind, of_limit);
    let having = |keys: &[&str]| json!({ "required": keys });
    schema["anyOf"] = ["rate", "unit", "window", "unlimited"].map(|key| having(&[key])).into();
    let twice = [["rate", "unit"], ["rate", "window"], ["rate", "requests_per_unit"], ["unit", "window"]];
    schema["not"] = json!({ "anyOf": twice.map(|keys| having(&keys)) });
    schema["allOf"] = kind
        .keys
        .iter()
        .filter_map(|key| Some(only(key.name, &key.only.as_ref()?.algorithms().collect::<Vec<_>>())))
        .collect();
    schema
}

fn of_limit(key: &str) -> Option<(Value, &'static str)> {
    let most = u64::from(u32::MAX);
    Some(match key {
        "unit" => (unit(), "Per how long"),
        "requests_per_unit" => (number(0, most), "How many; 0 denies everything"),
        "window" => (length(), "Per how long, in place of unit, such as 90s or 1m30s"),
        "rate" => (rate(), "How many per how long, in place of unit, window and requests_per_unit"),
        "algorithm" => (or_default(words(&Algorithm::NAMES), Algorithm::FIXED_WINDOW.name()), "How hits are counted"),
        "burst" => (number(0, most), "The most hits at one instant. Without it, as many as requests_per_unit"),
        "refill" => (
            or_default(words(&["continuous", "interval"]), "continuous"),
            "Whether the bucket is refilled at a steady rate, or with all hits of a period at its end",
        ),
        "precision" => {
            (length(), "The length of a sub-bucket, which divides the window. Without it, a 60th of the window")
        }
        "anchor" => (
            or_default(words(&["clock", "first_hit"]), "clock"),
            "Whether windows begin at multiples of their length since 1970, or with a first hit",
        ),
        "calendar" => (flag(), "Windows are local days, weeks from Monday, months or years"),
        "timezone" => (or_default(text(), "UTC"), "The IANA name of the calendar's time zone"),
        "shadow" => {
            (flag(), "On trial beside the other limits: counts and reports, never denies, and is not shown to callers")
        }
        "from" => (instant(), "When the limit begins; before that it is not there"),
        "until" => (instant(), "When the limit ends; from then on it is not there"),
        "drain" => (flag(), "A denied request takes what is left"),
        "post_paid" => (flag(), "Hits are usage that has happened, and are always charged"),
        "hold" => (flag(), "Hits are an estimate, which the caller settles by its receipt"),
        "alert_at" => {
            let percent = json!({ "type": "integer", "minimum": 1, "maximum": 100 });
            (bounded_list(&percent, 0, SHARES_MAX), "Percents of the limit, rising, at which its use is reported")
        }
        "lease" => (length(), "For how long a replica may admit by hits of a hot key that it took ahead: 10ms to 1s"),
        "plans" => (
            json!({ "type": "object", "additionalProperties": {
                "anyOf": [{ "enum": ["unlimited"] }, rate()],
            } }),
            "Other numbers under the plans that rows name: a rate, or unlimited",
        ),
        "unlimited" => (flag(), "Passes everything and counts nothing"),
        "name" => (bounded_text(0, NAME_BYTES_MAX), "For people, for replaces, and to distinguish limits of one list"),
        "replaces" => (
            bounded_list(&reference("replaced"), 0, REPLACES_MAX),
            "In one request, limits of these names are left out",
        ),
        _ => return None,
    })
}

fn instant() -> Value {
    // A date, or a date and a time with `Z`, an offset, a time zone, or an offset and a time zone.
    let pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}($|.*[Zz\\]]$|[Tt ].*[+-][0-9:]+$)";
    json!({ "type": "string", "pattern": pattern, "examples": ["2026-12-01", "2026-12-01T08:00:00+01:00", "2026-12-01T08:00[Europe/Berlin]"] })
}

/// The condition that a key needs one of these algorithms.
fn only(key: &str, algorithms: &[&str]) -> Value {
    // A limit without an algorithm, or with null, has this algorithm.
    let has_default = algorithms.contains(&Algorithm::FIXED_WINDOW.name());
    let mut then = if has_default { json!({}) } else { json!({ "required": ["algorithm"] }) };
    let nothing = has_default.then_some(Value::Null);
    let known: Vec<Value> = algorithms.iter().map(|name| (*name).into()).chain(nothing).collect();
    then["properties"] = json!({ "algorithm": { "enum": known } });
    let not_given = json!({ "enum": [null, false, "no", "off", "n", []] });
    json!({ "if": { "required": [key], "properties": { key: { "not": not_given } } }, "then": then })
}
