//! Limits in a list that never deny, because another limit of the list denies first.
//!
//! A request is charged to all of its limits or to none, so each limit of a list counts the same hits. If one limit admits no
//! more in any period of another limit, the other one never denies.

use weir_engine::{Algorithm, Anchor, Limit, Refill};

/// Whether the first limit denies each request that the second one would deny.
pub(super) fn denies_before(first: &Limit, second: &Limit) -> bool {
    // The bounds below do not hold for charges above a limit or refunds. A limit on trial denies nothing. A second
    // limit of 0 always denies.
    let is_plain = |limit: &Limit| !limit.post_paid() && !limit.hold && !limit.drain && !limit.shadow;
    // Outside the term of the first limit, only the second one applies. Hits and requests are not compared.
    let differs = first.term.is_some() || first.counts_requests() != second.counts_requests();
    if !is_plain(first) || !is_plain(second) || second.requests() == 0 || differs {
        return false;
    }
    let is_same = first.window() == second.window() && first.algorithm() == second.algorithm();
    if is_same && first.requests() == second.requests() {
        return false;
    }
    let most = on_its_clock(first, second).or_else(|| most_over(first, counted_us(second)?));
    most.is_some_and(|most| most <= u128::from(second.requests()))
}

/// The most hits that the first limit admits in a window of the second, if its windows divide those of the second.
fn on_its_clock(first: &Limit, second: &Limit) -> Option<u128> {
    let of_clock = |limit: &Limit| limit.algorithm() == Algorithm::FIXED_WINDOW;
    let (window, span) = (first.window().us(), second.window().us());
    let is_filled = of_clock(first) && of_clock(second) && span.is_multiple_of(window);
    is_filled.then(|| u128::from(first.requests()) * u128::from(span / window))
}

/// The most hits that the limit admits in any interval of this length, if that is bounded. [ex-1]
fn most_over(limit: &Limit, span_us: u128) -> Option<u128> {
    let (requests, window) = (u128::from(limit.requests()), u128::from(limit.window().us()));
    if requests == 0 {
        return Some(0);
    }
    // The interval can have a part of a window at both ends.
    let in_windows = requests * (span_us.div_ceil(window) + 1);
    Some(match limit.algorithm() {
        // The windows of a calendar differ in length, and permits are released when requests end.
        Algorithm::FixedWindow { anchor: Anchor::Calendar(_) } | Algorithm::Concurrency => return None,
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingWindowCounter
        | Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingWindowLog => in_windows,
        Algorithm::TokenBucket { burst, refill: Refill::Interval } => u128::from(burst) + in_windows,
        Algorithm::TokenBucket { burst, refill: Refill::Continuous }
        | Algorithm::LeakyBucket { burst }
        | Algorithm::Gcra { burst } => u128::from(burst) + (requests * span_us).div_ceil(window),
    })
}

/// The longest time over which hits are counted together, if it is bounded.
fn counted_us(limit: &Limit) -> Option<u128> {
    let window = u128::from(limit.window().us());
    match limit.algorithm() {
        // The windows of a calendar differ in length. A bucket has no window, and a permit ends with its request.
        Algorithm::FixedWindow { anchor: Anchor::Calendar(_) }
        | Algorithm::TokenBucket { .. }
        | Algorithm::LeakyBucket { .. }
        | Algorithm::Gcra { .. }
        | Algorithm::Concurrency => None,
        Algorithm::FixedWindow { .. } | Algorithm::SlidingWindowLog => Some(window),
        Algorithm::SlidingWindow { precision } => Some(window + u128::from(precision.get())),
        Algorithm::SlidingWindowCounter => Some(2 * window),
    }
}
