//! Rows of descriptors in several slots: each slot compares its own, and the request is all or nothing.

use weir_engine::{Row, RowContent};
use weir_limiter::rows::known::KnownRows;
use weir_limiter::rows::{Pruned, RowRefused, RowTable, WriteResult, Written};
use weir_store::{Clock as _, Store};

use super::*;

const FAULTS: [Fault; 3] = [Fault::NotSent, Fault::Lost, Fault::AnswerLost];

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
    rate_limit: {rate: 3/second, plans: {gold: 9/second, slow: 90/minute}}
  - key: held
    rate_limit: {rate: 9/hour, hold: true}
  - key: plain
    rate_limit: {rate: 100/hour, alert_at: [80]}
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
        let other = RowTable::new(first.clone(), policies, known, clock, Arc::new(Silent));
        Self { first, second, process_clock, limiter: limiter(ROWS, options, heard.clone()), heard, other }
    }

    fn ask(&self, asked: &[(&str, &str, Operation)]) -> Result<Answer, StoreError> {
        run(decide(&self.limiter, asked))
    }

    fn set(&self, key: &str, value: &str, plan: &str) {
        let written = run(self.other.write(vec![row(key, value, plan)])).remove(0);
        written.expect("written");
    }

    fn left(&self, key: &str, value: &str) -> u64 {
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

pub(super) fn row(key: &str, value: &str, plan: &str) -> Row {
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

/// `on_error: deny` denied a refund whose row has no limit, and with `allow` such a descriptor had 4,294,967,295 hits left. [st-4]
#[test]
fn without_an_answer_a_row_without_a_limit_denies_no_refund_and_shows_nothing() {
    for (on_error, operation, is_denied) in [
        (OnError::Deny, ONE, true),
        (OnError::Deny, Operation::Refund(1), false),
        (OnError::Allow, ONE, false),
        (OnError::Allow, Operation::Refund(1), false),
    ] {
        let stores = TwoStores::new(on_error, 1);
        stores.set("tenant", "ann", "max");
        assert_eq!(stores.left("tenant", "ann"), u64::from(u32::MAX));
        (0..SLOTS).for_each(|slot| stores.first.faults.lock().extend([((Call::Decide, slot), Fault::NotSent)]));
        let answer = stores.ask(&[("tenant", "ann", operation)]).unwrap();
        let status = Status { over: is_denied, ..Status::default() };
        assert_eq!((answer.denied, &answer.statuses[0]), (is_denied, &status), "{on_error:?} {operation:?}");
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
fn a_rule_with_rows_and_limits_of_requests_on_its_descriptors_are_in_the_first_store() {
    for seed in 0..20 {
        let stores = TwoStores::new(OnError::Error, seed);
        let burst = [("burst", "a", ONE)];
        assert_eq!(stores.ask(&burst).unwrap().statuses[0].remaining, 2);
        stores.set("burst", "a", "gold");
        assert_eq!(stores.ask(&burst).unwrap().statuses[0].remaining, 7, "seed {seed}");
        // A limit of the request continues from what the rule has used.
        let entries = [Entry { key: "burst", value: "a" }];
        let ask = |entries: &[Entry<'_>]| {
            let limit = Some((5, Unit::Second.window()));
            let asked = DescriptorRequest { entries, operation: ONE, limit };
            let query =
                Query { domain: "shop", caller: None, descriptors: [asked].into_iter().collect(), settle: None };
            run(stores.limiter.decide(&query, Instant::now(), None, None)).unwrap().statuses[0].remaining
        };
        assert_eq!(ask(&entries), 2, "seed {seed}");
        let states = || run(stores.limiter.show_states("shop", &entries)).unwrap();
        assert_eq!(states()[0].remaining, 6, "seed {seed}");
        assert_eq!(stores.second.calls.load(SeqCst), 0, "seed {seed}");
        // A plan per minute has its state there too, and so has the plan per second after it.
        stores.set("burst", "a", "slow");
        assert_eq!(stores.ask(&burst).unwrap().statuses[0].remaining, 89, "seed {seed}");
        assert_eq!(run(stores.limiter.reset("shop", &entries)).unwrap().stored, 1, "seed {seed}");
        stores.set("burst", "a", "gold");
        assert_eq!((stores.left("burst", "a"), stores.second.calls.load(SeqCst)), (6, 0), "seed {seed}");
        // Without rows a limit per second is in the second store.
        assert_eq!((ask(&[Entry { key: "plain", value: "a" }]), stores.second.calls.load(SeqCst)), (4, 1));
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
        let used = u64::from(before.is_some());
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

/// A settle whose row had changed was an error for every `on_error`, and no metric had its holds. [st-4] [hd-6]
#[test]
fn if_a_part_is_not_certainly_taken_back_for_a_changed_row_on_error_decides_for_it_too() {
    let actions = [OnError::Allow, OnError::Deny, OnError::Local, OnError::Error];
    for (on_error, fault) in actions.into_iter().flat_map(|on_error| FAULTS.map(|fault| (on_error, fault))) {
        let stores = TwoStores::new(on_error, 1);
        let (held, changed) = (stores.value_in("held", 0), stores.value_in("tenant", 0));
        let other = stores.value_in("plain", 1);
        let asked =
            |hits| [("held", &*held, Operation::Consume(hits)), ("tenant", &*changed, ONE), ("plain", &*other, ONE)];
        let holds = stores.ask(&asked(4)).unwrap().holds;
        stores.set("tenant", &changed, "gold");
        stores.first.faults.lock().insert((Call::Undo, 1), fault);
        let settle = Settle { descriptors: 1, holds };
        let answer = run(decide_or_settle(&stores.limiter, &asked(1), Some(Box::new(settle))));
        let shown = |status: &Status| (status.over, status.limit.as_ref().map(|_| status.remaining));
        let statuses = answer.as_ref().map(|answer| answer.statuses.iter().map(shown).collect::<Vec<_>>());
        match on_error {
            OnError::Allow => assert_eq!(statuses, Ok(vec![(false, None); 3]), "{fault:?}"),
            // A settle is never denied.
            OnError::Deny => assert_eq!(statuses, Ok(vec![(false, None), (true, None), (true, None)]), "{fault:?}"),
            OnError::Local => {
                assert_eq!(statuses, Ok(vec![(false, Some(9)), (false, Some(2)), (false, Some(99))]), "{fault:?}");
            }
            OnError::Error => assert!(matches!(answer, Err(StoreError::Unknown(_))), "{fault:?}: {answer:?}"),
        }
        assert_eq!(*stores.heard.fell_back.lock(), [on_error; 3], "{fault:?}");
        assert_eq!(stores.heard.holds.get(), [1, 0, 0, 1], "{on_error:?} {fault:?}");
        assert_eq!(stores.heard.alerts_lost.load(SeqCst), 1, "{on_error:?} {fault:?}");
        stores.first.heal();
        let kept = u32::from(fault != Fault::AnswerLost);
        assert_eq!(stores.left("plain", &other), 99 - u64::from(kept), "{fault:?}");
        assert_eq!((stores.left("held", &held), stores.left("tenant", &changed)), (5, 8), "{fault:?}");
    }
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
            assert_eq!(stores.left("counted", value), 9 - u64::from(admitted), "seed {seed}");
        }
        assert!(stores.heard.undone.lock().iter().all(|confirmed| *confirmed));
    }
}

/// The rows of an operator with other policies.
fn other_policies(stores: &TwoStores, policy: &str) -> RowTable {
    let policies = weir_policies::parse(&[("shop.yaml", policy)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let (first, clock) = (stores.first.clone(), stores.first.clock.clone());
    let known = Arc::new(KnownRows::of(&*first));
    RowTable::new(first, policies, known, clock, Arc::new(Silent))
}

/// Redis had removed a row without an answer, and no line of the log had it.
#[test]
fn a_removal_without_an_answer_is_found_when_it_is_made_again() {
    let stores = TwoStores::new(OnError::Error, 1);
    let remove_by = |by| {
        let entries = [Entry { key: "tenant", value: "a" }];
        run(stores.other.remove_matching(by, "shop", &entries, None)).map(|removed| removed.row)
    };
    let remove = || remove_by("bob");
    let fails = |fault| stores.first.fails_to_change_rows(fault);
    for (fault, again) in [
        (Fault::AnswerLost, Err(RowRefused::FoundRemoved("eve".into()))),
        (Fault::Lost, Ok(row("tenant", "a", "gold"))),
    ] {
        stores.set("tenant", "a", "gold");
        fails(fault);
        assert!(remove_by("eve").is_err_and(|refused| refused.is_unknown()), "{fault:?}");
        stores.first.heal();
        assert_eq!(remove(), again, "{fault:?}");
        assert_eq!(remove(), Err(RowRefused::Absent), "{fault:?}: found once");
    }
    // A row that is set after it is another one.
    stores.set("tenant", "a", "gold");
    fails(Fault::AnswerLost);
    assert!(remove().is_err_and(|refused| refused.is_unknown()));
    stores.first.heal();
    stores.set("tenant", "a", "gold");
    assert_eq!(remove(), Ok(row("tenant", "a", "gold")));
    assert_eq!(remove(), Err(RowRefused::Absent));
}

/// A prune forgot the removal that Redis did not confirm, and logged nothing of it. [rw-4]
#[test]
fn a_prune_returns_the_row_whose_removal_has_no_answer() {
    let ended = |value: &str| Row { until: Some(START_US - 61_000_000), ..row("tenant", value, "gold") };
    for fault in [Fault::AnswerLost, Fault::Lost, Fault::NotSent] {
        let stores = TwoStores::new(OnError::Error, 1);
        let failing = stores.value_in("tenant", 1);
        for value in [stores.value_in("tenant", 0), failing.clone()] {
            run(stores.other.write(vec![ended(&value)])).remove(0).expect("written");
        }
        stores.first.faults.lock().insert((Call::ChangeRow, 1), fault);
        let prune = || run(stores.other.prune("eve", None, None, &mut ())).expect("a page");
        // The failed one can be the first of the page, or the last.
        let (mut removed, mut failed) = (0, Vec::new());
        for _ in 0..2 {
            let pruned = prune();
            removed += pruned.removed.len();
            failed.extend(pruned.failed.inspect(|_| assert!(pruned.next.is_some(), "{fault:?}: this page again")));
        }
        let (row, refused) = failed.pop().expect("a failed removal");
        assert_eq!((row, refused.is_unknown()), (ended(&failing), fault != Fault::NotSent), "{fault:?}");
        stores.first.heal();
        let entries = [Entry { key: "tenant", value: &failing }];
        let again = run(stores.other.remove_matching("bob", "shop", &entries, None)).map(|removed| removed.row);
        let expected = match fault {
            Fault::AnswerLost => Err(RowRefused::FoundRemoved("eve".into())),
            Fault::Lost | Fault::NotSent => Ok(ended(&failing)),
        };
        assert_eq!(again, expected, "{fault:?}");
        removed += prune().removed.len();
        assert_eq!(removed, 1, "{fault:?}: the other row");
    }
}

/// Of how many rows a process remembers that the store may have written them.
#[test]
fn changes_without_an_answer_are_remembered_up_to_a_bound() {
    const UNCONFIRMED_MAX: usize = 10_000;
    let stores = TwoStores::new(OnError::Error, 1);
    let rows =
        || (0..UNCONFIRMED_MAX + 100).map(|number| row("tenant", &number.to_string(), "gold")).collect::<Vec<_>>();
    stores.first.fails_to_change_rows(Fault::AnswerLost);
    let by_ann = run(stores.other.write_matching("ann", rows().into_iter().map(|row| (row, None)).collect()));
    assert!(by_ann.iter().all(|end| end.as_ref().is_err_and(RowRefused::is_unknown)));
    stores.first.heal();
    let count = |ends: &[Result<Written, RowRefused>], wanted: WriteResult| {
        ends.iter().filter(|end| end.as_ref().is_ok_and(|written| written.result == wanted)).count()
    };
    let again = run(stores.other.write(rows()));
    let [found, same] =
        [WriteResult::FoundWritten("ann".into()), WriteResult::Same].map(|wanted| count(&again, wanted));
    assert_eq!((found, same), (UNCONFIRMED_MAX, 100));
    assert_eq!(count(&run(stores.other.write(rows())), WriteResult::Same), UNCONFIRMED_MAX + 100, "found once");
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
    assert_eq!(run(stores.other.prune("eve", None, None, &mut ())).expect("pruned").removed, []);
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
    assert_eq!(run(stores.other.prune("eve", Some("shop"), None, &mut ())).expect("pruned").removed, []);
    write(&ended);
    assert_eq!(run(stores.other.prune("eve", Some("shop"), None, &mut ())).expect("pruned").removed, [ended]);
    assert_eq!(stores.first.rows.lock().len(), 1);
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
        let pruned = Pruned { removed: vec![ended], ..Pruned::default() };
        assert_eq!(run(table.prune("eve", None, None, &mut ())).expect("the store answers"), pruned);
        assert!(stores.first.rows.lock().is_empty());
    }
}
