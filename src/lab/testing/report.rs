//! Reports of tests, for people and for programs.

pub mod json;
pub mod junit;
pub mod text;

use super::coverage::{Coverage, Percentage};
use super::{FileReport, Outcome};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The invalid path, option or server.
    pub subject: String,
    /// One line for each mistake, with its place if it has one.
    pub text: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Covered<'c> {
    pub coverage: &'c Coverage,
    /// The required percentage, from `--fail-under`.
    pub least: Option<Percentage>,
}

impl Covered<'_> {
    /// Whether enough rules were met. None if there is no requirement.
    pub fn is_reached(&self) -> Option<bool> {
        self.least.map(|least| self.coverage.reaches(least))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// Cases that could not be run.
    pub broken: usize,
    /// Cases that do not match the filter.
    pub filtered: usize,
    /// Steps that test nothing.
    pub warnings: usize,
}

impl Totals {
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
