//! Spans of the week in policies: `Sun 02:00-06:00 Europe/Berlin`.

use weir_engine::{Days, Span};

use super::{nearest, quoted, zone};

const FORM: &str = "write such as Sun 02:00-06:00 Europe/Berlin, in quotes";
/// The zone of a span without one.
const UTC: &str = "UTC";
const DAILY: &str = "daily";
/// The letters of a day.
const DAY_BYTES: usize = 3;

/// Parses a span: days, a time, and a time zone. Without days it is for every day, without a zone in UTC.
///
/// # Errors
/// The reason, without the text.
pub fn parse_span(text: &str) -> Result<Span, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_time = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    let (days, time, name) = match words[..] {
        [time] if is_time(&time) => (None, time, None),
        [time, name] if is_time(&time) => (None, time, Some(name)),
        [days, time] if is_time(&time) => (Some(days), time, None),
        [days, time, name] if is_time(&time) => (Some(days), time, Some(name)),
        [_] => return Err(format!("no time, {FORM}")),
        _ => return Err(format!("not a span of the week, {FORM}")),
    };
    let days = days.map_or(Ok(Days::ALL), parse_days)?;
    let (from, until) = times(time)?;
    let zone = match name {
        None => UTC.to_owned(),
        Some(name) => match zone::zone(name).as_ref().and_then(|zone| zone.iana_name()) {
            Some(known) => known.to_owned(),
            None => return Err(format!("no time zone {}{}", quoted(name), zone::hint(name))),
        },
    };
    Span::new(days, from, until, &zone)
        .ok_or_else(|| "begins when it ends: for whole days write 00:00-24:00".to_owned())
}

/// Days and ranges of days between commas, or `daily`.
fn parse_days(text: &str) -> Result<Days, String> {
    if text.eq_ignore_ascii_case(DAILY) {
        return Ok(Days::ALL);
    }
    text.split(',').try_fold(Days::default(), |days, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Ok(days.and(Days::range(day(first)?, day(last)?)))
    })
}

/// The position of a day in [`Days::NAMES`].
fn day(text: &str) -> Result<usize, String> {
    let of = |text: &str| Days::NAMES.iter().position(|name| name.eq_ignore_ascii_case(text));
    of(text).ok_or_else(|| {
        // Sunday is Sun, and Tues is Tue.
        let meant = text.get(..DAY_BYTES).filter(|_| text.bytes().all(|byte| byte.is_ascii_alphabetic())).and_then(of);
        let near = meant.map(|at| Days::NAMES[at]).or_else(|| nearest(text, Days::NAMES.into_iter().chain([DAILY])));
        match near {
            Some(near) => format!("no day {}, did you mean {near:?}?", quoted(text)),
            None => format!("no day {}: {}, {DAILY}", quoted(text), Days::NAMES.join(", ")),
        }
    })
}

/// Two times of the day, in minutes.
fn times(text: &str) -> Result<(u16, u16), String> {
    let (from, until) = text
        .split_once('-')
        .ok_or_else(|| format!("no time {}: write its start and its end, such as 02:00-06:00", quoted(text)))?;
    match (minute(from)?, minute(until)?) {
        (MIDNIGHT, _) => Err("24:00 is only an end: write 00:00".to_owned()),
        times => Ok(times),
    }
}

/// The end of a day, in minutes.
const MIDNIGHT: u16 = 24 * 60;

fn minute(text: &str) -> Result<u16, String> {
    let number = |digits: &str, bytes: usize| {
        let is_number = digits.len() == bytes && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|_| is_number)
    };
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((number(hour, 2)?, number(minute, 2)?)));
    match parts {
        Some((hour @ 0..24, minute @ 0..60)) => Ok(hour * 60 + minute),
        Some((24, 0)) => Ok(MIDNIGHT),
        _ => {
            let short = text.split_once(':').and_then(|(hour, minute)| Some((number(hour, 1)?, number(minute, 2)?)));
            let hint = short.map_or_else(
                || "two digits each, from 00:00 to 24:00, such as 02:30".to_owned(),
                |(hour, minute)| format!("write {hour:02}:{minute:02}"),
            );
            Err(format!("no time {}: {hint}", quoted(text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_span;

    #[test]
    fn a_span_is_shown_as_it_can_be_written() {
        for (text, shown) in [
            ("Sun 02:00-06:00 Europe/Berlin", "Sun 02:00-06:00 Europe/Berlin"),
            ("sun 02:00-06:00 europe/berlin", "Sun 02:00-06:00 Europe/Berlin"),
            ("Mon-Fri 09:00-17:30", "Mon-Fri 09:00-17:30 UTC"),
            ("Sat,Sun 00:00-24:00 utc", "Sat,Sun 00:00-24:00 UTC"),
            ("Mon-Wed,Fri 22:00-06:00 Australia/Lord_Howe", "Mon-Wed,Fri 22:00-06:00 Australia/Lord_Howe"),
            ("Fri-Mon 08:00-09:00", "Mon,Fri-Sun 08:00-09:00 UTC"),
            ("22:00-00:00", "daily 22:00-24:00 UTC"),
            ("daily  23:59-00:01  Asia/Tokyo", "daily 23:59-00:01 Asia/Tokyo"),
            ("Thu-Wed 10:00-11:00", "daily 10:00-11:00 UTC"),
        ] {
            let span = parse_span(text).unwrap_or_else(|reason| panic!("{text}: {reason}"));
            assert_eq!(span.to_string(), shown, "{text}");
            assert_eq!(parse_span(shown), Ok(span), "{shown}");
        }
    }

    #[test]
    fn a_wrong_span_has_a_reason_and_mostly_a_guess() {
        for (text, reason) in [
            ("", "not a span of the week, write such as Sun 02:00-06:00 Europe/Berlin, in quotes"),
            ("Sat", "no time, write such as Sun 02:00-06:00 Europe/Berlin, in quotes"),
            ("Mon - Fri 09:00-17:00 UTC", "not a span of the week, write such as"),
            ("Sunday 02:00-06:00", "no day \"Sunday\", did you mean \"Sun\"?"),
            ("Tues-Thurs 02:00-06:00", "no day \"Tues\", did you mean \"Tue\"?"),
            ("dayly 02:00-06:00", "no day \"dayly\", did you mean \"daily\"?"),
            ("workdays 02:00-06:00", "no day \"workdays\": Mon, Tue, Wed, Thu, Fri, Sat, Sun, daily"),
            ("Sat, 02:00-06:00", "no day \"\": Mon"),
            ("Mon-Tue-Wed 02:00-06:00", "no day \"Tue-Wed\": Mon"),
            ("Sun 2:00-06:00", "no time \"2:00\": write 02:00"),
            ("Sun 02:00-25:00", "no time \"25:00\": two digits each"),
            ("Sun 02:00-24:01", "no time \"24:01\": two digits each"),
            ("Sun 02:60-03:00", "no time \"02:60\": two digits each"),
            ("Sun 02:00:00-03:00", "no time \"02:00:00\": two digits each"),
            ("Sun 0200-0300", "no time \"0200\": two digits each"),
            ("Sun 2am-3am", "no time \"2am\": two digits each"),
            ("Sun +2:00-03:00", "not a span of the week"),
            ("Sun 02:00", "no time \"02:00\": write its start and its end, such as 02:00-06:00"),
            ("Sun 24:00-06:00", "24:00 is only an end: write 00:00"),
            ("Sun 02:00-02:00", "begins when it ends: for whole days write 00:00-24:00"),
            ("Sun 00:00-00:00", "begins when it ends"),
            ("Sun 02:00-06:00 Berlin", "no time zone \"Berlin\", did you mean \"Europe/Berlin\"?"),
            ("Sun 02:00-06:00 Middle/Earth", "no time zone \"Middle/Earth\": write an IANA name"),
            ("Sun 02:00-06:00 +02:00", "no time zone \"+02:00\": write an IANA name"),
            ("Sun 02:00-06:00 Europe/Berlin CET", "not a span of the week"),
            ("Europe/Berlin 02:00-06:00", "no day \"Europe/Berlin\": Mon"),
        ] {
            let refused = parse_span(text).expect_err(text);
            assert!(refused.starts_with(reason), "{text}: {refused}");
        }
    }
}
