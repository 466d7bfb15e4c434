//! Limits on trial, on both stores: callers see nothing of them, and each is charged as if it alone were enforced beside the
//! limits that are. Not in here: requests over several slots (split/trials.rs), and what is counted (engine/trials.rs).

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::subsequence;
use weir_engine::{Micros, Mode, Take};

use crate::support::worlds::{World, Worlds, on_both_stores};

/// Limits of different shapes: no two of a list share a state.
const LIMITS: [&str; 9] = [
    "rate: 3/hour",
    "rate: 4/hour, anchor: first_hit",
    "rate: 5/day, calendar: true, timezone: Europe/Berlin",
    "rate: 5/hour, algorithm: gcra, burst: 2",
    "rate: 4/hour, algorithm: sliding_window_counter",
    "rate: 3/hour, algorithm: sliding_window, precision: 10m",
    "rate: 4/hour, algorithm: sliding_window_log",
    "rate: 3/hour, algorithm: token_bucket, refill: interval",
    "rate: 2/hour, algorithm: leaky_bucket",
];
/// How many histories one proptest case stands for: each starts some stores.
const SHARE: u32 = 20;

fn policy(limits: &[(usize, bool)]) -> String {
    let mut text = "domain: shop\ndescriptors:\n- key: user\n".to_owned();
    if !limits.is_empty() {
        text.push_str("  metadata: {plan: free}\n  rate_limits:\n");
    }
    for &(place, shadow) in limits {
        text.push_str(&format!("  - {{{}, name: '{place}', shadow: {shadow}}}\n", LIMITS[place]));
    }
    text
}

/// Some limits, each enforced or on trial.
fn lists() -> impl Strategy<Value = Vec<(usize, bool)>> {
    let places: Vec<usize> = (0..LIMITS.len()).collect();
    (subsequence(places, 1..6), vec(any::<bool>(), 6))
        .prop_map(|(places, shadow)| places.into_iter().zip(shadow).collect())
}

/// What is asked, and how much later than the question before it.
fn asks() -> impl Strategy<Value = Vec<(Take, Micros)>> {
    let take = prop_oneof![
        6 => (1..4_u32).prop_map(Take::Consume),
        1 => Just(Take::Peek),
        1 => (1..3_u32).prop_map(Take::Refund),
    ];
    let step = prop_oneof![3 => Just(0), 3 => 0..1_200_000_000_u64, 1 => 0..9_000_000_000_u64];
    vec((take, step), 1..25)
}

/// Runs one history on one store. [tr-1] [tr-2] [tr-3]
fn check(worlds: &Worlds<'_>, limits: &[(usize, bool)], mode: Mode, asks: &[(Take, Micros)]) {
    let all = worlds.with(&policy(limits), mode);
    let enforced: Vec<_> = limits.iter().copied().filter(|(_, shadow)| !shadow).collect();
    let without = worlds.with(&policy(&enforced), mode);
    let alone: Vec<(usize, World<'_>)> = limits
        .iter()
        .filter(|(_, shadow)| *shadow)
        .map(|&(place, _)| (place, worlds.with(&policy(&[(place, false)]), mode)))
        .collect();
    for &(take, step) in asks {
        all.step(step);
        without.step(step);
        alone.iter().for_each(|(_, world)| world.step(step));
        let (answer, expected) = (all.ask(take), without.ask(take));
        assert_eq!(answer, expected, "the limits on trial show");
        let trials = all.trials.take();
        assert_eq!(trials.len(), alone.len(), "each is counted");
        if expected.denied && mode == Mode::Atomic {
            continue;
        }
        for ((place, world), trial) in alone.iter().zip(trials) {
            assert_eq!(trial, (place.to_string(), world.ask(take).denied), "{take:?}");
        }
    }
    let states = all.states();
    for (place, world) in alone {
        // Under the same keys: a limit that is enforced from now on has what it would have.
        let at = limits.iter().position(|(other, _)| *other == place).expect("it is listed");
        assert_eq!(vec![states[at].clone()], world.states(), "{}", LIMITS[place]);
    }
}

#[test]
fn each_is_charged_as_if_it_alone_were_enforced_beside_the_others() {
    let histories = (lists(), prop_oneof![Just(Mode::Atomic), Just(Mode::Independent)], asks());
    on_both_stores(&histories, SHARE, |worlds, (limits, mode, asks)| check(worlds, &limits, mode, &asks));
}
