//! A local cache of denials: weir repeats a recent denial of a store without calling it. [dn-1]
//!
//! The cache keeps the state that the store returned, not the verdict: a denial of five hits does not mean a denial of
//! one hit. It denies nothing that the store would admit, except hits that another replica has given back since, for at most the
//! maximum age. [dn-5]
//! One cache serves all runtimes of a process. Keys are spread over small sets with one mutex each. An eviction
//! compares the keys of one set. A plain mutex is right: nothing is awaited while it is held.
//!
//! Not here: which stores get a cache (call.rs), and the answer to a request (answer.rs).

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashbrown::DefaultHashBuilder;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use weir_engine::{
    Algorithm, Charge, Count, Hits, Limit, Micros, Mode, Observed, Operation, Outcome, Role, Verdict, Window,
};

/// The most keys of one set. [dn-6]
const SET_KEYS_MAX: usize = 8;

/// The longest time that a denial of a limit with `hold` is kept. [dn-3]
const HOLD_AGE_MAX: Duration = Duration::from_secs(1);

/// The known denials of one decision's charges, in their order. None for a charge without a known denial.
pub type Denials = SmallVec<[Option<Outcome>; 2]>;

/// What the cache contains about a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Nothing,
    /// Some limits deny, but more are needed. The store must decide. [dn-7]
    Part(Denials),
    /// The decision, without the store.
    Enough(Denials),
}

impl Known {
    pub fn enough(self) -> Option<Denials> {
        match self {
            Self::Enough(denials) => Some(denials),
            Self::Nothing | Self::Part(_) => None,
        }
    }
}

/// Which denials are enough to answer a request without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enough {
    /// One, if the mode allows that. [dn-4]
    One,
    /// Those of all limits that the answer lists, so that each status of the answer is complete. [dn-7]
    All,
}

/// The number of counters over which the lookups of all threads are spread.
const COUNTERS: usize = 16;

/// Lookups, counted by one thread or a few.
#[derive(Default)]
struct Lookups {
    /// Charges that were looked up.
    all: AtomicU64,
    /// The charges that were found denied.
    found: AtomicU64,
}

thread_local! {
    /// The index of this thread's counter.
    static COUNTER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % COUNTERS
    };
}

/// The counts of a cache since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Charges that were looked up; 0 if one denial is enough for an answer.
    pub lookups: u64,
    /// The charges that were found denied.
    pub found: u64,
    /// Denials that were dropped because they had ended.
    pub expired: u64,
    /// Denials that were replaced by later ones of the same key.
    pub overwritten: u64,
    /// Denials that were evicted for others.
    pub evicted: u64,
}

/// Denials of a limited number of keys, each kept for a short time.
pub struct DenyCache {
    sets: Box<[Mutex<Set>]>,
    set_keys_max: usize,
    /// With a random seed: callers cannot compute which keys share a set. foldhash does not protect it from callers that
    /// measure many answers.
    hasher: DefaultHashBuilder,
    max_age: Duration,
    enough: Enough,
    /// The number of keys. A lookup reads it first, and nothing else if it is 0.
    count: AtomicUsize,
    /// How many times a key was forgotten.
    forgotten: AtomicU64,
    hits: OwnLine<AtomicU64>,
    lookups: [OwnLine<Lookups>; COUNTERS],
    expired: AtomicU64,
    overwritten: AtomicU64,
    evicted: AtomicU64,
}

/// Separates data that every hit writes from the cache lines that every lookup reads.
#[repr(align(128))]
#[derive(Default)]
struct OwnLine<T>(T);

impl DenyCache {
    /// A cache of at most `max_keys` keys (at least 1). A denial of age `max_age` or more is not used. A key takes
    /// about 160 bytes and its text.
    pub fn new(max_age: Duration, max_keys: usize) -> Self {
        Self::with(max_age, max_keys, Enough::One)
    }

    /// As the local cache of envoyproxy/ratelimit: it answers only requests of which it denies all limits, and counts its
    /// lookups. [dn-7]
    pub fn of_complete_answers(max_age: Duration, max_keys: usize) -> Self {
        Self::with(max_age, max_keys, Enough::All)
    }

    fn with(max_age: Duration, max_keys: usize, enough: Enough) -> Self {
        let set_keys_max = max_keys.clamp(1, SET_KEYS_MAX);
        let count = (max_keys / set_keys_max).max(1);
        Self {
            sets: (0..count).map(|_| Mutex::default()).collect(),
            set_keys_max,
            hasher: DefaultHashBuilder::default(),
            max_age,
            enough,
            count: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
            hits: OwnLine::default(),
            lookups: Default::default(),
            expired: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Decides without the store, if the known denials are enough. [dn-4]
    ///
    /// `now` is any instant between the arrival of the request and its answer.
    pub fn answers(&self, charges: &[Charge<'_>], mode: Mode, now: Instant) -> Known {
        let lookups = &self.lookups[COUNTER.with(|counter| *counter)].0;
        if self.enough == Enough::All {
            lookups.all.fetch_add(charges.len() as u64, Ordering::Relaxed);
        }
        if self.is_empty() || charges.iter().any(writes_when_denied) {
            return Known::Nothing;
        }
        let denials: Denials = charges.iter().map(|charge| self.denies(charge, now)).collect();
        let found = denials.iter().flatten().count();
        if found == 0 {
            return Known::Nothing;
        }
        let needed = match (mode, self.enough) {
            // Each other limit would be charged.
            (Mode::Independent, _) => charges.len(),
            (Mode::Atomic, Enough::One) => 1,
            (Mode::Atomic, Enough::All) => charges.iter().filter(|charge| !charge.limit.shadow).count(),
        };
        if self.enough == Enough::All {
            lookups.found.fetch_add(found as u64, Ordering::Relaxed);
        }
        if found >= needed {
            self.hits.0.fetch_add(1, Ordering::Relaxed);
            return Known::Enough(denials);
        }
        match self.enough {
            Enough::One => Known::Nothing,
            Enough::All => Known::Part(denials),
        }
    }

    /// The outcome of this charge, if the known state certainly denies it. [dn-2]
    pub fn denies(&self, charge: &Charge<'_>, now: Instant) -> Option<Outcome> {
        let hits = hits_to_deny(charge)?;
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(charge.key);
        let denial = {
            let mut set = self.lock(hash);
            self.expire(&mut set, now);
            set.entries[set.find(charge.key, hash)?].denial
        };
        if denial.owner != charge.owner {
            return None;
        }
        denial.denies(charge.limit, hits, now)
    }

    /// The number for [`DenyCache::insert`]. Read it before the decision is sent to the store.
    pub fn generation(&self) -> u64 {
        // Read before the call is sent, so keys that are forgotten later have a higher number.
        self.forgotten.load(Ordering::Acquire)
    }

    /// Stores the outcome of a charge if it is a denial. If it is none, drops an earlier denial that it contradicts. Called
    /// for every charge of a decision.
    ///
    /// `sent` is an instant before the decision was sent, `received` one after its answer, and `generation` was read
    /// before the decision was sent. If the key was forgotten since, the store's answer may be outdated.
    pub fn insert(&self, charge: &Charge<'_>, outcome: &Outcome, sent: Instant, received: Instant, generation: u64) {
        debug_assert!(sent <= received, "an answer comes after its question");
        let Some(denial) = CachedDenial::of(charge, outcome, sent, received) else {
            self.end(charge, outcome, sent);
            return;
        };
        // Hits that a replica has charged ahead and does not use are given back within a lease. [ls-5]
        let lease = charge.limit.lease.map_or(Duration::MAX, |lease| Duration::from_micros(lease.us()));
        // A settle on another replica gives hits back. [dn-3]
        let hold = if charge.limit.hold { HOLD_AGE_MAX } else { Duration::MAX };
        let max_age = self.max_age.min(lease).min(hold);
        let ends_at = sent + denial.lasts(charge.limit).min(max_age);
        if ends_at <= received {
            return;
        }
        let hash = self.hasher.hash_one(charge.key);
        let mut set = self.lock(hash);
        if set.forgotten > generation {
            return;
        }
        self.expire(&mut set, received);
        if let Some(at) = set.find(charge.key, hash) {
            let entry = &mut set.entries[at];
            // Answers can arrive in a different order. The answer to the latest call is the best one.
            if entry.denial.sent <= sent {
                (entry.ends_at, entry.denial) = (ends_at, denial);
                self.overwritten.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        if set.entries.len() == self.set_keys_max {
            self.evict(&mut set);
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        set.entries.push(Entry { key: charge.key.into(), hash, ends_at, denial });
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops the denial of a key if a call that was sent later has found room for its hits, or has rewritten the state by
    /// other numbers. [dn-5]
    fn end(&self, charge: &Charge<'_>, outcome: &Outcome, sent: Instant) {
        if self.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(charge.key);
        let mut set = self.lock(hash);
        let Some(at) = set.find(charge.key, hash) else { return };
        let denial = set.entries[at].denial;
        let is_outdated = if denial.has_numbers_of(charge.limit) {
            outcome.remaining_before >= Count::from(denial.hits)
        } else {
            // A debt drains by the numbers of the last charge. [pc-6]
            !charge.limit.algorithm().takes_holds()
        };
        if is_outdated && denial.owner == charge.owner && denial.sent < sent {
            self.remove(&mut set, at);
        }
    }

    /// Forgets a key, including denials of it that are still in flight. Called after hits were given back or taken
    /// back, or after a reset, once the store has answered or the wait has ended. [dn-5]
    pub fn forget(&self, key: &str) {
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        set.forgotten = self.forgotten.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(at) = set.find(key, hash) {
            self.remove(&mut set, at);
        }
    }

    /// Returns a guard that forgets the keys to which these charges give hits back when dropped. It is held during the
    /// store call, so a caller that goes away leaves no outdated denial. [dn-5]
    #[must_use = "the keys are forgotten when this is dropped"]
    pub fn forget_refunds<'a>(&'a self, charges: &'a [Charge<'a>]) -> ForgetOnDrop<'a> {
        ForgetOnDrop { cache: self, charges }
    }

    /// How many decisions were made without their store.
    pub fn hits(&self) -> u64 {
        self.hits.0.load(Ordering::Relaxed)
    }

    pub fn usage(&self) -> Usage {
        let sum = |of: fn(&Lookups) -> &AtomicU64| -> u64 {
            self.lookups.iter().map(|lookups| of(&lookups.0).load(Ordering::Relaxed)).sum()
        };
        Usage {
            lookups: sum(|lookups| &lookups.all),
            found: sum(|lookups| &lookups.found),
            expired: self.expired.load(Ordering::Relaxed),
            overwritten: self.overwritten.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// How many keys are kept. Some may have ended; the next lookup in their set drops them.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a product of a hash and a length, less 64 bits: below the length"
    )]
    fn lock(&self, hash: u64) -> MutexGuard<'_, Set> {
        let number = (u128::from(hash) * self.sets.len() as u128) >> u64::BITS;
        self.sets[number as usize].lock()
    }

    /// Drops ended denials of a set. Every lookup calls this, so the cache becomes empty soon after the denials end,
    /// even if no request uses the same keys.
    fn expire(&self, set: &mut Set, now: Instant) {
        let mut at = 0;
        while at < set.entries.len() {
            if set.entries[at].ends_at <= now {
                self.remove(set, at);
                self.expired.fetch_add(1, Ordering::Relaxed);
            } else {
                at += 1;
            }
        }
    }

    /// Drops the key of a full set that ends first. [dn-6]
    fn evict(&self, set: &mut Set) {
        let soonest = set.entries.iter().enumerate().min_by_key(|(_, entry)| entry.ends_at);
        if let Some((at, _)) = soonest {
            self.remove(set, at);
        }
    }

    fn remove(&self, set: &mut Set, at: usize) {
        set.entries.swap_remove(at);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if set.entries.is_empty() {
            set.entries = Vec::new();
        }
    }
}

/// Whether a charge writes or refunds something even if its decision is denied. [dn-4]
fn writes_when_denied(charge: &Charge<'_>) -> bool {
    match charge.operation {
        Operation::Report(_) | Operation::Refund(_) => true,
        Operation::Consume(_) => charge.limit.drain,
        Operation::Peek => false,
    }
}

/// The hits of a charge that the cache can deny: consumed from an enforced limit that charges nothing when it denies.
/// [dn-2]
fn hits_to_deny(charge: &Charge<'_>) -> Option<Hits> {
    match charge.operation {
        // Reported usage is never denied, and a post-paid limit has other bounds on its state. A permit can be released at
        // any time.
        Operation::Consume(_)
            if charge.limit.drain
                || charge.limit.post_paid()
                || charge.limit.term.is_some()
                || charge.limit.algorithm().counts_permits() =>
        {
            None
        }
        Operation::Consume(hits) if charge.role == Role::Enforced => Some(hits),
        _ => None,
    }
}

/// When dropped, forgets the keys to which the charges of one decision give hits back.
pub struct ForgetOnDrop<'a> {
    cache: &'a DenyCache,
    charges: &'a [Charge<'a>],
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        for charge in self.charges {
            if let Operation::Refund(_) = charge.operation {
                self.cache.forget(charge.key);
            }
        }
    }
}

/// The keys with the same set index.
#[derive(Default)]
struct Set {
    entries: Vec<Entry>,
    /// The value of [`DenyCache::forgotten`] when a key of this set was last forgotten.
    forgotten: u64,
}

impl Set {
    fn find(&self, key: &str, hash: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.hash == hash && *entry.key == *key)
    }
}

struct Entry {
    key: Box<str>,
    hash: u64,
    /// From this instant on, the entry is not used.
    ends_at: Instant,
    denial: CachedDenial,
}

/// A state that a store has returned, with its time.
#[derive(Clone, Copy)]
struct CachedDenial {
    /// The limit's numbers at that time. Other properties are in the key, so comparing the numbers is enough.
    requests: Count,
    window: Window,
    algorithm: Algorithm,
    /// The rule. It also determines the store of the state: a list of limits and a single limit can be in different
    /// stores.
    owner: u32,
    hits: Hits,
    seen: Observed,
    /// The store's clock at that time. It is between the two instants below.
    at: Micros,
    sent: Instant,
    received: Instant,
}

impl CachedDenial {
    /// The denial of an outcome. None if it was not a denial, or if the state alone does not explain it. [dn-2]
    fn of(charge: &Charge<'_>, outcome: &Outcome, sent: Instant, received: Instant) -> Option<Self> {
        let hits = hits_to_deny(charge)?;
        let (limit, seen, at) = (charge.limit, outcome.state, outcome.now);
        let explained = match outcome.verdict {
            Verdict::Within => false,
            Verdict::Never => true,
            // If two charges of a decision have one key, the second can be denied because of the first one's hits. A
            // summary is made for the first one's hits.
            Verdict::Over { retry_after } => {
                Count::from(hits) > limit.kind().remaining(&seen, at)
                    && limit.kind().retry_after(&seen, hits, at) == retry_after
            }
        };
        let (requests, window, algorithm) = (limit.requests(), limit.window(), limit.algorithm());
        let owner = charge.owner;
        explained.then_some(Self { requests, window, algorithm, owner, hits, seen, at, sent, received })
    }

    fn has_numbers_of(&self, limit: &Limit) -> bool {
        (self.requests, self.window, self.algorithm) == (limit.requests(), limit.window(), limit.algorithm())
    }

    /// How long it denies anything, from its time on: hits that can ever fit wait at most until the reset. An empty
    /// state denies hits that can never fit, for as long as it stays empty.
    fn lasts(&self, limit: &Limit) -> Duration {
        match limit.kind().reset_after(&self.seen, self.at) {
            0 => Duration::MAX,
            reset_after => Duration::from_micros(reset_after),
        }
    }

    /// The outcome of a charge of `hits`, if the state denies it at its largest possible age. Waits are those of its
    /// smallest possible age, so they are never too short. [dn-3]
    fn denies(&self, limit: &Limit, hits: Hits, now: Instant) -> Option<Outcome> {
        if !self.has_numbers_of(limit) {
            return None;
        }
        let oldest = micros_up(now.saturating_duration_since(self.sent));
        let youngest = micros_down(now.saturating_duration_since(self.received));
        let verdict = if Count::from(hits) > limit.capacity() {
            Verdict::Never
        } else {
            // A summary does not have the wait of other hits than the requested ones.
            let is_known = hits == self.hits || !limit.kind().is_summary();
            if !is_known || Count::from(hits) <= limit.kind().remaining(&self.seen, self.at) {
                return None;
            }
            let retry_after = limit.kind().retry_after(&self.seen, hits, self.at);
            if oldest >= retry_after {
                return None;
            }
            Verdict::Over { retry_after: retry_after - youngest }
        };
        let at = self.at + youngest;
        let state = limit.kind().later(&self.seen, at);
        let remaining = limit.kind().remaining(&state, at);
        Some(Outcome {
            verdict,
            remaining_before: remaining,
            remaining,
            now: at,
            before: state,
            wait: 0,
            reset_after: limit.kind().reset_after(&state, at),
            state,
            receipt: None,
        })
    }
}

fn micros_down(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}

fn micros_up(time: Duration) -> Micros {
    Micros::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(Micros::MAX)
}
