//! A bounded cache of the rows of a store that processes share. The store compares each row in the decision that uses it. [rw-2]
//!
//! Not here: reading and writing these rows (stores.rs, place.rs), and the rows of a process (process.rs).

use std::hash::BuildHasher as _;

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use weir_engine::Micros;
use weir_lifecycle::MemoryPart;

use super::generations::Generations;
use super::row::KnownRow;

/// The most rows of a store in the cache, and the most descriptors without a row; fewer if the memory of the process is
/// small. Callers can name any number of descriptors without a row, so these never replace rows. What was evicted costs one
/// more call at the next request.
const ROWS_KNOWN_MAX: usize = 130_000;
/// The least number of either.
const ROWS_KNOWN_MIN: usize = 1_024;
/// What a usual row and its key take in the cache.
const ROW_BYTES: usize = 256;
/// What a usual key of a descriptor without a row takes. The longest takes about three times that.
const ABSENT_BYTES: usize = 128;
/// How long a row that has ended by the clock of this process stays in force after the store has found it in force.
const STORE_BEHIND_US: Micros = 1_000_000;
/// The number of parts with their own locks, which makes it rare for cores to wait for each other.
const SHARDS: usize = 16;

pub(crate) struct RowCache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: DefaultHashBuilder,
}

/// A key is in one of the two at most.
struct Shard {
    rows: Generations<Box<str>, KnownRow>,
    absent: Generations<Box<str>, ()>,
}

impl Default for RowCache {
    /// Half of the memory for rows, a quarter for descriptors without one. Limits of rows have the rest.
    fn default() -> Self {
        let bytes = MemoryPart::ROWS.bytes();
        Self::with_room(bytes / 2, bytes / 4)
    }
}

impl RowCache {
    /// A cache that takes at most about so many bytes for rows, and for descriptors without a row.
    fn with_room(rows_bytes: usize, absent_bytes: usize) -> Self {
        let generation_max = |most: usize| most.clamp(ROWS_KNOWN_MIN, ROWS_KNOWN_MAX) / SHARDS / 2;
        let shard = || Shard {
            rows: Generations::new(generation_max(rows_bytes / ROW_BYTES)),
            absent: Generations::new(generation_max(absent_bytes / ABSENT_BYTES)),
        };
        Self { shards: std::array::from_fn(|_| Mutex::new(shard())), hasher: DefaultHashBuilder::default() }
    }

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
        self.shard(key).lock().forget(key);
    }

    /// Compares a row with the version that the store has found in force. Forgets another row. A row that has ended by the
    /// clock of this process only is then in force for a while: the clock of the store counts. [rw-4]
    pub(crate) fn found(&self, key: &str, version: u64, now: Micros) {
        let mut shard = self.shard(key).lock();
        match shard.find(key) {
            Some(row) if row.version != version => shard.forget(key),
            Some(row) if row.until.is_some_and(|until| until <= now) => {
                let until = Some(now.saturating_add(STORE_BEHIND_US));
                shard.rows.insert(key.into(), KnownRow { until, ..row });
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
        self.rows.find(key).or_else(|| self.absent.find(key).map(|()| KnownRow::default()))
    }

    fn insert(&mut self, key: &str, row: KnownRow) {
        self.forget(key);
        match row.version {
            0 => self.absent.insert(key.into(), ()),
            _ => self.rows.insert(key.into(), row),
        }
    }

    fn forget(&mut self, key: &str) {
        self.rows.remove(key);
        self.absent.remove(key);
    }

    fn len(&self) -> usize {
        self.rows.len() + self.absent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(version: u64) -> KnownRow {
        KnownRow { version, ..KnownRow::default() }
    }

    fn count(rows: &RowCache, found: &KnownRow, keys: impl Iterator<Item = String>) -> usize {
        keys.filter(|key| rows.find(key).as_ref() == Some(found)).count()
    }

    #[test]
    fn a_process_of_little_memory_keeps_fewer_rows() {
        let rows = RowCache::with_room(4_096 * ROW_BYTES, 2_048 * ABSENT_BYTES);
        for n in 0..20_000 {
            rows.insert(&format!("k{n}"), row(1));
        }
        assert!((2_048..=4_096).contains(&rows.len()), "{}", rows.len());
        let of_rows = rows.len();
        for n in 0..20_000 {
            rows.insert(&format!("a{n}"), KnownRow::default());
        }
        assert!((1_024..=2_048).contains(&(rows.len() - of_rows)), "{}", rows.len());
    }

    /// Descriptors that callers make up pushed the rows of paying customers out.
    #[test]
    fn descriptors_without_a_row_do_not_replace_rows() {
        let rows = RowCache::with_room(usize::MAX, usize::MAX);
        let customers = || (0..1_000).map(|n| format!("customer{n}"));
        customers().for_each(|key| rows.insert(&key, row(1)));
        let absent = || (0..3 * ROWS_KNOWN_MAX).map(|n| format!("madeup{n}"));
        absent().for_each(|key| rows.insert(&key, KnownRow::default()));
        assert_eq!(count(&rows, &row(1), customers()), 1_000);
        let kept = rows.len() - 1_000;
        assert!((ROWS_KNOWN_MAX / 2..=ROWS_KNOWN_MAX).contains(&kept), "{kept}");
        // Nor the other way round: the last without a row are known.
        let last = || absent().skip(3 * ROWS_KNOWN_MAX - 1_000);
        (0..3 * ROWS_KNOWN_MAX).for_each(|n| rows.insert(&format!("k{n}"), row(2)));
        assert_eq!(count(&rows, &KnownRow::default(), last()), 1_000);
    }

    #[test]
    fn a_descriptor_has_a_row_or_none() {
        let rows = RowCache::with_room(0, 0);
        for version in [0, 1, 0, 2] {
            rows.insert("k", row(version));
            assert_eq!((rows.find("k"), rows.len()), (Some(row(version)), 1));
        }
        rows.insert("k", row(0));
        rows.found("k", 3, 5);
        assert_eq!((rows.find("k"), rows.len()), (None, 0), "the store has a row now");
    }

    #[test]
    fn what_is_used_stays_known_and_the_cache_is_bounded() {
        let rows = RowCache::with_room(usize::MAX, usize::MAX);
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
