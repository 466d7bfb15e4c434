//! Values that are compared as text and look like a network or a pattern.

use weir_engine::network::{Network, NetworkError};
use weir_text::yaml::NO_BREAK_SPACES;

/// The key of Envoy's descriptors whose values are networks, compared as text.
pub(super) const MASKED_ADDRESS: &str = "masked_remote_address";

/// Whether the text is a network with a prefix length, or similar: `10.0.0.1/8`, `10.0.0.0/255.0.0.0`. A single address
/// is an ordinary value.
pub(super) fn looks_like_network(text: &str) -> bool {
    let is_meant = |error: NetworkError| matches!(error, NetworkError::HostBits { .. } | NetworkError::Netmask { .. });
    text.contains('/')
        && text.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':')
        && Network::parse(text).map_or_else(is_meant, |_| true)
}

pub(super) fn has_outer_blank(text: &str) -> bool {
    text.trim().len() < text.len()
}

/// Characters that look as others do: those of word processors in place of those of a keyboard. An apostrophe in a name is ordinary.
pub(super) fn odd_character(text: &str) -> Option<&'static str> {
    const SINGLE: [char; 3] = ['‘', '’', '‚'];
    if text.contains(['“', '”', '„', '‟']) || text.starts_with(SINGLE) || text.ends_with(SINGLE) {
        Some("curly quotes")
    } else if text.contains(NO_BREAK_SPACES) {
        Some("a no-break space")
    } else {
        None
    }
}

/// Whether a regular expression is probably meant as a prefix: plain text, or an anchor or a slash at one end only.
pub(super) fn looks_like_prefix(regex: &str) -> bool {
    const MARKS: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '$'];
    let (is_anchored, text) = regex.strip_prefix('^').map_or((false, regex), |rest| (true, rest));
    let ends_open = !text.ends_with(['$', '*', '+', '?', '}', ')']);
    !text.is_empty() && ends_open && (is_anchored || text.ends_with('/') || !text.contains(MARKS))
}

pub(super) fn longer(value: &str) -> String {
    let slash = if value.ends_with('/') { "" } else { "/" };
    format!("{value}{slash}x")
}

/// Whether the text has characters that are frequent in regular expressions and rare in values.
pub(super) fn looks_like_regex(text: &str) -> bool {
    const MARKS: &[u8] = b"\\[(^$+*";
    const SIGNS: [&str; 9] = ["[0-9", "[a-z", "[A-Z", "[^", "(?:", "/.*", ").*", ".+/", "\\."];
    if !text.bytes().any(|byte| MARKS.contains(&byte)) {
        return false;
    }
    let is_path_to_its_end = text.starts_with('/') && text.ends_with('$');
    let is_anchored = text.len() > 1 && text.starts_with('^') || is_path_to_its_end;
    let is_any = text.starts_with(".*") || text.starts_with(".+") || text.ends_with(".+");
    is_anchored || is_any || is_choice(text) || has_class(text) || SIGNS.iter().any(|sign| text.contains(sign))
}

fn is_choice(text: &str) -> bool {
    let inner = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    inner.is_some_and(|(inner, _)| inner.contains('|'))
}

/// Whether the text has `\d`, `\w` or `\s`, not followed by a letter as in the account `CORP\dave`.
fn has_class(text: &str) -> bool {
    let mut parts = text.split('\\');
    parts.next();
    parts.any(|part| {
        let mut chars = part.chars();
        matches!(chars.next(), Some('d' | 'w' | 's')) && !chars.next().is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_told_from_paths_and_addresses() {
        for text in ["10.0.0.0/8", "2001:db8::/32", "::/0", "192.0.2.7/32", "10.0.0.1/8", "10.0.0.0/255.0.0.0"] {
            assert!(looks_like_network(text), "{text}");
        }
        for text in ["10.0.0.1", "10.*", "/10.0.0.0/8", "cafe/8", "10.0.0.0/33", "text/html", "2001:db8::1"] {
            assert!(!looks_like_network(text), "{text}");
        }
    }

    #[test]
    fn curly_quotes_are_told_from_apostrophes() {
        for text in ["“user”", "„user“", "‘user’", "a\u{a0}b", "user\u{202f}"] {
            assert!(odd_character(text).is_some(), "{text}");
        }
        for text in ["O’Brien", "\"user\"", "a b", "«user»", "Zoë"] {
            assert_eq!(odd_character(text), None, "{text}");
        }
    }

    #[test]
    fn prefixes_are_told_from_whole_regular_expressions() {
        for text in ["/v1/", "^/v1", "/v[0-9]+/", "^/v[0-9]+/pay", "gold"] {
            assert!(looks_like_prefix(text), "{text}");
        }
        for text in
            ["/v1/.*", "^/v1/.*", "^/v1$", "/v[0-9]+/pay", "gold|silver", "^(a|b)", "a+", "^", "/v[0-9]{2}", "v1\\.2"]
        {
            assert!(!looks_like_prefix(text), "{text}");
        }
    }

    #[test]
    fn regular_expressions_are_told_from_values_and_wildcards() {
        for text in [
            "^/pay",
            "/pay$",
            "/v[0-9]+/pay",
            "/v\\d/pay",
            "/pay/.*",
            ".*",
            ".*\\.css",
            "/(a|b)/c",
            "(?:a)",
            "/api/.+",
            "/a\\w+",
            "[^/]*",
            "/a/.+/b",
            "\\d{4}",
        ] {
            assert!(looks_like_regex(text), "{text}");
        }
        for text in [
            "*",
            "/pay/*",
            "*.css",
            "*.*",
            "/.well-known/*",
            "10.*",
            "US$",
            "ann+news@example.com",
            "CORP\\dave",
            "C:\\data",
            "a|b",
            "f(x)",
            "list[0]",
            "/search?q=a+b",
            "^",
            "Mozilla/5.0 (X11; Linux)",
            "/files/2024-*.pdf",
            "{id}",
            "1+",
            "text/*",
            "v1.*",
        ] {
            assert!(!looks_like_regex(text), "{text}");
        }
    }
}
