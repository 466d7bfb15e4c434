//! A bounded map that forgets what has not been used for longest, in two generations.

use std::borrow::Borrow;
use std::hash::Hash;

use hashbrown::HashMap;

/// Recently used entries: at least the last `generation_max`, and at most twice as many. When the new generation is full,
/// the old one is dropped.
pub(super) struct Generations<K, V> {
    new: HashMap<K, V>,
    old: HashMap<K, V>,
    generation_max: usize,
}

impl<K: Eq + Hash, V: Clone> Generations<K, V> {
    pub(super) fn new(generation_max: usize) -> Self {
        Self { new: HashMap::default(), old: HashMap::default(), generation_max }
    }

    pub(super) fn find<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some(value) = self.new.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.add(key, value.clone());
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        self.add(key, value);
    }

    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.new.remove(key);
        self.old.remove(key);
    }

    pub(super) fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    fn add(&mut self, key: K, value: V) {
        if self.new.len() >= self.generation_max && !self.new.contains_key(&key) {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(key, value);
    }
}
