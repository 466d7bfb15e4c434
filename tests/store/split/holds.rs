//! Holds in several slots and stores, and stores that do not answer. [hd-6]

use weir_limiter::{HeldCharge, HeldIn};

use super::*;

const HOLDS: &str = "\
domain: shop
descriptors:
- {key: user, rate_limit: {rate: 10/hour, hold: true}}
- {key: tenant, rate_limit: {rate: 10/day, calendar: true, hold: true}}
- {key: second, rate_limit: {rate: 10/second, hold: true}}
";

fn bench(on_error: OnError, seed: u64) -> Bench {
    Bench::with(HOLDS, Mode::Atomic, on_error, seed)
}

/// Settles what is held, by all descriptors.
fn settle(limiter: &Limiter, asked: &[(&str, &str, Operation)], holds: &[HeldCharge]) -> Result<Answer, StoreError> {
    let settle = Settle { descriptors: (1 << asked.len()) - 1, holds: holds.to_vec() };
    run(decide_or_settle(limiter, asked, Some(Box::new(settle))))
}

#[test]
fn holds_of_several_slots_are_settled_in_each() {
    for seed in 0..20 {
        let bench = bench(OnError::Error, seed);
        let (user, tenant) = (bench.value_in("user", 0), bench.value_in("tenant", 1));
        let asked = |hits| [("user", &*user, hits), ("tenant", &*tenant, hits)];
        let left = || (bench.left("user", &user), bench.left("tenant", &tenant));
        let holds = bench.ask(&asked(Operation::Consume(4))).unwrap().holds;
        assert_eq!((holds.len(), left()), (2, (6, 6)));
        settle(&bench.limiter, &asked(ONE), &holds).unwrap();
        assert_eq!(left(), (9, 9));
        let holds = bench.ask(&asked(Operation::Consume(2))).unwrap().holds;
        settle(&bench.limiter, &asked(Operation::Consume(5)), &holds).unwrap();
        assert_eq!(left(), (4, 4));
        assert_eq!(bench.heard.holds.get(), [4, 4, 0, 0]);
    }
}

#[test]
fn a_settle_that_fails_is_lost_and_never_sent_again() {
    for (fault, given_back) in [(Fault::NotSent, 0), (Fault::Lost, 0), (Fault::AnswerLost, 3)] {
        let bench = bench(OnError::Error, 1);
        let (user, tenant) = (bench.value_in("user", 0), bench.value_in("tenant", 1));
        let asked = |hits| [("user", &*user, hits), ("tenant", &*tenant, hits)];
        let holds = bench.ask(&asked(Operation::Consume(4))).unwrap().holds;
        bench.store.fails(Call::Decide, &bench.key("user", &user), fault);
        let calls = bench.store.calls.load(SeqCst);
        let failed = settle(&bench.limiter, &asked(ONE), &holds).expect_err("what is left is not known");
        assert!(matches!(failed, StoreError::Unknown(_)), "{fault:?}: it may not be sent again");
        assert_eq!(bench.heard.holds.get(), [2, 1, 0, 1], "{fault:?}");
        // One for the user. The day of the tenant is asked for again, with the boundaries around the store's clock.
        let calls = bench.store.calls.load(SeqCst) - calls;
        assert_eq!((calls, bench.store.undos.load(SeqCst)), (3, 0), "{fault:?}");
        bench.store.heal();
        assert_eq!((bench.left("user", &user), bench.left("tenant", &tenant)), (6 + given_back, 9), "{fault:?}");
    }
}

#[test]
fn an_excess_that_no_store_takes_is_lost() {
    for on_error in [OnError::Error, OnError::Allow] {
        let bench = bench(on_error, 1);
        let asked = |hits| [("user", "ann", hits)];
        let holds = bench.ask(&asked(Operation::Consume(4))).unwrap().holds;
        bench.store.fails(Call::Decide, &bench.key("user", "ann"), Fault::NotSent);
        let answer = settle(&bench.limiter, &asked(Operation::Consume(9)), &holds);
        // Not as one that may be sent again.
        assert!(answer.is_ok() == (on_error == OnError::Allow) && !matches!(answer, Err(StoreError::NotSent(_))));
        assert_eq!(bench.heard.holds.get(), [1, 0, 0, 1]);
        bench.store.heal();
        assert_eq!(bench.left("user", "ann"), 6);
    }
}

#[test]
fn without_a_store_a_hold_is_the_local_ones_or_there_is_none() {
    let asked = |hits| [("user", "ann", Operation::Consume(hits))];
    let allowing = bench(OnError::Allow, 1);
    allowing.store.fails(Call::Decide, &allowing.key("user", "ann"), Fault::NotSent);
    assert_eq!(allowing.ask(&asked(4)).unwrap().holds, []);
    let bench = bench(OnError::Local, 1);
    bench.store.fails(Call::Decide, &bench.key("user", "ann"), Fault::NotSent);
    let holds = bench.ask(&asked(4)).unwrap().holds;
    let HeldIn::Process(process) = holds[0].store else { panic!("{holds:?}") };
    let mut elsewhere = holds.clone();
    elsewhere[0].store = HeldIn::Process(process ^ 1);
    bench.store.heal();
    settle(&bench.limiter, &asked(1), &elsewhere).unwrap();
    assert_eq!(bench.heard.holds.get(), [1, 0, 0, 1], "another process's");
    settle(&bench.limiter, &asked(1), &holds).unwrap();
    assert_eq!(bench.heard.holds.get(), [1, 1, 0, 1]);
    assert_eq!((bench.store.undos.load(SeqCst), bench.left("user", "ann")), (0, 10), "the store has nothing of it");
    bench.store.fails(Call::Decide, &bench.key("user", "ann"), Fault::NotSent);
    assert!(!bench.ask(&asked(9)).unwrap().denied);
    assert!(bench.ask(&asked(1)).unwrap().denied, "one of the four stayed");
}

/// [hd-10]
#[test]
fn a_minimum_is_charged_in_each_slot_and_in_the_memory_of_a_process() {
    let minimum = HOLDS.replace("hold: true", "hold: {at_least: 3}");
    let bench = Bench::with(&minimum, Mode::Atomic, OnError::Local, 1);
    let (user, tenant) = (bench.value_in("user", 0), bench.value_in("tenant", 1));
    let asked = |hits| [("user", &*user, hits), ("tenant", &*tenant, hits)];
    let holds = bench.ask(&asked(Operation::Consume(4))).unwrap().holds;
    settle(&bench.limiter, &asked(Operation::Peek), &holds).unwrap();
    assert_eq!((bench.left("user", &user), bench.left("tenant", &tenant)), (7, 7));
    let asked = |hits| [("user", "ann", Operation::Consume(hits))];
    bench.store.fails(Call::Decide, &bench.key("user", "ann"), Fault::NotSent);
    let holds = bench.ask(&asked(8)).unwrap().holds;
    assert!(matches!(holds[0].store, HeldIn::Process(_)), "{holds:?}");
    settle(&bench.limiter, &asked(1), &holds).unwrap();
    assert!(bench.ask(&asked(8)).unwrap().denied, "three of the eight stayed");
    assert!(!bench.ask(&asked(7)).unwrap().denied);
}

#[test]
fn the_second_store_has_holds_of_its_own() {
    let (first, second) = (Slotted::new(1), Slotted::new(2));
    let options = Options { per_second: Some(second.clone()), budget: BUDGET, ..Options::new(first.clone()) };
    let heard = Arc::new(Heard::default());
    let limiter = limiter(HOLDS, options, heard.clone());
    let asked = |hits| [("user", "ann", hits), ("second", "ann", hits)];
    let holds = run(decide(&limiter, &asked(Operation::Consume(4)))).unwrap().holds;
    assert_eq!(holds.iter().map(|hold| hold.store).collect::<Vec<_>>(), [HeldIn::Shared, HeldIn::PerSecond]);
    settle(&limiter, &asked(ONE), &holds).unwrap();
    assert_eq!([&first, &second].map(|store| store.undos.load(SeqCst)), [0, 0], "a settle is one call for each store");
    assert_eq!([&first, &second].map(|store| store.calls.load(SeqCst)), [2, 2]);
    assert_eq!(heard.holds.get(), [2, 2, 0, 0]);
}

/// The boundaries of a day may not be those of the store's clock: then nothing is given back, and the settle is sent once more.
#[test]
fn a_settle_at_the_end_of_a_day_gives_back_once() {
    // What a settle of another day finds has ended.
    let (same_day, late) = ([2, 2, 0, 0, 0, 0], [2, 0, 2, 0, 0, 0]);
    for (now, left, counted) in [(START_US + 1, 9, same_day), (START_US + 4 * DAY_US, 10, late)] {
        let bench = bench(OnError::Error, 1);
        let tenant = bench.value_in("tenant", 0);
        let asked = |hits| [("tenant", &*tenant, hits), ("tenant", &*tenant, hits)];
        let holds = bench.ask(&asked(Operation::Consume(4))).unwrap().holds;
        *bench.store.clock_at_settle.lock() = Some(now);
        let actual = [("tenant", &*tenant, ONE), ("tenant", &*tenant, Operation::Peek)];
        assert_eq!(settle(&bench.limiter, &actual, &holds).unwrap().statuses[0].remaining, left);
        assert_eq!((bench.left("tenant", &tenant), *bench.heard.holds.0.lock()), (left, counted));
    }
}

/// What a request has held for one descriptor goes back also if another of its descriptors is denied.
#[test]
fn a_denial_beside_a_settle_takes_nothing_back() {
    for slot in [0, 1] {
        let bench = bench(OnError::Error, 1);
        let (user, full) = (bench.value_in("user", 0), bench.value_in("tenant", slot));
        let holds = bench.ask(&[("user", &user, Operation::Consume(4))]).unwrap().holds;
        bench.ask(&[("tenant", &full, Operation::Consume(10))]).unwrap();
        let settle = Settle { descriptors: 1, holds };
        let asked = [("user", &*user, ONE), ("tenant", &*full, ONE)];
        let answer = run(decide_or_settle(&bench.limiter, &asked, Some(Box::new(settle)))).unwrap();
        assert_eq!((answer.denied, answer.statuses[0].remaining, bench.left("user", &user)), (true, 9, 9), "{slot}");
        assert_eq!(bench.heard.holds.get(), [2, 1, 0, 0]);
    }
}
