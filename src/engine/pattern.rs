//! Patterns: values of a policy that contain a star [mt-3], and texts that replace values which share a state.

/// A value that contains `*`; each `*` matches any text, also the empty one. [mt-3]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
}

impl Pattern {
    /// The pattern. None if the text has no `*`.
    pub fn new(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.into() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The texts between the stars: at least two. They may be empty.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.text.split('*')
    }

    /// Whether the whole value matches.
    pub fn matches(&self, value: &str) -> bool {
        let mut literals = self.text.split('*');
        let first = literals.next().unwrap_or("");
        let last = literals.next_back().unwrap_or("");
        let Some(rest) = value.strip_prefix(first) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(last) else {
            return false;
        };
        // The leftmost match of each literal leaves the most text for the next, so the search never goes back.
        for literal in literals {
            let Some(at) = rest.find(literal) else {
                return false;
            };
            rest = &rest[at + literal.len()..];
        }
        true
    }
}

/// The text in place of a value, in the key of a state that all values of a descriptor share. [ky-2]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBy<'p> {
    Pattern(&'p Pattern),
    /// The name of a list, of networks or of a regular expression.
    Name(&'p str),
}

impl SharedBy<'_> {
    /// The wildcard as written, or the name in parentheses; for people.
    pub fn text(&self) -> String {
        match self {
            SharedBy::Pattern(pattern) => pattern.literals().collect::<Vec<_>>().join("*"),
            SharedBy::Name(name) => format!("({name})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_values() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("/a/*", "/a/", true),
            ("/a/*", "/b", false),
            ("*.css", "/m.css", true),
            ("*.css", "/m.css.map", false),
            ("/x/*/y", "/x//y", true),
            ("/x/*/y", "/x/y", false),
            ("/x/*/y", "/x/1/y/z", false),
            ("/q*r*s", "/qrs", true),
            ("/q*r*s", "/qs", false),
            ("/q*r*s", "/qrsr", false),
            ("a*a", "a", false),
            ("a**b", "ab", true),
            ("ab*ba", "aba", false),
            ("*aa*aa*", "aaa", false),
            ("*ab*c*", "aabxc", true),
        ] {
            let compiled = Pattern::new(pattern).expect("has a star");
            assert_eq!(compiled.matches(value), expected, "{pattern} on {value:?}");
        }
        assert_eq!(Pattern::new("plain"), None);
    }
}
