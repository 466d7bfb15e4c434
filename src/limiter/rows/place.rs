//! Where the rows of operators are: in a store that processes share, or in this process.
//!
//! Not here: whether a row fits the policies (rows.rs).

use std::time::{Duration, Instant};

use weir_engine::rows::ROW_ID;
use weir_store::{RowChange, RowChanged, RowRead, ScanPosition, Store, StoreError, StoredRow, Texts};

use super::cache::RowCache;
use super::process::{ProcessRows, Removal, RowWrite};
use super::row::{KnownRow, ParsedRow};

/// The timeout of one call to the store.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The most rows of this process in one page.
const PAGE_ROWS: usize = 5_000;
/// The most steps of a scan in one page.
const PAGE_STEPS: usize = 50;

#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// A store that processes share, and the cache of its rows.
    Store(&'a dyn Store, &'a dyn Texts, &'a RowCache),
    Process(&'a ProcessRows),
}

/// A row for a key.
#[derive(Clone, Copy)]
pub(super) struct RowToWrite<'a> {
    pub(super) key: &'a str,
    pub(super) row: &'a ParsedRow,
    /// The row that it must replace. `None` for any, and for none.
    pub(super) over: Option<&'a StoredRow>,
}

impl RowToWrite<'_> {
    fn change(&self) -> RowChange<'_> {
        let row = &self.row.stored;
        self.over.map_or(RowChange::Write(row), |over| RowChange::Replace { row, over })
    }
}

impl Place<'_> {
    pub(super) async fn read(self, keys: &[&str]) -> Result<Vec<RowRead>, StoreError> {
        match self {
            Self::Store(_, texts, _) => texts.read_rows(keys, deadline()).get().await,
            Self::Process(rows) => {
                Ok(keys.iter().map(|key| rows.row(key).map_or(RowRead::Absent, RowRead::Row)).collect())
            }
        }
    }

    /// Writes each row separately, unless the same row is there.
    pub(super) async fn write(self, rows: &[RowToWrite<'_>]) -> Vec<Result<RowWrite, StoreError>> {
        match self {
            Self::Store(_, texts, cache) => {
                let changes: Vec<_> = rows.iter().map(|row| (row.key, row.change())).collect();
                let ends = texts.change_rows(&changes, deadline()).get().await;
                let ends = ends.unwrap_or_else(|error| vec![Err(error); rows.len()]);
                let write = |(RowToWrite { key, row, over }, end): (&RowToWrite<'_>, _)| match end {
                    Ok(RowChanged::Written { before }) => {
                        cache.insert(key, KnownRow::from(*row));
                        let before = match before {
                            RowRead::Row(before) => Some(before),
                            RowRead::Absent | RowRead::Foreign { .. } => None,
                        };
                        let is_same = before.as_ref() == Some(&row.stored);
                        Ok(RowWrite::Done { before, is_same })
                    }
                    Ok(RowChanged::Removed | RowChanged::Kept) if over.is_some() => Ok(RowWrite::Changed),
                    Ok(RowChanged::Removed | RowChanged::Kept) => Ok(RowWrite::OtherType),
                    Err(error) => {
                        cache.forget(key);
                        Err(error)
                    }
                };
                rows.iter().zip(ends).map(write).collect()
            }
            Self::Process(rows_of_process) => {
                let set =
                    |RowToWrite { key, row, over }: &RowToWrite<'_>| rows_of_process.set(key, (*row).clone(), *over);
                rows.iter().map(|row| Ok(set(row))).collect()
            }
        }
    }

    /// Removes this row, if it is still at the key.
    pub(super) async fn remove(self, key: &str, row: &StoredRow) -> Result<Removal, StoreError> {
        match self {
            Self::Store(_, texts, cache) => {
                let change = [(key, RowChange::Remove(row))];
                let ends = texts.change_rows(&change, deadline()).get().await;
                cache.forget(key);
                let ends = ends.and_then(|ends| ends.into_iter().collect::<Result<Vec<_>, _>>())?;
                Ok(if ends == [RowChanged::Removed] { Removal::Done } else { Removal::Changed })
            }
            Self::Process(rows) => Ok(rows.remove(key, row)),
        }
    }

    /// Returns the row that a file has for this process.
    pub(super) fn of_file(self, key: &str) -> Option<StoredRow> {
        match self {
            Self::Store(..) => None,
            Self::Process(rows) => rows.of_file(key),
        }
    }

    /// Returns a page of the keys of rows that begin with `prefix`, and the start of the next page.
    pub(super) async fn keys(
        self,
        prefix: &str,
        from: ScanPosition,
    ) -> Result<(Vec<String>, Option<ScanPosition>), StoreError> {
        match self {
            Self::Store(store, ..) => {
                let (mut keys, mut next) = (Vec::new(), Some(from));
                for _ in 0..PAGE_STEPS {
                    let Some(at) = next else { break };
                    let step = store.scan(prefix, at, deadline()).get().await?;
                    keys.extend(step.keys.into_iter().filter(|key| is_row_key(key)));
                    next = step.next;
                }
                keys.sort_unstable();
                keys.dedup();
                Ok((keys, next))
            }
            Self::Process(rows) => {
                let (keys, next) = rows.keys(prefix, from.shard as usize, PAGE_ROWS);
                let next = next.and_then(|shard| u32::try_from(shard).ok());
                Ok((keys, next.map(|shard| ScanPosition { shard, at: 0 })))
            }
        }
    }
}

fn deadline() -> Instant {
    Instant::now() + CALL_TIMEOUT
}

fn is_row_key(key: &str) -> bool {
    key.strip_suffix(ROW_ID).is_some_and(|tag| tag.ends_with('}'))
}
