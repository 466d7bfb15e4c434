//! The embedded store: sharded, bounded, all-or-nothing across keys. [me-1]
//!
//! A key lives in one shard; a decision locks the shards of all its keys, always in ascending order, and calls the
//! engine under those locks. A plain mutex is right: nothing is awaited while it is held. Expired states are not swept
//! in one go: an insertion looks at two entries, and eviction at a small sample.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::{Clock, Peeked, Reply, Store, StoreError, Undo};
use crate::engine::algorithm::fixed_window::Counter;
use crate::engine::algorithm::{self, Effect, Next};
use crate::engine::decision;
use crate::engine::{Bounds, Charge, Decision, Hits, Limit, Micros, Mode, Observer, State};

/// The most shards. More than the cores of any pod, so that two decisions seldom meet in one.
const SHARDS_MAX: usize = 64;
/// The fewest keys a shard is made for: below that, a sample of one shard would say little about the store.
const SHARD_KEYS_MIN: usize = 128;
/// How many states an eviction compares.
const EVICTION_SAMPLE: usize = 16;
/// How many entries an eviction reads at most to find its sample.
const EVICTION_SCAN: usize = 64;
/// How many entries each insertion checks for expiry.
const SWEEP: usize = 2;
/// A shard's list gives memory back when it is larger than this and three quarters empty.
const SHRINK_ABOVE: usize = 1_024;

/// States in this process's memory: lost when it ends, not shared with other replicas. [ex-2]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    hasher: DefaultHashBuilder,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
}

impl Memory {
    /// A store of at most `keys_max` keys (at least 1).
    #[must_use]
    pub fn new(keys_max: usize, clock: Arc<dyn Clock>, observer: Arc<dyn Observer>) -> Self {
        let keys_max = keys_max.max(1);
        let mut count = 1;
        while count < SHARDS_MAX && keys_max / (count * 2) >= SHARD_KEYS_MIN {
            count *= 2;
        }
        let hasher = DefaultHashBuilder::default();
        let shards =
            (0..count).map(|number| Mutex::new(Shard::new(keys_max / count, hasher.hash_one(number)))).collect();
        Self { shards, hasher, clock, observer }
    }

    fn hash(&self, key: &str) -> u32 {
        // Half of the bits tell keys apart well enough; equal hashes only cost a comparison.
        (self.hasher.hash_one(key) >> 32) as u32
    }

    fn shard_of(&self, hash: u32) -> usize {
        hash as usize & (self.shards.len() - 1)
    }

    /// Locks the shards of these hashes, in ascending order. [me-1]
    fn lock(&self, hashes: &[u32]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 4]> = hashes.iter().map(|&hash| self.shard_of(hash)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.shards[number].lock())).collect()
    }

    fn decide_now(&self, charges: &[Charge<'_>], mode: Mode) -> Result<Decision, StoreError> {
        let (places, firsts) = decision::places(charges);
        let hashes: SmallVec<[u32; 4]> =
            firsts.iter().map(|&first| self.hash(charges[usize::from(first)].key)).collect();
        let mut locked = self.lock(&hashes);
        // Read under the locks, so that the decisions on one key see time in the order in which they are made.
        let now = self.clock.now();

        let read = |at: u16| {
            let (hash, key) = (hashes[usize::from(at)], charges[usize::from(firsts[usize::from(at)])].key);
            let number = self.shard_of(hash);
            let (_, shard) = locked.iter().find(|(other, _)| *other == number)?;
            shard.live(key, hash, now)
        };
        let decided = decision::decide(charges, &places, read, mode, now);
        let (decision, effects) = decided.map_err(|decision::Rewindow| StoreError::Rewindow { now })?;
        for ((charge, &at), effect) in charges.iter().zip(&places).zip(effects) {
            if effect == Effect::Nothing {
                continue;
            }
            let hash = hashes[usize::from(at)];
            let place =
                Place { key: charge.key, hash, share: charge.share, limit: charge.limit, bounds: charge.bounds };
            shard(&mut locked, self.shard_of(hash)).change(&place, now, &*self.observer, |state| {
                algorithm::apply(charge.limit, state, effect, charge.bounds, now)
            });
        }
        Ok(decision)
    }

    fn undo_now(&self, undo: &Undo<'_>) {
        let hash = self.hash(undo.key);
        let mut locked = self.lock(&[hash]);
        let now = self.clock.now();
        let shard = shard(&mut locked, self.shard_of(hash));
        if shard.live(undo.key, hash, now).is_none() {
            return;
        }
        let share = shard.share(undo.key, hash);
        let place = Place { key: undo.key, hash, share, limit: undo.limit, bounds: undo.bounds };
        shard.change(&place, now, &*self.observer, |state| {
            algorithm::undone(undo.limit, state, undo.receipt, undo.bounds, now)
        });
    }
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode, _deadline: Instant) -> Reply<'a, Decision> {
        Reply::Ready(self.decide_now(charges, mode))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], _deadline: Instant) -> Reply<'a, ()> {
        for undo in charges {
            self.undo_now(undo);
        }
        Reply::Ready(Ok(()))
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], _deadline: Instant) -> Reply<'a, u64> {
        let now = self.clock.now();
        let mut count = 0;
        for key in keys {
            let hash = self.hash(key);
            let mut shard = self.shards[self.shard_of(hash)].lock();
            let live = shard.live(key, hash, now).is_some();
            shard.remove(key, hash);
            count += u64::from(live);
        }
        Reply::Ready(Ok(count))
    }

    fn peek<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], _deadline: Instant) -> Reply<'a, Peeked> {
        let hashes: SmallVec<[u32; 4]> = keys.iter().map(|(key, _)| self.hash(key)).collect();
        let mut locked = self.lock(&hashes);
        let now = self.clock.now();
        let states = keys
            .iter()
            .zip(&hashes)
            .map(|((key, _), &hash)| shard(&mut locked, self.shard_of(hash)).live(key, hash, now).cloned())
            .collect();
        Reply::Ready(Ok(Peeked { now, states }))
    }

    fn ping(&self, _deadline: Instant) -> Reply<'_, ()> {
        Reply::Ready(Ok(()))
    }

    fn supports(&self, _limit: &Limit) -> Result<(), String> {
        Ok(())
    }

    fn is_immediate(&self) -> bool {
        true
    }

    fn keys(&self) -> Option<u64> {
        Some(self.shards.iter().map(|shard| shard.lock().entries.len() as u64).sum())
    }
}

/// The locked shards of one decision, by number.
type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

fn shard<'l>(locked: &'l mut Locked<'_>, number: usize) -> &'l mut Shard {
    let found = locked.iter_mut().find(|(other, _)| *other == number);
    let (_, shard) = found.unwrap_or_else(|| unreachable!("shard {number} was locked"));
    shard
}

/// Stands in an entry while its state is worked on.
const MOVED_OUT: State = State::FixedWindow(Counter { window: 0, count: 0 });

/// One stored state. Its limit is not kept: what eviction needs of it is.
struct Entry {
    key: Box<str>,
    state: State,
    /// When the state equals an empty one, by the store's clock.
    expires_at: Micros,
    /// The hits in the state when it was written, at most the capacity.
    used: Hits,
    /// The most hits that its limit can hold.
    capacity: Hits,
    /// The rule whose portion of the store it uses.
    share: u32,
    hash: u32,
}

impl Entry {
    /// What eviction prefers, smallest first: expired, then not full, then little used, then soon reset. [me-3]
    fn rank(&self, now: Micros) -> (u8, u64, Micros) {
        if self.expires_at <= now {
            return (0, 0, self.expires_at);
        }
        let full = self.used >= self.capacity;
        let used = (u64::from(self.used) << 32) / u64::from(self.capacity.max(1));
        (1 + u8::from(full), used, self.expires_at)
    }
}

/// Where a state is to be stored, and under which limit.
struct Place<'a> {
    key: &'a str,
    hash: u32,
    share: u32,
    limit: &'a Limit,
    bounds: Option<Bounds>,
}

/// A list of entries and an index into it, so that a sample is a run of the list.
struct Shard {
    index: HashTable<u32>,
    entries: Vec<Entry>,
    keys_max: usize,
    /// How many entries each rule has here.
    shares: HashMap<u32, usize>,
    /// Where the next look for expired entries starts.
    sweep_at: usize,
    /// The state of a small generator (splitmix64), which picks where samples start.
    random: u64,
}

impl Shard {
    fn new(keys_max: usize, seed: u64) -> Self {
        Self {
            index: HashTable::new(),
            entries: Vec::new(),
            // Entries are numbered by u32.
            keys_max: keys_max.min(u32::MAX as usize),
            shares: HashMap::new(),
            sweep_at: 0,
            random: seed,
        }
    }

    fn find(&self, key: &str, hash: u32) -> Option<usize> {
        let at = self.index.find(spread(hash), |&at| {
            let entry = &self.entries[at as usize];
            entry.hash == hash && *entry.key == *key
        })?;
        Some(*at as usize)
    }

    /// The state of a key, unless it has expired. [me-2]
    fn live(&self, key: &str, hash: u32, now: Micros) -> Option<&State> {
        let entry = &self.entries[self.find(key, hash)?];
        (entry.expires_at > now).then_some(&entry.state)
    }

    fn share(&self, key: &str, hash: u32) -> u32 {
        self.find(key, hash).map_or(0, |at| self.entries[at].share)
    }

    /// Replaces the state of a key by what `next` makes of it, in place: a state may be long.
    fn change(
        &mut self,
        place: &Place<'_>,
        now: Micros,
        observer: &dyn Observer,
        next: impl FnOnce(Option<State>) -> Next,
    ) {
        let at = self.find(place.key, place.hash);
        let state = at.filter(|&at| self.entries[at].expires_at > now);
        let state = state.map(|at| std::mem::replace(&mut self.entries[at].state, MOVED_OUT));
        match (at, next(state)) {
            (Some(at), Next::Kept(Some(state))) => self.entries[at].state = state,
            (Some(at), Next::Put(state)) => self.write(at, place, state, now),
            (None, Next::Put(state)) => {
                let at = self.insert(place, now, observer);
                self.write(at, place, state, now);
            }
            (Some(at), Next::Gone) => self.remove_at(at),
            (_, Next::Kept(_)) | (None, Next::Gone) => {}
        }
    }

    /// Makes an entry without a state yet.
    #[expect(clippy::cast_possible_truncation, reason = "entries are numbered by u32, see Shard::new")]
    fn insert(&mut self, place: &Place<'_>, now: Micros, observer: &dyn Observer) -> usize {
        self.sweep(now);
        if self.entries.len() >= self.keys_max {
            self.evict(place.share, now, observer);
        }
        *self.shares.entry(place.share).or_insert(0) += 1;
        let at = self.entries.len();
        let (key, hash, share) = (place.key.into(), place.hash, place.share);
        self.entries.push(Entry { key, state: MOVED_OUT, expires_at: 0, used: 0, capacity: 0, share, hash });
        let entries = &self.entries;
        self.index.insert_unique(spread(hash), at as u32, |&at| spread(entries[at as usize].hash));
        at
    }

    fn write(&mut self, at: usize, place: &Place<'_>, state: State, now: Micros) {
        let before = self.entries[at].share;
        if before != place.share {
            self.leave(before);
            *self.shares.entry(place.share).or_insert(0) += 1;
        }
        let seen = algorithm::as_written(place.limit, &state, place.bounds, now);
        let capacity = place.limit.capacity();
        let entry = &mut self.entries[at];
        entry.state = state;
        entry.expires_at = now + seen.reset_after(place.limit, now);
        entry.used = capacity - seen.remaining(place.limit, now).min(capacity);
        entry.capacity = capacity;
        entry.share = place.share;
    }

    fn remove(&mut self, key: &str, hash: u32) {
        if let Some(at) = self.find(key, hash) {
            self.remove_at(at);
        }
    }

    /// Removes an entry; the last one takes its number.
    #[expect(clippy::cast_possible_truncation, reason = "entries are numbered by u32, see Shard::new")]
    fn remove_at(&mut self, at: usize) {
        let last = self.entries.len() - 1;
        let hash = self.entries[at].hash;
        if let Ok(entry) = self.index.find_entry(spread(hash), |&n| n as usize == at) {
            entry.remove();
        }
        if at != last {
            let moved = self.entries[last].hash;
            if let Some(number) = self.index.find_mut(spread(moved), |&n| n as usize == last) {
                *number = at as u32;
            }
        }
        let gone = self.entries.swap_remove(at);
        self.leave(gone.share);
        if self.entries.capacity() > SHRINK_ABOVE && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
            let entries = &self.entries;
            self.index.shrink_to(entries.len() * 2, |&at| spread(entries[at as usize].hash));
        }
    }

    fn leave(&mut self, share: u32) {
        if let Some(count) = self.shares.get_mut(&share) {
            *count -= 1;
            if *count == 0 {
                self.shares.remove(&share);
            }
        }
    }

    /// Drops the next few entries that have expired, so that what nobody asks for again goes too.
    fn sweep(&mut self, now: Micros) {
        for _ in 0..SWEEP {
            if self.sweep_at >= self.entries.len() {
                self.sweep_at = 0;
            }
            match self.entries.get(self.sweep_at) {
                Some(entry) if entry.expires_at <= now => self.remove_at(self.sweep_at),
                Some(_) => self.sweep_at += 1,
                None => return,
            }
        }
    }

    /// Makes room for one entry of `share`. [me-3] [me-4]
    ///
    /// Only rules that hold at least their portion of the shard give entries up, so that a flood on one rule costs the
    /// others nothing; among the sample, the least valuable entry goes.
    fn evict(&mut self, share: u32, now: Micros, observer: &dyn Observer) {
        let newcomer = usize::from(!self.shares.contains_key(&share));
        let portion = self.keys_max / (self.shares.len() + newcomer);
        // Spread over the whole shard, one look somewhere in each stretch of it: the keys of a rule that came together lie
        // side by side, and may all be within their portion.
        let stretch = (self.entries.len() / EVICTION_SCAN).max(1);
        let start = self.next_random(self.entries.len());
        let mut chosen = start;
        let mut chosen_rank = None;
        let mut sampled = 0;
        for step in 0..self.entries.len().min(EVICTION_SCAN) {
            let at = (start + step * stretch + self.next_random(stretch)) % self.entries.len();
            let entry = &self.entries[at];
            let held = self.shares.get(&entry.share).copied().unwrap_or(0);
            let within_portion = held + usize::from(entry.share == share) <= portion;
            let rank = (within_portion && entry.expires_at > now, entry.rank(now));
            if chosen_rank.is_none_or(|best| rank < best) {
                (chosen, chosen_rank) = (at, Some(rank));
            }
            sampled += usize::from(!within_portion);
            if sampled == EVICTION_SAMPLE {
                break;
            }
        }
        let entry = &self.entries[chosen];
        if entry.expires_at > now {
            observer.evicted(entry.used);
        }
        self.remove_at(chosen);
    }

    /// A number below `bound`.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a usize")]
    fn next_random(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// The 64 bits that the index wants, of the 32 that an entry keeps.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
