//! The state of a load: the results so far, and the file that is being read.
//!
//! Not here: what the keys of a file mean (reader.rs, limit.rs), and the values of keys (fields.rs).

use std::collections::HashMap;
use std::sync::Arc;

use weir_engine::Mode;
use weir_engine::plans::PlanNumbers;
use weir_engine::policy::DomainSpec;
use weir_text::yaml::Document;

use super::allowed::Allowed;
use super::keys::Kind;
use super::overlay::edits::{Edits, Overlaid, Overlays};
use super::tree::Paths;
use super::warning::{Code, WARNINGS_MAX, Warnings};
use super::{Bounds, Dialect, DomainOutline, Limits, Location, Note, PROBLEMS_MAX, Position, Problems};

/// What word processors write in place of straight quotes.
const CURLY_QUOTES: [char; 4] = ['\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}'];

/// The numbers of a limit under a plan, with their place.
pub(super) type PlanAt = (Position, PlanNumbers);

/// The problem of the current value was reported.
pub(super) struct Reported;

/// Reads files one after the other into one policy set.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) dialect: Dialect,
    pub(super) limits: Limits,
    /// How many bytes further files may have.
    pub(super) bytes_left: usize,
    pub(super) problems: Problems,
    pub(super) warnings: Warnings,
    pub(super) allowed: Allowed,
    /// The domain of each file.
    pub(super) specs: Vec<DomainSpec<Note>>,
    /// The domains, without their descriptors until all files are read.
    pub(super) outlines: Vec<DomainOutline>,
    pub(super) places: Vec<Location>,
    /// The index in `outlines` of each domain.
    pub(super) domains: HashMap<String, usize>,
    pub(super) descriptors: usize,
    /// The items of all `values` and `cidr`.
    pub(super) values: usize,
    pub(super) regexes: usize,
    /// How many bytes the automata of further regular expressions may have, each alone.
    pub(super) regex_bytes_left: usize,
    /// Whether a bound on all regular expressions is passed, so that no further one is built.
    pub(super) regexes_are_refused: bool,
    pub(super) files: usize,
    /// What is added to each file before it is read.
    pub(super) overlays: Option<Overlays>,
    /// The places of `weigh` in overlays, by the id of the rule that gets it.
    pub(super) weigh_of_overlays: HashMap<u32, Location>,
}

impl Reader {
    /// A reader before its first file.
    pub(super) fn new(dialect: Dialect, limits: Limits) -> Self {
        let (bytes_left, regex_bytes_left) = (limits.total_bytes, limits.regex_bytes());
        Self { dialect, limits, bytes_left, regex_bytes_left, ..Self::default() }
    }

    /// A place for messages and outlines, in this file or in that of the overlays.
    pub(super) fn place(&self, file: &Arc<str>, paths: Option<&Paths>, position: Position) -> Location {
        match (position.of_graft(), &self.overlays) {
            (Some(position), Some(overlays)) => Location { file: overlays.file.clone(), position },
            _ => place(file, paths, position),
        }
    }
}

/// A place in a policy file. For policies that were not read from text, the path of the place is appended to the file's
/// name.
pub(super) fn place(file: &Arc<str>, paths: Option<&Paths>, position: Position) -> Location {
    let file = match paths.map(|paths| paths.path(position)) {
        Some(path) if !path.is_empty() => format!("{file}: {path}").into(),
        _ => file.clone(),
    };
    Location { file, position }
}

/// Reads one file. `all` has the state that the files share.
pub(super) struct FileReader<'r> {
    /// How requests of the domain are charged, if the file sets it.
    pub(super) mode: Option<Mode>,
    pub(super) file: &'r Arc<str>,
    pub(super) document: &'r Document<'r>,
    /// The path of each place, for a document that was not read from text.
    pub(super) paths: Option<&'r Paths>,
    /// All kinds of mappings in files of this sort.
    pub(super) kinds: &'static [&'static Kind],
    pub(super) all: &'r mut Reader,
    pub(super) problems: Vec<(Position, String)>,
    pub(super) warnings: Vec<(Position, Code, String)>,
    /// The place of each limit with holds, and its key in the policy.
    pub(super) holds: Vec<(Position, &'static str)>,
    /// The numbers under plans of each limit, with their places.
    pub(super) plans: Vec<Vec<PlanAt>>,
    /// Whether the descriptor that is read, or one above it, has `share_threshold`.
    pub(super) shares: bool,
    /// What overlays have added to the document.
    pub(super) edits: Edits,
    /// The descriptor that is read, if overlays have edited it.
    pub(super) overlaid: Option<Overlaid>,
}

impl<'r> FileReader<'r> {
    /// A reader before the first key. `kinds` has all mappings of the file.
    pub(super) fn new(
        file: &'r Arc<str>,
        document: &'r Document<'r>,
        kinds: &'static [&'static Kind],
        all: &'r mut Reader,
    ) -> Self {
        Self {
            mode: None,
            file,
            document,
            paths: None,
            kinds,
            all,
            problems: Vec::new(),
            warnings: Vec::new(),
            holds: Vec::new(),
            plans: Vec::new(),
            shares: false,
            edits: Edits::default(),
            overlaid: None,
        }
    }

    /// Whether the file is read as envoyproxy/ratelimit reads it.
    pub(super) fn is_compatible(&self) -> bool {
        self.all.dialect.compatible
    }

    pub(super) fn has_calendar_months(&self) -> bool {
        self.all.dialect.calendar_months
    }

    /// Whether the policies are a file for weir alone. envoyproxy/ratelimit and control planes write some keys with another intent.
    pub(super) fn is_of_weir(&self) -> bool {
        !self.is_compatible() && self.paths.is_none()
    }

    pub(super) fn bounds(&self) -> &'static Bounds {
        if self.is_compatible() { &Bounds::COMPATIBLE } else { &Bounds::OURS }
    }

    /// Adds a warning about a probable mistake.
    pub(super) fn warn(&mut self, at: Position, code: Code, message: impl Into<String>) {
        // A warning beyond the bound is only counted, in the warnings of all files.
        let is_kept = self.warnings.len() < WARNINGS_MAX;
        let message = if is_kept { self.with_both_places(at, message.into()) } else { String::new() };
        self.warnings.push((at, code, message));
    }

    pub(super) fn report(&mut self, at: Position, message: impl Into<String>) -> Reported {
        if self.problems.len() < PROBLEMS_MAX {
            let mut message = message.into();
            if message.contains(CURLY_QUOTES) {
                message.push_str("; write straight quotes");
            }
            let problem = (at, self.with_both_places(at, message));
            // Each alias of an anchor has the mistakes of the anchor.
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        } else {
            self.all.problems.more += 1;
        }
        Reported
    }

    /// A message about an edited descriptor names the policy and the overlays, because either can be wrong.
    fn with_both_places(&self, at: Position, message: String) -> String {
        match &self.overlaid {
            None if at.of_graft().is_some() => format!("{message} (for {})", self.file),
            None => message,
            Some(overlaid) if at.of_graft().is_some() => {
                format!("{message} (for the descriptor at {})", self.place(overlaid.descriptor))
            }
            Some(overlaid) => {
                let places: Vec<_> = overlaid.by.places.iter().map(|at| self.place(at.grafted()).to_string()).collect();
                format!("{message} (with the overlay at {})", places.join(" and at "))
            }
        }
    }

    /// Reports a problem that all files have together.
    pub(super) fn report_of_all(&mut self, at: Position, message: String) -> Reported {
        self.all.problems.are_of_all = true;
        self.report(at, message)
    }

    /// Whether the file has so many problems that the rest of it is not read.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= PROBLEMS_MAX
    }

    pub(super) fn place(&self, position: Position) -> Location {
        self.all.place(self.file, self.paths, position)
    }

    /// A place of this document, for a message about another place.
    pub(super) fn spelled(&self, position: Position) -> String {
        match self.paths {
            _ if position.of_graft().is_some() => self.place(position).to_string(),
            None => format!("line {}", position.line),
            Some(paths) => paths.path(position),
        }
    }
}
