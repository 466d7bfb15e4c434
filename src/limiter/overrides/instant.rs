//! Instants as operators write and read them.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::engine::Micros;

/// The bytes of a date such as 2026-12-01.
const DATE_BYTES: usize = 10;

/// Reads an instant such as `2026-12-01T18:00:00Z`, or a date, which is the first instant of that day in UTC.
///
/// # Errors
/// With the reason, when it is none.
pub fn parse_instant(text: &str) -> Result<Micros, String> {
    let instant = if text.len() == DATE_BYTES {
        text.parse().and_then(|date: Date| date.to_zoned(TimeZone::UTC)).map(|zoned| zoned.timestamp())
    } else {
        text.parse()
    };
    let micros = instant.ok().and_then(|instant: Timestamp| u64::try_from(instant.as_microsecond()).ok());
    micros.ok_or_else(|| "not an instant: write a date, 2026-12-01, or a time, 2026-12-01T18:00:00Z".to_owned())
}

/// Writes an instant.
#[must_use]
pub fn instant_text(at: Micros) -> String {
    let instant = i64::try_from(at).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    instant.unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_instants_are_read_and_written() {
        for (text, written) in [
            ("2026-12-01", "2026-12-01T00:00:00Z"),
            ("2026-12-01T18:00:00Z", "2026-12-01T18:00:00Z"),
            ("2026-12-01T18:00:00.25+01:00", "2026-12-01T17:00:00.25Z"),
        ] {
            assert_eq!(parse_instant(text).map(instant_text).as_deref(), Ok(written), "{text}");
        }
        for text in ["", "2026-13-01", "2026-12-01T18:00:00", "tomorrow", "1969-12-31", "1800000000", "2026-12-011"] {
            assert!(parse_instant(text).unwrap_err().contains("2026-12-01T18"), "{text}");
        }
    }
}
