//! `weir diff`: compares two sets of policies.
//!
//! Not here: the comparison (lab).

mod json;
mod markdown;
mod text;
mod words;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_engine::{PolicySet, Row};
use weir_lab::comparison::answers::{Answers, AnswersError, answers};
use weir_lab::comparison::{Comparison, Direction, compare_with_rows};
use weir_lab::simulation::traffic::Traffic;
use weir_limiter::rows::ROWS_OF_PROCESS_MAX;
use weir_policies::files::{Source, row_files};
use weir_policies::{Dialect, Location, OverlayUse, PROBLEMS_MAX, Problems, RowsBeside, load};

/// The arguments of `weir diff`.
#[derive(clap::Args)]
pub struct Diff {
    /// The policies before: a directory, or one file
    #[arg(value_name = "OLD")]
    pub old: PathBuf,
    /// The policies now: a directory, or one file
    #[arg(value_name = "NEW")]
    pub new: PathBuf,
    /// How the report is written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = DiffFormat::Text)]
    pub format: DiffFormat,
    /// Send this through both, and report whose answers change: a file of traffic, or a record of weir tap --values shown
    #[arg(long, value_name = "FILE")]
    pub traffic: Option<PathBuf>,
    /// Exit with 1 only for these changes, and with 3 if weir cannot determine them; may be repeated
    #[arg(long, value_name = "CHANGE", value_enum, value_delimiter = ',')]
    pub fail_on: Vec<FailOn>,
    /// The dialect of both. The settings of the traffic can change it.
    #[command(flatten)]
    pub dialect: DialectArguments,
    /// Add the overlays of this file to OLD, in place of those of --overlay
    #[arg(long, value_name = "FILE")]
    pub old_overlay: Option<PathBuf>,
}

/// The dialect of policy files, for commands that load no settings.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct DialectArguments {
    /// Read the files as envoyproxy/ratelimit does, as with policies.compatible
    #[arg(long)]
    pub compatible: bool,
    /// Join files of one domain, as with policies.merge_domains
    #[arg(long)]
    pub merge_domains: bool,
    /// Add the overlays of this file, as with policies.overlay
    #[arg(long, value_name = "FILE")]
    pub overlay: Option<PathBuf>,
}

impl DialectArguments {
    /// The files at a path, with the overlays.
    pub fn source(&self, path: &Path) -> Source {
        Source { overlay: self.overlay.clone(), ..Source::from(path) }
    }

    /// The dialect that the flags select.
    pub const fn dialect(&self) -> Dialect {
        Dialect { compatible: self.compatible, merge_domains: self.merge_domains, calendar_months: false }
    }
}

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DiffFormat {
    /// For people.
    Text,
    /// One JSON document.
    Json,
    /// For a comment on a pull request.
    Markdown,
}

/// A kind of change for which the exit code is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    /// Fewer requests pass.
    Stricter,
    /// More requests pass.
    Looser,
    /// States are forgotten.
    Forgotten,
    /// A request of the traffic gets another answer.
    Answers,
    /// An unknown effect.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing changes, or no change counts.
    Same,
    Differs,
    /// No such change was found, but some effects are unknown.
    Unknown,
}

#[derive(Debug, thiserror::Error)]
pub enum NoDiff {
    /// Policies of one side or both are wrong; one line for each problem.
    #[error("{0}")]
    Policies(String),
    #[error("{0}")]
    Traffic(#[from] AnswersError),
    /// Files of rows beside the policies are wrong; one line for each problem.
    #[error("{}", .0.join("\n"))]
    Rows(Vec<String>),
    /// `--fail-on answers` was given without traffic.
    #[error("--fail-on answers needs requests: write --traffic FILE")]
    NoTraffic,
    #[error("cannot write the report: {0}")]
    Output(#[from] io::Error),
}

struct Side {
    policies: Arc<PolicySet>,
    places: Vec<Location>,
    /// A line for each overlay that no limit has met.
    warnings: Vec<String>,
}

struct Report<'r> {
    old: &'r Side,
    new: &'r Side,
    comparison: &'r Comparison<'r>,
    answers: Option<&'r Answers>,
}

/// Compares the policies and writes the report. The result is the same if the reader stops early.
///
/// # Errors
/// When policies or traffic are wrong, or the report cannot be written.
pub fn run(diff: &Diff, out: &mut dyn Write) -> Result<Outcome, NoDiff> {
    if diff.traffic.is_none() && diff.fail_on.contains(&FailOn::Answers) {
        return Err(NoDiff::NoTraffic);
    }
    let mut traffic = diff.traffic.as_deref().map(Traffic::open_shown).transpose().map_err(AnswersError::from)?;
    let said = traffic.as_ref().map(|traffic| Dialect::of(&traffic.settings().policies)).unwrap_or_default();
    let dialect = Dialect {
        compatible: diff.dialect.compatible || said.compatible,
        merge_domains: diff.dialect.merge_domains || said.merge_domains,
        ..said
    };
    let read = |source: Source| -> Result<Side, Problems> {
        let loaded = load(&source, dialect)?;
        let warnings = loaded.overlays.iter().flat_map(OverlayUse::warnings).collect();
        Ok(Side { policies: Arc::new(loaded.policies), places: loaded.places, warnings })
    };
    let said = traffic.as_ref().and_then(|traffic| traffic.settings().policies.overlay.clone());
    let overlay = diff.dialect.overlay.clone().or(said);
    let new = Source { overlay: overlay.clone(), ..Source::from(&diff.new) };
    // Before the first policies, the old directory is empty. A missing directory is a mistake.
    let overlay = diff.old_overlay.clone().or(overlay);
    let old = Source { allow_empty: diff.old.is_dir(), overlay, ..Source::from(&diff.old) };
    let (old, new) = match (read(old), read(new)) {
        (Ok(old), Ok(new)) => (old, new),
        (old, new) => {
            let problems = [old.err(), new.err()].into_iter().flatten().map(|problems| problems.to_string());
            return Err(NoDiff::Policies(problems.collect::<Vec<_>>().join("\n")));
        }
    };
    let comparison = compare_with_rows(&old.policies, &new.policies, &rows_beside(diff)?);
    let answers = match &mut traffic {
        Some(traffic) => Some(answers(&old.policies, &new.policies, traffic)?),
        None => None,
    };
    let report = Report { old: &old, new: &new, comparison: &comparison, answers: answers.as_ref() };
    match diff.format {
        DiffFormat::Text => text::write(&report, out)?,
        DiffFormat::Json => writeln!(out, "{:#}", json::document(&report))?,
        DiffFormat::Markdown => markdown::write(&report, out)?,
    }
    out.flush()?;
    Ok(outcome(&report, &diff.fail_on))
}

/// The rows of the files beside the new policies, else beside the old ones.
fn rows_beside(diff: &Diff) -> Result<Vec<Row>, NoDiff> {
    for directory in [&diff.new, &diff.old] {
        let files = row_files(Source::from(directory)).map_err(|error| NoDiff::Rows(vec![error.to_string()]))?;
        if !files.is_empty() {
            let rows = RowsBeside::read(&files, ROWS_OF_PROCESS_MAX, PROBLEMS_MAX).map_err(NoDiff::Rows)?;
            return Ok(rows.into_parts().0);
        }
    }
    Ok(Vec::new())
}

fn outcome(report: &Report<'_>, fail_on: &[FailOn]) -> Outcome {
    let comparison = report.comparison;
    let has_unknown = !comparison.unknown.is_empty();
    let has_other_answers = report.answers.is_some_and(|answers| answers.changed.all() > 0);
    let is_there = |fail_on: &FailOn| match fail_on {
        FailOn::Stricter => comparison.with_direction(Direction::Stricter) > 0,
        FailOn::Looser => comparison.with_direction(Direction::Looser) > 0,
        FailOn::Forgotten => comparison.forgetting() > 0,
        FailOn::Answers => has_other_answers,
        FailOn::Unknown => has_unknown,
    };
    let is_anything = !comparison.is_empty() || has_other_answers;
    let differs = if fail_on.is_empty() { is_anything } else { fail_on.iter().any(is_there) };
    match (differs, has_unknown) {
        (true, _) => Outcome::Differs,
        (false, true) => Outcome::Unknown,
        (false, false) => Outcome::Same,
    }
}
