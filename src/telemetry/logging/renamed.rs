//! Lines of JSON with other names for time and message: `@timestamp` and `@message`, as envoyproxy/ratelimit writes them.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

/// The names as the formatter writes them, in their order, and what stands there instead. No quote inside a text is
/// written without a backslash before it, so each is found where it is a name.
const NAMES: [(&str, &str); 2] = [("{\"timestamp\":", "{\"@timestamp\":"), (",\"message\":", ",\"@message\":")];

/// Renames in each line on its way to another writer.
#[derive(Clone, Debug)]
pub(super) struct Renamed<W>(pub(super) W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Renamed<W> {
    type Writer = Renamed<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Renamed(self.0.make_writer())
    }
}

/// One call is one line: the formatter writes each event as a whole.
impl<W: Write> Write for Renamed<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let [(time, our_time), (message, our_message)] = NAMES;
        self.0.write_all(text.replacen(time, our_time, 1).replacen(message, our_message, 1).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
