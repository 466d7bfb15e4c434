//! Rows: each descriptor of a rule with rows can have its own limits. weir keeps them beside its states. [rw-1]
//!
//! This file is the table of rows for operators: reading, writing and listing. The effect of a row on a decision is in
//! matched.rs and decide.rs. The lines of files of rows are in the package policies.

pub mod known;
mod text;

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::observer::{Observer, RowEvent};
use weir_engine::rows::{ENDED_ROW_KEPT_US, ROW_ID, Row, RowMisfit, RowPart, row_key};
use weir_engine::{Entry, Micros, PolicySet, Rule, Unit, key};
use weir_store::{Clock, RowChange, RowRead, ScanPosition, Store, StoreError, StoredRow};

use self::known::{KnownRow, KnownRows, ROWS_OF_PROCESS_MAX, Removal};
pub use self::text::fuzz;
use super::Policies;

/// The timeout of one call to the store.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of rows that are read or written at the same time.
const AT_ONCE: usize = 256;
/// The most rows of this process in one page.
const PAGE_ROWS: usize = 5_000;
/// The most steps of a scan in one page.
const PAGE_STEPS: usize = 50;
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
    /// weir did not write the value at the key of the row.
    #[error("the value at the key of the row was not written by weir: set the row, or delete the key")]
    Foreign,
    /// The store did not confirm the change.
    #[error("{}", unconfirmed(.0))]
    Store(StoreError),
}

impl RowRefused {
    /// The part of the row that does not fit the policies.
    #[must_use]
    pub fn part(&self) -> Option<RowPart> {
        match self {
            Self::Misfit(misfit) => Some(misfit.part()),
            _ => None,
        }
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
    /// The store already had the same row, set by an operator, so weir wrote nothing.
    pub is_same: bool,
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
    store: &'a Arc<dyn Store>,
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

fn has_one_limit_per_second(rule: &Rule) -> bool {
    matches!(&*rule.limits, [limit] if limit.window().unit() == Some(Unit::Second))
}

/// Whether a row of a file beside the policies fits these policies.
///
/// # Errors
/// If it does not fit.
pub fn check_of_file(policies: &PolicySet, row: &Row) -> Result<(), RowRefused> {
    let (rule, _) = row_key(policies, &row.domain, &row.descriptor()).map_err(RowRefused::Misfit)?;
    row.content.limits(rule).map_err(RowRefused::Misfit)?;
    text::stored(row).map_err(RowRefused::Invalid).map(|_| ())
}

/// The rows of one store, for operators.
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
    row: Row,
    stored: StoredRow,
}

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
        known.set_second_store(per_second.is_some());
        Self { store, per_second, policies, known, clock, observer }
    }

    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
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

    /// Whether a policy in force has rows.
    #[must_use]
    pub fn are_used(&self) -> bool {
        self.policies().domains().any(|domain| domain.has_rows)
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
        let (rule, key) = row_key(&policies, &row.domain, &row.descriptor()).map_err(RowRefused::Misfit)?;
        self.known.fitted(rule, &row.content).map_err(RowRefused::Misfit)?;
        let stored = text::stored(&row).map_err(RowRefused::Invalid)?;
        Ok(Ready { key, is_per_second: self.is_per_second(rule), row, stored })
    }

    /// Whether the states and rows of a rule are in the store of single limits per second. [st-3]
    fn is_per_second(&self, rule: &Rule) -> bool {
        self.per_second.is_some() && has_one_limit_per_second(rule)
    }

    /// A rule with rows that this table keeps in its only store. Servers with a second Redis look for them there. [st-3]
    #[must_use]
    pub fn rule_of_second_store(&self) -> Option<String> {
        let policies = self.policies();
        let mut rules = policies.rules().iter().filter(|_| self.per_second.is_none());
        let rule = rules.find(|rule| rule.rows.is_some() && has_one_limit_per_second(rule))?;
        Some(format!("{} {}", rule.domain, rule.path))
    }

    fn store_of(&self, is_per_second: bool) -> &Arc<dyn Store> {
        self.per_second.as_ref().filter(|_| is_per_second).unwrap_or(&self.store)
    }

    /// Writes each row separately. weir does not write a row that the store already has, except over a file's.
    pub async fn write(&self, rows: Vec<Row>) -> Vec<Result<Written, RowRefused>> {
        let mut results = Vec::with_capacity(rows.len());
        let mut ready = Vec::new();
        for row in rows {
            match self.ready(row) {
                Ok(one) => {
                    ready.push((results.len(), one));
                    results.push(Ok(Written { before: None, is_same: false }));
                }
                Err(refused) => results.push(Err(refused)),
            }
        }
        for chunk in ready.chunks(AT_ONCE) {
            for is_per_second in [false, true] {
                let of_store: Vec<&(usize, Ready)> =
                    chunk.iter().filter(|(_, one)| one.is_per_second == is_per_second).collect();
                if !of_store.is_empty() {
                    self.write_some(self.store_of(is_per_second), &of_store, &mut results).await;
                }
            }
        }
        results
    }

    async fn write_some(
        &self,
        store: &Arc<dyn Store>,
        rows: &[&(usize, Ready)],
        results: &mut [Result<Written, RowRefused>],
    ) {
        let keys: Vec<&str> = rows.iter().map(|(_, one)| one.key.as_str()).collect();
        let before = match self.read(store, &keys).await {
            Ok(before) => before,
            Err(error) => {
                rows.iter().for_each(|(at, _)| results[*at] = Err(RowRefused::Store(error.clone())));
                return;
            }
        };
        let mut changed: Vec<&(usize, Ready)> = Vec::new();
        for (&one, before) in rows.iter().zip(before) {
            let (at, ready) = one;
            // A row that only a file has becomes the operator's, so that a change of the file does not change it. [rw-6]
            let is_kept = !store.is_immediate() || self.known.is_set(&ready.key);
            let is_same = is_kept && matches!(&before, RowRead::Row(row) if *row == ready.stored);
            let before = match before {
                RowRead::Row(row) => text::read(&row.text).ok(),
                RowRead::Absent | RowRead::Foreign { .. } => None,
            };
            results[*at] = Ok(Written { before, is_same });
            // If two lines have the same descriptor, the later line applies.
            changed.retain(|(_, other)| other.key != ready.key);
            if !is_same {
                changed.push(one);
            }
        }
        let mut written = 0;
        if store.is_immediate() {
            for (at, ready) in changed {
                let row = (ready.stored.clone(), Arc::new(ready.row.content.clone()));
                if self.known.set_own(&ready.key, row) {
                    written += 1;
                } else {
                    results[*at] = Err(RowRefused::Full);
                }
            }
        } else {
            let changes: Vec<(&str, RowChange<'_>)> =
                changed.iter().map(|(_, ready)| (ready.key.as_str(), RowChange::Write(&ready.stored))).collect();
            let ends = store.change_rows(&changes, Instant::now() + CALL_TIMEOUT).get().await;
            let ends = ends.unwrap_or_else(|error| vec![Err(error); changes.len()]);
            for ((at, ready), end) in changed.into_iter().zip(ends) {
                match end {
                    Ok(_) => {
                        written += 1;
                        let read = RowRead::Row(ready.stored.clone());
                        self.known.insert(&ready.key, KnownRow::of(&read).0);
                    }
                    Err(error) => {
                        self.known.forget(&ready.key);
                        results[*at] = Err(RowRefused::Store(error));
                    }
                }
            }
        }
        self.observer.rows(RowEvent::Written, written);
    }

    async fn read(&self, store: &Arc<dyn Store>, keys: &[&str]) -> Result<Vec<RowRead>, StoreError> {
        if store.is_immediate() {
            let own = |key: &&str| self.known.own(key).map_or(RowRead::Absent, |(row, _)| RowRead::Row(row));
            return Ok(keys.iter().map(own).collect());
        }
        store.read_rows(keys, Instant::now() + CALL_TIMEOUT).get().await
    }

    /// Returns the row of a descriptor, even if it has ended.
    ///
    /// # Errors
    /// If there is no row, or the store does not answer.
    pub async fn get(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Row, RowRefused> {
        self.find(domain, entries).await.map(|found| found.row)
    }

    /// Finds a row. If its rule was removed, or the rule's states are now in the other store, the row is found where it
    /// was written.
    async fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Found<'_>, RowRefused> {
        let policies = self.policies();
        let (key, is_per_second, absent) = match row_key(&policies, domain, entries) {
            Ok((rule, key)) => (key, self.is_per_second(rule), RowRefused::Absent),
            Err(misfit) => (key_without_rule(domain, entries), false, RowRefused::Misfit(misfit)),
        };
        let stores = [is_per_second, !is_per_second].map(|is_per_second| self.store_of(is_per_second));
        for (at, store) in stores.into_iter().enumerate().filter(|(at, _)| *at == 0 || self.per_second.is_some()) {
            let read = self.read(store, &[&key]).await.map_err(RowRefused::Store)?;
            match read.into_iter().next() {
                Some(RowRead::Row(stored)) => {
                    let row = text::read(&stored.text).map_err(|_| RowRefused::Foreign)?;
                    return Ok(Found { store, key, stored, row });
                }
                Some(RowRead::Foreign { .. }) if at == 0 => return Err(RowRefused::Foreign),
                Some(RowRead::Foreign { .. } | RowRead::Absent) | None => {}
            }
        }
        Err(absent)
    }

    /// Removes the row of a descriptor. If somebody sets another row at the same time, that row is removed. Returns the
    /// last row.
    ///
    /// # Errors
    /// If there is no row, only a file has it, or the store does not confirm the removal.
    pub async fn remove(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Removed, RowRefused> {
        for _ in 0..REMOVE_ATTEMPTS {
            let found = self.find(domain, entries).await?;
            if self.delete(&found).await? {
                let is_own = found.store.is_immediate();
                let left = self.known.own(&found.key).filter(|_| is_own);
                let left = left.and_then(|(left, _)| text::read(&left.text).ok());
                return Ok(Removed { row: found.row, left });
            }
        }
        Err(RowRefused::Contended)
    }

    /// Removes a row that was found. Returns false if it is gone, or was replaced.
    async fn delete(&self, found: &Found<'_>) -> Result<bool, RowRefused> {
        let Found { store, key, stored, .. } = found;
        let is_removed = if store.is_immediate() {
            match self.known.remove_own(key, stored) {
                Removal::Done => true,
                Removal::Changed => false,
                Removal::OfFile => return Err(RowRefused::OfFile),
            }
        } else {
            let change = [(key.as_str(), RowChange::Remove(stored))];
            let ends = store.change_rows(&change, Instant::now() + CALL_TIMEOUT).get().await;
            self.known.forget(key);
            let ends =
                ends.and_then(|ends| ends.into_iter().collect::<Result<Vec<_>, _>>()).map_err(RowRefused::Store)?;
            ends == [true]
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
        let with_misfit = |row: Row| {
            let misfit = self.misfit(&policies, &row);
            (row, misfit)
        };
        Ok(Page { rows: rows.into_iter().map(|found| with_misfit(found.row)).collect(), foreign, next })
    }

    async fn found_page(&self, domain: Option<&str>, cursor: Option<&str>) -> Result<FoundPage<'_>, RowRefused> {
        let mut cursor = match cursor {
            None => Cursor::default(),
            Some(text) => Cursor::read(text).ok_or_else(|| RowRefused::Invalid("after: no such page".to_owned()))?,
        };
        let prefix = key::domain_prefix(domain);
        let stores: Vec<&Arc<dyn Store>> = std::iter::once(&self.store).chain(&self.per_second).collect();
        let mut page = FoundPage { rows: Vec::new(), foreign: Vec::new(), next: None };
        let Some(&store) = stores.get(cursor.store) else { return Ok(page) };
        let (keys, next) = if store.is_immediate() {
            let (keys, next) = self.known.own_keys(&prefix, cursor.at.shard as usize, PAGE_ROWS);
            let next = next.and_then(|shard| u32::try_from(shard).ok());
            (keys, next.map(|shard| Cursor { at: ScanPosition { shard, at: 0 }, ..cursor }))
        } else {
            let mut keys = Vec::new();
            let mut end = Some(cursor.at);
            for _ in 0..PAGE_STEPS {
                let Some(at) = end else { break };
                let step = store.scan(&prefix, at, Instant::now() + CALL_TIMEOUT).get().await;
                let step = step.map_err(RowRefused::Store)?;
                keys.extend(step.keys.into_iter().filter(|key| is_row_key(key)));
                end = step.next;
            }
            keys.sort_unstable();
            keys.dedup();
            let next = match end {
                Some(at) => Some(Cursor { at, ..cursor }),
                None => {
                    cursor = Cursor { store: cursor.store + 1, ..Cursor::default() };
                    (cursor.store < stores.len()).then_some(cursor)
                }
            };
            (keys, next)
        };
        page.next = next.map(Cursor::text);
        for chunk in keys.chunks(AT_ONCE) {
            let asked: Vec<&str> = chunk.iter().map(String::as_str).collect();
            let read = self.read(store, &asked).await.map_err(RowRefused::Store)?;
            for (key, read) in chunk.iter().zip(read) {
                let read = match read {
                    RowRead::Absent => continue,
                    RowRead::Row(stored) => text::read(&stored.text).ok().map(|row| (stored, row)),
                    RowRead::Foreign { .. } => None,
                };
                match read {
                    Some((stored, row)) => page.rows.push(Found { store, key: key.clone(), stored, row }),
                    None => page.foreign.push(key.clone()),
                }
            }
        }
        Ok(page)
    }

    /// Returns the reason why a row has no effect under these policies.
    fn misfit(&self, policies: &PolicySet, row: &Row) -> Option<RowMisfit> {
        let fitted = row_key(policies, &row.domain, &row.descriptor());
        fitted.and_then(|(rule, _)| self.known.fitted(rule, &row.content).map(|_| ())).err()
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

    /// Replaces the rows that come from files beside the policies, with the memory store. If one row is wrong, nothing
    /// changes.
    ///
    /// # Errors
    /// The position and reason of each row that does not fit these policies, at most `most`.
    pub fn replace_of_files<'r>(
        &self,
        policies: &PolicySet,
        rows: impl IntoIterator<Item = &'r Row>,
        most: usize,
    ) -> Result<usize, Vec<(usize, RowRefused)>> {
        let mut ready = Vec::new();
        let mut problems = Vec::new();
        for (at, row) in rows.into_iter().enumerate() {
            let fitted = row_key(policies, &row.domain, &row.descriptor())
                .and_then(|(rule, key)| self.known.fitted(rule, &row.content).map(|_| key));
            let result = match fitted {
                Ok(_) if ready.len() >= ROWS_OF_PROCESS_MAX => Err(RowRefused::Full),
                Ok(key) => text::stored(row).map_err(RowRefused::Invalid).map(|stored| (key, stored)),
                Err(misfit) => Err(RowRefused::Misfit(misfit)),
            };
            match result {
                Ok((key, stored)) => {
                    ready.push((key.into(), (stored, Arc::new(row.content.clone()))));
                }
                Err(refused) => {
                    problems.push((at, refused));
                    if problems.len() >= most {
                        return Err(problems);
                    }
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(self.known.set_of_files(ready))
    }
}

fn is_row_key(key: &str) -> bool {
    key.strip_suffix(ROW_ID).is_some_and(|tag| tag.ends_with('}'))
}

/// Returns the key that the row of a descriptor had under a removed rule. Rules with rows share no states.
fn key_without_rule(domain: &str, entries: &[Entry<'_>]) -> String {
    let mut key = String::new();
    key::write_tag(&mut key, domain, entries.iter().copied(), &[]);
    key.push_str(ROW_ID);
    key
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
