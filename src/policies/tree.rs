//! Policies that were not read from text, for example from a control plane. They have the keys and values of a policy
//! file.
//!
//! A problem has the path to its place instead of line and column: `descriptors[2].rate_limit (path=/pay)`. Not here:
//! what the keys mean (reader.rs, limit.rs), and the source of such policies (xds).

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use weir_text::escaped;
use weir_text::yaml::{Document, Node, NodeId, Position, Value};

use super::NODES_MAX;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tree<'a> {
    /// A quoted text, which is never read as a number, boolean or null.
    Text(Cow<'a, str>),
    /// An unquoted scalar: a number, a boolean, null or a text.
    Plain(Cow<'a, str>),
    List(Vec<Tree<'a>>),
    /// Keys with their values. Each key is unique.
    Mapping(Vec<(Cow<'a, str>, Tree<'a>)>),
}

/// A tree as a document, and the paths of its places.
pub(super) struct Planted<'a> {
    pub(super) document: Document<'a>,
    pub(super) paths: Paths,
}

/// The path to each place. The line of a [`Position`] is the number of the place.
pub(super) struct Paths(Vec<Step>);

struct Step {
    /// The number of the parent place.
    above: u32,
    /// The key of this place in its parent, and the index in a list.
    key: Box<str>,
    item: Option<usize>,
    /// The key and value of a descriptor at this place, for messages.
    descriptor: Option<Box<str>>,
}

impl<'a> Planted<'a> {
    /// # Errors
    /// When the tree is too large.
    pub(super) fn new(tree: Tree<'a>) -> Result<Self, String> {
        let mut planter = Planter { nodes: Vec::new(), steps: Vec::new() };
        let root = planter.plant(tree, 0)?;
        Ok(Self { document: Document::of_nodes(planter.nodes, root), paths: Paths(planter.steps) })
    }
}

struct Planter<'a> {
    nodes: Vec<Node<'a>>,
    steps: Vec<Step>,
}

impl<'a> Planter<'a> {
    fn plant(&mut self, tree: Tree<'a>, place: u32) -> Result<NodeId, String> {
        let value = match tree {
            Tree::Text(text) => Value::Scalar { text, plain: false },
            Tree::Plain(text) => Value::Scalar { text, plain: true },
            Tree::List(items) => {
                let planted: Result<_, _> = items.into_iter().map(|item| self.plant(item, place)).collect();
                Value::List(planted?)
            }
            Tree::Mapping(entries) => {
                let mut planted = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let value = self.value(&key, value, place)?;
                    let key = self.add(Value::Scalar { text: key, plain: false }, place)?;
                    planted.push((key, value));
                }
                Value::Mapping(planted)
            }
        };
        self.add(value, place)
    }

    /// Adds the value of a key. A mapping gets its own place, also in a list.
    fn value(&mut self, key: &str, value: Tree<'a>, place: u32) -> Result<NodeId, String> {
        match value {
            Tree::List(items) => {
                let mut planted = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    let below = self.step(key, Some(index), &item, place)?;
                    planted.push(self.plant(item, below)?);
                }
                self.add(Value::List(planted), place)
            }
            Tree::Mapping(_) => {
                let below = self.step(key, None, &value, place)?;
                self.plant(value, below)
            }
            Tree::Text(_) | Tree::Plain(_) => self.plant(value, place),
        }
    }

    fn step(&mut self, key: &str, item: Option<usize>, tree: &Tree<'a>, above: u32) -> Result<u32, String> {
        let step = Step { above, key: key.into(), item, descriptor: descriptor(tree) };
        self.steps.push(step);
        // Places count from 1: the root is 0.
        u32::try_from(self.steps.len()).map_err(|_| too_many())
    }

    fn add(&mut self, value: Value<'a>, place: u32) -> Result<NodeId, String> {
        let id = u32::try_from(self.nodes.len()).map_err(|_| too_many())?;
        if id >= NODES_MAX {
            return Err(too_many());
        }
        self.nodes.push(Node { position: Position { line: place, column: 0 }, value });
        Ok(NodeId::new(id))
    }
}

impl Paths {
    /// The path to a place, empty for the root.
    pub(super) fn path(&self, position: Position) -> String {
        let mut steps = Vec::new();
        let mut place = position.line;
        // The number of the parent is smaller, so the loop ends.
        while let Some(step) = (place as usize).checked_sub(1).and_then(|index| self.0.get(index)) {
            steps.push(step);
            place = step.above;
        }
        let mut path = String::new();
        for step in steps.iter().rev() {
            let dot = if path.is_empty() { "" } else { "." };
            path.push_str(dot);
            path.push_str(&step.key);
            if let Some(item) = step.item {
                // Writing into a text cannot fail.
                let _ = write!(path, "[{item}]");
            }
        }
        if let Some(descriptor) = steps.iter().find_map(|step| step.descriptor.as_deref()) {
            let _ = write!(path, " ({descriptor})");
        }
        path
    }
}

fn descriptor(tree: &Tree<'_>) -> Option<Box<str>> {
    let Tree::Mapping(entries) = tree else {
        return None;
    };
    let text = |name: &str| {
        entries.iter().find_map(|(key, value)| match value {
            Tree::Text(text) if key == name => Some(text.as_ref()),
            _ => None,
        })
    };
    let key = escaped(text("key").filter(|key| !key.is_empty())?);
    Some(match text("value") {
        Some(value) => format!("{key}={}", escaped(value)).into(),
        None => key.into(),
    })
}

fn too_many() -> String {
    format!("more than {NODES_MAX} values")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dialect, read_trees};

    fn text(text: &str) -> Tree<'_> {
        Tree::Text(text.into())
    }

    fn mapping<'a>(entries: &[(&'a str, Tree<'a>)]) -> Tree<'a> {
        Tree::Mapping(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
    }

    fn limit(requests: &str) -> Tree<'_> {
        mapping(&[("unit", text("minute")), ("requests_per_unit", Tree::Plain(requests.into()))])
    }

    fn shop<'a>(descriptors: Vec<Tree<'a>>) -> Tree<'a> {
        mapping(&[("domain", text("shop")), ("descriptors", Tree::List(descriptors))])
    }

    fn problems(trees: Vec<Tree<'_>>) -> Vec<String> {
        let named = trees.into_iter().enumerate().map(|(index, tree)| (format!("r{index}"), Ok(tree)));
        let problems = read_trees(named, Dialect::default()).unwrap_err();
        problems.list().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_tree_is_read_as_the_same_file_is() {
        let below = mapping(&[("key", text("b")), ("value", text("x*")), ("rate_limit", limit("3"))]);
        let tree = shop(vec![
            mapping(&[("key", text("a|/")), ("value", text("5")), ("descriptors", Tree::List(vec![below]))]),
            mapping(&[("key", text("free")), ("rate_limit", mapping(&[("unlimited", Tree::Plain("true".into()))]))]),
        ]);
        let loaded = read_trees([("shop".to_owned(), Ok(tree))], Dialect::default()).unwrap();
        let file = "domain: shop\n\
                    descriptors:\n\
                    - {key: 'a|/', value: '5', descriptors: [{key: b, value: 'x*', \
                       rate_limit: {unit: minute, requests_per_unit: 3}}]}\n\
                    - {key: free, rate_limit: {unlimited: true}}\n";
        let same = super::super::parse(&[("shop.yaml", file)]).unwrap();
        assert_eq!(format!("{:?}", loaded.policies.rules()), format!("{:?}", same.policies.rules()));
        let places: Vec<String> = loaded.places.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["shop: descriptors[0].descriptors[0] (b=x*)", "shop: descriptors[1] (free)"]);
        assert_eq!(loaded.files, 1);
    }

    #[test]
    fn problems_have_the_path_of_their_place() {
        let one = |name: &'static str| mapping(&[("key", text(name)), ("rate_limit", limit("1"))]);
        let deep = mapping(&[("key", text("b")), ("rate_limit", limit("-1"))]);
        let above = mapping(&[("key", text("a")), ("value", text("1")), ("descriptors", Tree::List(vec![deep]))]);
        assert_eq!(
            problems(vec![shop(vec![above, one("c"), one("c")]), shop(vec![])]),
            [
                "r0: descriptors[0].descriptors[0].rate_limit (b): requests_per_unit must be a whole number from 0 to \
                 999999999999999, not \"-1\"",
                "r0: descriptors[2] (c): key \"c\" without a value appears twice, first at descriptors[1] (c)",
                "r1: domain \"shop\" is defined already, at r0",
            ]
        );
        assert_eq!(problems(vec![mapping(&[("descriptors", Tree::List(vec![]))])]).len(), 1);
        assert_eq!(
            problems(vec![text("x")]),
            [
                "r0: a policy file must be a mapping with the keys domain, charging, on_error, allow_warnings, descriptors: it has none of them"
            ]
        );
    }

    #[test]
    fn a_source_that_cannot_be_read_is_named_and_no_source_is_no_problem() {
        let wrong = ("r".to_owned(), Err(vec!["not a message".to_owned()]));
        assert_eq!(read_trees([wrong], Dialect::default()).unwrap_err().to_string(), "r: not a message");
        assert_eq!(read_trees([], Dialect::default()).unwrap().policies.domains().len(), 0);
    }
}
