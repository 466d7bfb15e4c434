//! `weir top`: the limits that are asked and that deny most, and who is denied, as a table that keeps itself up to date or as lines.
//!
//! Not here: parsing of arguments (args.rs) and what is counted (telemetry).

mod draw;
mod live;
mod plain;
mod report;
mod view;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

pub use self::view::Sort;
use super::admin::{AdminServer, NoAnswer};

/// What is shown, and how often.
#[derive(Clone, Debug)]
pub struct Question {
    /// Whose admin listener is asked.
    pub server: AdminServer,
    /// The time between two reports.
    pub interval: Duration,
    /// The order of the limits.
    pub sort: Sort,
    /// One report, as lines.
    pub once: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The server did not answer at the start, or to the only question.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    /// The report cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// There is a terminal to write to, and none to read keys from.
    #[error("cannot use the terminal: {0}: give one as standard input, or --once")]
    Terminal(io::Error),
    /// This process can start nothing.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// Shows reports until the user ends it: a table on a terminal, else lines.
///
/// # Errors
/// When the server gives no answer at the start, and when nothing can be shown.
pub fn run(question: &Question) -> Result<(), TopError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(TopError::Start)?;
    let stdout = io::stdout();
    let result = if !question.once && stdout.is_terminal() {
        runtime.block_on(live::run(question))
    } else {
        runtime.block_on(plain::run(question, &mut stdout.lock(), &mut io::stderr().lock()))
    };
    // A name server that does not answer must not delay the end.
    runtime.shutdown_background();
    match result {
        // A reader that closes the pipe early ends the lines.
        Err(TopError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes lines and shows them at once.
fn write_now(text: &str, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}
