//! The rows of a Redis, for programs that serve nothing. [rw-6]
//!
//! Not here: rows of a server (server.rs), and what is done with them (cli).

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_limiter::Policies;
use weir_limiter::rows::RowTable;
use weir_policies::Dialect;
use weir_settings::{PolicySource, Settings, StoreKind};
use weir_store::{StoreError, SystemClock};
use weir_telemetry::metrics::Metrics;

use super::stores::{Opened, Stores};
use super::{AppError, metrics, source};

/// How long Redis may take for its first answer, the dial included.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The rows of the Redis of these settings, for a program that serves nothing. Rows must fit the policies of the settings. Call it
/// within the runtime that then uses the rows.
///
/// # Errors
/// When the settings name no Redis or no files of policies, the policies are wrong, or Redis does not answer.
pub async fn open_rows(settings: &Settings) -> Result<RowTable, AppError> {
    if settings.store == StoreKind::Memory {
        return Err(AppError::Rows(
            "the settings have the memory store, whose rows only its server can set".to_owned(),
        ));
    }
    if settings.policies.source == PolicySource::Xds {
        return Err(AppError::Rows("the policies come from a control plane: only a server can check rows".to_owned()));
    }
    let loaded = weir_policies::load(&source(&settings.policies), Dialect::of(&settings.policies));
    let policies = loaded.map_err(|problems| AppError::Policies(vec![problems.to_string()]))?.policies;
    let metrics = Arc::new(Metrics::new(metrics::options(settings)?));
    let Opened { first, per_second } = Stores::new(settings, &metrics)?.open();
    for store in std::iter::once(&first).chain(&per_second) {
        let prepared = store.prepare(Instant::now() + ANSWER_WITHIN).get().await;
        prepared.map_err(|error| {
            let reason = match error {
                StoreError::NotSent(failure) | StoreError::Unknown(failure) => failure.message,
                other => other.to_string(),
            };
            AppError::Rows(format!("Redis at {}: {reason}", store.place().unwrap_or("the cluster's nodes")))
        })?;
    }
    let policies = Arc::new(Policies::new(policies, metrics.observer()));
    let (known, clock) = (Arc::default(), Arc::new(SystemClock));
    Ok(RowTable::new(first, per_second, policies, known, clock, metrics.observer()))
}
