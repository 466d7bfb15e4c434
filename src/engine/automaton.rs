//! Regular expressions and wildcards as one automaton, which reads each byte of a value once. [mt-9]
//!
//! The automaton is built completely when policies load, so its size and cost are known then. Not here: the order in
//! which matchers are tried (branch.rs).

use std::fmt;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::hir::{Dot, Hir, Look, Repetition};

use super::pattern::Pattern;

/// The most wildcards and regular expressions of one key at one level.
pub const PATTERNS_MAX: usize = 1_024;
/// The longest regular expression, in bytes.
pub const REGEX_BYTES_MAX: usize = 1_024;
/// The largest automaton of one regular expression alone, in bytes.
pub const REGEX_AUTOMATON_BYTES_MAX: usize = 1 << 20;
/// The largest automaton of one key at one level, in bytes.
pub const AUTOMATON_BYTES_MAX: usize = 8 << 20;
/// The most bytes in all automata of a policy set.
pub const AUTOMATA_BYTES_MAX: usize = 128 << 20;
/// The deepest nesting in a regular expression.
const NESTING_MAX: u32 = 64;

/// A regular expression that compiles. The whole value must match.
#[derive(Clone, Debug)]
pub struct Regex {
    text: Box<str>,
    parsed: Hir,
    built_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegexError {
    pub message: String,
    /// The position of the mistake in characters, from 1; None if it concerns the whole text.
    pub at: Option<usize>,
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.at.map_or(Ok(()), |at| write!(f, ", at character {at}"))
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Regex {}

impl Regex {
    /// Reads a regular expression in the syntax of the crate `regex`.
    ///
    /// # Errors
    /// When the text is not a regular expression, is too long, or needs too large an automaton.
    pub fn new(text: &str) -> Result<Self, RegexError> {
        let whole = |message: String| RegexError { message, at: None };
        if text.len() > REGEX_BYTES_MAX {
            return Err(whole(format!("{} bytes: at most {REGEX_BYTES_MAX}", text.len())));
        }
        let parsed = regex_syntax::ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(text);
        let parsed = parsed.map_err(|error| {
            let (message, span) = match &error {
                regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span())),
                regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span())),
                other => (other.to_string(), None),
            };
            let at = span.map(|span| text.get(..span.start.offset).unwrap_or(text).chars().count() + 1);
            RegexError { message, at }
        })?;
        if parsed.properties().look_set().contains_word_unicode() {
            return Err(whole(r"Unicode word boundaries are not supported: write (?-u:\b) in place of \b".to_owned()));
        }
        let regex = Self { text: text.into(), parsed, built_bytes: 0 };
        match Automaton::new(&[Source::Regex(&regex)], REGEX_AUTOMATON_BYTES_MAX) {
            Some(automaton) => Ok(Self { built_bytes: automaton.bytes(), ..regex }),
            None => Err(whole(format!(
                "its automaton takes more than {REGEX_AUTOMATON_BYTES_MAX} bytes: repeat less, and write [0-9] in place of \\d and \
                 [0-9A-Za-z_] in place of \\w: \\d and \\w match all of Unicode"
            ))),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The bytes of the automaton of this regular expression alone. The time that a build takes grows with them.
    pub fn built_bytes(&self) -> usize {
        self.built_bytes
    }

    /// Whether the whole value matches. Builds an automaton each time, so decisions do not call it.
    pub fn matches(&self, value: &str) -> bool {
        let automaton = Automaton::new(&[Source::Regex(self)], REGEX_AUTOMATON_BYTES_MAX);
        automaton.is_some_and(|automaton| automaton.first(value).is_some())
    }
}

/// The source of one pattern in an automaton.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Wildcard(&'a Pattern),
    Regex(&'a Regex),
}

impl Source<'_> {
    /// The part that must match from the beginning of a value.
    fn parsed(self) -> Hir {
        match self {
            Self::Regex(regex) => Hir::concat(vec![regex.parsed.clone(), Hir::look(Look::End)]),
            Self::Wildcard(pattern) => {
                let mut parts = Vec::new();
                let literals: Vec<&str> = pattern.literals().collect();
                for (i, literal) in literals.iter().enumerate() {
                    let is_last = i + 1 == literals.len();
                    // A star at the end matches any rest. An automaton that does not read the rest can drop later
                    // patterns, and stays small.
                    if is_last && literal.is_empty() {
                        return Hir::concat(parts);
                    }
                    if i > 0 {
                        let any = Box::new(Hir::dot(Dot::AnyByte));
                        parts.push(Hir::repetition(Repetition { min: 0, max: None, greedy: false, sub: any }));
                    }
                    parts.push(Hir::literal(literal.as_bytes()));
                }
                parts.push(Hir::look(Look::End));
                Hir::concat(parts)
            }
        }
    }
}

/// Patterns of both kinds, in their order. In a box, because it has 800 bytes and most keys have none.
#[derive(Clone)]
pub struct Automaton(Box<dense::DFA<Vec<u32>>>);

impl Automaton {
    /// None if the automaton would need more bytes.
    pub fn new(sources: &[Source<'_>], bytes_max: usize) -> Option<Self> {
        let parsed: Vec<Hir> = sources.iter().map(|source| source.parsed()).collect();
        let config =
            thompson::Config::new().utf8(false).which_captures(WhichCaptures::None).nfa_size_limit(Some(bytes_max));
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(&parsed).ok()?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            // The first of all matching patterns counts.
            .match_kind(MatchKind::LeftmostFirst)
            .dfa_size_limit(Some(bytes_max))
            // Building and storing the states of many patterns costs the most. The limit stops the build early.
            .determinize_size_limit(Some(bytes_max / 4));
        dense::Builder::new().configure(config).build_from_nfa(&nfa).ok().map(|dfa| Self(Box::new(dfa)))
    }

    /// The first source that the whole value matches.
    pub fn first(&self, value: &str) -> Option<usize> {
        let input = Input::new(value).anchored(Anchored::Yes);
        // Only automata built with other options return errors.
        let found = self.0.try_search_fwd(&input).ok()??;
        Some(found.pattern().as_usize())
    }

    pub fn bytes(&self) -> usize {
        self.0.memory_usage()
    }

    /// The state before the first byte of a value.
    pub fn begin(&self) -> Option<Progress> {
        let at = self.0.start_state_forward(&Input::new("").anchored(Anchored::Yes)).ok()?;
        Some(Progress { at, found: None })
    }

    pub fn read(&self, reading: Progress, byte: u8) -> Progress {
        self.reached(self.0.next_state(reading.at, byte), reading.found)
    }

    /// The first source that the value matches if it ends here.
    pub fn end(&self, reading: Progress) -> Option<usize> {
        let found = self.reached(self.0.next_eoi_state(reading.at), reading.found).found;
        found.map(|found| found as usize)
    }

    fn reached(&self, at: StateID, found: Option<u32>) -> Progress {
        // A later match belongs to an earlier source.
        let found = if self.0.is_match_state(at) { Some(self.0.match_pattern(at, 0).as_u32()) } else { found };
        Progress { at, found }
    }

    /// The class of a byte. Bytes of one class lead from each state to the same state.
    pub fn byte_class(&self, byte: u8) -> u8 {
        self.0.byte_classes().get(byte)
    }
}

/// The state of an automaton after some bytes of a value, and the first source that these bytes match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Progress {
    at: StateID,
    found: Option<u32>,
}

impl fmt::Debug for Automaton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Automaton({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_value_matches() {
        for (regex, value, expected) in [
            ("a|b", "a", true),
            ("a|b", "ab", false),
            ("a", "xa", false),
            ("", "", true),
            ("", "a", false),
            ("^a$", "a", true),
            ("/v[0-9]+/.*", "/v12/x", true),
            ("/v[0-9]+/.*", "/v/x", false),
            ("(?i)gold", "GoLd", true),
            (r"\d+", "١٢", true),
            (r"(?-u:\d)+", "١٢", false),
            (".", "日", true),
            (r"a(?-u:\b).*", "a b", true),
            (r"a(?-u:\b).*", "ab", false),
        ] {
            assert_eq!(Regex::new(regex).expect(regex).matches(value), expected, "{regex} on {value:?}");
        }
    }

    #[test]
    fn what_is_no_regular_expression_is_told_with_its_place() {
        for (regex, expected) in [
            ("a(b", "unclosed group, at character 2"),
            ("日(b", "unclosed group, at character 2"),
            ("a)", "unopened group, at character 2"),
            ("[z-a]", "invalid character class range, the start must be <= the end, at character 2"),
            ("*a", "repetition operator missing expression, at character 1"),
            (r"(a)\1", "backreferences are not supported, at character 4"),
            ("(?=a)", "look-around, including look-ahead and look-behind, is not supported, at character 1"),
            (r"\pX", "Unicode property not found, at character 1"),
            (r"\bx", r"Unicode word boundaries are not supported: write (?-u:\b) in place of \b"),
        ] {
            assert_eq!(Regex::new(regex).expect_err(regex).to_string(), expected);
        }
        let too_large = |regex: &str| Regex::new(regex).expect_err("too large").to_string();
        assert!(too_large(r"\w{500}").starts_with("its automaton takes more than 1048576 bytes"));
        assert!(too_large("(a|b)*a(a|b){20}").starts_with("its automaton takes more than 1048576 bytes"));
        let nested = format!("{}{}", "(".repeat(65), ")".repeat(65));
        assert!(too_large(&nested).starts_with("exceed the maximum number of nested"), "{}", too_large(&nested));
        assert_eq!(too_large(&"x".repeat(REGEX_BYTES_MAX + 1)), "1025 bytes: at most 1024");
        assert!(Regex::new(&"x".repeat(REGEX_BYTES_MAX)).is_ok());
    }

    #[test]
    fn the_first_of_all_that_match_counts() {
        let wildcards = ["/a/*", "*c*", "*.css", "*"].map(|text| Pattern::new(text).expect("has a star"));
        let regex = Regex::new("/a.*").expect("compiles");
        let [a, c, css, all] = &wildcards;
        let sources = [
            Source::Wildcard(css),
            Source::Wildcard(c),
            Source::Regex(&regex),
            Source::Wildcard(a),
            Source::Wildcard(all),
        ];
        let automaton = Automaton::new(&sources, AUTOMATON_BYTES_MAX).expect("is small");
        for (value, expected) in
            [("/a/x.css", 0), ("/a/c", 1), ("/a/x.cs", 1), ("/a/b", 2), ("/b", 4), ("", 4), (".css", 0), ("日c", 1)]
        {
            assert_eq!(automaton.first(value), Some(expected), "{value}");
        }
        assert!(Automaton::new(&sources, 100).is_none(), "the bound holds");
        assert!(automaton.bytes() <= AUTOMATON_BYTES_MAX);
    }

    #[test]
    fn wildcards_that_look_for_texts_anywhere_stay_small() {
        let wildcards: Vec<_> = (0..40).map(|n| Pattern::new(&format!("*word{n:02}*")).expect("has a star")).collect();
        let sources: Vec<_> = wildcards.iter().map(Source::Wildcard).collect();
        let automaton = Automaton::new(&sources, AUTOMATON_BYTES_MAX).expect("is small");
        assert_eq!(automaton.first("a word39 and word17 and word3x"), Some(17));
        assert_eq!(automaton.first("a word and wor"), None);
    }
}
