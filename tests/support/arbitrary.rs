//! Limits, hits, clocks and charges made at random, with the awkward ones made often. Not in here: what is done with them.

use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::test_runner::Config;
use weir_engine::algorithm::sliding_window_log::REQUESTS_MAX;
use weir_engine::descriptor::saturated;
use weir_engine::{
    Algorithm, Anchor, Bounds, COUNT_MAX, Count, Limit, Micros, Mode, Operation, Precision, Role, Window,
};

use super::algorithms::every_algorithm;

/// 2041-01-03T00:00:00Z, where windows of every unit up to a week start.
pub const START_US: Micros = 2_240_784_000 * 1_000_000;

/// The cases of one property where `WEIR_PROPTEST_CASES` does not say.
const CASES: u32 = 400;
/// A calendar's day, here always of 24 hours.
pub const DAY_US: Micros = 86_400 * 1_000_000;

/// How many cases each property runs: `1/share` of `WEIR_PROPTEST_CASES`.
pub fn config(share: u32) -> Config {
    let cases = std::env::var("WEIR_PROPTEST_CASES").map_or(CASES, |cases| cases.parse().expect("a number of cases"));
    // What a failure shrinks to becomes a vector, not a seed in a file.
    Config { cases: (cases / share).max(1), failure_persistence: None, ..Config::default() }
}

/// A number of hits per window, from none to the largest of that algorithm. Of the largest counts some are used up by a few
/// charges of the most hits.
fn requests(is_large: bool) -> impl Strategy<Value = Count> {
    let small = prop_oneof![1 => Just(0), 6 => 1..12_u32, 2 => 12..5_000_u32, 1 => Just(u32::MAX), 1 => any::<u32>()];
    let few = Count::from(u32::MAX)..5 * Count::from(u32::MAX);
    let large = prop_oneof![2 => few, 1 => Just(COUNT_MAX), 1 => Count::from(u32::MAX)..COUNT_MAX];
    (small, large, 0..3_u8)
        .prop_map(move |(small, large, which)| if is_large && which == 0 { large } else { small.into() })
}

/// A window: short ones, odd ones, units.
pub fn window() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(100_000),
        4 => Just(1_000_000),
        2 => Just(60_000_000),
        1 => Just(3_600_000_000),
        1 => Just(365 * 86_400_000_000),
        2 => 1_000_000..90_000_000_u64,
    ]
}

/// What tells the shapes of limits apart, but for their windows: limits of one shape share their states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The place in the list of all algorithms.
    place: usize,
    /// The sub-buckets of a window that has some.
    buckets: u64,
}

impl Shape {
    fn algorithm(self, window_us: u64, burst: u32) -> Algorithm {
        let precision = Precision::new(window_us / self.buckets).expect("a long window");
        every_algorithm(precision, burst)[self.place]
    }
}

/// Any shape that is chosen.
fn shape_where(is_chosen: impl Fn(Algorithm) -> bool) -> impl Strategy<Value = Shape> {
    let all = every_algorithm(Precision::MIN, 1);
    let places: Vec<usize> = (0..all.len()).filter(|place| is_chosen(all[*place])).collect();
    let buckets = prop_oneof![Just(1), Just(60), Just(256), 2..12_u64];
    (select(places), buckets).prop_map(|(place, buckets)| Shape { place, buckets })
}

/// Any shape.
pub fn shape() -> impl Strategy<Value = Shape> {
    shape_where(|_| true)
}

/// A limit of that shape and about that window. Its burst is its number of hits half of the time.
pub fn limit_of(shape: Shape, window_us: u64) -> impl Strategy<Value = Limit> {
    let burst = prop_oneof![3 => Just(None), 3 => (1..12_u32).prop_map(Some), 1 => any::<u32>().prop_map(Some)];
    let anchor = shape.algorithm(window_us, 1).anchor();
    (requests(anchor != Anchor::Clock), burst, any::<bool>(), 0..5_u8).prop_map(
        move |(requests, burst, drain, post_paid)| {
            let any = shape.algorithm(window_us, 1);
            let window_us = match any {
                Algorithm::FixedWindow { anchor: Anchor::Calendar(_) } => DAY_US,
                Algorithm::SlidingWindow { .. } => window_us / shape.buckets * shape.buckets,
                // One second to one hour, in whole milliseconds. [cc-2]
                Algorithm::Concurrency => (window_us / 1_000).clamp(1_000, 3_600_000) * 1_000,
                _ => window_us,
            };
            let window = Window::from_micros(window_us).expect("within bounds");
            let requests =
                if any == Algorithm::SlidingWindowLog { requests.min(REQUESTS_MAX.into()) } else { requests };
            let own = saturated(requests.max(1));
            let with = |burst| shape.algorithm(window_us, burst);
            let limit = Limit::new(requests, window, with(burst.unwrap_or(own).max(1)));
            let mut limit = limit.unwrap_or_else(|_| Limit::new(requests, window, with(own)).expect("burst <= limit"));
            limit.drain = drain;
            limit.set_post_paid(post_paid == 0 && any.takes_reports());
            limit
        },
    )
}

/// Any limit.
pub fn limit() -> impl Strategy<Value = Limit> {
    (window(), shape()).prop_flat_map(|(window_us, shape)| limit_of(shape, window_us))
}

/// A leaky bucket that admits something.
pub fn leaky() -> impl Strategy<Value = Limit> {
    let leaky = shape_where(|algorithm| matches!(algorithm, Algorithm::LeakyBucket { .. }));
    let limit = (window(), leaky).prop_flat_map(|(window_us, shape)| limit_of(shape, window_us));
    limit.prop_filter("a limit of 0 has no turns", |limit| limit.requests() > 0)
}

/// Two limits that share a state.
pub fn limits() -> impl Strategy<Value = [Limit; 2]> {
    (window(), shape()).prop_flat_map(|(window_us, shape)| [limit_of(shape, window_us), limit_of(shape, window_us)])
}

/// The charge of a limit: no report goes to a log.
pub fn fitting(limit: &Limit, operation: Operation) -> Operation {
    match operation {
        Operation::Report(hits) if !limit.algorithm().takes_reports() => Operation::Consume(hits),
        operation => operation,
    }
}

/// The boundaries of a calendar's day around a time, for a limit that has some.
pub fn bounds(limit: &Limit, now: Micros) -> Option<Bounds> {
    let here = now / DAY_US * DAY_US;
    matches!(limit.algorithm().anchor(), Anchor::Calendar(_))
        .then(|| [here - DAY_US, here, here + DAY_US, here + 2 * DAY_US])
}

/// A number of hits, at least 1.
pub fn hits() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1..4_u32, 4 => 1..20_u32, 2 => 1..5_000_u32, 1 => 1..=u32::MAX]
}

/// What a charge does.
pub fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => hits().prop_map(Operation::Consume),
        2 => Just(Operation::Peek),
        2 => prop_oneof![6 => hits(), 1 => Just(0)].prop_map(Operation::Refund),
        2 => hits().prop_map(Operation::Report),
    ]
}

/// What being over means.
pub fn role() -> impl Strategy<Value = Role> {
    prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Shadow), 2 => Just(Role::Quota)]
}

/// How limits hang together.
pub fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![3 => Just(Mode::Atomic), 2 => Just(Mode::Independent)]
}

/// A step of a clock that never steps back, in microseconds.
pub fn step_on() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => Just(0),
        2 => Just(1),
        3 => 1..1_000_i64,
        4 => 1_000..1_000_000_i64,
        4 => 1_000_000..120_000_000_i64,
        1 => 1..4_000_i64.pow(3),
        1 => 1..400 * 86_400_000_000_i64,
    ]
}

/// A step of a clock that may step back by up to an hour.
pub fn step() -> impl Strategy<Value = i64> {
    let back = prop_oneof![
        Just(1),
        Just(1_000_000),
        Just(60_000_000),
        Just(3_600_000_000),
        1..2_000_000_i64,
        1..3_600_000_000_i64,
    ];
    prop_oneof![6 => step_on(), 1 => back.prop_map(|us: i64| -us)]
}
