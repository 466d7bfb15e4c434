//! Imports a file of rows: reads lines with bounded memory, and passes their rows on in batches.
//!
//! Rows are checked and written in rows.rs. The format of a line is in policies.

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Seek as _, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use weir_engine::Micros;
use weir_engine::rows::{Row, RowField};
use weir_engine::words::counted;
use weir_policies::row_file::{RowFileError, RowLine, RowReader, SeenDescriptors};
use weir_tls::files;

use crate::bar::Bar;

const BATCH: usize = 2_000;
/// The most bytes of the lines of one batch, apart from its last line.
const BATCH_BYTES: u64 = 1_024 * 1_024;
/// The most wrong lines that are listed without `skip`.
const LISTED_MAX: usize = 100;
/// The interval of progress lines if standard error is no terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{0}")]
    File(String),
    /// The file has wrong lines, or has changed, or a row was not written.
    #[error("{0}")]
    Lines(String),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

pub(super) enum LineEnd {
    Written,
    Same,
    /// The wrong field, if only one is wrong, and the reason.
    Refused(Option<RowField>, String),
    /// The store did not confirm the row.
    Unconfirmed(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Check,
    Write,
}

impl Pass {
    const fn done(self) -> &'static str {
        match self {
            Self::Check => "checked",
            Self::Write => "imported",
        }
    }
}

/// The file of an import. It stays open, so that both passes read the same file.
struct Source<'p> {
    path: &'p Path,
    file: File,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl<'p> Source<'p> {
    fn open(path: &'p Path) -> Result<Self, ImportError> {
        let (file, metadata) = files::open(path).map_err(|error| unusable(path, &error))?;
        Ok(Self { path, file, bytes: metadata.len(), modified: metadata.modified().ok() })
    }

    fn has_changed(&self) -> Result<bool, ImportError> {
        let is_other = |now: Metadata| now.len() != self.bytes || now.modified().ok() != self.modified;
        self.file.metadata().map(is_other).map_err(|error| unusable(self.path, &error))
    }
}

fn unusable(path: &Path, error: &io::Error) -> ImportError {
    ImportError::File(format!("{}: {error}", path.display()))
}

#[derive(Default)]
struct Counts {
    written: usize,
    same: usize,
    wrong: usize,
    /// How many rows that are now in force have ended.
    ended: usize,
}

/// A row, and the version of the row that it may replace.
#[derive(Clone)]
pub(super) struct RowToSend {
    pub(super) row: Row,
    pub(super) over: Option<u64>,
}

/// What to import.
pub(super) struct Import<'a> {
    pub(super) path: &'a Path,
    /// Goes on after wrong lines.
    pub(super) skip: bool,
    /// Ends the import after the check.
    pub(super) dry_run: bool,
    /// Ends the import after the current batch.
    pub(super) interrupted: &'a AtomicBool,
    pub(super) now: Micros,
}

/// Imports the rows of a regular file. The first pass checks all lines, and the second one writes them: a line that is
/// wrong then, or another change of the file, ends the import. With `skip` there is one pass, which writes the right
/// lines. `send` returns one result for each row of a batch, in order. `checked` gets the descriptors of the file before the
/// first row is written. Writes each wrong line to `notes` at once.
pub(super) fn import<E: From<ImportError>>(
    order: &Import<'_>,
    mut send: impl FnMut(Pass, Vec<RowToSend>) -> Result<Vec<LineEnd>, E>,
    checked: impl FnOnce(SeenDescriptors) -> Result<(), E>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), E> {
    let source = Source::open(order.path)?;
    if !order.skip {
        let (counts, seen) = pass(order, &source, Pass::Check, Wrong::Listed(LISTED_MAX), &mut send, notes)?;
        let Counts { same, wrong, .. } = counts;
        if wrong > 0 {
            let more = if wrong > LISTED_MAX { format!("; the first {LISTED_MAX} are listed") } else { String::new() };
            let lines = counted(wrong, "wrong line");
            return Err(ImportError::Lines(format!("{lines}, nothing was written{more}")).into());
        }
        checked(seen)?;
        if order.dry_run {
            let lines = if same == 1 { "1 line is right".to_owned() } else { format!("{same} lines are right") };
            return Ok(writeln!(out, "{lines}, nothing was written").map_err(ImportError::Output)?);
        }
    }
    let on_wrong = if order.skip { Wrong::Listed(usize::MAX) } else { Wrong::Ends };
    let (counts, _) = pass(order, &source, Pass::Write, on_wrong, &mut send, notes)?;
    let Counts { written, same, wrong, ended } = counts;
    let ended = match ended {
        0 => String::new(),
        1 => ", 1 has ended".to_owned(),
        more => format!(", {more} have ended"),
    };
    writeln!(out, "{} written, {same} were the same, {wrong} wrong{ended}", counted(written, "row"))
        .map_err(ImportError::Output)?;
    if wrong > 0 {
        let lines = counted(wrong, "wrong line");
        return Err(ImportError::Lines(format!("{lines}, the other lines are written")).into());
    }
    Ok(())
}

/// What a wrong line does to a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// It is listed, if it is one of so many.
    Listed(usize),
    /// It ends the pass, because it was right in an earlier pass.
    Ends,
}

/// Rows that are sent together.
#[derive(Default)]
struct Batch {
    lines: Vec<RowLine>,
    bytes: u64,
}

impl Batch {
    fn push(&mut self, line: RowLine, bytes: u64) {
        self.lines.push(line);
        self.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= BATCH || self.bytes >= BATCH_BYTES
    }
}

fn pass<E: From<ImportError>>(
    order: &Import<'_>,
    source: &Source<'_>,
    pass: Pass,
    on_wrong: Wrong,
    send: &mut impl FnMut(Pass, Vec<RowToSend>) -> Result<Vec<LineEnd>, E>,
    notes: &mut dyn Write,
) -> Result<(Counts, SeenDescriptors), E> {
    let path = source.path;
    let unreadable = |error: io::Error| unusable(path, &error);
    (&source.file).rewind().map_err(unreadable)?;
    let mut rows = RowReader::new(BufReader::new(&source.file));
    let (mut batch, mut counts) = (Batch::default(), Counts::default());
    let (mut bar, mut shown) = (Bar::new(), Instant::now());
    // Why the pass ends before the end of the file.
    let mut stop = None;
    loop {
        let before = rows.bytes();
        let next = rows.next();
        let is_end = next.is_none();
        let mut wrong = Vec::new();
        match next {
            Some(Ok(line)) => batch.push(line, rows.bytes() - before),
            Some(Err(RowFileError::Read(error))) => return Err(unreadable(error).into()),
            Some(Err(error)) => wrong.push(error.in_file(&path.display())),
            None => {}
        }
        let is_due = batch.is_full() || is_end && !batch.lines.is_empty();
        if (is_due || is_end) && on_wrong == Wrong::Ends && source.has_changed()? {
            stop = Some(format!("{}: the file has changed since its lines were checked", path.display()));
        }
        if is_due && stop.is_none() {
            let Batch { lines, .. } = std::mem::take(&mut batch);
            let sent = lines.iter().map(|line| RowToSend { row: line.row.clone(), over: line.version }).collect();
            for (line, end) in lines.iter().zip(send(pass, sent).inspect_err(|_| bar.clear())?) {
                let has_ended = line.row.until.is_some_and(|until| until <= order.now);
                match end {
                    LineEnd::Refused(field, reason) => {
                        wrong.push(line.place.problem(&path.display(), field, &reason));
                        continue;
                    }
                    LineEnd::Unconfirmed(reason) => {
                        stop.get_or_insert_with(|| line.place.problem(&path.display(), None, &reason));
                        continue;
                    }
                    LineEnd::Same => counts.same += 1,
                    LineEnd::Written => counts.written += 1,
                }
                counts.ended += usize::from(has_ended);
            }
            if order.interrupted.load(Relaxed) {
                stop.get_or_insert_with(|| "interrupted".to_owned());
            }
            let per_mille = rows.bytes().saturating_mul(1_000).checked_div(source.bytes).unwrap_or(1_000).min(1_000);
            let text = format!("{} lines {}", rows.line(), pass.done());
            if bar.is_shown {
                bar.draw(Some(per_mille), &text);
            } else if shown.elapsed() >= PROGRESS_EVERY {
                shown = Instant::now();
                writeln!(notes, "{text}, {} %", per_mille / 10).map_err(ImportError::Output)?;
            }
        }
        for text in wrong {
            match on_wrong {
                Wrong::Ends => drop(stop.get_or_insert_with(|| was_right(&text))),
                Wrong::Listed(most) => {
                    counts.wrong += 1;
                    if counts.wrong <= most {
                        bar.clear();
                        writeln!(notes, "{text}").map_err(ImportError::Output)?;
                    }
                }
            }
        }
        if let Some(reason) = stop {
            bar.clear();
            let written = counted(counts.written, "row");
            return Err(ImportError::Lines(format!("{reason}\n{written} written: import the file again")).into());
        }
        if is_end {
            bar.clear();
            return Ok((counts, rows.into_seen(String::new())));
        }
    }
}

fn was_right(problem: &str) -> String {
    let since = "since then the file or the policies have changed, or the store refuses the row";
    format!("{problem}\nthe line was right when it was checked: {since}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ROWS: &str = "domain,tenant,plan\nshop,a,gold\nshop,b,gold\n";

    fn order(path: &Path) -> Import<'_> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Import { path, skip: false, dry_run: false, interrupted: &NEVER, now: 1_000_000 }
    }

    /// Imports a file that `change` changes between its two reads. Returns the error, and how many rows were sent to be
    /// written.
    fn changed_between(change: impl Fn(&Path), refused: Option<&str>) -> (String, usize) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        fs::write(&path, ROWS).unwrap();
        let mut sent = 0;
        let send = |pass, rows: Vec<RowToSend>| -> Result<_, ImportError> {
            let end = |sent: &RowToSend| match refused {
                Some(tenant) if pass == Pass::Write && *sent.row.entries[0].1 == *tenant => {
                    LineEnd::Refused(Some(RowField::Content), "no such plan".to_owned())
                }
                _ => LineEnd::Written,
            };
            match pass {
                Pass::Check => change(&path),
                Pass::Write => sent += rows.len(),
            }
            Ok(rows.iter().map(end).collect())
        };
        let error = import(&order(&path), send, |_| Ok(()), &mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
        (error.replace(path.to_str().unwrap(), "rows.csv"), sent)
    }

    #[test]
    fn a_file_that_changes_between_its_two_reads_is_not_imported() {
        let changed =
            "rows.csv: the file has changed since its lines were checked\n0 rows written: import the file again";
        let append = |path: &Path| {
            let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(b"shop,c,gold\n").unwrap();
        };
        assert_eq!(changed_between(append, None), (changed.to_owned(), 0));
        let truncate = |path: &Path| fs::write(path, "domain,tenant,plan\n").unwrap();
        assert_eq!(changed_between(truncate, None), (changed.to_owned(), 0));
        // The same length and time.
        let wrong = |path: &Path| {
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            fs::write(path, ROWS.replace("b,gold", "b\"gold")).unwrap();
            fs::OpenOptions::new().write(true).open(path).unwrap().set_modified(modified).unwrap();
        };
        let (error, sent) = changed_between(wrong, None);
        assert!(error.starts_with("rows.csv:3:"), "{error}");
        assert!(error.contains("the line was right when it was checked") && sent == 0, "{error}");
    }

    #[test]
    fn policies_that_change_between_the_two_reads_end_an_import() {
        let (error, sent) = changed_between(|_| {}, Some("a"));
        assert!(error.starts_with("rows.csv:2:8: no such plan\nthe line was right"), "{error}");
        assert!(error.ends_with("\n1 row written: import the file again") && sent == 2, "{error}");
    }

    #[test]
    fn a_file_that_is_replaced_between_its_two_reads_is_imported_as_it_was_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        fs::write(&path, ROWS).unwrap();
        let send = |pass, rows: Vec<RowToSend>| -> Result<_, ImportError> {
            if pass == Pass::Check {
                let next = directory.path().join("next.csv");
                fs::write(&next, "nothing").unwrap();
                fs::rename(next, &path).unwrap();
            }
            Ok(rows.iter().map(|_| LineEnd::Written).collect())
        };
        let mut out = Vec::new();
        import(&order(&path), send, |_| Ok(()), &mut out, &mut Vec::new()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "2 rows written, 0 were the same, 0 wrong\n");
    }

    #[test]
    fn an_interrupted_import_ends_after_its_batch_and_says_how_many_rows_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        let lines: String = (0..3 * BATCH).map(|number| format!("shop,t{number},gold\n")).collect();
        fs::write(&path, format!("domain,tenant,plan\n{lines}")).unwrap();
        let interrupted = AtomicBool::new(false);
        let mut batches = 0;
        let send = |pass, rows: Vec<RowToSend>| -> Result<_, ImportError> {
            batches += usize::from(pass == Pass::Write);
            interrupted.store(batches == 2, Relaxed);
            Ok(rows.iter().map(|_| LineEnd::Written).collect())
        };
        let order = Import { interrupted: &interrupted, ..order(&path) };
        let error = import(&order, send, |_| Ok(()), &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "interrupted\n4000 rows written: import the file again");
    }

    #[test]
    fn skipped_lines_are_all_listed_and_ended_rows_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        let wrong: String = (0..150).map(|number| format!("shop,w{number},\n")).collect();
        let ended = "shop,a,gold,1970-01-01T00:00:01Z\nshop,b,gold,1970-01-01T00:00:02Z\n";
        fs::write(&path, format!("domain,tenant,plan,until\n{ended}{}", wrong.replace(",\n", ",,\n"))).unwrap();
        let written = |skip| {
            let (mut out, mut notes) = (Vec::new(), Vec::new());
            let send = |_, rows: Vec<RowToSend>| Ok(rows.iter().map(|_| LineEnd::Written).collect());
            let error: ImportError =
                import(&Import { skip, ..order(&path) }, send, |_| Ok(()), &mut out, &mut notes).unwrap_err();
            let [out, notes] = [out, notes].map(|bytes| String::from_utf8(bytes).unwrap());
            (error.to_string(), out, notes.lines().count())
        };
        let done = "2 rows written, 0 were the same, 150 wrong, 1 has ended\n";
        assert_eq!(written(true), ("150 wrong lines, the other lines are written".to_owned(), done.to_owned(), 150));
        let refused = "150 wrong lines, nothing was written; the first 100 are listed";
        assert_eq!(written(false), (refused.to_owned(), String::new(), 100));
    }
}
