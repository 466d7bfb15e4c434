//! What a caller can do to the states of the memory store: a flood of keys does not buy back a limit that is used up, and a
//! panic in the middle of a change loses no key. Not in here: the order of eviction, state by state (tests/store/eviction.rs).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_engine::observer::Silent;
use weir_engine::{Algorithm, Anchor, CalendarUnit, Charge, Limit, Mode, Operation, Receipt, State, Unit};
use weir_store::memory::Memory;
use weir_store::{Deciding as _, Inspected as _, Undo};

use crate::support::arbitrary::START_US;
use crate::support::manual::{ManualClock, answer, charge, far};

const DAY_US: u64 = 86_400 * 1_000_000;

/// The room of the store: 64 shards.
const KEYS_MAX: usize = 100_000;
/// The room of the store where the flood costs two requests a key.
const KEYS_MAX_SMALL: usize = 10_000;
/// A flood has so many new keys for each key of the room.
const FLOOD: usize = 2;
/// The keys of each kind that the flood is to buy back.
const USED_UP: usize = 500;
/// The keys that come while the flood goes on.
const NEWCOMERS: u32 = 20;
/// What every key may take in an hour.
const REQUESTS: u32 = 10;

/// What a key of a flood does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flood {
    /// It takes all of its limit.
    Full,
    /// It takes one hit.
    Empty,
    /// It takes all of its limit, and asks once more.
    FullAndDenied,
}

/// What a flood bought, in keys and hits.
#[derive(Debug, PartialEq, Eq)]
struct Bought {
    /// Of [`USED_UP`] keys that were denied before the flood, those that were admitted after it.
    denied: usize,
    /// Of [`USED_UP`] keys that were used up before the flood and not asked again, those that were admitted after it.
    not_asked: usize,
    /// The hits that [`NEWCOMERS`] keys were admitted during the flood, each asked once in 100 new keys.
    often: u32,
    /// The same, each asked once in 1,000 new keys.
    seldom: u32,
}

struct Target {
    store: Memory,
    limit: Limit,
}

impl Target {
    fn new(keys_max: usize) -> Self {
        let store = Memory::new(keys_max, Arc::new(ManualClock::in_2041()), Arc::new(Silent));
        Self { store, limit: Limit::per_unit(REQUESTS, Unit::Hour) }
    }

    /// Whether so many hits are admitted.
    fn take(&self, key: &str, hits: u32) -> bool {
        let charges = [charge(key, &self.limit, Operation::Consume(hits))];
        !answer(self.store.decide(&charges, Mode::Atomic, far())).denied
    }

    /// One hit for each of the newcomers. Returns how many were admitted.
    fn ask_newcomers(&self, name: &str) -> u32 {
        (0..NEWCOMERS).map(|number| u32::from(self.take(&format!("{name} {number}"), 1))).sum()
    }

    /// Counts the keys that were used up and are admitted again.
    fn admitted_again(&self, name: &str) -> usize {
        (0..USED_UP).filter(|number| self.take(&format!("{name} {number}"), 1)).count()
    }
}

/// Fills the store, half of it with honest keys, and floods it.
fn flood(kind: Flood, keys_max: usize) -> Bought {
    let target = Target::new(keys_max);
    for name in ["denied", "not asked"] {
        for number in 0..USED_UP {
            assert!(target.take(&format!("{name} {number}"), REQUESTS));
        }
    }
    assert_eq!(target.admitted_again("denied"), 0);
    for number in 0..keys_max / 2 {
        target.take(&format!("other {number}"), REQUESTS / 2);
    }
    let (mut often, mut seldom) = (0, 0);
    for number in 0..keys_max * FLOOD {
        let key = format!("flood {number}");
        target.take(&key, if kind == Flood::Empty { 1 } else { REQUESTS });
        if kind == Flood::FullAndDenied {
            target.take(&key, 1);
        }
        // From here on the store is full of the flood.
        if number < keys_max {
            continue;
        }
        if number % 100 == 0 {
            often += target.ask_newcomers("often");
        }
        if number % 1_000 == 0 {
            seldom += target.ask_newcomers("seldom");
        }
    }
    let (denied, not_asked) = (target.admitted_again("denied"), target.admitted_again("not asked"));
    let bought = Bought { denied, not_asked, often, seldom };
    println!("{kind:?}, {keys_max} keys: {bought:?}");
    bought
}

/// The bounds of docs/stores.md.
#[test]
fn a_flood_of_keys_that_are_used_up_buys_no_used_up_key_back() {
    let bought = flood(Flood::Full, KEYS_MAX);
    let due = REQUESTS * NEWCOMERS;
    assert_eq!((bought.denied, bought.not_asked), (0, 0));
    assert!((due..=due * 3 / 2).contains(&bought.often), "{bought:?}");
    assert!((due..=due * 5).contains(&bought.seldom), "{bought:?}");
}

#[test]
fn a_flood_of_keys_that_are_hardly_used_buys_nothing_back() {
    let bought = flood(Flood::Empty, KEYS_MAX);
    let due = REQUESTS * NEWCOMERS;
    assert_eq!((bought.denied, bought.not_asked), (0, 0));
    for newcomers in [bought.often, bought.seldom] {
        assert!((due..=due * 21 / 20).contains(&newcomers), "{bought:?}");
    }
}

/// Such a flood looks like many callers who go on asking: each state goes with the same chance, and the first flood as
/// large as the room only fills it.
#[test]
fn a_flood_that_pays_twice_for_each_key_buys_back_a_share() {
    let bought = flood(Flood::FullAndDenied, KEYS_MAX_SMALL);
    assert!(bought.denied <= USED_UP * 3 / 4, "{bought:?}");
}

/// The stored states of these keys.
fn stored(store: &Memory, keys: &[(&str, &Limit)]) -> Vec<Option<State>> {
    answer(store.read_states(keys, far())).states
}

/// A calendar's charge without boundaries is a mistake that the engine does not survive. It stands for any other.
#[test]
fn a_panic_in_the_middle_of_a_change_loses_no_key() {
    let target = Target::new(KEYS_MAX_SMALL);
    let month = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Month) };
    let month = Limit::new(5, Unit::Month.window(), month).unwrap();
    let bounds = Some(std::array::from_fn(|i| START_US - 40 * DAY_US + i as u64 * 30 * DAY_US));
    let precision = Algorithm::default_precision(Unit::Hour.window());
    let (log, buckets) = (Algorithm::SlidingWindowLog, Algorithm::SlidingWindow { precision });
    let others = [log, buckets].map(|algorithm| Limit::new(5, Unit::Hour.window(), algorithm).unwrap());
    let charges = |bounds| {
        vec![
            charge("log", &others[0], Operation::Consume(2)),
            charge("buckets", &others[1], Operation::Consume(2)),
            Charge { bounds, ..charge("calendar", &month, Operation::Consume(2)) },
        ]
    };
    let decided = answer(target.store.decide(&charges(bounds), Mode::Atomic, far()));
    assert!(!decided.denied);
    let keys = [("log", &others[0]), ("buckets", &others[1]), ("calendar", &month)];
    let before = stored(&target.store, &keys);
    assert!(before.iter().all(Option::is_some), "{before:?}");

    let broken = charges(None);
    let panics = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    for _ in 0..2 {
        assert!(panics(&|| drop(target.store.decide(&broken, Mode::Atomic, far()))));
        let receipt: Receipt = decided.outcomes[2].receipt.unwrap();
        let undo = [Undo { key: "calendar", limit: &month, receipt, bounds: None }];
        assert!(panics(&|| drop(target.store.undo(&undo, far()))));
        assert_eq!(stored(&target.store, &keys), before);
    }
    assert_eq!(target.store.keys(), Some(3));
    // Every key goes on from where it was.
    let next = answer(target.store.decide(&charges(bounds), Mode::Atomic, far()));
    assert_eq!(next.outcomes.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>(), [1, 1, 1]);
}
