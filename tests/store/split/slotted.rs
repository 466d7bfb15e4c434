//! A store in several slots whose answers take their time and can be lost: the memory store, one call for each part, and rows beside
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::Mutex;
use weir_engine::observer::Silent;
use weir_engine::{Charge, Decision, Limit, Micros, Mode};
use weir_store::memory::Memory;
use weir_store::{
    Before, Clock as _, Deciding, Failure, Inspected, Reply, RowChange, RowChanged, RowRead, RowVersion, ScanPosition,
    Scanned, StatesRead, Store, StoreError, StoredOverrides, StoredRow, Texts, Undo,
};

use super::{KEYS_MAX, SLOTS};
use crate::support::manual::ManualClock;

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is not sent.
    NotSent,
    /// It is made, and its answer is lost.
    AnswerLost,
    /// It is sent and never made.
    Lost,
}

/// A store in several slots, whose answers take their time: the memory store behind it, one call for each part.
pub(super) struct Slotted {
    pub(super) memory: Memory,
    pub(super) clock: Arc<ManualClock>,
    /// The rows, by key.
    pub(super) rows: Mutex<BTreeMap<String, StoredRow>>,
    /// A row that another process sets just before the next removal of a row.
    pub(super) set_between: Mutex<Option<StoredRow>>,
    /// The version that each decision finds of each row, after which it is stale.
    pub(super) found: Mutex<Option<u64>>,
    /// Where the clock stands from the next undo on, if it steps.
    pub(super) clock_at_undo: Mutex<Option<Micros>>,
    /// Where the clock stands from the next settle on, if it steps.
    pub(super) clock_at_settle: Mutex<Option<Micros>>,
    /// How many undos were made.
    pub(super) undos: AtomicUsize,
    /// The faults of decisions and of undos, by slot.
    pub(super) faults: Mutex<BTreeMap<(Call, u16), Fault>>,
    /// Decides how long each call takes, before it is made and after.
    random: AtomicU64,
    pub(super) calls: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Decide,
    Undo,
    ChangeRow,
}

impl Slotted {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let clock = Arc::new(ManualClock::in_2041());
        let memory = Memory::new(KEYS_MAX, clock.clone(), Arc::new(Silent));
        Arc::new(Self {
            memory,
            clock,
            rows: Mutex::default(),
            set_between: Mutex::default(),
            found: Mutex::default(),
            clock_at_undo: Mutex::default(),
            clock_at_settle: Mutex::default(),
            undos: AtomicUsize::new(0),
            faults: Mutex::default(),
            random: AtomicU64::new(seed),
            calls: AtomicUsize::new(0),
        })
    }

    pub(super) fn fails(&self, call: Call, key: &str, fault: Fault) {
        self.faults.lock().insert((call, slot_of(key)), fault);
    }

    /// In every slot.
    pub(super) fn fails_to_change_rows(&self, fault: Fault) {
        self.faults.lock().extend((0..SLOTS).map(|slot| ((Call::ChangeRow, slot), fault)));
    }

    pub(super) fn heal(&self) {
        self.faults.lock().clear();
    }

    fn random(&self, below: u64) -> u64 {
        next_random(&self.random, below)
    }

    /// Makes a call at some time, and answers at some later one.
    async fn at_some_time<T>(
        &self,
        kind: Call,
        slot: u16,
        call: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        let fault = self.faults.lock().get(&(kind, slot)).copied();
        let failure = || Failure { kind: "test", message: format!("{fault:?}") };
        for _ in 0..self.random(5) {
            tokio::task::yield_now().await;
        }
        let answer = match fault {
            Some(Fault::NotSent) => return Err(StoreError::NotSent(failure())),
            Some(Fault::Lost) => return Err(StoreError::Unknown(failure())),
            Some(Fault::AnswerLost) | None => call(),
        };
        for _ in 0..self.random(5) {
            tokio::task::yield_now().await;
        }
        if fault.is_some() { Err(StoreError::Unknown(failure())) } else { answer }
    }
}

pub(super) fn next_random(state: &AtomicU64, below: u64) -> u64 {
    // Knuth's linear congruential generator; its upper bits are good enough for an order of events.
    let step = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let now = state.fetch_update(SeqCst, SeqCst, |state| Some(step(state))).expect("it always steps");
    (step(now) >> 33) % below
}

/// The slot of a key by its tag, so that the limits of one descriptor are together.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split('}').next().expect("a split has a first part");
    let sum = tag.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    u16::try_from(sum % u32::from(SLOTS)).expect("a slot is small")
}

impl Slotted {
    fn row(&self, key: &str) -> RowRead {
        self.rows.lock().get(key).cloned().map_or(RowRead::Absent, RowRead::Row)
    }

    fn change(&self, key: &str, change: RowChange<'_>) -> RowChanged {
        let mut rows = self.rows.lock();
        match change {
            RowChange::Write(row) => {
                let before = rows.insert(key.to_owned(), row.clone()).map_or(RowRead::Absent, RowRead::Row);
                RowChanged::Written { before }
            }
            RowChange::Replace { row, over } if rows.get(key) == Some(over) => {
                let before = rows.insert(key.to_owned(), row.clone()).map_or(RowRead::Absent, RowRead::Row);
                RowChanged::Written { before }
            }
            RowChange::Replace { .. } => RowChanged::Kept,
            RowChange::Remove(row) => {
                if let Some(other) = self.set_between.lock().take() {
                    rows.insert(key.to_owned(), other);
                }
                let is_removed = rows.get(key) == Some(row) && rows.remove(key).is_some();
                if is_removed { RowChanged::Removed } else { RowChanged::Kept }
            }
        }
    }

    /// What the script does before it charges anything.
    fn compare(&self, row_versions: &[RowVersion<'_>]) -> Result<(), StoreError> {
        if let Some(found) = *self.found.lock() {
            return Err(StoreError::StaleRow { found: vec![found; row_versions.len()] });
        }
        let (rows, now) = (self.rows.lock(), self.clock.now());
        let in_force = |key| rows.get(key).filter(|row| row.until.is_none_or(|until| now < until));
        let found: Vec<u64> = row_versions.iter().map(|row| in_force(row.key).map_or(0, |row| row.version)).collect();
        let is_same = row_versions.iter().zip(&found).all(|(row, found)| row.version == *found);
        if is_same { Ok(()) } else { Err(StoreError::StaleRow { found }) }
    }
}

impl Store for Slotted {
    fn texts(&self) -> Option<&dyn Texts> {
        Some(self)
    }
}

impl Deciding for Slotted {
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        deadline: Instant,
    ) -> Reply<'a, Decision> {
        let undone = before.undos.iter().map(|undo| undo.key);
        let rows = before.row_versions.iter().map(|row| row.key);
        let mut keys = charges.iter().map(|charge| charge.key).chain(undone).chain(rows);
        let slot = slot_of(keys.next().expect("a charge, an undo or a row"));
        assert!(keys.all(|key| slot_of(key) == slot), "a call over several slots");
        if let Some(now) = self.clock_at_settle.lock().take_if(|_| !before.undos.is_empty()) {
            self.clock.set(now);
        }
        Reply::Pending(Box::pin(self.at_some_time(Call::Decide, slot, move || {
            self.compare(before.row_versions)?;
            ready(self.memory.decide_after(before, charges, mode, deadline))
        })))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(async move {
            let mut answer = Ok(());
            for undo in charges {
                self.undos.fetch_add(1, SeqCst);
                if let Some(now) = self.clock_at_undo.lock().take() {
                    self.clock.set(now);
                }
                let call = || ready(self.memory.undo(std::slice::from_ref(undo), deadline));
                answer = answer.and(self.at_some_time(Call::Undo, slot_of(undo.key), call).await);
            }
            answer
        }))
    }

    fn slot_of(&self, key: &str) -> u16 {
        slot_of(key)
    }
}

impl Inspected for Slotted {
    fn name(&self) -> &'static str {
        "slotted"
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64> {
        self.memory.reset(keys, deadline)
    }

    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, StatesRead> {
        self.memory.read_states(keys, deadline)
    }

    /// The rows, in one step.
    fn scan<'a>(&'a self, prefix: &'a str, _: ScanPosition, _: Instant) -> Reply<'a, Scanned> {
        let keys = self.rows.lock().keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        Reply::Ready(Ok(Scanned { keys, next: None }))
    }

    fn ping(&self, deadline: Instant) -> Reply<'_, ()> {
        self.memory.ping(deadline)
    }
}

impl Texts for Slotted {
    fn read_rows<'a>(&'a self, keys: &'a [&'a str], _: Instant) -> Reply<'a, Vec<RowRead>> {
        Reply::Pending(Box::pin(async move { Ok(keys.iter().map(|key| self.row(key)).collect()) }))
    }

    fn change_rows<'a>(
        &'a self,
        changes: &'a [(&'a str, RowChange<'a>)],
        _: Instant,
    ) -> Reply<'a, Vec<Result<RowChanged, StoreError>>> {
        Reply::Pending(Box::pin(async move {
            let change = |(key, change): &(&str, RowChange<'a>)| {
                let fault = self.faults.lock().get(&(Call::ChangeRow, slot_of(key))).copied();
                let failure = || Failure { kind: "test", message: format!("{fault:?}") };
                match fault {
                    Some(Fault::NotSent) => Err(StoreError::NotSent(failure())),
                    Some(Fault::Lost) => Err(StoreError::Unknown(failure())),
                    Some(Fault::AnswerLost) => {
                        self.change(key, *change);
                        Err(StoreError::Unknown(failure()))
                    }
                    None => Ok(self.change(key, *change)),
                }
            };
            Ok(changes.iter().map(change).collect())
        }))
    }

    fn read_overrides<'a>(&'a self, _: &'a str, _: Instant) -> Reply<'a, Option<StoredOverrides>> {
        unreachable!("no test asks")
    }

    fn write_overrides<'a>(&'a self, _: &'a str, _: &'a StoredOverrides, _: Instant) -> Reply<'a, bool> {
        unreachable!("no test asks")
    }
}

pub(super) fn ready<T>(reply: Reply<'_, T>) -> Result<T, StoreError> {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Pending(_) => panic!("the memory store answers at once"),
    }
}
