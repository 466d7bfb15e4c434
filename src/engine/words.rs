//! Numbers in texts that people read: counts with their noun, and shares in percent.

use std::fmt::Display;

/// A number and its noun: `1 rule`, `2 rules`. The number may be written with commas.
///
/// ```
/// use weir::engine::words::counted;
///
/// assert_eq!([0, 1, 2].map(|rules| counted(rules, "rule")), ["0 rules", "1 rule", "2 rules"]);
/// assert_eq!(counted("1,000", "more status"), "1,000 more statuses");
/// ```
#[must_use]
pub fn counted(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    let ending = match &*number {
        "1" => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// A share in percent, rounded half up to one decimal. Only all is 100.0 %, and only nothing 0.0 %.
///
/// ```
/// use weir::engine::words::percent;
///
/// assert_eq!([percent(2, 3), percent(5, 5), percent(0, 5)], ["66.7 %", "100.0 %", "0.0 %"]);
/// assert_eq!([percent(1, 9_999), percent(9_998, 9_999)], ["<0.1 %", ">99.9 %"]);
/// ```
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    let whole = u128::from(whole);
    let part = u128::from(part);
    // Of no requests, none passed.
    let tenths = (part * 2_000 + whole).checked_div(2 * whole).unwrap_or(0);
    match tenths {
        0 if part > 0 => "<0.1 %".to_owned(),
        1_000.. if part < whole => ">99.9 %".to_owned(),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    }
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
