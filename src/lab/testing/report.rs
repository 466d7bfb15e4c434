//! How tests of policies ended, for people and for machines.

pub mod json;
pub mod junit;
pub mod text;

use super::coverage::{Coverage, Percentage};
use super::{FileReport, Outcome};

/// Why no case was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong: a path, an option, or a server.
    pub subject: String,
    /// Why, a line for each mistake, with its place where it has one.
    pub text: String,
}

/// Which rules were met, and how many had to be.
#[derive(Clone, Copy, Debug)]
pub struct Covered<'c> {
    /// Those that were met, and the others.
    pub coverage: &'c Coverage,
    /// The least percentage, by `--fail-under`.
    pub least: Option<Percentage>,
}

impl Covered<'_> {
    /// Whether enough rules were met; none where any number is enough.
    #[must_use]
    pub fn is_reached(&self) -> Option<bool> {
        self.least.map(|least| self.coverage.reaches(least))
    }
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// As expected.
    pub passed: usize,
    /// Otherwise.
    pub failed: usize,
    /// Not run.
    pub skipped: usize,
    /// Could not be run.
    pub broken: usize,
    /// Left out by the filter.
    pub filtered: usize,
    /// Steps that test nothing.
    pub warnings: usize,
}

impl Totals {
    /// Those of files.
    #[must_use]
    pub fn of<'a>(files: impl IntoIterator<Item = &'a FileReport>) -> Self {
        let mut totals = Self::default();
        for file in files {
            totals.filtered += file.filtered;
            for case in &file.cases {
                totals.warnings += case.warnings.len() + case.more_warnings;
                *match case.outcome {
                    Outcome::Passed => &mut totals.passed,
                    Outcome::Failed { .. } => &mut totals.failed,
                    Outcome::Skipped(_) => &mut totals.skipped,
                    Outcome::Broken(_) => &mut totals.broken,
                } += 1;
            }
        }
        totals
    }
}
