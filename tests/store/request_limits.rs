//! Limits of requests at rules that keep their limits (`request_limit`), on both stores.

use weir_engine::overrides::Numbers;
use weir_engine::request_limit::UnusedLimit;
use weir_engine::{Entry, Micros, Mode, Operation, RowContent, Unit, Window};
use weir_limiter::{Answer, DescriptorRequest, HeldCharge, Query, Settle};

use crate::support::worlds::{World, on_both};

const MINUTE_US: Micros = 60_000_000;
/// All ways to count hits, and a unit that a request can have for each.
const FORMS: [(&str, Unit); 10] = [
    ("rate: 10/hour", Unit::Minute),
    ("rate: 10/hour, anchor: first_hit", Unit::Day),
    ("rate: 10/day, calendar: true, timezone: Europe/Berlin", Unit::Day),
    ("rate: 10/hour, algorithm: sliding_window_counter", Unit::Hour),
    ("rate: 10/hour, algorithm: sliding_window, precision: 10m", Unit::Hour),
    ("rate: 10/hour, algorithm: sliding_window_log", Unit::Hour),
    ("rate: 10/hour, algorithm: token_bucket, burst: 20", Unit::Hour),
    ("rate: 10/hour, algorithm: token_bucket, refill: interval", Unit::Hour),
    ("rate: 10/hour, algorithm: leaky_bucket", Unit::Hour),
    ("rate: 10/hour, algorithm: gcra, burst: 4", Unit::Minute),
];
const ANN: &[Entry<'_>] = &[Entry { key: "user", value: "ann" }];

type Limit = Option<(u32, Window)>;

#[expect(clippy::unnecessary_wraps, reason = "a request may have no limit")]
const fn per(requests: u32, unit: Unit) -> Limit {
    Some((requests, unit.window()))
}

fn two_days() -> Window {
    Window::from_micros(2 * Unit::Day.window().us()).expect("a window")
}

fn policy(keys: &str, limits: &[&str]) -> String {
    let limits: String = limits.iter().map(|limit| format!("  - {{{limit}}}\n")).collect();
    format!("domain: shop\ndescriptors:\n- key: user\n  {keys}\n  rate_limits:\n{limits}")
}

/// A request of these limits, each with a descriptor of its own of the user ann.
fn asked(world: &World<'_>, limits: &[Limit], operation: Operation, settled: Option<&[HeldCharge]>) -> Answer {
    let descriptors = limits.iter().map(|limit| DescriptorRequest { entries: ANN, operation, limit: *limit }).collect();
    let settle = settled.map(|holds| Box::new(Settle { descriptors: 1, holds: holds.to_vec() }));
    world.decide(&Query { domain: "shop", caller: None, descriptors, settle }).expect("the store answers")
}

fn ask(world: &World<'_>, limit: Limit, operation: Operation) -> Answer {
    asked(world, &[limit], operation, None)
}

fn left(world: &World<'_>, limit: Limit) -> u64 {
    ask(world, limit, Operation::Peek).statuses[0].remaining
}

/// [mt-10] [ov-1]
#[test]
fn a_request_gives_its_numbers_to_the_limit_as_an_override_does() {
    on_both(|worlds| {
        for (form, unit) in FORMS {
            for mode in [Mode::Atomic, Mode::Independent] {
                let keeping = worlds.with(&policy("request_limit: numbers", &[form]), mode);
                let overridden = worlds.with(&policy("detailed_metric: false", &[form]), mode);
                for requests in [10, 3, 25, 0, 10] {
                    let window = unit.window();
                    overridden.set_override(&[Numbers { name: None, requests: requests.into(), window, burst: None }]);
                    for hits in [2, 1, 7, 30] {
                        let operation = Operation::Consume(hits);
                        let (got, expected) =
                            (ask(&keeping, per(requests, unit), operation), overridden.ask(operation));
                        assert_eq!(got, expected, "{form}: {hits} of {requests}");
                        keeping.step(MINUTE_US / 7);
                        overridden.step(MINUTE_US / 7);
                    }
                    let refund = Operation::Refund(1);
                    assert_eq!(ask(&keeping, per(requests, unit), refund), overridden.ask(refund), "{form}: a refund");
                    overridden.delete_override();
                    let peek = Operation::Peek;
                    assert_eq!(ask(&keeping, None, peek), overridden.ask(peek), "{form}: without a limit");
                }
                assert_eq!(keeping.trials.take_unused(), []);
            }
        }
    });
}

/// [mt-10]
#[test]
fn a_limit_keeps_its_name_its_trial_and_what_it_has_used() {
    on_both(|worlds| {
        let world = worlds.with(&policy("request_limit: numbers", &["rate: 5/hour, name: plan"]), Mode::Atomic);
        ask(&world, None, Operation::Consume(4));
        let answer = ask(&world, per(20, Unit::Hour), Operation::Consume(1));
        let limit = answer.statuses[0].limit.as_ref().expect("a limit");
        assert_eq!((limit.requests, limit.name.as_deref(), answer.statuses[0].remaining), (20, Some("plan"), 15));
        assert_eq!(answer.limits.iter().map(|limit| &*limit.name).collect::<Vec<_>>(), ["plan"]);
        assert!(ask(&world, None, Operation::Consume(1)).denied, "of the rule's 5 nothing remains");
        let trial =
            worlds.with(&policy("request_limit: numbers", &["rate: 5/hour, shadow: true, name: t"]), Mode::Atomic);
        assert!(!ask(&trial, per(1, Unit::Hour), Operation::Consume(3)).denied);
        assert_eq!(trial.trials.take(), [("t".to_owned(), true)]);
        let shadowed =
            worlds.with(&policy("shadow_mode: true\n  request_limit: numbers", &["rate: 5/hour"]), Mode::Atomic);
        assert!(!ask(&shadowed, per(1, Unit::Hour), Operation::Consume(3)).denied);
        let reported = worlds.with(&policy("request_limit: numbers", &["rate: 5/hour, post_paid: true"]), Mode::Atomic);
        ask(&reported, per(100, Unit::Hour), Operation::Consume(70));
        assert_eq!((left(&reported, per(100, Unit::Hour)), left(&reported, None)), (30, 0));
    });
}

/// [mt-10] [ov-4]
#[test]
fn a_hold_is_settled_with_other_numbers_and_without() {
    on_both(|worlds| {
        let text = policy("request_limit: numbers", &["rate: 100/hour, hold: true"]);
        for settled_with in [None, per(50, Unit::Day), per(70, Unit::Day), per(9, Unit::Minute)] {
            let world = worlds.with(&text, Mode::Atomic);
            let limit = per(50, Unit::Day);
            let holds = ask(&world, limit, Operation::Consume(40)).holds;
            assert_eq!((holds.len(), left(&world, limit), left(&world, None)), (1, 10, 100));
            asked(&world, &[settled_with], Operation::Consume(15), Some(&holds));
            assert_eq!(left(&world, limit), 35, "settled with {settled_with:?}");
            assert_eq!(world.holds.get(), ([1, 1, 0, 0], [40, 25, 0]), "settled with {settled_with:?}");
            let holds = ask(&world, limit, Operation::Consume(20)).holds;
            let descriptors = [DescriptorRequest { entries: ANN, operation: Operation::Consume(20), limit }];
            world.release_query(
                Query { domain: "shop", caller: None, descriptors: descriptors.into_iter().collect(), settle: None },
                holds,
            );
            assert_eq!(left(&world, limit), 35, "the caller is gone");
        }
    });
}

/// [mt-10] [rw-1] [ov-1]
#[test]
fn the_numbers_of_a_request_come_before_overrides_and_rows() {
    on_both(|worlds| {
        let limits = ["rate: 10/hour, name: h, plans: {gold: 50/hour, free: unlimited}", "rate: 30/day, name: d"];
        let world =
            worlds.with(&policy("rows: {default: basic}\n  request_limit: {numbers: h}", &limits), Mode::Atomic);
        let limit = per(20, Unit::Hour);
        let shown = |limit: Limit| -> Vec<(String, u64)> {
            let answer = ask(&world, limit, Operation::Peek);
            answer.limits.iter().map(|one| (one.name.to_string(), one.requests)).collect()
        };
        let both = |h, d| vec![("h".to_owned(), h), ("d".to_owned(), d)];
        assert_eq!((shown(None), shown(limit)), (both(10, 30), both(20, 30)));
        world.set_row("user", "ann", RowContent::Plan("gold".into()));
        assert_eq!((shown(None), shown(limit)), (both(50, 30), both(20, 30)));
        world.set_row("user", "ann", RowContent::Plan("free".into()));
        assert_eq!((shown(None), shown(limit)), (vec![("d".to_owned(), 30)], both(20, 30)));
        let of = |name: &str, requests, unit: Unit| Numbers {
            name: Some(name.into()),
            requests,
            window: unit.window(),
            burst: None,
        };
        world.set_override(&[of("h", 7, Unit::Hour), of("d", 8, Unit::Day)]);
        assert_eq!((shown(None), shown(limit)), (both(7, 8), both(20, 8)));
        // The other limit has this window by its override.
        world.set_override(&[of("d", 8, Unit::Minute)]);
        assert_eq!(shown(per(20, Unit::Minute)), vec![("d".to_owned(), 8)], "the plan has no limit per hour");
        assert_eq!(world.trials.take_unused(), [UnusedLimit::SameState]);
    });
}

/// A quota of a row without a limit is never over, unless the request gives it one. [rw-1]
#[test]
fn a_limit_of_the_request_is_a_limit_where_the_row_has_none() {
    on_both(|worlds| {
        let text = policy(
            "rows: {default: basic}\n  quota_mode: true\n  request_limit: numbers",
            &["rate: 10/hour, plans: {free: unlimited}"],
        );
        let world = worlds.with(&text, Mode::Atomic);
        world.set_row("user", "ann", RowContent::Plan("free".into()));
        assert!(!ask(&world, None, Operation::Consume(99)).denied);
        assert!(ask(&world, per(20, Unit::Hour), Operation::Consume(21)).denied);
        assert_eq!(ask(&world, per(20, Unit::Hour), Operation::Consume(20)).statuses[0].remaining, 0);
    });
}

/// [mt-10]
#[test]
fn the_first_limit_or_the_named_one_gets_the_numbers() {
    on_both(|worlds| {
        for (key, expected) in
            [("numbers", [7, 100]), ("{numbers: second}", [10, 7]), ("ignored", [10, 100]), ("replaces", [7, 0])]
        {
            let limits = ["rate: 10/hour, algorithm: gcra", "rate: 100/hour, name: second"];
            let world = worlds.with(&policy(&format!("request_limit: {key}"), &limits), Mode::Atomic);
            let answer = ask(&world, per(7, Unit::Hour), Operation::Consume(1));
            let numbers: Vec<u64> = answer.limits.iter().map(|limit| limit.requests).collect();
            assert_eq!(numbers, expected.into_iter().filter(|number| *number > 0).collect::<Vec<_>>(), "{key}");
        }
    });
}

/// [mt-11]
#[test]
fn numbers_that_a_limit_cannot_have_are_counted_and_the_rule_keeps_its_own() {
    let keep = "request_limit: numbers";
    let long_log = (3_000_000, Unit::Hour);
    on_both(|worlds| {
        for (keys, limits, (requests, unit), why) in [
            ("request_limit: ignored", &["rate: 10/hour"][..], (3, Unit::Hour), UnusedLimit::Ignored),
            (keep, &["rate: 10/hour, algorithm: sliding_window_log"], long_log, UnusedLimit::Bound),
            (keep, &["rate: 10/month, calendar: true"], (3, Unit::Day), UnusedLimit::Calendar),
            (
                keep,
                &["algorithm: concurrency, requests_per_unit: 4, window: 1m"],
                (3, Unit::Minute),
                UnusedLimit::Concurrency,
            ),
            (keep, &["rate: 10/hour", "rate: 99/day, name: d"], (3, Unit::Day), UnusedLimit::SameState),
        ] {
            let world = worlds.with(&policy(keys, limits), Mode::Atomic);
            let same = worlds.with(&policy("detailed_metric: false", limits), Mode::Atomic);
            for hits in [2, 3, 1] {
                let operation = Operation::Consume(hits);
                let (mut got, mut expected) = (ask(&world, per(requests, unit), operation), same.ask(operation));
                // Receipts of permits have the times of their requests.
                (got.holds, expected.holds) = Default::default();
                assert_eq!(got, expected, "{why:?}");
            }
            assert_eq!(world.trials.take_unused(), [why; 3]);
        }
        let unlimited =
            "domain: shop\ndescriptors: [{key: user, request_limit: numbers, rate_limit: {unlimited: true}}]";
        let world = worlds.with(unlimited, Mode::Atomic);
        assert_eq!(left(&world, per(0, Unit::Hour)), u64::from(u32::MAX));
        assert_eq!(world.trials.take_unused(), [UnusedLimit::Unlimited]);
    });
}

/// [mt-11] [te-1]
#[test]
fn numbers_apply_while_the_limit_with_their_state_is_outside_of_its_term() {
    on_both(|worlds| {
        let limits = ["rate: 10/day, name: n1", "rate: 10/2d, name: n2, from: '2041-01-03T01:00:00Z'"];
        let world = worlds.with(&policy("request_limit: numbers", &limits), Mode::Atomic);
        let numbers = Some((5, two_days()));
        let one = |limit: Limit| ask(&world, limit, Operation::Consume(1)).statuses[0].remaining;
        assert_eq!((one(numbers), one(None)), (4, 9));
        world.step(60 * MINUTE_US);
        assert_eq!(one(numbers), 8, "the state of two days is charged once: n1 and n2 have 2 of 10");
        assert_eq!(world.trials.take_unused(), [UnusedLimit::SameState]);
    });
}

/// [mt-11] [mt-5]
#[test]
fn numbers_apply_while_another_descriptor_replaces_the_limit_with_their_state() {
    let limits = policy("request_limit: numbers", &["rate: 10/day, name: n1", "rate: 10/2d, name: n2"]);
    on_both(|worlds| {
        for (replaced, expected, unused) in [("n2", 4, None), ("n1", 9, Some(UnusedLimit::NotInForce))] {
            let other = format!("- {{key: r, rate_limit: {{rate: 99/day, replaces: [{{name: {replaced}}}]}}}}\n");
            let world = worlds.with(&(limits.clone() + &other), Mode::Atomic);
            let r = [Entry { key: "r", value: "1" }];
            let of = |entries, limit| DescriptorRequest { entries, operation: Operation::Consume(1), limit };
            let descriptors = [of(ANN, Some((5, two_days()))), of(&r, None)].into_iter().collect();
            let query = Query { domain: "shop", caller: None, descriptors, settle: None };
            let answer = world.decide(&query).expect("the store answers");
            assert_eq!(answer.statuses[0].remaining, expected, "{replaced}");
            assert_eq!(world.trials.take_unused(), Vec::from_iter(unused), "{replaced}");
        }
    });
}

/// [mt-11] [hd-7]
#[test]
fn a_hold_with_numbers_settles_beside_a_limit_of_its_state_outside_of_its_term() {
    on_both(|worlds| {
        let limits = ["rate: 10/day, hold: true, name: n1", "rate: 10/2d, hold: true, name: n2, TERM"];
        let numbers = Some((9, two_days()));
        for (used, expected) in [(1, 8), (6, 3)] {
            let term = limits.map(|limit| limit.replace("TERM", "from: 2099-01-01"));
            let text = policy("request_limit: numbers", &term.each_ref().map(|limit| &**limit));
            let world = worlds.with(&text, Mode::Atomic);
            let holds = ask(&world, numbers, Operation::Consume(4)).holds;
            asked(&world, &[numbers], Operation::Consume(used), Some(&holds));
            assert_eq!((left(&world, numbers), left(&world, None)), (expected, 10), "{used} of 4");
        }
        // The opening charges both limits of the rule. The term of one ends before the settle.
        let term = limits.map(|limit| limit.replace("TERM", "until: '2041-01-03T01:00:00Z'"));
        let text = policy("request_limit: numbers", &term.each_ref().map(|limit| &**limit));
        let world = worlds.with(&text, Mode::Atomic);
        let holds = ask(&world, numbers, Operation::Consume(4)).holds;
        world.step(60 * MINUTE_US);
        asked(&world, &[numbers], Operation::Consume(1), Some(&holds));
        assert_eq!((left(&world, None), left(&world, numbers)), (9, 8));
    });
}

/// [mt-11]
#[test]
fn numbers_for_a_limit_outside_of_its_term_are_counted_as_unused() {
    on_both(|worlds| {
        let limits = ["rate: 10/day, name: n1, from: 2099-01-01", "rate: 10/2d, name: n2"];
        let world = worlds.with(&policy("request_limit: numbers", &limits), Mode::Atomic);
        assert_eq!(left(&world, per(3, Unit::Day)), 10);
        assert_eq!(world.trials.take_unused(), [UnusedLimit::NotInForce]);
    });
}

/// [mt-6] [mt-7]
#[test]
fn a_limit_of_the_request_replaces_other_rules_and_limits_descriptors_without_one() {
    let text = "domain: shop\ndescriptors:\n- {key: kept, request_limit: numbers, rate_limit: 5/hour}\n\
                - {key: user, rate_limit: {rate: 5/hour, algorithm: gcra, name: plan}}\n";
    on_both(|worlds| {
        let world = worlds.with(text, Mode::Atomic);
        for key in ["user", "none"] {
            let entries = [Entry { key, value: "ann" }];
            let asked =
                DescriptorRequest { entries: &entries, operation: Operation::Consume(1), limit: per(9, Unit::Hour) };
            let query = Query {
                domain: "shop",
                caller: None,
                descriptors: [asked.clone()].into_iter().collect(),
                settle: None,
            };
            let answer = world.decide(&query).expect("the store answers");
            assert_eq!((&*answer.limits[0].name, answer.statuses[0].remaining), ("(request)", 8), "{key}");
            let unknown =
                Query { domain: "shpo", caller: None, descriptors: [asked].into_iter().collect(), settle: None };
            assert_eq!(world.decide(&unknown).expect("the store answers").statuses[0].limit, None);
        }
        assert_eq!(world.trials.take_unused(), []);
    });
}

/// [dc-2]
#[test]
fn two_descriptors_of_one_state_can_have_different_numbers() {
    let mut answers: Vec<Vec<Answer>> = Vec::new();
    let histories = std::cell::RefCell::new(&mut answers);
    on_both(|worlds| {
        let mut history = Vec::new();
        for (form, _) in FORMS {
            let unit = if form.contains("day") { Unit::Day } else { Unit::Hour };
            let world = worlds.with(&policy("request_limit: numbers", &[form]), Mode::Atomic);
            for (one, other, hits) in [(5, 30, 2), (30, 5, 1), (8, 9, 4), (40, 20, 6)] {
                let answer = asked(&world, &[per(one, unit), per(other, unit), None], Operation::Consume(hits), None);
                assert_eq!(
                    answer
                        .statuses
                        .iter()
                        .map(|one| one.limit.as_ref().map(|limit| limit.requests))
                        .collect::<Vec<_>>(),
                    [Some(one.into()), Some(other.into()), Some(10)],
                    "{form}"
                );
                history.push(answer);
                world.step(7 * MINUTE_US);
            }
        }
        histories.borrow_mut().push(history);
    });
    assert_eq!(answers[0], answers[1], "memory and Redis");
}

/// [mt-10] [ls-1]
#[test]
fn a_request_with_numbers_takes_no_hits_of_a_lease() {
    on_both(|worlds| {
        let world = worlds.with(&policy("request_limit: numbers", &["rate: 1000000/hour, lease: 1s"]), Mode::Atomic);
        for _ in 0..200 {
            assert!(!ask(&world, None, Operation::Consume(1)).denied);
        }
        world.leave();
        let admitted = (0..40).filter(|_| !ask(&world, per(230, Unit::Hour), Operation::Consume(1)).denied).count();
        assert_eq!(admitted, 30);
    });
}
