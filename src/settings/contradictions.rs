//! Problems of settings that are valid separately but contradict each other.
//!
//! Not here: which settings contradict each other (each group's own file).

use super::{Layer, Problem};

pub(super) struct ProblemList<'a> {
    layers: &'a [Layer],
    pub(super) problems: Vec<Problem>,
}

impl<'a> ProblemList<'a> {
    pub(super) fn new(layers: &'a [Layer]) -> Self {
        Self { layers, problems: Vec::new() }
    }

    /// The place of a setting in the last layer that sets it. None if no layer sets it.
    fn origin(&self, name: &str) -> Option<&'a str> {
        self.layers.iter().rev().find_map(|layer| layer.origin(name))
    }

    pub(super) fn is_given(&self, name: &str) -> bool {
        self.origin(name).is_some()
    }

    pub(super) fn add(&mut self, name: &str, reason: String) {
        self.add_with_value(name, None, reason);
    }

    pub(super) fn add_with_value(&mut self, name: &str, value: Option<String>, reason: String) {
        self.add_for(name, name, value, reason);
    }

    /// Adds a problem of the setting `name`, at the place of the setting `cause`.
    pub(super) fn add_for(&mut self, name: &str, cause: &str, value: Option<String>, reason: String) {
        let origin = self.origin(cause).unwrap_or("default").to_owned();
        self.problems.push(Problem { origin, name: Some(name.to_owned()), value, reason });
    }

    /// Adds a problem for each of these settings that a layer sets.
    pub(super) fn add_given(&mut self, names: impl IntoIterator<Item = &'static str>, reason: &str) {
        for name in names {
            if self.is_given(name) {
                self.add(name, reason.to_owned());
            }
        }
    }

    /// A certificate needs its key, and a key its certificate.
    pub(super) fn certificate(&mut self, cert_file: &str, key_file: &str) {
        match (self.is_given(cert_file), self.is_given(key_file)) {
            (true, false) => self.add(cert_file, format!("a certificate without its key: set {key_file} too")),
            (false, true) => self.add(key_file, format!("a key without its certificate: set {cert_file} too")),
            (true, true) | (false, false) => {}
        }
    }
}
