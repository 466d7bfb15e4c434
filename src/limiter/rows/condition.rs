//! Which row a change may replace or remove, as by `If-Match` of HTTP. [rw-8]

use std::sync::Arc;

use weir_engine::rows::Row;

use super::text;

/// The rows that a change may replace or remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowMatch {
    /// Any row, but not none.
    Any,
    /// A row of one of these versions.
    Versions(Arc<[u64]>),
}

impl RowMatch {
    pub(super) fn has(&self, row: &Row) -> bool {
        match self {
            Self::Any => true,
            Self::Versions(versions) => row_version(row).is_some_and(|version| versions.contains(&version)),
        }
    }
}

/// The version of a row. `None` for a row that no store can keep.
#[must_use]
pub fn row_version(row: &Row) -> Option<u64> {
    text::stored(row).ok().map(|stored| stored.version)
}
