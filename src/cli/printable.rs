//! Texts that came from elsewhere, for a terminal or a log.

/// A text of a policy or a request, with what would disturb a terminal or a line escaped. A backslash stays one, so that a printed
/// descriptor can be typed.
pub(super) fn printable(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() && c.escape_debug().len() == 1 || matches!(c, '"' | '\'' | '\\');
    text.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() }).collect()
}
