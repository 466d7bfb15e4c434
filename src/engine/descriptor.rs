//! The content of a request: entries and hits.

/// The most hits of one charge.
pub type Hits = u32;

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
pub fn spell_pairs(pairs: &[(String, String)]) -> String {
    spell_entries(pairs.iter().map(|(key, value)| Entry { key, value }))
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
