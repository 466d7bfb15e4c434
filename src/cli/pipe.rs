//! Output whose reader may go before all is written, as `head` does.

use std::io::{self, ErrorKind, Write};

/// Writes until the reader has closed the pipe, and discards the rest. The command goes on, so that its exit code does not depend on
/// how much its reader reads.
pub(super) struct UntilClosed<'w> {
    out: &'w mut dyn Write,
    is_closed: bool,
}

impl<'w> UntilClosed<'w> {
    pub(super) fn new(out: &'w mut dyn Write) -> Self {
        Self { out, is_closed: false }
    }

    fn unless_closed<T>(&mut self, discarded: T, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        if self.is_closed {
            return Ok(discarded);
        }
        match write(self.out) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(discarded)
            }
            result => result,
        }
    }
}

impl Write for UntilClosed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), |out| out.flush())
    }
}
