//! The schema of files of tests.

use serde_json::{Map, Value, json};

use super::fragments::{length_pattern, or_nothing, reference, short_form, words};
use super::{document, mapping, settings};
use crate::test_file::keys::{case, descriptor, entry, expectation, file, status, step};
use crate::test_file::{ACTIONS, Verdict};

pub(super) fn schema() -> Value {
    let mut definitions = Map::new();
    let mut define = |name: &str, schema: Value| definitions.insert(name.to_owned(), schema);
    let mut of_step = mapping(&step::KIND);
    of_step["oneOf"] = ACTIONS.map(|key| json!({ "required": [key] })).into();
    define("case", mapping(&case::KIND));
    define("step", of_step);
    define("expectation", mapping(&expectation::KIND));
    define("status_in_full", mapping(&status::KIND));
    define("policies", policies());
    define("status", json!({ "anyOf": [words(&Verdict::NAMES), reference("status_in_full")] }));
    define("range", range());
    define("lengths", lengths());
    add_request(&mut definitions);
    document("Tests of policies, for weir test", &mapping(&file::KIND), definitions)
}

/// Adds what files of tests and of traffic have in common.
pub(super) fn add_request(definitions: &mut Map<String, Value>) {
    let mut define = |name: &str, schema: Value| definitions.insert(name.to_owned(), schema);
    define("settings", settings::of_tests());
    define("descriptor", json!({ "anyOf": [short_form(), reference("descriptor_in_full")] }));
    define("descriptor_in_full", mapping(&descriptor::KIND));
    define("entry", mapping(&entry::KIND));
}

/// A path, or a mapping of file names to texts.
fn policies() -> Value {
    or_nothing(
        &json!({ "anyOf": [{ "type": "string" }, { "type": "object", "additionalProperties": { "type": "string" } }] }),
    )
}

pub(super) fn range() -> Value {
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
