//! Lengths of time in the syntax of Go, as envoyproxy/ratelimit and statsd_exporter read them.

/// The units of a duration, in nanoseconds. Both the micro sign and the Greek mu are accepted.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The most digits of a fraction that are used: enough for a nanosecond of any unit.
const FRACTION_DIGITS_MAX: usize = 18;

/// A duration in nanoseconds, rounded down: an optional sign, then numbers with units. A number may have a fraction. `0` needs
/// no unit. None for any other text, and beyond 64 bits.
///
/// ```
/// assert_eq!(weir_text::go_duration("1m1.5s"), Some(61_500_000_000));
/// ```
pub fn go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (whole, tail) = digits(rest);
        let (fraction, tail) = match tail.strip_prefix('.') {
            Some(tail) => digits(tail),
            None => ("", tail),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (name, next) = tail.split_at(end);
        let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == name)?;
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<i64>().ok()?.into() };
        total += whole * unit;
        let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
        if !fraction.is_empty() {
            let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
            total += i128::from(fraction.parse::<i64>().ok()?) * unit / scale;
        }
        if total > i128::from(i64::MAX) {
            return None;
        }
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_every_unit_and_fraction() {
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("150us", 150_000),
            ("150\u{b5}s", 150_000),
            ("150\u{3bc}s", 150_000),
            ("10ms", 10_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-2s", -2_000_000_000),
            ("+3ns", 3),
            ("1s1h", 3_601_000_000_000),
            ("0.0000000019s", 1),
            ("24h", 86_400_000_000_000),
        ] {
            assert_eq!(go_duration(text), Some(expected), "{text}");
        }
        for text in ["", "10", "s", "1d", "1 s", "-", ".s", "1h30", "9223372037s", "1e3s", "99999999999999999999s"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9a-z.\u{b5}\u{3bc} ]{0,24}") {
            let _ = go_duration(&text);
        }
    }
}
