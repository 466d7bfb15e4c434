//! Traffic: requests in the order of their times, made by sources or read from a record or a log.
//!
//! A request is borrowed from its traffic until the next one is asked for, so that files of any size are read in bounded
//! memory. In traffic/: sources (generate.rs, arrivals.rs, random.rs), and what was recorded (recorded.rs, by lines.rs, record.rs,
//! access_log.rs). Not here: deciding.

mod access_log;
mod arrivals;
mod generate;
mod lines;
mod random;
mod record;
mod recorded;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use weir_engine::Micros;
use weir_limiter::Query;
use weir_policies::Problems;
use weir_policies::files::is_test;
use weir_policies::test_file::with_defaults;
use weir_policies::traffic_file::{self, Origin};
use weir_rls::convert::{self, Bounds, Invalid};
use weir_rls::proto::RateLimitRequest;
use weir_rls::request::Request as View;
use weir_settings::Settings;

use self::access_log::Log;
use self::generate::Generator;
pub use self::lines::LINE_BYTES_MAX;
use self::record::Tap;
use self::recorded::Recorded;
pub use self::recorded::{WAITING_BYTES_MAX, WAITING_MAX};

/// One request of traffic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// When it comes, in microseconds since 1970.
    pub time: Micros,
    /// How long it lasts if it is admitted, until it settles its holds, in microseconds; none where it never does.
    pub lasts: Option<Micros>,
    /// What it asks, as on the wire.
    pub message: RateLimitRequest,
    /// The path of the rule that each descriptor met, where the traffic is a record; none for one that met no rule.
    pub rules: Vec<Option<String>>,
    /// What it was answered, where that was recorded.
    pub verdict: Option<Verdict>,
    /// How many requests before it were lost by the recording.
    pub lost: u64,
}

/// A recorded answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request passed.
    Ok,
    /// It was over a limit.
    Over,
    /// It got an error.
    Error,
}

impl Request {
    fn of(message: RateLimitRequest) -> Self {
        Self { message, ..Self::default() }
    }

    /// A view of the message.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::of(&self.message)
    }
}

/// The request that is viewed, as a query.
///
/// # Errors
/// When a server would refuse it.
pub fn query<'q>(view: &'q View<'_>, bounds: &Bounds) -> Result<Query<'q>, Invalid> {
    convert::query(view, bounds)
}

/// Why there is no further request.
#[derive(Debug)]
pub enum TrafficError {
    /// The file of traffic has mistakes; one line for each.
    File(Problems),
    /// A line of a record or a log cannot be used.
    Line {
        /// The file.
        file: Arc<str>,
        /// The line, from 1.
        line: u64,
        /// The column in bytes, from 1.
        column: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A file cannot be read.
    Read {
        /// The file.
        file: Arc<str>,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for TrafficError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(problems) => write!(f, "{problems}"),
            Self::Line { file, line, column, message } => write!(f, "{file}:{line}:{column}: {message}"),
            Self::Read { file, reason } => write!(f, "{file}: {reason}"),
        }
    }
}

impl std::error::Error for TrafficError {}

/// Requests in the order of their times.
pub struct Traffic {
    name: Arc<str>,
    settings: Arc<Settings>,
    seed: Option<u64>,
    flow: Flow,
}

enum Flow {
    Made(Box<Generator>),
    Read(Box<Recorded>),
}

impl Traffic {
    /// Opens traffic: a `*.yaml` or `*.yml` is a file of traffic, any other file a record of `weir tap`.
    ///
    /// # Errors
    /// When a file cannot be read, or has mistakes at its beginning.
    pub fn open(path: &Path) -> Result<Self, TrafficError> {
        if !path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            let flow = Flow::Read(Box::new(Recorded::open(path, Box::new(Tap::default()))?));
            return Ok(Self { name: name_of(path), settings: Arc::new(default_settings()), seed: None, flow });
        }
        if is_test(path) {
            let reason = "by its name a file of tests, not of traffic: weir test runs it".to_owned();
            return Err(TrafficError::Read { file: name_of(path), reason });
        }
        let file = traffic_file::read(path).map_err(TrafficError::File)?;
        Self::of(file)
    }

    /// The traffic of a file that was read.
    ///
    /// # Errors
    /// When its log cannot be read, or has mistakes at its beginning.
    pub fn of(file: traffic_file::TrafficFile) -> Result<Self, TrafficError> {
        let (seed, flow) = match &file.origin {
            Origin::Sources(sources) => (Some(sources.seed), Flow::Made(Box::new(Generator::new(sources)))),
            Origin::AccessLog(log) => (None, Flow::Read(Box::new(Recorded::open(&log.path, Box::new(Log::new(log)))?))),
        };
        Ok(Self { name: file.name, settings: file.settings, seed, flow })
    }

    /// The name of its file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its decisions depend on beside the policies.
    #[must_use]
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// What its random numbers follow from, if it has any.
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// When its sources begin; none where that is not known before its first request.
    #[must_use]
    pub fn start(&self) -> Option<Micros> {
        match &self.flow {
            Flow::Made(generator) => Some(generator.start()),
            Flow::Read(_) => None,
        }
    }

    /// The next request; none behind the last one.
    ///
    /// # Errors
    /// When a file cannot be read on, a line cannot be used, or a request comes too late for the order of times.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend its items")]
    pub fn next(&mut self) -> Result<Option<&Request>, TrafficError> {
        match &mut self.flow {
            Flow::Made(generator) => Ok(generator.next()),
            Flow::Read(recorded) => recorded.next(),
        }
    }

    /// About how many requests there are, where that is known before.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        match &self.flow {
            Flow::Made(generator) => Some(generator.expected()),
            Flow::Read(_) => None,
        }
    }

    /// How many bytes of a file were read, and how many it has.
    #[must_use]
    pub fn bytes(&self) -> Option<(u64, u64)> {
        match &self.flow {
            Flow::Made(_) => None,
            Flow::Read(recorded) => recorded.bytes(),
        }
    }

    /// Whether its values are hidden, so that only exact values of policies match.
    #[must_use]
    pub fn hides_values(&self) -> bool {
        match &self.flow {
            Flow::Made(_) => false,
            Flow::Read(recorded) => recorded.hides_values(),
        }
    }

    /// What a reader of results must know of the traffic, a sentence each. Complete behind the last request.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        match &self.flow {
            Flow::Made(_) => Vec::new(),
            Flow::Read(recorded) => recorded.notes(),
        }
    }
}

fn name_of(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}

/// The settings of a server without settings.
fn default_settings() -> Settings {
    with_defaults(&[]).unwrap_or_else(|problems| unreachable!("the defaults are valid: {problems}"))
}
