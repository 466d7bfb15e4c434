//! Hits that a process takes ahead of hot keys: what asks the store and what does not, what callers and alerts see, and that no history
//! of several replicas admits more than the limit. [ls-1] [ls-2] [ls-5] [ls-6] [ls-7]
//!
//! Not in here: processes that die or stand still (redis/leases.rs), and schedules of threads (src/limiter/leases.rs).

use futures_util::future::join_all;
use weir_engine::Hits;
use weir_engine::observer::{Crossed, LeaseHits, LeaseResult};
use weir_limiter::Modes;
use weir_limiter::leases::{LeaseTotals, Leases};

use super::*;
use crate::support::wait::{PATIENCE, eventually};

/// The limits of the tests: all but `plain` have a lease.
const LIMIT: u32 = 10_000;
/// The most hits of one lease: a twentieth.
const LEASE_MAX: u32 = LIMIT / 20;
const LEASED: &str = "\
domain: shop
descriptors:
  - key: tenant
    rate_limit: {rate: 10_000/day, lease: 1s}
  - key: watched
    rate_limit: {rate: 10_000/day, lease: 1s, alert_at: [1, 5, 10]}
  - key: calendar
    rate_limit: {rate: 10_000/day, calendar: true, timezone: Europe/Berlin, lease: 1s}
  - key: both
    rate_limits:
      - {rate: 10_000/day, lease: 1s}
      - {rate: 10_000/day, algorithm: sliding_window, lease: 1s}
  - key: requests
    rate_limit: {rate: 10_000/day, lease: 1s, counts: requests}
  - key: weighed
    weigh: {entry: model, by: {large: 30}, default: 3}
    rate_limit: {rate: 10_000/day, lease: 1s}
  - key: large
    rate_limit: {rate: 1_000_000/day, lease: 1s}
  - key: large_both
    rate_limits:
      - {rate: 1_000_000/day, lease: 1s}
      - {rate: 1_000_000/day, algorithm: sliding_window, lease: 1s}
  - key: plain
    rate_limit: 10_000/day
";

/// The limit of random histories, whose windows are short.
const SHORT_LIMIT: u32 = 400;
const SHORT: &str = "\
domain: shop
descriptors:
  - key: fixed
    rate_limit: {rate: 400/s, lease: 20ms}
  - key: sliding
    rate_limit: {rate: 400/s, algorithm: sliding_window, precision: 20ms, lease: 20ms}
  - key: first_hit
    rate_limit: {rate: 400/s, anchor: first_hit, lease: 20ms}
";
const WINDOW_US: u64 = 1_000_000;

/// How many hits came to each end, and how the calls ended that took them.
#[derive(Clone, Default)]
struct Seen(Arc<SeenHits>);

#[derive(Default)]
struct SeenHits {
    hits: [AtomicU64; LeaseHits::NAMES.len()],
    results: [AtomicU64; LeaseResult::NAMES.len()],
    shares: Mutex<Vec<u8>>,
    /// Charges of limits with alerts whose answer was lost.
    lost: AtomicU64,
}

impl Seen {
    fn hits(&self, kind: LeaseHits) -> u64 {
        self.0.hits[kind as usize].load(SeqCst)
    }

    fn results(&self) -> [u64; LeaseResult::NAMES.len()] {
        [0, 1, 2].map(|i: usize| self.0.results[i].load(SeqCst))
    }

    /// Whether every hit that was taken ahead came to an end.
    fn is_over(&self) -> bool {
        let ends = [LeaseHits::Used, LeaseHits::GivenBack, LeaseHits::Ended, LeaseHits::Lost];
        ends.into_iter().map(|kind| self.hits(kind)).sum::<u64>() == self.hits(LeaseHits::Leased)
    }
}

impl Observer for Seen {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }

    fn alerts_lost(&self, charges: u64) {
        self.0.lost.fetch_add(charges, SeqCst);
    }

    fn lease_asked(&self, result: LeaseResult) {
        self.0.results[result as usize].fetch_add(1, SeqCst);
    }

    fn lease_hits(&self, kind: LeaseHits, hits: Hits) {
        self.0.hits[kind as usize].fetch_add(hits.into(), SeqCst);
    }
}

impl Tally for Seen {
    fn crossed(&self, crossed: &Crossed<'_>) {
        self.0.shares.lock().push(crossed.share);
    }
}

/// What a case changes about a limiter.
type Change = fn(Options) -> Options;

/// A replica on a store that others may use too.
struct Replica {
    store: Arc<Slotted>,
    limiter: Limiter,
    seen: Seen,
}

impl Replica {
    fn new(policy: &str, store: &Arc<Slotted>) -> Self {
        Self::with(policy, store, |options| options)
    }

    fn with(policy: &str, store: &Arc<Slotted>, change: impl Fn(Options) -> Options) -> Self {
        Self::with_clock(policy, store, store.clock.clone(), change)
    }

    /// One whose own clock is not the store's.
    fn with_clock(
        policy: &str,
        store: &Arc<Slotted>,
        clock: Arc<ManualClock>,
        change: impl Fn(Options) -> Options,
    ) -> Self {
        let leases = Arc::new(Leases::new(clock));
        let options = change(Options { leases, budget: BUDGET, ..Options::new(store.clone()) });
        let seen = Seen::default();
        Self { store: store.clone(), limiter: limiter(policy, options, Arc::new(seen.clone())), seen }
    }

    /// Asks at a time, and lets the tasks of leases run.
    async fn ask(&self, at: Micros, asked: Asked<'_>) -> Answer {
        self.store.clock.set(at);
        let answer = decide(&self.limiter, asked).await.expect("the store answers");
        tokio::task::yield_now().await;
        answer
    }

    async fn end_of_leases(&self) {
        eventually("the end of all leases", PATIENCE, async || self.seen.is_over()).await;
    }

    async fn left(&self, key: &str, value: &str) -> u64 {
        let states = self.limiter.show_states("shop", &[Entry { key, value }]).await.expect("it peeks");
        states[0].remaining
    }
}

/// A request every 20 us: a lease is used up before it ends.
fn due(number: u32) -> Micros {
    START_US + 20 * u64::from(number)
}

#[test]
fn a_hot_key_asks_the_store_seldom_and_its_answers_count_down() {
    const REQUESTS: u32 = 5_000;
    // [lm-7]
    let many = Operation::Consume(70);
    for (key, operation) in [("tenant", ONE), ("calendar", ONE), ("both", ONE), ("requests", many)] {
        let replica = Replica::new(LEASED, &Slotted::new(7));
        run(async {
            let (mut steps, mut last) = (0, u64::from(LIMIT));
            for number in 0..REQUESTS {
                let answer = replica.ask(due(number), &[(key, "hot", operation)]).await;
                let (status, exact) = (&answer.statuses[0], u64::from(LIMIT - number - 1));
                // As old as the lease, and without what others hold: on a busy machine that is a lease that ended before it was used up.
                let range = exact.saturating_sub(2 * u64::from(LEASE_MAX))..=exact + u64::from(LEASE_MAX);
                assert!(!answer.denied && range.contains(&status.remaining), "{key} {number}: {}", status.remaining);
                steps += u32::from(last == status.remaining + 1);
                last = status.remaining;
            }
            assert!(steps > REQUESTS / 2, "{key}: {steps} answers have one hit less than the one before");
            let calls = replica.store.calls.load(SeqCst);
            assert!(calls <= REQUESTS as usize / 45, "{key}: {calls} calls");
            replica.end_of_leases().await;
            // What was left is given back, once, and all else was used by requests.
            assert_eq!(replica.left(key, "hot").await, u64::from(LIMIT - REQUESTS), "{key}");
            assert_eq!(replica.seen.hits(LeaseHits::Lost), 0);
            assert_eq!(replica.seen.results()[1..], [0, 0]);
        });
    }
}

/// Two leases with a hit left stopped leases of the key until one of them ended: nearly each request of two hits asked the store.
/// [mt-12] [ls-2]
#[test]
fn requests_of_several_hits_ask_the_store_seldom() {
    const REQUESTS: u32 = 1_000;
    // Three hits by the request, or by the default factor of its rule.
    for (key, operation) in [("tenant", Operation::Consume(3)), ("weighed", ONE)] {
        let replica = Replica::new(LEASED, &Slotted::new(7));
        run(async {
            for number in 0..REQUESTS {
                assert!(!replica.ask(due(number), &[(key, "hot", operation)]).await.denied, "{key} {number}");
            }
            let calls = replica.store.calls.load(SeqCst);
            assert!(calls <= REQUESTS as usize / 10, "{key}: {calls} calls");
            replica.end_of_leases().await;
            assert_eq!(replica.left(key, "hot").await, u64::from(LIMIT - 3 * REQUESTS), "{key}");
        });
    }
}

/// Leases for requests of one hit stopped leases of the key for requests of more hits than a lease had, which all asked the store.
/// [ls-2]
#[test]
fn requests_of_many_hits_ask_the_store_seldom_after_requests_of_one() {
    const REQUESTS: u32 = 1_000;
    const HITS: u32 = 1_000;
    const MANY: u32 = 300;
    type Keyed = (&'static str, &'static str, Operation);
    let many = Operation::Consume(HITS);
    let cases: [fn(Operation) -> Vec<Keyed>; 3] = [
        |hits| vec![("large", "hot", hits)],
        |hits| vec![("large_both", "hot", hits)],
        |hits| vec![("large", "hot", hits), ("large", "hot too", hits)],
    ];
    for asked in cases {
        let replica = Replica::new(LEASED, &Slotted::new(7));
        run(async {
            for number in 0..REQUESTS {
                assert!(!replica.ask(due(number), &asked(ONE)).await.denied, "{number}");
            }
            let before = replica.store.calls.load(SeqCst);
            for number in REQUESTS..REQUESTS + MANY {
                assert!(!replica.ask(due(number), &asked(many)).await.denied, "{number}");
            }
            let calls = replica.store.calls.load(SeqCst) - before;
            assert!(calls <= MANY as usize / 5, "{calls} calls");
            replica.end_of_leases().await;
            for (key, value, _) in asked(ONE) {
                assert_eq!(replica.left(key, value).await, 1_000_000 - u64::from(REQUESTS + MANY * HITS), "{key}");
            }
        });
    }
}

/// Makes a key hot, and drops its leases: its next requests find none.
async fn hot_without_leases(replica: &Replica) {
    const REQUESTS: u32 = 2_000;
    for number in 0..REQUESTS {
        replica.ask(due(number), &[("tenant", "hot", ONE)]).await;
    }
    replica.limiter.reset("shop", &[Entry { key: "tenant", value: "hot" }]).await.expect("the store answers");
}

/// The answers to a burst of requests, and how many calls it made.
async fn burst(replica: &Replica, requests: usize) -> (Vec<Result<Answer, StoreError>>, usize) {
    let before = replica.store.calls.load(SeqCst);
    let asked: Asked<'_> = &[("tenant", "hot", ONE)];
    let answers = join_all((0..requests).map(|_| decide(&replica.limiter, asked))).await;
    (answers, replica.store.calls.load(SeqCst) - before)
}

#[test]
fn a_burst_that_finds_no_hits_asks_the_store_and_one_call_takes_hits_ahead() {
    const BURST: usize = 300;
    let replica = Replica::new(LEASED, &Slotted::new(5));
    run(async {
        hot_without_leases(&replica).await;
        let (answers, calls) = burst(&replica, BURST).await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| !answer.denied)));
        assert_eq!(calls, BURST + 1);
        let LeaseTotals { keys, charged, used } = replica.limiter.lease_totals();
        assert_eq!((keys, used), (1, 0));
        assert!((1..=LEASE_MAX.into()).contains(&charged), "{charged}");
        // The next burst needs no call.
        let (answers, calls) = burst(&replica, 100).await;
        assert!(
            calls <= 1 && answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| !answer.denied)),
            "{calls}"
        );
        replica.end_of_leases().await;
        assert_eq!(replica.limiter.lease_totals(), LeaseTotals::default());
        assert_eq!(replica.left("tenant", "hot").await, u64::from(LIMIT - 400));
    });
}

#[test]
fn a_burst_is_admitted_as_far_as_the_limit_allows_when_the_call_ahead_brings_nothing() {
    const BURST: usize = 300;
    let store = Slotted::new(5);
    let [replica, other] = [(); 2].map(|()| Replica::new(LEASED, &store));
    run(async {
        hot_without_leases(&replica).await;
        // Fewer than the call asks for.
        let all_but_200 = Operation::Consume(LIMIT - 200);
        assert!(!other.ask(due(0), &[("tenant", "hot", all_but_200)]).await.denied);
        let (answers, _) = burst(&replica, BURST).await;
        let admitted = answers.iter().filter(|answer| answer.as_ref().is_ok_and(|answer| !answer.denied)).count();
        assert_eq!((admitted, answers.iter().filter(|answer| answer.is_ok()).count()), (200, BURST));
        assert!(replica.seen.results()[LeaseResult::Denied as usize] > 0);
    });
    run(async {
        let replica = Replica::new(LEASED, &Slotted::new(5));
        hot_without_leases(&replica).await;
        for fault in [Fault::NotSent, Fault::Lost] {
            (0..SLOTS).for_each(|slot| replica.store.faults.lock().extend([((Call::Decide, slot), fault)]));
            let (answers, _) = burst(&replica, BURST).await;
            assert!(answers.iter().all(Result::is_err), "{fault:?}");
        }
        replica.store.heal();
        assert!(burst(&replica, BURST).await.0.iter().all(Result::is_ok));
    });
}

#[test]
fn what_a_lease_cannot_decide_asks_the_store_and_takes_nothing_ahead() {
    const REQUESTS: usize = 200;
    let shadow = |options| Options { modes: Modes { shadow: true, ..Modes::default() }, ..options };
    let quota = |options| Options { modes: Modes { quota: true, ..Modes::default() }, ..options };
    let independent = |options| Options { mode: Mode::Independent, ..options };
    let plain: Change = |options| options;
    let peek = Operation::Peek;
    let cases: [(&str, Change, Asked<'_>); 6] = [
        ("a limit without a lease", plain, &[("tenant", "a", ONE), ("plain", "a", ONE)]),
        ("a peek", plain, &[("tenant", "a", peek)]),
        ("a refund", plain, &[("tenant", "a", Operation::Refund(1))]),
        ("shadow_mode", shadow, &[("tenant", "a", ONE)]),
        ("quota_mode", quota, &[("tenant", "a", ONE)]),
        ("charging: independent", independent, &[("tenant", "a", ONE)]),
    ];
    for (what, change, asked) in cases {
        let replica = Replica::with(LEASED, &Slotted::new(1), change);
        run(async {
            for number in 0..REQUESTS {
                replica.ask(due(number.try_into().unwrap()), asked).await;
            }
        });
        assert!(replica.store.calls.load(SeqCst) >= REQUESTS, "{what}");
        assert_eq!(replica.seen.results(), [0; 3], "{what}");
    }
}

#[test]
fn each_share_is_reported_when_requests_cross_it() {
    let replica = Replica::new(LEASED, &Slotted::new(3));
    run(async {
        for number in 1..=LIMIT / 10 {
            replica.ask(due(number), &[("watched", "hot", ONE)]).await;
            let reported = replica.seen.0.shares.lock().clone();
            for share in [1, 5, 10] {
                let crossing = LIMIT / 100 * u32::from(share);
                // The call of a lease reports what it crosses: early by what the leases hold. A share is reported again after they
                // are given back, with its id. [al-4]
                let is_early = number + 2 * LEASE_MAX >= crossing;
                let is_reported = reported.contains(&share);
                assert!(is_reported || number < crossing, "{share} % is not reported after {number}");
                assert!(!is_reported || is_early, "{share} % is reported after {number}");
            }
        }
        assert!(replica.seen.hits(LeaseHits::Leased) > 100);
        let mut reported = replica.seen.0.shares.lock().clone();
        if replica.seen.hits(LeaseHits::GivenBack) > 0 {
            reported.dedup();
        }
        assert_eq!(reported, [1, 5, 10], "requests that leases admit report nothing");
    });
}

#[test]
fn a_call_of_a_lease_whose_answer_is_lost_is_counted() {
    const BURST: usize = 300;
    let replica = Replica::new(LEASED, &Slotted::new(3));
    run(async {
        let asked: Asked<'_> = &[("watched", "hot", ONE)];
        for number in 1..=LIMIT / 20 {
            replica.ask(due(number), asked).await;
        }
        replica.limiter.reset("shop", &[Entry { key: "watched", value: "hot" }]).await.expect("the store answers");
        (0..SLOTS).for_each(|slot| replica.store.faults.lock().extend([((Call::Decide, slot), Fault::Lost)]));
        let before = (replica.seen.0.lost.load(SeqCst), replica.store.calls.load(SeqCst));
        let answers = join_all((0..BURST).map(|_| decide(&replica.limiter, asked))).await;
        assert!(answers.iter().all(Result::is_err));
        eventually("the end of the call", PATIENCE, async || replica.seen.results()[LeaseResult::Failed as usize] > 0)
            .await;
        let calls = replica.store.calls.load(SeqCst) - before.1;
        assert_eq!((before.0, replica.seen.0.lost.load(SeqCst)), (0, calls as u64), "each call had one charge");
    });
}

/// A request that was admitted.
#[derive(Clone, Copy)]
struct Admitted {
    /// By the store's clock.
    at: Micros,
    hits: u64,
}

/// How far the store's clock is ahead of that of the replicas, before and after its step.
type Steps = [Micros; 2];

/// Asks replicas at random, with clocks that jump. In the middle of each history the store's clock steps, and that of the replicas does
/// not.
async fn history(key: &str, replicas: &[Replica], own: &ManualClock, steps: Steps, seed: u64) -> Vec<Admitted> {
    const REQUESTS: u64 = 2_000;
    let random = AtomicU64::new(seed);
    let random = |below| next_random(&random, below);
    let mut admitted = Vec::new();
    let mut now = START_US;
    for number in 0..REQUESTS {
        now += match random(100) {
            0 => random(30_000),
            _ => random(300),
        };
        let hits = 1 + random(3);
        let operation = Operation::Consume(hits.try_into().expect("it is small"));
        // Most requests come to one replica.
        let replica = &replicas[usize::try_from(random(5).saturating_sub(2)).expect("it is small")];
        let at = now + steps[usize::from(number >= REQUESTS / 2)];
        own.set(now);
        if !replica.ask(at, &[(key, "hot", operation)]).await.denied {
            admitted.push(Admitted { at, hits });
        }
        if random(400) == 0 {
            replica.end_of_leases().await;
        }
    }
    admitted
}

/// The most hits that were admitted in a window of the clock, or in any span as long as a window; and their bound.
fn most_and_bound(key: &str, admitted: &[Admitted]) -> (u64, u64) {
    let within = |from: Micros, to: Micros| -> u64 {
        admitted.iter().filter(|admitted| (from..to).contains(&admitted.at)).map(|admitted| admitted.hits).sum()
    };
    let begins = admitted.iter().map(|admitted| match key {
        "fixed" => admitted.at / WINDOW_US * WINDOW_US,
        _ => admitted.at,
    });
    let bound = match key {
        // A span can have the end of one window and the beginning of the next.
        "first_hit" => 2 * SHORT_LIMIT - 1,
        _ => SHORT_LIMIT,
    };
    (begins.map(|from| within(from, from + WINDOW_US)).max().unwrap_or(0), bound.into())
}

/// Runs histories, and returns the hits that leases admitted. A window can have so many hits more than its limit.
fn histories(steps: Steps, more: u64) -> u64 {
    let mut used = 0;
    for seed in 1..=12 {
        for key in ["fixed", "sliding", "first_hit"] {
            let store = Slotted::new(seed);
            let own = Arc::new(ManualClock::in_2041());
            let replicas = [(); 3].map(|()| Replica::with_clock(SHORT, &store, own.clone(), |options| options));
            let admitted = run(history(key, &replicas, &own, steps, seed));
            let (most, bound) = most_and_bound(key, &admitted);
            assert!(most <= bound + more, "{key}, seed {seed}: {most} of {bound}");
            used += replicas.iter().map(|replica| replica.seen.hits(LeaseHits::Used)).sum::<u64>();
        }
    }
    used
}

#[test]
fn no_history_of_replicas_admits_more_than_the_limit() {
    let used = histories([0, 0], 0);
    assert!(used > 500, "{used}");
}

/// A clock that jumps forward leaves the hits of leases in a window that is over: they are admitted, and no others. One that jumps
/// back admits nothing more. [ex-2]
#[test]
fn a_step_of_the_stores_clock_admits_what_leases_have_left_at_most() {
    let unspent = u64::from(SHORT_LIMIT / 20) * 2 * 3;
    assert!(histories([0, WINDOW_US], unspent) > 500);
    assert!(histories([WINDOW_US, 0], 0) > 500);
}
