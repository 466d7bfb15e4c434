//! The values that a descriptor matches: `value`, `values`, `cidr` and `regex`. Reports two descriptors of the same
//! values.
//!
//! Not here: how values are matched (engine/branch.rs).

use std::collections::{HashMap, HashSet};
use std::fmt;

use weir_engine::automaton::{PATTERNS_MAX, REGEX_AUTOMATON_BYTES_MAX, Regex};
use weir_engine::matcher::Matcher;
use weir_engine::network::{Network, NetworkError};
use weir_text::quoted;
use weir_text::yaml::{Node, NodeId, Value};

use super::fields::{Fields, Read};
use super::state::{FileReader, Reported};
use super::tables::{FORMS, descriptor};
use super::{Outline, Position, REGEXES_MAX, VALUES_MAX};

/// A value, or a name of values, that must be unique for a key at one level.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Claim {
    Alone,
    /// A value, a wildcard, or the name of a list or of a regular expression.
    Text(Box<str>),
    Network(Network),
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("without a value"),
            Self::Text(text) => write!(f, "with value {}", quoted(text)),
            Self::Network(network) => write!(f, "with network {network}"),
        }
    }
}

/// The values that no other descriptor of the key may have.
pub(super) fn taken(value: Option<&Matcher>) -> Vec<Claim> {
    let mut all = Vec::new();
    match value {
        None => return vec![Claim::Alone],
        Some(Matcher::List(values)) => all.extend(values.iter().cloned().map(Claim::Text)),
        Some(Matcher::Networks(networks)) => all.extend(networks.iter().copied().map(Claim::Network)),
        Some(Matcher::Text(_) | Matcher::Regex(_)) => {}
    }
    let name = value.map(|value| Claim::Text((*value.name()).into()));
    all.extend(name.filter(|name| !all.contains(&name.clone())));
    all
}

impl FileReader<'_> {
    /// The values that a descriptor matches. None: the key alone.
    pub(super) fn matcher(&mut self, fields: &Fields) -> Read<Matcher> {
        let mut given = FORMS.into_iter().filter(|form| self.given(fields, *form).is_some());
        if let (Some(one), Some(other)) = (given.next(), given.next()) {
            let at = self.given(fields, one).max(self.given(fields, other)).unwrap_or(fields.at);
            let message = format!("{one} and {other} together: a descriptor has one of {}", FORMS.join(", "));
            return Err(self.report(at, message));
        }
        if let Some((at, node)) = self.value(fields, descriptor::VALUE)
            && let Value::List(_) = node.value
        {
            return Err(self.report(at, "value must be text, not a list: the key for a list is called values"));
        }
        if let Some(text) = self.read(fields, descriptor::VALUE)? {
            return Ok(Some(text.into()));
        }
        if let Some(values) = self.read(fields, descriptor::VALUES)? {
            return Ok(Some(Matcher::List(values.into())));
        }
        if let Some(networks) = self.read(fields, descriptor::CIDR)? {
            return Ok(Some(Matcher::Networks(networks.into())));
        }
        let Some(at) = self.given(fields, descriptor::REGEX) else { return Ok(None) };
        let Some(text) = self.read(fields, descriptor::REGEX)? else {
            return Err(self.report(at, "regex is empty: write ^$ to match only the empty value"));
        };
        self.all.regexes += 1;
        if self.all.regexes_are_refused {
            // Only the first one is reported.
            return Err(Reported);
        }
        if self.all.regexes > REGEXES_MAX {
            self.all.regexes_are_refused = true;
            let message = format!("more than {REGEXES_MAX} regular expressions in all files");
            return Err(self.report_of_all(at, message));
        }
        let regex = Regex::new(&text);
        let bytes = regex.as_ref().map_or(REGEX_AUTOMATON_BYTES_MAX, Regex::built_bytes);
        let left = self.all.regex_bytes_left.checked_sub(bytes);
        self.all.regex_bytes_left = left.unwrap_or_default();
        match regex {
            Ok(_) if left.is_none() => {
                self.all.regexes_are_refused = true;
                let most = self.all.limits.regex_bytes();
                let message = format!(
                    "regex {}: it needs {bytes} bytes, and with it the regular expressions of all files need more than \
                     {most} bytes together: write [0-9] in place of \\d and [0-9A-Za-z_] in place of \\w, which match all of Unicode, and \
                     [!-~] in place of a dot",
                    quoted(&text)
                );
                self.all.problems.are_of_all = true;
                Err(self.report_value(fields, descriptor::REGEX, message))
            }
            Ok(regex) => Ok(Some(Matcher::Regex(regex.into()))),
            Err(error) => {
                // Its build may have taken as long as that of the largest automaton.
                self.all.regexes_are_refused |= left.is_none();
                self.all.problems.are_of_all |= left.is_none();
                let message = format!("regex {}: {error}", quoted(&text));
                Err(self.report_value(fields, descriptor::REGEX, message))
            }
        }
    }

    pub(super) fn values(&mut self, fields: &Fields, key: &'static str) -> Read<Vec<Box<str>>> {
        let Some((at, _)) = fields.get(key) else { return Ok(None) };
        if let Some((at, Node { value: Value::Scalar { text, .. }, .. })) = self.value(fields, key) {
            let message = format!("values must be a list, not {}: write value for one", quoted(text));
            return Err(self.report(at, message));
        }
        let items = self.list(fields, key)?;
        let bytes_max = self.bounds().value_bytes;
        let read = |text: &str| match text {
            "" => Err("an empty value: write regex: ^$ for it, in its own descriptor".to_owned()),
            _ if text.len() > bytes_max => Err(format!("a value has {} bytes: at most {bytes_max}", text.len())),
            _ if text.contains('*') => {
                let text = quoted(text);
                Err(format!(
                    "{text} has a *, and values are compared as text: write value for it, in its own descriptor"
                ))
            }
            _ => Ok(text.into()),
        };
        self.items(key, at, items, read)
    }

    pub(super) fn networks(&mut self, fields: &Fields, key: &'static str) -> Read<Vec<Network>> {
        let Some((at, id)) = fields.get(key) else { return Ok(None) };
        let items = match &self.document.node(id).value {
            Value::Scalar { .. } => self.given(fields, key).map(|_| vec![id]),
            _ => self.list(fields, key)?,
        };
        let read = |text: &str| {
            Network::parse(text).map_err(|error| {
                let hint = match error {
                    NetworkError::NoAddress if text.contains('*') => ", a * goes under value",
                    _ => "",
                };
                format!("{} is not a network: {error}{hint}", quoted(text))
            })
        };
        self.items(key, at, items, read)
    }

    /// The items of a list of texts without repetitions.
    fn items<T: Clone + Eq + std::hash::Hash>(
        &mut self,
        key: &str,
        at: Position,
        items: Option<Vec<NodeId>>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Read<Vec<T>> {
        let Some(items) = items else { return Ok(None) };
        if items.is_empty() {
            return Err(
                self.report(at, format!("{key} is empty: without it, a descriptor is for all values of its key"))
            );
        }
        let before = self.all.values;
        self.all.values += items.len();
        if self.all.values > VALUES_MAX {
            let message = format!("more than {VALUES_MAX} values and networks in all files");
            // Only the first list is reported.
            return Err(if before > VALUES_MAX { Reported } else { self.report_of_all(at, message) });
        }
        let document = self.document;
        let mut known = HashSet::with_capacity(items.len());
        let mut all = Vec::with_capacity(items.len());
        let mut wrong = None;
        for id in items {
            if self.is_full() {
                break;
            }
            let node = document.node(id);
            let place = self.value_position(at, id);
            let told = match &node.value {
                Value::Scalar { text, .. } if !node.is_null() => match read(text) {
                    Ok(item) if known.insert(item.clone()) => {
                        all.push(item);
                        continue;
                    }
                    Ok(_) => self.report(place, format!("{key} has {} twice", quoted(text))),
                    Err(message) => self.report(place, message),
                },
                _ => self.report(place, format!("{key} has {}: it is a list of texts", node.describe())),
            };
            wrong = Some(told);
        }
        wrong.map_or(Ok(Some(all)), Err)
    }

    /// Reports descriptors that match the same values as an earlier one.
    pub(super) fn check_twins(&mut self, outlines: &[Outline]) {
        let mut first: HashMap<(&str, Claim), Position> = HashMap::with_capacity(outlines.len());
        for outline in outlines {
            for taken in taken(outline.value.as_ref()) {
                let what = taken.to_string();
                if let Some(first) = first.insert((&outline.key, taken), outline.note.position) {
                    let (key, first) = (quoted(&outline.key), self.spelled(first));
                    self.report(outline.note.position, format!("key {key} {what} appears twice, first at {first}"));
                    break;
                }
            }
        }
    }

    /// Reports a key with more wildcards and regular expressions than an automaton can have. A compatible reading
    /// accepts any number of wildcards if the key has no regular expression.
    pub(super) fn check_patterns<'o>(&mut self, level: impl Iterator<Item = &'o Outline>) {
        let mut counts: HashMap<&str, (usize, bool)> = HashMap::new();
        for outline in level {
            let is_regex = matches!(outline.value, Some(Matcher::Regex(_)));
            let is_pattern = is_regex || matches!(&outline.value, Some(Matcher::Text(text)) if text.contains('*'));
            if !is_pattern {
                continue;
            }
            let (count, has_regex) = counts.entry(&outline.key).or_default();
            *count += 1;
            *has_regex |= is_regex;
            if *count == PATTERNS_MAX + 1 && (*has_regex || !self.is_compatible()) {
                let key = quoted(&outline.key);
                self.report(
                    outline.note.position,
                    format!("more than {PATTERNS_MAX} wildcards and regular expressions of the key {key} at one level"),
                );
            }
        }
    }
}
