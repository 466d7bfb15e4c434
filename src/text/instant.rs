//! Instants in policies, tests, traffic and overrides.

use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::temporal::{Pieces, PiecesOffset, TimeZoneAnnotationKind};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use weir_engine::Micros;

use super::zone;

/// The last supported instant: 2100-01-01T00:00:00Z.
pub const INSTANT_US_MAX: Micros = 4_102_444_800 * 1_000_000;
const YEAR_MAX: i16 = 2100;
const BOUNDS: &str = "must be after 1970-01-01T00:00:00Z, and not after 2100-01-01T00:00:00Z";
/// The length of a date, `2026-12-01`.
const DATE_BYTES: usize = 10;

/// Parses an instant: `2026-12-01T00:00:00Z`, with an offset from UTC, with a time zone, or a date, which begins in
/// UTC.
///
/// Refuses a local time that does not exist or occurs twice because daylight saving begins or ends.
///
/// # Errors
/// The reason, without the text.
pub fn parse_instant(text: &str) -> Result<Micros, String> {
    // A timestamp ends before the last year that can be written.
    let is_late = || Pieces::parse(text).is_ok_and(|pieces| pieces.date().year() > YEAR_MAX);
    let none = || {
        let form = "not an instant: write 2040-03-25T00:30:00Z, 2040-03-25T00:30[Europe/Berlin] or 2040-03-25";
        if is_late() { BOUNDS } else { form }.to_owned()
    };
    let date = || text.parse::<Date>().and_then(|date| date.to_zoned(TimeZone::UTC)).map(|zoned| zoned.timestamp());
    let timestamp = if text.contains('[') {
        zoned(text).unwrap_or_else(|| Err(none()))?
    } else if text.len() == DATE_BYTES {
        date().map_err(|_| none())?
    } else {
        text.parse().map_err(|_| none())?
    };
    match u64::try_from(timestamp.as_microsecond()) {
        Ok(micros) if 0 < micros && micros <= INSTANT_US_MAX => Ok(micros),
        _ => Err(BOUNDS.to_owned()),
    }
}

pub fn instant_text(instant: Micros) -> String {
    let micros = i64::try_from(instant).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).map_or_else(|_| format!("{instant} us"), |instant| instant.to_string())
}

/// An instant with a time zone. None if the form is wrong.
fn zoned(text: &str) -> Option<Result<Timestamp, String>> {
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time().unwrap_or(Time::midnight()));
    let (name, zone) = match pieces.time_zone_annotation()?.kind() {
        TimeZoneAnnotationKind::Named(name) => (name.as_str(), zone::zone(name.as_str())),
        TimeZoneAnnotationKind::Offset(offset) => ("the brackets", Some(TimeZone::fixed(*offset))),
        _ => return None,
    };
    let Some(zone) = zone else {
        return Some(Err(format!("no time zone {name:?}{}", zone::hint(name))));
    };
    let offset = match pieces.offset() {
        // `Z` means UTC, and the zone has no effect.
        Some(PiecesOffset::Zulu) => return Offset::UTC.to_timestamp(local).ok().map(Ok),
        Some(numeric) => Some(numeric.to_numeric_offset()),
        None => None,
    };
    let possible = match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Gap { after, .. } => return Some(Err(no_such_time(local, after, name, &zone)?)),
        AmbiguousOffset::Unambiguous { offset } => [offset, offset],
        AmbiguousOffset::Fold { before, after } => [before, after],
    };
    let [first, last] = possible;
    let offset = match offset {
        Some(offset) if possible.contains(&offset) => offset,
        Some(offset) => return Some(Err(format!("the offset of {name} is {first} then, not {offset}"))),
        None if first == last => first,
        None => {
            let twice = format!("{local} occurs twice in {name}, because clocks go back: write");
            return Some(Err(format!("{twice} {local}{first}[{name}] or {local}{last}[{name}]")));
        }
    };
    offset.to_timestamp(local).ok().map(Ok)
}

/// The message about a local time that does not exist. `after` is the offset after the change.
fn no_such_time(local: DateTime, after: Offset, name: &str, zone: &TimeZone) -> Option<String> {
    // With the later offset, a time in the gap is an instant before the change.
    let change = zone.following(after.to_timestamp(local).ok()?).next()?;
    let next = change.offset().to_datetime(change.timestamp());
    let last = zone.to_datetime(change.timestamp().checked_sub(SignedDuration::from_secs(1)).ok()?);
    Some(format!(
        "{local} does not exist in {name}, because clocks go forward: next to it are {last}[{name}] and {next}[{name}]"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_in_every_form() {
        let december = 1_796_083_200_000_000;
        for text in [
            "2026-12-01",
            "2026-12-01T00:00:00Z",
            "2026-12-01T01:00:00+01:00",
            "2026-12-01T01:00[Europe/Berlin]",
            "2026-12-01T01:00+01:00[Europe/Berlin]",
            "2026-12-01T01:00[+01:00]",
            "2026-12-01T00:00Z[Europe/Berlin]",
            "2026-12-01[UTC]",
        ] {
            assert_eq!(parse_instant(text), Ok(december), "{text}");
        }
        assert_eq!(parse_instant("2026-12-01T00:00:00.000001Z"), Ok(december + 1));
        assert_eq!(instant_text(december), "2026-12-01T00:00:00Z");
        // Without an offset the text is not an instant.
        for text in
            ["", "tomorrow", "2026-12-01T00:00:00", "2026-13-01", "2026-12-1", "1200", "2026-12-01[", "2026-12-01[]"]
        {
            assert!(parse_instant(text).unwrap_err().starts_with("not an instant: write "), "{text}");
        }
        assert_eq!(parse_instant("2100-01-01"), Ok(INSTANT_US_MAX));
        let bounds = "must be after 1970-01-01T00:00:00Z, and not after 2100-01-01T00:00:00Z";
        for text in [
            "9999-12-31",
            "9999-12-31T23:59:59Z",
            "9999-12-31[Europe/Berlin]",
            "1969-12-31",
            "1970-01-01",
            "2100-01-01T00:00:00.000001Z",
            "2101-01-01[Europe/Berlin]",
        ] {
            assert_eq!(parse_instant(text), Err(bounds.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_local_time_that_no_clock_shows_is_refused_with_the_times_next_to_it() {
        let refused = |text: &str| parse_instant(text).unwrap_err();
        assert_eq!(
            refused("2040-03-25T02:30[Europe/Berlin]"),
            "2040-03-25T02:30:00 does not exist in Europe/Berlin, because clocks go forward: \
             next to it are 2040-03-25T01:59:59[Europe/Berlin] and 2040-03-25T03:00:00[Europe/Berlin]"
        );
        // An offset does not help. A gap of half an hour counts too.
        assert!(refused("2040-03-25T02:30+01:00[Europe/Berlin]").contains("does not exist"));
        let howe = refused("2039-10-02T02:10[Australia/Lord_Howe]");
        assert!(howe.contains("T01:59:59[Australia/Lord_Howe] and 2039-10-02T02:30:00["), "{howe}");
        let before = parse_instant("2040-03-25T01:59:59[Europe/Berlin]");
        assert_eq!(before.map(|instant| instant + 1_000_000), parse_instant("2040-03-25T03:00:00[Europe/Berlin]"));
    }

    #[test]
    fn a_local_time_that_comes_twice_needs_its_offset() {
        assert_eq!(
            parse_instant("2040-10-28T02:30[Europe/Berlin]").unwrap_err(),
            "2040-10-28T02:30:00 occurs twice in Europe/Berlin, because clocks go back: \
             write 2040-10-28T02:30:00+02[Europe/Berlin] or 2040-10-28T02:30:00+01[Europe/Berlin]"
        );
        let first = parse_instant("2040-10-28T02:30:00+02[Europe/Berlin]");
        assert_eq!(first.map(instant_text).as_deref(), Ok("2040-10-28T00:30:00Z"));
        let second = parse_instant("2040-10-28T02:30:00+01[Europe/Berlin]");
        assert_eq!(second.map(instant_text).as_deref(), Ok("2040-10-28T01:30:00Z"));
    }

    #[test]
    fn a_zone_that_does_not_fit_is_named() {
        for (text, reason) in [
            ("2040-01-01T00:00[Europe/Berln]", "no time zone \"Europe/Berln\", did you mean \"Europe/Berlin\"?"),
            ("2040-01-01T00:00[berlin]", "no time zone \"berlin\", did you mean \"Europe/Berlin\"?"),
            ("2040-01-01T00:00[Middle/Earth]", "no time zone \"Middle/Earth\": write an IANA name"),
            ("2040-01-01T00:00+02:00[Europe/Berlin]", "the offset of Europe/Berlin is +01 then, not +02"),
        ] {
            let refused = parse_instant(text).unwrap_err();
            assert!(refused.starts_with(reason), "{text}: {refused}");
        }
    }
}
