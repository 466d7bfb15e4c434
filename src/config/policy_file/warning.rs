//! What loads and is probably a mistake.
//!
//! Not here: what is refused (the problems of policy_file.rs).

use std::fmt;
use std::sync::Arc;

use super::{Location, Position};

/// The most warnings that are kept; those past it are counted.
pub const WARNINGS_MAX: usize = 1_000;

/// The kind of a warning, for filters and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `rate_limit` has no value, so nothing is limited there.
    EmptyRateLimit,
    /// `requests_per_unit` is missing, so everything is denied.
    NoRequests,
    /// A key that has no meaning in its place.
    IgnoredKey,
    /// A key of one mapping twice: later values win.
    KeyTwice,
    /// What follows the first YAML document is not read.
    SecondDocument,
    /// A number that others read as another number: octal, hexadecimal or binary.
    OddNumber,
    /// A bare word such as `y` that means true or false.
    BareBoolean,
    /// A key that changes nothing without a rate limit beside it.
    NoEffect,
    /// A rule whose decisions cost the store much.
    Heavy,
}

impl Code {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EmptyRateLimit => "empty_rate_limit",
            Self::NoRequests => "no_requests",
            Self::IgnoredKey => "ignored_key",
            Self::KeyTwice => "key_twice",
            Self::SecondDocument => "second_document",
            Self::OddNumber => "odd_number",
            Self::BareBoolean => "bare_boolean",
            Self::NoEffect => "no_effect",
            Self::Heavy => "heavy",
        }
    }
}

/// One thing that is probably a mistake; displayed as `file:line:column: warning: message [code]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// Where in it.
    pub position: Position,
    /// The mistake, and what the text means now.
    pub message: String,
    /// Its kind.
    pub code: Code,
}

impl Warning {
    /// A warning about a place, such as that of a rule.
    #[must_use]
    pub fn at(place: &Location, code: Code, message: impl Into<String>) -> Self {
        Self { file: place.file.clone(), position: place.position, message: message.into(), code }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = Location { file: self.file.clone(), position: self.position };
        write!(f, "{place}: warning: {} [{}]", self.message, self.code.name())
    }
}

/// All warnings of a load, in file order; displayed one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    list: Vec<Warning>,
    /// How many more there were than are kept.
    more: usize,
}

impl Warnings {
    /// The warnings, at most [`WARNINGS_MAX`].
    #[must_use]
    pub fn list(&self) -> &[Warning] {
        &self.list
    }

    /// How many warnings there are, those past [`WARNINGS_MAX`] included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Adds one.
    pub fn push(&mut self, warning: Warning) {
        if self.list.len() < WARNINGS_MAX {
            self.list.push(warning);
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, warning) in self.list.iter().enumerate() {
            let end = if i > 0 { "\n" } else { "" };
            write!(f, "{end}{warning}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more warnings", self.more)?;
        }
        Ok(())
    }
}
