//! Words of which one is probably a misspelling of another.

/// Shorter words are not compared: most of them differ by a letter.
const LETTERS_MIN: usize = 5;
/// A word of so many letters can have two of them exchanged.
const EXCHANGED_MIN: usize = 4;
/// How many words are compared with each other.
const WORDS_MAX: usize = 1_000;
/// The longest word that is compared, in bytes.
const WORD_BYTES_MAX: usize = 64;

/// Words that differ, prepared to be compared.
pub(super) struct Words(Vec<Word>);

struct Word {
    /// What stands between `-`, `_` and `.`, in lower case.
    parts: Vec<Box<str>>,
    /// The same without what stood between.
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

    /// Whether they are the same but for case and what stands between their parts, or but for a mistake in one part.
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

/// Pairs of words that are alike, each as its numbers, the smaller first; one at most for each word.
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

/// Whether one of two words has a letter that is wrong, missing or too much, or two that are exchanged.
fn is_mistake(one: &str, other: &str) -> bool {
    let (short, long) =
        if one.len() <= other.len() { (one.as_bytes(), other.as_bytes()) } else { (other.as_bytes(), one.as_bytes()) };
    let start = short.iter().zip(long).take_while(|(a, b)| a == b).count();
    let (short_rest, long_rest) = (&short[start..], &long[start..]);
    let end = short_rest.iter().rev().zip(long_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&short_rest[..short_rest.len() - end], &long_rest[..long_rest.len() - end]) {
        // Numbers make words of their own, as in v1 and v2.
        ([a], [b]) => short.len() >= LETTERS_MIN && !a.is_ascii_digit() && !b.is_ascii_digit(),
        // So do endings: hosts, router, cached.
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
