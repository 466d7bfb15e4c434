//! The schema of files of traffic.

use serde_json::{Map, Value, json};

use super::test_files::{add_request, range};
use super::{document, given, mapping};
use crate::traffic_file::keys::{access_log, file, source};

pub(super) fn schema() -> Value {
    let mut definitions = Map::new();
    definitions.insert("source".to_owned(), mapping(&source::KIND));
    definitions.insert("access_log".to_owned(), mapping(&access_log::KIND));
    definitions.insert("range".to_owned(), range());
    add_request(&mut definitions);
    let (sources, log) = (file::SOURCES.name, file::ACCESS_LOG.name);
    let mut root = mapping(&file::KIND);
    root["anyOf"] = json!([{ "required": [sources, file::DURATION.name] }, { "required": [log] }]);
    root["not"] = json!({ "required": [sources, log], "properties": { sources: given(), log: given() } });
    document("Traffic, for weir simulate and weir diff", &root, definitions)
}
