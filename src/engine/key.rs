//! The key under which a state is stored: `w1:{<tag>}<limit id>`. [ky-1]
//!
//! A state belongs to a domain, a descriptor and the shape of a limit. It does not belong to a rule or to a limit's
//! numbers.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::descriptor::Entry;
use super::escape::escape;
use super::limit::Limit;
use super::pattern::SharedBy;

/// The beginning of every key. It changes when the stored formats change. [ky-5]
pub const VERSION: &str = "w1:";
/// A longer tag, in bytes, is shortened and hashed. [ky-3]
pub const TAG_BYTES_MAX: usize = 256;
/// How much of a long tag is kept for people to read, in bytes.
const TAG_BYTES_KEPT: usize = 128;
/// Bytes of SHA-256 that stand for a long tag.
const TAG_HASH_BYTES: usize = 16;

/// Appends the key of `limit` for a descriptor to `out`.
///
/// `shared` lists, by position, the entries whose values share one state. For such an entry the key has a wildcard or a
/// name in place of the value.
pub fn write_key<'a>(
    out: &mut String,
    domain: &str,
    entries: impl Iterator<Item = Entry<'a>>,
    shared: &[(usize, SharedBy<'_>)],
    limit: &Limit,
) {
    write_tag(out, domain, entries, shared);
    out.push_str(limit.id());
}

/// Appends `w1:{<tag>}`. All limits of one descriptor have this tag, so they are in one slot.
pub fn write_tag<'a>(
    out: &mut String,
    domain: &str,
    entries: impl Iterator<Item = Entry<'a>>,
    shared: &[(usize, SharedBy<'_>)],
) {
    out.push_str(VERSION);
    out.push('{');
    let start = out.len();
    escape(out, domain);
    let mut shared = shared.iter().peekable();
    for (position, entry) in entries.enumerate() {
        out.push('|');
        escape(out, entry.key);
        out.push('=');
        match shared.next_if(|(at, _)| *at == position) {
            // A value contains no `=`, because it is escaped.
            Some((_, SharedBy::Name(name))) => {
                out.push('=');
                escape(out, name);
            }
            Some((_, SharedBy::Pattern(pattern))) => {
                for (i, literal) in pattern.literals().enumerate() {
                    if i > 0 {
                        out.push('*');
                    }
                    escape(out, literal);
                }
            }
            None => escape(out, entry.value),
        }
    }
    if out.len() - start > TAG_BYTES_MAX {
        shorten(out, start);
    }
    out.push('}');
}

/// The prefix of all keys of a domain, or of all domains.
pub fn domain_prefix(domain: Option<&str>) -> String {
    let mut prefix = format!("{VERSION}{{");
    if let Some(domain) = domain {
        escape(&mut prefix, domain);
        prefix.push('|');
    }
    prefix
}

/// Replaces the tag that starts at `start` with a readable beginning and a hash of the whole. [ky-3]
fn shorten(out: &mut String, start: usize) {
    let hash = Sha256::digest(&out.as_bytes()[start..]);
    let mut end = start + TAG_BYTES_KEPT;
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    out.push('~');
    for byte in &hash[..TAG_HASH_BYTES] {
        let _ = write!(out, "{byte:02x}");
    }
}

/// The number of a key in a receipt: its FNV-1a hash of 64 bits. The operator's prefix is not part of a key. A
/// caller can choose values so that two keys have one number, so a settle compares the keys of its request. [hd-4] [hd-5]
pub fn number(key: &str) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    key.bytes().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedValue {
    /// The value of the request, or the wildcard in its place.
    Text(String),
    /// The name in place of values that share a state.
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedKey<'k> {
    pub domain: String,
    /// Keys and values of the descriptor. If the tag was shortened, the last value is incomplete.
    pub entries: Vec<(String, ParsedValue)>,
    /// Whether the tag was too long, so the key has its beginning and a hash. [ky-3]
    pub is_hashed: bool,
    /// The id of the limit. Empty if the text is a tag.
    pub limit_id: &'k str,
}

/// Reads a key of [`write_key`] or a tag of [`write_tag`]. None for any other text.
pub fn parse(key: &str) -> Option<ParsedKey<'_>> {
    let (tag, limit_id) = key.strip_prefix(VERSION)?.strip_prefix('{')?.split_once('}')?;
    let (tag, is_hashed) = match tag.rsplit_once('~') {
        Some((kept, _)) => (kept, true),
        None => (tag, false),
    };
    let mut parts = tag.split('|');
    let domain = unescape(parts.next()?)?;
    let entry = |part: &str| {
        // In a shortened tag, the last part may lack its value.
        let (key, value) = part.split_once('=').or_else(|| is_hashed.then_some((part, "")))?;
        let value = match value.strip_prefix('=') {
            Some(name) => ParsedValue::Name(unescape(name)?),
            None => ParsedValue::Text(unescape(value)?),
        };
        Some((unescape(key)?, value))
    };
    let entries = parts.map(entry).collect::<Option<_>>()?;
    Some(ParsedKey { domain, entries, is_hashed, limit_id })
}

/// Reverses [`escape`]. Leaves out an incomplete escape, as a shortened tag can have.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
        } else if let [high, low, others @ ..] = others {
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            bytes.push(u8::try_from(digit(high)? << 4 | digit(low)?).ok()?);
            rest = others;
        } else {
            rest = &[];
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;
    use crate::time::Unit;

    #[test]
    fn a_key_is_read_back() {
        let odd = [("a b|c", "d/e:{}*~%=\u{7f}\n"), ("x", ""), ("Zo\u{eb}", "\u{65e5}")];
        let written = key("my shop", &odd);
        let read = parse(&written).expect("a key");
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), ParsedValue::Text((*value).to_owned()));
        assert_eq!(read.domain, "my shop");
        assert_eq!(read.entries, odd.iter().map(owned).collect::<Vec<_>>());
        assert!(!read.is_hashed);
        assert_eq!(read.limit_id, "f3600s");
        for other in ["", "w1:", "w1:{", "w1:{shop", "w0:{shop|a=b}f1s", "w1:{shop|a}f1s", "w1:{shop|a=%zz}f1s"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_key_that_was_cut_and_hashed_is_read_as_far_as_it_goes() {
        let read = |value: &str| {
            let written = key("shop", &[("user", value)]);
            let read = parse(&written).expect("a key");
            assert!(read.is_hashed && read.domain == "shop" && read.limit_id == "f3600s");
            let (key, value) = read.entries.into_iter().next().expect("an entry");
            assert_eq!(key, "user");
            let ParsedValue::Text(value) = value else { panic!("not a name: {value:?}") };
            value
        };
        assert_eq!(read(&"x".repeat(300)), "x".repeat(TAG_BYTES_KEPT - "shop|user=".len()));
        // Cuts at each position inside an escape.
        for blanks in 0..3 {
            let value = format!("{}{}", "x".repeat(blanks), " ".repeat(300));
            let kept = read(&value);
            assert!(value.starts_with(&kept) && kept.len() >= 39, "{kept:?}");
        }
    }

    fn key(domain: &str, entries: &[(&str, &str)]) -> String {
        let mut out = String::new();
        let entries = entries.iter().map(|&(key, value)| Entry { key, value });
        write_key(&mut out, domain, entries, &[], &Limit::per_unit(1, Unit::Hour));
        out
    }

    #[test]
    fn a_key_names_domain_entries_and_shape() {
        assert_eq!(key("shop", &[("user", "ann")]), "w1:{shop|user=ann}f3600s");
        assert_eq!(key("shop", &[("a", ""), ("b", "2")]), "w1:{shop|a=|b=2}f3600s");
    }

    #[test]
    fn no_two_descriptors_share_a_key_by_their_spelling() {
        assert_ne!(key("d", &[("a_b", "c")]), key("d", &[("a", "b_c")]));
        assert_ne!(key("d", &[("a", "b|c=d")]), key("d", &[("a", "b"), ("c", "d")]));
        assert_ne!(key("d", &[("a", "%7C")]), key("d", &[("a", "|")]));
        assert_eq!(
            key("d", &[("k", "a b|c/d:e{}*~%=\u{7f}\n")]),
            "w1:{d|k=a%20b%7Cc/d:e%7B%7D%2A%7E%25%3D%7F%0A}f3600s"
        );
        assert_eq!(key("d", &[("k", "Zoë")]), "w1:{d|k=Zoë}f3600s");
    }

    #[test]
    fn a_name_that_stands_for_values_is_no_value_and_no_wildcard() {
        let write = |value: &str, shared: &[(usize, SharedBy<'_>)]| {
            let mut out = String::new();
            write_tag(&mut out, "d", [Entry { key: "k", value }].into_iter(), shared);
            out
        };
        let named = write("10.1.2.3", &[(0, SharedBy::Name("*10.0.0.0/8,..."))]);
        assert_eq!(named, "w1:{d|k==%2A10.0.0.0/8,...}");
        let pattern = Pattern::new("*10.0.0.0/8,...").expect("has a star");
        let values = [write("=*10.0.0.0/8,...", &[]), write("x", &[(0, SharedBy::Pattern(&pattern))])];
        assert!(!values.contains(&named), "{values:?}");
        let read = parse(&named).expect("a key");
        assert_eq!(read.entries, [("k".to_owned(), ParsedValue::Name("*10.0.0.0/8,...".to_owned()))]);
    }

    #[test]
    fn a_long_tag_is_cut_at_a_character_and_hashed_whole() {
        let fits = "x".repeat(TAG_BYTES_MAX - "d|k=".len());
        assert_eq!(key("d", &[("k", &fits)]), format!("w1:{{d|k={fits}}}f3600s"));
        let long = key("d", &[("k", &format!("{fits}x"))]);
        assert_eq!(long.len(), "w1:{".len() + 128 + 1 + 32 + "}f3600s".len());
        assert_ne!(long, key("d", &[("k", &format!("{fits}y"))]));
        let wide = key("d", &[("k", &"日".repeat(100))]);
        assert!(wide.starts_with("w1:{d|k=日"), "{wide}");
        assert!(wide.len() < 128 + 60);
    }
}
