//! `weir`: arguments to a command, and the end of the process.

use std::fmt;
use std::process::ExitCode;

use clap::Parser as _;
use weir::cli::args::{Arguments, Command};
use weir::cli::serve::{self, ServeError};

/// The exit code where the arguments or settings are wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Wrong arguments end here, with clap's own message and code, which is 2.
    match Arguments::parse().command {
        Command::Serve(arguments) => match serve::serve(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(ServeError::Settings(problems)) => failed(USAGE, &problems),
            Err(ServeError::Failed(reason)) => failed(1, &reason),
        },
        Command::Check(_) | Command::Explain(_) => failed(1, &"not yet"),
    }
}

/// Says why on standard error, each line as ours.
fn failed(code: u8, reason: &dyn fmt::Display) -> ExitCode {
    for line in reason.to_string().lines() {
        eprintln!("weir: {line}");
    }
    ExitCode::from(code)
}
