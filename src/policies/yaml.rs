//! YAML as a small tree with the position of each node.
//!
//! Aliases and merge keys (`<<`) are followed, as envoyproxy/ratelimit follows them; what they expand to counts
//! against the same bounds as text written out. Tags other than `!!str`, and a second document, are refused, except in
//! a compatible reading. Not here: what the keys mean (reader.rs).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use super::comments::{Comments, Quote};
use super::warning::Code;
use super::{Position, shown};

/// The most values in one file, keys and what aliases expand to included: some 300,000 rules.
pub const NODES_MAX: u32 = 4_000_000;
/// And so many in a text of any length: as many as this, and one for each so many bytes of it. A text of a few bytes a value
/// would take many times its bytes.
const NODES_FREE: usize = 100_000;
/// See [`NODES_FREE`]. A list of numbers has about seven bytes a value, a rule has six.
const NODE_BYTES: usize = 4;
/// And so many characters of lists and mappings in brackets: the parser keeps all of an outermost one, in hundreds of bytes
/// for each.
const FLOW_MARKS: [char; 5] = [',', '[', ']', '{', '}'];
/// The most bytes of texts that aliases stand for, written out: as many as a file may have.
const ALIASED_BYTES_MAX: usize = super::FILE_BYTES_MAX;
/// How deep lists and mappings may nest: room for the deepest policy, and then some.
pub const DEPTH_MAX: usize = 64;
/// The same in a compatible reading: room for its levels of descriptors.
const DEPTH_COMPATIBLE_MAX: usize = 192;

/// Why a text is no tree; the reading ends there.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) position: Position,
    pub(super) message: String,
}

/// Where a node is kept. Aliases make several places of the tree share one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// The node at that index of a document's nodes.
    pub(super) const fn new(index: u32) -> Self {
        Self(index)
    }
}

/// A value and where it was written: with an alias, where its anchor stands.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) position: Position,
    pub(super) value: Value<'a>,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    /// `plain` distinguishes `5` from `"5"`.
    Scalar {
        text: Cow<'a, str>,
        plain: bool,
    },
    List(Vec<NodeId>),
    /// Keys are scalars; whether one is there twice is checked in a compatible reading only.
    Mapping(Vec<(NodeId, NodeId)>),
}

impl Node<'_> {
    /// Whether it is nothing: absent, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain: true } => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// What it is, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, plain: true } => shown(text),
            Value::Scalar { text, plain: false } => format!("the text {}", shown(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

/// One YAML document.
#[derive(Debug)]
pub(super) struct Document<'a> {
    nodes: Vec<Node<'a>>,
    /// None if the text is empty but for comments.
    pub(super) root: Option<NodeId>,
    /// Probable mistakes.
    pub(super) notes: Vec<(Position, Code, String)>,
    pub(super) comments: Comments,
}

impl<'a> Document<'a> {
    /// Reads a text, which may start with a byte order mark. A compatible reading ends with the first document.
    pub(super) fn parse(text: &'a str, is_compatible: bool) -> Result<Self, Fault> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let nodes_max = NODES_FREE + text.len() / NODE_BYTES;
        let marks = text.matches(FLOW_MARKS).count();
        if marks > nodes_max {
            let message = format!(
                "{marks} of the characters , [ ] {{ }}, at most {nodes_max}: {NODES_FREE}, and one for each {NODE_BYTES} bytes"
            );
            return Err(fault(Position { line: 1, column: 1 }, message));
        }
        let mut builder = Builder { is_compatible, nodes_max, ..Builder::default() };
        let mut parser = Parser::new_from_str(text);
        let mut quotes = Vec::new();
        while let Some(event) = parser.next_event() {
            if is_compatible && builder.is_complete {
                if !matches!(event, Ok((Event::StreamEnd, _))) {
                    let at = event.map_or_else(|error| position(error.marker()), |(_, span)| position(&span.start));
                    let message = "what follows the first document is not read: a file holds one domain";
                    builder.notes.push((at, Code::SecondDocument, message.to_owned()));
                }
                break;
            }
            let (event, span) = event.map_err(|error| Fault {
                position: position(error.marker()),
                message: format!("not valid YAML: {}", error.info()),
            })?;
            let start = position(&span.start);
            if let Event::Scalar(text, ..) = &event
                && text.contains('#')
            {
                quotes.push(Quote { start, marks: text.matches('#').count() });
            }
            builder.event(event, start)?;
        }
        let comments = Comments::of(text, &quotes);
        Ok(Self { nodes: builder.nodes, root: builder.root, notes: builder.notes, comments })
    }

    /// A document of these nodes, which are fewer than [`NODES_MAX`].
    pub(super) fn of_nodes(nodes: Vec<Node<'a>>, root: NodeId) -> Self {
        Self { nodes, root: Some(root), notes: Vec::new(), comments: Comments::default() }
    }

    /// The last line in which a node has a key or a value. What an alias stands for was written before.
    pub(super) fn last_line(&self, id: NodeId) -> u32 {
        let node = self.node(id);
        let below = match &node.value {
            Value::Scalar { .. } => None,
            Value::List(items) => items.iter().map(|item| self.last_line(*item)).max(),
            Value::Mapping(entries) => {
                entries.iter().flat_map(|&(key, value)| [key, value]).map(|id| self.last_line(id)).max()
            }
        };
        below.unwrap_or(0).max(node.position.line)
    }

    pub(super) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id.0 as usize]
    }
}

/// Lines count from 1 in the parser and here, columns from 0 there and from 1 here.
fn position(marker: &Marker) -> Position {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position { line: small(marker.line()), column: small(marker.col().saturating_add(1)) }
}

/// A node with all that hangs below it.
#[derive(Clone, Copy)]
struct Subtree {
    node: NodeId,
    /// How many nodes it is when aliases are written out.
    size: u32,
    /// How many bytes its texts have then.
    bytes: usize,
    /// How many collections deep it is.
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

#[derive(Default)]
struct Builder<'a> {
    is_compatible: bool,
    /// The first document has ended.
    is_complete: bool,
    notes: Vec<(Position, Code, String)>,
    nodes: Vec<Node<'a>>,
    root: Option<NodeId>,
    documents: u32,
    open: Vec<Open>,
    anchors: HashMap<usize, Subtree>,
    /// Nodes so far, with aliases written out.
    size: u32,
    /// The most nodes, aliases not written out.
    nodes_max: usize,
    /// The bytes of texts that aliases stand for, so far.
    aliased_bytes: usize,
}

impl<'a> Builder<'a> {
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
                    return Err(fault(at, "a second document: a file holds one domain, give it a file of its own"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = is_plain(style, tag.as_deref(), self.is_compatible, at)?;
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
                    return Err(fault(at, "an alias inside of what it stands for"));
                };
                self.count(subtree.size, at)?;
                self.aliased_bytes = self.aliased_bytes.saturating_add(subtree.bytes);
                if self.aliased_bytes > ALIASED_BYTES_MAX {
                    let most = ALIASED_BYTES_MAX >> 20;
                    return Err(fault(at, format!("aliases of more than {most} MiB of text, written out")));
                }
                self.place(subtree, at)
            }
        }
    }

    fn start(&mut self, is_mapping: bool, anchor: usize, tag: Option<&Tag>, at: Position) -> Result<(), Fault> {
        if tag.is_some() && !self.is_compatible {
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
            Value::Mapping(if self.is_compatible { self.flattened(entries)? } else { self.merged(entries)? })
        } else {
            Value::List(closed.items)
        };
        // The collection counts once more here; what is in it was counted as it came.
        let mut subtree = self.add(Node { position: at, value }, 1, closed.height)?;
        subtree.size = closed.size;
        subtree.bytes = closed.bytes;
        self.anchor(closed.anchor, subtree);
        self.place(subtree, at)
    }

    /// The entries with those of every `<<` added, unless the mapping has the key itself.
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

    /// The entries in the order in which envoyproxy/ratelimit sets its fields: those of a `<<` where it stands, and of a
    /// key that is there several times the last value.
    fn flattened(&mut self, entries: Vec<(NodeId, NodeId)>) -> Result<Vec<(NodeId, NodeId)>, Fault> {
        let mut flat: Vec<(NodeId, NodeId)> = Vec::with_capacity(entries.len());
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut written = HashSet::new();
        for (key, value) in entries {
            if !matches!(self.scalar(key), Some(("<<", true))) {
                self.set(&mut flat, &mut places, (key, value))?;
                let name = self.scalar(key).map_or_else(String::new, |(text, _)| text.to_owned());
                let name_shown = shown(&name);
                if !written.insert(name) {
                    let at = self.nodes[key.0 as usize].position;
                    self.notes.push((at, Code::KeyTwice, format!("{name_shown} is here twice: later values win")));
                }
                continue;
            }
            // Of several mappings the first one wins.
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

    /// Sets one entry.
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
        // There a rate limit is one object, whose fields are set by every mapping that is given for it.
        if name == "rate_limit"
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
        if self.nodes.len() >= self.nodes_max {
            let most = self.nodes_max;
            return Err(fault(
                node.position,
                format!("more than {most} values: {NODES_FREE}, and one for each {NODE_BYTES} bytes"),
            ));
        }
        // Never more nodes than are counted, so the number fits.
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node);
        Ok(Subtree { node: id, size, bytes: 0, height })
    }

    fn count(&mut self, size: u32, at: Position) -> Result<(), Fault> {
        self.size = self.size.saturating_add(size);
        if self.size > NODES_MAX {
            return Err(fault(at, format!("more than {NODES_MAX} values in one file, aliases written out")));
        }
        Ok(())
    }

    fn anchor(&mut self, anchor: usize, subtree: Subtree) {
        // 0 is no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, subtree);
        }
    }

    /// Puts a complete node where the text has it.
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
        let most = if self.is_compatible { DEPTH_COMPATIBLE_MAX } else { DEPTH_MAX };
        if depth > most {
            return Err(fault(at, format!("nested deeper than {most} lists and mappings")));
        }
        Ok(())
    }
}

/// Whether a scalar is read as what it looks like: a number, a boolean, nothing or text. Else it is text.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>, is_compatible: bool, at: Position) -> Result<bool, Fault> {
    let Some(tag) = tag else {
        return Ok(style == ScalarStyle::Plain);
    };
    match tag.suffix.as_str() {
        "str" if tag.is_yaml_core_schema() => Ok(false),
        _ if !is_compatible => Err(tagged(at)),
        "binary" if tag.is_yaml_core_schema() => Err(fault(at, "!!binary: write the text")),
        // A tag of its own makes it text.
        suffix => Ok(tag.is_yaml_core_schema() && matches!(suffix, "int" | "float" | "bool" | "null")),
    }
}

fn not_to_merge(at: Position) -> Fault {
    fault(at, "\"<<\" takes a mapping or a list of them")
}

fn tagged(at: Position) -> Fault {
    fault(at, "a tag: of tags only !!str is read")
}

fn fault(position: Position, message: impl Into<String>) -> Fault {
    Fault { position, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines for which a comment stands in them or above.
    fn beside(text: &str) -> Vec<u32> {
        let document = Document::parse(text, false).unwrap();
        let lines = u32::try_from(text.lines().count()).unwrap();
        (1..=lines).filter(|line| document.comments.is_beside(*line, *line)).collect()
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

    #[test]
    fn a_range_of_lines_has_the_comments_between_its_ends() {
        let document = Document::parse("a: 1\nb: 2\nc: 3 # why\nd: 4\n", false).unwrap();
        let cases = [(1, 2, false), (1, 3, true), (3, 3, true), (4, 4, false)];
        for (first, last, expected) in cases {
            assert_eq!(document.comments.is_beside(first, last), expected, "{first} to {last}");
        }
    }
}
