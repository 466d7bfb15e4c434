//! JSON Schemas (2020-12) of files that operators write. Editors use them to complete and check.
//!
//! The schemas are generated from the readers' tables of keys. A schema accepts everything that weir accepts; weir
//! finds more mistakes.

mod callers;
pub(super) mod fragments;
mod overlays;
mod policies;
mod settings;
mod test_files;
mod traffic;

use fragments::or_nothing;
use serde_json::{Map, Value, json};
use weir_engine::Algorithm;

use crate::Kind;
use crate::tables::limit;

weir_engine::named! {
    pub enum Schema {
        Callers = "callers",
        Overlays = "overlays",
        Policies = "policies",
        Settings = "settings",
        Tests = "tests",
        Traffic = "traffic",
    }
}

impl Schema {
    pub fn document(self) -> Value {
        match self {
            Self::Callers => callers::schema(),
            Self::Overlays => overlays::schema(),
            Self::Policies => policies::schema(),
            Self::Settings => settings::schema(),
            Self::Tests => test_files::schema(),
            Self::Traffic => traffic::schema(),
        }
    }
}

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A whole schema: the top-level value, and the definitions that it references.
fn document(title: &str, root: &Value, definitions: Map<String, Value>) -> Value {
    let mut document = root.clone();
    document["$schema"] = DIALECT.into();
    document["title"] = title.into();
    document["$defs"] = Value::Object(definitions);
    document
}

/// The schema of a mapping with the keys of its kind. A value may be null.
fn mapping(kind: &Kind) -> Value {
    let mut schema = json!({ "type": "object", "additionalProperties": false });
    for row in kind.keys {
        let (name, required) = (row.name, row.default == "required");
        let mut property = or_nothing(&(row.schema)());
        let mut about = plain(row.about);
        match row.default.strip_prefix('`').and_then(|default| default.strip_suffix('`')) {
            Some(default) => property["default"] = default.parse().unwrap_or_else(|_| default.into()),
            None if required || row.default == "none" => {}
            None => about.push_str(&format!(". Without it: {}", plain(row.default))),
        }
        if let Some(only) = &row.only {
            let algorithms: Vec<_> = only.algorithms().collect();
            about.push_str(&format!(". For {}", algorithms.join(", ")));
            push(&mut schema["allOf"], needs(name, &algorithms));
        }
        property["description"] = about.into();
        schema["properties"][name] = property;
        if required {
            push(&mut schema["required"], name.into());
        }
    }
    for ignored in kind.ignored {
        schema["properties"][*ignored] = json!({ "description": "read and ignored", "deprecated": true });
    }
    schema
}

/// Any value except null.
fn given() -> Value {
    json!({ "not": { "type": "null" } })
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        _ => *list = json!([item]),
    }
}

/// A text without the links and the marks of Markdown.
fn plain(text: &str) -> String {
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    plain.replace(['[', '`'], "")
}

/// The condition that a key needs one of these algorithms.
fn needs(key: &str, algorithms: &[&str]) -> Value {
    // A limit without an algorithm, or with null, has this algorithm.
    let has_default = algorithms.contains(&Algorithm::FIXED_WINDOW.name());
    let mut then = if has_default { json!({}) } else { json!({ "required": [limit::ALGORITHM.name] }) };
    let nothing = has_default.then_some(Value::Null);
    let known: Vec<Value> = algorithms.iter().map(|name| (*name).into()).chain(nothing).collect();
    then["properties"] = json!({ limit::ALGORITHM.name: { "enum": known } });
    let not_given = json!({ "enum": [null, false, "no", "off", "n", []] });
    json!({ "if": { "required": [key], "properties": { key: { "not": not_given } } }, "then": then })
}
