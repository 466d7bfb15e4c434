//! `weir rows import --replace`: removes the rows that are not in the file.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use weir_api::rows::{AnsweredRow, RowResult};
use weir_engine::words::counted;
use weir_policies::row_file::SeenDescriptors;

use super::import::{ImportError, RowToSend};
use super::{Failed, PATH, each_page, line, post};
use crate::args::rows::{AllArguments, ImportArguments};

/// The most rows of one request. The server removes them one after the other.
const BATCH: usize = 500;

/// The rows of a server that are not in the file, as they are now.
pub(super) fn unwanted(arguments: &ImportArguments, mut seen: SeenDescriptors) -> Result<Vec<AnsweredRow>, Failed> {
    if seen.is_empty() {
        let file = arguments.file.display();
        return Err(ImportError::Lines(format!("{file}: no row: --replace would remove all rows")).into());
    }
    let mut unwanted = Vec::new();
    each_page(&AllArguments { domain: None, server: arguments.server.clone() }, |page| {
        for shown in &page.rows {
            // A row can be in two pages. A row of a newer weir cannot be read.
            if shown.row.clone().row().is_ok_and(|row| seen.insert(&row, 0).is_ok()) {
                unwanted.push(shown.row.clone());
            }
        }
        Ok(())
    })?;
    Ok(unwanted)
}

/// Removes rows, or with `--dry-run` prints which it would remove. A row that has changed since it was listed stays.
pub(super) fn remove(
    arguments: &ImportArguments,
    unwanted: &[AnsweredRow],
    interrupted: &AtomicBool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), Failed> {
    let ImportArguments { dry_run, server, .. } = arguments;
    let path = format!("{PATH}?remove=true&check={dry_run}");
    let (mut removed, mut stay) = (0, 0);
    for batch in unwanted.chunks(BATCH) {
        if interrupted.load(Relaxed) {
            let removed = counted(removed, "row");
            return Err(ImportError::Lines(format!("interrupted\n{removed} removed: import the file again")).into());
        }
        let to_send = |row: &AnsweredRow| Ok(RowToSend { over: row.version, row: row.clone().row()? });
        let rows: Result<Vec<_>, String> = batch.iter().map(to_send).collect();
        let results = post(server, &path, &rows.map_err(ImportError::Lines)?)?;
        for (row, result) in batch.iter().zip(results) {
            match result {
                RowResult::Word(word) if word == "absent" => {}
                RowResult::Word(_) => {
                    removed += 1;
                    if *dry_run {
                        writeln!(out, "would remove   {}", line(row))?;
                    }
                }
                RowResult::Refused { refused, .. } => {
                    stay += 1;
                    writeln!(notes, "weir: not removed: {}: {refused}", line(row))?;
                }
            }
        }
    }
    let done = if *dry_run { "would be removed" } else { "removed" };
    writeln!(out, "{} {done}", counted(removed, "row"))?;
    if stay > 0 {
        let rows = counted(stay, "row");
        return Err(ImportError::Lines(format!("not removed: {rows} that the file does not have")).into());
    }
    Ok(())
}
