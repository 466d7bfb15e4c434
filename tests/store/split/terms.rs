//! Limits with a term in requests over several slots, without an answer of their store, and by clocks that are not the store's.

use weir_limiter::Modes;
use weir_limiter::rows::RowTable;
use weir_limiter::rows::known::KnownRows;

use super::rows::row;
use super::*;

/// The clocks begin at midnight of the 3rd of January 2041.
const TERMS: &str = "\
domain: shop
descriptors:
  - {key: ends, quota_mode: true, rate_limit: {rate: 1/hour, until: '2041-01-03T00:00:01Z'}}
  - {key: quota, quota_mode: true, rate_limit: 1/hour}
  - {key: watched, quota_mode: true, shadow_mode: true, rate_limit: {rate: 1/hour, until: '2041-01-03T00:00:01Z'}}
  - {key: enforced, rate_limit: {rate: 1/hour, until: '2041-01-03T00:00:01Z'}}
  - {key: later, rate_limit: {rate: 1/hour, from: 2099-01-01}}
  - {key: now, rate_limit: {rate: 1/hour, until: 2099-01-01}}
";

/// One whose clock is the store's.
fn bench(on_error: OnError) -> Bench {
    let store = Slotted::new(1);
    Bench::in_store(store.clone(), store.clock.clone(), TERMS, Mode::Atomic, on_error)
}

/// [te-2]
#[test]
fn quotas_in_several_slots_are_judged_without_those_that_have_ended() {
    let bench = bench(OnError::Error);
    let (ends, quota) = (bench.value_in("ends", 0), bench.value_in("quota", 1));
    let both = [("ends", ends.as_str(), ONE), ("quota", quota.as_str(), ONE)];
    assert!(!bench.ask(&both[1..]).unwrap().denied);
    assert!(!bench.ask(&both).unwrap().denied, "one of them is not over");
    bench.store.clock.set(START_US + 1_000_000);
    assert!(bench.ask(&both).unwrap().denied, "the only one that is left is over");
    let answer = bench.ask(&both[..1]).unwrap();
    assert!(!answer.denied && answer.statuses[0] == Status::default(), "{answer:?}");
}

/// [te-2]
#[test]
fn a_quota_in_shadow_mode_that_has_ended_is_no_open_quota() {
    let bench = bench(OnError::Error);
    let both = [("watched", "ann", ONE), ("quota", "ann", ONE)];
    assert!(!bench.ask(&both).unwrap().denied);
    assert!(!bench.ask(&both).unwrap().denied, "the quota in shadow mode is never over");
    bench.store.clock.set(START_US + 1_000_000);
    assert!(bench.ask(&both).unwrap().denied, "the only quota is over");
}

/// [te-2]
#[test]
fn with_the_setting_quota_mode_a_limit_that_has_not_begun_is_no_open_quota() {
    let store = Slotted::new(1);
    let modes = Modes { quota: true, ..Modes::default() };
    let options = Options { modes, clock: store.clock.clone(), budget: BUDGET, ..Options::new(store.clone()) };
    let limiter = limiter(TERMS, options, Arc::new(Silent));
    let is_denied = |keys: &[&str]| {
        let asked: Vec<_> = keys.iter().map(|key| (*key, "ann", ONE)).collect();
        run(decide(&limiter, &asked)).expect("an answer").denied
    };
    assert!(!is_denied(&["now", "later"]));
    assert!(is_denied(&["now", "later"]), "the only quota is over");
    assert!(!is_denied(&["now", "unknown"]), "a descriptor without a limit is a quota");
}

/// [te-1]
#[test]
fn a_limit_that_has_ended_in_one_slot_keeps_no_other_from_being_charged() {
    let bench = bench(OnError::Error);
    let (full, other) = (bench.value_in("enforced", 0), bench.value_in("now", 1));
    let both = [("enforced", full.as_str(), ONE), ("now", other.as_str(), ONE)];
    assert!(!bench.ask(&both[..1]).unwrap().denied);
    assert!(bench.ask(&both).unwrap().denied);
    assert_eq!(bench.left("now", &other), 1, "taken back");
    bench.store.clock.set(START_US + 1_000_000);
    assert!(!bench.ask(&both).unwrap().denied);
    assert_eq!(bench.left("now", &other), 0);
}

/// [te-4]
#[test]
fn without_an_answer_on_error_counts_for_limits_that_apply() {
    for on_error in [OnError::Error, OnError::Deny] {
        let bench = bench(on_error);
        let (later, now) = (bench.value_in("later", 0), bench.value_in("now", 1));
        bench.store.fails(Call::Decide, &bench.key("later", &later), Fault::NotSent);
        bench.store.fails(Call::Decide, &bench.key("now", &now), Fault::NotSent);
        let answer = bench.ask(&[("later", &later, ONE)]).expect("nothing applies");
        assert!(!answer.denied && answer.statuses[0] == Status::default(), "{answer:?}");
        let refused = bench.ask(&[("now", &now, ONE)]);
        assert!(refused.is_err() || refused.is_ok_and(|answer| answer.denied), "{on_error:?}");
    }
}

/// [te-1] [te-3] [tm-1]
#[test]
fn a_term_begins_and_ends_by_the_clock_of_weir_and_not_by_that_of_the_store() {
    const SECOND_US: Micros = 1_000_000;
    for store_now in [START_US - 60 * SECOND_US, START_US, START_US + 60 * SECOND_US] {
        let clock = Arc::new(ManualClock::in_2041());
        let bench = Bench::in_store(Slotted::new(1), clock.clone(), TERMS, Mode::Atomic, OnError::Error);
        bench.store.clock.set(store_now);
        let ask = |hits| bench.ask(&[("enforced", "ann", Operation::Consume(hits))]).unwrap();
        let fits_after = |answer: &Answer| answer.statuses[0].detail.unwrap().fits_after.unwrap().us;
        let admitted = ask(1);
        assert_eq!((admitted.denied, fits_after(&admitted)), (false, SECOND_US), "the store's clock is {store_now}");
        clock.set(START_US + SECOND_US - 1);
        for hits in [1, 2] {
            // 2 hits never fit.
            let denied = ask(hits);
            assert_eq!((denied.denied, denied.retry_after, fits_after(&denied)), (true, Some(1), 1), "{hits} hits");
            assert_eq!(denied.statuses[0].until_reset, Some(1));
        }
        clock.set(START_US + SECOND_US);
        let answer = ask(2);
        assert!(!answer.denied && answer.statuses[0] == Status::default(), "{answer:?}");
        // The local store does not ask its own clock either.
        bench.store.fails(Call::Decide, &bench.key("enforced", "ann"), Fault::NotSent);
        assert!(!ask(2).denied);
    }
}

/// A clock that goes on by a microsecond with each reading.
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Micros {
        self.0.fetch_add(1, SeqCst)
    }
}

const ONE_EACH: &str = "\
domain: shop
descriptors:
  - {key: usual, rate_limit: {rate: 9/hour, until: '2041-01-03T00:00:00Z'}}
  - {key: sale, rate_limit: {rate: 9/hour, from: '2041-01-03T00:00:00Z'}}
  - {key: overridden, rate_limit: 9/hour}
  - key: tenant
    rows: {default: free}
    rate_limits:
      - {rate: 9/hour, name: usual, until: '2041-01-03T00:00:00Z', plans: {gold: 90/hour}}
      - {rate: 9/day, name: sale, from: '2041-01-03T00:00:00Z', plans: {gold: 90/day}}
";

/// A limiter whose clock reads the last microsecond before the edge, and then the edge.
fn at_the_edge(store: &Arc<Slotted>, policies: &Arc<Policies>) -> (Limiter, Arc<Ticking>) {
    let clock = Arc::new(Ticking(AtomicU64::new(START_US - 1)));
    let options = Options { clock: clock.clone(), budget: BUDGET, ..Options::new(store.clone()) };
    (Limiter::new(policies.clone(), options, Arc::new(Silent)), clock)
}

/// [tm-1] [ov-2]
#[test]
fn one_reading_of_the_clock_counts_for_all_terms_and_overrides_of_a_request() {
    let store = Slotted::new(1);
    let policies = weir_policies::parse(&[("shop.yaml", ONE_EACH)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let before = Arc::new(ManualClock::default());
    before.set(START_US - 1);
    let texts = Arc::new(Memory::new(KEYS_MAX, before.clone(), Arc::new(Silent)));
    let overrides = OverrideTable::new(texts, policies.clone(), before);
    let numbers = [Numbers { name: None, requests: 5, window: Unit::Hour.window(), burst: None }].into();
    let entries = [("overridden".into(), "ann".into())].into();
    let set = Override { domain: "shop".into(), entries, numbers, until: START_US };
    run(overrides.set(&SetOverride { set, set_at: 0, by: "test".into(), reason: "test".into() })).expect("it fits");
    let keys = ["usual", "overridden", "sale", "usual", "overridden"];
    let asked = keys.map(|key| (key, "ann", Operation::Peek));
    let (limiter, clock) = at_the_edge(&store, &policies);
    let limits = || {
        let answer = run(decide(&limiter, &asked)).expect("an answer");
        let limits = answer.statuses.iter().map(|status| status.limit.as_ref().map(|limit| limit.requests));
        limits.collect::<Vec<_>>()
    };
    assert_eq!(limits(), [Some(9), Some(5), None, Some(9), Some(5)], "all before the edge");
    assert_eq!(clock.0.load(SeqCst), START_US, "read once");
    assert_eq!(limits(), [None, Some(9), Some(9), None, Some(9)], "all after it");
}

/// [tm-1] [rw-2]
#[test]
fn a_request_that_is_decided_again_for_a_row_keeps_its_reading_of_the_clock() {
    let store = Slotted::new(1);
    let policies = weir_policies::parse(&[("shop.yaml", ONE_EACH)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let known = Arc::new(KnownRows::of(&*store));
    let other = RowTable::new(store.clone(), policies.clone(), known, store.clock.clone(), Arc::new(Silent));
    let (limiter, clock) = at_the_edge(&store, &policies);
    let ask = || run(decide(&limiter, &[("tenant", "ann", ONE)])).expect("an answer").statuses.remove(0).remaining;
    assert_eq!(ask(), 8);
    clock.0.store(START_US - 1, SeqCst);
    run(other.write(vec![row("tenant", "ann", "gold")])).remove(0).expect("written");
    let calls = store.calls.load(SeqCst);
    assert_eq!(ask(), 88, "of the limit before the edge");
    assert!(store.calls.load(SeqCst) > calls + 1, "it was decided again");
    assert_eq!(ask(), 89, "of the limit after the edge");
}
