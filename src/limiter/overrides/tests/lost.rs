//! A store that has lost changes gets the newest version back that a process has. A change that is lost is reported.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;
use weir_engine::observer::Silent;
use weir_engine::{Charge, Count, Decision, Limit, Mode};
use weir_store::{
    Before, Deciding, Failure, Inspected, Reply, RowChange, RowChanged, RowRead, ScanPosition, Scanned, StatesRead,
    Texts, Undo,
};

use super::{HOUR, Hand, START, one, policies, requests, *};

/// The overrides of the store that several processes share.
#[derive(Default)]
pub(super) struct Shared(Mutex<StoredOverrides>);

impl Shared {
    pub(super) fn read(&self, known: &str) -> Option<StoredOverrides> {
        let stored = self.0.lock();
        (stored.version != known).then(|| stored.clone())
    }

    pub(super) fn write(&self, known: &str, with: &StoredOverrides) -> bool {
        let mut stored = self.0.lock();
        let is_known = stored.version == known;
        if is_known {
            stored.clone_from(with);
        }
        is_known
    }
}

/// One process's access to the shared store. Its writes wait until the test permits them.
pub(super) struct Way {
    store: Arc<Shared>,
    arrived: Semaphore,
    turns: Semaphore,
    written: AtomicUsize,
    /// Whether the answers to writes are lost.
    loses_answers: AtomicBool,
}

impl Way {
    pub(super) fn to(store: &Arc<Shared>) -> Self {
        Self {
            store: store.clone(),
            arrived: Semaphore::new(0),
            turns: Semaphore::new(MANY),
            written: AtomicUsize::new(0),
            loses_answers: AtomicBool::new(false),
        }
    }
}

impl Store for Way {
    fn texts(&self) -> Option<&dyn Texts> {
        Some(self)
    }
}

impl Texts for Way {
    fn read_rows<'a>(&'a self, _: &'a [&'a str], _: Instant) -> Reply<'a, Vec<RowRead>> {
        unreachable!("it has no rows")
    }

    fn change_rows<'a>(
        &'a self,
        _: &'a [(&'a str, RowChange<'a>)],
        _: Instant,
    ) -> Reply<'a, Vec<Result<RowChanged, StoreError>>> {
        unreachable!("it has no rows")
    }

    fn read_overrides<'a>(&'a self, known: &'a str, _: Instant) -> Reply<'a, Option<StoredOverrides>> {
        Reply::Ready(Ok(self.store.read(known)))
    }

    fn write_overrides<'a>(&'a self, known: &'a str, with: &'a StoredOverrides, _: Instant) -> Reply<'a, bool> {
        Reply::Pending(Box::pin(async move {
            self.arrived.add_permits(1);
            self.turns.acquire().await.expect("it is open").forget();
            let is_written = self.store.write(known, with);
            self.written.fetch_add(usize::from(is_written), Relaxed);
            if self.loses_answers.load(Relaxed) {
                let failure = Failure { kind: "timeout", message: "no answer".to_owned() };
                return Err(StoreError::Unknown(failure));
            }
            Ok(is_written)
        }))
    }
}

impl Deciding for Way {
    fn decide_after<'a>(&'a self, _: Before<'a>, _: &'a [Charge<'a>], _: Mode, _: Instant) -> Reply<'a, Decision> {
        unreachable!("it has no states")
    }

    fn undo<'a>(&'a self, _: &'a [Undo<'a>], _: Instant) -> Reply<'a, ()> {
        unreachable!("it has no states")
    }
}

impl Inspected for Way {
    fn name(&self) -> &'static str {
        "shared"
    }

    fn read_states<'a>(&'a self, _: &'a [(&'a str, &'a Limit)], _: Instant) -> Reply<'a, StatesRead> {
        unreachable!("it has no states")
    }

    fn scan<'a>(&'a self, _: &'a str, _: ScanPosition, _: Instant) -> Reply<'a, Scanned> {
        unreachable!("it has no states")
    }

    fn reset<'a>(&'a self, _: &'a [&'a str], _: Instant) -> Reply<'a, u64> {
        unreachable!("it has no states")
    }

    fn ping(&self, _: Instant) -> Reply<'_, ()> {
        Reply::Ready(Ok(()))
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
    fn on(store: &Arc<Shared>) -> Process {
        let clock = Arc::new(Hand(AtomicU64::new(START)));
        let way = Arc::new(Way::to(store));
        let policies = Arc::new(Policies::new(policies(&["user"]), Arc::new(Silent)));
        let table = Arc::new(OverrideTable::new(way.clone(), policies, clock.clone()));
        Process { clock, way, table }
    }

    /// Sets an override at a time after the start.
    async fn set(&self, at: Micros, user: &str, requests: Count) {
        self.clock.0.store(START + at, Relaxed);
        self.table.set(&one(user, requests, START + HOUR)).await.unwrap();
    }

    async fn delete(&self, at: Micros, user: &str) {
        self.clock.0.store(START + at, Relaxed);
        self.table.delete("shop", &one(user, 1, 1).set.entries, "ann").await.unwrap();
    }

    async fn look(&self) -> Seen {
        self.table.look().await.unwrap()
    }

    /// What it has replaced since the last call, without the versions.
    fn replaced(&self) -> Vec<Replacement> {
        self.table.take_replaced().iter().map(|one| one.how).collect()
    }

    /// The users with an override, and the hits that decisions use.
    fn sees(&self) -> Vec<(String, Count)> {
        let known = self.table.known().overrides;
        let users = known.iter().map(|one| one.set.entries[0].1.to_string());
        users.map(|user| (user.clone(), requests(&self.table, &user))).collect()
    }
}

fn store() -> Arc<Shared> {
    Arc::default()
}

fn stored(store: &Shared) -> StoredOverrides {
    store.0.lock().clone()
}

/// The content of a store that has lost everything.
fn empty() -> StoredOverrides {
    StoredOverrides { text: Some(String::new()), ..StoredOverrides::default() }
}

/// Replaces the store's content, as a failover or a restart does.
fn lose(store: &Shared, to: &StoredOverrides) {
    store.0.lock().clone_from(to);
}

fn users(all: &[(&str, Count)]) -> Vec<(String, Count)> {
    all.iter().map(|(user, requests)| ((*user).to_owned(), *requests)).collect()
}

/// Asserts that all processes have all overrides after each has read once, and that further reads change nothing.
async fn agree(store: &Shared, processes: &[&Process], all: &[(&str, Count)]) {
    for process in processes {
        process.look().await;
    }
    let has = stored(store);
    for process in processes {
        process.look().await;
        assert_eq!(process.sees(), users(all));
        assert_eq!(process.look().await, Seen::default());
    }
    assert_eq!(stored(store), has);
}

/// Redis had deleted an override without an answer: it was no longer in force, and no line of the log had it.
#[tokio::test]
async fn a_deletion_that_was_made_without_an_answer_is_found_once() {
    let store = store();
    let process = Process::on(&store);
    let ann = one("ann", 50, START + HOUR);
    let set = async || process.table.set(&ann).await;
    let delete = async || process.table.delete("shop", &ann.set.entries, "eve").await.map(drop);
    let loses_answers = |loses| process.way.loses_answers.store(loses, Relaxed);
    set().await.unwrap();
    loses_answers(true);
    assert!(delete().await.unwrap_err().is_unknown());
    let found = process.look().await.found;
    let told = found.iter().map(|one| (one.is_deletion, &*one.changed.by, &one.changed.set)).collect::<Vec<_>>();
    assert_eq!(told, [(true, "eve", &ann.set)]);
    assert_eq!(process.look().await, Seen::default(), "found once");
    // A later change of the same override has a line of its own, and a deletion that another one has followed has none.
    loses_answers(false);
    set().await.unwrap();
    loses_answers(true);
    assert!(delete().await.unwrap_err().is_unknown());
    loses_answers(false);
    set().await.unwrap();
    assert_eq!(process.look().await.found, []);
    assert!(process.table.unconfirmed.lock().is_empty());
}

/// Redis had written an override without an answer: it was in force, and no line of the log had it.
#[tokio::test]
async fn an_override_that_was_written_without_an_answer_is_found_once() {
    let store = store();
    let process = Process::on(&store);
    process.way.loses_answers.store(true, Relaxed);
    let set = async |user: &str| process.table.set(&one(user, 50, START + HOUR)).await;
    assert!(set("ann").await.unwrap_err().is_unknown());
    let found = process.look().await.found;
    assert_eq!(
        (found.len(), found[0].is_deletion, &found[0].changed.set),
        (1, false, &one("ann", 50, START + HOUR).set)
    );
    assert_eq!(process.look().await, Seen::default(), "found once");
    // A later change of the same override has a line of its own.
    assert!(set("ann").await.unwrap_err().is_unknown());
    process.way.loses_answers.store(false, Relaxed);
    set("ann").await.unwrap();
    assert_eq!(process.look().await.found, []);
    // The oldest is forgotten beyond the bound. One that has ended is no longer in force.
    process.way.loses_answers.store(true, Relaxed);
    for user in 0..UNCONFIRMED_MAX + 5 {
        assert!(set(&user.to_string()).await.unwrap_err().is_unknown());
    }
    assert_eq!(process.table.unconfirmed.lock().len(), UNCONFIRMED_MAX);
    assert_eq!(process.look().await.found.len(), UNCONFIRMED_MAX);
    assert!(set("bob").await.unwrap_err().is_unknown());
    process.clock.0.store(START + HOUR, Relaxed);
    assert_eq!(process.look().await.found, []);
    assert!(process.table.unconfirmed.lock().is_empty());
}

#[tokio::test]
async fn two_that_write_back_at_once_lose_nothing_and_the_newest_stays() {
    // The store's content after the loss, which process writes first, and whether the second one has the last change.
    for case in 0..8 {
        let (is_empty, is_swapped, knows_all) = (case & 1 > 0, case & 2 > 0, case & 4 > 0);
        let store = store();
        let (new, old) = (Process::on(&store), Process::on(&store));
        new.set(1, "ann", 50).await;
        let saved = stored(&store);
        new.set(2, "bob", 60).await;
        old.look().await;
        if !knows_all {
            new.set(3, "eve", 70).await;
        }
        let newest = stored(&store);
        lose(&store, &if is_empty { empty() } else { saved });

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
        let mut replaced = Vec::new();
        for (process, look) in order {
            process.way.turns.add_permits(MANY);
            look.await.unwrap();
            replaced.push(process.replaced());
        }
        let expected = [vec![Replacement::WrittenBack], vec![]];
        assert_eq!(replaced, expected, "case {case}: the second one finds another version, and writes nothing");

        let all = [("ann", 50), ("bob", 60), ("eve", 70)];
        agree(&store, &[&old, &new, &old], &all[..if knows_all { 2 } else { 3 }]).await;
        assert_eq!(stored(&store), newest, "case {case}");
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
async fn of_two_changes_around_a_loss_the_newer_one_stays_and_both_versions_are_reported() {
    // The clock of the process that changes something after the loss is ahead, or behind.
    for (late, kept) in [(9, [("ann", 50), ("eve", 70)]), (0, [("ann", 50), ("bob", 60)])] {
        let store = store();
        let (one, other) = (Process::on(&store), Process::on(&store));
        one.set(1, "ann", 50).await;
        other.look().await;
        let saved = stored(&store);
        one.set(5, "bob", 60).await;
        let bob = stored(&store).version;
        lose(&store, &saved);
        // It does not see the loss.
        other.set(late, "eve", 70).await;
        let eve = stored(&store).version;
        assert_eq!(version_time(&eve), Some(START + if late == 9 { 9 } else { 2 }), "later than the change before");
        agree(&store, &[&one, &other], &kept).await;
        let replaced = |kept: &str, lost: &str, how| [Replaced { kept: kept.to_owned(), lost: lost.to_owned(), how }];
        if late == 9 {
            assert_eq!(one.table.take_replaced(), replaced(&eve, &bob, Replacement::Adopted));
            assert_eq!(other.table.take_replaced(), []);
        } else {
            assert_eq!(one.table.take_replaced(), replaced(&bob, &eve, Replacement::WrittenBack));
            assert_eq!(other.table.take_replaced(), replaced(&bob, &eve, Replacement::Adopted));
        }
    }
}

#[tokio::test]
async fn deletes_around_a_loss_are_kept_or_lost_as_other_changes_are() {
    let store = store();
    let (one, other) = (Process::on(&store), Process::on(&store));
    for (at, user) in ["ann", "bob", "eve"].into_iter().enumerate() {
        one.set(at as Micros, user, 50).await;
    }
    other.look().await;
    let saved = stored(&store);
    one.delete(10, "ann").await;
    one.set(11, "eve", 60).await;
    lose(&store, &saved);
    other.delete(20, "bob").await;
    agree(&store, &[&one, &other], &[("ann", 50), ("eve", 50)]).await;
    assert_eq!((one.replaced(), other.replaced()), (vec![Replacement::Adopted], vec![]));
}

#[tokio::test]
async fn a_change_to_an_empty_store_by_one_that_has_just_started_is_the_newest() {
    let store = store();
    let one = Process::on(&store);
    one.set(1, "ann", 50).await;
    lose(&store, &empty());
    let fresh = Process::on(&store);
    fresh.look().await;
    fresh.set(20, "new", 60).await;
    agree(&store, &[&one, &fresh], &[("new", 60)]).await;
    assert_eq!((one.replaced(), fresh.replaced()), (vec![Replacement::Adopted], vec![]));
}

/// A change reads the store first. What this read replaces was not logged.
#[tokio::test]
async fn what_the_read_of_a_change_replaces_is_reported() {
    let store = store();
    let (one, other) = (Process::on(&store), Process::on(&store));
    one.set(1, "ann", 50).await;
    let saved = stored(&store);
    one.set(5, "bob", 60).await;
    lose(&store, &saved);
    one.set(6, "eve", 70).await;
    assert_eq!(one.replaced(), [Replacement::WrittenBack]);
    lose(&store, &saved);
    other.set(9, "zoe", 80).await;
    one.set(10, "pia", 90).await;
    assert_eq!(one.replaced(), [Replacement::Adopted]);
    agree(&store, &[&one, &other], &[("ann", 50), ("pia", 90), ("zoe", 80)]).await;
}

#[tokio::test]
async fn a_text_that_is_written_back_without_an_answer_is_reported_and_the_reports_are_bounded() {
    let store = store();
    let process = Process::on(&store);
    process.set(1, "ann", 50).await;
    process.way.loses_answers.store(true, Relaxed);
    for _ in 0..REPLACED_MAX + 5 {
        lose(&store, &empty());
        assert!(matches!(process.table.look().await, Err(StoreError::Unknown(_))));
    }
    assert_eq!(process.replaced(), [Replacement::Unconfirmed; REPLACED_MAX]);
    assert_eq!((process.look().await, process.replaced()), (Seen::default(), vec![]));
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
    agree(&store, &[&other, &one], &[("ann", 50), ("eve", 50)]).await;
    // A version does not list so many changes.
    assert_eq!((one.replaced(), other.replaced()), (vec![], vec![Replacement::Adopted]));
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
async fn around_losses_all_agree_on_the_newest_version_and_each_lost_change_is_reported() {
    let mut changes_lost = 0;
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let store = store();
        let processes: Vec<Process> = (0..3).map(|_| Process::on(&store)).collect();
        // All versions of the store, by their last changes, with their overrides.
        let mut versions = BTreeMap::from([((0, Writer::NONE), (String::new(), vec![]))]);
        for round in 0..6 {
            // Each process changes something once between two reads of all. The store loses some of the changes, or
            // all.
            let mut states = vec![empty(), stored(&store)];
            let loss = dice.roll(4);
            let mut changed = Vec::new();
            for (turn, process) in (0..).zip(&processes) {
                if turn == loss {
                    let to = dice.roll(states.len() as u64);
                    lose(&store, &states[usize::try_from(to).unwrap()]);
                }
                let (user, requests) = (format!("u{round}{turn}"), 11 + dice.roll(80));
                // The clocks differ by more than the time between two changes.
                process.set(100_000 * round + dice.roll(500_000), &user, requests).await;
                let state = stored(&store);
                let last = version::last_change(&state.version).unwrap();
                let known = versions.insert(last, (state.version.clone(), process.sees()));
                assert_eq!(known, None, "no two changes have one number");
                states.push(state);
                changed.push((user, requests));
            }
            for process in &processes {
                process.look().await;
            }
            let (newest, all) = versions.values().next_back().unwrap();
            let all: Vec<_> = all.iter().map(|(user, requests)| (user.as_str(), *requests)).collect();
            let all_processes: Vec<_> = processes.iter().collect();
            agree(&store, &all_processes, &all).await;
            assert_eq!(stored(&store).version, *newest);

            let replaced = processes.iter().flat_map(|process| process.table.take_replaced());
            let lost: Vec<String> = replaced.map(|one| one.lost).collect();
            for change in changed.iter().filter(|(user, requests)| !all.contains(&(user, *requests))) {
                changes_lost += 1;
                let has_it = |(version, users): &&(String, Vec<_>)| lost.contains(version) && users.contains(change);
                assert!(versions.values().any(|version| has_it(&version)), "seed {seed}: {change:?}");
            }
        }
    }
    assert!(changes_lost > 100, "{changes_lost}");
}

#[tokio::test]
async fn of_two_changes_at_the_same_instant_the_higher_writer_stays() {
    let store = store();
    let (one, other) = (Process::on(&store), Process::on(&store));
    one.set(1, "ann", 50).await;
    let saved = stored(&store);
    other.look().await;
    one.set(2, "bob", 60).await;
    lose(&store, &saved);
    other.set(2, "eve", 70).await;
    let kept = if one.table.writer > other.table.writer { ("bob", 60) } else { ("eve", 70) };
    agree(&store, &[&one, &other], &[("ann", 50), kept]).await;
}
