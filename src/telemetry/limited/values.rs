//! How values of descriptors are printed for operators: in plain text, as a hash, or hidden.

use sha2::{Digest as _, Sha256};
use weir_engine::descriptor::spell_pairs;
use weir_engine::key::{self, ParsedValue};
use weir_settings::ShownValues;
use weir_text::hex;

/// Bytes of SHA-256 in the hash of a value: 16 hex digits.
const HASH_BYTES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownDescriptor {
    /// Keys and values. [`ShownValues`] determines how a value is printed. A wildcard or name of a shared state is always
    /// plain.
    pub entries: Vec<(String, String)>,
    /// Whether the end is missing, because the descriptor is too long.
    pub is_cut: bool,
}

impl ShownDescriptor {
    /// The descriptor of a key. Without entries if the text is not a key.
    pub fn of(key: &str, values: ShownValues) -> Self {
        let Some(read) = key::parse(key) else {
            return Self { entries: Vec::new(), is_cut: true };
        };
        let entries = read.entries.into_iter().map(|(key, value)| match (value, values) {
            // A name comes from the policy, not from a caller.
            (ParsedValue::Name(text), _) => (key, text),
            (ParsedValue::Text(text), values) => (key, shown(&text, values)),
        });
        Self { entries: entries.collect(), is_cut: read.is_hashed }
    }

    /// The descriptor of these entries, whole.
    pub fn of_entries<T: AsRef<str>>(entries: &[(T, T)], values: ShownValues) -> Self {
        let entries = entries.iter().map(|(key, value)| (key.as_ref().to_owned(), shown(value.as_ref(), values)));
        Self { entries: entries.collect(), is_cut: false }
    }

    /// As `k=v,k=v`. A comma in a value is `\,` and a backslash `\\`.
    pub fn text(&self) -> String {
        let mut text = spell_pairs(&self.entries);
        if self.is_cut {
            text.push('\u{2026}');
        }
        text
    }
}

fn shown(value: &str, values: ShownValues) -> String {
    match values {
        ShownValues::Shown => value.to_owned(),
        ShownValues::Hashed => hex(&Sha256::digest(value.as_bytes())[..HASH_BYTES]),
        ShownValues::Hidden => "*".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::Entry;

    use super::*;

    fn key_of(entries: &[(&str, &str)]) -> String {
        let mut key = String::new();
        let entries = entries.iter().map(|&(key, value)| Entry { key, value });
        weir_engine::key::write_tag(&mut key, "shop", entries, &[]);
        key
    }

    #[test]
    fn values_are_shown_hashed_or_hidden() {
        let key = key_of(&[("user", "ann"), ("path", "/a,b\\c")]);
        let text = |values: ShownValues| ShownDescriptor::of(&key, values).text();
        assert_eq!(text(ShownValues::Shown), "user=ann,path=/a\\,b\\\\c");
        // printf ann | sha256sum
        assert!(text(ShownValues::Hashed).starts_with("user=49915e0d7d4b402e,path="), "{}", text(ShownValues::Hashed));
        assert_eq!(text(ShownValues::Hidden), "user=*,path=*");
        for values in [ShownValues::Shown, ShownValues::Hashed, ShownValues::Hidden] {
            let entries = [("user", "ann"), ("path", "/a,b\\c")];
            assert_eq!(ShownDescriptor::of_entries(&entries, values).text(), text(values));
        }
    }

    #[test]
    fn what_is_shown_is_what_the_admin_listener_reads() {
        let entries = [("user", "ann,bob=\\x"), ("path", "")];
        let text = ShownDescriptor::of(&key_of(&entries), ShownValues::Shown).text();
        let read = weir_engine::descriptor::parse_entries(&text).unwrap();
        assert_eq!(read, entries.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_descriptor_that_was_cut_says_so() {
        let shown = ShownDescriptor::of(&key_of(&[("user", &"x".repeat(400))]), ShownValues::Shown);
        assert!(shown.is_cut && shown.text().starts_with("user=xxx") && shown.text().ends_with('\u{2026}'));
    }
}
