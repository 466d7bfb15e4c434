//! The short form of a limit: `10/s`, `240/h`, `5/90s`.

use weir_engine::overrides::Numbers;
use weir_engine::{COUNT_MAX, Count, Unit, Window};
use weir_text::{duration, nearest, quoted};

use super::instead;
use super::scalar::whole_number;

/// The longest rate, in bytes.
const RATE_BYTES_MAX: usize = 64;
/// Words for units that only the short form accepts, besides the units' names.
pub const SHORT_UNITS: [(&str, Unit); 8] = [
    ("s", Unit::Second),
    ("sec", Unit::Second),
    ("m", Unit::Minute),
    ("min", Unit::Minute),
    ("h", Unit::Hour),
    ("d", Unit::Day),
    ("w", Unit::Week),
    ("y", Unit::Year),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) window: Window,
    /// The unit, if it was written as one. `1d` is as long as `day`, but calendar windows need a unit.
    pub(super) unit: Option<Unit>,
}

impl From<Unit> for Period {
    fn from(unit: Unit) -> Self {
        Self { window: unit.window(), unit: Some(unit) }
    }
}

impl Period {
    /// The period of a length such as `1m30s`.
    ///
    /// # Errors
    /// With the reason.
    pub(super) fn of_length(text: &str) -> Result<Self, String> {
        let length = duration(text)?;
        let us = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let window = Window::from_micros(us).map_err(|error| error.to_string())?;
        Ok(Self { window, unit: None })
    }
}

/// Reads hits and a period, such as `10/s`.
///
/// # Errors
/// With the reason, which quotes the text.
pub(super) fn parse_rate(text: &str) -> Result<(Count, Window), String> {
    parse(text).map(|(requests, period)| (requests, period.window))
}

/// Reads `1000/h`, or `NAME=1000/h` for a limit with a name.
///
/// # Errors
/// With the reason, which quotes the text.
pub fn parse_named_rate(text: &str) -> Result<Numbers, String> {
    // A rate contains no `=`, so the last `=` ends the name.
    let (name, rate) = match text.rsplit_once('=') {
        Some(("", _)) => return Err(format!("{} has no name before the \"=\"", quoted(text))),
        Some((name, rate)) => (Some(name.into()), rate),
        None => (None, text),
    };
    let (requests, window) = parse_rate(rate.trim())?;
    Ok(Numbers { name, requests, window, burst: None })
}

/// [`parse_rate`] with the period as it was written.
///
/// # Errors
/// With the reason, which quotes the text.
pub(super) fn parse(text: &str) -> Result<(Count, Period), String> {
    read(text).map_err(|reason| format!("rate {}: {reason}", quoted(text)))
}

/// [`parse`] with a message that does not quote the text.
///
/// # Errors
/// With the reason.
pub(super) fn read(text: &str) -> Result<(Count, Period), String> {
    if text == "unlimited" {
        return Err("write unlimited: true below rate_limit".to_owned());
    }
    if text.contains('/') && text.contains(char::is_whitespace) {
        // Without its blanks it may still be no rate.
        let compact: String = text.split_whitespace().collect();
        read(&compact)?;
        return Err("write it without spaces, such as 10/s".to_owned());
    }
    let Some((number, period)) = text.split_once('/').filter(|_| text.len() <= RATE_BYTES_MAX) else {
        return Err(match whole_number::<Count>(text, COUNT_MAX) {
            Ok(number) => format!("no rate: write {number}/s or {number}/min"),
            Err(_) => "no rate: write how many per how long, such as 10/s".to_owned(),
        });
    };
    let requests = whole_number(number, COUNT_MAX).map_err(|reason| {
        let is_fraction = number.contains('.') && number.parse::<f64>().is_ok();
        let hint = match in_full(number) {
            Some(in_full) => format!(": write {in_full}/{period}"),
            None if is_money(number) => {
                ": write whole hits; with amount: {in: usd, scale: 1000000} 5000 usd are 5_000_000_000".to_owned()
            }
            None if is_fraction => ": write less often, such as 30/min".to_owned(),
            None => reason.to_owned(),
        };
        format!("{number:?} is not a whole number from 0 to {COUNT_MAX}{hint}")
    })?;
    let period = if period.starts_with(|c: char| c.is_ascii_digit()) {
        Period::of_length(period)?
    } else {
        unit(period).ok_or_else(|| no_unit(period))?.into()
    };
    Ok((requests, period))
}

/// A rate of at most 2^32 - 1, as one that requests have.
///
/// # Errors
/// With the number.
pub(super) fn small((requests, period): (Count, Period)) -> Result<(u32, Period), String> {
    let small = u32::try_from(requests).map_err(|_| format!("{requests} is more than {}", u32::MAX))?;
    Ok((small, period))
}

/// Reads the hits and the window of a limit of a request, such as `10/minute`.
///
/// # Errors
/// With the reason, which quotes the text.
pub fn parse_rate_of_request(text: &str) -> Result<(u32, Window), String> {
    let (requests, period) = parse(text).and_then(small)?;
    match period.window.in_units(&Unit::OF_REQUESTS) {
        None => Err("the window of a limit of the request is whole seconds".to_owned()),
        Some(_) => Ok((requests, period.window)),
    }
}

/// The unit of a word: a short word in lower case, or a unit's name in any case.
fn unit(word: &str) -> Option<Unit> {
    let short = SHORT_UNITS.iter().find(|(short, _)| *short == word);
    short.map_or_else(|| Unit::from_name(word), |(_, unit)| Some(*unit))
}

/// Whether a text such as `$5000`, `50usd` or `5_000.00` is probably an amount of money.
fn is_money(text: &str) -> bool {
    let is_currency = |letter: char| !letter.is_ascii() || letter == '$' || letter.is_ascii_alphabetic();
    let number = text.trim_matches(is_currency);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit()) && number.ends_with(|c: char| c.is_ascii_digit());
    let has_cents = number.rsplit_once('.').is_some_and(|(whole, cents)| whole != "0" && cents.len() == 2);
    is_number && (has_cents || number.len() < text.len())
}

/// The number that a text such as `10k`, `2M`, `1e9` or `5,000` means.
fn in_full(text: &str) -> Option<Count> {
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let groups: Vec<&str> = digits.split(',').collect();
    let is_grouped = groups.len() > 1 && groups[1..].iter().all(|group| group.len() == 3);
    if is_grouped || exponent != "0" {
        let factor = exponent.parse().ok().and_then(|exponent| Count::checked_pow(10, exponent))?;
        let number: Count =
            whole_number(&groups.concat(), COUNT_MAX).ok().filter(|_| is_grouped || groups.len() == 1)?;
        return number.checked_mul(factor).filter(|number| *number <= COUNT_MAX);
    }
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => (text.strip_suffix('M')?, 1_000_000),
    };
    whole_number::<Count>(digits, COUNT_MAX / factor).ok().map(|number| number * factor)
}

fn no_unit(word: &str) -> String {
    let names = Unit::ALL.map(Unit::name);
    if word.eq_ignore_ascii_case("mo") {
        return format!("no unit {word:?}, did you mean \"month\"?");
    }
    // All short words are similar to each other.
    match nearest(word, names) {
        Some(_) => format!("no unit {word:?}{}", instead(word, &names)),
        None => format!("no unit {word:?}: it is one of s, m, h, d, w, month, y, or a length such as 90s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_with_its_name() {
        let rate = |name: Option<&str>, requests, seconds: u64| {
            let window = Window::from_micros(seconds * 1_000_000).unwrap();
            Ok(Numbers { name: name.map(Into::into), requests, window, burst: None })
        };
        assert_eq!(parse_named_rate("1000/h"), rate(None, 1_000, 3_600));
        assert_eq!(parse_named_rate("a=b=5/90s"), rate(Some("a=b"), 5, 90));
        for (text, reason) in [("=1/s", "no name"), ("x=", "no rate"), ("10", "write 10/s"), ("1/fortnight", "no unit")]
        {
            let refused = parse_named_rate(text).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }
}
