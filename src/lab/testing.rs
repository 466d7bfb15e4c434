//! Runs tests of policies. Each case has its own limiter and its own clock.
//!
//! Requests are decided as on a server, from the message to the response. Not here: reading files of tests (policies), and
//! arguments and exit codes (cli).

mod case;
mod compare;
pub mod coverage;
pub mod report;
mod unmet;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::Hits;
use weir_policies::test_file::{Case, Policies, TestFile};
use weir_store::Clock as _;
use weir_store::SystemClock;
use weir_store::redis::Endpoint;
use weir_text::yaml::Position;

use self::case::CaseEnd;
use self::coverage::{Coverage, Loads};
use self::unmet::Unmet;
use crate::world::RedisPart;

/// The most failed steps of a case that are kept.
pub const FAILURES_MAX: usize = 10;

/// How warnings are treated, such as those about steps that test nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    Lenient,
    Strict,
}

impl Strictness {
    pub const fn of(is_strict: bool) -> Self {
        if is_strict { Self::Strict } else { Self::Lenient }
    }
}

pub struct Runner {
    runtime: Arc<tokio::runtime::Runtime>,
    redis: Option<Endpoint>,
    filter: Option<String>,
    strictness: Strictness,
    loads: Loads,
    cases: u64,
    /// The case in which Redis failed. Later cases are skipped, because each would wait for Redis.
    failed_in: Option<String>,
}

#[derive(Debug)]
pub struct FileReport {
    pub name: Arc<str>,
    /// The cases that match the filter, in their order.
    pub cases: Vec<CaseReport>,
    pub filtered: usize,
    pub took: Duration,
}

#[derive(Debug)]
pub struct CaseReport {
    pub name: String,
    pub position: Position,
    pub outcome: Outcome,
    /// The first steps that test nothing. In a strict run they are failures.
    pub warnings: Vec<Warning>,
    /// The number of further such steps.
    pub more_warnings: usize,
    pub asks: u64,
    pub took: Duration,
}

#[derive(Debug)]
pub enum Outcome {
    Passed,
    Failed {
        failures: Vec<Failure>,
        /// The number of further failed steps.
        more: usize,
    },
    Skipped(String),
    /// It cannot be run, with its place and the reason.
    Broken(String),
}

/// A step that passes with any policies: it expects requests to pass, and they met no rule.
#[derive(Debug)]
pub struct Warning {
    pub position: Position,
    /// The request, and its time by the clock of the case.
    pub step: String,
    pub reason: String,
}

#[derive(Debug)]
pub struct Failure {
    pub position: Position,
    /// The request, and its time by the clock of the case.
    pub step: String,
    /// The limit that decided the request.
    pub decided_by: Option<Decider>,
    /// The differences, at least one.
    pub differences: Vec<Difference>,
    /// The number of further requests of the step with unexpected answers.
    pub more: u64,
}

/// The limit that denied a request, or the one with the fewest remaining hits.
#[derive(Debug, PartialEq, Eq)]
pub struct Decider {
    /// The path of its rule, and its amount, such as `user 3/hour` or `team 10.00 usd/month`.
    pub limit: String,
    /// The place of the rule. None for a limit of the request.
    pub place: Option<String>,
    pub remaining: u64,
    /// What remains for people: in the unit of the limit, if it has one.
    pub left: String,
    /// The factor of the hits, if the rule weighs them.
    pub factor: Option<Hits>,
    /// When the request fits again, or else when all of the limit is free again.
    pub reset: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub position: Position,
    /// Its name, such as `remaining` or `statuses[1].rule`.
    pub what: String,
    pub expected: String,
    pub got: String,
}

impl Runner {
    /// Runs cases in the memory store or in a Redis. With a filter, runs only cases whose name contains it.
    ///
    /// # Errors
    /// When no runtime can be started, or Redis does not answer.
    pub fn new(redis: Option<Endpoint>, filter: Option<String>, strictness: Strictness) -> std::io::Result<Self> {
        let runtime = Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build()?);
        if let Some(endpoint) = &redis {
            // Once, because otherwise each case would wait for Redis.
            RedisPart::connect(&runtime, endpoint, 0)
                .map_err(|error| std::io::Error::other(format!("redis at {endpoint} does not answer: {error}")))?;
        }
        Ok(Self { runtime, redis, filter, strictness, loads: Loads::default(), cases: 0, failed_in: None })
    }

    pub fn run(&mut self, file: &TestFile) -> FileReport {
        let began = Instant::now();
        let is_wanted = |case: &&Case| self.filter.as_ref().is_none_or(|filter| case.name.contains(&**filter));
        let wanted: Vec<&Case> = file.cases.iter().filter(is_wanted).collect();
        let filtered = file.cases.len() - wanted.len();
        let cases = wanted.into_iter().map(|case| self.case(file, case)).collect();
        FileReport { name: file.name.clone(), cases, filtered, took: began.elapsed() }
    }

    /// Which rules were met so far, of all policies that were loaded from files.
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
                    CaseEnd::Passed => Outcome::Passed,
                    CaseEnd::Failed { failures, more } => Outcome::Failed { failures, more },
                    CaseEnd::Broken(reason) => Outcome::Broken(reason),
                    CaseEnd::StoreFailed(error) => {
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

    /// Why a case cannot run in Redis: Redis expires keys by its own clock.
    fn skips(&self, case: &Case) -> Option<String> {
        let is_past = self.redis.is_some() && case.starts_at() <= SystemClock.now();
        is_past.then(|| "it begins in the past, for which Redis keeps no state".to_owned())
    }
}

/// The name of policies for messages: their path, or the file of tests that contains them.
fn name_of(policies: &Policies, file: &TestFile) -> String {
    match policies {
        Policies::At(path) => path.display().to_string(),
        Policies::Texts(_) => file.name.to_string(),
    }
}
