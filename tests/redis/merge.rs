//! Decisions that wait together and are made by one script call: each is what it would be alone, and one that cannot be
//! made harms none of the others. Not here: how calls share round trips (redis/pipeline.rs), and what a decision is
//! (store/conformance.rs).

mod rows;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::Runtime;
use weir_engine::{
    Algorithm, Anchor, Bounds, CalendarUnit, Charge, Decision, Limit, Mode, Operation, Precision, Refill, Role, Unit,
    Verdict,
};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, MERGE_MAX, Redis};
use weir_store::{Before, Deciding as _, Inspected as _, StatesRead, StoreError, Undo};

use crate::buckets;
use crate::support::algorithms::{sub_bucket, without_calendars};
use crate::support::manual::charge;
use crate::support::random::SplitMix;
use crate::support::redis::RedisServer;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// In the future, so that no key expires: 2096.
const NOW: u64 = 4_000_000_000_000_000;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A store of one connection, so that whatever is asked for at once travels at once.
fn store(server: &RedisServer, runtime: &Runtime, prefix: &str, merge_max: usize) -> Redis {
    let _entered = runtime.enter();
    let mut options = Options::new(Endpoint::parse(&server.url()).unwrap());
    (options.connections, options.merge_max) = (1, merge_max);
    Redis::start(options, prefix)
}

fn per_hour(requests: u32) -> Limit {
    Limit::per_unit(requests, Unit::Hour)
}

async fn decide(store: &Redis, charge: Charge<'_>, mode: Mode) -> Result<Decision, StoreError> {
    let charges = [charge];
    store.decide(&charges, mode, Instant::now() + PATIENCE).get().await
}

/// One hit on each of these keys, all at once.
fn hit_all(runtime: &Runtime, store: &Redis, keys: &[String], limit: &Limit) -> Vec<Result<Decision, StoreError>> {
    let hits = keys.iter().map(|key| decide(store, charge(key, limit, Operation::Consume(1)), Mode::Atomic));
    runtime.block_on(join_all(hits))
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("k{i}")).collect()
}

fn admitted(decisions: &[Result<Decision, StoreError>]) -> usize {
    decisions.iter().filter(|decision| decision.as_ref().unwrap().outcomes[0].verdict == Verdict::Within).count()
}

struct Numbers(SplitMix);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next() % bound
    }

    fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        let at = self.below(among.len() as u64);
        &among[usize::try_from(at).unwrap()]
    }
}

/// 5 per minute by every algorithm, one that drains, and one of zero; with a state of their own each.
fn limits() -> Vec<Limit> {
    let minute = Unit::Minute.window();
    let algorithms = without_calendars(Precision::new(10_000_000).unwrap(), 7);
    let mut limits =
        algorithms.into_iter().map(|algorithm| Limit::new(5, minute, algorithm).unwrap()).collect::<Vec<_>>();
    let mut drains = per_hour(5);
    drains.drain = true;
    limits.extend([drains, per_hour(0)]);
    limits
}

/// A number of the charges that a decision may have in the next test.
fn some_charges<'a>(numbers: &mut Numbers, limits: &'a [(String, Limit)], now: u64) -> Vec<Charge<'a>> {
    let takes = [
        Operation::Consume(1),
        Operation::Consume(1),
        Operation::Consume(3),
        Operation::Peek,
        Operation::Refund(2),
        Operation::Report(4),
    ];
    let roles = [Role::Enforced, Role::Enforced, Role::Shadow, Role::Quota];
    (0..=numbers.below(5))
        .map(|_| {
            let (key, limit) = numbers.pick(limits);
            let mut charge = charge(key, limit, *numbers.pick(&takes));
            charge.role = *numbers.pick(&roles);
            if limit.algorithm().anchor() == Anchor::Calendar(CalendarUnit::Day) {
                // With those of another time nothing of the decision may be written.
                charge.bounds = Some(days(numbers, now));
            }
            charge
        })
        .collect()
}

#[test]
fn decisions_of_several_charges_made_together_are_what_they_would_be_alone() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let together = store(&server, &runtime, "together:", MERGE_MAX);
    let alone = store(&server, &runtime, "alone:", 0);
    let mut all = limits();
    let by_day = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) };
    all.push(Limit::new(5, Unit::Day.window(), by_day).unwrap());
    let mut paced = Limit::new(5, Unit::Minute.window(), Algorithm::Gcra { burst: 7 }).unwrap();
    paced.drain = true;
    all.push(paced);
    // Two keys of each limit, and one that two limits share, each of which restates what the other wrote.
    let mut limits: Vec<(String, Limit)> = Vec::new();
    for (l, limit) in all.iter().enumerate() {
        limits.extend((0..2).map(|i| (format!("l{l}.{i}"), limit.clone())));
    }
    for requests in [5, 9] {
        let limit = Limit::new(requests, Unit::Minute.window(), Algorithm::Gcra { burst: 7 }).unwrap();
        limits.push(("shared".to_owned(), limit));
    }
    // A call whose script Redis does not know yet is sent again, after the others of its batch.
    runtime.block_on(together.prepare(Instant::now() + PATIENCE).get()).unwrap();
    let mut numbers = Numbers(SplitMix(2));
    let mut now = NOW;
    let before = server.runs("evalsha");
    let mut decisions = 0;
    for round in 0..150 {
        // The clock also steps back, by a little and by more than is believed.
        now = now + numbers.below(30_000_000)
            - match numbers.below(5) {
                0 => 20_000_000,
                1 => 400_000_000,
                _ => 0,
            };
        together.set_now(now);
        alone.set_now(now);
        let asked: Vec<(Vec<Charge<'_>>, Mode)> = (0..=numbers.below(24))
            .map(|_| {
                let mode = *numbers.pick(&[Mode::Atomic, Mode::Atomic, Mode::Independent]);
                (some_charges(&mut numbers, &limits, now), mode)
            })
            .collect();
        decisions += asked.len() as u64;
        let far = Instant::now() + PATIENCE;
        let at_once = asked.iter().map(|(charges, mode)| together.decide(charges, *mode, far).get());
        let at_once = runtime.block_on(join_all(at_once));
        for ((charges, mode), decided) in asked.iter().zip(at_once) {
            let expected = runtime.block_on(alone.decide(charges, *mode, far).get());
            assert_eq!(decided, expected, "round {round}: {mode:?} {charges:?}");
        }
        for (key, limit) in &limits {
            let states = |store: &Redis| {
                let asked = [(key.as_str(), limit)];
                runtime.block_on(store.read_states(&asked, far).get()).unwrap().states.remove(0)
            };
            assert_eq!(states(&together), states(&alone), "round {round}: {key}");
        }
    }
    let calls = server.runs("evalsha") - before - decisions;
    assert!(calls < decisions * 9 / 10, "{calls} calls for {decisions} decisions are hardly merged");
}

/// What is asked for at once in the next tests.
enum Asked<'a> {
    Decision(Charge<'a>, Mode),
    Undos(Vec<Undo<'a>>),
    /// Takes something back, and then decides over a charge on the same key and one on any other.
    Settle(Undo<'a>, [Charge<'a>; 2]),
}

/// Whether an undo and the decision after it are one call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settles {
    ByOneCall,
    ByTwo,
}

async fn answer(store: &Redis, asked: &Asked<'_>, settles: Settles) -> Result<Option<Decision>, StoreError> {
    let far = Instant::now() + PATIENCE;
    match asked {
        Asked::Decision(charge, mode) => decide(store, charge.clone(), *mode).await.map(Some),
        Asked::Undos(undos) => store.undo(undos, far).get().await.map(|()| None),
        Asked::Settle(undo, charges) if settles == Settles::ByOneCall => {
            let before = Before { undos: std::slice::from_ref(undo), ..Before::default() };
            store.decide_after(before, charges, Mode::Atomic, far).get().await.map(Some)
        }
        Asked::Settle(undo, charges) => {
            let keys = [(undo.key, undo.limit)];
            let before = store.read_states(&keys, far).get().await?;
            store.undo(std::slice::from_ref(undo), far).get().await?;
            let after = store.read_states(&keys, far).get().await?;
            let decision = store.decide(charges, Mode::Atomic, far).get().await?;
            let counted = |read: &StatesRead| {
                let kind = undo.limit.kind().within(undo.bounds);
                kind.level(&kind.observe(read.states[0].as_ref(), 0, decision.now), decision.now).counted
            };
            let taken = u32::try_from(counted(&before) - counted(&after)).unwrap();
            Ok(Some(Decision { given_back: vec![taken], ..decision }))
        }
    }
}

/// What settles a receipt: what is left is looked at or reported to, and another limit can deny.
fn some_settle<'a>(numbers: &mut Numbers, mut undo: Undo<'a>, other: &'a (String, Limit), now: u64) -> Asked<'a> {
    undo.bounds = undo.bounds.map(|_| days(numbers, now));
    undo.receipt.hits -= u32::try_from(numbers.below(u64::from(undo.receipt.hits))).unwrap();
    let mut settled = charge(undo.key, undo.limit, *numbers.pick(&[Operation::Peek, Operation::Report(2)]));
    (settled.role, settled.bounds) = (Role::Shadow, undo.bounds);
    Asked::Settle(undo, [settled, charge(&other.0, &other.1, Operation::Consume(3))])
}

/// Undos of one request: of receipts that were given on these keys before, whole or in part, some of them again.
fn some_undos<'a>(numbers: &mut Numbers, given: &[Undo<'a>], now: u64) -> Vec<Undo<'a>> {
    let mut undos: Vec<Undo<'_>> = Vec::new();
    for _ in 0..=numbers.below(3) {
        let mut undo = *numbers.pick(given);
        let is_log = matches!(undo.limit.algorithm(), Algorithm::SlidingWindowLog);
        // The undos of one log are calls that wait for each other.
        if is_log && undos.iter().any(|other| other.key == undo.key) {
            continue;
        }
        if !is_log {
            undo.receipt.hits -= u32::try_from(numbers.below(u64::from(undo.receipt.hits))).unwrap();
        }
        if undo.bounds.is_some() {
            undo.bounds = Some(days(numbers, now));
        }
        undos.push(undo);
    }
    undos
}

/// The days around now; now and then those of another time, of which none holds the clock.
fn days(numbers: &mut Numbers, now: u64) -> Bounds {
    let day = 24 * 3_600_000_000;
    let begin = now - now % day - if numbers.below(8) == 0 { 9 * day } else { day };
    std::array::from_fn(|i| begin + i as u64 * day)
}

#[test]
fn undos_made_together_with_decisions_are_what_they_would_be_alone() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let together = store(&server, &runtime, "together:", MERGE_MAX);
    let alone = store(&server, &runtime, "alone:", 0);
    let mut all = limits();
    let by_day = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) };
    all.push(Limit::new(9, Unit::Day.window(), by_day).unwrap());
    // Two keys of each limit.
    let limits: Vec<(String, Limit)> = all
        .iter()
        .enumerate()
        .flat_map(|(l, limit)| (0..2).map(move |i| (format!("l{l}.{i}"), limit.clone())))
        .collect();
    runtime.block_on(together.prepare(Instant::now() + PATIENCE).get()).unwrap();
    let mut numbers = Numbers(SplitMix(3));
    let mut now = NOW;
    let mut given: Vec<Undo<'_>> = Vec::new();
    let (mut undone, mut stale, mut settled, mut denied, mut compared) = (0, 0, 0, 0, 0_u32);
    for round in 0..200 {
        now = now + numbers.below(20_000_000) - if numbers.below(6) == 0 { 15_000_000 } else { 0 };
        together.set_now(now);
        alone.set_now(now);
        let asked: Vec<Asked<'_>> = (0..=numbers.below(30))
            .map(|_| {
                if !given.is_empty() && numbers.below(2) == 0 {
                    let undo = *numbers.pick(&given);
                    let other = numbers.pick(&limits[..limits.len() - 2]);
                    let is_log = matches!(undo.limit.algorithm(), Algorithm::SlidingWindowLog);
                    return match is_log || numbers.below(2) == 0 {
                        true => Asked::Undos(some_undos(&mut numbers, &given, now)),
                        false => some_settle(&mut numbers, undo, other, now),
                    };
                }
                let (key, limit) = numbers.pick(&limits);
                let mut charge = charge(
                    key,
                    limit,
                    *numbers.pick(&[Operation::Consume(1), Operation::Consume(3), Operation::Report(4)]),
                );
                if limit.algorithm().anchor() == Anchor::Calendar(CalendarUnit::Day) {
                    charge.bounds = Some(days(&mut numbers, now));
                }
                Asked::Decision(charge, *numbers.pick(&[Mode::Atomic, Mode::Independent]))
            })
            .collect();
        let answers =
            runtime.block_on(join_all(asked.iter().map(|asked| answer(&together, asked, Settles::ByOneCall))));
        for (asked, answered) in asked.iter().zip(answers) {
            let expected = runtime.block_on(answer(&alone, asked, Settles::ByTwo));
            assert_eq!(answered, expected, "round {round}");
            compared +=
                u32::from(matches!(&answered, Ok(Some(decision)) if decision.given_back.iter().any(|hits| *hits > 0)));
            match (asked, answered) {
                (Asked::Decision(charge, _), Ok(Some(decision))) => {
                    let receipt = decision.outcomes[0].receipt;
                    let undo = |receipt| Undo { key: charge.key, limit: charge.limit, receipt, bounds: charge.bounds };
                    given.extend(receipt.map(undo));
                }
                (Asked::Undos(undos), Ok(None)) => undone += undos.len(),
                (Asked::Settle(..), Ok(Some(decision))) => {
                    (settled, denied) = (settled + 1, denied + u32::from(decision.denied));
                }
                (_, Err(StoreError::StaleBounds { .. })) => stale += 1,
                (_, other) => panic!("{other:?}"),
            }
        }
        let old = given.len().saturating_sub(60);
        given.drain(..old);
        for (key, limit) in &limits {
            let states = |store: &Redis| {
                let asked = [(key.as_str(), limit)];
                runtime.block_on(store.read_states(&asked, Instant::now() + PATIENCE).get()).unwrap().states.remove(0)
            };
            assert_eq!(states(&together), states(&alone), "round {round}: {key}");
        }
    }
    assert!(undone > 500 && stale > 20, "{undone} undos, {stale} answers of stale boundaries");
    assert!(denied > 50 && settled - denied > 50, "{settled} settles, {denied} of them denied");
    assert!(compared > 20, "{compared} settles gave hits back");
}

#[test]
fn undos_share_a_call_but_those_of_logs() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let minute = Unit::Minute.window();
    let sliding = |buckets: u64| {
        let precision = Precision::new(60_000_000 / buckets).unwrap();
        Limit::new(9, minute, Algorithm::SlidingWindow { precision }).unwrap()
    };
    let log = Limit::new(9, minute, Algorithm::SlidingWindowLog).unwrap();
    // Limits, one undo on each of so many keys of theirs, and the calls that these take.
    for (limits, count, calls) in [
        (vec![per_hour(9)], 16, 1),
        (vec![per_hour(9)], 3, 3),
        // A charge on 60 sub-buckets weighs 7, and its key takes 2, of 100 together.
        (vec![sliding(60)], 11, 1),
        (vec![sliding(60)], 12, 2),
        // Short and long states share a call too.
        (vec![per_hour(9), sliding(10)], 6, 1),
        (vec![log.clone()], 5, 5),
    ] {
        let names: Vec<Vec<String>> =
            limits.iter().enumerate().map(|(l, _)| (0..count).map(|i| format!("{l}.{i}")).collect()).collect();
        let pairs: Vec<(&str, &Limit)> = (0..count)
            .flat_map(|i| names.iter().zip(&limits).map(move |(names, limit)| (names[i].as_str(), limit)))
            .collect();
        server.command(&["FLUSHALL"]).unwrap();
        runtime.block_on(store.prepare(Instant::now() + PATIENCE).get()).unwrap();
        let consume =
            pairs.iter().map(|(key, limit)| decide(&store, charge(key, limit, Operation::Consume(2)), Mode::Atomic));
        let decisions = runtime.block_on(join_all(consume));
        let undos: Vec<Undo<'_>> = pairs
            .iter()
            .zip(decisions)
            .map(|(&(key, limit), decision)| {
                let receipt = decision.unwrap().outcomes[0].receipt.unwrap();
                Undo { key, limit, receipt, bounds: None }
            })
            .collect();
        let before = server.runs("evalsha");
        let far = Instant::now() + PATIENCE;
        for end in
            runtime.block_on(join_all(undos.iter().map(|undo| store.undo(std::slice::from_ref(undo), far).get())))
        {
            end.unwrap();
        }
        assert_eq!(server.runs("evalsha") - before, calls, "{count} of {limits:?}");
        assert_eq!(server.command(&["DBSIZE"]).unwrap().trim(), "0", "all was taken back");
    }
}

#[test]
fn an_undo_of_a_key_that_weir_did_not_write_fails_alone() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let (keys, limit) = (keys(8), per_hour(9));
    let receipts: Vec<_> = (0..2)
        .flat_map(|_| hit_all(&runtime, &store, &keys, &limit))
        .map(|decision| decision.unwrap().outcomes[0].receipt.unwrap())
        .collect();
    server.command(&["SET", "k2", "no number"]).unwrap();
    let undos: Vec<_> =
        keys.iter().zip(receipts).map(|(key, receipt)| [Undo { key, limit: &limit, receipt, bounds: None }]).collect();
    let far = Instant::now() + PATIENCE;
    let ends = runtime.block_on(join_all(undos.iter().map(|undo| store.undo(undo, far).get())));
    for (key, end) in keys.iter().zip(ends) {
        match (key.as_str(), end) {
            ("k2", Err(StoreError::NotSent(failure))) => assert_eq!(failure.kind, "state"),
            ("k2", other) => panic!("{other:?}"),
            (_, end) => end.unwrap(),
        }
    }
    server.command(&["DEL", "k2"]).unwrap();
    for (key, decision) in keys.iter().zip(hit_all(&runtime, &store, &keys, &limit)) {
        // Of two hits one was taken back, once.
        let remaining = if key == "k2" { 8 } else { 7 };
        assert_eq!(decision.unwrap().outcomes[0].remaining, remaining, "{key}");
    }
}

#[test]
fn as_many_as_may_share_a_call_and_no_more() {
    let (server, runtime) = (RedisServer::start(), runtime());
    // What is asked for at once, and the calls it takes: fewer than four go alone.
    for (merge_max, asked, calls) in [
        (16, 3, 3),
        (16, 4, 1),
        (16, 16, 1),
        (16, 17, 2),
        (16, 40, 3),
        (0, 20, 20),
        (1, 20, 20),
        (3, 20, 20),
        (4, 20, 5),
        // Each key of its own takes its part of what a call may take.
        (64, 64, 2),
    ] {
        let store = store(&server, &runtime, "", merge_max);
        let (keys, limit) = (keys(asked), per_hour(9));
        server.command(&["FLUSHALL"]).unwrap();
        // The first time the scripts have to be loaded.
        hit_all(&runtime, &store, &keys, &limit);
        let before = server.runs("evalsha");
        assert_eq!(admitted(&hit_all(&runtime, &store, &keys, &limit)), asked);
        assert_eq!(server.runs("evalsha") - before, calls, "{asked} of at most {merge_max}");
    }
}

#[test]
fn a_call_is_bounded_by_the_weight_of_its_charges() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let paced = Limit::new(9, Unit::Hour.window(), Algorithm::Gcra { burst: 9 }).unwrap();
    // Charges of each decision, all on the same keys, decisions, and the calls that they take: the charges of a call weigh
    // at most 100, of which each distinct key takes 2.
    for (limit, width, asked, calls) in [
        (per_hour(9), 4, 16, 1),
        (per_hour(9), 4, 17, 2),
        (per_hour(9), 8, 10, 1),
        (per_hour(9), 8, 11, 2),
        (per_hour(9), 2, 2, 1),
        (per_hour(9), 64, 3, 3),
        (per_hour(9), 25, 2, 1),
        (per_hour(9), 26, 2, 2),
        (paced.clone(), 4, 11, 1),
        (paced.clone(), 4, 12, 2),
        (paced, 1, 16, 1),
    ] {
        let store = store(&server, &runtime, "", MERGE_MAX);
        let keys = keys(width);
        let charges: Vec<_> = keys.iter().map(|key| charge(key, &limit, Operation::Consume(1))).collect();
        let decide_all = || {
            let decisions = (0..asked).map(|_| store.decide(&charges, Mode::Atomic, Instant::now() + PATIENCE).get());
            runtime.block_on(join_all(decisions))
        };
        // The first time the scripts have to be loaded.
        decide_all();
        server.command(&["FLUSHALL"]).unwrap();
        let before = server.runs("evalsha");
        let admitted = decide_all().into_iter().filter(|decision| !decision.as_ref().unwrap().denied).count();
        assert_eq!(admitted, asked.min(9), "{asked} of {width}");
        assert_eq!(server.runs("evalsha") - before, calls, "{asked} of {width} {:?}", limit.algorithm());
    }
}

/// A denial leaves no trace in Redis, wherever in a call it stands.
#[test]
fn decisions_that_are_denied_together_write_nothing() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let (keys, limit, none) = (keys(16), per_hour(9), per_hour(0));
    let paced = Limit::new(9, Unit::Hour.window(), Algorithm::Gcra { burst: 9 }).unwrap();
    let all = || {
        let lists: Vec<_> = keys
            .iter()
            .map(|key| {
                let other = if key.len() == 2 { &limit } else { &paced };
                [charge(key, other, Operation::Consume(1)), charge("none", &none, Operation::Consume(1))]
            })
            .collect();
        let far = Instant::now() + PATIENCE;
        let decisions =
            runtime.block_on(join_all(lists.iter().map(|list| store.decide(list, Mode::Atomic, far).get())));
        assert!(decisions.into_iter().all(|decision| decision.unwrap().denied));
    };
    all();
    let before = server.runs("evalsha");
    all();
    assert_eq!(server.runs("evalsha") - before, 1);
    assert_eq!(server.command(&["DBSIZE"]).unwrap().trim(), "0");
    assert_eq!(["set", "incrby", "del"].map(|command| server.runs(command)), [0; 3]);
    // Out of memory nothing else is answered.
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    all();
}

#[test]
fn one_key_that_weir_did_not_write_fails_its_own_decision_only() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let (keys, limit) = (keys(8), per_hour(9));
    server.command(&["SET", "k2", "no number"]).unwrap();
    server.command(&["RPUSH", "k5", "a list"]).unwrap();
    for hits in 1..=3 {
        let decisions = hit_all(&runtime, &store, &keys, &limit);
        for (key, decision) in keys.iter().zip(decisions) {
            match (key.as_str(), decision) {
                ("k2", Err(StoreError::NotSent(failure))) => assert_eq!(failure.kind, "state"),
                ("k5", Err(StoreError::NotSent(failure))) => assert_eq!(failure.kind, "wrongtype"),
                ("k2" | "k5", other) => panic!("{key}: {other:?}"),
                (_, decision) => assert_eq!(decision.unwrap().outcomes[0].remaining, 9 - hits, "{key}"),
            }
        }
    }
    assert_eq!(server.command(&["GET", "k2"]).unwrap().trim(), "no number");
}

#[test]
fn however_many_ask_together_exactly_the_limit_is_admitted() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let stores = [4, 16, 0].map(|merge_max| store(&server, &runtime, "", merge_max));
    let limit = per_hour(250);
    let hits = (0..600).map(|i| decide(&stores[i % 3], charge("hot", &limit, Operation::Consume(1)), Mode::Atomic));
    assert_eq!(admitted(&runtime.block_on(join_all(hits))), 250);
}

#[test]
fn each_decision_is_answered_by_its_own_deadline() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let (keys, limit) = (keys(16), per_hour(9));
    hit_all(&runtime, &store, &keys, &limit);
    server.freeze();
    let hit = async |key: &String, timeout: Duration| {
        let charges = [charge(key, &limit, Operation::Consume(1))];
        store.decide(&charges, Mode::Atomic, Instant::now() + timeout).get().await
    };
    let hurried = async {
        let decisions = join_all(keys[..8].iter().map(|key| hit(key, Duration::from_secs(1)))).await;
        // Only now, so that nothing but their deadline has answered them.
        server.thaw();
        decisions
    };
    let patient = join_all(keys[8..].iter().map(|key| hit(key, PATIENCE)));
    let (hurried, patient) = runtime.block_on(async { tokio::join!(hurried, patient) });
    for decision in hurried {
        // It was sent, and may have been charged.
        let Err(StoreError::Unknown(failure)) = decision else { panic!("{decision:?}") };
        assert_eq!(failure.kind, "deadline");
    }
    for decision in patient {
        assert_eq!(decision.unwrap().outcomes[0].remaining, 7);
    }
}

/// Values at a key that no weir has written, of the type that the algorithm keeps; each as the arguments of the command
/// that writes it after its name and the key.
fn garbage(limit: &Limit) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let numbers = [f64::NAN, f64::INFINITY, -1.0, 1e300, 9_007_199_254_740_992.0, 1e15, 1.5, 0.0];
    let bytes = |numbers: &[f64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let doubles = |count: usize| {
        let mut values: Vec<Vec<u8>> = Vec::new();
        for bad in numbers {
            for at in 0..count {
                let mut good = vec![(NOW + 1_000_000) as f64, 1.0, 5.0];
                good.truncate(count);
                good[at] = bad;
                values.push(bytes(&good));
            }
        }
        values.push(vec![0; 7]);
        values
    };
    let one = |values: Vec<Vec<u8>>| values.into_iter().map(|value| ("SET", vec![value])).collect();
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::Clock } => {
            let here = (NOW / limit.window().us() % (1 << 21)) << 32;
            let mut values =
                texts(&["", "x", "nan", "-1", "inf", "1e400", "1.5", "99999999999999999999", " 7", "0x10"]);
            // The window of now, as INCRBY does not read it.
            values.push(format!("{here}.0").into_bytes());
            values.push(format!("{}e0", here + 2).into_bytes());
            one(values)
        }
        Algorithm::FixedWindow { .. } | Algorithm::TokenBucket { refill: Refill::Interval, .. } => one(doubles(2)),
        Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => {
            one(buckets::malformed(NOW / sub_bucket(limit).expect("its kind has some")))
        }
        Algorithm::SlidingWindowLog => {
            [["1", "x"], ["inf", "0000000000000002:2"], ["1", "0000000000000001:2"], ["-5", "1:1"]]
                .map(|pair| ("ZADD", texts(&pair)))
                .to_vec()
        }
        Algorithm::SlidingWindowCounter
        | Algorithm::TokenBucket { refill: Refill::Continuous, .. }
        | Algorithm::LeakyBucket { .. }
        | Algorithm::Gcra { .. } => one(doubles(3)),
    }
}

/// One key's value is garbage. The decision on it ends as it would alone, and every other one in the call is made.
#[test]
fn garbage_at_one_key_fails_no_decision_on_another() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let together = store(&server, &runtime, "together:", MERGE_MAX);
    let alone = store(&server, &runtime, "alone:", 0);
    together.set_now(NOW);
    alone.set_now(NOW);
    let mut raw = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let kind = |error: &StoreError| (matches!(error, StoreError::NotSent(_)), error.kind());
    let mut seen = std::collections::BTreeSet::new();
    for (l, limit) in limits().iter().enumerate() {
        let others = per_hour(1_000_000);
        for (g, (name, arguments)) in garbage(limit).into_iter().enumerate() {
            let bad = format!("bad{l}.{g}");
            for prefix in ["together:", "alone:"] {
                redis::cmd(name).arg(format!("{prefix}{bad}")).arg(&arguments).exec(&mut raw).unwrap();
            }
            let what = format!("{:?}, {name} {:?}", limit.algorithm(), String::from_utf8_lossy(&arguments.concat()));
            let before = keys(3);
            let hit = |key: &String| {
                let (key, others, together) = (key.clone(), &others, &together);
                async move { decide(together, charge(&key, others, Operation::Consume(1)), Mode::Atomic).await }
            };
            let (first, middle, last) = runtime.block_on(async {
                tokio::join!(
                    join_all(before.iter().map(hit)),
                    decide(&together, charge(&bad, limit, Operation::Consume(1)), Mode::Atomic),
                    join_all(before.iter().map(hit)),
                )
            });
            for decision in first.into_iter().chain(last) {
                assert!(!decision.unwrap_or_else(|error| panic!("{what}: {error}")).denied, "{what}");
            }
            let expected = runtime.block_on(decide(&alone, charge(&bad, limit, Operation::Consume(1)), Mode::Atomic));
            match (&middle, &expected) {
                (Ok(decision), Ok(expected)) => assert_eq!(decision, expected, "{what}"),
                (Err(error), Err(expected)) => {
                    assert_eq!(kind(error), kind(expected), "{what}");
                    assert_eq!(kind(error), (true, "state"), "{what}: nothing was charged");
                }
                _ => panic!("{what}: {middle:?}, alone {expected:?}"),
            }
            seen.insert(middle.is_ok());
            // With another key in one decision: charged, or nothing at all.
            let pair = [charge(&bad, limit, Operation::Consume(1)), charge("pair", &others, Operation::Consume(1))];
            let pair = runtime.block_on(together.decide(&pair, Mode::Atomic, Instant::now() + PATIENCE).get());
            assert!(!matches!(pair, Err(StoreError::Unknown(_))), "{what}: {pair:?}");
        }
    }
    assert_eq!(seen.len(), 2, "some garbage is read as a state, and some is not");
}
