//! The values that a descriptor of a policy matches: a text, a list, networks or a regular expression. [mt-2]
//!
//! Not here: which of several matchers matches first (branch.rs).

use std::borrow::Cow;
use std::sync::Arc;

use super::automaton::Regex;
use super::network::Network;
use super::pattern::Pattern;

/// The values that a descriptor matches. Lists have at least one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// `value`: this text. A text with a `*` is a wildcard.
    Text(Box<str>),
    /// `values`: each of these texts.
    List(Arc<[Box<str>]>),
    /// `cidr`: the addresses in each of these networks.
    Networks(Arc<[Network]>),
    /// `regex`: each text that the whole expression matches.
    Regex(Arc<Regex>),
}

impl From<&str> for Matcher {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Matcher {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl Matcher {
    /// The matcher's name in the paths of rules and in the keys of shared states. Each name is unique for a key at one
    /// level. A list has the name of its first item, so appending items does not change the name.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::List(values) => match &**values {
                [one] => Cow::Borrowed(one),
                _ => Cow::Owned(format!("{},...", values.first().map_or("", |first| first))),
            },
            Self::Networks(networks) => match &**networks {
                [one] => Cow::Owned(one.to_string()),
                _ => Cow::Owned(format!("{},...", networks.first().map(Network::to_string).unwrap_or_default())),
            },
            Self::Regex(regex) => Cow::Owned(format!("~{}", regex.as_str())),
        }
    }

    /// The matcher's value, if it matches only one.
    pub fn exact(&self) -> Option<&str> {
        match self {
            Self::Text(text) if !text.contains('*') => Some(text),
            _ => None,
        }
    }

    /// Whether it can match many values that share one state.
    pub fn is_of_many(&self) -> bool {
        self.exact().is_none()
    }

    /// Whether the value matches. Compares with one text after the other, so decisions do not call it.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Text(text) => match Pattern::new(text) {
                Some(pattern) => pattern.matches(value),
                None => **text == *value,
            },
            Self::List(values) => values.iter().any(|listed| **listed == *value),
            Self::Networks(networks) => networks.iter().any(|network| network.has(value)),
            Self::Regex(regex) => regex.matches(value),
        }
    }
}
