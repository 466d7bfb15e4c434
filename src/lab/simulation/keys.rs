//! The keys with most requests and most denials.
//!
//! Each key is counted from its first request on, up to a maximum number of keys. Later keys are counted together. So
//! the counts of a key are exact, and the total of all others is known.

use hashbrown::HashMap;
use serde::Serialize;

/// The most keys that are counted separately, for each set of policies.
pub const KEYS_MAX: usize = 200_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Requests that charged or peeked.
    pub requests: u64,
    pub over: u64,
    pub hits: u64,
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

#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    counts: HashMap<Box<str>, (u32, Count)>,
    /// Keys beyond the maximum.
    others: Count,
}

impl Keys {
    pub(super) fn add(&mut self, key: &str, limit: u32, hits: u64, is_over: bool) {
        if let Some((_, count)) = self.counts.get_mut(key) {
            count.add(hits, is_over);
        } else if self.counts.len() < KEYS_MAX {
            let mut count = Count::default();
            count.add(hits, is_over);
            self.counts.insert(key.into(), (limit, count));
        } else {
            self.others.add(hits, is_over);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn others(&self) -> Count {
        self.others
    }

    /// The first keys in this order: most requests over the limit, most requests, text.
    pub(super) fn top(&self, most: usize) -> Vec<(&str, u32, Count)> {
        let mut all: Vec<(&str, u32, Count)> =
            self.counts.iter().map(|(key, (limit, count))| (&**key, *limit, *count)).collect();
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
        assert_eq!(keys.len(), KEYS_MAX);
        assert_eq!(keys.others(), Count { requests: 11, over: 1, hits: 12, hits_over: 2 });
        let top = keys.top(2);
        assert_eq!(top[0], ("k7", 0, Count { requests: 2, over: 1, hits: 6, hits_over: 5 }));
        assert_eq!(top[1].0, "k0");
        assert_eq!(keys.top(KEYS_MAX + 1).len(), KEYS_MAX);
    }
}
