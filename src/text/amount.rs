//! The hits and the window of a limit, for people.

use std::time::Duration;

use weir_engine::Limit;
use weir_engine::words::IN_FLIGHT;

use super::spell;

/// `3 per hour`, `3 per 1m30s`; `5 in flight` for a limit on requests in flight, which have no rate.
///
/// ```
/// use weir_engine::{Algorithm, Limit, Unit, Window};
/// use weir_text::amount;
///
/// let of = |seconds, algorithm| Limit::new(5, Window::of_units(seconds, Unit::Second).unwrap(), algorithm).unwrap();
/// assert_eq!(amount(&of(3_600, Algorithm::FIXED_WINDOW)), "5 per hour");
/// assert_eq!(amount(&of(90, Algorithm::FIXED_WINDOW)), "5 per 1m30s");
/// assert_eq!(amount(&of(60, Algorithm::Concurrency)), "5 in flight");
/// ```
pub fn amount(limit: &Limit) -> String {
    let requests = limit.requests();
    if limit.algorithm().counts_permits() {
        return format!("{requests} {IN_FLIGHT}");
    }
    match limit.window().unit() {
        Some(unit) => format!("{requests} per {}", unit.name()),
        None => format!("{requests} per {}", spell(Duration::from_micros(limit.window().us()))),
    }
}
