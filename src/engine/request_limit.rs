//! What a limit of the request does at the rule of its descriptor. [mt-10]
//!
//! Not here: descriptors without a rule, whose limit of the request is a limit of its own. [mt-6]

use super::limit::Limit;
use super::numbers::{Misfit, Numbers};
use super::time::Window;

/// What a rule does with a limit of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestLimit {
    /// The limit of the request is charged in place of the rule. [mt-6]
    #[default]
    Replaces,
    /// The limit of the request has no effect.
    Ignored,
    /// The limit of the request gives its numbers to a limit of the rule.
    Numbers {
        /// The position of that limit in the rule; 0 also for an unlimited rule.
        at: u8,
        /// In words.
        text: Box<str>,
    },
}

crate::named! {
    /// Why a limit of the request has no effect on the limits of a rule, for counting. [mt-11]
    pub enum UnusedLimit {
        /// The rule has `request_limit: ignored`.
        Ignored = "ignored",
        Unlimited = "unlimited",
        /// The limit is outside of its term, or another descriptor replaces it.
        NotInForce = "not_in_force",
        /// The limit counts requests in flight.
        Concurrency = "concurrency",
        /// The unit is not that of the limit's calendar.
        Calendar = "calendar",
        /// The numbers are beyond a bound of the algorithm.
        Bound = "bound",
        /// Another limit of the rule would have the same state.
        SameState = "same_state",
    }
}

impl RequestLimit {
    /// The words of a policy.
    pub const NAMES: [&str; 3] = ["replaces", "ignored", "numbers"];

    /// The numbers are for the limit at this position. Without a name, this is the first one.
    pub fn numbers(at: u8, name: Option<&str>) -> Self {
        let word = Self::NAMES[2];
        let text = name.map_or_else(|| word.to_owned(), |name| format!("{word} of {name}"));
        Self::Numbers { at, text: text.into() }
    }

    /// None for the default.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Replaces => None,
            Self::Ignored => Some(Self::NAMES[1]),
            Self::Numbers { text, .. } => Some(text),
        }
    }
}

/// The limit at this position of a rule with the numbers of a limit of the request. `others` are the other limits that
/// apply to the descriptor.
///
/// # Errors
/// When the limit cannot have these numbers.
pub fn with_request_numbers<'l>(
    limits: &[Limit],
    at: usize,
    (requests, window): (u32, Window),
    others: impl IntoIterator<Item = &'l Limit>,
) -> Result<Limit, UnusedLimit> {
    let Some(own) = limits.get(at) else { return Err(UnusedLimit::Unlimited) };
    if own.algorithm().counts_permits() {
        return Err(UnusedLimit::Concurrency);
    }
    let numbers = Numbers { name: None, requests: requests.into(), window, burst: None };
    let mut limit = numbers.applied_to(own).map_err(|misfit| match misfit {
        Misfit::Calendar(_) => UnusedLimit::Calendar,
        _ => UnusedLimit::Bound,
    })?;
    // Hits that were charged ahead under other numbers are not for this request.
    limit.lease = None;
    let has_twin = others.into_iter().any(|other| other.id() == limit.id());
    if has_twin { Err(UnusedLimit::SameState) } else { Ok(limit) }
}
