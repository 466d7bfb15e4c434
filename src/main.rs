//! `weir`: arguments to a command, and the end of the process.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::Parser as _;
use weir::cli::args::{Arguments, Command};
use weir::cli::check::{self, Failed};
use weir::cli::explain;
use weir::cli::program::Program;
use weir::cli::ratelimit;
use weir::cli::serve::{self, ServeError};

/// A request costs dozens of small allocations, most of them below us, in HTTP/2: this allocator makes them cheaper and
/// keeps a store of many keys from fragmenting.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code where something failed.
const FAILED: u8 = 1;
/// The exit code where the arguments or settings are wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let command = match Program::called(&name) {
        // What stands after that name is ignored: its deployments may have arguments that nothing ever read.
        Program::Ratelimit => Command::Ratelimit,
        // Wrong arguments end here, with clap's own message and code, which is 2.
        Program::Weir | Program::ConfigCheck | Program::Client => Arguments::parse().command,
    };
    let result = match command {
        Command::Serve(arguments) => match serve::serve(&arguments) {
            Err(ServeError::Settings(problems)) => return told(&problems, USAGE),
            result => result.map_err(|error| error.to_string()),
        },
        Command::Ratelimit => match ratelimit::serve() {
            Err(ServeError::Settings(problems)) => return told(&problems, USAGE),
            result => result.map_err(|error| error.to_string()),
        },
        Command::Check(arguments) => {
            let (reading, strictness) = (arguments.dialect.reading(), arguments.strictness());
            printed(check::run(&arguments.directory, reading, strictness, &mut io::stdout().lock()))
        }
        Command::Explain(arguments) => {
            let descriptors: Vec<_> = arguments.descriptors.into_iter().map(|descriptor| descriptor.entries).collect();
            let reading = arguments.dialect.reading();
            let out = &mut io::stdout().lock();
            printed(explain::run(&arguments.directory, reading, &arguments.domain, &descriptors, out))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => told(&reason, FAILED),
    }
}

/// Whoever reads only the beginning (`weir check policies | head`) has got what they wanted.
fn printed(result: Result<(), Failed>) -> Result<(), String> {
    match result {
        Err(Failed::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}

/// Says why on standard error, each line as ours.
fn told(reason: &dyn fmt::Display, code: u8) -> ExitCode {
    for line in reason.to_string().lines() {
        eprintln!("weir: {line}");
    }
    ExitCode::from(code)
}
