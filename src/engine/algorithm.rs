//! One file per algorithm, and the one place that tells them apart.
//!
//! Each algorithm answers the same questions about a state: how it looks now (`seen`), what adding or giving hits
//! makes of it, and what follows from it (remaining, waits, resets). The Lua scripts hold `seen`, `added` and `given`
//! only; whatever follows from a state is derived here, for every store.

pub mod fixed_window;
pub mod gcra;

use super::charge::Receipt;
use super::limit::{Algorithm, Limit};
use super::{Hits, Micros};

/// What a key stores. Which kind it is follows from the limit's algorithm, which is part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Hits counted in one window of the clock.
    FixedWindow(fixed_window::Counter),
    /// A debt that drains at a steady rate.
    Pacing(gcra::Debt),
}

/// A state that belongs to another algorithm than the limit: keys hold the algorithm, so only a bug can do this.
fn mismatch(limit: &Limit, state: &State) -> ! {
    unreachable!("{} limit met the state {state:?}", limit.algorithm().name())
}

/// The state as it is at `now`: windows rolled, debts drained, and clock steps taken into account.
#[must_use]
pub fn seen(limit: &Limit, state: Option<&State>, now: Micros) -> State {
    match (limit.algorithm(), state) {
        (Algorithm::FixedWindow, None) => State::FixedWindow(fixed_window::seen(limit, None, now)),
        (Algorithm::FixedWindow, Some(State::FixedWindow(counter))) => {
            State::FixedWindow(fixed_window::seen(limit, Some(*counter), now))
        }
        (Algorithm::Gcra { .. }, None) => State::Pacing(gcra::seen(limit, None, now)),
        (Algorithm::Gcra { .. }, Some(State::Pacing(debt))) => State::Pacing(gcra::seen(limit, Some(*debt), now)),
        (_, Some(state)) => mismatch(limit, state),
    }
}

/// Whether the state lies so far ahead of a clock that stepped back that it has to be stored as [`seen`], even where
/// nothing is charged: it would be met ahead again and again until the clock has caught up. [fw-5] [pc-5]
#[must_use]
pub fn is_far_ahead(limit: &Limit, stored: &State, now: Micros) -> bool {
    match (limit.algorithm(), stored) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => fixed_window::is_far_ahead(limit, *counter, now),
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => gcra::is_far_ahead(limit, *debt, now),
        _ => mismatch(limit, stored),
    }
}

/// The largest number of hits that a take would be admitted for, of a state as seen at `now`.
#[must_use]
pub fn remaining(limit: &Limit, seen: &State, now: Micros) -> Hits {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => fixed_window::remaining(limit, *counter),
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => gcra::remaining(limit, *debt, now),
        _ => mismatch(limit, seen),
    }
}

/// The wait in microseconds, rounded up, until `hits` that do not fit now would, all else equal.
///
/// `hits` is at most the limit's capacity: more would wait for ever.
#[must_use]
pub fn retry_after(limit: &Limit, seen: &State, hits: Hits, now: Micros) -> Micros {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => fixed_window::reset_after(limit, *counter, now),
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => gcra::retry_after(limit, *debt, hits, now),
        _ => mismatch(limit, seen),
    }
}

/// The time in microseconds, rounded up, until a state that nobody touches equals an empty one.
#[must_use]
pub fn reset_after(limit: &Limit, seen: &State, now: Micros) -> Micros {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => fixed_window::reset_after(limit, *counter, now),
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => gcra::reset_after(*debt, now),
        _ => mismatch(limit, seen),
    }
}

/// The state with `hits` added, whether or not they fit. Counts and debts stop at their bounds.
#[must_use]
pub fn added(limit: &Limit, seen: &State, hits: Hits, now: Micros) -> State {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => {
            State::FixedWindow(fixed_window::added(*counter, hits))
        }
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => State::Pacing(gcra::added(limit, *debt, hits, now)),
        _ => mismatch(limit, seen),
    }
}

/// The state with `hits` given back, never below empty.
#[must_use]
pub fn given(limit: &Limit, seen: &State, hits: Hits, now: Micros) -> State {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => {
            State::FixedWindow(fixed_window::given(*counter, hits))
        }
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => State::Pacing(gcra::given(limit, *debt, hits, now)),
        _ => mismatch(limit, seen),
    }
}

/// The state without the one charge that the receipt proves. [un-1]
#[must_use]
pub fn undone(limit: &Limit, seen: &State, receipt: Receipt, now: Micros) -> State {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => {
            State::FixedWindow(fixed_window::undone(*counter, receipt))
        }
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => State::Pacing(gcra::undone(limit, *debt, receipt, now)),
        _ => mismatch(limit, seen),
    }
}

/// Whether a state as seen at `now` is worth nothing, so that its key can go.
#[must_use]
pub fn is_empty(seen: &State, now: Micros) -> bool {
    match seen {
        State::FixedWindow(counter) => counter.count == 0,
        State::Pacing(debt) => gcra::is_empty(*debt, now),
    }
}

/// Whether more has been taken than the limit holds: what a look of independent charging goes by. [dc-6]
#[must_use]
pub fn is_past(limit: &Limit, seen: &State, now: Micros) -> bool {
    match (limit.algorithm(), seen) {
        (Algorithm::FixedWindow, State::FixedWindow(counter)) => counter.count > limit.requests(),
        (Algorithm::Gcra { .. }, State::Pacing(debt)) => gcra::is_past(limit, *debt, now),
        _ => mismatch(limit, seen),
    }
}

/// Which part of the state a charge goes to, for its receipt. [un-1]
#[must_use]
pub fn mark(seen: &State) -> u64 {
    match seen {
        State::FixedWindow(counter) => u64::from(counter.window),
        State::Pacing(_) => 0,
    }
}

/// Whether independent charging counts denied hits of this limit. Only a fixed window can: a bucket that is being hit
/// would starve for ever, and a log would grow without bound. [dc-4]
#[must_use]
pub const fn counts_denied(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow)
}

/// Whether the limit keeps no state at all: a pacing limit of 0 has no rate to count a debt by. [pc-7]
#[must_use]
pub const fn is_stateless(limit: &Limit) -> bool {
    limit.requests() == 0 && !matches!(limit.algorithm(), Algorithm::FixedWindow)
}
