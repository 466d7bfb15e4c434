//! Readiness: weir is ready when the stores have answered on every runtime that decides, or when the time limit has
//! passed. After that, tracks whether the stores still answer.
//!
//! Not here: the effect of readiness (http, grpc), and decisions while a store is down (limiter).

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use weir_http::ServiceState;
use weir_lifecycle::{Life, Phase, Phases};
use weir_limiter::overrides::OverrideTable;
use weir_settings::ShownValues;
use weir_store::{Findings, Store, StoreError};
use weir_telemetry::metrics::Number;

use super::rows::FirstRows;

/// How often weir asks a store before it is ready.
const PING_EVERY_AT_START: Duration = Duration::from_millis(100);
/// How often weir asks each store after that.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How often weir looks how each store is set up.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long the answer to a PING may take.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects the stores of the runtimes that decide. Each has its own connections. Without this, the first callers of a runtime
/// would wait for its dials.
#[derive(Debug)]
pub(super) struct WarmUp {
    /// How many stores have answered.
    answered: watch::Sender<usize>,
    expected: usize,
    timeout: Duration,
}

impl WarmUp {
    /// A warm-up of `expected` stores of all runtimes. One attempt may take `timeout`, including the dial.
    pub(super) fn new(expected: usize, timeout: Duration) -> Self {
        Self { answered: watch::Sender::new(0), expected, timeout }
    }

    /// Prepares these stores of the current runtime in the background, until they answer.
    pub(super) fn prepare<'a>(&self, stores: impl Iterator<Item = &'a Arc<dyn Store>>) {
        let timeout = self.timeout;
        for store in stores {
            let (store, answered) = (store.clone(), self.answered.clone());
            tokio::spawn(async move {
                while let Err(error) = store.prepare(Instant::now() + timeout).get().await {
                    tracing::debug!(store = store.name(), %error, "the store of a runtime has not answered yet");
                    tokio::time::sleep(PING_EVERY_AT_START).await;
                }
                answered.send_modify(|answered| *answered += 1);
            });
        }
    }

    async fn complete(&self) {
        // Fails only if the sender is dropped; `self` holds it.
        let _ = self.answered.subscribe().wait_for(|answered| *answered >= self.expected).await;
    }
}

/// The time limits for the first answers of stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// After this time weir is ready without an answer.
    pub(super) ready_after: Duration,
    /// After this time weir ends; zero: never.
    pub(super) start_within: Duration,
}

/// What follows the stores besides their answers.
pub(super) struct Inputs {
    /// They change the limits of requests, so weir reads them before the first one.
    pub(super) overrides: Arc<OverrideTable>,
    /// How audit lines show values of descriptors.
    pub(super) values: ShownValues,
    pub(super) first_rows: FirstRows,
    pub(super) numbers: FindingNumbers,
}

/// The metrics of what the last look at all stores has found.
pub(super) struct FindingNumbers {
    pub(super) evicting_servers: Number,
    pub(super) clock_difference_seconds: Number,
}

/// Follows the stores until the drain.
/// Fails when a task of a store has died, or a store has not answered in time, or lacks a feature that weir needs.
pub(super) async fn follow(
    stores: Vec<Arc<dyn Store>>,
    warm_up: Arc<WarmUp>,
    times: Times,
    phases: Arc<Phases>,
    report: Arc<ServiceState>,
    life: Life,
    mut inputs: Inputs,
) -> Result<(), String> {
    let stores = &stores;
    let asking = async {
        become_ready(stores, &warm_up, times, &phases, &report, &mut inputs).await?;
        if stores.iter().any(|store| !store.is_immediate()) {
            // If weir has become ready without an answer, the first rows are looked for now.
            let first_rows = inputs.first_rows.in_force();
            tokio::join!(keep_asking(stores, &report), keep_looking(stores, &inputs.numbers), first_rows);
        }
        pending::<Result<(), String>>().await
    };
    let mut deaths: FuturesUnordered<_> = stores.iter().map(|store| store.died()).collect();
    tokio::select! {
        () = life.reached(Phase::Draining) => Ok(()),
        Some(reason) = deaths.next() => Err(reason),
        ended = asking => ended,
    }
}

/// Returns when all stores have answered. This can be long after weir is ready.
async fn become_ready(
    stores: &[Arc<dyn Store>],
    warm_up: &WarmUp,
    times: Times,
    phases: &Phases,
    report: &ServiceState,
    inputs: &mut Inputs,
) -> Result<(), String> {
    let start = tokio::time::Instant::now();
    let end = start + times.ready_after;
    let last = (!times.start_within.is_zero()).then(|| start + times.start_within);
    let immediate = stores.iter().all(|store| store.is_immediate());
    let mut waited = false;
    loop {
        // Before the first PING: with `redis.ready_after: 0` weir is ready at once.
        if !waited && !immediate && tokio::time::Instant::now() >= end {
            waited = true;
            phases.begin(Phase::Serving);
            tracing::warn!(store = stores[0].name(), "ready, although the store has not answered yet");
        }
        let next = tokio::time::Instant::now() + if waited { PING_EVERY } else { PING_EVERY_AT_START };
        let answer = tokio::select! {
            biased;
            answer = ping(stores) => Some(answer),
            () = tokio::time::sleep_until(end), if !waited => None,
        };
        // A store that answers a PING but not all checks is asked again, like a store without an answer.
        let answer = match answer {
            Some(Ok(())) => Some(lack(stores).await),
            Some(Err(silent)) => Some(Err(silent)),
            None => None,
        };
        match answer {
            Some(Ok(lack)) => {
                report.store_answered(true);
                if let Some(reason) = lack {
                    if !waited {
                        return Err(reason);
                    }
                    // weir already serves, and `on_error` applies.
                    tracing::error!(store = stores[0].name(), "{reason}");
                }
                if !waited {
                    super::overrides::look(&inputs.overrides, inputs.values, true).await;
                    inputs.first_rows.in_force().await;
                }
                if !waited && tokio::time::timeout_at(end, warm_up.complete()).await.is_err() {
                    tracing::warn!(store = stores[0].name(), "the store has not answered every runtime yet");
                }
                phases.begin(Phase::Serving);
                tracing::info!(store = stores[0].name(), "ready");
                return Ok(());
            }
            Some(Err((store, error))) => {
                if last.is_some_and(|last| tokio::time::Instant::now() >= last) {
                    return Err(format!(
                        "{store} gave no answer within {:?} of the start: {error}",
                        times.start_within
                    ));
                }
                tracing::debug!(store, %error, "the store has not answered yet");
            }
            None => continue,
        }
        tokio::time::sleep_until(if waited { next } else { next.min(end) }).await;
    }
}

/// The features that a store lacks, as a text.
///
/// # Errors
/// The first store without an answer, and the reason.
async fn lack(stores: &[Arc<dyn Store>]) -> Result<Option<String>, (&'static str, StoreError)> {
    for store in stores {
        let lack = store.lacks(Instant::now() + PING_TIMEOUT).get().await;
        if let Some(reason) = lack.map_err(|error| (store.name(), error))? {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Logs what the operator should change in how the stores are set up, when it is found. A store that does not answer is taken to
/// be as it was.
async fn keep_looking(stores: &[Arc<dyn Store>], numbers: &FindingNumbers) {
    let mut last: Vec<Findings> = stores.iter().map(|_| Findings::default()).collect();
    loop {
        for (store, last) in stores.iter().zip(&mut last) {
            match store.findings(Instant::now() + PING_TIMEOUT).get().await {
                Ok(found) => {
                    for warning in found.warnings().filter(|warning| !last.warnings().any(|known| known == *warning)) {
                        tracing::warn!(store = store.name(), "{warning}");
                    }
                    *last = found;
                }
                Err(error) => {
                    tracing::debug!(store = store.name(), %error, "the servers of the store cannot be asked about their setup");
                }
            }
        }
        let evicting = last.iter().map(|found| found.evicting.len() as u64).sum();
        numbers.evicting_servers.set(evicting);
        let difference = last.iter().map(|found| found.clock_difference.as_secs()).max();
        numbers.clock_difference_seconds.set(difference.unwrap_or_default());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Pings the stores, updates the report, and logs its changes.
async fn keep_asking(stores: &[Arc<dyn Store>], report: &ServiceState) {
    let mut answers = true;
    loop {
        tokio::time::sleep(PING_EVERY).await;
        let answer = ping(stores).await;
        let before = std::mem::replace(&mut answers, answer.is_ok());
        report.store_answered(answers);
        match answer {
            Err((store, error)) if before => tracing::warn!(store, %error, "{store} does not answer PINGs"),
            Ok(()) if !before => {
                let store = stores[0].name();
                tracing::info!(store, "{store} answers PINGs again");
            }
            _ => {}
        }
    }
}

async fn ping(stores: &[Arc<dyn Store>]) -> Result<(), (&'static str, StoreError)> {
    for store in stores {
        store.ping(Instant::now() + PING_TIMEOUT).get().await.map_err(|error| (store.name(), error))?;
    }
    Ok(())
}
