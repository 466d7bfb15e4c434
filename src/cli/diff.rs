//! `weir diff`: what changes for whom when other policies are put in force, before they are.
//!
//! Not here: parsing of arguments (args.rs), and what a change is (comparison).

mod json;
mod markdown;
mod rows;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::comparison::{Comparison, Tend, compare};
use crate::config::policy_file::{Loaded, Problems, Reading, load_dir_with};

/// What to compare, and how to report it.
pub struct Diff {
    /// The policies before: a directory, or one file.
    pub old: PathBuf,
    /// The policies now.
    pub new: PathBuf,
    /// How both are read.
    pub reading: Reading,
    /// How the report is written.
    pub format: Format,
    /// What makes the two differ; anything if this is empty.
    pub fail_on: Vec<FailOn>,
}

/// How the report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
    /// For a comment on a pull request.
    Markdown,
}

/// A change by which the exit code is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// Less passes.
    Stricter,
    /// More passes.
    Looser,
    /// States are forgotten.
    Forgotten,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing changes, or nothing that was asked for.
    Same,
    /// Something does.
    Differs,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum NoDiff {
    /// Policies are wrong; one line for each problem.
    #[error("{0}")]
    Policies(#[from] Problems),
    /// The report cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// What a report is about.
struct Report<'r> {
    old: &'r Loaded,
    new: &'r Loaded,
    comparison: &'r Comparison<'r>,
}

/// Compares the policies and writes the report.
///
/// # Errors
/// When policies are wrong, or the report cannot be written.
pub fn run(diff: &Diff, out: &mut dyn Write) -> Result<Outcome, NoDiff> {
    let load = |path: &Path| load_dir_with(path, diff.reading);
    let (old, new) = (load(&diff.old)?, load(&diff.new)?);
    let comparison = compare(&old.policies, &new.policies);
    let report = Report { old: &old, new: &new, comparison: &comparison };
    match diff.format {
        Format::Text => text::write(&report, out)?,
        Format::Json => writeln!(out, "{:#}", json::document(&report))?,
        Format::Markdown => markdown::write(&report, out)?,
    }
    Ok(outcome(&comparison, &diff.fail_on))
}

fn outcome(comparison: &Comparison<'_>, fail_on: &[FailOn]) -> Outcome {
    let is_there = |fail_on: &FailOn| match fail_on {
        FailOn::Stricter => comparison.tending(Tend::Stricter) > 0,
        FailOn::Looser => comparison.tending(Tend::Looser) > 0,
        FailOn::Forgotten => comparison.forgetting() > 0,
    };
    let differs = if fail_on.is_empty() { !comparison.is_empty() } else { fail_on.iter().any(is_there) };
    if differs { Outcome::Differs } else { Outcome::Same }
}
