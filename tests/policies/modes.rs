//! What policies and settings make of limits that are over: quotas, rules that only watch, and both for all rules; also
//! the metadata of limits that passed, and the examples of envoyproxy/ratelimit's README.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use weir_engine::descriptor::parse_entries;
use weir_engine::observer::{Silent, Tally};
use weir_engine::{Entry, Mode, Observer, Operation, PolicySet, Unit};
use weir_limiter::{Answer, DescriptorRequest, Limiter, ListedLimit, Modes, Options, Policies, Query};
use weir_store::memory::Memory;

use crate::support::manual::ManualClock;

/// Keys in the memory store; more than a test here uses.
const KEYS_MAX: usize = 1_000;

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: a, quota_mode: true, metadata: {pool: a, all: {a: 1}}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: b, quota_mode: true, metadata: {pool: b, all: {b: 2}}, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: c, rate_limit: {unit: year, requests_per_unit: 1, name: c}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: open, shadow_mode: true, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: free, metadata: {free: true}, rate_limit: {unlimited: true, replaces: [{name: c}]}}
  - {key: second, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: paced, rate_limit: {algorithm: leaky_bucket, unit: hour, requests_per_unit: 2, burst: 2}}
";

/// Counts the requests that pass only by the setting.
#[derive(Default)]
struct Shadowed(AtomicU64);

impl Observer for Shadowed {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(Silent)
    }

    fn shadowed(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct Bench {
    limiter: Limiter,
    shadowed: Arc<Shadowed>,
}

impl Bench {
    fn new(mode: Mode, modes: Modes) -> Self {
        Self::of(POLICY, mode, modes, false)
    }

    fn of(policy: &str, mode: Mode, modes: Modes, per_second: bool) -> Self {
        let shadowed = Arc::new(Shadowed::default());
        let policies = weir_policies::parse(&[("shop.yaml", policy)]).expect("good policies").policies;
        let policies = Arc::new(Policies::new(policies, shadowed.clone()));
        let clock = Arc::new(ManualClock::in_2041());
        let store = || Arc::new(Memory::new(KEYS_MAX, clock.clone(), shadowed.clone()));
        let mut options = Options { mode, modes, ..Options::new(store()) };
        if per_second {
            options.per_second = Some(store());
        }
        Self { limiter: Limiter::new(policies, options, shadowed.clone()), shadowed }
    }

    fn decide(&self, query: &Query<'_>) -> Answer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(self.limiter.decide(query, Instant::now(), None, None)).expect("the store answers")
    }

    /// Asks for one hit on each of these keys; answers the codes, the whole's first.
    fn ask(&self, keys: &[&str]) -> String {
        codes(&self.decide(&query(keys)))
    }

    /// What is left of a key's limit.
    fn left(&self, key: &str) -> u64 {
        let mut query = query(&[key]);
        query.descriptors[0].operation = Operation::Peek;
        self.decide(&query).statuses[0].remaining
    }
}

fn query<'a>(keys: &[&'a str]) -> Query<'a> {
    let asked = |&key: &&'a str| DescriptorRequest {
        entries: vec![Entry { key, value: "1" }].leak(),
        operation: Operation::Consume(1),
        limit: None,
    };
    Query { domain: "shop", caller: None, descriptors: keys.iter().map(asked).collect(), settle: None }
}

fn codes(answer: &Answer) -> String {
    let code = |over: bool| if over { "OVER" } else { "OK" };
    let statuses = answer.statuses.iter().map(|status| code(status.over));
    std::iter::once(code(answer.denied)).chain(statuses).collect::<Vec<_>>().join(" ")
}

/// One hit on a descriptor of these keys and values.
fn asked(entries: &[(String, String)]) -> DescriptorRequest<'_> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    DescriptorRequest { entries: entries.leak(), operation: Operation::Consume(1), limit: None }
}

const NONE: Modes = Modes { shadow: false, quota: false, metadata: false, limits: false };
const SHADOW: Modes = Modes { shadow: true, ..NONE };
const QUOTA: Modes = Modes { quota: true, ..NONE };
const METADATA: Modes = Modes { metadata: true, ..NONE };
const LIMITS: Modes = Modes { limits: true, ..NONE };

#[test]
fn a_request_passes_until_all_of_its_quotas_are_over() {
    for mode in Mode::ALL {
        let bench = Bench::new(mode, NONE);
        assert_eq!(bench.ask(&["a", "b"]), "OK OK OK");
        assert_eq!(bench.ask(&["a", "b"]), "OK OVER OK", "each status has its own code");
        assert_eq!(bench.ask(&["a", "b"]), "OVER OVER OVER");
        assert_eq!(bench.ask(&["a", "none"]), "OVER OVER OK", "without a limit there is no quota");
    }
}

#[test]
fn a_limit_that_is_no_quota_denies_for_itself() {
    let bench = Bench::new(Mode::Atomic, NONE);
    assert_eq!(bench.ask(&["a", "c"]), "OK OK OK");
    assert_eq!(bench.ask(&["b", "c"]), "OVER OK OVER");
    assert_eq!(bench.left("b"), 2, "a denied request is charged nowhere");
}

#[test]
fn a_quota_that_only_watches_is_never_over() {
    let bench = Bench::new(Mode::Atomic, NONE);
    assert_eq!(bench.ask(&["a", "open"]), "OK OK OK");
    assert_eq!(bench.ask(&["a", "open"]), "OK OVER OK");
    assert_eq!(bench.ask(&["a", "watched"]), "OVER OVER OK", "a rule that watches and is no quota does not count");
}

#[test]
fn quotas_in_two_stores_are_judged_together() {
    let bench = Bench::of(POLICY, Mode::Atomic, NONE, true);
    assert_eq!(bench.ask(&["a", "second"]), "OK OK OVER");
    assert_eq!(bench.ask(&["a", "second"]), "OVER OVER OVER");
    assert_eq!(bench.ask(&["open", "second"]), "OK OK OVER");
}

#[test]
fn the_setting_quota_mode_makes_a_quota_of_every_limit() {
    for mode in Mode::ALL {
        let bench = Bench::new(mode, QUOTA);
        assert_eq!(bench.ask(&["b", "c"]), "OK OK OK");
        assert_eq!(bench.ask(&["b", "c"]), "OK OK OVER");
        assert_eq!(bench.ask(&["b", "c"]), "OVER OVER OVER");
        // A descriptor without a limit, an unlimited one and one that is replaced are quotas that pass.
        assert_eq!(bench.ask(&["c", "none"]), "OK OVER OK");
        assert_eq!(bench.ask(&["b", "free"]), "OK OVER OK");
        assert_eq!(bench.ask(&["b", "watched"]), "OK OVER OK");
        assert_eq!(bench.ask(&["c"]), "OVER OVER");
    }
}

#[test]
fn limits_of_requests_are_no_quotas_unless_all_are() {
    for (modes, expected) in [(NONE, "OVER OVER OK"), (QUOTA, "OK OVER OK"), (SHADOW, "OK OVER OK")] {
        let bench = Bench::new(Mode::Atomic, modes);
        let mut query = query(&["own", "b"]);
        query.descriptors[0].limit = Some((0, Unit::Hour.window()));
        assert_eq!(codes(&bench.decide(&query)), expected, "{modes:?}");
    }
}

#[test]
fn the_setting_shadow_mode_lets_every_request_pass_and_counts_those_it_would_deny() {
    for mode in Mode::ALL {
        let bench = Bench::new(mode, SHADOW);
        let shadowed = |expected: u64| assert_eq!(bench.shadowed.0.load(SeqCst), expected);
        assert_eq!(bench.ask(&["c"]), "OK OK");
        shadowed(0);
        assert_eq!(bench.ask(&["c"]), "OK OVER");
        shadowed(1);
        assert_eq!(bench.ask(&["a", "b"]), "OK OK OK");
        assert_eq!(bench.ask(&["a", "b"]), "OK OVER OK");
        shadowed(1);
        assert_eq!(bench.ask(&["a", "b"]), "OK OVER OVER");
        shadowed(2);
        assert_eq!(bench.ask(&["watched"]), "OK OK");
        assert_eq!(bench.ask(&["watched"]), "OK OK");
        shadowed(2);
    }
    assert_eq!(Bench::new(Mode::Atomic, NONE).shadowed.0.load(SeqCst), 0);
}

#[test]
fn a_bucket_holds_nobody_where_nothing_is_enforced() {
    let wait = |modes| {
        let bench = Bench::new(Mode::Atomic, modes);
        bench.ask(&["paced"]);
        bench.decide(&query(&["paced"])).wait
    };
    assert!(wait(NONE) > 0);
    assert_eq!(wait(SHADOW), 0);
}

#[test]
fn answers_carry_the_metadata_of_the_limits_that_passed() {
    let pools = |bench: &Bench, keys: &[&str]| {
        let answer = bench.decide(&query(keys));
        let pool = |fields: &Arc<weir_engine::metadata::Fields>| format!("{:?}", fields.get("pool"));
        answer.metadata.iter().map(pool).collect::<Vec<_>>().join(" ")
    };
    let bench = Bench::new(Mode::Atomic, METADATA);
    assert_eq!(pools(&bench, &["b", "a", "c", "free"]), r#"Some(Text("b")) Some(Text("a"))"#);
    assert_eq!(pools(&bench, &["a", "b"]), r#"Some(Text("b"))"#, "a is over");
    assert_eq!(pools(&bench, &["none"]), "");
    assert_eq!(pools(&Bench::new(Mode::Atomic, NONE), &["a"]), "");
}

/// Every wait is known: one hit fits each paced limit, and the next one a whole period later.
const WAITS: &str = "\
domain: shop
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 1, algorithm: gcra}}
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: gcra}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 1, algorithm: gcra}}
  - {key: hour, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: gcra}}
  - {key: day, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra}}
  - {key: open, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1000, algorithm: gcra}}
  - {key: closed, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: shut, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: gcra}}
  - key: login
    rate_limits:
      - {unit: minute, requests_per_unit: 5}
      - {unit: day, requests_per_unit: 50, name: daily}
  - {key: half, rate_limit: {window: 500ms, requests_per_unit: 5, name: half}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 9, calendar: true}}
";

/// The limit of a second in a store of its own too.
#[test]
fn a_denial_tells_when_the_same_request_would_be_admitted() {
    for (mode, per_second) in [(Mode::Atomic, false), (Mode::Atomic, true), (Mode::Independent, false)] {
        let bench = Bench::of(WAITS, mode, NONE, per_second);
        let after_s = |keys: &[&str]| {
            let answer = bench.decide(&query(keys));
            (answer.denied, answer.retry_after.map(|us| us / 1_000_000))
        };
        assert_eq!(after_s(&["second", "minute", "week", "hour", "day", "watched"]), (false, None));
        for (keys, expected) in [
            (&["minute"][..], (true, Some(60))),
            (&["second", "minute"], (true, Some(60))),
            (&["week", "minute"], (true, Some(7 * 86_400))),
            // One of the quotas is enough.
            (&["day", "hour"], (true, Some(3_600))),
            (&["hour", "open"], (false, None)),
            (&["hour", "open", "minute"], (true, Some(60))),
            (&["day", "hour", "minute"], (true, Some(3_600))),
            (&["hour", "week"], (true, Some(7 * 86_400))),
            // What is never admitted has no wait.
            (&["closed"], (true, None)),
            (&["closed", "minute"], (true, None)),
            (&["shut"], (true, None)),
            (&["shut", "minute"], (true, None)),
            (&["shut", "hour"], (true, Some(3_600))),
            (&["watched"], (false, None)),
            (&["watched", "minute"], (true, Some(60))),
            (&["none"], (false, None)),
        ] {
            assert_eq!(after_s(keys), expected, "{mode:?} {per_second} {keys:?}");
        }
    }
}

#[test]
fn answers_list_every_limit_that_could_deny() {
    let listed = |answer: &Answer| {
        let one = |limit: &ListedLimit| {
            let window = limit.window_s.map_or("-".to_owned(), |window_s| window_s.to_string());
            let over = if limit.over { " over" } else { "" };
            format!("{} {}/{window} {}{over}", limit.name, limit.requests, limit.remaining)
        };
        answer.limits.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let keys = ["login", "watched", "half", "month", "hour"];
    let bench = Bench::of(WAITS, Mode::Atomic, LIMITS, false);
    let first = "login:f60s 5/60 4, daily 50/86400 49, half 5/- 4, month 9/- 8, hour 1/3600 0";
    assert_eq!(listed(&bench.decide(&query(&keys))), first);
    let mut look = query(&["login", "hour"]);
    look.descriptors.iter_mut().for_each(|asked| asked.operation = Operation::Peek);
    let expected = "login:f60s 5/60 4, daily 50/86400 49, hour 1/3600 0 over";
    assert_eq!(listed(&bench.decide(&look)), expected, "a look lists what is there");
    let mut own = query(&["minute"]);
    own.descriptors[0].limit = Some((3, Unit::Hour.window()));
    assert_eq!(listed(&bench.decide(&own)), "(request) 3/3600 2");
    assert_eq!(listed(&bench.decide(&query(&["none", "watched"]))), "");

    assert_eq!(listed(&Bench::of(WAITS, Mode::Atomic, NONE, false).decide(&query(&keys))), "", "off");
    let watching = Modes { shadow: true, ..LIMITS };
    assert_eq!(listed(&Bench::of(WAITS, Mode::Atomic, watching, false).decide(&query(&keys))), "");
}

#[test]
fn the_examples_of_envoyproxy_ratelimit_answer_as_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/envoyproxy-ratelimit");
    let mut played = Vec::new();
    for entry in fs::read_dir(&root).expect("the examples").map(|entry| entry.expect("an example")) {
        if !entry.file_type().expect("its type").is_dir() {
            continue;
        }
        let name = entry.file_name().into_string().expect("a name");
        let policy = fs::read_to_string(entry.path().join("policy.yaml")).expect("its policy");
        let loaded = weir_policies::parse(&[(&name, &policy)]).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(loaded.warnings.count(), 0, "{}", loaded.warnings);
        let bench = Bench::of(&policy, Mode::Independent, NONE, false);
        let requests = fs::read_to_string(entry.path().join("requests")).expect("its requests");
        let mut lines = 0;
        for line in requests.lines().filter(|line| !line.starts_with('#')) {
            let (descriptors, expected) = line.split_once(" -> ").expect("an answer");
            let descriptors: Vec<_> =
                descriptors.split(' ').map(|text| parse_entries(text).expect("a descriptor")).collect();
            let query = Query {
                domain: &loaded.domains[0].name,
                caller: None,
                descriptors: descriptors.iter().map(|it| asked(it)).collect(),
                settle: None,
            };
            let told = codes(&bench.decide(&query)).replace("OVER", "OVER_LIMIT");
            assert_eq!(told, expected, "{name}: {line}");
            lines += 1;
        }
        assert!(lines > 2, "{name} has {lines} requests");
        played.push(name[..2].parse::<u32>().expect("its number"));
    }
    played.sort_unstable();
    assert_eq!(played, (1..=11).collect::<Vec<_>>());
}
