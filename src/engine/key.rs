//! The key under which a state is stored: `w1:{<tag>}<limit id>`. [ky-1]
//!
//! A state belongs to a domain, a descriptor and the shape of a limit; not to a rule, and not to a limit's numbers.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::descriptor::Entry;
use super::escape::escape;
use super::limit::Limit;
use super::pattern::Pattern;

/// What every key starts with; a change of the stored formats changes it. [ky-5]
pub const VERSION: &str = "w1:";
/// A tag longer than this, in bytes, is cut and hashed. [ky-3]
pub const TAG_BYTES_MAX: usize = 256;
/// How much of a long tag is kept for people to read, in bytes.
const TAG_BYTES_KEPT: usize = 128;
/// Bytes of SHA-256 that stand for a long tag.
const TAG_HASH_BYTES: usize = 16;

/// Appends the key of `limit` for a descriptor to `out`.
///
/// `shared` names, by position, the entries whose pattern stands in the key in place of the value, so that all
/// values that match the pattern share one state.
pub fn write_key<'a>(
    out: &mut String,
    domain: &str,
    entries: impl Iterator<Item = Entry<'a>>,
    shared: &[(usize, &Pattern)],
    limit: &Limit,
) {
    write_tag(out, domain, entries, shared);
    out.push_str(limit.id());
}

/// Appends `w1:{<tag>}`, which all limits of one descriptor share and which keeps them in one slot.
pub fn write_tag<'a>(
    out: &mut String,
    domain: &str,
    entries: impl Iterator<Item = Entry<'a>>,
    shared: &[(usize, &Pattern)],
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
            Some((_, pattern)) => {
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

/// Cuts the tag that starts at `start` to what people can read and a hash of the whole. [ky-3]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::time::Unit;

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
