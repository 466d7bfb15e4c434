//! Limits with a term in requests over several slots, and without an answer of their store.

use super::*;

/// The clock of the store begins at midnight of the 3rd of January 2041.
const TERMS: &str = "\
domain: shop
descriptors:
  - {key: ends, quota_mode: true, rate_limit: {rate: 1/hour, until: '2041-01-03T00:00:01Z'}}
  - {key: quota, quota_mode: true, rate_limit: 1/hour}
  - {key: enforced, rate_limit: {rate: 1/hour, until: '2041-01-03T00:00:01Z'}}
  - {key: later, rate_limit: {rate: 1/hour, from: 2099-01-01}}
  - {key: now, rate_limit: {rate: 1/hour, until: 2099-01-01}}
";

/// [te-2]
#[test]
fn quotas_in_several_slots_are_judged_without_those_that_have_ended() {
    let bench = Bench::with(TERMS, Mode::Atomic, OnError::Error, 1);
    let (ends, quota) = (bench.value_in("ends", 0), bench.value_in("quota", 1));
    let both = [("ends", ends.as_str(), ONE), ("quota", quota.as_str(), ONE)];
    assert!(!bench.ask(&both[1..]).unwrap().denied);
    assert!(!bench.ask(&both).unwrap().denied, "one of them is not over");
    bench.store.clock.set(START_US + 1_000_000);
    assert!(bench.ask(&both).unwrap().denied, "the only one that is left is over");
    let answer = bench.ask(&both[..1]).unwrap();
    assert!(!answer.denied && answer.statuses[0] == Status::default(), "{answer:?}");
}

/// [te-1]
#[test]
fn a_limit_that_has_ended_in_one_slot_keeps_no_other_from_being_charged() {
    let bench = Bench::with(TERMS, Mode::Atomic, OnError::Error, 1);
    let (full, other) = (bench.value_in("enforced", 0), bench.value_in("now", 1));
    let both = [("enforced", full.as_str(), ONE), ("now", other.as_str(), ONE)];
    assert!(!bench.ask(&both[..1]).unwrap().denied);
    assert!(bench.ask(&both).unwrap().denied);
    assert_eq!(bench.left("now", &other), 1, "taken back");
    bench.store.clock.set(START_US + 1_000_000);
    assert!(!bench.ask(&both).unwrap().denied);
    assert_eq!(bench.left("now", &other), 0);
}

/// [te-4] No store says what time it is, so weir's own clock does.
#[test]
fn without_an_answer_on_error_counts_for_limits_that_apply() {
    for on_error in [OnError::Error, OnError::Deny] {
        let bench = Bench::with(TERMS, Mode::Atomic, on_error, 1);
        let (later, now) = (bench.value_in("later", 0), bench.value_in("now", 1));
        bench.store.fails(Call::Decide, &bench.key("later", &later), Fault::NotSent);
        bench.store.fails(Call::Decide, &bench.key("now", &now), Fault::NotSent);
        let answer = bench.ask(&[("later", &later, ONE)]).expect("nothing applies");
        assert!(!answer.denied && answer.statuses[0] == Status::default(), "{answer:?}");
        let refused = bench.ask(&[("now", &now, ONE)]);
        assert!(refused.is_err() || refused.is_ok_and(|answer| answer.denied), "{on_error:?}");
    }
}
