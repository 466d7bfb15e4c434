//! `weir test`: runs tests of policies, and reports the results.
//!
//! Not here: parsing of arguments (args.rs), reading tests (policies), and running them (lab).

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use weir_lab::testing::coverage::Percentage;
use weir_lab::testing::report::{Covered, Problem, Totals, json, junit, text};
use weir_lab::testing::{FileReport, Runner, Strictness};
use weir_policies::files::test_files;
use weir_policies::test_file::{self, TestFile};
use weir_settings::Secret;
use weir_store::redis::Endpoint;

const URL: &str = "--redis-url";

pub struct Tests {
    pub paths: Vec<PathBuf>,
    /// The Redis that decides; none for the memory store.
    pub redis_url: Option<Secret>,
    /// Only cases whose name contains this text.
    pub filter: Option<String>,
    pub format: TestFormat,
    /// Whether rules that no test meets are reported.
    pub coverage: bool,
    /// How weir treats steps that test nothing.
    pub strictness: Strictness,
    /// The smallest percentage of rules that tests must meet.
    pub fail_under: Option<Percentage>,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TestFormat {
    /// For people, as `cargo test` does.
    Text,
    /// JUnit's XML.
    Junit,
    /// One JSON document.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every case passed or was skipped, and enough rules were met.
    Passed,
    /// Some cases failed, or too few rules were met.
    Failed,
    /// Some cases could not be run.
    Broken,
}

#[derive(Debug, thiserror::Error)]
pub enum NoTests {
    /// Files of tests, paths or options are wrong, or Redis does not answer. Reports for programs list these problems.
    #[error("{}", in_lines(.0))]
    NotRun(Vec<Problem>),
    #[error("cannot write the report: {0}")]
    Output(#[from] io::Error),
}

fn in_lines(problems: &[Problem]) -> String {
    let texts: Vec<&str> = problems.iter().map(|problem| &*problem.text).collect();
    texts.join("\n")
}

fn not_run(subject: impl Into<String>, text: impl Into<String>) -> NoTests {
    NoTests::NotRun(vec![Problem { subject: subject.into(), text: text.into() }])
}

/// Runs all tests and writes the report. Reads all files before the first case. Runs all tests even if the reader of
/// the report stops early.
///
/// # Errors
/// If a file is wrong, no test is found, Redis does not answer, or the report cannot be written.
pub fn run(tests: &Tests, out: &mut dyn Write) -> Result<Verdict, NoTests> {
    let result = run_all(tests, out).and_then(|verdict| out.flush().map(|()| verdict).map_err(NoTests::from));
    if let Err(NoTests::NotRun(problems)) = &result {
        match tests.format {
            TestFormat::Text => {}
            TestFormat::Junit => out.write_all(junit::of_problems(problems).as_bytes())?,
            TestFormat::Json => writeln!(out, "{:#}", json::of_problems(problems))?,
        }
    }
    result
}

fn run_all(tests: &Tests, out: &mut dyn Write) -> Result<Verdict, NoTests> {
    let files = read(&tests.paths)?;
    let redis = match &tests.redis_url {
        None => None,
        Some(url) => Some(Endpoint::parse(url.expose()).map_err(|error| not_run(URL, format!("{URL}: {error}")))?),
    };
    let mut runner = Runner::new(redis, tests.filter.clone(), tests.strictness)
        .map_err(|error| not_run("redis", error.to_string()))?;
    let mut reports = Vec::with_capacity(files.len());
    for file in &files {
        let report = runner.run(file);
        if tests.format == TestFormat::Text && (!report.cases.is_empty() || tests.filter.is_none()) {
            text::file(&report, out)?;
        }
        reports.push(report);
    }
    if let Some(filter) = tests.filter.as_ref().filter(|_| reports.iter().all(|report| report.cases.is_empty())) {
        return Err(not_run("--filter", format!("no case has {filter:?} in its name")));
    }
    let coverage = runner.coverage();
    let covered = Covered { coverage: &coverage, least: tests.fail_under };
    let wanted = tests.coverage || tests.fail_under.is_some();
    match tests.format {
        TestFormat::Text if wanted => text::coverage(covered, out)?,
        TestFormat::Text => {}
        TestFormat::Junit => out.write_all(junit::document(&reports, covered).as_bytes())?,
        TestFormat::Json => writeln!(out, "{:#}", json::document(&reports, wanted.then_some(covered)))?,
    }
    Ok(verdict(&reports, covered.is_reached() != Some(false)))
}

fn verdict(reports: &[FileReport], is_covered: bool) -> Verdict {
    match Totals::of(reports) {
        totals if totals.broken > 0 => Verdict::Broken,
        totals if totals.failed > 0 || !is_covered => Verdict::Failed,
        _ => Verdict::Passed,
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<TestFile>, NoTests> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut problems: Vec<Problem> = Vec::new();
    let mut report = |path: &Path, text: String| problems.push(Problem { subject: path.display().to_string(), text });
    for path in paths {
        match test_files(path) {
            Ok(files) if files.is_empty() => {
                report(path, format!("{}: no tests: no file here is named *.test.yaml", path.display()));
            }
            Ok(files) => found.extend(files),
            Err(error) => report(path, error.to_string()),
        }
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(path.clone()));
    let mut files = Vec::with_capacity(found.len());
    for path in &found {
        match test_file::read(path) {
            Ok(file) => files.push(file),
            Err(of_file) => report(path, of_file.to_string()),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(NoTests::NotRun(problems)) }
}
