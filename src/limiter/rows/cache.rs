//! A bounded cache of the rows of a store that processes share. The store compares each row in the decision that uses it. [rw-2]
//!
//! Not here: reading and writing these rows (stores.rs, place.rs), and the rows of a process (process.rs).

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::Mutex;
use weir_engine::Micros;

use super::row::KnownRow;

/// The most rows of a store in the cache, including the absence of rows. A customer whose row was evicted costs one
/// more call at the next request.
const ROWS_KNOWN_MAX: usize = 200_000;
/// How long a row that has ended by the clock of this process stays in force after the store has found it in force.
const STORE_BEHIND_US: Micros = 1_000_000;
/// The number of parts with their own locks, which makes it rare for cores to wait for each other.
const SHARDS: usize = 16;

#[derive(Default)]
pub struct RowCache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: DefaultHashBuilder,
}

/// Recently used rows, in two generations. When the first is full, the second is dropped.
#[derive(Default)]
struct Shard {
    new: HashMap<Box<str>, KnownRow>,
    old: HashMap<Box<str>, KnownRow>,
}

impl RowCache {
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    fn shard(&self, key: &str) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    pub(crate) fn find(&self, key: &str) -> Option<KnownRow> {
        self.shard(key).lock().find(key)
    }

    pub(crate) fn insert(&self, key: &str, row: KnownRow) {
        self.shard(key).lock().insert(key, row);
    }

    /// Removes a row from the cache, so that weir reads it before the next decision.
    pub(crate) fn forget(&self, key: &str) {
        let mut shard = self.shard(key).lock();
        shard.new.remove(key);
        shard.old.remove(key);
    }

    /// Compares a row with the version that the store has found in force. Forgets another row. A row that has ended by the
    /// clock of this process only is then in force for a while: the clock of the store counts. [rw-4]
    pub(crate) fn found(&self, key: &str, version: u64, now: Micros) {
        let mut shard = self.shard(key).lock();
        match shard.find(key) {
            Some(row) if row.version != version => drop(shard.new.remove(key)),
            Some(KnownRow { until: Some(until), .. }) if until <= now => {
                if let Some(row) = shard.new.get_mut(key) {
                    row.until = Some(now.saturating_add(STORE_BEHIND_US));
                }
            }
            Some(_) | None => {}
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
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
        let rows = RowCache::default();
        let row = |version| KnownRow { version, ..KnownRow::default() };
        rows.insert("often", row(1));
        for n in 0..3 * ROWS_KNOWN_MAX {
            rows.insert(&format!("k{n}"), row(2));
            if n % 1_000 == 0 {
                assert_eq!(rows.find("often"), Some(row(1)), "after {n} others");
            }
        }
        assert!((ROWS_KNOWN_MAX / 2..=ROWS_KNOWN_MAX).contains(&rows.len()), "{}", rows.len());
        assert_eq!(rows.find("k0"), None, "the oldest is forgotten");
        rows.found("often", 1, 5);
        assert_eq!(rows.find("often"), Some(row(1)));
        rows.insert("often", KnownRow { until: Some(5), ..row(1) });
        for (now, until) in [(4, 5), (5, 5 + STORE_BEHIND_US)] {
            rows.found("often", 1, now);
            assert_eq!(rows.find("often"), Some(KnownRow { until: Some(until), ..row(1) }), "at {now}");
        }
        rows.found("often", 2, 5);
        assert_eq!(rows.find("often"), None);
        rows.insert("often", row(1));
        rows.forget("often");
        assert_eq!(rows.find("often"), None);
    }
}
