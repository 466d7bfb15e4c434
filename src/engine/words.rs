//! Texts for people: counts with their noun, shares in percent, and texts of policies and requests made safe for a
//! terminal.

use std::fmt::Display;

/// What a limit on requests in flight counts, in place of a window.
pub const IN_FLIGHT: &str = "in flight";

/// A number and its noun: `1 rule`, `2 rules`. The number may contain commas.
///
/// ```
/// use weir_engine::words::counted;
///
/// assert_eq!([0, 1, 2].map(|rules| counted(rules, "rule")), ["0 rules", "1 rule", "2 rules"]);
/// assert_eq!(counted("1,000", "more status"), "1,000 more statuses");
/// ```
pub fn counted(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    let ending = match &*number {
        "1" => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// A share in percent, rounded half up to one decimal. Prints 100.0 % only for the whole, and 0.0 % only for nothing.
///
/// ```
/// use weir_engine::words::percent;
///
/// assert_eq!([percent(2, 3), percent(5, 5), percent(0, 5)], ["66.7 %", "100.0 %", "0.0 %"]);
/// assert_eq!([percent(1, 9_999), percent(9_998, 9_999)], ["<0.1 %", ">99.9 %"]);
/// ```
pub fn percent(part: u64, whole: u64) -> String {
    // If there are no requests, none passed.
    match rounded_tenths(part, whole) {
        0 if part > 0 => "<0.1 %".to_owned(),
        1_000.. if part < whole => ">99.9 %".to_owned(),
        tenths => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// The same share in tenths of a percent, for programs. Returns 1,000 only for the whole, and 0 only for nothing.
///
/// ```
/// use weir_engine::words::tenths_of_percent;
///
/// assert_eq!([tenths_of_percent(2, 3), tenths_of_percent(5, 5), tenths_of_percent(0, 5)], [667, 1_000, 0]);
/// assert_eq!([tenths_of_percent(1, 9_999), tenths_of_percent(9_998, 9_999)], [1, 999]);
/// ```
pub fn tenths_of_percent(part: u64, whole: u64) -> u64 {
    match rounded_tenths(part, whole) {
        0 if part > 0 => 1,
        1_000.. if part < whole => 999,
        tenths => tenths,
    }
}

/// Rounded half up; 0 if the whole is 0.
fn rounded_tenths(part: u64, whole: u64) -> u64 {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let tenths = (part * 2_000 + whole).checked_div(2 * whole).unwrap_or(0);
    u64::try_from(tenths).unwrap_or(u64::MAX)
}

/// Escapes the characters of a text that would disturb a terminal or a line. Keeps backslashes, so you can type a
/// printed descriptor again.
///
/// ```
/// use weir_engine::words::printable;
///
/// assert_eq!(printable("a\\b \u{1b}[31m\n\u{202e}"), "a\\b \\u{1b}[31m\\n\\u{202e}");
/// ```
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() }).collect()
}

/// Whether a character disturbs neither a terminal nor a line.
pub fn is_plain(c: char) -> bool {
    !c.is_control() && c.escape_debug().len() == 1 || matches!(c, '"' | '\'' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_extremes_are_exact() {
        for (part, whole, expected) in [
            (1, 3, "33.3 %"),
            (2, 3, "66.7 %"),
            (1, 2_000, "0.1 %"),
            (1, 2_001, "<0.1 %"),
            (1_998, 2_000, "99.9 %"),
            (1_999, 2_000, ">99.9 %"),
            (u64::MAX - 1, u64::MAX, ">99.9 %"),
            (u64::MAX, u64::MAX, "100.0 %"),
            (0, 0, "0.0 %"),
        ] {
            assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        }
    }
}
