//! `allow_warnings`: which warnings are meant so where they stand, each with a reason.
//!
//! Not here: what is warned of (reader.rs, heavy.rs, lint.rs).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fields::Fields;
use super::state::FileReader;
use super::warning::Code;
use super::yaml::Value;
use super::{Location, Position, instead, shown};

/// The warnings that policies allow, by the descriptor that allows them, or the domain.
#[derive(Debug, Default)]
pub(super) struct Allowed(BTreeMap<(Arc<str>, Position), Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    code: Code,
    /// Where it is allowed.
    place: Location,
    /// Whether there was one.
    is_met: bool,
}

impl Allowed {
    /// Adds what the descriptor or domain at this place allows.
    pub(super) fn add(&mut self, at: &Location, codes: Vec<(Code, Location)>) {
        if codes.is_empty() {
            return;
        }
        // Where an alias stands for a descriptor, it is here more than once.
        let entries = self.0.entry((at.file.clone(), at.position)).or_default();
        let is_new = |code: Code| entries.iter().all(|entry| entry.code != code);
        let new: Vec<_> = codes.into_iter().filter(|(code, _)| is_new(*code)).collect();
        entries.extend(new.into_iter().map(|(code, place)| Entry { code, place, is_met: false }));
    }

    /// Whether this warning is allowed by the descriptor or domain at this place. Takes note of it.
    pub(super) fn has(&mut self, at: &Location, code: Code) -> bool {
        let entries = self.0.get_mut(&(at.file.clone(), at.position));
        let entry = entries.and_then(|entries| entries.iter_mut().find(|entry| entry.code == code));
        entry.map(|entry| entry.is_met = true).is_some()
    }

    /// The entries for warnings that were not there.
    pub(super) fn unmet(&self) -> Vec<(Code, Location)> {
        let entries = self.0.values().flatten().filter(|entry| !entry.is_met);
        entries.map(|entry| (entry.code, entry.place.clone())).collect()
    }
}

impl FileReader<'_> {
    /// Reads the warnings that a mapping allows, and leaves out those of `self.warnings` from `first` on.
    pub(super) fn allow_warnings(&mut self, fields: &Fields, place: &Location, first: usize) {
        let allowed = self.allowed_in(fields);
        self.all.allowed.add(place, allowed);
        let (found, all) = (self.warnings.split_off(first), &mut self.all.allowed);
        self.warnings.extend(found.into_iter().filter(|(_, code, _)| !all.has(place, *code)));
    }

    fn allowed_in(&mut self, fields: &Fields) -> Vec<(Code, Location)> {
        let mut allowed: Vec<(Code, Location)> = Vec::new();
        let Some((at, id)) = fields.get("allow_warnings") else { return allowed };
        let document = self.document;
        let node = document.node(id);
        if node.is_null() {
            return allowed;
        }
        let Value::Mapping(entries) = &node.value else {
            let message = format!("allow_warnings must be a mapping of warnings and reasons, not {}", node.describe());
            self.report(self.value_position(at, id), message);
            return allowed;
        };
        for &(key, value) in entries {
            let at = document.node(key).position;
            let Value::Scalar { text: name, .. } = &document.node(key).value else { continue };
            let Some(code) = Code::allowable().find(|code| code.name() == &**name) else {
                let names: Vec<_> = Code::allowable().map(Code::name).collect();
                self.report(at, format!("no warning {} in allow_warnings{}", shown(name), instead(name, &names)));
                continue;
            };
            let has_reason =
                matches!(&document.node(value).value, Value::Scalar { text, .. } if !text.trim().is_empty());
            if !has_reason || document.node(value).is_null() {
                let message = format!("{} in allow_warnings has no reason: write why it is no mistake", code.name());
                self.report(at, message);
            } else if allowed.iter().any(|(known, _)| *known == code) {
                self.report(at, format!("{} in allow_warnings is here twice", code.name()));
            } else {
                allowed.push((code, self.place(at)));
            }
        }
        allowed
    }
}
