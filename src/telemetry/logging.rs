//! The log: one subscriber for the whole process, text or JSON, on standard error.
//!
//! Called once at start, before anything that could want to log. What is worth a line is decided
//! where it happens; this only says how lines look and which are kept. Standard output stays free
//! for what commands print.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people: time, level, target, message, fields. Coloured on a terminal, unless the
    /// environment variable `NO_COLOR` is set and not empty.
    Text,
    /// For machines: one JSON object a line; the fields of an event stand beside its message.
    Json,
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level is not one of the filter's directives.
    #[error("log level {level:?}: {reason}")]
    Level {
        /// What was asked for.
        level: String,
        /// What the filter says.
        reason: String,
    },
    /// Somebody else has set up a log in this process.
    #[error("the log is already set up: {0}")]
    Twice(String),
}

/// Sets up the log of the process. Lines of the `log` crate's users arrive in it too.
///
/// `level` is a list of `EnvFilter` directives: `info`, or `info,weir=debug,tonic=warn`.
///
/// # Errors
///
/// A level that the filter cannot read, and a second call.
pub fn init(level: &str, format: Format) -> Result<(), InitError> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = if io::stderr().is_terminal() && !no_color { Colour::Ansi } else { Colour::None };
    subscriber(filter(level)?, format, colour, io::stderr)
        .try_init()
        .map_err(|error| InitError::Twice(error.to_string()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colour {
    Ansi,
    None,
}

fn filter(level: &str) -> Result<EnvFilter, InitError> {
    EnvFilter::builder()
        .parse(level)
        .map_err(|error| InitError::Level { level: level.to_owned(), reason: error.to_string() })
}

fn subscriber<W>(filter: EnvFilter, format: Format, colour: Colour, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour == Colour::Ansi).with_writer(writer);
    match format {
        Format::Text => Box::new(lines.finish()),
        Format::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

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

    fn logged(level: &str, format: Format, colour: Colour) -> String {
        let lines = Lines::default();
        let subscriber = subscriber(filter(level).unwrap(), format, colour, lines.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(files = 3, "policies loaded");
            tracing::debug!("a detail");
            tracing::warn!(target: "tonic", "somebody else's warning");
        });
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_is_one_line_an_event_without_colour_codes() {
        let text = logged("info", Format::Text, Colour::None);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(" INFO weir::telemetry::logging::tests: policies loaded files=3"));
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_terminal_gets_colour() {
        let text = logged("info", Format::Text, Colour::Ansi);
        assert!(text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn json_is_one_object_a_line_with_the_fields_beside_the_message() {
        let text = logged("info", Format::Json, Colour::None);
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "policies loaded");
        assert_eq!(line["files"], 3);
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn levels_go_by_target() {
        let text = logged("debug,tonic=error", Format::Text, Colour::None);
        assert!(text.contains("a detail"), "{text}");
        assert!(!text.contains("somebody else"), "{text}");
    }

    #[test]
    fn a_bad_level_is_named() {
        let error = filter("weir=loud").unwrap_err().to_string();
        assert!(error.starts_with("log level \"weir=loud\": "), "{error}");
    }
}
