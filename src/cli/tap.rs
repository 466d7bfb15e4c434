//! `weir tap`: the requests that a running server decides, as lines for people, as JSON lines, or in a file.
//!
//! Not here: parsing of arguments (args.rs), and what the server sends (telemetry/tap.rs).

mod file;
mod record;
mod show;

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout};
use weir_engine::descriptor::spell_pairs;
use weir_engine::words::{counted, printable};

use self::file::{Exists, RecordFile};
use self::record::{Line, VERSION};
use self::show::Table;
use super::admin::{AdminServer, Bounds, Lines, NoAnswer};
use super::token::Token;

/// How long the server may take to begin, and how long a line may be: far more than the longest record has.
const BOUNDS: Bounds = Bounds { bytes_max: 4 << 20, timeout: Duration::from_secs(10) };
/// A server sends something at least every 10 s. After so long without it is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long the last note of a server may take.
const LAST_NOTE: Duration = Duration::from_secs(2);

/// Which requests, and where they go.
#[derive(Clone, Debug)]
pub struct Question {
    /// Whose admin listener is asked.
    pub server: AdminServer,
    /// Only those of this domain.
    pub domain: Option<String>,
    /// Only those that meet this rule.
    pub rule: Option<String>,
    /// Only those that were answered like this.
    pub verdict: Option<String>,
    /// Only those with a descriptor that has these entries.
    pub entries: Vec<(String, String)>,
    /// One in so many.
    pub sample: u32,
    /// The end after so many.
    pub count: Option<u64>,
    /// The end after so long.
    pub length: Option<Duration>,
    /// Where they go.
    pub output: Output,
    /// Values as they are, or hidden; none for what the server does.
    pub values: Option<Values>,
    /// The file of the token that the server wants.
    pub token_file: Option<PathBuf>,
}

/// How values are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Values {
    /// As hashes, but those that policies name.
    Hidden,
    /// As they are.
    Shown,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To standard output, for people.
    Text,
    /// To standard output, as JSON lines.
    Json,
    /// To a new file.
    File {
        /// Its path.
        file: PathBuf,
        /// Whether one that is there is replaced.
        force: bool,
    },
}

/// Why there are no requests, or no more.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The server gave no usable answer, or the connection broke.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    /// The server stops.
    #[error("{0} is stopping, which ends the tap")]
    Stopping(AdminServer),
    /// The connection ended without the word for why.
    #[error("{0} has ended the tap without a reason")]
    CutOff(AdminServer),
    /// The server sends at least a note now and then.
    #[error("{0} has sent nothing for {1:?}")]
    Silent(AdminServer, Duration),
    /// A line is not one of a tap.
    #[error("{0} is not a weir of this version: {1}")]
    NotATap(AdminServer, String),
    /// The file is there.
    #[error("{0}")]
    Exists(#[from] Exists),
    /// The file cannot be written.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// The token cannot be read.
    #[error("{0}")]
    Token(String),
    /// Standard output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// This process can start nothing.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// Shows or records requests until the user, the count, the time or the server ends it.
///
/// # Errors
/// When there are none, and when the server or the connection ends before the user wanted.
pub fn run(question: &Question) -> Result<(), TapError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(TapError::Start)?;
    let result = runtime.block_on(tap(question));
    // A name server that does not answer must not delay the end.
    runtime.shutdown_background();
    match result {
        // A reader that closes the pipe early ends the lines.
        Err(TapError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

async fn tap(question: &Question) -> Result<(), TapError> {
    if let Output::File { file, force: false } = &question.output {
        file::must_be_new(file)?;
    }
    let token = Token::of_file(question.token_file.as_deref()).map_err(TapError::Token)?;
    // Heard from here on, so that one that comes soon ends it as one that comes late.
    let mut signals = Signals::new().map_err(TapError::Start)?;
    let path = path(question);
    let mut lines = tokio::select! {
        () = signals.any() => return Ok(()),
        lines = question.server.lines(&path, &token, BOUNDS) => lines?,
    };
    let first = lines.next().await?.unwrap_or_default();
    let reason = match Line::read(&first) {
        Some(Line::Header(header)) if header.version == VERSION => None,
        Some(Line::Header(header)) => Some(format!("its records have version {}", header.version)),
        _ => Some("its first line is no header of records".to_owned()),
    };
    if let Some(reason) = reason {
        return Err(TapError::NotATap(question.server.clone(), reason));
    }
    let mut sink = Sink::open(&question.output, &first)?;
    let mut seen = Seen::default();
    let result = follow(question, &mut lines, &mut signals, &mut sink, &mut seen).await;
    // Where errors cannot be written, this cannot be either.
    let _ = writeln!(io::stderr(), "weir: {}", seen.summary(&question.output, question.length));
    result
}

/// Passes records on until it is over.
async fn follow(
    question: &Question,
    lines: &mut Lines,
    signals: &mut Signals,
    sink: &mut Sink,
    seen: &mut Seen,
) -> Result<(), TapError> {
    let end = question.length.map(|length| Instant::now() + ends_after(length));
    loop {
        let line = tokio::select! {
            () = signals.any() => return Ok(()),
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => return Ok(()),
            line = timeout(SILENCE_MAX, lines.next()) => match line {
                Ok(line) => line?,
                Err(_) => return Err(TapError::Silent(question.server.clone(), SILENCE_MAX)),
            },
        };
        let Some(line) = line else { return Err(TapError::CutOff(question.server.clone())) };
        match Line::read(&line) {
            Some(Line::Record(record)) => {
                seen.requests += 1;
                seen.lost += record.lost;
                sink.put(&line, &record)?;
                if question.count.is_some_and(|count| seen.requests >= count) {
                    return Ok(());
                }
            }
            Some(Line::Note(note)) if note.note == "no_domain" => {
                // As with the summary.
                let _ = writeln!(io::stderr(), "weir: {}", no_domain(question, note.nearest.as_deref()));
            }
            Some(Line::Note(note)) => {
                seen.lost += note.lost;
                match note.reason.as_deref() {
                    Some("time") => {
                        seen.is_server_done = true;
                        return Ok(());
                    }
                    Some("shutdown") => return Err(TapError::Stopping(question.server.clone())),
                    _ => {}
                }
            }
            Some(Line::Header(_)) | None => {
                let start: String = line.chars().take(100).collect();
                let reason = format!("a line is no record: {}", printable(&start));
                return Err(TapError::NotATap(question.server.clone(), reason));
            }
        }
    }
}

/// When this process ends a tap of that length by itself. The server ends one of whole seconds, and tells what was lost since the
/// last record.
fn ends_after(length: Duration) -> Duration {
    if length.subsec_nanos() == 0 { length + LAST_NOTE } else { length }
}

/// What is noted where no policy has the domain: requests of it can come all the same, and so can a policy.
fn no_domain(question: &Question, nearest: Option<&str>) -> String {
    let domain = question.domain.as_deref().unwrap_or_default();
    let meant = nearest.map_or_else(String::new, |near| format!(", did you mean {near:?}?"));
    format!("warning: no policy of {} has the domain {domain:?}{meant}", question.server)
}

/// The signals by which the user ends it.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// How many requests came.
#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    lost: u64,
    /// The server ended it because its time was over.
    is_server_done: bool,
}

impl Seen {
    fn summary(&self, output: &Output, length: Option<Duration>) -> String {
        let Self { requests, lost, is_server_done } = self;
        let place = match output {
            Output::File { file, .. } => format!(" recorded in {}", file.display()),
            Output::Text | Output::Json => String::new(),
        };
        let end = if *is_server_done && length.is_none() { "; the server's tap.max_duration is over" } else { "" };
        format!("{}{place}, {lost} lost{end}", counted(requests, "request"))
    }
}

/// Where records go.
enum Sink {
    Text(Table),
    Json,
    File(RecordFile),
}

impl Sink {
    fn open(output: &Output, header: &str) -> Result<Self, TapError> {
        match output {
            Output::Text => {
                let table = Table::new(is_coloured());
                io::stdout().write_all(table.heading().as_bytes())?;
                Ok(Self::Text(table))
            }
            Output::Json => {
                writeln!(io::stdout(), "{header}")?;
                Ok(Self::Json)
            }
            Output::File { file, force } => Ok(Self::File(RecordFile::create(file, *force, header)?)),
        }
    }

    fn put(&mut self, line: &str, record: &record::Record) -> Result<(), TapError> {
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

/// The path that asks for it.
fn path(question: &Question) -> String {
    let Question { domain, rule, verdict, entries, sample, length, values, .. } = question;
    let mut path = "/tap?notes=true".to_owned();
    let mut add = |name: &str, value: &str| path.push_str(&format!("&{name}={}", encoded(value)));
    for (name, value) in [("domain", domain), ("rule", rule), ("verdict", verdict)] {
        if let Some(value) = value {
            add(name, value);
        }
    }
    if !entries.is_empty() {
        add("descriptor", &spell_pairs(entries));
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
        // The server may end it a little later than this process does.
        add("seconds", &(length.as_secs() + u64::from(length.subsec_nanos() > 0)).to_string());
    }
    path
}

/// A text as part of a query.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_ends_a_tap_of_whole_seconds_and_has_time_for_its_last_note() {
        assert!(ends_after(Duration::from_secs(1)) > Duration::from_secs(2));
        // The server would end it later than was asked for.
        assert_eq!(ends_after(Duration::from_millis(1_500)), Duration::from_millis(1_500));
    }
}
