//! Warnings about probable mistakes in valid policies.
//!
//! Not here: problems, for which policies are refused (lib.rs).

use std::fmt;
use std::sync::Arc;

use weir_engine::words::counted;

use super::{Location, Position};

/// The most warnings that are kept; more are only counted.
pub const WARNINGS_MAX: usize = 1_000;

/// The kind of a warning: first those that a load finds, then those that only `weir check` finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `rate_limit` has no value, so the descriptor limits nothing.
    EmptyRateLimit,
    /// `requests_per_unit` is missing, so everything is denied.
    NoRequests,
    /// A key that has no effect in its place.
    IgnoredKey,
    /// A mapping with a key twice: later values win.
    KeyTwice,
    /// A second YAML document, which is not read.
    SecondDocument,
    /// A number in octal, hexadecimal or binary, which others could read as another number.
    OddNumber,
    /// An unquoted word such as `y` that means true or false.
    BareBoolean,
    /// A key that changes nothing without a rate limit beside it.
    NoEffect,
    /// A rule whose decisions cost the store much.
    Heavy,
    /// A limit whose term is over.
    Ended,
    /// `replaces` of a name that no limit of the domain has.
    ReplacesNothing,
    /// A descriptor that no value meets, because others take all of its values.
    NeverMet,
    /// A regular expression that no value matches.
    MatchesNothing,
    /// A descriptor that takes values from another one and lacks a limit that is below that one.
    HidesBelow,
    /// A descriptor without a limit, in itself and below.
    NoLimit,
    /// A value that is compared as text and looks like a regular expression.
    LooksLikeRegex,
    /// A value that is compared as text and looks like a network.
    LooksLikeNetwork,
    /// A regular expression that is probably meant as a prefix.
    LooksLikePrefix,
    /// A key, value or domain that begins or ends with a blank.
    OuterBlank,
    /// A key with an equal sign, which probably contains a value.
    KeyWithValue,
    /// A key with a star, which is a pattern only in a compatible reading.
    StarInKey,
    /// A gap between two terms, in which no limit of the rule applies.
    TermGap,
    /// A limit that never denies, because another one denies first.
    NeverDenies,
    /// A plan with the numbers of the default plan.
    SamePlan,
    /// A rule that never denies, without a comment that explains it.
    NoReason,
    /// A key that is spelled almost as another one of the domain.
    AlikeKey,
    /// A domain that is spelled almost as another one.
    AlikeDomain,
    /// An `allow_warnings` entry for a warning that does not exist.
    AllowsNothing,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::EmptyRateLimit,
        Self::NoRequests,
        Self::IgnoredKey,
        Self::KeyTwice,
        Self::SecondDocument,
        Self::OddNumber,
        Self::BareBoolean,
        Self::NoEffect,
        Self::Heavy,
        Self::Ended,
        Self::ReplacesNothing,
        Self::NeverMet,
        Self::MatchesNothing,
        Self::HidesBelow,
        Self::NoLimit,
        Self::LooksLikeRegex,
        Self::LooksLikeNetwork,
        Self::LooksLikePrefix,
        Self::OuterBlank,
        Self::KeyWithValue,
        Self::StarInKey,
        Self::TermGap,
        Self::NeverDenies,
        Self::SamePlan,
        Self::NoReason,
        Self::AlikeKey,
        Self::AlikeDomain,
        Self::AllowsNothing,
    ];

    /// The warnings that `allow_warnings` can name.
    pub fn allowable() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|code| *code != Self::AllowsNothing)
    }

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
            Self::Ended => "ended",
            Self::ReplacesNothing => "replaces_nothing",
            Self::NeverMet => "never_met",
            Self::MatchesNothing => "matches_nothing",
            Self::HidesBelow => "hides_below",
            Self::NoLimit => "no_limit",
            Self::LooksLikeRegex => "looks_like_regex",
            Self::LooksLikeNetwork => "looks_like_network",
            Self::LooksLikePrefix => "looks_like_prefix",
            Self::OuterBlank => "outer_blank",
            Self::KeyWithValue => "key_with_value",
            Self::StarInKey => "star_in_key",
            Self::TermGap => "term_gap",
            Self::NeverDenies => "never_denies",
            Self::SamePlan => "same_plan",
            Self::NoReason => "no_reason",
            Self::AlikeKey => "alike_key",
            Self::AlikeDomain => "alike_domain",
            Self::AllowsNothing => "allows_nothing",
        }
    }

    /// The advice.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::EmptyRateLimit => "write the limit below rate_limit, or leave rate_limit out",
            Self::NoRequests => "write requests_per_unit, 0 if everything is to be denied",
            Self::IgnoredKey => "remove the key, or move it to where it has a meaning",
            Self::KeyTwice => "keep one of the two",
            Self::SecondDocument => "give each document a file of its own",
            Self::OddNumber => "write the decimal number",
            Self::BareBoolean => "quote the word if it is a text, else write true or false",
            Self::NoEffect => "add a rate limit beside the key, or remove the key",
            Self::Heavy => "use a coarser precision, fewer limits, or another algorithm",
            Self::Ended => "remove the limit, or correct until",
            Self::ReplacesNothing => "correct the name, or remove replaces",
            Self::NeverMet => "remove one of the two, or, where both have values, move the descriptor before the other",
            Self::MatchesNothing => "correct the regular expression, or remove the descriptor",
            Self::HidesBelow => {
                "write the limits of the other descriptor below this one too, or unlimited: true if none is meant"
            }
            Self::NoLimit => {
                "write rate_limit: {unlimited: true} if requests are to pass here, else remove the descriptor"
            }
            Self::LooksLikeRegex => "write regex in place of value",
            Self::LooksLikeNetwork => "write cidr in place of value",
            Self::LooksLikePrefix => "end it with .* for all values that begin so, or write value for this one",
            Self::OuterBlank => "remove the blank, unless requests have it too",
            Self::KeyWithValue => "write key and value",
            Self::StarInKey => "write the whole key, or load the files with policies.compatible",
            Self::TermGap => "begin the later limit when the earlier one ends, or add a limit without a term",
            Self::NeverDenies => "remove the limit that never denies, or correct the numbers",
            Self::SamePlan => "correct the numbers, or remove the plan",
            Self::NoReason => "say why in a comment, in a line of the descriptor or above it",
            Self::AlikeKey | Self::AlikeDomain => "use one spelling, or names that differ by more than a letter",
            Self::AllowsNothing => "remove the entry of allow_warnings",
        }
    }
}

/// A probable mistake, displayed as `file:line:column: warning: message [code]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// Where in it.
    pub position: Position,
    /// The mistake and its present effect.
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
    /// How many more were not kept.
    more: usize,
}

impl Warnings {
    /// The warnings, at most [`WARNINGS_MAX`].
    #[must_use]
    pub fn list(&self) -> &[Warning] {
        &self.list
    }

    /// How many warnings there are, including those that were not kept.
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

    /// Counts warnings that were not kept.
    pub(super) fn count_more(&mut self, more: usize) {
        self.more += more;
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, warning) in self.list.iter().enumerate() {
            let end = if i > 0 { "\n" } else { "" };
            write!(f, "{end}{warning}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {}", counted(self.more, "more warning"))?;
        }
        Ok(())
    }
}
