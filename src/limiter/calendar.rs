//! The calendar: where local days, weeks, months and years begin. [cl-1]
//!
//! Stores have no time zones, so a charge carries the boundaries around now. They change at most once a day, and are
//! cached until now is past them. Not here: which window a charge counts in. The store's own clock decides that.

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};
use parking_lot::Mutex;
use weir_engine::{Bounds, CalendarUnit, Limit, Micros};
use weir_store::{Clock, StoreError};

/// The most cached boundaries: one for each unit and zone in use. Further ones are computed each time.
const KEPT_MAX: usize = 256;
/// How many windows before and after today are examined. A clock change over midnight or a skipped day shifts a window
/// by one.
const WINDOWS_AROUND: i64 = 4;

/// Cached boundaries.
#[derive(Default)]
pub(super) struct Calendar {
    kept: Mutex<Vec<(CalendarUnit, Box<str>, Bounds)>>,
}

impl Calendar {
    /// The boundaries around `now` for a limit of a calendar; None for every other limit.
    pub(super) fn bounds(&self, limit: &Limit, now: Micros) -> Option<Bounds> {
        let unit = limit.calendar()?;
        // Nothing is awaited while the lock is held, and the work under it is short.
        let mut kept = self.kept.lock();
        let known = kept.iter().position(|(other, zone, _)| *other == unit && **zone == *limit.zone());
        if let Some(at) = known {
            let bounds = kept[at].2;
            if bounds[1] <= now && now < bounds[2] {
                return Some(bounds);
            }
            kept.swap_remove(at);
        }
        if kept.len() == KEPT_MAX {
            kept.clear();
        }
        let bounds = bounds(unit, limit.zone(), now);
        kept.push((unit, limit.zone().into(), bounds));
        Some(bounds)
    }
}

/// The windows of a call: at first those around weir's clock. If the store's clock is in none of them, the store has changed
/// nothing, and the call is sent once more with those around the store's clock. Once is enough, unless the store's clock jumps
/// in between. [cl-3]
#[derive(Clone, Copy, Default)]
pub(super) struct Windows {
    /// The store's clock, once it is known.
    around: Option<Micros>,
}

impl Windows {
    /// Whether the call has to be sent once more.
    pub(super) fn are_stale<T>(&mut self, answer: &Result<T, StoreError>) -> bool {
        match answer {
            Err(StoreError::StaleBounds { now }) if self.around.is_none() => {
                self.around = Some(*now);
                true
            }
            _ => false,
        }
    }

    /// The time in the windows, if `ours` is weir's clock.
    pub(super) fn now(self, ours: &dyn Clock) -> Micros {
        self.around.unwrap_or_else(|| ours.now())
    }
}

/// The starts of the previous, the current and the next window, and of the window after the next. [cl-1]
fn bounds(unit: CalendarUnit, zone: &str, now: Micros) -> Bounds {
    // The zone was checked when the policy was loaded. An empty name is UTC.
    let zone = TimeZoneDatabase::bundled().get(zone).unwrap_or(TimeZone::UTC);
    let micros = i64::try_from(now).unwrap_or(i64::MAX);
    let today = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX).to_zoned(zone.clone()).date();
    let mut starts: Vec<Micros> = (-WINDOWS_AROUND..=WINDOWS_AROUND)
        .filter_map(|windows| start_of(first_date(unit, today, windows)?, &zone))
        .collect();
    starts.sort_unstable();
    // A day that the zone has skipped has no window.
    starts.dedup();
    let current = starts.partition_point(|&start| start <= now).max(2) - 1;
    std::array::from_fn(|i| starts.get(current - 1 + i).copied().unwrap_or(Micros::MAX))
}

/// The first date of the window that is `windows` windows after the window of `today`.
fn first_date(unit: CalendarUnit, today: Date, windows: i64) -> Option<Date> {
    let (first, step) = match unit {
        CalendarUnit::Day => (today, Span::new().try_days(windows)),
        CalendarUnit::Week => {
            let since_monday = i64::from(today.weekday().to_monday_zero_offset());
            let monday = today.checked_sub(Span::new().try_days(since_monday).ok()?).ok()?;
            (monday, Span::new().try_weeks(windows))
        }
        CalendarUnit::Month => (today.first_of_month(), Span::new().try_months(windows)),
        CalendarUnit::Year => (today.first_of_year(), Span::new().try_years(windows)),
    };
    first.checked_add(step.ok()?).ok()
}

/// The first instant of this local date, or a later one if the zone skipped the date. [cl-1]
fn start_of(date: Date, zone: &TimeZone) -> Option<Micros> {
    // Midnight; the first of two midnights; or the end of the gap that contains it.
    let midnight = zone.to_ambiguous_zoned(date.at(0, 0, 0, 0)).compatible().ok()?;
    u64::try_from(midnight.timestamp().as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use weir_engine::{Algorithm, Anchor};

    use super::*;

    fn at(text: &str) -> Micros {
        let timestamp: Timestamp = text.parse().expect("a timestamp");
        u64::try_from(timestamp.as_microsecond()).expect("after the epoch")
    }

    /// The four boundaries around an instant, as timestamps.
    fn around(unit: CalendarUnit, zone: &str, now: &str) -> Vec<String> {
        let text = |us: Micros| Timestamp::from_microsecond(us as i64).expect("in range").to_string();
        bounds(unit, zone, at(now)).map(text).to_vec()
    }

    #[test]
    fn utc_days_weeks_months_and_years() {
        assert_eq!(
            around(CalendarUnit::Day, "", "2024-02-29T12:00:00Z"),
            ["2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z", "2024-03-02T00:00:00Z"]
        );
        // 2024-02-29 is a Thursday; weeks begin on Monday.
        assert_eq!(
            around(CalendarUnit::Week, "", "2024-02-29T12:00:00Z"),
            ["2024-02-19T00:00:00Z", "2024-02-26T00:00:00Z", "2024-03-04T00:00:00Z", "2024-03-11T00:00:00Z"]
        );
        assert_eq!(
            around(CalendarUnit::Month, "", "2024-02-29T23:59:59.999999Z"),
            ["2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "2024-04-01T00:00:00Z"]
        );
        assert_eq!(
            around(CalendarUnit::Month, "", "2024-03-01T00:00:00Z"),
            ["2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "2024-04-01T00:00:00Z", "2024-05-01T00:00:00Z"]
        );
        assert_eq!(
            around(CalendarUnit::Year, "", "2025-01-01T00:00:00Z"),
            ["2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"]
        );
    }

    #[test]
    fn a_month_from_its_31st_does_not_skip_february() {
        assert_eq!(
            around(CalendarUnit::Month, "", "2025-01-31T00:00:00Z")[1..3],
            ["2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z"]
        );
    }

    #[test]
    fn days_of_23_and_of_25_hours() {
        assert_eq!(
            around(CalendarUnit::Day, "Europe/Berlin", "2025-03-30T12:00:00Z")[1..3],
            ["2025-03-29T23:00:00Z", "2025-03-30T22:00:00Z"]
        );
        assert_eq!(
            around(CalendarUnit::Day, "Europe/Berlin", "2025-10-26T12:00:00Z")[1..3],
            ["2025-10-25T22:00:00Z", "2025-10-26T23:00:00Z"]
        );
        // Santiago goes back at midnight: the hour before midnight occurs twice, and belongs to the day before.
        let day = around(CalendarUnit::Day, "America/Santiago", "2025-04-05T12:00:00Z");
        assert_eq!(day[1..3], ["2025-04-05T03:00:00Z", "2025-04-06T04:00:00Z"]);
        // Santiago goes forward at midnight: the day begins at one o'clock.
        let day = around(CalendarUnit::Day, "America/Santiago", "2025-09-07T12:00:00Z");
        assert_eq!(day[1..3], ["2025-09-07T04:00:00Z", "2025-09-08T03:00:00Z"]);
    }

    #[test]
    fn a_day_that_a_zone_has_skipped_has_no_window() {
        // Samoa went from the 29th to the 31st of December 2011.
        assert_eq!(
            around(CalendarUnit::Day, "Pacific/Apia", "2011-12-30T09:00:00Z"),
            ["2011-12-28T10:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"]
        );
    }

    #[test]
    fn every_instant_of_two_years_lies_in_its_window() {
        for zone in ["", "Europe/Berlin", "America/Santiago", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kathmandu"] {
            for unit in [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year] {
                let mut now = at("2024-01-01T00:00:00Z");
                while now < at("2026-01-01T00:00:00Z") {
                    let bounds = bounds(unit, zone, now);
                    assert!(bounds[1] <= now && now < bounds[2], "{unit:?} {zone} {now}: {bounds:?}");
                    assert!(bounds.is_sorted_by(|a, b| a < b), "{unit:?} {zone} {now}: {bounds:?}");
                    now += 7 * 3_600_000_000 + 1;
                }
            }
        }
    }

    #[test]
    fn boundaries_are_kept_while_now_is_between_them() {
        let calendar = Calendar::default();
        let algorithm = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) };
        let limit = Limit::new(1, weir_engine::Unit::Day.window(), algorithm).expect("a limit").in_zone("Asia/Tokyo");
        let morning = calendar.bounds(&limit, at("2025-05-05T00:00:00Z"));
        assert_eq!(calendar.bounds(&limit, at("2025-05-05T14:59:59Z")), morning);
        assert_ne!(calendar.bounds(&limit, at("2025-05-05T15:00:00Z")), morning);
        assert_eq!(calendar.bounds(&Limit::per_unit(1, weir_engine::Unit::Day), 0), None);
    }
}
