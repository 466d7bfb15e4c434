//! Every algorithm, for tests of what holds for all of them. A list that a test wrote out would miss the next one.

use weir_engine::algorithm::parameters::Parameters;
use weir_engine::{Algorithm, Anchor, CalendarUnit, Limit, ParameterValue, Precision, Refill};

/// Every algorithm, and every variant of one, with this precision and this burst.
pub fn every_algorithm(precision: Precision, burst: u32) -> Vec<Algorithm> {
    let mut all = Vec::new();
    for anchor in [Anchor::Clock, Anchor::FirstHit, Anchor::Calendar(CalendarUnit::Day)] {
        for refill in [Refill::Continuous, Refill::Interval] {
            let these = Algorithm::all(&Parameters { anchor, precision, burst, refill });
            all.extend(these.into_iter().filter(|algorithm| !all.contains(algorithm)).collect::<Vec<_>>());
        }
    }
    all
}

/// The same without calendars, whose charges need the boundaries of their windows.
pub fn without_calendars(precision: Precision, burst: u32) -> Vec<Algorithm> {
    let mut all = every_algorithm(precision, burst);
    all.retain(|algorithm| !matches!(algorithm.anchor(), Anchor::Calendar(_)));
    all
}

/// The length of the sub-buckets of a limit that has some, worked out apart from the engine.
pub fn sub_bucket(limit: &Limit) -> Option<u64> {
    let window_us = limit.window().us();
    match limit.algorithm() {
        Algorithm::SlidingWindow { precision } => Some(precision.get()),
        Algorithm::Concurrency => (1..=60).rev().find(|n| window_us.is_multiple_of(*n)).map(|n| window_us / n),
        _ => None,
    }
}

/// The most hits at one instant, where an algorithm has a number for that.
pub fn burst(algorithm: Algorithm) -> Option<u32> {
    let burst = algorithm.parameters().into_iter().find(|parameter| parameter.name == "burst")?;
    match burst.value {
        ParameterValue::Hits(hits) => Some(hits),
        value => panic!("a burst of {value:?}"),
    }
}
