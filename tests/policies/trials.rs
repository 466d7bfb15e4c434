//! Limits on trial: what is counted of them, under which names, and what they have no part in. Not in here: what they are
//! charged (store/trials.rs).

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use weir_engine::observer::{Charged, Crossed, Observer, Silent, Tally};
use weir_engine::{Entry, Mode, Operation, PolicySet};
use weir_limiter::{Answer, DescriptorRequest, Limiter, Modes, Options, Policies, Query};
use weir_store::memory::Memory;

use crate::support::manual::ManualClock;

/// The example of the rule.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limits:
      - 5/hour
      - {rate: 3/hour, name: three, shadow: true}
      - {rate: 1/hour, name: one, shadow: true, alert_at: [100]}
  - key: quota
    quota_mode: true
    rate_limits: [1/hour, {rate: 9/hour, algorithm: gcra, shadow: true}]
  - {key: tried, rate_limit: {rate: 1/hour, shadow: true}}
  - {key: paced, rate_limit: {rate: 2/hour, algorithm: leaky_bucket, shadow: true}}
  - key: paid
    rate_limits: [1/hour, {rate: 3/hour, algorithm: gcra, post_paid: true, shadow: true}]
";

/// Which limits were over, and which shares of them were crossed.
#[derive(Clone, Default)]
struct Heard {
    over: Arc<Mutex<Vec<String>>>,
    crossed: Arc<Mutex<Vec<String>>>,
}

impl Observer for Heard {
    fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }

    fn over(&self, charged: &Charged<'_>) {
        let name = charged.charge.limit.name.as_deref().unwrap_or("enforced");
        self.over.lock().push(format!("{name} {}", charged.charge.role.name()));
    }
}

impl Tally for Heard {
    fn crossed(&self, crossed: &Crossed<'_>) {
        let name = crossed.charge.limit.name.as_deref().unwrap_or_default();
        self.crossed.lock().push(format!("{name} {} {}", crossed.charge.role.name(), crossed.share));
    }
}

struct Bench {
    limiter: Limiter,
    heard: Heard,
}

impl Bench {
    fn new(modes: Modes) -> Self {
        let heard = Heard::default();
        let observer = Arc::new(heard.clone());
        let policies = weir_policies::parse(&[("shop.yaml", POLICY)]).expect("good policies").policies;
        let policies = Arc::new(Policies::new(policies, observer.clone()));
        let store = Arc::new(Memory::new(1_000, Arc::new(ManualClock::in_2041()), Arc::new(Silent)));
        let options = Options { mode: Mode::Atomic, modes, ..Options::new(store) };
        Self { limiter: Limiter::new(policies, options, observer), heard }
    }

    fn ask(&self, keys: &[&str], operation: Operation) -> Answer {
        let entries: Vec<_> = keys.iter().map(|key| [Entry { key, value: "1" }]).collect();
        let mut query = Query { domain: "shop", caller: None, descriptors: Default::default(), settle: None };
        for entries in &entries {
            query.descriptors.push(DescriptorRequest { entries, operation, limit: None });
        }
        self.limiter.decide_now(&query, Instant::now(), None).expect("memory answers")
    }

    /// How many hits each limit of a key holds.
    fn used(&self, key: &'static str) -> Vec<u64> {
        let peeks =
            futures_util::FutureExt::now_or_never(self.limiter.show_states("shop", &[Entry { key, value: "1" }]));
        let peeks = peeks.expect("memory answers at once").expect("an answer");
        peeks.iter().map(|peek| peek.requests - peek.remaining).collect()
    }
}

const ONE: Operation = Operation::Consume(1);

/// The example of [tr-1].
#[test]
fn each_on_trial_takes_what_it_would_admit_and_is_counted_where_it_is_over() {
    let bench = Bench::new(Modes::default());
    let denied: Vec<bool> = (0..6).map(|_| bench.ask(&["user"], ONE).denied).collect();
    assert_eq!(denied, [false, false, false, false, false, true]);
    assert_eq!(bench.used("user"), [5, 3, 1]);
    let count = |name: &str| bench.heard.over.lock().iter().filter(|over| **over == name).count();
    assert_eq!([count("enforced enforced"), count("three shadow"), count("one shadow")], [1, 3, 5]);
    assert_eq!(*bench.heard.crossed.lock(), ["one shadow 100"], "an alert says that it only watches");
}

#[test]
fn the_only_enforced_limit_of_a_rule_keeps_its_name_for_clients() {
    let bench = Bench::new(Modes { limits: true, ..Modes::default() });
    let answer = bench.ask(&["user", "tried"], ONE);
    let names: Vec<&str> = answer.limits.iter().map(|limit| &*limit.name).collect();
    assert_eq!(names, ["user"]);
}

#[test]
fn one_on_trial_is_no_quota_and_no_limit_that_is_left() {
    let bench = Bench::new(Modes::default());
    assert!(!bench.ask(&["quota"], ONE).denied);
    assert!(bench.ask(&["quota"], ONE).denied, "the quota that is enforced is over, and the only one");
    assert_eq!(bench.used("quota"), [1, 1]);
    // Where all limits are quotas, a descriptor without a limit of its own is a quota that passes.
    let bench = Bench::new(Modes { quota: true, ..Modes::default() });
    bench.ask(&["user"], Operation::Consume(5));
    assert!(bench.ask(&["user"], ONE).denied);
    assert!(!bench.ask(&["user", "tried"], ONE).denied);
}

/// [tr-1] What is reported has happened, whoever denies.
#[test]
fn a_report_is_charged_to_a_limit_on_trial_in_any_case() {
    let bench = Bench::new(Modes::default());
    assert!(!bench.ask(&["paid"], ONE).denied);
    assert!(bench.ask(&["paid"], ONE).denied);
    assert_eq!(bench.used("paid"), [1, 2]);
}

/// [tr-3]
#[test]
fn nobody_waits_for_a_turn_in_a_bucket_on_trial() {
    let bench = Bench::new(Modes::default());
    for _ in 0..3 {
        let answer = bench.ask(&["paced"], ONE);
        assert_eq!((answer.wait, answer.denied, answer.statuses[0].limit.is_none()), (0, false, true));
    }
    assert_eq!(bench.used("paced"), [2]);
}

/// [tr-2]
#[test]
fn a_trial_changes_no_key_of_another_limit() {
    let ids = |limits: &str| {
        let text = format!("domain: d\ndescriptors: [{{key: k, rate_limits: [{limits}]}}]");
        let loaded = weir_policies::parse(&[("d.yaml", &text)]).unwrap_or_else(|problems| panic!("{problems}"));
        loaded.policies.rules()[0].limits.iter().map(|limit| limit.id().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("9/h"), ["f3600s"]);
    assert_eq!(ids("9/h, {rate: 5/h, name: tight, shadow: true}"), ["f3600s", "f3600s:tight"]);
    assert_eq!(ids("{rate: 5/h, name: tight, shadow: true}, 9/h"), ["f3600s:tight", "f3600s"]);
    // Of another shape, and alone: enforced it has the same key.
    for shadow in [true, false] {
        let tried = format!("{{rate: 5/h, algorithm: gcra, name: tight, shadow: {shadow}}}");
        assert_eq!(ids(&format!("9/h, {tried}")), ["f3600s", "g3600s"]);
        assert_eq!(ids(&tried), ["g3600s"]);
    }
    // Both enforced: each is known by its name, as without a trial.
    assert_eq!(ids("{rate: 9/h, name: wide}, {rate: 5/h, name: tight}"), ["f3600s:wide", "f3600s:tight"]);
    let three = "{rate: 9/h, name: wide}, {rate: 5/h, name: tight}, {rate: 3/h, name: tried, shadow: true}";
    assert_eq!(ids(three), ["f3600s:wide", "f3600s:tight", "f3600s:tried"]);
}
