//! Warnings about probable mistakes in valid policies.

use std::fmt;
use std::sync::Arc;

use weir_engine::words::counted;

use super::{Location, Position};

/// The most warnings that are kept; more are only counted.
pub const WARNINGS_MAX: usize = 1_000;

/// Declares the kinds of warnings: each with its effect, its name and the advice.
macro_rules! codes {
    ($($(#[doc = $effect:literal])+ $Code:ident = $name:literal, $advice:literal;)+) => {
        weir_engine::named! {
            /// The kind of a warning. First the kinds that a load finds, then those that only `weir check` finds.
            pub enum Code {
                $($(#[doc = $effect])+ $Code = $name,)+
            }
        }

        impl Code {
            /// The advice.
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Self::$Code => $advice,)+
                }
            }
        }
    };
}

codes! {
    /// `rate_limit` has no value, so the descriptor limits nothing.
    EmptyRateLimit = "empty_rate_limit", "write the limit below rate_limit, or remove rate_limit";
    /// `requests_per_unit` is missing, so everything is denied.
    NoRequests = "no_requests", "write requests_per_unit, with 0 to deny everything";
    /// A key that has no effect in its place.
    IgnoredKey = "ignored_key", "remove the key, or move it to a place where it has an effect";
    /// A mapping with a key twice: later values win.
    KeyTwice = "key_twice", "keep only one of the two keys";
    /// A second YAML document, which is not read.
    SecondDocument = "second_document", "give each document its own file";
    /// A number in octal, hexadecimal or binary, which other programs could read as another number.
    OddNumber = "odd_number", "write the decimal number";
    /// An unquoted word such as `y` that means true or false.
    BareBoolean = "bare_boolean", "quote the word if it is a text, else write true or false";
    /// A key that has no effect without a rate limit.
    NoEffect = "no_effect", "add a rate limit next to the key, or remove the key";
    /// A rule whose decisions are expensive for the store.
    Heavy = "heavy", "use a coarser precision, fewer limits, or another algorithm";
    /// More wildcards of a key than weir accepts by default.
    ManyWildcards = "many_wildcards", "write fewer wildcards, or the exact values";
    /// A limit whose term has ended, or has no span of the week left.
    Ended = "ended", "remove the limit, or correct its `until`";
    /// `descriptors` is absent or has no value, so the file limits nothing.
    NoDescriptors = "no_descriptors", "write the descriptors, or descriptors: [] for a domain without limits";
    /// A key without a value, which has no effect, or an empty `value`, which matches every value.
    EmptyValue = "empty_value", "write a value, or remove the key. To match the empty value, write regex: ^$";
    /// Windows of a month, a week or a year that do not follow the calendar.
    NoCalendar = "no_calendar", "write calendar: true, or calendar: false if no calendar is meant";
    /// A rate such as `5000/m`, which can be meant for a month.
    MinuteOrMonth = "minute_or_month", "write /min or /month";
    /// A name in `replaces` that no limit of the domain has.
    ReplacesNothing = "replaces_nothing", "correct the name, or remove replaces";
    /// A descriptor that no value matches, because other descriptors match all of its values first.
    NeverMet = "never_met", "remove one of the two descriptors. If both have values, you can instead move this descriptor above the other descriptor";
    /// A regular expression that no value matches.
    MatchesNothing = "matches_nothing", "correct the regular expression, or remove the descriptor";
    /// A descriptor that lacks the `weigh` of another one, or matches values before it and lacks a limit that is nested in it.
    HidesBelow = "hides_below",
        "copy what this descriptor lacks from the other descriptor: its nested limits, or its weigh. If no limit is meant, write unlimited: true";
    /// A descriptor that has no limit, and whose nested descriptors have none.
    NoLimit = "no_limit",
        "write rate_limit: {unlimited: true} to let requests pass, or remove the descriptor";
    /// A value that is compared as text and looks like a regular expression.
    LooksLikeRegex = "looks_like_regex", "write regex in place of value";
    /// A value that is compared as text and looks like a network.
    LooksLikeNetwork = "looks_like_network", "write cidr in place of value";
    /// A regular expression that is probably meant as a prefix.
    LooksLikePrefix = "looks_like_prefix", "end the expression with .* to match all values with this prefix, or write value in place of regex to match only this value";
    /// A key, value or domain that begins or ends with a blank.
    OuterBlank = "outer_blank", "remove the blank, unless requests have it too";
    /// A key, value or domain with curly quotes or no-break spaces.
    OddCharacter = "odd_character", "write straight quotes and ordinary spaces, unless requests have these characters too";
    /// A key with an equal sign, which probably contains a value.
    KeyWithValue = "key_with_value", "write key and value";
    /// A key with a star, which is a pattern only in a compatible reading.
    StarInKey = "star_in_key", "write the whole key, or load the files with policies.compatible";
    /// A gap between two terms, in which no limit of the rule applies.
    TermGap = "term_gap", "begin the later limit when the earlier one ends, or add a limit without a term";
    /// A limit that never denies, because another one denies first.
    NeverDenies = "never_denies", "remove the limit that never denies, or correct the numbers";
    /// A limit of less than one unit of its amount.
    SmallAmount = "small_amount", "write the number of hits: multiply the amount by scale";
    /// A burst that takes more than a day to refill.
    SlowBurst = "slow_burst", "write a smaller burst, or a higher rate";
    /// A `leaky_bucket` whose waits no caller learns.
    NoDelayHeader = "no_delay_header", "set response.delay_header, or use gcra";
    /// A lease that admits no request, because a limit without a lease is beside it.
    NeverLeased = "never_leased", "give each limit of the rule a lease, or remove the lease";
    /// A lease that is longer than the window or sub-bucket that ends it.
    LeaseTooLong = "lease_too_long", "write a shorter lease, or a longer window or precision";
    /// A plan with the numbers of the default plan.
    SamePlan = "same_plan", "correct the numbers, or remove the plan";
    /// A rule that never denies, without a comment that explains it.
    NoReason = "no_reason", "write the reason in a comment: on a line of the descriptor, or on the line above the descriptor";
    /// A key whose spelling is similar to another key of the domain.
    AlikeKey = "alike_key", "use one spelling, or names that differ by more than a letter";
    /// A domain whose spelling is similar to another domain.
    AlikeDomain = "alike_domain", "use one spelling, or names that differ by more than a letter";
    /// An overlay that no limit meets.
    UnmetOverlay = "unmet_overlay", "correct the domain, descriptors or name of the overlay, or remove the overlay";
    /// An `allow_warnings` entry for a warning that does not exist.
    AllowsNothing = "allows_nothing", "remove the entry of allow_warnings";
}

impl Code {
    /// The warnings that `allow_warnings` can name.
    pub fn allowable() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|code| !matches!(code, Self::UnmetOverlay | Self::AllowsNothing))
    }
}

/// A probable mistake, displayed as `file:line:column: warning: message [code]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// The position in the file.
    pub position: Position,
    /// The mistake and its current effect.
    pub message: String,
    /// Its kind.
    pub code: Code,
}

impl Warning {
    /// Makes a warning for a location in a policy file, for example a rule's.
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
    /// The number of warnings that were not kept.
    more: usize,
}

impl Warnings {
    /// The warnings, at most [`WARNINGS_MAX`].
    pub fn list(&self) -> &[Warning] {
        &self.list
    }

    /// The number of warnings, including those that were not kept.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Adds a warning.
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
