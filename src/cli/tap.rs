//! `weir tap`: shows or records the requests that a running server decides.

mod file;
mod show;

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio::time::{Instant, sleep_until, timeout};
use weir_api::tap::{Note, Record, TapLine, VERSION};
use weir_engine::descriptor::{TypedDescriptor, spell_pairs};
use weir_engine::words::{counted, printable};
use weir_text::number;

use self::file::{Exists, RecordFile};
use self::show::Table;
use super::admin::{AdminServer, Bounds, Lines, NoAnswer, ServerArguments, block_on, encoded};
use super::signals::Signals;
use super::token::Token;

/// The longest wait for the first byte, and the longest line, which is far longer than any record.
const BOUNDS: Bounds = Bounds { bytes_max: 4 << 20, timeout: Duration::from_secs(10) };
/// A server sends something at least every 10 s. After this time without anything, the command gives up.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The time that the server has for its last note.
const LAST_NOTE: Duration = Duration::from_secs(2);

/// The arguments of `weir tap`.
#[derive(clap::Args, Debug)]
pub struct TapArguments {
    /// Only requests with a descriptor that has these entries, in any order
    ///
    /// A comma inside a value is written as \, and a backslash as \\
    #[arg(value_name = "K=V[,K=V]")]
    descriptor: Option<TypedDescriptor>,
    /// Only requests of this domain
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Only requests that meet this rule: a "descriptor" of /policies, such as plan=free|path
    #[arg(long, value_name = "PATH")]
    rule: Option<String>,
    /// Only requests with this answer; shadow: over, and admitted by shadow_mode
    #[arg(long, value_name = "VERDICT", value_parser = ["ok", "over", "shadow", "error"])]
    verdict: Option<String>,
    /// One in N requests, at random
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::<u32>(1, 1_000_000))]
    sample: u32,
    /// End after this many requests
    #[arg(long, value_name = "N", value_parser = number::<u64>(1, u64::MAX))]
    count: Option<u64>,
    /// End after this time, such as 5m; at most the server's tap.max_duration
    #[arg(long = "for", value_name = "TIME", value_parser = tap_length)]
    length: Option<Duration>,
    /// Print JSON lines, as --record writes them
    #[arg(long, conflicts_with = "record")]
    json: bool,
    /// Write the requests to a new file, which weir simulate and weir diff read
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Replace the file of --record if there is one
    #[arg(long, requires = "record")]
    force: bool,
    /// Show values in plain text, which requires a token with the right tap, or hide them; without it, the
    /// server's tap.values decides
    #[arg(long, value_name = "HOW", value_enum)]
    values: Option<Values>,
    /// Where the server is.
    #[command(flatten)]
    server: ServerArguments,
}

fn tap_length(text: &str) -> Result<Duration, String> {
    let length = weir_text::duration(text)?;
    let is_possible = (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&length);
    is_possible.then_some(length).ok_or_else(|| "must be from 1s to 24h".to_owned())
}

/// How values are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Values {
    /// As hashes, except those that policies name.
    Hidden,
    /// As they are.
    Shown,
}

#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The server gave no usable answer, or the connection broke.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    #[error("{0} is stopping, which ends the tap")]
    Stopping(AdminServer),
    #[error("{0} has ended the tap, because the token has changed in its file or has gone")]
    Revoked(AdminServer),
    /// The connection ended without a reason.
    #[error("{0} has ended the tap without a reason")]
    CutOff(AdminServer),
    /// The server sent nothing for too long.
    #[error("{0} has sent nothing for {1:?}")]
    Silent(AdminServer, Duration),
    #[error("{0} is not a weir of this version: {1}")]
    NotATap(AdminServer, String),
    #[error("{0}")]
    Exists(#[from] Exists),
    #[error("{0}: {1}")]
    File(String, io::Error),
    #[error("{0}")]
    Token(String),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// Shows or records requests until the user, the count, the time or the server ends the tap.
///
/// # Errors
/// If the tap does not begin, or if the server or the connection ends it early.
pub fn run(arguments: &TapArguments) -> Result<(), TapError> {
    match block_on(tap(arguments)).map_err(TapError::Start)? {
        // A closed pipe ends the tap.
        Err(TapError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

async fn tap(arguments: &TapArguments) -> Result<(), TapError> {
    if let Some(file) = arguments.record.as_deref().filter(|_| !arguments.force) {
        file::must_be_new(file)?;
    }
    let token = Token::of_file(arguments.server.token_file.as_deref()).map_err(TapError::Token)?;
    // Receive signals before anything else, so an early one has the same effect as a late one.
    let mut signals = Signals::of(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])
        .map_err(TapError::Start)?;
    let path = path(arguments);
    let mut lines = tokio::select! {
        () = signals.any() => return Ok(()),
        lines = arguments.server.server.lines(&path, &token, BOUNDS) => lines?,
    };
    let first = lines.next().await?.unwrap_or_default();
    let reason = match read(&first) {
        Some(TapLine::Header(header)) if header.version == VERSION => None,
        Some(TapLine::Header(header)) => Some(format!("its records have version {}", header.version)),
        _ => Some("its first line is not a header of records".to_owned()),
    };
    if let Some(reason) = reason {
        return Err(TapError::NotATap(arguments.server.server.clone(), reason));
    }
    let mut sink = Sink::open(arguments, &first)?;
    let mut seen = Seen::default();
    let result = follow(arguments, &mut lines, &mut signals, &mut sink, &mut seen).await;
    // A failure to write to standard error does not matter.
    let _ = writeln!(io::stderr(), "weir: {}", seen.summary(arguments));
    result
}

/// Passes on records until the tap ends.
async fn follow(
    arguments: &TapArguments,
    lines: &mut Lines,
    signals: &mut Signals,
    sink: &mut Sink,
    seen: &mut Seen,
) -> Result<(), TapError> {
    let end = arguments.length.map(|length| Instant::now() + ends_after(length));
    loop {
        let line = tokio::select! {
            () = signals.any() => return Ok(()),
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => return Ok(()),
            line = timeout(SILENCE_MAX, lines.next()) => match line {
                Ok(line) => line?,
                Err(_) => return Err(TapError::Silent(arguments.server.server.clone(), SILENCE_MAX)),
            },
        };
        let Some(line) = line else { return Err(TapError::CutOff(arguments.server.server.clone())) };
        match read(&line) {
            Some(TapLine::Record(record)) => {
                seen.requests += 1;
                seen.lost += record.lost;
                sink.put(&line, &record)?;
                if arguments.count.is_some_and(|count| seen.requests >= count) {
                    return Ok(());
                }
            }
            Some(TapLine::Note(Note::NoDomain { nearest })) => {
                // Ignores an error, as for the summary.
                let _ = writeln!(io::stderr(), "weir: {}", no_domain(arguments, nearest.as_deref()));
            }
            Some(TapLine::Note(Note::Unknown)) => {}
            Some(TapLine::Note(Note::Open(end) | Note::End(end))) => {
                seen.lost += end.lost;
                match end.reason.as_deref() {
                    Some("time") => {
                        seen.is_server_done = true;
                        return Ok(());
                    }
                    Some("token") => return Err(TapError::Revoked(arguments.server.server.clone())),
                    Some("shutdown") => return Err(TapError::Stopping(arguments.server.server.clone())),
                    _ => {}
                }
            }
            Some(TapLine::Header(_)) | None => {
                let start: String = line.chars().take(100).collect();
                let reason = format!("a line is not a record: {}", printable(&start));
                return Err(TapError::NotATap(arguments.server.server.clone(), reason));
            }
        }
    }
}

/// Reads a line. None if it is not a line of a tap.
fn read(line: &str) -> Option<TapLine<'static>> {
    serde_json::from_str(line).ok()
}

/// When this process ends a tap of this length. The server ends a tap of whole seconds itself, with a note of the lost
/// requests, so it gets more time.
fn ends_after(length: Duration) -> Duration {
    if length.subsec_nanos() == 0 { length + LAST_NOTE } else { length }
}

/// The note if no policy has the domain. Requests of the domain may come later, and so may a policy.
fn no_domain(arguments: &TapArguments, nearest: Option<&str>) -> String {
    let domain = arguments.domain.as_deref().unwrap_or_default();
    let meant = nearest.map_or_else(String::new, |near| format!(", did you mean {near:?}?"));
    format!("warning: no policy of {} has the domain {domain:?}{meant}", arguments.server.server)
}

/// The requests so far.
#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    lost: u64,
    /// The server ended the tap because its time was over.
    is_server_done: bool,
}

impl Seen {
    fn summary(&self, arguments: &TapArguments) -> String {
        let Self { requests, lost, is_server_done } = self;
        let TapArguments { record, length, .. } = arguments;
        let place = record.as_ref().map_or_else(String::new, |file| format!(" recorded in {}", file.display()));
        let end = if *is_server_done && length.is_none() { "; the server's tap.max_duration is over" } else { "" };
        format!("{}{place}, {lost} lost{end}", counted(requests, "request"))
    }
}

enum Sink {
    Text(Table),
    Json,
    File(RecordFile),
}

impl Sink {
    fn open(arguments: &TapArguments, header: &str) -> Result<Self, TapError> {
        if let Some(file) = &arguments.record {
            return Ok(Self::File(RecordFile::create(file, arguments.force, header)?));
        }
        if arguments.json {
            writeln!(io::stdout(), "{header}")?;
            return Ok(Self::Json);
        }
        let table = Table::new(is_coloured());
        io::stdout().write_all(table.heading().as_bytes())?;
        Ok(Self::Text(table))
    }

    fn put(&mut self, line: &str, record: &Record<'_>) -> Result<(), TapError> {
        match self {
            Self::Text(table) => io::stdout().write_all(table.rows(record).as_bytes())?,
            Self::Json => writeln!(io::stdout(), "{line}")?,
            Self::File(file) => file.put(line)?,
        }
        Ok(())
    }
}

fn is_coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

fn path(arguments: &TapArguments) -> String {
    let TapArguments { domain, rule, verdict, descriptor, sample, length, values, .. } = arguments;
    let mut path = "/tap?notes=true".to_owned();
    let mut add = |name: &str, value: &str| path.push_str(&format!("&{name}={}", encoded(value)));
    for (name, value) in [("domain", domain), ("rule", rule), ("verdict", verdict)] {
        if let Some(value) = value {
            add(name, value);
        }
    }
    if let Some(descriptor) = descriptor {
        add("descriptor", &spell_pairs(&descriptor.entries));
    }
    match values {
        Some(Values::Hidden) => add("values", "hidden"),
        Some(Values::Shown) => add("values", "shown"),
        None => {}
    }
    if *sample > 1 {
        add("sample", &sample.to_string());
    }
    if let Some(length) = length {
        // Rounded up: the server ends the tap later than this process.
        add("seconds", &(length.as_secs() + u64::from(length.subsec_nanos() > 0)).to_string());
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_ends_a_tap_of_whole_seconds_and_has_time_for_its_last_note() {
        assert!(ends_after(Duration::from_secs(1)) > Duration::from_secs(2));
        // The server would end it later than requested.
        assert_eq!(ends_after(Duration::from_millis(1_500)), Duration::from_millis(1_500));
    }
}
