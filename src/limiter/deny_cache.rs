//! A local cache of denials: what a store has just denied is denied again without asking it. [dn-1]
//!
//! What is kept is the state that the store showed, and not that it denied: five hits that do not fit say nothing about
//! one. Nothing is denied that the store would have admitted, but for what another replica gave back meanwhile. [dn-5]
//! One cache serves all runtimes of a process. Keys are spread over small sets with a mutex each, and a set is both the
//! place of a key and the sample that eviction compares. A plain mutex is right: nothing is awaited while it is held.
//!
//! Not here: when a store is worth a cache (stores.rs), and the answer to a request (plan.rs).

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashbrown::DefaultHashBuilder;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use weir_engine::{Algorithm, Charge, Hits, Limit, Micros, Mode, Observed, Operation, Outcome, Role, Verdict, Window};

/// How many keys a set holds at most. [dn-6]
const SET_KEYS_MAX: usize = 8;

/// The longest time that a denial of a limit with `hold` is kept. [dn-7]
const HOLD_AGE_MAX: Duration = Duration::from_secs(1);

/// The known outcomes of the charges of one decision, in their order: one for each charge that is known to be denied,
/// none for the others.
pub type Denials = SmallVec<[Option<Outcome>; 2]>;

/// What the cache knows about a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing that helps.
    Nothing,
    /// Some charges are denied. The store has to be asked about the others.
    Part(Denials),
    /// The decision, without the store.
    Enough(Denials),
}

impl Known {
    /// The denials, where they are enough.
    #[must_use]
    pub fn enough(self) -> Option<Denials> {
        match self {
            Self::Enough(denials) => Some(denials),
            Self::Nothing | Self::Part(_) => None,
        }
    }
}

/// How long a denial is kept, at most as long as it denies anything.
#[derive(Clone, Copy, Debug)]
enum Age {
    /// So long.
    AtMost(Duration),
    /// Until the window of its limit ends. Then every limit of a denied request is asked for, so that each status of the
    /// answer is complete. [dn-7]
    Window,
}

/// Among how many counters the lookups of all threads are spread.
const COUNTERS: usize = 16;

/// Lookups, counted by one thread or a few.
#[derive(Default)]
struct Lookups {
    /// Charges that were looked up.
    all: AtomicU64,
    /// Those that were found denied.
    found: AtomicU64,
}

thread_local! {
    /// Which counter this thread writes.
    static COUNTER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % COUNTERS
    };
}

/// What happened in a cache since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Charges that were looked up; 0 if denials are not kept until their window ends.
    pub lookups: u64,
    /// Those of them that were found denied.
    pub found: u64,
    /// Denials that were dropped because they had ended.
    pub expired: u64,
    /// Denials that were replaced by later ones of the same key.
    pub overwritten: u64,
    /// Denials that were dropped to make room.
    pub evicted: u64,
}

/// Denials of at most so many keys, each for a short while.
pub struct DenyCache {
    sets: Box<[Mutex<Set>]>,
    set_keys_max: usize,
    /// Keyed at random as in the memory store, so that no caller can aim at a set.
    hasher: DefaultHashBuilder,
    age: Age,
    /// How many keys are kept: what a lookup reads first, and all that it reads if there are none.
    count: AtomicUsize,
    /// How many times something was forgotten.
    forgotten: AtomicU64,
    hits: OwnLine<AtomicU64>,
    lookups: [OwnLine<Lookups>; COUNTERS],
    expired: AtomicU64,
    overwritten: AtomicU64,
    evicted: AtomicU64,
}

/// Keeps what every hit writes out of the cache lines that every lookup reads.
#[repr(align(128))]
#[derive(Default)]
struct OwnLine<T>(T);

impl DenyCache {
    /// A cache of at most `max_keys` keys (at least 1), that answers from none that is `max_age` old or older. A key that
    /// is kept takes about 160 bytes and its text.
    #[must_use]
    pub fn new(max_age: Duration, max_keys: usize) -> Self {
        Self::with_age(Age::AtMost(max_age), max_keys)
    }

    /// The same that keeps each denial until the window of its limit ends. [dn-7]
    #[must_use]
    pub fn until_window_end(max_keys: usize) -> Self {
        Self::with_age(Age::Window, max_keys)
    }

    fn with_age(age: Age, max_keys: usize) -> Self {
        let set_keys_max = max_keys.clamp(1, SET_KEYS_MAX);
        let count = (max_keys / set_keys_max).max(1);
        Self {
            sets: (0..count).map(|_| Mutex::default()).collect(),
            set_keys_max,
            hasher: DefaultHashBuilder::default(),
            age,
            count: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
            hits: OwnLine::default(),
            lookups: Default::default(),
            expired: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// The answer to a decision without its store. [dn-4]
    ///
    /// `now` is any instant between the arrival of the request and its answer.
    pub fn answers(&self, charges: &[Charge<'_>], mode: Mode, now: Instant) -> Known {
        match self.age {
            Age::AtMost(_) => self.answers_alone(charges, mode, now),
            Age::Window => self.answers_for_each(charges, mode, now),
        }
    }

    /// One limit that denies is enough, if the mode allows that.
    fn answers_alone(&self, charges: &[Charge<'_>], mode: Mode, now: Instant) -> Known {
        if self.is_empty() || charges.iter().any(writes_when_denied) {
            return Known::Nothing;
        }
        let mut denials = Denials::new();
        for charge in charges {
            let denial = self.denies(charge, now);
            if denial.is_none() && mode == Mode::Independent {
                // This limit would be charged, also if another denies.
                return Known::Nothing;
            }
            denials.push(denial);
        }
        if denials.iter().all(Option::is_none) {
            return Known::Nothing;
        }
        self.hits.0.fetch_add(1, Ordering::Relaxed);
        Known::Enough(denials)
    }

    /// Every limit has to be known that the answer tells of, or that is charged all the same. [dn-7]
    fn answers_for_each(&self, charges: &[Charge<'_>], mode: Mode, now: Instant) -> Known {
        let lookups = &self.lookups[COUNTER.with(|counter| *counter)].0;
        lookups.all.fetch_add(charges.len() as u64, Ordering::Relaxed);
        if self.is_empty() || charges.iter().any(writes_when_denied) {
            return Known::Nothing;
        }
        let denials: Denials = charges.iter().map(|charge| self.denies(charge, now)).collect();
        let found = denials.iter().flatten().count();
        if found == 0 {
            return Known::Nothing;
        }
        lookups.found.fetch_add(found as u64, Ordering::Relaxed);
        let is_needed = |charge: &&Charge<'_>| mode == Mode::Independent || !charge.limit.shadow;
        if found < charges.iter().filter(is_needed).count() {
            return Known::Part(denials);
        }
        self.hits.0.fetch_add(1, Ordering::Relaxed);
        Known::Enough(denials)
    }

    /// What the limit of this charge says, where what is known of its state denies the charge for certain. [dn-2]
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

    /// What [`DenyCache::insert`] wants to know: to be read before a decision is sent to the store.
    pub fn generation(&self) -> u64 {
        // Read before the call is sent, so that keys that are forgotten later have a higher number.
        self.forgotten.load(Ordering::Acquire)
    }

    /// Keeps the store's outcome of a charge, if it is a denial; called with every charge and outcome of a decision.
    ///
    /// `sent` is an instant before the decision was sent, `received` one after it was answered, and `generation` was
    /// read before it was sent: if the key was forgotten since, what the store said may be older than that.
    pub fn insert(&self, charge: &Charge<'_>, outcome: &Outcome, sent: Instant, received: Instant, generation: u64) {
        debug_assert!(sent <= received, "an answer comes after its question");
        let Some(denial) = CachedDenial::of(charge, outcome, sent, received) else { return };
        let max_age = match self.age {
            Age::AtMost(max_age) => max_age,
            Age::Window => Duration::from_micros(charge.limit.window().us()),
        };
        // What a replica holds ahead and does not use is given back within a lease. [ls-5]
        let lease = charge.limit.lease.map_or(Duration::MAX, |lease| Duration::from_micros(lease.us()));
        // A settle on another replica gives hits back. [dn-7]
        let hold = if charge.limit.hold { HOLD_AGE_MAX } else { Duration::MAX };
        let max_age = max_age.min(lease).min(hold);
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
            // Answers overtake each other; what was asked for last is the best that is known.
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

    /// Forgets a key, and every denial of it that is on its way: called when hits were given back or taken back, or the
    /// state was reset, once the store has answered or the wait for it has ended. [dn-5]
    pub fn forget(&self, key: &str) {
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        set.forgotten = self.forgotten.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(at) = set.find(key, hash) {
            self.remove(&mut set, at);
        }
    }

    /// Forgets the keys that these charges give hits back to when what is returned is dropped: held while the store is
    /// asked, so that a caller who goes away meanwhile leaves nothing behind that is out of date. [dn-5]
    #[must_use = "the keys are forgotten when this is dropped"]
    pub fn forget_refunds<'a>(&'a self, charges: &'a [Charge<'a>]) -> ForgetOnDrop<'a> {
        ForgetOnDrop { cache: self, charges }
    }

    /// How many decisions were answered without their store.
    pub fn hits(&self) -> u64 {
        self.hits.0.load(Ordering::Relaxed)
    }

    /// What happened since the start.
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

    /// Whether no key is kept.
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

    /// Drops what has ended in a set. Every look calls this, so the cache is empty soon after the denials end, also when no request
    /// asks for the same keys.
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

    /// Drops the key that ends soonest of a set, which is full. [dn-6]
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

/// Whether a charge writes something even where its decision is denied, or makes room for others in it. [dn-4]
fn writes_when_denied(charge: &Charge<'_>) -> bool {
    match charge.operation {
        Operation::Report(_) | Operation::Refund(_) => true,
        Operation::Consume(_) => charge.limit.drain,
        Operation::Peek => false,
    }
}

/// The hits of a charge that can be denied here: taken from an enforced limit that charges nothing when it denies. [dn-2]
fn hits_to_deny(charge: &Charge<'_>) -> Option<Hits> {
    match charge.operation {
        // Usage that has happened is never denied, and a state that holds some is seen with other bounds. A limit with a term
        // ends by the clock of the store. A permit can come back at any moment.
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

/// Forgets, when it is dropped, the keys that the charges of one decision give hits back to.
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

/// The keys whose hashes fall together.
#[derive(Default)]
struct Set {
    entries: Vec<Entry>,
    /// What [`DenyCache::forgotten`] was when a key of this set was forgotten last.
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
    /// From when on nothing is answered from it.
    ends_at: Instant,
    denial: CachedDenial,
}

/// A state that a store has shown, and when that was.
#[derive(Clone, Copy)]
struct CachedDenial {
    /// The limit's numbers, by which it was seen: only what is not in the key could differ, and all of it is compared.
    requests: u32,
    window: Window,
    algorithm: Algorithm,
    /// The rule, which also says in which store the state is: a list of limits and a single one can differ in that.
    owner: u32,
    /// The hits that were asked for.
    hits: Hits,
    seen: Observed,
    /// The store's clock when it was seen, somewhere between the two instants below.
    at: Micros,
    sent: Instant,
    received: Instant,
}

impl CachedDenial {
    /// What a denial shows; nothing if it was no denial, or one that the state alone does not explain. [dn-2]
    fn of(charge: &Charge<'_>, outcome: &Outcome, sent: Instant, received: Instant) -> Option<Self> {
        let hits = hits_to_deny(charge)?;
        let (limit, seen, at) = (charge.limit, outcome.state, outcome.now);
        let explained = match outcome.verdict {
            Verdict::Within => false,
            Verdict::Never => true,
            // Where two charges of a decision are on one key, the second can be denied for what the first would have
            // taken; and a summary is made for the hits of the first.
            Verdict::Over { retry_after } => {
                hits > limit.kind().remaining(&seen, at) && limit.kind().retry_after(&seen, hits, at) == retry_after
            }
        };
        let (requests, window, algorithm) = (limit.requests(), limit.window(), limit.algorithm());
        let owner = charge.owner;
        explained.then_some(Self { requests, window, algorithm, owner, hits, seen, at, sent, received })
    }

    /// How long it denies anything, from when it was seen: no hits that could ever fit wait longer than the reset. A
    /// state that is empty denies, for as long as that is so, what never fits.
    fn lasts(&self, limit: &Limit) -> Duration {
        match limit.kind().reset_after(&self.seen, self.at) {
            0 => Duration::MAX,
            reset_after => Duration::from_micros(reset_after),
        }
    }

    /// The outcome of a charge of `hits`, if the state denies it at its largest possible age. Waits are those of its smallest possible
    /// age, so that they are never too short. [dn-3]
    fn denies(&self, limit: &Limit, hits: Hits, now: Instant) -> Option<Outcome> {
        if (self.requests, self.window, self.algorithm) != (limit.requests(), limit.window(), limit.algorithm()) {
            return None;
        }
        let oldest = micros_up(now.saturating_duration_since(self.sent));
        let youngest = micros_down(now.saturating_duration_since(self.received));
        let verdict = if hits > limit.capacity() {
            Verdict::Never
        } else {
            // When other hits than those that were asked for would fit is not in a summary.
            let is_known = hits == self.hits || !limit.kind().is_summary();
            if !is_known || hits <= limit.kind().remaining(&self.seen, self.at) {
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
