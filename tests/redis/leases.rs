//! Leases in trouble: replicas that die or stand still, and a Redis that does, admit no more than the limit in any window.
//!
//! Not in here: the table of a process under any schedule (src/limiter/leases.rs), and what is taken when (store/leases.rs).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::load::{Load, Said, Sample, summary};
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::stepped_clock::SteppedClock;
use crate::support::wait::{PATIENCE, until};
use crate::support::{rls, seen};

/// Trials of a usual run. `WEIR_LEASE_TRIALS` makes another number.
const TRIALS: usize = 12;
const REPLICAS: usize = 3;
const LIMIT: usize = 500;
const LEASE: Duration = Duration::from_millis(300);
const WINDOW: Duration = Duration::from_secs(2);
/// Of all replicas: each has a hot key, and a window of two seconds is asked for more than twice the limit.
const PER_SECOND: u32 = 600;

/// The limit of the key of a Redis whose clock is stepped. Until the step a window has fewer requests than the limit. After it, they
/// are twice as many.
const STEPPED_LIMIT: usize = 700;
const STEPPED_PER_SECOND: u32 = 300;
const STEPPED_REPLICAS: usize = 2;
/// The most hits that leases of these replicas have left.
const UNSPENT: usize = STEPPED_LIMIT / 20 * 2 * STEPPED_REPLICAS;

/// Two kinds of windows that a trial sees begin and end, and one that outlasts it.
const KEYS: [&str; 3] = ["fixed", "sliding", "first_hit"];
const POLICY: &str = "\
domain: shop
descriptors:
  - key: fixed
    rate_limit: {window: 2s, requests_per_unit: 500, lease: 300ms}
  - key: sliding
    rate_limit: {window: 2s, requests_per_unit: 500, algorithm: sliding_window, precision: 100ms, lease: 300ms}
  - key: first_hit
    rate_limit: {unit: day, requests_per_unit: 500, anchor: first_hit, lease: 300ms}
  - key: stepped
    rate_limit: {window: 2s, requests_per_unit: 700, lease: 300ms}
";

/// What happens in the middle of a trial.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    ReplicaIsKilled,
    ReplicaStandsStill,
    RedisStandsStill,
    RedisRestarts,
}

const TROUBLES: [Trouble; 4] =
    [Trouble::ReplicaStandsStill, Trouble::ReplicaIsKilled, Trouble::RedisStandsStill, Trouble::RedisRestarts];

struct Bench {
    timeout: &'static str,
    redis: RedisServer,
    policies: PolicyDirectory,
    replicas: Vec<Weir>,
}

impl Bench {
    fn new(timeout: &'static str) -> Self {
        // Redis writes before it answers, and what it wrote outlasts the process. Syncing to a busy disk would only be slow.
        Self::on(RedisServer::start_with(None, &["--appendonly", "yes", "--appendfsync", "no"]), timeout, REPLICAS)
    }

    fn on(redis: RedisServer, timeout: &'static str, replicas: usize) -> Self {
        let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
        let mut bench = Self { timeout, redis, policies, replicas: Vec::new() };
        for _ in 0..replicas {
            bench.start();
        }
        bench
    }

    fn start(&mut self) {
        let url = self.redis.url();
        let settings = ["runtime.cores=1", self.timeout, "redis.breaker.probe=50ms", "shutdown.pause=10ms"];
        let mut arguments = vec!["--store", "redis", "--redis-url", &url];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        self.replicas.push(Weir::start(&self.policies.path(), &arguments));
    }

    fn load(&self, key: &'static str, value: &str) -> Load {
        self.load_of(PER_SECOND, key, value)
    }

    fn load_of(&self, per_second: u32, key: &'static str, value: &str) -> Load {
        let servers: Vec<_> = self.replicas.iter().map(|weir| weir.grpc).collect();
        let value = value.to_owned();
        Load::start(&servers, per_second, move |_| rls::request("shop", &[(key, &value)]))
    }

    /// The hits of leases that came to this end, on the replicas that run.
    fn hits(&self, kind: &str) -> u64 {
        let series = format!("weir_lease_hits_total{{kind=\"{kind}\"}}");
        self.replicas.iter().map(|weir| seen::metric(weir, &series)).sum()
    }

    /// Makes trouble that lasts for half a lease to three leases, while the load goes on.
    fn make(&mut self, trouble: Trouble, random: u64) {
        let lasts = LEASE / 2 + LEASE * u32::try_from(random % 250).expect("it is small") / 100;
        match trouble {
            Trouble::ReplicaIsKilled => {
                let mut killed = self.replicas.remove(0);
                killed.signal("KILL");
                killed.wait_for_exit();
            }
            Trouble::ReplicaStandsStill => {
                self.replicas[0].signal("STOP");
                pass(lasts);
                self.replicas[0].signal("CONT");
            }
            Trouble::RedisStandsStill => {
                self.redis.freeze();
                pass(lasts);
                self.redis.thaw();
            }
            Trouble::RedisRestarts => self.redis.restart(),
        }
    }
}

/// How long trouble lasts is what the test is about.
fn pass(time: Duration) {
    let begun = Instant::now();
    until("the end of the trouble", PATIENCE, || (begun.elapsed() >= time).then_some(()));
}

/// The most requests that were admitted for certain in a window of the kind of this key, when it is known by when each was asked
/// and answered.
fn most_in_a_window(key: &str, samples: &[Sample]) -> usize {
    let admitted: Vec<&Sample> = samples.iter().filter(|sample| sample.said == Said::Within).collect();
    let within = |from: Instant, to: Instant| {
        admitted.iter().filter(|sample| sample.sent >= from && sample.answered <= to).count()
    };
    match key {
        "fixed" => {
            // The windows of the clock, by which Redis counts too: it is on this machine.
            let last = Instant::now() - into_window();
            (0..60).filter_map(|i| last.checked_sub(WINDOW * i)).map(|from| within(from, from + WINDOW)).max()
        }
        "sliding" => admitted.iter().map(|first| within(first.sent, first.sent + WINDOW)).max(),
        _ => Some(admitted.len()),
    }
    .unwrap_or(0)
}

/// How long the window of the machine's clock has lasted.
fn into_window() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Duration::from_nanos((since.as_nanos() % WINDOW.as_nanos()).try_into().expect("it is small"))
}

/// A step of Redis' clock between two instants. The clock was and is so many seconds ahead of the machine's.
struct Step {
    after: Instant,
    before: Instant,
    was_ahead: Duration,
    is_ahead: Duration,
}

impl Step {
    /// The most requests that were admitted for certain in a window of Redis' clock. A window that is ahead of a clock that stepped
    /// back lasts until the clock has reached its end. [fw-5]
    fn most_in_a_window(&self, samples: &[Sample]) -> usize {
        // The machine's clock at the ends of windows if it was Redis', the first one first.
        let last = Instant::now() - into_window() + WINDOW;
        let ends = (0..30).rev().filter_map(|i| last.checked_sub(WINDOW * i));
        // The first and the last possible instant of each end.
        let ends: Vec<[Instant; 2]> = ends
            .map(|end| match (end - self.was_ahead, end - self.is_ahead) {
                (old, _) if old <= self.after => [old; 2],
                (_, new) if new >= self.before => [new; 2],
                _ => [self.after, self.before],
            })
            .collect();
        let is_within = |sample: &&Sample, from: &[Instant; 2], to: &[Instant; 2]| {
            sample.said == Said::Within && sample.sent >= from[1] && sample.answered <= to[0]
        };
        let windows = ends.windows(2);
        windows.map(|ends| samples.iter().filter(|s| is_within(s, &ends[0], &ends[1])).count()).max().unwrap_or(0)
    }
}

/// An operator whose Redis has its clock set forward sees one window that admits what leases have left, and no more. A clock that is set
/// back admits nothing more. [ex-2]
#[test]
fn a_step_of_the_clock_of_redis_admits_what_leases_have_left_at_most() {
    let Some((clock, redis)) = SteppedClock::start() else { return };
    let bench = Bench::on(redis, "redis.timeout=10s", STEPPED_REPLICAS);
    for trial in 0..2 {
        // Forward from the second half of a window into the next one, and back from the first half into the one before.
        let (was_ahead, is_ahead, at) = if trial % 2 == 0 { (0, 1, 1_050..1_350) } else { (1, 0, 250..550) };
        let value = format!("trial-{trial}");
        let load = bench.load_of(STEPPED_PER_SECOND, "stepped", &value);
        load.pass(2 * STEPPED_PER_SECOND as usize);
        let [was_ahead_for, is_ahead_for] = [was_ahead, is_ahead].map(Duration::from_secs);
        until("the time of the step", PATIENCE, || {
            let into = (into_window() + was_ahead_for).as_millis() % WINDOW.as_millis();
            at.contains(&into).then_some(())
        });
        let after = Instant::now();
        clock.set(i64::try_from(is_ahead).expect("it is small"));
        let step = Step { after, before: Instant::now(), was_ahead: was_ahead_for, is_ahead: is_ahead_for };
        let more = bench.load_of(STEPPED_PER_SECOND, "stepped", &value);
        load.wait_for("the limit", |sample| sample.said == Said::Over);
        more.pass(2 * STEPPED_PER_SECOND as usize);
        let samples = [load.finish(), more.finish()].concat();
        let (most, bound) = (step.most_in_a_window(&samples), STEPPED_LIMIT + usize::from(is_ahead > 0) * UNSPENT);
        println!("trial {trial}: {most} at most in a window, at most {bound} may be; {}", summary(&samples));
        assert!((STEPPED_LIMIT / 2..=bound).contains(&most), "trial {trial}: {most} of {bound}");
    }
    assert!(bench.hits("used") > 0, "there were no leases");
}

/// An operator sees limits that deny early after trouble, for a lease or, after a replica was killed, until the reset. None admits
/// more than it has.
#[test]
fn no_window_admits_more_than_its_limit_whoever_dies_or_stands_still() {
    let trials = std::env::var("WEIR_LEASE_TRIALS").map_or(TRIALS, |trials| trials.parse().expect("a number"));
    let mut bench = Bench::new("redis.timeout=500ms");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut used = 0;
    for trial in 0..trials {
        // Knuth's linear congruential generator; its upper bits are good enough.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (key, trouble) = (KEYS[trial % KEYS.len()], TROUBLES[trial % TROUBLES.len()]);
        while bench.replicas.len() < REPLICAS {
            bench.start();
        }
        let before = bench.hits("used");
        let load = bench.load(key, &format!("trial-{trial}"));
        load.pass(100 + usize::try_from(random >> 33).expect("31 bits") % 200);
        bench.make(trouble, random >> 40);
        load.wait_for("a decision after the trouble", |sample| sample.said.is_counted());
        load.pass(PER_SECOND as usize / 3);
        load.wait_for("the limit", |sample| sample.said == Said::Over);
        let samples = load.finish();
        let most = most_in_a_window(key, &samples);
        println!("trial {trial}, {key}, {trouble:?}: {most} at most in a window; {}", summary(&samples));
        assert!(most <= LIMIT, "trial {trial}, {key}, {trouble:?}: {most} of {LIMIT}");
        used += bench.hits("used").saturating_sub(before);
    }
    println!("{used} hits were admitted by leases");
    assert!(used > 0, "there were no leases");
}

/// At a demand of twice the limit nearly all of it is used, and most requests of a hot key ask no Redis.
#[test]
fn a_limit_is_used_though_replicas_hold_its_hits() {
    let mut bench = Bench::new("redis.timeout=10s");
    let load = bench.load("first_hit", "used");
    load.wait_for("the limit", |sample| sample.said == Said::Over);
    // What leases had left is given back, and is admitted then.
    load.pass(2 * PER_SECOND as usize);
    let samples = load.finish();
    let admitted = samples.iter().filter(|sample| sample.said == Said::Within).count();
    println!("{admitted} of {LIMIT}; {}", summary(&samples));
    assert!((LIMIT * 97 / 100..=LIMIT).contains(&admitted), "{admitted}");
    assert!(bench.hits("used") > 0);
    // A replica that ends gives back what it holds.
    let load = bench.load("first_hit", "ended");
    load.pass(LIMIT / 2);
    let samples = load.finish();
    for weir in &mut bench.replicas {
        weir.terminate();
    }
    for weir in &mut bench.replicas {
        weir.wait_for_exit();
    }
    bench.replicas.clear();
    bench.start();
    let mut client = rls::Client::connect(bench.replicas[0].grpc);
    let answer = client.ask(rls::look("shop", &[("first_hit", "ended")])).expect("an answer");
    let admitted = samples.iter().filter(|sample| sample.said == Said::Within).count();
    let left = usize::try_from(answer.statuses[0].limit_remaining).expect("it fits");
    assert_eq!(admitted + left, LIMIT, "hits of leases were left behind");
}

/// A replica gave its leases back within the time of one decision: a Redis that was slower than that lost their hits at each restart.
#[test]
fn a_replica_that_ends_gives_its_hits_back_to_a_slow_redis() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = proxy.url();
    let settings = ["runtime.cores=1", "redis.timeout=200ms", "shutdown.pause=10ms"];
    let mut arguments = vec!["--store", "redis", "--redis-url", &url];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    let mut weir = Weir::start(&policies.path(), &arguments);
    let load = Load::start(&[weir.grpc], PER_SECOND, |_| rls::request("shop", &[("first_hit", "slow")]));
    load.pass(LIMIT / 2);
    let samples = load.finish();
    proxy.delay(Duration::from_millis(500));
    weir.terminate();
    weir.wait_for_exit();
    let admitted = samples.iter().filter(|sample| sample.said == Said::Within).count();
    let direct = redis.url();
    let weir = Weir::start(&policies.path(), &["--store", "redis", "--redis-url", &direct]);
    let mut client = rls::Client::connect(weir.grpc);
    let answer = client.ask(rls::look("shop", &[("first_hit", "slow")])).expect("an answer");
    let left = usize::try_from(answer.statuses[0].limit_remaining).expect("it fits");
    assert_eq!(admitted + left, LIMIT, "hits of leases were left behind");
}
