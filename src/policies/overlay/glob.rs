//! Patterns of overlays, in which a `*` stands for any text.
//!
//! The parts between the stars are searched from left to right, so no pattern makes a search go back.

use std::fmt;

/// The most stars in one pattern.
pub const STARS_MAX: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Glob {
    first: Box<str>,
    /// The parts between two stars.
    middle: Vec<Box<str>>,
    /// The part after the last star. None: there is no star.
    last: Option<Box<str>>,
}

impl Glob {
    /// # Errors
    /// An empty pattern, two stars side by side, or too many of them.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty: write * for any text".to_owned());
        }
        if text.contains("**") {
            return Err("** stands alone, as the last of descriptors: write * for any text".to_owned());
        }
        let stars = text.matches('*').count();
        if stars > STARS_MAX {
            return Err(format!("{stars} stars: at most {STARS_MAX}"));
        }
        let mut parts = text.split('*').map(Box::from);
        let first = parts.next().unwrap_or_default();
        let mut middle: Vec<Box<str>> = parts.collect();
        let last = middle.pop();
        Ok(Self { first, middle, last })
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let Some(last) = &self.last else { return text == &*self.first };
        let Some(mut rest) = text.strip_prefix(&*self.first).and_then(|rest| rest.strip_suffix(&**last)) else {
            return false;
        };
        for part in &self.middle {
            let Some(at) = rest.find(&**part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first)?;
        self.middle.iter().chain(&self.last).try_for_each(|part| write!(f, "*{part}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, text: &str) -> bool {
        Glob::new(glob).unwrap().matches(text)
    }

    #[test]
    fn a_star_is_any_text_with_slashes_and_without_any() {
        for (glob, good, bad) in [
            ("a", &["a"][..], &["", "b", "aa"][..]),
            ("*", &["", "a", "a/b"], &[]),
            ("a*", &["a", "a/b/c"], &["", "ba"]),
            ("*a", &["a", "b/a"], &["", "ab"]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("a*b*c", &["abc", "a/b/bc", "abbc"], &["ac", "acb"]),
            ("httproute/*/users/*", &["httproute/default/users/rule/0/match/0/*"], &["httproute/users/x"]),
        ] {
            assert!(good.iter().all(|text| matches(glob, text)), "{glob}");
            assert!(!bad.iter().any(|text| matches(glob, text)), "{glob}");
        }
    }

    #[test]
    fn patterns_without_an_end_are_refused() {
        for (glob, reason) in [("", "empty"), ("a**", "** stands alone"), (&"a*".repeat(17), "17 stars: at most 16")] {
            assert!(Glob::new(glob).unwrap_err().starts_with(reason), "{glob}");
        }
        // Hours, if a search went back.
        let glob = format!("*{}", "a*".repeat(15));
        assert!(!matches(&format!("{}b", glob.trim_end_matches('*')), &"a".repeat(1 << 20)));
    }

    /// By definition, without a bound on time.
    fn slowly(glob: &str, text: &str) -> bool {
        match glob.split_at_checked(1) {
            None => text.is_empty(),
            Some(("*", rest)) => (0..=text.len()).any(|at| slowly(rest, &text[at..])),
            Some((letter, rest)) => text.strip_prefix(letter).is_some_and(|text| slowly(rest, text)),
        }
    }

    /// Every text of at most so many of these letters.
    fn texts(letters: &[&str], most: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut from = 0;
        for _ in 0..most {
            let until = all.len();
            let longer = |text: &String| letters.iter().map(|letter| format!("{text}{letter}")).collect::<Vec<_>>();
            all.extend(all[from..until].to_vec().iter().flat_map(longer));
            from = until;
        }
        all
    }

    #[test]
    fn each_text_is_matched_as_by_definition() {
        let short = texts(&["a", "b"], 6);
        for glob in texts(&["a", "b", "*"], 5) {
            let Ok(built) = Glob::new(&glob) else { continue };
            for text in &short {
                assert_eq!(built.matches(text), slowly(&glob, text), "{glob} {text}");
            }
        }
    }
}
