//! Reports about how an algorithm counts, each on every algorithm that it could be in, and on both stores.

use weir_engine::{
    Algorithm, Anchor, Charge, Decision, Limit, Micros, Mode, Operation, Outcome, Precision, Verdict, Window,
};

use crate::support::algorithms::without_calendars;
use crate::support::arbitrary::START_US;
use crate::support::manual::charge;
use crate::support::redis::RedisServer;
use crate::support::stores::Stores;

const SECOND_US: Micros = 1_000_000;
const HOUR_US: Micros = 3_600 * SECOND_US;

/// Every algorithm with so many hits a window, and where it has a burst, as many at one instant.
fn all(requests: u32, window_us: Micros) -> Vec<Limit> {
    let precision = Precision::new(window_us / 10).unwrap();
    without_calendars(precision, requests).into_iter().map(|algorithm| limit(requests, window_us, algorithm)).collect()
}

fn limit(requests: u32, window_us: Micros, algorithm: Algorithm) -> Limit {
    Limit::new(requests.into(), Window::from_micros(window_us).unwrap(), algorithm).unwrap()
}

/// One decision, which engine, memory and Redis agree on.
fn decide(stores: &Stores, charges: &[Charge<'_>], mode: Mode) -> Decision {
    let [engine, memory, redis] = stores.decide(charges, mode).map(Result::unwrap);
    assert_eq!(engine, memory, "{charges:?}");
    assert_eq!(engine, redis, "{charges:?}");
    engine
}

fn take(stores: &Stores, limit: &Limit, hits: u32) -> Outcome {
    decide(stores, &[charge("k", limit, Operation::Consume(hits))], Mode::Atomic).outcomes[0].clone()
}

/// Runs a story for every limit, each on stores of its own.
fn for_each(limits: &[Limit], story: impl Fn(&mut Stores, &Limit)) {
    let server = RedisServer::start();
    for (i, limit) in limits.iter().enumerate() {
        story(&mut Stores::new(&server, &format!("{i}:"), START_US), limit);
    }
}

/// envoyproxy/ratelimit 427, 440 and 1060: a request that one descriptor denies was charged to its other descriptors all the
/// same, so that callers used up limits by requests that never passed.
#[test]
fn envoyproxy_ratelimit_427_and_440_a_denied_request_charges_nobody() {
    for_each(&all(5, HOUR_US), |stores, open| {
        let full = limit(1, HOUR_US, Algorithm::FixedWindow { anchor: Anchor::Clock });
        let both = [charge("open", open, Operation::Consume(1)), charge("full", &full, Operation::Consume(1))];
        assert!(!decide(stores, &both, Mode::Atomic).denied);
        for _ in 0..10 {
            let decision = decide(stores, &both, Mode::Atomic);
            assert!(decision.denied);
            assert_eq!(decision.outcomes[0].verdict, Verdict::Within);
            assert_eq!(decision.outcomes[0].remaining, 4, "{open:?}");
            assert_eq!(decision.outcomes[0].receipt, None);
        }
        let look = decide(stores, &[charge("open", open, Operation::Peek)], Mode::Atomic);
        assert_eq!(look.outcomes[0].remaining, 4, "{open:?}");
    });
}

/// redis 14826: GCRA let a cost above the burst through, after an idle while as much as two bursts.
#[test]
fn redis_14826_a_cost_above_the_burst_never_passes() {
    for_each(&all(5, SECOND_US), |stores, limit| {
        for now in [START_US, START_US + HOUR_US, START_US + 48 * HOUR_US] {
            stores.set_now(now);
            for hits in [6, 7, 10, u32::MAX] {
                let outcome = take(stores, limit, hits);
                assert_eq!(outcome.verdict, Verdict::Never, "{hits} of {limit:?}");
                assert_eq!(outcome.remaining, 5, "{limit:?}");
            }
            assert_eq!(take(stores, limit, 5).verdict, Verdict::Within, "{limit:?}");
            assert!(take(stores, limit, 1).verdict.is_over(), "{limit:?}");
        }
    });
}

/// gubernator 77: a bucket that was hit again and again while it was full forgot what had leaked meanwhile, and never
/// admitted anything again.
#[test]
fn gubernator_77_a_bucket_leaks_while_it_is_being_hit() {
    for_each(&all(1, SECOND_US), |stores, limit| {
        for mode in [Mode::Atomic, Mode::Independent] {
            // Windows of the clock count denied hits of independent charging, as envoyproxy/ratelimit does, but only
            // until they end.
            let mut admitted = 0;
            for step in 0..500 {
                stores.set_now(stores.now() + 20_000);
                let decision = decide(stores, &[charge("k", limit, Operation::Consume(1))], mode);
                admitted += u32::from(!decision.denied);
                assert!(step < 100 || admitted > 0, "{limit:?} starves");
            }
            // 10 seconds: a tenth less where the sub-buckets of a window round, and one more at the start.
            assert!((9..=11).contains(&admitted), "{admitted} of 10 admitted in {mode:?} by {limit:?}");
        }
    });
}

/// sockudo 251: a log whose members were timestamps kept one entry for all requests of one instant.
#[test]
fn sockudo_251_requests_at_one_timestamp_all_count() {
    for_each(&all(10, HOUR_US), |stores, limit| {
        for used in 0..10 {
            assert_eq!(take(stores, limit, 1).remaining, 9 - used, "{limit:?}");
        }
        assert!(take(stores, limit, 1).verdict.is_over(), "{limit:?}");
    });
}

/// apisix 13574: at the boundary of its windows a weighted window counted nothing of the window that had just ended, and
/// admitted 18% too much.
#[test]
fn apisix_13574_the_weighted_window_has_no_gap_at_its_boundary() {
    for_each(&[limit(100, SECOND_US, Algorithm::SlidingWindowCounter)], |stores, limit| {
        stores.set_now(START_US + SECOND_US - 1);
        assert_eq!(take(stores, limit, 100).verdict, Verdict::Within);
        // The whole of the window that has ended counts in the first instant of the next one.
        for (us, remaining) in [(0, 0), (1, 1), (10_000, 1), (10_001, 2), (500_000, 50), (999_999, 100)] {
            stores.set_now(START_US + SECOND_US + us);
            let look = decide(stores, &[charge("k", limit, Operation::Peek)], Mode::Atomic);
            assert_eq!(look.outcomes[0].remaining, remaining, "{us} us after the boundary");
        }
    });
}

/// spring-cloud-gateway 2412: a clock that went back and forth by a second gave a full bucket away each time.
#[test]
fn spring_cloud_gateway_2412_a_clock_that_flickers_gives_nothing_away() {
    for_each(&all(10, HOUR_US), |stores, limit| {
        stores.set_now(START_US + HOUR_US / 2);
        assert_eq!(take(stores, limit, 10).verdict, Verdict::Within);
        let mut admitted = 0;
        for _ in 0..100 {
            for step in [-1, 1] {
                let now = stores.now().checked_add_signed(step * 1_000_000).unwrap();
                stores.set_now(now);
                admitted += u32::from(!take(stores, limit, 1).verdict.is_over());
            }
        }
        assert_eq!(admitted, 0, "{limit:?}");
    });
}
