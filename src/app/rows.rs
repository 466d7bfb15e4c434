//! Rows: files of rows beside the policies, with the memory store, and the gauge of known rows. [rw-6]
//!
//! Not here: what a row does (limiter), and setting rows (http).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use weir_engine::rows::Row;
use weir_lifecycle::{Life, Phase, on_own_thread};
use weir_limiter::rows::RowTable;
use weir_limiter::rows::known::{KnownRows, ROWS_OF_PROCESS_MAX};
use weir_policies::row_file::{ROW_FILE_ENDING, RowReader, line_problem};
use weir_telemetry::metrics::Metrics;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most problems that are logged of one look.
const PROBLEMS_MAX: usize = 20;
const FILES_MAX: usize = 1_000;

/// What distinguishes a file from its next version: its inode was changed then, and it has this length. A copy can keep the time of
/// the contents, and a change of rights does not touch it.
type Stamp = (i64, i64, u64);

/// A line of a file, for messages.
struct Place {
    file: Arc<Path>,
    line: usize,
}

pub(super) struct RowFiles {
    table: Arc<RowTable>,
    directory: PathBuf,
    in_force: watch::Sender<bool>,
    are_refused: Arc<AtomicBool>,
}

/// Shows when the first files are in force. The default waits for none.
#[derive(Default)]
pub(super) struct FirstRows(Option<watch::Receiver<bool>>);

impl FirstRows {
    /// Waits until the files are in force. Without that, customers would have the default plan for a moment after each start.
    pub(super) async fn in_force(&mut self) {
        if let Some(in_force) = &mut self.0 {
            // The sender is in a task that lives until everything drains.
            let _ = in_force.wait_for(|in_force| *in_force).await;
        }
    }
}

impl RowFiles {
    pub(super) fn new(table: Arc<RowTable>, directory: PathBuf, metrics: &Metrics) -> Self {
        let are_refused = Arc::<AtomicBool>::default();
        let shown = are_refused.clone();
        metrics.gauge("weir_input_refused", &[("input", "rows")], move || u64::from(shown.load(Relaxed)));
        Self { table, directory, in_force: watch::Sender::new(false), are_refused }
    }

    pub(super) fn first(&self) -> FirstRows {
        FirstRows(Some(self.in_force.subscribe()))
    }

    /// Reads the files whenever one has changed, until everything drains. All or nothing: after a mistake the last good rows stay in
    /// force.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub(super) async fn follow(self, life: Life) -> Result<(), String> {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut known, mut policies) = (None, self.table.policies());
        loop {
            tokio::select! {
                () = life.reached(Phase::Draining) => return Ok(()),
                _ = ticks.tick() => {}
            }
            let (directory, table, before) = (self.directory.clone(), self.table.clone(), known.take());
            let now = self.table.policies();
            let are_same = Arc::ptr_eq(&now, &std::mem::replace(&mut policies, now.clone()));
            let (found, are_good) = on_own_thread(move || {
                let found = match files(&directory) {
                    Ok(found) => found,
                    // A file of policies has no rows beside it, and `policies.allow_empty` needs no directory.
                    Err(error) if before.is_none() && matches!(error.kind(), NotADirectory | NotFound) => {
                        BTreeMap::new()
                    }
                    Err(_) => return (before, None),
                };
                let is_read = before.as_ref() == Some(&found) && (are_same || found.is_empty());
                // A start without files needs no line in the log.
                let has_none = before.is_none() && found.is_empty();
                let are_good = (!is_read).then(|| has_none || look(&table, &now, &found));
                (Some(found), are_good)
            })
            .await;
            known = found;
            if let Some(are_good) = are_good {
                self.are_refused.store(!are_good, Relaxed);
                if are_good {
                    self.in_force.send_replace(true);
                }
            }
        }
    }
}

/// The files of rows in a directory.
///
/// # Errors
/// When it cannot be read now, which the watch over the policies logs.
fn files(directory: &Path) -> io::Result<BTreeMap<PathBuf, Stamp>> {
    let entries = fs::read_dir(directory)?;
    let is_rows = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.ends_with(ROW_FILE_ENDING) && !name.starts_with('.')
    };
    let found = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        // Of a link, what it leads to. A pipe or a device could block for ever.
        let metadata = fs::metadata(&path).ok().filter(|metadata| metadata.is_file() && is_rows(&path))?;
        Some((path, (metadata.ctime(), metadata.ctime_nsec(), metadata.len())))
    });
    Ok(found.take(FILES_MAX).collect())
}

/// Puts the rows of these files in force, or logs why not. Returns whether they are.
fn look(table: &RowTable, policies: &weir_engine::PolicySet, files: &BTreeMap<PathBuf, Stamp>) -> bool {
    let (mut rows, mut places, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for path in files.keys() {
        read(path, &mut rows, &mut places, &mut problems);
    }
    if problems.is_empty() {
        match table.replace_of_files(policies, rows, PROBLEMS_MAX) {
            Ok(rows) => {
                tracing::info!(rows, files = files.len(), "rows of files loaded");
                return true;
            }
            Err(refused) => problems.extend(refused.into_iter().map(|(at, refused)| {
                let Place { file, line } = &places[at];
                line_problem(&file.display(), *line, &refused)
            })),
        }
    }
    for problem in problems.iter().take(PROBLEMS_MAX) {
        tracing::error!(problem, "the files of rows have a mistake: the last good rows stay in force");
    }
    false
}

fn read(path: &Path, rows: &mut Vec<Row>, places: &mut Vec<Place>, problems: &mut Vec<String>) {
    let file: Arc<Path> = path.into();
    let reader = match fs::File::open(path) {
        Ok(file) => RowReader::new(BufReader::new(file)),
        Err(error) => {
            problems.push(format!("{}: {error}", path.display()));
            return;
        }
    };
    for line in reader {
        match line {
            Ok((line, _)) if rows.len() >= ROWS_OF_PROCESS_MAX => {
                problems.push(line_problem(&path.display(), line, &"too many rows"));
                return;
            }
            Ok((line, row)) => {
                rows.push(row);
                places.push(Place { file: file.clone(), line });
            }
            Err(error) => problems.push(error.in_file(&path.display())),
        }
        if problems.len() >= PROBLEMS_MAX {
            return;
        }
    }
}

pub(super) fn add_gauge(metrics: &Metrics, known: &Arc<KnownRows>) {
    let of = known.clone();
    metrics.gauge("weir_rows_known", &[], move || of.len() as u64);
}
