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
#[cfg(not(test))]
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use weir_engine::algorithm::{Change, Effect, Level};
use weir_engine::arith::mul_div;
use weir_engine::decision::{self, States};
use weir_engine::{Charge, Count, Decision, Hits, Limit, Micros, Mode, Observer, State};
#[cfg(test)]
use weir_schedules::{Mutex, MutexGuard};

use super::{
    Before, Clock, Deciding, Inspected, Reply, ScanPosition, Scanned, StatesRead, Store, StoreError, Undo, key_at,
    key_indices,
};

/// The most shards: more than the cores of any pod, so two decisions rarely need the same shard.
const SHARDS_MAX: usize = 64;
/// The fewest keys per shard. In a smaller shard, a sample would not represent the store.
const SHARD_KEYS_MIN: usize = 128;
/// The most bytes of keys and of states outside their entries, for each key that a shard may have. An entry itself and its
/// place in the index have about 75 bytes.
const BYTES_PER_KEY: usize = 320;
/// The longest log in memory.
const LOG_BYTES_MAX: usize = 256 << 10;
/// The fewest such bytes of a shard, unless the memory of the process has less room: four of the longest logs.
const SHARD_BYTES_MIN: usize = 4 * LOG_BYTES_MAX;
/// The most states that a write evicts because of their bytes. A write adds one charge, and evicts far more.
const EVICTED_FOR_BYTES_MAX: usize = 16;
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

    /// The same with at most `bytes_max` bytes of keys and of states outside their entries, but room for one log in each
    /// shard. [me-5]
    #[must_use]
    pub fn with_bytes_max(self, bytes_max: usize) -> Self {
        let of_shard = (bytes_max / self.shards.len()).max(LOG_BYTES_MAX);
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.bytes_max = shard.bytes_max.min(of_shard);
        }
        self
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

    fn decide_now(&self, undos: &[Undo<'_>], charges: &[Charge<'_>], mode: Mode) -> Result<Decision, StoreError> {
        // Most decisions have one charge.
        if let ([charge], []) = (charges, undos) {
            return self.decide_one(charge, mode);
        }
        let (places, firsts) = key_indices(charges, undos);
        let hashes: SmallVec<[u32; 4]> =
            firsts.iter().map(|&first| self.hash(key_at(charges, undos, first.into()))).collect();
        let mut locked = self.lock(&hashes);
        // Read under the locks, so the times of one key's decisions are in the order of the decisions.
        let now = self.clock.now();

        let mut taken = Vec::new();
        if !undos.is_empty() {
            check_windows(charges, undos, now)?;
            for undo in undos {
                let hash = self.hash(undo.key);
                taken.push(self.take_back(shard(&mut locked, self.shard_of(hash)), hash, undo, now));
            }
        }
        let key = |place: usize| key_at(charges, undos, firsts[place].into());
        let found = hashes.iter().enumerate().map(|(place, &hash)| {
            let number = self.shard_of(hash);
            Located { hash, entry: shard(&mut locked, number).find(key(place), hash), shard: number }
        });
        let keys = found.collect();
        let mut decided = hashes;
        decided.sort_unstable();
        let mut states = LockedStates { locked, keys, decided, now, is_renumbered: false, observer: &*self.observer };
        // Matched without a move, because it is large.
        let mut decision = match decision::decide(charges, &places[..charges.len()], &mut states, mode, now) {
            Ok(decision) => decision,
            Err(decision::StaleBounds) => return Err(StoreError::StaleBounds { now }),
        };
        decision.given_back = taken;
        Ok(decision)
    }

    /// As `decide_now`, for one charge, without the lists.
    fn decide_one(&self, charge: &Charge<'_>, mode: Mode) -> Result<Decision, StoreError> {
        let hash = self.hash(charge.key);
        let mut shard = self.shards[self.shard_of(hash)].lock();
        // Read under the lock, as above.
        let now = self.clock.now();
        let entry = shard.find(charge.key, hash);
        let mut state = LockedState { shard: &mut shard, hash, entry, now, observer: &*self.observer };
        match decision::decide(slice::from_ref(charge), &[0], &mut state, mode, now) {
            Ok(decision) => Ok(decision),
            Err(decision::StaleBounds) => Err(StoreError::StaleBounds { now }),
        }
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
        if decision::has_no_window(undo.bounds, now) {
            return Err(StoreError::StaleBounds { now });
        }
        self.take_back(&mut shard, hash, undo, now);
        Ok(())
    }

    /// Takes one charge back, whose window of a calendar holds now. Returns the hits that a window has fewer now. Entries
    /// can have other numbers afterwards.
    fn take_back(&self, shard: &mut Shard, hash: u32, undo: &Undo<'_>, now: Micros) -> Hits {
        let Some(at) = shard.find(undo.key, hash).filter(|&at| shard.live_at(at, now).is_some()) else { return 0 };
        let owner = shard.entries[at].owner;
        let slot = StateSlot { key: undo.key, hash, owner, limit: undo.limit, decided: &[hash] };
        let kind = undo.limit.kind().within(undo.bounds);
        let mut taken = 0;
        shard.change(Some(at), &slot, now, &*self.observer, |state| {
            let counted = |view| kind.level(&view, now).counted;
            let before = counted(kind.observe(state.as_ref(), 0, now));
            let (change, left) = kind.change(state, Effect::Undo(undo.receipt), now);
            taken = before.saturating_sub(counted(left));
            change
        });
        Hits::try_from(taken).unwrap_or(Hits::MAX)
    }
}

/// Checks the calendar windows of a decision that takes charges back, before anything changes.
/// Fails when no window of a calendar holds the clock.
fn check_windows(charges: &[Charge<'_>], undos: &[Undo<'_>], now: Micros) -> Result<(), StoreError> {
    let mut bounds = charges.iter().map(|charge| charge.bounds).chain(undos.iter().map(|undo| undo.bounds));
    if bounds.any(|bounds| decision::has_no_window(bounds, now)) {
        return Err(StoreError::StaleBounds { now });
    }
    Ok(())
}

impl Store for Memory {}

impl Deciding for Memory {
    /// The process has the rows, and compares them itself. [rw-6]
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        _deadline: Instant,
    ) -> Reply<'a, Decision> {
        Reply::Ready(self.decide_now(before.undos, charges, mode))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], _deadline: Instant) -> Reply<'a, ()> {
        let mut end = Ok(());
        for undo in charges {
            end = end.and(self.undo_now(undo));
        }
        Reply::Ready(end)
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

impl Inspected for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn keys(&self) -> Option<u64> {
        Some(self.shards.iter().map(|shard| shard.lock().entries.len() as u64).sum())
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

    fn ping(&self, _deadline: Instant) -> Reply<'_, ()> {
        Reply::Ready(Ok(()))
    }
}

/// The locked shards of one decision, by number.
type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

fn shard<'l>(locked: &'l mut Locked<'_>, number: usize) -> &'l mut Shard {
    let found = locked.iter_mut().find(|(other, _)| *other == number);
    let (_, shard) = found.unwrap_or_else(|| unreachable!("shard {number} was locked"));
    shard
}

/// The one state of a decision, in its locked shard.
struct LockedState<'a> {
    shard: &'a mut Shard,
    hash: u32,
    entry: Option<usize>,
    now: Micros,
    observer: &'a dyn Observer,
}

impl States for LockedState<'_> {
    fn read(&self, _place: u16) -> Option<&State> {
        self.shard.live_at(self.entry?, self.now)
    }

    fn over(&mut self, _place: u16) {
        if let Some(at) = self.entry {
            self.shard.entries[at].mark_denied();
        }
    }

    fn change(&mut self, _place: u16, charge: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
        let slot = StateSlot::of(charge, self.hash, slice::from_ref(&self.hash));
        self.shard.change(self.entry, &slot, self.now, self.observer, change);
    }
}

/// The states of a decision, in their locked shards.
struct LockedStates<'a> {
    locked: Locked<'a>,
    keys: SmallVec<[Located; 4]>,
    /// The hashes of the keys, in ascending order.
    decided: SmallVec<[u32; 4]>,
    now: Micros,
    /// Entries keep their numbers until an entry is added or removed.
    is_renumbered: bool,
    observer: &'a dyn Observer,
}

/// Where the state of a key is.
struct Located {
    hash: u32,
    shard: usize,
    entry: Option<usize>,
}

impl States for LockedStates<'_> {
    fn read(&self, place: u16) -> Option<&State> {
        let key = &self.keys[usize::from(place)];
        let (_, shard) = self.locked.iter().find(|(number, _)| *number == key.shard)?;
        shard.live_at(key.entry?, self.now)
    }

    fn over(&mut self, place: u16) {
        let key = &self.keys[usize::from(place)];
        if let Some(at) = key.entry {
            shard(&mut self.locked, key.shard).entries[at].mark_denied();
        }
    }

    fn change(&mut self, place: u16, charge: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
        let key = &self.keys[usize::from(place)];
        let shard = shard(&mut self.locked, key.shard);
        let at = if self.is_renumbered { shard.find(charge.key, key.hash) } else { key.entry };
        let slot = StateSlot::of(charge, key.hash, &self.decided);
        self.is_renumbered |= shard.change(at, &slot, self.now, self.observer, change);
    }
}

/// One stored state. It has the properties of the limit that eviction needs, not the limit itself.
struct MemoryEntry {
    key: Box<str>,
    /// None in an expired entry whose key a decision has read since.
    state: Option<State>,
    /// The time when the state equals an empty one, by the store's clock, and the flags [`FULL`] and [`DENIED`].
    ends: u64,
    /// The hits in the state when it was written, below the capacity. A full state has `capacity` hits; then this is
    /// the number of the fill: see [`Shard::fills`].
    used_or_fill: u32,
    /// The most hits that its limit can hold. Of a limit that can hold more than [`LARGE`] it is that, and
    /// `used_or_fill` is in proportion.
    capacity: Hits,
    /// The rule whose portion of the store the entry uses.
    owner: u32,
    hash: u32,
}

/// The state had no capacity for another hit when it was written.
const FULL: u64 = 1 << 63;
/// A full state has denied a request since it became full.
const DENIED: u64 = 1 << 62;

/// The largest capacity of an entry, which its 32 bits hold.
const LARGE: Hits = Hits::MAX;

const _: () = assert!(size_of::<Option<State>>() == size_of::<State>(), "the option takes no extra memory");
const _: () = assert!(size_of::<MemoryEntry>() == 64, "an entry fills one cache line");

impl MemoryEntry {
    /// The bytes that the state has outside the entry.
    fn heap_bytes(&self) -> usize {
        self.state.as_ref().map_or(0, State::heap_bytes)
    }

    /// The bytes of the key, and of the state outside the entry.
    fn bytes(&self) -> usize {
        self.key.len() + self.heap_bytes()
    }

    /// When the state equals an empty one.
    const fn expires_at(&self) -> Micros {
        self.ends & !(FULL | DENIED)
    }

    /// The hits in the state when it was written, at most the capacity. Of a large limit it is all hits in the state.
    fn used(&self) -> Count {
        match self.state {
            Some(State::AnchoredWindow(window)) if self.capacity == LARGE => window.count,
            _ if self.ends & FULL == 0 => self.used_or_fill.into(),
            _ => self.capacity.into(),
        }
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
    /// The hashes of all keys of the decision, in ascending order.
    decided: &'a [u32],
}

impl<'a> StateSlot<'a> {
    const fn of(charge: &Charge<'a>, hash: u32, decided: &'a [u32]) -> Self {
        Self { key: charge.key, hash, owner: charge.owner, limit: charge.limit, decided }
    }
}

/// A list of entries and an index into it. A sample is a run of the list.
struct Shard {
    index: HashTable<u32>,
    entries: Vec<MemoryEntry>,
    keys_max: usize,
    /// The bytes of keys and of states outside their entries, and the most of them. [me-5]
    bytes: usize,
    bytes_max: usize,
    /// What each rule has in the shard.
    owned: HashMap<u32, Room>,
    /// Where the next check for expired entries starts.
    sweep_at: usize,
    /// How many states have become full, modulo 2^32.
    fills: u32,
    /// The state of a small generator (splitmix64), which selects where samples start.
    random: u64,
}

/// How much of a shard a rule has.
#[derive(Clone, Copy, Default)]
struct Room {
    keys: usize,
    /// Of keys and of states outside their entries.
    bytes: usize,
}

/// What a shard has too much of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Excess {
    Keys,
    Bytes,
}

impl Shard {
    fn new(keys_max: usize, seed: u64) -> Self {
        // Entries are numbered by u32.
        let keys_max = keys_max.min(u32::MAX as usize);
        Self {
            index: HashTable::new(),
            entries: Vec::new(),
            keys_max,
            bytes: 0,
            bytes_max: keys_max.saturating_mul(BYTES_PER_KEY).max(SHARD_BYTES_MIN),
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
        let Some(at) = at else {
            let mut state = None;
            let Change::Put(level) = change(&mut state) else { return false };
            let at = self.insert(slot, state, now, observer);
            self.written(at, slot, &level, now);
            self.make_room(slot, now, observer);
            return true;
        };
        let entry = &mut self.entries[at];
        let before = entry.heap_bytes();
        if entry.expires_at() <= now {
            // An expired state is no longer full.
            entry.state = None;
            entry.ends = 0;
        }
        let change = change(&mut entry.state);
        let has_grown = self.resized(at, before);
        match change {
            Change::Kept => false,
            Change::Put(level) => {
                self.written(at, slot, &level, now);
                has_grown && self.make_room(slot, now, observer)
            }
            Change::Gone => {
                self.remove_at(at);
                true
            }
        }
    }

    /// Adds an entry. It counts as expired until [`Shard::written`] sets its end.
    #[expect(clippy::cast_possible_truncation, reason = "entries are numbered by u32, see Shard::new")]
    fn insert(&mut self, slot: &StateSlot<'_>, state: Option<State>, now: Micros, observer: &dyn Observer) -> usize {
        self.sweep(now);
        if self.entries.len() >= self.keys_max {
            self.evict(Excess::Keys, slot, now, observer);
        }
        let at = self.entries.len();
        let (key, hash, owner) = (slot.key.into(), slot.hash, slot.owner);
        let entry = MemoryEntry { key, state, ends: 0, used_or_fill: 0, capacity: 0, owner, hash };
        self.enter(owner, entry.bytes());
        self.entries.push(entry);
        let entries = &self.entries;
        self.index.insert_unique(spread(hash), at as u32, |&at| spread(entries[at as usize].hash));
        at
    }

    /// Stores what eviction needs about a state that was just written.
    fn written(&mut self, at: usize, slot: &StateSlot<'_>, level: &Level, now: Micros) {
        let entry = &mut self.entries[at];
        let count = slot.limit.capacity();
        let (capacity, used) = in_proportion(count, count - level.remaining.min(count));
        let expires_at = now + level.reset_after;
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
            let bytes = self.entries[at].bytes();
            self.leave(before, bytes);
            self.enter(slot.owner, bytes);
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
        self.leave(gone.owner, gone.bytes());
        if self.entries.capacity() > SHRINK_ABOVE && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
            let entries = &self.entries;
            self.index.shrink_to(entries.len() * 2, |&at| spread(entries[at as usize].hash));
        }
    }

    /// Counts the bytes of a state that had `before` outside its entry. Returns whether it has more now.
    fn resized(&mut self, at: usize, before: usize) -> bool {
        let entry = &self.entries[at];
        let after = entry.heap_bytes();
        if after == before {
            return false;
        }
        if let Some(room) = self.owned.get_mut(&entry.owner) {
            room.bytes = (room.bytes + after).saturating_sub(before);
        }
        self.bytes = (self.bytes + after).saturating_sub(before);
        after > before
    }

    fn enter(&mut self, owner: u32, bytes: usize) {
        let room = self.owned.entry(owner).or_default();
        room.keys += 1;
        room.bytes += bytes;
        self.bytes += bytes;
    }

    fn leave(&mut self, owner: u32, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(room) = self.owned.get_mut(&owner) {
            room.keys -= 1;
            room.bytes = room.bytes.saturating_sub(bytes);
            if room.keys == 0 {
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

    /// Evicts states while the shard has too many bytes, up to a bound for each write. [me-5]
    fn make_room(&mut self, slot: &StateSlot<'_>, now: Micros, observer: &dyn Observer) -> bool {
        let mut evicted = 0;
        while self.bytes > self.bytes_max && evicted < EVICTED_FOR_BYTES_MAX && !self.entries.is_empty() {
            self.evict(Excess::Bytes, slot, now, observer);
            evicted += 1;
        }
        evicted > 0
    }

    /// Makes space for the entry of a slot, or for its bytes. [me-3] [me-4] [me-5]
    ///
    /// Evicts only entries of rules that use at least their portion of the shard, so a flood on one rule costs the
    /// others nothing. Drops the least valuable entry of the sample, and keys of the decision last.
    fn evict(&mut self, excess: Excess, slot: &StateSlot<'_>, now: Micros, observer: &dyn Observer) {
        let owner = slot.owner;
        let newcomer = usize::from(!self.owned.contains_key(&owner));
        let rules = self.owned.len() + newcomer;
        let portion = match excess {
            Excess::Keys => self.keys_max / rules,
            Excess::Bytes => self.bytes_max / rules,
        };
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
            let room = self.owned.get(&entry.owner).copied().unwrap_or_default();
            let within_portion = match excess {
                Excess::Keys => room.keys + usize::from(entry.owner == owner) <= portion,
                Excess::Bytes => room.bytes <= portion,
            };
            let is_decided = slot.decided.binary_search(&entry.hash).is_ok();
            let rank = (within_portion && entry.expires_at() > now, is_decided, entry.rank(now, self.fills));
            if chosen_rank.is_none_or(|best| rank < best) {
                (chosen, chosen_rank) = (at, Some(rank));
            }
            sampled += usize::from(!within_portion && !is_decided);
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

/// A capacity and what is used of it, as an entry keeps them. Only a state without room for one hit is full.
fn in_proportion(capacity: Count, used: Count) -> (Hits, Hits) {
    match (Hits::try_from(capacity), Hits::try_from(used)) {
        (Ok(capacity), Ok(used)) => (capacity, used),
        _ => (LARGE, Hits::try_from(mul_div(used, LARGE.into(), capacity).0).unwrap_or(LARGE)),
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
    use weir_engine::descriptor::saturated;
    use weir_engine::{Operation, Unit};
    use weir_schedules::explore;

    use super::*;

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

    /// What the store has counted, and what it holds: keys and states outside their entries.
    fn bytes(store: &Memory) -> [usize; 2] {
        let shards = store.shards.iter().map(|shard| {
            let shard = shard.lock();
            let owned: usize = shard.owned.values().map(|room| room.bytes).sum();
            assert_eq!(shard.bytes, owned, "what the rules have");
            [shard.bytes, shard.entries.iter().map(MemoryEntry::bytes).sum()]
        });
        shards.fold([0; 2], |[a, b], [c, d]| [a + c, b + d])
    }

    #[test]
    fn the_bytes_of_the_process_bound_those_of_all_shards() {
        let store = Memory::new(64 * SHARD_KEYS_MIN, Arc::new(Standing), Arc::new(weir_engine::observer::Silent));
        let most = |store: &Memory| store.shards.iter().map(|shard| shard.lock().bytes_max).sum::<usize>();
        assert_eq!(most(&store), 64 * SHARD_BYTES_MIN);
        let store = store.with_bytes_max(32 << 20);
        assert_eq!(most(&store), 32 << 20);
        assert_eq!(most(&store.with_bytes_max(1)), 64 * LOG_BYTES_MAX);
    }

    /// Logs were bounded in number only: a million keys of 10,000 charges each are 160 GB.
    #[test]
    fn the_bytes_of_logs_are_bounded() {
        const KEYS: usize = 8;
        let store = Memory::new(64, Arc::new(Standing), Arc::new(weir_engine::observer::Silent));
        let hour = Unit::Hour.window();
        let log = Limit::new(10_000, hour, weir_engine::Algorithm::SlidingWindowLog).unwrap();
        let other = Limit::per_unit(LIMIT, Unit::Hour);
        let take = |key: &str, limit: &Limit, owner: u32| {
            let charge = Charge { owner, ..charges(&[key], limit).remove(0) };
            store.decide_now(&[], &[charge], Mode::Atomic).unwrap()
        };
        for number in 0..LIMIT * 4 {
            take(&format!("other{}", number / LIMIT), &other, 1);
        }
        let mut most = 0;
        for _ in 0..10_000 {
            for key in 0..KEYS {
                take(&format!("log{key}"), &log, 2);
            }
            most = most.max(bytes(&store)[1]);
        }
        let [counted, held] = bytes(&store);
        assert_eq!(counted, held);
        assert!(most <= SHARD_BYTES_MIN + (256 << 10), "{most} bytes");
        assert!(held > SHARD_BYTES_MIN / 4, "{held} bytes: the room is hardly used");
        for number in 0..4 {
            assert_eq!(
                used(&store, &format!("other{number}"), &other),
                LIMIT,
                "a flood on one rule costs others nothing"
            );
        }
        // A log that fits alone keeps all its charges.
        let alone = Memory::new(64, Arc::new(Standing), Arc::new(weir_engine::observer::Silent));
        for _ in 0..10_000 {
            alone.decide_now(&[], &charges(&["log"], &log), Mode::Atomic).unwrap();
        }
        assert_eq!(used(&alone, "log", &log), 10_000);
        assert!(matches!(alone.reset(&["log"], Instant::now()), Reply::Ready(Ok(1))));
        assert_eq!(bytes(&alone), [0, 0]);
    }

    fn used(store: &Memory, key: &str, limit: &Limit) -> Hits {
        let charge = Charge { operation: Operation::Consume(0), ..charges(&[key], limit).remove(0) };
        let decision = store.decide_now(&[], &[charge], Mode::Atomic).unwrap();
        saturated(limit.requests() - decision.outcomes[0].remaining)
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
