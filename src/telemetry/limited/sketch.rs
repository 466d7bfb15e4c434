//! The most frequent keys of a stream, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi, 2005).
//!
//! A sketch of m keys over N occurrences has every key that occurs more than N/m times. No count is too low, and none is more than
//! N/m too high. Not here: the sketches of each minute, limit and core (recorder.rs).

use std::sync::Arc;

use weir_engine::RowContent;

pub const KEYS_MAX: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) key: String,
    /// Occurrences. Too high by at most `error`.
    pub(super) count: u32,
    /// The count of the key that this key replaced.
    pub(super) error: u32,
    /// Its first occurrence since then, in milliseconds since the Unix epoch.
    pub(super) first_ms: u64,
    /// Its last occurrence.
    pub(super) last_ms: u64,
    /// The row that counted at its last occurrence.
    pub(super) row: Option<Arc<RowContent>>,
}

/// The most frequent keys.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    /// In the order of `keys`. Separate, so that a search reads few cache lines.
    hashes: [u64; KEYS_MAX],
    counts: [u32; KEYS_MAX],
    len: usize,
    /// The keys after `len` are unused. Their buffers are reused.
    keys: Vec<Counted>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { hashes: [0; KEYS_MAX], counts: [0; KEYS_MAX], len: 0, keys: Vec::new() }
    }
}

impl Sketch {
    /// Counts one occurrence of a key, whose hash is `hash`.
    pub(super) fn add(&mut self, hash: u64, key: &str, row: Option<&Arc<RowContent>>, now_ms: u64) {
        let same = |at: &usize| self.hashes[*at] == hash && self.keys[*at].key == key;
        let (at, count, error) = match (0..self.len).find(same) {
            Some(at) => (at, self.counts[at], None),
            None if self.len < KEYS_MAX => {
                self.len += 1;
                (self.len - 1, 0, Some(0))
            }
            None => {
                let at = self.least();
                (at, self.counts[at], Some(self.counts[at]))
            }
        };
        if self.keys.len() < self.len {
            self.keys.push(Counted::default());
        }
        self.counts[at] = count.saturating_add(1);
        let counted = &mut self.keys[at];
        if let Some(error) = error {
            self.hashes[at] = hash;
            counted.key.clear();
            counted.key.push_str(key);
            (counted.error, counted.first_ms) = (error, now_ms);
        }
        (counted.count, counted.last_ms) = (self.counts[at], now_ms);
        counted.row = row.cloned();
    }

    /// The most occurrences of a key outside of the sketch.
    pub(super) fn missed_max(&self) -> u32 {
        if self.len < KEYS_MAX { 0 } else { self.counts[self.least()] }
    }

    pub(super) fn keys(&self) -> &[Counted] {
        &self.keys[..self.len]
    }

    /// Removes all keys. Their buffers are reused.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// The position of the smallest count.
    fn least(&self) -> usize {
        let mut least = 0;
        for at in 1..self.len {
            if self.counts[at] < self.counts[least] {
                least = at;
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};

    use proptest::prelude::*;

    use super::*;

    fn hash(key: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn add(sketch: &mut Sketch, key: &str, now_ms: u64) {
        sketch.add(hash(key), key, None, now_ms);
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut sketch = Sketch::default();
        for (now, key) in ["ann", "bob", "ann", "ann"].into_iter().enumerate() {
            add(&mut sketch, key, now as u64);
        }
        let counted = |key: &str, count, first_ms, last_ms| Counted {
            key: key.into(),
            count,
            error: 0,
            first_ms,
            last_ms,
            row: None,
        };
        assert_eq!(sketch.keys(), [counted("ann", 3, 0, 3), counted("bob", 1, 1, 1)]);
        assert_eq!(sketch.missed_max(), 0);
        sketch.clear();
        assert!(sketch.keys().is_empty());
        add(&mut sketch, "eve", 9);
        assert_eq!(sketch.keys(), [counted("eve", 1, 9, 9)]);
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut sketch = Sketch::default();
        sketch.add(7, "ann", None, 0);
        sketch.add(7, "bob", None, 0);
        assert_eq!(sketch.keys().len(), 2);
    }

    proptest! {
        #[test]
        fn no_count_is_too_low_and_none_higher_than_its_error(
            stream in proptest::collection::vec(prop_oneof![0_u32..5, 0_u32..500], 0..2_000),
        ) {
            let mut sketch = Sketch::default();
            let mut exact = BTreeMap::<String, u32>::new();
            for number in &stream {
                let key = format!("user-{number}");
                add(&mut sketch, &key, 0);
                *exact.entry(key).or_default() += 1;
            }
            let bound = stream.len() / KEYS_MAX;
            prop_assert!(sketch.keys().len() <= KEYS_MAX && sketch.missed_max() as usize <= bound);
            for counted in sketch.keys() {
                let count = exact[&counted.key];
                prop_assert!(counted.count >= count && counted.count - counted.error <= count, "{counted:?} of {count}");
                prop_assert!(counted.error as usize <= bound);
            }
            for (key, count) in exact {
                let is_there = sketch.keys().iter().any(|counted| counted.key == key);
                prop_assert!(is_there || count <= sketch.missed_max(), "{key} {count}");
            }
        }
    }
}
