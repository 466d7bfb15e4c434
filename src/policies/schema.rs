//! JSON Schemas (2020-12) of files that operators write. Editors use them to complete and check.
//!
//! The schemas are generated from the readers' tables of keys. A schema accepts everything that weir accepts; weir
//! finds more mistakes.

mod fragments;
mod policies;
mod settings;
mod test_files;
mod traffic;

use fragments::property;
use serde_json::{Map, Value, json};

use crate::Kind;

weir_engine::named! {
    pub enum Schema {
        Policies = "policies",
        Settings = "settings",
        Tests = "tests",
        Traffic = "traffic",
    }
}

impl Schema {
    pub fn document(self) -> Value {
        match self {
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

/// The schema of a mapping: the keys of its kind, each with schema and description. A value may be null.
/// Panics if `of_key` returns no schema for a key.
fn mapping(kind: &Kind, of_key: impl Fn(&str) -> Option<(Value, &'static str)>) -> Value {
    let mut properties = Map::new();
    for key in kind.keys {
        let Some((schema, about)) = of_key(key.name) else { panic!("the schema has no {} of {}", key.name, kind.name) };
        let about = match &key.only {
            None => about.to_owned(),
            Some(only) => format!("{about}. For {}", only.algorithms().collect::<Vec<_>>().join(", ")),
        };
        properties.insert(key.name.to_owned(), property(schema, &about));
    }
    for ignored in kind.ignored {
        properties.insert((*ignored).to_owned(), json!({ "description": "read and ignored", "deprecated": true }));
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}
