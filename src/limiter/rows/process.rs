//! The rows of this process, with the memory store: those of operators, and those of files, which apply where no operator
//! has set a row. [rw-6]
//!
//! Not here: reading files (policies, app), and the rows of a store that processes share (cache.rs).

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::RwLock;
use weir_engine::Micros;
use weir_engine::rows::ENDED_ROW_KEPT_US;
use weir_store::StoredRow;

use super::row::{KnownRow, ParsedRow};

/// The most rows of operators, and the most of files.
pub const ROWS_OF_PROCESS_MAX: usize = 2_000_000;
/// The number of parts with their own locks. A list holds one lock at a time, for about 2,000 rows at most.
const SHARDS: usize = 1_024;
/// About the most rows that a page reads, including those that it does not list.
const PAGE_LOOKS: usize = 100_000;

type Shard = HashMap<Box<str>, ParsedRow>;

pub(crate) struct ProcessRows {
    hasher: DefaultHashBuilder,
    /// A row has the same shard in both lists. Without files this list is empty.
    of_files: ArcSwap<Vec<Shard>>,
    of_operators: Box<[RwLock<Shard>]>,
    of_operators_count: AtomicUsize,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowWrite {
    /// The row is there.
    Done {
        before: Option<StoredRow>,
        /// Whether the same row of an operator was there, so nothing was written.
        is_same: bool,
    },
    /// There is no room.
    Full,
    /// The key has a value of another type, which stays.
    OtherType,
    /// The row to replace is not there, so nothing was written.
    Changed,
}

/// The result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Done,
    /// There was another row, or no row.
    Changed,
    /// A file has the row, and no operator has set it.
    OfFile,
}

impl Default for ProcessRows {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            of_files: ArcSwap::default(),
            of_operators: (0..SHARDS).map(|_| RwLock::default()).collect(),
            of_operators_count: AtomicUsize::default(),
        }
    }
}

impl ProcessRows {
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    fn shard(&self, key: &str) -> usize {
        self.hasher.hash_one(key) as usize % SHARDS
    }

    /// Returns a row as decisions use it, or the default if there is none. It ends by the clock of this process, which is
    /// also the clock of the memory store. After the end of an operator's row, that of a file applies. Removes a row of an
    /// operator that ended a while ago. [rw-4]
    pub(crate) fn find(&self, key: &str, now: impl FnOnce() -> Micros) -> KnownRow {
        let shard = self.shard(key);
        let of_operator = self.of_operators[shard].read().get(key).map(KnownRow::from);
        let of_file = || self.of_files.load().get(shard)?.get(key).map(KnownRow::from);
        let Some(row) = of_operator.or_else(of_file) else { return KnownRow::default() };
        let Some(until) = row.until else { return row };
        let now = now();
        if now < until {
            return row;
        }
        if now >= until.saturating_add(ENDED_ROW_KEPT_US) {
            self.remove_if(key, |stored| stored.version == row.version);
        }
        of_file().filter(|row| row.until.is_none_or(|until| now < until)).unwrap_or_default()
    }

    /// Returns a row, even if it has ended.
    pub(super) fn row(&self, key: &str) -> Option<StoredRow> {
        let of_operator = self.of_operators[self.shard(key)].read().get(key).map(|row| row.stored.clone());
        of_operator.or_else(|| self.of_file(key))
    }

    /// Returns the row that a file has.
    pub(super) fn of_file(&self, key: &str) -> Option<StoredRow> {
        self.of_files.load().get(self.shard(key))?.get(key).map(|row| row.stored.clone())
    }

    /// Sets a row of an operator. A row that only a file has becomes the operator's, so that a change of the file does not
    /// change it. [rw-6] With `over`, the row must be that one.
    pub(super) fn set(&self, key: &str, row: ParsedRow, over: Option<&StoredRow>) -> RowWrite {
        let mut rows = self.of_operators[self.shard(key)].write();
        if let Some(over) = over {
            let there = rows.get(key).map(|known| known.stored.clone()).or_else(|| self.of_file(key));
            if there.as_ref() != Some(over) {
                return RowWrite::Changed;
            }
        }
        if let Some(known) = rows.get_mut(key) {
            let is_same = known.stored == row.stored;
            return RowWrite::Done { before: Some(std::mem::replace(known, row).stored), is_same };
        }
        if self.of_operators_count.fetch_add(1, Relaxed) >= ROWS_OF_PROCESS_MAX {
            self.of_operators_count.fetch_sub(1, Relaxed);
            return RowWrite::Full;
        }
        rows.insert(key.into(), row);
        RowWrite::Done { before: self.of_file(key), is_same: false }
    }

    /// Removes this row, if an operator has set it.
    pub(super) fn remove(&self, key: &str, row: &StoredRow) -> Removal {
        self.remove_if(key, |stored| stored == row)
    }

    pub(super) fn has_of_operator(&self, key: &str) -> bool {
        self.of_operators[self.shard(key)].read().contains_key(key)
    }

    fn remove_if(&self, key: &str, is_wanted: impl FnOnce(&StoredRow) -> bool) -> Removal {
        let shard = self.shard(key);
        let mut rows = self.of_operators[shard].write();
        match rows.get(key) {
            Some(known) if is_wanted(&known.stored) => {
                rows.remove(key);
                self.of_operators_count.fetch_sub(1, Relaxed);
                Removal::Done
            }
            None if self.of_files.load().get(shard).is_some_and(|rows| rows.contains_key(key)) => Removal::OfFile,
            _ => Removal::Changed,
        }
    }

    /// Replaces the rows of files. If two have the same key, the later one applies. Returns the number of rows.
    pub(super) fn replace_of_files(&self, rows: impl IntoIterator<Item = (Box<str>, ParsedRow)>) -> usize {
        let mut shards = Vec::new();
        for (key, row) in rows {
            shards.resize_with(SHARDS, Shard::default);
            let shard = self.shard(&key);
            shards[shard].insert(key, row);
        }
        let count = shards.iter().map(HashMap::len).sum();
        self.of_files.store(Arc::new(shards));
        count
    }

    /// Returns a page of the keys that begin with `prefix`: shards from `first` on, until about `most` keys are found.
    /// Also returns the shard of the next page, or `None` on the last page. All pages together read each row once. A
    /// decision waits for one shard at most.
    pub(super) fn keys(&self, prefix: &str, first: usize, most: usize) -> (Vec<String>, Option<usize>) {
        let files = self.of_files.load();
        let (mut keys, mut looks) = (Vec::new(), 0);
        let mut next = first;
        while next < SHARDS && keys.len() < most && looks < PAGE_LOOKS {
            let set = self.of_operators[next].read();
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
        (keys, Some(next).filter(|next| *next < SHARDS))
    }

    pub(super) fn len(&self) -> usize {
        let of_files: usize = self.of_files.load().iter().map(HashMap::len).sum();
        self.of_operators_count.load(Relaxed) + of_files
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::RowContent;

    use super::*;

    fn process_row(version: u64) -> ParsedRow {
        let stored = StoredRow { version, until: None, text: "{}".into() };
        ParsedRow { stored, content: Arc::new(RowContent::Plan("gold".into())) }
    }

    #[test]
    fn pages_have_each_row_of_the_process_once_and_look_at_each_once() {
        const ROWS: usize = 50_000;
        let rows = ProcessRows::default();
        let key = |domain: &str, n: usize| format!("w1:{{{domain}|k={n}}}row");
        // Half of the rows are in files, a tenth are in files and set by operators, and one is of another domain.
        rows.replace_of_files((0..ROWS / 2).map(|n| (key("d", n).into(), process_row(1))));
        let set =
            |key: &str| assert!(matches!(rows.set(key, process_row(2), None), RowWrite::Done { is_same: false, .. }));
        (ROWS * 4 / 10..ROWS).for_each(|n| set(&key("d", n)));
        set(&key("e", 0));
        assert_eq!(rows.len(), ROWS / 2 + ROWS * 6 / 10 + 1);
        let (mut listed, mut pages, mut next) = (Vec::new(), 0, Some(0));
        while let Some(first) = next {
            let (keys, following) = rows.keys("w1:{d|", first, 1_000);
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
        let rows = ProcessRows::default();
        rows.replace_of_files((0..3 * PAGE_LOOKS).map(|n| (format!("w1:{{d|k={n}}}row").into(), process_row(1))));
        let (keys, next) = rows.keys("w1:{e|", 0, 1_000);
        assert!(keys.is_empty() && next.is_some_and(|next| next < SHARDS / 2), "{next:?}");
    }

    #[test]
    fn only_the_row_that_was_read_is_removed() {
        let rows = ProcessRows::default();
        let (first, second) = (process_row(1), process_row(2));
        rows.set("k", first.clone(), None);
        rows.set("k", second.clone(), None);
        assert_eq!(rows.remove("k", &first.stored), Removal::Changed);
        assert_eq!(rows.row("k"), Some(second.stored.clone()));
        rows.replace_of_files([("k".into(), first.clone())]);
        assert_eq!(rows.remove("k", &second.stored), Removal::Done);
        assert_eq!(rows.row("k"), Some(first.stored.clone()), "that of the file");
        assert_eq!(rows.remove("k", &first.stored), Removal::OfFile);
        let over_file = rows.set("k", second.clone(), Some(&first.stored));
        assert_eq!(over_file, RowWrite::Done { before: Some(first.stored.clone()), is_same: false });
        assert_eq!(rows.set("k", first.clone(), Some(&first.stored)), RowWrite::Changed);
        assert_eq!(rows.remove("k", &second.stored), Removal::Done);
        rows.replace_of_files([]);
        assert_eq!(rows.set("k", second.clone(), Some(&first.stored)), RowWrite::Changed, "nothing is there");
        assert_eq!(rows.remove("k", &first.stored), Removal::Changed);
        assert_eq!(rows.len(), 0);
    }
}
