//! Finds a gap between the terms of a rule's limits, or between their spans of the week.

use weir_engine::during::{Days, During, WEEK_MINUTES};
use weir_engine::{Micros, Rule, Term};
use weir_text::instant_text;

use super::super::{Code, Outline};
use super::Findings;
use crate::term::now;

/// The longest gap between the spans of two limits that is probably a mistake, in minutes. Longer ones are meant.
const SPAN_GAP_MAX: u16 = 60;

impl Findings<'_> {
    /// Warns about the first gap that has not ended.
    pub(super) fn term_gap(&mut self, outline: &Outline, rule: &Rule) {
        if let Some((from, until, zone)) = gap_of_spans(rule) {
            self.add(&outline.note.place(), Code::TermGap, || {
                format!("no limit applies from {} until {} {zone}", minute_text(from), minute_text(until))
            });
        }
        let always = Term::new(0, Term::NO_END);
        let terms = rule
            .limits
            .iter()
            .filter(|limit| !limit.shadow)
            .map(|limit| limit.term.as_deref().cloned().or(always.clone()));
        let Some((from, until)) = gap(terms.flatten().collect()).filter(|(_, until)| *until > now()) else { return };
        self.add(&outline.note.place(), Code::TermGap, || {
            format!("no limit applies from {} until {}", instant_text(from), instant_text(until))
        });
    }
}

/// A short gap between the spans of two limits, in minutes of the week, with its zone. None if another limit applies always, or
/// if the spans have several zones.
fn gap_of_spans(rule: &Rule) -> Option<(u16, u16, &str)> {
    let terms = rule.limits.iter().filter(|limit| !limit.shadow).map(|limit| limit.term.as_deref());
    let spans: Option<Vec<&During>> = terms
        .filter(|term| term.is_none_or(|term| term.until() > now()))
        .map(|term| term.and_then(Term::during).map(|during| &**during))
        .collect();
    let spans = spans?;
    let zone = spans.first()?.zones().next()?;
    if spans.iter().any(|of_limit| of_limit.zones().any(|other| other != zone)) {
        return None;
    }
    let weeks: Vec<Vec<(u16, u16)>> = spans.iter().map(|of_limit| of_limit.week(zone).ranges().to_vec()).collect();
    let mut all = weeks.concat();
    all.sort_unstable();
    let first = *all.first()?;
    let mut end = 0;
    let last = (first.0 + WEEK_MINUTES, first.1);
    let is_of_one = |end: u16, from: u16| {
        let has = |week: &&Vec<(u16, u16)>| {
            week.iter().any(|range| range.1 == end) && week.iter().any(|range| range.0 == from % WEEK_MINUTES)
        };
        weeks.iter().any(|week| has(&week))
    };
    for (at, (from, until)) in all.into_iter().chain([last]).enumerate() {
        let gap = from.saturating_sub(end);
        if at > 0 && (1..=SPAN_GAP_MAX).contains(&gap) && !is_of_one(end, from) {
            return Some((end % WEEK_MINUTES, from % WEEK_MINUTES, zone));
        }
        end = end.max(until);
    }
    None
}

/// A minute of the week, such as `Mon 08:00`.
fn minute_text(minute: u16) -> String {
    let (day, minute) = (minute / (24 * 60), minute % (24 * 60));
    format!("{} {:02}:{:02}", Days::NAMES[usize::from(day)], minute / 60, minute % 60)
}

/// The first gap between two terms.
fn gap(mut terms: Vec<Term>) -> Option<(Micros, Micros)> {
    terms.sort_unstable_by_key(Term::from);
    let (first, rest) = terms.split_first()?;
    let mut end = first.until();
    for term in rest {
        if term.from() > end {
            return Some((end, term.from()));
        }
        end = end.max(term.until());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_time_in_no_term() {
        let gap =
            |terms: &[(u64, u64)]| gap(terms.iter().filter_map(|(from, until)| Term::new(*from, *until)).collect());
        assert_eq!(gap(&[(1, 3), (5, 7)]), Some((3, 5)));
        assert_eq!(gap(&[(5, 7), (1, 3)]), Some((3, 5)));
        assert_eq!(gap(&[(1, 3), (3, 7)]), None);
        assert_eq!(gap(&[(1, 9), (2, 3), (8, 12)]), None);
        assert_eq!(gap(&[(1, 9), (2, 3), (10, 12)]), Some((9, 10)));
        assert_eq!(gap(&[(4, 9)]), None);
        assert_eq!(gap(&[]), None);
    }
}
