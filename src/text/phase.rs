//! When a term that recurs applies: the instants of its spans, by the clocks of its time zones. [te-5]
//!
//! A zone is a list of changes of its offset. Between two of them its clock runs evenly, so the spans of the week have the next
//! end or begin. At a change the spans are compared anew. Not here: which requests meet a limit (weir-limiter).

use jiff::Timestamp;
use jiff::tz::TimeZone;
use weir_engine::during::Week;
use weir_engine::{During, Micros, Phase, Term, Unit};

use super::zone;

/// How far the next change is searched. Spans that leave no gap for as long have no end. [te-8]
const SEARCHED_US: Micros = 366 * Unit::Day.window().us();

/// The most spans that follow each other without a gap, in one search. Spans of one zone that touch are one already. [te-8]
const SPANS_MAX: usize = 512;

/// The phase of spans at an instant: of spans that touch or overlap, also in several zones, as one. [te-6]
pub fn phase(during: &During, now: Micros) -> Phase {
    let zones: Vec<Local> = during.zones().map(|name| Local::of(during, name)).collect();
    let last = now + SEARCHED_US;
    let applies = |at: Micros| zones.iter().any(|zone| zone.applies(at));
    if !applies(now) {
        let begin = zones.iter().filter_map(|zone| zone.changes_after(now, last)).min();
        return Phase { applies: false, until: begin.unwrap_or(Term::NO_END) };
    }
    let mut at = now;
    for _ in 0..SPANS_MAX {
        if !applies(at) {
            return Phase { applies: true, until: at };
        }
        // The longest of the spans that hold this instant.
        let ends = zones.iter().filter(|zone| zone.applies(at)).map(|zone| zone.changes_after(at, last));
        match ends.max_by_key(|end| end.unwrap_or(Term::NO_END)).flatten() {
            Some(end) => at = end,
            None => break,
        }
    }
    Phase { applies: true, until: Term::NO_END }
}

/// The first instant from `now` on at which a term holds. None if there is none.
pub fn next_begin(term: &Term, now: Micros) -> Option<Micros> {
    let mut at = now;
    loop {
        let found = term.phase(at, |during| phase(during, at));
        if found.applies {
            return Some(at);
        }
        if found.until == Term::NO_END {
            return None;
        }
        at = found.until;
    }
}

/// The spans of one zone.
struct Local {
    zone: TimeZone,
    week: Week,
}

impl Local {
    fn of(during: &During, name: &str) -> Self {
        // The zone was checked when the policy was loaded.
        Self { zone: zone::zone(name).unwrap_or(TimeZone::UTC), week: during.week(name) }
    }

    fn applies(&self, at: Micros) -> bool {
        self.week.at(self.local_us(at)).0
    }

    /// The first instant after another one, and at most `last`, at which the spans begin or end.
    fn changes_after(&self, now: Micros, last: Micros) -> Option<Micros> {
        let applied = self.applies(now);
        let mut at = now;
        while at <= last {
            let by_clock = self.week.at(self.local_us(at)).1.map(|wait| at.saturating_add_signed(wait));
            let next = self.zone.following(timestamp(at)).next();
            let change = next.and_then(|next| u64::try_from(next.timestamp().as_microsecond()).ok());
            match (by_clock, change) {
                (Some(by_clock), change) if change.is_none_or(|change| by_clock < change) => {
                    return (by_clock <= last).then_some(by_clock);
                }
                (_, Some(change)) if self.applies(change) != applied => return (change <= last).then_some(change),
                (_, Some(change)) => at = change,
                (_, None) => return None,
            }
        }
        None
    }

    /// Microseconds since 1970-01-01T00:00 by the local clock.
    fn local_us(&self, at: Micros) -> i64 {
        let instant = timestamp(at);
        instant.as_microsecond() + i64::from(self.zone.to_offset(instant).seconds()) * 1_000_000
    }
}

fn timestamp(at: Micros) -> Timestamp {
    Timestamp::from_microsecond(i64::try_from(at).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::collection::vec;
    use proptest::prelude::{Strategy, any};
    use proptest::sample::select;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::{instant_text, parse_instant, parse_span};

    const MINUTE_US: Micros = 60_000_000;
    const DAY_US: Micros = 1_440 * MINUTE_US;
    /// Offsets of half an hour and of 45 minutes; changes of half an hour, of two hours, at midnight and a minute after it; days
    /// that are skipped.
    const ZONES: [&str; 12] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Santiago",
        "America/St_Johns",
        "Africa/Cairo",
        "Africa/Casablanca",
        "Antarctica/Troll",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Kiritimati",
    ];

    fn during(spans: &[&str]) -> During {
        let spans = spans.iter().map(|text| parse_span(text).unwrap_or_else(|reason| panic!("{text}: {reason}")));
        During::new(spans.collect()).expect("a few spans")
    }

    fn at(text: &str) -> Micros {
        parse_instant(text).unwrap_or_else(|reason| panic!("{text}: {reason}"))
    }

    /// The first begins and ends of spans from an instant on.
    fn changes(spans: &[&str], from: &str, count: usize) -> Vec<String> {
        let (during, mut at) = (during(spans), at(from));
        let next = || {
            let found = phase(&during, at);
            at = found.until;
            format!("{} {}", if found.applies { "until" } else { "from" }, instant_text(found.until))
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    /// [te-5]
    #[test]
    fn a_span_follows_the_local_clock() {
        let berlin = ["Sun 02:00-06:00 Europe/Berlin"];
        let usual = ["from 2040-01-08T01:00:00Z", "until 2040-01-08T05:00:00Z", "from 2040-01-15T01:00:00Z"];
        assert_eq!(changes(&berlin, "2040-01-03", 3), usual);
        // The year changes within the span, and the night belongs to Monday.
        let night = ["Mon 22:00-06:00"];
        let new_year = ["from 2040-12-31T22:00:00Z", "until 2041-01-01T06:00:00Z", "from 2041-01-07T22:00:00Z"];
        assert_eq!(changes(&night, "2040-12-31", 3), new_year);
    }

    /// [te-7]
    #[test]
    fn a_clock_that_changes_skips_and_repeats_times() {
        // 02:00 is skipped on the 25th of March: the span has three hours.
        let forward = ["from 2040-03-25T01:00:00Z", "until 2040-03-25T04:00:00Z"];
        assert_eq!(changes(&["Sun 02:00-06:00 Europe/Berlin"], "2040-03-24", 2), forward);
        assert_eq!(changes(&["Sun 02:15-03:30 Europe/Berlin"], "2040-03-24", 2)[0], "from 2040-03-25T01:00:00Z");
        // A span that is skipped as a whole is not there.
        assert_eq!(changes(&["Sun 02:15-02:45 Europe/Berlin"], "2040-03-24", 1), ["from 2040-04-01T00:15:00Z"]);
        // 02:00 comes twice on the 28th of October: the span has five hours.
        let back = ["from 2040-10-28T00:00:00Z", "until 2040-10-28T05:00:00Z"];
        assert_eq!(changes(&["Sun 02:00-06:00 Europe/Berlin"], "2040-10-27", 2), back);
        let twice = [
            "from 2040-10-28T00:00:00Z",
            "until 2040-10-28T00:30:00Z",
            "from 2040-10-28T01:00:00Z",
            "until 2040-10-28T01:30:00Z",
        ];
        assert_eq!(changes(&["Sun 02:00-02:30 Europe/Berlin"], "2040-10-27", 4), twice);
        // Half an hour: 02:00 to 02:30 is skipped, and 01:30 to 02:00 comes twice.
        let howe = ["from 2040-10-06T15:30:00Z", "until 2040-10-06T16:00:00Z"];
        assert_eq!(changes(&["Sun 02:00-03:00 Australia/Lord_Howe"], "2040-10-06", 2), howe);
        let howe = ["from 2040-03-31T14:30:00Z", "until 2040-03-31T15:30:00Z"];
        assert_eq!(changes(&["Sun 01:30-02:00 Australia/Lord_Howe"], "2040-03-31", 2), howe);
        // Midnight of the 2nd of September is skipped in Santiago.
        let santiago = ["from 2040-09-02T04:00:00Z", "until 2040-09-02T05:00:00Z"];
        assert_eq!(changes(&["Sun 00:00-02:00 America/Santiago"], "2040-09-01", 2), santiago);
        // Samoa skipped Friday, the 30th of December 2011. The night of Friday is what is left of it.
        let thursday = ["from 2011-12-30T08:00:00Z", "until 2011-12-30T10:00:00Z", "from 2012-01-05T08:00:00Z"];
        assert_eq!(changes(&["Thu 22:00-06:00 Pacific/Apia"], "2011-12-29T12:00:00Z", 3), thursday);
        let friday = ["from 2011-12-30T10:00:00Z", "until 2011-12-30T16:00:00Z"];
        assert_eq!(changes(&["Fri 22:00-06:00 Pacific/Apia"], "2011-12-29T12:00:00Z", 2), friday);
    }

    /// [te-6]
    #[test]
    fn spans_of_several_zones_that_touch_are_one() {
        // In winter Berlin is an hour ahead of UTC.
        let spans = ["Sat 20:00-22:00 Europe/Berlin", "Sat 21:00-23:00", "Sat 23:00-24:00 UTC"];
        let one = ["from 2040-01-07T19:00:00Z", "until 2040-01-08T00:00:00Z", "from 2040-01-14T19:00:00Z"];
        assert_eq!(changes(&spans, "2040-01-03", 3), one);
    }

    /// [te-8]
    #[test]
    fn spans_without_a_gap_have_no_end() {
        let halves = ["00:00-12:00", "12:00-24:00"];
        let of_berlin = halves.map(|half| format!("{half} Europe/Berlin"));
        let over_zones = ["00:00-13:00 Asia/Tokyo", "02:00-16:00 UTC"];
        for spans in [halves.to_vec(), of_berlin.iter().map(String::as_str).collect(), over_zones.to_vec()] {
            let always = phase(&during(&spans), at("2040-03-25T00:59Z"));
            assert_eq!(always, Phase::ALWAYS, "{spans:?}");
        }
        // In winter an hour is left between the two: the end is months away.
        let summer = ["06:00-18:00 Europe/Berlin", "16:00-04:00 UTC"];
        let until = phase(&during(&summer), at("2040-06-01T12:00Z")).until;
        assert_eq!(instant_text(until), "2040-10-28T04:00:00Z");
    }

    #[test]
    fn the_next_begin_lies_within_the_term() {
        let term = |from: &str, until: &str| {
            let term = Term::new(at(from), at(until)).expect("not empty");
            term.in_spans(Some(during(&["Sun 02:00-06:00 Europe/Berlin"]).into()))
        };
        let next = |term: &Term, now: &str| next_begin(term, at(now)).map(instant_text);
        // The 8th of January 2040 is a Sunday.
        let january = term("2040-01-01T02:00Z", "2040-02-01");
        assert_eq!(next(&january, "2039-12-01").as_deref(), Some("2040-01-01T02:00:00Z"));
        assert_eq!(next(&january, "2040-01-08T02:00Z").as_deref(), Some("2040-01-08T02:00:00Z"));
        assert_eq!(next(&january, "2040-01-08T05:00Z").as_deref(), Some("2040-01-15T01:00:00Z"));
        assert_eq!(next(&january, "2040-01-29T05:00Z"), None);
        assert_eq!(next(&term("2040-01-09", "2040-01-14"), "2039-12-01"), None);
    }

    /// A span as numbers: its zone, days as bits from Monday, and minutes of the day.
    type Plain = (&'static str, u8, u16, u16);

    fn plain() -> impl Strategy<Value = Plain> {
        let quarter = || (0..96_u16).prop_map(|quarter| quarter * 15);
        let end = || (quarter(), any::<bool>()).prop_map(|(until, is_late)| if is_late { until + 1 } else { until });
        (select(ZONES.to_vec()), 1..128_u8, quarter(), end())
            .prop_filter("a span", |(.., from, until)| from != until && *until < 1_440)
    }

    fn text((zone, days, from, until): &Plain) -> String {
        let named = weir_engine::Days::NAMES.into_iter().enumerate().filter(|(day, _)| days >> day & 1 == 1);
        let days = named.map(|(_, name)| name).collect::<Vec<_>>().join(",");
        format!("{days} {:02}:{:02}-{:02}:{:02} {zone}", from / 60, from % 60, until / 60, until % 60)
    }

    /// Whether the clock of one zone shows a time of the span. Without weeks, and without changes of the clock.
    fn shows((zone, days, from, until): &Plain, at: Micros) -> bool {
        let local = zone::zone(zone).expect("a known zone").to_datetime(timestamp(at));
        let minute = u16::try_from(i16::from(local.hour()) * 60 + i16::from(local.minute())).expect("not negative");
        let day = local.weekday().to_monday_zero_offset();
        let is_on = |day: i8| days >> day & 1 == 1;
        if from < until || *until == 0 {
            is_on(day) && *from <= minute && (minute < *until || *until == 0)
        } else {
            is_on(day) && *from <= minute || is_on((day + 6) % 7) && minute < *until
        }
    }

    /// An instant near a change of a zone's clock, or any.
    fn instant() -> impl Strategy<Value = Micros> {
        let year_us = 365 * DAY_US;
        (select(ZONES.to_vec()), 5 * year_us..100 * year_us, 0..6 * DAY_US, any::<bool>()).prop_map(
            |(zone, any, off, is_near)| {
                let zone = zone::zone(zone).expect("a known zone");
                let change = zone.following(timestamp(any)).next().filter(|_| is_near);
                let near = change.and_then(|next| {
                    let before = next.timestamp().checked_sub(SignedDuration::from_hours(72)).ok()?;
                    u64::try_from(before.as_microsecond()).ok()
                });
                near.unwrap_or(any) + off
            },
        )
    }

    proptest! {
        /// [te-5] [te-6] [te-7] Minute by minute, by the clock that people see.
        #[test]
        fn a_phase_is_what_the_clocks_show_in_each_minute(spans in vec(plain(), 1..5), now in instant()) {
            const DAYS: u64 = 9;
            let applies = |at: Micros| spans.iter().any(|span| shows(span, at));
            let texts: Vec<String> = spans.iter().map(text).collect();
            let during = during(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let found = phase(&during, now);
            prop_assert_eq!(found.applies, applies(now), "{:?} at {}", texts, instant_text(now));
            let shown_until = found.until.min(now + DAYS * DAY_US);
            let mut at = now;
            while at < shown_until {
                prop_assert_eq!(applies(at), found.applies, "{:?} at {}: {:?}", texts, instant_text(at), found);
                at = (at / MINUTE_US + 1) * MINUTE_US;
            }
            if found.until < now + DAYS * DAY_US {
                prop_assert!(applies(found.until) != found.applies, "{:?}: {:?}", texts, found);
                prop_assert_eq!(applies(found.until - 1), found.applies, "{:?}: {:?}", texts, found);
            }
        }
    }
}
