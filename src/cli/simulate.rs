//! `weir simulate`: sends traffic through sets of policies on a virtual clock, and reports the results.
//!
//! The simulation runs on its own thread. Writes that a reader can stall have another. This thread shows the progress
//! and handles Ctrl-C. Not here: requests and decisions (simulation).

mod compared;
mod files;
mod html;
mod text;
mod words;

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::terminal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::interval;
use weir_engine::words::counted;
use weir_lab::simulation::report::Report;
use weir_lab::simulation::traffic::Traffic;
use weir_lab::simulation::{Progress, REQUESTS_MAX, Simulated, SimulationError, simulate};
use weir_text::number;

use self::files::{Inputs, Results};
use super::bar::Bar;

pub const POLICIES_MAX: usize = 32;
/// The most keys that are reported for each set of policies.
const REPORTED_KEYS_MAX: u32 = 1_000;
/// The width of plots without a terminal, in characters.
const WIDTH: u16 = 100;
/// The smallest and the largest width of plots, in characters.
const WIDTHS: std::ops::RangeInclusive<u16> = 60..=240;
/// The time between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(100);

/// The arguments of `weir simulate`.
#[derive(clap::Args, Debug)]
pub struct SimulateArguments {
    /// What is sent: a file of traffic (*.yaml), or a record of weir tap
    #[arg(long, value_name = "FILE")]
    pub traffic: PathBuf,
    /// Directories of policy files, or single files; each gets the same traffic
    #[arg(value_name = "POLICIES", required = true, num_args = 1..=POLICIES_MAX)]
    pub policies: Vec<PathBuf>,
    /// Write all results to a file, as one JSON document
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results to a file as one page, with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How many keys are reported for each of the policies
    #[arg(long, value_name = "N", default_value = "10", value_parser = number::<u32>(0, REPORTED_KEYS_MAX.into()))]
    pub keys: u32,
    /// End with an error if the traffic has more requests
    #[arg(long, value_name = "N", default_value_t = REQUESTS_MAX, value_parser = number::<u64>(0, u64::MAX))]
    pub max_requests: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The results are those of all requests.
    Whole,
    /// Some requests were not decided, because their rules depend on hidden values.
    Part,
}

#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// Traffic or policies are wrong; one line for each problem.
    #[error("{0}")]
    Input(String),
    #[error("{0}")]
    Output(String),
    /// The user stopped the simulation. Contains which results exist.
    #[error("interrupted: {0}")]
    Interrupted(&'static str),
}

/// The user stopped the simulation before there were results.
const NOTHING: SimulateError = SimulateError::Interrupted("no files are written");

/// Simulates, writes files of results, and then a report for people to `out`. If a file of results is standard output, it is
/// written to `out`, and the report to `notes`.
///
/// # Errors
/// When traffic or policies are wrong, when results cannot be written, or when the user stops it. Then a
/// thread may still write to `out` while it waits for the reader.
pub fn run(
    arguments: &SimulateArguments,
    mut out: impl Write + Send + 'static,
    mut notes: impl Write + Send + 'static,
) -> Result<Outcome, SimulateError> {
    let (traffic, simulated) = open(arguments)?;
    let SimulateArguments { json, html, .. } = arguments;
    let options = [("--json", json.as_deref()), ("--html", html.as_deref())];
    let policies = simulated.iter().flat_map(Simulated::files).map(PathBuf::as_path);
    let inputs = Inputs::of(policies.chain([arguments.traffic.as_path()]));
    let [json, html] = files::targets(options, &inputs)?;
    for warning in traffic.rows().into_iter().flat_map(|rows| simulated.iter().filter_map(|one| one.set_rows(rows))) {
        // A failure to write warnings does not matter.
        let _ = writeln!(notes, "weir: {warning}");
    }
    let mut interrupts = Interrupts::listen().map_err(|error| cannot_start(&error))?;
    let report = watched(traffic, simulated, arguments.max_requests, arguments.keys as usize, &mut interrupts)?;
    let outcome = if report.traffic.could_not_tell > 0 { Outcome::Part } else { Outcome::Whole };
    let mut results = Results::default();
    results.add(json, || {
        let json = serde_json::to_string_pretty(&report);
        json.map(|json| json + "\n").map_err(|error| SimulateError::Output(error.to_string()))
    })?;
    results.add(html, || Ok(html::page(&report)))?;
    let (streams, document) = (results.take_streams(), results.take_stdout());
    results.write_beside()?;
    match interrupts.or(move || streams.write(), || {}).map_err(|error| cannot_start(&error))? {
        Some(Ok(())) => results.put_in_place()?,
        failed => {
            results.clear();
            return Err(failed.and_then(Result::err).unwrap_or(NOTHING));
        }
    }
    let is_terminal = if document.is_some() { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    let text = shown(&report, is_terminal);
    let write = move || match document {
        None => out.write_all(text.as_bytes()).and_then(|()| out.flush()),
        Some(document) => {
            let written = out.write_all(document.as_bytes()).and_then(|()| out.flush());
            let _ = notes.write_all(text.as_bytes());
            written
        }
    };
    let written = interrupts.or(write, || {}).map_err(|error| cannot_start(&error))?;
    let part =
        if results.is_empty() { "the output is incomplete" } else { "files are written, the output is incomplete" };
    match written.ok_or(SimulateError::Interrupted(part))? {
        // A reader that stops early does not change the outcome.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(SimulateError::Output(format!("cannot write: {error}")))
        }
        _ => Ok(outcome),
    }
}

fn cannot_start(error: &io::Error) -> SimulateError {
    SimulateError::Output(format!("cannot start: {error}"))
}

fn shown(report: &Report, is_terminal: bool) -> String {
    let width = terminal::size().ok().filter(|_| is_terminal).map_or(WIDTH, |(width, _)| width);
    let is_coloured = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let colours = if is_coloured { text::Colours::Ansi } else { text::Colours::No };
    text::report(report, usize::from(width.clamp(*WIDTHS.start(), *WIDTHS.end())), colours)
}

/// Opens traffic, and loads all policies; reports the problems of all.
fn open(arguments: &SimulateArguments) -> Result<(Traffic, Vec<Simulated>), SimulateError> {
    let traffic = Traffic::open(&arguments.traffic).map_err(|error| SimulateError::Input(error.to_string()))?;
    let mut simulated = Vec::with_capacity(arguments.policies.len());
    let mut problems = Vec::new();
    for path in &arguments.policies {
        match Simulated::load(path, traffic.settings()) {
            Ok(one) => simulated.push(one),
            Err(of_policies) => problems.push(of_policies.to_string()),
        }
    }
    if problems.is_empty() { Ok((traffic, simulated)) } else { Err(SimulateError::Input(problems.join("\n"))) }
}

/// Simulates on another thread, and shows its progress.
fn watched(
    mut traffic: Traffic,
    simulated: Vec<Simulated>,
    requests_max: u64,
    keys: usize,
    interrupts: &mut Interrupts,
) -> Result<Report, SimulateError> {
    let progress = Arc::new(Progress::default());
    let shared = progress.clone();
    let simulation = move || {
        let result = simulate(&mut traffic, &simulated, requests_max, &shared);
        result.map(|traffic| Report::new(traffic, simulated.iter().map(|one| one.report(keys)).collect()))
    };
    let mut bar = Bar::new();
    let draw = || bar.draw(progress.per_mille(), &counted(words::grouped(progress.requests()), "request"));
    let result = interrupts.or(simulation, draw);
    bar.clear();
    progress.stop();
    result.map_err(|error| cannot_start(&error))?.ok_or(NOTHING)?.map_err(|error| match error {
        SimulationError::Stopped => NOTHING,
        error => SimulateError::Input(error.to_string()),
    })
}

/// Receives Ctrl-C, which would end the process otherwise.
struct Interrupts {
    runtime: Runtime,
    interrupts: Signal,
}

impl Interrupts {
    fn listen() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let interrupts = {
            let _within = runtime.enter();
            signal(SignalKind::interrupt())?
        };
        Ok(Self { runtime, interrupts })
    }

    /// Runs `work` on another thread and returns its result. Returns none after Ctrl-C; the thread then continues alone. Calls
    /// `tick` meanwhile.
    fn or<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
        mut tick: impl FnMut(),
    ) -> io::Result<Option<T>> {
        let (sender, mut receiver) = oneshot::channel();
        let send = move || {
            // After Ctrl-C there is no receiver.
            let _ = sender.send(work());
        };
        std::thread::Builder::new().name("simulation".to_owned()).spawn(send)?;
        self.runtime.block_on(async {
            let mut ticks = interval(TICK);
            // The first tick comes at once.
            ticks.tick().await;
            loop {
                tokio::select! {
                    result = &mut receiver => match result {
                        Ok(result) => return Ok(Some(result)),
                        Err(_) => unreachable!("the thread sends its result or panics"),
                    },
                    _ = self.interrupts.recv() => return Ok(None),
                    _ = ticks.tick() => tick(),
                }
            }
        })
    }
}
