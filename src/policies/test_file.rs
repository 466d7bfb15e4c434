//! Tests of policies, `*.test.yaml`: cases of requests, times and expected answers, read as strictly as policies.
//!
//! docs/testing.md is the reference of the format. All times are computed here, so a case past the clock's range, or with too
//! many requests, is refused before it runs. Not here: running the cases (lab).

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
pub use settings::{NAMES as SETTING_NAMES, with_defaults};
pub use step::CALLER;
pub use values::Range;
use weir_engine::{Micros, Unit, Window, metadata};
use weir_settings::Settings;

pub use super::single::FILE_BYTES_MAX;
use super::{GivenRows, Position, Problems, single};

/// The most cases in one file.
pub const CASES_MAX: usize = 1_000;
/// The most steps of one case.
pub const STEPS_MAX: usize = 1_000;
/// The most requests that all cases of one file send.
pub const ASKS_MAX: u64 = 1_000_000;
/// The most rows of a case or a step.
pub const ROWS_MAX: usize = 10_000;
/// The most callers of one step.
pub const CALLERS_MAX: u32 = 100_000;
/// The default start of a case: Monday, 2040-01-02T00:00:00Z. Redis expires keys by its own clock, so a start in the future
/// works in both stores.
pub const START_US: Micros = 2_209_075_200 * 1_000_000;

/// One file of tests.
#[derive(Debug)]
pub struct TestFile {
    /// Its name in messages.
    pub name: Arc<str>,
    /// Its cases, at least one.
    pub cases: Vec<Case>,
}

/// One case: steps that begin with an empty store.
#[derive(Debug)]
pub struct Case {
    /// Its name, which no other case of the file has.
    pub name: String,
    /// Where it stands.
    pub position: Position,
    /// The policies at its start.
    pub policies: Policies,
    /// The settings that its decisions depend on.
    pub settings: Arc<Settings>,
    /// The rows at its start; none if it has no rows.
    pub rows: Option<Arc<GivenRows>>,
    /// The steps, with at least one request.
    pub steps: Vec<Step>,
    /// How many requests it sends.
    pub asks: u64,
}

impl Case {
    /// When it begins.
    #[must_use]
    pub fn starts_at(&self) -> Micros {
        self.steps.first().map_or(START_US, |step| step.now)
    }
}

/// Where policies are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Policies {
    /// In a directory or a file.
    At(PathBuf),
    /// In the test itself: names of files, and their texts.
    Texts(Vec<(String, String)>),
}

/// One step of a case.
#[derive(Debug)]
pub struct Step {
    /// Where it stands.
    pub position: Position,
    /// The clock when it begins.
    pub now: Micros,
    /// What happens.
    pub action: Action,
}

/// What happens in a step.
#[derive(Debug)]
pub enum Action {
    /// Requests.
    Ask(Box<Ask>),
    /// Advances the clock to the time of the next step.
    Wait,
    /// These rows are set. Other rows stay.
    Rows(Arc<GivenRows>),
    /// Other policies are put in force.
    Swap {
        /// The new policies.
        policies: Policies,
        /// What happens to the states.
        state: StateOnSwap,
        /// Whether the policies must be refused, and the previous ones stay in force.
        refused: bool,
    },
}

/// What happens to states when policies are swapped.
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
    /// The domain; it can be empty.
    pub domain: String,
    /// The descriptors.
    pub descriptors: Vec<Descriptor>,
    /// The hits of descriptors without their own; none if the request has no hits.
    pub hits: Option<u32>,
    /// How many callers send it, one after the other. `<n>` in keys and values is the number of the caller, from 1.
    pub callers: u32,
    /// How many times each caller sends it, one right after the other.
    pub times: u32,
    /// How many times all callers do that.
    pub rounds: u64,
    /// The time from the start of one round to the start of the next, in microseconds.
    pub every: Micros,
    /// When an admitted request settles its holds, after so many microseconds; none where it never does.
    pub lasts: Option<Micros>,
    /// The hits that it has used by then; none where these are its own hits.
    pub used: Option<u32>,
    /// What the answers must be.
    pub expect: Expect,
}

impl Ask {
    /// The number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.rounds.saturating_mul(u64::from(self.callers)).saturating_mul(u64::from(self.times))
    }
}

/// One descriptor of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// Its hits; none for those of the request. 0 looks.
    pub hits: Option<u32>,
    /// Its hits are given back.
    pub refund: bool,
    /// The limit that it brings along.
    pub limit: Option<(u32, Unit)>,
}

/// A value with the place where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned<T> {
    /// The place.
    pub position: Position,
    /// The value.
    pub value: T,
}

/// The name of a header and its value; none for one that must not be there.
pub type ExpectedHeader = (String, Positioned<Option<String>>);

/// The expectations of a step: of each answer, and of all together. None accepts anything.
#[derive(Debug, Default)]
pub struct Expect {
    /// Whether the request passes.
    pub answer: Option<Positioned<Verdict>>,
    /// The error that the request gets in place of an answer.
    pub error: Option<Positioned<String>>,
    /// How many requests of the step pass.
    pub passed: Option<Positioned<Range>>,
    /// How many requests of the step are denied.
    pub denied: Option<Positioned<Range>>,
    /// When a denied request would pass, in microseconds; `none` if no wait helps, or if the request passes.
    pub retry_after: Option<Positioned<Option<Range>>>,
    /// The wait until the turn of an admitted request, in microseconds.
    pub delay: Option<Positioned<Range>>,
    /// Headers for the caller's client by name; none for one that must not be there.
    pub headers: Vec<ExpectedHeader>,
    /// Headers for the request by name; none for one that must not be there.
    pub request_headers: Vec<ExpectedHeader>,
    /// Whether the limits on trial would have admitted the request; none if it meets no such limit. [tr-1]
    pub trial: Option<Positioned<Option<Verdict>>>,
    /// The dynamic metadata of the response.
    pub metadata: Option<Positioned<Arc<metadata::Fields>>>,
    /// One for each descriptor, in order, or empty.
    pub statuses: Vec<ExpectedStatus>,
}

impl Expect {
    /// Whether a request that meets no rule would satisfy it by mistake: a request with a misspelled key or domain passes.
    #[must_use]
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

/// The expectations of one descriptor's status.
#[derive(Debug, Default)]
pub struct ExpectedStatus {
    /// Whether the descriptor is over its limit.
    pub answer: Option<Positioned<Verdict>>,
    /// The path of the rule, as in `weir check` and metrics; none for a descriptor that meets no rule.
    pub rule: Option<Positioned<Option<String>>>,
    /// The limit of the status: its hits and window.
    pub limit: Option<Positioned<Option<(u32, Window)>>>,
    /// The name of that limit.
    pub name: Option<Positioned<Option<String>>>,
    /// Its algorithm.
    pub algorithm: Option<Positioned<String>>,
    /// The remaining hits.
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
    /// It may.
    Ok,
    /// It is over a limit.
    Over,
}

impl Verdict {
    /// Their names in tests.
    pub const NAMES: [&'static str; 2] = ["ok", "over"];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => Self::NAMES[0],
            Self::Over => Self::NAMES[1],
        }
    }

    /// The one of that name.
    fn named(name: &str) -> Self {
        if name == Self::NAMES[0] { Self::Ok } else { Self::Over }
    }
}

/// Reads a file of tests.
///
/// # Errors
/// Every problem of the file, each with its place.
pub fn read(path: &Path) -> Result<TestFile, Problems> {
    let (name, text) = single::read(path)?;
    parse(&name, &text, path.parent().unwrap_or(Path::new("")))
}

/// Reads the text of a file of tests. Paths of policies are below `directory`.
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
    let cases = single::parse(name, text, &KINDS, |reader| Ok(reader.cases(directory)))?;
    Ok(TestFile { name: name.clone(), cases })
}
