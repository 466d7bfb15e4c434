//! The content of a request: entries and hits.

use std::str::FromStr;

/// The most entries of a descriptor that has an override or a row.
pub const ENTRIES_MAX: usize = 64;

/// The hits of one charge.
pub type Hits = u32;

/// The hits of a limit: how many it has, how many are used, and how many remain. At most [`COUNT_MAX`]. [ar-3]
pub type Count = u64;
/// The largest count: 15 digits, which an integer of an HTTP header can have, and a double holds exactly.
pub const COUNT_MAX: Count = 999_999_999_999_999;

/// A count as 32 bits, at most [`Hits::MAX`].
#[inline]
pub fn saturated(count: Count) -> Hits {
    Hits::try_from(count).unwrap_or(Hits::MAX)
}

/// Keys and values of a descriptor, in order.
pub type Entries = Box<[(Box<str>, Box<str>)]>;

/// One key and value of a descriptor, borrowed from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key. Never empty in a policy; a caller may send any text.
    pub key: &'a str,
    /// The value; empty if the caller sent none.
    pub value: &'a str,
}

/// Reads a descriptor as people type it: `path=/login,client=10.0.0.1`, with keys and values in order.
///
/// The key ends at the first `=`, so a value may contain more. A value may be empty; a key may not. `\,` is a comma and
/// `\\` a backslash.
///
/// # Errors
/// When the text does not have that form; the error states why.
pub fn parse_entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut entries = Vec::new();
    for entry in split_at_commas(text)? {
        match entry.split_once('=') {
            Some(("", _)) => return Err(format!("{entry:?} has no key before the \"=\"")),
            Some((key, value)) => entries.push((key.to_owned(), value.to_owned())),
            None => return Err(format!("{entry:?} has no \"=\": write KEY=VALUE")),
        }
    }
    Ok(entries)
}

/// A descriptor that [`parse_entries`] has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedDescriptor {
    /// Keys and values, in the typed order.
    pub entries: Vec<(String, String)>,
}

impl FromStr for TypedDescriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_entries(text).map(|entries| Self { entries })
    }
}

/// As [`parse_entries`], for a descriptor that is kept.
///
/// # Errors
/// As [`parse_entries`], after `descriptor: `.
pub fn entries_of(text: &str) -> Result<Entries, String> {
    let entries = parse_entries(text).map_err(|reason| format!("descriptor: {reason}"))?;
    Ok(entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
}

/// The same entries, borrowed.
pub fn as_entries<T: AsRef<str>>(pairs: &[(T, T)]) -> Vec<Entry<'_>> {
    pairs.iter().map(|(key, value)| Entry { key: key.as_ref(), value: value.as_ref() }).collect()
}

/// Writes a descriptor as [`parse_entries`] reads it.
pub fn spell_entries<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> String {
    let mut text = String::new();
    for Entry { key, value } in entries {
        if !text.is_empty() {
            text.push(',');
        }
        for c in key.chars().chain(['=']).chain(value.chars()) {
            if matches!(c, ',' | '\\') {
                text.push('\\');
            }
            text.push(c);
        }
    }
    text
}

/// As [`spell_entries`], for pairs of keys and values.
pub fn spell_pairs<T: AsRef<str>>(pairs: &[(T, T)]) -> String {
    spell_entries(pairs.iter().map(|(key, value)| Entry { key: key.as_ref(), value: value.as_ref() }))
}

fn split_at_commas(text: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![];
    let mut part = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ',' => parts.push(std::mem::take(&mut part)),
            '\\' => match chars.next() {
                Some(escaped @ (',' | '\\')) => part.push(escaped),
                Some(other) => {
                    return Err(format!("\\{other} is not an escape: \\, is a comma and \\\\ a backslash"));
                }
                None => return Err("a backslash at the end: write \\\\ for one".to_owned()),
            },
            _ => part.push(c),
        }
    }
    parts.push(part);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_written_as_it_is_read() {
        for text in ["user=ann", "path=/a\\,b\\\\,client=", "x=a=b"] {
            assert_eq!(spell_pairs(&entries_of(text).unwrap()), text);
        }
        assert_eq!(entries_of("x"), Err("descriptor: \"x\" has no \"=\": write KEY=VALUE".to_owned()));
    }
}
