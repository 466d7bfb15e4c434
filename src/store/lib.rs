//! Stores of states: the contract of every store.
//!
//! Not here: what a decision is (engine), and what happens when a store gives no answer (limiter).

pub mod memory;
pub mod redis;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_engine::decision::{KeyIndices, indices_of};
use weir_engine::time::MICROS_MAX;
use weir_engine::weight::TOO_HEAVY;
use weir_engine::{Bounds, Charge, Decision, Limit, Micros, Mode, Receipt, State};

/// The most bytes of the overrides that a store keeps.
pub const OVERRIDES_BYTES_MAX: usize = 2 << 20;
/// The most bytes of the text of a row.
pub const ROW_TEXT_BYTES_MAX: usize = 8 << 10;

/// A place for states: it decides, people look at it, and it can keep texts that processes share.
///
/// Answers every call at its deadline or a little later, in every condition of the store.
pub trait Store: Deciding + Inspected {
    /// The texts that processes share. None for a store in this process: the process keeps its texts itself. [rw-2]
    fn texts(&self) -> Option<&dyn Texts> {
        None
    }
}

/// Decides atomically on states. [st-1]
pub trait Deciding: Send + Sync {
    /// Makes one decision over all charges, in the order of [dc-2], with one reading of the store's clock. [tm-1]
    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode, deadline: Instant) -> Reply<'a, Decision> {
        self.decide_after(Before::default(), charges, mode, deadline)
    }

    /// As [`Deciding::decide`], with versions of rows to compare and charges to take back `before` it, in the same call and with the same
    /// reading of the clock. A call that fails has changed nothing. An immediate store compares no rows: its process keeps them. The
    /// store may begin before the reply is awaited. If only charges are taken back, there can be no charges to decide.
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        deadline: Instant,
    ) -> Reply<'a, Decision>;

    /// Takes back the charges of the receipts, each as far as it still counts. If one fails, the others are still taken
    /// back.
    ///
    /// Returns [`StoreError::StaleBounds`] if the boundaries of a calendar charge do not contain the store's clock.
    /// That charge was not taken back; other charges of the call may have been. A caller that retries with other
    /// boundaries must send each calendar charge in a separate call. [cl-3]
    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()>;

    /// The slot of this key. A decision can use only keys of one slot: split the charges into parts by slot, decide each
    /// part, and undo them if one denies. [st-3]
    fn slot_of(&self, _key: &str) -> u16 {
        0
    }

    /// Whether decisions are always [`Reply::Ready`], so callers never wait. Such a store is part of this process. No
    /// other store replaces it on a failure, and no cache is needed in front of it.
    fn is_immediate(&self) -> bool {
        false
    }
}

/// What people look at: states, and the health of the store.
pub trait Inspected: Send + Sync {
    /// The store's name in settings, metrics and logs.
    fn name(&self) -> &'static str;

    /// The address of the store, `HOST:PORT` or the path of a socket. None if it is in this process or at several
    /// addresses.
    fn place(&self) -> Option<&str> {
        None
    }

    /// The number of keys, if the store can count them cheaply.
    fn keys(&self) -> Option<u64> {
        None
    }

    /// The states of these keys as stored, unchanged.
    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, StatesRead>;

    /// Returns some keys that begin with `prefix`, from this position on. Each step is small, so decisions hardly wait
    /// for it. A key that exists during all steps is in at least one of them.
    fn scan<'a>(&'a self, prefix: &'a str, from: ScanPosition, deadline: Instant) -> Reply<'a, Scanned>;

    /// Deletes the states of these keys. Returns how many existed.
    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64>;

    /// Whether the store answers.
    fn ping(&self, deadline: Instant) -> Reply<'_, ()>;

    /// Prepares the store for its first decision. Returns when the store answers a ping.
    fn prepare(&self, deadline: Instant) -> Reply<'_, ()> {
        self.ping(deadline)
    }

    /// The features that decisions need and the store lacks, as an error message. Called once, when the store answers.
    fn lacks(&self, _deadline: Instant) -> Reply<'_, Option<String>> {
        Reply::Ready(Ok(None))
    }

    /// What the operator should change in how the store's servers are set up. Called once a minute.
    fn findings(&self, _deadline: Instant) -> Reply<'_, Findings> {
        Reply::Ready(Ok(Findings::default()))
    }

    /// Returns the reason when a background task of the store has died. The store gives no answers after that.
    fn died(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

/// Texts with a version that processes share: rows and overrides.
///
/// The store of the states keeps them, because a decision compares the versions of rows in the call that charges states. [rw-2]
pub trait Texts: Send + Sync {
    /// Reads the rows at these keys, and of any other value a bounded part. The keys may be in different slots.
    fn read_rows<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, Vec<RowRead>>;

    /// Changes each row separately, atomically with the reading of what was there.
    fn change_rows<'a>(
        &'a self,
        changes: &'a [(&'a str, RowChange<'a>)],
        deadline: Instant,
    ) -> Reply<'a, Vec<Result<RowChanged, StoreError>>>;

    /// The overrides of all processes. None if their version is still `known`. [ov-3]
    fn read_overrides<'a>(&'a self, known: &'a str, deadline: Instant) -> Reply<'a, Option<StoredOverrides>>;

    /// Replaces the overrides and their version if the version is still `known`. Returns whether it replaced them.
    fn write_overrides<'a>(&'a self, known: &'a str, with: &'a StoredOverrides, deadline: Instant) -> Reply<'a, bool>;
}

/// What a call does before its decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Before<'a> {
    /// The rows that must have these versions. If one differs, the call changes nothing and returns
    /// [`StoreError::StaleRow`]. A store in this process stores no rows and checks nothing: the process keeps them itself.
    /// [rw-2]
    pub row_versions: &'a [RowVersion<'a>],
    /// The charges to take back, also if the decision denies. None is of a log. [hd-5] [un-2]
    pub undos: &'a [Undo<'a>],
}

/// Numbers the distinct keys of these charges, then those of the undos: for each its key's number, and the first of each number.
fn key_indices(charges: &[Charge<'_>], undos: &[Undo<'_>]) -> (KeyIndices, KeyIndices) {
    indices_of(charges.len() + undos.len(), |at| key_at(charges, undos, at))
}

/// The key of one of these charges, or of one of the undos, which are counted after them.
fn key_at<'k>(charges: &[Charge<'k>], undos: &[Undo<'k>], at: usize) -> &'k str {
    charges.get(at).map_or_else(|| undos[at - charges.len()].key, |charge| charge.key)
}

/// A charge to take back.
#[derive(Clone, Copy, Debug)]
pub struct Undo<'a> {
    pub key: &'a str,
    pub limit: &'a Limit,
    /// The receipt of the charge. If it has fewer hits than the charge, only these are taken back, which windows
    /// support. [un-2]
    pub receipt: Receipt,
    /// The boundaries of a calendar window around now; None for every other limit.
    pub bounds: Option<Bounds>,
}

/// A row that a decision depends on. [rw-2]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowVersion<'a> {
    pub key: &'a str,
    /// The version with which the charges were made; 0 for no row.
    pub version: u64,
}

/// A row as a store keeps it. The store does not read the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// A number of the text, below 2^53 and never 0.
    pub version: u64,
    /// From this instant of its clock on, the store treats the row as absent.
    pub until: Option<Micros>,
    /// The content of the row; not empty, and at most [`ROW_TEXT_BYTES_MAX`].
    pub text: Box<str>,
}

/// A change of the row at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowChange<'a> {
    /// Writes this row over any row or text. A value of another type stays.
    Write(&'a StoredRow),
    /// Writes this row over that one. If another value is at the key, it stays.
    Replace { row: &'a StoredRow, over: &'a StoredRow },
    /// Removes this row. If another value is at the key, it stays.
    Remove(&'a StoredRow),
}

/// The result of a change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChanged {
    /// The row to write is there.
    Written {
        /// What it has replaced. If that is the same row, the store has written nothing.
        before: RowRead,
    },
    Removed,
    /// Nothing has changed: the row to remove or to replace is not there, or the key of the row to write has another type.
    Kept,
}

/// The value at the key of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowRead {
    /// No value, or an empty text.
    Absent,
    /// A row. It may have expired by the store's clock.
    Row(StoredRow),
    /// A value that weir did not write, also of another type.
    Foreign {
        /// The version that a decision compares.
        version: u64,
    },
}

/// What a look at a store's servers has found. The warnings are sentences for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// A warning for each server that evicts states in use.
    pub evicting: Vec<String>,
    /// A warning for each server whose clock differs from this machine's by a second or more.
    pub clocks: Vec<String>,
    /// The largest difference between a server's clock and this machine's.
    pub clock_difference: Duration,
}

impl Findings {
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.evicting.iter().chain(&self.clocks)
    }
}

/// The position of [`Inspected::scan`]. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanPosition {
    /// The shard of the memory store, or the node of a cluster.
    pub shard: u32,
    /// The position there; 0 is its start.
    pub at: u64,
}

/// One step of [`Inspected::scan`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    pub keys: Vec<String>,
    /// Where the next step begins. None after the last step.
    pub next: Option<ScanPosition>,
}

/// The overrides as a store keeps them. The store does not read the text. Both fields are empty at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOverrides {
    /// Changes with every write.
    pub version: String,
    /// All overrides, at most [`OVERRIDES_BYTES_MAX`]. None if the store has a larger value, or a value that is not
    /// text.
    pub text: Option<String>,
}

/// The answer to [`Inspected::read_states`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatesRead {
    /// The store's clock.
    pub now: Micros,
    /// The state of each requested key as stored. None if the key has no state.
    pub states: Vec<Option<State>>,
}

/// Why a store gave no answer. [st-2]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Certainly nothing was charged: the call was not sent, or the store refused it before it ran.
    NotSent(Failure),
    /// The call was sent and not answered. It may have been charged.
    Unknown(Failure),
    /// A row does not have the given version. Nothing was charged. [rw-2]
    StaleRow {
        /// The version found of each row; 0 for no row or an expired one.
        found: Vec<u64>,
    },
    /// The boundaries of a calendar charge do not contain the store's clock. Nothing was charged or taken back. [cl-3]
    StaleBounds {
        /// The store's clock.
        now: Micros,
    },
}

/// The reason of a failure: one word for metrics, and one sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One lower-case word from a small fixed set.
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

    /// What happened, without what was charged.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::NotSent(failure) | Self::Unknown(failure) => failure.message.clone(),
            Self::StaleBounds { .. } | Self::StaleRow { .. } => self.to_string(),
        }
    }

    /// Whether the call may have been made.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// Whether the call reached the store or its queue. If not, its duration is meaningless.
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
            Self::Unknown(failure) => write!(f, "{} (it may have been charged)", failure.message),
            Self::StaleBounds { now } => {
                write!(f, "the store's clock, {now} us, is outside of the calendar windows sent")
            }
            Self::StaleRow { .. } => f.write_str("a row has changed (nothing was charged)"),
        }
    }
}

impl std::error::Error for StoreError {}

/// A store's answer: ready or pending. A store that computes its answers at once allocates no future.
pub enum Reply<'a, T> {
    Ready(Result<T, StoreError>),
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<'a, T: Send + 'a> Reply<'a, T> {
    /// Waits for a pending answer. The future is small: the answer is stored once.
    ///
    /// # Errors
    /// When the store gave no answer.
    #[must_use = "only a poll puts a future in this state"]
    pub fn get(self) -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>> {
        match self {
            Self::Ready(answer) => Box::pin(std::future::ready(answer)),
            Self::Pending(answer) => answer,
        }
    }
}

pub trait Clock: Send + Sync {
    /// Microseconds since the Unix epoch. The clock may step back; decisions allow for that. [tm-2]
    fn now(&self) -> Micros;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A time since the epoch. A wrong clock beyond the bound stands still there: sums with it would lose microseconds. [tm-1]
fn micros(since: Duration) -> Micros {
    u64::try_from(since.as_micros()).unwrap_or(MICROS_MAX).min(MICROS_MAX)
}

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_beyond_the_bound_stands_still_at_it() {
        assert_eq!(micros(Duration::from_micros(MICROS_MAX - 1)), MICROS_MAX - 1);
        for wrong in [Duration::from_micros(1 << 53), Duration::from_secs(1 << 62), Duration::MAX] {
            assert_eq!(micros(wrong), MICROS_MAX);
        }
    }
}
