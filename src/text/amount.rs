//! The hits, the window and the parameters of a limit, for people.

use std::time::Duration;

use weir_engine::words::IN_FLIGHT;
use weir_engine::{Limit, Parameter, ParameterValue};

use super::spell;

/// `3 per hour`, `3 per 1m30s`, `12.50 usd per month` of a limit with an amount; `5 in flight` for a limit on requests in flight, which have no rate.
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
    let requests = limit.amount.as_ref().map_or_else(|| requests.to_string(), |amount| amount.text(requests));
    if limit.algorithm().counts_permits() {
        return format!("{requests} {IN_FLIGHT}");
    }
    match limit.window().unit() {
        Some(unit) => format!("{requests} per {}", unit.name()),
        None => format!("{requests} per {}", spell(Duration::from_micros(limit.window().us()))),
    }
}

/// The parameters of the algorithm that are not the default, as in a policy: `burst 20 refill interval`. Requests in flight have
/// their window.
pub fn parameters(limit: &Limit) -> String {
    let length = |us| spell(Duration::from_micros(us));
    let window = limit.algorithm().counts_permits().then(|| format!("window {}", length(limit.window().us())));
    let own = limit.algorithm().parameters();
    let own = own.iter().filter(|parameter| !parameter.is_default).map(|Parameter { name, value, .. }| {
        let value = match *value {
            ParameterValue::Hits(hits) => hits.to_string(),
            ParameterValue::Length(us) => length(us),
            ParameterValue::Word(word) => word.to_owned(),
            ParameterValue::Calendar(_) if limit.zone().is_empty() => "UTC".to_owned(),
            ParameterValue::Calendar(_) => limit.zone().to_owned(),
        };
        format!("{name} {value}")
    });
    window.into_iter().chain(own).collect::<Vec<_>>().join(" ")
}
