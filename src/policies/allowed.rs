//! `allow_warnings`: the warnings that policies allow, each with a reason.
//!
//! Not here: how they are read, and which warnings exist (reader.rs, heavy.rs, check_warnings.rs).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::warning::Code;
use super::{Location, Position};

/// The allowed warnings, by the descriptor or domain that allows them.
#[derive(Debug, Default)]
pub(super) struct Allowed(BTreeMap<(Arc<str>, Position), Vec<AllowedWarning>>);

#[derive(Debug)]
struct AllowedWarning {
    code: Code,
    place: Location,
    /// Whether the policies had such a warning.
    is_met: bool,
}

impl Allowed {
    /// Adds the warnings that the descriptor or domain at this place allows.
    pub(super) fn add(&mut self, at: &Location, codes: Vec<(Code, Location)>) {
        if codes.is_empty() {
            return;
        }
        // An alias of a descriptor is added once for each use.
        let entries = self.0.entry((at.file.clone(), at.position)).or_default();
        let is_new = |code: Code| entries.iter().all(|entry| entry.code != code);
        let new: Vec<_> = codes.into_iter().filter(|(code, _)| is_new(*code)).collect();
        entries.extend(new.into_iter().map(|(code, place)| AllowedWarning { code, place, is_met: false }));
    }

    /// Whether the descriptor or domain at this place allows the warning. Marks the entry as used.
    pub(super) fn has(&mut self, at: &Location, code: Code) -> bool {
        let entries = self.0.get_mut(&(at.file.clone(), at.position));
        let entry = entries.and_then(|entries| entries.iter_mut().find(|entry| entry.code == code));
        entry.map(|entry| entry.is_met = true).is_some()
    }

    /// The entries without a warning.
    pub(super) fn unmet(&self) -> Vec<(Code, Location)> {
        let entries = self.0.values().flatten().filter(|entry| !entry.is_met);
        entries.map(|entry| (entry.code, entry.place.clone())).collect()
    }
}
