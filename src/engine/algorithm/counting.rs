//! The trait of an algorithm's file, [`Counting`], and the types that it needs.
//!
//! Not here: the list of algorithms (algorithm.rs), and how verdicts become a decision (decision.rs).

use std::fmt::Debug;

use smallvec::SmallVec;

use crate::descriptor::Hits;
use crate::time::{Bounds, Micros};

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
    pub count: Hits,
}

/// How one kind of state counts: the numbers of a limit, and all operations on a state with these numbers.
///
/// [`State`](Self::State) is the state that a store keeps. [`Observed`](Self::Observed) is that state as one charge
/// finds it: windows rolled, debts drained, clock steps applied. It is small and `Copy`. A state of a few numbers is
/// observed whole, and `small_state!` makes its effects. A state that can be long is observed as a [`Summary`].
pub trait Counting: Copy + Debug + PartialEq + Eq {
    type State: Clone + Debug + PartialEq + Eq;
    type Observed: Copy + Debug + PartialEq + Eq;
    /// The numbers of a limit and a charge that its scripts read, as an array.
    type Numbers: ScriptNumbers;

    /// Whether independent charging counts denied hits too. Only windows can: under a steady flood a bucket would never
    /// admit again, and a log would grow without bound. [dc-4]
    const COUNTS_DENIED: bool = false;
    /// Whether an observation has the wait of only the requested hits.
    const IS_SUMMARY: bool = false;
    const FORMAT: StoredFormat;
    /// How many numbers a script returns for one charge.
    const REPLY: usize;
    const UNDO: UndoScript = UndoScript::List;

    /// Hits per window. 0 denies everything. [lm-5]
    fn requests(&self) -> Hits;

    /// The most hits that a state can hold at one instant. [lm-4]
    fn capacity(&self) -> Hits {
        self.requests()
    }

    /// The same limit with `post_paid` set. A post-paid limit believes usage above the burst. [dc-5]
    #[must_use]
    fn with_post_paid(self, _post_paid: bool) -> Self {
        self
    }

    /// The limit's id in keys: a letter for the algorithm, then every number that determines the shape of the state.
    /// [ky-4]
    fn id(&self, zone: &str) -> String;

    /// The weight of a charge that is not a refund. [dc-11]
    fn weight(&self) -> u32 {
        WEIGHT_OF_SHORT_STATE
    }

    /// The weight of a refund.
    fn weight_to_give(&self, _hits: Hits) -> u32 {
        self.weight()
    }

    fn weight_to_undo(&self) -> u32 {
        self.weight()
    }

    /// The state as a charge of `asked` hits finds it at `now`. `bounds` are the boundaries of a calendar window that
    /// holds `now`.
    fn observe(&self, stored: Option<&Self::State>, asked: Hits, bounds: Option<Bounds>, now: Micros)
    -> Self::Observed;

    /// Whether the observed state must be stored even if nothing is charged. [tm-3]
    ///
    /// There are two reasons. The clock stepped back so far that the state is no longer believed: every charge would
    /// find it ahead until the clock catches up. Or another limit wrote the debt: it would still drain at the old rate.
    fn is_stale(&self, stored: &Self::State, bounds: Option<Bounds>, now: Micros) -> bool;

    /// The observation after an effect in plain hits. None for a summary, which does not have the parts.
    fn left(&self, before: Self::Observed, effect: Effect, now: Micros) -> Option<Self::Observed>;

    /// The state after an effect in plain hits, as a charge of `asked` hits would find it. `before` is the observation
    /// of such a charge.
    fn left_of(
        &self,
        stored: Option<&Self::State>,
        before: Self::Observed,
        asked: Hits,
        effect: Effect,
        now: Micros,
    ) -> Self::Observed;

    /// Applies an effect in plain hits. A state that can be long changes in place.
    fn apply(
        &self,
        stored: Option<&mut Self::State>,
        before: Self::Observed,
        effect: Effect,
        is_stale: bool,
        now: Micros,
    ) -> Written<Self::State>;

    /// Undoes the charge of the receipt, as far as it still counts. [un-1]
    fn undo(
        &self,
        stored: Option<&mut Self::State>,
        before: Self::Observed,
        receipt: Receipt,
        is_stale: bool,
        now: Micros,
    ) -> Written<Self::State>;

    /// Converts an observation under another limit of the same shape to the observation under this limit.
    fn reobserved(&self, found: Self::Observed, _now: Micros) -> Self::Observed {
        found
    }

    /// An earlier observation, moved to `now` without a charge in between. [dn-3]
    fn later(&self, found: Self::Observed, now: Micros) -> Self::Observed;

    /// A state written at `now`, before the next charge cuts it to the maximum that the limit believes.
    fn as_written(&self, stored: &Self::State, bounds: Option<Bounds>, now: Micros) -> Self::Observed {
        self.observe(Some(stored), 0, bounds, now)
    }

    /// The largest number of hits that would be admitted.
    fn remaining(&self, observed: &Self::Observed, now: Micros) -> Hits;

    /// The wait in microseconds, rounded up, until `hits` fit. They do not fit now, and are at most the capacity. If
    /// the observation is a summary, `hits` are the requested hits.
    fn retry_after(&self, observed: &Self::Observed, hits: Hits, now: Micros) -> Micros;

    /// The microseconds, rounded up, until the state equals an empty one without further charges.
    fn reset_after(&self, observed: &Self::Observed, now: Micros) -> Micros;

    /// Whether more hits are charged than the limit holds. [dc-6]
    fn is_past(&self, observed: &Self::Observed, now: Micros) -> bool;

    /// The wait of an admitted request until its turn, in microseconds. [lb-2]
    fn turn_after(&self, _before: &Self::Observed, _now: Micros) -> Micros {
        0
    }

    /// Whether the state equals an empty one, so the store can delete its key.
    fn is_empty(observed: &Self::Observed, now: Micros) -> bool;

    /// The part of the state that a charge goes to, for its receipt. [un-1]
    fn mark(observed: &Self::Observed) -> u64;

    /// The number from a receipt that a script searches for.
    fn proof(receipt: Receipt) -> u64 {
        receipt.mark
    }

    /// The numbers of a charge, in the order in which its script reads them.
    fn script_numbers(&self, hits: Hits, bounds: Option<Bounds>) -> Self::Numbers;

    /// Reads the numbers that a script returned for one charge: the state before it, and for a summary the state after
    /// it. None if they are not of this kind.
    fn read_reply(&self, numbers: &[u64], now: Micros) -> Option<(Self::Observed, Option<Self::Observed>)>;

    /// A state from the numbers that Redis stores. None if they are not of this kind.
    fn read_stored(numbers: &[u64]) -> Option<Self::State>;
}

/// An array of numbers, with its length.
pub trait ScriptNumbers: AsRef<[u64]> {
    const COUNT: usize;
}

impl<const N: usize> ScriptNumbers for [u64; N] {
    const COUNT: usize = N;
}

/// Implements the effects on a state that is observed whole. The file provides the functions `added`, `refunded`,
/// `undone` and `stored`.
macro_rules! small_state {
    () => {
        fn left(&self, before: Self::Observed, effect: Effect, now: Micros) -> Option<Self::Observed> {
            Some(match effect {
                Effect::Nothing | Effect::Drain | Effect::Rewrite => before,
                Effect::Add(hits) => self.added(before, hits, now),
                Effect::Refund(hits) => self.refunded(before, hits, now),
            })
        }

        fn left_of(
            &self,
            _stored: Option<&Self::State>,
            before: Self::Observed,
            _asked: Hits,
            effect: Effect,
            now: Micros,
        ) -> Self::Observed {
            self.left(before, effect, now).unwrap_or(before)
        }

        fn apply(
            &self,
            _stored: Option<&mut Self::State>,
            before: Self::Observed,
            effect: Effect,
            is_stale: bool,
            now: Micros,
        ) -> Written<Self::State> {
            let left = self.left(before, effect, now).unwrap_or(before);
            Written::of(left == before && !is_stale, Self::is_empty(&left, now), Self::stored(left))
        }

        fn undo(
            &self,
            _stored: Option<&mut Self::State>,
            before: Self::Observed,
            receipt: Receipt,
            is_stale: bool,
            now: Micros,
        ) -> Written<Self::State> {
            let left = self.undone(before, receipt, now);
            Written::of(left == before && !is_stale, Self::is_empty(&left, now), Self::stored(left))
        }
    };
}

/// Implements the effects on a long state that is observed as a [`Summary`], and the values derived from the summary.
/// The file provides the functions `summary`, `change`, `take_back` and `holds_nothing`.
macro_rules! long_state {
    () => {
        const IS_SUMMARY: bool = true;
        const REPLY: usize = 8;

        fn observe(&self, stored: Option<&Self::State>, asked: Hits, _bounds: Option<Bounds>, now: Micros) -> Summary {
            self.summary(stored.map(Borrow::borrow), asked, Effect::Nothing, now)
        }

        fn left(&self, _before: Summary, _effect: Effect, _now: Micros) -> Option<Summary> {
            None
        }

        fn left_of(
            &self,
            stored: Option<&Self::State>,
            before: Summary,
            asked: Hits,
            effect: Effect,
            now: Micros,
        ) -> Summary {
            match effect {
                Effect::Add(_) | Effect::Refund(_) => self.summary(stored.map(Borrow::borrow), asked, effect, now),
                Effect::Nothing | Effect::Drain | Effect::Rewrite => before,
            }
        }

        fn apply(
            &self,
            stored: Option<&mut Self::State>,
            _before: Summary,
            effect: Effect,
            _is_stale: bool,
            now: Micros,
        ) -> Written<Self::State> {
            let mut new = Self::State::default();
            let is_new = stored.is_none();
            let state = stored.unwrap_or(&mut new);
            self.change(state, effect, now);
            match (Self::holds_nothing(state), is_new) {
                (true, _) => Written::Gone,
                (false, false) => Written::InPlace,
                (false, true) => Written::Put(new),
            }
        }

        fn undo(
            &self,
            stored: Option<&mut Self::State>,
            _before: Summary,
            receipt: Receipt,
            _is_stale: bool,
            now: Micros,
        ) -> Written<Self::State> {
            let Some(state) = stored else {
                return Written::Kept;
            };
            match (self.take_back(state, receipt, now), Self::holds_nothing(state)) {
                (false, _) => Written::Kept,
                (true, true) => Written::Gone,
                (true, false) => Written::InPlace,
            }
        }

        /// Used hits stay until all of them have expired: a summary does not have the expiry of each part.
        fn later(&self, found: Summary, now: Micros) -> Summary {
            if now < found.empty_at { found } else { Summary { used: 0, fits_at: 0, empty_at: 0, mark: found.mark } }
        }

        fn remaining(&self, observed: &Summary, _now: Micros) -> Hits {
            self.requests().saturating_sub(observed.used)
        }

        fn retry_after(&self, observed: &Summary, _hits: Hits, now: Micros) -> Micros {
            observed.fits_at.saturating_sub(now)
        }

        fn reset_after(&self, observed: &Summary, now: Micros) -> Micros {
            observed.empty_at.saturating_sub(now)
        }

        fn is_past(&self, observed: &Summary, _now: Micros) -> bool {
            observed.used > self.requests()
        }

        fn is_empty(observed: &Summary, _now: Micros) -> bool {
            observed.used == 0
        }

        fn mark(observed: &Summary) -> u64 {
            observed.mark
        }

        fn read_reply(&self, numbers: &[u64], _now: Micros) -> Option<(Summary, Option<Summary>)> {
            Summary::read_reply(numbers)
        }
    };
}

/// A summary, for a charge of some hits, of a state that keeps hits with their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The hits that still count, at most 2^32 - 1.
    pub used: Hits,
    /// When the charge's hits would fit without other requests. 0 if they fit now, and if they never fit.
    pub fits_at: Micros,
    /// When the last of the hits stops counting; 0 if none counts.
    pub empty_at: Micros,
    /// The part that a receipt would name: the newest bucket, or the sum of the newest entry.
    pub mark: u64,
}

impl Summary {
    /// Reads two summaries from the numbers of a script's reply: before the charge, and after it.
    pub(super) fn read_reply(numbers: &[u64]) -> Option<(Self, Option<Self>)> {
        let &[used, fits_at, empty_at, mark, used_after, fits_at_after, empty_at_after, mark_after] = numbers else {
            return None;
        };
        let before = Self { used: small(used)?, fits_at, empty_at, mark };
        let after =
            Self { used: small(used_after)?, fits_at: fits_at_after, empty_at: empty_at_after, mark: mark_after };
        Some((before, Some(after)))
    }
}

/// What a charge does to the state that it finds. [dc-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// Adds hits, even if they do not fit.
    Add(Hits),
    /// Gives hits back, never below empty.
    Refund(Hits),
    /// Adds all remaining hits.
    Drain,
    /// Stores the observed state, although nothing is charged: see [`Counting::is_stale`].
    Rewrite,
}

impl Effect {
    /// The effect in plain hits: never a drain, and nothing if nothing changes.
    pub(super) fn on<C: Counting>(self, counting: &C, before: &C::Observed, now: Micros) -> Self {
        match self {
            Self::Drain => match counting.remaining(before, now) {
                0 => Self::Nothing,
                left => Self::Add(left),
            },
            Self::Add(0) | Self::Refund(0) => Self::Nothing,
            Self::Refund(_) if C::is_empty(before, now) => Self::Nothing,
            effect => effect,
        }
    }
}

/// The result of an algorithm on a stored state.
#[derive(Debug)]
pub enum Written<S> {
    /// The state stays unchanged.
    Kept,
    InPlace,
    Put(S),
    /// The state is empty.
    Gone,
}

impl<S> Written<S> {
    /// The result for a state that is observed whole.
    pub(super) fn of(is_same: bool, is_empty: bool, state: S) -> Self {
        match (is_same, is_empty) {
            (true, _) => Self::Kept,
            (false, true) => Self::Gone,
            (false, false) => Self::Put(state),
        }
    }
}

/// The result of a change of a state in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The state stays unchanged, with its expiry, even if the charge observed a rolled window.
    Kept,
    /// The state was written, and its expiry changed.
    Put,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoScript {
    /// The `undo` of the kind's Lua fragment.
    List,
    /// lua/undo_log.lua. It rewrites each later charge, so it is a separate call.
    Log,
}

/// The numbers that a script gets, each below 2^53. [ar-2]
pub type StateNumbers = SmallVec<[u64; 8]>;

/// Converts a script's number that is a count.
pub(super) fn small(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}
