//! Hits of hot keys that this process has taken ahead: the store has charged them, and no request has had them yet. [ls-1]
//!
//! One table serves all cores. Keys with leases are spread over small sets with a mutex each, as in the cache of denials:
//! nothing is awaited while it is held. A key that is not hot never comes to the sets.
//! A lease is left in three ways: requests take its hits, its end takes what is left out of the table, or a reset drops it. What
//! was taken and is not admitted goes back to the same lease, by its number, or nowhere. So no hit is admitted and given
//! back.
//! Not here: the calls to the store (ahead.rs).

mod asks;
#[path = "../store/sync.rs"]
mod sync;

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hashbrown::DefaultHashBuilder;
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use tokio::sync::watch;
use weir_engine::lease::HOT_ASKS;
use weir_engine::{
    Charge, Decision, Hits, Lease, Limit, Micros, Observed, Operation, Outcome, Receipt, Role, Verdict, hits_ahead,
};
use weir_store::Clock;

use self::asks::Asks;
use self::sync::{Mutex, MutexGuard};

/// The sets, and how many keys one holds at most.
const SETS: usize = 256;
const SET_KEYS_MAX: usize = 8;
/// The most keys that have leases at one time. Past it a hot key is asked for at the store.
pub const LEASED_KEYS_MAX: usize = SETS * SET_KEYS_MAX;
/// The most leases of one key that have hits left: the one in use, and the one after it.
const LEASES_OF_KEY_MAX: usize = 2;
/// The next hits are taken ahead when at most this part of the last ones is left, so that no request waits for them.
const LOW_WATER: Hits = 4;

/// The machine's time since its start, while it was suspended too: a lease ends for a machine that sleeps. [ls-3]
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Micros {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        // Those of other systems go on while the machine sleeps.
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        // Neither part of that clock is ever negative.
        now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
    }
}

/// The leases of a process, shared by all of its limiters. Without memory until the first request for a limit with a lease.
pub struct Leases {
    clock: Arc<dyn Clock>,
    /// Keyed at random, so that no caller can aim at a set.
    hasher: DefaultHashBuilder,
    table: OnceLock<Table>,
    generations: AtomicU64,
    /// The process ends, and gives back what it holds. Each lease listens.
    ends: watch::Sender<bool>,
}

struct Table {
    asks: Asks,
    sets: Box<[Mutex<Vec<Entry>>]>,
}

/// A key that has leases, is to get one, or had some.
struct Entry {
    key: Box<str>,
    hash: u64,
    /// Oldest first. Of those, at most [`LEASES_OF_KEY_MAX`] have hits left.
    leases: SmallVec<[Held; LEASES_OF_KEY_MAX]>,
    /// The call on its way that takes hits ahead.
    asking: Option<Asking>,
    /// What the store had left in its last answer.
    remaining: Hits,
}

/// A call on its way that takes hits ahead.
struct Asking {
    /// Its hits, without those that requests wait for.
    unclaimed: Hits,
    /// Dropped at the end of the call, which those who wait see.
    end: CallEnd,
}

type CallEnd = watch::Sender<()>;

/// A lease.
struct Held {
    generation: u64,
    granted: Granted,
    /// The hits that no request has taken yet.
    left: Hits,
    /// A request has found that it has ended.
    is_late: bool,
}

/// What the store granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    /// The hits of the limit, by which the store decided.
    pub(super) requests: Hits,
    /// The proof of the charge.
    pub(super) receipt: Receipt,
    /// What the charge left behind, and the store's clock then.
    pub(super) state: Observed,
    pub(super) now: Micros,
    /// When the answer arrived, and from when on nothing is admitted, by the clock of leases.
    pub(super) received: Micros,
    pub(super) until: Micros,
}

/// Hits that a request has taken from a lease.
#[derive(Clone, Copy, Debug)]
struct Taken {
    hash: u64,
    generation: u64,
    hits: Hits,
    /// The hits that are left after these.
    left: Hits,
    granted: Granted,
}

/// The charges of a request whose keys are all hot: their hashes, and the requests for each in the last time of a lease.
pub(super) type Hot = SmallVec<[(u64, u32); 2]>;

/// What the leases of this process have for a request.
pub(super) enum Found<T> {
    /// They admit it.
    Enough(T),
    /// Too few, and a call is on its way that takes enough. The channel closes at the end of the call.
    Coming(watch::Receiver<()>),
    TooFew,
}

impl<T> Found<T> {
    pub(super) fn map<U>(self, with: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Self::Enough(found) => Found::Enough(with(found)),
            Self::Coming(end) => Found::Coming(end),
            Self::TooFew => Found::TooFew,
        }
    }
}

/// The hits to take ahead now, each with the place of its charge in the request.
pub(super) type ToTake = SmallVec<[(usize, Hits); 2]>;

/// Whether hits of this charge can be admitted by a lease.
pub(super) fn is_leasable(charge: &Charge<'_>) -> bool {
    leasable(charge).is_some()
}

/// Hits of a charge that can be admitted by a lease: consumed, of an enforced limit with a lease. [ls-1]
fn leasable(charge: &Charge<'_>) -> Option<(Hits, Lease)> {
    match charge.operation {
        Operation::Consume(hits) if charge.role == Role::Enforced => Some((hits, charge.limit.lease?)),
        _ => None,
    }
}

/// The leases that a process has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTotals {
    /// The keys with a lease.
    pub keys: u64,
    /// The hits that were charged ahead.
    pub charged: u64,
    /// How many of these hits requests have used.
    pub used: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self::new(Arc::new(BootClock))
    }
}

impl Leases {
    /// No leases. The clock counts from any instant, never steps back, and counts while the machine is suspended.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (hasher, table) = (DefaultHashBuilder::default(), OnceLock::new());
        Self { clock, hasher, table, generations: AtomicU64::new(0), ends: watch::Sender::new(false) }
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// The leases that have not ended yet. A lease that is used up may be left out.
    pub(super) fn totals(&self) -> LeaseTotals {
        let mut totals = LeaseTotals::default();
        for set in self.table.get().into_iter().flat_map(|table| &table.sets) {
            for entry in set.lock().iter().filter(|entry| !entry.leases.is_empty()) {
                totals.keys += 1;
                for held in &entry.leases {
                    let charged = held.granted.receipt.hits;
                    totals.charged += u64::from(charged);
                    totals.used += u64::from(charged.saturating_sub(held.left));
                }
            }
        }
        totals
    }

    /// For a lease to listen for the end of the process. None if that has begun.
    pub(super) fn listen(&self) -> Option<watch::Receiver<bool>> {
        let ends = self.ends.subscribe();
        let is_over = *ends.borrow();
        (!is_over).then_some(ends)
    }

    /// Ends all leases now. Returns when all have given back what was left of them.
    pub(super) async fn end_all(&self) {
        self.ends.send_replace(true);
        self.ends.closed().await;
    }

    /// Counts a request for its keys. None if one of them is not hot, or cannot have a lease. [ls-2]
    pub(super) fn count(&self, charges: &[Charge<'_>], now: Instant) -> Option<Hot> {
        let asks = &self.table().asks;
        let mut hot = Hot::new();
        for (charge, (_, lease)) in charges.iter().filter_map(|charge| Some((charge, leasable(charge)?))) {
            let hash = self.hasher.hash_one(charge.key);
            let count = asks.count(hash, lease, now);
            if count >= HOT_ASKS {
                hot.push((hash, count));
            }
        }
        (hot.len() == charges.len()).then_some(hot)
    }

    /// Admits a request if each of its limits has a lease with enough hits. The caller takes `to_take` ahead, however this ends. [ls-4]
    pub(super) fn admit(&self, charges: &[Charge<'_>], hot: &Hot, to_take: &mut ToTake) -> Found<Decision> {
        // A lease that has ended is found late once; then the next one of the key is tried.
        (0..=LEASES_OF_KEY_MAX).find_map(|_| self.admit_once(charges, hot, to_take)).unwrap_or(Found::TooFew)
    }

    /// None if a lease was found late: others may be left.
    fn admit_once(&self, charges: &[Charge<'_>], hot: &Hot, to_take: &mut ToTake) -> Option<Found<Decision>> {
        let mut taken = SmallVec::<[Taken; 2]>::new();
        for (place, (charge, &(hash, asks))) in charges.iter().zip(hot).enumerate() {
            let mut set = self.lock(hash);
            let found = match find(&mut set, charge.key, hash) {
                Some(entry) => {
                    let hits = entry.take(charge, hash);
                    let demand = asks.saturating_mul(charge.operation.asked());
                    to_take.extend(entry.ahead(charge.limit, demand).map(|hits| (place, hits)));
                    hits.ok_or_else(|| entry.wait(charge.operation.asked()))
                }
                None => Err(Found::TooFew),
            };
            drop(set);
            match found {
                Ok(hits) => taken.push(hits),
                Err(found) => {
                    self.put_back(charges, &taken, None);
                    return Some(found);
                }
            }
        }
        // After the hits were taken: a process that stood still before this instant finds out here. [ls-4]
        let now = self.clock.now();
        if taken.iter().any(|taken| now >= taken.granted.until) {
            self.put_back(charges, &taken, Some(now));
            return None;
        }
        Some(Found::Enough(Decision {
            denied: false,
            now: taken.first().map_or(0, |taken| taken.granted.at(now)),
            outcomes: charges.iter().zip(&taken).map(|(charge, taken)| taken.outcome(charge, now)).collect(),
        }))
    }

    /// Puts hits back into the leases that they were taken from, as far as these are still there. With a time, leases that have ended
    /// by then are not used any more.
    fn put_back(&self, charges: &[Charge<'_>], taken: &[Taken], now: Option<Micros>) {
        for (charge, taken) in charges.iter().zip(taken) {
            let mut set = self.lock(taken.hash);
            let Some(entry) = find(&mut set, charge.key, taken.hash) else { continue };
            if let Some(held) = entry.leases.iter_mut().find(|held| held.generation == taken.generation) {
                held.left += taken.hits;
                held.is_late |= now.is_some_and(|now| now >= held.granted.until);
            }
        }
    }

    /// Notes what the store has answered for a charge. Returns the hits to take ahead now, if the key is hot. [ls-2]
    pub(super) fn answered(&self, charge: &Charge<'_>, outcome: &Outcome, now: Instant) -> Option<Hits> {
        let (hits, lease) = leasable(charge)?;
        let hash = self.hasher.hash_one(charge.key);
        let asks = self.table().asks.of(hash, lease, now);
        if asks < HOT_ASKS {
            return None;
        }
        let demand = asks.saturating_mul(hits);
        let mut set = self.lock(hash);
        if let Some(entry) = find(&mut set, charge.key, hash) {
            entry.remaining = outcome.remaining;
            return entry.ahead(charge.limit, demand);
        }
        let ahead = hits_ahead(demand, 0, outcome.remaining, charge.limit.requests())?;
        if set.len() == SET_KEYS_MAX {
            let unused = set.iter().position(Entry::is_unused)?;
            set.swap_remove(unused);
        }
        let (key, remaining, asking) = (charge.key.into(), outcome.remaining, Some(Asking::new(ahead)));
        set.push(Entry { key, hash, leases: SmallVec::new(), asking, remaining });
        Some(ahead)
    }

    /// Ends a call that takes hits ahead, which had this to show. Returns the number of the lease, if there is one now.
    pub(super) fn asked(&self, key: &str, remaining: Option<Hits>, granted: Option<Granted>) -> Option<u64> {
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        let entry = find(&mut set, key, hash)?;
        let asking = entry.asking.take();
        entry.remaining = remaining.unwrap_or(entry.remaining);
        // Those that are used up have nothing to give back.
        entry.leases.retain(|held| held.left > 0);
        let generation = granted.map(|granted| {
            let generation = self.generations.fetch_add(1, Relaxed);
            entry.leases.push(Held { generation, granted, left: granted.receipt.hits, is_late: false });
            generation
        });
        // Those who wait are woken without the lock, which they need.
        drop(set);
        drop(asking);
        generation
    }

    /// Ends a lease. Returns the hits that no request has taken, which none can take any more.
    pub(super) fn end(&self, key: &str, generation: u64) -> Hits {
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        let Some(entry) = find(&mut set, key, hash) else { return 0 };
        let at = entry.leases.iter().position(|held| held.generation == generation);
        at.map_or(0, |at| entry.leases.remove(at).left)
    }

    /// Drops the leases of a key whose state was reset: the store does not have their hits any more.
    pub(super) fn forget(&self, key: &str) {
        if self.table.get().is_none() {
            return;
        }
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        if let Some(entry) = find(&mut set, key, hash) {
            entry.leases.clear();
        }
    }

    fn table(&self) -> &Table {
        self.table
            .get_or_init(|| Table { asks: Asks::new(), sets: (0..SETS).map(|_| Mutex::new(Vec::new())).collect() })
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Vec<Entry>> {
        // Other bits than those that choose a count.
        self.table().sets[usize::try_from((hash >> 32) % SETS as u64).unwrap_or_default()].lock()
    }
}

fn find<'s>(set: &'s mut [Entry], key: &str, hash: u64) -> Option<&'s mut Entry> {
    set.iter_mut().find(|entry| entry.hash == hash && *entry.key == *key)
}

impl Entry {
    /// Takes hits of the oldest lease that has as many.
    fn take(&mut self, charge: &Charge<'_>, hash: u64) -> Option<Taken> {
        let hits = charge.operation.asked();
        let held = self.leases.iter_mut().find(|held| held.is_usable(charge.limit) && held.left >= hits)?;
        held.left -= hits;
        Some(Taken { hash, generation: held.generation, hits, left: held.left, granted: held.granted })
    }

    /// The hits to take ahead now; the caller takes them. None if there are enough, or a call is on its way.
    fn ahead(&mut self, limit: &Limit, demand: Hits) -> Option<Hits> {
        let newest = self.leases.last().map_or(0, |held| held.granted.receipt.hits);
        let usable = || self.leases.iter().filter(|held| held.left > 0 && held.is_usable(limit));
        let held = usable().fold(0, |sum: Hits, held| sum.saturating_add(held.left));
        let is_enough = held > newest / LOW_WATER || usable().count() >= LEASES_OF_KEY_MAX;
        if self.asking.is_some() || (held > 0 && is_enough) {
            return None;
        }
        let hits = hits_ahead(demand, held, self.remaining, limit.requests())?;
        self.asking = Some(Asking::new(hits));
        Some(hits)
    }

    /// Waits for hits, if a call is on its way whose hits are enough for all who wait. Others would wait in vain, and ask the store.
    fn wait<T>(&mut self, hits: Hits) -> Found<T> {
        match &mut self.asking {
            Some(asking) if asking.unclaimed >= hits => {
                asking.unclaimed -= hits;
                Found::Coming(asking.end.subscribe())
            }
            _ => Found::TooFew,
        }
    }

    /// It has no lease and gets none. What it knows of the store saves a call when the key is hot again.
    fn is_unused(&self) -> bool {
        self.asking.is_none() && self.leases.is_empty()
    }
}

impl Asking {
    fn new(hits: Hits) -> Self {
        Self { unclaimed: hits, end: watch::Sender::new(()) }
    }
}

impl Held {
    /// Whether it may be used: it is not known to have ended, and was granted under the same numbers. [ls-5]
    fn is_usable(&self, limit: &Limit) -> bool {
        !self.is_late && self.granted.requests == limit.requests()
    }
}

impl Granted {
    /// The least that the store's clock can be, at an instant of the clock of leases.
    fn at(&self, now: Micros) -> Micros {
        self.now + now.saturating_sub(self.received)
    }
}

impl Taken {
    /// The outcome, as if the store had charged the hits now, and those that are left in the lease later. [ls-5]
    fn outcome(&self, charge: &Charge<'_>, now: Micros) -> Outcome {
        let (kind, at) = (charge.limit.kind(), self.granted.at(now));
        let before = kind.without(&self.granted.state, self.left.saturating_add(self.hits), at);
        let state = kind.without(&self.granted.state, self.left, at);
        Outcome {
            verdict: Verdict::Within,
            remaining_before: kind.remaining(&before, at),
            remaining: kind.remaining(&state, at),
            now: at,
            before,
            wait: 0,
            reset_after: kind.reset_after(&state, at),
            state,
            receipt: Some(Receipt { hits: self.hits, ..self.granted.receipt }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use shuttle::thread;
    use weir_engine::{Algorithm, Unit};

    use super::sync::explore;
    use super::*;

    const LEFT: Hits = 50_000;
    /// What a key takes ahead that has just become hot.
    const FIRST_AHEAD: Hits = HOT_ASKS - HOT_ASKS / 8;
    const STORE_NOW: Micros = 1_700_000_000_000_000;

    #[derive(Default)]
    struct ManualClock(AtomicU64);

    impl Clock for ManualClock {
        fn now(&self) -> Micros {
            self.0.load(SeqCst)
        }
    }

    fn limit() -> Limit {
        let mut limit = Limit::new(100_000, Unit::Hour.window(), Algorithm::FIXED_WINDOW).unwrap();
        limit.lease = Lease::from_micros(100_000);
        limit
    }

    fn consume<'a>(key: &'a str, limit: &'a Limit, hits: Hits) -> Charge<'a> {
        Charge::alone(key, limit, Operation::Consume(hits))
    }

    /// The outcome of a store that has charged hits, and has so many left after them.
    fn outcome(limit: &Limit, hits: Hits, remaining: Hits) -> Outcome {
        let kind = limit.kind();
        let nothing = kind.observe(None, hits, None, STORE_NOW);
        let with =
            |used| weir_engine::StateKind::left(kind, &nothing, weir_engine::algorithm::Effect::Add(used), STORE_NOW);
        let state = with(limit.requests() - remaining).unwrap();
        Outcome {
            verdict: Verdict::Within,
            remaining_before: remaining + hits,
            remaining,
            now: STORE_NOW,
            before: with(limit.requests() - remaining - hits).unwrap(),
            wait: 0,
            reset_after: kind.reset_after(&state, STORE_NOW),
            state,
            receipt: Some(Receipt { hits, at: STORE_NOW, mark: state.mark() }),
        }
    }

    /// A table, with a clock that stands at 0.
    struct Bench {
        clock: Arc<ManualClock>,
        leases: Leases,
        started: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let clock = Arc::<ManualClock>::default();
            Self { leases: Leases::new(clock.clone()), clock, started: Instant::now() }
        }

        /// What leases have for a request, and the hits that it takes ahead.
        fn find(&self, charges: &[Charge<'_>]) -> (Found<Decision>, ToTake) {
            let mut to_take = ToTake::new();
            let Some(hot) = self.leases.count(charges, self.started) else { return (Found::TooFew, to_take) };
            (self.leases.admit(charges, &hot, &mut to_take), to_take)
        }

        /// The decision, if leases admit the request.
        fn admit(&self, charges: &[Charge<'_>]) -> Option<Decision> {
            match self.find(charges).0 {
                Found::Enough(decision) => Some(decision),
                Found::Coming(_) | Found::TooFew => None,
            }
        }

        /// Asks so often for a key that it is hot. Returns the hits to take ahead when the store has answered.
        fn heat(&self, key: &str, limit: &Limit) -> Option<Hits> {
            for _ in 0..HOT_ASKS {
                assert!(self.admit(&[consume(key, limit, 1)]).is_none(), "no lease yet");
            }
            self.leases.answered(&consume(key, limit, 1), &outcome(limit, 1, LEFT), self.started)
        }

        /// Answers a call that takes hits ahead.
        fn grant(&self, key: &str, limit: &Limit, hits: Hits, until: Micros) -> u64 {
            let Outcome { receipt, state, now, remaining, .. } = outcome(limit, hits, LEFT - hits);
            let (requests, received) = (limit.requests(), self.leases.now());
            let granted = Granted { requests, receipt: receipt.unwrap(), state, now, received, until };
            self.leases.asked(key, Some(remaining), Some(granted)).unwrap()
        }
    }

    #[test]
    fn a_key_is_hot_from_the_thirty_second_request_on() {
        let (bench, limit) = (Bench::new(), limit());
        let charge = consume("k", &limit, 1);
        for _ in 1..HOT_ASKS {
            assert!(bench.admit(std::slice::from_ref(&charge)).is_none());
            assert_eq!(bench.leases.answered(&charge, &outcome(&limit, 1, LEFT), bench.started), None);
        }
        assert!(bench.admit(std::slice::from_ref(&charge)).is_none());
        assert_eq!(bench.leases.answered(&charge, &outcome(&limit, 1, LEFT), bench.started), Some(FIRST_AHEAD));
        // A call is on its way, so that there is no second one.
        assert_eq!(bench.leases.answered(&charge, &outcome(&limit, 1, LEFT), bench.started), None);
        // It fails, and the next answer begins another.
        assert_eq!(bench.leases.asked("k", None, None), None);
        assert_eq!(bench.leases.answered(&charge, &outcome(&limit, 1, LEFT), bench.started), Some(FIRST_AHEAD));
    }

    #[test]
    fn hits_of_a_lease_are_admitted_until_it_is_used_up_or_ends() {
        let (bench, limit) = (Bench::new(), limit());
        assert_eq!(bench.heat("k", &limit), Some(FIRST_AHEAD));
        bench.grant("k", &limit, 40, 1_000);
        let one = [consume("k", &limit, 1)];
        bench.clock.0.store(10, SeqCst);
        let (Found::Enough(decision), to_take) = bench.find(&one) else { panic!("it has enough") };
        // As if the store had charged it now, and those that are left later.
        let outcome = &decision.outcomes[0];
        assert_eq!((outcome.remaining_before, outcome.remaining), (LEFT, LEFT - 1));
        assert_eq!((decision.denied, decision.now, outcome.now), (false, STORE_NOW + 10, STORE_NOW + 10));
        assert_eq!(outcome.receipt.map(|receipt| (receipt.hits, receipt.at)), Some((1, STORE_NOW)));
        assert!(to_take.is_empty(), "{to_take:?}");
        // More than is left goes to the store, and what is left stays.
        assert!(bench.admit(&[consume("k", &limit, 40)]).is_none());
        assert!(bench.admit(&[consume("k", &limit, 28)]).is_some());
        // The low water: the next hits are taken ahead, once.
        let [first, second] = [(); 2].map(|()| bench.find(&one).1);
        assert!(matches!(*first, [(0, 21..)]), "{first:?}");
        assert!(second.is_empty(), "{second:?}");
        bench.clock.0.store(999, SeqCst);
        assert!(bench.admit(&one).is_some());
        bench.clock.0.store(1_000, SeqCst);
        assert!(bench.admit(&one).is_none(), "it has ended");
        bench.grant("k", &limit, 8, 2_000);
        assert!(
            bench.admit(&[consume("k", &limit, 8)]).is_some(),
            "the next one is found behind the one that has ended"
        );
        assert!(bench.admit(&one).is_none(), "it is used up");
    }

    #[test]
    fn what_is_left_ends_with_its_lease_and_is_given_back_once() {
        let (bench, limit) = (Bench::new(), limit());
        bench.heat("k", &limit);
        let lease = bench.grant("k", &limit, 40, 1_000);
        assert!(bench.admit(&[consume("k", &limit, 15)]).is_some());
        assert_eq!(bench.leases.end("k", lease), 25);
        assert_eq!(bench.leases.end("k", lease), 0);
        assert!(bench.admit(&[consume("k", &limit, 1)]).is_none());
    }

    #[test]
    fn requests_wait_for_as_many_hits_as_are_on_their_way() {
        let (bench, limit) = (Bench::new(), limit());
        let ahead = bench.heat("k", &limit).unwrap();
        let waiting = [10, ahead - 11, 1].map(|hits| match bench.find(&[consume("k", &limit, hits)]).0 {
            Found::Coming(end) => end,
            Found::Enough(_) | Found::TooFew => panic!("{hits} of {ahead} hits are on their way"),
        });
        assert!(matches!(bench.find(&[consume("k", &limit, 1)]).0, Found::TooFew), "others wait for all of them");
        assert!(waiting.iter().all(|end| end.has_changed().is_ok()));
        let lease = bench.grant("k", &limit, ahead, 1_000);
        assert!(waiting.iter().all(|end| end.has_changed().is_err()), "the call has ended");
        assert!(bench.admit(&[consume("k", &limit, ahead)]).is_some());
        // That request has begun another call, which fails.
        bench.leases.asked("k", None, None);
        // A key that is hot and has no lease takes hits ahead before it asks, by what the store had left.
        bench.leases.end("k", lease);
        let (found, to_take) = bench.find(&[consume("k", &limit, 1)]);
        assert!(matches!((found, &*to_take), (Found::Coming(_), [(0, 1..)])), "{to_take:?}");
        // The call fails: the next request begins another.
        bench.leases.asked("k", Some(100), None);
        let (found, to_take) = bench.find(&[consume("k", &limit, 1)]);
        assert!(matches!(found, Found::TooFew) && to_take.is_empty(), "too little is left to take any ahead");
    }

    #[test]
    fn other_numbers_and_a_reset_end_a_lease() {
        let (bench, limit) = (Bench::new(), limit());
        bench.heat("k", &limit);
        let lease = bench.grant("k", &limit, 40, 1_000);
        let mut lower = Limit::new(99_999, Unit::Hour.window(), Algorithm::FIXED_WINDOW).unwrap();
        lower.lease = limit.lease;
        assert!(bench.admit(&[consume("k", &lower, 1)]).is_none());
        assert!(bench.admit(&[consume("k", &limit, 1)]).is_some());
        bench.leases.forget("k");
        assert!(bench.admit(&[consume("k", &limit, 1)]).is_none());
        assert_eq!(bench.leases.end("k", lease), 0, "the store does not have its hits any more");
    }

    #[test]
    fn a_request_is_admitted_if_all_of_its_limits_have_enough() {
        let (bench, limit) = (Bench::new(), limit());
        for key in ["a", "b"] {
            bench.heat(key, &limit);
        }
        let [a, b] = [("a", 40), ("b", 10)].map(|(key, hits)| bench.grant(key, &limit, hits, 1_000));
        let both = |hits| [consume("a", &limit, hits), consume("b", &limit, hits)];
        assert!(bench.admit(&both(11)).is_none());
        assert_eq!(bench.admit(&both(7)).map(|decision| decision.outcomes.len()), Some(2));
        assert!(bench.admit(&[consume("a", &limit, 1), consume("cold", &limit, 1)]).is_none());
        assert_eq!((bench.leases.end("a", a), bench.leases.end("b", b)), (33, 3));
    }

    #[test]
    fn keys_with_leases_are_bounded() {
        let (bench, limit) = (Bench::new(), limit());
        for key in 0..3 * LEASED_KEYS_MAX {
            bench.heat(&key.to_string(), &limit);
        }
        let kept = || bench.leases.table().sets.iter().map(|set| set.lock().len()).sum::<usize>();
        assert!((LEASED_KEYS_MAX / 2..=LEASED_KEYS_MAX).contains(&kept()), "{}", kept());
        // Keys without leases make room.
        for key in 0..3 * LEASED_KEYS_MAX {
            bench.leases.asked(&key.to_string(), None, None);
        }
        let new = (0..LEASED_KEYS_MAX).filter(|key| bench.heat(&format!("new {key}"), &limit).is_some()).count();
        assert!(new >= LEASED_KEYS_MAX / 2, "{new}");
        assert!(kept() <= LEASED_KEYS_MAX, "{}", kept());
    }

    #[test]
    fn in_any_schedule_no_hit_is_admitted_and_given_back() {
        explore(|| {
            let (bench, limit) = (Arc::new(Bench::new()), limit());
            bench.heat("k", &limit);
            let lease = bench.grant("k", &limit, 8, 1_000);
            let askers: Vec<_> = (0..3)
                .map(|_| {
                    let (bench, limit) = (bench.clone(), limit.clone());
                    thread::spawn(move || {
                        let mut admitted = 0;
                        for hits in [1, 3] {
                            let charge = consume("k", &limit, hits);
                            if let Some(decision) = bench.admit(&[charge]) {
                                assert!(decision.now < STORE_NOW + 1_000, "it had ended");
                                admitted += hits;
                            }
                        }
                        admitted
                    })
                })
                .collect();
            let clock = {
                let bench = bench.clone();
                thread::spawn(move || {
                    thread::yield_now();
                    bench.clock.0.store(1_000, SeqCst);
                })
            };
            let left = bench.leases.end("k", lease);
            clock.join().unwrap();
            let admitted: Hits = askers.into_iter().map(|asker| asker.join().unwrap()).sum();
            // Hits that were put back after the end are lost.
            assert!(admitted + left <= 8, "{admitted} admitted and {left} given back");
            assert_eq!(bench.leases.end("k", lease), 0, "something came back after the end");
        });
    }

    #[test]
    fn in_any_schedule_no_hit_comes_into_the_lease_after_its_own() {
        explore(|| {
            let (bench, limit) = (Arc::new(Bench::new()), limit());
            for key in ["a", "b"] {
                bench.heat(key, &limit);
            }
            let first = bench.grant("a", &limit, 8, 1_000);
            // The second key has no lease, so that hits of the first are taken and put back.
            let askers: Vec<_> = (0..2)
                .map(|_| {
                    let (bench, limit) = (bench.clone(), limit.clone());
                    thread::spawn(move || {
                        let both = [consume("a", &limit, 3), consume("b", &limit, 3)];
                        assert!(bench.admit(&both).is_none());
                        assert!(bench.admit(&both).is_none());
                    })
                })
                .collect();
            let left = bench.leases.end("a", first);
            // The key may have gone with its lease, and then is hot again.
            let again = bench.leases.answered(&consume("a", &limit, 1), &outcome(&limit, 1, LEFT), bench.started);
            let second = again.map(|_| bench.grant("a", &limit, 16, 1_000));
            askers.into_iter().for_each(|asker| asker.join().unwrap());
            assert!(left <= 8, "{left}");
            if let Some(second) = second {
                assert_eq!(bench.leases.end("a", second), 16);
            }
        });
    }
}
