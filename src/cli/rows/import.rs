//! Imports a file of rows: reads lines with bounded memory, and passes their rows on in batches.
//!
//! Rows are checked and written in rows.rs. The format of a line is in policies.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use weir_engine::rows::Row;
use weir_engine::words::counted;
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
    /// The file has wrong lines, or a row was not written.
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

#[derive(Default)]
struct Counts {
    written: usize,
    same: usize,
    wrong: usize,
    /// The first wrong lines: number, column and reason.
    listed: Vec<String>,
}

/// Imports the rows of a file. The first pass checks all lines, and the second one writes them. With `skip` there is
/// one pass, which writes the right lines. `send` returns one result for each row of a batch, in order.
pub(super) fn import<E: From<ImportError>>(
    path: &Path,
    skip: bool,
    mut send: impl FnMut(Pass, Vec<Row>) -> Result<Vec<LineEnd>, E>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), E> {
    if !skip {
        let checked = pass(path, Pass::Check, &mut send, notes)?;
        if checked.wrong > 0 {
            return Err(ImportError::Lines(wrong(&checked, "nothing was written")).into());
        }
    }
    let counts = pass(path, Pass::Write, &mut send, notes)?;
    let Counts { written, same, wrong: wrong_lines, .. } = counts;
    writeln!(out, "{} written, {same} were the same, {wrong_lines} wrong", counted(written, "row"))
        .map_err(ImportError::Output)?;
    if wrong_lines > 0 {
        return Err(ImportError::Lines(wrong(&counts, "the other lines are written")).into());
    }
    Ok(())
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
    path: &Path,
    pass: Pass,
    send: &mut impl FnMut(Pass, Vec<Row>) -> Result<Vec<LineEnd>, E>,
    notes: &mut dyn Write,
) -> Result<Counts, E> {
    let unusable = |error: io::Error| ImportError::File(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(unusable)?;
    let bytes = file.metadata().map_err(unusable)?.len();
    let mut rows = RowReader::new(BufReader::new(file));
    let (mut batch, mut counts) = (Batch::default(), Counts::default());
    let (mut bar, mut shown) = (Bar::new(), Instant::now());
    loop {
        let before = rows.bytes();
        let next = rows.next();
        let is_end = next.is_none();
        match next {
            Some(Ok((line, row))) => batch.push(row, line, rows.bytes() - before),
            Some(Err(RowFileError::Read(error))) => return Err(unusable(error).into()),
            Some(Err(error)) => counts.refuse(error.in_file(&path.display())),
            None => {}
        }
        if batch.is_full() || is_end && !batch.rows.is_empty() {
            let Batch { rows: sent, lines, .. } = std::mem::take(&mut batch);
            for (line, end) in lines.into_iter().zip(send(pass, sent).inspect_err(|_| bar.clear())?) {
                match end {
                    LineEnd::Same => counts.same += 1,
                    LineEnd::Written => counts.written += 1,
                    LineEnd::Refused(reason) => counts.refuse(line_problem(&path.display(), line, &reason)),
                    LineEnd::Unconfirmed(reason) => {
                        bar.clear();
                        let before = counted(counts.written, "row");
                        let text = format!(
                            "{}:{line}: {reason}\n{before} written before it: import the file again",
                            path.display()
                        );
                        return Err(ImportError::Lines(text).into());
                    }
                }
            }
            let per_mille = rows.bytes().saturating_mul(1_000).checked_div(bytes).unwrap_or(1_000).min(1_000);
            let text = format!("{} lines {}", rows.line(), pass.done());
            if bar.is_shown {
                bar.draw(Some(per_mille), &text);
            } else if shown.elapsed() >= PROGRESS_EVERY {
                shown = Instant::now();
                writeln!(notes, "{text}, {} %", per_mille / 10).map_err(ImportError::Output)?;
            }
        }
        if is_end {
            bar.clear();
            return Ok(counts);
        }
    }
}
