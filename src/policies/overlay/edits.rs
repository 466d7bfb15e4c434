//! Overlays as data, and what they have done to a document.
//!
//! Not here: how they are read (overlay.rs), and what they do (apply.rs).

use std::collections::HashMap;
use std::sync::Arc;

use weir_text::yaml::{Document, NodeId};

use super::glob::Glob;
use crate::{Location, Position};

/// The overlays of a file, and which of them a load has met.
#[derive(Debug)]
pub(crate) struct Overlays {
    pub(crate) file: Arc<str>,
    pub(super) list: Vec<Overlay>,
    /// The keys and values that the overlays give.
    pub(super) values: Document<'static>,
    pub(super) met: Vec<bool>,
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

/// What a load has done with a file of overlays.
#[derive(Clone, Debug)]
pub struct OverlayUse {
    pub count: usize,
    /// The places of the overlays that no limit has met.
    pub unmet: Vec<Location>,
}

impl OverlayUse {
    /// A line for each overlay that no limit has met.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.unmet.iter().map(|place| format!("{place}: warning: no limit meets this overlay"))
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
        let unmet = self.list.iter().zip(&self.met).filter(|(_, met)| !**met);
        let place = |overlay: &Overlay| Location { file: self.file.clone(), position: overlay.at };
        OverlayUse { count: self.list.len(), unmet: unmet.map(|(overlay, _)| place(overlay)).collect() }
    }
}
