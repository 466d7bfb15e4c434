//! Formats the fields of a text line. Their values can come from callers, files and peers.

use std::fmt::{self, Debug};

use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use weir_engine::words::printable;

/// Writes the message and then each field on one line. No value can end the line or control a terminal.
pub(super) fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    debug_fn(write).delimited(" ")
}

fn write(out: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = printable(&format!("{value:?}"));
    let name = field.name();
    let name = name.strip_prefix("r#").unwrap_or(name);
    if name == "message" {
        out.write_str(&value)
    } else if out.has_ansi_escapes() {
        write!(out, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m{value}")
    } else {
        write!(out, "{name}={value}")
    }
}
