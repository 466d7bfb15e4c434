//! The traps of a cache of denials, one by one: each is a way to deny what the store would admit, or to tell a wait that
//! is too short. Not in here: random histories (store/deny_cache/properties.rs), and the cache in the way of requests.

mod properties;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Outcome, Role, Unit, Verdict};
use weir_limiter::deny_cache::{DenyCache, Known};

use crate::support::arbitrary::START_US;
use crate::support::cached::{AGES, KEY, KEYS_MAX, MS, SECOND, Scene, every_limit, is_summed_up, per_hour, plain};

#[test]
fn other_hits_are_denied_where_the_state_tells_their_wait() {
    for limit in every_limit() {
        let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
        scene.use_up(&limit);
        match scene.cached(&limit, 4) {
            Some(outcome) => assert_eq!(outcome.verdict, scene.would_take(&limit, 4).verdict, "{limit:?}"),
            None => assert!(is_summed_up(&limit), "{limit:?}"),
        }
    }
}

#[test]
fn a_limit_of_zero_is_denied_here_by_every_algorithm() {
    for limit in every_limit() {
        let limit = Limit::new(0, limit.window(), limit.algorithm()).unwrap();
        let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
        scene.ask(&limit, 1, Mode::Independent, 0, 0);
        scene.step(999 * MS);
        assert_eq!(scene.cached(&limit, 3).unwrap().verdict, Verdict::Never, "{limit:?}");
    }
}

#[test]
fn another_window_is_never_answered_though_the_key_were_the_same() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    scene.use_up(&per_hour(10));
    assert_eq!(scene.cached(&Limit::per_unit(10, Unit::Day), 1), None);
}

#[test]
fn another_key_is_not_denied() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[0]);
    let limit = per_hour(1);
    scene.use_up(&limit);
    let other = scene.charge("w1:{shop|user=bob}", &limit, Operation::Consume(1), Role::Enforced);
    assert_eq!(scene.cache.denies(&other, scene.now()), None);
}

#[test]
fn a_part_of_a_microsecond_ages_a_state_by_a_whole_one() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    let limit = Limit::new(1_000, Unit::Second.window(), Algorithm::Gcra { burst: 1 }).unwrap();
    scene.ask(&limit, 1, Mode::Atomic, 0, 0);
    scene.ask(&limit, 1, Mode::Atomic, 0, 0);
    let charge = scene.charge(KEY, &limit, Operation::Consume(1), Role::Enforced);
    let at = |ns: u64| scene.cache.denies(&charge, scene.now() + Duration::from_nanos(ns));
    assert_eq!(at(999_000).unwrap().verdict, Verdict::Over { retry_after: 1 });
    assert_eq!(at(999_001), None);
}

#[test]
fn an_answer_that_was_overtaken_does_not_replace_the_later_one() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    let limit = per_hour(1);
    scene.ask(&limit, 1, Mode::Atomic, 0, 0);
    let charge = scene.charge(KEY, &limit, Operation::Consume(1), Role::Enforced);
    let (sent, early) = (scene.now(), scene.decide_one(&charge, Mode::Atomic));
    scene.step(500 * MS);
    scene.ask(&limit, 1, Mode::Atomic, 0, 0);
    scene.cache.insert(&charge, &early, sent, scene.now(), scene.cache.generation());
    scene.step(999 * MS);
    assert!(scene.cached(&limit, 1).is_some());
}

#[test]
fn what_was_admitted_is_not_kept() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    scene.ask(&per_hour(1), 1, Mode::Atomic, 0, 0);
    assert!(scene.cache.is_empty());
}

#[test]
fn peeks_refunds_and_reports_are_never_denied() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    let limit = per_hour(1);
    scene.use_up(&limit);
    for operation in [Operation::Peek, Operation::Refund(5), Operation::Report(5)] {
        let charge = scene.charge(KEY, &limit, operation, Role::Enforced);
        assert_eq!(scene.cache.denies(&charge, scene.now()), None);
        assert_eq!(scene.cache.answers(&[charge], Mode::Atomic, scene.now()).enough(), None);
    }
    assert_eq!(scene.cache.hits(), 0);
}

#[test]
fn a_limit_that_drains_or_is_post_paid_is_neither_kept_nor_denied() {
    for (drain, post_paid) in [(true, false), (false, true)] {
        let mut limit = per_hour(10);
        limit.drain = drain;
        limit.set_post_paid(post_paid);
        let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
        scene.use_up(&limit);
        assert!(scene.cache.is_empty());
        scene.use_up(&plain(&limit));
        assert_eq!(scene.cached(&limit, 1), None);
        assert!(scene.cached(&plain(&limit), 1).is_some());
    }
}

/// A summary that was made for the hits of another charge of the decision tells their wait. [dc-7]
#[test]
fn the_wait_of_another_charge_of_the_decision_is_not_told() {
    for limit in every_limit() {
        let mut scene = Scene::new(AGES, KEYS_MAX[1]);
        scene.ask(&limit, 5, Mode::Atomic, 0, 0);
        scene.step(600_000 * MS);
        scene.ask(&limit, 5, Mode::Atomic, 0, 0);
        let charges = [1, 8].map(|hits| scene.charge(KEY, &limit, Operation::Consume(hits), Role::Enforced));
        let decision = scene.decide(&charges, Mode::Atomic);
        scene.cache.insert(&charges[1], &decision.outcomes[1], scene.now(), scene.now(), scene.cache.generation());
        if let Some(outcome) = scene.cached(&limit, 8) {
            assert_eq!(outcome.verdict, scene.would_take(&limit, 8).verdict, "{limit:?}");
        }
    }
}

#[test]
fn an_atomic_decision_is_denied_by_any_of_its_charges_and_an_independent_one_by_all() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    let limit = per_hour(1);
    scene.use_up(&limit);
    let full = scene.charge(KEY, &limit, Operation::Consume(1), Role::Enforced);
    let free = scene.charge("w1:{shop|user=bob}", &limit, Operation::Consume(1), Role::Enforced);
    let answers = |charges: &[Charge<'_>], mode| scene.cache.answers(charges, mode, scene.now()).enough();

    let denials = answers(&[free.clone(), full.clone()], Mode::Atomic).unwrap();
    assert_eq!(denials.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    assert_eq!(answers(&[free.clone(), full.clone()], Mode::Independent), None);
    assert_eq!(answers(&[full.clone(), free.clone()], Mode::Independent), None);
    assert!(answers(&[full.clone(), full.clone()], Mode::Independent).is_some());
    assert_eq!(answers(std::slice::from_ref(&free), Mode::Atomic), None);
    assert_eq!(scene.cache.hits(), 2);

    for operation in [Operation::Report(1), Operation::Refund(1)] {
        let writes = Charge { operation, ..free.clone() };
        assert_eq!(answers(&[full.clone(), writes], Mode::Atomic), None);
    }
    let mut draining = limit.clone();
    draining.drain = true;
    let drains = Charge { limit: &draining, ..free.clone() };
    assert_eq!(answers(&[full.clone(), drains.clone()], Mode::Atomic), None);
    let looks = Charge { operation: Operation::Peek, ..drains };
    assert!(answers(&[full.clone(), looks.clone()], Mode::Atomic).is_some());
    assert_eq!(answers(&[full, looks], Mode::Independent), None);
    assert_eq!(scene.cache.hits(), 3);
}

#[test]
fn a_refund_forgets_its_key() {
    for limit in every_limit() {
        let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
        scene.use_up(&limit);
        let give = [scene.charge(KEY, &limit, Operation::Refund(2), Role::Enforced)];
        {
            let _refunds = scene.cache.forget_refunds(&give);
            scene.decide(&give, Mode::Atomic);
        }
        assert!(scene.cache.is_empty());
        assert_eq!(scene.cached(&limit, 1), None, "{limit:?}");
        assert_eq!(scene.ask(&limit, 1, Mode::Atomic, 0, 0).verdict, Verdict::Within, "{limit:?}");
    }
}

#[test]
fn what_takes_hits_forgets_nothing() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    let limit = per_hour(1);
    scene.use_up(&limit);
    for operation in [Operation::Consume(1), Operation::Peek, Operation::Report(1)] {
        drop(scene.cache.forget_refunds(&[scene.charge(KEY, &limit, operation, Role::Enforced)]));
    }
    assert!(scene.cached(&limit, 1).is_some());
}

#[test]
fn a_reset_of_one_key_leaves_the_others() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[0]);
    let limit = per_hour(1);
    scene.use_up(&limit);
    scene.cache.forget("w1:{shop|user=bob}f3600s");
    assert!(scene.cached(&limit, 1).is_some());
    scene.cache.forget(KEY);
    assert_eq!(scene.cached(&limit, 1), None);
}

/// Threads that learn, and one that gives back and forgets: once a refund was told, no state that is older denies.
#[test]
fn refunds_and_denials_that_race_leave_no_denial_that_is_older_than_the_refund() {
    /// Refunds that a denial came after before they were told: the race was met so often.
    const MET: u64 = 500;
    let scene = Scene::new(SECOND, KEYS_MAX[0]);
    let limit = per_hour(0);
    let charge = scene.charge(KEY, &limit, Operation::Consume(1), Role::Enforced);
    let denied = scene.decide_one(&charge, Mode::Atomic);
    // The store's clock stands for its state: each refund moves it on.
    let (store, now, over) = (AtomicU64::new(START_US), scene.now(), AtomicBool::new(false));
    let learn = || {
        while !over.load(Ordering::SeqCst) {
            let generation = scene.cache.generation();
            let outcome = Outcome { now: store.load(Ordering::SeqCst), ..denied.clone() };
            scene.cache.insert(&charge, &outcome, now, now, generation);
        }
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut met, mut stale) = (0, None);
    thread::scope(|scope| {
        scope.spawn(learn);
        scope.spawn(learn);
        while met < MET && stale.is_none() && Instant::now() < deadline {
            let refunded = store.fetch_add(1, Ordering::SeqCst) + 1;
            scene.cache.forget(KEY);
            thread::yield_now();
            if let Some(outcome) = scene.cache.denies(&charge, now) {
                met += 1;
                stale = refunded.checked_sub(outcome.now).filter(|ago| *ago > 0);
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(stale, None, "denied by a state of so many refunds ago");
    assert_eq!(met, MET, "in time");
}

#[test]
fn the_bound_is_never_passed_and_each_key_is_kept_once() {
    let limit = per_hour(1);
    for keys_max in [1, 2, 7, 8, 100, 1_000] {
        let scene = Scene::new(SECOND, keys_max);
        let keys: Vec<String> = (0..keys_max * 4).map(|n| format!("w1:{{shop|user={n}}}f3600s")).collect();
        for key in keys.iter().chain(&keys) {
            let charge = scene.charge(key, &limit, Operation::Consume(1), Role::Enforced);
            scene.decide_one(&charge, Mode::Atomic);
            let denied = scene.decide_one(&charge, Mode::Atomic);
            scene.cache.insert(&charge, &denied, scene.now(), scene.now(), scene.cache.generation());
            assert!(scene.cache.denies(&charge, scene.now()).is_some(), "the newest is there");
            assert!(scene.cache.len() <= keys_max);
        }
        assert!(scene.cache.len() * 2 >= keys_max, "{} of {keys_max} keys are used", scene.cache.len());
        let there = |key: &&String| {
            let charge = scene.charge(key, &limit, Operation::Consume(1), Role::Enforced);
            scene.cache.denies(&charge, scene.now()).is_some()
        };
        assert_eq!(keys.iter().filter(there).count(), scene.cache.len());
    }
}

#[test]
fn what_ends_soonest_makes_room() {
    let scene = Scene::new(AGES, 3);
    let insert = |key: &str, window: Unit| {
        let limit = Limit::per_unit(0, window);
        let charge = scene.charge(key, &limit, Operation::Consume(1), Role::Enforced);
        let denied = scene.decide_one(&charge, Mode::Atomic);
        scene.cache.insert(&charge, &denied, scene.now(), scene.now(), scene.cache.generation());
    };
    let is_there = |key: &str, window: Unit| {
        let limit = Limit::per_unit(0, window);
        scene.cache.denies(&scene.charge(key, &limit, Operation::Consume(1), Role::Enforced), scene.now()).is_some()
    };
    insert("a", Unit::Day);
    insert("b", Unit::Minute);
    insert("c", Unit::Hour);
    insert("d", Unit::Second);
    assert!(is_there("a", Unit::Day) && is_there("c", Unit::Hour) && is_there("d", Unit::Second));
    assert!(!is_there("b", Unit::Minute));
}

#[test]
fn what_has_ended_goes_though_nobody_asks_for_it() {
    let scene = Scene::new(SECOND, 64);
    let limit = per_hour(0);
    let keys: Vec<String> = (0..64).map(|n| format!("w1:{{shop|user={n}}}f3600s")).collect();
    for key in &keys {
        let charge = scene.charge(key, &limit, Operation::Consume(1), Role::Enforced);
        let denied = scene.decide_one(&charge, Mode::Atomic);
        scene.cache.insert(&charge, &denied, scene.now(), scene.now(), scene.cache.generation());
    }
    assert!(!scene.cache.is_empty());
    // Requests for other keys come by every set.
    for n in 0..1_000 {
        let key = format!("w1:{{shop|tenant={n}}}f3600s");
        let charge = scene.charge(&key, &limit, Operation::Consume(1), Role::Enforced);
        assert_eq!(scene.cache.denies(&charge, scene.now() + SECOND), None);
    }
    assert!(scene.cache.is_empty());
}

/// [dn-5] envoyproxy/ratelimit report 1230: a replica went on to deny until the window ended, although hits had been given back
/// at another replica and its own peek had shown that they were there.
#[test]
fn envoyproxy_ratelimit_1230_a_denial_ends_when_the_store_shows_room() {
    for limit in every_limit() {
        let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
        scene.use_up(&limit);
        assert!(scene.cached(&limit, 1).is_some(), "{limit:?}");
        // Another replica gives them back: this cache does not see that.
        let refund = scene.charge(KEY, &limit, Operation::Refund(4), Role::Enforced);
        scene.decide_one(&refund, Mode::Atomic);
        let peek = scene.charge(KEY, &limit, Operation::Peek, Role::Enforced);
        let outcome = scene.decide_one(&peek, Mode::Atomic);
        assert_eq!(outcome.remaining, 4, "{limit:?}");
        // The same instant as that of the denial does not show which state is the later one.
        scene.cache.insert(&peek, &outcome, scene.now(), scene.now(), scene.cache.generation());
        assert!(scene.cached(&limit, 1).is_some(), "{limit:?}");
        scene.step(MS);
        scene.cache.insert(&peek, &outcome, scene.now(), scene.now(), scene.cache.generation());
        assert_eq!((scene.cached(&limit, 1), scene.cache.len()), (None, 0), "{limit:?}");
    }
}

/// [dn-5] Room for fewer hits than those denied is no news.
#[test]
fn an_answer_without_room_for_the_denied_hits_keeps_the_denial() {
    let limit = per_hour(10);
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    scene.ask(&limit, 7, Mode::Atomic, 0, 0);
    scene.ask(&limit, 5, Mode::Atomic, 0, 0);
    scene.step(MS);
    assert_eq!(scene.ask(&limit, 1, Mode::Atomic, 0, 0).verdict, Verdict::Within);
    assert!(scene.cached(&limit, 5).is_some());
    // Other numbers of the same key: of a request that sends its own, or after an override.
    assert_eq!(scene.ask(&per_hour(20), 1, Mode::Atomic, 0, 0).verdict, Verdict::Within);
    assert!(scene.cached(&limit, 5).is_some());
}

/// [dn-5] [pc-6] A request with its own numbers can make a debt drain faster.
#[test]
fn a_debt_that_other_numbers_have_rewritten_ends_the_denial() {
    let of = |requests| {
        Limit::new(requests, Unit::Hour.window(), Algorithm::Gcra { burst: u32::try_from(requests).unwrap() }).unwrap()
    };
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    scene.use_up(&of(10));
    assert!(scene.cached(&of(10), 1).is_some());
    scene.step(MS);
    assert_eq!(scene.ask(&of(40), 1, Mode::Atomic, 0, 0).verdict, Verdict::Within);
    assert_eq!(scene.cached(&of(10), 1), None);
}

/// [dn-7] Also as `LOCAL_CACHE_SIZE_IN_BYTES`, one age bounds each denial.
#[test]
fn a_cache_of_complete_answers_ends_denials_at_the_same_age() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    scene.cache = DenyCache::of_complete_answers(SECOND, KEYS_MAX[1]);
    let limit = per_hour(4);
    scene.use_up(&limit);
    scene.step(999 * MS);
    assert!(scene.cached(&limit, 1).is_some());
    scene.step(MS);
    assert_eq!(scene.cached(&limit, 1), None);
}

#[test]
fn a_cache_of_no_age_keeps_nothing() {
    let mut scene = Scene::new(Duration::ZERO, KEYS_MAX[1]);
    scene.use_up(&per_hour(1));
    assert!(scene.cache.is_empty());
}

/// [tr-3] What an enforced limit denies charges nothing to one on trial, so that nothing need be asked about that.
#[test]
fn one_on_trial_is_neither_kept_nor_waited_for() {
    let mut scene = Scene::new(SECOND, KEYS_MAX[1]);
    scene.cache = DenyCache::of_complete_answers(SECOND, KEYS_MAX[1]);
    let (limit, mut tried) = (per_hour(10), per_hour(1));
    tried.shadow = true;
    scene.use_up(&limit);
    let on_trial = scene.charge("w1:{shop|user=ann}f3600s:tried", &tried, Operation::Consume(2), Role::Shadow);
    let outcome = scene.decide_one(&on_trial, Mode::Atomic);
    assert!(outcome.verdict.is_over());
    let generation = scene.cache.generation();
    scene.cache.insert(&on_trial, &outcome, scene.now(), scene.now(), generation);
    assert_eq!((scene.cache.len(), scene.cache.denies(&on_trial, scene.now())), (1, None));
    let both = [scene.charge(KEY, &limit, Operation::Consume(1), Role::Enforced), on_trial];
    assert!(matches!(scene.cache.answers(&both, Mode::Atomic, scene.now()), Known::Enough(_)));
    // Here each limit decides by itself, and the one on trial is charged.
    assert!(matches!(scene.cache.answers(&both, Mode::Independent, scene.now()), Known::Part(_)));
}
