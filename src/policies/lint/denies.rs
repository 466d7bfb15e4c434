//! Limits of one list of which one denies before the other can.
//!
//! In a request that is charged to all of its limits or to none, each limit of a list counts the same hits. So one that admits
//! no more over any time in which the other counts keeps that other one from denying.

use weir_engine::{Algorithm, Anchor, Limit, Refill};

/// Whether the first limit denies each request that the second one would deny.
pub(super) fn denies_before(first: &Limit, second: &Limit) -> bool {
    // What is charged past a limit, or given back, is in none of the bounds below, a limit on trial denies nothing, and a second limit of 0
    // denies by itself.
    let is_plain = |limit: &Limit| !limit.post_paid() && !limit.hold && !limit.drain && !limit.shadow;
    // A first limit that begins or ends by itself leaves the other one alone at times.
    if !is_plain(first) || !is_plain(second) || second.requests() == 0 || first.term.is_some() {
        return false;
    }
    let is_same = first.window() == second.window() && first.algorithm() == second.algorithm();
    if is_same && first.requests() == second.requests() {
        return false;
    }
    let most = on_its_clock(first, second).or_else(|| most_over(first, counted_us(second)?));
    most.is_some_and(|most| most <= u128::from(second.requests()))
}

/// The most hits that the first limit admits in a window of the second, where the windows of one fill those of the other.
fn on_its_clock(first: &Limit, second: &Limit) -> Option<u128> {
    let of_clock = |limit: &Limit| limit.algorithm() == Algorithm::FIXED_WINDOW;
    let (window, span) = (first.window().us(), second.window().us());
    let is_filled = of_clock(first) && of_clock(second) && span.is_multiple_of(window);
    is_filled.then(|| u128::from(first.requests()) * u128::from(span / window))
}

/// The most hits that the limit admits over any time of this length, where there is such a bound. [ex-1]
fn most_over(limit: &Limit, span_us: u128) -> Option<u128> {
    let (requests, window) = (u128::from(limit.requests()), u128::from(limit.window().us()));
    if requests == 0 {
        return Some(0);
    }
    // At both ends of the time can be a part of a window.
    let in_windows = requests * (span_us.div_ceil(window) + 1);
    Some(match limit.algorithm() {
        // How long its windows are is up to the calendar, and when a permit comes back up to the request.
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

/// The longest time of which hits count together, where that is bounded.
fn counted_us(limit: &Limit) -> Option<u128> {
    let window = u128::from(limit.window().us());
    match limit.algorithm() {
        // A calendar's windows have other lengths, and a bucket and a permit have none.
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
