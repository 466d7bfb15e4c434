//! Limits on trial in requests over several slots, and without an answer of their store.

use super::*;

/// A limit on trial alone, and one beside a limit that is enforced.
const TRIALS: &str = "\
domain: shop
descriptors:
  - key: tried
    rate_limit: {rate: 2/hour, shadow: true}
  - key: beside
    rate_limits: [3/hour, {rate: 2/hour, algorithm: gcra, shadow: true}]
  - key: enforced
    rate_limit: 3/hour
";

fn bench(on_error: OnError) -> Bench {
    Bench::with(TRIALS, Mode::Atomic, on_error, 1)
}

impl Bench {
    /// What is left of each limit of a descriptor.
    fn left_of_each(&self, key: &str, value: &str) -> Vec<u64> {
        let peeks = run(self.limiter.show_states("shop", &[Entry { key, value }])).expect("it peeks");
        peeks.iter().map(|peek| peek.remaining).collect()
    }
}

/// [tr-1] [st-3]
#[test]
fn what_another_slot_denies_is_not_charged_to_a_limit_on_trial() {
    let bench = bench(OnError::Error);
    let (tried, full) = (bench.value_in("tried", 0), bench.value_in("enforced", 1));
    let beside = bench.value_in("beside", 2);
    bench.ask(&[("enforced", &full, Operation::Consume(3))]).unwrap();
    let all = [("tried", tried.as_str(), ONE), ("beside", beside.as_str(), ONE), ("enforced", full.as_str(), ONE)];
    assert!(bench.ask(&all).unwrap().denied);
    assert_eq!(*bench.heard.undone.lock(), [true]);
    assert_eq!((bench.left("tried", &tried), bench.left_of_each("beside", &beside)), (2, vec![3, 2]));
    // Over itself, it neither denies nor keeps another slot from being charged.
    for left in [[2, 1], [1, 0], [0, 0]] {
        let answer = bench.ask(&all[..2]).unwrap();
        assert!(!answer.denied && answer.statuses[0] == Status::default(), "{answer:?}");
        assert_eq!((answer.statuses[1].remaining, bench.left_of_each("beside", &beside)), (left[0], left.to_vec()));
    }
    assert_eq!(bench.left("tried", &tried), 0);
    assert!(bench.ask(&all[..2]).unwrap().denied);
}

/// [tr-4]
#[test]
fn a_limit_on_trial_without_an_answer_changes_nothing() {
    for on_error in [OnError::Error, OnError::Allow, OnError::Deny, OnError::Local] {
        let bench = bench(on_error);
        let (tried, beside) = (bench.value_in("tried", 0), bench.value_in("beside", 2));
        for (key, value) in [("tried", &tried), ("beside", &beside)] {
            bench.store.fails(Call::Decide, &bench.key(key, value), Fault::NotSent);
        }
        let answer = bench.ask(&[("tried", &tried, ONE)]).expect("nothing is enforced");
        assert!(!answer.denied && answer.statuses[0] == Status::default(), "{on_error:?}: {answer:?}");
        // One that is enforced beside it does what on_error says.
        let answer = bench.ask(&[("beside", &beside, ONE)]);
        match on_error {
            OnError::Error => assert!(answer.is_err()),
            OnError::Deny => assert!(answer.unwrap().denied),
            OnError::Allow => assert_eq!(answer.unwrap().statuses[0], Status::default()),
            OnError::Local => assert_eq!(answer.unwrap().statuses[0].remaining, 2),
        }
    }
}
