//! Which keys ask and are denied most.
//!
//! Each key is counted from its first request on, up to a bound; keys that come after so many others are counted
//! together. So what is shown of a key is exact, and what could be missing is known.
//!
//! The counts of many keys do not fit into the caches next to the processor, and a request cannot be decided before the one before it is.
//! So requests wait until there are some, and are counted together: then the memory of one is fetched while others are looked up.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};
use serde::Serialize;

/// The most keys that are counted one by one, for each set of policies.
pub const KEYS_MAX: usize = 200_000;
/// How many requests are counted together.
const BATCH: usize = 32;

/// What was asked of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Requests that charged it, or looked at it.
    pub requests: u64,
    /// Those of them that it had no room for.
    pub over: u64,
    /// Hits that they asked for.
    pub hits: u64,
    /// Hits that it had no room for.
    pub hits_over: u64,
}

impl Count {
    pub(super) fn add(&mut self, hits: u64, is_over: bool) {
        self.requests += 1;
        self.hits += hits;
        if is_over {
            self.over += 1;
            self.hits_over += hits;
        }
    }
}

/// The keys of states.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    hasher: DefaultHashBuilder,
    index: HashTable<u32>,
    entries: Vec<Entry>,
    /// Keys that came later than the bound.
    others: Count,
    waiting: Vec<Waiting>,
    /// The keys of those that wait, one behind the other.
    waiting_keys: String,
}

/// A key. It fills one line of a cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry {
    key: Box<str>,
    hash: u64,
    limit: u32,
    count: Count,
}

const _: () = assert!(size_of::<Entry>() == 64, "an entry fills one cache line");

/// A request that is not counted yet.
#[derive(Clone, Debug)]
struct Waiting {
    hash: u64,
    /// Where its key ends.
    end: usize,
    limit: u32,
    is_over: bool,
    hits: u64,
}

impl Keys {
    pub(super) fn add(&mut self, key: &str, limit: u32, hits: u64, is_over: bool) {
        let hash = self.hasher.hash_one(key);
        self.waiting_keys.push_str(key);
        self.waiting.push(Waiting { hash, end: self.waiting_keys.len(), limit, is_over, hits });
        if self.waiting.len() >= BATCH {
            self.count();
        }
    }

    /// Counts those that wait.
    pub(super) fn count(&mut self) {
        let mut found = [None; BATCH];
        for (found, Waiting { hash, .. }) in found.iter_mut().zip(&self.waiting) {
            *found = self.index.find(*hash, |&at| self.entries[at as usize].hash == *hash).copied();
        }
        let (waiting, keys) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.waiting_keys));
        let mut start = 0;
        for (found, one) in found.into_iter().zip(&waiting) {
            let key = &keys[start..one.end];
            start = one.end;
            // Another key may have the same hash, and an earlier one of these may have been the first of its key.
            let is_it = |at: &u32| *self.entries[*at as usize].key == *key;
            let at = found.filter(is_it).or_else(|| self.index.find(one.hash, is_it).copied());
            match at {
                Some(at) => self.entries[at as usize].count.add(one.hits, one.is_over),
                None => self.insert(key, one),
            }
        }
        (self.waiting, self.waiting_keys) = (waiting, keys);
        self.waiting.clear();
        self.waiting_keys.clear();
    }

    fn insert(&mut self, key: &str, one: &Waiting) {
        let Some(at) = u32::try_from(self.entries.len()).ok().filter(|at| (*at as usize) < KEYS_MAX) else {
            self.others.add(one.hits, one.is_over);
            return;
        };
        let mut count = Count::default();
        count.add(one.hits, one.is_over);
        self.entries.push(Entry { key: key.into(), hash: one.hash, limit: one.limit, count });
        self.index.insert_unique(one.hash, at, |&at| self.entries[at as usize].hash);
    }

    /// How many keys are counted one by one. Those that wait do not count here, nor in what follows.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn others(&self) -> Count {
        self.others
    }

    /// So many keys that were over their limits most, then those that asked most; of equals by their text.
    pub(super) fn top(&self, most: usize) -> Vec<(&str, u32, Count)> {
        let mut all: Vec<(&str, u32, Count)> =
            self.entries.iter().map(|entry| (&*entry.key, entry.limit, entry.count)).collect();
        let order = |one: &(&str, u32, Count), other: &(&str, u32, Count)| {
            (other.2.over, other.2.requests, one.0).cmp(&(one.2.over, one.2.requests, other.0))
        };
        if all.len() > most {
            all.select_nth_unstable_by(most, order);
            all.truncate(most);
        }
        all.sort_unstable_by(order);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_past_the_bound_are_counted_together_and_those_before_exactly() {
        let mut keys = Keys::default();
        for number in 0..KEYS_MAX + 10 {
            keys.add(&format!("k{number}"), 0, 1, false);
        }
        keys.add("k7", 0, 5, true);
        keys.add("late", 0, 2, true);
        keys.count();
        assert_eq!(keys.len(), KEYS_MAX);
        assert_eq!(keys.others(), Count { requests: 11, over: 1, hits: 12, hits_over: 2 });
        let top = keys.top(2);
        assert_eq!(top[0], ("k7", 0, Count { requests: 2, over: 1, hits: 6, hits_over: 5 }));
        assert_eq!(top[1].0, "k0");
        assert_eq!(keys.top(KEYS_MAX + 1).len(), KEYS_MAX);
    }

    #[test]
    fn requests_that_wait_are_counted_each_by_its_key() {
        // Keys come first, and again, within a batch, on its edges and over several.
        for distinct in [1, 2, BATCH - 1, BATCH, BATCH + 1, 5 * BATCH + 3] {
            let mut keys = Keys::default();
            let mut expected = std::collections::BTreeMap::new();
            for number in 0..3 * distinct + BATCH / 2 {
                let (key, is_over) = (format!("k{}", number * number % distinct), number % 3 == 0);
                keys.add(&key, 7, number as u64, is_over);
                expected.entry(key).or_insert_with(Count::default).add(number as u64, is_over);
            }
            keys.count();
            keys.count();
            let top = keys.top(KEYS_MAX);
            assert!(top.iter().all(|(_, limit, _)| *limit == 7));
            let counted = top.into_iter().map(|(key, _, count)| (key.to_owned(), count)).collect();
            assert_eq!(expected, counted, "{distinct}");
        }
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut keys = Keys::default();
        for key in ["a", "b", "a", "c", "b", "a"] {
            keys.waiting_keys.push_str(key);
            let end = keys.waiting_keys.len();
            keys.waiting.push(Waiting { hash: 1, end, limit: 0, is_over: false, hits: 1 });
            // In one batch, and one by one.
            if key == "c" {
                keys.count();
            }
        }
        keys.count();
        let counts: Vec<_> = keys.top(9).into_iter().map(|(key, _, count)| (key, count.requests)).collect();
        assert_eq!(counts, [("a", 3), ("b", 2), ("c", 1)]);
    }
}
