//! Weighed hits: a rule multiplies the hits of a descriptor by a factor, which the value of one entry selects. [mt-12]
//!
//! Not here: which descriptor meets such a rule (weighed.rs), and the bound on the work of a charge (weight.rs).

use hashbrown::HashMap;

use super::charge::Operation;
use super::descriptor::Hits;

/// The most values of one `weigh` that have their own factor.
pub const FACTORS_MAX: usize = 1_024;
/// The most different entries by which the rules of a domain weigh. weir can match a descriptor once for each of them.
pub const WEIGHING_ENTRIES_MAX: usize = 8;

/// The factors of a rule's hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weigh {
    /// The key of the entry whose value selects the factor.
    pub entry: Box<str>,
    by: HashMap<Box<str>, Hits>,
    default: Hits,
    text: Box<str>,
}

/// Why a request cannot be weighed. [mt-15]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unweighable {
    /// The descriptor has two entries with this key of a policy.
    #[error("two entries {0:?}, by which its rule weighs hits, at most 1")]
    Twice(Box<str>),
    #[error("{hits} hits times {factor} are too many, at most {}", Hits::MAX)]
    TooMany { hits: Hits, factor: Hits },
}

impl Weigh {
    /// `by` has the factors of some values, `default` that of all others, and of a descriptor without the entry. All are at least
    /// 1.
    pub fn new(entry: &str, by: impl IntoIterator<Item = (Box<str>, Hits)>, default: Hits) -> Self {
        let by: HashMap<Box<str>, Hits> = by.into_iter().collect();
        let mut sorted: Vec<(&str, Hits)> = by.iter().map(|(value, factor)| (&**value, *factor)).collect();
        sorted.sort_unstable();
        let named = sorted.into_iter().map(|(value, factor)| format!("{value}={factor}, "));
        let text = format!("{entry}: {}default={default}", named.collect::<String>()).into();
        Self { entry: entry.into(), by, default, text }
    }

    /// The factor that a value has of its own.
    pub fn factor_of(&self, value: &str) -> Option<Hits> {
        self.by.get(value).copied()
    }

    /// The factor of all other values, and of a descriptor without the entry.
    pub const fn default_factor(&self) -> Hits {
        self.default
    }

    /// The values with factors of their own, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.by.keys().map(|value| &**value)
    }

    /// In words, for people.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Operation {
    /// The operation with its hits times a factor. [mt-12]
    ///
    /// # Errors
    /// When that are too many hits.
    pub fn weighed(self, factor: Hits) -> Result<Self, Unweighable> {
        let times = |hits: Hits| hits.checked_mul(factor).ok_or(Unweighable::TooMany { hits, factor });
        Ok(match self {
            Self::Consume(hits) => Self::Consume(times(hits)?),
            Self::Refund(hits) => Self::Refund(times(hits)?),
            Self::Report(hits) => Self::Report(times(hits)?),
            Self::Peek => Self::Peek,
        })
    }
}
