//! Keeps the hits of hot keys that this process has taken ahead. The store has charged these hits, but no request has
//! used them yet. [ls-1]
//!
//! One table serves all cores. Keys with leases are spread over small sets with a mutex each, as in the cache of
//! denials. Code that holds a mutex never awaits. Keys that are not hot have no entry. A lease loses hits in three
//! ways: requests take them, the end of the lease removes the rest, or a reset drops the lease. Hits that a request
//! took and did not use go back to the same lease, found by its number, or are lost. So weir never both admits a hit and
//! takes it back. Calls to the store are in ahead.rs.

mod asks;

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hashbrown::DefaultHashBuilder;
#[cfg(not(test))]
use parking_lot::{Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use tokio::sync::watch;
pub use weir_api::top::Leases as LeaseTotals;
use weir_engine::lease::HOT_ASKS;
use weir_engine::{
    Charge, Count, Decision, Hits, Lease, Limit, Micros, Observed, Operation, Outcome, Receipt, Role, Verdict,
    hits_ahead,
};
#[cfg(test)]
use weir_schedules::{Mutex, MutexGuard};
use weir_store::Clock;

use self::asks::Asks;

/// The sets, and how many keys one holds at most.
const SETS: usize = 256;
const SET_KEYS_MAX: usize = 8;
/// The most keys that have leases at one time. Requests for further hot keys go to the store.
pub const LEASED_KEYS_MAX: usize = SETS * SET_KEYS_MAX;
/// The most leases of one key with remaining hits: the current lease, the next one, and those whose rest was too small for a request
/// of several hits.
const LEASES_OF_KEY_MAX: usize = 8;
/// The current lease and the next one.
const LEASES_IN_USE: usize = 2;
/// weir takes the next hits ahead when at most this part of the last hits remains: few requests then ask the store.
const LOW_WATER: Hits = 4;

/// The time since the machine started, including suspension. A lease also ends while the machine sleeps. [ls-3]
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Micros {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        // On other systems the monotonic clock also runs during suspension.
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        // This clock never has negative parts.
        now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
    }
}

/// The leases of a process, shared by all its limiters. They need no memory until the first request for a limit with a
/// lease.
pub struct Leases {
    clock: Arc<dyn Clock>,
    /// With a random seed: callers cannot compute which keys share a set. foldhash does not protect it from callers that
    /// measure many answers.
    hasher: DefaultHashBuilder,
    table: OnceLock<Table>,
    generations: AtomicU64,
    /// True during shutdown. Each lease watches it, and its remaining hits are taken back.
    ends: watch::Sender<bool>,
}

struct Table {
    asks: Asks,
    sets: Box<[Mutex<Vec<Entry>>]>,
}

/// A key that has, had or soon gets leases.
struct Entry {
    key: Box<str>,
    hash: u64,
    /// Oldest first. At most [`LEASES_OF_KEY_MAX`] of them have remaining hits.
    leases: SmallVec<[Held; LEASES_IN_USE]>,
    /// A call that takes hits ahead is pending.
    is_asking: bool,
    /// The remaining hits in the store's last answer.
    remaining: Count,
}

struct Held {
    generation: u64,
    granted: Granted,
    /// The hits that no request has taken.
    left: Hits,
    /// A request has found that the lease has ended.
    is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    /// The limit's hits at the time of the charge.
    pub(super) requests: Count,
    pub(super) receipt: Receipt,
    /// The state after the charge, and the store's clock at that time.
    pub(super) state: Observed,
    pub(super) now: Micros,
    /// By the clock of leases: the arrival of the answer, and the end of the lease.
    pub(super) received: Micros,
    pub(super) until: Micros,
}

/// Hits that a request has taken from a lease.
#[derive(Clone, Copy, Debug)]
struct Taken<'c> {
    charge: &'c Charge<'c>,
    hash: u64,
    generation: u64,
    hits: Hits,
    /// The hits that remain after these.
    left: Hits,
    granted: Granted,
}

/// A charge whose key was counted at the start of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedCharge<'c> {
    charge: &'c Charge<'c>,
    hash: u64,
    /// The requests during the last lease time.
    asks: u32,
}

impl CountedCharge<'_> {
    pub(super) const fn is_hot(&self) -> bool {
        self.asks >= HOT_ASKS
    }
}

/// The hits to take ahead now, each with a charge on its key.
pub(super) type ToTake<'c> = SmallVec<[(&'c Charge<'c>, Hits); 2]>;

/// The hits of a charge that a lease can admit: consumed hits of an enforced limit with a lease. [ls-1]
fn leasable(charge: &Charge<'_>) -> Option<(Hits, Lease)> {
    match charge.operation {
        Operation::Consume(hits) if charge.role == Role::Enforced => Some((hits, charge.limit.lease?)),
        _ => None,
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self::new(Arc::new(BootClock))
    }
}

impl Leases {
    /// Makes an empty table. The clock may start anywhere. It must never step back, and must run while the machine is
    /// suspended.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (hasher, table) = (DefaultHashBuilder::default(), OnceLock::new());
        Self { clock, hasher, table, generations: AtomicU64::new(0), ends: watch::Sender::new(false) }
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Totals of the leases that have not ended. A lease without remaining hits may be missing.
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

    /// Returns the channel that tells a lease about the shutdown. `None` during shutdown.
    pub(super) fn listen(&self) -> Option<watch::Receiver<bool>> {
        let ends = self.ends.subscribe();
        let is_over = *ends.borrow();
        (!is_over).then_some(ends)
    }

    /// Ends all leases. Returns when their remaining hits have been taken back.
    pub(super) async fn end_all(&self) {
        self.ends.send_replace(true);
        self.ends.closed().await;
    }

    /// Counts a request for its keys. Returns nothing if a lease cannot admit one of its charges. [ls-2]
    pub(super) fn count<'c>(&self, charges: &'c [Charge<'_>], now: Instant) -> SmallVec<[CountedCharge<'c>; 2]> {
        if !charges.iter().all(|charge| leasable(charge).is_some()) {
            return SmallVec::new();
        }
        let asks = &self.table().asks;
        let count = |charge: &'c Charge<'_>| {
            let (_, lease) = leasable(charge)?;
            let hash = self.hasher.hash_one(charge.key);
            Some(CountedCharge { charge, hash, asks: asks.count(hash, lease, now) })
        };
        charges.iter().filter_map(count).collect()
    }

    /// Admits a request of hot keys if each of its limits has a lease with enough hits. In any case the caller must take
    /// `to_take` ahead. [ls-4]
    pub(super) fn admit<'c>(&self, counted: &[CountedCharge<'c>], to_take: &mut ToTake<'c>) -> Option<Decision> {
        // An ended lease is detected once. The next attempt uses the next lease of the key.
        for _ in 0..=LEASES_OF_KEY_MAX {
            let taken = self.take(counted, to_take)?;
            // The clock is read after the hits were taken, so a process that was paused before now detects ended leases.
            // [ls-4]
            let now = self.clock.now();
            if taken.iter().all(|taken| now < taken.granted.until) {
                return Some(Decision {
                    denied: false,
                    now: taken.first().map_or(0, |taken| taken.granted.at(now)),
                    outcomes: taken.iter().map(|taken| taken.outcome(now)).collect(),
                    given_back: Vec::new(),
                });
            }
            self.put_back(&taken, Some(now));
        }
        None
    }

    /// Takes the hits of all charges from leases, or none.
    fn take<'c>(&self, counted: &[CountedCharge<'c>], to_take: &mut ToTake<'c>) -> Option<SmallVec<[Taken<'c>; 2]>> {
        let mut taken = SmallVec::new();
        for &CountedCharge { charge, hash, asks } in counted {
            let mut set = self.lock(hash);
            let hits = find(&mut set, charge.key, hash).and_then(|entry| {
                let (hits, asked) = (entry.take(charge, hash), charge.operation.asked());
                let ahead = entry.ahead(charge.limit, asks, asked, hits.is_some());
                to_take.extend(ahead.map(|hits| (charge, hits)));
                hits
            });
            drop(set);
            let Some(hits) = hits else {
                self.put_back(&taken, None);
                return None;
            };
            taken.push(hits);
        }
        Some(taken)
    }

    /// Puts hits back into their leases, if these still exist. With a time, marks the leases that ended before it as
    /// late.
    fn put_back(&self, taken: &[Taken<'_>], now: Option<Micros>) {
        for taken in taken {
            let mut set = self.lock(taken.hash);
            let Some(entry) = find(&mut set, taken.charge.key, taken.hash) else { continue };
            if let Some(held) = entry.leases.iter_mut().find(|held| held.generation == taken.generation) {
                held.left += taken.hits;
                held.is_late |= now.is_some_and(|now| now >= held.granted.until);
            }
        }
    }

    /// Notes the store's answer for a charge. Returns the hits to take ahead now, if the key is hot. [ls-2]
    pub(super) fn answered(&self, charge: &Charge<'_>, outcome: &Outcome, now: Instant) -> Option<Hits> {
        let (hits, lease) = leasable(charge)?;
        let hash = self.hasher.hash_one(charge.key);
        let asks = self.table().asks.of(hash, lease, now);
        if asks < HOT_ASKS {
            return None;
        }
        let mut set = self.lock(hash);
        if let Some(entry) = find(&mut set, charge.key, hash) {
            entry.remaining = outcome.remaining;
            return entry.ahead(charge.limit, asks, hits, false);
        }
        let ahead = hits_ahead(asks, hits, 0, outcome.remaining, charge.limit.requests())?;
        if set.len() == SET_KEYS_MAX {
            let unused = set.iter().position(Entry::is_unused)?;
            set.swap_remove(unused);
        }
        let (key, remaining) = (charge.key.into(), outcome.remaining);
        set.push(Entry { key, hash, leases: SmallVec::new(), is_asking: true, remaining });
        Some(ahead)
    }

    /// Ends a call that takes hits ahead, and keeps its result. Returns the number of the lease if the call got one.
    pub(super) fn asked(&self, key: &str, remaining: Option<Count>, granted: Option<Granted>) -> Option<u64> {
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        let entry = find(&mut set, key, hash)?;
        entry.is_asking = false;
        entry.remaining = remaining.unwrap_or(entry.remaining);
        // Of leases without remaining hits, nothing is taken back.
        entry.leases.retain(|held| held.left > 0);
        granted.map(|granted| {
            let generation = self.generations.fetch_add(1, Relaxed);
            entry.leases.push(Held { generation, granted, left: granted.receipt.hits, is_late: false });
            generation
        })
    }

    /// Ends a lease. Returns its remaining hits, which no request can take any more.
    pub(super) fn end(&self, key: &str, generation: u64) -> Hits {
        let hash = self.hasher.hash_one(key);
        let mut set = self.lock(hash);
        let Some(entry) = find(&mut set, key, hash) else { return 0 };
        let at = entry.leases.iter().position(|held| held.generation == generation);
        at.map_or(0, |at| entry.leases.remove(at).left)
    }

    /// Drops the leases of a key whose state was reset, because the store no longer has their hits.
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
        // These are other bits of the hash than those that choose a count.
        self.table().sets[usize::try_from((hash >> 32) % SETS as u64).unwrap_or_default()].lock()
    }
}

fn find<'s>(set: &'s mut [Entry], key: &str, hash: u64) -> Option<&'s mut Entry> {
    set.iter_mut().find(|entry| entry.hash == hash && *entry.key == *key)
}

impl Entry {
    /// Takes hits from the oldest lease that has enough.
    fn take<'c>(&mut self, charge: &'c Charge<'c>, hash: u64) -> Option<Taken<'c>> {
        let hits = charge.operation.asked();
        let held = self.leases.iter_mut().find(|held| held.is_usable(charge.limit) && held.left >= hits)?;
        held.left -= hits;
        Some(Taken { charge, hash, generation: held.generation, hits, left: held.left, granted: held.granted })
    }

    /// The hits that the caller of a request must take ahead now, after a lease has admitted it or not. `None` if the leases have
    /// enough, or a call is pending.
    fn ahead(&mut self, limit: &Limit, asks: u32, hits_of_request: Hits, is_admitted: bool) -> Option<Hits> {
        let sum = |(sum, count): (Hits, usize), held: &Held| (sum.saturating_add(held.left), count + 1);
        let has_hits = |held: &&Held| held.left > 0 && held.is_usable(limit);
        let (all, count) = self.leases.iter().filter(has_hits).fold((0, 0), sum);
        // The rest of a lease can be too small for a request of several hits. It ends with its lease. That of the newest lease counts as
        // long as requests like this one find enough.
        let newest = self.leases.len().saturating_sub(1);
        let in_use = self
            .leases
            .iter()
            .enumerate()
            .filter(|(at, held)| has_hits(held) && (held.left >= hits_of_request || is_admitted && *at == newest));
        let (hits_in_use, leases_in_use) = in_use.map(|(_, held)| held).fold((0, 0), sum);
        let low_water = self.leases.last().map_or(0, |newest| newest.granted.receipt.hits) / LOW_WATER;
        let is_enough = hits_in_use > low_water || leases_in_use >= LEASES_IN_USE;
        if self.is_asking || is_enough || count >= LEASES_OF_KEY_MAX {
            return None;
        }
        let hits = hits_ahead(asks, hits_of_request, all, self.remaining, limit.requests())?;
        self.is_asking = true;
        Some(hits)
    }

    /// The key has no lease and no pending call. Keeping the store's last answer saves a call when the key becomes hot
    /// again.
    fn is_unused(&self) -> bool {
        !self.is_asking && self.leases.is_empty()
    }
}

impl Held {
    /// Whether requests can use the lease: it is not late, and the limit's numbers are the same as at the charge.
    /// [ls-5]
    fn is_usable(&self, limit: &Limit) -> bool {
        !self.is_late && self.granted.requests == limit.requests()
    }
}

impl Granted {
    /// The earliest possible time of the store's clock, at a time of the clock of leases.
    fn at(&self, now: Micros) -> Micros {
        self.now + now.saturating_sub(self.received)
    }
}

impl Taken<'_> {
    /// The outcome as if the store had charged these hits now, and will charge the remaining hits of the lease later.
    /// [ls-5]
    fn outcome(&self, now: Micros) -> Outcome {
        let (kind, at) = (self.charge.limit.kind(), self.granted.at(now));
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
    use weir_schedules::explore;

    use super::*;

    const LEFT: Count = 50_000;
    /// The hits that weir takes ahead for a key that has just become hot.
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

    /// The outcome of a store that charged hits and has `remaining` left.
    fn outcome(limit: &Limit, hits: Hits, remaining: Count) -> Outcome {
        let kind = limit.kind();
        let nothing = kind.observe(None, hits, STORE_NOW);
        let with = |used| kind.step(&nothing, weir_engine::algorithm::Effect::Add(used), STORE_NOW);
        let state = with(limit.requests() - remaining);
        Outcome {
            verdict: Verdict::Within,
            remaining_before: remaining + Count::from(hits),
            remaining,
            now: STORE_NOW,
            before: with(limit.requests() - remaining - Count::from(hits)),
            wait: 0,
            reset_after: kind.reset_after(&state, STORE_NOW),
            state,
            receipt: Some(Receipt { hits, at: STORE_NOW, mark: kind.level(&state, STORE_NOW).mark }),
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

        /// Returns what leases have for a request, and the hits to take ahead.
        fn find(&self, charges: &[Charge<'_>]) -> (Option<Decision>, Vec<Hits>) {
            let mut to_take = ToTake::new();
            let counted = self.leases.count(charges, self.started);
            if !counted.iter().all(CountedCharge::is_hot) {
                return (None, Vec::new());
            }
            let found = self.leases.admit(&counted, &mut to_take);
            (found, to_take.iter().map(|(_, hits)| *hits).collect())
        }

        /// The decision, if leases admit the request.
        fn admit(&self, charges: &[Charge<'_>]) -> Option<Decision> {
            self.find(charges).0
        }

        /// Sends enough requests for a key to make it hot. Returns the hits to take ahead after the store's answer.
        fn heat(&self, key: &str, limit: &Limit) -> Option<Hits> {
            for _ in 0..HOT_ASKS {
                assert!(self.admit(&[consume(key, limit, 1)]).is_none(), "no lease yet");
            }
            self.leases.answered(&consume(key, limit, 1), &outcome(limit, 1, LEFT), self.started)
        }

        /// Answers a call that takes hits ahead.
        fn grant(&self, key: &str, limit: &Limit, hits: Hits, until: Micros) -> u64 {
            let Outcome { receipt, state, now, remaining, .. } = outcome(limit, hits, LEFT - Count::from(hits));
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
        // A call is pending, so this answer starts no second one.
        assert_eq!(bench.leases.answered(&charge, &outcome(&limit, 1, LEFT), bench.started), None);
        // The call fails, and the next answer starts another call.
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
        let (Some(decision), to_take) = bench.find(&one) else { panic!("it has enough") };
        // The outcome is as if the store had charged the hits now, and will charge the remaining hits later.
        let outcome = &decision.outcomes[0];
        assert_eq!((outcome.remaining_before, outcome.remaining), (LEFT, LEFT - 1));
        assert_eq!((decision.denied, decision.now, outcome.now), (false, STORE_NOW + 10, STORE_NOW + 10));
        assert_eq!(outcome.receipt.map(|receipt| (receipt.hits, receipt.at)), Some((1, STORE_NOW)));
        assert!(to_take.is_empty(), "{to_take:?}");
        // A request for more hits than the lease has takes the next hits ahead. The lease keeps its hits.
        let (None, to_take) = bench.find(&[consume("k", &limit, 40)]) else { panic!("a call is pending") };
        assert!(matches!(*to_take, [hits] if hits > 40 && hits % 40 == 0), "{to_take:?}");
        bench.leases.asked("k", None, None);
        assert!(bench.admit(&[consume("k", &limit, 28)]).is_some());
        // When few hits remain, only the first request takes the next hits ahead.
        let [first, second] = [(); 2].map(|()| bench.find(&one).1);
        assert!(matches!(*first, [hits] if hits > 20), "{first:?}");
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

    /// While more than a quarter of a lease was left, requests for more than that asked the store until the lease ended.
    #[test]
    fn a_rest_that_is_too_small_for_requests_does_not_stop_leases() {
        let (bench, limit) = (Bench::new(), limit());
        bench.heat("k", &limit);
        bench.grant("k", &limit, 40, 1_000);
        assert!(bench.admit(&[consume("k", &limit, 15)]).is_some());
        let many = [consume("k", &limit, 26)];
        let (None, to_take) = bench.find(&many) else { panic!("25 hits are left") };
        assert!(matches!(*to_take, [hits] if hits % 26 == 0), "{to_take:?}");
        // The store fails. Its error starts no further call, and its next answer does.
        bench.leases.asked("k", Some(0), None);
        let (None, to_take) = bench.find(&many) else { panic!("no call is pending") };
        assert!(to_take.is_empty(), "{to_take:?}");
        assert!(bench.admit(&[consume("k", &limit, 1)]).is_some(), "24 hits are left");
        let answer = outcome(&limit, 26, LEFT);
        assert!(bench.leases.answered(&many[0], &answer, bench.started).is_some_and(|hits| hits % 26 == 0));
        bench.grant("k", &limit, 52, 1_000);
        assert!(bench.admit(&many).is_some());
        // All of the store's hits are less than a request needs: nothing is taken ahead, and the rest serves small requests.
        bench.leases.asked("k", Some(128), None);
        assert!(bench.find(&[consume("k", &limit, 27)]).1.is_empty());
        assert_eq!(bench.leases.answered(&many[0], &outcome(&limit, 27, 128), bench.started), None);
        assert!(bench.admit(&[consume("k", &limit, 24)]).is_some());
        // An override has other numbers: it does not use the rest of 26 hits.
        let mut other = Limit::new(99_999, Unit::Hour.window(), Algorithm::FIXED_WINDOW).unwrap();
        other.lease = limit.lease;
        bench.leases.asked("k", Some(LEFT), None);
        let (None, to_take) = bench.find(&[consume("k", &other, 26)]) else { panic!("other numbers") };
        assert!(matches!(*to_take, [hits] if hits % 26 == 0), "{to_take:?}");
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
    fn a_hot_key_without_a_lease_takes_hits_ahead_by_one_call_at_a_time() {
        let (bench, limit) = (Bench::new(), limit());
        let ahead = bench.heat("k", &limit).unwrap();
        let one = [consume("k", &limit, 1)];
        assert!(matches!(bench.find(&one), (None, to_take) if to_take.is_empty()), "a call is pending");
        let lease = bench.grant("k", &limit, ahead, 1_000);
        assert!(bench.admit(&[consume("k", &limit, ahead)]).is_some());
        // That request has started another call, which fails.
        bench.leases.asked("k", None, None);
        bench.leases.end("k", lease);
        // The store's last answer decides how many.
        let (found, to_take) = bench.find(&one);
        assert!(matches!((found, &*to_take), (None, [_])), "{to_take:?}");
        bench.leases.asked("k", Some(100), None);
        let (found, to_take) = bench.find(&one);
        assert!(found.is_none() && to_take.is_empty(), "too little is left to take any ahead");
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
        // Keys without leases are removed when new keys need their places.
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
            // The second key has no lease, so hits of the first key are taken and put back.
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
            // The key may have lost its entry, and is then hot again.
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
