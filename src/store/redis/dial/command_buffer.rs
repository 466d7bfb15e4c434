//! Commands encoded for a connection, one after the other in one buffer.
//!
//! Not here: what is sent (transport), and how it is written and answered (connection.rs).

use redis::Cmd;

/// A larger buffer is freed after its batch.
const KEPT_BYTES: usize = 64 << 10;

/// The commands of one batch. The next batch reuses the buffer.
#[derive(Debug, Default)]
pub(crate) struct CommandBuffer {
    bytes: Vec<u8>,
    commands: usize,
}

impl CommandBuffer {
    pub(crate) fn of(command: &Cmd) -> Self {
        let mut request = Self::default();
        request.add(command);
        request
    }

    /// How many commands the buffer has, which is also the number of answers.
    pub(crate) const fn commands(&self) -> usize {
        self.commands
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.commands = 0;
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
    }

    pub(crate) fn add(&mut self, command: &Cmd) {
        command.write_packed_command(&mut self.bytes);
        self.commands += 1;
    }

    /// Begins a command of `arguments` arguments, including its name. As many calls of [`Self::argument`] must follow.
    pub(crate) fn begin(&mut self, arguments: usize) {
        self.line(b'*', arguments);
        self.commands += 1;
    }

    pub(crate) fn argument(&mut self, bytes: &[u8]) {
        self.argument_by(bytes.len(), |buffer| buffer.extend_from_slice(bytes));
    }

    /// Appends an argument of `length` bytes, which `write` appends to the buffer.
    pub(crate) fn argument_by(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.line(b'$', length);
        let end = self.bytes.len() + length;
        write(&mut self.bytes);
        assert_eq!(self.bytes.len(), end, "an argument of the wrong length breaks every command after it");
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends an argument that is a number in decimal.
    pub(crate) fn number(&mut self, number: usize) {
        self.argument(itoa::Buffer::new().format(number).as_bytes());
    }

    fn line(&mut self, mark: u8, number: usize) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_written_as_the_redis_crate_writes_it() {
        let mut command = redis::cmd("SET");
        command.arg("a key").arg(b"\0\r\n").arg("").arg(1_024);
        let mut request = CommandBuffer::default();
        request.begin(5);
        request.argument(b"SET");
        request.argument_by(5, |bytes| bytes.extend(b"a key"));
        request.argument(b"\0\r\n");
        request.argument(b"");
        request.number(1_024);
        assert_eq!(request.bytes, CommandBuffer::of(&command).bytes);
        assert_eq!(request.commands(), 1);
    }

    #[test]
    fn a_large_buffer_is_given_back() {
        let mut request = CommandBuffer::default();
        request.argument(&[0; KEPT_BYTES + 1]);
        request.clear();
        assert_eq!((request.bytes.capacity(), request.commands()), (0, 0));
    }
}
