//! Opens the rows of a Redis for programs that serve no requests. [rw-6]
//!
//! Not here: the files of rows of a server (rows.rs), its table of rows (server.rs), and the commands (cli).

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_limiter::Policies;
use weir_limiter::rows::RowTable;
use weir_limiter::rows::known::KnownRows;
use weir_policies::Dialect;
use weir_settings::{PolicySource, Settings, StoreKind};
use weir_store::{StoreError, SystemClock};
use weir_telemetry::metrics::Metrics;

use super::stores::Stores;
use super::{AppError, metrics, source};

/// The most time for the first answer of Redis, including the connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Opens the rows of the Redis of these settings, for a program that serves no requests. Rows must fit the policies of
/// the settings. Call this within the runtime that uses the rows later.
///
/// # Errors
/// If the settings have no Redis or no policy files, the policies are wrong, or Redis does not answer.
pub async fn open_rows(settings: &Settings) -> Result<RowTable, AppError> {
    match settings.store {
        StoreKind::Redis => {}
        StoreKind::Memory => {
            return Err(AppError::Rows("the settings use the memory store: only its server can set rows".to_owned()));
        }
    }
    if settings.policies.source == PolicySource::Xds {
        return Err(AppError::Rows("the policies come from a control plane: only a server can check rows".to_owned()));
    }
    let loaded = weir_policies::load(&source(&settings.policies, u64::MAX), Dialect::of(&settings.policies));
    let policies = loaded.map_err(|problems| AppError::Policies(vec![problems.to_string()]))?.policies;
    let metrics = Arc::new(Metrics::new(metrics::options(settings)?));
    let store = Stores::new(settings, &metrics)?.open().first;
    let prepared = store.prepare(Instant::now() + ANSWER_WITHIN).get().await;
    prepared.map_err(|error| {
        let reason = match error {
            StoreError::NotSent(failure) | StoreError::Unknown(failure) => failure.message,
            other => other.to_string(),
        };
        AppError::Rows(format!("Redis at {}: {reason}", store.place().unwrap_or("the cluster's nodes")))
    })?;
    let policies = Arc::new(Policies::new(policies, metrics.observer()));
    let (known, clock) = (Arc::new(KnownRows::of(&*store)), Arc::new(SystemClock));
    Ok(RowTable::new(store, policies, known, clock, metrics.observer()))
}
