//! The log: one subscriber for the whole process, text or JSON, on standard error or in a file.
//!
//! Set up once at the start, before anything could log. Standard output is for the output of commands.
//!
//! No thread that logs ever waits for the log or fails because of it: lines go through a bounded queue to a writer
//! thread (queue.rs), and each call site has a maximum number of lines in ten seconds (call_sites.rs). Lost lines are
//! counted. Only changes of operators wait before they begin.

mod call_sites;
mod field;
mod json;
mod queue;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use strum::{IntoStaticStr, VariantArray};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer as _};
use weir_settings::LogFormat;

pub use self::call_sites::{AUDIT, LINES_MAX as CALL_SITE_LINES_MAX, PERIOD as CALL_SITE_PERIOD};
use self::call_sites::{CallSites, Limit};
use self::json::{JsonLines, Names};
pub use self::queue::{BYTES_MAX as QUEUE_BYTES_MAX, LINE_BYTES_MAX, LINES_MAX as QUEUE_LINES_MAX};
use self::queue::{Lost, Queue, Target};

/// The prefix of the targets of weir's own lines.
const OWN_TARGET: &str = "weir";
/// How often a change that waits for room looks again.
const ROOM_POLL: Duration = Duration::from_millis(5);
/// The most call sites that one report of dropped lines names.
const REPORTED_MAX: usize = 20;

static LOG: OnceLock<Log> = OnceLock::new();
/// Lines that the queue or the target lost.
static LOST: Lost = Lost { full: AtomicU64::new(0), failed: AtomicU64::new(0) };

struct Log {
    queue: Queue,
    call_sites: Arc<CallSites>,
    /// The lost lines at the last report.
    reported: [AtomicU64; 2],
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("log level {level:?}: {reason}")]
    Level { level: String, reason: String },
    #[error("cannot open the log file {}: {reason}", .path.display())]
    File { path: PathBuf, reason: io::Error },
    /// The system cannot start a thread to write the log, or cannot duplicate the descriptor of standard error.
    #[error("cannot start the log: {0}")]
    Start(#[from] io::Error),
    #[error("the log is already set up: {0}")]
    Twice(String),
}

/// Sets up the log of the process. It also receives lines of the `log` crate.
///
/// The level is a list of directives, such as `info,weir_store=debug,h2=warn`. A level alone applies to weir; its
/// dependencies log only errors. `target=level` applies to one target. Without a file the log goes to standard error.
///
/// # Errors
///
/// A level that the filter cannot parse, a file that cannot be opened, or a second call.
pub fn init(log: &weir_settings::Log) -> Result<(), InitError> {
    let weir_settings::Log { level, format, file } = log;
    let filter = filter(level)?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_coloured = file.is_none() && io::stderr().is_terminal() && !no_color;
    let colour = if is_coloured { Colour::Ansi } else { Colour::None };
    let target = match file {
        Some(path) => Target::file(path).map_err(|reason| InitError::File { path: path.clone(), reason })?,
        None => Target::stderr()?,
    };
    let log = Log {
        queue: Queue::start(target, &LOST)?,
        call_sites: Arc::new(CallSites::new(Instant::now())),
        reported: Default::default(),
    };
    subscriber(filter, *format, colour, &log.call_sites, log.queue.clone())
        .try_init()
        .map_err(|error| InitError::Twice(error.to_string()))?;
    LOG.set(log).map_err(|_| InitError::Twice("twice at once".to_owned()))
}

/// Writes a text that is not an event, such as the banner, in the order of the log. Does nothing without a log.
pub fn write(text: &str) {
    if let Some(log) = LOG.get() {
        log.queue.line(text.as_bytes());
    }
}

/// Opens the log file again soon, because a program that rotates logs has renamed it. No effect on standard error.
pub fn reopen() {
    if let Some(log) = LOG.get() {
        log.queue.reopen();
    }
}

/// Waits until every line so far is written, for at most `timeout`. Returns whether it succeeded.
pub fn flush(timeout: Duration) -> bool {
    LOG.get().is_none_or(|log| log.queue.flush(timeout))
}

/// Waits until the queue of the log has room for the audit lines of a change, until `end`. Returns whether it has.
pub async fn has_room(end: Instant) -> bool {
    let Some(log) = LOG.get() else { return true };
    while !log.queue.has_room() {
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(ROOM_POLL).await;
    }
    true
}

/// Logs panics. The log's thread writes the event: the panicking thread neither formats nor waits.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if let Some(log) = LOG.get() {
            let thread = std::thread::current();
            log.queue.panic(thread.name().unwrap_or("unnamed"), &panic.to_string());
        }
    }));
}

/// Why a line did not reach the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum LostBy {
    /// The queue was full: the target is slower than the log, or blocked.
    #[strum(serialize = "queue_full")]
    Full,
    /// The target refused it: a closed pipe, a full disk.
    #[strum(serialize = "write_failed")]
    Failed,
    /// Its call site had logged too many lines.
    CallSite,
}

/// How many lines were lost since the start of the process.
pub fn lost(by: LostBy) -> u64 {
    match by {
        LostBy::Full => LOST.full.load(Relaxed),
        LostBy::Failed => LOST.failed.load(Relaxed),
        LostBy::CallSite => LOG.get().map_or(0, |log| log.call_sites.dropped()),
    }
}

/// Logs the lost lines since the last call, with one line for each of at most 20 call sites. Call it every
/// [`CALL_SITE_PERIOD`].
pub fn report_lost() {
    let Some(log) = LOG.get() else { return };
    let mut dropped = log.call_sites.take_dropped();
    dropped.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    for (call_site, lines) in dropped.iter().take(REPORTED_MAX) {
        tracing::warn!(call_site, lines, "log lines dropped: one call site logs too often");
    }
    let rest = dropped.iter().skip(REPORTED_MAX);
    let (call_sites, lines) = (rest.clone().count(), rest.map(|(_, lines)| lines).sum::<u64>());
    if call_sites > 0 {
        tracing::warn!(call_sites, lines, "log lines dropped: each of these call sites logs too often");
    }
    let counts = [LOST.full.load(Relaxed), LOST.failed.load(Relaxed)];
    let [full, failed] = [0, 1].map(|i| counts[i] - log.reported[i].swap(counts[i], Relaxed));
    if full + failed > 0 {
        tracing::warn!(queue_full = full, write_failed = failed, "log lines lost");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colour {
    Ansi,
    None,
}

/// The filter of a `log.level`. A level alone applies to weir. Dependencies log only errors, because peers can cause
/// many of their warnings, one for each frame. A directive for their target changes that. No directive drops a line of
/// [`AUDIT`].
fn filter(level: &str) -> Result<EnvFilter, InitError> {
    let mut directives = Vec::new();
    for directive in level.split(',') {
        match LevelFilter::from_str(directive) {
            // The filter would accept an empty directive as a level.
            Ok(level) if !directive.is_empty() => {
                directives.push(level.min(LevelFilter::ERROR).to_string());
                directives.push(format!("{OWN_TARGET}={level}"));
            }
            _ => directives.push(directive.to_owned()),
        }
    }
    // Of several directives for one target, the last one applies.
    directives.push(format!("{AUDIT}={}", LevelFilter::INFO));
    EnvFilter::builder()
        .parse(directives.join(","))
        .map_err(|error| InitError::Level { level: level.to_owned(), reason: error.to_string() })
}

fn subscriber<W>(
    filter: EnvFilter,
    format: LogFormat,
    colour: Colour,
    call_sites: &Arc<CallSites>,
    writer: W,
) -> impl Subscriber + Send + Sync + use<W>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colour == Colour::Ansi)
        .with_writer(writer)
        // It would print them with `eprintln!`, which panics if standard error is closed or full.
        .log_internal_errors(false);
    let lines = match format {
        // For people: time, level, target, message, fields.
        LogFormat::Text => lines.fmt_fields(field::fields()).boxed(),
        LogFormat::Json => lines.map_writer(|to| JsonLines(to, Names::Plain)).json().flatten_event(true).boxed(),
        LogFormat::JsonAt => lines.map_writer(|to| JsonLines(to, Names::At)).json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(Limit(call_sites.clone())).with(lines)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(level: &str, format: LogFormat, colour: Colour) -> String {
        let lines = Lines::default();
        let call_sites = Arc::new(CallSites::new(Instant::now()));
        let subscriber = subscriber(filter(level).unwrap(), format, colour, &call_sites, lines.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(files = 3, "policies loaded");
            tracing::debug!("a detail");
            tracing::warn!(target: "tonic", "somebody else's warning");
            tracing::error!(target: "h2::frame", "somebody else's error");
        });
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_is_one_line_an_event_without_colour_codes() {
        let text = logged("info", LogFormat::Text, Colour::None);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(" INFO weir_telemetry::logging::tests: policies loaded files=3"));
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn no_value_of_a_caller_writes_lines_escapes_or_marks_of_direction_into_the_text() {
        for colour in [Colour::None, Colour::Ansi] {
            let lines = Lines::default();
            let call_sites = Arc::new(CallSites::new(Instant::now()));
            let subscriber = subscriber(filter("debug").unwrap(), LogFormat::Text, colour, &call_sites, lines.clone());
            let value = "a\n2026 ERROR b\r\u{1b}[2J\u{9b}\u{202e}\u{2028}";
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!(shown = %value, quoted = value, debug = ?Some(value), "with {value}");
            });
            let text = String::from_utf8(lines.0.lock().clone()).unwrap();
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert_eq!(text.matches("a\\n2026 ERROR b\\r\\u{1b}[2J\\u{9b}\\u{202e}\\u{2028}").count(), 4, "{text:?}");
            let is_ours = |c: char| c == '\n' || colour == Colour::Ansi && c == '\u{1b}';
            let strange =
                text.chars().find(|c| !is_ours(*c) && (c.is_control() || matches!(c, '\u{202e}' | '\u{2028}')));
            assert_eq!(strange, None, "{text:?}");
            assert!(!text.contains("\u{1b}[2J"), "{text:?}");
        }
    }

    #[test]
    fn a_line_of_json_has_no_character_that_a_terminal_obeys_and_the_same_text() {
        for format in [LogFormat::Json, LogFormat::JsonAt] {
            let lines = Lines::default();
            let call_sites = Arc::new(CallSites::new(Instant::now()));
            let subscriber = subscriber(filter("debug").unwrap(), format, Colour::None, &call_sites, lines.clone());
            let value = "a\n\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{2028}\u{e0001} \u{e9}\u{1f600}\\\"";
            tracing::subscriber::with_default(subscriber, || tracing::debug!(value, "with {value}"));
            let text = String::from_utf8(lines.0.lock().clone()).unwrap();
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(line["value"], value);
            assert!(text.contains('\u{e9}') && text.contains('\u{1f600}'), "{text:?}");
            let strange = text.trim_end_matches('\n').chars().find(|c| !weir_engine::words::is_plain(*c));
            assert_eq!(strange, None, "{text:?}");
        }
    }

    #[test]
    fn a_terminal_gets_colour() {
        let text = logged("info", LogFormat::Text, Colour::Ansi);
        assert!(text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn json_is_one_object_a_line_with_the_fields_beside_the_message() {
        let text = logged("info", LogFormat::Json, Colour::None);
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "policies loaded");
        assert_eq!(line["files"], 3);
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn a_level_alone_is_weirs_and_dependencies_log_errors() {
        let seen = |level: &str| {
            let text = logged(level, LogFormat::Text, Colour::None);
            ["policies loaded", "a detail", "else's warning", "else's error"].map(|line| text.contains(line))
        };
        assert_eq!(seen("info"), [true, false, false, true]);
        assert_eq!(seen("TRACE"), [true, true, false, true]);
        assert_eq!(seen("debug,tonic=warn"), [true, true, true, true]);
        assert_eq!(seen("tonic=warn,info"), [true, false, true, true]);
        assert_eq!(seen("h2=off,info"), [true, false, false, false]);
        assert_eq!(seen("off"), [false, false, false, false]);
        assert_eq!(seen("weir=debug"), [true, true, false, false]);
    }

    /// `log.level: warn` left out who had changed which limit.
    #[test]
    fn no_level_and_no_maximum_drops_a_change_by_an_operator() {
        for level in ["info", "warn", "error", "off", "weir=off", "weir_audit=off", "weir_audit=error,debug", "h2=off"]
        {
            let lines = Lines::default();
            let call_sites = Arc::new(CallSites::new(Instant::now()));
            let subscriber =
                subscriber(filter(level).unwrap(), LogFormat::Text, Colour::None, &call_sites, lines.clone());
            let changes = usize::try_from(CALL_SITE_LINES_MAX).unwrap() + 50;
            tracing::subscriber::with_default(subscriber, || {
                (0..changes).for_each(|number| tracing::info!(target: AUDIT, number, "changed"));
            });
            let text = String::from_utf8(lines.0.lock().clone()).unwrap();
            assert_eq!(text.lines().count(), changes, "{level}");
        }
    }

    #[test]
    fn a_bad_level_is_named() {
        let error = filter("weir=loud").unwrap_err().to_string();
        assert!(error.starts_with("log level \"weir=loud\": "), "{error}");
    }
}
