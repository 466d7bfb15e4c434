//! One file per algorithm, and the one place that tells them apart.
//!
//! A [`State`] is what a store keeps. A [`Observed`] is that state as one charge finds it: windows rolled, debts drained,
//! clock steps taken into account, and small enough to copy. Everything that a decision says follows from what was
//! seen, and is derived here for every store; the Lua scripts hold [`seen`] and [`apply`], and the [`Summary`] of a state
//! that can be long.

pub mod anchored_window;
pub mod fixed_window;
pub mod gcra;
pub mod sliding_window;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

use super::charge::Receipt;
use super::descriptor::Hits;
use super::limit::{Algorithm, Anchor, Limit, Refill};
use super::time::{Bounds, Micros};

/// How far a windowed state may lie ahead of a clock that stepped back and still be believed, in microseconds, if its
/// window is shorter. [tm-2]
pub const AHEAD_US_MIN: u64 = 60_000_000;

/// What a key stores. Which kind it is follows from the limit's shape, which is part of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Hits counted in one window of the clock.
    FixedWindow(fixed_window::Counter),
    /// Hits counted in a window that begins with its first hit, or with a calendar's.
    AnchoredWindow(anchored_window::Window),
    /// Hits counted in this window and in the one before.
    SlidingWindowCounter(sliding_window_counter::Counts),
    /// Hits counted in the sub-buckets of a window.
    SlidingWindow(Box<sliding_window::Buckets>),
    /// Every charge of a window.
    SlidingWindowLog(Box<sliding_window_log::Log>),
    /// A debt that drains at a steady rate.
    Pacing(gcra::Debt),
    /// Hits used of a bucket that is refilled in steps.
    TokenBucket(token_bucket::Bucket),
}

/// A state as one charge finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// See [`State::FixedWindow`].
    FixedWindow(fixed_window::Counter),
    /// See [`State::AnchoredWindow`].
    AnchoredWindow(anchored_window::ObservedWindow),
    /// See [`State::SlidingWindowCounter`].
    SlidingWindowCounter(sliding_window_counter::Counts),
    /// What matters of [`State::SlidingWindow`] and [`State::SlidingWindowLog`], which can be long.
    Summary(Summary),
    /// See [`State::Pacing`].
    Pacing(gcra::Debt),
    /// See [`State::TokenBucket`].
    TokenBucket(token_bucket::Bucket),
}

/// What matters of a state that keeps hits apart by their time, for a charge of so many hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The hits that still count, at most 2^32 - 1.
    pub used: Hits,
    /// When the charge's hits would fit, all else equal: 0 where they do, or never will.
    pub fits_at: Micros,
    /// When the last of the hits stops counting; 0 where none counts.
    pub empty_at: Micros,
    /// What a receipt would name: the newest bucket, or the sum of the newest entry.
    pub mark: u64,
}

/// What a charge does to the state that it finds. [dc-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// Adds hits, whether or not they fit.
    Add(Hits),
    /// Gives hits back, never below empty.
    Give(Hits),
    /// Adds whatever is left.
    Drain,
    /// Stores what was seen, though nothing is charged: see [`is_stale`].
    Rewrite,
}

impl Effect {
    /// The effect on a state in plain hits: never a drain, and nothing where nothing would change.
    fn on(self, limit: &Limit, before: &Observed, now: Micros) -> Self {
        match self {
            Self::Drain => Self::Add(before.remaining(limit, now)).on(limit, before, now),
            Self::Add(0) | Self::Give(0) => Self::Nothing,
            Self::Give(_) if before.is_empty(now) => Self::Nothing,
            effect => effect,
        }
    }
}

/// What was done to a state in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: it stays as it was, rolled or not; so does the time at which it expires.
    Kept,
    /// It was written, so that it expires at another time.
    Put,
    /// It is empty, so that its key can go.
    Gone,
}

impl Change {
    const fn to(is_empty: bool) -> Self {
        if is_empty { Self::Gone } else { Self::Put }
    }

    /// The same for a caller who holds the state.
    fn with(self, state: Option<State>) -> Next {
        match (self, state) {
            (Self::Kept, state) => Next::Kept(state),
            (Self::Put, Some(state)) => Next::Put(state),
            (Self::Put | Self::Gone, _) => Next::Gone,
        }
    }
}

/// What becomes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It stays as it was, rolled or not; so does the time at which it expires.
    Kept(Option<State>),
    /// It is this from now on.
    Put(State),
    /// It is empty, so that it can go.
    Gone,
}

impl Next {
    /// The state that the key has then.
    #[must_use]
    pub fn into_state(self) -> Option<State> {
        match self {
            Self::Kept(state) => state,
            Self::Put(state) => Some(state),
            Self::Gone => None,
        }
    }
}

/// What follows from a state as seen. One implementation for each kind of [`Observed`].
trait View {
    /// The largest number of hits that a take would be admitted for.
    fn remaining(&self, limit: &Limit, now: Micros) -> Hits;
    /// The wait until `hits` that do not fit would, in microseconds; `hits` is at most the capacity.
    fn retry_after(&self, limit: &Limit, hits: Hits, now: Micros) -> Micros;
    /// The time until a state that nobody touches equals an empty one, in microseconds.
    fn reset_after(&self, limit: &Limit, now: Micros) -> Micros;
    /// Whether it is worth nothing, so that its key can go.
    fn is_empty(&self, now: Micros) -> bool;
    /// Whether more has been taken than the limit holds.
    fn is_past(&self, limit: &Limit, now: Micros) -> bool;
    /// Which part of the state a charge goes to.
    fn mark(&self) -> u64;
}

impl View for Summary {
    fn remaining(&self, limit: &Limit, _now: Micros) -> Hits {
        limit.requests().saturating_sub(self.used)
    }

    fn retry_after(&self, _limit: &Limit, _hits: Hits, now: Micros) -> Micros {
        self.fits_at.saturating_sub(now)
    }

    fn reset_after(&self, _limit: &Limit, now: Micros) -> Micros {
        self.empty_at.saturating_sub(now)
    }

    fn is_empty(&self, _now: Micros) -> bool {
        self.used == 0
    }

    fn is_past(&self, limit: &Limit, _now: Micros) -> bool {
        self.used > limit.requests()
    }

    fn mark(&self) -> u64 {
        self.mark
    }
}

impl Observed {
    fn view(&self) -> &dyn View {
        match self {
            Self::FixedWindow(seen) => seen,
            Self::AnchoredWindow(seen) => seen,
            Self::SlidingWindowCounter(seen) => seen,
            Self::Summary(seen) => seen,
            Self::Pacing(seen) => seen,
            Self::TokenBucket(seen) => seen,
        }
    }

    /// The largest number of hits that a take would be admitted for at `now`.
    #[must_use]
    pub fn remaining(&self, limit: &Limit, now: Micros) -> Hits {
        if limit.requests() == 0 { 0 } else { self.view().remaining(limit, now) }
    }

    /// The wait in microseconds, rounded up, until `hits` that do not fit now would, all else equal.
    ///
    /// `hits` is at most the limit's capacity, since more would wait for ever; a summary knows only the hits that it
    /// was made for.
    #[must_use]
    pub fn retry_after(&self, limit: &Limit, hits: Hits, now: Micros) -> Micros {
        self.view().retry_after(limit, hits, now)
    }

    /// The time in microseconds, rounded up, until a state that nobody touches equals an empty one.
    #[must_use]
    pub fn reset_after(&self, limit: &Limit, now: Micros) -> Micros {
        self.view().reset_after(limit, now)
    }

    /// Whether the state is worth nothing, so that its key can go.
    #[must_use]
    pub fn is_empty(&self, now: Micros) -> bool {
        self.view().is_empty(now)
    }

    /// Whether more has been taken than the limit holds: what a look of independent charging goes by. [dc-6]
    #[must_use]
    pub fn is_past(&self, limit: &Limit, now: Micros) -> bool {
        self.view().is_past(limit, now)
    }

    /// Which part of the state a charge went to, for its receipt. [un-1]
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.view().mark()
    }
}

/// A state that belongs to another shape than the limit: keys hold the shape, so only a bug can do this.
fn mismatch(limit: &Limit, state: Option<&State>) -> ! {
    unreachable!("a {} limit met the state {state:?}", limit.algorithm().name())
}

/// The state as a charge of `hits` finds it at `now`.
///
/// `bounds` are those of a calendar window, and hold `now`; none for every other limit.
#[must_use]
pub fn seen(limit: &Limit, state: Option<&State>, hits: Hits, bounds: Option<Bounds>, now: Micros) -> Observed {
    match (limit.algorithm(), state) {
        (Algorithm::FixedWindow { anchor: Anchor::Clock }, None) => {
            Observed::FixedWindow(fixed_window::seen(limit, None, now))
        }
        (Algorithm::FixedWindow { anchor: Anchor::Clock }, Some(State::FixedWindow(stored))) => {
            Observed::FixedWindow(fixed_window::seen(limit, Some(*stored), now))
        }
        (Algorithm::FixedWindow { .. }, None) => {
            Observed::AnchoredWindow(anchored_window::seen(limit, None, bounds, now))
        }
        (Algorithm::FixedWindow { .. }, Some(State::AnchoredWindow(stored))) => {
            Observed::AnchoredWindow(anchored_window::seen(limit, Some(*stored), bounds, now))
        }
        (Algorithm::SlidingWindowCounter, None) => {
            Observed::SlidingWindowCounter(sliding_window_counter::seen(limit, None, now))
        }
        (Algorithm::SlidingWindowCounter, Some(State::SlidingWindowCounter(stored))) => {
            Observed::SlidingWindowCounter(sliding_window_counter::seen(limit, Some(*stored), now))
        }
        (Algorithm::SlidingWindow { .. } | Algorithm::SlidingWindowLog, state) => {
            Observed::Summary(summary(limit, state, hits, Effect::Nothing, now))
        }
        (Algorithm::TokenBucket { refill: Refill::Interval, .. }, None) => {
            Observed::TokenBucket(token_bucket::seen(limit, None, now))
        }
        (Algorithm::TokenBucket { refill: Refill::Interval, .. }, Some(State::TokenBucket(stored))) => {
            Observed::TokenBucket(token_bucket::seen(limit, Some(*stored), now))
        }
        (Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } | Algorithm::TokenBucket { .. }, None) => {
            Observed::Pacing(gcra::seen(limit, None, now))
        }
        (
            Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } | Algorithm::TokenBucket { .. },
            Some(State::Pacing(stored)),
        ) => Observed::Pacing(gcra::seen(limit, Some(*stored), now)),
        (_, state) => mismatch(limit, state),
    }
}

/// A state that a charge under another limit of the same shape found, as one under this limit would.
#[must_use]
pub fn seen_by(limit: &Limit, found: &Observed, now: Micros) -> Observed {
    match found {
        Observed::Pacing(debt) => Observed::Pacing(gcra::seen(limit, Some(*debt), now)),
        Observed::TokenBucket(bucket) => Observed::TokenBucket(token_bucket::seen(limit, Some(*bucket), now)),
        found => *found,
    }
}

/// A state that was seen earlier, as it is at `now` if nobody came since. [dn-3]
///
/// What is used of a summary stays as it was until none of it counts, since a summary does not hold when each part
/// goes. A calendar's window that has ended becomes one without hits and without length: where the next one ends is not
/// known here. Of fixed windows `now` may be up to 2^20 windows later, as everywhere.
#[must_use]
pub fn later(limit: &Limit, found: &Observed, now: Micros) -> Observed {
    match found {
        Observed::FixedWindow(counter) => Observed::FixedWindow(fixed_window::seen(limit, Some(*counter), now)),
        Observed::AnchoredWindow(window) if now < window.end => *found,
        Observed::AnchoredWindow(_) => {
            Observed::AnchoredWindow(anchored_window::ObservedWindow { start: now, end: now, count: 0 })
        }
        Observed::SlidingWindowCounter(counts) => {
            Observed::SlidingWindowCounter(sliding_window_counter::seen(limit, Some(*counts), now))
        }
        Observed::Summary(summary) if now < summary.empty_at => *found,
        Observed::Summary(summary) => {
            Observed::Summary(Summary { used: 0, fits_at: 0, empty_at: 0, mark: summary.mark })
        }
        Observed::Pacing(_) | Observed::TokenBucket(_) => seen_by(limit, found, now),
    }
}

/// A state that was written at `now`, as it is: not yet clamped to what a limit believes at the next charge.
#[must_use]
pub fn as_written(limit: &Limit, state: &State, bounds: Option<Bounds>, now: Micros) -> Observed {
    match state {
        State::Pacing(debt) => Observed::Pacing(*debt),
        State::TokenBucket(bucket) => Observed::TokenBucket(*bucket),
        state => seen(limit, Some(state), 0, bounds, now),
    }
}

/// What a charge of `hits` leaves behind, as the same charge would find it.
#[must_use]
pub fn after(
    limit: &Limit,
    state: Option<&State>,
    before: &Observed,
    hits: Hits,
    effect: Effect,
    now: Micros,
) -> Observed {
    match before {
        Observed::Summary(_) => Observed::Summary(summary(limit, state, hits, effect.on(limit, before, now), now)),
        _ => changed(limit, before, effect, now),
    }
}

/// What a charge of `hits` finds of a state that can be long, or leaves behind after its effect in plain hits.
fn summary(limit: &Limit, state: Option<&State>, hits: Hits, effect: Effect, now: Micros) -> Summary {
    match (limit.algorithm(), state) {
        (Algorithm::SlidingWindow { .. }, None) => sliding_window::summary(limit, None, hits, effect, now),
        (Algorithm::SlidingWindow { .. }, Some(State::SlidingWindow(stored))) => {
            sliding_window::summary(limit, Some(stored), hits, effect, now)
        }
        (Algorithm::SlidingWindowLog, None) => sliding_window_log::summary(limit, None, hits, effect, now),
        (Algorithm::SlidingWindowLog, Some(State::SlidingWindowLog(stored))) => {
            sliding_window_log::summary(limit, Some(stored), hits, effect, now)
        }
        (_, state) => mismatch(limit, state),
    }
}

/// What an effect makes of a state that is small enough to be seen whole.
///
/// # Panics
/// On a summary: what becomes of it depends on what it leaves out.
#[must_use]
pub fn changed(limit: &Limit, before: &Observed, effect: Effect, now: Micros) -> Observed {
    match effect.on(limit, before, now) {
        Effect::Nothing | Effect::Drain | Effect::Rewrite => *before,
        Effect::Add(hits) => match before {
            Observed::FixedWindow(seen) => Observed::FixedWindow(fixed_window::added(*seen, hits)),
            Observed::AnchoredWindow(seen) => Observed::AnchoredWindow(anchored_window::added(limit, *seen, hits, now)),
            Observed::SlidingWindowCounter(seen) => {
                Observed::SlidingWindowCounter(sliding_window_counter::added(*seen, hits))
            }
            Observed::Pacing(seen) => Observed::Pacing(gcra::added(limit, *seen, hits, now)),
            Observed::TokenBucket(seen) => Observed::TokenBucket(token_bucket::added(limit, *seen, hits)),
            Observed::Summary(_) => unreachable!("a summary does not hold what adding to it needs"),
        },
        Effect::Give(hits) => match before {
            Observed::FixedWindow(seen) => Observed::FixedWindow(fixed_window::given(*seen, hits)),
            Observed::AnchoredWindow(seen) => Observed::AnchoredWindow(anchored_window::given(limit, *seen, hits, now)),
            Observed::SlidingWindowCounter(seen) => {
                Observed::SlidingWindowCounter(sliding_window_counter::given(*seen, hits))
            }
            Observed::Pacing(seen) => Observed::Pacing(gcra::given(limit, *seen, hits, now)),
            Observed::TokenBucket(seen) => Observed::TokenBucket(token_bucket::given(*seen, hits)),
            Observed::Summary(_) => unreachable!("a summary does not hold what giving back needs"),
        },
    }
}

/// What an effect makes of a key, whose state the caller holds.
#[must_use]
pub fn apply(limit: &Limit, mut state: Option<State>, effect: Effect, bounds: Option<Bounds>, now: Micros) -> Next {
    apply_in_place(limit, &mut state, effect, bounds, now).with(state)
}

/// What an effect makes of a key, whose state stays in its place: it can be long, and a store that would have to take it
/// out could lose it.
#[must_use]
pub fn apply_in_place(
    limit: &Limit,
    state: &mut Option<State>,
    effect: Effect,
    bounds: Option<Bounds>,
    now: Micros,
) -> Change {
    if is_stateless(limit) {
        return Change::Kept;
    }
    let before = seen(limit, state.as_ref(), 0, bounds, now);
    let effect = effect.on(limit, &before, now);
    let stale = state.as_ref().is_some_and(|state| is_stale(limit, state, bounds, now));
    if matches!(effect, Effect::Nothing | Effect::Rewrite) && !stale {
        return Change::Kept;
    }
    match limit.algorithm() {
        Algorithm::SlidingWindow { .. } => match state.get_or_insert_with(|| State::SlidingWindow(Box::default())) {
            State::SlidingWindow(buckets) => {
                sliding_window::apply(limit, buckets, effect, now);
                Change::to(buckets.buckets.is_empty())
            }
            other => mismatch(limit, Some(other)),
        },
        Algorithm::SlidingWindowLog => match state.get_or_insert_with(|| State::SlidingWindowLog(Box::default())) {
            State::SlidingWindowLog(log) => {
                sliding_window_log::apply(limit, log, effect, now);
                Change::to(log.entries.is_empty())
            }
            other => mismatch(limit, Some(other)),
        },
        _ => match changed(limit, &before, effect, now) {
            // At its bound already.
            same if same == before && !stale => Change::Kept,
            next => put(state, &next, now),
        },
    }
}

/// The state without the one charge that the receipt proves, as far as it still stands. [un-1]
#[must_use]
pub fn undone(limit: &Limit, mut state: Option<State>, receipt: Receipt, bounds: Option<Bounds>, now: Micros) -> Next {
    undo_in_place(limit, &mut state, receipt, bounds, now).with(state)
}

/// The same, of a state that stays in its place.
#[must_use]
pub fn undo_in_place(
    limit: &Limit,
    state: &mut Option<State>,
    receipt: Receipt,
    bounds: Option<Bounds>,
    now: Micros,
) -> Change {
    if is_stateless(limit) {
        return Change::Kept;
    }
    let before = seen(limit, state.as_ref(), 0, bounds, now);
    let left = match &before {
        Observed::FixedWindow(seen) => Observed::FixedWindow(fixed_window::undone(*seen, receipt)),
        Observed::AnchoredWindow(seen) => Observed::AnchoredWindow(anchored_window::undone(limit, *seen, receipt, now)),
        Observed::SlidingWindowCounter(seen) => {
            Observed::SlidingWindowCounter(sliding_window_counter::undone(limit, *seen, receipt))
        }
        Observed::Pacing(seen) => Observed::Pacing(gcra::undone(limit, *seen, receipt, now)),
        Observed::TokenBucket(seen) => Observed::TokenBucket(token_bucket::undone(limit, *seen, receipt)),
        Observed::Summary(_) => {
            let (is_undone, is_empty) = match state {
                Some(State::SlidingWindow(buckets)) => {
                    (sliding_window::undone(limit, buckets, receipt, now), buckets.buckets.is_empty())
                }
                Some(State::SlidingWindowLog(log)) => {
                    (sliding_window_log::undone(limit, log, receipt, now), log.entries.is_empty())
                }
                _ => return Change::Kept,
            };
            return if is_undone { Change::to(is_empty) } else { Change::Kept };
        }
    };
    // A charge that no longer stands leaves the state as it was, rolled or not.
    if left == before && !state.as_ref().is_some_and(|state| is_stale(limit, state, bounds, now)) {
        return Change::Kept;
    }
    put(state, &left, now)
}

/// Stores what was seen whole, in place of what was stored.
fn put(state: &mut Option<State>, seen: &Observed, now: Micros) -> Change {
    *state = stored(seen, now);
    Change::to(state.is_none())
}

/// What a store keeps of a state that was seen whole; nothing where it is empty.
fn stored(seen: &Observed, now: Micros) -> Option<State> {
    if seen.is_empty(now) {
        return None;
    }
    Some(match seen {
        Observed::FixedWindow(seen) => State::FixedWindow(*seen),
        Observed::AnchoredWindow(seen) => {
            State::AnchoredWindow(anchored_window::Window { start: seen.start, count: seen.count })
        }
        Observed::SlidingWindowCounter(seen) => State::SlidingWindowCounter(*seen),
        Observed::Pacing(seen) => State::Pacing(*seen),
        Observed::TokenBucket(seen) => State::TokenBucket(*seen),
        Observed::Summary(_) => unreachable!("a summary is not stored"),
    })
}

/// The wait of an admitted request until its turn, in microseconds: the debt before it, rounded up. [lb-2]
#[must_use]
pub fn wait(limit: &Limit, before: &Observed, now: Micros) -> Micros {
    match limit.algorithm() {
        Algorithm::LeakyBucket { .. } => before.reset_after(limit, now),
        _ => 0,
    }
}

/// When hits would fit again, after a charge left this behind: 0 where they do, nothing where they never will.
#[must_use]
pub fn fits_after(limit: &Limit, left: &Observed, hits: Hits, now: Micros) -> Option<Micros> {
    if hits > limit.capacity() {
        None
    } else if hits <= left.remaining(limit, now) {
        Some(0)
    } else {
        Some(left.retry_after(limit, hits, now))
    }
}

/// Whether independent charging counts denied hits of this limit. Only a fixed window can: a bucket that is being hit
/// would starve for ever, and a log would grow without bound. [dc-4]
#[must_use]
pub const fn counts_denied(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow { .. })
}

/// Whether the limit keeps no state at all: a limit of 0 has nothing to count, but for a fixed window, whose denied
/// hits count. [lm-5]
#[must_use]
pub const fn is_stateless(limit: &Limit) -> bool {
    limit.requests() == 0 && !counts_denied(limit)
}

/// Whether a state has to be stored as it was seen by whatever touches it, even where nothing is charged. [tm-3]
///
/// The clock stepped back by so much that the state is no longer believed: it would be met ahead again and again, and
/// stay silent until the clock has caught up. Or another limit wrote a debt: it would go on draining at the old rate.
#[must_use]
pub fn is_stale(limit: &Limit, stored: &State, bounds: Option<Bounds>, now: Micros) -> bool {
    if is_stateless(limit) {
        return false;
    }
    match stored {
        State::FixedWindow(counter) => fixed_window::is_far_ahead(limit, *counter, now),
        State::AnchoredWindow(window) => anchored_window::is_far_ahead(limit, *window, bounds, now),
        State::SlidingWindowCounter(counts) => {
            !is_believed(u128::from(counts.start.saturating_sub(now)), limit.window().us())
        }
        State::SlidingWindow(buckets) => sliding_window::is_far_ahead(limit, buckets, now),
        State::SlidingWindowLog(log) => sliding_window_log::is_far_ahead(limit, log, now),
        State::Pacing(debt) => gcra::is_stale(limit, *debt, now),
        State::TokenBucket(bucket) => !is_believed(u128::from(bucket.anchor.saturating_sub(now)), limit.window().us()),
    }
}

/// Whether a state that lies `ahead_us` ahead of the clock is believed: the clock has stepped back a little. [tm-2]
fn is_believed(ahead_us: u128, window_us: u64) -> bool {
    ahead_us <= u128::from(window_us.max(AHEAD_US_MIN))
}
