//! The traits of an algorithm's file, [`Counting`] and [`View`], and the types that they need.
//!
//! Not here: the list of algorithms (algorithm.rs), and how verdicts become a decision (decision.rs).

use std::fmt::Debug;

use smallvec::SmallVec;

use super::{Observed, State};
use crate::descriptor::{Count, Hits};
use crate::time::Micros;

/// If a window is shorter than this, its state may be this far ahead of a clock that stepped back, and still be
/// believed. In microseconds. [tm-2]
pub const AHEAD_US_MIN: u64 = 60_000_000;
/// The longest time that a full burst may take to drain: 2^48 us, 8.9 years. [lm-2]
pub const DEBT_US_MAX: u64 = 1 << 48;
/// The weight of a charge on a state of a few numbers. See [`crate::weight`].
pub const WEIGHT_OF_SHORT_STATE: u32 = 2;

/// Whether a state that is `ahead_us` ahead of the clock is believed: the clock has stepped back only a little. [tm-2]
pub(super) fn is_believed(ahead_us: u128, window_us: u64) -> bool {
    ahead_us <= u128::from(window_us.max(AHEAD_US_MIN))
}

/// The window that a state counts in, and its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedWindow {
    /// When the window began. Equal for all charges of one window on all replicas.
    pub start: Micros,
    pub end: Micros,
    pub count: Count,
}

/// How one kind of state counts: the numbers of a limit, and the states that a store keeps of it.
///
/// A charge has a view of a state: windows rolled, debts drained, clock steps applied. The view is small and `Copy`.
/// The view of a few numbers is the whole state. The view of a state that can be long is a [`Summary`].
pub trait Counting: Copy + Debug + PartialEq + Eq {
    type View: View<Self>;

    /// The number by which scripts distinguish the kinds.
    const NUMBER: u8;
    const FORMAT: StoredFormat;
    /// How many numbers a script returns for one charge.
    const REPLY: usize;
    const UNDO: UndoScript = UndoScript::ByMark;
    /// Whether independent charging counts denied hits too. Only windows can: under a steady flood a bucket would never
    /// admit again, and a log would grow without bound. [dc-4]
    const COUNTS_DENIED: bool = false;

    /// The most hits that a state can hold at one instant; 0 for a limit that admits nothing. [lm-4]
    fn capacity(&self) -> Count;

    /// The limit's id in keys: a letter for the algorithm, then every number that determines the shape of the state.
    /// [ky-4]
    fn id(&self, zone: &str) -> String;

    /// The longest time that a store needs for this work. See [`crate::weight`]. [dc-11]
    fn weight(&self, _work: Work) -> u32 {
        WEIGHT_OF_SHORT_STATE
    }

    /// The state as a charge of `asked` hits finds it at `now`. A state of another kind counts as none: keys contain the
    /// kind.
    fn find(&self, state: Option<&State>, asked: Hits, now: Micros) -> Found<Self::View>;

    /// Stores what an effect in plain hits leaves: a few numbers as they are, and a state that can be long by the same
    /// effect, in place.
    fn write(&self, state: &mut Option<State>, left: Self::View, effect: Effect, now: Micros);

    /// The numbers of a charge, in the order in which its script reads them.
    fn script_numbers(&self, hits: Hits) -> StateNumbers;

    /// A state from the numbers that Redis stores. None if they are not of this kind.
    fn read_stored(&self, numbers: &[u64]) -> Option<State>;
}

/// What a charge sees of a state, under a limit.
pub trait View<C>: Copy + Debug + PartialEq + Eq {
    /// The variant of these views.
    const OBSERVED: fn(Self) -> Observed;

    /// The view after an effect in plain hits. A summary changes only its hits: it does not have their times.
    #[must_use]
    fn step(self, limit: &C, effect: Effect, now: Micros) -> Self;

    /// What the view shows to every charge.
    fn level(&self, limit: &C, now: Micros) -> Level;

    /// The wait in microseconds, rounded up, until `hits` fit. They do not fit now, and are at most the capacity. If
    /// the view is a summary, `hits` are the requested hits.
    fn retry_after(&self, limit: &C, hits: Hits, now: Micros) -> Micros;

    /// A view from the numbers that a script returned. None if they are not of this kind.
    fn read(limit: &C, numbers: &[u64], now: Micros) -> Option<Self>;
}

/// A state as a charge finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<V> {
    pub view: V,
    /// Whether the view must be stored even if nothing is charged. [tm-3]
    ///
    /// There are two reasons. The clock stepped back so far that the state is no longer believed: every charge would
    /// find it ahead until the clock catches up. Or another limit wrote the debt: it would still drain at the old rate.
    pub is_stale: bool,
}

impl<V> Found<V> {
    /// A state that is stored as it is, or is not there.
    pub(super) const fn fresh(view: V) -> Self {
        Self { view, is_stale: false }
    }

    pub(super) const fn stale(view: V) -> Self {
        Self { view, is_stale: true }
    }
}

/// How full a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The most hits that would be admitted.
    pub remaining: Count,
    /// The microseconds, rounded up, until the state equals an empty one without further charges.
    pub reset_after: Micros,
    /// Whether more hits are charged than the limit holds: the rule for a peek of independent charging. [dc-6]
    pub is_past: bool,
    /// Whether the state equals an empty one, so the store can delete its key.
    pub is_empty: bool,
    /// The part of the state that a charge goes to, for its receipt. [un-1]
    pub mark: u64,
    /// The charged hits of a window; 0 for the kinds of state that cannot be holds. [hd-1]
    pub counted: Count,
}

/// What a store does with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A charge that is not a refund.
    Charge,
    Refund(Hits),
    Undo,
}

/// A summary, for a charge of some hits, of a state that keeps hits with their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The hits that still count. The parts of a state can have more than 2^32 together.
    pub used: u64,
    /// When the charge's hits would fit without other requests. 0 if they fit now, and if they never fit.
    pub fits_at: Micros,
    /// When the last of the hits stops counting; 0 if none counts.
    pub empty_at: Micros,
    /// The part that a receipt would name: the newest bucket, or the sum of the newest entry.
    pub mark: u64,
}

impl Summary {
    /// The same state later. Used hits stay until all of them have expired: a summary does not have the expiry of each
    /// part.
    pub(super) const fn later(self, now: Micros) -> Self {
        if now < self.empty_at { self } else { Self { used: 0, fits_at: 0, empty_at: 0, mark: self.mark } }
    }
}

impl<C: Counting> View<C> for Summary {
    const OBSERVED: fn(Self) -> Observed = Observed::Summary;

    /// When the hits stop counting follows only from the state.
    fn step(self, _limit: &C, effect: Effect, _now: Micros) -> Self {
        let used = match effect {
            Effect::Add(hits) => self.used.saturating_add(hits),
            Effect::Refund(hits) => self.used.saturating_sub(hits.into()),
            Effect::Nothing | Effect::Drain | Effect::Undo(_) => self.used,
        };
        Self { used, ..self }
    }

    fn level(&self, limit: &C, now: Micros) -> Level {
        Level {
            remaining: limit.capacity().saturating_sub(self.used),
            reset_after: self.empty_at.saturating_sub(now),
            is_past: self.used > limit.capacity(),
            is_empty: self.used == 0,
            mark: self.mark,
            counted: self.used,
        }
    }

    fn retry_after(&self, _limit: &C, _hits: Hits, now: Micros) -> Micros {
        self.fits_at.saturating_sub(now)
    }

    fn read(_limit: &C, numbers: &[u64], _now: Micros) -> Option<Self> {
        match *numbers {
            [used, fits_at, empty_at, mark] => Some(Self { used, fits_at, empty_at, mark }),
            _ => None,
        }
    }
}

/// What a charge does to the state that it finds. [dc-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// Adds hits, even if they do not fit.
    Add(Count),
    /// Gives hits back, never below empty.
    Refund(Hits),
    /// Adds all remaining hits.
    Drain,
    /// Takes back the charge of the receipt, as far as it still counts. [un-1]
    Undo(Receipt),
}

/// The result of a change of a state in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The state stays unchanged, with its expiry, even if the charge observed a rolled window.
    Kept,
    /// The state was written: how full it is now, which says when it expires.
    Put(Level),
    /// The state is empty, so the store can delete its key.
    Gone,
}

/// Proof of one charge, to take it back. Valid for the key and the limit of the charge. [un-1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The hits that were added to the state.
    pub hits: Hits,
    /// The time at which they were added.
    pub at: Micros,
    /// The part of the state that they were added to: the window, if the state has windows.
    pub mark: u64,
}

/// The form in which Redis stores a state, and how its numbers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFormat {
    /// One decimal integer.
    Integer,
    /// Little-endian doubles.
    Doubles,
    /// A byte with the width of a count, a little-endian double, and counts of that many bytes.
    Counts,
    /// A sorted set of members `<a>:<b>`: a, b and the score of each, oldest first.
    SortedSet,
}

impl StoredFormat {
    /// Whether the state can be long.
    pub const fn is_list(self) -> bool {
        matches!(self, Self::Counts | Self::SortedSet)
    }
}

/// How a script finds the charge of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoScript {
    /// By its mark, in the `undo` of the kind's Lua fragment.
    ByMark,
    /// By its time, in the same.
    ByTime,
    /// In lua/undo_log.lua. It rewrites each later charge, so it is a separate call.
    Log,
}

/// The numbers that a script gets, each below 2^53. [ar-2]
pub type StateNumbers = SmallVec<[u64; 8]>;

/// Converts a script's number that is a count.
pub(super) fn small(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}
