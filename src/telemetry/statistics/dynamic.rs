//! Counters whose names come from requests. Their number is bounded, and a lookup rarely waits for other cores.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::Mutex;

use super::names::NAME_BYTES_MAX;

/// The counters are divided into this many parts, each with its own lock.
const PARTS: usize = 16;

/// Limits the number of names from requests, of all kinds in total.
#[derive(Debug)]
pub(super) struct Room {
    max: usize,
    taken: AtomicUsize,
}

impl Room {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, taken: AtomicUsize::new(0) }
    }

    /// Reserves a place. Returns whether there was one.
    fn take(&self) -> bool {
        self.taken.fetch_update(Relaxed, Relaxed, |taken| (taken < self.max).then_some(taken + 1)).is_ok()
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

/// Values by name. A plain mutex is right: nothing is awaited while it is locked.
#[derive(Debug)]
pub(super) struct Dynamic<V> {
    parts: [Mutex<HashMap<Arc<str>, V>>; PARTS],
    /// The names in order, for readers. Requests lock it only to add a name, while a part is locked.
    names: Mutex<BTreeSet<Arc<str>>>,
    /// With a random seed: callers cannot compute which names share a part.
    hasher: DefaultHashBuilder,
}

impl<V> Default for Dynamic<V> {
    fn default() -> Self {
        Self { parts: Default::default(), names: Mutex::default(), hasher: DefaultHashBuilder::default() }
    }
}

impl<V: Default> Dynamic<V> {
    /// Counts for this name. Returns whether the name fits.
    pub(super) fn count(&self, name: &[u8], room: &Room, count: impl FnOnce(&V)) -> bool {
        let Ok(name) = std::str::from_utf8(name) else { return false };
        if name.len() > NAME_BYTES_MAX {
            return false;
        }
        let mut part = self.part(name).lock();
        if let Some(value) = part.get(name) {
            count(value);
            return true;
        }
        if !room.take() {
            return false;
        }
        let name: Arc<str> = name.into();
        self.names.lock().insert(name.clone());
        count(part.entry(name).or_default());
        true
    }

    fn part(&self, name: &str) -> &Mutex<HashMap<Arc<str>, V>> {
        let hash = self.hasher.hash_one(name);
        #[expect(clippy::cast_possible_truncation, reason = "a remainder below the number of parts")]
        &self.parts[(hash % PARTS as u64) as usize]
    }

    /// At most `max` names after this one, in order.
    pub(super) fn names_after(&self, last: Bound<&str>, max: usize) -> Vec<Arc<str>> {
        self.names.lock().range::<str, _>((last, Bound::Unbounded)).take(max).cloned().collect()
    }

    /// The number of this name. None if there is no such name.
    pub(super) fn read<T>(&self, name: &str, read: impl FnOnce(&V) -> T) -> Option<T> {
        self.part(name).lock().get(name).map(read)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn there_are_never_more_names_than_there_is_room_for() {
        let (room, other) = (Room::new(3), Dynamic::<AtomicU64>::default());
        let names = Dynamic::<AtomicU64>::default();
        let add = |name: &str| {
            names.count(name.as_bytes(), &room, |count| {
                count.fetch_add(1, Relaxed);
            })
        };
        assert!(add("a") && add("b") && add("a"));
        assert!(other.count(b"a", &room, |_| {}), "another kind, the same room");
        assert!(!add("c"));
        assert!(add("b"), "a name that is known needs no room");
        let read = |name: &str| names.read(name, |count| count.load(Relaxed));
        assert_eq!(["a", "b", "c"].map(read), [Some(2), Some(2), None]);
        let after = |last, max| names.names_after(last, max).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (after(Bound::Unbounded, 1), after(Bound::Excluded("a"), 9)),
            (vec!["a".to_owned()], vec!["b".to_owned()])
        );
        assert_eq!(room.taken(), 3);
    }

    #[test]
    fn a_name_that_is_too_long_has_no_room() {
        let (room, names) = (Room::new(3), Dynamic::<AtomicU64>::default());
        assert!(names.count("x".repeat(NAME_BYTES_MAX).as_bytes(), &room, |_| {}));
        assert!(!names.count("x".repeat(NAME_BYTES_MAX + 1).as_bytes(), &room, |_| {}));
        assert_eq!(room.taken(), 1);
    }
}
