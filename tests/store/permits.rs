//! Permits of requests in flight on both stores: their receipts, and what a settle takes out. Not in here: how long a permit lasts,
//! and answers (policies/permits.rs).

use weir_engine::overrides::Numbers;
use weir_engine::{Micros, Mode, Operation, Receipt, Window, key};
use weir_limiter::{Answer, HeldCharge, Settle};

use crate::support::worlds::{World, on_both};

const SECOND_US: Micros = 1_000_000;
const PERMITS: &str = "requests_per_unit: 3, window: 60s, algorithm: concurrency";

fn policy(limits: &str) -> String {
    format!("domain: shop\ndescriptors:\n- key: user\n  rate_limits: [{limits}]\n")
}

fn ask(world: &World<'_>, hits: u32, settle: Option<&[HeldCharge]>) -> Answer {
    let operation = if hits == 0 { Operation::Peek } else { Operation::Consume(hits) };
    let settle = settle.map(|holds| Settle { descriptors: 1, holds: holds.to_vec() });
    world.ask_for(&[("user", "ann", operation)], settle)
}

fn open(world: &World<'_>) -> Vec<HeldCharge> {
    let answer = ask(world, 1, None);
    assert!(!answer.denied, "a permit is free");
    assert_eq!(answer.holds.len(), 1);
    answer.holds
}

/// Settles, and returns how many permits are free.
fn settle(world: &World<'_>, holds: &[HeldCharge], hits: u32) -> u64 {
    let answer = ask(world, hits, Some(holds));
    assert!(!answer.denied && !answer.statuses[0].over && answer.holds.is_empty(), "{answer:?}");
    answer.statuses[0].remaining
}

fn free(world: &World<'_>) -> u64 {
    ask(world, 0, None).statuses[0].remaining
}

/// [cc-5]
#[test]
fn a_settle_takes_its_permit_out_whatever_its_hits() {
    on_both(|worlds| {
        // A domain with permits is atomic, also where the setting says otherwise.
        let world = worlds.with(&policy(&format!("{{{PERMITS}}}")), Mode::Independent);
        let permits = [(); 3].map(|()| open(&world));
        let denied = ask(&world, 1, None);
        assert_eq!((denied.denied, denied.holds.len(), denied.retry_after), (true, 0, None));
        for (free_now, (permit, hits)) in permits.iter().zip([0, 1, 1_000_000]).enumerate() {
            assert_eq!(settle(&world, permit, hits), u64::try_from(free_now).unwrap() + 1);
        }
        assert_eq!(world.holds.get(), ([3, 3, 0, 0], [3, 3, 0]));
        assert_eq!(free(&world), 3);
    });
}

/// [cc-5]
#[test]
fn a_second_settle_takes_another_permit_of_its_sub_bucket_and_of_no_other() {
    on_both(|worlds| {
        let world = worlds.with(&policy(&format!("{{{PERMITS}}}")), Mode::Atomic);
        let (first, _) = (open(&world), open(&world));
        world.step(SECOND_US);
        let third = open(&world);
        assert_eq!(settle(&world, &first, 0), 1);
        assert_eq!(settle(&world, &first, 0), 2);
        assert_eq!(settle(&world, &first, 0), 2);
        assert_eq!(settle(&world, &third, 0), 3);
    });
}

/// [hd-4]
#[test]
fn a_receipt_made_by_hand_takes_out_permits_of_others_and_a_refund_does_not() {
    on_both(|worlds| {
        let world = worlds.with(&policy(&format!("{{{PERMITS}}}")), Mode::Atomic);
        let ann = [(); 3].map(|()| open(&world));
        world.ask(Operation::Refund(3));
        assert_eq!(free(&world), 0, "a refund ends no request");

        // Another caller knows the descriptor of ann, and the store and the time from a receipt of its own.
        let mut bob = world.ask_for(&[("user", "bob", Operation::Consume(1))], None).holds[0];
        let tag_and_id = world.states()[0].key.clone();
        bob.key = key::number(&tag_and_id);
        bob.receipt = Receipt { hits: 2, ..bob.receipt };
        assert_eq!(settle(&world, &[bob], 0), 2);
        assert!(!ask(&world, 1, None).denied, "one of three whose requests still run");
        assert_eq!(world.holds.get().0[1], 1);

        // The request that held the permit finds it gone, or takes out that of another one.
        assert_eq!(ann.map(|permit| settle(&world, &permit, 0)), [2, 3, 3]);
    });
}

/// [cc-2]
#[test]
fn a_permit_whose_settle_is_lost_ends_by_itself_and_its_late_settle_takes_no_other() {
    on_both(|worlds| {
        let world = worlds.with(&policy(&format!("{{{PERMITS}}}")), Mode::Atomic);
        let lost = [(); 3].map(|()| open(&world));
        world.step(60 * SECOND_US - 1);
        assert!(ask(&world, 1, None).denied);
        world.step(SECOND_US);
        let later = [(); 3].map(|()| open(&world));
        assert!(lost.iter().all(|permit| settle(&world, permit, 1) == 0), "the permits of others stay");
        assert_eq!(settle(&world, &later[0], 1), 1);
    });
}

#[test]
fn tokens_and_a_permit_are_settled_by_one_receipt() {
    let limits = format!("{{rate: 1000/hour, hold: true}}, {{{PERMITS}}}, {{rate: 5000/day, post_paid: true}}");
    on_both(|worlds| {
        let world = worlds.with(&policy(&limits), Mode::Atomic);
        let left = || world.states().iter().map(|state| state.remaining).collect::<Vec<_>>();
        let opened = ask(&world, 400, None);
        assert_eq!((opened.holds.len(), left()), (2, vec![600, 2, 5_000]));
        ask(&world, 37, Some(&opened.holds));
        assert_eq!(left(), [963, 3, 4_963]);
        // Too many tokens, and no permit is taken; then no permit, and no token.
        ask(&world, 900, None);
        assert!(ask(&world, 900, None).denied);
        assert_eq!(left(), [63, 2, 4_963]);
        let others = [(); 2].map(|()| ask(&world, 1, None));
        assert!(ask(&world, 1, None).denied);
        assert_eq!(left(), [61, 0, 4_963]);
        others.iter().for_each(|other| drop(ask(&world, 1, Some(&other.holds))));
        assert_eq!(left(), [61, 2, 4_961]);
    });
}

#[test]
fn on_trial_in_shadow_mode_and_after_its_term_a_permit_is_settled_all_the_same() {
    let trial = policy(&format!("{{{PERMITS}, shadow: true}}"));
    let shadow = policy(&format!("{{{PERMITS}}}")).replace("- key: user\n", "- key: user\n  shadow_mode: true\n");
    on_both(|worlds| {
        for text in [&trial, &shadow] {
            let world = worlds.with(text, Mode::Atomic);
            let held = || 3 - world.states()[0].remaining;
            let permits = [(); 3].map(|()| open(&world));
            let without = ask(&world, 1, None);
            assert_eq!((without.denied, without.holds.len(), held()), (false, 0, 3), "it runs without a permit");
            permits.iter().for_each(|permit| drop(ask(&world, 1, Some(permit))));
            assert_eq!(held(), 0);
        }
        let world = worlds.with(&policy(&format!("{{{PERMITS}}}")), Mode::Atomic);
        let permit = open(&world);
        world.swap(&policy(&format!("{{{PERMITS}, until: '2030-01-01T00:00:00Z'}}")));
        assert_eq!(ask(&world, 1, None).holds, [], "the limit is not there");
        ask(&world, 1, Some(&permit));
        world.swap(&policy(&format!("{{{PERMITS}}}")));
        assert_eq!(free(&world), 3);
    });
}

/// [ov-4]
#[test]
fn a_permit_is_taken_out_after_an_override_began_or_ended() {
    on_both(|worlds| {
        let world = worlds.with(&policy(&format!("{{{PERMITS}}}")), Mode::Atomic);
        let window = Window::from_micros(600 * SECOND_US).expect("a window");
        let numbers = [Numbers { name: None, requests: 2, window, burst: None }];
        let own = open(&world);
        world.set_override(&numbers);
        assert_eq!(settle(&world, &own, 1), 2);
        let overridden = open(&world);
        world.delete_override();
        assert_eq!(free(&world), 3, "the first request has ended");
        assert_eq!(settle(&world, &overridden, 1), 3);
        world.set_override(&numbers);
        assert_eq!(free(&world), 2);
        assert_eq!(world.holds.get(), ([2, 2, 0, 0], [2, 2, 0]));
    });
}

/// [cc-6]
#[test]
fn a_changed_number_of_permits_counts_at_once_and_receipts_stay_good() {
    on_both(|worlds| {
        let with = |permits: u32| policy(&format!("{{{}}}", PERMITS.replace(": 3", &format!(": {permits}"))));
        let world = worlds.with(&with(3), Mode::Atomic);
        let permits = [(); 3].map(|()| open(&world));
        world.swap(&with(5));
        assert_eq!(free(&world), 2);
        world.swap(&with(1));
        let free_then = permits.map(|permit| settle(&world, &permit, 0));
        assert_eq!(free_then, [0, 0, 1]);
        assert_eq!(world.holds.get().0, [3, 3, 0, 0]);
    });
}
