//! Tests of policies, run: each case on a limiter of its own, under a clock that goes on as the case says.
//!
//! Requests take the way of requests from the network, from the message to the response. Not here: reading files of tests
//! (policies), and arguments and exit codes (cli).

mod case;
mod compare;
pub mod coverage;
pub mod report;
mod unmet;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_policies::test_file::{Case, Policies, TestFile};
use weir_store::Clock as _;
use weir_store::SystemClock;
use weir_store::redis::Endpoint;
use weir_text::yaml::Position;

use self::case::Ended;
use self::coverage::{Coverage, Loads};
use self::unmet::Unmet;

/// The most failed steps of a case that are kept.
pub const FAILURES_MAX: usize = 10;

/// What becomes of steps that test nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// They are warnings.
    Lenient,
    /// Their cases fail.
    Strict,
}

/// Runs files of tests one after the other.
pub struct Runner {
    runtime: tokio::runtime::Runtime,
    redis: Option<Endpoint>,
    filter: Option<String>,
    strictness: Strictness,
    loads: Loads,
    cases: u64,
    /// The case in which Redis failed: no later one is run, since each would wait for it.
    failed_in: Option<String>,
}

/// How the cases of one file ended.
#[derive(Debug)]
pub struct FileReport {
    /// The file.
    pub name: Arc<str>,
    /// The cases that the filter left, in their order.
    pub cases: Vec<CaseReport>,
    /// How many it did not leave.
    pub filtered: usize,
    /// How long they took.
    pub took: Duration,
}

/// How one case ended.
#[derive(Debug)]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub position: Position,
    /// How it ended.
    pub outcome: Outcome,
    /// The first of its steps that test nothing. A strict run has them among the failures.
    pub warnings: Vec<Warning>,
    /// How many more such steps there were.
    pub more_warnings: usize,
    /// How many requests it sent.
    pub asks: u64,
    /// How long it took.
    pub took: Duration,
}

/// How a case ended.
#[derive(Debug)]
pub enum Outcome {
    /// All was as expected.
    Passed,
    /// Something was not.
    Failed {
        /// The first of the steps that failed.
        failures: Vec<Failure>,
        /// How many more there were.
        more: usize,
    },
    /// It was not run, and why.
    Skipped(String),
    /// It cannot be run: its place, and why.
    Broken(String),
}

/// A step that expects requests to pass, and whose requests met no rule: it passes with any policies.
#[derive(Debug)]
pub struct Warning {
    /// Where the step stands.
    pub position: Position,
    /// What was done, and when by the clock of the case.
    pub step: String,
    /// Why it tests nothing, and what was probably meant.
    pub reason: String,
}

/// What one step gave otherwise than expected.
#[derive(Debug)]
pub struct Failure {
    /// Where the step stands.
    pub position: Position,
    /// What was done, and when by the clock of the case.
    pub step: String,
    /// What differs, at least one thing.
    pub differences: Vec<Difference>,
    /// How many further requests of the step had other answers than expected.
    pub more: u64,
}

/// One thing that differs.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where the expectation stands.
    pub position: Position,
    /// Its name, such as `remaining` or `statuses[1].rule`.
    pub what: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
}

impl Runner {
    /// Runs cases in the memory store, or in a Redis; where there is a filter, only those whose name holds it.
    ///
    /// # Errors
    /// When the system gives no runtime, or Redis does not answer.
    pub fn new(redis: Option<Endpoint>, filter: Option<String>, strictness: Strictness) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        if let Some(endpoint) = &redis {
            // Once for all cases, each of which would wait for it.
            world::connected(&runtime, endpoint, 0)
                .map_err(|error| std::io::Error::other(format!("redis at {endpoint} does not answer: {error}")))?;
        }
        Ok(Self { runtime, redis, filter, strictness, loads: Loads::default(), cases: 0, failed_in: None })
    }

    /// Runs the cases of a file.
    pub fn run(&mut self, file: &TestFile) -> FileReport {
        let began = Instant::now();
        let is_wanted = |case: &&Case| self.filter.as_ref().is_none_or(|filter| case.name.contains(&**filter));
        let wanted: Vec<&Case> = file.cases.iter().filter(is_wanted).collect();
        let filtered = file.cases.len() - wanted.len();
        let cases = wanted.into_iter().map(|case| self.case(file, case)).collect();
        FileReport { name: file.name.clone(), cases, filtered, took: began.elapsed() }
    }

    /// Which rules of all policies in files were met so far. Policies that no case could load have no part in it.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        self.loads.coverage()
    }

    fn case(&mut self, file: &TestFile, case: &Case) -> CaseReport {
        let began = Instant::now();
        self.cases += 1;
        let Position { line, column } = case.position;
        let at = format!("{}:{line}:{column}", file.name);
        let mut asks = 0;
        let mut unmet = Unmet::default();
        let outcome = match (self.skips(case), &self.failed_in) {
            (Some(reason), _) => Outcome::Skipped(reason),
            (None, Some(name)) => Outcome::Broken(format!("{at}: not run: Redis failed in the case {name:?}")),
            (None, None) => {
                asks = case.asks;
                let redis = self.redis.as_ref();
                match case::run(&self.runtime, redis, self.cases, file, case, &mut self.loads, &mut unmet) {
                    Ended::Passed => Outcome::Passed,
                    Ended::Failed { failures, more } => Outcome::Failed { failures, more },
                    Ended::Broken(reason) => Outcome::Broken(reason),
                    Ended::StoreFailed(error) => {
                        self.failed_in = Some(case.name.clone());
                        Outcome::Broken(format!("{at}: Redis: {error}"))
                    }
                }
            }
        };
        let (outcome, Unmet { warnings, more: more_warnings }) = match self.strictness {
            Strictness::Lenient => (outcome, unmet),
            Strictness::Strict => (unmet.into_failures(outcome), Unmet::default()),
        };
        let (name, took) = (case.name.clone(), began.elapsed());
        CaseReport { name, position: case.position, outcome, warnings, more_warnings, asks, took }
    }

    /// Redis forgets at once what has ended by its own clock.
    fn skips(&self, case: &Case) -> Option<String> {
        let is_past = self.redis.is_some() && case.starts_at() <= SystemClock.now();
        is_past.then(|| "it begins in the past, for which Redis keeps no state".to_owned())
    }
}

/// What policies are called in messages: a path, or the file of tests that holds them.
fn name_of(policies: &Policies, file: &TestFile) -> String {
    match policies {
        Policies::At(path) => path.display().to_string(),
        Policies::Texts(_) => file.name.to_string(),
    }
}
