//! Where the rows of operators are: in a store that processes share, or in this process.
//!
//! Not here: which of these a descriptor's row is in, and whether a row fits the policies (rows.rs).

use std::time::{Duration, Instant};

use weir_engine::rows::ROW_ID;
use weir_store::{RowChange, RowRead, ScanPosition, Store, StoreError, StoredRow};

use super::cache::RowCache;
use super::process::{ProcessRows, Removal};
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
    Store(&'a dyn Store, &'a RowCache),
    Process(&'a ProcessRows),
}

impl Place<'_> {
    pub(super) async fn read(self, keys: &[&str]) -> Result<Vec<RowRead>, StoreError> {
        match self {
            Self::Store(store, _) => store.read_rows(keys, deadline()).get().await,
            Self::Process(rows) => {
                Ok(keys.iter().map(|key| rows.row(key).map_or(RowRead::Absent, RowRead::Row)).collect())
            }
        }
    }

    /// Writes each row separately. Returns false for a row for which there is no room.
    pub(super) async fn write(self, rows: &[(&str, &ParsedRow)]) -> Vec<Result<bool, StoreError>> {
        match self {
            Self::Store(store, cache) => {
                let changes: Vec<_> = rows.iter().map(|(key, row)| (*key, RowChange::Write(&row.stored))).collect();
                let ends = store.change_rows(&changes, deadline()).get().await;
                let ends = ends.unwrap_or_else(|error| vec![Err(error); rows.len()]);
                for ((key, row), end) in rows.iter().zip(&ends) {
                    match end {
                        Ok(_) => cache.insert(key, KnownRow::from(*row)),
                        Err(_) => cache.forget(key),
                    }
                }
                ends
            }
            Self::Process(rows_of_process) => {
                rows.iter().map(|(key, row)| Ok(rows_of_process.set(key, (*row).clone()))).collect()
            }
        }
    }

    /// Removes this row, if it is still at the key.
    pub(super) async fn remove(self, key: &str, row: &StoredRow) -> Result<Removal, StoreError> {
        match self {
            Self::Store(store, cache) => {
                let change = [(key, RowChange::Remove(row))];
                let ends = store.change_rows(&change, deadline()).get().await;
                cache.forget(key);
                let ends = ends.and_then(|ends| ends.into_iter().collect::<Result<Vec<_>, _>>())?;
                Ok(if ends == [true] { Removal::Done } else { Removal::Changed })
            }
            Self::Process(rows) => Ok(rows.remove(key, row)),
        }
    }

    /// Whether the row at a key, if there is one, was set by an operator. Otherwise a file has it.
    pub(super) fn is_of_operator(self, key: &str) -> bool {
        match self {
            Self::Store(..) => true,
            Self::Process(rows) => rows.is_of_operator(key),
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
            Self::Store(store, _) => {
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
