//! Escapes lines of JSON for the log.
//!
//! The formatter escapes what JSON requires. This file escapes the other characters that control a terminal: C1
//! controls, bidirectional marks, line separators. A reader of the JSON gets the same text.

use std::fmt::Write as _;
use std::io::{self, Write};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;
use weir_engine::words::is_plain;

/// The names as the formatter writes them, in their order, and those of envoyproxy/ratelimit. A quote inside a text has a
/// backslash before it, so the first match is the name.
const NAMES: [(&str, &str); 2] = [("{\"timestamp\":", "{\"@timestamp\":"), (",\"message\":", ",\"@message\":")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// `timestamp` and `message`.
    Plain,
    /// `@timestamp` and `@message`.
    At,
}

#[derive(Clone, Debug)]
pub(super) struct JsonLines<W>(pub(super) W, pub(super) Names);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for JsonLines<W> {
    type Writer = JsonLines<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        JsonLines(self.0.make_writer(), self.1)
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> Self::Writer {
        JsonLines(self.0.make_writer_for(line), self.1)
    }
}

/// Each call gets one line, because the formatter writes an event in one call.
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

/// A line of JSON with printable characters only. A character above U+FFFF becomes a surrogate pair.
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
