//! The rows in this process. With Redis: a bounded cache of rows, which the script of each decision compares [rw-2].
//! With the memory store: all rows [rw-6].
//!
//! Reading rows from a store is in decide.rs. Writing them is in rows.rs.

use std::borrow::Cow;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::{Mutex, RwLock};
use weir_engine::plans::PlanLimits;
use weir_engine::rows::{ENDED_ROW_KEPT_US, RowMisfit, is_in_two_stores};
use weir_engine::{Micros, RowContent, Rule};
use weir_store::{RowRead, StoredRow};

use super::text;

/// The most rows of a store in the cache, including the absence of rows. A customer whose row was evicted costs one
/// more call at the next request.
pub const ROWS_KNOWN_MAX: usize = 200_000;
/// The most rows of a process, with the memory store.
pub const ROWS_OF_PROCESS_MAX: usize = 2_000_000;
/// The number of parts with their own locks, which makes it rare for cores to wait for each other.
const SHARDS: usize = 16;
/// The number of parts for the rows of a process. A list holds one lock at a time, for about 2,000 rows at most.
const OWN_SHARDS: usize = 1_024;
/// About the most rows of the process that a page reads, including those that it does not list.
const PAGE_LOOKS: usize = 100_000;

/// A row as decisions use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownRow {
    /// 0 if there is no row.
    pub(crate) version: u64,
    /// `None` if there is no row, or if weir did not write the value. The default plan then applies.
    pub(crate) content: Option<Arc<RowContent>>,
    pub(crate) until: Option<Micros>,
}

/// The rows of a process.
pub struct KnownRows {
    shards: [Mutex<Shard>; SHARDS],
    hasher: DefaultHashBuilder,
    /// The rows of this process: rows of files, and rows of operators, which take precedence. A row has the same shard
    /// in both maps. Without files the first list is empty.
    of_files: ArcSwap<Vec<ProcessRows>>,
    set: Box<[RwLock<ProcessRows>]>,
    set_count: AtomicUsize,
    /// Whether single limits per second have their own store.
    has_second_store: AtomicBool,
}

impl From<ProcessRow> for KnownRow {
    fn from((row, content): ProcessRow) -> Self {
        Self { version: row.version, content: Some(content), until: row.until }
    }
}

type ProcessRows = HashMap<Box<str>, ProcessRow>;
pub(super) type ProcessRow = (StoredRow, Arc<RowContent>);

/// The result of removing a row of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Done,
    /// There was another row, or no row.
    Changed,
    /// A file has the row, and no operator has set it.
    OfFile,
}

/// Recently used rows, in two generations. When the first is full, the second is dropped.
#[derive(Default)]
struct Shard {
    new: HashMap<Box<str>, KnownRow>,
    old: HashMap<Box<str>, KnownRow>,
}

impl Default for KnownRows {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            hasher: DefaultHashBuilder::default(),
            of_files: ArcSwap::default(),
            set: (0..OWN_SHARDS).map(|_| RwLock::default()).collect(),
            set_count: AtomicUsize::default(),
            has_second_store: AtomicBool::default(),
        }
    }
}

impl KnownRow {
    /// Returns what was read, and whether weir did not write the value.
    pub(crate) fn of(read: &RowRead) -> (Self, bool) {
        match read {
            RowRead::Absent => (Self::default(), false),
            RowRead::Foreign { version } => (Self { version: *version, ..Self::default() }, true),
            RowRead::Row(row) => match text::read(&row.text) {
                Ok(read) => {
                    (Self { version: row.version, content: Some(Arc::new(read.content)), until: row.until }, false)
                }
                Err(_) => (Self { version: row.version, content: None, until: row.until }, true),
            },
        }
    }
}

impl KnownRows {
    pub(crate) fn set_second_store(&self, has_second_store: bool) {
        self.has_second_store.store(has_second_store, Relaxed);
    }

    fn shard(&self, key: &str) -> &Mutex<Shard> {
        &self.shards[self.hash(key) % SHARDS]
    }

    /// The shard of a row of this process.
    fn own_shard(&self, key: &str) -> usize {
        self.hash(key) % OWN_SHARDS
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    fn hash(&self, key: &str) -> usize {
        self.hasher.hash_one(key) as usize
    }

    /// Returns the cached row of a store.
    pub(crate) fn find(&self, key: &str) -> Option<KnownRow> {
        self.shard(key).lock().find(key)
    }

    /// Caches a row of a store.
    pub(crate) fn insert(&self, key: &str, row: KnownRow) {
        self.shard(key).lock().insert(key, row);
    }

    /// Removes a row of a store from the cache, so that weir reads it before the next decision.
    pub(crate) fn forget(&self, key: &str) {
        let mut shard = self.shard(key).lock();
        shard.new.remove(key);
        shard.old.remove(key);
    }

    /// As [`KnownRows::forget`], unless the row has this version.
    pub(crate) fn forget_other(&self, key: &str, version: u64) {
        let mut shard = self.shard(key).lock();
        if shard.find(key).is_some_and(|row| row.version != version) {
            shard.new.remove(key);
        }
    }

    /// Returns a row of this process, or the default if there is none. It ends by the clock of this process, which is
    /// also the clock of the memory store. After the end of an operator's row, that of a file applies. Removes a row of an
    /// operator that ended a while ago. [rw-4]
    pub(crate) fn find_own(&self, key: &str, now: impl FnOnce() -> Micros) -> KnownRow {
        let Some((row, content)) = self.own(key) else { return KnownRow::default() };
        if let Some(until) = row.until {
            let now = now();
            if now >= until.saturating_add(ENDED_ROW_KEPT_US) {
                self.remove_own(key, &row);
            }
            if now >= until {
                let of_file = self.of_file(key).filter(|(row, _)| row.until.is_none_or(|until| now < until));
                return of_file.map(KnownRow::from).unwrap_or_default();
            }
        }
        (row, content).into()
    }

    /// Returns the limits of a rule with this row. The second value is false if the row's content does not fit the rule:
    /// the default plan then applies. [rw-3]
    pub(crate) fn limits<'p>(&self, rule: &'p Rule, known: &KnownRow) -> (Cow<'p, PlanLimits>, bool) {
        let default =
            || rule.rows.as_deref().map_or(Cow::Borrowed(&[][..]), |plans| Cow::Borrowed(plans.default_limits()));
        match &known.content {
            None => (default(), true),
            Some(content) => match self.fitted(rule, content) {
                Ok(limits) => (limits, true),
                Err(_) => (default(), false),
            },
        }
    }

    pub(super) fn fitted<'p>(&self, rule: &'p Rule, content: &RowContent) -> Result<Cow<'p, PlanLimits>, RowMisfit> {
        let limits = content.limits(rule)?;
        if self.has_second_store.load(Relaxed) && is_in_two_stores(&limits, rule) {
            return Err(RowMisfit::OtherStore);
        }
        Ok(limits)
    }

    /// The number of rows in this process.
    #[must_use]
    pub fn len(&self) -> usize {
        let cached: usize = self.shards.iter().map(|shard| shard.lock().len()).sum();
        let of_files: usize = self.of_files.load().iter().map(HashMap::len).sum();
        cached + self.set_count.load(Relaxed) + of_files
    }

    /// Whether there are no rows in this process.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn own(&self, key: &str) -> Option<ProcessRow> {
        let set = self.set[self.own_shard(key)].read().get(key).cloned();
        set.or_else(|| self.of_file(key))
    }

    /// Whether an operator has set a row of this process.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.set[self.own_shard(key)].read().contains_key(key)
    }

    fn of_file(&self, key: &str) -> Option<ProcessRow> {
        self.of_files.load().get(self.own_shard(key))?.get(key).cloned()
    }

    /// Keeps a row of this process. Returns false if there are too many.
    pub(super) fn set_own(&self, key: &str, row: ProcessRow) -> bool {
        let mut set = self.set[self.own_shard(key)].write();
        if let Some(known) = set.get_mut(key) {
            *known = row;
            return true;
        }
        if self.set_count.fetch_add(1, Relaxed) >= ROWS_OF_PROCESS_MAX {
            self.set_count.fetch_sub(1, Relaxed);
            return false;
        }
        set.insert(key.into(), row);
        true
    }

    /// Removes this row, if an operator set it.
    pub(super) fn remove_own(&self, key: &str, row: &StoredRow) -> Removal {
        let shard = self.own_shard(key);
        let mut set = self.set[shard].write();
        match set.get(key) {
            Some((known, _)) if known == row => {
                set.remove(key);
                self.set_count.fetch_sub(1, Relaxed);
                Removal::Done
            }
            None if self.of_files.load().get(shard).is_some_and(|rows| rows.contains_key(key)) => Removal::OfFile,
            _ => Removal::Changed,
        }
    }

    /// Replaces the rows that come from files. If two have the same key, the later one applies. Returns the number of
    /// rows.
    pub(super) fn set_of_files(&self, rows: impl IntoIterator<Item = (Box<str>, ProcessRow)>) -> usize {
        let mut shards = Vec::new();
        for (key, row) in rows {
            shards.resize_with(OWN_SHARDS, ProcessRows::default);
            let shard = self.own_shard(&key);
            shards[shard].insert(key, row);
        }
        let count = shards.iter().map(HashMap::len).sum();
        self.of_files.store(Arc::new(shards));
        count
    }

    /// Returns a page of the keys of this process's rows that begin with `prefix`: shards from `first` on, until about
    /// `most` keys are found. Also returns the shard of the next page, or `None` on the last page. All pages together
    /// read each row once. A decision waits for one shard at most.
    pub(super) fn own_keys(&self, prefix: &str, first: usize, most: usize) -> (Vec<String>, Option<usize>) {
        let files = self.of_files.load();
        let (mut keys, mut looks) = (Vec::new(), 0);
        let mut next = first;
        while next < OWN_SHARDS && keys.len() < most && looks < PAGE_LOOKS {
            let set = self.set[next].read();
            let of_files = files.get(next).into_iter().flat_map(HashMap::keys).filter(|key| !set.contains_key(*key));
            for key in set.keys().chain(of_files) {
                looks += 1;
                if key.starts_with(prefix) {
                    keys.push(key.to_string());
                }
            }
            next += 1;
        }
        keys.sort_unstable();
        (keys, Some(next).filter(|next| *next < OWN_SHARDS))
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

    fn process_row(version: u64) -> ProcessRow {
        let stored = StoredRow { version, until: None, text: "{}".into() };
        (stored, Arc::new(RowContent::Plan("gold".into())))
    }

    #[test]
    fn pages_have_each_row_of_the_process_once_and_look_at_each_once() {
        const ROWS: usize = 50_000;
        let rows = KnownRows::default();
        let key = |domain: &str, n: usize| format!("w1:{{{domain}|k={n}}}row");
        // Half of the rows are in files, a tenth are in files and set by operators, and one is of another domain.
        rows.set_of_files((0..ROWS / 2).map(|n| (key("d", n).into(), process_row(1))));
        assert!((ROWS * 4 / 10..ROWS).all(|n| rows.set_own(&key("d", n), process_row(2))));
        assert!(rows.set_own(&key("e", 0), process_row(2)));
        assert_eq!(rows.len(), ROWS / 2 + ROWS * 6 / 10 + 1);
        let (mut listed, mut pages, mut next) = (Vec::new(), 0, Some(0));
        while let Some(first) = next {
            let (keys, following) = rows.own_keys("w1:{d|", first, 1_000);
            assert!(following.is_none_or(|following| following > first), "no shard is looked at twice");
            listed.extend(keys);
            pages += 1;
            next = following;
        }
        listed.sort_unstable();
        let mut all: Vec<String> = (0..ROWS).map(|n| key("d", n)).collect();
        all.sort_unstable();
        assert_eq!(listed, all);
        assert!((ROWS / 2_000..=ROWS / 1_000 + 1).contains(&pages), "{pages} pages");
    }

    #[test]
    fn a_page_without_a_wanted_row_ends_too() {
        let rows = KnownRows::default();
        rows.set_of_files((0..3 * PAGE_LOOKS).map(|n| (format!("w1:{{d|k={n}}}row").into(), process_row(1))));
        let (keys, next) = rows.own_keys("w1:{e|", 0, 1_000);
        assert!(keys.is_empty() && next.is_some_and(|next| next < OWN_SHARDS / 2), "{next:?}");
    }

    #[test]
    fn only_the_row_that_was_read_is_removed() {
        let rows = KnownRows::default();
        let (first, second) = (process_row(1), process_row(2));
        rows.set_own("k", first.clone());
        rows.set_own("k", second.clone());
        assert_eq!(rows.remove_own("k", &first.0), Removal::Changed);
        assert_eq!(rows.own("k"), Some(second.clone()));
        rows.set_of_files([("k".into(), first.clone())]);
        assert_eq!(rows.remove_own("k", &second.0), Removal::Done);
        assert_eq!(rows.own("k"), Some(first.clone()), "that of the file");
        assert_eq!(rows.remove_own("k", &first.0), Removal::OfFile);
        rows.set_of_files([]);
        assert_eq!(rows.remove_own("k", &first.0), Removal::Changed);
        assert!(rows.is_empty());
    }
}
