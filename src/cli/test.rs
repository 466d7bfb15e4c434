//! `weir test`: runs the tests of policies below paths, and reports how they ended.
//!
//! Not here: parsing of arguments (args.rs), reading tests (config) and running them (testing).

use std::io::{self, Write};
use std::path::PathBuf;

use crate::config::files::test_files;
use crate::config::policy_file::test_file::{self, TestFile};
use crate::config::settings::Secret;
use crate::testing::report::{Totals, json, junit, text};
use crate::testing::{Endpoint, EndpointError, FileReport, Runner};

/// What to run, and how to report it.
pub struct Tests {
    /// Directories with tests, and files of tests.
    pub paths: Vec<PathBuf>,
    /// The Redis to decide by; none for the memory store.
    pub redis_url: Option<Secret>,
    /// What the name of a case must hold.
    pub filter: Option<String>,
    /// How the report is written.
    pub format: Format,
    /// Whether rules that no test meets are reported.
    pub coverage: bool,
    /// The least percentage of rules that tests must meet.
    pub fail_under: Option<u32>,
}

/// How the report of tests is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people, as `cargo test` does.
    Text,
    /// JUnit's XML.
    Junit,
    /// One JSON document.
    Json,
}

/// How the tests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every case passed or was skipped, and enough rules were met.
    Passed,
    /// Some did not, or too few rules were met.
    Failed,
    /// Some could not be run.
    Broken,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum NoTests {
    /// Files of tests, or paths, are wrong; one line for each problem.
    #[error("{0}")]
    Input(String),
    /// The address of Redis cannot be used.
    #[error("--redis-url: {0}")]
    Redis(#[from] EndpointError),
    /// The system gives no runtime, Redis does not answer, or the report cannot be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs all tests and writes the report. All files are read before the first case is run.
///
/// # Errors
/// When a file is wrong, no test is found, or the report cannot be written.
pub fn run(tests: &Tests, out: &mut dyn Write) -> Result<Verdict, NoTests> {
    let files = read(&tests.paths)?;
    let redis = tests.redis_url.as_ref().map(|url| Endpoint::parse(url.expose())).transpose()?;
    let mut runner = Runner::new(redis, tests.filter.clone())?;
    let mut reports = Vec::with_capacity(files.len());
    for file in &files {
        let report = runner.run(file);
        if tests.format == Format::Text && (!report.cases.is_empty() || tests.filter.is_none()) {
            text::file(&report, out)?;
        }
        reports.push(report);
    }
    if let Some(filter) = tests.filter.as_ref().filter(|_| reports.iter().all(|report| report.cases.is_empty())) {
        return Err(NoTests::Input(format!("no case has {filter:?} in its name")));
    }
    let coverage = runner.coverage();
    let wanted = tests.coverage || tests.fail_under.is_some();
    match tests.format {
        Format::Text if wanted => text::coverage(&coverage, out)?,
        Format::Text => {}
        Format::Junit => out.write_all(junit::document(&reports).as_bytes())?,
        Format::Json => writeln!(out, "{:#}", json::document(&reports, wanted.then_some(&coverage)))?,
    }
    let is_covered = tests.fail_under.is_none_or(|least| coverage.percent() >= least);
    if !is_covered && tests.format != Format::Text {
        // The report may not say why this is a failure. A standard error that is closed changes nothing.
        let _ = text::coverage(&coverage, &mut io::stderr());
    }
    Ok(verdict(&reports, is_covered))
}

fn verdict(reports: &[FileReport], is_covered: bool) -> Verdict {
    match Totals::of(reports) {
        totals if totals.broken > 0 => Verdict::Broken,
        totals if totals.failed > 0 || !is_covered => Verdict::Failed,
        _ => Verdict::Passed,
    }
}

/// Reads every file of tests, each once.
fn read(paths: &[PathBuf]) -> Result<Vec<TestFile>, NoTests> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut problems: Vec<String> = Vec::new();
    for path in paths {
        match test_files(path) {
            Ok(files) if files.is_empty() => {
                problems.push(format!("{}: no tests: no file here is named *.test.yaml", path.display()));
            }
            Ok(files) => found.extend(files),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(path.clone()));
    let mut files = Vec::with_capacity(found.len());
    for path in &found {
        match test_file::read(path) {
            Ok(file) => files.push(file),
            Err(of_file) => problems.push(of_file.to_string()),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(NoTests::Input(problems.join("\n"))) }
}
