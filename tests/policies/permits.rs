//! Requests in flight: what a request does to a limit of `concurrency`, and what its answer says. Not in here: when permits
//! end, which vectors and the examples of the rules hold, and the receipts that take permits out.

use std::sync::Arc;
use std::time::Instant;

use weir_engine::observer::Silent;
use weir_engine::overrides::Numbers;
use weir_engine::{Entry, Micros, Mode, Operation, Override, Overrides, Window};
use weir_limiter::{Answer, DescriptorRequest, Limiter, Modes, Options, Policies, Query};
use weir_store::Clock as _;
use weir_store::memory::Memory;

use crate::support::manual::ManualClock;

const SECOND: Micros = 1_000_000;
/// How long a permit of a minute lasts if it is taken as its sub-bucket begins.
const LONGEST: Micros = 61 * SECOND - 1;

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: key, rate_limit: {requests_per_unit: 2, window: 60s, algorithm: concurrency}}
  - {key: rate, rate_limit: {rate: 3/h, anchor: first_hit}}
  - key: both
    rate_limits: [{rate: 100/h, anchor: first_hit}, {requests_per_unit: 2, window: 60s, algorithm: concurrency}]
  - {key: watched, shadow_mode: true, rate_limit: {requests_per_unit: 1, window: 60s, algorithm: concurrency}}
  - {key: estimate, rate_limit: {rate: 10/h, hold: true}}
  - {key: limited, rate_limit: 100/h}
  - {key: tried, rate_limit: {requests_per_unit: 1, window: 60s, algorithm: concurrency, shadow: true}}
";

struct Bench {
    limiter: Limiter,
    clock: Arc<ManualClock>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Modes { limits: true, ..Modes::default() })
    }

    fn with(modes: Modes) -> Self {
        let loaded = weir_policies::parse(&[("shop.yaml", POLICY)]).unwrap_or_else(|problems| panic!("{problems}"));
        let policies = Arc::new(Policies::new(loaded.policies, Arc::new(Silent)));
        let clock = Arc::new(ManualClock::in_2041());
        let store = Arc::new(Memory::new(1_000, clock.clone(), Arc::new(Silent)));
        // A domain with permits is atomic all the same. [cc-7]
        let options = Options { mode: Mode::Independent, modes, clock: clock.clone(), ..Options::new(store) };
        let limiter = Limiter::new(policies, options, Arc::new(Silent));
        Self { limiter, clock }
    }

    fn ask(&self, keys: &[&str], operation: Operation) -> Answer {
        let entries: Vec<_> = keys.iter().map(|&key| [Entry { key, value: "1" }]).collect();
        let asked = |entries| DescriptorRequest { entries, operation, limit: None };
        let descriptors = entries.iter().map(|entries| asked(&entries[..])).collect();
        let query = Query { domain: "shop", caller: None, descriptors, settle: None };
        self.limiter.decide_now(&query, Instant::now(), None).unwrap()
    }

    fn take(&self, key: &str) -> Answer {
        self.ask(&[key], Operation::Consume(1))
    }

    fn step(&self, us: Micros) {
        self.clock.set(self.clock.now() + us);
    }
}

/// With the setting `quota_mode`, 5 of 5 requests passed beside a descriptor that met nothing, and 3 without a permit.
/// [dc-3] [cc-7] [hd-1]
#[test]
fn the_setting_quota_mode_makes_no_permit_and_no_hold_optional() {
    for open in ["nothing", "limited", "watched", "tried"] {
        let bench = Bench::with(Modes { quota: true, ..Modes::default() });
        let passed = |key: &str, hits: u32| {
            let answers = (0..5).map(|_| bench.ask(&[key, open], Operation::Consume(hits)));
            answers.filter(|answer| !answer.denied && !answer.holds.is_empty()).count()
        };
        assert_eq!(passed("key", 1), 2, "permits beside {open}");
        assert_eq!(passed("estimate", 5), 2, "holds beside {open}");
        let denied = bench.ask(&["estimate", open], Operation::Consume(1));
        assert!(denied.denied && denied.statuses[0].over && denied.holds.is_empty(), "{denied:?}");
    }
    // Other limits are quotas as before. A descriptor that meets only permits is none.
    let bench = Bench::with(Modes { quota: true, ..Modes::default() });
    let denied = |keys: &[&str], hits| bench.ask(keys, Operation::Consume(hits)).denied;
    assert!(!denied(&["rate", "nothing"], 4), "beside a quota that is never over");
    for permits in ["key", "watched"] {
        assert!(denied(&["rate", permits], 4), "beside {permits}");
    }
}

/// [cc-4]
#[test]
fn a_denial_says_at_the_latest_and_not_when() {
    let bench = Bench::new();
    let detail = |answer: &Answer| answer.statuses[0].detail.unwrap();
    let first = detail(&bench.take("key"));
    assert_eq!(first.fits_after.map(|wait| (wait.us, wait.is_bound)), Some((0, false)));
    bench.step(10 * SECOND);
    let second = detail(&bench.take("key"));
    assert_eq!(second.fits_after.map(|wait| (wait.us, wait.is_bound)), Some((LONGEST - 10 * SECOND, true)));
    for operation in [Operation::Consume(1), Operation::Consume(9), Operation::Peek] {
        let denied = bench.ask(&["key"], operation);
        assert_eq!((denied.denied, denied.retry_after), (true, None), "{operation:?}");
        let status = &denied.statuses[0];
        assert_eq!((status.remaining, status.until_reset), (0, Some(LONGEST - 10 * SECOND)));
        let detail = detail(&denied);
        assert_eq!((detail.algorithm, detail.charged), ("concurrency", false));
        assert_eq!(detail.fits_after.map(|wait| (wait.us, wait.is_bound)), Some((LONGEST - 10 * SECOND, true)));
        assert_eq!((denied.limits[0].until_reset, denied.limits[0].over), (LONGEST - 10 * SECOND, true));
    }
}

/// [cc-4] [dt-2]
#[test]
fn only_what_else_denies_has_a_wait() {
    let bench = Bench::new();
    for _ in 0..2 {
        assert!(!bench.ask(&["key", "rate"], Operation::Consume(1)).denied);
    }
    assert_eq!(bench.ask(&["key", "rate"], Operation::Consume(1)).retry_after, None);
    bench.take("rate");
    assert_eq!(bench.ask(&["key", "rate"], Operation::Consume(1)).retry_after, Some(3_600 * SECOND));
    // That wait is longer than any permit lasts, so it is exact.
    let denied = bench.ask(&["both"], Operation::Consume(101));
    assert_eq!(denied.statuses[0].detail.unwrap().fits_after, None);
}

/// Its state is that of the rule's limit, if it has the same window. [ov-1] [cc-6]
#[test]
fn an_override_gives_one_caller_another_number_and_keeps_its_permits() {
    let set = weir_policies::parse(&[("shop.yaml", POLICY)]).unwrap().policies;
    let fitted = |requests, window_us| {
        let numbers = Numbers { name: None, requests, window: Window::from_micros(window_us).unwrap(), burst: None };
        let entries = [("key".into(), "1".into())].into();
        let one = Override { domain: "shop".into(), entries, numbers: [numbers].into(), until: 1 };
        let fitted = Overrides::of(&set, &[one]);
        let limit = fitted.limits("w1:{shop|key=1}", || 0).map(|fitted| &fitted.limits()[0]);
        limit
            .map(|limit| (limit.requests(), limit.id().to_owned()))
            .ok_or_else(|| fitted.places()[0].clone().unwrap_err().to_string())
    };
    assert_eq!(fitted(5, 60 * SECOND), Ok((5, "p60s".to_owned())));
    assert_eq!(fitted(5, 30 * SECOND), Ok((5, "p30s".to_owned())));
    assert_eq!(
        fitted(5, 3_601 * SECOND).unwrap_err(),
        "a window of 3601s: the longest time that a request of concurrency may take is 1s to 1h, in whole milliseconds"
    );
}
