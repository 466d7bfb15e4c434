//! JSON Schemas (2020-12) of what operators write, so that editors complete and check it.
//!
//! They are made from the tables of keys that the readers use. A schema accepts everything that weir accepts; weir finds more
//! mistakes.

mod fragments;
mod policies;
mod settings;
mod test_files;
mod traffic;

use fragments::property;
use serde_json::{Map, Value, json};

use crate::Kind;

weir_engine::named! {
    /// The files that have a schema.
    pub enum Schema {
        /// Policy files.
        Policies = "policies",
        /// Settings files.
        Settings = "settings",
        /// Files of tests.
        Tests = "tests",
        /// Files of traffic.
        Traffic = "traffic",
    }
}

impl Schema {
    /// The schema itself.
    #[must_use]
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

/// A whole schema: the top-level value, and the definitions that it refers to.
fn document(title: &str, root: &Value, definitions: Map<String, Value>) -> Value {
    let mut document = root.clone();
    document["$schema"] = DIALECT.into();
    document["title"] = title.into();
    document["$defs"] = Value::Object(definitions);
    document
}

/// A mapping with the keys of a kind, each with its schema and description. A value may be null.
///
/// # Panics
/// If `of_key` has no schema of a key.
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
