//! Ordered entries, which are replaced as a whole and read in small steps.
//!
//! A reader stores its position and no copy: a slow scrape does not keep replaced entries alive.

use std::sync::Arc;

use parking_lot::Mutex;

use super::families::{Source, Visitor};
use super::table::metric;

const BATCH: usize = 64;

/// Entries in the order of their keys.
#[derive(Debug)]
pub(super) struct Listed<K, V> {
    current: Mutex<Current<K, V>>,
}

#[derive(Debug)]
struct Current<K, V> {
    /// How often the entries were replaced.
    generation: u64,
    entries: Arc<[(K, V)]>,
}

#[derive(Debug)]
pub(super) struct Cursor<K> {
    generation: u64,
    at: usize,
    last: Option<K>,
}

impl<K> Default for Cursor<K> {
    fn default() -> Self {
        Self { generation: 0, at: 0, last: None }
    }
}

impl<K, V> Default for Listed<K, V> {
    fn default() -> Self {
        Self { current: Mutex::new(Current { generation: 0, entries: Arc::new([]) }) }
    }
}

impl<K: Ord + Clone, V> Listed<K, V> {
    pub(super) fn entries(&self) -> Arc<[(K, V)]> {
        self.current.lock().entries.clone()
    }

    /// Replaces all entries. The new ones must be in the order of their keys, without duplicates.
    pub(super) fn replace(&self, entries: Arc<[(K, V)]>) {
        let mut current = self.current.lock();
        current.generation += 1;
        let before = std::mem::replace(&mut current.entries, entries);
        // Freed after the lock is released, because many entries take time.
        drop(current);
        drop(before);
    }

    /// Shows at most `max` entries after this cursor, and advances it. Returns false when none is left. If entries were
    /// replaced, the reader continues after its last key.
    pub(super) fn next(&self, cursor: &mut Cursor<K>, max: usize, mut see: impl FnMut(&K, &V)) -> bool {
        let current = self.current.lock();
        let (generation, entries) = (current.generation, current.entries.clone());
        drop(current);
        if cursor.generation != generation {
            cursor.generation = generation;
            cursor.at = cursor.last.as_ref().map_or(0, |last| entries.partition_point(|(key, _)| key <= last));
        }
        let end = entries.len().min(cursor.at + max);
        for (key, value) in &entries[cursor.at..end] {
            see(key, value);
        }
        if let Some((key, _)) = entries[cursor.at..end].last() {
            cursor.last = Some(key.clone());
        }
        cursor.at = end;
        end < entries.len()
    }
}

pub(super) struct ListedFamily<K, V, S> {
    name: &'static str,
    list: Arc<Listed<K, V>>,
    cursor: Cursor<K>,
    /// Shows the series of an entry.
    show: S,
    has_begun: bool,
    has_ended: bool,
}

impl<K, V, S: FnMut(&K, &V, &mut dyn Visitor)> ListedFamily<K, V, S> {
    pub(super) fn new(name: &'static str, list: Arc<Listed<K, V>>, show: S) -> Self {
        Self { name, list, cursor: Cursor::default(), show, has_begun: false, has_ended: false }
    }
}

impl<K, V, S> Source for ListedFamily<K, V, S>
where
    K: Ord + Clone + Send + Sync,
    V: Send + Sync,
    S: FnMut(&K, &V, &mut dyn Visitor) + Send,
{
    fn advance(&mut self, to: &mut dyn Visitor) -> bool {
        if self.has_ended {
            return false;
        }
        if let Some(metric) = metric(self.name).filter(|_| !self.has_begun) {
            to.family(metric.into());
        }
        self.has_begun = true;
        self.has_ended = !self.list.next(&mut self.cursor, BATCH, |key, value| (self.show)(key, value, to));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(keys: &[u32]) -> Arc<[(u32, ())]> {
        keys.iter().map(|key| (*key, ())).collect()
    }

    #[test]
    fn a_reader_goes_on_behind_the_last_key_when_entries_were_replaced() {
        let listed = Listed::default();
        listed.replace(entries(&[1, 3, 5, 7]));
        let mut cursor = Cursor::default();
        let read = |cursor: &mut Cursor<u32>| {
            let mut seen = Vec::new();
            let is_more = listed.next(cursor, 2, |key, ()| seen.push(*key));
            (seen, is_more)
        };
        assert_eq!(read(&mut cursor), (vec![1, 3], true));
        listed.replace(entries(&[0, 2, 4, 6]));
        assert_eq!(read(&mut cursor), (vec![4, 6], false));
        assert_eq!(read(&mut cursor), (vec![], false));
        listed.replace(entries(&[]));
        assert_eq!(read(&mut cursor), (vec![], false));
        assert_eq!(read(&mut Cursor::default()), (vec![], false));
    }

    #[test]
    fn replaced_entries_are_freed_while_a_reader_is_under_way() {
        let (listed, value) = (Listed::default(), Arc::new(()));
        listed.replace([(1, value.clone()), (2, value.clone())].into());
        let mut cursor = Cursor::default();
        assert!(listed.next(&mut cursor, 1, |_, _| {}));
        listed.replace([(2, Arc::new(()))].into());
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
