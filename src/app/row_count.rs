//! Counts the rows of customers in the store, for a metric: Redis that starts without its data loses all of them, and each
//! decision then has the default plan without an error.
//!
//! Not here: the steps over the keys (limiter).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use weir_lifecycle::{Life, Phase};
use weir_limiter::rows::RowTable;
use weir_limiter::rows::count::RowCount;
use weir_telemetry::metrics::{Metrics, Number};

/// How often weir looks at about 5,000 keys of Redis.
const STEP_EVERY: Duration = Duration::from_secs(5);
pub(super) const METRIC: &str = "weir_rows_stored";

/// Counts the rows of Redis over and over while policies have rows, until everything drains. A number is shown when all
/// keys were looked at once.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(super) async fn follow(table: Arc<RowTable>, metrics: Arc<Metrics>, life: Life) -> Result<(), String> {
    tokio::select! {
        () = life.reached(Phase::Draining) => Ok(()),
        never = count(&table, &metrics) => match never {},
    }
}

async fn count(table: &RowTable, metrics: &Metrics) -> Infallible {
    let mut ticks = tokio::time::interval(STEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = RowCount::default();
    let mut shown: Option<Number> = None;
    loop {
        ticks.tick().await;
        if !table.has_rules() {
            continue;
        }
        match table.count_some(&mut count).await {
            Ok(Some(rows)) => {
                shown.get_or_insert_with(|| metrics.number(METRIC, &["redis"])).set(rows);
            }
            Ok(None) => {}
            Err(error) if error.kind() == "noperm" => {
                tracing::info!("rows are not counted, because the user of redis has no right to SCAN");
                return std::future::pending().await;
            }
            // redis_health.rs logs why Redis does not answer.
            Err(error) => tracing::debug!(%error, "rows were not counted"),
        }
    }
}
