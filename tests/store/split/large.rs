//! Weighed hits, and counts beyond 32 bits, in requests over several slots, in leases, and of limits per second with a store of their
//! own. Not in here: one slot (weighed.rs and budgets.rs beside split).

use super::*;

/// The most hits of one charge.
const MOST: u32 = u32::MAX;
/// A descriptor without a model has the default factor.
const WEIGHED: &str = "\
domain: shop
descriptors:
  - {key: team, weigh: {entry: model, by: {large: 30}, default: 10}, rate_limit: 100/hour}
  - {key: budget, rate_limit: {rate: 10_000_000_000_000/month, calendar: true}}
  - {key: full, rate_limit: 3/hour}
  - {key: second, rate_limit: {rate: 10_000_000_000/s, anchor: first_hit}}
";

/// [mt-12] [lm-8] [st-3]
#[test]
fn what_another_slot_denies_is_taken_back_weighed_and_beyond_32_bits() {
    for mode in [Mode::Atomic, Mode::Independent] {
        let bench = Bench::with(WEIGHED, mode, OnError::Error, 1);
        let (team, budget) = (bench.value_in("team", 0), bench.value_in("budget", 1));
        let full = bench.value_in("full", 2);
        let both = [("team", team.as_str(), Operation::Consume(2)), ("budget", &budget, Operation::Consume(MOST))];
        for _ in 0..2 {
            assert!(!bench.ask(&both).unwrap().denied);
        }
        let left = || (bench.left("team", &team), bench.left("budget", &budget));
        let charged = |times: u64| (100 - 20 * times, 10_000_000_000_000 - u64::from(MOST) * times);
        assert_eq!(left(), charged(2), "{mode:?}");
        assert!(!bench.ask(&[("full", &full, Operation::Consume(3))]).unwrap().denied);
        let all = [both[0], both[1], ("full", full.as_str(), ONE)];
        assert!(bench.ask(&all).unwrap().denied);
        assert_eq!(left(), charged(if mode == Mode::Atomic { 2 } else { 3 }), "{mode:?}");
    }
}

/// [lm-8]
#[test]
fn the_store_of_limits_per_second_counts_beyond_32_bits() {
    let (main, seconds) = (Slotted::new(1), Slotted::new(2));
    let options = Options { per_second: Some(seconds.clone()), budget: BUDGET, ..Options::new(main.clone()) };
    let limiter = limiter(WEIGHED, options, Arc::new(Silent));
    let rest = u32::try_from(10_000_000_000 - 2 * u64::from(MOST)).expect("less than a charge");
    for (hits, denied, remaining) in [
        (MOST, false, 10_000_000_000 - u64::from(MOST)),
        (MOST, false, rest.into()),
        (rest + 1, true, rest.into()),
        (rest, false, 0),
        (1, true, 0),
    ] {
        let answer = run(decide(&limiter, &[("second", "ann", Operation::Consume(hits))])).unwrap();
        assert_eq!((answer.denied, answer.statuses[0].remaining), (denied, remaining), "{hits}");
    }
    assert_eq!((main.calls.load(SeqCst), seconds.calls.load(SeqCst)), (0, 5));
}
