//! The cases of a file of tests.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_text::quoted;
use weir_text::yaml::{NodeId, Value};

use super::keys::{case, file};
use super::settings::Given;
use super::step::Reached;
use super::{ASKS_MAX, CASES_MAX, Case, GivenRows, Policies, Position, ROWS_MAX, STEPS_MAX};
use crate::VALUE_BYTES_MAX;
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};

/// The keys of a file, used by cases that omit them.
pub(super) struct Defaults<'a> {
    directory: &'a Path,
    policies: Policies,
    domain: Option<String>,
    settings: Given,
    rows: Option<Arc<GivenRows>>,
}

impl FileReader<'_> {
    /// Reads all cases, and reports their problems.
    pub(super) fn cases(&mut self, directory: &Path) -> Vec<Case> {
        let Some(root) = self.document.root.filter(|&root| !self.document.node(root).is_null()) else {
            self.report(Position::START, "empty: a file of tests has cases");
            return Vec::new();
        };
        let Ok(fields) = self.fields_of_file(root, &file::KIND) else { return Vec::new() };
        let policies = self.policies_of(&fields, file::POLICIES.name, directory).ok().flatten();
        let defaults = Defaults {
            directory,
            policies: policies.unwrap_or_else(|| Policies::At(below(directory, ""))),
            domain: self.default_domain(&fields),
            settings: self.settings_of(&fields, &Vec::new(), directory).unwrap_or_default(),
            rows: self.given_rows(&fields, directory, ROWS_MAX).unwrap_or_default(),
        };
        let Ok(items) = self.read(&fields, file::CASES) else { return Vec::new() };
        let items = items.unwrap_or_default();
        if items.is_empty() && (fields.lacks(file::CASES) || fields.get(file::CASES).is_some()) {
            self.report_value(&fields, file::CASES, "no cases: a file of tests has at least one".to_owned());
        }
        if items.len() > CASES_MAX {
            self.report_value(&fields, file::CASES, format!("{} cases: at most {CASES_MAX} in one file", items.len()));
            return Vec::new();
        }
        let mut cases: Vec<Case> = Vec::new();
        let mut names: HashMap<String, Position> = HashMap::new();
        let mut asks = 0_u64;
        for item in items {
            let Ok(case) = self.case(item, &defaults) else { continue };
            if let Some(first) = names.insert(case.name.clone(), case.position) {
                let message = format!("a case {} appears twice, first in line {}", quoted(&case.name), first.line);
                self.report(case.position, message);
            }
            let before = asks;
            asks = asks.saturating_add(case.asks);
            if asks > ASKS_MAX && before <= ASKS_MAX {
                let message = format!("the cases up to here send {asks} requests: at most {ASKS_MAX} in one file");
                self.report(case.position, message);
            }
            cases.push(case);
        }
        cases
    }

    fn case(&mut self, id: NodeId, defaults: &Defaults<'_>) -> Result<Case, Reported> {
        let fields = self.fields(id, &case::KIND)?;
        let name = match self.read(&fields, case::NAME) {
            Ok(Some(name)) if name.chars().any(char::is_control) => {
                Err(self.report_value(&fields, case::NAME, "name has a control character".to_owned()))
            }
            Ok(None) => Err(self.report(fields.at, "a case has no name")),
            Ok(Some(name)) => Ok(name),
            Err(reported) => Err(reported),
        };
        let policies = self.policies_of(&fields, case::POLICIES.name, defaults.directory);
        let domain = self.default_domain(&fields);
        let given = self.settings_of(&fields, &defaults.settings, defaults.directory);
        let settings = match given {
            Ok(given) => self.loaded(fields.key_at(case::SETTINGS).unwrap_or(fields.at), &given),
            Err(reported) => Err(reported),
        };
        let rows = self.given_rows(&fields, defaults.directory, ROWS_MAX);
        let reached = self.start_of(&fields);
        let items = self.read(&fields, case::STEPS)?.unwrap_or_default();
        if items.len() > STEPS_MAX {
            let message = format!("{} steps: at most {STEPS_MAX} in one case", items.len());
            return Err(self.report_value(&fields, case::STEPS, message));
        }
        let mut reached = reached?;
        let domain = domain.or_else(|| defaults.domain.clone());
        let mut steps = Vec::with_capacity(items.len());
        let mut failed = false;
        for item in items {
            match self.step(item, defaults.directory, domain.as_deref(), &mut reached) {
                Ok(step) => steps.push(step),
                Err(Reported) => failed = true,
            }
        }
        let asks = reached.asks;
        let has_steps = fields.get(case::STEPS).is_some() || fields.lacks(case::STEPS);
        // Misspelled steps were reported before.
        if asks == 0 && !failed && !has_steps {
            return Err(Reported);
        }
        if asks == 0 && !failed {
            return Err(self.report(fields.at, "the case sends no request: it tests nothing"));
        }
        Ok(Case {
            name: name?,
            position: fields.at,
            policies: policies?.unwrap_or_else(|| defaults.policies.clone()),
            settings: settings?,
            rows: rows?.or_else(|| defaults.rows.clone()),
            steps,
            asks,
        })
    }

    fn start_of(&mut self, fields: &Fields) -> Result<Reached, Reported> {
        let start = self.read(fields, case::AT)?;
        Ok(Reached { now: start.unwrap_or(super::START_US), asks: 0, receipts: BTreeSet::new() })
    }

    /// A domain. It may be empty, so a test can expect the error for an empty domain.
    pub(crate) fn domain_of(&mut self, fields: &Fields, key: &'static str) -> Read<String> {
        let is_empty_text = fields.get(key).is_some_and(
            |(_, id)| matches!(&self.document.node(id).value, Value::Scalar { text, plain: false } if text.is_empty()),
        );
        if is_empty_text { Ok(Some(String::new())) } else { self.text(fields, key, VALUE_BYTES_MAX) }
    }

    /// The domain of requests without their own. A wrong or misspelled key is reported only once.
    pub(crate) fn default_domain(&mut self, fields: &Fields) -> Option<String> {
        match self.read(fields, file::DOMAIN) {
            Ok(None) if fields.lacks(file::DOMAIN) => None,
            domain => Some(domain.ok().flatten().unwrap_or_default()),
        }
    }

    /// The path of policies, or their texts by file name.
    pub(super) fn policies_of(
        &mut self,
        fields: &Fields,
        key: &'static str,
        directory: &Path,
    ) -> Result<Option<Policies>, Reported> {
        let Some((at, id)) = fields.get(key) else { return Ok(None) };
        let document = self.document;
        let node = document.node(id);
        let Value::Mapping(entries) = &node.value else {
            if matches!(node.value, Value::List(_)) {
                let message = format!("{key} must be a path, or texts by names of files, not a list");
                return Err(self.report(self.value_position(at, id), message));
            }
            let path = self.text(fields, key, VALUE_BYTES_MAX)?;
            return Ok(path.map(|path| Policies::At(below(directory, &path))));
        };
        let mut texts: Vec<(String, String)> = Vec::new();
        for &(name, text) in entries {
            let at = document.node(name).position;
            let (Value::Scalar { text: name, .. }, Value::Scalar { text, .. }) =
                (&document.node(name).value, &document.node(text).value)
            else {
                return Err(
                    self.report(at, format!("{key} must be texts by names of files: write the policy after a |"))
                );
            };
            if texts.iter().any(|(other, _)| **other == **name) {
                return Err(self.report(at, format!("the file {} appears twice", quoted(name))));
            }
            texts.push((name.to_string(), text.to_string()));
        }
        // Directories are read in this order too.
        texts.sort();
        Ok(Some(Policies::Texts(texts)))
    }
}

/// Resolves a path in a test, relative to the test's directory.
fn below(directory: &Path, path: &str) -> PathBuf {
    let joined = if path.is_empty() || path == "." { directory.to_owned() } else { directory.join(path) };
    if joined.as_os_str().is_empty() { PathBuf::from(".") } else { joined }
}
