//! Imports a file of rows: reads lines with bounded memory, and passes their rows on in batches.
//!
//! Rows are checked and written in rows.rs. The format of a line is in policies.

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Seek as _, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use weir_engine::rows::Row;
use weir_engine::words::counted;
use weir_policies::files;
use weir_policies::row_file::{RowFileError, RowReader, line_problem};

use crate::bar::Bar;

const BATCH: usize = 2_000;
/// The most bytes of the lines of one batch, apart from its last line.
const BATCH_BYTES: u64 = 1_024 * 1_024;
/// The most wrong lines to list.
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
    Refused(String),
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
    /// The first wrong lines: number, column and reason.
    listed: Vec<String>,
}

/// Imports the rows of a regular file. The first pass checks all lines, and the second one writes them: a line that is
/// wrong then, or another change of the file, ends the import. With `skip` there is one pass, which writes the right
/// lines. `send` returns one result for each row of a batch, in order.
pub(super) fn import<E: From<ImportError>>(
    path: &Path,
    skip: bool,
    mut send: impl FnMut(Pass, Vec<Row>) -> Result<Vec<LineEnd>, E>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), E> {
    let source = Source::open(path)?;
    if !skip {
        let checked = pass(&source, Pass::Check, Wrong::Listed, &mut send, notes)?;
        if checked.wrong > 0 {
            return Err(ImportError::Lines(wrong(&checked, "nothing was written")).into());
        }
    }
    let on_wrong = if skip { Wrong::Listed } else { Wrong::Ends };
    let counts = pass(&source, Pass::Write, on_wrong, &mut send, notes)?;
    let Counts { written, same, wrong: wrong_lines, .. } = counts;
    writeln!(out, "{} written, {same} were the same, {wrong_lines} wrong", counted(written, "row"))
        .map_err(ImportError::Output)?;
    if wrong_lines > 0 {
        return Err(ImportError::Lines(wrong(&counts, "the other lines are written")).into());
    }
    Ok(())
}

/// What a wrong line does to a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Listed,
    /// A line that was right in an earlier pass.
    Ends,
}

fn wrong(counts: &Counts, what: &str) -> String {
    let mut text = format!("{}, {what}:", counted(counts.wrong, "wrong line"));
    for line in &counts.listed {
        text.push('\n');
        text.push_str(line);
    }
    if counts.wrong > counts.listed.len() {
        text.push_str(&format!("\nand {} more", counts.wrong - counts.listed.len()));
    }
    text
}

impl Counts {
    fn refuse(&mut self, line: String) {
        self.wrong += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(line);
        }
    }
}

/// Rows that are sent together, and the numbers of their lines.
#[derive(Default)]
struct Batch {
    rows: Vec<Row>,
    lines: Vec<usize>,
    bytes: u64,
}

impl Batch {
    fn push(&mut self, row: Row, line: usize, bytes: u64) {
        self.rows.push(row);
        self.lines.push(line);
        self.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= BATCH || self.bytes >= BATCH_BYTES
    }
}

fn pass<E: From<ImportError>>(
    source: &Source<'_>,
    pass: Pass,
    on_wrong: Wrong,
    send: &mut impl FnMut(Pass, Vec<Row>) -> Result<Vec<LineEnd>, E>,
    notes: &mut dyn Write,
) -> Result<Counts, E> {
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
        match next {
            Some(Ok((line, row))) => batch.push(row, line, rows.bytes() - before),
            Some(Err(RowFileError::Read(error))) => return Err(unreadable(error).into()),
            Some(Err(error)) if on_wrong == Wrong::Ends => stop = Some(was_right(&error.in_file(&path.display()))),
            Some(Err(error)) => counts.refuse(error.in_file(&path.display())),
            None => {}
        }
        if on_wrong == Wrong::Ends && stop.is_none() && (batch.is_full() || is_end) && source.has_changed()? {
            stop = Some(format!("{}: the file has changed since its lines were checked", path.display()));
        }
        if stop.is_none() && (batch.is_full() || is_end && !batch.rows.is_empty()) {
            let Batch { rows: sent, lines, .. } = std::mem::take(&mut batch);
            for (line, end) in lines.into_iter().zip(send(pass, sent).inspect_err(|_| bar.clear())?) {
                match end {
                    LineEnd::Same => counts.same += 1,
                    LineEnd::Written => counts.written += 1,
                    LineEnd::Refused(reason) => {
                        let text = line_problem(&path.display(), line, &reason);
                        match on_wrong {
                            Wrong::Listed => counts.refuse(text),
                            Wrong::Ends => drop(stop.get_or_insert_with(|| was_right(&text))),
                        }
                    }
                    LineEnd::Unconfirmed(reason) => {
                        stop.get_or_insert_with(|| format!("{}:{line}: {reason}", path.display()));
                    }
                }
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
        if let Some(reason) = stop {
            bar.clear();
            let written = counted(counts.written, "row");
            return Err(ImportError::Lines(format!("{reason}\n{written} written: import the file again")).into());
        }
        if is_end {
            bar.clear();
            return Ok(counts);
        }
    }
}

fn was_right(problem: &str) -> String {
    format!("{problem}\nthe line was right when it was checked: the file or the policies have changed")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ROWS: &str = "domain,tenant,plan\nshop,a,gold\nshop,b,gold\n";

    /// Imports a file that `change` changes between its two reads. Returns the error, and how many rows were sent to be
    /// written.
    fn changed_between(change: impl Fn(&Path), refused: Option<&str>) -> (String, usize) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        fs::write(&path, ROWS).unwrap();
        let mut sent = 0;
        let send = |pass, rows: Vec<Row>| -> Result<_, ImportError> {
            let end = |row: &Row| match refused {
                Some(tenant) if pass == Pass::Write && *row.entries[0].1 == *tenant => {
                    LineEnd::Refused("no such plan".to_owned())
                }
                _ => LineEnd::Written,
            };
            match pass {
                Pass::Check => change(&path),
                Pass::Write => sent += rows.len(),
            }
            Ok(rows.iter().map(end).collect())
        };
        let error = import(&path, false, send, &mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
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
        assert!(error.starts_with("rows.csv:3: column 1: 2 fields"), "{error}");
        assert!(error.contains("the line was right when it was checked") && sent == 0, "{error}");
    }

    #[test]
    fn policies_that_change_between_the_two_reads_end_an_import() {
        let (error, sent) = changed_between(|_| {}, Some("a"));
        assert!(error.starts_with("rows.csv:2: column 1: no such plan\nthe line was right"), "{error}");
        assert!(error.ends_with("\n1 row written: import the file again") && sent == 2, "{error}");
    }

    #[test]
    fn a_file_that_is_replaced_between_its_two_reads_is_imported_as_it_was_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        fs::write(&path, ROWS).unwrap();
        let send = |pass, rows: Vec<Row>| -> Result<_, ImportError> {
            if pass == Pass::Check {
                let next = directory.path().join("next.csv");
                fs::write(&next, "nothing").unwrap();
                fs::rename(next, &path).unwrap();
            }
            Ok(rows.iter().map(|_| LineEnd::Written).collect())
        };
        let mut out = Vec::new();
        import(&path, false, send, &mut out, &mut Vec::new()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "2 rows written, 0 were the same, 0 wrong\n");
    }
}
