//! `weir`: arguments to a command, and the end of the process.

use std::io::{self, LineWriter, StderrLock, StdoutLock, Write as _};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, thread};

use clap::Parser as _;
use weir_cli::admin::Unanswered;
use weir_cli::args::{Arguments, AskArguments, Checked, Command, Explained, Policies, settings_in};
use weir_cli::ask::{self, Decided, Output};
use weir_cli::check::{self, CheckFormat};
use weir_cli::client::{self, Ended};
use weir_cli::diff::{self, Outcome};
use weir_cli::lua::{self, NoScript};
use weir_cli::manual::{self, NoPage};
use weir_cli::pipe::UntilClosed;
use weir_cli::program::Program;
use weir_cli::serve::{self, ServeError};
use weir_cli::simulate::{self, SimulateError};
use weir_cli::test::{self, Verdict};
use weir_cli::{explain, overrides, ratelimit, rows, tap, top};

/// A request costs dozens of small allocations, most of them in the HTTP/2 library: this allocator makes them cheaper and
/// keeps a store of many keys from fragmenting.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code if something failed.
const FAILED: u8 = 1;
/// The exit code of `weir diff` if it found nothing and could not tell all, and of `weir simulate` if it could not decide all.
const UNKNOWN: u8 = 3;
/// The exit code of `weir ask` if the request is over a limit.
const OVER_LIMIT: u8 = 1;
/// The longest time for writing why the server ended.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);
/// The exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;
/// The exit code if the arguments or settings are wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let command = match Program::called(&name) {
        // Arguments are ignored: envoyproxy/ratelimit reads none, and its deployments may have some.
        Program::Ratelimit => Command::Ratelimit,
        // Wrong arguments end here, with clap's own message and code, which is 2.
        Program::Weir => Arguments::parse().command,
        Program::ConfigCheck => {
            return tool_ended(client::config_check(std::env::args_os().skip(1), &mut stdout()));
        }
        Program::Client => return tool_ended(client::client(std::env::args_os().skip(1), &mut stdout())),
    };
    let result = match command {
        Command::Serve(arguments) => return ended(serve::serve(&arguments)),
        Command::Ratelimit => return ended(ratelimit::serve()),
        Command::Check(arguments) => {
            let (dialect, strictness) = (arguments.dialect.dialect(), arguments.strictness());
            let (format, out) = (arguments.format, &mut stdout());
            match arguments.checked() {
                Ok(Checked::Files(directory)) => match (format, arguments.dialect.source(&directory)) {
                    (CheckFormat::Text, source) => check::run(source, dialect, strictness, out),
                    (CheckFormat::Json | CheckFormat::Sarif, source) => {
                        check::report(source, dialect, strictness, format, out)
                    }
                }
                .map_err(|error| error.to_string()),
                Ok(Checked::Settings { config, directory }) => match settings_in(&config, std::env::vars_os()) {
                    Ok(settings) => match format {
                        CheckFormat::Text => check::run_settings(&settings, directory, strictness, out),
                        CheckFormat::Json | CheckFormat::Sarif => {
                            check::report_settings(&settings, directory, strictness, format, out)
                        }
                    }
                    .map_err(|error| error.to_string()),
                    Err(problems) => return told(&problems, USAGE),
                },
                Ok(Checked::Server(server)) => {
                    check::run_served(&server, strictness, out).map_err(|error| error.to_string())
                }
                Err(reason) => return told(&reason, USAGE),
            }
        }
        Command::Ask(arguments) => {
            let AskArguments { expect, json, .. } = arguments;
            let question = match arguments.question() {
                Ok(question) => question,
                Err(reason) => return told(&reason, USAGE),
            };
            let output = if json { Output::Json } else { Output::Text };
            return match ask::run(&question, output, &mut stdout()) {
                Ok(decided) if expect.is_some() => ExitCode::from(if expect == Some(decided) { 0 } else { FAILED }),
                Ok(Decided::Ok | Decided::NoLimit) => ExitCode::SUCCESS,
                Ok(Decided::OverLimit) => ExitCode::from(OVER_LIMIT),
                Err(error) => told(&error, USAGE),
            };
        }
        Command::Explain(arguments) => {
            let (read, caller) = (arguments.dialect.clone(), arguments.caller());
            let (out, notes) = (&mut stdout(), &mut stderr());
            match arguments.explained() {
                Ok(Explained { policies, domain, descriptors }) => caller
                    .map_or(Ok(()), |(file, caller)| explain::caller(&file, &caller, &domain, out))
                    .and_then(|()| match policies {
                        Policies::Files(directory) => {
                            explain::run(read.source(&directory), read.dialect(), &domain, &descriptors, out)
                        }
                        Policies::Server(server) => explain::run_served(&server, &domain, &descriptors, out, notes),
                    })
                    .map_err(|error| error.to_string()),
                Err(reason) => return told(&reason, USAGE),
            }
        }
        Command::Top(arguments) => top::run(&arguments).map_err(|error| error.to_string()),
        Command::Override(arguments) => match overrides::run(&arguments.action, &mut stdout(), &mut stderr()) {
            Err(error @ (overrides::Failed::Usage(_) | overrides::Failed::Server(Unanswered::Token(_)))) => {
                return told(&error, USAGE);
            }
            result => result.map_err(|error| error.to_string()),
        },
        Command::Rows(arguments) => match rows::run(&arguments.action, &mut stdout(), &mut stderr()) {
            Err(
                error @ (rows::Failed::Usage(_)
                | rows::Failed::Server(Unanswered::Token(_))
                | rows::Failed::Import(rows::ImportError::File(_))),
            ) => return told(&error, USAGE),
            result => result.map_err(|error| error.to_string()),
        },
        Command::Tap(arguments) => tap::run(&arguments).map_err(|error| error.to_string()),
        Command::Schema(arguments) => {
            writeln!(stdout(), "{:#}", arguments.of.document()).map_err(|error| format!("cannot write: {error}"))
        }
        Command::Diff(arguments) => {
            return match diff::run(&arguments, &mut stdout()) {
                Ok(Outcome::Same) => ExitCode::SUCCESS,
                Ok(Outcome::Differs) => ExitCode::from(FAILED),
                Ok(Outcome::Unknown) => ExitCode::from(UNKNOWN),
                Err(error) => told(&error, USAGE),
            };
        }
        Command::Test(arguments) => {
            return match test::run(&arguments.tests(), &mut stdout()) {
                Ok(Verdict::Passed) => ExitCode::SUCCESS,
                Ok(Verdict::Failed) => ExitCode::from(FAILED),
                Ok(Verdict::Broken) => ExitCode::from(USAGE),
                Err(error) => told(&error, USAGE),
            };
        }
        Command::Simulate(arguments) => {
            return match simulate::run(&arguments, io::stdout(), io::stderr()) {
                Ok(simulate::Outcome::Whole) => ExitCode::SUCCESS,
                Ok(simulate::Outcome::Part) => ExitCode::from(UNKNOWN),
                Err(error @ SimulateError::Input(_)) => told(&error, USAGE),
                Err(error @ SimulateError::Output(_)) => told(&error, FAILED),
                Err(error @ SimulateError::Interrupted(_)) => told(&error, INTERRUPTED),
            };
        }
        Command::Lua(arguments) => match lua::run(arguments.name.as_deref(), &mut stdout()) {
            Err(error @ NoScript::Unknown { .. }) => return told(&error, USAGE),
            result => result.map_err(|error| error.to_string()),
        },
        Command::Completions(arguments) => {
            manual::completions(arguments.shell, &mut stdout()).map_err(|error| format!("cannot write: {error}"))
        }
        Command::Man(arguments) => match manual::page(&arguments.command, &mut stdout()) {
            Err(error @ NoPage::Unknown { .. }) => return told(&error, USAGE),
            result => result.map_err(|error| error.to_string()),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => told(&reason, FAILED),
    }
}

/// Standard output of a command that ends by itself. A reader that closes the pipe early (`weir check policies | head`) is not an error.
fn stdout() -> UntilClosed<StdoutLock<'static>> {
    UntilClosed::new(io::stdout().lock())
}

/// Writes whole lines, so that those of a log do not come between their parts.
fn stderr() -> UntilClosed<LineWriter<StderrLock<'static>>> {
    UntilClosed::new(LineWriter::new(io::stderr().lock()))
}

fn tool_ended(result: Result<(), Ended>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Ended::Usage(reason)) => told(&reason, USAGE),
        Err(Ended::Failed(reason)) => told(&reason, FAILED),
    }
}

fn ended(result: Result<(), ServeError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(ServeError::Settings(problems)) => told(&problems, USAGE),
        Err(ServeError::Failed(reason)) => told_in_time(reason),
    }
}

/// Writes the reason to standard error, with the name of the program in each line. If standard error cannot be written to,
/// the exit status is the same.
fn told(reason: &dyn fmt::Display, code: u8) -> ExitCode {
    let mut text = String::new();
    for line in reason.to_string().lines() {
        text.push_str("weir: ");
        text.push_str(line);
        text.push('\n');
    }
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::from(code)
}

/// The same for the end of a server, within a bounded time: no process may be reading standard error.
fn told_in_time(reason: String) -> ExitCode {
    let (written, ended) = mpsc::channel();
    let writer = thread::Builder::new().spawn(move || {
        told(&reason, FAILED);
        let _ = written.send(());
    });
    if writer.is_ok() {
        let _ = ended.recv_timeout(REASON_TIMEOUT);
    }
    ExitCode::from(FAILED)
}
