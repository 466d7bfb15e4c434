//! Rows: files of rows beside the policies, with the memory store, rows of a Redis without a server, and the gauge of known rows.
//! [rw-6]
//!
//! Not here: what a row does (limiter), and setting rows (http).

use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::MissedTickBehavior;
use weir_engine::rows::Row;
use weir_lifecycle::{Life, Phase, on_own_thread};
use weir_limiter::Policies;
use weir_limiter::rows::RowTable;
use weir_limiter::rows::known::{KnownRows, ROWS_OF_PROCESS_MAX};
use weir_policies::Dialect;
use weir_policies::row_file::{ROW_FILE_ENDING, RowReader};
use weir_settings::{PolicySource, Settings, StoreKind};
use weir_store::{StoreError, SystemClock};
use weir_telemetry::metrics::Metrics;

use super::stores::{Opened, Stores};
use super::{AppError, metrics, source};

/// How often the directory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long Redis may take for its first answer, the dial included.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The most problems that are logged of one look.
const PROBLEMS_MAX: usize = 20;
/// The most files.
const FILES_MAX: usize = 1_000;

/// What distinguishes a file from its next version.
type Stamp = (SystemTime, u64);

/// A line of a file, for messages.
struct Place {
    file: Arc<Path>,
    line: usize,
}

/// Reads the files of rows in a directory whenever one has changed, until everything drains. All or nothing: after a mistake
/// the last good rows stay in force.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(super) async fn follow(table: Arc<RowTable>, directory: PathBuf, life: Life) -> Result<(), String> {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut policies) = (BTreeMap::new(), table.policies());
    loop {
        tokio::select! {
            () = life.reached(Phase::Draining) => return Ok(()),
            _ = ticks.tick() => {}
        }
        let (at, table) = (directory.clone(), table.clone());
        let (before, policies_before) = (known.clone(), policies.clone());
        let now = table.policies();
        policies = now.clone();
        known = on_own_thread(move || {
            let found = files(&at);
            let is_same = found == before && (found.is_empty() || Arc::ptr_eq(&now, &policies_before));
            if !is_same {
                look(&table, &now, &found);
            }
            found
        })
        .await;
    }
}

/// The files of rows in a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Stamp> {
    let Ok(entries) = fs::read_dir(directory) else { return BTreeMap::new() };
    let is_rows = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.ends_with(ROW_FILE_ENDING) && !name.starts_with('.')
    };
    let found = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        // Of a link, what it leads to. A pipe or a device could block for ever.
        let metadata = fs::metadata(&path).ok().filter(|metadata| metadata.is_file() && is_rows(&path))?;
        Some((path, (metadata.modified().ok()?, metadata.len())))
    });
    found.take(FILES_MAX).collect()
}

/// Puts the rows of these files in force, or logs why not.
fn look(table: &RowTable, policies: &weir_engine::PolicySet, files: &BTreeMap<PathBuf, Stamp>) {
    let (mut rows, mut places, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for path in files.keys() {
        read(path, &mut rows, &mut places, &mut problems);
    }
    if problems.is_empty() {
        match table.replace_of_files(policies, rows, PROBLEMS_MAX) {
            Ok(rows) => {
                tracing::info!(rows, files = files.len(), "rows of files are in force");
                return;
            }
            Err(refused) => problems.extend(refused.into_iter().map(|(at, refused)| {
                let Place { file, line } = &places[at];
                format!("{}:{line}: column 1: {refused}", file.display())
            })),
        }
    }
    for problem in problems.iter().take(PROBLEMS_MAX) {
        tracing::error!(problem, "the files of rows have a mistake: the last good rows stay in force");
    }
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
                problems.push(format!("{}:{line}: column 1: too many rows", path.display()));
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

/// Shows how many rows are known.
pub(super) fn add_gauge(metrics: &Metrics, known: &Arc<KnownRows>) {
    let of = known.clone();
    metrics.gauge("weir_rows_known", &[], move || of.len() as u64);
}

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
        prepared.map_err(|error| match error {
            StoreError::NotSent(failure) | StoreError::Unknown(failure) => AppError::Rows(failure.message),
            other => AppError::Rows(other.to_string()),
        })?;
    }
    let policies = Arc::new(Policies::new(policies, metrics.observer()));
    let (known, clock) = (Arc::default(), Arc::new(SystemClock));
    Ok(RowTable::new(first, per_second, policies, known, clock, metrics.observer()))
}
