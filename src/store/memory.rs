//! The memory store: sharded, bounded, and atomic across keys. [me-1]
//!
//! A key belongs to one shard. A decision locks the shards of all its keys in ascending order, and calls the engine
//! under those locks. A plain mutex is right: nothing is awaited while it is held. Expired states are not removed all
//! at once: an insertion checks two entries, and an eviction a small sample.

use std::hash::BuildHasher;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;
use weir_engine::algorithm::{Change, Effect, anchored_window};
use weir_engine::decision;
use weir_engine::{Bounds, Charge, Decision, Hits, Limit, Micros, Mode, Observer, State};

use super::sync::{Mutex, MutexGuard};
use super::{
    Before, Clock, GivenBack, Reply, ScanPosition, Scanned, StatesRead, Store, StoreError, StoredOverrides, Undo,
};

/// The most shards: more than the cores of any pod, so two decisions rarely need the same shard.
const SHARDS_MAX: usize = 64;
/// The fewest keys per shard. In a smaller shard, a sample would not represent the store.
const SHARD_KEYS_MIN: usize = 128;
/// How many states an eviction compares.
const EVICTION_SAMPLE: usize = 16;
/// The most entries that an eviction reads to find its sample.
const EVICTION_SCAN: usize = 64;
/// How many entries each insertion checks for expiry.
const SWEEP: usize = 2;
/// How many entries one step of a scan reads while it holds a shard's lock.
const SCAN_STEP: usize = 256;
/// A shard shrinks its list when the list is larger than this and three quarters empty.
const SHRINK_ABOVE: usize = 1_024;

/// States in this process's memory. They are lost when the process ends, and not shared with other replicas. [ex-2]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    overrides: Mutex<StoredOverrides>,
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
        let overrides = Mutex::new(StoredOverrides::default());
        Self { shards, overrides, hasher, clock, observer }
    }

    fn hash(&self, key: &str) -> u32 {
        // Half of the bits distinguish keys well enough; equal hashes cost only a comparison.
        (self.hasher.hash_one(key) >> 32) as u32
    }

    fn shard_of(&self, hash: u32) -> usize {
        hash as usize & (self.shards.len() - 1)
    }

    /// Locks the shards of these hashes, in ascending order. [me-1]
    fn lock(&self, hashes: &[u32]) -> Locked<'_> {
        // One lock needs no order.
        if let [hash] = hashes {
            let number = self.shard_of(*hash);
            let mut locked = Locked::new();
            locked.push((number, self.shards[number].lock()));
            return locked;
        }
        let mut numbers: SmallVec<[usize; 4]> = hashes.iter().map(|&hash| self.shard_of(hash)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.shards[number].lock())).collect()
    }

    fn decide_now(&self, given_back: &[GivenBack], charges: &[Charge<'_>], mode: Mode) -> Result<Decision, StoreError> {
        // Most decisions have one charge.
        if let [charge] = charges {
            return self.decide_one(given_back, charge, mode);
        }
        let (places, firsts) = decision::key_indices(charges);
        let hashes: SmallVec<[u32; 4]> =
            firsts.iter().map(|&first| self.hash(charges[usize::from(first)].key)).collect();
        let mut locked = self.lock(&hashes);
        // Read under the locks, so the times of one key's decisions are in the order of the decisions.
        let now = self.clock.now();

        if !given_back.is_empty() {
            check_windows(given_back, charges, now)?;
            for back in given_back {
                let undo = undo_of(back, charges);
                let hash = self.hash(undo.key);
                self.take_back(shard(&mut locked, self.shard_of(hash)), hash, &undo, now);
            }
        }
        let key = |place: usize| charges[usize::from(firsts[place])].key;
        let found: SmallVec<[Option<usize>; 4]> = hashes
            .iter()
            .enumerate()
            .map(|(place, &hash)| shard(&mut locked, self.shard_of(hash)).find(key(place), hash))
            .collect();
        let read = |place: u16| {
            let place = usize::from(place);
            let number = self.shard_of(hashes[place]);
            let (_, shard) = locked.iter().find(|(other, _)| *other == number)?;
            shard.live_at(found[place]?, now)
        };
        // Matched without a move, because both are large.
        let (decision, effects) = match decision::decide(charges, &places, read, mode, now) {
            Ok(decided) => decided,
            Err(decision::StaleBounds) => return Err(StoreError::StaleBounds { now }),
        };
        if decision.outcomes.iter().any(|outcome| outcome.verdict.is_over()) {
            for (&place, outcome) in places.iter().zip(&decision.outcomes) {
                let place = usize::from(place);
                if let (true, Some(at)) = (outcome.verdict.is_over(), found[place]) {
                    shard(&mut locked, self.shard_of(hashes[place])).entries[at].mark_denied();
                }
            }
        }
        // Entries keep their numbers until an entry is added or removed.
        let mut renumbered = false;
        for ((charge, &place), effect) in charges.iter().zip(&places).zip(effects) {
            if effect == Effect::Nothing {
                continue;
            }
            let (hash, known) = (hashes[usize::from(place)], found[usize::from(place)]);
            let slot =
                StateSlot { key: charge.key, hash, owner: charge.owner, limit: charge.limit, bounds: charge.bounds };
            let shard = shard(&mut locked, self.shard_of(hash));
            let at = if renumbered { shard.find(charge.key, hash) } else { known };
            renumbered |= shard.change(at, &slot, now, &*self.observer, |state| {
                charge.limit.kind().apply_in_place(state, effect, charge.bounds, now)
            });
        }
        Ok(decision)
    }

    /// As `decide_now`, for one charge, without the lists.
    fn decide_one(&self, given_back: &[GivenBack], charge: &Charge<'_>, mode: Mode) -> Result<Decision, StoreError> {
        let hash = self.hash(charge.key);
        let mut shard = self.shards[self.shard_of(hash)].lock();
        // Read under the lock, as above.
        let now = self.clock.now();
        if !given_back.is_empty() {
            check_windows(given_back, slice::from_ref(charge), now)?;
            for back in given_back {
                self.take_back(&mut shard, hash, &undo_of(back, slice::from_ref(charge)), now);
            }
        }
        let found = shard.find(charge.key, hash);
        let state = found.and_then(|at| shard.live_at(at, now));
        let (decision, effects) = match decision::decide(slice::from_ref(charge), &[0], |_| state, mode, now) {
            Ok(decided) => decided,
            Err(decision::StaleBounds) => return Err(StoreError::StaleBounds { now }),
        };
        if let Some(at) = found
            && decision.outcomes[0].verdict.is_over()
        {
            shard.entries[at].mark_denied();
        }
        let effect = effects[0];
        if effect != Effect::Nothing {
            let (key, limit, bounds) = (charge.key, charge.limit, charge.bounds);
            let slot = StateSlot { key, hash, owner: charge.owner, limit, bounds };
            shard.change(found, &slot, now, &*self.observer, |state| {
                limit.kind().apply_in_place(state, effect, bounds, now)
            });
        }
        Ok(decision)
    }

    /// Reads a few entries of one shard, from its end on: an entry that moves takes an earlier place.
    fn scan_now(&self, prefix: &str, from: ScanPosition) -> Scanned {
        let number = from.shard as usize;
        let Some(shard) = self.shards.get(number) else { return Scanned::default() };
        let shard = shard.lock();
        let now = self.clock.now();
        // 0 is the start of a shard, so the remaining entries are counted from 1.
        let left = usize::try_from(from.at).unwrap_or(usize::MAX).checked_sub(1).unwrap_or(usize::MAX);
        let end = left.min(shard.entries.len());
        let start = end.saturating_sub(SCAN_STEP);
        let is_wanted = |entry: &&MemoryEntry| entry.expires_at() > now && entry.key.starts_with(prefix);
        let keys = shard.entries[start..end].iter().filter(is_wanted).map(|entry| entry.key.to_string()).collect();
        let next = match start {
            0 => ScanPosition { shard: from.shard + 1, at: 0 },
            start => ScanPosition { shard: from.shard, at: start as u64 + 1 },
        };
        let is_last = next.shard as usize == self.shards.len();
        Scanned { keys, next: (!is_last).then_some(next) }
    }

    /// Takes one charge back.
    /// Fails when no window of the calendar contains the clock. Then nothing was taken back.
    fn undo_now(&self, undo: &Undo<'_>) -> Result<(), StoreError> {
        let hash = self.hash(undo.key);
        let mut shard = self.shards[self.shard_of(hash)].lock();
        let now = self.clock.now();
        if has_no_window(undo.bounds, now) {
            return Err(StoreError::StaleBounds { now });
        }
        self.take_back(&mut shard, hash, undo, now);
        Ok(())
    }

    /// Takes one charge back, whose window of a calendar holds now. Entries can have other numbers afterwards.
    fn take_back(&self, shard: &mut Shard, hash: u32, undo: &Undo<'_>, now: Micros) {
        let Some(at) = shard.find(undo.key, hash).filter(|&at| shard.live_at(at, now).is_some()) else { return };
        let owner = shard.entries[at].owner;
        let slot = StateSlot { key: undo.key, hash, owner, limit: undo.limit, bounds: undo.bounds };
        shard.change(Some(at), &slot, now, &*self.observer, |state| {
            undo.limit.kind().undo_in_place(state, undo.receipt, undo.bounds, now)
        });
    }
}

/// The undo of hits that a decision over these charges gives back.
fn undo_of<'a>(back: &GivenBack, charges: &[Charge<'a>]) -> Undo<'a> {
    let Charge { key, limit, bounds, .. } = charges[usize::from(back.charge)];
    Undo { key, limit, receipt: back.receipt, bounds }
}

/// Checks the calendar windows of a decision that gives hits back, before anything changes.
/// Fails when no window of a calendar holds the clock.
fn check_windows(given_back: &[GivenBack], charges: &[Charge<'_>], now: Micros) -> Result<(), StoreError> {
    let applying = charges.iter().filter(|charge| charge.limit.applies_at(now));
    let backs = given_back.iter().map(|back| &charges[usize::from(back.charge)]);
    if applying.chain(backs).any(|charge| has_no_window(charge.bounds, now)) {
        return Err(StoreError::StaleBounds { now });
    }
    Ok(())
}

/// Whether these are boundaries of a calendar of which no window holds now. [cl-3]
fn has_no_window(bounds: Option<Bounds>, now: Micros) -> bool {
    bounds.is_some_and(|bounds| anchored_window::window_at(&bounds, now).is_none())
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    /// The process has the rows, and compares them itself. [rw-6]
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        _deadline: Instant,
    ) -> Reply<'a, Decision> {
        Reply::Ready(self.decide_now(before.given_back, charges, mode))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], _deadline: Instant) -> Reply<'a, ()> {
        let mut end = Ok(());
        for undo in charges {
            end = end.and(self.undo_now(undo));
        }
        Reply::Ready(end)
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

    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], _deadline: Instant) -> Reply<'a, StatesRead> {
        let hashes: SmallVec<[u32; 4]> = keys.iter().map(|(key, _)| self.hash(key)).collect();
        let mut locked = self.lock(&hashes);
        let now = self.clock.now();
        let states = keys
            .iter()
            .zip(&hashes)
            .map(|((key, _), &hash)| shard(&mut locked, self.shard_of(hash)).live(key, hash, now).cloned())
            .collect();
        Reply::Ready(Ok(StatesRead { now, states }))
    }

    fn scan<'a>(&'a self, prefix: &'a str, from: ScanPosition, _deadline: Instant) -> Reply<'a, Scanned> {
        Reply::Ready(Ok(self.scan_now(prefix, from)))
    }

    fn read_overrides<'a>(&'a self, known: &'a str, _deadline: Instant) -> Reply<'a, Option<StoredOverrides>> {
        let stored = self.overrides.lock();
        Reply::Ready(Ok((stored.version != known).then(|| stored.clone())))
    }

    fn write_overrides<'a>(&'a self, known: &'a str, with: &'a StoredOverrides, _deadline: Instant) -> Reply<'a, bool> {
        let mut stored = self.overrides.lock();
        let is_known = stored.version == known;
        if is_known {
            stored.clone_from(with);
        }
        Reply::Ready(Ok(is_known))
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

/// One stored state. It has the properties of the limit that eviction needs, not the limit itself.
struct MemoryEntry {
    key: Box<str>,
    /// Always `Some`; an option only because the engine changes it in place.
    state: Option<State>,
    /// The time when the state equals an empty one, by the store's clock, and the flags [`FULL`] and [`DENIED`].
    ends: u64,
    /// The hits in the state when it was written, below the capacity. A full state has `capacity` hits; then this is
    /// the number of the fill: see [`Shard::fills`].
    used_or_fill: u32,
    /// The most hits that its limit can hold.
    capacity: Hits,
    /// The rule whose portion of the store the entry uses.
    owner: u32,
    hash: u32,
}

/// The state had no capacity for another hit when it was written.
const FULL: u64 = 1 << 63;
/// A full state has denied a request since it became full.
const DENIED: u64 = 1 << 62;

const _: () = assert!(size_of::<Option<State>>() == size_of::<State>(), "the option takes no extra memory");
const _: () = assert!(size_of::<MemoryEntry>() == 64, "an entry fills one cache line");

impl MemoryEntry {
    /// When the state equals an empty one.
    const fn expires_at(&self) -> Micros {
        self.ends & !(FULL | DENIED)
    }

    /// The hits in the state when it was written, at most the capacity.
    const fn used(&self) -> Hits {
        if self.ends & FULL == 0 { self.used_or_fill } else { self.capacity }
    }

    /// Marks that the state has denied a request, if it is full.
    const fn mark_denied(&mut self) {
        if self.ends & FULL != 0 {
            self.ends |= DENIED;
        }
    }

    /// The order of eviction, smallest first: expired states; then states that are not full, by used hits and then by
    /// reset; then full states that have not denied a request since, the latest fill first; then full states that have,
    /// all equal. [me-3]
    fn rank(&self, now: Micros, fills: u32) -> (u8, u64, Micros) {
        let expires_at = self.expires_at();
        if expires_at <= now {
            (0, 0, expires_at)
        } else if self.ends & FULL == 0 {
            let used = (u64::from(self.used_or_fill) << 32) / u64::from(self.capacity.max(1));
            (1, used, expires_at)
        } else if self.ends & DENIED == 0 {
            (2, u64::from(fills.wrapping_sub(self.used_or_fill)), 0)
        } else {
            (3, 0, 0)
        }
    }
}

/// The key and the limit of a state in the store.
struct StateSlot<'a> {
    key: &'a str,
    hash: u32,
    owner: u32,
    limit: &'a Limit,
    bounds: Option<Bounds>,
}

/// A list of entries and an index into it. A sample is a run of the list.
struct Shard {
    index: HashTable<u32>,
    entries: Vec<MemoryEntry>,
    keys_max: usize,
    /// How many entries of the shard each rule has.
    owned: HashMap<u32, usize>,
    /// Where the next check for expired entries starts.
    sweep_at: usize,
    /// How many states have become full, modulo 2^32.
    fills: u32,
    /// The state of a small generator (splitmix64), which selects where samples start.
    random: u64,
}

impl Shard {
    fn new(keys_max: usize, seed: u64) -> Self {
        Self {
            index: HashTable::new(),
            entries: Vec::new(),
            // Entries are numbered by u32.
            keys_max: keys_max.min(u32::MAX as usize),
            owned: HashMap::new(),
            sweep_at: 0,
            fills: 0,
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
        self.live_at(self.find(key, hash)?, now)
    }

    /// The state of an entry by its number, unless it has expired.
    fn live_at(&self, at: usize, now: Micros) -> Option<&State> {
        let entry = &self.entries[at];
        if entry.expires_at() > now { entry.state.as_ref() } else { None }
    }

    /// Changes the state of a key; `at` is its entry, if it has one. The state stays in its entry during the change: it
    /// may be long, and a panic must not lose it. Returns whether entries were renumbered.
    fn change(
        &mut self,
        at: Option<usize>,
        slot: &StateSlot<'_>,
        now: Micros,
        observer: &dyn Observer,
        change: impl FnOnce(&mut Option<State>) -> Change,
    ) -> bool {
        if let Some(at) = at.filter(|&at| self.entries[at].expires_at() > now) {
            return match change(&mut self.entries[at].state) {
                Change::Kept => false,
                Change::Put => {
                    self.written(at, slot, now);
                    false
                }
                Change::Gone => {
                    self.remove_at(at);
                    true
                }
            };
        }
        let mut state = None;
        match (at, change(&mut state)) {
            (Some(at), Change::Put) => {
                let entry = &mut self.entries[at];
                // An expired state is no longer full.
                (entry.state, entry.ends) = (state, 0);
                self.written(at, slot, now);
                false
            }
            (None, Change::Put) => {
                let at = self.insert(slot, state, now, observer);
                self.written(at, slot, now);
                true
            }
            (Some(at), Change::Gone) => {
                self.remove_at(at);
                true
            }
            (_, Change::Kept) | (None, Change::Gone) => false,
        }
    }

    /// Adds an entry. It counts as expired until [`Shard::written`] sets its end.
    #[expect(clippy::cast_possible_truncation, reason = "entries are numbered by u32, see Shard::new")]
    fn insert(&mut self, slot: &StateSlot<'_>, state: Option<State>, now: Micros, observer: &dyn Observer) -> usize {
        self.sweep(now);
        if self.entries.len() >= self.keys_max {
            self.evict(slot.owner, now, observer);
        }
        *self.owned.entry(slot.owner).or_insert(0) += 1;
        let at = self.entries.len();
        let (key, hash, owner) = (slot.key.into(), slot.hash, slot.owner);
        self.entries.push(MemoryEntry { key, state, ends: 0, used_or_fill: 0, capacity: 0, owner, hash });
        let entries = &self.entries;
        self.index.insert_unique(spread(hash), at as u32, |&at| spread(entries[at as usize].hash));
        at
    }

    /// Stores what eviction needs about a state that was just written.
    fn written(&mut self, at: usize, slot: &StateSlot<'_>, now: Micros) {
        let entry = &mut self.entries[at];
        let Some(state) = &entry.state else { return };
        let seen = slot.limit.kind().as_written(state, slot.bounds, now);
        let capacity = slot.limit.capacity();
        let used = capacity - slot.limit.kind().remaining(&seen, now).min(capacity);
        let expires_at = now + slot.limit.kind().reset_after(&seen, now);
        if used < capacity {
            (entry.ends, entry.used_or_fill) = (expires_at, used);
        } else if entry.ends & FULL == 0 {
            self.fills = self.fills.wrapping_add(1);
            (entry.ends, entry.used_or_fill) = (expires_at | FULL, self.fills);
        } else {
            // The state stays full, and keeps the flag of its denials.
            entry.ends = expires_at | (entry.ends & (FULL | DENIED));
        }
        entry.capacity = capacity;
        let before = std::mem::replace(&mut entry.owner, slot.owner);
        if before != slot.owner {
            self.leave(before);
            *self.owned.entry(slot.owner).or_insert(0) += 1;
        }
    }

    fn remove(&mut self, key: &str, hash: u32) {
        if let Some(at) = self.find(key, hash) {
            self.remove_at(at);
        }
    }

    /// Removes an entry. The last entry takes its number.
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
        self.leave(gone.owner);
        if self.entries.capacity() > SHRINK_ABOVE && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
            let entries = &self.entries;
            self.index.shrink_to(entries.len() * 2, |&at| spread(entries[at as usize].hash));
        }
    }

    fn leave(&mut self, owner: u32) {
        if let Some(count) = self.owned.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.owned.remove(&owner);
            }
        }
    }

    /// Drops the next few expired entries, so keys without further requests are dropped too.
    fn sweep(&mut self, now: Micros) {
        for _ in 0..SWEEP {
            if self.sweep_at >= self.entries.len() {
                self.sweep_at = 0;
            }
            match self.entries.get(self.sweep_at) {
                Some(entry) if entry.expires_at() <= now => self.remove_at(self.sweep_at),
                Some(_) => self.sweep_at += 1,
                None => return,
            }
        }
    }

    /// Makes space for one entry of `owner`. [me-3] [me-4]
    ///
    /// Evicts only entries of rules that use at least their portion of the shard, so a flood on one rule costs the
    /// others nothing. Drops the least valuable entry of the sample.
    fn evict(&mut self, owner: u32, now: Micros, observer: &dyn Observer) {
        let newcomer = usize::from(!self.owned.contains_key(&owner));
        let portion = self.keys_max / (self.owned.len() + newcomer);
        // The sample is spread over the whole shard, with one entry from each stretch. Keys of one rule that arrived
        // together are neighbours, and may all be within their portion.
        let stretch = (self.entries.len() / EVICTION_SCAN).max(1);
        let start = self.next_random(self.entries.len());
        let mut chosen = start;
        let mut chosen_rank = None;
        let mut sampled = 0;
        for step in 0..self.entries.len().min(EVICTION_SCAN) {
            let at = (start + step * stretch + self.next_random(stretch)) % self.entries.len();
            let entry = &self.entries[at];
            let held = self.owned.get(&entry.owner).copied().unwrap_or(0);
            let within_portion = held + usize::from(entry.owner == owner) <= portion;
            let rank = (within_portion && entry.expires_at() > now, entry.rank(now, self.fills));
            if chosen_rank.is_none_or(|best| rank < best) {
                (chosen, chosen_rank) = (at, Some(rank));
            }
            sampled += usize::from(!within_portion);
            if sampled == EVICTION_SAMPLE {
                break;
            }
        }
        let entry = &self.entries[chosen];
        if entry.expires_at() > now {
            observer.evicted(entry.used());
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

/// The 64 bits that the index needs, from the 32 that an entry stores.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use shuttle::thread;
    use weir_engine::{Operation, Unit};

    use super::*;
    use crate::sync::explore;

    const LIMIT: u32 = 2;

    struct Standing;

    impl Clock for Standing {
        fn now(&self) -> Micros {
            1_000_000_000
        }
    }

    fn store() -> Memory {
        Memory::new(2 * SHARD_KEYS_MIN, Arc::new(Standing), Arc::new(weir_engine::observer::Silent))
    }

    fn key(store: &Memory, shard: usize) -> String {
        let mut keys = (0..).map(|number: u32| number.to_string());
        keys.find(|key| store.shard_of(store.hash(key)) == shard).unwrap()
    }

    fn charges<'a>(keys: &[&'a str], limit: &'a Limit) -> Vec<Charge<'a>> {
        let charge = |&key| Charge::alone(key, limit, Operation::Consume(1));
        keys.iter().map(charge).collect()
    }

    fn used(store: &Memory, key: &str, limit: &Limit) -> u32 {
        let charge = Charge { operation: Operation::Consume(0), ..charges(&[key], limit).remove(0) };
        let decision = store.decide_now(&[], &[charge], Mode::Atomic).unwrap();
        limit.requests() - decision.outcomes[0].remaining
    }

    #[test]
    fn in_any_schedule_keys_in_several_shards_are_charged_all_or_none() {
        explore(|| {
            let store = Arc::new(store());
            let limit = Limit::per_unit(LIMIT, Unit::Hour);
            let keys = [key(&store, 0), key(&store, 1)];
            // Both keys in either order, or one alone.
            let orders: [&'static [usize]; 4] = [&[0, 1], &[1, 0], &[0], &[1]];
            let admitted = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let threads = orders.map(|order| {
                let (store, keys, admitted, limit) = (store.clone(), keys.clone(), admitted.clone(), limit.clone());
                thread::spawn(move || {
                    let named: Vec<&str> = order.iter().map(|&at| keys[at].as_str()).collect();
                    let decision = store.decide_now(&[], &charges(&named, &limit), Mode::Atomic).unwrap();
                    if decision.outcomes.iter().all(|outcome| !outcome.verdict.is_over()) {
                        for &at in order {
                            admitted[at].fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            for (key, admitted) in keys.iter().zip(admitted.iter()) {
                let admitted = admitted.load(Ordering::SeqCst);
                assert_eq!((admitted, used(&store, key, &limit)), (LIMIT, LIMIT), "each key had three requests");
            }
        });
    }
}
