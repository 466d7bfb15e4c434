//! YAML as a small tree with the position of each node. It reads policies, settings and mapping files.
//!
//! Aliases and merge keys (`<<`) are expanded. Expanded values count against the same bounds as written text. Tags
//! other than `!!str` and second documents are refused, except in a compatible reading. Not here: what keys mean.

mod comments;
mod faults;
mod position;
mod tabs;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

pub use faults::NO_BREAK_SPACES;
pub use position::Position;

use comments::{Comments, Quote};

use super::quoted;

/// The parser stores everything between the brackets of an outermost list or mapping, with hundreds of bytes for each
/// of these characters.
const FLOW_MARKS: [char; 5] = [',', '[', ']', '{', '}'];

/// The bytes that each value of an alias counts as, besides its text.
pub const VALUE_BYTES: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Reads only the first document, accepts all tags, and of a key that appears twice takes the last value.
    pub is_compatible: bool,
    /// In a compatible reading: the key whose mappings are joined if it is repeated.
    pub joined_key: &'static str,
    /// The most values as written.
    pub written_max: usize,
    /// The most characters of `, [ ] { }`.
    pub flow_marks_max: usize,
    /// The most values after expanding aliases, including keys.
    pub values_max: u32,
    /// The most bytes of aliases, as [`Document::aliased_bytes`] counts them.
    pub aliased_bytes_max: usize,
    pub depth_max: usize,
}

/// Why a text cannot be parsed, and where; displayed as `line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub position: Position,
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)
    }
}

impl std::error::Error for Fault {}

/// A probable mistake that a compatible reading accepts.
#[derive(Clone, Debug)]
pub enum Oddity {
    /// A key that the mapping already has.
    KeyTwice(String),
    SecondDocument,
}

/// The index of a node. Aliases make several places of the tree share one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub const fn new(index: u32) -> Self {
        Self(index)
    }
}

/// A value and its position. The position of an alias is that of its anchor.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    pub position: Position,
    pub value: Value<'a>,
}

#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// A text, a number, a boolean or null.
    Scalar {
        /// As written, without quotes.
        text: Cow<'a, str>,
        /// Distinguishes `5` from `"5"`.
        plain: bool,
    },
    List(Vec<NodeId>),
    /// Keys are scalars; whether one appears twice is checked in a compatible reading only.
    Mapping(Vec<(NodeId, NodeId)>),
}

impl Node<'_> {
    /// Whether the value is absent, `~` or `null`.
    pub fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain: true } => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// The value's type, for messages.
    pub fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, plain: true } => quoted(text),
            Value::Scalar { text, plain: false } => format!("the text {}", quoted(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Document<'a> {
    nodes: Vec<Node<'a>>,
    /// None if the text is empty except for comments.
    pub root: Option<NodeId>,
    /// Probable mistakes.
    pub oddities: Vec<(Position, Oddity)>,
    /// The bytes that the aliases would have if they were written out: of their texts, and [`VALUE_BYTES`] for each value.
    pub aliased_bytes: usize,
    comments: Comments,
}

impl<'a> Document<'a> {
    /// Parses a text. It may start with a byte order mark.
    ///
    /// # Errors
    /// The first fault of the text.
    pub fn parse(text: &'a str, options: Options) -> Result<Self, Fault> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (marks, most) = (text.matches(FLOW_MARKS).count(), options.flow_marks_max);
        if marks > most {
            let advice = "write lists and mappings over several lines, or split the file";
            let message = format!("{marks} of the characters , [ ] {{ }}, at most {most}: {advice}");
            return Err(fault(Position::START, message));
        }
        match tabs::after_colons_as_spaces(text, options.written_max) {
            None => Self::read(text, text, options, |event| event),
            // Each position is the same in both texts.
            Some(spaced) => Self::read(text, &spaced, options, tabs::owned),
        }
    }

    /// Parses `parsed`, and finds the comments of `text`.
    fn read<'p>(
        text: &'a str,
        parsed: &'p str,
        options: Options,
        own: impl Fn(Event<'p>) -> Event<'a>,
    ) -> Result<Self, Fault> {
        let mut places = Places::of(text);
        let mut builder = Builder::new(options);
        let mut parser = Parser::new_from_str(parsed);
        let mut quotes = Vec::new();
        while let Some(event) = parser.next_event() {
            let start = match &event {
                Ok((_, span)) => Position::of(&span.start),
                Err(error) => Position::of(error.marker()),
            };
            if options.is_compatible && builder.is_complete {
                if !matches!(event, Ok((Event::StreamEnd, _))) {
                    builder.oddities.push((start, Oddity::SecondDocument));
                }
                break;
            }
            let (event, span) = event.map_err(|error| faults::explained(text, start, error.info()))?;
            let event = match own(event) {
                Event::Scalar(text, style, anchor, tag) => {
                    Event::Scalar(places.borrowed(span.start.index(), text), style, anchor, tag)
                }
                other => other,
            };
            if let Event::Scalar(text, ..) = &event
                && text.contains('#')
            {
                quotes.push(Quote { start, marks: text.matches('#').count() });
            }
            builder.event(event, start)?;
        }
        let comments = Comments::of(text, &quotes);
        let aliased_bytes = builder.aliased_bytes;
        Ok(Self { nodes: builder.nodes, root: builder.root, oddities: builder.oddities, aliased_bytes, comments })
    }

    pub fn of_nodes(nodes: Vec<Node<'a>>, root: NodeId) -> Self {
        Self { nodes, root: Some(root), oddities: Vec::new(), aliased_bytes: 0, comments: Comments::default() }
    }

    /// Adds a value that no other has yet.
    pub fn add(&mut self, node: Node<'a>) -> NodeId {
        // Memory ends before numbers do.
        let id = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(node);
        NodeId(id)
    }

    /// Adds a copy of a value of another document. Its positions then have [`Position::of_graft`].
    pub fn graft(&mut self, from: &Document<'_>, id: NodeId) -> NodeId {
        let node = from.node(id);
        let value = match &node.value {
            Value::Scalar { text, plain } => Value::Scalar { text: Cow::Owned(text.to_string()), plain: *plain },
            Value::List(items) => Value::List(items.iter().map(|item| self.graft(from, *item)).collect()),
            Value::Mapping(entries) => {
                let copied = |&(key, value): &(NodeId, NodeId)| (self.graft(from, key), self.graft(from, value));
                Value::Mapping(entries.iter().map(copied).collect())
            }
        };
        self.add(Node { position: node.position.grafted(), value })
    }

    /// Whether one of these lines has a comment, or the line above is a comment.
    pub fn has_comment(&self, first: u32, last: u32) -> bool {
        self.comments.is_beside(first, last)
    }

    /// Calls `visit` with each scalar and list below a mapping: its name, such as `redis.timeout`, and the position of
    /// its key. Does nothing for a node that is not a mapping.
    pub fn leaves(&self, mapping: NodeId, visit: &mut impl FnMut(&str, Position, &Node<'a>)) {
        self.leaves_below(&mut String::new(), mapping, visit);
    }

    fn leaves_below(&self, name: &mut String, mapping: NodeId, visit: &mut impl FnMut(&str, Position, &Node<'a>)) {
        let Value::Mapping(entries) = &self.node(mapping).value else { return };
        let above = name.len();
        for &(key, id) in entries {
            let (key, value) = (self.node(key), self.node(id));
            if let Value::Scalar { text, .. } = &key.value {
                name.push_str(text);
            }
            if let Value::Mapping(_) = value.value {
                name.push('.');
                self.leaves_below(name, id, visit);
            } else {
                visit(name, key.position, value);
            }
            name.truncate(above);
        }
    }

    /// The last line with a key or a value of a node. An alias has no lines of its own, and a graft has none here.
    pub fn last_line(&self, id: NodeId) -> u32 {
        let node = self.node(id);
        if node.position.of_graft().is_some() {
            return 0;
        }
        let below = match &node.value {
            Value::Scalar { .. } => None,
            Value::List(items) => items.iter().map(|item| self.last_line(*item)).max(),
            Value::Mapping(entries) => {
                entries.iter().flat_map(|&(key, value)| [key, value]).map(|id| self.last_line(id)).max()
            }
        };
        below.unwrap_or(0).max(node.position.line)
    }

    pub fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id.0 as usize]
    }
}

/// Finds texts of the parser in the source. The parser copies each text, which takes more memory than most texts have bytes.
struct Places<'a> {
    rest: &'a str,
    /// The number of characters before the rest.
    before: usize,
}

impl<'a> Places<'a> {
    const fn of(source: &'a str) -> Self {
        Self { rest: source, before: 0 }
    }

    /// The same text as a part of the source, if it is written there without quotes and escapes. `start` is the number
    /// of characters before it, and must not be less than at the last call.
    fn borrowed(&mut self, start: usize, text: Cow<'a, str>) -> Cow<'a, str> {
        let skipped = start.saturating_sub(self.before);
        let Some((at, _)) = self.rest.char_indices().nth(skipped) else { return text };
        (self.rest, self.before) = (&self.rest[at..], self.before + skipped);
        match self.rest.get(..text.len()) {
            Some(written) if *written == *text => Cow::Borrowed(written),
            _ => text,
        }
    }
}

/// A node with everything nested in it.
#[derive(Clone, Copy)]
struct Subtree {
    node: NodeId,
    /// The number of nodes after expanding aliases.
    size: u32,
    /// The bytes of its texts after expanding aliases.
    bytes: usize,
    /// How deep its collections are nested.
    height: usize,
}

/// A list or mapping that is still open.
struct Open {
    position: Position,
    is_mapping: bool,
    anchor: usize,
    /// In a mapping: key, value, key, value.
    items: Vec<NodeId>,
    size: u32,
    bytes: usize,
    height: usize,
}

struct Builder<'a> {
    options: Options,
    /// Whether the first document has ended.
    is_complete: bool,
    oddities: Vec<(Position, Oddity)>,
    nodes: Vec<Node<'a>>,
    root: Option<NodeId>,
    documents: u32,
    open: Vec<Open>,
    anchors: HashMap<usize, Subtree>,
    /// The number of nodes so far, after expanding aliases.
    size: u32,
    /// The bytes of aliases so far. [`Document::aliased_bytes`]
    aliased_bytes: usize,
}

impl<'a> Builder<'a> {
    fn new(options: Options) -> Self {
        Self {
            options,
            is_complete: false,
            oddities: Vec::new(),
            nodes: Vec::new(),
            root: None,
            documents: 0,
            open: Vec::new(),
            anchors: HashMap::new(),
            size: 0,
            aliased_bytes: 0,
        }
    }

    fn event(&mut self, event: Event<'a>, at: Position) -> Result<(), Fault> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd => Ok(()),
            Event::DocumentEnd => {
                self.is_complete = true;
                Ok(())
            }
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(fault(at, "a second document: a file has only one"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = is_plain(style, tag.as_deref(), self.options.is_compatible, at)?;
                let is_binary = |tag: &Tag| tag.is_yaml_core_schema() && tag.suffix == "binary";
                let text = if tag.as_deref().is_some_and(is_binary) { decoded(&text, at)?.into() } else { text };
                let bytes = text.len();
                let mut subtree = self.add(Node { position: at, value: Value::Scalar { text, plain } }, 1, 0)?;
                subtree.bytes = bytes;
                self.anchor(anchor, subtree);
                self.place(subtree, at)
            }
            Event::SequenceStart(anchor, tag) => self.start(false, anchor, tag.as_deref(), at),
            Event::MappingStart(anchor, tag) => self.start(true, anchor, tag.as_deref(), at),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let Some(&subtree) = self.anchors.get(&anchor) else {
                    return Err(fault(at, "an alias inside its own anchor"));
                };
                self.count(subtree.size, at)?;
                let bytes = subtree.bytes.saturating_add(subtree.size as usize * VALUE_BYTES);
                self.aliased_bytes = self.aliased_bytes.saturating_add(bytes);
                if self.aliased_bytes > self.options.aliased_bytes_max {
                    let most = self.options.aliased_bytes_max;
                    return Err(fault(at, format!("aliases expand to more than {most} bytes")));
                }
                self.place(subtree, at)
            }
        }
    }

    fn start(&mut self, is_mapping: bool, anchor: usize, tag: Option<&Tag>, at: Position) -> Result<(), Fault> {
        if tag.is_some() && !self.options.is_compatible {
            return Err(tagged(at));
        }
        self.check_depth(self.open.len() + 1, at)?;
        self.open.push(Open { position: at, is_mapping, anchor, items: Vec::new(), size: 1, bytes: 0, height: 1 });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(closed) = self.open.pop() else {
            return Ok(());
        };
        let at = closed.position;
        let value = if closed.is_mapping {
            let entries = closed.items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            Value::Mapping(if self.options.is_compatible { self.flattened(entries)? } else { self.merged(entries)? })
        } else {
            Value::List(closed.items)
        };
        // The collection itself is counted here; its content was counted before.
        let mut subtree = self.add(Node { position: at, value }, 1, closed.height)?;
        subtree.size = closed.size;
        subtree.bytes = closed.bytes;
        self.anchor(closed.anchor, subtree);
        self.place(subtree, at)
    }

    /// The entries, plus those of every `<<` whose key the mapping does not have.
    fn merged(&self, entries: Vec<(NodeId, NodeId)>) -> Result<Vec<(NodeId, NodeId)>, Fault> {
        let is_merge = |key: NodeId| matches!(self.scalar(key), Some(("<<", true)));
        if !entries.iter().any(|&(key, _)| is_merge(key)) {
            return Ok(entries);
        }
        let (merges, mut entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(|&(key, _)| is_merge(key));
        let mut known: HashSet<String> = HashSet::new();
        for &(key, _) in &entries {
            known.extend(self.scalar(key).map(|(text, _)| text.to_owned()));
        }
        for (key, value) in merges {
            for source in self.merge_sources(value) {
                let Value::Mapping(more) = &self.nodes[source.0 as usize].value else {
                    return Err(not_to_merge(self.nodes[key.0 as usize].position));
                };
                for &(key, value) in more {
                    if self.scalar(key).is_some_and(|(text, _)| known.insert(text.to_owned())) {
                        entries.push((key, value));
                    }
                }
            }
        }
        Ok(entries)
    }

    /// The entries in the order in which envoyproxy/ratelimit sets its fields: those of a `<<` at its place, and the
    /// last value of a repeated key.
    fn flattened(&mut self, entries: Vec<(NodeId, NodeId)>) -> Result<Vec<(NodeId, NodeId)>, Fault> {
        let mut flat: Vec<(NodeId, NodeId)> = Vec::with_capacity(entries.len());
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut written = HashSet::new();
        for (key, value) in entries {
            if !matches!(self.scalar(key), Some(("<<", true))) {
                self.set(&mut flat, &mut places, (key, value))?;
                let name = self.scalar(key).map_or_else(String::new, |(text, _)| text.to_owned());
                if written.contains(&name) {
                    self.oddities.push((self.nodes[key.0 as usize].position, Oddity::KeyTwice(name)));
                } else {
                    written.insert(name);
                }
                continue;
            }
            // The first of several mappings has priority.
            for source in self.merge_sources(value).into_iter().rev() {
                let Value::Mapping(more) = &self.nodes[source.0 as usize].value else {
                    return Err(not_to_merge(self.nodes[key.0 as usize].position));
                };
                for entry in more.clone() {
                    self.set(&mut flat, &mut places, entry)?;
                }
            }
        }
        Ok(flat)
    }

    fn set(
        &mut self,
        flat: &mut Vec<(NodeId, NodeId)>,
        places: &mut HashMap<String, usize>,
        (key, value): (NodeId, NodeId),
    ) -> Result<(), Fault> {
        let Some((name, _)) = self.scalar(key) else {
            return Ok(());
        };
        let name = name.to_owned();
        let Some(&at) = places.get(&name) else {
            places.insert(name, flat.len());
            flat.push((key, value));
            return Ok(());
        };
        let (_, before) = flat[at];
        let mut last = value;
        if name == self.options.joined_key
            && let (Value::Mapping(first), Value::Mapping(second)) =
                (&self.nodes[before.0 as usize].value, &self.nodes[value.0 as usize].value)
        {
            let both = [first.as_slice(), second.as_slice()].concat();
            let position = self.nodes[value.0 as usize].position;
            let (mut joined, mut known) = (Vec::new(), HashMap::new());
            for entry in both {
                self.set(&mut joined, &mut known, entry)?;
            }
            last = self.add(Node { position, value: Value::Mapping(joined) }, 1, 0)?.node;
        }
        flat[at] = (key, last);
        Ok(())
    }

    /// The mappings that a `<<` names.
    fn merge_sources(&self, value: NodeId) -> Vec<NodeId> {
        match &self.nodes[value.0 as usize].value {
            Value::List(sources) => sources.clone(),
            _ => vec![value],
        }
    }

    fn scalar(&self, id: NodeId) -> Option<(&str, bool)> {
        match &self.nodes[id.0 as usize].value {
            Value::Scalar { text, plain } => Some((text, *plain)),
            _ => None,
        }
    }

    fn add(&mut self, node: Node<'a>, size: u32, height: usize) -> Result<Subtree, Fault> {
        self.count(size, node.position)?;
        if self.nodes.len() >= self.options.written_max {
            return Err(fault(node.position, format!("more than {} values", self.options.written_max)));
        }
        // There are never more nodes than counted, so the number fits.
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node);
        Ok(Subtree { node: id, size, bytes: 0, height })
    }

    fn count(&mut self, size: u32, at: Position) -> Result<(), Fault> {
        self.size = self.size.saturating_add(size);
        let most = self.options.values_max;
        if self.size > most {
            return Err(fault(at, format!("more than {most} values in one file, with aliases expanded")));
        }
        Ok(())
    }

    fn anchor(&mut self, anchor: usize, subtree: Subtree) {
        // 0 is no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, subtree);
        }
    }

    fn place(&mut self, subtree: Subtree, at: Position) -> Result<(), Fault> {
        self.check_depth(self.open.len() + subtree.height, at)?;
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(subtree.node);
            return Ok(());
        };
        let is_key = parent.is_mapping && parent.items.len() % 2 == 0;
        if is_key && subtree.height > 0 {
            return Err(fault(at, "a key must be text, not a list or a mapping"));
        }
        parent.items.push(subtree.node);
        parent.size = parent.size.saturating_add(subtree.size);
        parent.bytes = parent.bytes.saturating_add(subtree.bytes);
        parent.height = parent.height.max(subtree.height + 1);
        Ok(())
    }

    fn check_depth(&self, depth: usize, at: Position) -> Result<(), Fault> {
        let most = self.options.depth_max;
        if depth > most {
            return Err(fault(at, format!("nested deeper than {most} lists and mappings")));
        }
        Ok(())
    }
}

/// Whether a scalar can be a number, a boolean or null. If not, it is text.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>, is_compatible: bool, at: Position) -> Result<bool, Fault> {
    let Some(tag) = tag else {
        return Ok(style == ScalarStyle::Plain);
    };
    match tag.suffix.as_str() {
        "str" if tag.is_yaml_core_schema() => Ok(false),
        _ if !is_compatible => Err(tagged(at)),
        // An unknown tag makes it text.
        suffix => Ok(tag.is_yaml_core_schema() && matches!(suffix, "int" | "float" | "bool" | "null")),
    }
}

/// The text of a `!!binary`.
fn decoded(text: &str, at: Position) -> Result<String, Fault> {
    // The lines of a block have breaks between them.
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| fault(at, format!("!!binary: not base64: {error}")))?;
    // Texts of requests are UTF-8.
    String::from_utf8(bytes).map_err(|_| fault(at, "!!binary: not UTF-8 after decoding, so no request has this text"))
}

fn not_to_merge(at: Position) -> Fault {
    fault(at, "\"<<\" takes a mapping or a list of them")
}

fn tagged(at: Position) -> Fault {
    fault(at, "a tag: the only supported tag is !!str")
}

fn fault(position: Position, message: impl Into<String>) -> Fault {
    Fault { position, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const OPTIONS: Options = Options {
        is_compatible: false,
        joined_key: "",
        written_max: 100,
        flow_marks_max: 100,
        values_max: 100,
        aliased_bytes_max: 100,
        depth_max: 4,
    };

    fn parse(text: &str) -> Document<'_> {
        Document::parse(text, OPTIONS).unwrap()
    }

    /// The lines with a comment, in them or above.
    fn beside(text: &str) -> Vec<u32> {
        let document = parse(text);
        let lines = u32::try_from(text.lines().count()).unwrap();
        (1..=lines).filter(|line| document.has_comment(*line, *line)).collect()
    }

    #[test]
    fn a_tab_between_a_colon_and_a_value_is_white_space() {
        let same = |tabbed: &str, spaced: &str| assert_eq!(shown(&parse(tabbed)), shown(&parse(spaced)), "{tabbed:?}");
        for (tabbed, spaced) in [
            ("a:\tb\n", "a: b\n"),
            ("a:\t\tb c\t# why\nd:\t-1\n", "a: b c # why\nd: -1\n"),
            ("a:\t'b'\nc:\t[d, {e:\tf}]\n", "a: 'b'\nc: [d, {e: f}]\n"),
            ("ä:\té\n? k\n:\tv\n", "ä: é\n? k\n: v\n"),
            ("a:\t&x 1\nb:\t*x\nc: \td\n", "a: &x 1\nb: *x\nc: d\n"),
            ("a:\t|\n  b\n", "a: |\n  b\n"),
        ] {
            same(tabbed, spaced);
        }
        // A tab in a text is a part of it.
        for (text, expected) in [
            ("a:\t\"ä:\tb\"\n", "ä:\tb"),
            ("a:\t'b:\tc ''d:\te'\n", "b:\tc 'd:\te"),
            ("a: |\n  b:\tc\n  d:\te\n", "b:\tc\nd:\te\n"),
            ("a: >-\n  b:\tc\n\n", "b:\tc"),
            ("a:\tx:\\ty\n", "x:\\ty"),
        ] {
            assert_eq!(shown(&parse(text)), format!("{{a: {expected}}}"), "{text:?}");
        }
        let document = parse("a:\t\"x # y\"\nb:\tz # why\n");
        assert!(!document.has_comment(1, 1) && document.has_comment(2, 2));
        // A tab never indents.
        for text in ["a:\n\tb: 1\n", "a:\t- b\n", "a:\tb: c\n", "a:\t\"b:\tc\n"] {
            assert!(Document::parse(text, OPTIONS).is_err(), "{text:?}");
        }
    }

    fn shown(document: &Document<'_>) -> String {
        fn node(document: &Document<'_>, id: NodeId) -> String {
            match &document.node(id).value {
                Value::Scalar { text, .. } => text.to_string(),
                Value::List(items) => {
                    format!("{:?}", items.iter().map(|item| node(document, *item)).collect::<Vec<_>>())
                }
                Value::Mapping(entries) => {
                    let entry = |(key, value): &(NodeId, NodeId)| {
                        format!("{}: {}", node(document, *key), node(document, *value))
                    };
                    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
                }
            }
        }
        node(document, document.root.unwrap())
    }

    #[test]
    fn binary_is_text_in_a_compatible_reading() {
        let compatible = Options { is_compatible: true, ..OPTIONS };
        let read = |text: &str| {
            Document::parse(text, compatible).map(|document| shown(&document)).map_err(|fault| fault.to_string())
        };
        assert_eq!(read("a: !!binary YW5u\nb: !!binary |\n  Y2\n  xlbw==\n"), Ok("{a: ann, b: cleo}".to_owned()));
        for (text, expected) in [
            ("YW5", ": !!binary: not base64: "),
            ("/w==", ": !!binary: not UTF-8 after decoding, so no request has this text"),
        ] {
            let error = read(&format!("a: !!binary {text}\n")).unwrap_err();
            assert!(error.starts_with("1:") && error.contains(expected), "{error}");
        }
        assert!(Document::parse("a: !!binary YW5u\n", OPTIONS).is_err());
    }

    #[test]
    fn a_comment_is_beside_its_line_and_the_line_below() {
        assert_eq!(beside("a: 1\n# why\nb: 2\nc: 3\n"), [2, 3]);
        assert_eq!(beside("a: 1  # why\nb: 2\n"), [1], "not alone in its line");
        assert_eq!(beside("a: 1\n  # one\n  # two\n\nb: 2\n"), [2, 3, 4]);
        assert_eq!(beside("\u{feff}# why\na: 1\nb: 2\r\nc: [1,\t# why\n 2]\n"), [1, 2, 4]);
    }

    #[test]
    fn a_hash_inside_of_a_text_is_no_comment() {
        for text in [
            "a: 'x # y'\nb: 1\n",
            "a: \"x # y\"\nb: 1\n",
            "a: x#y\nb: 1\n",
            "a: |\n  # text\n  more\nb: 1\n",
            "'ä #': 1\nb: 1\n",
            "a: \"x\n  # y\n  z\"\nb: 1\n",
        ] {
            assert_eq!(beside(text), [0_u32; 0], "{text}");
        }
        assert_eq!(beside("a: 'x # y' # why\nb: ['# 1', # and\n  '# 2']\n"), [1, 2]);
    }

    /// A file of 2 MiB in one line of marks was read for minutes.
    #[test]
    fn a_line_of_hash_marks_is_not_read_again_for_each() {
        let took = |marks: usize| {
            let text = format!("a: '{}'\n", "#".repeat(marks));
            let started = std::time::Instant::now();
            assert_eq!(beside(&text), [0_u32; 0]);
            started.elapsed()
        };
        // A busy machine can only make a run look slower, so the best of a few counts.
        let few = (0..3).map(|_| took(10_000)).min().unwrap();
        let many = (0..3).map(|_| took(200_000)).find(|&many| many < few * 100);
        assert!(many.is_some(), "10,000 marks took {few:?}, twenty times as many over 100 times that");
    }

    #[test]
    fn a_range_of_lines_has_the_comments_between_its_ends() {
        let document = parse("a: 1\nb: 2\nc: 3 # why\nd: 4\n");
        let cases = [(1, 2, false), (1, 3, true), (3, 3, true), (4, 4, false)];
        for (first, last, expected) in cases {
            assert_eq!(document.has_comment(first, last), expected, "{first} to {last}");
        }
    }
}
