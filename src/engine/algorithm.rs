//! The algorithms: one file for each kind of state, and the enums of all of them.
//!
//! A policy names an [`Algorithm`]. Algorithm, anchor and refill determine a [`StateKind`] once, when the limit is
//! made. The kind defines the state that a store keeps ([`State`]), the view that a charge has of it ([`Observed`]), and
//! the state that it leaves. The Lua scripts make the same transition and return the state that they found. Rust
//! derives everything else.

pub mod anchored_window;
pub mod counting;
pub mod fixed_window;
pub mod gcra;
#[macro_use]
mod names;
pub mod parameters;
pub mod sliding_window;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

use smallvec::{SmallVec, smallvec};

use self::anchored_window::{AnchoredWindow, ObservedWindow, StoredWindow};
use self::counting::View;
pub use self::counting::{Change, CountedWindow, Counting, Effect, Found, Level, Receipt};
pub use self::counting::{StateNumbers, StoredFormat, Summary, UndoScript, Work};
use self::fixed_window::{Counter, FixedWindow};
use self::gcra::{Debt, Pace, Pacing, full_burst};
use self::parameters::{Anchor, Parameter, ParameterValue, Parameters, Precision, Refill};
use self::sliding_window::{BUCKETS_MAX, Buckets, SlidingWindow};
use self::sliding_window_counter::{SlidingWindowCounter, WindowCounts};
use self::sliding_window_log::{Log, REQUESTS_MAX as LOG_REQUESTS_MAX, SlidingWindowLog};
use self::token_bucket::{Bucket, TokenBucket};
use super::arith::mul_div;
use super::descriptor::{COUNT_MAX, Count, Hits, saturated};
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
    pub(super) fn kind(self, count: Count, window: Window) -> Result<StateKind, LimitError> {
        if count > self.requests_max() {
            return Err(LimitError::TooMany { requests: count });
        }
        let requests = saturated(count);
        let pacing = |pace, burst| Ok(StateKind::Pacing(Pacing::new(pace, requests, window, burst)?));
        match self {
            Self::FixedWindow { anchor: Anchor::Clock } => {
                Ok(StateKind::FixedWindow(FixedWindow::new(requests, window)))
            }
            Self::FixedWindow { anchor: Anchor::FirstHit } => {
                Ok(StateKind::AnchoredWindow(AnchoredWindow::from_first_hit(count, window)))
            }
            Self::FixedWindow { anchor: Anchor::Calendar(unit) } => {
                Ok(StateKind::AnchoredWindow(AnchoredWindow::of_calendar(count, window, unit)))
            }
            Self::SlidingWindowCounter => {
                Ok(StateKind::SlidingWindowCounter(SlidingWindowCounter::new(requests, window)))
            }
            Self::SlidingWindow { precision } => {
                let sliding = SlidingWindow::new(requests, window, precision).map(StateKind::SlidingWindow);
                sliding.ok_or(LimitError::Precision { us: precision.get(), window_us: window.us() })
            }
            Self::SlidingWindowLog => {
                let log = SlidingWindowLog::new(requests, window).map(StateKind::SlidingWindowLog);
                log.ok_or(LimitError::LogTooLong { requests })
            }
            Self::TokenBucket { burst, refill: Refill::Continuous } => pacing(Pace::TokenBucket, burst),
            Self::TokenBucket { burst, refill: Refill::Interval } => {
                full_burst(requests, window, burst)?;
                Ok(StateKind::TokenBucket(TokenBucket::new(requests, window, burst)))
            }
            Self::LeakyBucket { burst } => pacing(Pace::LeakyBucket, burst),
            Self::Gcra { burst } => pacing(Pace::Gcra, burst),
            Self::Concurrency => {
                let precision = Self::default_precision(window);
                let permits = SlidingWindow::of_permits(requests, window, precision).map(StateKind::SlidingWindow);
                permits.ok_or(LimitError::PermitWindow { us: window.us() })
            }
        }
    }

    /// The most hits of a limit. Only windows with a state of their own start have a count of more than 32 bits. [lm-8]
    pub(super) const fn requests_max(self) -> Count {
        match self {
            Self::FixedWindow { anchor: Anchor::FirstHit | Anchor::Calendar(_) } => COUNT_MAX,
            _ => Hits::MAX as Count,
        }
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
        matches!(self, Self::FixedWindow { .. })
    }

    /// Whether hits are counted in steps. All hits of one step leave the same state, at any instant of the step. [ls-4]
    pub const fn has_steps(self) -> bool {
        matches!(self, Self::FixedWindow { .. } | Self::SlidingWindow { .. })
    }

    /// Whether requests hold permits while they run, and hits are not counted. [cc-1]
    pub const fn counts_permits(self) -> bool {
        matches!(self, Self::Concurrency)
    }

    /// Whether usage can be reported after the fact. A log cannot: each report would add an entry, without a bound. A
    /// permit cannot: it is consumed before the request runs. [dc-5]
    pub const fn takes_reports(self) -> bool {
        !matches!(self, Self::SlidingWindowLog | Self::Concurrency)
    }

    /// Whether part of a charge can be given back later, after other charges. The receipt names the window of the hits.
    /// A debt cannot: it does not record whose hits drained. A log cannot: it would rewrite each later charge. Permits
    /// are always held, without a setting: see `Limit::hold`. [hd-1]
    pub const fn takes_holds(self) -> bool {
        matches!(self, Self::FixedWindow { .. } | Self::SlidingWindowCounter | Self::SlidingWindow { .. })
    }

    /// Where windows begin. Only some fixed windows begin elsewhere than at the clock's multiples.
    pub const fn anchor(self) -> Anchor {
        match self {
            Self::FixedWindow { anchor } => anchor,
            _ => Anchor::Clock,
        }
    }

    /// The algorithm for other hits and another window. Without a new burst, the burst keeps its ratio to the hits.
    /// Sub-buckets stay as they are unless the window changes. None if a burst is given and the algorithm has none.
    /// [ov-1]
    pub(super) fn resized(self, from: (Count, Window), to: (Count, Window), burst: Option<u32>) -> Option<Self> {
        let scaled = |old: u32| {
            let scaled = if from.0 == 0 { to.0 } else { mul_div(old.into(), to.0, from.0).0 };
            burst.unwrap_or_else(|| saturated(scaled.max(1)))
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Only some windows count further. [lm-8]
    #[error(
        "{requests} hits are more than {}: only fixed_window with calendar: true or anchor: first_hit counts up to {COUNT_MAX}",
        Hits::MAX
    )]
    TooMany { requests: Count },
    #[error("a burst of 0 admits nothing: at least 1")]
    BurstZero,
    #[error("a full burst would take {} days to drain: at most 8.9 years (2^48 us)", us / 86_400_000_000)]
    BurstTooLong {
        /// The time to drain, in microseconds.
        us: u64,
    },
    /// The sub-buckets do not divide the window, or are more than 256. Lengths in microseconds.
    #[error("a precision of {} {}", Duration(*us), precision_reason(*us, *window_us))]
    Precision { us: u64, window_us: u64 },
    /// A log keeps every charge.
    #[error(
        "a log of {requests} hits is too long: at most {LOG_REQUESTS_MAX} (sliding_window has the same bound in constant memory)"
    )]
    LogTooLong { requests: u32 },
    #[error(
        "a window of {}: the longest time that a request of concurrency may take is 1s to 1h, in whole milliseconds",
        Duration(*us)
    )]
    PermitWindow { us: u64 },
}

fn precision_reason(us: u64, window_us: u64) -> String {
    if window_us.is_multiple_of(us) {
        format!("makes {} sub-buckets: at most {BUCKETS_MAX}", window_us / us)
    } else {
        format!("does not divide the window of {}", Duration(window_us))
    }
}

/// A kind of state, with the numbers of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    FixedWindow(FixedWindow),
    /// A debt that drains at a steady rate.
    Pacing(Pacing),
    /// A window that begins with its first hit, or at a calendar boundary.
    AnchoredWindow(AnchoredWindow),
    SlidingWindowCounter(SlidingWindowCounter),
    /// A bucket that is refilled in steps.
    TokenBucket(TokenBucket),
    SlidingWindow(SlidingWindow),
    SlidingWindowLog(SlidingWindowLog),
}

/// The state that a key stores. Its kind follows from the limit's shape, which is part of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    FixedWindow(Counter),
    Pacing(Debt),
    AnchoredWindow(StoredWindow),
    SlidingWindowCounter(WindowCounts),
    TokenBucket(Bucket),
    SlidingWindow(Buckets),
    SlidingWindowLog(Box<Log>),
}

/// A state as one charge finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    FixedWindow(Counter),
    Pacing(Debt),
    AnchoredWindow(ObservedWindow),
    SlidingWindowCounter(WindowCounts),
    TokenBucket(Bucket),
    /// Of a state that can be long: sub-buckets or a log.
    Summary(Summary),
}

/// Matches a kind of state, with the same expression for each.
macro_rules! each_kind {
    ($kind:expr, $limit:ident => $result:expr) => {
        match $kind {
            StateKind::FixedWindow($limit) => $result,
            StateKind::Pacing($limit) => $result,
            StateKind::AnchoredWindow($limit) => $result,
            StateKind::SlidingWindowCounter($limit) => $result,
            StateKind::TokenBucket($limit) => $result,
            StateKind::SlidingWindow($limit) => $result,
            StateKind::SlidingWindowLog($limit) => $result,
        }
    };
}

/// As `each_kind`, with a view of the same kind. Panics on another kind: only a bug can pass one, because keys contain
/// the kind.
macro_rules! each_view {
    ($kind:expr, $observed:expr, ($limit:ident, $view:ident) => $result:expr) => {
        match ($kind, $observed) {
            (StateKind::FixedWindow($limit), Observed::FixedWindow($view)) => $result,
            (StateKind::Pacing($limit), Observed::Pacing($view)) => $result,
            (StateKind::AnchoredWindow($limit), Observed::AnchoredWindow($view)) => $result,
            (StateKind::SlidingWindowCounter($limit), Observed::SlidingWindowCounter($view)) => $result,
            (StateKind::TokenBucket($limit), Observed::TokenBucket($view)) => $result,
            (StateKind::SlidingWindow($limit), Observed::Summary($view)) => $result,
            (StateKind::SlidingWindowLog($limit), Observed::Summary($view)) => $result,
            (kind, view) => unreachable!("{kind:?} met {view:?}, a view of another kind"),
        }
    };
}

/// What a kind of state is in stores, with any numbers.
#[derive(Clone, Copy, Debug)]
struct Shape {
    number: u8,
    format: StoredFormat,
    reply: usize,
    undo: UndoScript,
    counts_denied: bool,
}

impl Shape {
    const fn of<C: Counting>(_: &C) -> Self {
        Self { number: C::NUMBER, format: C::FORMAT, reply: C::REPLY, undo: C::UNDO, counts_denied: C::COUNTS_DENIED }
    }
}

fn observed<C: Counting>(_: &C, view: C::View) -> Observed {
    C::View::OBSERVED(view)
}

fn read<C: Counting>(limit: &C, numbers: &[u64], now: Micros) -> Option<Observed> {
    C::View::read(limit, numbers, now).map(C::View::OBSERVED)
}

/// The effect in plain hits: never a drain, and nothing if nothing changes.
fn plain<C: Counting>(limit: &C, before: &C::View, effect: Effect, now: Micros) -> Effect {
    match effect {
        Effect::Drain => match before.level(limit, now).remaining {
            0 => Effect::Nothing,
            remaining => Effect::Add(remaining),
        },
        Effect::Add(0) | Effect::Refund(0) => Effect::Nothing,
        Effect::Refund(_) | Effect::Undo(_) if before.level(limit, now).is_empty => Effect::Nothing,
        effect => effect,
    }
}

/// Makes an effect on a state that was found so. Returns the view of the same charge after it.
fn change<C: Counting>(
    limit: &C,
    state: &mut Option<State>,
    found: Found<C::View>,
    effect: Effect,
    asked: Hits,
    now: Micros,
) -> (Change, C::View) {
    let before = found.view;
    let effect = plain(limit, &before, effect, now);
    if effect == Effect::Nothing && !found.is_stale {
        return (Change::Kept, before);
    }
    let is_long = C::FORMAT.is_list();
    // An undo does not move hits whose times are no longer believed.
    let is_stale = found.is_stale && !(is_long && matches!(effect, Effect::Undo(_)));
    let left = if is_long {
        limit.write(state, before, effect, now);
        limit.find(state.as_ref(), asked, now).view
    } else {
        before.step(limit, effect, now)
    };
    if left == before && !is_stale {
        return (Change::Kept, before);
    }
    let level = left.level(limit, now);
    if level.is_empty {
        *state = None;
        return (Change::Gone, left);
    }
    if !is_long {
        limit.write(state, left, effect, now);
    }
    (Change::Put(level), left)
}

impl State {
    /// The bytes that the state has allocated: 0 for most kinds.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::SlidingWindow(buckets) => buckets.heap_bytes(),
            Self::SlidingWindowLog(log) => log.heap_bytes(),
            _ => 0,
        }
    }
}

impl StateKind {
    const fn shape(&self) -> Shape {
        each_kind!(self, limit => Shape::of(limit))
    }

    /// The number by which scripts distinguish the kinds.
    pub const fn number(&self) -> u8 {
        self.shape().number
    }

    pub const fn format(&self) -> StoredFormat {
        self.shape().format
    }

    /// How many numbers a script returns for one charge.
    pub const fn reply_count(&self) -> usize {
        self.shape().reply
    }

    pub const fn undo_script(&self) -> UndoScript {
        self.shape().undo
    }

    /// Whether independent charging counts denied hits. [dc-4]
    pub const fn counts_denied(&self) -> bool {
        self.shape().counts_denied
    }

    /// Whether a view of the state has the wait of only the requested hits.
    pub const fn is_summary(&self) -> bool {
        self.format().is_list()
    }

    /// The most hits that a state can hold at one instant. [lm-4]
    pub fn capacity(&self) -> Count {
        each_kind!(self, limit => limit.capacity())
    }

    /// Whether the limit keeps no state at all. A limit of 0 counts nothing, except a fixed window, which counts denied
    /// hits. [lm-5]
    pub fn is_stateless(&self) -> bool {
        !self.counts_denied() && self.capacity() == 0
    }

    /// The id of the limit in keys. [ky-4]
    pub fn id(&self, zone: &str) -> String {
        each_kind!(self, limit => limit.id(zone))
    }

    /// The longest time that a store needs for this work. [dc-11]
    pub fn weight(&self, work: Work) -> u32 {
        each_kind!(self, limit => limit.weight(work))
    }

    /// The same limit with `post_paid` set. A post-paid limit believes usage above the burst. [dc-5]
    #[must_use]
    pub(super) const fn with_post_paid(self, post_paid: bool) -> Self {
        match self {
            Self::Pacing(pacing) => Self::Pacing(pacing.with_post_paid(post_paid)),
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.with_post_paid(post_paid)),
            kind => kind,
        }
    }

    /// The same limit within the boundaries of a calendar's windows, one of which holds the time of all that follows.
    /// None for every other limit.
    #[must_use]
    pub const fn within(self, bounds: Option<Bounds>) -> Self {
        match self {
            Self::AnchoredWindow(window) => Self::AnchoredWindow(window.within(bounds)),
            kind => kind,
        }
    }

    /// The state as a charge of `asked` hits finds it at `now`, and whether it must be stored so.
    pub fn find(&self, state: Option<&State>, asked: Hits, now: Micros) -> Found<Observed> {
        each_kind!(self, limit => {
            let found = limit.find(state, asked, now);
            Found { view: observed(limit, found.view), is_stale: found.is_stale && !self.is_stateless() }
        })
    }

    /// The view of a charge of `asked` hits at `now`.
    pub fn observe(&self, state: Option<&State>, asked: Hits, now: Micros) -> Observed {
        self.find(state, asked, now).view
    }

    /// Makes an effect on a state that was found so by a charge of `asked` hits. Returns the view that the same charge
    /// would have after it. The state changes in place: it can be long, and a store that moves it out first could lose
    /// it.
    pub fn change_found(
        &self,
        state: &mut Option<State>,
        found: &Found<Observed>,
        effect: Effect,
        asked: Hits,
        now: Micros,
    ) -> (Change, Observed) {
        each_view!(self, found.view, (limit, view) => {
            let (change, left) = change(limit, state, Found { view, is_stale: found.is_stale }, effect, asked, now);
            (change, observed(limit, left))
        })
    }

    /// Makes an effect on a key. The state changes in place.
    pub fn change(&self, state: &mut Option<State>, effect: Effect, now: Micros) -> (Change, Observed) {
        let found = self.find(state.as_ref(), 0, now);
        if self.is_stateless() {
            return (Change::Kept, found.view);
        }
        self.change_found(state, &found, effect, 0, now)
    }

    /// The view after an effect. A summary changes only its hits: it does not have their times.
    pub fn step(&self, before: &Observed, effect: Effect, now: Micros) -> Observed {
        each_view!(self, *before, (limit, view) => {
            observed(limit, view.step(limit, plain(limit, &view, effect, now), now))
        })
    }

    /// How full a state is that has this view at `now`.
    pub fn level(&self, observed: &Observed, now: Micros) -> Level {
        each_view!(self, observed, (limit, view) => view.level(limit, now))
    }

    /// The wait in microseconds, rounded up, until `hits` fit without other requests. They do not fit now.
    ///
    /// `hits` is at most the capacity; more would never fit. A summary has the wait of only the hits of its charge.
    pub fn retry_after(&self, observed: &Observed, hits: Hits, now: Micros) -> Micros {
        each_view!(self, observed, (limit, view) => view.retry_after(limit, hits, now))
    }

    /// The numbers of a charge, in the order in which its script reads them.
    pub fn script_numbers(&self, hits: Hits) -> StateNumbers {
        each_kind!(self, limit => limit.script_numbers(hits))
    }

    /// Reads the numbers that a script returned for one charge: the view before it, and for a summary the view after it.
    /// None if they are not of this kind.
    pub fn read_reply(&self, numbers: &[u64], now: Micros) -> Option<(Observed, Option<Observed>)> {
        let read = |numbers| each_kind!(self, limit => read(limit, numbers, now));
        if !self.is_summary() {
            return Some((read(numbers)?, None));
        }
        let (before, after) = numbers.split_at(numbers.len() / 2);
        Some((read(before)?, Some(read(after)?)))
    }

    /// A state from the numbers that Redis stores. None if they are not of this kind.
    pub fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        each_kind!(self, limit => limit.read_stored(numbers))
    }

    /// The largest number of hits that would be admitted at `now`.
    pub fn remaining(&self, observed: &Observed, now: Micros) -> Count {
        self.level(observed, now).remaining
    }

    /// The microseconds, rounded up, until the state equals an empty one without further charges.
    pub fn reset_after(&self, observed: &Observed, now: Micros) -> Micros {
        self.level(observed, now).reset_after
    }

    /// An earlier view, moved to `now` without a charge in between, under a limit of the same shape. [dn-3]
    pub fn later(&self, found: &Observed, now: Micros) -> Observed {
        // The view of a few numbers is the whole state.
        let state = match *found {
            Observed::AnchoredWindow(window) => return Observed::AnchoredWindow(window.later(now)),
            Observed::Summary(summary) => return Observed::Summary(summary.later(now)),
            Observed::FixedWindow(counter) => State::FixedWindow(counter),
            Observed::Pacing(debt) => State::Pacing(debt),
            Observed::TokenBucket(bucket) => State::TokenBucket(bucket),
            Observed::SlidingWindowCounter(counts) => State::SlidingWindowCounter(counts),
        };
        self.observe(Some(&state), 0, now)
    }

    /// The wait of an admitted request until its turn, in microseconds, if it finds a state of this level: 0 for all but
    /// `leaky_bucket`. [lb-2]
    pub(super) const fn turn_after(&self, before: &Level) -> Micros {
        match self {
            Self::Pacing(pacing) if pacing.has_turns() => before.reset_after,
            _ => 0,
        }
    }

    /// Whether the window of a receipt has ended, so an undo takes nothing back. For the kinds of state that can be holds.
    /// [un-2]
    pub fn has_ended(&self, receipt: Receipt, now: Micros) -> bool {
        match self {
            Self::FixedWindow(limit) => limit.has_ended(receipt, now),
            Self::AnchoredWindow(limit) => limit.has_ended(receipt, now),
            Self::SlidingWindowCounter(limit) => limit.has_ended(receipt, now),
            Self::SlidingWindow(limit) => limit.has_ended(receipt, now),
            Self::Pacing(_) | Self::TokenBucket(_) | Self::SlidingWindowLog(_) => false,
        }
    }

    /// The number from a receipt that a script searches for.
    pub const fn proof(&self, receipt: Receipt) -> u64 {
        match self.undo_script() {
            UndoScript::ByTime => receipt.at,
            UndoScript::ByMark | UndoScript::Log => receipt.mark,
        }
    }

    /// The current window of a state that counts in consecutive windows. None for every other kind: its hits expire one
    /// by one. [al-2]
    pub fn counted(&self, observed: &Observed, now: Micros) -> Option<CountedWindow> {
        match (self, observed) {
            (Self::FixedWindow(limit), Observed::FixedWindow(counter)) => Some(limit.counted(counter, now)),
            (_, Observed::AnchoredWindow(ObservedWindow { start, end, count })) => {
                Some(CountedWindow { start: *start, end: *end, count: *count })
            }
            _ => None,
        }
    }

    /// The time until the step of the last charge ends; `left` is the state after that charge. None for an algorithm
    /// without steps. [ls-3]
    pub fn step_after(&self, left: &Observed, now: Micros) -> Option<Micros> {
        let end = match (self, left) {
            (Self::SlidingWindow(limit), Observed::Summary(summary)) => limit.bucket_end(summary.mark),
            _ => self.counted(left, now)?.end,
        };
        Some(end.saturating_sub(now))
    }

    /// The view without these hits, which were charged ahead. It must contain them. [ls-5]
    pub fn without(&self, found: &Observed, hits: Hits, now: Micros) -> Observed {
        self.step(found, Effect::Refund(hits), now)
    }

    /// The time until hits would fit in the state after a charge: 0 if they fit now, None if they never fit.
    pub fn fits_after(&self, left: &Observed, hits: Hits, now: Micros) -> Option<Micros> {
        if Count::from(hits) > self.capacity() {
            None
        } else if Count::from(hits) <= self.remaining(left, now) {
            Some(0)
        } else {
            Some(self.retry_after(left, hits, now))
        }
    }
}
