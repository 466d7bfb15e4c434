//! Fixed windows that begin with their first hit, or at the boundaries of a calendar. [aw-1]
//!
//! Known from express-rate-limit and GitHub's hourly quota (first hit), and from billing months (calendar). A window
//! from the first hit admits at most 2L - 1 over any span of its length. Its Lua twin is
//! lua/algorithms/anchored_window.lua. Not here: the calendar. A charge carries the boundaries.

use super::counting::{Counting, Effect, Receipt, StoredFormat, Written, is_believed, small};
use crate::descriptor::Hits;
use crate::time::{self, Bounds, CalendarUnit, Micros};

/// A window as stored. [aw-5]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredWindow {
    pub start: Micros,
    /// The hits counted in it, at most 2^32 - 1.
    pub count: u32,
}

/// A window as observed, with its end, which is not stored. A window that begins with the first hit has not begun while
/// it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedWindow {
    pub start: Micros,
    pub end: Micros,
    pub count: u32,
}

/// The start and the end of the calendar window that contains `now`. None if no window of the bounds contains it.
/// [cl-2]
pub fn window_at(bounds: &Bounds, now: Micros) -> Option<(Micros, Micros)> {
    bounds.windows(2).find(|pair| pair[0] <= now && now < pair[1]).map(|pair| (pair[0], pair[1]))
}

/// Limits hits in each window, from the first hit or by a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchoredWindow {
    requests: u32,
    window: time::Window,
    /// None: windows begin with the first hit.
    calendar: Option<CalendarUnit>,
}

impl AnchoredWindow {
    pub(super) const fn from_first_hit(requests: u32, window: time::Window) -> Self {
        Self { requests, window, calendar: None }
    }

    pub(super) const fn of_calendar(requests: u32, window: time::Window, unit: CalendarUnit) -> Self {
        Self { requests, window, calendar: Some(unit) }
    }

    fn since_first_hit(&self, stored: Option<&StoredWindow>, now: Micros) -> ObservedWindow {
        let window_us = self.window.us();
        match stored {
            Some(&StoredWindow { start, count }) if count > 0 && start > now => {
                let believed = is_believed(u128::from(start - now), window_us);
                let start = if believed { start } else { now };
                ObservedWindow { start, end: start + window_us, count }
            }
            Some(&StoredWindow { start, count }) if count > 0 && now < start + window_us => {
                ObservedWindow { start, end: start + window_us, count }
            }
            _ => ObservedWindow { start: now, end: now, count: 0 },
        }
    }

    /// The window after adding hits. An empty window from the first hit begins now. [aw-2]
    fn added(&self, before: ObservedWindow, hits: Hits, now: Micros) -> ObservedWindow {
        let count = before.count.saturating_add(hits);
        if before.end == before.start {
            ObservedWindow { start: now, end: now + self.window.us(), count }
        } else {
            ObservedWindow { count, ..before }
        }
    }

    /// The window after a refund. A window from the first hit without hits has not begun. [aw-3]
    fn refunded(&self, before: ObservedWindow, hits: Hits, now: Micros) -> ObservedWindow {
        let count = before.count.saturating_sub(hits);
        if count == 0 && self.calendar.is_none() {
            ObservedWindow { start: now, end: now, count }
        } else {
            ObservedWindow { count, ..before }
        }
    }

    /// The window after undoing one charge. Changes nothing if the receipt is of another window. [un-2]
    fn undone(&self, before: ObservedWindow, receipt: Receipt, now: Micros) -> ObservedWindow {
        if before.start == receipt.mark { self.refunded(before, receipt.hits, now) } else { before }
    }

    const fn stored(left: ObservedWindow) -> StoredWindow {
        StoredWindow { start: left.start, count: left.count }
    }
}

fn by_calendar(stored: Option<&StoredWindow>, bounds: &Bounds, now: Micros) -> ObservedWindow {
    let Some((start, end)) = window_at(bounds, now) else {
        unreachable!("the bounds {bounds:?} were checked to hold {now}")
    };
    match stored {
        Some(&StoredWindow { start: theirs, count }) if theirs == start => ObservedWindow { start, end, count },
        Some(&StoredWindow { start: theirs, count }) if theirs > start => {
            // The next window begins at the first later boundary. If no boundary is later, the window has the length of
            // ours.
            let their_end = bounds.iter().copied().find(|&bound| bound > theirs).unwrap_or(theirs + (end - start));
            if is_believed(u128::from(theirs.saturating_sub(now)), end - start) {
                ObservedWindow { start: theirs, end: their_end, count }
            } else {
                ObservedWindow { start, end, count }
            }
        }
        _ => ObservedWindow { start, end, count: 0 },
    }
}

impl Counting for AnchoredWindow {
    type State = StoredWindow;
    type Observed = ObservedWindow;
    type Numbers = [u64; 6];

    const COUNTS_DENIED: bool = true;
    const FORMAT: StoredFormat = StoredFormat::Doubles;
    const REPLY: usize = 3;

    small_state!();

    fn requests(&self) -> Hits {
        self.requests
    }

    fn id(&self, zone: &str) -> String {
        match self.calendar {
            None => format!("h{}", self.window),
            Some(unit) => format!("k{}@{zone}", unit.unit().name()),
        }
    }

    /// The window as it is at `now`. [aw-2] [cl-2] [tm-2]
    fn observe(
        &self,
        stored: Option<&StoredWindow>,
        _asked: Hits,
        bounds: Option<Bounds>,
        now: Micros,
    ) -> ObservedWindow {
        match (self.calendar, bounds) {
            (None, _) => self.since_first_hit(stored, now),
            (Some(_), Some(bounds)) => by_calendar(stored, &bounds, now),
            (Some(_), None) => unreachable!("a calendar's charge comes with its bounds"),
        }
    }

    /// Whether the clock has stepped back too far for the window to be believed. [aw-6] [tm-2]
    fn is_stale(&self, stored: &StoredWindow, bounds: Option<Bounds>, now: Micros) -> bool {
        let length = match bounds.and_then(|bounds| window_at(&bounds, now)) {
            Some((start, end)) => end - start,
            None => self.window.us(),
        };
        stored.count > 0 && !is_believed(u128::from(stored.start.saturating_sub(now)), length)
    }

    /// An ended window becomes a window without hits and without length, because the end of the next window is not
    /// known here.
    fn later(&self, found: ObservedWindow, now: Micros) -> ObservedWindow {
        if now < found.end { found } else { ObservedWindow { start: now, end: now, count: 0 } }
    }

    /// The remaining hits of the limit; the window stores the used hits. [aw-4] [aw-7]
    fn remaining(&self, observed: &ObservedWindow, _now: Micros) -> Hits {
        self.requests.saturating_sub(observed.count)
    }

    fn retry_after(&self, observed: &ObservedWindow, _hits: Hits, now: Micros) -> Micros {
        self.reset_after(observed, now)
    }

    fn reset_after(&self, observed: &ObservedWindow, now: Micros) -> Micros {
        observed.end - now
    }

    fn is_past(&self, observed: &ObservedWindow, _now: Micros) -> bool {
        observed.count > self.requests
    }

    fn is_empty(observed: &ObservedWindow, _now: Micros) -> bool {
        observed.count == 0
    }

    fn mark(observed: &ObservedWindow) -> u64 {
        observed.start
    }

    fn script_numbers(&self, _hits: Hits, bounds: Option<Bounds>) -> Self::Numbers {
        let [before, start, end, after] = bounds.unwrap_or_default();
        [self.window.us(), u64::from(self.requests), before, start, end, after]
    }

    fn read_reply(&self, numbers: &[u64], _now: Micros) -> Option<(ObservedWindow, Option<ObservedWindow>)> {
        match *numbers {
            [start, end, count] => Some((ObservedWindow { start, end, count: small(count)? }, None)),
            _ => None,
        }
    }

    fn read_stored(numbers: &[u64]) -> Option<StoredWindow> {
        match *numbers {
            [start, count] => Some(StoredWindow { start, count: small(count)? }),
            _ => None,
        }
    }
}
