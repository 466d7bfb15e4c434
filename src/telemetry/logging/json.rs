//! Lines of JSON on their way to the log.
//!
//! The formatter escapes what JSON demands. Here the other characters that a terminal would obey (C1 controls, bidirectional marks, line
//! separators) become escapes of JSON too, so that a reader of the JSON gets the same text.

use std::fmt::Write as _;
use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;
use weir_engine::words::is_plain;

/// The names as the formatter writes them, in their order, and those of envoyproxy/ratelimit. No quote inside a text is
/// written without a backslash before it, so each is found where it is a name.
const NAMES: [(&str, &str); 2] = [("{\"timestamp\":", "{\"@timestamp\":"), (",\"message\":", ",\"@message\":")];

/// How time and message are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// `timestamp` and `message`.
    Plain,
    /// `@timestamp` and `@message`.
    At,
}

/// Prepares each line for another writer.
#[derive(Clone, Debug)]
pub(super) struct JsonLines<W>(pub(super) W, pub(super) Names);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for JsonLines<W> {
    type Writer = JsonLines<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        JsonLines(self.0.make_writer(), self.1)
    }
}

/// One call is one line: the formatter writes each event as a whole.
impl<W: Write> Write for JsonLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut text = escaped(&String::from_utf8_lossy(line));
        if self.1 == Names::At {
            for (plain, at) in NAMES {
                text = text.replacen(plain, at, 1);
            }
        }
        self.0.write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A line of JSON with printable characters only. A character past U+FFFF becomes a pair of surrogates.
fn escaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for c in line.chars() {
        if c == '\n' || is_plain(c) {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}
