//! Tests of policies, `*.test.yaml`: cases with requests, times and expected answers, read as strictly as policies.
//!
//! docs/testing.md is the reference of the format. This module computes all times, so a case beyond the clock's range,
//! or with too many requests, is refused before it runs. Not here: running the cases (lab).

mod case;
mod descriptors;
mod expect;
pub(super) mod keys;
pub(super) mod settings;
mod step;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use keys::KINDS;
pub use settings::{names as setting_names, with_defaults};
pub(crate) use step::ACTIONS;
pub use step::CALLER;
pub use values::Range;
use weir_engine::{Count, Micros, Window, metadata};
use weir_settings::Settings;

pub use super::single::FILE_BYTES_MAX;
use super::{GivenRows, Position, Problems, single};

pub const CASES_MAX: usize = 1_000;
pub const STEPS_MAX: usize = 1_000;
/// The most requests that all cases of one file send.
pub const ASKS_MAX: u64 = 1_000_000;
/// The most rows of a case or a step.
pub const ROWS_MAX: usize = 10_000;
pub const CALLERS_MAX: u32 = 100_000;
/// The default start of a case: Monday, 2040-01-02T00:00:00Z. Redis expires keys by its own clock, so a start in the future
/// works in both stores.
pub const START_US: Micros = 2_209_075_200 * 1_000_000;

#[derive(Debug)]
pub struct TestFile {
    pub name: Arc<str>,
    /// Its cases, at least one.
    pub cases: Vec<Case>,
}

/// One case: steps that start with an empty store.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub position: Position,
    pub policies: Policies,
    pub settings: Arc<Settings>,
    /// The rows at its start; none if it has no rows.
    pub rows: Option<Arc<GivenRows>>,
    /// The steps, with at least one request.
    pub steps: Vec<Step>,
    pub asks: u64,
}

impl Case {
    pub fn starts_at(&self) -> Micros {
        self.steps.first().map_or(START_US, |step| step.now)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Policies {
    At(PathBuf),
    /// Texts in the test itself, with their file names.
    Texts(Vec<(String, String)>),
}

#[derive(Debug)]
pub struct Step {
    pub position: Position,
    /// The clock at the beginning of the step.
    pub now: Micros,
    pub action: Action,
}

#[derive(Debug)]
pub enum Action {
    Ask(Box<Ask>),
    /// Advances the clock to the time of the next step.
    Wait,
    /// Sets these rows. Other rows stay.
    Rows(Arc<GivenRows>),
    Swap {
        policies: Policies,
        state: StateOnSwap,
        /// Whether the policies must be refused, so the previous ones stay in force.
        refused: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateOnSwap {
    /// The store keeps them, as on a reload.
    Kept,
    /// The store is empty, as after a restart with the memory store.
    Forgotten,
}

/// A request, and how many times it is sent.
#[derive(Debug)]
pub struct Ask {
    pub domain: String,
    pub descriptors: Vec<Descriptor>,
    /// The hits of descriptors without their own hits. None if the request sends none.
    pub hits: Option<u32>,
    /// How many callers send it, one after the other. `<n>` in keys and values is the number of the caller, from 1.
    pub callers: u32,
    /// How many times each caller sends it, one right after the other.
    pub times: u32,
    /// How many rounds there are. In each round, all callers send.
    pub rounds: u64,
    /// The time from the start of one round to the start of the next, in microseconds.
    pub every: Micros,
    /// After how many microseconds an admitted request settles its holds. None: never.
    pub lasts: Option<Micros>,
    /// The hits that it has used when it settles. None: the request's own hits.
    pub used: Option<u32>,
    /// The name of its receipt.
    pub receipt: Option<String>,
    /// The name of the receipt that it settles, or `none` for a caller without a receipt.
    pub settle: Option<String>,
    pub expect: Expect,
}

impl Ask {
    pub fn requests(&self) -> u64 {
        self.rounds.saturating_mul(u64::from(self.callers)).saturating_mul(u64::from(self.times))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// The descriptor's hits. None: those of the request. 0 peeks.
    pub hits: Option<u32>,
    /// Whether its hits are given back.
    pub refund: bool,
    /// The limit that the request sends with it.
    pub limit: Option<(u32, Window)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned<T> {
    pub position: Position,
    pub value: T,
}

/// The name of a header and its value. None: the header must be absent.
pub type ExpectedHeader = (String, Positioned<Option<String>>);

/// The expectations of a step, for each answer and for all answers in total. None accepts anything.
#[derive(Debug, Default)]
pub struct Expect {
    pub answer: Option<Positioned<Verdict>>,
    /// The error that the request gets in place of an answer.
    pub error: Option<Positioned<String>>,
    pub passed: Option<Positioned<Range>>,
    pub denied: Option<Positioned<Range>>,
    /// When a denied request would pass, in microseconds. The inner None: no wait helps, or the request passes.
    pub retry_after: Option<Positioned<Option<Range>>>,
    /// The wait until the turn of an admitted request, in microseconds.
    pub delay: Option<Positioned<Range>>,
    /// Headers for the caller's client, by name. None: the header must be absent.
    pub headers: Vec<ExpectedHeader>,
    /// Headers for the request, by name. None: the header must be absent.
    pub request_headers: Vec<ExpectedHeader>,
    /// Whether the limits on trial would have admitted the request. The inner None: the request meets no such limit.
    /// [tr-1]
    pub trial: Option<Positioned<Option<Verdict>>>,
    pub metadata: Option<Positioned<Arc<metadata::Fields>>>,
    /// One status for each descriptor, in order; or empty.
    pub statuses: Vec<ExpectedStatus>,
}

impl Expect {
    /// Whether a request that meets no rule would pass this expectation by mistake. A misspelled key or domain has this
    /// effect.
    pub fn holds_without_rule(&self) -> bool {
        let is_ok =
            |answer: &Option<Positioned<Verdict>>| answer.as_ref().is_some_and(|answer| answer.value == Verdict::Ok);
        let passes = is_ok(&self.answer)
            || self.passed.is_some()
            || self.denied.is_some()
            || self.statuses.iter().any(|status| is_ok(&status.answer));
        let means_none = !self.statuses.is_empty() && self.statuses.iter().all(ExpectedStatus::is_of_no_rule);
        passes && self.error.is_none() && !means_none
    }
}

/// The limit of a status: its hits and its window. Without a window: requests in flight.
pub type ExpectedLimit = (Count, Option<Window>);

#[derive(Debug, Default)]
pub struct ExpectedStatus {
    /// Whether the descriptor is over its limit.
    pub answer: Option<Positioned<Verdict>>,
    /// The path of the rule, as in `weir check` and metrics. The inner None: the descriptor meets no rule.
    pub rule: Option<Positioned<Option<String>>>,
    pub limit: Option<Positioned<Option<ExpectedLimit>>>,
    pub name: Option<Positioned<Option<String>>>,
    pub algorithm: Option<Positioned<String>>,
    pub remaining: Option<Positioned<Range>>,
    /// The time until it is reset, in microseconds.
    pub reset: Option<Positioned<Option<Range>>>,
}

impl ExpectedStatus {
    fn is_of_no_rule(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.value.is_none())
            || self.limit.as_ref().is_some_and(|limit| limit.value.is_none())
    }
}

/// Whether a request, or a descriptor of it, may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    Over,
}

impl Verdict {
    pub const NAMES: [&'static str; 2] = ["ok", "over"];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => Self::NAMES[0],
            Self::Over => Self::NAMES[1],
        }
    }

    fn named(name: &str) -> Self {
        if name == Self::NAMES[0] { Self::Ok } else { Self::Over }
    }
}

/// Reads a file of tests.
///
/// # Errors
/// Every problem of the file, each with its place.
pub fn read(path: &Path) -> Result<TestFile, Problems> {
    let (name, text) = single::read(path, single::FILE_BYTES_MAX)?;
    parse(&name, &text, path.parent().unwrap_or(Path::new("")))
}

/// Reads the text of a file of tests. Paths are relative to `directory`.
///
/// ```
/// use std::path::Path;
/// use weir_policies::test_file::parse;
///
/// let text = "cases:\n- name: a\n  domain: shop\n  steps: [{ask: user=ann, expct: ok}]";
/// assert_eq!(
///     parse(&"shop.test.yaml".into(), text, Path::new("")).unwrap_err().to_string(),
///     "shop.test.yaml:4:27: unknown key \"expct\" in a step, did you mean \"expect\"?"
/// );
/// ```
///
/// # Errors
/// Every problem of the text, each with its place.
pub fn parse(name: &Arc<str>, text: &str, directory: &Path) -> Result<TestFile, Problems> {
    let cases = single::parse(name, text, crate::Limits::default(), &KINDS, |reader| Ok(reader.cases(directory)))?;
    Ok(TestFile { name: name.clone(), cases })
}
