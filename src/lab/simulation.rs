//! Simulations: the same traffic through one or several policy sets, with a virtual clock.
//!
//! Requests are decided as on a server with the memory store, from the message to the answer. In simulation/: requests and their
//! times (traffic.rs), counts (counts.rs), and reports (report.rs). Not here: the limiter and its clock (world.rs), arguments,
//! files of results and exit codes (cli).

mod counts;
mod hidden;
mod keys;
pub mod report;
mod spread;
mod timeline;
pub mod traffic;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use weir_engine::words::counted;
use weir_engine::{Micros, PolicySet};
use weir_limiter::{Answer, Query, Undecided};
use weir_policies::{GivenRows, Loaded, Location, Problems, load_dir_by};
use weir_rls::configured;
use weir_settings::Settings;

use self::counts::{Counted, Counts};
use self::hidden::Hidden;
pub use self::keys::KEYS_MAX;
use self::report::{PolicyReport, TrafficReport};
pub use self::timeline::SLOTS_MAX;
use self::traffic::{Request, Traffic, TrafficError};
use crate::world::World;

/// The default for the most requests of one simulation.
pub const REQUESTS_MAX: u64 = 100_000_000;
/// The number of requests between two checks for a stop.
const STEP: u64 = 1_024;

#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    #[error("{0}")]
    Traffic(#[from] TrafficError),
    /// The traffic has more requests than a simulation may have.
    #[error("the traffic has {}: at most {max}, see --max-requests", about(*.known))]
    TooMany {
        /// The number of requests, if it is known.
        known: Option<u64>,
        max: u64,
    },
    #[error("stopped")]
    Stopped,
}

fn about(known: Option<u64>) -> String {
    known.map_or_else(|| "more requests".to_owned(), |known| format!("about {}", counted(known, "request")))
}

/// The progress of a simulation, for another thread, which can stop it.
#[derive(Debug, Default)]
pub struct Progress {
    requests: AtomicU64,
    /// The completed part and the whole, in requests or bytes of a file.
    done: AtomicU64,
    of: AtomicU64,
    is_stopped: AtomicBool,
}

impl Progress {
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// The completed part in thousandths. None if it is unknown.
    pub fn per_mille(&self) -> Option<u64> {
        let (done, of) = (self.done.load(Relaxed), self.of.load(Relaxed));
        done.saturating_mul(1_000).checked_div(of).map(|per_mille| per_mille.min(1_000))
    }

    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }

    fn note(&self, requests: u64, traffic: &Traffic) -> Result<(), SimulationError> {
        let (done, of) = traffic.bytes().unwrap_or((requests, traffic.expected().unwrap_or(0)));
        self.requests.store(requests, Relaxed);
        self.done.store(done, Relaxed);
        self.of.store(of, Relaxed);
        if self.is_stopped.load(Relaxed) { Err(SimulationError::Stopped) } else { Ok(()) }
    }
}

pub struct Simulated {
    name: String,
    policies: Arc<PolicySet>,
    files: Vec<PathBuf>,
    places: Vec<Location>,
    counts: Counts,
    world: World,
}

impl Simulated {
    /// Loads the policies of a directory or a file, with the settings of the traffic.
    ///
    /// # Errors
    /// Every problem of the policies.
    pub fn load(path: &Path, settings: &Arc<Settings>) -> Result<Self, Problems> {
        let loaded = load_dir_by(path, &settings.policies)?;
        Ok(Self::new(path.display().to_string(), loaded, settings))
    }

    /// Loaded policies, and an empty store.
    pub fn new(name: String, loaded: Loaded, settings: &Arc<Settings>) -> Self {
        let policies = Arc::new(loaded.policies);
        let counts = Counts::new(&policies);
        let world = World::new(policies.clone(), settings, Arc::new(counts.clone()));
        Self { name, policies, files: loaded.paths, places: loaded.places, counts, world }
    }

    /// Replaces its rows. Returns a warning if some do not fit its policies: then the default plan applies to their customers.
    #[must_use]
    pub fn set_rows(&self, rows: &GivenRows) -> Option<String> {
        let (left_out, first) = self.world.replace_rows(rows)?;
        let rows = counted(left_out, "row");
        Some(format!("{}: {rows} without effect, so the default plan applies, such as {first}", self.name))
    }

    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Decides and counts a request. Its time must not be before that of the last request.
    ///
    /// # Errors
    /// When a server would return an error too, for example because the limits of the request are too heavy.
    pub fn decide(&self, request: &Request, query: &Query<'_>) -> Result<Answer, Undecided> {
        self.begin(request.time);
        let answer = decide_lasting(&self.world, request, query);
        self.counts.answered(answer.as_ref().ok());
        answer
    }

    fn begin(&self, time: Micros) {
        go_on(&self.world, time, |is_settle| self.counts.settling(is_settle));
        self.counts.begin(time);
    }

    /// [`decide`](Self::decide) without returning the answer, which is large. Errors are counted.
    fn count(&self, request: &Request, query: &Query<'_>) {
        if request.lasts.is_some() {
            drop(self.decide(request, query));
            return;
        }
        self.begin(request.time);
        self.counts.answered(self.world.decide_now(query).as_ref().ok());
    }

    /// The results, with the `keys` keys that were denied most.
    pub fn report(&self, keys: usize) -> PolicyReport {
        let counted: Counted = self.counts.counted(keys);
        PolicyReport::new(&self.name, &self.policies, &self.places, &counted)
    }
}

/// Moves the clock of a world with the memory store.
pub(crate) fn go_on(world: &World, now: Micros, settling: impl Fn(bool)) {
    // Ignores a settle without an answer: later requests see the state.
    while world.go_on(now, &settling).is_err() {}
}

/// Decides one request with the memory store. The request settles when it ends.
pub(crate) fn decide_lasting(world: &World, request: &Request, query: &Query<'_>) -> Result<Answer, Undecided> {
    let answer = world.decide_now(query);
    if let (Some(lasts), Ok(answer)) = (request.lasts, &answer) {
        world.begin(request.time.saturating_add(lasts), &request.message, request.used, answer.holds.clone());
    }
    answer
}

/// Sends traffic through policies. Each set of policies gets the same requests: none of them gets a request whose rules in one
/// of them depend on hidden values.
///
/// # Errors
/// When the traffic cannot be read, has more than `requests_max` requests, or the simulation is stopped.
pub fn simulate(
    traffic: &mut Traffic,
    simulated: &[Simulated],
    requests_max: u64,
    progress: &Progress,
) -> Result<TrafficReport, SimulationError> {
    let bounds = configured::bounds(&traffic.settings().limits);
    if let Some(known) = traffic.expected().filter(|known| *known > requests_max) {
        return Err(SimulationError::TooMany { known: Some(known), max: requests_max });
    }
    let mut report = TrafficReport::new(traffic);
    for one in simulated {
        one.counts.start(traffic.start());
    }
    let mut hidden: Vec<Hidden<'_>> = simulated.iter().map(|one| Hidden::new(&one.policies)).collect();
    let mut last = None;
    while let Some(request) = traffic.next()? {
        report.add(request);
        last = Some(request.time);
        match &traffic::query(&request.view(), &bounds) {
            Ok(query) => {
                let of_one = |one: &mut Hidden<'_>| one.may_meet(query).map(|rules| (query.domain, rules));
                match hidden.iter_mut().filter(|_| request.hides_values).find_map(of_one) {
                    Some((domain, rules)) => report.could_not_tell_of(domain, &rules),
                    None => simulated.iter().for_each(|one| one.count(request, query)),
                }
            }
            Err(invalid) => report.refuse(invalid),
        }
        if report.requests > requests_max {
            return Err(SimulationError::TooMany { known: None, max: requests_max });
        }
        if report.requests.is_multiple_of(STEP) {
            progress.note(report.requests, traffic)?;
        }
    }
    report.end_at(last);
    report.note_could_not_tell();
    report.notes.extend(traffic.notes());
    Ok(report)
}
