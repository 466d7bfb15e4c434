//! The numbers of one limit that replace those of its policy, and why they can be invalid.
//!
//! Not here: to which descriptor they apply (overrides.rs, rows.rs).

use std::fmt;

use super::algorithm::{LimitError, parameters::Anchor};
use super::descriptor::{Count, Entry, spell_entries};
use super::limit::Limit;
use super::time::Window;

/// The numbers of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The name of the limit; none for the only limit of a rule.
    pub name: Option<Box<str>>,
    /// Hits per window.
    pub requests: Count,
    /// The window, or the period of the rate.
    pub window: Window,
    /// The most hits at one instant. None: the policy's burst times the ratio of the hits.
    pub burst: Option<u32>,
}

/// The longer units of a length, in microseconds.
const LONG_UNITS: [(&str, u64); 3] = [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)];

/// As people write them: `rpm=500/minute burst 10`, `5/90s`.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, requests, window, burst } = self;
        if let Some(name) = name {
            write!(f, "{name}=")?;
        }
        let long = LONG_UNITS.into_iter().find(|(_, us)| window.us().is_multiple_of(*us));
        match (window.unit(), long) {
            (Some(unit), _) => write!(f, "{requests}/{}", unit.name())?,
            (None, Some((unit, us))) => write!(f, "{requests}/{}{unit}", window.us() / us)?,
            (None, None) => write!(f, "{requests}/{window}")?,
        }
        burst.map_or(Ok(()), |burst| write!(f, " burst {burst}"))
    }
}

/// The numbers of several limits, as people write them: `rpm=500/minute burst 10; rpd=9000/day`.
pub fn numbers_text(numbers: &[Numbers]) -> String {
    numbers.iter().map(Numbers::to_string).collect::<Vec<_>>().join("; ")
}

impl Numbers {
    /// A limit with these numbers. Its other properties stay.
    pub(super) fn applied_to(&self, limit: &Limit) -> Result<Limit, Misfit> {
        let Self { requests, window, burst, .. } = *self;
        if let Anchor::Calendar(unit) = limit.algorithm().anchor()
            && window != limit.window()
        {
            return Err(Misfit::Calendar(unit.unit().name()));
        }
        let algorithm = limit.algorithm();
        let Some(algorithm) = algorithm.resized((limit.requests(), limit.window()), (requests, window), burst) else {
            return Err(Misfit::NoBurst(algorithm.name()));
        };
        limit.with_numbers(requests, window, algorithm).map_err(Misfit::Limit)
    }
}

/// Why an override has no effect on a policy set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("no policy has this domain")]
    NoDomain,
    /// The descriptor meets no rule. So many of its entries matched, from the first on.
    #[error("the descriptor meets no rule: {}", unmatched(*met))]
    NoRule { met: usize },
    /// The entry at this position, from 0, is the text of a wildcard of the policy. Requests have other texts.
    #[error("{text} is the text of a wildcard: write a value that requests have")]
    OfWildcard { at: usize, text: String },
    #[error("the rule is unlimited: it has no numbers to replace")]
    Unlimited,
    /// The rule has several limits, and the override names none of them. Contains their names.
    #[error("the rule has {} limits: name one of {}", .0.len(), .0.join(", "))]
    Unnamed(Vec<String>),
    /// No limit of the rule has this name. Contains the name and the existing names.
    #[error("no limit of the rule is called {:?}: there is {}", .0, .1.join(", "))]
    NoLimit(String, Vec<String>),
    #[error("two entries have numbers for the same limit")]
    Twice,
    /// The limit has calendar windows, and the override has a length.
    #[error("the limit counts by the calendar: give a number per {0}")]
    Calendar(&'static str),
    #[error("{0} has no burst")]
    NoBurst(&'static str),
    /// The numbers exceed a bound of the algorithm.
    #[error(transparent)]
    Limit(LimitError),
    #[error("two limits of the rule would have the same algorithm and window")]
    SameShape,
    /// With `share_threshold` many descriptors share a state. Contains the descriptor of the other override.
    #[error("the override of {0} applies to the same state, which several descriptors share")]
    Taken(String),
}

fn unmatched(met: usize) -> String {
    match met {
        0 => "no policy has its first entry".to_owned(),
        met => format!("{met} of its entries match, but not the next one"),
    }
}

impl Misfit {
    pub(super) fn of_wildcard(entries: &[Entry<'_>], at: usize) -> Self {
        Self::OfWildcard { at, text: spell_entries(entries[at..=at].iter().copied()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_the_longest_unit_that_divides_the_window() {
        for (us, text) in [
            (60_000_000, "5/minute"),
            (7 * 86_400_000_000, "5/week"),
            (2 * 86_400_000_000, "5/2d"),
            (36 * 3_600_000_000, "5/36h"),
            (5_400_000_000, "5/90m"),
            (90_000_000, "5/90s"),
            (1_500_000, "5/1500ms"),
            (1_000_001, "5/1000001us"),
        ] {
            let window = Window::from_micros(us).unwrap();
            assert_eq!(Numbers { name: None, requests: 5, window, burst: None }.to_string(), text);
        }
        let window = Window::from_micros(60_000_000).unwrap();
        let two = [("rpm", Some(10)), ("rpd", None)].map(|(name, burst)| Numbers {
            name: Some(name.into()),
            requests: 5,
            window,
            burst,
        });
        assert_eq!(numbers_text(&two), "rpm=5/minute burst 10; rpd=5/minute");
    }
}
