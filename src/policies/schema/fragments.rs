//! Parts that the schemas share.

use serde_json::{Value, json};
use weir_engine::Unit;
use weir_text::duration_units;

use crate::SHORT_UNITS;

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// A schema that also accepts null.
pub(super) fn or_nothing(schema: &Value) -> Value {
    let nothing = json!({ "type": "null" });
    let is_choice = schema.as_object().is_some_and(|keywords| keywords.len() == 1);
    match schema.get("anyOf").and_then(Value::as_array).filter(|_| is_choice) {
        Some(choices) => {
            let all = [choices.as_slice(), &[nothing]].concat();
            json!({ "anyOf": all })
        }
        None => json!({ "anyOf": [schema, nothing] }),
    }
}

/// The schema of a key's value, or null, with the description that editors show.
pub(super) fn property(mut schema: Value, about: &str) -> Value {
    let default = schema.as_object_mut().and_then(|keywords| keywords.remove("default"));
    let mut property = or_nothing(&schema);
    property["description"] = about.into();
    if let Some(default) = default {
        property["default"] = default;
    }
    property
}

pub(super) fn or_default(mut schema: Value, default: impl Into<Value>) -> Value {
    schema["default"] = default.into();
    schema
}

/// A text. Unquoted numbers and booleans are accepted as text.
pub(super) fn text() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

/// A text of at most `max` bytes. A schema counts characters, so it accepts more.
pub(super) fn bounded_text(min: usize, max: usize) -> Value {
    json!({ "type": ["string", "number", "boolean"], "minLength": min, "maxLength": max })
}

pub(super) fn words(words: &[&str]) -> Value {
    json!({ "enum": words })
}

/// A boolean, or one of the boolean words of YAML 1.1. Editors read some of these words as texts.
pub(super) fn flag() -> Value {
    json!({
        "anyOf": [{ "type": "boolean" }, { "enum": ["yes", "no", "on", "off", "y", "n"] }],
        "default": false,
    })
}

/// A whole number, with or without `_` between its digits.
pub(super) fn number(min: u64, max: u64) -> Value {
    json!({ "anyOf": [
        { "type": "integer", "minimum": min, "maximum": max },
        { "type": "string", "pattern": "^[0-9]+(_[0-9]+)+$" },
    ] })
}

/// A length of time: `90s`, `1m30s`.
pub(super) fn length() -> Value {
    json!({ "type": "string", "pattern": format!("^{}$", length_pattern()) })
}

/// The pattern of a length of time, without `^` and `$`.
pub(super) fn length_pattern() -> String {
    format!("([0-9]+({}))+", duration_units().collect::<Vec<_>>().join("|"))
}

/// A rate in the short form: `10/s`, `5/90s`.
pub(super) fn rate() -> Value {
    let short = SHORT_UNITS.map(|(word, _)| word).join("|");
    let pattern = format!("^(0|[1-9][0-9_]*)/({short}|{}|{})$", unit_pattern(), length_pattern());
    json!({ "type": "string", "pattern": pattern, "examples": ["10/s", "120/min", "5/90s"] })
}

pub(super) fn unit() -> Value {
    let pattern = format!("^({})$", unit_pattern());
    json!({ "anyOf": [{ "enum": Unit::ALL.map(Unit::name) }, { "type": "string", "pattern": pattern }] })
}

fn unit_pattern() -> String {
    let any_case = |name: &str| -> String {
        name.chars().map(|letter| format!("[{letter}{}]", letter.to_ascii_uppercase())).collect()
    };
    Unit::ALL.map(Unit::name).map(any_case).join("|")
}

pub(super) fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

pub(super) fn bounded_list(items: &Value, min: usize, max: usize) -> Value {
    json!({ "type": "array", "items": items, "minItems": min, "maxItems": max })
}
