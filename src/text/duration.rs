//! Lengths of time in policies, settings and files of tests.

use std::time::Duration;

/// The most characters of a refused text in an error.
const SHOWN_CHARS_MAX: usize = 100;

/// Reads a length of time: whole numbers with the units d, h, m, s, ms, us, from the largest to the
/// smallest, each at most once, without blanks. A number without a unit is refused.
///
/// ```
/// use std::time::Duration;
/// use weir_text::duration;
///
/// assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
/// assert!(duration("10").is_err());
/// ```
///
/// # Errors
///
/// The reason and a correction.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("empty: write a number with its unit, such as 10ms".to_owned());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("has no unit: write {0}ms or {0}s", text.get(..SHOWN_CHARS_MAX).unwrap_or(text)));
    }
    if text.contains(['.', ',']) {
        let (whole, written) =
            in_whole_units(text).map_or_else(|| ("1s500ms".to_owned(), "1.5s"), |whole| (whole, text));
        return Err(format!("fractions are not supported: write {whole} in place of {written}"));
    }
    let mut micros: u64 = 0;
    let mut units_left = UNITS;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(|byte| !byte.is_ascii_digit()).count();
        let (unit, next) = tail.split_at(letters);
        if number.is_empty() {
            return Err("not a duration: write a number with its unit, such as 10ms".to_owned());
        }
        if unit.is_empty() {
            return Err(format!("the last number has no unit: {}", unit_names()));
        }
        let Some(position) = units_left.iter().position(|(name, _)| *name == unit) else {
            if UNITS.iter().any(|(name, _)| *name == unit) {
                return Err("units go from the largest to the smallest, each once: 1m30s".to_owned());
            }
            return Err(format!("{unit:?} is not a unit: {}", unit_names()));
        };
        micros = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(units_left[position].1))
            .and_then(|part| part.checked_add(micros))
            .ok_or_else(|| "is too long to count in microseconds".to_owned())?;
        units_left = &units_left[position + 1..];
        rest = next;
    }
    Ok(Duration::from_micros(micros))
}

/// A length with a fraction, such as `1.5m`, in whole units. None if it has no whole number of microseconds.
fn in_whole_units(text: &str) -> Option<String> {
    let (whole, rest) = text.split_once(['.', ','])?;
    let (fraction, unit) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
    let &(_, micros) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = fraction.parse::<u64>().ok()?.checked_mul(micros)?;
    let length = whole.checked_mul(micros)?.checked_add(part / scale)?;
    (part % scale == 0 && length > 0).then(|| spell(Duration::from_micros(length)))
}

/// Formats a length of time so that [`duration`] can parse it, rounded down to microseconds.
pub fn spell(length: Duration) -> String {
    let mut text = String::new();
    let mut rest = length.as_micros();
    for (name, micros) in UNITS {
        let micros = u128::from(*micros);
        if rest >= micros {
            text.push_str(&format!("{}{name}", rest / micros));
            rest %= micros;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// Largest first, in microseconds. Months and years have no fixed length.
const UNITS: &[(&str, u64)] =
    &[("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// The units of a duration, the largest first.
pub fn duration_units() -> impl Iterator<Item = &'static str> {
    UNITS.iter().map(|(name, _)| *name)
}

fn unit_names() -> String {
    format!("use {}", duration_units().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_as_they_are_written() {
        let cases = [
            ("0s", 0),
            ("1us", 1),
            ("10ms", 10_000),
            ("2s", 2_000_000),
            ("1m30s", 90_000_000),
            ("1h", 3_600_000_000),
            ("1d1us", 86_400_000_001),
            ("90s", 90_000_000),
        ];
        for (text, micros) in cases {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn durations_that_are_refused_and_why() {
        let cases = [
            ("", "empty"),
            ("10", "has no unit: write 10ms or 10s"),
            ("1.5s", "write 1s500ms in place of 1.5s"),
            ("1.5m", "write 1m30s in place of 1.5m"),
            (".5s", "write 500ms in place of .5s"),
            ("0,25h", "write 15m in place of 0,25h"),
            ("0.3us", "write 1s500ms in place of 1.5s"),
            ("1.5.5s", "write 1s500ms in place of 1.5s"),
            ("1.99999999999999999999s", "write 1s500ms in place of 1.5s"),
            ("-1s", "not a duration"),
            ("+1s", "not a duration"),
            (" 1s", "not a duration"),
            ("1 s", "\" s\" is not a unit"),
            ("1s ", "\"s \" is not a unit"),
            ("s", "not a duration"),
            ("1m30", "the last number has no unit"),
            ("30s1m", "largest to the smallest"),
            ("1s1s", "largest to the smallest"),
            ("10sec", "\"sec\" is not a unit: use d, h, m, s, ms, us"),
            ("1S", "\"S\" is not a unit"),
            ("1\u{b5}s", "is not a unit"),
            ("99999999999999999999s", "too long"),
            ("300000000d", "too long"),
        ];
        for (text, why) in cases {
            let error = duration(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_spell_writes_duration_reads(micros in any::<u64>()) {
            let length = Duration::from_micros(micros);
            prop_assert_eq!(duration(&spell(length)), Ok(length));
        }

        #[test]
        fn no_text_makes_duration_panic(text in "\\PC*") {
            let _ = duration(&text);
        }
    }
}
