//! The policies: loaded at the start, and again when their directory changes or an operator orders it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use weir_engine::PolicySet;
use weir_engine::words::printable;
use weir_http::{KeptFiles, Overlays, PolicyProblems, ServiceState};
use weir_lifecycle::{Life, Phase, Reloads, on_own_thread};
use weir_limiter::Policies;
use weir_policies::watch::{Change, Source, Watch};
use weir_policies::{
    Dialect, HeldBack, LastGood, ProblemKind, Problems, Restless, Warnings, load_and_keep, load_isolated,
};
use weir_telemetry::metrics::Metrics;

use super::policy_changes::Changes;
use super::watched::{Cause, follow};

/// A longer read of the directory is a problem. A file system that never answers cannot be interrupted: weir waits for
/// its thread, and starts no second one.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The most problems of one load in the log.
const PROBLEMS_LOGGED_MAX: usize = 20;
/// The most files in a log line about files that keep changing.
const PATHS_LOGGED_MAX: usize = 3;
/// The most domains that one problem names.
const DOMAINS_NAMED_MAX: usize = 20;
/// How often replaced policies that no request uses are freed.
const FREE_EVERY: Duration = Duration::from_secs(1);
/// The most warnings of one load in the log. Further ones are counted.
const LOGGED_WARNINGS_MAX: usize = 20;

pub(super) struct Loaded {
    pub(super) policies: PolicySet,
    /// The place of each rule, by its id.
    pub(super) places: Vec<String>,
    /// The source, for `/policies/source`.
    pub(super) kept: Option<KeptFiles>,
    pub(super) overlays: Overlays,
    pub(super) files: usize,
    pub(super) took: Duration,
}

/// Logs the first policies. Call it when they are in force, because readers of the log rely on it.
pub(super) fn log(in_force: &PolicySet, files: usize, took: Duration) {
    let (domains, rules) = (in_force.domains().len(), in_force.rules().len());
    tracing::info!(files, domains, rules, ?took, "policies loaded");
}

/// Policies that were read since `started`. Logs their warnings.
pub(super) fn fit(loaded: weir_policies::Loaded, started: Instant) -> Loaded {
    log_warnings(&loaded.warnings);
    let places: Vec<String> = loaded.places.iter().map(ToString::to_string).collect();
    let weir_policies::Loaded { policies, kept, overlays, files, .. } = loaded;
    let overlays = overlays.map_or_else(Overlays::default, |used| Overlays {
        met: used.count - used.unmet.len(),
        unmet: used.unmet.iter().map(|unmet| unmet.place.to_string()).collect(),
    });
    let kept = kept.map(|kept| KeptFiles {
        packed: kept.packed.clone(),
        domains: kept.domains.clone(),
        has_overlays: kept.has_overlays,
    });
    Loaded { policies, places, kept, overlays, files, took: started.elapsed() }
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

pub(super) fn of_load(problems: &Problems) -> PolicyProblems {
    let mut all = PolicyProblems::default();
    for problem in problems.list() {
        all.push(problem.kind.name(), problem.to_string());
    }
    // Some problems have no text.
    all.count = problems.count();
    all
}

/// Logs the first problems of a load, and the number of further ones.
fn log_problems(problems: &PolicyProblems) {
    for problem in problems.texts.iter().take(PROBLEMS_LOGGED_MAX) {
        tracing::error!(problem, "policies refused");
    }
    let more = problems.count.saturating_sub(PROBLEMS_LOGGED_MAX);
    if more > 0 {
        tracing::error!(more, "more problems: GET /readyz of the admin listener lists the first, weir check lists all");
    }
}

/// Applies loaded policies, and reports problems.
pub(super) struct Target {
    pub(super) policies: Arc<Policies>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) report: Arc<ServiceState>,
}

impl Target {
    /// Takes longer with more rules, so do not call it on the control runtime.
    pub(super) fn put_in_force(&self, loaded: Loaded) {
        let before = self.policies.current();
        self.policies.replace(loaded.policies);
        self.metrics.policies_loaded();
        let in_force = self.policies.current();
        self.report.loaded(in_force.clone(), loaded.places, loaded.kept, loaded.overlays);
        let changes = Changes::between(&before, &in_force);
        tracing::info!(
            files = loaded.files,
            domains = in_force.domains().len(),
            rules = in_force.rules().len(),
            added = changes.added,
            removed = changes.removed,
            changed = changes.changed,
            change = %changes,
            took = ?loaded.took,
            "policies loaded"
        );
    }

    /// Counts a refused load, and sets its problems for `/readyz`. Returns the problems from before.
    pub(super) fn count_refused(&self, problems: PolicyProblems) -> PolicyProblems {
        self.metrics.policies_refused();
        self.report.refused(problems)
    }

    pub(super) fn refuse(&self, problems: &PolicyProblems) -> PolicyProblems {
        let before = self.count_refused(problems.clone());
        // Logged last, so that `/readyz` is up to date when the log line appears.
        log_problems(problems);
        before
    }
}

pub(super) struct Reload {
    watch: Watch,
    source: Source,
    dialect: Dialect,
    /// Whether a wrong file holds back only its own domain.
    isolates: bool,
    last: LastGood,
}

impl Reload {
    /// Loads for the first time. The watch starts before that, so that no change is missed.
    pub(super) async fn start(
        source: Source,
        dialect: Dialect,
        isolates: bool,
    ) -> Result<(Self, Loaded), PolicyProblems> {
        let path = source.directory.clone();
        let started = tokio::task::spawn_blocking(move || {
            let watch = Watch::new(source.clone());
            let mut reload = Self { watch, source, dialect, isolates, last: LastGood::default() };
            // Without last policies, a wrong file holds back all.
            let (loaded, _) = reload.load(BTreeSet::new())?;
            Ok((reload, loaded))
        });
        match tokio::time::timeout(READ_TIMEOUT, started).await {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => Err(unreadable(format!("{}: {error}", path.display()))),
            Err(_) => Err(not_read(&path)),
        }
    }

    /// Applies every change, or logs its problems and keeps the policies in force.
    pub(super) async fn follow(self, target: Target, reloads: Reloads, life: Life) -> Result<(), String> {
        let path = self.source.directory.clone();
        let target = Arc::new(target);
        let of_thread = target.clone();
        let look = move |reload: &mut Self, cause| reload.look(cause, &of_thread);
        follow(self, look, in_read_time(&path, &target), reloads, life).await
    }

    fn look(&mut self, cause: Cause, target: &Target) {
        let mut restless = BTreeSet::new();
        match cause {
            Cause::Order => self.watch.settle_now(),
            Cause::Poll => match self.watch.poll(Instant::now()) {
                None => return,
                Some(Change::Settled) => {}
                Some(Change::AtRest(paths)) => restless = paths,
                Some(Change::Restless(paths)) => {
                    let directory = printable(&self.source.directory.display().to_string());
                    let files = some_paths(&paths);
                    tracing::warn!(directory, files, "policy files keep changing and are not loaded");
                    return;
                }
            },
        }
        let last = self.last.clone();
        let loaded = self.load(restless.clone());
        // The load may have read part of a later change. The watch reports that change when it settles.
        if cause == Cause::Poll && !self.watch.is_unchanged(&restless) {
            self.last = last;
            return;
        }
        match loaded {
            Ok((loaded, held_back)) => {
                target.put_in_force(loaded);
                if let Some(held_back) = held_back {
                    target.refuse(&of_domains(&held_back));
                }
            }
            Err(problems) => {
                target.refuse(&problems);
            }
        }
    }

    /// Loads the files, and the last texts of those that keep changing.
    fn load(&mut self, restless: BTreeSet<PathBuf>) -> Result<(Loaded, Option<HeldBack>), PolicyProblems> {
        let started = Instant::now();
        let restless = Restless::of(restless, self.last.clone());
        let loaded = if self.isolates {
            load_isolated(&self.source, self.dialect, &restless)
        } else {
            load_and_keep(&self.source, self.dialect, &restless).map(|loaded| (loaded, None))
        };
        let (loaded, held_back) = loaded.map_err(|problems| of_load(&problems))?;
        self.last = loaded.last_good();
        Ok((fit(loaded, started), held_back))
    }
}

/// The problems of domains that are held back, which they name first.
fn of_domains(held_back: &HeldBack) -> PolicyProblems {
    let named: Vec<String> = held_back.domains.iter().take(DOMAINS_NAMED_MAX).map(|name| format!("{name:?}")).collect();
    let more = held_back.domains.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let mut problems = PolicyProblems::default();
    let text = if named.is_empty() {
        "wrong files of no known domain are not in force, all other files are".to_owned()
    } else {
        format!(
            "the last policies of {}{more} stay in force, those of all other domains are up to date",
            named.join(", ")
        )
    };
    problems.push(ProblemKind::Policy.name(), text);
    let found = of_load(&held_back.problems);
    problems.texts.extend(found.texts);
    problems.kinds.extend(found.kinds);
    problems.count += found.count;
    problems
}

/// The first paths, and the number of further ones.
pub(super) fn some_paths(paths: &BTreeSet<PathBuf>) -> String {
    let first = paths.iter().take(PATHS_LOGGED_MAX).map(|path| printable(&path.display().to_string()));
    let mut shown: Vec<String> = first.collect();
    let more = paths.len() - shown.len();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

/// Waits for a thread that reads this path, which may take [`READ_TIMEOUT`].
pub(super) fn in_read_time<'t, T: Send + 'static>(
    path: &'t Path,
    target: &'t Target,
) -> impl Fn(JoinHandle<T>) -> BoxFuture<'t, Result<T, String>> {
    move |reading| Box::pin(in_time(READ_TIMEOUT, reading, path, target))
}

/// Waits for the thread that reads. Reports one problem after a time, and waits until the file system answers.
async fn in_time<T>(time: Duration, mut reading: JoinHandle<T>, path: &Path, target: &Target) -> Result<T, String> {
    let read = match tokio::time::timeout(time, &mut reading).await {
        Ok(read) => read,
        Err(_) => {
            let problem = not_read(path);
            let before = target.refuse(&problem);
            let read = reading.await;
            target.report.mended(&problem, before);
            read
        }
    };
    read.map_err(|error| error.to_string())
}

fn not_read(path: &Path) -> PolicyProblems {
    unreadable(format!("{}: not read within {READ_TIMEOUT:?}: the file system does not answer", path.display()))
}

fn unreadable(text: String) -> PolicyProblems {
    let mut problems = PolicyProblems::default();
    problems.push(ProblemKind::Unreadable.name(), text);
    problems
}

/// Frees replaced policies on a thread that makes no decisions.
pub(super) async fn free_unused(policies: Arc<Policies>, life: Life) -> Result<(), String> {
    let mut ticks = tokio::time::interval(FREE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = life.reached(Phase::Draining) => return Ok(()),
            _ = ticks.tick() => {}
        }
        let policies = policies.clone();
        on_own_thread(move || policies.free_unused()).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use weir_telemetry::metrics::Options;

    use super::*;

    #[tokio::test]
    async fn a_read_that_does_not_end_is_a_problem_until_it_ends() {
        let metrics = Arc::new(Metrics::new(Options::default()));
        let policies = Arc::new(Policies::new(PolicySet::default(), metrics.observer()));
        let target = Target { policies, metrics, report: Arc::default() };
        let (end, ended) = oneshot::channel();
        let reading = tokio::spawn(async { ended.await.unwrap() });
        let wait = async {
            while !target.report.is_refused() {
                tokio::task::yield_now().await;
            }
            end.send(7).unwrap();
        };
        let waited =
            async { tokio::join!(in_time(Duration::from_millis(1), reading, Path::new("o.yaml"), &target), wait) };
        let (read, ()) = tokio::time::timeout(Duration::from_secs(10), waited).await.expect("a problem");
        assert_eq!((read, target.report.is_refused()), (Ok(7), false));
    }
}
