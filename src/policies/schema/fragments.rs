//! Parts that the schemas share.

use serde_json::{Map, Value, json};
use weir_engine::{Days, Unit};
use weir_settings::LOG_LEVELS;
use weir_text::duration_units;

use crate::{Code, SHORT_UNITS};

pub(crate) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// A schema that also accepts null.
pub(crate) fn or_nothing(schema: &Value) -> Value {
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

/// A text. Unquoted numbers and booleans are accepted as text.
pub(crate) fn text() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

/// A text of at most `max` bytes. A schema counts characters, so it accepts more.
pub(crate) fn bounded_text(min: usize, max: usize) -> Value {
    json!({ "type": ["string", "number", "boolean"], "minLength": min, "maxLength": max })
}

pub(crate) fn words(words: &[&str]) -> Value {
    json!({ "enum": words })
}

/// A boolean, or one of the boolean words of YAML 1.1. Editors read some of these words as texts.
pub(crate) fn flag() -> Value {
    json!({
        "anyOf": [{ "type": "boolean" }, { "enum": ["yes", "no", "on", "off", "y", "n"] }],
        "default": false,
    })
}

/// A whole number, with or without `_` between its digits.
pub(crate) fn number(min: u64, max: u64) -> Value {
    json!({ "anyOf": [
        { "type": "integer", "minimum": min, "maximum": max },
        { "type": "string", "pattern": "^[0-9]+(_[0-9]+)+$" },
    ] })
}

/// A length of time: `90s`, `1m30s`.
pub(crate) fn length() -> Value {
    json!({ "type": "string", "pattern": format!("^{}$", length_pattern()) })
}

/// The pattern of a length of time, without `^` and `$`.
pub(crate) fn length_pattern() -> String {
    format!("([0-9]+({}))+", duration_units().collect::<Vec<_>>().join("|"))
}

/// A rate in the short form: `10/s`, `5/90s`.
pub(crate) fn rate() -> Value {
    let short = SHORT_UNITS.map(|(word, _)| word).join("|");
    let pattern = format!("^(0|[1-9][0-9_]*)/({short}|{}|{})$", unit_pattern(), length_pattern());
    json!({ "type": "string", "pattern": pattern, "examples": ["10/s", "120/min", "5/90s"] })
}

pub(crate) fn unit() -> Value {
    let pattern = format!("^({})$", unit_pattern());
    json!({ "anyOf": [{ "enum": Unit::ALL.map(Unit::name) }, { "type": "string", "pattern": pattern }] })
}

fn unit_pattern() -> String {
    Unit::ALL.map(Unit::name).map(any_case).join("|")
}

/// The pattern of a word in capital or small letters.
fn any_case(word: &str) -> String {
    word.chars().map(|letter| format!("[{letter}{}]", letter.to_ascii_uppercase())).collect()
}

/// Levels of the log between commas, each alone or behind a target. YAML 1.1 reads `off` as a boolean. The targets of spans
/// are not checked.
pub(crate) fn log_levels() -> Value {
    let level = LOG_LEVELS.map(any_case).join("|");
    let one = format!("({level}|[-.:_a-zA-Z0-9]*=({level}|[0-5])?|[^,]*\\[.*)");
    json!({ "type": ["string", "boolean"], "pattern": format!("^{one}(,{one})*$") })
}

pub(crate) fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

pub(crate) fn bounded_list(items: &Value, min: usize, max: usize) -> Value {
    json!({ "type": "array", "items": items, "minItems": min, "maxItems": max })
}

pub(crate) fn allowed_warnings() -> Value {
    let reason = json!({ "type": ["string", "number", "boolean"], "minLength": 1 });
    let names = Code::allowable().map(|code| (code.name().to_owned(), reason.clone()));
    json!({ "type": "object", "properties": names.collect::<Map<_, _>>(), "additionalProperties": false })
}

pub(crate) fn instant() -> Value {
    // A date, or a date and a time with `Z`, an offset, a time zone, or an offset and a time zone.
    let pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}($|.*[Zz\\]]$|[Tt ].*[+-][0-9:]+$)";
    json!({ "type": "string", "pattern": pattern, "examples": ["2026-12-01", "2026-12-01T08:00:00+01:00", "2026-12-01T08:00[Europe/Berlin]"] })
}

/// A span of the week: `Sun 02:00-06:00 Europe/Berlin`.
pub(crate) fn span() -> Value {
    let day = Days::NAMES.map(|day| any_case(&day.to_lowercase())).join("|");
    let range = format!("({day})(-({day}))?");
    let time = "([01][0-9]|2[0-4]):[0-5][0-9]";
    let pattern = format!("^(({range}(,{range})*|{}) )?{time}-{time}( [^ ]+)?$", any_case("daily"));
    json!({ "type": "string", "pattern": pattern, "examples": ["Sun 02:00-06:00 Europe/Berlin", "Mon-Fri 22:00-06:00", "Sat,Sun 00:00-24:00"] })
}

pub(crate) fn any_instant() -> Value {
    json!({ "type": "string", "examples": ["2040-03-25T00:30[Europe/Berlin]"] })
}

/// The entries of a descriptor, `user=ann,path=/pay`.
pub(crate) fn short_form() -> Value {
    json!({ "type": "string", "pattern": "=" })
}
