//! The schema of files of callers.

use serde_json::Map;

use super::{document, mapping};
use crate::caller_file::{caller, file};

pub(super) fn schema() -> serde_json::Value {
    let mut definitions = Map::new();
    definitions.insert("caller".to_owned(), mapping(&caller::KIND));
    document("Callers of weir", &mapping(&file::KIND), definitions)
}
