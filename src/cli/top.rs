//! `weir top`: the busiest limits, the limits that deny most, and whom they deny, or the callers, as a live table or as lines.

mod draw;
mod live;
mod plain;
mod report;
mod view;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

pub use self::view::{By, Sort};
use super::admin::{NoAnswer, ServerArguments, block_on};
use super::token::Token;

/// The arguments of `weir top`.
#[derive(clap::Args, Debug)]
pub struct TopArguments {
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
    /// The time between two reports, from 1s to 30s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// What the rows are
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// The order of the rows
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Write one report as lines, and end
    #[arg(long)]
    pub once: bool,
}

/// The server compares with its counts of the last minute. It reads them at most once a second.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = weir_text::duration(text)?;
    let is_possible = (Duration::from_secs(1)..=Duration::from_secs(30)).contains(&interval);
    is_possible.then_some(interval).ok_or_else(|| "must be from 1s to 30s".to_owned())
}

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// Output is a terminal, but input is not.
    #[error("cannot use the terminal: {0}: give one as standard input, or --once")]
    Terminal(io::Error),
    #[error("cannot start: {0}")]
    Start(io::Error),
    /// The file with the token cannot be used.
    #[error("{0}")]
    Token(String),
}

/// Shows reports until the user ends it: a table on a terminal, otherwise lines.
///
/// # Errors
/// If the server does not answer at the start, or if reports cannot be shown.
pub fn run(arguments: &TopArguments) -> Result<(), TopError> {
    let stdout = io::stdout();
    let token = Token::of_file(arguments.server.token_file.as_deref()).map_err(TopError::Token)?;
    let result = if !arguments.once && stdout.is_terminal() {
        block_on(live::run(arguments, token))
    } else {
        block_on(plain::run(arguments, &token, &mut stdout.lock(), &mut io::stderr().lock()))
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
