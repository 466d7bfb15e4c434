//! Output whose reader may stop early, as `head` does.

use std::io::{self, ErrorKind, Write};

/// Writes until the reader closes the pipe, and discards the rest. The command continues, so its exit code does not
/// depend on the reader.
#[derive(Debug)]
pub struct UntilClosed<W> {
    out: W,
    is_closed: bool,
}

impl<W: Write> UntilClosed<W> {
    pub fn new(out: W) -> Self {
        Self { out, is_closed: false }
    }

    fn unless_closed<T>(&mut self, discarded: T, write: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        if self.is_closed {
            return Ok(discarded);
        }
        match write(&mut self.out) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(discarded)
            }
            result => result,
        }
    }
}

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), W::flush)
    }
}
