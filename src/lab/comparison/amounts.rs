//! Which of two limits admits more.
//!
//! A limit *covers* another one if never, under any traffic, fewer requests have passed it. Each request has one hit and meets no
//! other limit, and both limits begin empty. With larger requests no algorithm but `fixed_window` has such an order: a
//! request that only the larger limit admits can leave no room for the next ones.
//!
//! [`COVERS`] has the condition for each pair of algorithms, [`COVERS_REPORTS`] and [`COVERS_HOLDS`] for each algorithm with
//! these flags on both sides, and [`of_flag`] the direction of each flag. tests/policies/amounts.rs sends traffic through
//! pairs of limits of all rows. Not here: roles of rules, plans, and limits that are on one side only (limits.rs).

use std::sync::Arc;

use weir_engine::algorithm::parameters::{Anchor, Refill};
use weir_engine::{Algorithm, CalendarUnit, During, Limit, Property, Term};

use super::Direction;

/// The way in which a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Windows of the clock.
    Clock,
    /// Windows from the first hit.
    FirstHit,
    /// Local windows of a calendar, but for days in UTC, which are windows of the clock.
    Calendar,
    /// Two windows of the clock.
    Counter,
    SubBuckets,
    Log,
    /// `gcra`, `leaky_bucket`, and `token_bucket` with a continuous refill.
    Debt,
    /// `token_bucket` by interval with a burst of more than one refill. With a smaller one it is a window from the first hit.
    Steps,
    Permits,
}

/// When a limit covers another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covers {
    /// Not for any different numbers.
    No,
    /// With the same window and parameters, if its hits and its burst are at least as large.
    Same,
    /// If it has room for all that the other one can admit while it counts a hit.
    Room,
    SameOrRoom,
    /// If its rate is at least as large, and its burst is at least what the other one can admit beyond its rate.
    Pace,
}

/// By the covered limit (rows), then by the limit that covers it, in the order of [`Form`].
#[rustfmt::skip]
const COVERS: [[Covers; 9]; 9] = {
    use Covers::{No, Pace, Room, Same, SameOrRoom};
    [
        // Clock  FirstHit    Calendar  Counter     SubBuckets  Log   Debt  Steps Permits
        [Room,    Room,       No,       Room,       Room,       Room, Pace, Room, No  ], // Clock
        [Room,    SameOrRoom, No,       Room,       Room,       Room, Pace, Room, No  ], // FirstHit
        [No,      No,         Same,     No,         No,         No,   No,   No,   No  ], // Calendar
        [Room,    Room,       No,       SameOrRoom, Room,       Room, Pace, Room, No  ], // Counter
        [Room,    Room,       No,       Room,       SameOrRoom, Room, Pace, Room, No  ], // SubBuckets
        [Room,    Room,       No,       Room,       Room,       Room, Pace, Room, No  ], // Log
        [Room,    Room,       No,       Room,       Room,       Room, Pace, Room, No  ], // Debt
        [Room,    Room,       No,       Room,       Room,       Room, Pace, Room, No  ], // Steps
        [No,      No,         No,       No,         No,         No,   No,   No,   Same], // Permits
    ]
};

/// If both limits have `post_paid` and the same form. Hits past the limit are charged too, so other forms have no order.
const COVERS_REPORTS: [Covers; 9] = {
    use Covers::{No, Same};
    [Same, Same, Same, Same, Same, No, Same, No, No]
};

/// If both limits hold hits and have the same form. A request that only the larger limit admits can end late, so the limits have
/// an order only if each request that the smaller one admits passes the larger one too.
const COVERS_HOLDS: [Covers; 9] = {
    use Covers::{No, Same};
    [Same, No, Same, No, Same, No, No, No, Same]
};

/// The direction of a flag that a limit gets. The reverse one applies if the limit loses it.
const fn of_flag(flag: Property) -> Direction {
    match flag {
        // A denied request consumes what is left.
        Property::Drain => Direction::Stricter,
        // Other amounts are charged, at another time.
        Property::PostPaid | Property::Hold | Property::Requests => Direction::Both,
        // What a lease admits is charged as before. A limit on trial is compared as no limit, and a term by its ends. The
        // others are no flags of a limit.
        Property::Lease
        | Property::Trial
        | Property::Term
        | Property::Rows
        | Property::ShadowMode
        | Property::QuotaMode
        | Property::Independent => Direction::Neither,
    }
}

/// The direction of a changed limit, which denies on both sides.
pub(super) fn direction(old: &Limit, new: &Limit) -> Direction {
    let of_terms = of_terms(old, new);
    if old.requests() == 0 || new.requests() == 0 {
        // A limit of 0 admits nothing, with any flags.
        return Direction::of(new.requests().min(1).cmp(&old.requests().min(1))).and(of_terms);
    }
    let of_flags = Property::ALL.into_iter().fold(Direction::Neither, |direction, flag| {
        let has = |limit: &Limit| limit.properties().any(|own| own == flag);
        direction.and(match (has(old), has(new)) {
            (false, true) => of_flag(flag),
            (true, false) => of_flag(flag).reversed(),
            _ => Direction::Neither,
        })
    });
    let (before, after) = (Amount::of(old), Amount::of(new));
    let of_amounts = match (after.covers(&before), before.covers(&after)) {
        (true, true) => Direction::Neither,
        (true, false) => Direction::Looser,
        (false, true) => Direction::Stricter,
        (false, false) => Direction::Both,
    };
    let has_same_starts = term(old).0 == term(new).0 && of_spans(old, new) == Direction::Neither;
    let of_starts = match (has_same_starts, after.form) {
        // Its windows begin at other times.
        (false, Form::FirstHit | Form::Steps) => Direction::Both,
        _ => Direction::Neither,
    };
    of_amounts.and(of_flags).and(of_terms).and(of_starts)
}

/// The direction of a changed term. Outside of its term a limit does not exist.
pub(super) fn of_terms(old: &Limit, new: &Limit) -> Direction {
    let ((old_from, old_until), (new_from, new_until)) = (term(old), term(new));
    Direction::of(new_from.cmp(&old_from)).and(Direction::of(old_until.cmp(&new_until))).and(of_spans(old, new))
}

/// The direction of other spans of the week.
fn of_spans(old: &Limit, new: &Limit) -> Direction {
    let covers = |wide: Option<&Arc<During>>, narrow: Option<&Arc<During>>| match (wide, narrow) {
        (None, _) => true,
        (Some(wide), None) => wide.is_always(),
        (Some(wide), Some(narrow)) => wide.covers(narrow),
    };
    let spans = |limit: &Limit| limit.term.as_ref().and_then(|term| term.during().cloned());
    let (before, after) = (spans(old), spans(new));
    match (covers(after.as_ref(), before.as_ref()), covers(before.as_ref(), after.as_ref())) {
        (true, true) => Direction::Neither,
        (true, false) => Direction::Stricter,
        (false, true) => Direction::Looser,
        (false, false) => Direction::Both,
    }
}

fn term(limit: &Limit) -> (u64, u64) {
    limit.term.as_ref().map_or((0, Term::NO_END), |term| (term.from(), term.until()))
}

/// The numbers of a limit, in hits and microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount<'p> {
    form: Form,
    hits: u128,
    window: u128,
    /// The most hits at one instant.
    burst: u128,
    /// The length of a sub-bucket.
    precision: u128,
    calendar: Option<(CalendarUnit, &'p str)>,
    is_reported: bool,
    is_held: bool,
    /// The hits that a settle leaves charged.
    at_least: u32,
}

impl<'p> Amount<'p> {
    fn of(limit: &'p Limit) -> Self {
        let (hits, burst) = (u128::from(limit.requests()), u128::from(limit.capacity()));
        let (is_reported, is_held) = (limit.post_paid(), limit.hold);
        let own = |form, hits| Self {
            form,
            hits,
            window: u128::from(limit.window().us()),
            burst,
            precision: 0,
            calendar: None,
            is_reported,
            is_held,
            at_least: limit.at_least,
        };
        match limit.algorithm() {
            Algorithm::FixedWindow { anchor: Anchor::Clock } => own(Form::Clock, hits),
            Algorithm::FixedWindow { anchor: Anchor::FirstHit } => own(Form::FirstHit, hits),
            Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) } if limit.zone().is_empty() => {
                own(Form::Clock, hits)
            }
            Algorithm::FixedWindow { anchor: Anchor::Calendar(unit) } => {
                Self { calendar: Some((unit, limit.zone())), ..own(Form::Calendar, hits) }
            }
            Algorithm::SlidingWindowCounter => own(Form::Counter, hits),
            Algorithm::SlidingWindow { precision } => {
                Self { precision: u128::from(precision.get()), ..own(Form::SubBuckets, hits) }
            }
            Algorithm::SlidingWindowLog => own(Form::Log, hits),
            Algorithm::TokenBucket { refill: Refill::Interval, .. } if burst <= hits && !is_reported => {
                own(Form::FirstHit, burst)
            }
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => own(Form::Steps, hits),
            Algorithm::TokenBucket { refill: Refill::Continuous, .. }
            | Algorithm::Gcra { .. }
            | Algorithm::LeakyBucket { .. } => own(Form::Debt, hits),
            Algorithm::Concurrency => own(Form::Permits, hits),
        }
    }

    fn covers(&self, narrow: &Self) -> bool {
        if self == narrow {
            return true;
        }
        let (row, column) = (narrow.form as usize, self.form as usize);
        let condition = match (self.is_reported || narrow.is_reported, self.is_held || narrow.is_held) {
            (false, false) => COVERS[row][column],
            // A settle that leaves more charged denies later requests, which then charge nothing.
            _ if row != column || self.at_least != narrow.at_least => Covers::No,
            (true, _) => COVERS_REPORTS[row],
            (false, true) => COVERS_HOLDS[row],
        };
        match condition {
            Covers::No => false,
            Covers::Same => self.is_same_with_more(narrow),
            Covers::Room => self.has_room_for(narrow),
            Covers::SameOrRoom => self.is_same_with_more(narrow) || self.has_room_for(narrow),
            Covers::Pace => {
                let is_as_fast = self.hits * narrow.window >= narrow.hits * self.window;
                is_as_fast && self.burst >= narrow.beyond_rate()
            }
        }
    }

    fn is_same_with_more(&self, narrow: &Self) -> bool {
        let shape = |of: &Self| (of.window, of.precision, of.calendar);
        shape(self) == shape(narrow) && self.hits >= narrow.hits && self.burst >= narrow.burst
    }

    fn has_room_for(&self, narrow: &Self) -> bool {
        let is_finer = self.precision > 0 && narrow.precision.is_multiple_of(self.precision) && narrow.precision > 0;
        if is_finer && self.window == narrow.window && self.hits >= narrow.hits {
            return true;
        }
        let most = match self.form {
            Form::Clock => narrow.most_in_windows(self.window, 1),
            Form::Counter => narrow.most_in_windows(self.window, 2),
            // Part of the oldest sub-bucket can be older than the window.
            Form::SubBuckets => narrow.most_in(self.window + self.precision),
            _ => narrow.most_in(self.window),
        };
        self.hits >= most
    }

    /// A bound of the hits that are admitted in any interval of this length. [ex-1]
    const fn most_in(&self, length: u128) -> u128 {
        match self.form {
            Form::SubBuckets | Form::Log => self.hits * length.div_ceil(self.window),
            Form::Debt => self.burst + self.hits * length / self.window,
            Form::Steps => self.burst + self.hits * (length / self.window + 1),
            // The most windows that the interval meets.
            _ => self.hits * ((length - 1).div_ceil(self.window) + 1),
        }
    }

    /// A bound of the hits that are admitted in so many windows of the clock of this length.
    const fn most_in_windows(&self, window: u128, count: u128) -> u128 {
        let is_of_clock = matches!(self.form, Form::Clock | Form::Counter);
        if is_of_clock && window.is_multiple_of(self.window) {
            self.hits * (window / self.window) * count
        } else if is_of_clock && count == 1 && self.window.is_multiple_of(window) {
            self.hits
        } else {
            self.most_in(window * count)
        }
    }

    /// The most hits that are admitted beyond the rate, in an interval of any length. [ex-1]
    const fn beyond_rate(&self) -> u128 {
        match self.form {
            Form::SubBuckets | Form::Log => self.hits,
            Form::Debt => self.burst,
            Form::Steps => self.burst + self.hits,
            _ => 2 * self.hits,
        }
    }
}
