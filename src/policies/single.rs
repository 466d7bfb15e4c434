//! Reads one file of tests or traffic: its text, and its problems sorted by place.

use std::path::Path;
use std::sync::Arc;

use weir_text::yaml::Document;

use super::keys::Kind;
use super::state::{FileReader, Reader, Reported};
use super::{Dialect, Limits, Position, Problem, ProblemKind, Problems, decode};
use crate::files;

/// The largest file of tests or traffic, in bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// The name and the text of a file of at most this many bytes.
pub(super) fn read(path: &Path, bytes_max: usize) -> Result<(Arc<str>, String), Problems> {
    let name: Arc<str> = files::shown(path).into();
    let alone = |position, message| {
        let mut problems = Problems::default();
        problems.push(Problem { kind: ProblemKind::Unreadable, file: name.clone(), position, message });
        problems
    };
    let bytes = files::read(path, bytes_max).map_err(|error| alone(None, error.to_string()))?;
    if bytes.len() > bytes_max {
        return Err(alone(None, format!("larger than {} MiB", bytes_max >> 20)));
    }
    let text = decode(bytes, false).map_err(|(position, message)| alone(position, message))?;
    Ok((name, text))
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
