//! Rows: each descriptor of a rule with rows can have its own limits. weir keeps them beside its states. [rw-1]
//!
//! This file is the table of rows for operators: reading, writing and listing. The effect of a row on a decision is in
//! matched.rs and decide.rs. The lines of files of rows are in the package policies.

pub(super) mod cache;
pub mod known;
mod place;
mod process;
pub(super) mod row;
mod text;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_engine::observer::{Observer, RowEvent};
use weir_engine::rows::{ENDED_ROW_KEPT_US, Row, RowField, RowMisfit, key_of, row_key};
use weir_engine::{Entry, Micros, PolicySet, Rule, key};
use weir_store::{Clock, RowRead, ScanPosition, Store, StoreError, StoredRow};

use self::known::{KnownRows, limits_of};
use self::place::Place;
pub use self::process::ROWS_OF_PROCESS_MAX;
use self::process::{Removal, RowWrite};
use self::row::ParsedRow;
pub use self::text::fuzz;
use super::Policies;

/// The number of rows that are read or written at the same time.
const AT_ONCE: usize = 256;
/// How often weir reads a row again that others change before its removal.
const REMOVE_ATTEMPTS: usize = 16;

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
    #[error("this process has {ROWS_OF_PROCESS_MAX} rows, which is the maximum")]
    Full,
    /// The row comes from a file, and no operator has set it.
    #[error("the row comes from a file beside the policies: change the file")]
    OfFile,
    /// Others changed the row before each attempt to remove it.
    #[error("others keep changing the row: try again")]
    Contended,
    /// This descriptor has no row.
    #[error("there is no row for this domain and descriptor")]
    Absent,
    /// weir did not write the value at this key of the row. A write replaces only a text.
    #[error("the value at the key {0:?} of the row was not written by weir: delete the key")]
    Foreign(String),
    /// The store did not return rows. Nothing was written.
    #[error("{}", unread(.0))]
    Unread(StoreError),
    /// The store did not confirm the change.
    #[error("{}", unconfirmed(.0))]
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
}

fn unread(error: &StoreError) -> String {
    match error {
        StoreError::NotSent(failure) | StoreError::Unknown(failure) => format!("cannot read rows: {}", failure.message),
        StoreError::StaleBounds { .. } | StoreError::StaleRow { .. } => error.to_string(),
    }
}

fn unconfirmed(error: &StoreError) -> String {
    match error {
        StoreError::NotSent(failure) => format!("{}: nothing has changed", failure.message),
        StoreError::Unknown(failure) => format!("{}: the row may have been written", failure.message),
        StoreError::StaleBounds { .. } | StoreError::StaleRow { .. } => error.to_string(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub before: Option<Row>,
    pub result: WriteResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    Written,
    /// The store already had the same row, set by an operator, so weir wrote nothing.
    Same,
    /// A later row of the same call has the same descriptor, so weir wrote only that one.
    Replaced,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub row: Row,
    /// The row of a file that applies from now on. The removed row had replaced it.
    pub left: Option<Row>,
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

/// The start of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// The index of the store.
    store: usize,
    /// The position in the store, or in the rows of this process.
    at: ScanPosition,
}

/// A row and its place.
struct Found<'a> {
    place: Place<'a>,
    /// Whether it was found in the store of single limits per second.
    is_per_second: bool,
    key: String,
    stored: StoredRow,
    row: Row,
}

/// A page of rows with their places, and of keys whose values weir did not write.
struct FoundPage<'a> {
    rows: Vec<Found<'a>>,
    foreign: Vec<String>,
    next: Option<String>,
}

/// The rows for operators: of one store, or of two if single limits per second have their own.
pub struct RowTable {
    store: Arc<dyn Store>,
    per_second: Option<Arc<dyn Store>>,
    policies: Arc<Policies>,
    known: Arc<KnownRows>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
}

/// A row that fits the policies in force, ready to be written.
struct Ready {
    key: String,
    is_per_second: bool,
    row: ParsedRow,
}

/// Rows of files that fit the policies, ready to be put in force.
pub struct FittingRows(Vec<(Box<str>, ParsedRow)>);

impl RowTable {
    /// Makes the table of the rows in these stores, for these policies.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        per_second: Option<Arc<dyn Store>>,
        policies: Arc<Policies>,
        known: Arc<KnownRows>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { store, per_second, policies, known, clock, observer }
    }

    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
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
        self.ready(row.clone()).map(|_| ())
    }

    fn ready(&self, row: Row) -> Result<Ready, RowRefused> {
        let policies = self.policies();
        let (rule, key) = self.fit(&policies, &row).map_err(RowRefused::Misfit)?;
        Ok(Ready { key, is_per_second: self.is_per_second(rule), row: parsed(row)? })
    }

    /// A rule with rows that this table keeps in its only store. Servers with a second Redis look for them there. [st-3]
    #[must_use]
    pub fn rule_of_second_store(&self) -> Option<String> {
        let policies = self.policies();
        let mut rules = policies.rules().iter().filter(|_| self.per_second.is_none());
        let rule = rules.find(|rule| rule.rows.is_some() && rule.is_single_per_second())?;
        Some(format!("{} {}", rule.domain, rule.path))
    }

    fn fit<'p>(&self, policies: &'p PolicySet, row: &Row) -> Result<(&'p Rule, String), RowMisfit> {
        fit(policies, row, self.per_second.is_some())
    }

    /// Whether the states and rows of a rule are in the store of single limits per second. [st-3]
    fn is_per_second(&self, rule: &Rule) -> bool {
        self.per_second.is_some() && rule.is_single_per_second()
    }

    /// Why a row that was found has no effect under these policies.
    fn misfit(&self, policies: &PolicySet, found: &Found<'_>) -> Option<RowMisfit> {
        match self.fit(policies, &found.row) {
            Ok((rule, _)) => (self.is_per_second(rule) != found.is_per_second).then_some(RowMisfit::Misplaced),
            Err(misfit) => Some(misfit),
        }
    }

    /// The store of single limits per second, if there is one, or that of all other limits. [st-3]
    fn place(&self, is_per_second: bool) -> Place<'_> {
        let store = self.per_second.as_ref().filter(|_| is_per_second).unwrap_or(&self.store);
        match &*self.known {
            KnownRows::Cached(cache) => Place::Store(&**store, cache),
            KnownRows::OfProcess(rows) => Place::Process(rows),
        }
    }

    /// Writes each row separately, and returns the row that it has replaced: concurrent writes of one row replace each
    /// other one by one. If several have the same descriptor, weir writes the last one only. weir does not write a row that
    /// the store already has, except over a file's.
    pub async fn write(&self, rows: Vec<Row>) -> Vec<Result<Written, RowRefused>> {
        let mut results = Vec::with_capacity(rows.len());
        let mut ready = Vec::new();
        let mut last_of_keys = HashMap::new();
        for row in rows {
            let at = results.len();
            results.push(self.ready(row).map(|one| {
                last_of_keys.insert(one.key.clone(), at);
                ready.push((at, one));
                Written { before: None, result: WriteResult::Replaced }
            }));
        }
        ready.retain(|(at, one)| last_of_keys[&one.key] == *at);
        for chunk in ready.chunks(AT_ONCE) {
            for is_per_second in [false, true] {
                let of_store: Vec<&(usize, Ready)> =
                    chunk.iter().filter(|(_, one)| one.is_per_second == is_per_second).collect();
                if !of_store.is_empty() {
                    self.write_some(self.place(is_per_second), &of_store, &mut results).await;
                }
            }
        }
        results
    }

    async fn write_some(
        &self,
        place: Place<'_>,
        rows: &[&(usize, Ready)],
        results: &mut [Result<Written, RowRefused>],
    ) {
        let changes: Vec<(&str, &ParsedRow)> = rows.iter().map(|(_, one)| (one.key.as_str(), &one.row)).collect();
        let mut written = 0;
        for ((at, Ready { key, .. }), end) in rows.iter().zip(place.write(&changes).await) {
            results[*at] = match end {
                Ok(RowWrite::Done { before, is_same }) => {
                    written += u64::from(!is_same);
                    let before = before.and_then(|before| text::row_at(key, &before.text));
                    let result = if is_same { WriteResult::Same } else { WriteResult::Written };
                    Ok(Written { before, result })
                }
                Ok(RowWrite::Full) => Err(RowRefused::Full),
                Ok(RowWrite::OtherType) => Err(RowRefused::Foreign(key.clone())),
                Err(error) => Err(RowRefused::Store(error)),
            };
        }
        self.observer.rows(RowEvent::Written, written);
    }

    /// Returns the row of a descriptor, even if it has ended, and why it has no effect under the policies in force.
    ///
    /// # Errors
    /// If there is no row, or the store does not answer.
    pub async fn get(&self, domain: &str, entries: &[Entry<'_>]) -> Result<(Row, Option<RowMisfit>), RowRefused> {
        let found = self.find(domain, entries).await?;
        let misfit = self.misfit(&self.policies(), &found);
        Ok((found.row, misfit))
    }

    /// Finds a row. If its rule was removed, or the rule's states are now in the other store, the row is found where it
    /// was written.
    async fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Found<'_>, RowRefused> {
        let policies = self.policies();
        let (key, is_per_second, absent) = match row_key(&policies, domain, entries) {
            Ok((rule, key)) => (key, self.is_per_second(rule), RowRefused::Absent),
            Err(misfit) => (key_of(domain, entries), false, RowRefused::Misfit(misfit)),
        };
        let places = [is_per_second, !is_per_second].into_iter().enumerate();
        for (at, is_per_second) in places.filter(|(at, _)| *at == 0 || self.per_second.is_some()) {
            let place = self.place(is_per_second);
            let read = place.read(&[&key]).await.map_err(RowRefused::Unread)?;
            match read.into_iter().next() {
                Some(RowRead::Row(stored)) => match text::row_at(&key, &stored.text) {
                    Some(row) => return Ok(Found { place, is_per_second, key, stored, row }),
                    None if at == 0 => return Err(RowRefused::Foreign(key)),
                    None => {}
                },
                Some(RowRead::Foreign { .. }) if at == 0 => return Err(RowRefused::Foreign(key)),
                Some(RowRead::Foreign { .. } | RowRead::Absent) | None => {}
            }
        }
        Err(absent)
    }

    /// Removes the row of a descriptor, and returns it. If another row is set between the reading and the removal, that row
    /// is read and removed in its place. [rw-4]
    ///
    /// # Errors
    /// If there is no row, only a file has it, or the store does not confirm the removal.
    pub async fn remove(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Removed, RowRefused> {
        for _ in 0..REMOVE_ATTEMPTS {
            let found = self.find(domain, entries).await?;
            if self.delete(&found).await? {
                let left = found.place.of_file(&found.key).and_then(|left| text::row_at(&found.key, &left.text));
                return Ok(Removed { row: found.row, left });
            }
        }
        Err(RowRefused::Contended)
    }

    /// Removes a row that was found. Returns false if it is gone, or was replaced.
    async fn delete(&self, found: &Found<'_>) -> Result<bool, RowRefused> {
        let is_removed = match found.place.remove(&found.key, &found.stored).await.map_err(RowRefused::Store)? {
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
        let with_misfit = |found| {
            let misfit = self.misfit(&policies, &found);
            (found, misfit)
        };
        let mut rows: Vec<_> = rows.into_iter().map(with_misfit).collect();
        self.leave_out_replaced(&mut rows).await?;
        Ok(Page { rows: rows.into_iter().map(|(found, misfit)| (found.row, misfit)).collect(), foreign, next })
    }

    /// Leaves out misplaced rows of a page whose descriptor has another row in the store of its rule. That row is in another
    /// page, so each descriptor is listed once.
    async fn leave_out_replaced(&self, rows: &mut Vec<(Found<'_>, Option<RowMisfit>)>) -> Result<(), RowRefused> {
        let Some((first, _)) = rows.first() else { return Ok(()) };
        // All rows of a page are in one store.
        let of_rules = self.place(!first.is_per_second);
        let misplaced = rows.iter().filter(|(_, misfit)| *misfit == Some(RowMisfit::Misplaced));
        let keys: Vec<String> = misplaced.map(|(found, _)| found.key.clone()).collect();
        let mut replaced = HashSet::new();
        for keys in keys.chunks(AT_ONCE) {
            let asked: Vec<&str> = keys.iter().map(String::as_str).collect();
            let read = of_rules.read(&asked).await.map_err(RowRefused::Unread)?;
            let there = asked.into_iter().zip(read).filter(|(_, read)| matches!(read, RowRead::Row(_)));
            replaced.extend(there.map(|(key, _)| key));
        }
        rows.retain(|(found, _)| !replaced.contains(found.key.as_str()));
        Ok(())
    }

    async fn found_page(&self, domain: Option<&str>, cursor: Option<&str>) -> Result<FoundPage<'_>, RowRefused> {
        let Cursor { store, at } = match cursor {
            None => Cursor::default(),
            Some(text) => Cursor::read(text).ok_or_else(|| RowRefused::Invalid("after: no such page".to_owned()))?,
        };
        let prefix = key::domain_prefix(domain);
        let stores = 1 + usize::from(self.per_second.is_some());
        let mut page = FoundPage { rows: Vec::new(), foreign: Vec::new(), next: None };
        if store >= stores {
            return Ok(page);
        }
        let is_per_second = store == 1;
        let place = self.place(is_per_second);
        let (keys, next) = place.keys(&prefix, at).await.map_err(RowRefused::Unread)?;
        let next = match next {
            Some(at) => Some(Cursor { store, at }),
            None => Some(Cursor { store: store + 1, ..Cursor::default() }).filter(|next| next.store < stores),
        };
        page.next = next.map(Cursor::text);
        for chunk in keys.chunks(AT_ONCE) {
            let asked: Vec<&str> = chunk.iter().map(String::as_str).collect();
            let read = place.read(&asked).await.map_err(RowRefused::Unread)?;
            for (key, read) in chunk.iter().zip(read) {
                let read = match read {
                    RowRead::Absent => continue,
                    RowRead::Row(stored) => text::row_at(key, &stored.text).map(|row| (stored, row)),
                    RowRead::Foreign { .. } => None,
                };
                match read {
                    Some((stored, row)) => {
                        page.rows.push(Found { place, is_per_second, key: key.clone(), stored, row });
                    }
                    None => page.foreign.push(key.clone()),
                }
            }
        }
        Ok(page)
    }

    /// Removes the rows of a page that ended more than a minute ago by the clock of this process, even if their rule is
    /// gone. Rows that were set meanwhile, and rows of files, stay. Returns the removed rows, and the start of the next
    /// page.
    ///
    /// # Errors
    /// As [`RowTable::page`], and if the store does not confirm a removal.
    pub async fn prune(
        &self,
        domain: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<(Vec<Row>, Option<String>), RowRefused> {
        let FoundPage { rows, next, .. } = self.found_page(domain, cursor).await?;
        let now = self.clock.now();
        let has_ended = |row: &Row| row.until.is_some_and(|until| until.saturating_add(ENDED_ROW_KEPT_US) <= now);
        let mut pruned = Vec::new();
        for found in rows.into_iter().filter(|found| has_ended(&found.row)) {
            match self.delete(&found).await {
                Ok(true) => pruned.push(found.row),
                Ok(false) | Err(RowRefused::OfFile) => {}
                Err(refused) if pruned.is_empty() => return Err(refused),
                // What was removed is answered; the caller asks for this page again.
                Err(_) => return Ok((pruned, Some(cursor.map_or_else(|| Cursor::default().text(), str::to_owned)))),
            }
        }
        Ok((pruned, next))
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
            let fitted = match self.fit(policies, &row) {
                Ok(_) if fitting.len() >= ROWS_OF_PROCESS_MAX => Err(RowRefused::Full),
                Ok((_, key)) => parsed(row).map(|row| (key.into(), row)),
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
        match &*self.known {
            KnownRows::OfProcess(of_process) => of_process.replace_of_files(rows.0),
            KnownRows::Cached(_) => 0,
        }
    }
}

/// Whether a row of a file beside the policies fits these policies.
///
/// # Errors
/// If it does not fit.
pub fn check_of_file(policies: &PolicySet, row: &Row) -> Result<(), RowRefused> {
    fit(policies, row, false).map_err(RowRefused::Misfit)?;
    text::stored(row).map_err(RowRefused::Invalid).map(|_| ())
}

/// The rule that a row fits, and the key of the row.
fn fit<'p>(policies: &'p PolicySet, row: &Row, has_second_store: bool) -> Result<(&'p Rule, String), RowMisfit> {
    let (rule, key) = row_key(policies, &row.domain, &row.descriptor())?;
    limits_of(rule, &row.content, has_second_store)?;
    Ok((rule, key))
}

fn parsed(row: Row) -> Result<ParsedRow, RowRefused> {
    let stored = text::stored(&row).map_err(RowRefused::Invalid)?;
    Ok(ParsedRow { stored, content: Arc::new(row.content) })
}

impl Cursor {
    fn text(self) -> String {
        format!("{}.{}.{}", self.store, self.at.shard, self.at.at)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let store = parts.next()?.parse().ok()?;
        let at = ScanPosition { shard: parts.next()?.parse().ok()?, at: parts.next()?.parse().ok()? };
        Some(Self { store, at })
    }
}
