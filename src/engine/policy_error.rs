//! Why policies contradict each other. Not here: what finds it (policy.rs).

use super::automaton::{AUTOMATON_BYTES_MAX, PATTERNS_MAX};
use super::limit::LIMITS_PER_RULE_MAX;
use super::pairs::{Property, exclusion};
use super::wildcards::{INNER_MAX, STEPS_MAX, TooCostly};

/// Why policies contradict each other. The loader finds these first, with file and line. A path is `domain|key=value`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("domain {0:?} is defined twice")]
    DuplicateDomain(String),
    #[error("descriptor {0:?} is defined twice")]
    DuplicateDescriptor(String),
    #[error("two limits of {0:?} have the same algorithm and window: give each limit its own name")]
    SameShape(String),
    #[error("{0:?} needs 1 to {LIMITS_PER_RULE_MAX} limits")]
    LimitCount(String),
    /// A limit has two properties that exclude each other.
    #[error("{:?} has {} with {}: {}", .0, .1.name(), .2.name(), reason(*.1, *.2))]
    Excluded(String, Property, Property),
    /// A regular expression needs an automaton of more bytes than this, together with the other patterns of its key.
    #[error("{path:?} needs too large an automaton: {}", automaton_bound(*bytes_max))]
    TooLarge { path: String, bytes_max: usize },
    /// Contains the path of a regular expression.
    #[error("the key of {0:?} has more than {PATTERNS_MAX} wildcards and regular expressions at its level")]
    TooManyPatterns(String),
    /// Contains the path of the wildcard with the most texts.
    #[error(
        "a value can take more than {STEPS_MAX} steps through the wildcards of the key of {0:?}, which takes the most: \
         one step for each text between stars, and one for a text before them"
    )]
    TooManySteps(String),
    #[error(
        "{0:?} has the longest of more than {INNER_MAX} texts between two *, in wildcards of its key, where each ends with \
         the next shorter one, such as cba, ba and a: the maximum is {INNER_MAX}"
    )]
    TooManyInner(String),
    /// A rule weighs hits in a way that contradicts the rules of its domain. `by` is the id of the rule that weighs. [mt-14]
    #[error("{path:?}: {problem}")]
    Weigh { path: String, problem: String, by: u32 },
}

fn reason(one: Property, other: Property) -> &'static str {
    exclusion(one, other).map_or("they exclude each other", |excluded| excluded.reason)
}

fn automaton_bound(bytes_max: usize) -> String {
    match bytes_max {
        AUTOMATON_BYTES_MAX => format!("the maximum is {AUTOMATON_BYTES_MAX} bytes"),
        _ => format!("the automata of other keys have left {bytes_max} bytes"),
    }
}

impl PolicyError {
    pub(super) const fn of_wildcard(costly: TooCostly, path: String) -> Self {
        match costly {
            TooCostly::Steps(_) => Self::TooManySteps(path),
            TooCostly::Inner(_) => Self::TooManyInner(path),
        }
    }

    /// The path of that rule, wildcard or regular expression, with its domain.
    pub fn rule_path(&self) -> Option<&str> {
        match self {
            Self::TooLarge { path, .. }
            | Self::Weigh { path, .. }
            | Self::TooManyPatterns(path)
            | Self::TooManySteps(path)
            | Self::TooManyInner(path) => Some(path),
            _ => None,
        }
    }
}
