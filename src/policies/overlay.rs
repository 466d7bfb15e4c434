//! Overlays: a file that adds to policies what their author or control plane cannot write.
//!
//! ```yaml
//! overlays:
//!   - domain: default/eg/http                                  # a * stands for any text, in all patterns
//!     descriptors: ["httproute/default/users/*", "rule-0-*", "**"]
//!     rate_limit: {algorithm: sliding_window, lease: 100ms}    # keys of each rate limit there
//!     on_error: local                                          # and of its descriptor
//! ```
//!
//! An overlay edits a document before it is read, so everything that holds for a written key holds for a key of an
//! overlay. Not here: how the document is edited (apply.rs), and when the file is read again (watch.rs).

mod apply;
pub(super) mod edits;
mod glob;
mod keys;

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_text::yaml::{Document, NodeId, Value};

use edits::{Given, Overlay, Overlays, Pattern, Reached, ValuePattern};
pub use edits::{OverlayUse, Unmet};
use glob::Glob;
pub use glob::STARS_MAX;
pub use keys::KINDS;
pub(super) use keys::{file, overlay};

use super::fields::Fields;
use super::state::{FileReader, Reader, Reported};
use super::tables::limit;
use super::{KEY_BYTES_MAX, Problems, VALUE_BYTES_MAX, single};

/// The largest file of overlays, in bytes.
pub const OVERLAY_BYTES_MAX: usize = 1 << 20;
/// The most overlays of a file.
pub const OVERLAYS_MAX: usize = 1_000;
/// The most patterns of an overlay: the most levels of descriptors that a compatible reading allows.
pub const PATTERNS_MAX: usize = 64;
/// The longest pattern, in bytes: a key, an equal sign and a value.
pub const PATTERN_BYTES_MAX: usize = KEY_BYTES_MAX + 1 + VALUE_BYTES_MAX;
/// The most comparisons of overlays with descriptors, in all files together: some seconds.
pub const COMPARISONS_MAX: usize = 100_000_000;
/// The pattern that stands for any number of further descriptors.
const ANY_DEPTH: &str = "**";

/// The text of a file of overlays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayFile {
    name: String,
    text: String,
}

impl OverlayFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or is too large, and every problem of its overlays.
    pub fn read(path: &Path) -> Result<Self, Problems> {
        let (name, text) = single::read(path, OVERLAY_BYTES_MAX)?;
        Self::of(&name, text)
    }

    /// Checks a text.
    ///
    /// ```
    /// use weir_policies::OverlayFile;
    ///
    /// let good = "overlays: [{domain: shop, descriptors: [user], rate_limit: {lease: 100ms}}]";
    /// assert!(OverlayFile::of("o.yaml", good).is_ok());
    /// assert_eq!(
    ///     OverlayFile::of("o.yaml", good.replace("[user]", "[\"**\", user]")).unwrap_err().to_string(),
    ///     "o.yaml:1:41: ** must be the last of descriptors"
    /// );
    /// ```
    ///
    /// # Errors
    /// Every problem of its overlays.
    pub fn of(name: &str, text: impl Into<String>) -> Result<Self, Problems> {
        let file = Self { name: name.to_owned(), text: text.into() };
        file.overlays().map(|_| file)
    }

    /// The number of overlays.
    pub fn count(&self) -> usize {
        self.overlays().map_or(0, |overlays| overlays.list.len())
    }

    /// The overlays of the text.
    pub(super) fn overlays(&self) -> Result<Overlays, Problems> {
        single::parse_within(&self.name.as_str().into(), &self.text, OVERLAY_BYTES_MAX, &KINDS, overlays)
    }

    pub(super) fn rename(&mut self, to: impl Fn(&str) -> String) {
        self.name = to(&self.name);
    }
}

impl Pattern {
    /// `KEY` for any value, `KEY=VALUE`, or `KEY=` for none.
    fn new(text: &str) -> Result<Self, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Ok(Self { key: Glob::new(text)?, value: ValuePattern::Any });
        };
        let value = if value.is_empty() { ValuePattern::None } else { ValuePattern::Of(Glob::new(value)?) };
        Ok(Self { key: Glob::new(key)?, value })
    }
}

impl Reader {
    /// Adds the overlays of this file to all policies. If it has a problem, so has the load.
    #[must_use]
    pub(super) fn with_overlays(mut self, file: Option<Result<OverlayFile, Problems>>) -> Self {
        match file.map(|file| file.and_then(|file| file.overlays())) {
            None => {}
            Some(Ok(overlays)) => self.overlays = Some(overlays),
            Some(Err(problems)) => {
                self.problems.join(problems);
                self.problems.are_of_all = true;
            }
        }
        self
    }
}

/// The content of a file of overlays.
fn overlays(reader: &mut FileReader<'_>) -> Result<Overlays, Reported> {
    let items = reader.list_of_file(&file::KIND, file::OVERLAYS, (OVERLAYS_MAX, "none are meant"))?;
    let (mut list, mut values) = (Vec::new(), Document::default());
    for item in items {
        if reader.is_full() {
            break;
        }
        list.extend(reader.overlay(item, &mut values).ok());
    }
    let reached = vec![Reached::default(); list.len()];
    Ok(Overlays { file: reader.file.clone(), list, values, reached, comparisons_left: Some(COMPARISONS_MAX) })
}

impl FileReader<'_> {
    fn overlay(&mut self, id: NodeId, values: &mut Document<'static>) -> Result<Overlay, Reported> {
        let problems = self.problems.len();
        let fields = self.fields(id, &overlay::KIND)?;
        let domain = self.pattern_of_domain(&fields);
        let path = self.path(&fields);
        let name = self.read(&fields, overlay::NAME);
        let replace = self.read(&fields, overlay::REPLACE);
        let limit = self.limit_given(&fields, values);
        let mut descriptor = Vec::new();
        for (name, check) in overlay::KIND.names().zip(overlay::CHECKS).filter(|(name, _)| !keys::OWN.contains(name)) {
            // A problem of the value is reported already.
            let _ = check(self, &fields);
            descriptor.extend(self.entry_of(&fields, name, values));
        }
        if let (Ok(Some(_)), Some(given)) = (&name, descriptor.first()) {
            let message = format!(
                "{} with name: it is of the descriptor, so it concerns all of its limits: write it in an overlay without name",
                given.name
            );
            self.report(given.at, message);
        }
        let (limit, (path, any_depth)) = (limit?, path?);
        if limit.is_empty() && descriptor.is_empty() && self.problems.len() == problems {
            let message = "an overlay that gives nothing: write rate_limit, or a key of a descriptor such as on_error";
            return Err(self.report(fields.at, message));
        }
        let (at, domain, name, replace) = (fields.at, domain?, name?, replace?);
        let has_comment = self.document.has_comment(at.line, self.document.last_line(id));
        Ok(Overlay { at, has_comment, domain, path, any_depth, name, replace, limit, descriptor })
    }

    fn pattern_of_domain(&mut self, fields: &Fields) -> Result<Glob, Reported> {
        let Some(text) = self.read(fields, overlay::DOMAIN)? else {
            return Err(self.report_key(fields, overlay::DOMAIN, "an overlay without a domain".to_owned()));
        };
        Glob::new(&text).map_err(|reason| self.report_value(fields, overlay::DOMAIN, format!("domain: {reason}")))
    }

    /// The patterns of `descriptors`, and whether `**` is the last.
    fn path(&mut self, fields: &Fields) -> Result<(Vec<Pattern>, bool), Reported> {
        let items = self.read(fields, overlay::DESCRIPTORS)?.unwrap_or_default();
        if fields.get(overlay::DESCRIPTORS).is_none() && !fields.lacks(overlay::DESCRIPTORS) {
            // The misspelled key is reported already.
            return Err(Reported);
        }
        if !(1..=PATTERNS_MAX).contains(&items.len()) {
            let message = format!("descriptors has {} patterns: 1 to {PATTERNS_MAX}", items.len());
            return Err(self.report_key(fields, overlay::DESCRIPTORS, message));
        }
        let (mut path, mut any_depth, mut result) = (Vec::new(), false, Ok(()));
        for (number, item) in items.iter().enumerate() {
            let node = self.document.node(*item);
            let pattern = match &node.value {
                Value::Scalar { text, .. } if text.len() > PATTERN_BYTES_MAX => {
                    Err(format!("a pattern has {} bytes: at most {PATTERN_BYTES_MAX}", text.len()))
                }
                Value::Scalar { text, .. } if &**text == ANY_DEPTH => {
                    any_depth = number + 1 == items.len();
                    if any_depth { continue } else { Err(format!("{ANY_DEPTH} must be the last of descriptors")) }
                }
                Value::Scalar { text, .. } => Pattern::new(text),
                _ => Err(format!("a pattern must be text, not {}", node.describe())),
            };
            match pattern {
                Ok(pattern) => path.push(pattern),
                Err(reason) => result = Err(self.report(node.position, reason)),
            }
        }
        result.map(|()| (path, any_depth))
    }

    /// The keys of `rate_limit`, which can be a short form.
    fn limit_given(&mut self, fields: &Fields, values: &mut Document<'static>) -> Result<Vec<Given>, Reported> {
        let Some((at, node)) = self.value(fields, overlay::RATE_LIMIT) else { return Ok(Vec::new()) };
        let Some((_, id)) = fields.get(overlay::RATE_LIMIT) else { return Ok(Vec::new()) };
        if matches!(node.value, Value::Scalar { .. }) {
            self.limit(at, id)?;
            return Ok(vec![Given { name: limit::RATE.name, at, value: values.graft(self.document, id) }]);
        }
        let problems = self.problems.len();
        let limit = self.fields(id, &limit::KIND)?;
        self.check_keys(&limit);
        let given: Vec<Given> = limit::KIND.names().filter_map(|name| self.entry_of(&limit, name, values)).collect();
        if given.is_empty() && self.problems.len() == problems {
            return Err(self.report(at, "rate_limit of an overlay is empty: write what it gives, or remove it"));
        }
        Ok(given)
    }

    /// A key with a value, copied to `values`.
    fn entry_of(&self, fields: &Fields, name: &'static str, values: &mut Document<'static>) -> Option<Given> {
        let (at, value) = fields.get(name).filter(|(_, id)| !self.document.node(*id).is_null())?;
        Some(Given { name, at, value: values.graft(self.document, value) })
    }
}
