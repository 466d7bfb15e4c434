//! Rows: the numbers that a descriptor has beside its states are in force at the next decision of every replica.
//!
//! Two replicas on one Redis, with the rows that each knows, are compared with one process and its memory store. Not here: several
//! slots (split/rows.rs), and operators (service/operator/rows.rs).

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_engine::observer::{RowEvent, Silent};
use weir_engine::overrides::Numbers;
use weir_engine::{Entry, Micros, Observer, Operation, Row, RowContent, Unit};
use weir_limiter::deny_cache::DenyCache;
use weir_limiter::rows::count::RowCount;
use weir_limiter::rows::known::KnownRows;
use weir_limiter::rows::{RowMatch, RowRefused, RowTable, WriteResult, Written, row_version};
use weir_limiter::{Answer, DescriptorRequest, HeldCharge, Limiter, Options, Policies, Query, Settle};
use weir_store::Clock as _;
use weir_store::memory::Memory;
use weir_store::redis::pipeline::Options as Pipeline;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{RowChange, RowChanged, RowRead, Store, StoredRow, Texts as _};

use crate::support::arbitrary::START_US;
use crate::support::manual::ManualClock;
use crate::support::redis::RedisServer;

const POLICY: &str = "\
domain: api
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limits:
      - {rate: 3/min, algorithm: gcra, name: rpm, plans: {gold: 7/min, max: unlimited}}
      - {rate: 5/hour, name: rph, plans: {gold: 11/hour, max: unlimited, half: unlimited}}
  - key: team
    rows: {default: free}
    rate_limit: {rate: 2/hour, algorithm: sliding_window_log, plans: {gold: 4/hour}}
  - key: plain
    rate_limit: {rate: 4/hour}
";

const HOLDS: &str = "\
domain: ai
descriptors:
  - {key: user, rate_limit: {rate: 10/hour, hold: true}}
  - {key: tenant, rows: {default: free}, rate_limit: {rate: 50/hour, plans: {gold: 90/hour}}}
";

/// Longer than any call here takes.
const BUDGET: Duration = Duration::from_secs(20);

/// Counts what happens to rows.
#[derive(Default)]
struct Events(Mutex<[u64; RowEvent::NAMES.len()]>);

impl Events {
    fn of(&self, event: RowEvent) -> u64 {
        self.0.lock()[event as usize]
    }
}

impl Observer for Events {
    fn rows(&self, event: RowEvent, count: u64) {
        self.0.lock()[event as usize] += count;
    }

    fn loaded(&self, policies: &weir_engine::PolicySet) -> Arc<dyn weir_engine::observer::Tally> {
        Silent.loaded(policies)
    }
}

/// One process: its limiter, and its table of rows.
struct Replica {
    limiter: Limiter,
    table: RowTable,
    events: Arc<Events>,
}

impl Replica {
    fn new(store: Arc<dyn Store>, clock: &Arc<ManualClock>) -> Self {
        let events = Arc::new(Events::default());
        let policies = weir_policies::parse(&[("api.yaml", POLICY), ("ai.yaml", HOLDS)]).expect("policies").policies;
        let policies = Arc::new(Policies::new(policies, events.clone()));
        let known = Arc::new(KnownRows::of(&*store));
        let table = RowTable::new(store.clone(), policies.clone(), known.clone(), clock.clone(), events.clone());
        let deny_cache = Some(Arc::new(DenyCache::new(Duration::from_secs(60), 1_000)));
        let options = Options { deny_cache, rows: known, budget: BUDGET, clock: clock.clone(), ..Options::new(store) };
        Self { limiter: Limiter::new(policies, options, events.clone()), table, events }
    }

    async fn ask(&self, descriptors: &[(&str, &str)], operation: Operation) -> Answer {
        let entries: Vec<[Entry<'_>; 1]> = descriptors.iter().map(|&(key, value)| [Entry { key, value }]).collect();
        let descriptors = entries.iter().map(|entries| DescriptorRequest { entries, operation, limit: None }).collect();
        let query = Query { domain: "api", caller: None, descriptors, settle: None };
        self.limiter.decide(&query, Instant::now(), None, None).await.expect("a decision")
    }

    async fn set(&self, row: &Row) -> Result<Written, RowRefused> {
        self.table.write(vec![row.clone()]).await.remove(0)
    }

    async fn remove(&self, key: &str, value: &str) -> Result<Row, RowRefused> {
        self.table.remove("api", &[Entry { key, value }]).await.map(|removed| removed.row)
    }
}

/// Two replicas on one Redis, and the process that they are compared with.
struct World {
    server: RedisServer,
    clock: Arc<ManualClock>,
    stores: [Arc<Redis>; 2],
    replicas: [Replica; 2],
    memory: Replica,
}

impl World {
    fn new(prefix: &str) -> Self {
        let server = RedisServer::start();
        let clock = Arc::new(ManualClock::default());
        clock.set(START_US);
        let stores = [(); 2].map(|()| {
            let options = Pipeline::new(Endpoint::parse(&server.url()).expect("its url"));
            Arc::new(Redis::start(options, prefix).at(START_US))
        });
        let replicas = [0, 1].map(|at| Replica::new(stores[at].clone(), &clock));
        let memory = Replica::new(Arc::new(Memory::new(1_000, clock.clone(), Arc::new(Silent))), &clock);
        Self { server, clock, stores, replicas, memory }
    }

    fn set_now(&self, now: Micros) {
        self.clock.set(now);
        self.stores.iter().for_each(|store| store.set_now(now));
    }

    async fn set_everywhere(&self, by: usize, row: &Row) {
        let (shared, own) = (self.replicas[by].set(row).await, self.memory.set(row).await);
        assert_eq!(shared, own, "{row:?}");
    }
}

fn row(key: &str, value: &str, content: RowContent, until: Option<Micros>) -> Row {
    Row { domain: "api".into(), entries: Box::new([(key.into(), value.into())]), content, until, note: "".into() }
}

fn plan(name: &str) -> RowContent {
    RowContent::Plan(name.into())
}

#[tokio::test]
async fn a_row_is_in_force_at_the_next_decision_of_another_replica() {
    let world = World::new("a:");
    let [first, second] = &world.replicas;
    let ask = async |replica: &Replica| replica.ask(&[("tenant", "acme")], Operation::Consume(1)).await;
    // The first replica knows that there is no row.
    let remaining = ask(first).await.statuses[0].remaining;
    assert_eq!((remaining, first.events.of(RowEvent::Read)), (2, 1));
    second.set(&row("tenant", "acme", plan("gold"), None)).await.expect("written");
    // What was used stays: 7 less 2.
    assert_eq!(ask(first).await.statuses[0].remaining, 5);
    assert_eq!(first.events.of(RowEvent::AskedAgain), 1);
    assert_eq!(first.events.of(RowEvent::Read), 2);
    // Known now: no call more.
    assert_eq!(ask(first).await.statuses[0].remaining, 4);
    assert_eq!((first.events.of(RowEvent::AskedAgain), first.events.of(RowEvent::Read)), (1, 2));
    // The same row again is not written.
    let again = second.set(&row("tenant", "acme", plan("gold"), None)).await.expect("the same");
    assert!(again.result == WriteResult::Same && again.before.is_some());
    assert_eq!(second.events.of(RowEvent::Written), 1);
    second.remove("tenant", "acme").await.expect("removed");
    assert!(ask(first).await.denied, "three of three are used");
    // The cache of denials has not kept that.
    second.set(&row("tenant", "acme", plan("max"), None)).await.expect("written");
    for _ in 0..20 {
        let answer = ask(first).await;
        assert!(!answer.denied);
        assert_eq!(answer.statuses[0].limit, None, "no limit applies");
    }
    assert_eq!(second.remove("tenant", "other").await, Err(RowRefused::Absent));
}

/// [rw-6]
#[tokio::test]
async fn of_rows_for_one_descriptor_in_a_call_only_the_last_is_written() {
    let world = World::new("a:");
    for replica in [&world.replicas[0], &world.memory] {
        let rows = |plans: &[&str]| plans.iter().map(|name| row("tenant", "acme", plan(name), None)).collect();
        replica.table.write(rows(&["half"])).await.remove(0).expect("written");
        let mut both: Vec<Row> = rows(&["gold", "max"]);
        both.insert(1, row("tenant", "lead", plan("gold"), None));
        both.insert(2, row("tenant", "acme", plan("lead"), None));
        let results = replica.table.write(both.clone()).await;
        let done = |result, before: Option<&str>| {
            Ok(Written { before: before.map(|name| row("tenant", "acme", plan(name), None)), result })
        };
        assert_eq!(results[0], done(WriteResult::Replaced, None));
        assert_eq!(results[1], done(WriteResult::Written, None));
        assert!(matches!(results[2], Err(RowRefused::Misfit(_))), "{results:?}");
        assert_eq!(results[3], done(WriteResult::Written, Some("half")));
        assert_eq!(replica.events.of(RowEvent::Written), 3);
        // The same again changes nothing.
        let again = replica.table.write(both).await;
        assert_eq!(again[0], done(WriteResult::Replaced, None));
        assert_eq!(again[3], done(WriteResult::Same, Some("max")));
        assert_eq!(replica.events.of(RowEvent::Written), 3);
    }
}

/// A settle beside a descriptor whose row has changed has changed nothing, and is sent again. [hd-5]
#[tokio::test]
async fn a_settle_beside_a_row_that_has_changed_gives_back_once() {
    let world = World::new("a:");
    let [first, second] = &world.replicas;
    let entries = [[Entry { key: "user", value: "ann" }], [Entry { key: "tenant", value: "acme" }]];
    let ask = async |hits, holds: Option<Vec<HeldCharge>>| {
        let operation = if hits == 0 { Operation::Peek } else { Operation::Consume(hits) };
        let descriptor = |entries| DescriptorRequest { entries, operation, limit: None };
        let descriptors = entries.iter().map(|entries| descriptor(&entries[..])).collect();
        let settle = holds.map(|holds| Box::new(Settle { descriptors: 1, holds }));
        let query = Query { domain: "ai", caller: None, descriptors, settle };
        first.limiter.decide(&query, Instant::now(), None, None).await.expect("a decision")
    };
    let left = |answer: &Answer| (answer.statuses[0].remaining, answer.statuses[1].remaining);
    let gold = Row { domain: "ai".into(), ..row("tenant", "acme", plan("gold"), None) };
    for (used, user) in [(1, 9), (8, 1)] {
        let opened = ask(6, None).await;
        let before = left(&opened).1;
        let again = first.events.of(RowEvent::AskedAgain);
        second.set(&gold).await.expect("written");
        let settled = ask(used, Some(opened.holds)).await;
        assert_eq!(left(&settled), (user, before + 40 - u64::from(used)), "{used} are used, and the row is in force");
        assert_eq!(first.events.of(RowEvent::AskedAgain), again + 1);
        second.table.remove("ai", &entries[1]).await.expect("removed");
        assert_eq!(left(&ask(0, None).await).0, user);
    }
}

#[tokio::test]
async fn an_end_counts_by_the_clock_of_the_store() {
    let world = World::new("a:");
    let [first, second] = &world.replicas;
    let until = START_US + 10_000_000;
    first.set(&row("tenant", "acme", plan("gold"), Some(until))).await.expect("written");
    let ask = async |replica: &Replica| replica.ask(&[("tenant", "acme")], Operation::Peek).await.statuses[0].remaining;
    assert_eq!((ask(first).await, ask(second).await), (7, 7));
    // The clock of the processes goes ahead, and that of the store does not.
    world.clock.set(until);
    assert_eq!((ask(first).await, ask(second).await), (7, 7));
    world.stores.iter().for_each(|store| store.set_now(until - 1));
    assert_eq!(ask(first).await, 7);
    world.stores.iter().for_each(|store| store.set_now(until));
    assert_eq!((ask(first).await, ask(second).await), (3, 3));
    // That it has ended is known without reading it: nothing is there in its place.
    let read = first.events.of(RowEvent::Read);
    assert_eq!(ask(first).await, 3);
    assert_eq!(first.events.of(RowEvent::Read), read);
}

/// [rw-4]
#[tokio::test]
async fn a_decision_removes_a_row_that_ended_a_minute_ago_and_no_other() {
    const MINUTE_US: Micros = 60_000_000;
    let world = World::new("a:");
    let until = START_US + 10_000_000;
    let there = async |replica: &Replica| {
        let row = replica.table.get("api", &[Entry { key: "team", value: "a" }]).await;
        assert!(row.is_ok() || row == Err(RowRefused::Absent), "{row:?}");
        row.is_ok()
    };
    for (content, descriptors) in [("gold", &[("team", "a")][..]), ("gold", &[("team", "a"), ("tenant", "b")])] {
        world.set_now(START_US);
        world.set_everywhere(0, &row("team", "a", plan(content), Some(until))).await;
        for (now, is_there) in [(until, true), (until + MINUTE_US - 1, true), (until + MINUTE_US, false)] {
            world.set_now(now);
            for replica in [&world.replicas[1], &world.memory] {
                let answer = replica.ask(descriptors, Operation::Peek).await;
                assert_eq!(answer.statuses[0].remaining, 2, "the default plan");
                assert_eq!(there(replica).await, is_there, "{now} {descriptors:?}");
            }
        }
    }
    // A value of another program that looks as if it had ended is left alone.
    let key = "a:w1:{api|team=x}row";
    world.server.command(&["EVAL", "redis.call('SET', KEYS[1], struct.pack('<dd', 0.5, 7) .. 'x')", "1", key]).unwrap();
    assert_eq!(world.replicas[0].ask(&[("team", "x")], Operation::Peek).await.statuses[0].remaining, 2);
    assert_eq!(world.server.command(&["EXISTS", key]).unwrap().trim(), "1");
}

#[tokio::test]
async fn a_change_for_a_known_row_leaves_any_other_row_alone_on_both_stores() {
    let world = World::new("a:");
    for replica in [&world.memory, &world.replicas[0]] {
        let table = &replica.table;
        let of = |plan: &str| row("tenant", "acme", self::plan(plan), None);
        let version = |plan: &str| row_version(&of(plan)).unwrap();
        let only = |version: u64| Some(RowMatch::Versions([1, version].into()));
        let write = async |plan: &str, only| table.write_matching("ops", vec![(of(plan), only)]).await.remove(0);
        let end = |written: Result<Written, RowRefused>| written.map(|written| written.result);
        // Nothing is there.
        assert_eq!(end(write("gold", Some(RowMatch::Any)).await), Err(RowRefused::Unmatched(None)));
        assert_eq!(end(write("gold", only(version("gold"))).await), Err(RowRefused::Unmatched(None)));
        assert_eq!(end(write("gold", None).await), Ok(WriteResult::Written));
        let gold = Err(RowRefused::Unmatched(Some(version("gold"))));
        assert_eq!(end(write("max", only(version("free"))).await), gold);
        assert_eq!(end(write("max", Some(RowMatch::Versions([].into()))).await), gold);
        let checked =
            table.check_matching(vec![(of("max"), only(7)), (of("max"), None), (of("max"), only(version("gold")))]);
        assert_eq!(checked.await, [Err(RowRefused::Unmatched(Some(version("gold")))), Ok(()), Ok(())]);
        let written = write("max", only(version("gold"))).await.expect("written");
        assert_eq!((written.result, written.before), (WriteResult::Written, Some(of("gold"))));
        // A call that is sent again after its answer was lost.
        assert_eq!(end(write("max", only(version("gold"))).await), Ok(WriteResult::Same));
        assert_eq!(end(write("free", Some(RowMatch::Any)).await), Ok(WriteResult::Written));
        // Of many changes of one row, one is made.
        let calls = ["gold", "max"].repeat(8);
        let ends = join_all(calls.iter().map(|plan| write(plan, only(version("free"))))).await;
        let made: HashSet<&str> = calls
            .iter()
            .zip(&ends)
            .filter(|(_, end)| end.as_ref().is_ok_and(|written| written.result == WriteResult::Written))
            .map(|(plan, _)| *plan)
            .collect();
        let written = ends.iter().flatten().filter(|written| written.result == WriteResult::Written).count();
        assert_eq!((written, made.len()), (1, 1), "{ends:?}");
        let there = made.into_iter().next().unwrap();
        let entries = [Entry { key: "tenant", value: "acme" }];
        assert_eq!(table.get("api", &entries).await.unwrap().0, of(there));
        let remove = async |only: Option<RowMatch>| {
            table.remove_matching("ops", "api", &entries, only.as_ref()).await.map(|removed| removed.row)
        };
        assert_eq!(remove(only(7)).await, Err(RowRefused::Unmatched(Some(version(there)))));
        assert_eq!(remove(only(version(there))).await, Ok(of(there)));
        assert_eq!(remove(Some(RowMatch::Any)).await, Err(RowRefused::Unmatched(None)));
    }
    // What weir did not write has no version.
    let key = "a:w1:{api|tenant=acme}row";
    world.server.command(&["SET", key, "x"]).expect("set");
    let over_foreign = vec![(row("tenant", "acme", plan("gold"), None), Some(RowMatch::Any))];
    let refused = world.replicas[0].table.write_matching("ops", over_foreign).await.remove(0);
    assert_eq!(refused, Err(RowRefused::Foreign("w1:{api|tenant=acme}row".to_owned())));
    assert_eq!(world.server.command(&["GET", key]).unwrap().trim(), "x");
}

#[tokio::test]
async fn redis_removes_only_the_row_that_was_read() {
    let world = World::new("a:");
    let store = &world.stores[0];
    let stored = |version| StoredRow { version, until: Some(5), text: "{}".into() };
    let change = async |change: RowChange<'_>| {
        let ends = store.change_rows(&[("w1:{api|tenant=a}row", change)], Instant::now() + BUDGET).get().await;
        ends.expect("answered").remove(0).expect("answered")
    };
    let written = |before| RowChanged::Written { before };
    assert_eq!(change(RowChange::Remove(&stored(1))).await, RowChanged::Kept, "nothing is there");
    assert_eq!(change(RowChange::Write(&stored(1))).await, written(RowRead::Absent));
    assert_eq!(change(RowChange::Write(&stored(2))).await, written(RowRead::Row(stored(1))));
    assert_eq!(change(RowChange::Remove(&stored(1))).await, RowChanged::Kept);
    for (row, over, end) in
        [(3, 1, RowChanged::Kept), (3, 2, written(RowRead::Row(stored(2)))), (2, 3, written(RowRead::Row(stored(3))))]
    {
        assert_eq!(
            change(RowChange::Replace { row: &stored(row), over: &stored(over) }).await,
            end,
            "{row} over {over}"
        );
    }
    assert_eq!(change(RowChange::Remove(&StoredRow { until: None, ..stored(2) })).await, RowChanged::Kept);
    let read = store.read_rows(&["w1:{api|tenant=a}row"], Instant::now() + BUDGET).get().await;
    assert_eq!(read, Ok(vec![RowRead::Row(stored(2))]));
    assert_eq!(change(RowChange::Remove(&stored(2))).await, RowChanged::Removed);
    let memory = Memory::new(10, world.clock.clone(), Arc::new(Silent));
    assert!(memory.texts().is_none(), "the process has the rows, not the store");
}

/// Also a text of many megabytes, of which weir reads only the beginning. [rw-3]
#[tokio::test]
async fn a_value_of_any_type_and_size_is_counted_and_named_and_only_a_text_is_overwritten() {
    let world = World::new("a:");
    let [replica, _] = &world.replicas;
    let (tenant, key) = ([Entry { key: "tenant", value: "acme" }], "w1:{api|tenant=acme}row");
    let (stored_key, foreign) = (format!("a:{key}"), RowRefused::Foreign(key.to_owned()));
    let gold = row("tenant", "acme", plan("gold"), None);
    let run = |command: &str| {
        let words = command.split(' ').map(|word| if word == "KEY" { &stored_key } else { word });
        world.server.command(&words.collect::<Vec<_>>()).expect("an answer").trim().to_owned()
    };
    for (of_type, command) in [
        ("hash", "HSET KEY a b"),
        ("list", "RPUSH KEY a"),
        ("set", "SADD KEY a"),
        ("zset", "ZADD KEY 1 a"),
        ("stream", "XADD KEY * a b"),
        ("string", "SETRANGE KEY 40000000 x"),
        ("string", "SET KEY x"),
    ] {
        run(command);
        let reader = Replica::new(world.stores[1].clone(), &world.clock);
        for _ in 0..2 {
            assert_eq!(reader.ask(&[("tenant", "acme")], Operation::Peek).await.statuses[0].remaining, 3, "{command}");
        }
        let events = [RowEvent::Foreign, RowEvent::Read, RowEvent::AskedAgain].map(|event| reader.events.of(event));
        assert_eq!(events, [1, 1, 0], "{command}");
        let page = replica.table.page(Some("api"), None).await.expect("a page");
        assert_eq!((page.rows, page.foreign), (vec![], vec![key.to_owned()]), "{command}");
        assert_eq!(replica.table.get("api", &tenant).await, Err(foreign.clone()), "{command}");
        assert_eq!(replica.remove("tenant", "acme").await, Err(foreign.clone()), "{command}");
        assert_eq!(run("TYPE KEY"), of_type);
        let set = replica.set(&gold).await;
        if of_type == "string" {
            assert_eq!(set, Ok(Written { before: None, result: WriteResult::Written }), "{command}");
            assert_eq!(replica.table.get("api", &tenant).await, Ok((gold.clone(), None)));
        } else {
            assert_eq!(set, Err(foreign.clone()), "{command}");
            assert_eq!(run("TYPE KEY"), of_type);
        }
        run("DEL KEY");
    }
    assert_eq!(replica.events.of(RowEvent::Written), 2);
}

/// [rw-3]
#[tokio::test]
async fn a_row_that_was_copied_to_the_key_of_another_descriptor_is_foreign() {
    let world = World::new("a:");
    let [first, second] = &world.replicas;
    first.set(&row("tenant", "acme", plan("gold"), None)).await.expect("written");
    world.server.command(&["COPY", "a:w1:{api|tenant=acme}row", "a:w1:{api|tenant=evil}row"]).expect("copied");
    for (tenant, left) in [("acme", 7), ("evil", 3)] {
        assert_eq!(second.ask(&[("tenant", tenant)], Operation::Peek).await.statuses[0].remaining, left, "{tenant}");
    }
    assert_eq!(second.events.of(RowEvent::Foreign), 1);
    let key = "w1:{api|tenant=evil}row".to_owned();
    let evil = [Entry { key: "tenant", value: "evil" }];
    assert_eq!(first.table.get("api", &evil).await, Err(RowRefused::Foreign(key.clone())));
    assert_eq!(first.remove("tenant", "evil").await, Err(RowRefused::Foreign(key.clone())));
    let page = first.table.page(None, None).await.expect("a page");
    assert_eq!((page.rows.len(), page.foreign), (1, vec![key]));
    let set = first.set(&row("tenant", "evil", plan("max"), None)).await.expect("written");
    assert_eq!(set.before, None, "the row of another is not what it had");
}

/// Each replaced row is in the answer to exactly one change, also to concurrent changes. [rw-6]
#[tokio::test]
async fn each_replaced_row_is_before_exactly_one_other_when_many_change_one_row() {
    const WRITES: u64 = 200;
    let world = World::new("a:");
    let numbers = |requests| {
        RowContent::Own(Box::new([Numbers { name: None, requests, window: Unit::Hour.window(), burst: None }]))
    };
    for replicas in [[&world.replicas[0], &world.replicas[1]], [&world.memory; 2]] {
        let write = async |n: u64| {
            let of_team = row("team", "a", numbers(n), None);
            let written = replicas[usize::from(n.is_multiple_of(2))].set(&of_team).await.expect("written");
            assert_eq!(written.result, WriteResult::Written);
            (written.before, of_team)
        };
        let changes = futures_util::future::join_all((1..=WRITES).map(write)).await;
        let (mut at, mut length) = (None, 0);
        while let Some((_, next)) = changes.iter().find(|(before, _)| *before == at) {
            (at, length) = (Some(next.clone()), length + 1);
        }
        assert_eq!(length, WRITES, "a chain of all rows");
        let last = replicas[0].table.get("api", &[Entry { key: "team", value: "a" }]).await;
        assert_eq!(last.ok().map(|(row, _)| row), at);
    }
}

#[tokio::test]
async fn a_row_whose_plan_no_policy_has_counts_as_the_default_and_is_counted() {
    let world = World::new("a:");
    let [first, _] = &world.replicas;
    let refused = first.set(&row("tenant", "acme", plan("lead"), None)).await.unwrap_err();
    assert_eq!(refused.to_string(), "the rule has no plan \"lead\": there is free, gold, max, half");
    let refused = first.set(&row("plain", "acme", plan("gold"), None)).await.unwrap_err();
    assert_eq!(refused.to_string(), "the descriptor meets the rule plain, which has no rows");
    first.set(&row("tenant", "acme", plan("gold"), None)).await.expect("written");
    // Policies without the plan, in a replica that begins now.
    let policies = POLICY.replace("gold", "lead");
    let policies = weir_policies::parse(&[("api.yaml", policies.as_str())]).expect("policies").policies;
    let events = Arc::new(Events::default());
    let policies = Arc::new(Policies::new(policies, events.clone()));
    let limiter =
        Limiter::new(policies, Options { budget: BUDGET, ..Options::new(world.stores[0].clone()) }, events.clone());
    let entries = [Entry { key: "tenant", value: "acme" }];
    let descriptors =
        [DescriptorRequest { entries: &entries, operation: Operation::Peek, limit: None }].into_iter().collect();
    let query = Query { domain: "api", caller: None, descriptors, settle: None };
    let answer = limiter.decide(&query, Instant::now(), None, None).await.expect("a decision");
    assert_eq!((answer.statuses[0].remaining, events.of(RowEvent::Unfit)), (3, 1));
}

/// What a random history does.
#[derive(Clone, Debug)]
enum Step {
    Set { by: usize, key: &'static str, value: &'static str, content: RowContent, lasts: Option<Micros> },
    Remove { by: usize, key: &'static str, value: &'static str },
    Ask { by: usize, descriptors: Vec<(&'static str, &'static str)>, operation: Operation },
    Wait(Micros),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = || (prop_oneof![Just("tenant"), Just("team")], prop_oneof![Just("a"), Just("b")]);
    let own = (1..9_u64, prop_oneof![Just(Unit::Minute), Just(Unit::Hour)]).prop_map(|(requests, unit)| {
        RowContent::Own(Box::new([Numbers { name: Some("rpm".into()), requests, window: unit.window(), burst: None }]))
    });
    let content =
        prop_oneof![3 => prop_oneof![Just("gold"), Just("max"), Just("half"), Just("free")].prop_map(plan), 1 => own];
    let asked = prop_oneof![3 => keys(), 1 => (Just("plain"), Just("a"))];
    let operation = prop_oneof![
        4 => (1..4_u32).prop_map(Operation::Consume),
        1 => Just(Operation::Peek),
        1 => (1..3_u32).prop_map(Operation::Refund),
    ];
    let step = prop_oneof![
        2 => (0..2_usize, keys(), content, proptest::option::of(1..30_000_000_u64))
            .prop_map(|(by, (key, value), content, lasts)| Step::Set { by, key, value, content, lasts }),
        1 => (0..2_usize, keys()).prop_map(|(by, (key, value))| Step::Remove { by, key, value }),
        6 => (0..2_usize, keys(), proptest::collection::vec(asked, 0..3), operation)
            .prop_map(|(by, first, mut descriptors, operation)| {
                // Without a row the cache of denials could answer, by a clock that no test sets.
                descriptors.push(first);
                Step::Ask { by, descriptors, operation }
            }),
        2 => (1..20_000_000_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

#[test]
fn on_random_histories_two_replicas_answer_as_one_process() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let entered = runtime.enter();
    let world = World::new("");
    let cases = std::env::var("WEIR_PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let case = Cell::new(0_u64);
    let mut again = 0;
    let result = runner.run(&steps(), |steps| {
        // Each history has customers of its own.
        case.set(case.get() + 1);
        runtime.block_on(async {
            let name = |value: &str| format!("{value}{}", case.get());
            for step in &steps {
                match step {
                    Step::Wait(us) => world.set_now(world.clock.now() + us),
                    Step::Set { by, key, value, content, lasts } => {
                        let until = lasts.map(|lasts| world.clock.now() + lasts);
                        world.set_everywhere(*by, &row(key, &name(value), content.clone(), until)).await;
                    }
                    Step::Remove { by, key, value } => {
                        let value = name(value);
                        let removed = world.replicas[*by].remove(key, &value).await;
                        assert_eq!(removed, world.memory.remove(key, &value).await);
                    }
                    Step::Ask { by, descriptors, operation } => {
                        let values: Vec<String> = descriptors.iter().map(|(_, value)| name(value)).collect();
                        let descriptors: Vec<(&str, &str)> =
                            descriptors.iter().zip(&values).map(|((key, _), value)| (*key, value.as_str())).collect();
                        let shared = world.replicas[*by].ask(&descriptors, *operation).await;
                        let own = world.memory.ask(&descriptors, *operation).await;
                        assert_eq!(shared, own, "{descriptors:?} {operation:?} of {steps:?}");
                    }
                }
            }
        });
        Ok(())
    });
    drop(entered);
    for replica in &world.replicas {
        again += replica.events.of(RowEvent::AskedAgain);
    }
    result.expect("they agree");
    assert!(again > 0, "no history made a replica decide again");
}

#[tokio::test]
async fn rows_of_a_store_are_counted_in_small_steps() {
    let world = World::new("a:");
    let replica = &world.replicas[0];
    let count = async |count: &mut RowCount| {
        let (mut steps, scans) = (1, world.server.runs("scan"));
        while steps < 100 {
            match replica.table.count_some(count).await.expect("an answer") {
                Some(rows) => return (rows, steps, world.server.runs("scan") - scans),
                None => steps += 1,
            }
        }
        panic!("no end");
    };
    let mut going_on = RowCount::default();
    assert_eq!(count(&mut going_on).await.0, 0);
    let customers = (0..300).map(|n| row("tenant", &format!("c{n}"), plan("gold"), None)).collect();
    assert!(replica.table.write(customers).await.iter().all(Result::is_ok));
    // States of weir, rows of another prefix, and keys of others.
    let fill = "for n = 1, 12000 do redis.call('SET', 'a:w1:{api|user=' .. n .. '}f60', 1) end \
                for n = 1, 500 do redis.call('SET', 'b:w1:{api|tenant=' .. n .. '}row', 1) redis.call('SET', 'row' .. n, 1) end";
    world.server.command(&["EVAL", fill, "0"]).expect("filled");
    let (rows, steps, scans) = count(&mut going_on).await;
    assert_eq!(rows, 300);
    assert!(steps >= 3 && scans <= steps * 50, "{steps} steps, {scans} scans");
    world.server.command(&["FLUSHALL"]).expect("flushed");
    assert_eq!(count(&mut going_on).await.0, 0);
}
