//! Rows: each descriptor of a rule with rows can have its own limits. weir keeps them in the store of the states. [rw-1]
//!
//! This file is the table of rows for operators: reading, writing and listing. The effect of a row on a decision is in
//! matched.rs and decide.rs. The lines of files of rows are in the package policies.

mod built;
pub(super) mod cache;
mod condition;
pub mod count;
mod generations;
pub mod known;
mod place;
mod process;
pub(super) mod row;
mod text;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_engine::observer::{Observer, RowEvent};
use weir_engine::plans::PlanLimits;
use weir_engine::rows::{ENDED_ROW_KEPT_US, ROW_ID, Row, RowField, RowMisfit, key_of, row_key};
use weir_engine::{Entry, Micros, PolicySet, key};
use weir_store::{Clock, RowRead, ScanPosition, Store, StoreError, StoredRow};

pub use self::condition::{RowMatch, row_version};
use self::known::{KeptRows, KnownRows};
use self::place::{Place, RowToWrite};
pub use self::process::ROWS_OF_PROCESS_MAX;
use self::process::{Removal, RowWrite};
use self::row::ParsedRow;
pub use self::text::fuzz;
use super::Policies;

/// The number of rows that are read or written at the same time.
const AT_ONCE: usize = 256;
/// The most rows of unknown outcome that a process remembers, so that it can report when it finds them written.
const UNCONFIRMED_MAX: usize = 10_000;
/// How often weir reads a row again that others change before its removal, or before it is replaced.
const ATTEMPTS: usize = 16;

/// Why a row was not read, written or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowRefused {
    /// The row fits no rule of the policies in force.
    #[error("{0}")]
    Misfit(RowMisfit),
    /// The row is wrong in another way.
    #[error("{0}")]
    Invalid(String),
    /// This process has too many rows.
    #[error("this process has {ROWS_OF_PROCESS_MAX} rows of operators, or of files, which is the maximum of each")]
    Full,
    /// The row comes from a file, and no operator has set it.
    #[error("the row comes from a file beside the policies: change the file")]
    OfFile,
    /// The change was for a row of another version. Contains the version of the row that is there.
    #[error("{}", unmatched(*.0))]
    Unmatched(Option<u64>),
    /// Others changed the row before each attempt to replace or remove it.
    #[error("others keep changing the row: try again")]
    Contended,
    /// This descriptor has no row.
    #[error("there is no row for this domain and descriptor")]
    Absent,
    /// The row is gone after a removal of this process that the store did not confirm. Contains the author of that removal.
    #[error(
        "there is no row for this domain and descriptor any more: an earlier removal, which the store did not confirm, was made"
    )]
    FoundRemoved(Box<str>),
    /// weir did not write the value at this key of the row. A write replaces only a text.
    #[error("the value at the key {0:?} of the row was not written by weir: delete the key")]
    Foreign(String),
    /// The store did not return rows. Nothing was written.
    #[error("cannot read rows: {}", .0.reason())]
    Unread(StoreError),
    /// The store did not confirm the change.
    #[error("{}: {}", .0.reason(), match .0.is_unknown() {
        true => "the row may have been written or removed",
        false => "nothing has changed",
    })]
    Store(StoreError),
}

impl RowRefused {
    /// The field of the row that does not fit the policies.
    #[must_use]
    pub fn field(&self) -> Option<RowField> {
        match self {
            Self::Misfit(misfit) => Some(misfit.field()),
            _ => None,
        }
    }

    /// Whether the change may be in force.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unknown())
    }
}

fn unmatched(version: Option<u64>) -> String {
    version
        .map_or_else(|| "no row is there to match".to_owned(), |version| format!("the row has the version {version}"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub before: Option<Row>,
    pub result: WriteResult,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    Written,
    /// The store already had the same row, set by an operator, so weir wrote nothing.
    Same,
    /// The store already had the same row, from an earlier write of this process that the store did not confirm. Contains the
    /// author of that write.
    FoundWritten(Box<str>),
    /// A later row of the same call has the same descriptor, so weir wrote only that one.
    Replaced,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub row: Row,
    /// The row of a file that applies from now on. The removed row had replaced it.
    pub left: Option<Row>,
}

/// What a prune has done with the ended rows of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub removed: Vec<Row>,
    /// The row whose removal the store did not confirm. The prune ends there.
    pub failed: Option<(Row, RowRefused)>,
    /// Whether the prune ended because the log has no room. The remaining rows stay.
    pub is_log_full: bool,
    /// The start of the next page, or of this page if a removal has failed. `None` after the last page.
    pub next: Option<String>,
}

/// The log of a prune.
pub trait RemovalLog {
    /// Waits for room for the line of one more removal. Returns whether there is room.
    fn has_room(&mut self) -> impl Future<Output = bool> + Send;
    /// Logs that a row was removed.
    fn removed(&mut self, row: &Row);
}

/// No log.
impl RemovalLog for () {
    async fn has_room(&mut self) -> bool {
        true
    }

    fn removed(&mut self, _row: &Row) {}
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows. If a row has no effect under the policies in force, with the reason.
    pub rows: Vec<(Row, Option<RowMisfit>)>,
    /// Keys of rows whose values weir did not write.
    pub foreign: Vec<String>,
    /// The start of the next page. `None` on the last page.
    pub next: Option<String>,
}

/// The override in force of a row's descriptor. [rw-3]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowOverride {
    /// The names of the limits that have the override's numbers. A limit without a name has its id.
    pub limits: Vec<Box<str>>,
    pub until: Micros,
    /// Why the row has no effect beside the override.
    pub hides_row: Option<&'static str>,
}

/// A row that was found.
struct Found {
    key: String,
    stored: StoredRow,
    row: Row,
}

/// A page of rows, and of keys whose values weir did not write.
struct FoundPage {
    rows: Vec<Found>,
    foreign: Vec<String>,
    next: Option<String>,
}

/// The rows of a store, for operators.
pub struct RowTable {
    store: Arc<dyn Store>,
    policies: Arc<Policies>,
    known: Arc<KnownRows>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    /// The changes that the store may have made, by the keys of their rows.
    unconfirmed: Mutex<HashMap<String, Unconfirmed>>,
}

/// A change of a row that the store did not confirm.
struct Unconfirmed {
    by: Box<str>,
    /// The version that was written. `None` for a removal.
    written: Option<u64>,
}

/// A row that fits the policies in force, ready to be written.
struct Ready {
    key: String,
    row: ParsedRow,
    only: Option<RowMatch>,
}

/// Rows of files that fit the policies, ready to be put in force.
pub struct FittingRows(Vec<(Box<str>, ParsedRow)>);

impl RowTable {
    /// Makes the table of the rows in this store, for these policies.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        policies: Arc<Policies>,
        known: Arc<KnownRows>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { store, policies, known, clock, observer, unconfirmed: Mutex::default() }
    }

    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The override in force that comes before a row, if there is one.
    #[must_use]
    pub fn overridden(&self, row: &Row) -> Option<RowOverride> {
        let in_force = self.policies.snapshot();
        let overrides = in_force.overrides.as_ref()?;
        let (rule, key) = row_key(&in_force.policies, &row.domain, &row.descriptor()).ok()?;
        let set = overrides.limits(key.strip_suffix(ROW_ID)?, || self.clock.now())?;
        let named = rule.limits.iter().enumerate().filter(|(at, _)| set.names(*at));
        let limits = named.map(|(_, limit)| limit.name.as_deref().unwrap_or(limit.id()).into()).collect();
        let is_twin = |limits: Cow<'_, PlanLimits>| set.over(&limits).is_none();
        let hides_row = if set.names_all() {
            Some("an override of all its limits is in force")
        } else if row.content.limits(rule).is_ok_and(is_twin) {
            Some("it has a limit of the same algorithm and window as an override in force")
        } else {
            None
        };
        Some(RowOverride { limits, until: set.until(), hides_row })
    }

    /// The rows that this process knows.
    #[must_use]
    pub fn known(&self) -> &Arc<KnownRows> {
        &self.known
    }

    /// The time of this process, for ends that are given as a duration.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.current()
    }

    /// Whether a row fits the policies in force.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn check(&self, row: &Row) -> Result<(), RowRefused> {
        self.ready(row.clone(), None).map(|_| ())
    }

    fn ready(&self, row: Row, only: Option<RowMatch>) -> Result<Ready, RowRefused> {
        let key = fit(&self.policies(), &row).map_err(RowRefused::Misfit)?;
        Ok(Ready { key, row: parsed(row)?, only })
    }

    fn place(&self) -> Place<'_> {
        match &self.known.kept {
            KeptRows::Cached(cache) => Place::Store(&*self.store, self.store.texts().expect("it has the rows"), cache),
            KeptRows::OfProcess(rows) => Place::Process(rows),
        }
    }

    /// Writes each row separately, and returns the row that it has replaced: concurrent writes of one row replace each
    /// other one by one. If several have the same descriptor, weir writes the last one only. weir does not write a row that
    /// the store already has, except over a file's.
    pub async fn write(&self, rows: Vec<Row>) -> Vec<Result<Written, RowRefused>> {
        self.write_matching("", rows.into_iter().map(|row| (row, None)).collect()).await
    }

    /// The same for rows of this author that may only replace some rows. A row that is there already is no mistake. [rw-8]
    pub async fn write_matching(
        &self,
        by: &str,
        rows: Vec<(Row, Option<RowMatch>)>,
    ) -> Vec<Result<Written, RowRefused>> {
        let mut results = Vec::with_capacity(rows.len());
        let mut ready = Vec::new();
        let mut last_of_keys = HashMap::new();
        for (row, only) in rows {
            let at = results.len();
            results.push(self.ready(row, only).map(|one| {
                last_of_keys.insert(one.key.clone(), at);
                ready.push((at, one));
                Written { before: None, result: WriteResult::Replaced }
            }));
        }
        ready.retain(|(at, one)| last_of_keys[&one.key] == *at);
        for rows in ready.chunks(AT_ONCE) {
            let (only_some, any): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, one)| one.only.is_some());
            self.write_some(by, &any.iter().map(|row| (*row, None)).collect::<Vec<_>>(), &mut results).await;
            self.write_over(by, only_some, &mut results).await;
        }
        results
    }

    /// Whether rows fit the policies, and replace only the rows that they may. Writes nothing.
    pub async fn check_matching(&self, rows: Vec<(Row, Option<RowMatch>)>) -> Vec<Result<(), RowRefused>> {
        let ready = rows.into_iter().map(|(row, only)| self.ready(row, only)).enumerate();
        let (mut results, mut with_match) = (Vec::new(), Vec::new());
        for (at, one) in ready {
            results.push(one.map(|one| with_match.extend(one.only.is_some().then_some((at, one)))));
        }
        for rows in with_match.chunks(AT_ONCE) {
            for ((at, _), over) in self.to_replace(&rows.iter().collect::<Vec<_>>()).await {
                results[*at] = over.map(|_| ());
            }
        }
        results
    }

    /// Reads the rows that these rows would replace, and refuses those that they must not.
    async fn to_replace<'r>(
        &self,
        rows: &[&'r (usize, Ready)],
    ) -> Vec<(&'r (usize, Ready), Result<StoredRow, RowRefused>)> {
        let keys: Vec<&str> = rows.iter().map(|(_, one)| one.key.as_str()).collect();
        let read = match self.place().read(&keys).await {
            Ok(read) => read,
            Err(error) => return rows.iter().map(|row| (*row, Err(RowRefused::Unread(error.clone())))).collect(),
        };
        let over = |(_, one): &(usize, Ready), read| match read {
            RowRead::Absent => Err(RowRefused::Unmatched(None)),
            RowRead::Foreign { .. } => Err(RowRefused::Foreign(one.key.clone())),
            RowRead::Row(stored) => match text::row_at(&one.key, &stored.text) {
                None => Err(RowRefused::Foreign(one.key.clone())),
                Some(_) if stored == one.row.stored => Ok(stored),
                Some(row) if one.only.as_ref().is_none_or(|only| only.has(&row)) => Ok(stored),
                Some(row) => Err(RowRefused::Unmatched(row_version(&row))),
            },
        };
        rows.iter().zip(read).map(|(row, read)| (*row, over(row, read))).collect()
    }

    /// Writes rows in place of those that they may replace. If others change one in between, it is read again.
    async fn write_over(&self, by: &str, mut rows: Vec<&(usize, Ready)>, results: &mut [Result<Written, RowRefused>]) {
        for _ in 0..ATTEMPTS {
            if rows.is_empty() {
                return;
            }
            let mut found = Vec::new();
            for (row, over) in self.to_replace(&rows).await {
                match over {
                    Ok(over) => found.push((row, over)),
                    Err(refused) => results[row.0] = Err(refused),
                }
            }
            let to_write: Vec<_> = found.iter().map(|(row, over)| (*row, Some(over))).collect();
            rows = self.write_some(by, &to_write, results).await;
        }
        for (at, _) in rows {
            results[*at] = Err(RowRefused::Contended);
        }
    }

    /// Writes rows, and returns those that were not written, because the row to replace is not there any more.
    async fn write_some<'r>(
        &self,
        by: &str,
        rows: &[(&'r (usize, Ready), Option<&StoredRow>)],
        results: &mut [Result<Written, RowRefused>],
    ) -> Vec<&'r (usize, Ready)> {
        let changes: Vec<RowToWrite<'_>> =
            rows.iter().map(|((_, one), over)| RowToWrite { key: &one.key, row: &one.row, over: *over }).collect();
        let (mut written, mut changed) = (0, Vec::new());
        if changes.is_empty() {
            return changed;
        }
        let ends = self.place().write(&changes).await;
        let mut unconfirmed = self.unconfirmed.lock();
        for ((of_call, _), end) in rows.iter().zip(ends) {
            let (at, Ready { key, row, .. }) = of_call;
            results[*at] = match end {
                Ok(RowWrite::Done { before, is_same }) => {
                    let earlier = unconfirmed.remove(key);
                    let earlier = earlier.filter(|earlier| earlier.written == Some(row.stored.version));
                    let result = match (is_same, earlier) {
                        (false, _) => WriteResult::Written,
                        (true, Some(earlier)) => WriteResult::FoundWritten(earlier.by),
                        (true, None) => WriteResult::Same,
                    };
                    written += u64::from(result != WriteResult::Same);
                    let before = before.and_then(|before| text::row_at(key, &before.text));
                    Ok(Written { before, result })
                }
                Ok(RowWrite::Changed) => {
                    changed.push(*of_call);
                    continue;
                }
                Ok(RowWrite::Full) => Err(RowRefused::Full),
                Ok(RowWrite::OtherType) => Err(RowRefused::Foreign(key.clone())),
                Err(error) => {
                    let change = Unconfirmed { by: by.into(), written: Some(row.stored.version) };
                    remember(&mut unconfirmed, key, change, &error);
                    Err(RowRefused::Store(error))
                }
            };
        }
        drop(unconfirmed);
        self.observer.rows(RowEvent::Written, written);
        changed
    }

    /// Returns the row of a descriptor, even if it has ended, and why it has no effect under the policies in force.
    ///
    /// # Errors
    /// If there is no row, or the store does not answer.
    pub async fn get(&self, domain: &str, entries: &[Entry<'_>]) -> Result<(Row, Option<RowMisfit>), RowRefused> {
        let found = self.find(domain, entries).await?;
        let misfit = fit(&self.policies(), &found.row).err();
        Ok((found.row, misfit))
    }

    /// Finds a row, also if its rule was removed.
    async fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Found, RowRefused> {
        let policies = self.policies();
        let (key, absent) = match row_key(&policies, domain, entries) {
            Ok((_, key)) => (key, RowRefused::Absent),
            Err(misfit) => (key_of(domain, entries), RowRefused::Misfit(misfit)),
        };
        let read = self.place().read(&[&key]).await.map_err(RowRefused::Unread)?;
        match read.into_iter().next() {
            Some(RowRead::Row(stored)) => match text::row_at(&key, &stored.text) {
                Some(row) => Ok(Found { key, stored, row }),
                None => Err(RowRefused::Foreign(key)),
            },
            Some(RowRead::Foreign { .. }) => Err(RowRefused::Foreign(key)),
            Some(RowRead::Absent) | None => Err(absent),
        }
    }

    /// Whether a row of a descriptor is there that can be removed. Removes nothing.
    ///
    /// # Errors
    /// As [`RowTable::remove_matching`].
    pub async fn check_removal(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        only: Option<&RowMatch>,
    ) -> Result<(), RowRefused> {
        let found = self.find(domain, entries).await?;
        match self.place() {
            _ if only.is_some_and(|only| !only.has(&found.row)) => Err(RowRefused::Unmatched(row_version(&found.row))),
            Place::Process(rows) if !rows.has_of_operator(&found.key) => Err(RowRefused::OfFile),
            _ => Ok(()),
        }
    }

    /// Removes the row of a descriptor, and returns it. If another row is set between the reading and the removal, that row
    /// is read and removed in its place. [rw-4]
    ///
    /// # Errors
    /// If there is no row, only a file has it, or the store does not confirm the removal. Also if there is no row after a removal
    /// that the store did not confirm.
    pub async fn remove(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Removed, RowRefused> {
        self.remove_matching("", domain, entries, None).await
    }

    /// The same for a row that this author has named by its version.
    ///
    /// # Errors
    /// As [`RowTable::remove`], and if the row is another one.
    pub async fn remove_matching(
        &self,
        by: &str,
        domain: &str,
        entries: &[Entry<'_>],
        only: Option<&RowMatch>,
    ) -> Result<Removed, RowRefused> {
        for _ in 0..ATTEMPTS {
            let found = match self.find(domain, entries).await {
                Err(absent @ (RowRefused::Absent | RowRefused::Misfit(_))) => {
                    let key = row_key(&self.policies(), domain, entries)
                        .map_or_else(|_| key_of(domain, entries), |(_, key)| key);
                    return Err(match self.unconfirmed.lock().remove(&key) {
                        Some(Unconfirmed { by, written: None }) => RowRefused::FoundRemoved(by),
                        _ if absent == RowRefused::Absent && only.is_some() => RowRefused::Unmatched(None),
                        _ => absent,
                    });
                }
                found => found?,
            };
            if only.is_some_and(|only| !only.has(&found.row)) {
                return Err(RowRefused::Unmatched(row_version(&found.row)));
            }
            if self.delete(by, &found).await? {
                let left = self.place().of_file(&found.key).and_then(|left| text::row_at(&found.key, &left.text));
                return Ok(Removed { row: found.row, left });
            }
        }
        Err(RowRefused::Contended)
    }

    /// Removes a row that was found. Returns false if it is gone, or was replaced.
    async fn delete(&self, by: &str, found: &Found) -> Result<bool, RowRefused> {
        let removal = self.place().remove(&found.key, &found.stored).await;
        let mut unconfirmed = self.unconfirmed.lock();
        match &removal {
            Ok(_) => drop(unconfirmed.remove(&found.key)),
            Err(error) => {
                remember(&mut unconfirmed, &found.key, Unconfirmed { by: by.into(), written: None }, error);
            }
        }
        drop(unconfirmed);
        let is_removed = match removal.map_err(RowRefused::Store)? {
            Removal::Done => true,
            Removal::Changed => false,
            Removal::OfFile => return Err(RowRefused::OfFile),
        };
        self.observer.rows(RowEvent::Removed, u64::from(is_removed));
        Ok(is_removed)
    }

    /// Returns a page of the rows of a domain, or of all domains, in no particular order. A row that exists the whole
    /// time appears in some page, perhaps in two.
    ///
    /// # Errors
    /// If the store does not answer, or the cursor is invalid.
    pub async fn page(&self, domain: Option<&str>, cursor: Option<&str>) -> Result<Page, RowRefused> {
        let FoundPage { rows, foreign, next } = self.found_page(domain, cursor).await?;
        let policies = self.policies();
        let with_misfit = |Found { row, .. }| {
            let misfit = fit(&policies, &row).err();
            (row, misfit)
        };
        Ok(Page { rows: rows.into_iter().map(with_misfit).collect(), foreign, next })
    }

    async fn found_page(&self, domain: Option<&str>, cursor: Option<&str>) -> Result<FoundPage, RowRefused> {
        let no_page = || RowRefused::Invalid("after: no such page".to_owned());
        let at = cursor.map_or(Ok(ScanPosition::default()), |text| position(text).ok_or_else(no_page))?;
        let (keys, next) = self.place().keys(&key::domain_prefix(domain), at).await.map_err(RowRefused::Unread)?;
        let mut page = FoundPage { rows: Vec::new(), foreign: Vec::new(), next: next.map(position_text) };
        for chunk in keys.chunks(AT_ONCE) {
            let asked: Vec<&str> = chunk.iter().map(String::as_str).collect();
            let read = self.place().read(&asked).await.map_err(RowRefused::Unread)?;
            for (key, read) in chunk.iter().zip(read) {
                let read = match read {
                    RowRead::Absent => continue,
                    RowRead::Row(stored) => text::row_at(key, &stored.text).map(|row| (stored, row)),
                    RowRead::Foreign { .. } => None,
                };
                match read {
                    Some((stored, row)) => page.rows.push(Found { key: key.clone(), stored, row }),
                    None => page.foreign.push(key.clone()),
                }
            }
        }
        Ok(page)
    }

    /// Removes, for this author, the rows of a page that ended more than a minute ago by the clock of this process, even if
    /// their rule is gone. Rows that were set meanwhile, and rows of files, stay. Each removal waits for room in the log.
    ///
    /// # Errors
    /// As [`RowTable::page`].
    pub async fn prune(
        &self,
        by: &str,
        domain: Option<&str>,
        cursor: Option<&str>,
        log: &mut impl RemovalLog,
    ) -> Result<Pruned, RowRefused> {
        let FoundPage { rows, next, .. } = self.found_page(domain, cursor).await?;
        let now = self.clock.now();
        let has_ended = |row: &Row| row.until.is_some_and(|until| until.saturating_add(ENDED_ROW_KEPT_US) <= now);
        let mut pruned = Pruned { next, ..Pruned::default() };
        for found in rows.into_iter().filter(|found| has_ended(&found.row)) {
            if !log.has_room().await {
                pruned.is_log_full = true;
                break;
            }
            match self.delete(by, &found).await {
                Ok(true) => {
                    log.removed(&found.row);
                    pruned.removed.push(found.row);
                }
                Ok(false) | Err(RowRefused::OfFile) => {}
                Err(refused) => {
                    pruned.failed = Some((found.row, refused));
                    pruned.next = Some(cursor.map_or_else(|| position_text(ScanPosition::default()), str::to_owned));
                    break;
                }
            }
        }
        Ok(pruned)
    }

    /// Returns the rows that fit these policies. `wrong` gets the position of each other row, and the reason; if it returns
    /// false, the remaining rows are not checked.
    pub fn fitting(
        &self,
        policies: &PolicySet,
        rows: impl IntoIterator<Item = Row>,
        mut wrong: impl FnMut(usize, RowRefused) -> bool,
    ) -> FittingRows {
        let mut fitting = Vec::new();
        for (at, row) in rows.into_iter().enumerate() {
            let fitted = match fit(policies, &row) {
                Ok(_) if fitting.len() >= ROWS_OF_PROCESS_MAX => Err(RowRefused::Full),
                Ok(key) => parsed(row).map(|row| (key.into(), row)),
                Err(misfit) => Err(RowRefused::Misfit(misfit)),
            };
            match fitted {
                Ok(row) => fitting.push(row),
                Err(refused) => {
                    if !wrong(at, refused) {
                        break;
                    }
                }
            }
        }
        FittingRows(fitting)
    }

    /// Replaces the rows that come from files beside the policies, with the memory store. Returns their number. Another store
    /// has no such rows.
    pub fn replace_of_files(&self, rows: FittingRows) -> usize {
        match &self.known.kept {
            KeptRows::OfProcess(of_process) => of_process.replace_of_files(rows.0),
            KeptRows::Cached(_) => 0,
        }
    }
}

/// Remembers a change if the store may have made it.
fn remember(unconfirmed: &mut HashMap<String, Unconfirmed>, key: &str, change: Unconfirmed, error: &StoreError) {
    let has_room = unconfirmed.len() < UNCONFIRMED_MAX || unconfirmed.contains_key(key);
    if error.is_unknown() && has_room {
        unconfirmed.insert(key.to_owned(), change);
    }
}

/// Whether a row of a file beside the policies fits these policies.
///
/// # Errors
/// If it does not fit.
pub fn check_of_file(policies: &PolicySet, row: &Row) -> Result<(), RowRefused> {
    fit(policies, row).map_err(RowRefused::Misfit)?;
    text::stored(row).map_err(RowRefused::Invalid).map(|_| ())
}

/// The key of a row that fits these policies.
fn fit(policies: &PolicySet, row: &Row) -> Result<String, RowMisfit> {
    let (rule, key) = row_key(policies, &row.domain, &row.descriptor())?;
    row.content.limits(rule)?;
    Ok(key)
}

fn parsed(row: Row) -> Result<ParsedRow, RowRefused> {
    let stored = text::stored(&row).map_err(RowRefused::Invalid)?;
    Ok(ParsedRow { stored, content: Arc::new(row.content) })
}

fn position_text(ScanPosition { shard, at }: ScanPosition) -> String {
    format!("{shard}.{at}")
}

fn position(text: &str) -> Option<ScanPosition> {
    let (shard, at) = text.split_once('.')?;
    Some(ScanPosition { shard: shard.parse().ok()?, at: at.parse().ok()? })
}
