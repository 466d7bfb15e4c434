//! Rows in the Redis of limits per second: weir once kept the rows of some rules there, and they have no effect now. [rw-5]
//!
//! Not here: the rows of the first Redis (server.rs), and which limits the second one has (limiter).

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::descriptor::spell_pairs;
use weir_engine::{Observer, Row};
use weir_http::ServiceState;
use weir_limiter::Policies;
use weir_limiter::rows::known::KnownRows;
use weir_limiter::rows::{Page, RowRefused, RowTable};
use weir_store::{Store, SystemClock};

/// The most time of one search. It reads all keys, in small steps.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(10);
/// How long weir waits for the operator before it searches again.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

pub(super) struct SecondRedis {
    table: RowTable,
    report: Arc<ServiceState>,
}

impl SecondRedis {
    pub(super) fn new(
        store: Arc<dyn Store>,
        policies: Arc<Policies>,
        report: Arc<ServiceState>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let known = Arc::new(KnownRows::of(&*store));
        Self { table: RowTable::new(store, policies, known, Arc::new(SystemClock), observer), report }
    }

    /// Waits until there are no rows. If the search fails before it has found one, weir warns and does not wait.
    pub(super) async fn has_no_rows(&self) {
        let table = &self.table;
        let page = |after: Option<String>| async move { table.page(None, after.as_deref()).await };
        let mut was_found = false;
        loop {
            match first_row(page, Instant::now() + SEARCH_TIME_MAX).await {
                Ok(None) => break,
                Ok(Some(row)) if !was_found => {
                    was_found = true;
                    let problem = format!(
                        "the second Redis has rows of an earlier version, as {} {}: export them by that version, import them by \
                         this one (weir rows export, import), and delete their keys from the second Redis",
                        row.domain,
                        spell_pairs(&row.entries)
                    );
                    self.report.rows_refused(vec![problem.clone()]);
                    // Logged last, so that `/readyz` is up to date when the log line appears.
                    tracing::error!(problem, "rows in the second Redis have no effect");
                }
                Err(reason) if !was_found => {
                    tracing::warn!(
                        reason,
                        "cannot search the second Redis for rows: if it has some, they have no effect"
                    );
                    return;
                }
                Ok(Some(_)) | Err(_) => {}
            }
            tokio::time::sleep(SEARCH_EVERY).await;
        }
        self.report.rows_refused(Vec::new());
    }
}

/// The first row of all pages.
/// Fails when a page cannot be read, or the time is over.
async fn first_row<P: Future<Output = Result<Page, RowRefused>>>(
    page: impl Fn(Option<String>) -> P,
    deadline: Instant,
) -> Result<Option<Row>, String> {
    let mut after = None;
    while Instant::now() < deadline {
        let Ok(read) = tokio::time::timeout_at(deadline.into(), page(after)).await else { break };
        let Page { rows, next, .. } = read.map_err(|refused| refused.to_string())?;
        match (rows.into_iter().next(), next) {
            (Some((row, _)), _) => return Ok(Some(row)),
            (None, None) => return Ok(None),
            (None, next) => after = next,
        }
    }
    Err(format!("the search took more than {SEARCH_TIME_MAX:?}"))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_search_ends_at_its_deadline_and_at_the_first_mistake() {
        let endless = || Ok(Page { next: Some("0.1".to_owned()), ..Page::default() });
        let soon = Instant::now() + Duration::from_millis(20);
        let too_long = Err("the search took more than 10s".to_owned());
        assert_eq!(first_row(|_| ready(endless()), soon).await, too_long);
        assert_eq!(first_row(|_| pending(), soon).await, too_long);
        let far = Instant::now() + Duration::from_secs(3_600);
        assert_eq!(first_row(|_| ready(Err(RowRefused::Full)), far).await, Err(RowRefused::Full.to_string()));
        let pages = |after: Option<String>| ready(if after.is_some() { Ok(Page::default()) } else { endless() });
        assert_eq!(first_row(pages, far).await, Ok(None));
    }
}
