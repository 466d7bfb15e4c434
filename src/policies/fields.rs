//! Reads the values of a mapping by key, each with its required type.
//!
//! Not here: the list of keys (tables.rs), and what their values mean (reader.rs, limit.rs).

use std::fmt::Display;

use weir_engine::{Algorithm, COUNT_MAX, Count};
use weir_text::yaml::{NO_BREAK_SPACES, Node, NodeId, Position, Value};
use weir_text::{boolean, nearest, quoted};

use super::keys::{Kind, Named, REFERENCE_KEYS};
use super::scalar::{self, IsOdd, Plain, whole_number};
use super::state::{FileReader, Reported};
use super::warning::Code;
use super::{NAME_BYTES_MAX, instead};

/// A value that may be absent or invalid.
pub(super) type Read<T> = Result<Option<T>, Reported>;

/// The values of a mapping, by the keys of its kind.
pub(super) struct Fields {
    pub(super) at: Position,
    kind: &'static Kind,
    /// The position and the value of each key, in the order of the kind's keys.
    found: Vec<Option<(Position, NodeId)>>,
    /// The probable corrections of misspelled keys.
    meant: Vec<&'static str>,
}

impl Fields {
    pub(crate) fn get(&self, key: impl Named) -> Option<(Position, NodeId)> {
        self.found[self.kind.position(key.name())?]
    }

    /// The position of the key. None if it is absent.
    pub(super) fn key_at(&self, key: impl Named) -> Option<Position> {
        self.get(key).map(|(at, _)| at)
    }

    pub(super) fn values_but(&self, key: impl Named) -> impl Iterator<Item = NodeId> {
        let left_out = self.kind.position(key.name());
        let others = self.found.iter().enumerate().filter(move |(index, _)| Some(*index) != left_out);
        others.filter_map(|(_, found)| found.map(|(_, value)| value))
    }

    /// Whether the mapping has neither the key nor a misspelling of it.
    pub(super) fn lacks(&self, key: impl Named) -> bool {
        let name = key.name();
        self.get(name).is_none() && !self.meant.contains(&name)
    }
}

impl<'r> FileReader<'r> {
    /// The keys and values of a whole file. If the file is not a mapping, or has none of the keys, it may be a secret:
    /// the message then quotes nothing from it.
    pub(super) fn fields_of_file(&mut self, root: NodeId, kind: &'static Kind) -> Result<Fields, Reported> {
        let document = self.document;
        let node = document.node(root);
        let has_key = match &node.value {
            Value::Mapping(entries) if entries.is_empty() => true,
            Value::Mapping(entries) => entries.iter().any(|&(key, _)| match &document.node(key).value {
                Value::Scalar { text, .. } => kind.knows(text) || nearest(text, kind.names()).is_some(),
                _ => false,
            }),
            _ => false,
        };
        if has_key {
            return self.fields(root, kind);
        }
        let known: Vec<_> = kind.names().collect();
        let message =
            format!("{} must be a mapping with the keys {}: it has none of them", kind.name, known.join(", "));
        Err(self.report(node.position, message))
    }

    /// The keys and values of a mapping. Reports unknown keys.
    pub(super) fn fields(&mut self, id: NodeId, kind: &'static Kind) -> Result<Fields, Reported> {
        let document = self.document;
        let node = document.node(id);
        let Value::Mapping(entries) = &node.value else {
            let hint = match &node.value {
                Value::Scalar { text, .. } => without_space(text, kind).map(|(_, hint)| hint),
                _ => None,
            };
            let (what, hint) = (node.describe(), hint.unwrap_or_default());
            let message = format!("{} must be a mapping of keys and values, not {what}{hint}", kind.name);
            return Err(self.report(node.position, message));
        };
        let found = vec![None; kind.keys.len()];
        let mut fields = Fields { at: node.position, kind, found, meant: Vec::new() };
        for &(key, value) in entries {
            if self.is_full() {
                break;
            }
            let at = document.node(key).position;
            let Value::Scalar { text: key, .. } = &document.node(key).value else {
                continue;
            };
            let Some(index) = kind.position(key) else {
                if kind.ignored.contains(&&**key) || self.is_compatible() && REFERENCE_KEYS.contains(&&**key) {
                    self.warn(at, Code::IgnoredKey, format!("{key} has no effect in {}", kind.name));
                    continue;
                }
                let message = unknown_key(key, kind, self.kinds, &mut fields.meant);
                self.report(at, message);
                continue;
            };
            match fields.found[index] {
                None => fields.found[index] = Some((at, value)),
                Some((first, _)) => {
                    self.report(at, format!("{key} appears twice, first in line {}", first.line));
                }
            }
        }
        Ok(fields)
    }

    /// A text. None if it is null or empty. Numbers and booleans are texts as written.
    pub(super) fn text(&mut self, fields: &Fields, key: &'static str, bytes_max: usize) -> Read<String> {
        let Some((at, node)) = self.value(fields, key) else { return Ok(None) };
        let Value::Scalar { text, .. } = &node.value else {
            return Err(self.report(at, format!("{key} must be text, not {}", node.describe())));
        };
        if text.len() > bytes_max {
            return Err(self.report(at, format!("{key} has {} bytes: at most {bytes_max}", text.len())));
        }
        Ok(Some(text.to_string()).filter(|text| !text.is_empty()))
    }

    pub(crate) fn parsed<T>(
        &mut self,
        fields: &Fields,
        key: &'static str,
        bytes_max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Read<T> {
        let Some(text) = self.text(fields, key, bytes_max)? else { return Ok(None) };
        match parse(&text) {
            Ok(value) => Ok(Some(value)),
            Err(reason) => Err(self.report_value(fields, key, format!("{key} {}: {reason}", quoted(&text)))),
        }
    }

    /// One of a few words. None if absent or null.
    pub(super) fn choice(&mut self, fields: &Fields, key: &'static str, words: &[&'static str]) -> Read<&'static str> {
        let Some(word) = self.text(fields, key, NAME_BYTES_MAX)? else {
            return Ok(None);
        };
        match words.iter().find(|known| **known == word) {
            Some(word) => Ok(Some(word)),
            None => Err(self.report_value(fields, key, format!("no {key} {}{}", quoted(&word), instead(&word, words)))),
        }
    }

    /// True or false, in any of the words of YAML 1.1. False if absent or null.
    pub(super) fn flag(&mut self, fields: &Fields, key: &'static str) -> Result<bool, Reported> {
        let Some((at, node)) = self.value(fields, key) else { return Ok(false) };
        match self.flag_given(fields, key) {
            Some(truth) => Ok(truth),
            None => Err(self.report(at, format!("{key} must be true or false, not {}", node.describe()))),
        }
    }

    /// A flag, if it is present and valid.
    pub(super) fn flag_given(&self, fields: &Fields, key: impl Named) -> Option<bool> {
        match &self.document.node(fields.get(key)?.1).value {
            Value::Scalar { text, plain: true } => boolean(text),
            _ => None,
        }
    }

    /// A whole number of 32 bits, in decimal digits with optional `_` between them. A compatible reading accepts all
    /// numbers of YAML 1.1. Messages name `least`, which the engine demands.
    pub(super) fn number(&mut self, fields: &Fields, key: &'static str, least: u32) -> Read<u32> {
        self.number_to(fields, key, (least, u32::MAX.into()))
    }

    /// The hits of a limit.
    pub(super) fn hits_of_limit(&mut self, fields: &Fields, key: &'static str) -> Read<Count> {
        self.number_to(fields, key, (0, COUNT_MAX))
    }

    fn number_to<N>(&mut self, fields: &Fields, key: &'static str, (least, most): (u32, Count)) -> Read<N>
    where
        N: TryFrom<Count> + Display,
    {
        let Some((at, id)) = fields.get(key) else {
            return Ok(None);
        };
        let document = self.document;
        let node = document.node(id);
        let reason = match &node.value {
            Value::Scalar { text, plain: true } if self.is_compatible() => match compatible_number(text, most) {
                Some((number, odd)) => {
                    if odd == IsOdd::Yes {
                        let at = self.value_position(at, id);
                        self.warn(at, Code::OddNumber, format!("{key} {} is {number}", quoted(text)));
                    }
                    return Ok(Some(number));
                }
                None => "",
            },
            Value::Scalar { text, plain: true } => match whole_number(text, most) {
                Ok(number) => return Ok(Some(number)),
                Err(reason) => reason,
            },
            Value::Scalar { text, plain: false } if whole_number::<N>(text, most).is_ok() => ": remove the quotes",
            _ => "",
        };
        let message = format!("{key} must be a whole number from {least} to {most}, not {}{reason}", node.describe());
        Err(self.report(self.value_position(at, id), message))
    }

    /// The items of a list. None if it is null.
    pub(super) fn list(&mut self, fields: &Fields, key: &'static str) -> Read<Vec<NodeId>> {
        let Some((at, node)) = self.value(fields, key) else { return Ok(None) };
        match &node.value {
            Value::List(items) => Ok(Some(items.clone())),
            _ => Err(self.report(at, format!("{key} must be a list, not {}", node.describe()))),
        }
    }

    /// The value of a key and its position. None if it is absent or null.
    pub(super) fn value(&self, fields: &Fields, key: impl Named) -> Option<(Position, &'r Node<'r>)> {
        let (at, id) = fields.get(key)?;
        let node = self.document.node(id);
        (!node.is_null()).then(|| (self.value_position(at, id), node))
    }

    /// The position of a key with a value: null counts as absent.
    pub(super) fn given(&self, fields: &Fields, key: impl Named) -> Option<Position> {
        fields.get(key).filter(|(_, value)| !self.document.node(*value).is_null()).map(|(at, _)| at)
    }

    /// The keys of a mapping that have no value, as from a template that rendered nothing.
    pub(super) fn without_value(&self, fields: &Fields) -> Vec<(&'static str, Position)> {
        let is_null = |id: NodeId| self.document.node(id).is_null();
        let found =
            fields.kind.names().filter_map(|key| Some((key, fields.get(key).filter(|(_, id)| is_null(*id))?.0)));
        found.collect()
    }

    /// Warns about keys without a value. Other warnings have those of `rate_limit` and `value`.
    pub(super) fn warn_of_no_values(&mut self, fields: &Fields) {
        if !self.is_of_weir() {
            return;
        }
        for (key, at) in self.without_value(fields) {
            if !["rate_limit", "rate_limits", "value"].contains(&key) {
                let message = format!("{key} has no value, so it has no effect: write one, or remove {key}");
                self.warn(at, Code::EmptyValue, message);
            }
        }
    }

    /// Reports a problem of a key, with the position of the key.
    pub(super) fn report_key(&mut self, fields: &Fields, key: impl Named, message: String) -> Reported {
        let at = fields.key_at(key).unwrap_or(fields.at);
        self.report(at, message)
    }

    /// Reports a problem of a key's value, with the position of the value.
    pub(super) fn report_value(&mut self, fields: &Fields, key: impl Named, message: String) -> Reported {
        let at = fields.get(key).map_or(fields.at, |(key, node)| self.value_position(key, node));
        self.report(at, message)
    }

    /// The position of a value; for an alias, the position of its key.
    pub(super) fn value_position(&self, key: Position, id: NodeId) -> Position {
        let value = self.document.node(id).position;
        if value > key { value } else { key }
    }
}

/// A number as envoyproxy/ratelimit reads it: in any base of YAML 1.1.
fn compatible_number<N: TryFrom<Count>>(text: &str, most: Count) -> Option<(N, IsOdd)> {
    match scalar::plain(text) {
        Plain::Whole(number, odd) => {
            let number = Count::try_from(number).ok().filter(|number| *number <= most)?;
            Some((N::try_from(number).ok()?, odd))
        }
        _ => None,
    }
}

/// For a text such as `key:user`: the key, and the end of a message about it.
fn without_space(text: &str, kind: &Kind) -> Option<(&'static str, String)> {
    let (name, value) = text.split_once(':')?;
    let key = kind.keys.get(kind.position(name)?)?.name;
    let value = value.trim_start_matches(NO_BREAK_SPACES);
    Some((key, format!(": write a space after the colon, {}", quoted(&format!("{key}: {value}")))))
}

/// The message about an unknown key. Adds the probable correction to `meant`.
fn unknown_key(key: &str, kind: &Kind, kinds: &[&Kind], meant: &mut Vec<&'static str>) -> String {
    let text = quoted(key);
    if let Some((known, hint)) = without_space(key, kind) {
        meant.push(known);
        return format!("unknown key {text} in {}{hint}", kind.name);
    }
    if kind.knows("ask") && key.contains('=') {
        // In a flow mapping a comma ends the descriptor.
        return format!("unknown key {text} in {}: quote a descriptor that has a comma", kind.name);
    }
    let ordinary = key.trim_matches(NO_BREAK_SPACES);
    if ordinary.len() < key.len() && kinds.iter().any(|kind| kind.knows(ordinary)) {
        return format!("unknown key {text} in {}: replace its no-break spaces with ordinary ones", kind.name);
    }
    if kind.knows("algorithm") && Algorithm::NAMES.contains(&key) {
        // Its period may be in the value.
        meant.push("unit");
        return format!("unknown key {text} in {}: write algorithm: {key}", kind.name);
    }
    let homes: Vec<_> = kinds.iter().filter(|other| other.knows(key)).map(|other| other.name).collect();
    if !homes.is_empty() {
        return format!("{key} belongs in {}, not in {}", homes.join(" or "), kind.name);
    }
    if let Some(near) = nearest(key, kind.names()) {
        meant.push(near);
        return format!("unknown key {text} in {}, did you mean {near:?}?", kind.name);
    }
    format!("unknown key {text} in {}: it has {}", kind.name, kind.names().collect::<Vec<_>>().join(", "))
}
