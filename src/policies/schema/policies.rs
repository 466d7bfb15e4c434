//! The schema of policy files.

use serde_json::{Map, Value, json};

use super::fragments::{rate, reference};
use super::{document, given, mapping};
use crate::tables::{FORMS, amount, descriptor, file, hold, limit, numbers, replaced, rows, weigh};

pub(super) fn schema() -> Value {
    let mut definitions = Map::new();
    definitions.insert("descriptor".to_owned(), descriptor_schema());
    definitions.insert("rows".to_owned(), mapping(&rows::KIND));
    definitions.insert("limit".to_owned(), json!({ "anyOf": [rate(), reference("limit_in_full")] }));
    definitions.insert("limit_in_full".to_owned(), limit_schema());
    definitions.insert("amount".to_owned(), mapping(&amount::KIND));
    definitions.insert("hold".to_owned(), mapping(&hold::KIND));
    definitions.insert("replaced".to_owned(), mapping(&replaced::KIND));
    definitions.insert("request_numbers".to_owned(), mapping(&numbers::KIND));
    definitions.insert("weigh".to_owned(), mapping(&weigh::KIND));
    document("A policy file of weir", &mapping(&file::KIND), definitions)
}

fn descriptor_schema() -> Value {
    let (one, many) = (descriptor::RATE_LIMIT.name, descriptor::RATE_LIMITS.name);
    let mut refused = vec![json!({ "required": [one, many], "properties": { one: given() } })];
    for (i, one) in FORMS.into_iter().enumerate() {
        let with = |other: &&str| json!({ "required": [one, other], "properties": { one: given(), *other: given() } });
        refused.extend(FORMS[..i].iter().map(with));
    }
    let mut schema = mapping(&descriptor::KIND);
    schema["not"] = json!({ "anyOf": refused });
    schema
}

fn limit_schema() -> Value {
    let [rate, unit, window] = [limit::RATE.name, limit::UNIT.name, limit::WINDOW.name];
    let having = |keys: &[&str]| json!({ "required": keys });
    let mut schema = mapping(&limit::KIND);
    schema["anyOf"] = [rate, unit, window, limit::UNLIMITED.name].map(|key| having(&[key])).into();
    let twice = [[rate, unit], [rate, window], [rate, limit::REQUESTS_PER_UNIT.name], [unit, window]];
    schema["not"] = json!({ "anyOf": twice.map(|keys| having(&keys)) });
    schema
}
