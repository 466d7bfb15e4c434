//! Limits that count requests (`counts: requests`), on both stores: what each kind of request charges, beside limits that count
//! hits.

use weir_engine::overrides::Numbers;
use weir_engine::{Micros, Mode, Operation, Unit};
use weir_limiter::{HeldCharge, Settle};

use crate::support::worlds::{World, on_both};

const HOUR_US: Micros = 3_600_000_000;
/// All ways to count but permits. A rate by the hour keeps what was used for long enough.
const FORMS: [&str; 11] = [
    "rate: 10/hour",
    "rate: 10/hour, anchor: first_hit",
    "rate: 10/day, calendar: true, timezone: Europe/Berlin",
    "rate: 10/hour, algorithm: sliding_window_counter",
    "rate: 10/hour, algorithm: sliding_window, precision: 10m",
    "rate: 10/hour, algorithm: sliding_window_log",
    "rate: 10/hour, algorithm: token_bucket",
    "rate: 10/hour, algorithm: token_bucket, refill: interval",
    "rate: 10/hour, algorithm: leaky_bucket",
    "rate: 10/hour, algorithm: gcra",
    "rate: 10/hour, drain: true",
];

fn policy(limits: &[&str]) -> String {
    let limits: String = limits.iter().map(|limit| format!("  - {{{limit}}}\n")).collect();
    format!("domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n{limits}")
}

fn left(world: &World<'_>) -> u64 {
    world.ask(Operation::Peek).statuses[0].remaining
}

fn settle(world: &World<'_>, holds: &[HeldCharge], used: u32) {
    let operation = if used == 0 { Operation::Peek } else { Operation::Consume(used) };
    let settle = Settle { descriptors: 1, holds: holds.to_vec() };
    let answer = world.ask_for(&[("user", "ann", operation)], Some(settle));
    assert!(!answer.denied, "a settle denies");
}

/// [lm-7]
#[test]
fn a_request_is_one_with_any_hits() {
    on_both(|worlds| {
        for form in FORMS {
            for mode in [Mode::Atomic, Mode::Independent] {
                let world = worlds.with(&policy(&[&format!("{form}, counts: requests")]), mode);
                assert_eq!(world.ask(Operation::Consume(4_000_000)).statuses[0].remaining, 9, "{form}");
                assert_eq!(world.ask(Operation::Consume(1)).statuses[0].remaining, 8, "{form}");
                assert_eq!(left(&world), 8, "{form}: a peek is no request");
                world.ask(Operation::Refund(500));
                assert_eq!(left(&world), 9, "{form}: a refund gives one back");
                world.ask(Operation::Refund(0));
                assert_eq!(left(&world), 9, "{form}: a refund of nothing");
                let twice = [("user", "ann", Operation::Consume(7)); 2];
                world.ask_for(&twice, None);
                assert_eq!(left(&world), 7, "{form}: one for each descriptor");
                for _ in 0..7 {
                    assert!(!world.ask(Operation::Consume(90)).denied, "{form}");
                }
                assert!(world.ask(Operation::Consume(90)).denied, "{form}");
            }
        }
    });
}

/// [lm-7] [ky-4]
#[test]
fn requests_and_hits_of_one_window_are_separate_states() {
    let both = policy(&["rate: 1000/hour", "rate: 3/hour, counts: requests"]);
    on_both(|worlds| {
        let world = worlds.with(&both, Mode::Atomic);
        for remaining in [2, 1, 0] {
            assert_eq!(world.ask(Operation::Consume(100)).statuses[0].remaining, remaining);
        }
        assert!(world.ask(Operation::Consume(1)).denied, "the fourth request");
        world.step(HOUR_US);
        assert!(world.ask(Operation::Consume(1_001)).denied, "too many hits");
        assert_eq!(left(&world), 3, "which were no request");
        let shown: Vec<String> = world.states().into_iter().map(|state| state.key).collect();
        assert!(shown[0].ends_with("}f3600s") && shown[1].ends_with("}rf3600s"), "{shown:?}");
        // An override has other numbers, and counts the same.
        let of = |name: &str, requests| Numbers {
            name: Some(name.into()),
            requests,
            window: Unit::Hour.window(),
            burst: None,
        };
        world.set_override(&[of("rf3600s", 5)]);
        assert_eq!(world.ask(Operation::Consume(100)).statuses[0].remaining, 4);
    });
}

/// [lm-7]
#[test]
fn a_report_is_one_request_and_the_peek_before_it_none() {
    on_both(|worlds| {
        let world = worlds.with(&policy(&["rate: 2/hour, post_paid: true, counts: requests"]), Mode::Atomic);
        for remaining in [1, 0] {
            assert!(!world.ask(Operation::Peek).denied);
            world.ask(Operation::Consume(700));
            assert_eq!(left(&world), remaining);
        }
        assert!(world.ask(Operation::Peek).denied);
    });
}

/// [lm-7] [hd-5] [hd-9]
#[test]
fn a_settle_changes_no_number_of_requests_and_a_release_gives_a_held_one_back() {
    const TOKENS: &str = "rate: 1000/hour, hold: true";
    on_both(|worlds| {
        for (requests, after_release) in
            [("rate: 9/day, counts: requests", 4), ("rate: 9/day, counts: requests, hold: true", 5)]
        {
            let world = worlds.with(&policy(&[TOKENS, requests]), Mode::Atomic);
            for (used, remaining) in [(0, 8), (37, 7), (100, 6), (300, 5)] {
                let holds = world.ask(Operation::Consume(100)).holds;
                settle(&world, &holds, used);
                assert_eq!(left(&world), remaining, "{requests}: {used} of 100 used");
            }
            let holds = world.ask(Operation::Consume(100)).holds;
            world.release(&[("user", "ann", Operation::Consume(100))], holds);
            assert_eq!(left(&world), after_release, "{requests}: the caller is gone");
            let tokens = world.states()[0].remaining;
            assert_eq!(tokens, 1_000 - 37 - 100 - 300, "{requests}");
            assert_eq!(world.holds.get().0[3], 0, "{requests}: nothing is lost");
        }
    });
}

/// [lm-7] [hd-3]
#[test]
fn a_post_paid_limit_gets_one_request_by_the_settle() {
    let reported = "rate: 9/day, counts: requests, post_paid: true";
    on_both(|worlds| {
        // A hold on trial leaves the request to its opening.
        for (hold, after_nothing) in
            [("rate: 1000/hour, hold: true", 9), ("rate: 1000/hour, hold: true, shadow: true", 8)]
        {
            let world = worlds.with(&policy(&[hold, reported]), Mode::Atomic);
            for (used, remaining) in [(0, after_nothing), (37, after_nothing - 1), (300, after_nothing - 2)] {
                let holds = world.ask(Operation::Consume(100)).holds;
                settle(&world, &holds, used);
                assert_eq!(left(&world), remaining, "{hold}: {used} of 100 used");
            }
        }
    });
}
