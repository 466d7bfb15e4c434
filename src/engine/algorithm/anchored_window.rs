//! Fixed windows that begin with their first hit, or at the boundaries of a calendar. [aw-1]
//!
//! Known from express-rate-limit and GitHub's hourly quota (first hit), and from billing months (calendar). A window
//! from the first hit admits at most 2L - 1 over any span of its length. Its Lua twin is
//! lua/algorithms/anchored_window.lua. Not here: the calendar. A charge carries the boundaries.
//!
//! Three hits in the minute from the first hit on:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Anchor, Charge, Limit, Mode, Operation, Unit};
//!
//! let limit = Limit::new(3, Unit::Minute.window(), Algorithm::FixedWindow { anchor: Anchor::FirstHit }).unwrap();
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(2, 59), Verdict::Within);
//! assert_eq!(hits(2, 60), wait(59), "the window ends a minute after its first hit");
//! assert_eq!(hits(3, 200), Verdict::Within, "the next one begins with the next hit");
//! assert_eq!(hits(1, 259), wait(1));
//! ```
//!
//! Three hits per day of a calendar. A charge has the boundaries of the days around it, here of days of 23 to 25 hours:
//!
//! ```
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Anchor, CalendarUnit, Charge, Limit, Mode, Operation, Unit};
//!
//! const HOUR: u64 = 3_600_000_000;
//! let calendar = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) };
//! let limit = Limit::new(3, Unit::Day.window(), calendar).unwrap().in_zone("Europe/Berlin");
//! let charge = Charge { bounds: Some([0, 24, 47, 71].map(|hours| hours * HOUR)), ..Charge::alone("key", &limit, Operation::Consume(2)) };
//! let mut state = [None];
//! let mut verdict = |hour| decide(&[charge.clone()], &[0], &mut state[..], Mode::Atomic, hour * HOUR).unwrap().outcomes[0].verdict;
//! assert_eq!(verdict(40), Verdict::Within);
//! assert_eq!(verdict(41), Verdict::Over { retry_after: 6 * HOUR }, "the day of 23 hours ends");
//! ```

use super::counting::{Counting, Effect, Found, Level, Receipt, StateNumbers, StoredFormat, View, is_believed};
use super::{Observed, State};
use crate::descriptor::{COUNT_MAX, Count, Hits};
use crate::time::{self, Bounds, CalendarUnit, Micros};

/// A window as stored. [aw-5]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredWindow {
    pub start: Micros,
    /// The hits counted in it.
    pub count: Count,
}

/// A window as observed, with its end, which is not stored. A window that begins with the first hit has not begun while
/// it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedWindow {
    pub start: Micros,
    pub end: Micros,
    pub count: Count,
}

/// The start and the end of the calendar window that contains `now`. None if no window of the bounds contains it.
/// [cl-2]
pub fn window_at(bounds: &Bounds, now: Micros) -> Option<(Micros, Micros)> {
    bounds.windows(2).find(|pair| pair[0] <= now && now < pair[1]).map(|pair| (pair[0], pair[1]))
}

/// Limits hits in each window, from the first hit or by a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchoredWindow {
    requests: Count,
    window: time::Window,
    /// None: windows begin with the first hit.
    calendar: Option<CalendarUnit>,
    /// The boundaries of the calendar's windows around the time of a charge.
    bounds: Option<Bounds>,
}

impl AnchoredWindow {
    pub(super) const fn from_first_hit(requests: Count, window: time::Window) -> Self {
        Self { requests, window, calendar: None, bounds: None }
    }

    pub(super) const fn of_calendar(requests: Count, window: time::Window, unit: CalendarUnit) -> Self {
        Self { requests, window, calendar: Some(unit), bounds: None }
    }

    fn since_first_hit(&self, stored: Option<StoredWindow>, now: Micros) -> Found<ObservedWindow> {
        let window_us = self.window.us();
        match stored {
            Some(StoredWindow { start, count }) if count > 0 && start > now => {
                if is_believed(u128::from(start - now), window_us) {
                    Found::fresh(ObservedWindow { start, end: start + window_us, count })
                } else {
                    Found::stale(ObservedWindow { start: now, end: now + window_us, count })
                }
            }
            Some(StoredWindow { start, count }) if count > 0 && now < start + window_us => {
                Found::fresh(ObservedWindow { start, end: start + window_us, count })
            }
            _ => Found::fresh(ObservedWindow { start: now, end: now, count: 0 }),
        }
    }

    /// The count after a charge. It stops at 2^32 - 1 while the limit has no more hits than that: older versions can
    /// then read it. [aw-5]
    fn added(&self, count: Count, hits: Count) -> Count {
        let most = if self.requests > Hits::MAX.into() { COUNT_MAX } else { Hits::MAX.into() };
        count.max(count.saturating_add(hits).min(most))
    }

    /// The window after a refund. A window from the first hit without hits has not begun. [aw-3]
    fn refunded(&self, before: ObservedWindow, hits: Hits, now: Micros) -> ObservedWindow {
        let count = before.count.saturating_sub(hits.into());
        if count == 0 && self.calendar.is_none() {
            ObservedWindow { start: now, end: now, count }
        } else {
            ObservedWindow { count, ..before }
        }
    }

    /// The same limit within the boundaries of its calendar's windows.
    pub(super) const fn within(self, bounds: Option<Bounds>) -> Self {
        Self { bounds, ..self }
    }

    /// Whether the window of the receipt has ended. [un-2]
    pub(super) fn has_ended(&self, receipt: Receipt, now: Micros) -> bool {
        match self.bounds.and_then(|bounds| window_at(&bounds, now)) {
            Some((start, _)) => start > receipt.mark,
            None => now >= receipt.mark.saturating_add(self.window.us()),
        }
    }
}

impl ObservedWindow {
    /// The window later. An ended window becomes a window without hits and without length, because the end of the next
    /// window is not known here.
    pub(super) const fn later(self, now: Micros) -> Self {
        if now < self.end { self } else { Self { start: now, end: now, count: 0 } }
    }
}

/// A number of a script that is a count.
fn counted(number: u64) -> Option<Count> {
    (number <= COUNT_MAX).then_some(number)
}

fn by_calendar(stored: Option<StoredWindow>, bounds: &Bounds, now: Micros) -> Found<ObservedWindow> {
    let Some((start, end)) = window_at(bounds, now) else {
        unreachable!("the bounds {bounds:?} were checked to hold {now}")
    };
    match stored {
        Some(StoredWindow { start: theirs, count }) if theirs == start => {
            Found::fresh(ObservedWindow { start, end, count })
        }
        Some(StoredWindow { start: theirs, count }) if theirs > start => {
            if !is_believed(u128::from(theirs.saturating_sub(now)), end - start) {
                return Found { view: ObservedWindow { start, end, count }, is_stale: count > 0 };
            }
            // The next window begins at the first later boundary. If no boundary is later, the window has the length of
            // ours.
            let their_end = bounds.iter().copied().find(|&bound| bound > theirs).unwrap_or(theirs + (end - start));
            Found::fresh(ObservedWindow { start: theirs, end: their_end, count })
        }
        _ => Found::fresh(ObservedWindow { start, end, count: 0 }),
    }
}

impl Counting for AnchoredWindow {
    type View = ObservedWindow;

    const NUMBER: u8 = 3;
    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 3;
    const COUNTS_DENIED: bool = true;

    fn capacity(&self) -> Count {
        self.requests
    }

    fn id(&self, zone: &str) -> String {
        match self.calendar {
            None => format!("h{}", self.window),
            Some(unit) => format!("k{}@{zone}", unit.unit().name()),
        }
    }

    /// The window as it is at `now`. It is stale if the clock has stepped back too far for it to be believed. [aw-2]
    /// [aw-6] [cl-2] [tm-2]
    fn find(&self, state: Option<&State>, _asked: Hits, now: Micros) -> Found<ObservedWindow> {
        let stored = if let Some(&State::AnchoredWindow(stored)) = state { Some(stored) } else { None };
        match (self.calendar, &self.bounds) {
            (None, _) => self.since_first_hit(stored, now),
            (Some(_), Some(bounds)) => by_calendar(stored, bounds, now),
            (Some(_), None) => unreachable!("a calendar's charge comes with its bounds"),
        }
    }

    fn write(&self, state: &mut Option<State>, left: ObservedWindow, _: Effect, _: Micros) {
        *state = Some(State::AnchoredWindow(StoredWindow { start: left.start, count: left.count }));
    }

    fn script_numbers(&self, _hits: Hits) -> StateNumbers {
        let [before, start, end, after] = self.bounds.unwrap_or_default();
        StateNumbers::from_slice(&[self.window.us(), self.requests, before, start, end, after])
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        match *numbers {
            [start, count] => Some(State::AnchoredWindow(StoredWindow { start, count: counted(count)? })),
            _ => None,
        }
    }
}

impl View<AnchoredWindow> for ObservedWindow {
    const OBSERVED: fn(Self) -> Observed = Observed::AnchoredWindow;

    /// An empty window from the first hit begins now. An undo changes nothing if the receipt is of another window.
    /// [aw-2] [un-2]
    fn step(self, limit: &AnchoredWindow, effect: Effect, now: Micros) -> Self {
        match effect {
            Effect::Add(hits) if self.end == self.start => {
                Self { start: now, end: now + limit.window.us(), count: limit.added(self.count, hits) }
            }
            Effect::Add(hits) => Self { count: limit.added(self.count, hits), ..self },
            Effect::Refund(hits) => limit.refunded(self, hits, now),
            Effect::Undo(receipt) if self.start == receipt.mark => limit.refunded(self, receipt.hits, now),
            Effect::Undo(_) | Effect::Nothing | Effect::Drain => self,
        }
    }

    /// The remaining hits of the limit; the window stores the used hits. [aw-4] [lm-6]
    fn level(&self, limit: &AnchoredWindow, now: Micros) -> Level {
        Level {
            remaining: limit.requests.saturating_sub(self.count),
            reset_after: self.end - now,
            is_past: self.count > limit.requests,
            is_empty: self.count == 0,
            mark: self.start,
            counted: self.count,
        }
    }

    fn retry_after(&self, _limit: &AnchoredWindow, _hits: Hits, now: Micros) -> Micros {
        self.end - now
    }

    fn read(_limit: &AnchoredWindow, numbers: &[u64], _now: Micros) -> Option<Self> {
        match *numbers {
            [start, end, count] => Some(Self { start, end, count: counted(count)? }),
            _ => None,
        }
    }
}
