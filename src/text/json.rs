//! JSON of rows and of the numbers of limits, in requests, answers and stores.
//!
//! Unknown fields are errors. Not here: the answers of a server that may be newer (cli), and texts in a store (limiter).

use serde::{Deserialize, Serialize};
use weir_engine::descriptor::{entries_of, spell_pairs};
use weir_engine::overrides::Numbers;
use weir_engine::{Row, RowContent, Window};

use super::{instant_text, parse_instant};

/// The numbers of one limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the numbers of a limit")]
pub struct JsonNumbers {
    pub name: Option<Box<str>>,
    pub requests: u32,
    pub window_us: u64,
    pub burst: Option<u32>,
}

/// A row.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object that is a row")]
pub struct JsonRow {
    pub domain: Box<str>,
    /// Entries as `k=v,k=v`.
    pub descriptor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<JsonNumbers>,
    /// A date or an instant.
    pub until: Option<String>,
    #[serde(default)]
    pub note: Box<str>,
    /// In an answer, the row's version. In a request, the version of the row that it may replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

pub fn json_numbers(numbers: &[Numbers]) -> Vec<JsonNumbers> {
    let one = |Numbers { name, requests, window, burst }: &Numbers| JsonNumbers {
        name: name.clone(),
        requests: *requests,
        window_us: window.us(),
        burst: *burst,
    };
    numbers.iter().map(one).collect()
}

/// # Errors
/// The window that is none.
pub fn numbers_of(limits: Vec<JsonNumbers>) -> Result<Box<[Numbers]>, String> {
    let one = |JsonNumbers { name, requests, window_us, burst }| {
        let window = Window::from_micros(window_us).map_err(|error| format!("window_us: {error}"))?;
        Ok(Numbers { name, requests, window, burst })
    };
    limits.into_iter().map(one).collect()
}

impl From<&Row> for JsonRow {
    fn from(Row { domain, entries, content, until, note }: &Row) -> Self {
        let (plan, limits) = match content {
            RowContent::Plan(plan) => (Some(plan.clone()), Vec::new()),
            RowContent::Own(numbers) => (None, json_numbers(numbers)),
        };
        let (domain, descriptor, note) = (domain.clone(), spell_pairs(entries), note.clone());
        Self { domain, descriptor, plan, limits, until: until.map(instant_text), note, version: None }
    }
}

impl JsonRow {
    /// # Errors
    /// The field that is wrong, with the reason.
    pub fn row(self) -> Result<Row, String> {
        let Self { domain, descriptor, plan, limits, until, note, version: _ } = self;
        let numbers = numbers_of(limits)?;
        let content = match (plan, numbers.is_empty()) {
            (Some(plan), true) => RowContent::Plan(plan),
            (None, false) => RowContent::Own(numbers),
            _ => return Err("either plan or limits".to_owned()),
        };
        let until = until.map(|text| parse_instant(&text).map_err(|reason| format!("until = {text:?}: {reason}")));
        Ok(Row { domain, entries: entries_of(&descriptor)?, content, until: until.transpose()?, note })
    }
}
