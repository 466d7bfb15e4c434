//! A row in memory: as decisions use it, and with the text that a store keeps.

use std::sync::Arc;

use weir_engine::{Micros, RowContent};
use weir_store::{RowRead, StoredRow};

use super::text;

/// A row as decisions use it. The default is no row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownRow {
    /// 0 if there is no row.
    pub(crate) version: u64,
    /// `None` if there is no row, or if weir did not write the value. The default plan then applies.
    pub(crate) content: Option<Arc<RowContent>>,
    /// The end by the clock of this process. The store judges by its own clock.
    pub(crate) until: Option<Micros>,
}

/// A row as a store keeps it, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedRow {
    pub(super) stored: StoredRow,
    pub(super) content: Arc<RowContent>,
}

impl KnownRow {
    /// Returns what was read at a key, and whether weir did not write the value.
    pub(crate) fn of(key: &str, read: &RowRead) -> (Self, bool) {
        match read {
            RowRead::Absent => (Self::default(), false),
            RowRead::Foreign { version } => (Self { version: *version, ..Self::default() }, true),
            RowRead::Row(row) => {
                let content = text::row_at(key, &row.text).map(|row| Arc::new(row.content));
                let is_foreign = content.is_none();
                (Self { version: row.version, content, until: row.until }, is_foreign)
            }
        }
    }

    /// The row at this instant: none from its end on. [rw-4]
    pub(crate) fn at(self, now: impl FnOnce() -> Micros) -> Self {
        match self.until {
            Some(until) if now() >= until => Self::default(),
            _ => self,
        }
    }
}

impl From<&ParsedRow> for KnownRow {
    fn from(ParsedRow { stored, content }: &ParsedRow) -> Self {
        Self { version: stored.version, content: Some(content.clone()), until: stored.until }
    }
}
