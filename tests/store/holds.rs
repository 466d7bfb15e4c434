//! Holds on both stores: what an opening charges, what its receipt settles, and what is counted of that. Not in here: receipts as
//! texts (rls), and that a settle leaves what the actual alone would have left (engine/holds.rs).

use weir_engine::overrides::Numbers;
use weir_engine::{Micros, Mode, Operation, Window};
use weir_limiter::{HOLDS_MAX, HeldCharge, HeldIn, OverriddenLimit, Settle};

use crate::support::redis::RedisServer;
use crate::support::worlds::{World, Worlds, on_both};

const HOUR_US: Micros = 3_600_000_000;
/// The windows that can be holds, each of ten hits.
const WINDOWS: [&str; 5] = [
    "rate: 10/hour",
    "rate: 10/hour, anchor: first_hit",
    "rate: 10/day, calendar: true, timezone: Europe/Berlin",
    "rate: 10/hour, algorithm: sliding_window_counter",
    "rate: 10/hour, algorithm: sliding_window, precision: 10m",
];

fn policy(limit: &str) -> String {
    format!("domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n  - {{{limit}, hold: true}}\n")
}

/// A settle by the first descriptor.
fn first(holds: &[HeldCharge]) -> Settle {
    Settle { descriptors: 1, holds: holds.to_vec() }
}

fn ann(hits: u32) -> [(&'static str, &'static str, Operation); 1] {
    [("user", "ann", if hits == 0 { Operation::Peek } else { Operation::Consume(hits) })]
}

/// Asks for an estimate. Returns what is held if the request passes.
fn open(world: &World<'_>, hits: u32) -> Option<Vec<HeldCharge>> {
    let answer = world.ask_for(&ann(hits), None);
    assert!(!answer.denied || answer.holds.is_empty(), "a denied request has a receipt");
    (!answer.denied).then_some(answer.holds)
}

/// Settles, and returns what remains.
fn settle(world: &World<'_>, holds: &[HeldCharge], used: u32) -> u64 {
    let answer = world.ask_for(&ann(used), Some(first(holds)));
    assert!(!answer.denied && !answer.statuses[0].over, "a settle denies");
    assert_eq!(answer.holds, []);
    answer.statuses[0].remaining
}

fn left(world: &World<'_>) -> u64 {
    world.ask(Operation::Peek).statuses[0].remaining
}

#[test]
fn a_settle_leaves_what_was_used() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let world = worlds.with(&policy(limit), Mode::Atomic);
            let holds = open(&world, 6).expect("it fits");
            assert_eq!((holds.len(), holds[0].receipt.hits), (1, 6), "{limit}");
            assert_eq!(open(&world, 5), None, "{limit}: what is held is charged");
            let other = open(&world, 4).expect("it fits");
            assert_eq!(settle(&world, &holds, 1), 5, "{limit}: less than held");
            assert_eq!(settle(&world, &other, 4), 5, "{limit}: as much as held");
            let third = open(&world, 2).expect("it fits");
            assert_eq!(settle(&world, &third, 4), 1, "{limit}: more than held");
            let fourth = open(&world, 1).expect("it fits");
            assert_eq!(settle(&world, &fourth, 9), 0, "{limit}: past the limit");
            assert_eq!(open(&world, 1), None, "{limit}");
            assert_eq!(world.holds.get(), ([4, 4, 0, 0], [13, 5, 10]), "{limit}");
        }
    });
}

#[test]
fn an_estimate_takes_at_most_the_limit_and_a_limit_of_0_stays_never() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let world = worlds.with(&policy(limit), Mode::Atomic);
            let holds = open(&world, 1_000_000).expect("an estimate is never too large");
            assert_eq!((holds[0].receipt.hits, left(&world)), (10, 0), "{limit}");
            assert_eq!(settle(&world, &holds, 3), 7, "{limit}");
            let none = worlds.with(&policy(&limit.replace("rate: 10", "rate: 0")), Mode::Atomic);
            let answer = none.ask(Operation::Consume(5));
            assert!(answer.denied && answer.retry_after.is_none(), "{limit}");
        }
    });
}

/// [hd-10]
#[test]
fn a_settle_leaves_the_minimum_charged() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let text = policy(limit).replace("rate: 10", "rate: 100").replace("hold: true", "hold: {at_least: 10}");
            let world = worlds.with(&text, Mode::Atomic);
            let mut remaining = 100;
            // What is held, used and charged.
            for (held, used, charged) in [
                (30, 0, 10),
                (30, 9, 10),
                (30, 10, 10),
                (30, 11, 11),
                (4, 0, 4),
                (4, 3, 4),
                (4, 7, 7),
                (10, 1, 10),
                (11, 1, 10),
            ] {
                let holds = open(&world, held).expect("it fits");
                remaining -= charged;
                assert_eq!(settle(&world, &holds, used), remaining, "{limit}: {held} held, {used} used");
            }
            // Not one settle is lost, late or counted as repeated.
            assert_eq!(world.holds.all(), ([9, 9, 0, 0, 0, 0], [153, 80, 3]), "{limit}");
            assert_eq!(settle(&world, &[], 50), remaining, "{limit}: without a receipt there is no minimum");
        }
    });
}

/// [hd-10]
#[test]
fn a_minimum_is_charged_once_for_each_key_and_to_no_post_paid_limit() {
    let text = "domain: shop
descriptors:
- key: user
  rate_limits:
  - {rate: 100/hour, hold: {at_least: 10}}
  - {rate: 1000/day, hold: true, name: day}
  - {rate: 1000/week, post_paid: true}
  - {rate: 500/week, hold: {at_least: 20}, shadow: true, name: trial}
- {key: tenant, rate_limit: {rate: 100/hour, hold: {at_least: 30}}}
";
    on_both(|worlds| {
        let world = worlds.with(text, Mode::Atomic);
        let states = || world.states().iter().map(|state| state.remaining).collect::<Vec<_>>();
        let tenant = || world.ask_for(&[("tenant", "acme", Operation::Peek)], None).statuses[0].remaining;
        let eight = Operation::Consume(8);
        let asked = [("user", "ann", eight), ("user", "ann", eight), ("tenant", "acme", Operation::Consume(50))];
        let holds = world.ask_for(&asked, None).holds;
        // Envoy sends a descriptor with 0 beside the one with the count.
        let asked = [
            ("user", "ann", Operation::Peek),
            ("user", "ann", Operation::Consume(3)),
            ("tenant", "acme", Operation::Consume(3)),
        ];
        world.ask_for(&asked, Some(Settle { descriptors: 0b111, holds }));
        assert_eq!((states(), tenant()), (vec![90, 997, 997, 484], 70));
        assert_eq!(world.holds.get().0[3], 0, "nothing is lost");
        let refunded = world.ask_for(&[("tenant", "acme", Operation::Refund(30))], None);
        assert_eq!(refunded.statuses[0].remaining, 100, "a refund has no minimum");
    });
}

/// The receipt has no minimum: the policy at the settle has it. [hd-10]
#[test]
fn the_minimum_is_that_of_the_policy_at_the_settle() {
    let (with, without) = (policy("rate: 100/hour").replace("true", "{at_least: 10}"), policy("rate: 100/hour"));
    let plain = without.replace(", hold: true", "");
    on_both(|worlds| {
        for (before, after, remaining) in
            [(&with, &without, 99), (&without, &with, 90), (&with, &plain, 70), (&with, &with, 90)]
        {
            let world = worlds.with(before, Mode::Atomic);
            let holds = open(&world, 30).expect("it fits");
            world.swap(after);
            world.ask_for(&ann(1), Some(first(&holds)));
            assert_eq!(left(&world), remaining, "{before}\n{after}");
        }
        // Under an override too, also after its end.
        let world = worlds.with(&with, Mode::Atomic);
        world.set_override(&[numbers(None, 50, 2)]);
        let [one, other] = [20, 20].map(|hits| open(&world, hits).expect("it fits"));
        assert_eq!(settle(&world, &one, 0), 20);
        world.delete_override();
        settle(&world, &other, 0);
        world.set_override(&[numbers(None, 50, 2)]);
        assert_eq!(left(&world), 30);
        // Outside of the term of the limit.
        let world = worlds.with(&with, Mode::Atomic);
        let holds = open(&world, 30).expect("it fits");
        world.swap(&with.replace("hold:", "until: '2030-01-01T00:00:00Z', hold:"));
        world.ask_for(&ann(1), Some(first(&holds)));
        world.swap(&with);
        assert_eq!(left(&world), 90);
        // A minimum above the limit of an override: nothing comes back.
        world.set_override(&[numbers(None, 5, 3)]);
        let holds = open(&world, 20).expect("it fits");
        assert_eq!(settle(&world, &holds, 0), 0);
    });
}

/// weir gives back all of a hold whose caller has gone. [hd-9] [hd-10]
#[test]
fn a_release_by_weir_has_no_minimum() {
    on_both(|worlds| {
        let world = worlds.with(&policy("rate: 100/hour").replace("true", "{at_least: 10}"), Mode::Atomic);
        let holds = open(&world, 30).expect("it fits");
        world.release(&ann(30), holds);
        assert_eq!((left(&world), world.holds.get()), (100, ([1, 1, 0, 0], [30, 30, 0])));
    });
}

/// Numbers of an override, in hits per hours.
fn numbers(name: Option<&str>, requests: u64, hours: u64) -> Numbers {
    let window = Window::from_micros(hours * HOUR_US).expect("at most 366 days");
    Numbers { name: name.map(Into::into), requests, window, burst: None }
}

/// [ov-4]
#[test]
fn a_hold_is_settled_after_an_override_began_or_ended() {
    on_both(|worlds| {
        for limit in WINDOWS.iter().filter(|limit| !limit.contains("calendar")) {
            let own = worlds.with(&policy(limit), Mode::Atomic);
            let [less, all, more] = [3, 2, 4].map(|hits| open(&own, hits).expect("it fits"));
            // Another window, so another state.
            own.set_override(&[numbers(None, 100, 2)]);
            assert_eq!(settle(&own, &less, 1), 100, "{limit}: less than held");
            assert_eq!(settle(&own, &all, 2), 100, "{limit}: as much as held");
            assert_eq!(settle(&own, &more, 9), 95, "{limit}: the excess is charged under the override");
            own.delete_override();
            assert_eq!(left(&own), 3, "{limit}");
            assert_eq!(own.holds.get(), ([3, 3, 0, 0], [9, 2, 5]), "{limit}");

            let overridden = worlds.with(&policy(limit), Mode::Atomic);
            overridden.set_override(&[numbers(None, 100, 720)]);
            let [less, more] = [60, 20].map(|hits| open(&overridden, hits).expect("it fits"));
            overridden.step(HOUR_US);
            assert_eq!(settle(&overridden, &less, 10), 10, "{limit}: the override has ended");
            assert_eq!(settle(&overridden, &more, 25), 5, "{limit}: the excess is charged under the rule");
            overridden.set_override(&[numbers(None, 50, 24)]);
            let other = open(&overridden, 9).expect("it fits");
            overridden.set_override(&[numbers(None, 100, 720)]);
            assert_eq!(settle(&overridden, &other, 0), 70, "{limit}: another override");
            overridden.set_override(&[numbers(None, 50, 24)]);
            assert_eq!(left(&overridden), 50, "{limit}");
            assert_eq!(overridden.holds.get(), ([3, 3, 0, 0], [89, 59, 5]), "{limit}");
        }
    });
}

/// [ov-4]
#[test]
fn each_of_several_holds_is_settled_in_the_limit_that_it_was_charged_to() {
    let limits = "{rate: 10/hour, hold: true, name: short}, {rate: 100/day, hold: true, name: long}";
    let policy = format!("domain: shop\ndescriptors:\n- key: user\n  rate_limits: [{limits}]\n");
    let long = |hours| [numbers(Some("long"), 50, hours)];
    on_both(|worlds| {
        let world = worlds.with(&policy, Mode::Atomic);
        let left = || world.states().iter().map(|state| state.remaining).collect::<Vec<_>>();
        world.set_override(&long(48));
        let holds = open(&world, 8).expect("it fits");
        world.delete_override();
        settle(&world, &holds, 3);
        assert_eq!(left(), [7, 100]);
        world.set_override(&long(48));
        assert_eq!(left(), [7, 47]);
        // Both limits have had the same shape, by two overrides.
        let holds = open(&world, 6).expect("it fits");
        world.set_override(&[numbers(Some("short"), 20, 48)]);
        settle(&world, &holds, 9);
        assert_eq!(left(), [8, 97], "the excess of both");
        world.set_override(&long(48));
        assert_eq!(left(), [1, 38], "nothing goes back");
    });
}

/// [ov-4]
#[test]
fn a_receipt_with_more_overrides_than_its_bound_is_lost_and_no_other() {
    on_both(|worlds| {
        let world = worlds.with(&policy("rate: 1000/hour"), Mode::Atomic);
        world.set_override(&[numbers(None, 1_000, 24)]);
        let held = open(&world, 10).expect("it fits")[0];
        let in_hours = |hours| {
            let window = Window::from_micros(hours * HOUR_US).expect("a window");
            let overridden = held.overridden.map(|one| OverriddenLimit { window, ..one });
            HeldCharge { key: 7, overridden, ..held }
        };
        world.delete_override();
        let others: Vec<_> = (100..108).map(in_hours).collect();
        settle(&world, &[&others[..], &[held]].concat(), 0);
        assert_eq!(world.holds.get(), ([1, 0, 0, 9], [10, 0, 0]));
        settle(&world, &[&others[1..], &[held]].concat(), 0);
        assert_eq!(world.holds.get(), ([1, 1, 0, 16], [10, 10, 0]));
    });
}

/// [hd-6]
#[test]
fn what_no_longer_counts_is_not_given_back_to_a_later_window() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let world = worlds.with(&policy(limit), Mode::Atomic);
            let holds = open(&world, 8).expect("it fits");
            world.step(25 * HOUR_US);
            open(&world, 5).expect("a new window");
            assert_eq!(settle(&world, &holds, 1), 5, "{limit}: the hits of the new window stay");
            assert_eq!(settle(&world, &holds, 9), 4, "{limit}: what was used beyond counts now");
            assert_eq!(settle(&world, &holds, 8), 4, "{limit}: nothing to give back");
            assert_eq!(world.holds.all(), ([2, 0, 3, 0, 0, 0], [13, 0, 1]), "{limit}: three settles are late");
        }
    });
}

/// Three settles of one opening counted 3 holds and 240 of 80 hits.
#[test]
fn a_hold_that_is_settled_again_counts_by_what_the_store_gave_back() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let world = worlds.with(&policy(&limit.replace("rate: 10", "rate: 100")), Mode::Atomic);
            let holds = open(&world, 80).expect("it fits");
            for _ in 0..3 {
                assert_eq!(settle(&world, &holds, 0), 100, "{limit}");
            }
            assert_eq!(world.holds.all(), ([1, 1, 0, 2, 0, 0], [80, 80, 0]), "{limit}");
            // A part of the hits is left.
            let holds = open(&world, 80).expect("it fits");
            assert_eq!(settle(&world, &holds, 30), 70, "{limit}");
            assert_eq!(settle(&world, &holds, 30), 100, "{limit}");
            assert_eq!(world.holds.all(), ([2, 2, 0, 3, 0, 0], [160, 160, 0]), "{limit}");
            // Two holds of one key, in one settle.
            let two = [open(&world, 20), open(&world, 30)].map(|holds| holds.expect("it fits")).concat();
            assert_eq!(settle(&world, &two, 10), 90, "{limit}");
            assert_eq!(world.holds.all(), ([4, 4, 0, 3, 0, 0], [210, 200, 0]), "{limit}");
        }
    });
}

/// A denial that estimates cause ends when they are settled. [dt-1]
#[test]
fn a_denial_by_a_hold_says_at_the_latest() {
    let text = "domain: shop
descriptors:
- {key: user, rate_limit: {rate: 10/hour, hold: true}}
- {key: plain, rate_limit: {rate: 10/hour}}
";
    on_both(|worlds| {
        let world = worlds.with(text, Mode::Atomic);
        let asked = |key, hits| world.ask_for(&[(key, "ann", Operation::Consume(hits))], None).statuses[0].clone();
        let is_bound =
            |key, hits| asked(key, hits).detail.and_then(|detail| detail.fits_after).map(|wait| wait.is_bound);
        assert_eq!(is_bound("user", 4), Some(false), "the same hits fit again at once");
        assert_eq!((is_bound("user", 6), is_bound("user", 1)), (Some(true), Some(true)));
        assert!(asked("user", 1).over);
        assert_eq!((is_bound("plain", 10), is_bound("plain", 1)), (Some(false), Some(false)));
    });
}

/// FNV-1a gives both keys one number. Their receipts could give the hits of one key back to the other. [hd-4] [hd-6]
#[test]
fn nothing_goes_to_a_key_that_has_the_number_of_another_one() {
    const ONE: &str = "xcPegKwU-rO";
    const OTHER: &str = "LFpYVvBC0aM";
    on_both(|worlds| {
        let world = worlds.with(&policy(WINDOWS[0]), Mode::Atomic);
        let ask = |users: &[(&str, u32)], settle| {
            let operation = |hits| if hits == 0 { Operation::Peek } else { Operation::Consume(hits) };
            let asked: Vec<_> = users.iter().map(|&(user, hits)| ("user", user, operation(hits))).collect();
            let answer = world.ask_for(&asked, settle);
            (answer.statuses.iter().map(|status| status.remaining).collect::<Vec<_>>(), answer.holds)
        };
        assert_eq!(ask(&[(ONE, 6), (OTHER, 4)], None), (vec![4, 6], vec![]), "no receipt for both");
        assert_eq!(world.holds.get(), ([2, 0, 0, 2], [10, 0, 0]));
        let (_, holds) = ask(&[(ONE, 2)], None);
        assert_eq!(holds.len(), 1);
        let both = Settle { descriptors: 0b11, holds: holds.clone() };
        assert_eq!(ask(&[(ONE, 0), (OTHER, 0)], Some(both)), (vec![2, 6], vec![]), "for which of them is not certain");
        assert_eq!(ask(&[(ONE, 0)], Some(first(&holds))), (vec![4], vec![]));
        assert_eq!(world.holds.get(), ([3, 1, 0, 3], [12, 2, 0]));
        // One key in two descriptors is not ambiguous.
        let (_, holds) = ask(&[(ONE, 1), (ONE, 1)], None);
        assert_eq!(holds.len(), 2);
    });
}

#[test]
fn post_paid_limits_beside_a_hold_wait_for_the_settle() {
    let text = "domain: shop
descriptors:
- key: user
  rate_limits: [{rate: 10/hour, hold: true}, {rate: 100/day, post_paid: true}]
- key: tenant
  rate_limit: {rate: 50/day, post_paid: true}
- key: plain
  rate_limit: {rate: 20/hour}
";
    on_both(|worlds| {
        let world = worlds.with(text, Mode::Atomic);
        let asked = |hits| [("user", "ann", hits), ("tenant", "acme", hits), ("plain", "x", hits)];
        let used = || {
            let states = world.states();
            let tenant = world.ask_for(&[("tenant", "acme", Operation::Peek)], None).statuses[0].remaining;
            let plain = world.ask_for(&[("plain", "x", Operation::Peek)], None).statuses[0].remaining;
            (10 - states[0].remaining, 100 - states[1].remaining, 50 - tenant, 20 - plain)
        };
        let answer = world.ask_for(&asked(Operation::Consume(4)), None);
        assert_eq!((answer.holds.len(), used()), (1, (4, 0, 0, 4)), "post-paid limits are looked at");
        let settle = Settle { descriptors: 0b111, holds: answer.holds };
        world.ask_for(&asked(Operation::Consume(7)), Some(settle));
        assert_eq!(used(), (7, 7, 7, 4), "the actual goes to holds and post-paid limits, and to no others");
        let plain_report = Settle { descriptors: 0b111, holds: Vec::new() };
        let answer = world.ask_for(&asked(Operation::Consume(60)), Some(plain_report));
        assert!(!answer.denied);
        assert_eq!(used(), (7, 67, 50, 4), "without a receipt only post-paid limits are charged");
        assert_eq!(world.holds.get(), ([1, 1, 1, 0], [4, 0, 3]));
        // A descriptor that meets no hold reports as ever.
        world.ask_for(&[("tenant", "other", Operation::Consume(5))], None);
        assert_eq!(world.ask_for(&[("tenant", "other", Operation::Peek)], None).statuses[0].remaining, 45);
    });
}

/// Reports of callers that knew of no hold were not charged while one was on trial. [hd-3] [tr-3]
#[test]
fn a_hold_on_trial_changes_nothing_for_post_paid_limits() {
    let text = |more: &str| {
        format!("domain: shop\ndescriptors:\n- key: user\n  rate_limits: [{{rate: 100/day, post_paid: true}}{more}]\n")
    };
    on_both(|worlds| {
        let without = worlds.with(&text(""), Mode::Atomic);
        let trial = worlds.with(&text(", {rate: 100/hour, hold: true, shadow: true}"), Mode::Atomic);
        let remaining = |world: &World<'_>, hits| world.ask_for(&ann(hits), None).statuses[0].remaining;
        assert_eq!((remaining(&without, 37), remaining(&trial, 37)), (63, 63), "a report is charged");
        let states = || trial.states().iter().map(|state| state.remaining).collect::<Vec<_>>();
        // The estimate was a report. A settle reports nothing, as without the trial: no rule would meet its entry.
        let holds = trial.ask_for(&ann(8), None).holds;
        trial.ask_for(&ann(3), Some(first(&holds)));
        assert_eq!(states(), [55, 60]);
    });
}

/// An enforced hold of another descriptor of the settle made its post-paid limits report a second time. [hd-3]
#[test]
fn a_settle_of_a_hold_on_trial_reports_nothing_beside_an_enforced_hold() {
    let text = "domain: shop
descriptors:
- key: user
  rate_limits: [{rate: 100/hour, hold: true, shadow: true}, {rate: 100/day, post_paid: true}]
- {key: job, rate_limit: {rate: 10/hour, hold: true}}
";
    on_both(|worlds| {
        for beside in [Operation::Peek, Operation::Consume(1), Operation::Refund(1)] {
            let world = worlds.with(text, Mode::Atomic);
            let states = || world.states().iter().map(|state| state.remaining).collect::<Vec<_>>();
            let holds = world.ask_for(&ann(8), None).holds;
            assert_eq!((holds.len(), states()), (1, vec![92, 92]), "the opening reports");
            let asked = [("user", "ann", Operation::Consume(3)), ("job", "x", beside)];
            world.ask_for(&asked, Some(first(&holds)));
            assert_eq!(states(), [97, 92], "{beside:?}");
            // If the settle is for an enforced hold too, its opening reported nothing.
            let opened = [("user", "ann", Operation::Consume(8)), ("job", "x", Operation::Consume(1))];
            let holds = world.ask_for(&opened, None).holds;
            assert_eq!((holds.len(), states()), (2, vec![89, 92]), "{beside:?}");
            world.ask_for(&opened, Some(Settle { descriptors: 0b11, holds }));
            assert_eq!(states(), [89, 84], "{beside:?}");
        }
    });
}

/// What the rule says of policies that change, and of a settle of some of the descriptors. [hd-3]
#[test]
fn a_settle_knows_only_its_own_descriptors_and_the_policies_in_force() {
    let text = |shadow: &str| {
        format!(
            "domain: shop
descriptors:
- key: user
  rate_limits: [{{rate: 100/hour, hold: true{shadow}}}, {{rate: 100/day, post_paid: true}}]
- {{key: job, rate_limit: {{rate: 10/hour, hold: true}}}}
- {{key: month, rate_limit: {{rate: 100/day, post_paid: true}}}}
"
        )
    };
    let (trial, enforced) = (text(", shadow: true"), text(""));
    on_both(|worlds| {
        let consume = Operation::Consume;
        for (opened, settled, left) in [(&trial, &enforced, 89), (&enforced, &trial, 100)] {
            let world = worlds.with(opened, Mode::Atomic);
            let holds = world.ask_for(&ann(8), None).holds;
            world.swap(settled);
            world.ask_for(&ann(3), Some(first(&holds)));
            assert_eq!(world.states()[1].remaining, left);
        }
        let world = worlds.with(&trial, Mode::Atomic);
        let holds = world.ask_for(&[("user", "ann", consume(8)), ("job", "x", consume(1))], None).holds;
        world.ask_for(&ann(3), Some(first(&holds)));
        assert_eq!(world.states()[1].remaining, 100, "the descriptor with the trial alone");
        let holds = world.ask_for(&[("user", "ann", consume(8)), ("month", "x", consume(8))], None).holds;
        world.ask_for(&[("month", "x", consume(3))], Some(first(&holds)));
        let month = world.ask_for(&[("month", "x", Operation::Peek)], None).statuses[0].remaining;
        assert_eq!(month, 89, "the other descriptor alone");
    });
}

/// A report of 37 beside a peek at a hold was answered with OK, and charged nowhere. [hd-3]
#[test]
fn a_report_beside_a_peek_or_a_refund_of_a_hold_is_charged() {
    let text = "domain: shop
descriptors:
- {key: user, rate_limit: {rate: 10/hour, hold: true}}
- {key: job, rate_limit: {requests_per_unit: 2, window: 60s, algorithm: concurrency}}
- {key: month, rate_limit: {rate: 100/day, post_paid: true}}
";
    on_both(|worlds| {
        let world = worlds.with(text, Mode::Atomic);
        let left = |key| world.ask_for(&[(key, "ann", Operation::Peek)], None).statuses[0].remaining;
        let mut expected = 100;
        for held in ["user", "job"] {
            for beside in [Operation::Peek, Operation::Refund(0), Operation::Refund(3)] {
                let asked = [(held, "ann", beside), ("month", "ann", Operation::Consume(7))];
                let answer = world.ask_for(&asked, None);
                expected -= 7;
                assert_eq!((answer.denied, answer.holds.len()), (false, 0), "{held} {beside:?}");
                assert_eq!(left("month"), expected, "{held} {beside:?}");
            }
            let asked = [(held, "ann", Operation::Consume(1)), ("month", "ann", Operation::Consume(7))];
            assert_eq!(world.ask_for(&asked, None).holds.len(), 1);
            assert_eq!(left("month"), expected, "{held}: charged at the settle");
        }
    });
}

/// A refund of 0 hits was a peek, and so OVER_LIMIT on a full limit. [dc-9]
#[test]
fn a_refund_of_0_hits_is_within_and_changes_nothing() {
    on_both(|worlds| {
        for limit in ["rate: 2/hour", "rate: 2/hour, algorithm: gcra", "rate: 2/hour, algorithm: sliding_window_log"] {
            let text = format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {{{limit}}}}}]\n");
            for mode in Mode::ALL {
                let world = worlds.with(&text, mode);
                let nothing = || world.ask(Operation::Refund(0));
                assert_eq!((nothing().denied, nothing().statuses[0].remaining), (false, 2), "{limit}");
                world.ask(Operation::Consume(2));
                let answer = nothing();
                assert_eq!((answer.denied, answer.statuses[0].over, answer.statuses[0].remaining), (false, false, 0));
                assert_eq!(left(&world), 0, "{limit}");
            }
        }
    });
}

#[test]
fn descriptors_of_one_key_are_summed_and_a_charge_on_no_key_of_the_call_stays() {
    let text = "domain: shop
descriptors:
- {key: user, rate_limit: {rate: 10/hour, hold: true}}
- {key: tenant, rate_limit: {rate: 50/hour, hold: true}}
";
    on_both(|worlds| {
        let world = worlds.with(text, Mode::Atomic);
        let four = Operation::Consume(4);
        let answer = world.ask_for(&[("user", "ann", four), ("user", "ann", four), ("tenant", "acme", four)], None);
        assert_eq!(answer.holds.len(), 3);
        let tenant = || world.ask_for(&[("tenant", "acme", Operation::Peek)], None).statuses[0].remaining;
        let settle = |asked: &[(&str, &str, Operation)]| {
            let settle = Settle { descriptors: (1 << asked.len()) - 1, holds: answer.holds.clone() };
            world.ask_for(asked, Some(settle));
        };
        // The release with 0 beside the actual: as Envoy sends both.
        settle(&[("user", "ann", Operation::Peek), ("user", "ann", Operation::Consume(5))]);
        assert_eq!((left(&world), tenant()), (5, 46), "5 of 8 were used; the tenant's charge stays");
        assert_eq!(world.holds.get(), ([3, 2, 0, 1], [12, 3, 0]));
        settle(&[("tenant", "acme", Operation::Consume(9))]);
        assert_eq!((left(&world), tenant()), (5, 41));
    });
}

#[test]
fn a_request_that_was_denied_has_no_receipt_and_changes_nothing() {
    on_both(|worlds| {
        let world = worlds.with(&policy(WINDOWS[4]), Mode::Atomic);
        open(&world, 8).expect("it fits");
        for _ in 0..100 {
            assert_eq!(open(&world, 3), None);
            assert_eq!(settle(&world, &[], 0), 2);
        }
        assert_eq!(world.holds.get(), ([1, 0, 100, 0], [8, 0, 0]));
    });
}

#[test]
fn a_hold_of_another_process_store_or_key_is_lost_and_charges_nothing() {
    on_both(|worlds| {
        let world = worlds.with(&policy(WINDOWS[0]), Mode::Atomic);
        let holds = open(&world, 6).expect("it fits");
        let with = |change: fn(&mut HeldCharge)| {
            let mut other = holds.clone();
            change(&mut other[0]);
            other
        };
        let others = [
            with(|hold| hold.key ^= 1),
            with(|hold| hold.store = HeldIn::PerSecond),
            with(|hold| {
                hold.store = match hold.store {
                    HeldIn::Process(process) => HeldIn::Process(process ^ 1),
                    _ => HeldIn::Process(7),
                }
            }),
        ];
        for (number, other) in others.iter().enumerate() {
            assert_eq!(settle(&world, other, 1), 4);
            assert_eq!(settle(&world, other, 100), 4, "nothing is charged for it");
            assert_eq!(world.holds.get().0, [1, 0, 0, 2 * (number as u64 + 1)]);
        }
        world.swap(&policy("rate: 10/minute"));
        settle(&world, &holds, 1);
        assert_eq!(world.holds.get().0, [1, 0, 0, 7], "the limit has another window now");
        world.swap(&policy(WINDOWS[0]));
        assert_eq!(settle(&world, &holds, 1), 9);
    });
}

/// Whoever writes receipts can give hits back that still count, as with `is_negative_hits`, and no more.
#[test]
fn a_forged_receipt_gives_back_at_most_what_is_there() {
    on_both(|worlds| {
        for limit in WINDOWS {
            let world = worlds.with(&policy(limit), Mode::Atomic);
            let holds = open(&world, 6).expect("it fits");
            let most = (1 << 53) - 1;
            for (hits, at, mark) in [(u32::MAX, 0, 0), (u32::MAX, most, most), (1, most, 0), (9, 0, most)] {
                let mut forged = holds.clone();
                (forged[0].receipt.hits, forged[0].receipt.at, forged[0].receipt.mark) = (hits, at, mark);
                assert!(matches!(settle(&world, &forged, 0), 4..=10), "{limit}");
            }
            let mut forged = holds.clone();
            forged[0].receipt.hits = u32::MAX;
            assert_eq!(settle(&world, &forged, 0), 10, "{limit}: never below empty");
            open(&world, 10).expect("it is as if it were new");
        }
    });
}

#[test]
fn more_holds_than_a_receipt_has_room_for_stay_as_they_are() {
    let values: Vec<String> = (0..HOLDS_MAX / 8 + 1).map(|number| number.to_string()).collect();
    let limits: Vec<String> = (1..=8).map(|hours| format!("{{rate: '10/{hours}h', hold: true}}")).collect();
    let text = format!("domain: shop\ndescriptors:\n- {{key: user, rate_limits: [{}]}}\n", limits.join(", "));
    on_both(|worlds| {
        let world = worlds.with(&text, Mode::Atomic);
        let asked: Vec<_> = values.iter().map(|value| ("user", &**value, Operation::Consume(3))).collect();
        let answer = world.ask_for(&asked, None);
        assert_eq!((answer.denied, answer.holds.len()), (false, HOLDS_MAX));
        let (opened, past) = (8 * values.len() as u64, 8);
        assert_eq!(world.holds.get(), ([opened, 0, 0, past], [3 * opened, 0, 0]));
        let settle = Settle { descriptors: (1 << asked.len()) - 1, holds: answer.holds };
        let none: Vec<_> = asked.iter().map(|&(key, value, _)| (key, value, Operation::Peek)).collect();
        let left =
            world.ask_for(&none, Some(settle)).statuses.iter().map(|status| status.remaining).collect::<Vec<_>>();
        assert_eq!((left[0], left[values.len() - 1]), (10, 7));
        assert_eq!(world.holds.get().0, [opened, opened - past, 0, past]);
    });
}

#[test]
fn a_limit_on_trial_and_one_in_shadow_mode_are_held_if_the_request_is_within() {
    let trial = policy(&format!("{}, shadow: true", WINDOWS[0]));
    let shadow = policy(WINDOWS[0]).replace("- key: user\n", "- key: user\n  shadow_mode: true\n");
    on_both(|worlds| {
        for text in [&trial, &shadow] {
            let world = worlds.with(text, Mode::Atomic);
            let used = || 10 - world.states()[0].remaining;
            let holds = open(&world, 6).expect("nothing denies");
            assert_eq!(open(&world, 6).expect("nothing denies"), [], "what does not fit is not charged, and not held");
            world.ask_for(&ann(2), Some(first(&holds)));
            assert_eq!(used(), 2);
        }
    });
}

#[test]
fn outside_of_its_term_a_limit_holds_nothing_and_gives_back_all_the_same() {
    on_both(|worlds| {
        let world = worlds.with(&policy(WINDOWS[0]), Mode::Atomic);
        let holds = open(&world, 6).expect("it fits");
        world.swap(&policy(&format!("{}, until: '2030-01-01T00:00:00Z'", WINDOWS[0])));
        assert_eq!(open(&world, 600).expect("no limit applies"), []);
        world.ask_for(&ann(2), Some(first(&holds)));
        world.swap(&policy(WINDOWS[0]));
        assert_eq!(left(&world), 8);
        assert_eq!(world.holds.get(), ([1, 1, 0, 0], [6, 4, 0]));
    });
}

#[test]
fn an_excess_outside_of_the_term_is_lost() {
    on_both(|worlds| {
        let world = worlds.with(&policy(WINDOWS[0]), Mode::Atomic);
        let holds = open(&world, 6).expect("it fits");
        world.swap(&policy(&format!("{}, until: '2030-01-01T00:00:00Z'", WINDOWS[0])));
        world.ask_for(&ann(8), Some(first(&holds)));
        world.swap(&policy(WINDOWS[0]));
        assert_eq!((left(&world), world.holds.get()), (4, ([1, 0, 0, 1], [6, 0, 0])));
    });
}

/// A settle and the decision about what is left are one call, with an actual of any size.
#[test]
fn a_settle_is_one_call_to_redis() {
    let server = RedisServer::start();
    let worlds = Worlds::of(Some(&server));
    for limit in WINDOWS {
        let world = worlds.with(&policy(limit), Mode::Atomic);
        // The first call with a script may bring it along.
        settle(&world, &open(&world, 1).expect("it fits"), 0);
        for used in [0, 1, 6, 7] {
            let holds = open(&world, 6).expect("it fits");
            let before = server.runs("evalsha");
            settle(&world, &holds, used);
            assert_eq!(server.runs("evalsha") - before, 1, "{limit}: {used}");
            world.step(50 * HOUR_US);
        }
    }
}

/// Each hold of a limit that was no longer in force was a call of its own: 64 for one receipt. [ov-4]
#[test]
fn the_former_limits_of_a_descriptor_are_settled_by_one_call() {
    let server = RedisServer::start();
    let worlds = Worlds::of(Some(&server));
    let world = worlds.with(&policy("rate: 1000/hour"), Mode::Atomic);
    let windows = 24..32_u64;
    let mut holds = Vec::new();
    for hours in windows.clone() {
        world.set_override(&[numbers(None, 1_000, hours)]);
        holds.extend((0..HOLDS_MAX / 8).map(|_| open(&world, 10).expect("it fits")[0]));
    }
    assert_eq!(holds.len(), HOLDS_MAX);
    // The first call with a script may bring it along.
    let first_call = open(&world, 10).expect("it fits");
    world.delete_override();
    settle(&world, &first_call, 0);
    let before = server.runs("evalsha");
    // All but one are settled with 0.
    settle(&world, &holds, 10);
    assert_eq!(server.runs("evalsha") - before, 2, "one gives back, and one decides");
    assert_eq!(world.holds.get(), ([65, 65, 0, 0], [650, 640, 0]));
    let used = windows.map(|hours| {
        world.set_override(&[numbers(None, 1_000, hours)]);
        1_000 - left(&world)
    });
    assert_eq!(used.sum::<u64>(), 10);
}

/// Redis has the keys that the same requests leave there without holds, while holds are open and after their settles.
#[test]
fn holds_have_no_keys_of_their_own() {
    let server = RedisServer::start();
    let worlds = Worlds::of(Some(&server));
    let size =
        || server.command(&["DBSIZE"]).and_then(|size| size.trim().parse::<u64>().ok()).expect("a number of keys");
    for limit in WINDOWS {
        let new_keys = |text: &str| {
            let (world, before) = (worlds.with(text, Mode::Atomic), size());
            let values = (0..20).map(|number| format!("u{number}")).collect::<Vec<_>>();
            let ask = |value: &str, settle| world.ask_for(&[("user", value, Operation::Consume(2))], settle).holds;
            let holds: Vec<_> = values.iter().map(|value| ask(value, None)).collect();
            let opened = size() - before;
            for (value, holds) in values.iter().zip(&holds).filter(|(_, holds)| !holds.is_empty()) {
                let used = [("user", &**value, Operation::Consume(1))];
                world.ask_for(&used, Some(first(holds)));
            }
            (opened, size() - before, holds.iter().flatten().count())
        };
        let without = new_keys(&policy(limit).replace(", hold: true", ""));
        assert_eq!(without, (20, 20, 0), "{limit}");
        assert_eq!(new_keys(&policy(limit)), (20, 20, 20), "{limit}");
    }
}
