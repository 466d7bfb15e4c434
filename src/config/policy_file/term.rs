//! When a limit applies: `from` and `until`.
//!
//! Not here: what a decision makes of it (the engine).

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::fields::{Fields, Read};
use super::state::{FileReader, Reported};
use super::warning::Code;
use super::{NAME_BYTES_MAX, shown};
use crate::engine::{Micros, Term};

/// The last instant that policies and tests can name: 2100-01-01T00:00:00Z.
pub const INSTANT_US_MAX: Micros = 4_102_444_800 * 1_000_000;
/// The length of a date, `2026-12-01`.
const DATE_BYTES: usize = 10;

impl FileReader<'_> {
    /// The term of a limit; none where it always applies.
    pub(super) fn term(&mut self, fields: &Fields) -> Read<Term> {
        let (from, until) = (self.instant(fields, "from"), self.instant(fields, "until"));
        let (from, until) = (from?, until?);
        if from.is_none() && until.is_none() {
            return Ok(None);
        }
        if let Some(until) = until.filter(|until| *until <= now()) {
            let message = format!("the limit has ended at {}: it applies to no request", instant_text(until));
            let at = fields.key_at("until").unwrap_or(fields.at);
            self.warn(at, Code::Ended, message);
        }
        match Term::new(from.unwrap_or(0), until.unwrap_or(Term::NO_END)) {
            Some(term) => Ok(Some(term)),
            None => {
                let from = instant_text(from.unwrap_or(0));
                Err(self.report_value(fields, "until", format!("until must be later than from, which is {from}")))
            }
        }
    }

    /// An instant under a key.
    pub(super) fn instant(&mut self, fields: &Fields, key: &str) -> Read<Micros> {
        let Some(text) = self.text(fields, key, NAME_BYTES_MAX)? else { return Ok(None) };
        match instant(&text) {
            Ok(instant) => Ok(Some(instant)),
            Err(reason) => {
                Err::<_, Reported>(self.report_value(fields, key, format!("{key} {}: {reason}", shown(&text))))
            }
        }
    }
}

/// An instant: `2026-12-01T00:00:00Z`, with an offset from UTC, with a time zone, or a date, which begins in UTC.
pub(super) fn instant(text: &str) -> Result<Micros, String> {
    let date = || (text.len() == DATE_BYTES).then(|| text.parse::<Date>().ok()).flatten();
    let begin = || date().and_then(|date| date.to_zoned(TimeZone::UTC).ok());
    let zoned = text.parse::<Zoned>().ok().or_else(begin).map(|zoned| zoned.timestamp());
    let Some(timestamp) = zoned.or_else(|| text.parse::<Timestamp>().ok()) else {
        return Err("no instant: write 2040-03-25T00:30:00Z, 2040-03-25T00:30[Europe/Berlin] or 2040-03-25".to_owned());
    };
    match u64::try_from(timestamp.as_microsecond()) {
        Ok(micros) if 0 < micros && micros <= INSTANT_US_MAX => Ok(micros),
        _ => Err("must be from 1970 to 2100".to_owned()),
    }
}

/// An instant as text, in UTC.
pub fn instant_text(instant: Micros) -> String {
    let micros = i64::try_from(instant).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).map_or_else(|_| format!("{instant} us"), |instant| instant.to_string())
}

fn now() -> Micros {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_in_every_form() {
        let december = 1_796_083_200_000_000;
        for text in
            ["2026-12-01", "2026-12-01T00:00:00Z", "2026-12-01T01:00:00+01:00", "2026-12-01T01:00[Europe/Berlin]"]
        {
            assert_eq!(instant(text), Ok(december), "{text}");
        }
        assert_eq!(instant("2026-12-01T00:00:00.000001Z"), Ok(december + 1));
        assert_eq!(instant_text(december), "2026-12-01T00:00:00Z");
        // Without an offset it is no instant.
        for text in
            ["", "tomorrow", "2026-12-01T00:00:00", "2026-13-01", "2026-12-1", "1200", "1969-12-31", "2101-01-01"]
        {
            assert!(instant(text).is_err(), "{text}");
        }
    }
}
