//! The spans of the week in which a limit applies, by the local clocks of their time zones. [te-5]
//!
//! Not here: time zones and instants (weir-text).

use std::fmt;

/// The most spans of one limit.
pub const SPANS_MAX: usize = 16;

const DAYS: usize = 7;
const HOUR_MINUTES: u16 = 60;
const DAY_MINUTES: u16 = 24 * HOUR_MINUTES;
/// The minutes of a week.
pub const WEEK_MINUTES: u16 = 7 * DAY_MINUTES;

/// Days of the week, a bit for each from Monday on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Days(u8);

/// A part of days in a zone, such as `Sun 02:00-06:00 Europe/Berlin`. If it goes past midnight, it belongs to its first day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    days: Days,
    /// Minutes of the day, below 24 hours.
    from: u16,
    /// Minutes of the day, from 1 to 24 hours. Not later than `from`: on the next day.
    until: u16,
    /// The IANA name.
    zone: Box<str>,
}

/// The spans of one limit: at least one, and at most [`SPANS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct During(Box<[Span]>);

/// The spans of one zone: minutes of the local week from Monday on, as sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Week(Vec<(u16, u16)>);

impl Days {
    pub const NAMES: [&'static str; DAYS] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    pub const ALL: Self = Self((1 << DAYS) - 1);

    /// The days from one to another, by their positions in [`Days::NAMES`]. `Fri-Mon` goes past Sunday.
    #[must_use]
    pub fn range(first: usize, last: usize) -> Self {
        let count = (last + DAYS - first) % DAYS + 1;
        Self((first..first + count).fold(0, |days, day| days | 1 << (day % DAYS)))
    }

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn has(self, day: usize) -> bool {
        self.0 >> day & 1 == 1
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("daily");
        }
        let mut comma = "";
        let mut day = 0;
        while day < DAYS {
            let length = (day..DAYS).take_while(|day| self.has(*day)).count();
            match length {
                0 => {}
                1 => write!(f, "{comma}{}", Self::NAMES[day])?,
                2 => write!(f, "{comma}{},{}", Self::NAMES[day], Self::NAMES[day + 1])?,
                _ => write!(f, "{comma}{}-{}", Self::NAMES[day], Self::NAMES[day + length - 1])?,
            }
            if length > 0 {
                comma = ",";
            }
            day += length.max(1);
        }
        Ok(())
    }
}

impl Span {
    /// A span between two times of the day, in minutes. None if it would be empty, or if a time is no time of a day.
    #[must_use]
    pub fn new(days: Days, from: u16, until: u16, zone: &str) -> Option<Self> {
        if from >= DAY_MINUTES || until > DAY_MINUTES || from == until {
            return None;
        }
        // Midnight is the end of a day.
        let until = if until == 0 { DAY_MINUTES } else { until };
        Some(Self { days, from, until, zone: zone.into() })
    }

    /// Its ranges in the week. One that goes past Sunday is divided.
    fn ranges(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        let length = if self.until > self.from { self.until - self.from } else { self.until + DAY_MINUTES - self.from };
        let of_days = (0..7).filter(|day| self.days.has(usize::from(*day)));
        of_days.flat_map(move |day: u16| {
            let from = day * DAY_MINUTES + self.from;
            let until = from + length;
            let past_sunday = until.saturating_sub(WEEK_MINUTES);
            [(from, until - past_sunday), (0, past_sunday)]
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, until] = [self.from, self.until].map(|minute| (minute / HOUR_MINUTES, minute % HOUR_MINUTES));
        write!(f, "{} {:02}:{:02}-{:02}:{:02} {}", self.days, from.0, from.1, until.0, until.1, self.zone)
    }
}

impl During {
    /// None for no spans, or too many.
    #[must_use]
    pub fn new(spans: Vec<Span>) -> Option<Self> {
        (1..=SPANS_MAX).contains(&spans.len()).then(|| Self(spans.into()))
    }

    pub const fn spans(&self) -> &[Span] {
        &self.0
    }

    /// The names of its zones, each once.
    pub fn zones(&self) -> impl Iterator<Item = &str> {
        let is_first = |at: usize| self.0[..at].iter().all(|other| other.zone != self.0[at].zone);
        self.0.iter().enumerate().filter(move |(at, _)| is_first(*at)).map(|(_, span)| &*span.zone)
    }

    /// The spans of one zone.
    #[must_use]
    pub fn week(&self, zone: &str) -> Week {
        let mut ranges: Vec<(u16, u16)> =
            self.0.iter().filter(|span| *span.zone == *zone).flat_map(Span::ranges).filter(|(a, b)| a < b).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let is_joined = next.0 <= kept.1;
            if is_joined {
                kept.1 = kept.1.max(next.1);
            }
            is_joined
        });
        Week(ranges)
    }

    /// Whether each instant of the other's spans is in these too. Zones with different names are not compared.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.is_always() || other.zones().all(|zone| self.week(zone).covers(&other.week(zone)))
    }

    /// Whether the spans of one zone are its whole week.
    #[must_use]
    pub fn is_always(&self) -> bool {
        self.zones().any(|zone| self.week(zone).is_whole())
    }
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, span)| write!(f, "{}{span}", if at > 0 { "; " } else { "" }))
    }
}

impl Week {
    const MINUTE_US: i64 = 60_000_000;
    const WEEK_US: i64 = WEEK_MINUTES as i64 * Self::MINUTE_US;
    /// 1970-01-01 was a Thursday.
    const EPOCH_US: i64 = 3 * DAY_MINUTES as i64 * Self::MINUTE_US;

    /// Whether a local time is in the spans, and the microseconds until that changes, at least 1. `local_us` is since
    /// 1970-01-01T00:00 of the local clock. None if it never changes.
    #[must_use]
    pub fn at(&self, local_us: i64) -> (bool, Option<i64>) {
        let since_monday = (local_us + Self::EPOCH_US).rem_euclid(Self::WEEK_US);
        let until =
            |minute: u16, weeks: i64| i64::from(minute) * Self::MINUTE_US + weeks * Self::WEEK_US - since_monday;
        let is_past = |minute: u16| until(minute, 0) <= 0;
        let next = self.0.iter().find(|(_, end)| !is_past(*end));
        let wrapped = self.0.first().filter(|_| !self.is_whole());
        match next {
            Some((from, _)) if !is_past(*from) => (false, Some(until(*from, 0))),
            // A span that goes past Sunday ends on Monday.
            Some((_, WEEK_MINUTES)) => {
                let end = wrapped.map(|(from, end)| until(if *from == 0 { *end } else { 0 }, 1));
                (true, end)
            }
            Some((_, end)) => (true, Some(until(*end, 0))),
            None => (false, wrapped.map(|(from, _)| until(*from, 1))),
        }
    }

    /// The ranges, in minutes from Monday 00:00.
    #[must_use]
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    fn is_whole(&self) -> bool {
        self.0 == [(0, WEEK_MINUTES)]
    }

    fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|(from, until)| self.0.iter().any(|(a, b)| a <= from && until <= b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;
    const DAY: i64 = 1_440 * MINUTE;
    /// Monday, 1970-01-05.
    const MONDAY: i64 = 4 * DAY;

    fn span(days: Days, from: u16, until: u16) -> Span {
        Span::new(days, from, until, "UTC").unwrap()
    }

    fn week(spans: &[Span]) -> Week {
        During::new(spans.to_vec()).unwrap().week("UTC")
    }

    #[test]
    fn days_are_shown_as_they_can_be_written() {
        for (days, text) in [
            (Days::ALL, "daily"),
            (Days::range(0, 4), "Mon-Fri"),
            (Days::range(5, 6), "Sat,Sun"),
            (Days::range(4, 0), "Mon,Fri-Sun"),
            (Days::range(6, 6), "Sun"),
            (Days::range(0, 0).and(Days::range(2, 3)).and(Days::range(6, 6)), "Mon,Wed,Thu,Sun"),
            (Days::range(3, 2), "daily"),
        ] {
            assert_eq!(days.to_string(), text);
        }
        assert_eq!(span(Days::range(6, 6), 120, 365).to_string(), "Sun 02:00-06:05 UTC");
        assert_eq!(span(Days::ALL, 1_320, 0).to_string(), "daily 22:00-24:00 UTC");
    }

    #[test]
    fn a_span_is_not_empty_and_within_a_day() {
        for (from, until) in [(0, 0), (120, 120), (1_440, 60), (0, 1_441)] {
            assert_eq!(Span::new(Days::ALL, from, until, "UTC"), None, "{from}-{until}");
        }
        assert_eq!(During::new(Vec::new()), None);
        assert_eq!(During::new(vec![span(Days::ALL, 0, 60); SPANS_MAX + 1]), None);
    }

    #[test]
    fn spans_that_touch_or_overlap_are_one() {
        let joined = week(&[span(Days::ALL, 60, 120), span(Days::ALL, 120, 180), span(Days::range(0, 0), 90, 200)]);
        assert_eq!(joined.at(MONDAY + 60 * MINUTE), (true, Some(140 * MINUTE)));
        assert_eq!(joined.at(MONDAY + DAY + 179 * MINUTE + 1), (true, Some(MINUTE - 1)));
        assert_eq!(joined.at(MONDAY + DAY + 180 * MINUTE), (false, Some(1_320 * MINUTE)));
    }

    #[test]
    fn a_span_past_sunday_ends_on_monday() {
        let night = week(&[span(Days::range(6, 6), 1_320, 360)]);
        assert_eq!(night.at(MONDAY - 1), (true, Some(360 * MINUTE + 1)));
        assert_eq!(night.at(MONDAY), (true, Some(360 * MINUTE)));
        assert_eq!(night.at(MONDAY + 360 * MINUTE), (false, Some(6 * DAY + 960 * MINUTE)));
        assert_eq!(night.at(MONDAY - 120 * MINUTE - 1), (false, Some(1)));
        let sunday = week(&[span(Days::range(6, 6), 0, 1_440)]);
        assert_eq!(sunday.at(MONDAY - 1), (true, Some(1)));
        assert_eq!(sunday.at(MONDAY), (false, Some(6 * DAY)));
    }

    #[test]
    fn what_applies_always_never_changes() {
        let always = week(&[span(Days::ALL, 600, 540), span(Days::ALL, 0, 720)]);
        assert_eq!(always.at(MONDAY - 1), (true, None));
        assert_eq!(always.at(12_345), (true, None));
    }

    #[test]
    fn covering_is_compared_within_a_zone() {
        let during = |spans: &[Span]| During::new(spans.to_vec()).unwrap();
        let night = during(&[span(Days::ALL, 1_320, 360)]);
        let sunday = during(&[span(Days::range(6, 6), 120, 300)]);
        assert!(night.covers(&sunday) && !sunday.covers(&night) && night.covers(&night));
        let berlin = during(&[Span::new(Days::ALL, 120, 300, "Europe/Berlin").unwrap()]);
        assert!(!night.covers(&berlin) && !berlin.covers(&sunday));
        let always = during(&[span(Days::ALL, 0, 1_440)]);
        assert!(always.covers(&berlin) && always.is_always() && !night.is_always());
        let both = during(&[span(Days::ALL, 60, 120), Span::new(Days::ALL, 0, 60, "Europe/Berlin").unwrap()]);
        assert_eq!(both.zones().collect::<Vec<_>>(), ["UTC", "Europe/Berlin"]);
        assert_eq!(both.to_string(), "daily 01:00-02:00 UTC; daily 00:00-01:00 Europe/Berlin");
    }
}
