//! Rows: files of rows beside the policies, with the memory store, and the gauge of known rows. [rw-6]
//!
//! Not here: what a row does (limiter), the lines of files (policies), and setting rows (http).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use weir_engine::PolicySet;
use weir_http::ServiceState;
use weir_lifecycle::{Life, Phase, Reloads, on_own_thread};
use weir_limiter::rows::{ROWS_OF_PROCESS_MAX, RowTable};
use weir_policies::RowsBeside;
use weir_policies::files::{Source, policy_files, row_files};
use weir_policies::watch::{Change, POLL_EVERY, Watch};
use weir_telemetry::metrics::Metrics;

use super::policies::some_paths;
use super::second_redis::SecondRedis;
use super::watched::Cause;

/// The most problems of one look that are shown.
const PROBLEMS_MAX: usize = 20;

pub(super) struct RowFiles {
    table: Arc<RowTable>,
    policies: Source,
    report: Arc<ServiceState>,
    in_force: watch::Sender<bool>,
}

/// The rows that weir waits for before it is ready.
pub(super) enum FirstRows {
    None,
    /// Those of files. Shows when the first files are in force.
    OfFiles(watch::Receiver<bool>),
    /// Those that an operator moves from the second Redis. [rw-5]
    ToMove(SecondRedis),
}

impl FirstRows {
    /// Waits for the rows, once. Without that, customers would have the default plan.
    pub(super) async fn in_force(&mut self) {
        match self {
            Self::None => {}
            Self::OfFiles(in_force) => {
                // The sender is in a task that lives until everything drains.
                let _ = in_force.wait_for(|in_force| *in_force).await;
            }
            Self::ToMove(second) => second.has_no_rows().await,
        }
        *self = Self::None;
    }
}

/// Warns of files of rows beside the policies that have no effect with this store. [rw-6]
pub(super) fn warn_of_ignored(policies: Source, store: &str) {
    // The policies report a directory that cannot be listed.
    let files: BTreeSet<PathBuf> = row_files(policies).unwrap_or_default().into_iter().collect();
    if !files.is_empty() {
        let files = some_paths(&files);
        tracing::warn!(
            files,
            "files of rows are ignored, because the store is {store}: write them by weir rows import"
        );
    }
}

impl RowFiles {
    /// The files beside the policies of this source.
    pub(super) fn new(table: Arc<RowTable>, policies: Source, report: Arc<ServiceState>, metrics: &Metrics) -> Self {
        metrics.show("weir_input_refused", &["rows"], &report, |report| u64::from(report.are_rows_refused()));
        Self { table, policies, report, in_force: watch::Sender::new(false) }
    }

    pub(super) fn first(&self) -> FirstRows {
        FirstRows::OfFiles(self.in_force.subscribe())
    }

    /// Reads the files whenever they have changed and settled, or the policies have changed, until everything drains. All
    /// or nothing: after a mistake the last good rows stay in force.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub(super) async fn follow(self, mut reloads: Reloads, life: Life) -> Result<(), String> {
        let mut ticks = tokio::time::interval(POLL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks =
            Looks { table: self.table, policies: self.policies, watch: None, under: None, had_files: false };
        loop {
            let cause = tokio::select! {
                () = life.reached(Phase::Draining) => return Ok(()),
                () = reloads.next() => Cause::Order,
                _ = ticks.tick() => Cause::Poll,
            };
            let result;
            (looks, result) = on_own_thread(move || {
                let result = looks.look(cause, Instant::now());
                (looks, result)
            })
            .await;
            match result {
                None => {}
                Some(Ok(())) => {
                    self.report.rows_refused(Vec::new());
                    self.in_force.send_replace(true);
                }
                Some(Err(problems)) => {
                    self.report.rows_refused(problems.clone());
                    // Logged last, so that `/readyz` is up to date when the log line appears.
                    for problem in problems {
                        tracing::error!(problem, "the files of rows have a mistake: the last good rows stay in force");
                    }
                }
            }
        }
    }
}

struct Looks {
    table: Arc<RowTable>,
    policies: Source,
    /// None before the first look.
    watch: Option<Watch>,
    /// The policies of the last look that read the files.
    under: Option<Arc<PolicySet>>,
    had_files: bool,
}

impl Looks {
    /// Puts the rows of the files in force, if they or the policies have changed. None if nothing has changed, or a change
    /// has not settled.
    ///
    /// # Errors
    /// The first problems, because of which the rows are not in force.
    fn look(&mut self, cause: Cause, now: Instant) -> Option<Result<(), Vec<String>>> {
        let policies = self.table.policies();
        let are_same = self.under.as_ref().is_some_and(|under| Arc::ptr_eq(under, &policies));
        let watch = match &mut self.watch {
            // Before the first read, so that no change is missed.
            None => self.watch.insert(Watch::new(self.policies.clone().rows())),
            Some(watch) if cause == Cause::Order => {
                watch.settle_now();
                watch
            }
            Some(watch) => {
                match watch.poll(now) {
                    // All or nothing: the others wait for these.
                    Some(Change::AtRest(files) | Change::Restless(files)) => {
                        tracing::warn!(files = some_paths(&files), "files of rows keep changing and are not loaded");
                        return None;
                    }
                    // Other policies do not end the rest of files that change.
                    None if are_same || !watch.is_unchanged(&BTreeSet::new()) => return None,
                    None | Some(Change::Settled) => {}
                }
                watch
            }
        };
        let listed = row_files(self.policies.clone());
        // A directory that cannot be listed is a mistake of the policies, and reported with them.
        if listed.is_err() && policy_files(self.policies.clone()).is_err() {
            return None;
        }
        let read = listed
            .map_err(|error| vec![error.to_string()])
            .and_then(|files| Ok((files.len(), RowsBeside::read(&files, ROWS_OF_PROCESS_MAX, PROBLEMS_MAX)?)));
        // The files change, and it may have read a part. The watch reports the change when it settles.
        if cause == Cause::Poll && !watch.is_unchanged(&BTreeSet::new()) {
            return None;
        }
        self.under = Some(policies.clone());
        let (files, rows) = match read {
            Ok(read) => read,
            Err(problems) => return Some(Err(problems)),
        };
        if std::mem::replace(&mut self.had_files, files > 0) || files > 0 {
            let ((rows, places), mut problems) = (rows.into_parts(), Vec::new());
            let fitting = self.table.fitting(&policies, rows, |at, refused| {
                problems.push(places.problem(at, refused.field(), &refused));
                problems.len() < PROBLEMS_MAX
            });
            if !problems.is_empty() {
                return Some(Err(problems));
            }
            // Not in the log statement, which evaluates nothing if the level hides it.
            let rows = self.table.replace_of_files(fitting);
            tracing::info!(rows, files, "rows of files loaded");
        }
        Some(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use weir_engine::observer::Silent;
    use weir_limiter::Policies;
    use weir_limiter::rows::known::KnownRows;
    use weir_policies::watch::REST;
    use weir_store::memory::Memory;
    use weir_store::{Store, SystemClock};

    use super::*;

    const POLICY: &str = "\
domain: shop
descriptors:
  - {key: tenant, rows: {default: free}, rate_limit: {rate: 3/day, plans: {gold: 7/day}}}
";

    struct Looked {
        directory: tempfile::TempDir,
        looks: Looks,
        policies: Arc<Policies>,
        known: Arc<KnownRows>,
        now: Instant,
    }

    impl Looked {
        fn new(files: &[(&str, &str)]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            files.iter().for_each(|(name, text)| fs::write(directory.path().join(name), text).unwrap());
            let observer = Arc::new(Silent);
            let policies = Arc::new(Policies::new(policies(POLICY), observer.clone()));
            let store: Arc<dyn Store> = Arc::new(Memory::new(10, Arc::new(SystemClock), observer.clone()));
            let known = Arc::new(KnownRows::of(&*store));
            let table = RowTable::new(store, policies.clone(), known.clone(), Arc::new(SystemClock), observer);
            let source = Source::from(directory.path());
            let looks = Looks { table: Arc::new(table), policies: source, watch: None, under: None, had_files: false };
            Self { directory, looks, policies, known, now: Instant::now() }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.directory.path().join(name), text).unwrap();
        }

        fn look(&mut self) -> Option<Result<(), Vec<String>>> {
            self.now += POLL_EVERY;
            self.looks.look(Cause::Poll, self.now)
        }

        /// The result of a change, which must not come before [`REST`].
        fn after_a_rest(&mut self) -> Result<(), Vec<String>> {
            let start = self.now;
            loop {
                match self.look() {
                    Some(result) => {
                        assert!(self.now - start >= REST, "before a rest");
                        return result;
                    }
                    None => assert!(self.now < start + 3 * REST, "never"),
                }
            }
        }
    }

    fn policies(text: &str) -> PolicySet {
        weir_policies::parse(&[("p.yaml", text)]).unwrap_or_else(|problems| panic!("{problems}")).policies
    }

    #[test]
    fn a_file_that_is_being_written_is_not_in_force_also_if_policies_change_meanwhile() {
        let mut looked = Looked::new(&[("a.rows.csv", "domain,tenant,plan\nshop,acme,gold\nshop,globex,gold\n")]);
        assert_eq!((looked.look(), looked.known.count()), (Some(Ok(())), 2));
        assert_eq!(looked.look(), None);
        let mut text = "domain,tenant,plan\n".to_owned();
        for number in 0..9 {
            looked.write("a.rows.csv", &text);
            looked.policies.replace(policies(&POLICY.replace("3/day", &format!("{}/day", 4 + number))));
            for _ in 0..4 {
                assert_eq!((looked.look(), looked.known.count()), (None, 2), "half of a file");
            }
            text.push_str(&format!("shop,t{number},gold\n"));
        }
        looked.write("a.rows.csv", &text);
        assert_eq!((looked.after_a_rest(), looked.known.count()), (Ok(()), 9));
        looked.write("a.rows.csv", &text);
        assert_eq!(looked.look(), None);
        assert_eq!(looked.looks.look(Cause::Order, looked.now), Some(Ok(())), "an order waits for nothing");
        assert_eq!(looked.look(), None);
        // Policies that change alone.
        looked.policies.replace(policies(&POLICY.replace("gold", "lead")));
        let problems = looked.look().unwrap().unwrap_err();
        let place = looked.directory.path().join("a.rows.csv").display().to_string();
        assert_eq!(problems.len(), 9);
        assert!(problems[0].starts_with(&format!("{place}:2:9: the rule has no plan \"gold\"")), "{problems:?}");
        assert_eq!((looked.look(), looked.known.count()), (None, 9), "the last good rows");
    }

    #[test]
    fn descriptors_are_compared_over_all_files_and_a_removed_file_takes_its_rows_along() {
        let mut looked = Looked::new(&[("a.rows.csv", "domain,tenant,plan\nshop,acme,gold\n")]);
        looked.write("b.rows.csv", "domain,tenant,plan\nshop,globex,gold\nshop,acme,gold\n");
        let path = |name: &str| looked.directory.path().join(name).display().to_string();
        let twice = format!("{}:3:6: the descriptor of {}:2 once more", path("b.rows.csv"), path("a.rows.csv"));
        assert_eq!((looked.look(), looked.known.count()), (Some(Err(vec![twice])), 0));
        looked.write("b.rows.csv", "domain,tenant,plan\nshop,globex,gold\n");
        assert_eq!((looked.after_a_rest(), looked.known.count()), (Ok(()), 2));
        for name in ["a.rows.csv", "b.rows.csv"] {
            fs::remove_file(looked.directory.path().join(name)).unwrap();
        }
        assert_eq!((looked.after_a_rest(), looked.known.count()), (Ok(()), 0));
    }

    /// The volume of the policies is not mounted for a while.
    #[test]
    fn a_directory_that_is_gone_is_no_mistake_of_rows() {
        let mut looked = Looked::new(&[("a.rows.csv", "domain,tenant,plan\nshop,acme,gold\n")]);
        assert_eq!((looked.look(), looked.known.count()), (Some(Ok(())), 1));
        let (here, away) = (looked.directory.path().to_owned(), looked.directory.path().with_extension("away"));
        fs::rename(&here, &away).unwrap();
        for _ in 0..100 {
            assert_eq!((looked.look(), looked.known.count()), (None, 1));
        }
        fs::rename(&away, &here).unwrap();
        looked.write("a.rows.csv", "domain,tenant,plan\nshop,acme,gold\nshop,globex,gold\n");
        assert_eq!((looked.after_a_rest(), looked.known.count()), (Ok(()), 2));
    }
}
