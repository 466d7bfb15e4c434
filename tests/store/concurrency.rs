//! Threads on one memory store under a clock that stands still: exactly the limit is admitted, several keys are charged all
//! or none, and opposite orders of keys do not lock each other out. Not in here: other stores and other processes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use weir_engine::observer::Silent;
use weir_engine::{Algorithm, Decision, Limit, Mode, Operation, State, Unit};
use weir_store::memory::Memory;
use weir_store::{Deciding as _, Inspected as _, Undo};

use crate::support::manual::{ManualClock, answer, charge, far};

const THREADS: u32 = 8;
/// Enough for the store to have all its shards.
const KEYS_MAX: usize = 100_000;
/// Longer than any of these tests takes on a busy machine: after it, the threads have locked each other out.
const PATIENCE: Duration = Duration::from_secs(60);

fn store() -> Memory {
    Memory::new(KEYS_MAX, Arc::new(ManualClock::in_2041()), Arc::new(Silent))
}

fn window(requests: u32) -> Limit {
    Limit::per_unit(requests, Unit::Hour)
}

fn debt(burst: u32) -> Limit {
    Limit::new(burst.into(), Unit::Hour.window(), Algorithm::Gcra { burst }).unwrap()
}

fn take(store: &Memory, keys: &[(&str, &Limit)], hits: u32) -> Decision {
    let charges: Vec<_> = keys.iter().map(|(key, limit)| charge(key, limit, Operation::Consume(hits))).collect();
    answer(store.decide(&charges, Mode::Atomic, far()))
}

/// Runs `work` in every thread, by its number, and fails where they do not end.
fn in_threads(work: impl Fn(u32) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let (ended, ends) = mpsc::channel();
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let (work, ended) = (work.clone(), ended.clone());
        threads.push(thread::spawn(move || {
            work(number);
            let _ = ended.send(());
        }));
    }
    drop(ended);
    for _ in 0..THREADS {
        match ends.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the threads lock each other out"),
            // One has panicked: joining says which.
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The hits in the states of keys, read at one instant.
fn counts(store: &Memory, keys: &[(&str, &Limit)]) -> Vec<u32> {
    let peeked = answer(store.read_states(keys, far()));
    let count = |state: &Option<State>| match state {
        Some(State::FixedWindow(counter)) => counter.count,
        Some(other) => panic!("{other:?} is no window of the clock"),
        None => 0,
    };
    peeked.states.iter().map(count).collect()
}

#[test]
fn one_key_admits_exactly_its_limit() {
    for limit in [window(5_000), debt(5_000)] {
        let (store, admitted) = (Arc::new(store()), Arc::new(AtomicU32::new(0)));
        let (shared, sum, of) = (store.clone(), admitted.clone(), limit.clone());
        in_threads(move |number| {
            // Weights of 1, 2 and 3: whole or not at all.
            for i in 0..2_000 {
                let hits = 1 + (number + i) % 3;
                if !take(&shared, &[("k", &of)], hits).denied {
                    sum.fetch_add(hits, Ordering::SeqCst);
                }
            }
        });
        assert_eq!(admitted.load(Ordering::SeqCst), 5_000, "{limit:?}");
        assert!(take(&store, &[("k", &limit)], 1).denied);
    }
}

#[test]
fn overlapping_decisions_in_opposite_orders_charge_all_or_none() {
    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    const LIMIT: u32 = 3_000;
    let limit = window(LIMIT);
    let store = Arc::new(store());
    let admitted: Arc<[AtomicU32; 6]> = Arc::new([const { AtomicU32::new(0) }; 6]);
    let (shared, sums, of) = (store.clone(), admitted.clone(), limit.clone());
    in_threads(move |number| {
        for i in 0..3_000_usize {
            // Every pair of keys, in both orders, and every third time three of them.
            let first = (i + number as usize) % KEYS.len();
            let second = (first + 1 + i / KEYS.len() % (KEYS.len() - 1)) % KEYS.len();
            let mut chosen = vec![first, second];
            if i % 3 == 0 {
                chosen.push((0..KEYS.len()).find(|key| !chosen.contains(key)).unwrap());
            }
            if number % 2 == 1 {
                chosen.reverse();
            }
            let keys: Vec<_> = chosen.iter().map(|&key| (KEYS[key], &of)).collect();
            if !take(&shared, &keys, 1).denied {
                for key in chosen {
                    sums[key].fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    });

    let keys = KEYS.map(|key| (key, &limit));
    let stored = counts(&store, &keys);
    let admitted: Vec<u32> = admitted.iter().map(|sum| sum.load(Ordering::SeqCst)).collect();
    assert_eq!(stored, admitted, "each key holds the hits of the decisions that were admitted, and no others");
    assert!(stored.iter().all(|&count| count <= LIMIT), "{stored:?}");
    assert!(stored.iter().filter(|&&count| count == LIMIT).count() >= KEYS.len() - 2, "{stored:?} are hardly full");
}

#[test]
fn nobody_sees_half_of_a_decision() {
    let limit = window(u32::MAX);
    let store = Arc::new(store());
    let (shared, of, over) = (store.clone(), limit.clone(), AtomicBool::new(false));
    in_threads(move |number| {
        let pair = [("left", &of), ("right", &of)];
        if number == 0 {
            while !over.load(Ordering::SeqCst) {
                let seen = counts(&shared, &pair);
                assert_eq!(seen[0], seen[1], "one of two keys is charged");
            }
            return;
        }
        let none = window(0);
        for i in 0..2_000 {
            assert!(!take(&shared, &if i % 2 == 0 { pair } else { [pair[1], pair[0]] }, 1).denied);
            // A decision that a third limit denies leaves both as they were.
            assert!(take(&shared, &[pair[0], pair[1], ("never", &none)], 1).denied);
        }
        over.store(true, Ordering::SeqCst);
    });
    let expected = 2_000 * (THREADS - 1);
    assert_eq!(counts(&store, &[("left", &limit), ("right", &limit)]), [expected, expected]);
}

#[test]
fn what_is_taken_back_meanwhile_adds_up() {
    let (windows, debts) = (window(1_000), debt(1_000));
    let store = Arc::new(store());
    let (shared, limits) = (store.clone(), [windows.clone(), debts.clone()]);
    in_threads(move |number| {
        let keys = [("w", &limits[0]), ("d", &limits[1])];
        for i in 0..1_000_u32 {
            let decision = take(&shared, &keys, 1 + (number + i) % 3);
            if decision.denied {
                continue;
            }
            let mut undos = Vec::new();
            for ((key, limit), outcome) in keys.iter().zip(&decision.outcomes) {
                undos.push(Undo { key, limit, receipt: outcome.receipt.unwrap(), bounds: None });
            }
            answer(shared.undo(&undos, far()));
        }
    });
    let states = answer(store.read_states(&[("w", &windows), ("d", &debts)], far())).states;
    assert_eq!(states, [None, None], "everything was taken back");
    assert_eq!(store.keys(), Some(0));
}
