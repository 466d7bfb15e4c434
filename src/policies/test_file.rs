//! Tests of policies, `*.test.yaml`: cases of requests, times and expected answers, read as strictly as policies.
//!
//! docs/testing.md is the reference of the format. All times are computed here, so that a case that would leave the clock's
//! range, or ask more than a file may, is refused before it runs. Not here: running the cases (testing).

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
use super::{Position, Problems, single};

/// The most cases in one file.
pub const CASES_MAX: usize = 1_000;
/// The most steps of one case.
pub const STEPS_MAX: usize = 1_000;
/// The most requests that all cases of one file send.
pub const ASKS_MAX: u64 = 1_000_000;
/// The most callers of one step.
pub const CALLERS_MAX: u32 = 100_000;
/// When a case begins unless it says: Monday, 2040-01-02T00:00:00Z. Redis keeps states until they end by its own clock, so
/// a time that is still to come works in both stores.
pub const START_US: Micros = 2_209_075_200 * 1_000_000;

/// One file of tests.
#[derive(Debug)]
pub struct TestFile {
    /// Its name in messages.
    pub name: Arc<str>,
    /// Its cases, at least one.
    pub cases: Vec<Case>,
}

/// One case: what happens, step by step, from an empty store on.
#[derive(Debug)]
pub struct Case {
    /// Its name, which no other case of the file has.
    pub name: String,
    /// Where it stands.
    pub position: Position,
    /// The policies at its start.
    pub policies: Policies,
    /// What its decisions depend on beside the policies.
    pub settings: Arc<Settings>,
    /// What happens, at least one request.
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
    /// The clock goes on, to the time of the next step.
    Wait,
    /// Other policies are put in force.
    Swap {
        /// Which.
        policies: Policies,
        /// What happens to the states.
        state: StateOnSwap,
        /// Whether the policies are expected to be refused, so that those before stay in force.
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

/// A request, and how often it is sent.
#[derive(Debug)]
pub struct Ask {
    /// The domain; empty where the test writes it so.
    pub domain: String,
    /// The descriptors.
    pub descriptors: Vec<Descriptor>,
    /// What each descriptor costs that does not say; none where the request does not.
    pub hits: Option<u32>,
    /// How many callers send it, one after the other. `<n>` in keys and values is the number of the caller, from 1.
    pub callers: u32,
    /// How often each caller sends it, one right after the other.
    pub times: u32,
    /// How often all of that happens.
    pub rounds: u64,
    /// How much later each round begins than the one before, in microseconds.
    pub every: Micros,
    /// When an admitted request settles its holds, after so many microseconds; none where it never does.
    pub lasts: Option<Micros>,
    /// What the answers must be.
    pub expect: Expect,
}

impl Ask {
    /// How many requests it is.
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
    /// What it costs; none for what the request says. 0 looks.
    pub hits: Option<u32>,
    /// Its hits are given back.
    pub refund: bool,
    /// The limit that it brings along.
    pub limit: Option<(u32, Unit)>,
}

/// A value with the place where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<T> {
    /// Where.
    pub position: Position,
    /// What.
    pub value: T,
}

/// The name of a header and its value; none for one that must not be there.
pub type ExpectedHeader = (String, Written<Option<String>>);

/// What is expected of each answer of a step, and of all together. What is none may be anything.
#[derive(Debug, Default)]
pub struct Expect {
    /// Whether the request passes.
    pub answer: Option<Written<Verdict>>,
    /// The error that the request gets in place of an answer.
    pub error: Option<Written<String>>,
    /// How many requests of the step pass.
    pub passed: Option<Written<Range>>,
    /// How many requests of the step are denied.
    pub denied: Option<Written<Range>>,
    /// When a denied request would pass, in microseconds; `none` where no wait helps, and for one that passes.
    pub retry_after: Option<Written<Option<Range>>>,
    /// How long the request has to be held until its turn, in microseconds.
    pub delay: Option<Written<Range>>,
    /// Headers for the caller's client by name; none for one that must not be there.
    pub headers: Vec<ExpectedHeader>,
    /// Headers for the request by name; none for one that must not be there.
    pub request_headers: Vec<ExpectedHeader>,
    /// Whether the limits on trial would have let the request pass; none where it meets no such limit. [tr-1]
    pub trial: Option<Written<Option<Verdict>>>,
    /// The dynamic metadata of the response.
    pub metadata: Option<Written<Arc<metadata::Fields>>>,
    /// One for each descriptor, in order, or none at all.
    pub statuses: Vec<ExpectedStatus>,
}

impl Expect {
    /// Whether it expects requests to pass, and not that they meet no rule: requests with a misspelled key or domain pass too.
    #[must_use]
    pub fn holds_without_rule(&self) -> bool {
        let is_ok =
            |answer: &Option<Written<Verdict>>| answer.as_ref().is_some_and(|answer| answer.value == Verdict::Ok);
        let passes = is_ok(&self.answer)
            || self.passed.is_some()
            || self.denied.is_some()
            || self.statuses.iter().any(|status| is_ok(&status.answer));
        let means_none = !self.statuses.is_empty() && self.statuses.iter().all(ExpectedStatus::is_of_no_rule);
        passes && self.error.is_none() && !means_none
    }
}

/// What is expected of the status of one descriptor.
#[derive(Debug, Default)]
pub struct ExpectedStatus {
    /// Whether the descriptor is over its limit.
    pub answer: Option<Written<Verdict>>,
    /// The path of the rule, as in `weir check` and metrics; none for a descriptor that meets no rule.
    pub rule: Option<Written<Option<String>>>,
    /// The limit that the status speaks of: hits, and per how long.
    pub limit: Option<Written<Option<(u32, Window)>>>,
    /// The name of that limit.
    pub name: Option<Written<Option<String>>>,
    /// Its algorithm.
    pub algorithm: Option<Written<String>>,
    /// How many hits it would admit now.
    pub remaining: Option<Written<Range>>,
    /// The time until it is reset, in microseconds.
    pub reset: Option<Written<Option<Range>>>,
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

/// Reads tests that are at hand. Paths of policies are below `directory`.
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
