//! A denial from the cache is one that the store would have given, whatever happened in between: on random limits and
//! histories, with answers that take their time and overtake each other. Not in here: one trap at a time (deny_cache.rs).

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use weir_engine::{Charge, Decision, Limit, Micros, Mode, Observed, Operation, Role, Verdict};
use weir_store::{Clock as _, Deciding as _, Inspected as _, Undo};

use crate::support::algorithms::burst;
use crate::support::arbitrary::{bounds, config, hits, limit, limits, mode, operation, role, step, step_on};
use crate::support::cached::{AGES, KEY, KEYS_MAX, MS, SECOND, Scene, is_summed_up, plain};
use crate::support::manual::{answer, far};

/// After 2^20 windows a fixed window's number means another one; every store has dropped it long before.
const LEAP_US: i64 = 600 * 1_000_000;

/// A decision whose answer is on its way, and which has one charge or more.
struct OnItsWay {
    asked: Vec<(usize, Operation, Role)>,
    decision: Decision,
    sent: Instant,
    generation: u64,
}

/// A charge that leaves no debt which the next look cuts, as a report to a pacing limit can. [pc-5]
fn believable(limit: &Limit, operation: Operation) -> Operation {
    match operation {
        Operation::Report(hits) if burst(limit.algorithm()).is_some() => Operation::Consume(hits),
        operation => operation,
    }
}

/// How far local time goes on before something happens.
#[derive(Clone, Copy, Debug)]
enum Move {
    By(u64),
    /// To so many microseconds from when the last denial ends for certain.
    ToEnd(i64),
}

/// What happens then.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// We take hits, and it takes so long there and back if the store is asked.
    Ours { hits: u32, there: u64, back: u64 },
    /// We ask for what was denied last.
    Again { there: u64, back: u64 },
    /// Another replica does something.
    Theirs(Operation),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        5 => step_on().prop_map(|us| Move::By(us.unsigned_abs())),
        2 => (-2..3_i64).prop_map(Move::ToEnd),
    ]
}

fn way() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0), 2 => 1..100_u64, 2 => 1..20 * MS, 1 => 1..5_000 * MS]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (hits(), way(), way()).prop_map(|(hits, there, back)| Event::Ours { hits, there, back }),
        4 => (way(), way()).prop_map(|(there, back)| Event::Again { there, back }),
        2 => operation().prop_filter("they give nothing back", |operation| !matches!(operation, Operation::Refund(_))).prop_map(Event::Theirs),
    ]
}

fn max_age() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(SECOND), Just(Duration::from_millis(10)), Just(Duration::from_secs(90)), Just(AGES)]
}

fn keys_max() -> impl Strategy<Value = usize> {
    prop_oneof![Just(KEYS_MAX[0]), Just(KEYS_MAX[1])]
}

/// The last denial that the cache has learnt.
struct Learnt {
    hits: u32,
    sent: Instant,
    /// When it ends for certain: counted from `sent`.
    retry_after: Option<Micros>,
    back: u64,
    /// Whether anybody has charged the key since the store decided.
    touched: bool,
}

/// Tells one story of one key, and checks all that the cache says of it.
fn check_story(
    limits: &[Limit; 2],
    max_age: Duration,
    keys_max: usize,
    mode: Mode,
    before: Vec<(i64, Operation)>,
    story: Vec<(Move, Event)>,
) -> Result<(), TestCaseError> {
    let (ours, other) = (plain(&limits[0]), plain(&limits[1]));
    if ours.algorithm().counts_permits() {
        // A permit can come back at any moment, so the cache keeps no denial of one. [dn-2]
        return Ok(());
    }
    let mut theirs = ours.clone();
    theirs.drain = limits[0].drain;
    let mut scene = Scene::new(max_age, keys_max);
    for (us, operation) in before {
        scene.set_clock(us);
        scene.decide(&[scene.charge(KEY, &theirs, believable(&theirs, operation), Role::Enforced)], mode);
    }

    let mut learnt: Option<Learnt> = None;
    for (step, event) in story {
        let us = match (step, &learnt) {
            (Move::By(us), _) => us,
            (Move::ToEnd(by), Some(Learnt { sent, retry_after: Some(retry_after), .. })) => {
                let end = (*sent + Duration::from_micros(*retry_after)).saturating_duration_since(scene.now());
                u64::try_from(end.as_micros()).unwrap().saturating_add_signed(by)
            }
            (Move::ToEnd(_), _) => 1,
        };
        scene.step(us);
        let (hits, there, back) = match event {
            Event::Theirs(operation) => {
                let operation = believable(&theirs, operation);
                scene.decide(&[scene.charge(KEY, &theirs, operation, Role::Enforced)], mode);
                learnt.iter_mut().for_each(|learnt| learnt.touched |= operation != Operation::Peek);
                continue;
            }
            Event::Ours { hits, there, back } => (hits, there, back),
            Event::Again { there, back } => (learnt.as_ref().map_or(1, |learnt| learnt.hits), there, back),
        };

        if (other.requests(), other.algorithm()) != (ours.requests(), ours.algorithm()) {
            prop_assert_eq!(scene.cached(&other, hits), None, "answered by other numbers");
        }
        let cached = scene.cached(&ours, hits);
        let truth = scene.would_take(&ours, hits);
        let Some(cached) = cached else {
            if let Some(Learnt { hits: denied, sent, retry_after: Some(retry_after), .. }) = learnt {
                let age = scene.now() - sent;
                let known = denied == hits && age < max_age && age < Duration::from_micros(retry_after);
                prop_assert!(!known, "forgot a denial of {hits} hits after {age:?} of {ours:?}");
            }
            let sent = scene.now();
            let outcome = scene.ask(&ours, hits, mode, there, back);
            // What has ended when it arrives is not worth keeping.
            let age = scene.now() - sent;
            let ended = outcome.reset_after > 0 && age >= Duration::from_micros(outcome.reset_after);
            let retry_after = match outcome.verdict {
                Verdict::Over { retry_after } => Some(retry_after),
                _ => None,
            };
            // A denial that moves the wait is explained by a state that is gone. [dn-2]
            let explained =
                retry_after.is_none_or(|wait| wait == ours.kind().retry_after(&outcome.state, hits, outcome.now));
            if outcome.verdict.is_over() && age < max_age && !ended && explained {
                learnt = Some(Learnt { hits, sent, retry_after, back, touched: false });
            } else {
                learnt.iter_mut().for_each(|learnt| learnt.touched = true);
            }
            continue;
        };
        let learnt = learnt.as_ref().expect("nothing is denied that was not denied before");
        prop_assert!(scene.now() - learnt.sent < max_age);
        prop_assert!(truth.verdict.is_over(), "{cached:?} and not {truth:?} of {ours:?}");
        prop_assert!(u64::from(hits) > truth.remaining_before.max(cached.remaining));
        prop_assert_eq!(cached.verdict == Verdict::Never, truth.verdict == Verdict::Never);
        if learnt.touched {
            continue;
        }
        // Nobody came since, so that the cache knows all: times are too long by what the answer took, and by no more.
        prop_assert_eq!(cached.now + learnt.back, truth.now);
        if let (Verdict::Over { retry_after: told }, Verdict::Over { retry_after }) = (cached.verdict, truth.verdict) {
            prop_assert_eq!(told, retry_after + learnt.back, "of {:?}", ours);
            prop_assert_eq!(scene.would_take_after(told, &ours, hits).verdict, Verdict::Within);
        }
        prop_assert!(cached.reset_after >= truth.reset_after);
        prop_assert!(cached.reset_after <= truth.reset_after + learnt.back);
        prop_assert!(cached.remaining <= truth.remaining);
        if learnt.back == 0 && !is_summed_up(&ours) {
            prop_assert_eq!(cached, truth);
        }
    }
    Ok(())
}

/// What happens to some keys, whose limits differ, through one process.
#[derive(Clone, Debug)]
enum Doing {
    /// A decision: by keys, takes and roles.
    Decide(Mode, Vec<(usize, Operation, Role)>),
    /// An answer that is on its way arrives.
    Arrive(Index),
    /// A key is reset.
    Reset(usize),
    /// Something that was charged is taken back.
    Undo(Index),
}

const NAMES: [&str; 2] = ["w1:{shop|user=ann}", "w1:{shop|user=bob}"];

fn doings() -> impl Strategy<Value = Doing> {
    let asked = vec((0..NAMES.len(), operation(), role()), 1..4);
    let taken = vec((0..NAMES.len(), hits().prop_map(Operation::Consume), Just(Role::Enforced)), 1..3);
    prop_oneof![
        3 => (mode(), asked).prop_map(|(mode, asked)| Doing::Decide(mode, asked)),
        3 => (mode(), taken).prop_map(|(mode, asked)| Doing::Decide(mode, asked)),
        6 => any::<Index>().prop_map(Doing::Arrive),
        1 => (0..NAMES.len()).prop_map(Doing::Reset),
        1 => any::<Index>().prop_map(Doing::Undo),
    ]
}

/// Checks that whatever the cache answers is what the store would decide.
fn check_answer(scene: &Scene, charges: &[Charge<'_>], mode: Mode) -> Result<bool, TestCaseError> {
    let hits_before = scene.cache.hits();
    let Some(denials) = scene.cache.answers(charges, mode, scene.now()).enough() else {
        prop_assert_eq!(scene.cache.hits(), hits_before);
        return Ok(false);
    };
    prop_assert_eq!(scene.cache.hits(), hits_before + 1);
    let (decision, changes) = scene.would(charges, mode);
    prop_assert!(decision.denied, "{denials:?} and not {decision:?} of {charges:?}");
    prop_assert_eq!(denials.len(), charges.len());
    prop_assert!(denials.iter().any(Option::is_some));
    for (i, charge) in charges.iter().enumerate() {
        let over = decision.outcomes[i].verdict.is_over();
        prop_assert!(over || denials[i].is_none(), "{denials:?} and not {decision:?} of {charges:?}");
        // Atomic charges nothing; independent nothing but the denied hits of fixed windows.
        let counted = mode == Mode::Independent && over && charge.limit.kind().counts_denied();
        prop_assert!(counted || !changes[i], "charge {i} of {charges:?}");
        prop_assert!(mode == Mode::Atomic || denials[i].is_some());
    }
    Ok(true)
}

fn check_doings(limits: &[Limit], max_age: Duration, story: Vec<(i64, Doing)>) -> Result<(), TestCaseError> {
    let mut scene = Scene::new(max_age, KEYS_MAX[0]);
    let mut on_their_way: Vec<OnItsWay> = Vec::new();
    let mut receipts = Vec::new();
    for (us, doing) in story {
        scene.step(us.unsigned_abs());
        match doing {
            Doing::Decide(mode, asked) => {
                let asked: Vec<_> = asked
                    .into_iter()
                    .map(|(key, operation, role)| (key, believable(&limits[key], operation), role))
                    .collect();
                let charge = |&(key, operation, role): &(usize, Operation, Role)| {
                    scene.charge(NAMES[key], &limits[key], operation, role)
                };
                let charges: Vec<Charge<'_>> = asked.iter().map(charge).collect();
                // While a refund is on its way its caller has not been told of it, and nor has anybody else.
                let given = |key: usize| {
                    let mut asked = on_their_way.iter().flat_map(|way| &way.asked);
                    asked.any(|&(other, operation, _)| other == key && matches!(operation, Operation::Refund(_)))
                };
                if !asked.iter().any(|&(key, ..)| given(key)) && check_answer(&scene, &charges, mode)? {
                    continue;
                }
                let (sent, generation) = (scene.now(), scene.cache.generation());
                let decision = scene.decide(&charges, mode);
                for (outcome, &(key, ..)) in decision.outcomes.iter().zip(&asked) {
                    receipts.extend(outcome.receipt.map(|receipt| (key, receipt)));
                }
                on_their_way.push(OnItsWay { asked, decision, sent, generation });
            }
            Doing::Arrive(which) if !on_their_way.is_empty() => {
                let way = on_their_way.remove(which.index(on_their_way.len()));
                let charge = |&(key, operation, role): &(usize, Operation, Role)| {
                    scene.charge(NAMES[key], &limits[key], operation, role)
                };
                let charges: Vec<Charge<'_>> = way.asked.iter().map(charge).collect();
                let refunds = scene.cache.forget_refunds(&charges);
                for (charge, outcome) in charges.iter().zip(&way.decision.outcomes) {
                    scene.cache.insert(charge, outcome, way.sent, scene.now(), way.generation);
                }
                drop(refunds);
            }
            Doing::Reset(key) => {
                answer(scene.store.reset(&[NAMES[key]], far()));
                scene.cache.forget(NAMES[key]);
            }
            Doing::Undo(which) if !receipts.is_empty() => {
                let (key, receipt) = receipts.swap_remove(which.index(receipts.len()));
                let bounds = bounds(&limits[key], scene.clock.now());
                answer(scene.store.undo(&[Undo { key: NAMES[key], limit: &limits[key], receipt, bounds }], far()));
                scene.cache.forget(NAMES[key]);
            }
            Doing::Arrive(_) | Doing::Undo(_) => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(1))]

    /// Whenever the cache denies a take, the store would, and what is told is never too short. What the store has just
    /// denied is denied for as long as that is certain. [dn-1] [dn-2] [dn-3]
    #[test]
    fn a_denial_of_the_cache_is_one_of_the_store(
        limits in limits(),
        max_age in max_age(),
        keys_max in keys_max(),
        mode in mode(),
        before in vec((step(), operation()), 0..10),
        story in vec((moves(), events()), 1..40),
    ) {
        check_story(&limits, max_age, keys_max, mode, before, story)?;
    }

    /// Whatever decision the cache answers, the store would deny, and write nothing; with answers that overtake each
    /// other, charges on one key, roles, refunds, resets and undos through this process. [dn-4] [dn-5]
    #[test]
    fn a_decision_of_the_cache_is_one_of_the_store(
        limits in vec(limit(), NAMES.len()),
        max_age in max_age(),
        story in vec((step_on(), doings()), 1..60),
    ) {
        let mut limits = limits;
        limits.iter_mut().for_each(|limit| limit.set_post_paid(false));
        check_doings(&limits, max_age, story)?;
    }

    /// A state that was seen is, some time later, what would be seen then.
    #[test]
    fn a_state_seen_goes_on_as_the_state_does(
        limit in limit(),
        story in vec((step_on(), operation()), 1..20),
        later in step_on().prop_filter("a stored window is long gone by then", |us| *us <= LEAP_US),
    ) {
        let limit = plain(&limit);
        let mut scene = Scene::new(SECOND, KEYS_MAX[0]);
        for (us, operation) in story {
            scene.step(us.unsigned_abs());
            scene.decide(&[scene.charge(KEY, &limit, believable(&limit, operation), Role::Enforced)], Mode::Atomic);
        }
        let seen = scene.would_take(&limit, 1).before;
        let reset_after = limit.kind().reset_after(&seen, scene.clock.now());
        scene.step(later.unsigned_abs());
        let now = scene.clock.now();
        let (later, then) = (limit.kind().later(&seen, now), scene.would_take(&limit, 1).before);
        prop_assert!(limit.kind().remaining(&later, now) <= limit.kind().remaining(&then, now));
        prop_assert_eq!(limit.kind().level(&later, now).is_empty, limit.kind().level(&then, now).is_empty);
        // A calendar's window that has ended is empty, and that is all that is known of the next.
        let calendar = matches!(seen, Observed::AnchoredWindow(window) if window.end > window.start && now >= window.end);
        if !calendar {
            prop_assert_eq!(limit.kind().reset_after(&later, now), limit.kind().reset_after(&then, now), "after {}", reset_after);
        }
        if !is_summed_up(&limit) && !calendar {
            prop_assert_eq!(later, then);
        }
    }
}
