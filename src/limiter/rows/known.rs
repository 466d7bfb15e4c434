//! The rows that a process knows: with Redis a bounded cache of rows that the script of each decision compares [rw-2]; with the
//! memory store all rows that there are [rw-6].
//!
//! Not here: reading rows from a store (decide.rs), and writing them (rows.rs).

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use weir_engine::plans::PlanLimits;
use weir_engine::rows::{RowMisfit, is_in_two_stores};
use weir_engine::{Micros, RowTerms, Rule};
use weir_store::{RowRead, StoredRow};

use super::text;

/// The most rows of a store that a process remembers, absent ones included. A customer whose row was forgotten costs one more
/// call at its next request.
pub const ROWS_KNOWN_MAX: usize = 200_000;
/// The most rows of a process, with the memory store.
pub const ROWS_OF_PROCESS_MAX: usize = 2_000_000;
/// Parts with a lock each, so that cores seldom wait for each other.
const SHARDS: usize = 16;

/// A row as decisions use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownRow {
    /// 0 for no row.
    pub(crate) version: u64,
    /// None for no row, and where the value is no row of weir's: the default plan counts.
    pub(crate) terms: Option<Arc<RowTerms>>,
    until: Option<Micros>,
}

/// The rows of a process.
pub struct KnownRows {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// The rows of this process by key, from files and from operators. The second come first.
    of_files: ArcSwap<ProcessRows>,
    set: RwLock<ProcessRows>,
    /// Whether single limits per second have a store of their own.
    has_second_store: AtomicBool,
}

/// Rows of this process by key.
pub(super) type ProcessRows = HashMap<Box<str>, (StoredRow, Arc<RowTerms>)>;

/// Rows that were used lately, and before that: when the first half is full, the second is forgotten.
#[derive(Default)]
struct Shard {
    new: HashMap<Box<str>, KnownRow>,
    old: HashMap<Box<str>, KnownRow>,
}

impl Default for KnownRows {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            of_files: ArcSwap::default(),
            set: RwLock::default(),
            has_second_store: AtomicBool::default(),
        }
    }
}

impl KnownRow {
    /// What was read, and whether it is a value that is no row of weir's.
    pub(crate) fn of(read: &RowRead) -> (Self, bool) {
        match read {
            RowRead::Absent => (Self::default(), false),
            RowRead::Foreign { version } => (Self { version: *version, ..Self::default() }, true),
            RowRead::Row(row) => match text::read(&row.text) {
                Ok(read) => (Self { version: row.version, terms: Some(Arc::new(read.terms)), until: row.until }, false),
                Err(_) => (Self { version: row.version, terms: None, until: row.until }, true),
            },
        }
    }
}

impl KnownRows {
    pub(crate) fn set_second_store(&self, has_second_store: bool) {
        self.has_second_store.store(has_second_store, Relaxed);
    }

    fn shard(&self, key: &str) -> &Mutex<Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
        let hash = self.hasher.hash_one(key) as usize;
        &self.shards[hash % SHARDS]
    }

    /// What is known of a row of a store.
    pub(crate) fn find(&self, key: &str) -> Option<KnownRow> {
        self.shard(key).lock().find(key)
    }

    /// Remembers a row of a store.
    pub(crate) fn insert(&self, key: &str, row: KnownRow) {
        self.shard(key).lock().insert(key, row);
    }

    /// Forgets a row of a store, so that it is read before the next decision.
    pub(crate) fn forget(&self, key: &str) {
        let mut shard = self.shard(key).lock();
        shard.new.remove(key);
        shard.old.remove(key);
    }

    /// A row of this process; the default if there is none. It ends by the clock of this process, which is that of the memory
    /// store. [rw-4]
    pub(crate) fn find_own(&self, key: &str, now: impl FnOnce() -> Micros) -> KnownRow {
        let row = |(row, terms): &(StoredRow, Arc<RowTerms>)| KnownRow {
            version: row.version,
            terms: Some(terms.clone()),
            until: row.until,
        };
        let found = self.set.read().get(key).map(row).or_else(|| self.of_files.load().get(key).map(row));
        found.filter(|row| row.until.is_none_or(|until| now() < until)).unwrap_or_default()
    }

    /// The limits of a rule under what is known of the row. The second value is false where the terms do not fit the rule, and the
    /// default plan counts. [rw-3]
    pub(crate) fn limits<'p>(&self, rule: &'p Rule, known: &KnownRow) -> (Cow<'p, PlanLimits>, bool) {
        let default =
            || rule.rows.as_deref().map_or(Cow::Borrowed(&[][..]), |plans| Cow::Borrowed(plans.default_limits()));
        match &known.terms {
            None => (default(), true),
            Some(terms) => match self.fitted(rule, terms) {
                Ok(limits) => (limits, true),
                Err(_) => (default(), false),
            },
        }
    }

    /// The limits of a rule under these terms.
    pub(super) fn fitted<'p>(&self, rule: &'p Rule, terms: &RowTerms) -> Result<Cow<'p, PlanLimits>, RowMisfit> {
        let limits = terms.limits(rule)?;
        if self.has_second_store.load(Relaxed) && is_in_two_stores(&limits, rule) {
            return Err(RowMisfit::OtherStore);
        }
        Ok(limits)
    }

    /// How many rows are known.
    #[must_use]
    pub fn len(&self) -> usize {
        let cached: usize = self.shards.iter().map(|shard| shard.lock().len()).sum();
        cached + self.set.read().len() + self.of_files.load().len()
    }

    /// Whether no row is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn own(&self, key: &str) -> Option<StoredRow> {
        let set = self.set.read().get(key).map(|(row, _)| row.clone());
        set.or_else(|| self.of_files.load().get(key).map(|(row, _)| row.clone()))
    }

    pub(super) fn is_of_file(&self, key: &str) -> bool {
        self.of_files.load().contains_key(key)
    }

    /// Keeps or removes a row of this process. Answers false if there are too many.
    pub(super) fn set_own(&self, key: &str, row: Option<(StoredRow, Arc<RowTerms>)>) -> bool {
        let mut set = self.set.write();
        match row {
            None => {
                set.remove(key);
            }
            Some(row) => {
                if set.len() >= ROWS_OF_PROCESS_MAX && !set.contains_key(key) {
                    return false;
                }
                set.insert(key.into(), row);
            }
        }
        true
    }

    /// Replaces the rows that come from files.
    pub(super) fn set_of_files(&self, rows: ProcessRows) {
        self.of_files.store(Arc::new(rows));
    }

    /// The keys of the rows of this process that begin with a text, in order, after another key.
    pub(super) fn own_keys(&self, prefix: &str, after: &str, most: usize) -> Vec<String> {
        let files = self.of_files.load();
        let set = self.set.read();
        let mut keys: Vec<&str> = files.keys().chain(set.keys()).map(|key| &**key).collect();
        keys.retain(|key| key.starts_with(prefix) && *key > after);
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(most);
        keys.into_iter().map(str::to_owned).collect()
    }
}

impl Shard {
    fn find(&mut self, key: &str) -> Option<KnownRow> {
        if let Some(row) = self.new.get(key) {
            return Some(row.clone());
        }
        let (key, row) = self.old.remove_entry(key)?;
        self.add(key, row.clone());
        Some(row)
    }

    fn insert(&mut self, key: &str, row: KnownRow) {
        self.old.remove(key);
        self.add(key.into(), row);
    }

    fn add(&mut self, key: Box<str>, row: KnownRow) {
        const NEW_MAX: usize = ROWS_KNOWN_MAX / SHARDS / 2;
        if self.new.len() >= NEW_MAX && !self.new.contains_key(&key) {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(key, row);
    }

    fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_known_and_the_cache_is_bounded() {
        let rows = KnownRows::default();
        let row = |version| KnownRow { version, ..KnownRow::default() };
        rows.insert("often", row(1));
        for n in 0..3 * ROWS_KNOWN_MAX {
            rows.insert(&format!("k{n}"), row(2));
            if n % 1_000 == 0 {
                assert_eq!(rows.find("often"), Some(row(1)), "after {n} others");
            }
        }
        assert!(rows.len() <= ROWS_KNOWN_MAX);
        assert_eq!(rows.find("k0"), None, "the oldest is forgotten");
        rows.forget("often");
        assert_eq!(rows.find("often"), None);
    }
}
