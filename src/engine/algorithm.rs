//! The algorithms: one file for each kind of state, and the tables of them.
//!
//! A policy names an [`Algorithm`]. Algorithm, anchor and refill determine a [`StateKind`] once, when the limit is
//! made. The kind defines the state that a store keeps ([`State`]), the state that a charge finds ([`Observed`]), and
//! the state that it leaves. The Lua scripts make the same transition and return the state that they found. Rust
//! derives everything else.

#[macro_use]
pub mod counting;
#[macro_use]
mod kinds;
#[macro_use]
mod names;
mod table;

pub mod anchored_window;
pub mod fixed_window;
pub mod gcra;
pub mod parameters;
pub mod sliding_window;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

use std::fmt::{self, Debug};

use smallvec::{SmallVec, smallvec};

use self::counting::Written;
pub use self::counting::{Change, CountedWindow, Effect, Receipt, StateNumbers, StoredFormat, Summary, UndoScript};
pub use self::counting::{Counting, ScriptNumbers};
use self::gcra::{BurstError, Pace, Pacing, full_burst};
use self::parameters::{Anchor, Parameter, ParameterValue, Parameters, Precision, Refill};
use self::sliding_window::BUCKETS_MAX;
use self::sliding_window_log::REQUESTS_MAX as LOG_REQUESTS_MAX;
use super::descriptor::Hits;
use super::time::{Bounds, Duration, Micros, Window};

algorithms! {
    /// Counts in windows. Admits at most twice the limit over any span of one window.
    FixedWindow {
        anchor: Anchor,
    } = "fixed_window",
    /// Counts in two windows and weights the earlier one.
    SlidingWindowCounter = "sliding_window_counter",
    /// Counts in the sub-buckets of a window. Never admits more than the limit over any span of one window.
    SlidingWindow {
        /// The length of a sub-bucket: divides the window into at most 256.
        precision: Precision,
    } = "sliding_window",
    /// Keeps every charge. The limit is at most 10,000 hits.
    SlidingWindowLog = "sliding_window_log",
    /// A steady rate. Unused tokens are saved for a burst.
    TokenBucket {
        /// The most hits at one instant, at least 1.
        burst: u32,
        refill: Refill,
    } = "token_bucket",
    /// Admits what `gcra` admits, and gives each admitted request the wait until its turn. [lb-1]
    LeakyBucket {
        /// The most hits at one instant, at least 1.
        burst: u32,
    } = "leaky_bucket",
    /// The generic cell rate algorithm: a steady rate with a burst.
    Gcra {
        /// The most hits at one instant, at least 1.
        burst: u32,
    } = "gcra",
    /// Limits requests in flight. Each request holds a permit until its receipt releases it or the window ends. [cc-1]
    Concurrency = "concurrency",
}

impl Algorithm {
    /// A fixed window aligned to the clock, the default of policies.
    pub const FIXED_WINDOW: Self = Self::FixedWindow { anchor: Anchor::Clock };

    /// The kind of state that a limit with this many hits per window has. It contains the numbers of the limit.
    /// Fails when a bound of the algorithm is broken. A limit of 0 has no bounds, because it never admits. [lm-2]
    pub(super) fn kind(self, requests: u32, window: Window) -> Result<StateKind, LimitError> {
        use anchored_window::AnchoredWindow;
        let pacing = |pace, burst| match Pacing::new(pace, requests, window, burst) {
            Ok(pacing) => Ok(StateKind::Pacing(pacing)),
            Err(error) => Err(LimitError::from(error)),
        };
        Ok(match self {
            Self::FixedWindow { anchor: Anchor::Clock } => {
                StateKind::FixedWindow(fixed_window::FixedWindow::new(requests, window))
            }
            Self::FixedWindow { anchor: Anchor::FirstHit } => {
                StateKind::AnchoredWindow(AnchoredWindow::from_first_hit(requests, window))
            }
            Self::FixedWindow { anchor: Anchor::Calendar(unit) } => {
                StateKind::AnchoredWindow(AnchoredWindow::of_calendar(requests, window, unit))
            }
            Self::SlidingWindowCounter => {
                StateKind::SlidingWindowCounter(sliding_window_counter::SlidingWindowCounter::new(requests, window))
            }
            Self::SlidingWindow { precision } => {
                let sliding = sliding_window::SlidingWindow::new(requests, window, precision);
                let wrong = LimitError::Precision { us: precision.get(), window_us: window.us() };
                StateKind::SlidingWindow(sliding.ok_or(wrong)?)
            }
            Self::SlidingWindowLog => {
                let log = sliding_window_log::SlidingWindowLog::new(requests, window);
                StateKind::SlidingWindowLog(log.ok_or(LimitError::LogTooLong { requests })?)
            }
            Self::TokenBucket { burst, refill: Refill::Continuous } => pacing(Pace::TokenBucket, burst)?,
            Self::TokenBucket { burst, refill: Refill::Interval } => {
                full_burst(requests, window, burst)?;
                StateKind::TokenBucket(token_bucket::TokenBucket::new(requests, window, burst))
            }
            Self::LeakyBucket { burst } => pacing(Pace::LeakyBucket, burst)?,
            Self::Gcra { burst } => pacing(Pace::Gcra, burst)?,
            Self::Concurrency => {
                let precision = Self::default_precision(window);
                let permits = sliding_window::SlidingWindow::of_permits(requests, window, precision);
                StateKind::SlidingWindow(permits.ok_or(LimitError::PermitWindow { us: window.us() })?)
            }
        })
    }

    /// The algorithm's parameters, in the order in which policies list them.
    pub fn parameters(self) -> SmallVec<[Parameter; 2]> {
        let set = |name, value, is_default| Parameter { name, value, is_default };
        let burst = |burst| set("burst", ParameterValue::Hits(burst), false);
        match self {
            Self::FixedWindow { anchor: Anchor::Clock } => {
                smallvec![set("anchor", ParameterValue::Word("clock"), true)]
            }
            Self::FixedWindow { anchor: Anchor::FirstHit } => {
                smallvec![set("anchor", ParameterValue::Word("first_hit"), false)]
            }
            Self::FixedWindow { anchor: Anchor::Calendar(unit) } => {
                smallvec![set("calendar", ParameterValue::Calendar(unit), false)]
            }
            Self::SlidingWindow { precision } => {
                smallvec![set("precision", ParameterValue::Length(precision.get()), false)]
            }
            Self::TokenBucket { burst: most, refill } => {
                let (refill, is_default) = match refill {
                    Refill::Continuous => ("continuous", true),
                    Refill::Interval => ("interval", false),
                };
                smallvec![burst(most), set("refill", ParameterValue::Word(refill), is_default)]
            }
            Self::LeakyBucket { burst: most } | Self::Gcra { burst: most } => smallvec![burst(most)],
            Self::SlidingWindowCounter | Self::SlidingWindowLog | Self::Concurrency => SmallVec::new(),
        }
    }

    /// Whether the algorithm counts in windows with a beginning and an end. Only then can a share be crossed once in
    /// each. [al-2]
    pub const fn has_windows(self) -> bool {
        match self {
            Self::FixedWindow { .. } => true,
            Self::SlidingWindowCounter
            | Self::SlidingWindow { .. }
            | Self::SlidingWindowLog
            | Self::TokenBucket { .. }
            | Self::LeakyBucket { .. }
            | Self::Gcra { .. }
            | Self::Concurrency => false,
        }
    }

    /// Whether hits are counted in steps. All hits of one step leave the same state, at any instant of the step. [ls-4]
    pub const fn has_steps(self) -> bool {
        match self {
            Self::FixedWindow { .. } | Self::SlidingWindow { .. } => true,
            Self::SlidingWindowCounter
            | Self::SlidingWindowLog
            | Self::TokenBucket { .. }
            | Self::LeakyBucket { .. }
            | Self::Gcra { .. }
            | Self::Concurrency => false,
        }
    }

    /// Whether requests hold permits while they run, and hits are not counted. [cc-1]
    pub const fn counts_permits(self) -> bool {
        match self {
            Self::Concurrency => true,
            Self::FixedWindow { .. }
            | Self::SlidingWindowCounter
            | Self::SlidingWindow { .. }
            | Self::SlidingWindowLog
            | Self::TokenBucket { .. }
            | Self::LeakyBucket { .. }
            | Self::Gcra { .. } => false,
        }
    }

    /// Whether usage can be reported after the fact. A log cannot: each report would add an entry, without a bound. A
    /// permit cannot: it is consumed before the request runs. [dc-5]
    pub const fn takes_reports(self) -> bool {
        match self {
            Self::FixedWindow { .. }
            | Self::SlidingWindowCounter
            | Self::SlidingWindow { .. }
            | Self::TokenBucket { .. }
            | Self::LeakyBucket { .. }
            | Self::Gcra { .. } => true,
            Self::SlidingWindowLog | Self::Concurrency => false,
        }
    }

    /// Whether part of a charge can be given back later, after other charges. The receipt names the window of the hits.
    /// A debt cannot: it does not record whose hits drained. A log cannot: it would rewrite each later charge. [hd-1]
    pub const fn takes_holds(self) -> bool {
        match self {
            Self::FixedWindow { .. } | Self::SlidingWindowCounter | Self::SlidingWindow { .. } => true,
            // Permits are always held, without a setting: see `Limit::hold`.
            Self::SlidingWindowLog
            | Self::TokenBucket { .. }
            | Self::LeakyBucket { .. }
            | Self::Gcra { .. }
            | Self::Concurrency => false,
        }
    }

    /// Where windows begin. Only some fixed windows begin elsewhere than at the clock's multiples.
    pub const fn anchor(self) -> Anchor {
        match self {
            Self::FixedWindow { anchor } => anchor,
            Self::SlidingWindowCounter
            | Self::SlidingWindow { .. }
            | Self::SlidingWindowLog
            | Self::TokenBucket { .. }
            | Self::LeakyBucket { .. }
            | Self::Gcra { .. }
            | Self::Concurrency => Anchor::Clock,
        }
    }

    /// The algorithm for other hits and another window. Without a new burst, the burst keeps its ratio to the hits.
    /// Sub-buckets stay as they are unless the window changes. None if a burst is given and the algorithm has none.
    /// [ov-1]
    pub(super) fn resized(self, from: (u32, Window), to: (u32, Window), burst: Option<u32>) -> Option<Self> {
        let scaled = |old: u32| {
            let scaled = (u64::from(old) * u64::from(to.0)).checked_div(u64::from(from.0)).unwrap_or(u64::from(to.0));
            burst.unwrap_or_else(|| u32::try_from(scaled.max(1)).unwrap_or(u32::MAX))
        };
        Some(match self {
            Self::TokenBucket { burst, refill } => Self::TokenBucket { burst: scaled(burst), refill },
            Self::LeakyBucket { burst } => Self::LeakyBucket { burst: scaled(burst) },
            Self::Gcra { burst } => Self::Gcra { burst: scaled(burst) },
            _ if burst.is_some() => return None,
            Self::SlidingWindow { .. } if from.1 != to.1 => {
                Self::SlidingWindow { precision: Self::default_precision(to.1) }
            }
            Self::FixedWindow { .. }
            | Self::SlidingWindowCounter
            | Self::SlidingWindow { .. }
            | Self::SlidingWindowLog
            | Self::Concurrency => self,
        })
    }

    /// The default number of sub-buckets: 60, or the largest smaller number that divides the window.
    pub fn default_precision(window: Window) -> Precision {
        const BUCKETS: u64 = 60;
        let buckets = (1..=BUCKETS).rev().find(|count| window.us().is_multiple_of(*count)).unwrap_or(1);
        Precision::new(window.us() / buckets).unwrap_or(Precision::MIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// A burst of 0 could never admit anything.
    BurstZero,
    /// A full burst would take longer than 2^48 us (8.9 years) to drain.
    BurstTooLong {
        /// The time to drain, in microseconds.
        us: u64,
    },
    /// The sub-buckets do not divide the window, or are more than 256.
    Precision {
        /// The requested precision, in microseconds.
        us: u64,
        /// The window, in microseconds.
        window_us: u64,
    },
    /// A log keeps every charge, so its limit is bounded.
    LogTooLong {
        /// The requested hits.
        requests: u32,
    },
    /// The window of a limit on requests in flight is out of its bounds.
    PermitWindow {
        /// The window, in microseconds.
        us: u64,
    },
}

impl From<BurstError> for LimitError {
    fn from(error: BurstError) -> Self {
        match error {
            BurstError::Zero => Self::BurstZero,
            BurstError::TooLong(us) => Self::BurstTooLong { us },
        }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BurstZero => f.write_str("a burst of 0 admits nothing: at least 1"),
            Self::BurstTooLong { us } => {
                write!(f, "a full burst would take {} days to drain: at most 8.9 years (2^48 us)", us / 86_400_000_000)
            }
            Self::Precision { us, window_us } if !window_us.is_multiple_of(us) => {
                write!(f, "a precision of {} does not divide the window of {}", Duration(us), Duration(window_us))
            }
            Self::Precision { us, window_us } => {
                let count = window_us / us;
                write!(f, "a precision of {} makes {count} sub-buckets: at most {BUCKETS_MAX}", Duration(us))
            }
            Self::LogTooLong { requests } => write!(
                f,
                "a log of {requests} hits is too long: at most {LOG_REQUESTS_MAX} \
                 (sliding_window has the same bound in constant memory)"
            ),
            Self::PermitWindow { us } => write!(
                f,
                "a window of {}: the longest time that a request of concurrency may take is 1s to 1h, in whole milliseconds",
                Duration(us)
            ),
        }
    }
}

impl std::error::Error for LimitError {}

/// The result of an effect on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The state and its expiry stay unchanged, even if the charge observed a rolled window.
    Kept(Option<State>),
    Put(State),
    /// The state is empty, so the store can delete the key.
    Gone,
}

impl Next {
    /// The same change as a value, for a caller that owns the state.
    fn of(change: Change, state: Option<State>) -> Self {
        match (change, state) {
            (Change::Kept, state) => Self::Kept(state),
            (Change::Put, Some(state)) => Self::Put(state),
            (Change::Put | Change::Gone, _) => Self::Gone,
        }
    }

    pub fn into_state(self) -> Option<State> {
        match self {
            Self::Kept(state) => state,
            Self::Put(state) => Some(state),
            Self::Gone => None,
        }
    }
}

/// One kind of state in the enum of all kinds.
trait Variant: Counting {
    fn state(state: &State) -> Option<&Self::State>;
    fn state_mut(state: &mut State) -> Option<&mut Self::State>;
    fn into_state(stored: Self::State) -> State;
    fn observed(observed: &Observed) -> Option<&Self::Observed>;
}

/// The part of a state or an observation of the limit's own kind. Panics on another kind: only a bug can pass one,
/// because keys contain the kind.
fn own<C: Variant, T>(counting: &C, part: Option<T>) -> T {
    part.unwrap_or_else(|| unreachable!("{counting:?} met a state of another kind"))
}

fn own_state<'s, C: Variant>(counting: &C, state: &'s State) -> &'s C::State {
    own(counting, C::state(state))
}

fn own_observed<'o, C: Variant>(counting: &C, observed: &'o Observed) -> &'o C::Observed {
    own(counting, C::observed(observed))
}

fn apply<C: Variant>(
    counting: &C,
    state: &mut Option<State>,
    effect: Effect,
    bounds: Option<Bounds>,
    now: Micros,
) -> Change {
    let stored = state.as_ref().map(|state| own_state(counting, state));
    let before = counting.observe(stored, 0, bounds, now);
    let effect = effect.on(counting, &before, now);
    let is_stale = stored.is_some_and(|stored| counting.is_stale(stored, bounds, now));
    if matches!(effect, Effect::Nothing | Effect::Rewrite) && !is_stale {
        return Change::Kept;
    }
    let stored = state.as_mut().map(|state| own(counting, C::state_mut(state)));
    let written = counting.apply(stored, before, effect, is_stale, now);
    put::<C>(state, written)
}

/// Takes one charge back. If the charge no longer counts, the state stays as it was.
fn undo<C: Variant>(
    counting: &C,
    state: &mut Option<State>,
    receipt: Receipt,
    bounds: Option<Bounds>,
    now: Micros,
) -> Change {
    let stored = state.as_ref().map(|state| own_state(counting, state));
    let before = counting.observe(stored, 0, bounds, now);
    let is_stale = stored.is_some_and(|stored| counting.is_stale(stored, bounds, now));
    let stored = state.as_mut().map(|state| own(counting, C::state_mut(state)));
    let written = counting.undo(stored, before, receipt, is_stale, now);
    put::<C>(state, written)
}

fn put<C: Variant>(state: &mut Option<State>, written: Written<C::State>) -> Change {
    match written {
        Written::Kept => Change::Kept,
        Written::InPlace => Change::Put,
        Written::Put(stored) => {
            *state = Some(C::into_state(stored));
            Change::Put
        }
        Written::Gone => {
            *state = None;
            Change::Gone
        }
    }
}

crate::kind_table!(kinds);

impl StateKind {
    /// Whether the limit keeps no state at all. A limit of 0 counts nothing, except a fixed window, which counts denied
    /// hits. [lm-5]
    pub fn is_stateless(&self) -> bool {
        !self.counts_denied() && self.requests() == 0
    }

    /// The result of an effect on a key; the caller holds its state.
    pub fn apply(&self, mut state: Option<State>, effect: Effect, bounds: Option<Bounds>, now: Micros) -> Next {
        let change = self.apply_in_place(&mut state, effect, bounds, now);
        Next::of(change, state)
    }

    /// The state after undoing the charge of the receipt. A charge that no longer counts changes nothing. [un-1]
    pub fn undone(&self, mut state: Option<State>, receipt: Receipt, bounds: Option<Bounds>, now: Micros) -> Next {
        let change = self.undo_in_place(&mut state, receipt, bounds, now);
        Next::of(change, state)
    }

    /// The current window of a state that counts in consecutive windows. None for every other kind: its hits expire one
    /// by one. [al-2]
    pub fn counted(&self, observed: &Observed, now: Micros) -> Option<CountedWindow> {
        match (self, observed) {
            (Self::FixedWindow(counting), Observed::FixedWindow(counter)) => Some(counting.counted(*counter, now)),
            (Self::AnchoredWindow(_), Observed::AnchoredWindow(window)) => {
                Some(CountedWindow { start: window.start, end: window.end, count: window.count })
            }
            (
                Self::FixedWindow(_)
                | Self::Pacing(_)
                | Self::AnchoredWindow(_)
                | Self::SlidingWindowCounter(_)
                | Self::TokenBucket(_)
                | Self::SlidingWindow(_)
                | Self::SlidingWindowLog(_),
                _,
            ) => None,
        }
    }

    /// The time until the step of the last charge ends; `left` is the state after that charge. None for an algorithm
    /// without steps. [ls-3]
    pub fn step_after(&self, left: &Observed, now: Micros) -> Option<Micros> {
        match (self, left) {
            (Self::SlidingWindow(counting), Observed::SlidingWindow(summary)) => {
                Some(counting.bucket_end(summary.mark).saturating_sub(now))
            }
            (
                Self::FixedWindow(_)
                | Self::Pacing(_)
                | Self::AnchoredWindow(_)
                | Self::SlidingWindowCounter(_)
                | Self::TokenBucket(_)
                | Self::SlidingWindow(_)
                | Self::SlidingWindowLog(_),
                _,
            ) => self.counted(left, now).map(|window| window.end.saturating_sub(now)),
        }
    }

    /// The observation without these hits, which were charged ahead. The observation must contain them. [ls-5]
    pub fn without(&self, found: &Observed, hits: Hits, now: Micros) -> Observed {
        match found {
            Observed::SlidingWindow(summary) => {
                Observed::SlidingWindow(Summary { used: summary.used.saturating_sub(hits), ..*summary })
            }
            found => self.left(found, Effect::Refund(hits), now).unwrap_or(*found),
        }
    }

    /// The time until hits would fit in the state after a charge: 0 if they fit now, None if they never fit.
    pub fn fits_after(&self, left: &Observed, hits: Hits, now: Micros) -> Option<Micros> {
        if hits > self.capacity() {
            None
        } else if hits <= self.remaining(left, now) {
            Some(0)
        } else {
            Some(self.retry_after(left, hits, now))
        }
    }
}
