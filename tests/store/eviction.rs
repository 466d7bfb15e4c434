//! The memory store at its bound: it is never passed, what has expired goes first, then what is worth least; a flood of
//! keys never brings a full one back, and what is lost is told. Not in here: what a decision is.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use weir_engine::descriptor::saturated;
use weir_engine::observer::{Silent, Tally};
use weir_engine::{Algorithm, Charge, Count, Limit, Mode, Observer, Operation, PolicySet, Unit, Verdict};
use weir_store::memory::Memory;
use weir_store::{Deciding as _, Inspected as _};

use crate::support::arbitrary::START_US;
use crate::support::manual::{ManualClock, answer, charge, far};

/// Bounds of one shard that is seen whole, of one that is sampled, and of several shards.
const BOUNDS: [usize; 4] = [2, 10, 200, 1_000];
/// A flood has so many keys for each key of the bound.
const FLOOD: usize = 10;
/// The rule that is hammered, and the rule that is flooded beside it.
const OURS: u32 = 1;
const THEIRS: u32 = 2;
const MINUTE_US: u64 = 60_000_000;

/// Hears of lost hits.
#[derive(Debug, Default)]
struct Losses(Mutex<Vec<Count>>);

impl Observer for Losses {
    fn loaded(&self, policies: &PolicySet) -> Arc<dyn Tally> {
        Silent.loaded(policies)
    }

    fn evicted(&self, hits_lost: Count) {
        self.0.lock().unwrap().push(hits_lost);
    }
}

struct Setup {
    store: Arc<Memory>,
    clock: Arc<ManualClock>,
    losses: Arc<Losses>,
}

fn setup(keys_max: usize) -> Setup {
    let (clock, losses) = (Arc::new(ManualClock::in_2041()), Arc::new(Losses::default()));
    let store = Arc::new(Memory::new(keys_max, clock.clone(), losses.clone()));
    Setup { store, clock, losses }
}

impl Setup {
    fn losses(&self) -> Vec<Count> {
        self.losses.0.lock().unwrap().clone()
    }
}

fn take(store: &Memory, key: &str, limit: &Limit, hits: u32, owner: u32) -> Verdict {
    let charges = [Charge { owner, ..charge(key, limit, Operation::Consume(hits)) }];
    answer(store.decide(&charges, Mode::Atomic, far())).outcomes[0].verdict
}

fn is_stored(store: &Memory, key: &str, limit: &Limit) -> bool {
    answer(store.read_states(&[(key, limit)], far())).states[0].is_some()
}

fn per_minute(requests: u32) -> Limit {
    Limit::per_unit(requests, Unit::Minute)
}

fn debt(burst: u32) -> Limit {
    Limit::new(burst.into(), Unit::Hour.window(), Algorithm::Gcra { burst }).unwrap()
}

#[test]
fn the_bound_is_never_passed() {
    let limit = per_minute(3);
    for keys_max in [1, 2, 10, 127, 256, 1_000] {
        let setup = setup(keys_max);
        for i in 0..keys_max * FLOOD {
            // Some keys are full, some rules are others, some decisions have two keys.
            let owner = u32::try_from(i % 3).unwrap();
            take(&setup.store, &format!("k{i}"), &limit, owner + 1, owner);
            let pair = [format!("l{i}"), format!("r{i}")];
            let charges = pair.each_ref().map(|key| Charge { owner, ..charge(key, &limit, Operation::Consume(1)) });
            answer(setup.store.decide(&charges, Mode::Atomic, far()));
            assert!(setup.store.keys().unwrap() <= keys_max as u64, "{keys_max}");
        }
        assert!(setup.store.keys().unwrap() >= keys_max as u64 / 2, "{keys_max} keys are hardly used");
        let lost = setup.losses().len() as u64;
        assert_eq!(
            lost + setup.store.keys().unwrap(),
            3 * (keys_max * FLOOD) as u64,
            "each lost state is told of once"
        );
    }
}

#[test]
fn the_bound_is_never_passed_by_many_threads() {
    let setup = setup(500);
    thread::scope(|scope| {
        let mut floods = Vec::new();
        for number in 0..3_u32 {
            let store = &setup.store;
            floods.push(scope.spawn(move || {
                for i in 0..5_000 {
                    take(store, &format!("{number}:{i}"), &per_minute(2), 1, number);
                }
            }));
        }
        while floods.iter().any(|flood| !flood.is_finished()) {
            assert!(setup.store.keys().unwrap() <= 500);
        }
    });
}

#[test]
fn what_has_expired_goes_first() {
    let (second, hour) = (Limit::per_unit(9, Unit::Second), Limit::per_unit(9, Unit::Hour));
    let setup = setup(10);
    // Nine that live on, worth almost nothing, and one in their midst that is full, and over in a second.
    for i in 0..10 {
        let (limit, hits) = if i == 4 { (&second, 9) } else { (&hour, 1) };
        take(&setup.store, &format!("k{i}"), limit, hits, OURS);
    }
    setup.clock.set(START_US + 1_000_000);
    take(&setup.store, "new", &hour, 1, OURS);
    assert!(setup.losses().is_empty(), "an expired state is no loss");
    for i in (0..10).filter(|&i| i != 4) {
        assert!(is_stored(&setup.store, &format!("k{i}"), &hour), "k{i} is gone");
    }
    assert!(is_stored(&setup.store, "new", &hour));
}

#[test]
fn expired_keys_make_room_without_a_loss() {
    let setup = setup(1_000);
    for round in 0..20_u64 {
        setup.clock.set(START_US + round * MINUTE_US);
        for i in 0..500 {
            take(&setup.store, &format!("{round}:{i}"), &per_minute(2), 2, OURS);
        }
    }
    assert!(setup.losses().is_empty());
    assert!(setup.store.keys().unwrap() <= 1_000);
}

#[test]
fn the_least_used_goes_and_its_hits_are_told() {
    let setup = setup(5);
    for (key, limit, hits) in [
        ("full", per_minute(10), 10),
        ("half", per_minute(10), 5),
        // Fewer hits than "half", and more of its limit.
        ("most", per_minute(4), 3),
        // More hits than any, and the least of its limit.
        ("least", per_minute(1_000), 40),
        ("debt", debt(10), 6),
    ] {
        take(&setup.store, key, &limit, hits, OURS);
    }
    let mut expected = Vec::new();
    for (gone, hits, limit) in [
        ("least", 40, per_minute(1_000)),
        ("half", 5, per_minute(10)),
        ("debt", 6, debt(10)),
        ("most", 3, per_minute(4)),
    ] {
        take(&setup.store, &format!("after {gone}"), &per_minute(10), 10, OURS);
        expected.push(hits);
        assert_eq!(setup.losses(), expected, "{gone} goes");
        assert!(!is_stored(&setup.store, gone, &limit), "{gone} goes");
    }
    assert!(is_stored(&setup.store, "full", &per_minute(10)));
}

#[test]
fn of_equals_the_one_that_ends_soonest_goes() {
    let setup = setup(3);
    for (key, unit) in [("day", Unit::Day), ("minute", Unit::Minute), ("hour", Unit::Hour)] {
        take(&setup.store, key, &Limit::per_unit(4, unit), 1, OURS);
    }
    take(&setup.store, "new", &Limit::per_unit(4, Unit::Day), 1, OURS);
    for (key, unit, stays) in [("day", Unit::Day, true), ("minute", Unit::Minute, false), ("hour", Unit::Hour, true)] {
        assert_eq!(is_stored(&setup.store, key, &Limit::per_unit(4, unit)), stays, "{key}");
    }
}

/// Every key of `here` is stored, and `gone` is not.
fn check_stored(setup: &Setup, limit: &Limit, here: &[&str], gone: &str) {
    for key in here {
        assert!(is_stored(&setup.store, key, limit), "{key} is gone");
    }
    assert!(!is_stored(&setup.store, gone, limit), "{gone} stays");
}

#[test]
fn of_full_states_the_last_to_fill_goes_that_was_over_for_nobody() {
    for limit in [per_minute(2), debt(2)] {
        let setup = setup(3);
        let fill = |key: &str| assert_eq!(take(&setup.store, key, &limit, 2, OURS), Verdict::Within, "{key}");
        let deny = |key: &str| assert!(take(&setup.store, key, &limit, 1, OURS).is_over(), "{key}");
        for key in ["a", "b", "c"] {
            fill(key);
        }
        deny("c");
        fill("d");
        check_stored(&setup, &limit, &["a", "c", "d"], "b");
        fill("e");
        check_stored(&setup, &limit, &["a", "c", "e"], "d");
        // A look that is over counts as a denial.
        let look = [Charge { owner: OURS, ..charge("a", &limit, Operation::Peek) }];
        assert!(answer(setup.store.decide(&look, Mode::Atomic, far())).denied);
        fill("f");
        check_stored(&setup, &limit, &["a", "c", "f"], "e");
        // All of them are in use: one goes, and the newcomer stays.
        deny("f");
        fill("g");
        let left = ["a", "c", "f"].into_iter().filter(|key| is_stored(&setup.store, key, &limit)).count();
        assert_eq!((left, is_stored(&setup.store, "g", &limit)), (2, true));
        assert_eq!(setup.losses(), [2, 2, 2, 2]);
    }
}

#[test]
fn a_denial_counts_from_when_the_state_filled() {
    let limit = per_minute(4);
    let setup = setup(3);
    let take = |key: &str, hits| take(&setup.store, key, &limit, hits, OURS);
    // Denied while it was not full yet, and after that nobody.
    assert_eq!((take("a", 3), take("a", 2).is_over(), take("a", 1)), (Verdict::Within, true, Verdict::Within));
    // Denied, and then not full any more.
    assert_eq!((take("b", 4), take("b", 1).is_over()), (Verdict::Within, true));
    let give = [Charge { owner: OURS, ..charge("b", &limit, Operation::Refund(1)) }];
    assert!(!answer(setup.store.decide(&give, Mode::Atomic, far())).denied);
    assert_eq!(take("b", 1), Verdict::Within);
    assert_eq!((take("c", 4), take("c", 1).is_over()), (Verdict::Within, true));
    assert_eq!(take("d", 4), Verdict::Within);
    check_stored(&setup, &limit, &["a", "c", "d"], "b");
    // In the next window each begins anew.
    setup.clock.set(START_US + MINUTE_US);
    assert_eq!((take("c", 4), take("a", 4), take("a", 1).is_over()), (Verdict::Within, Verdict::Within, true));
    assert_eq!((take("d", 4), take("d", 1).is_over(), take("e", 4)), (Verdict::Within, true, Verdict::Within));
    check_stored(&setup, &limit, &["a", "d", "e"], "c");
}

/// Independent charging counts what it denies, and a report is charged in any case: the state stays full.
#[test]
fn a_full_state_that_is_charged_further_has_denied() {
    let limit = per_minute(4);
    for (mode, charged) in [(Mode::Independent, Operation::Consume(3)), (Mode::Atomic, Operation::Report(3))] {
        let setup = setup(2);
        assert_eq!(take(&setup.store, "a", &limit, 4, OURS), Verdict::Within);
        assert_eq!(take(&setup.store, "b", &limit, 4, OURS), Verdict::Within);
        let further = [Charge { owner: OURS, ..charge("b", &limit, charged) }];
        assert!(answer(setup.store.decide(&further, mode, far())).denied);
        assert_eq!(take(&setup.store, "c", &limit, 4, OURS), Verdict::Within);
        check_stored(&setup, &limit, &["b", "c"], "a");
    }
}

/// Two keys of one decision took each other's place: the second dropped what the first had just charged.
#[test]
fn a_decision_does_not_drop_its_own_keys() {
    let limit = per_minute(9);
    for mode in [Mode::Atomic, Mode::Independent] {
        let setup = setup(10);
        take(&setup.store, "known", &limit, 1, OURS);
        for i in 0..9 {
            // Each is worth more than what a request of one hit leaves.
            take(&setup.store, &format!("used {i}"), &limit, 9, OURS);
            take(&setup.store, &format!("used {i}"), &limit, 1, OURS);
        }
        let keys = ["one", "two", "known", "three"];
        let charges = keys.map(|key| Charge { owner: OURS, ..charge(key, &limit, Operation::Consume(1)) });
        assert!(!answer(setup.store.decide(&charges, mode, far())).denied);
        let left = keys.map(|key| {
            let look = charge(key, &limit, Operation::Peek);
            answer(setup.store.decide(&[look], mode, far())).outcomes[0].remaining
        });
        assert_eq!(left, [8, 8, 7, 8], "{mode:?}");
        assert_eq!(setup.losses(), [9; 3]);
    }
}

/// A decision of more keys than there is room for drops some of its own.
#[test]
fn a_decision_of_more_keys_than_the_bound_keeps_to_it() {
    let (setup, limit) = (setup(4), per_minute(9));
    let keys: Vec<String> = (0..9).map(|i| format!("k{i}")).collect();
    let charges: Vec<_> = keys.iter().map(|key| charge(key, &limit, Operation::Consume(1))).collect();
    assert!(!answer(setup.store.decide(&charges, Mode::Atomic, far())).denied);
    assert_eq!((setup.store.keys(), setup.losses()), (Some(4), vec![1; 5]));
}

/// A log that grew past the bytes of its shard dropped itself: no request was ever over.
#[test]
fn a_write_for_which_bytes_are_missing_does_not_drop_its_own_key() {
    let (setup, hour) = (setup(64), Unit::Hour.window());
    let log = Limit::new(10_000, hour, Algorithm::SlidingWindowLog).unwrap();
    let charge_each = |key: &str, charges: u32| {
        for _ in 0..charges {
            assert_eq!(take(&setup.store, key, &log, 1, OURS), Verdict::Within);
        }
        let look = charge(key, &log, Operation::Peek);
        answer(setup.store.decide(&[look], Mode::Atomic, far())).outcomes[0].remaining
    };
    for number in 0..4 {
        charge_each(&format!("large {number}"), 9_000);
    }
    // Each is worth less than those.
    for number in 0..60 {
        assert_eq!(charge_each(&format!("small {number}"), 500), 9_500, "{number}");
    }
    assert!(setup.losses().len() > 4, "bytes are missing");
}

/// Many callers hammer one full key, while others use each key of a flood once. Answers the hits that the hammered key
/// admitted once it was full.
fn hammer(setup: &Setup, limit: &Limit, flooded: u32, keys: usize) -> u32 {
    assert_eq!(take(&setup.store, "hammered", limit, saturated(limit.capacity()), OURS), Verdict::Within);
    let admitted = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..keys {
                    let verdict = take(&setup.store, "hammered", limit, 1, OURS);
                    admitted.fetch_add(u32::from(verdict == Verdict::Within), Ordering::SeqCst);
                }
            });
        }
        for number in 0..2 {
            let store = &setup.store;
            scope.spawn(move || {
                for i in 0..keys / 2 {
                    take(store, &format!("{number}:{i}"), limit, 1, flooded);
                }
            });
        }
    });
    let last = take(&setup.store, "hammered", limit, 1, OURS);
    admitted.load(Ordering::SeqCst) + u32::from(last == Verdict::Within)
}

#[test]
fn a_flood_never_brings_a_hammered_key_back_before_its_window_ends() {
    for keys_max in BOUNDS {
        for limit in [per_minute(2), per_minute(7), debt(2)] {
            for flooded in [OURS, THEIRS] {
                let setup = setup(keys_max);
                let admitted = hammer(&setup, &limit, flooded, keys_max * FLOOD);
                assert_eq!(admitted, 0, "{keys_max} keys, {limit:?}, a flood on rule {flooded}");
                // When its window has ended it starts anew.
                setup.clock.set(START_US + 60 * MINUTE_US);
                assert_eq!(take(&setup.store, "hammered", &limit, 1, OURS), Verdict::Within);
            }
        }
    }
}

#[test]
fn a_flood_on_one_rule_costs_another_nothing_that_is_within_its_share() {
    let limit = per_minute(5);
    for keys_max in BOUNDS {
        let setup = setup(keys_max);
        let own: Vec<String> = (0..keys_max / 4 + 1).map(|i| format!("own {i}")).collect();
        // The others take all that is left, then we come, then they flood.
        for i in 0..keys_max {
            take(&setup.store, &format!("before {i}"), &limit, 4, THEIRS);
        }
        for key in &own {
            take(&setup.store, key, &limit, 1, OURS);
        }
        for i in 0..keys_max * FLOOD {
            take(&setup.store, &format!("flood {i}"), &limit, 4, THEIRS);
        }
        for key in &own {
            assert!(is_stored(&setup.store, key, &limit), "{keys_max} keys: {key} is gone");
        }
    }
}

#[test]
fn a_rule_that_came_first_keeps_its_share_when_another_is_flooded() {
    let limit = per_minute(5);
    for keys_max in [2, 10, 200] {
        let setup = setup(keys_max);
        // Stored one after the other, so that they lie side by side in the one shard.
        let own: Vec<String> = (0..keys_max * 2 / 5).map(|i| format!("own {i}")).collect();
        for key in &own {
            take(&setup.store, key, &limit, 1, OURS);
        }
        for i in 0..keys_max * FLOOD {
            take(&setup.store, &format!("flood {i}"), &limit, 4, THEIRS);
        }
        for key in &own {
            assert!(is_stored(&setup.store, key, &limit), "{keys_max} keys: {key} is gone");
        }
    }
}

/// A key of a decision that made place for another key of it was counted from zero again.
#[test]
fn a_decision_that_evicts_one_of_its_own_keys_keeps_the_hits_of_that_key() {
    let Setup { store, .. } = setup(1);
    let limit = Limit::per_unit(10, Unit::Hour);
    take(&store, "old", &limit, 4, OURS);
    let charges = ["new", "old"].map(|key| charge(key, &limit, Operation::Consume(1)));
    answer(store.decide(&charges, Mode::Atomic, far()));
    let peeked = answer(store.decide(&[charge("old", &limit, Operation::Peek)], Mode::Atomic, far()));
    assert_eq!(peeked.outcomes[0].remaining, 5);
}
