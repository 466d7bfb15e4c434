//! Reads one file of tests, traffic, overlays or callers: its text, and its problems sorted by place.

use std::path::Path;
use std::sync::Arc;

use weir_text::yaml::{Document, NodeId};

use super::form::Key;
use super::keys::Kind;
use super::state::{FileReader, Reader, Reported};
use super::{Dialect, Limits, Position, Problem, ProblemKind, Problems, decode};
use crate::files;

/// The largest file of tests or traffic, in bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// The name and the text of a file of at most this many bytes.
pub(super) fn read(path: &Path, bytes_max: usize) -> Result<(Arc<str>, String), Problems> {
    let name: Arc<str> = files::shown(path).into();
    let bytes = files::read(path, bytes_max).map_err(|error| unreadable(&name, None, error.to_string()))?;
    check_size(&name, bytes.len(), bytes_max)?;
    let text = decode(bytes, false).map_err(|(position, message)| unreadable(&name, position, message))?;
    Ok((name, text))
}

fn check_size(name: &Arc<str>, bytes: usize, most: usize) -> Result<(), Problems> {
    if bytes <= most { Ok(()) } else { Err(unreadable(name, None, format!("larger than {} MiB", most >> 20))) }
}

pub(super) fn unreadable(file: &Arc<str>, position: Option<Position>, message: String) -> Problems {
    let mut problems = Problems::default();
    problems.push(Problem { kind: ProblemKind::Unreadable, file: file.clone(), position, message });
    problems
}

/// Reads a text of at most this many bytes, as [`parse`]. Aliases count as their text, so that the content is not much larger in
/// memory than the text.
pub(super) fn parse_within<T>(
    name: &Arc<str>,
    text: &str,
    bytes_max: usize,
    kinds: &'static [&'static Kind],
    content: impl FnOnce(&mut FileReader<'_>) -> Result<T, Reported>,
) -> Result<T, Problems> {
    check_size(name, text.len(), bytes_max)?;
    parse(name, text, Limits { file_bytes: bytes_max, ..Limits::default() }, kinds, content)
}

/// Reads a text within these bounds with mappings of these kinds, using `content`.
pub(super) fn parse<T>(
    name: &Arc<str>,
    text: &str,
    limits: Limits,
    kinds: &'static [&'static Kind],
    content: impl FnOnce(&mut FileReader<'_>) -> Result<T, Reported>,
) -> Result<T, Problems> {
    let mut all = Reader::new(Dialect::default(), limits);
    let push = |all: &mut Reader, kind, position: Position, message| {
        all.problems.push(Problem { kind, file: name.clone(), position: Some(position), message });
    };
    let document = match Document::parse(text, Dialect::default().yaml(limits, text.len())) {
        Ok(document) => document,
        Err(fault) => {
            push(&mut all, ProblemKind::Yaml, fault.position, fault.message);
            return Err(all.problems);
        }
    };
    let mut reader = FileReader::new(name, &document, kinds, &mut all);
    let content = content(&mut reader);
    reader.all.problems.is_cut |= reader.is_full();
    let mut problems = reader.problems;
    problems.sort_by_key(|(at, _)| *at);
    for (position, message) in problems {
        push(&mut all, ProblemKind::Policy, position, message);
    }
    content.ok().filter(|_| all.problems.count() == 0).ok_or(all.problems)
}

impl FileReader<'_> {
    /// The items of the only list of a file. `empty_if` says in words when the list may be empty.
    pub(super) fn list_of_file(
        &mut self,
        kind: &'static Kind,
        list: Key<Option<Vec<NodeId>>>,
        (most, empty_if): (usize, &str),
    ) -> Result<Vec<NodeId>, Reported> {
        let word = list.name;
        let root = self.document.root.filter(|&root| !self.document.node(root).is_null());
        let root = root.ok_or_else(|| self.report(Position::START, format!("empty: a file of {word} has {word}")))?;
        let fields = self.fields_of_file(root, kind)?;
        let Some(items) = self.read(&fields, list)? else {
            return Err(self.report(fields.at, format!("no {word}: write {word}: [] if {empty_if}")));
        };
        if items.len() > most {
            let message = format!("{} {word}: at most {most}", items.len());
            return Err(self.report_value(&fields, list, message));
        }
        Ok(items)
    }
}
