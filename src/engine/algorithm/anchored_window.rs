//! Fixed windows that begin with their first hit, or where a calendar says. [aw-1]
//!
//! Known from express-rate-limit and GitHub's hourly quota (first hit), and from billing months (calendar). A window
//! from the first hit admits at most 2L - 1 over any span of its length. Its Lua twin is lua/algorithms/anchored_window.lua. The
//! calendar itself is not here: its boundaries come with the charge.

use super::{View, is_believed};
use crate::engine::charge::Receipt;
use crate::engine::descriptor::Hits;
use crate::engine::limit::{Anchor, Limit};
use crate::engine::time::{Bounds, Micros};

/// A window as stored. [aw-5]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it began.
    pub start: Micros,
    /// The hits counted in it, at most 2^32 - 1.
    pub count: u32,
}

/// A window as seen: with its end, which is not stored. An empty window of the first hit has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedWindow {
    /// When it began.
    pub start: Micros,
    /// When it ends.
    pub end: Micros,
    /// The hits counted in it.
    pub count: u32,
}

/// The first instant and the end of the window of a calendar that holds `now`, if the bounds hold it. [cl-2]
#[must_use]
pub fn window_at(bounds: &Bounds, now: Micros) -> Option<(Micros, Micros)> {
    bounds.windows(2).find(|pair| pair[0] <= now && now < pair[1]).map(|pair| (pair[0], pair[1]))
}

/// The window as it is at `now`. [aw-2] [cl-2] [tm-2]
#[must_use]
pub fn seen(limit: &Limit, stored: Option<Window>, bounds: Option<Bounds>, now: Micros) -> ObservedWindow {
    match (limit.algorithm().anchor(), bounds) {
        (Anchor::Calendar(_), Some(bounds)) => seen_by_calendar(stored, &bounds, now),
        (Anchor::Calendar(_), None) => unreachable!("a calendar's charge comes with its bounds"),
        (Anchor::FirstHit | Anchor::Clock, _) => seen_from_first_hit(limit, stored, now),
    }
}

fn seen_from_first_hit(limit: &Limit, stored: Option<Window>, now: Micros) -> ObservedWindow {
    let window_us = limit.window().us();
    match stored {
        Some(Window { start, count }) if count > 0 && start > now => {
            let believed = is_believed(u128::from(start - now), window_us);
            let start = if believed { start } else { now };
            ObservedWindow { start, end: start + window_us, count }
        }
        Some(Window { start, count }) if count > 0 && now < start + window_us => {
            ObservedWindow { start, end: start + window_us, count }
        }
        _ => ObservedWindow { start: now, end: now, count: 0 },
    }
}

fn seen_by_calendar(stored: Option<Window>, bounds: &Bounds, now: Micros) -> ObservedWindow {
    let Some((start, end)) = window_at(bounds, now) else {
        unreachable!("the bounds {bounds:?} were checked to hold {now}")
    };
    match stored {
        Some(Window { start: theirs, count }) if theirs == start => ObservedWindow { start, end, count },
        Some(Window { start: theirs, count }) if theirs > start => {
            // The window after theirs begins at the first boundary past it; one that we do not know lasts as ours.
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

/// Whether the clock has stepped back by so much that the window is not believed any more. [aw-6] [tm-2]
#[must_use]
pub fn is_far_ahead(limit: &Limit, stored: Window, bounds: Option<Bounds>, now: Micros) -> bool {
    let length = match bounds.and_then(|bounds| window_at(&bounds, now)) {
        Some((start, end)) => end - start,
        None => limit.window().us(),
    };
    stored.count > 0 && !is_believed(u128::from(stored.start.saturating_sub(now)), length)
}

/// The window with hits added; an empty one of the first hit begins now. [aw-2]
#[must_use]
pub fn added(limit: &Limit, seen: ObservedWindow, hits: Hits, now: Micros) -> ObservedWindow {
    let count = seen.count.saturating_add(hits);
    if seen.end == seen.start {
        ObservedWindow { start: now, end: now + limit.window().us(), count }
    } else {
        ObservedWindow { count, ..seen }
    }
}

/// The window with hits given back; one of the first hit that has none left has not begun. [aw-3]
#[must_use]
pub fn given(limit: &Limit, seen: ObservedWindow, hits: Hits, now: Micros) -> ObservedWindow {
    let count = seen.count.saturating_sub(hits);
    if count == 0 && limit.algorithm().anchor() == Anchor::FirstHit {
        ObservedWindow { start: now, end: now, count }
    } else {
        ObservedWindow { count, ..seen }
    }
}

/// The window without one charge, if it is still the receipt's. [un-2]
#[must_use]
pub fn undone(limit: &Limit, seen: ObservedWindow, receipt: Receipt, now: Micros) -> ObservedWindow {
    if seen.start == receipt.mark { given(limit, seen, receipt.hits, now) } else { seen }
}

impl View for ObservedWindow {
    /// What is left of the limit as it is now: the window holds what was used. [aw-4] [aw-7]
    fn remaining(&self, limit: &Limit, _now: Micros) -> Hits {
        limit.requests().saturating_sub(self.count)
    }

    fn retry_after(&self, limit: &Limit, _hits: Hits, now: Micros) -> Micros {
        self.reset_after(limit, now)
    }

    fn reset_after(&self, _limit: &Limit, now: Micros) -> Micros {
        self.end - now
    }

    fn is_empty(&self, _now: Micros) -> bool {
        self.count == 0
    }

    fn is_past(&self, limit: &Limit, _now: Micros) -> bool {
        self.count > limit.requests()
    }

    fn mark(&self) -> u64 {
        self.start
    }
}
