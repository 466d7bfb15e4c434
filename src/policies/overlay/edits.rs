//! Overlays as data, and what they have done to a document.
//!
//! Not here: how they are read (overlay.rs), and what they do (apply.rs).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use weir_text::yaml::{Document, NodeId};
use weir_text::{nearest, quoted};

use super::glob::Glob;
use crate::{Location, Position};

/// The overlays of a file, and which of them a load has met.
#[derive(Debug)]
pub(crate) struct Overlays {
    pub(crate) file: Arc<str>,
    pub(super) list: Vec<Overlay>,
    /// The keys and values that the overlays give.
    pub(super) values: Document<'static>,
    /// How far each of them came.
    pub(super) reached: Vec<Reached>,
    /// How many comparisons with descriptors are left. None: there were too many.
    pub(super) comparisons_left: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Overlay {
    pub(super) at: Position,
    /// Whether one of its lines has a comment, or the line above is a comment.
    pub(super) has_comment: bool,
    pub(super) domain: Glob,
    pub(super) path: Vec<Pattern>,
    /// Whether the path goes on through any descriptors.
    pub(super) any_depth: bool,
    pub(super) name: Option<String>,
    pub(super) replace: bool,
    /// What it gives to each limit.
    pub(super) limit: Vec<Given>,
    /// What it gives to the descriptor.
    pub(super) descriptor: Vec<Given>,
}

/// A pattern for one descriptor.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) key: Glob,
    pub(super) value: ValuePattern,
}

#[derive(Debug)]
pub(super) enum ValuePattern {
    /// Any value or none.
    Any,
    None,
    Of(Glob),
}

/// A key with its place, and its value in `values` of [`Overlays`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) name: &'static str,
    pub(super) at: Position,
    pub(super) value: NodeId,
}

/// How far an overlay came in all files.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached {
    /// Whether it met a limit.
    pub(super) limit: bool,
    /// Whether its domain matched one.
    pub(super) domain: bool,
    /// The most patterns that matched a descriptor and those above it.
    pub(super) depth: usize,
    /// Descriptors that the next pattern did not match, at most [`OTHERS_MAX`].
    pub(super) others: Vec<String>,
}

/// The most descriptors that are remembered for the warning about an overlay.
pub(super) const OTHERS_MAX: usize = 16;
/// The longest descriptor that is remembered, in bytes.
pub(super) const OTHER_BYTES_MAX: usize = 256;
/// The most of them that the warning names, if none is similar to the pattern.
const OTHERS_NAMED: usize = 3;

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            ValuePattern::Any => write!(f, "{}", self.key),
            ValuePattern::None => write!(f, "{}=", self.key),
            ValuePattern::Of(value) => write!(f, "{}={value}", self.key),
        }
    }
}

impl Overlay {
    /// Why it met no limit.
    fn why_unmet(&self, reached: &Reached) -> String {
        if !reached.domain {
            return format!("no policy has the domain {}", quoted(&self.domain.to_string()));
        }
        match (self.path.get(reached.depth), &self.name) {
            (Some(pattern), _) => {
                let pattern = pattern.to_string();
                let others = || reached.others.iter().map(String::as_str);
                let hint = match nearest(&pattern, others()) {
                    Some(near) => format!(", did you mean {}?", quoted(near)),
                    None if reached.others.is_empty() => String::new(),
                    None => {
                        let named: Vec<String> = others().take(OTHERS_NAMED).map(quoted).collect();
                        format!(", there is {}", named.join(", "))
                    }
                };
                format!("no descriptor matches {}{hint}", quoted(&pattern))
            }
            (None, Some(name)) => format!("its descriptors have no limit with the name {}", quoted(name)),
            (None, None) => "its descriptors have no limit, or only unlimited ones".to_owned(),
        }
    }
}

/// An overlay that no limit has met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    pub place: Location,
    why: String,
}

impl Unmet {
    /// What is wrong, without the place.
    pub fn message(&self) -> String {
        format!("no limit meets this overlay, because {}", self.why)
    }
}

/// What a load has done with a file of overlays.
#[derive(Clone, Debug)]
pub struct OverlayUse {
    pub count: usize,
    pub unmet: Vec<Unmet>,
}

impl OverlayUse {
    /// A line for each overlay that no limit has met.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.unmet.iter().map(|unmet| format!("{}: warning: {}", unmet.place, unmet.message()))
    }
}

/// What overlays have done to a document.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// At most [`PROBLEMS_MAX`](crate::PROBLEMS_MAX). With as many the rest of the file is not edited.
    pub(crate) problems: Vec<(Position, String)>,
    /// The overlays of each edited descriptor.
    pub(crate) of: HashMap<NodeId, EditedBy>,
}

/// The overlays that a limit of a descriptor has met.
#[derive(Debug, Default)]
pub(crate) struct EditedBy {
    pub(crate) places: Vec<Position>,
    /// Whether a comment explains one of them.
    pub(crate) has_comment: bool,
}

/// An edited descriptor, for messages.
#[derive(Debug)]
pub(crate) struct Overlaid {
    pub(crate) descriptor: Position,
    pub(crate) by: EditedBy,
}

impl Overlays {
    pub(crate) fn used(&self) -> OverlayUse {
        let unmet = self.list.iter().zip(&self.reached).filter(|(_, reached)| !reached.limit);
        let unmet = unmet.map(|(overlay, reached)| Unmet {
            place: Location { file: self.file.clone(), position: overlay.at },
            why: overlay.why_unmet(reached),
        });
        OverlayUse { count: self.list.len(), unmet: unmet.collect() }
    }
}
