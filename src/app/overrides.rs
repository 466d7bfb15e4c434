//! Overrides: reads them from the store at intervals, and logs changes.
//!
//! Not here: their effect (limiter), and changing them (http).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use weir_lifecycle::{Life, Phase};
use weir_limiter::overrides::{OverrideTable, Seen};
use weir_settings::ShownValues;
use weir_telemetry::metrics::Metrics;

/// How often the store is read. All replicas that share it apply a change within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Reads the store until the drain. Audit lines show values as in `values`.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(super) async fn follow(overrides: Arc<OverrideTable>, values: ShownValues, life: Life) -> Result<(), String> {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answers = true;
    loop {
        tokio::select! {
            () = life.reached(Phase::Draining) => return Ok(()),
            _ = ticks.tick() => {}
        }
        answers = look(&overrides, values, answers).await;
    }
}

/// Reads the store once. Logs changes, and logs a failure if the store answered `before`. Returns whether it answered.
pub(super) async fn look(overrides: &OverrideTable, values: ShownValues, before: bool) -> bool {
    let store = overrides.store().name();
    let is_first = overrides.known().read.is_none();
    let seen = overrides.look().await;
    weir_http::audit_replaced(overrides);
    match seen {
        Ok(seen) => {
            if !before {
                tracing::info!(store, "overrides can be read again");
            }
            log(store, overrides, values, &seen);
            true
        }
        Err(error) => {
            if before && is_first {
                tracing::warn!(store, %error, "overrides cannot be read yet: only the policies apply");
            } else if before {
                tracing::warn!(store, %error, "overrides cannot be read: the last known ones stay in force until they end");
            }
            false
        }
    }
}

fn log(store: &str, overrides: &OverrideTable, values: ShownValues, seen: &Seen) {
    let Seen { ended, is_changed, skipped, found } = seen;
    found.iter().for_each(|found| weir_http::audit_found(values, found));
    if let Some((lines, reason)) = skipped {
        tracing::warn!(store, lines, reason, "skipped invalid overrides in the store");
    }
    if *is_changed {
        let (in_force, unused) = overrides.counts();
        tracing::info!(in_force, unused, ended, "overrides");
    }
}

/// Adds the number of overrides to the metrics, and whether they cannot be read.
pub(super) fn show(metrics: &Metrics, overrides: &Arc<OverrideTable>) {
    metrics.show("weir_overrides", &["in_force"], overrides, |of| of.counts().0 as u64);
    metrics.show("weir_overrides", &["unused"], overrides, |of| of.counts().1 as u64);
    metrics.show("weir_input_refused", &["overrides"], overrides, |of| u64::from(of.problem().is_some()));
}
