//! Budgets of more hits than 32 bits hold, on both stores: to the last hit by charges, holds, refunds, rows and overrides. Not in
//! here: small limits, which the other files have.

use weir_engine::overrides::Numbers;
use weir_engine::{Mode, Operation, RowContent, Unit};
use weir_limiter::{HeldCharge, Settle};

use crate::support::worlds::{World, on_both};

/// Ten million dollars in micro-dollars.
const BUDGET: u64 = 10_000_000_000_000;
/// The most hits of one charge.
const MOST: u32 = u32::MAX;
/// Each window that counts so far.
const WINDOWS: [&str; 2] =
    ["rate: 10_000_000_000_000/month, calendar: true", "rate: 10_000_000_000_000/month, anchor: first_hit"];

fn policy(limit: &str) -> String {
    format!("domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n  - {{{limit}}}\n")
}

fn left(world: &World<'_>) -> u64 {
    world.ask(Operation::Peek).statuses[0].remaining
}

/// Settles by each of these descriptors of ann, which have used so many hits.
fn settle(world: &World<'_>, holds: &[HeldCharge], used: &[u32]) {
    let asked: Vec<_> = used.iter().map(|hits| ("user", "ann", Operation::Consume(*hits))).collect();
    let settle = Settle { descriptors: (1 << used.len()) - 1, holds: holds.to_vec() };
    assert!(!world.ask_for(&asked, Some(settle)).denied, "a settle denies");
}

/// [lm-8]
#[test]
fn ten_million_dollars_count_to_the_last_one() {
    on_both(|worlds| {
        for limit in WINDOWS {
            for mode in [Mode::Atomic, Mode::Independent] {
                let world = worlds.with(&policy(limit), mode);
                let mut remaining = BUDGET;
                while remaining > u64::from(MOST) {
                    remaining -= u64::from(MOST);
                    let answer = world.ask(Operation::Consume(MOST));
                    assert!(!answer.denied, "{limit}: {remaining}");
                    assert_eq!(answer.statuses[0].remaining, remaining, "{limit}");
                }
                let rest = u32::try_from(remaining).expect("less than a charge");
                assert_eq!(world.ask(Operation::Consume(rest - 1)).statuses[0].remaining, 1, "{limit}");
                assert!(!world.ask(Operation::Consume(1)).denied, "{limit}: the last one");
                assert!(world.ask(Operation::Consume(1)).denied, "{limit}: one more");
                world.ask(Operation::Refund(MOST));
                let denied = u64::from(mode == Mode::Independent);
                assert_eq!(left(&world), u64::from(MOST) - denied, "{limit}: a refund comes back exactly");
            }
        }
    });
}

/// [hd-7]
#[test]
fn holds_of_a_budget_settle_exactly() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let world = worlds.with(&policy(&format!("{limit}, hold: true")), Mode::Atomic);
            let open = || world.ask(Operation::Consume(MOST)).holds;
            let (first, second, third) = (open(), open(), open());
            assert_eq!(left(&world), BUDGET - 3 * u64::from(MOST), "{limit}");
            settle(&world, &first, &[1]);
            assert_eq!(left(&world), BUDGET - 2 * u64::from(MOST) - 1, "{limit}: the rest came back");
            settle(&world, &second, &[MOST]);
            assert_eq!(left(&world), BUDGET - 2 * u64::from(MOST) - 1, "{limit}: all was used");
            // An excess that needs more than 32 bits.
            settle(&world, &third, &[MOST; 3]);
            assert_eq!(left(&world), BUDGET - 4 * u64::from(MOST) - 1, "{limit}: the excess is charged");
            let largest = u64::from(MOST);
            assert_eq!(world.holds.get(), ([3, 3, 0, 0], [3 * largest, largest - 1, 2 * largest]), "{limit}");
            let gone = open();
            world.release(&[("user", "ann", Operation::Consume(MOST))], gone);
            assert_eq!(left(&world), BUDGET - 4 * largest - 1, "{limit}: a release gives all back");
        }
    });
}

/// [lm-8] [tr-1] [tr-2]
#[test]
fn a_budget_on_trial_counts_to_the_last_one_and_keeps_its_state_when_it_is_enforced() {
    on_both(|worlds| {
        for window in ["calendar: true", "anchor: first_hit"] {
            let limit = format!("rate: 10_000_000_000/month, {window}, name: tried");
            let world = worlds.with(&policy(&format!("{limit}, shadow: true")), Mode::Atomic);
            let rest = u32::try_from(10_000_000_000 - 2 * u64::from(MOST)).expect("less than a charge");
            for (hits, is_over) in [(MOST, false), (MOST, false), (rest + 1, true), (rest - 1, false)] {
                assert!(!world.ask(Operation::Consume(hits)).denied, "{window}");
                assert_eq!(world.trials.take(), [("tried".to_owned(), is_over)], "{window}: {hits}");
            }
            world.swap(&policy(&limit));
            assert_eq!(left(&world), 1, "{window}");
            assert!(world.ask(Operation::Consume(2)).denied, "{window}");
        }
    });
}

/// [ov-1] [rw-1]
#[test]
fn rows_and_overrides_have_budgets() {
    const TEXT: &str = "domain: shop
descriptors:
- key: user
  rows: {default: free}
  rate_limit: {rate: 5/month, calendar: true, plans: {gold: 10_000_000_000_000/month}}
- key: paced
  rate_limit: {rate: 5/month, algorithm: gcra}
";
    let numbers = |requests| Numbers { name: None, requests, window: Unit::Month.window(), burst: None };
    on_both(|worlds| {
        let world = worlds.with(TEXT, Mode::Atomic);
        let row = |content| world.set_row("user", "ann", content);
        assert_eq!(world.ask(Operation::Consume(2)).statuses[0].remaining, 3);
        row(RowContent::Plan("gold".into()));
        assert_eq!(world.ask(Operation::Consume(MOST)).statuses[0].remaining, BUDGET - u64::from(MOST) - 2);
        row(RowContent::Own([numbers(1_234_567_890_123)].into()));
        assert_eq!(
            world.ask(Operation::Consume(MOST)).statuses[0].remaining,
            1_234_567_890_123 - 2 * u64::from(MOST) - 2
        );
        // What was used stays, and is more than the small limit has.
        world.remove_row("user", "ann");
        assert!(world.ask(Operation::Consume(1)).denied);
        world.set_override(&[numbers(999_999_999_999_999)]);
        assert_eq!(left(&world), 999_999_999_999_999 - 2 * u64::from(MOST) - 2);
    });
}
