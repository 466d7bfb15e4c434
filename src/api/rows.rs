//! `/rows`.

use serde::{Deserialize, Serialize};
use weir_engine::descriptor::{entries_of, spell_pairs};
use weir_engine::overrides::Numbers;
use weir_engine::{Row, RowContent};
use weir_text::{instant_text, parse_instant};

use super::numbers::{JsonNumbers, json_numbers, numbers_of};
use super::{Answered, Kept};

/// A row. In an answer, `N` is [`Answered`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object that is a row")]
pub struct JsonRow<N = JsonNumbers> {
    pub domain: Box<str>,
    /// Entries as `k=v,k=v`.
    pub descriptor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<str>>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<N>,
    /// A date or an instant.
    pub until: Option<String>,
    #[serde(default)]
    pub note: Box<str>,
    /// In an answer, the row's version. In a request, the version of the row that it may replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

pub type AnsweredRow = JsonRow<Answered<JsonNumbers>>;

/// A row in an answer, and its effect under the policies in force.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShownRow {
    #[serde(flatten)]
    pub row: AnsweredRow,
    /// Why the row has no effect.
    pub unused: Option<String>,
    /// The override in force that comes before the row. Older servers do not send it.
    #[serde(rename = "override")]
    pub overridden: Option<RowOverride>,
}

/// The override of a row's descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowOverride {
    /// The names of the limits that have the override's numbers.
    pub limits: Vec<Box<str>>,
    pub until: String,
}

/// A row that was set.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowChange {
    #[serde(flatten)]
    pub kept: Kept,
    /// `written`, `same` or `replaced`.
    pub result: String,
    pub before: Option<AnsweredRow>,
    #[serde(flatten)]
    pub changed: ShownRow,
}

/// A row that was removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowRemoval {
    #[serde(flatten)]
    pub removed: AnsweredRow,
    /// The row of a file that applies from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<ShownRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RowPage {
    pub store: String,
    pub rows: Vec<ShownRow>,
    /// Keys of values that weir has not written.
    pub foreign: Vec<String>,
    pub next: Option<String>,
}

/// The ended rows of a page that were removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct EndedRows {
    pub removed: usize,
    pub next: Option<String>,
}

/// The results of many rows, in the order of the request.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowResults {
    pub store: String,
    pub results: Vec<RowResult>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RowResult {
    /// `written`, `same`, `replaced`; `ok` of a check.
    Word(String),
    Refused {
        refused: String,
        field: Option<WrongField>,
        is_store: bool,
    },
}

/// The wrong field of a row.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrongField {
    Domain,
    Descriptor,
    /// The position of an entry.
    Entry(usize),
    Content,
    /// That of the row which is there.
    Version,
}

impl<N: for<'n> From<&'n Numbers>> From<&Row> for JsonRow<N> {
    fn from(Row { domain, entries, content, until, note }: &Row) -> Self {
        let (plan, limits) = match content {
            RowContent::Plan(plan) => (Some(plan.clone()), Vec::new()),
            RowContent::Own(numbers) => (None, json_numbers(numbers)),
        };
        let (domain, descriptor, note) = (domain.clone(), spell_pairs(entries), note.clone());
        Self { domain, descriptor, plan, limits, until: until.map(instant_text), note, version: None }
    }
}

impl<N: Into<JsonNumbers>> JsonRow<N> {
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
