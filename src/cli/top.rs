//! `weir top`: the busiest limits, the limits that deny most, and whom they deny, as a live table or as lines.
//!
//! Not here: parsing of arguments (args.rs), and counting (telemetry).

mod draw;
mod live;
mod plain;
mod report;
mod view;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

pub use self::view::Sort;
use super::admin::{AdminServer, NoAnswer};
use super::runtime::block_on;

#[derive(Clone, Debug)]
pub struct Question {
    pub server: AdminServer,
    /// The time between two reports.
    pub interval: Duration,
    pub sort: Sort,
    /// Writes one report as lines, and ends.
    pub once: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The server did not answer at the start.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    /// The report cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// Output is a terminal, but input is not.
    #[error("cannot use the terminal: {0}: give one as standard input, or --once")]
    Terminal(io::Error),
    /// This process cannot start a runtime.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// Shows reports until the user ends it: a table on a terminal, otherwise lines.
///
/// # Errors
/// If the server does not answer at the start, or if reports cannot be shown.
pub fn run(question: &Question) -> Result<(), TopError> {
    let stdout = io::stdout();
    let result = if !question.once && stdout.is_terminal() {
        block_on(live::run(question))
    } else {
        block_on(plain::run(question, &mut stdout.lock(), &mut io::stderr().lock()))
    };
    match result.map_err(TopError::Start)? {
        // A closed pipe ends the output.
        Err(TopError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn write_now(text: &str, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}
