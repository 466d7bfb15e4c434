//! The schema of settings files.

use serde_json::{Map, Value, json};
use weir_settings::{Kind, Preset, SETTINGS, Setting};

use super::document;
use super::fragments::{bounded_text, flag, length, log_levels, reference, text, words};
use crate::test_file::setting_names;

pub(super) fn schema() -> Value {
    let definitions = SETTINGS.iter().map(|setting| (setting.name.to_owned(), of_setting(setting)));
    let names = SETTINGS.iter().map(|setting| setting.name);
    let root = groups(names, &|name| reference(name));
    document("Settings of weir", &root, definitions.collect())
}

pub(super) fn of_tests() -> Value {
    let of_name = |name: &str| Setting::find(name).map_or(Value::Bool(true), of_setting);
    groups(setting_names(), &of_name)
}

/// Nested mappings of dotted names. At the top, each whole name is a key too.
fn groups<'n>(names: impl Iterator<Item = &'n str>, of_name: &dyn Fn(&str) -> Value) -> Value {
    let mut root = group();
    for name in names {
        root["properties"][name] = of_name(name);
        let mut at = &mut root;
        let mut parts: Vec<&str> = name.split('.').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let below = &mut at["properties"][part];
            if below.is_null() {
                *below = group();
            }
            at = below;
        }
        at["properties"][last] = of_name(name);
    }
    root
}

fn group() -> Value {
    json!({ "type": ["object", "null"], "properties": Map::new(), "additionalProperties": false })
}

fn of_setting(setting: &Setting) -> Value {
    let mut schema = of_kind(&setting.kind);
    schema["description"] = format!("{} ({})", setting.about, setting.bounds()).into();
    if let Preset::Is(text) = setting.default {
        schema["default"] = match setting.kind {
            Kind::Integer { .. } | Kind::Fraction => text.parse().unwrap_or_else(|_| text.into()),
            _ => text.into(),
        };
    }
    schema
}

/// The schema of a kind of value. weir checks more.
fn of_kind(kind: &Kind) -> Value {
    match *kind {
        Kind::Switch => flag(),
        Kind::Choice(known) => words(known),
        Kind::Integer { min, max, .. } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Fraction => json!({ "type": ["number", "string"], "minimum": 0, "maximum": 1 }),
        Kind::Duration { .. } => length(),
        Kind::LogLevel => log_levels(),
        Kind::Name { bytes_max } | Kind::KeyPrefix { bytes_max } | Kind::UrlPath { bytes_max } => {
            bounded_text(0, bytes_max)
        }
        _ => text(),
    }
}
