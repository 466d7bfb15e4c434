//! The schema of files of overlays.

use serde_json::{Map, json};

use super::fragments::{rate, reference};
use super::{document, mapping};
use crate::overlay::{file, overlay};
use crate::tables::{amount, hold, limit, numbers, replaced, rows, weigh};

pub(super) fn schema() -> serde_json::Value {
    let mut definitions = Map::new();
    definitions.insert("overlay".to_owned(), mapping(&overlay::KIND));
    definitions.insert("limit".to_owned(), json!({ "anyOf": [rate(), reference("limit_in_part")] }));
    // The policy can have the algorithm that a key needs.
    let mut in_part = mapping(&limit::KIND);
    if let Some(keywords) = in_part.as_object_mut() {
        keywords.remove("allOf");
    }
    definitions.insert("limit_in_part".to_owned(), in_part);
    definitions.insert("amount".to_owned(), mapping(&amount::KIND));
    definitions.insert("hold".to_owned(), mapping(&hold::KIND));
    definitions.insert("replaced".to_owned(), mapping(&replaced::KIND));
    definitions.insert("rows".to_owned(), mapping(&rows::KIND));
    definitions.insert("request_numbers".to_owned(), mapping(&numbers::KIND));
    definitions.insert("weigh".to_owned(), mapping(&weigh::KIND));
    document("Overlays of policies of weir", &mapping(&file::KIND), definitions)
}
