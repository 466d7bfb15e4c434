//! The policies: loaded at the start, and again whenever their directory changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use crate::config::policy_file::{self, Problems, Reading, Warnings};
use crate::config::watch::{Change, POLL_EVERY, Source, Watch};
use crate::engine::PolicySet;
use crate::http::Report;
use crate::lifecycle::{Life, Phase};
use crate::limiter::Policies;
use crate::store::Store;
use crate::telemetry::metrics::Metrics;

/// The most warnings of one load that are logged; those past it are counted.
const LOGGED_WARNINGS_MAX: usize = 20;

/// Policies that may be put in force.
pub(super) struct Loaded {
    pub(super) policies: PolicySet,
    /// Where each rule is written, by its id.
    pub(super) places: Vec<String>,
    pub(super) files: usize,
    pub(super) took: Duration,
}

/// Tells that policies are in force, and not before: whoever reads it may count on them.
pub(super) fn log(in_force: &PolicySet, files: usize, took: Duration) {
    let (domains, rules) = (in_force.domains().len(), in_force.rules().len());
    tracing::info!(files, domains, rules, ?took, "policies loaded");
}

/// Reads the directory whole. Every problem is a text of its own.
fn load(source: &Source, reading: Reading, store: &dyn Store) -> Result<Loaded, Vec<String>> {
    let started = Instant::now();
    checked(policy_file::load(source, reading), store, started)
}

/// What was read since `started`, if the store can hold all of its limits. Every problem is a text of its own.
pub(super) fn checked(
    read: Result<policy_file::Loaded, Problems>,
    store: &dyn Store,
    started: Instant,
) -> Result<Loaded, Vec<String>> {
    let loaded = read.map_err(|problems| texts(&problems))?;
    let places: Vec<String> = loaded.places.iter().map(ToString::to_string).collect();
    let mut problems = Vec::new();
    for (rule, place) in loaded.policies.rules().iter().zip(&places) {
        for limit in &rule.limits {
            if let Err(reason) = store.supports(limit) {
                problems.push(format!("{place}: the store {} cannot hold this limit: {reason}", store.name()));
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    log_warnings(&loaded.warnings);
    Ok(Loaded { policies: loaded.policies, places, files: loaded.files, took: started.elapsed() })
}

fn log_warnings(warnings: &Warnings) {
    for warning in warnings.list().iter().take(LOGGED_WARNINGS_MAX) {
        tracing::warn!(%warning, "policies load with a warning");
    }
    let more = warnings.count().saturating_sub(LOGGED_WARNINGS_MAX);
    if more > 0 {
        tracing::warn!(more, "policies load with more warnings: weir check prints them");
    }
}

/// One text for each problem, and one more where there were too many to keep.
fn texts(problems: &Problems) -> Vec<String> {
    let mut texts: Vec<String> = problems.list().iter().map(ToString::to_string).collect();
    let more = problems.count() - texts.len();
    if more > 0 {
        texts.push(format!("and {more} more problems"));
    }
    texts
}

/// Watches the directory.
pub(super) struct Reload {
    watch: Watch,
    source: Source,
    reading: Reading,
    store: Arc<dyn Store>,
}

impl Reload {
    /// Loads for the first time. The watch begins before, so that no change is missed.
    pub(super) fn start(
        source: Source,
        reading: Reading,
        store: Arc<dyn Store>,
    ) -> (Self, Result<Loaded, Vec<String>>) {
        let watch = Watch::new(source.clone());
        let loaded = load(&source, reading, &*store);
        (Self { watch, source, reading, store }, loaded)
    }

    /// Puts every change in force, or tells what is wrong with it and keeps what was good.
    pub(super) async fn follow(
        mut self,
        policies: Arc<Policies>,
        metrics: Arc<Metrics>,
        report: Arc<Report>,
        life: Life,
    ) -> Result<(), String> {
        let mut ticks = tokio::time::interval(POLL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = life.reached(Phase::Draining) => return Ok(()),
                _ = ticks.tick() => {}
            }
            // The file system may block; the control runtime must not.
            let polled = tokio::task::spawn_blocking(move || {
                let loaded = match self.watch.poll() {
                    None => None,
                    Some(Change::Settled) => Some(load(&self.source, self.reading, &*self.store)),
                    Some(Change::Restless) => {
                        let directory = self.source.directory.display();
                        tracing::warn!(%directory, "the policies keep changing and are not loaded");
                        None
                    }
                };
                (self, loaded)
            });
            let (reload, loaded) = polled.await.map_err(|error| error.to_string())?;
            self = reload;
            match loaded {
                None => {}
                Some(Ok(loaded)) => {
                    policies.replace(loaded.policies);
                    metrics.policies_loaded();
                    report.loaded(policies.current(), loaded.places);
                    log(&policies.current(), loaded.files, loaded.took);
                }
                Some(Err(problems)) => {
                    for problem in &problems {
                        tracing::error!(problem, "policies refused");
                    }
                    metrics.policies_refused();
                    report.refused(problems);
                }
            }
        }
    }
}
