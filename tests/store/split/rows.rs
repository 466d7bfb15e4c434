//! Rows of descriptors in several slots, or in two stores: each store compares its own, and the request is all or nothing.

use weir_engine::rows::RowMisfit;
use weir_engine::{Row, RowContent};
use weir_limiter::rows::known::KnownRows;
use weir_limiter::rows::{RowRefused, RowTable};
use weir_store::{Clock as _, Store};

use super::*;

const ROWS: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 3/hour, algorithm: gcra, plans: {gold: 9/hour, max: unlimited}}
  - key: counted
    rows: {default: free}
    rate_limit: {rate: 3/hour, plans: {gold: 9/hour}}
  - key: burst
    rows: {default: free}
    rate_limit: {rate: 3/second, plans: {gold: 9/second}}
  - key: plain
    rate_limit: 100/hour
";

/// A limiter over two stores, and another process that changes rows.
struct TwoStores {
    first: Arc<Slotted>,
    second: Arc<Slotted>,
    process_clock: Arc<ManualClock>,
    limiter: Limiter,
    heard: Arc<Heard>,
    other: RowTable,
}

impl TwoStores {
    fn new(on_error: OnError, seed: u64) -> Self {
        let (first, second) = (Slotted::new(seed), Slotted::new(seed + 1));
        let heard = Arc::new(Heard::default());
        // The clock of the process is not that of the stores.
        let process_clock = Arc::new(ManualClock::default());
        process_clock.set(first.clock.now());
        let local: Arc<dyn Store> = Arc::new(Memory::new(KEYS_MAX, process_clock.clone(), Arc::new(Silent)));
        let options = Options {
            on_error,
            per_second: Some(second.clone()),
            local: Some(local),
            budget: BUDGET,
            clock: process_clock.clone(),
            ..Options::new(first.clone())
        };
        let policies = weir_policies::parse(&[("shop.yaml", ROWS)]).expect("good policies").policies;
        let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
        let (known, clock) = (Arc::new(KnownRows::of(&*first)), first.clock.clone());
        let other =
            RowTable::new(first.clone(), Some(second.clone()), policies.clone(), known, clock, Arc::new(Silent));
        Self { first, second, process_clock, limiter: limiter(ROWS, options, heard.clone()), heard, other }
    }

    fn ask(&self, asked: &[(&str, &str, Operation)]) -> Result<Answer, StoreError> {
        run(decide(&self.limiter, asked))
    }

    fn set(&self, key: &str, value: &str, plan: &str) {
        let written = run(self.other.write(vec![row(key, value, plan)])).remove(0);
        written.expect("written");
    }

    fn left(&self, key: &str, value: &str) -> u32 {
        self.ask(&[(key, value, Operation::Peek)]).expect("it peeks").statuses[0].remaining
    }

    /// A value that puts a descriptor of this key into this slot.
    fn value_in(&self, key: &str, slot: u16) -> String {
        let of = |value: &str| {
            let states = run(self.limiter.show_states("shop", &[Entry { key, value }])).expect("it peeks");
            slot_of(&states[0].key)
        };
        (0..).map(|i| format!("v{i}")).find(|value| of(value) == slot).expect("there is no end of values")
    }
}

fn row(key: &str, value: &str, plan: &str) -> Row {
    let content = RowContent::Plan(plan.into());
    Row {
        domain: "shop".into(),
        entries: Box::new([(key.into(), value.into())]),
        content,
        until: None,
        note: "".into(),
    }
}

/// [rw-2]
#[test]
fn when_one_slot_has_another_row_the_others_are_taken_back_and_all_is_decided_again() {
    for seed in 0..20 {
        let stores = TwoStores::new(OnError::Error, seed);
        let (changed, same) = (stores.value_in("tenant", 0), stores.value_in("tenant", 1));
        let both = [("tenant", changed.as_str(), ONE), ("tenant", same.as_str(), ONE)];
        let left = |answer: &Answer| [answer.statuses[0].remaining, answer.statuses[1].remaining];
        assert_eq!(left(&stores.ask(&both).unwrap()), [2, 2]);
        assert!(stores.heard.undone.lock().is_empty());
        stores.set("tenant", &changed, "gold");
        assert_eq!(left(&stores.ask(&both).unwrap()), [7, 1], "seed {seed}");
        assert_eq!(*stores.heard.undone.lock(), [true], "seed {seed}");
        // Known now.
        assert_eq!(left(&stores.ask(&both).unwrap()), [6, 0]);
        // The slot without a change denies, and the other one is charged nothing under its new row.
        stores.set("tenant", &changed, "max");
        let denied = stores.ask(&both).unwrap();
        assert!(denied.denied && !denied.statuses[0].over && denied.statuses[1].over, "{denied:?}");
        stores.set("tenant", &changed, "gold");
        assert_eq!((stores.left("tenant", &changed), stores.left("tenant", &same)), (6, 0), "seed {seed}");
    }
}

/// A slot that has only the row of an unlimited descriptor is asked too. [rw-5]
#[test]
fn a_row_without_a_limit_is_compared_in_its_own_slot() {
    let stores = TwoStores::new(OnError::Error, 1);
    let (unlimited, other) = (stores.value_in("tenant", 0), stores.value_in("plain", 1));
    stores.set("tenant", &unlimited, "max");
    let both = [("tenant", unlimited.as_str(), Operation::Consume(4)), ("plain", other.as_str(), ONE)];
    assert!(!stores.ask(&both).unwrap().denied);
    assert_eq!(stores.left("plain", &other), 99);
    stores.set("tenant", &unlimited, "free");
    assert!(stores.ask(&both).unwrap().denied, "the default plan has 3");
    assert_eq!((stores.left("plain", &other), stores.left("tenant", &unlimited)), (99, 3));
}

/// [rw-5]
#[test]
fn a_row_of_a_limit_per_second_is_in_the_second_store() {
    for seed in 0..20 {
        let stores = TwoStores::new(OnError::Error, seed);
        let both = [("burst", "a", ONE), ("tenant", "a", ONE)];
        assert!(!stores.ask(&both).unwrap().denied);
        stores.set("burst", "a", "gold");
        assert_eq!((stores.first.rows.lock().len(), stores.second.rows.lock().len()), (0, 1));
        let answer = stores.ask(&both).unwrap();
        assert_eq!([answer.statuses[0].remaining, answer.statuses[1].remaining], [7, 1], "seed {seed}");
        assert_eq!(*stores.heard.undone.lock(), [true], "seed {seed}");
        stores.set("tenant", "a", "gold");
        assert_eq!((stores.first.rows.lock().len(), stores.second.rows.lock().len()), (1, 1));
        let answer = stores.ask(&both).unwrap();
        assert_eq!([answer.statuses[0].remaining, answer.statuses[1].remaining], [6, 6], "seed {seed}");
        let found = run(stores.other.get("shop", &[Entry { key: "burst", value: "a" }]));
        assert_eq!(found, Ok((row("burst", "a", "gold"), None)));
        run(stores.other.remove("shop", &[Entry { key: "burst", value: "a" }])).expect("removed");
        assert!(stores.second.rows.lock().is_empty());
        let absent = run(stores.other.remove("shop", &[Entry { key: "burst", value: "a" }]));
        assert_eq!(absent.unwrap_err(), RowRefused::Absent);
    }
}

/// [rw-4] [rw-5]
#[test]
fn a_row_that_has_ended_by_the_clock_of_the_process_has_no_part_in_a_decision_of_the_process() {
    const LASTS_US: Micros = 10_000_000;
    let with_row = |plan: &str| {
        let stores = TwoStores::new(OnError::Local, 1);
        let (ended, other) = (stores.value_in("tenant", 0), stores.value_in("tenant", 1));
        let until = stores.process_clock.now() + LASTS_US;
        let written = run(stores.other.write(vec![Row { until: Some(until), ..row("tenant", &ended, plan) }]));
        written.into_iter().for_each(|written| assert!(written.is_ok(), "{written:?}"));
        // It is known from now on.
        assert!(!stores.ask(&[("tenant", &ended, Operation::Peek)]).unwrap().denied);
        stores.first.faults.lock().insert((Call::Decide, 0), Fault::NotSent);
        (stores, until, ended, other)
    };
    for (plan, before) in [("gold", Some(8)), ("max", None)] {
        let (stores, until, ended, other) = with_row(plan);
        let ask = |asked: &[(&str, &str, Operation)]| stores.ask(asked).expect("the process decides");
        stores.process_clock.set(until - 1);
        let status = ask(&[("tenant", &ended, ONE)]).statuses.remove(0);
        assert_eq!(status.limit.map(|_| status.remaining), before, "{plan}: the row has not ended");
        stores.process_clock.set(until);
        let used = u32::from(before.is_some());
        assert_eq!(ask(&[("tenant", &ended, ONE)]).statuses[0].remaining, 2 - used, "{plan}: the default plan");
        // Of a request over two slots, the other one answers.
        let answer = ask(&[("tenant", &other, ONE), ("tenant", &ended, ONE)]);
        assert_eq!([answer.statuses[0].remaining, answer.statuses[1].remaining], [2, 1 - used], "{plan}");
        // The store decides by its own clock, in which the row is in force.
        stores.first.heal();
        let status = ask(&[("tenant", &ended, Operation::Peek)]).statuses.remove(0);
        assert_eq!(status.limit.map(|_| status.remaining), before.map(|left| left + 1), "{plan}");
        stores.first.clock.set(until);
        assert_eq!(ask(&[("tenant", &ended, Operation::Peek)]).statuses[0].remaining, 3, "{plan}");
    }
}

/// [rw-2]
#[test]
fn when_another_part_may_be_charged_nothing_is_asked_again() {
    let stores = TwoStores::new(OnError::Error, 1);
    let (changed, lost) = (stores.value_in("tenant", 0), stores.value_in("tenant", 1));
    let both = [("tenant", changed.as_str(), ONE), ("tenant", lost.as_str(), ONE)];
    stores.ask(&both).unwrap();
    stores.set("tenant", &changed, "gold");
    let lost_key = run(stores.limiter.show_states("shop", &[Entry { key: "tenant", value: &lost }])).unwrap();
    stores.first.fails(Call::Decide, &lost_key[0].key, Fault::AnswerLost);
    let error = stores.ask(&both).unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
    stores.first.heal();
    // The lost answer stands, and the slot with the new row has charged nothing.
    assert_eq!((stores.left("tenant", &changed), stores.left("tenant", &lost)), (8, 1));
}

/// [rw-5]
#[test]
fn a_changed_row_brings_no_ended_row_of_another_descriptor_back() {
    let stores = TwoStores::new(OnError::Local, 1);
    let (changed, ended) = (stores.value_in("tenant", 0), stores.value_in("tenant", 1));
    let until = stores.process_clock.now() + 10_000_000;
    let written = run(stores.other.write(vec![Row { until: Some(until), ..row("tenant", &ended, "gold") }]));
    written.into_iter().for_each(|written| assert!(written.is_ok(), "{written:?}"));
    let ask = |operation| {
        let asked = [("tenant", changed.as_str(), operation), ("tenant", ended.as_str(), operation)];
        let answer = stores.ask(&asked).expect("a decision");
        [answer.statuses[0].remaining, answer.statuses[1].remaining]
    };
    assert_eq!(ask(Operation::Peek), [3, 9]);
    stores.set("tenant", &changed, "gold");
    stores.process_clock.set(until);
    stores.first.faults.lock().insert((Call::Decide, 1), Fault::NotSent);
    assert_eq!(ask(ONE), [8, 2], "the process decides about the second, by the default plan");
}

/// [rw-2]
#[test]
fn a_store_that_always_finds_another_version_decides_sixteen_times() {
    for found in [0, 7] {
        let stores = TwoStores::new(OnError::Error, 1);
        stores.set("tenant", "a", "gold");
        stores.ask(&[("tenant", "a", ONE)]).expect("a decision");
        let before = stores.first.calls.load(SeqCst);
        *stores.first.found.lock() = Some(found);
        let error = stores.ask(&[("tenant", "a", ONE)]).unwrap_err();
        assert!(matches!(&error, StoreError::NotSent(failure) if failure.kind == "stale_row"), "{found}: {error:?}");
        assert_eq!(stores.first.calls.load(SeqCst) - before, 16, "{found}");
        *stores.first.found.lock() = None;
        assert_eq!(stores.left("tenant", "a"), 8, "{found}: nothing was charged");
    }
}

#[test]
fn however_requests_and_changes_interleave_exactly_what_was_admitted_is_charged() {
    const TASKS: usize = 6;
    const REQUESTS: usize = 20;
    for seed in 0..20 {
        let stores = TwoStores::new(OnError::Error, seed);
        let (one, two) = (stores.value_in("counted", 0), stores.value_in("counted", 1));
        let both = [("counted", one.as_str(), ONE), ("counted", two.as_str(), ONE)];
        let ask = async || {
            let mut admitted = 0;
            for _ in 0..REQUESTS {
                match decide(&stores.limiter, &both).await {
                    Ok(answer) => admitted += u32::from(!answer.denied),
                    // Others changed its rows sixteen times meanwhile.
                    Err(StoreError::NotSent(failure)) => assert_eq!(failure.kind, "stale_row"),
                    Err(error) => panic!("{error}"),
                }
            }
            admitted
        };
        let change = async {
            for turn in 0..40 {
                let plan = ["gold", "free"][turn % 2];
                let value = [&one, &two][turn / 2 % 2];
                stores.other.write(vec![row("counted", value, plan)]).await.remove(0).expect("written");
                for _ in 0..7 {
                    tokio::task::yield_now().await;
                }
            }
        };
        let (admitted, ()) = run(async {
            tokio::join!(async { futures_util::future::join_all((0..TASKS).map(|_| ask())).await }, change)
        });
        let admitted: u32 = admitted.iter().sum();
        // No plan that was in force has more than nine.
        assert!((3..=9).contains(&admitted), "seed {seed}: {admitted} admitted");
        for value in [&one, &two] {
            stores.set("counted", value, "gold");
            assert_eq!(stores.left("counted", value), 9 - admitted, "seed {seed}");
        }
        assert!(stores.heard.undone.lock().iter().all(|confirmed| *confirmed));
    }
}

/// The rows of an operator whose policies have another rule, and of one whose rule has gone.
fn other_policies(stores: &TwoStores, policy: &str) -> RowTable {
    let policies = weir_policies::parse(&[("shop.yaml", policy)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let (first, second) = (stores.first.clone(), Some(stores.second.clone() as Arc<dyn Store>));
    let (known, clock) = (Arc::new(KnownRows::of(&*first)), stores.first.clock.clone());
    RowTable::new(first, second, policies, known, clock, Arc::new(Silent))
}

/// [rw-4]
#[test]
fn a_row_that_is_set_between_the_look_and_the_removal_stays() {
    let stores = TwoStores::new(OnError::Error, 1);
    let ended = Row { until: Some(START_US - 61_000_000), ..row("tenant", "a", "gold") };
    let write = |row: &Row| run(stores.other.write(vec![row.clone()])).remove(0).expect("written");
    let stored = || stores.first.rows.lock().values().next().cloned();
    let entries = [Entry { key: "tenant", value: "a" }];
    write(&row("tenant", "a", "max"));
    let newer = stored();
    write(&ended);
    stores.first.set_between.lock().clone_from(&newer);
    assert_eq!(run(stores.other.prune(None, None)).expect("pruned").0, []);
    assert_eq!(stored(), newer, "the row that was set meanwhile");

    // A removal reads again what was set meanwhile, and returns what it has removed.
    write(&ended);
    stores.first.set_between.lock().clone_from(&newer);
    let removed = run(stores.other.remove("shop", &entries)).expect("removed");
    assert_eq!((removed.row, removed.left), (row("tenant", "a", "max"), None));
    assert_eq!(stored(), None);

    // Less than a minute after its end a row stays.
    let (recent, other) = (Row { until: Some(START_US - 59_000_000), ..ended.clone() }, row("tenant", "b", "gold"));
    for row in [&recent, &other] {
        write(row);
    }
    assert_eq!(run(stores.other.prune(Some("shop"), None)).expect("pruned").0, []);
    write(&ended);
    assert_eq!(run(stores.other.prune(Some("shop"), None)).expect("pruned").0, [ended]);
    assert_eq!(stores.first.rows.lock().len(), 1);
}

/// A change of policies moves a rule to the other store, and its rows stay behind. [rw-5]
#[test]
fn a_row_in_the_store_that_its_rule_has_left_is_listed_once_as_not_used() {
    let stores = TwoStores::new(OnError::Error, 1);
    stores.set("burst", "a", "gold");
    stores.set("burst", "b", "gold");
    stores.set("counted", "a", "gold");
    let moved = ROWS.replace("{rate: 3/second, plans: {gold: 9/second}}", "{rate: 3/minute, plans: {gold: 9/minute}}");
    let moved = other_policies(
        &stores,
        &moved.replace("{rate: 3/hour, plans", "{rate: 3/second, plans").replace("9/hour}}", "9/second}}"),
    );
    let all = || {
        let (mut all, mut next) = (Vec::new(), None);
        loop {
            let page = run(moved.page(Some("shop"), next.as_deref())).expect("a page");
            all.extend(page.rows);
            next = page.next;
            if next.is_none() {
                all.sort_by_key(|(row, _)| row.entries.clone());
                return all;
            }
        }
    };
    let (a, b, counted) = (row("burst", "a", "gold"), row("burst", "b", "gold"), row("counted", "a", "gold"));
    let misplaced = Some(RowMisfit::Misplaced);
    let left_behind = |row: &Row| (row.clone(), misplaced.clone());
    assert_eq!(all(), [left_behind(&a), left_behind(&b), left_behind(&counted)]);
    let entries = [Entry { key: "burst", value: "a" }];
    assert_eq!(run(moved.get("shop", &entries)), Ok(left_behind(&a)));

    // It is set again, so the one that was left behind is not listed.
    let written = run(moved.write(vec![a.clone(), counted.clone()]));
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    assert_eq!(all(), [(a.clone(), None), left_behind(&b), (counted, None)]);
    assert_eq!(run(moved.get("shop", &entries)), Ok((a.clone(), None)));
    run(moved.remove("shop", &entries)).expect("removed");
    assert_eq!(run(moved.get("shop", &entries)), Ok(left_behind(&a)));
    run(moved.remove("shop", &entries)).expect("removed");
    assert_eq!(run(moved.get("shop", &entries)), Err(RowRefused::Absent));
}

#[test]
fn rows_whose_rule_has_gone_are_removed_by_descriptor_and_pruned() {
    const WITHOUT_ROWS: &str = "domain: shop\ndescriptors: [{key: tenant, rate_limit: 3/h}]\n";
    const ELSEWHERE: &str = "domain: other\ndescriptors: [{key: tenant, rate_limit: 3/h}]\n";
    for policy in [WITHOUT_ROWS, ELSEWHERE] {
        let stores = TwoStores::new(OnError::Error, 1);
        let table = other_policies(&stores, policy);
        stores.set("tenant", "a", "gold");
        stores.set("burst", "a", "gold");
        let ended = Row { until: Some(START_US - 61_000_000), ..row("burst", "b", "gold") };
        run(stores.other.write(vec![ended.clone()])).remove(0).expect("written");
        for key in ["tenant", "burst"] {
            let entries = [Entry { key, value: "a" }];
            let (found, misfit) = run(table.get("shop", &entries)).expect("found");
            assert!(found == row(key, "a", "gold") && misfit.is_some(), "{policy}: {misfit:?}");
            assert_eq!(run(table.remove("shop", &entries)).map(|removed| removed.row), Ok(row(key, "a", "gold")));
            let absent = run(table.remove("shop", &entries)).unwrap_err();
            assert!(matches!(absent, RowRefused::Misfit(_)), "{absent:?}");
        }
        let (pruned, next) = run(table.prune(None, None)).expect("the first store");
        assert!(pruned.is_empty() && next.is_some());
        assert_eq!(run(table.prune(None, next.as_deref())).expect("the second store"), (vec![ended], None));
        assert!(stores.second.rows.lock().is_empty());
    }
}
