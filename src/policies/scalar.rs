//! The meaning of an unquoted scalar in YAML 1.1, the version that envoyproxy/ratelimit reads.

use weir_engine::Count;
use weir_text::boolean;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    /// A whole number, and whether its form is unusual.
    Whole(i128, IsOdd),
    Float(f64),
    Text,
}

/// Whether YAML 1.2 or a person could read it as a different number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IsOdd {
    No,
    Yes,
}

pub(super) fn plain(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        _ => {}
    }
    if let Some(truth) = boolean(text) {
        return Plain::Bool(truth);
    }
    whole(text).or_else(|| float(text)).unwrap_or(Plain::Text)
}

/// Decimal digits, octal digits after `0` or `0o`, hexadecimal digits after `0x`, binary digits after `0b`. `_` is
/// allowed after the first character.
fn whole(text: &str) -> Option<Plain> {
    let first = text.chars().next()?;
    if !(first.is_ascii_digit() || matches!(first, '+' | '-')) {
        return None;
    }
    let text: String = text.split('_').collect();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let based = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter();
    let based = based.filter_map(|(prefix, base)| Some((lower.strip_prefix(prefix)?, base))).next();
    let (digits, base) = match based {
        Some(based) => based,
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (&*lower, 10),
    };
    // The sign was removed above, and `from_str_radix` would accept a second one.
    if !digits.bytes().next()?.is_ascii_hexdigit() {
        return None;
    }
    let number = i128::from_str_radix(digits, base).ok()?;
    let number = if is_negative { -number } else { number };
    Some(Plain::Whole(number, if base == 10 { IsOdd::No } else { IsOdd::Yes }))
}

/// Digits with a point, an exponent with its sign, or both.
fn float(text: &str) -> Option<Plain> {
    let first = text.chars().next()?;
    if !(first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return None;
    }
    let text: String = text.split('_').collect();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (before, after) = mantissa.split_once('.').unwrap_or(("", mantissa));
    let has_mantissa = is_digits(before) && is_digits(after) && !after.is_empty();
    let has_exponent = exponent.is_none_or(|exponent| {
        exponent.strip_prefix(['+', '-']).is_some_and(|digits| !digits.is_empty() && is_digits(digits))
    });
    if !has_mantissa || !has_exponent {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    number.is_finite().then_some(Plain::Float(number))
}

/// Reads decimal digits, with or without `_` between them, of a number that is at most `most`.
///
/// # Errors
/// A hint for the end of a message; it can be empty.
pub(super) fn whole_number<N: TryFrom<Count>>(text: &str, most: Count) -> Result<N, &'static str> {
    let digits: String = text.split('_').collect();
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    // Ambiguous: YAML 1.1 reads 010 as 8, and YAML 1.2 as 10.
    let is_octal = digits.starts_with('0') && digits != "0";
    let starts_or_ends = text.starts_with('_') || text.ends_with('_');
    let number = digits.parse().ok().filter(|number| *number <= most);
    match number.map(N::try_from) {
        Some(Ok(_)) if is_decimal && is_octal => Err(": other programs read a leading 0 as octal"),
        Some(Ok(number)) if is_decimal && !starts_or_ends => Ok(number),
        _ => Err(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_mean_what_yaml_1_1_says() {
        use IsOdd::{No, Yes};
        for (text, expected) in [
            ("", Plain::Null),
            ("~", Plain::Null),
            ("NULL", Plain::Null),
            ("nULL", Plain::Text),
            ("y", Plain::Bool(true)),
            ("Off", Plain::Bool(false)),
            ("oFF", Plain::Text),
            ("0", Plain::Whole(0, No)),
            ("5", Plain::Whole(5, No)),
            ("+5", Plain::Whole(5, No)),
            ("-1", Plain::Whole(-1, No)),
            ("1_000", Plain::Whole(1_000, No)),
            ("5_", Plain::Whole(5, No)),
            ("_5", Plain::Text),
            ("010", Plain::Whole(8, Yes)),
            ("0o17", Plain::Whole(15, Yes)),
            ("0x1F", Plain::Whole(31, Yes)),
            ("-0b10", Plain::Whole(-2, Yes)),
            ("08", Plain::Float(8.0)),
            ("--5", Plain::Text),
            ("0x-5", Plain::Text),
            ("4294967296", Plain::Whole(4_294_967_296, No)),
            ("1.5", Plain::Float(1.5)),
            (".5", Plain::Float(0.5)),
            ("5.", Plain::Text),
            ("1e3", Plain::Text),
            ("1e+3", Plain::Float(1_000.0)),
            ("1e+999", Plain::Text),
            ("1.2.3", Plain::Text),
            ("abc", Plain::Text),
            ("-", Plain::Text),
            ("10/s", Plain::Text),
        ] {
            assert_eq!(plain(text), expected, "{text:?}");
        }
    }
}
