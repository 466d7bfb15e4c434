//! A row for each key of a mapping. The schema, the tables of the pages and the messages about keys follow from the rows.
//!
//! Not here: the rows (tables.rs, and keys.rs of each other sort of file), and how their values are read (form.rs).

use serde_json::Value;
use weir_engine::Algorithm;
use weir_engine::algorithm::parameters::Parameters;

#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    pub keys: &'static [Row],
    /// Keys that have no effect, as in envoyproxy/ratelimit.
    pub ignored: &'static [&'static str],
}

/// A key. Texts are Markdown, for the pages.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    /// Its value, and what it is for.
    pub about: &'static str,
    pub schema: fn() -> Value,
    /// `required`, `none`, a value in backticks, or the meaning of a mapping without the key.
    pub default: &'static str,
    /// A mapping with the key, or the key and its value.
    pub example: &'static str,
    /// The algorithms that accept the key. None: all of them.
    pub only: Option<Only>,
}

/// Why only some algorithms accept a key.
#[derive(Debug)]
pub struct Only {
    pub needs: Needs,
    /// Why other algorithms refuse the key, and which ones accept it: the end of a message.
    pub reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Parameter(&'static str),
    /// Support of `post_paid`.
    Reports,
    /// Charges that can be given back in part.
    Holds,
    /// Windows with a beginning and an end.
    Windows,
    /// Steps: within one, the time of a hit has no effect.
    Steps,
    /// Counts hits, not requests in flight.
    Hits,
}

/// What has the name of a key.
pub(crate) trait Named: Copy {
    fn name(self) -> &'static str;
}

impl Named for &'static str {
    fn name(self) -> &'static str {
        self
    }
}

impl Only {
    fn takes(&self, algorithm: Algorithm) -> bool {
        match self.needs {
            Needs::Parameter(name) => algorithm.parameter_names().contains(&name),
            Needs::Reports => algorithm.takes_reports(),
            Needs::Holds => algorithm.takes_holds(),
            Needs::Windows => algorithm.has_windows(),
            Needs::Steps => algorithm.has_steps(),
            Needs::Hits => !algorithm.counts_permits(),
        }
    }

    pub fn algorithms(&self) -> impl Iterator<Item = &'static str> {
        Algorithm::all(&Parameters::LEAST).into_iter().filter(|known| self.takes(*known)).map(Algorithm::name)
    }
}

impl Kind {
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    /// Whether the key has an effect here.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.position(name).is_some()
    }
}

/// The keys of envoyproxy/ratelimit. It accepts each of them in every mapping, and ignores keys without an effect
/// there.
pub(super) const REFERENCE_KEYS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
