//! The rows that a process knows: some of a store that processes share, or all of its own, with the memory store. Decisions
//! find the limits of a descriptor here.
//!
//! Not here: reading rows from a store (stores.rs), and operators (rows.rs).

use std::borrow::Cow;

use weir_engine::plans::PlanLimits;
use weir_engine::rows::{RowMisfit, is_in_two_stores};
use weir_engine::{Micros, RowContent, Rule};
use weir_store::Store;

use super::cache::RowCache;
use super::process::ProcessRows;
use super::row::KnownRow;

/// The rows that a process knows.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum KnownRows {
    /// Recently used rows of a store that processes share.
    Cached(RowCache),
    /// All rows, because the store in this process keeps none.
    OfProcess(ProcessRows),
}

/// Where a decision finds the rows of its descriptors.
#[derive(Clone, Copy)]
pub(crate) struct RowSource<'r> {
    pub(crate) known: &'r KnownRows,
    /// Whether single limits per second have their own store. [st-3]
    pub(crate) has_second_store: bool,
}

impl KnownRows {
    /// No rows yet, of this store.
    #[must_use]
    pub fn of(store: &dyn Store) -> Self {
        if store.is_immediate() { Self::OfProcess(ProcessRows::default()) } else { Self::Cached(RowCache::default()) }
    }

    /// The number of rows in this process.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Cached(rows) => rows.len(),
            Self::OfProcess(rows) => rows.len(),
        }
    }

    /// The cache, if a store that processes share keeps the rows.
    pub(crate) fn cache(&self) -> Option<&RowCache> {
        match self {
            Self::Cached(cache) => Some(cache),
            Self::OfProcess(_) => None,
        }
    }
}

impl RowSource<'_> {
    /// Returns the row at a key, or the default if there is none. `None` if the row must be read first. A cached row ends
    /// by the clock of this process. If the store's clock is behind, the store finds the row, and weir asks again with it:
    /// so only a decision without the store depends on the clock of this process. [rw-4]
    pub(crate) fn find(&self, key: &str, now: impl FnOnce() -> Micros) -> Option<KnownRow> {
        match self.known {
            KnownRows::OfProcess(rows) => Some(rows.find(key, now)),
            KnownRows::Cached(cache) => cache.find(key).map(|row| row.at(now)),
        }
    }

    /// Returns the limits of a rule with this row. The second value is false if the row's content does not fit the rule:
    /// the default plan then applies. [rw-3]
    pub(crate) fn limits<'p>(&self, rule: &'p Rule, row: &KnownRow) -> (Cow<'p, PlanLimits>, bool) {
        let default =
            || rule.rows.as_deref().map_or(Cow::Borrowed(&[][..]), |plans| Cow::Borrowed(plans.default_limits()));
        match &row.content {
            None => (default(), true),
            Some(content) => match limits_of(rule, content, self.has_second_store) {
                Ok(limits) => (limits, true),
                Err(_) => (default(), false),
            },
        }
    }
}

/// The limits of a rule with this content of a row.
/// Fails if the content does not fit the rule, or moves its states to another store.
pub(super) fn limits_of<'p>(
    rule: &'p Rule,
    content: &RowContent,
    has_second_store: bool,
) -> Result<Cow<'p, PlanLimits>, RowMisfit> {
    let limits = content.limits(rule)?;
    if has_second_store && is_in_two_stores(&limits, rule) {
        return Err(RowMisfit::OtherStore);
    }
    Ok(limits)
}
