//! Quotes texts of other programs in messages.

/// How much of a text a message prints, in characters.
const CHARS_MAX: usize = 60;

/// A text quoted for a message and cut to a bounded length.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// As [`quoted`], without quotation marks.
pub fn escaped(text: &str) -> String {
    quoted(text).replace('"', "")
}
