//! Stores of states: the contract that every store keeps.
//!
//! Not here: what a decision is (engine) and what to do when a store cannot answer (limiter).

pub mod memory;
pub mod redis;
mod sync;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use weir_engine::weight::TOO_HEAVY;
use weir_engine::{Bounds, Charge, Decision, Limit, Micros, Mode, Receipt, State};

/// The most bytes of the overrides that a store keeps.
pub const OVERRIDES_BYTES_MAX: usize = 2 << 20;

/// A place for states that decides atomically. [st-1]
///
/// Every call is answered by its deadline, or a little after, in every state of the store.
pub trait Store: Send + Sync {
    /// The store's name in settings, metrics and logs.
    fn name(&self) -> &'static str;

    /// Makes one decision over all charges, in the order of [dc-2], by one reading of the store's clock. [tm-1]
    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode, deadline: Instant) -> Reply<'a, Decision> {
        self.decide_after(Before::default(), charges, mode, deadline)
    }

    /// The same after what comes `before`, in the same call and by the same reading of the clock. If that call fails, nothing of it
    /// was done.
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        deadline: Instant,
    ) -> Reply<'a, Decision>;

    /// The rows at these keys, which may be in any parts of the store.
    fn read_rows<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, Vec<RowRead>> {
        let _ = deadline;
        Reply::Ready(Ok(vec![RowRead::Absent; keys.len()]))
    }

    /// Writes rows, each by itself; deletes those that are none. Answers how each ended.
    fn write_rows<'a>(
        &'a self,
        rows: &'a [(&'a str, Option<&'a StoredRow>)],
        deadline: Instant,
    ) -> Reply<'a, Vec<Result<(), StoreError>>> {
        let _ = deadline;
        Reply::Ready(Ok(vec![Ok(()); rows.len()]))
    }

    /// Takes back the charges that the receipts prove, each only as far as it still stands. A charge that fails does not
    /// keep the others from being taken back.
    ///
    /// The answer is [`StoreError::StaleBounds`] where the boundaries of a calendar charge do not hold the store's clock.
    /// That charge was not taken back, and others of the call may have been. A caller that is to try again with other
    /// boundaries gives each calendar charge a call of its own. [cl-3]
    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()>;

    /// Forgets the states of these keys. Answers how many there were.
    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64>;

    /// The states of these keys as stored, without touching them.
    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, StatesRead>;

    /// Keys that begin with `prefix`: a small step from this position on, so that decisions hardly wait for it. A key that is
    /// there throughout all steps is in one of them at least.
    fn scan<'a>(&'a self, prefix: &'a str, from: ScanPosition, deadline: Instant) -> Reply<'a, Scanned> {
        let _ = (prefix, from, deadline);
        Reply::Ready(Ok(Scanned::default()))
    }

    /// The overrides that all who share the store see, if their version is not the one that is `known`. [ov-3]
    fn read_overrides<'a>(&'a self, known: &'a str, deadline: Instant) -> Reply<'a, Option<StoredOverrides>> {
        let _ = (known, deadline);
        Reply::Ready(Ok(None))
    }

    /// Replaces the overrides and their version, if the version is still the one that is `known`. Answers whether it was.
    fn write_overrides<'a>(&'a self, known: &'a str, with: &'a StoredOverrides, deadline: Instant) -> Reply<'a, bool> {
        let _ = (known, with, deadline);
        Reply::Ready(Ok(false))
    }

    /// Whether the store answers.
    fn ping(&self, deadline: Instant) -> Reply<'_, ()>;

    /// Prepares the store for its first decision, and ends when it answers a ping.
    fn prepare(&self, deadline: Instant) -> Reply<'_, ()> {
        self.ping(deadline)
    }

    /// The part of the store that this key is in. A decision is about the keys of one part: split the charges by part, decide each
    /// part, and undo them if one denies. [st-3]
    fn part_of(&self, key: &str) -> u16 {
        let _ = key;
        0
    }

    /// Whether the store can hold this limit.
    ///
    /// # Errors
    /// With the reason, when it cannot.
    fn supports(&self, limit: &Limit) -> Result<(), String>;

    /// Ends, with the reason, when a task of the store's own has died, without which it gives no more answers.
    fn died(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    /// Whether decisions are always [`Reply::Ready`], so that callers need not be able to wait for one. Such a store is a
    /// part of this process: no other stands in for it, and no cache saves the way to it.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Hints about the store's configuration for the operator, a sentence each. Called once, at the start.
    fn advice(&self, _deadline: Instant) -> Reply<'_, Vec<String>> {
        Reply::Ready(Ok(Vec::new()))
    }

    /// What the store needs for decisions and does not have, as an error for people. Called once the store answers.
    fn lacks(&self, _deadline: Instant) -> Reply<'_, Option<String>> {
        Reply::Ready(Ok(None))
    }

    /// The address of the store, `HOST:PORT` or the path of a socket, if it is one place outside of this process.
    fn place(&self) -> Option<&str> {
        None
    }

    /// The number of keys, if the store can count them cheaply.
    fn keys(&self) -> Option<u64> {
        None
    }
}

/// What a call does before the decision that it makes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Before<'a> {
    /// The rows that must have these versions. Else the call changes nothing and answers [`StoreError::StaleRow`]. A store of this
    /// process checks nothing: the process itself has the rows. [rw-2]
    pub checks: &'a [Check<'a>],
    /// What is given back, also if the decision denies. [hd-5]
    pub given_back: &'a [GivenBack],
}

/// Hits of an earlier charge that go back before a decision on the same key and limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenBack {
    /// The place of a charge of the decision that is on the key.
    pub charge: u16,
    /// The proof of the earlier charge, with the hits that go back. It is not of a log. [un-2]
    pub receipt: Receipt,
}

/// One charge to take back.
#[derive(Clone, Copy, Debug)]
pub struct Undo<'a> {
    /// The key that was charged.
    pub key: &'a str,
    /// The limit that it was charged under.
    pub limit: &'a Limit,
    /// The proof of the charge. With fewer hits than were charged it takes back that part, of charges on windows. [un-2]
    pub receipt: Receipt,
    /// The boundaries of a calendar window around now; none for every other limit.
    pub bounds: Option<Bounds>,
}

/// A row that a decision depends on. [rw-2]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// The key of the row.
    pub key: &'a str,
    /// The version that the charges of the decision were made by; 0 for no row.
    pub version: u64,
}

/// A row as a store keeps it. The store knows nothing of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// A number of the text, below 2^53 and never 0.
    pub version: u64,
    /// From this instant of its clock on, the store takes it for no row.
    pub until: Option<Micros>,
    /// What it is; not empty.
    pub text: Box<str>,
}

/// What is at the key of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowRead {
    /// Nothing.
    Absent,
    /// A row, which may have ended by the store's clock.
    Row(StoredRow),
    /// A value that weir has not written.
    Foreign {
        /// The version that a check finds there.
        version: u64,
    },
}

/// How far [`Store::scan`] has come; the default begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanPosition {
    /// Which part of the store.
    pub part: u32,
    /// Where in that part; 0 begins it.
    pub at: u64,
}

/// One step of [`Store::scan`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The keys that were found.
    pub keys: Vec<String>,
    /// Where the next step begins; none behind the last.
    pub next: Option<ScanPosition>,
}

/// The overrides as a store keeps them. It knows nothing of their form. At first both are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOverrides {
    /// Another one after each change.
    pub version: String,
    /// All of them, at most [`OVERRIDES_BYTES_MAX`]. None where the store has more, or no text.
    pub text: Option<String>,
}

/// The answer to [`Store::read_states`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatesRead {
    /// The store's clock.
    pub now: Micros,
    /// One for each key asked for: its state as stored, if there is one.
    pub states: Vec<Option<State>>,
}

/// Why a store gave no answer. [st-2]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Nothing was charged, for certain: the call was not sent, or it was refused before it ran.
    NotSent(Failure),
    /// The call was sent and not answered: whether it was charged cannot be known.
    Unknown(Failure),
    /// Some row has another version than the given one; nothing was charged. [rw-2]
    StaleRow {
        /// The version that each check has found; 0 for no row, or one that has ended.
        found: Vec<u64>,
    },
    /// None of a calendar window's boundaries held the store's own clock; nothing was charged or taken back. [cl-3]
    StaleBounds {
        /// The store's clock.
        now: Micros,
    },
}

/// The reason of a failure: one word for metrics, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One lower-case word, out of a small fixed set.
    pub kind: &'static str,
    /// What happened, without secrets.
    pub message: String,
}

impl StoreError {
    /// The failure's word for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NotSent(failure) | Self::Unknown(failure) => failure.kind,
            Self::StaleBounds { .. } => "stale_bounds",
            Self::StaleRow { .. } => "stale_row",
        }
    }
}

impl StoreError {
    /// Whether the call reached the store or its queue. If not, its duration means nothing.
    #[must_use]
    pub fn was_asked(&self) -> bool {
        const REFUSED_AT_ONCE: [&str; 4] = ["circuit_open", "queue_full", "no_node", TOO_HEAVY];
        !REFUSED_AT_ONCE.contains(&self.kind())
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(failure) => write!(f, "{} (nothing was charged)", failure.message),
            Self::Unknown(failure) => write!(f, "{} (the charge may stand)", failure.message),
            Self::StaleBounds { now } => {
                write!(f, "no calendar window held the store's clock, {now} us")
            }
            Self::StaleRow { .. } => f.write_str("a row has changed (nothing was charged)"),
        }
    }
}

impl std::error::Error for StoreError {}

/// A store's answer: at hand, or still to come. A store that computes its answers need not allocate a future.
pub enum Reply<'a, T> {
    /// The answer.
    Ready(Result<T, StoreError>),
    /// The answer to come.
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<'a, T: Send + 'a> Reply<'a, T> {
    /// Waits for the answer, if it is not there yet. The future is small: the answer is stored once.
    ///
    /// # Errors
    /// When the store gave none.
    #[must_use = "nothing is waited for before it is polled"]
    pub fn get(self) -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>> {
        match self {
            Self::Ready(answer) => Box::pin(std::future::ready(answer)),
            Self::Pending(answer) => answer,
        }
    }
}

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// Microseconds since the Unix epoch. May step back; decisions cope with that. [tm-2]
    fn now(&self) -> Micros;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}
