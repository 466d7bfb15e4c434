//! Which descriptor of one key a value meets. [mt-2]
//!
//! A hash map finds a text, the lengths of networks find a network, and one pass over the value finds wildcards and
//! regular expressions. The cost does not grow with their number. Not here: levels of descriptors, and the order of keys
//! (policy.rs).

use std::borrow::Cow;

use hashbrown::HashMap;

use super::automaton::{AUTOMATON_BYTES_MAX, Automaton, PATTERNS_MAX, Source};
use super::matcher::Matcher;
use super::network::{Network, Networks};
use super::pattern::{Pattern, SharedBy};
use super::wildcards::{COMPARED_MAX, FirstWildcard, TooCostly};

/// Where one entry leads, for `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'p> {
    /// To the descriptor with exactly this key and value.
    Exact,
    /// To the list of this name, which contains the value.
    Listed(&'p str),
    /// To the longest network that contains the value, with the name of the descriptor's networks.
    Network(&'p Network, &'p str),
    /// To a pattern of the key: the pattern whose text equals the value, else the first matching pattern in file order.
    Pattern(&'p Pattern),
    /// To the regular expression of this name: the first in file order that matches the value.
    Regex(&'p str),
    KeyAlone,
}

impl<'p> Step<'p> {
    /// The text in the key in place of the value, if all values that lead here share a state.
    pub const fn shared_by(self) -> Option<SharedBy<'p>> {
        match self {
            Self::Pattern(pattern) => Some(SharedBy::Pattern(pattern)),
            Self::Listed(name) | Self::Network(_, name) | Self::Regex(name) => Some(SharedBy::Name(name)),
            Self::Exact | Self::KeyAlone => None,
        }
    }
}

/// What can match a value of a key. The first that matches counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead<'p> {
    /// This text, alone or in a list, or as the text of a wildcard.
    Text(&'p str),
    Network(&'p Network),
    /// This wildcard or regular expression.
    Pattern(&'p Matcher),
    KeyAlone,
}

/// Why descriptors of one key cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// This regular expression, the first of its key, needs too large an automaton together with the other patterns of
    /// the key.
    TooLarge {
        bytes_max: usize,
    },
    /// More wildcards and regular expressions than the bound.
    TooMany,
    Wildcards(TooCostly),
}

/// The wildcards of one key need an automaton of more than [`AUTOMATON_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// The part of a policy about one key at one place.
#[derive(Debug)]
pub(super) struct Branch<N> {
    by_value: HashMap<Box<str>, Leaf<N>>,
    /// The descriptors for many values each, in file order.
    groups: Vec<ValueGroup<N>>,
    networks: Option<Box<Networks>>,
    patterns: Patterns,
    alone: Option<Box<N>>,
    /// The groups by their names, which are in the keys of shared states.
    by_name: HashMap<Box<str>, u32>,
}

impl<N> Default for Branch<N> {
    fn default() -> Self {
        Self {
            by_value: HashMap::new(),
            groups: Vec::new(),
            networks: None,
            patterns: Patterns::default(),
            alone: None,
            by_name: HashMap::new(),
        }
    }
}

/// What a text in the map leads to.
#[derive(Debug)]
enum Leaf<N> {
    Own(N),
    /// To the list of this group.
    Listed(u32),
}

/// A descriptor for many values.
#[derive(Debug)]
struct ValueGroup<N> {
    /// Its position among all descriptors of the level.
    order: u32,
    matcher: Matcher,
    name: Box<str>,
    node: N,
}

/// The wildcards and regular expressions, each with the number of its group.
#[derive(Debug, Default)]
struct Patterns {
    wildcards: Vec<(u32, Pattern)>,
    regexes: usize,
    /// None if the key has only wildcards, and they are few or need too large an automaton.
    automaton: Option<Automaton>,
    /// Finds wildcards without an automaton.
    wildcard: FirstWildcard,
    /// The group of each pattern of the automaton.
    numbers: Vec<u32>,
}

/// A descriptor that a value matches, and its position among all descriptors of the level.
pub(super) struct FoundPattern<'p, N> {
    pub(super) order: u32,
    pub(super) step: Step<'p>,
    pub(super) node: &'p N,
}

impl<N> Branch<N> {
    /// Adds a descriptor. False if a descriptor with an equal value or name is here already.
    pub(super) fn insert(&mut self, matcher: Option<Matcher>, order: u32, node: N) -> bool {
        let Some(matcher) = matcher else {
            return self.alone.replace(Box::new(node)).is_none();
        };
        let name: Box<str> = (*matcher.name()).into();
        if let Some(text) = matcher.exact() {
            return !self.by_name.contains_key(&name) && self.by_value.insert(text.into(), Leaf::Own(node)).is_none();
        }
        #[expect(clippy::cast_possible_truncation, reason = "a group takes more than a byte of memory")]
        let number = self.groups.len() as u32;
        let mut is_new = !self.by_value.contains_key(&name) && self.by_name.insert(name.clone(), number).is_none();
        match &matcher {
            Matcher::Text(text) => self.patterns.wildcards.extend(Pattern::new(text).map(|pattern| (number, pattern))),
            Matcher::Regex(_) => self.patterns.regexes += 1,
            Matcher::List(values) => {
                self.by_value.reserve(values.len());
                for value in &**values {
                    is_new &= self.by_value.insert(value.clone(), Leaf::Listed(number)).is_none();
                }
            }
            Matcher::Networks(networks) => {
                let all = self.networks.get_or_insert_default();
                for network in &**networks {
                    is_new &= all.push(*network, number);
                }
            }
        }
        self.groups.push(ValueGroup { order, matcher, name, node });
        is_new
    }

    /// Builds the lookups for groups. Subtracts the bytes of an automaton from the remaining bytes.
    pub(super) fn seal(&mut self, bytes_left: &mut usize) -> Result<(), Unfit> {
        if let Some(networks) = &mut self.networks {
            networks.seal();
        }
        let Patterns { wildcards, regexes, .. } = &self.patterns;
        let (has_regex, count) = (*regexes > 0, wildcards.len() + regexes);
        if !has_regex && (count <= COMPARED_MAX || count > PATTERNS_MAX) {
            return self.seal_wildcards(bytes_left);
        }
        if count > PATTERNS_MAX {
            return Err(Unfit::TooMany);
        }
        let mut wildcards = wildcards.iter().peekable();
        let (mut sources, mut numbers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (number, group) in (0..).zip(&self.groups) {
            let wildcard = wildcards.next_if(|(of, _)| *of == number).map(|(_, pattern)| Source::Wildcard(pattern));
            let regex = if let Matcher::Regex(regex) = &group.matcher { Some(Source::Regex(regex)) } else { None };
            if let Some(source) = wildcard.or(regex) {
                sources.push(source);
                numbers.push(number);
            }
        }
        let bytes_max = AUTOMATON_BYTES_MAX.min(*bytes_left);
        let automaton = Automaton::new(&sources, bytes_max);
        // The build of an automaton that becomes too large takes as long as a full one, so it uses as many of the
        // remaining bytes.
        *bytes_left -= automaton.as_ref().map_or(bytes_max, Automaton::bytes).min(*bytes_left);
        match automaton {
            None if has_regex => Err(Unfit::TooLarge { bytes_max }),
            None => self.seal_wildcards(bytes_left),
            Some(_) => {
                self.patterns.automaton = automaton;
                self.patterns.numbers = numbers;
                Ok(())
            }
        }
    }

    fn seal_wildcards(&mut self, bytes_left: &mut usize) -> Result<(), Unfit> {
        let patterns = self.patterns.wildcards.iter().map(|(_, pattern)| pattern);
        self.patterns.wildcard = FirstWildcard::new(patterns, bytes_left).map_err(Unfit::Wildcards)?;
        Ok(())
    }

    /// The descriptor that an error names: the first regular expression in file order, or the wildcard.
    pub(super) fn named_by(&self, unfit: Unfit) -> Option<&Matcher> {
        match unfit {
            Unfit::TooLarge { .. } | Unfit::TooMany => {
                self.groups.iter().map(|group| &group.matcher).find(|matcher| matches!(matcher, Matcher::Regex(_)))
            }
            Unfit::Wildcards(costly) => {
                let (number, _) = self.patterns.wildcards.get(costly.position())?;
                Some(&self.group(*number).matcher)
            }
        }
    }

    /// The descriptor with exactly this value, alone or in a list, or with this text as its wildcard.
    pub(super) fn exact(&self, value: &str) -> Option<(Step<'_>, &N)> {
        match self.by_value.get(value) {
            Some(Leaf::Own(node)) => return Some((Step::Exact, node)),
            Some(Leaf::Listed(number)) => {
                let group = self.group(*number);
                return Some((Step::Listed(&group.name), &group.node));
            }
            None => {}
        }
        // Only a value with a star in it can be the text of a wildcard.
        if self.patterns.wildcards.is_empty() || !value.contains('*') {
            return None;
        }
        let number = *self.by_name.get(value)?;
        // `wildcards` is sorted by group.
        let at = self.patterns.wildcards.binary_search_by_key(&number, |(group, _)| *group).ok()?;
        Some((Step::Pattern(&self.patterns.wildcards[at].1), &self.group(number).node))
    }

    /// The descriptor with the longest network that contains the value.
    pub(super) fn network(&self, value: &str) -> Option<(Step<'_>, &N)> {
        let (network, number) = self.networks.as_ref()?.find(value)?;
        let group = self.group(number);
        Some((Step::Network(network, &group.name), &group.node))
    }

    /// The first wildcard or regular expression that matches the value.
    pub(super) fn pattern(&self, value: &str) -> Option<FoundPattern<'_, N>> {
        let Patterns { wildcards, automaton, wildcard, .. } = &self.patterns;
        self.source(match automaton {
            Some(automaton) => automaton.first(value)?,
            None => wildcard.first(value, wildcards.iter().map(|(_, pattern)| pattern))?,
        })
    }

    /// The wildcard or regular expression at this position of the automaton.
    pub(super) fn source(&self, place: usize) -> Option<FoundPattern<'_, N>> {
        let number = match &self.patterns.automaton {
            Some(_) => *self.patterns.numbers.get(place)?,
            None => self.patterns.wildcards.get(place)?.0,
        };
        let group = self.group(number);
        let wildcard = self.patterns.wildcards.binary_search_by_key(&number, |(of, _)| *of);
        let step = match wildcard {
            Ok(at) => Step::Pattern(&self.patterns.wildcards[at].1),
            Err(_) => Step::Regex(&group.name),
        };
        Some(FoundPattern { order: group.order, step, node: &group.node })
    }

    /// The automaton of the wildcards and regular expressions. This call builds it if decisions use none.
    /// Fails when the automaton would be too large.
    pub(super) fn automaton(&self) -> Result<Option<Cow<'_, Automaton>>, TooLarge> {
        let Patterns { wildcards, regexes, automaton, .. } = &self.patterns;
        match automaton {
            Some(automaton) => Ok(Some(Cow::Borrowed(automaton))),
            None if wildcards.is_empty() && *regexes == 0 => Ok(None),
            None => {
                let sources: Vec<_> = wildcards.iter().map(|(_, pattern)| Source::Wildcard(pattern)).collect();
                Automaton::new(&sources, AUTOMATON_BYTES_MAX).map(|made| Some(Cow::Owned(made))).ok_or(TooLarge)
            }
        }
    }

    /// The texts that values are compared with first, in no particular order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let wildcards = self.patterns.wildcards.iter().map(|(_, pattern)| pattern.as_str());
        self.by_value.keys().map(|text| &**text).chain(wildcards)
    }

    /// The networks, in no particular order.
    pub(super) fn networks(&self) -> impl Iterator<Item = Network> {
        self.networks.iter().flat_map(|networks| networks.longest_first()).map(|(network, _)| *network)
    }

    /// Everything that can match a value, in the order of the search.
    pub(super) fn leads(&self) -> Vec<(Lead<'_>, &N)> {
        let mut leads: Vec<(Lead<'_>, &N)> = Vec::new();
        for (text, leaf) in &self.by_value {
            let node = match leaf {
                Leaf::Own(node) => node,
                Leaf::Listed(number) => &self.group(*number).node,
            };
            leads.push((Lead::Text(text), node));
        }
        let wildcards = self.patterns.wildcards.iter();
        leads.extend(wildcards.map(|(number, pattern)| (Lead::Text(pattern.as_str()), &self.group(*number).node)));
        let networks = self.networks.iter().flat_map(|networks| networks.longest_first());
        leads.extend(networks.map(|(network, number)| (Lead::Network(network), &self.group(number).node)));
        let is_pattern = |group: &&ValueGroup<N>| matches!(group.matcher, Matcher::Text(_) | Matcher::Regex(_));
        let patterns = self.groups.iter().filter(is_pattern);
        leads.extend(patterns.map(|group| (Lead::Pattern(&group.matcher), &group.node)));
        leads.extend(self.alone().map(|node| (Lead::KeyAlone, node)));
        leads
    }

    /// The descriptor with the key alone.
    pub(super) fn alone(&self) -> Option<&N> {
        self.alone.as_deref()
    }

    /// The descriptor for many values with this name.
    pub(super) fn named(&self, name: &str) -> Option<(Step<'_>, &N)> {
        let group = self.group(*self.by_name.get(name)?);
        let step = match &group.matcher {
            Matcher::Text(_) => return self.exact(name),
            Matcher::List(_) => Step::Listed(&group.name),
            Matcher::Networks(networks) => Step::Network(networks.first()?, &group.name),
            Matcher::Regex(_) => Step::Regex(&group.name),
        };
        Some((step, &group.node))
    }

    fn group(&self, number: u32) -> &ValueGroup<N> {
        &self.groups[number as usize]
    }
}
