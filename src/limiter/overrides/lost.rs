//! A store that has lost changes gets them back. It does not matter which process notices first, or what was changed meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;
use weir_engine::observer::Silent;
use weir_engine::{Charge, Decision, Limit, Mode};
use weir_store::memory::Memory;
use weir_store::{Before, Reply, StatesRead, Undo};

use super::tests::{HOUR, Hand, START, one, policies, requests};
use super::*;

/// One process's access to the shared store. Its writes wait until the test permits them.
struct Way {
    store: Arc<Memory>,
    arrived: Semaphore,
    turns: Semaphore,
    written: AtomicUsize,
}

impl Store for Way {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn read_overrides<'a>(&'a self, known: &'a str, deadline: Instant) -> Reply<'a, Option<StoredOverrides>> {
        self.store.read_overrides(known, deadline)
    }

    fn write_overrides<'a>(&'a self, known: &'a str, with: &'a StoredOverrides, deadline: Instant) -> Reply<'a, bool> {
        Reply::Pending(Box::pin(async move {
            self.arrived.add_permits(1);
            self.turns.acquire().await.expect("it is open").forget();
            let is_written = self.store.write_overrides(known, with, deadline).get().await?;
            self.written.fetch_add(usize::from(is_written), Relaxed);
            Ok(is_written)
        }))
    }

    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        deadline: Instant,
    ) -> Reply<'a, Decision> {
        self.store.decide_after(before, charges, mode, deadline)
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()> {
        self.store.undo(charges, deadline)
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64> {
        self.store.reset(keys, deadline)
    }

    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, StatesRead> {
        self.store.read_states(keys, deadline)
    }

    fn ping(&self, deadline: Instant) -> Reply<'_, ()> {
        self.store.ping(deadline)
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        self.store.supports(limit)
    }
}

/// A process with its own clock.
#[derive(Clone)]
struct Process {
    clock: Arc<Hand>,
    way: Arc<Way>,
    table: Arc<OverrideTable>,
}

/// Permits for writes whose order does not matter.
const MANY: usize = 10_000;

impl Process {
    fn on(store: &Arc<Memory>) -> Process {
        let clock = Arc::new(Hand(AtomicU64::new(START)));
        let way = Arc::new(Way {
            store: store.clone(),
            arrived: Semaphore::new(0),
            turns: Semaphore::new(MANY),
            written: AtomicUsize::new(0),
        });
        let policies = Arc::new(Policies::new(policies(&["user"]), Arc::new(Silent)));
        let table = Arc::new(OverrideTable::new(way.clone(), policies, clock.clone()));
        Process { clock, way, table }
    }

    /// Sets an override at a time after the start.
    async fn set(&self, at: Micros, user: &str, requests: u32) {
        self.clock.0.store(START + at, Relaxed);
        self.table.set(&one(user, requests, START + HOUR)).await.unwrap();
    }

    async fn delete(&self, at: Micros, user: &str) {
        self.clock.0.store(START + at, Relaxed);
        self.table.delete("shop", &one(user, 1, 1).set.entries).await.unwrap();
    }

    async fn look(&self) -> Seen {
        self.table.look().await.unwrap()
    }

    /// The users with an override, and the hits that decisions use.
    fn sees(&self) -> Vec<(String, u32)> {
        let known = self.table.known().overrides;
        let users = known.iter().map(|one| one.set.entries[0].1.to_string());
        users.map(|user| (user.clone(), requests(&self.table, &user))).collect()
    }
}

fn store() -> Arc<Memory> {
    Arc::new(Memory::new(10, Arc::new(Hand(AtomicU64::new(START))), Arc::new(Silent)))
}

async fn stored(store: &Memory) -> StoredOverrides {
    let stored = store.read_overrides("-", Instant::now()).get().await.unwrap();
    stored.unwrap_or_default()
}

/// The content of a store that has lost everything.
fn empty() -> StoredOverrides {
    StoredOverrides { text: Some(String::new()), ..StoredOverrides::default() }
}

/// Replaces the store's content, as a failover or a restart does.
async fn lose(store: &Memory, to: &StoredOverrides) {
    let has = stored(store).await.version;
    assert!(store.write_overrides(&has, to, Instant::now()).get().await.unwrap());
}

fn users(all: &[(&str, u32)]) -> Vec<(String, u32)> {
    all.iter().map(|(user, requests)| ((*user).to_owned(), *requests)).collect()
}

/// Asserts that all processes have all overrides after each has read once, and that further reads change nothing.
async fn agree(store: &Memory, processes: &[&Process], all: &[(&str, u32)]) {
    for process in processes {
        process.look().await;
    }
    let has = stored(store).await;
    for process in processes {
        process.look().await;
        assert_eq!(process.sees(), users(all));
        assert_eq!(process.look().await, Seen::default());
    }
    assert_eq!(stored(store).await, has);
}

#[tokio::test]
async fn two_that_write_back_at_once_lose_nothing_and_the_newest_stays() {
    // The store's content after the loss, which process writes first, and whether the second one has the last change.
    for case in 0..8 {
        let (is_empty, is_swapped, knows_all) = (case & 1 > 0, case & 2 > 0, case & 4 > 0);
        let store = store();
        let (new, old) = (Process::on(&store), Process::on(&store));
        new.set(1, "ann", 50).await;
        let saved = stored(&store).await;
        new.set(2, "bob", 60).await;
        old.look().await;
        if !knows_all {
            new.set(3, "eve", 70).await;
        }
        let newest = stored(&store).await;
        lose(&store, &if is_empty { empty() } else { saved }).await;

        // Both have read the remaining content before either writes.
        for process in [&new, &old] {
            process.way.arrived.forget_permits(MANY);
            process.way.turns.forget_permits(MANY);
            process.way.written.store(0, Relaxed);
        }
        let look = |process: &Process| {
            let process = process.clone();
            tokio::spawn(async move { process.look().await })
        };
        let looks = [look(&new), look(&old)];
        for process in [&new, &old] {
            process.way.arrived.acquire().await.unwrap().forget();
        }
        let mut order: Vec<_> = [&new, &old].into_iter().zip(looks).collect();
        if is_swapped {
            order.reverse();
        }
        let mut restored = Vec::new();
        for (process, look) in order {
            process.way.turns.add_permits(MANY);
            restored.push(look.await.unwrap().is_restored);
        }
        assert_eq!(restored, [true, false], "case {case}: the second one finds another version, and writes nothing");

        let all = [("ann", 50), ("bob", 60), ("eve", 70)];
        agree(&store, &[&old, &new, &old], &all[..if knows_all { 2 } else { 3 }]).await;
        assert_eq!(stored(&store).await, newest, "case {case}");
        // A process with fewer changes overwrites no other, and is overwritten.
        let written = [&new, &old].map(|process| process.way.written.load(Relaxed));
        let expected = match (is_swapped, knows_all) {
            (false, _) => [1, 0],
            (true, true) => [0, 1],
            (true, false) => [1, 1],
        };
        assert_eq!(written, expected, "case {case}");
    }
}

#[tokio::test]
async fn a_change_after_a_loss_does_not_hide_what_another_process_still_knows() {
    // The clock of the process that changes something after the loss is ahead, or behind.
    for late in [9, 0] {
        let store = store();
        let (one, other) = (Process::on(&store), Process::on(&store));
        one.set(1, "ann", 50).await;
        other.look().await;
        let saved = stored(&store).await;
        one.set(5, "bob", 60).await;
        lose(&store, &saved).await;
        // It does not see the loss.
        other.set(late, "eve", 70).await;
        let seen = one.look().await;
        assert!(seen.is_restored && seen.is_changed, "{seen:?}");
        agree(&store, &[&one, &other], &[("ann", 50), ("bob", 60), ("eve", 70)]).await;
    }
}

#[tokio::test]
async fn what_was_deleted_on_either_side_of_a_loss_stays_deleted_and_the_later_change_of_one_wins() {
    let store = store();
    let (one, other) = (Process::on(&store), Process::on(&store));
    for (at, user) in ["ann", "bob", "eve"].into_iter().enumerate() {
        one.set(at as Micros, user, 50).await;
    }
    other.look().await;
    let saved = stored(&store).await;
    one.delete(10, "ann").await;
    one.set(11, "eve", 60).await;
    lose(&store, &saved).await;
    other.delete(20, "bob").await;
    other.set(21, "eve", 70).await;
    other.set(22, "zoe", 80).await;
    agree(&store, &[&one, &other], &[("eve", 70), ("zoe", 80)]).await;
}

#[tokio::test]
async fn a_change_by_one_that_has_just_started_on_an_empty_store_joins_the_rest() {
    let store = store();
    let one = Process::on(&store);
    for (at, user) in ["ann", "bob", "eve", "pia", "zoe"].into_iter().enumerate() {
        one.set(at as Micros, user, 50).await;
    }
    one.delete(9, "pia").await;
    lose(&store, &empty()).await;
    let fresh = Process::on(&store);
    fresh.look().await;
    fresh.set(20, "new", 60).await;
    let all = [("ann", 50), ("bob", 50), ("eve", 50), ("new", 60), ("zoe", 50)];
    agree(&store, &[&one, &fresh], &all).await;
}

#[tokio::test]
async fn one_that_has_missed_many_changes_brings_none_of_them_back() {
    let store = store();
    let (one, other) = (Process::on(&store), Process::on(&store));
    one.set(1, "ann", 50).await;
    one.set(2, "bob", 50).await;
    other.look().await;
    one.delete(3, "bob").await;
    for at in 4..12 {
        one.set(at, "eve", 50).await;
    }
    assert!(!other.look().await.is_restored);
    agree(&store, &[&one, &other], &[("ann", 50), ("eve", 50)]).await;
}

/// Pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[tokio::test]
async fn whoever_changes_something_around_a_loss_no_change_is_lost_and_all_agree() {
    let mut cut_short = 0;
    'histories: for seed in 0..300 {
        let mut dice = Dice(seed);
        let store = store();
        let processes: Vec<Process> = (0..3).map(|_| Process::on(&store)).collect();
        let mut expected = BTreeMap::new();
        for round in 0..6 {
            // Each process changes something once between two reads of all. The store loses some of the changes, or
            // all.
            let mut states = vec![empty(), stored(&store).await];
            let loss = dice.roll(4);
            for (turn, process) in (0..).zip(&processes) {
                if turn == loss {
                    let to = dice.roll(states.len() as u64);
                    lose(&store, &states[usize::try_from(to).unwrap()]).await;
                }
                let (user, requests) = (format!("u{round}{turn}"), 11 + u32::try_from(dice.roll(80)).unwrap());
                // The clocks differ by more than the time between two changes.
                let at = 100_000 * round + dice.roll(500_000);
                process.set(at, &user, requests).await;
                expected.insert(user, requests);
                let changed = stored(&store).await;
                // Two processes with slow clocks used the same number, out of a thousand.
                if states.iter().any(|state| state.version.get(..16) == changed.version.get(..16)) {
                    cut_short += 1;
                    continue 'histories;
                }
                states.push(changed);
            }
            for process in &processes {
                process.look().await;
            }
            let all: Vec<_> = expected.iter().map(|(user, requests)| (user.as_str(), *requests)).collect();
            let all_processes: Vec<_> = processes.iter().collect();
            agree(&store, &all_processes, &all).await;
        }
    }
    assert!(cut_short < 10, "{cut_short}");
}

#[tokio::test]
async fn two_processes_that_change_something_at_the_same_instant_agree() {
    let store = store();
    let (one, other) = (Process::on(&store), Process::on(&store));
    one.set(1, "ann", 50).await;
    let saved = stored(&store).await;
    other.look().await;
    one.set(2, "bob", 60).await;
    lose(&store, &saved).await;
    other.set(2, "eve", 70).await;
    agree(&store, &[&one, &other], &[("ann", 50), ("bob", 60), ("eve", 70)]).await;
}
