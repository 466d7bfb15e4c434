//! A weir whose Redis is going to be in trouble: policies that say a different thing for that time under each key, a
//! load that asks for all of them, and what each request may then be told. Not in here: the trouble.

use std::net::SocketAddr;
use std::time::Instant;

use tonic::Code;

use super::load::{Load, Said, Sample, between, summary};
use super::process::{PolicyDirectory, Process, Weir, serve};
use super::wait::{PATIENCE, until};
use super::{rls, seen};

/// The keys of the policy that say what becomes of them without a store, in the order in which a load asks for them.
pub const KEYS: [&str; 4] = ["fails", "passes", "denies", "carries_on"];

/// The value that a load asks for.
pub const HOT: &str = "hot";

/// The limit of `carries_on` and `exact`. All windows outlast a test: they begin with their first hit.
pub const LIMIT: usize = 20;

/// The limit of the other keys: no test reaches it.
pub const AMPLE: usize = 1_000_000;

/// `denies` has its answer from the domain, the others from their rules.
const POLICY: &str = "\
domain: shop
on_error: deny
descriptors:
  - key: fails
    on_error: error
    rate_limit: {unit: day, requests_per_unit: 1000000, anchor: first_hit}
  - key: passes
    on_error: allow
    rate_limit: {unit: day, requests_per_unit: 1000000, anchor: first_hit}
  - key: denies
    rate_limit: {unit: day, requests_per_unit: 1000000, anchor: first_hit}
  - key: carries_on
    on_error: local
    rate_limit: {unit: day, requests_per_unit: 20, anchor: first_hit}
  - key: exact
    rate_limit: {unit: day, requests_per_unit: 20, anchor: first_hit}
";

/// Requests a second: enough to open a breaker at once, and far from what a machine can do.
pub const PER_SECOND: u32 = 200;

/// A deadline that a healthy Redis is never near, however busy the machine.
pub const PATIENT: &str = "redis.timeout=500ms";

/// What a test does not say otherwise. None is to wait for the longest time between two probes.
const USUAL_SETTINGS: [&str; 3] = ["runtime.cores=2", "redis.breaker.probe=50ms", "shutdown.pause=10ms"];

/// A running weir with its policies.
#[derive(Debug)]
pub struct Shop {
    /// The process.
    pub weir: Weir,
    /// The policies that it watches.
    pub policies: PolicyDirectory,
}

impl Shop {
    /// One on the Redis at `url`, with more settings (`NAME=VALUE`), when it is ready.
    pub fn open(url: &str, settings: &[&str]) -> Shop {
        Shop::open_with(POLICY, url, settings)
    }

    /// The same with another policy.
    pub fn open_with(policy: &str, url: &str, settings: &[&str]) -> Shop {
        let (process, policies) = start(policy, url, settings);
        let weir = Weir::from_process(process).unwrap_or_else(|problem| panic!("{problem}"));
        Shop { weir, policies }
    }

    /// One that listens and need not be ready.
    pub fn opening(url: &str, settings: &[&str]) -> Shop {
        let (process, policies) = start(POLICY, url, settings);
        let weir = Weir::listening(process).unwrap_or_else(|problem| panic!("{problem}"));
        Shop { weir, policies }
    }

    /// A load over the four keys in turn.
    pub fn load(&self) -> Load {
        load(&[self.weir.grpc])
    }

    /// Asks once for each of the four keys, with this value.
    pub fn ask_each(&self, value: &str) -> [Said; KEYS.len()] {
        let mut client = rls::Client::connect(self.weir.grpc);
        KEYS.map(|key| Said::of(&client.ask(rls::request("shop", &[(key, value)]))))
    }

    /// How many hits of a key Redis has counted, as soon as a breaker that is open lets a call pass.
    pub fn used(&self, key: &str, value: &str, limit: usize) -> usize {
        let mut client = rls::Client::connect(self.weir.grpc);
        let answer = until("a look at a key", PATIENCE, || client.ask(rls::look("shop", &[(key, value)])).ok());
        limit - usize::try_from(answer.statuses[0].limit_remaining).expect("it fits")
    }

    /// Asks until a key that nobody has used is over its limit, and was admitted exactly that often. Of requests that got
    /// no decision each may be missing: where deadlines are short, a busy machine is enough for that.
    pub fn assert_exact(&self, value: &str) {
        let mut client = rls::Client::connect(self.weir.grpc);
        let (mut admitted, mut missing) = (0, 0);
        until("a key to be over its limit", PATIENCE, || {
            match Said::of(&client.ask(rls::request("shop", &[("exact", value)]))) {
                Said::Over => return Some(()),
                Said::Within => admitted += 1,
                _ => missing += 1,
            }
            None
        });
        assert!((LIMIT.saturating_sub(missing)..=LIMIT).contains(&admitted), "{admitted} admitted, {missing} missing");
    }

    /// Waits until the breaker of some runtime is open.
    pub fn wait_until_open(&self) {
        let before = seen::errors(&self.weir, "circuit_open");
        until("a circuit breaker to open", PATIENCE, || {
            (seen::errors(&self.weir, "circuit_open") > before).then_some(())
        });
    }

    /// Waits until every runtime is served by Redis: for some time, no request of the load was decided without.
    pub fn wait_until_healthy(&self, load: &Load) {
        let fallbacks = || ["error", "allow", "deny", "local"].map(|action| seen::fallbacks(&self.weir, action));
        until("decisions by redis alone", PATIENCE, || {
            let before = fallbacks();
            load.pass(PER_SECOND as usize / 5);
            (fallbacks() == before).then_some(())
        });
    }
}

fn start(policy: &str, url: &str, settings: &[&str]) -> (Process, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("shop.yaml", policy);
    let mut arguments = vec!["--store", "redis", "--redis-url", url];
    let is_given = |usual: &&&str| {
        let name = usual.split('=').next();
        settings.iter().all(|setting| setting.split('=').next() != name)
    };
    for setting in USUAL_SETTINGS.iter().filter(is_given).chain(settings) {
        arguments.extend(["--set", setting]);
    }
    (Process::spawn(serve(&policies.path(), &arguments)), policies)
}

/// A load over the four keys in turn, to several servers in turn.
pub fn load(servers: &[SocketAddr]) -> Load {
    Load::start(servers, PER_SECOND, |number| rls::request("shop", &[(key_of(number), HOT)]))
}

/// The key that a request of such a load is about.
pub fn key_of(number: usize) -> &'static str {
    KEYS[number % KEYS.len()]
}

/// The requests about one key.
pub fn of_key<'a>(samples: &'a [Sample], key: &'static str) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| key_of(sample.number) == key)
}

/// How often a key was told something.
pub fn count(samples: &[Sample], key: &'static str, wanted: impl Fn(Said) -> bool) -> usize {
    of_key(samples, key).filter(|sample| wanted(sample.said)).count()
}

/// Whether Redis has decided, as far as the answer alone can tell.
pub fn is_by_redis(sample: &Sample) -> bool {
    sample.said.is_counted() && key_of(sample.number) != "carries_on"
}

/// Whether a request was told what its policy says for the time without a store.
pub fn is_as_configured(key: &str, said: Said) -> bool {
    match key {
        "fails" => matches!(said, Said::Failed(Code::Unavailable | Code::DeadlineExceeded)),
        "passes" => said == Said::Passed,
        "denies" => said == Said::Refused,
        _ => said.is_counted(),
    }
}

/// Every request was told what a store has decided or what its policy says for the time without, and nothing but the
/// latter from the time on when Redis was gone until it came back. So none was told UNKNOWN.
pub fn assert_as_configured(samples: &[Sample], gone: Instant, back: Instant) {
    for sample in samples {
        let key = key_of(sample.number);
        assert!(sample.said.is_counted() || is_as_configured(key, sample.said), "{key} got {sample:?}");
    }
    let meanwhile = between(samples, gone, back);
    println!("all: {}; without redis: {}", summary(samples), summary(&meanwhile));
    assert!(!meanwhile.is_empty(), "nobody asked while redis was gone");
    for sample in &meanwhile {
        assert!(is_as_configured(key_of(sample.number), sample.said), "{} got {sample:?}", key_of(sample.number));
    }
}

/// The answers to the key that fails never say that nothing was charged where something was, and no request was charged
/// twice: Redis has counted those that it admitted, and of those whose end is unknown at most all.
pub fn assert_charged_once(shop: &Shop, samples: &[Sample]) {
    let used = shop.used("fails", HOT, AMPLE);
    let within = count(samples, "fails", |said| said == Said::Within);
    let unknown = count(samples, "fails", |said| said == Said::Failed(Code::DeadlineExceeded));
    println!("charged {used}: {within} admitted, {unknown} with an unknown end");
    assert!((within..=within + unknown).contains(&used), "{used} charged, {within} admitted, {unknown} unknown");
}
