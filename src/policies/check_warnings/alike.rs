//! Pairs of words in which one is probably a misspelling of the other.

/// The shortest word that is compared: many shorter words differ by one letter.
const LETTERS_MIN: usize = 5;
/// The shortest word in which two swapped letters count as a misspelling.
const EXCHANGED_MIN: usize = 4;
/// The most words that are compared with each other.
const WORDS_MAX: usize = 1_000;
/// The longest word that is compared, in bytes.
const WORD_BYTES_MAX: usize = 64;

/// Different words, prepared for comparison.
pub(super) struct Words(Vec<Word>);

struct Word {
    /// The parts between `-`, `_` and `.`, in lower case.
    parts: Vec<Box<str>>,
    joined: Box<str>,
}

impl Words {
    pub(super) fn new<'w>(words: impl Iterator<Item = &'w str>) -> Self {
        Self(words.take(WORDS_MAX).map(Word::new).collect())
    }
}

impl Word {
    fn new(text: &str) -> Self {
        let text =
            if text.len() <= WORD_BYTES_MAX && text.is_ascii() { text.to_ascii_lowercase() } else { String::new() };
        let parts: Vec<Box<str>> = text.split(['-', '_', '.']).map(Into::into).collect();
        let joined = parts.concat().into();
        Self { parts, joined }
    }

    /// Whether they differ only in case and separators, or by one mistake in one part.
    fn is_alike(&self, other: &Self) -> bool {
        if self.joined.len().abs_diff(other.joined.len()) > 1 || self.joined.is_empty() {
            return false;
        }
        if self.joined == other.joined {
            return true;
        }
        let mut different = self.parts.iter().zip(&other.parts).filter(|(one, other)| one != other);
        let (first, second) = (different.next(), different.next());
        match (first, second) {
            (Some((one, other_part)), None) if self.parts.len() == other.parts.len() => is_mistake(one, other_part),
            _ => false,
        }
    }
}

/// Pairs of similar words by their indices, the smaller first; at most one pair for each word.
pub(super) fn alike(words: &Words, comparisons_left: &mut usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (later, word) in words.0.iter().enumerate() {
        let compared = later.min(*comparisons_left);
        *comparisons_left -= compared;
        let earlier = words.0[..compared].iter().position(|other| other.is_alike(word));
        found.extend(earlier.map(|earlier| (earlier, later)));
    }
    found
}

/// Whether one letter of a word is wrong, missing or extra, or two letters are swapped.
fn is_mistake(one: &str, other: &str) -> bool {
    let (short, long) =
        if one.len() <= other.len() { (one.as_bytes(), other.as_bytes()) } else { (other.as_bytes(), one.as_bytes()) };
    let start = short.iter().zip(long).take_while(|(a, b)| a == b).count();
    let (short_rest, long_rest) = (&short[start..], &long[start..]);
    let end = short_rest.iter().rev().zip(long_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&short_rest[..short_rest.len() - end], &long_rest[..long_rest.len() - end]) {
        // Words that differ in a digit, such as v1 and v2, are different on purpose.
        ([a], [b]) => short.len() >= LETTERS_MIN && !a.is_ascii_digit() && !b.is_ascii_digit(),
        // Words that differ in an ending, such as host and hosts, are different on purpose too.
        ([], [b]) => {
            let is_ending = end == 0 && matches!(b, b's' | b'r' | b'd');
            short.len() >= LETTERS_MIN && !b.is_ascii_digit() && !is_ending
        }
        ([a, b], [c, d]) => {
            let has_digit = a.is_ascii_digit() || b.is_ascii_digit();
            short.len() >= EXCHANGED_MIN && (a, b) == (d, c) && !has_digit
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alike(one: &str, other: &str) -> bool {
        let words = Words::new([one, other].into_iter());
        alike(&words, &mut 1) == [(0, 1)]
    }

    #[test]
    fn mistakes_of_typing_are_found() {
        for (one, other) in [
            ("tenant", "tennant"),
            ("tenant", "tenat"),
            ("tenant", "tenamt"),
            ("tenant", "tenan"),
            ("path", "paht"),
            ("user_id", "user-id"),
            ("user_id", "userid"),
            ("user_id", "User_ID"),
            ("remote_address", "remote_adress"),
            ("checkout-eu", "chekout-eu"),
        ] {
            assert!(is_alike(one, other) && is_alike(other, one), "{one} {other}");
        }
    }

    #[test]
    fn words_that_differ_by_what_they_mean_are_left_alone() {
        for (one, other) in [
            ("user", "users"),
            ("tenant", "tenants"),
            ("route", "router"),
            ("cache", "cached"),
            ("path", "bath"),
            ("edge", "edge2"),
            ("region1", "region2"),
            ("shard10", "shard01"),
            ("cell-a", "cell-b"),
            ("team_x", "team_y"),
            ("eu", "us"),
            ("shop-eu", "shop-us"),
            ("client", "user"),
            ("größe", "grösse"),
            ("", "a"),
        ] {
            assert!(!is_alike(one, other) && !is_alike(other, one), "{one} {other}");
        }
    }

    #[test]
    fn comparisons_and_words_are_bounded() {
        let words: Vec<String> = (0..2_000).map(|i| format!("{}k", "x".repeat(i % 60 + 1))).collect();
        let words = Words::new(words.iter().map(String::as_str));
        let mut left = 10_000;
        alike(&words, &mut left);
        assert_eq!(left, 0);
        let mut left = usize::MAX;
        alike(&words, &mut left);
        assert_eq!(usize::MAX - left, WORDS_MAX * (WORDS_MAX - 1) / 2);
        let long = "x".repeat(WORD_BYTES_MAX + 1);
        assert!(!is_alike(&long, &format!("{long}y")));
    }
}
