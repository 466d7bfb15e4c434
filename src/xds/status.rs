//! The state of the subscription, for `/readyz`, metrics and logs.

use std::time::SystemTime;

use parking_lot::Mutex;

/// The longest stored text of the server, in bytes: a version, or the reason of an error.
const TEXT_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, Default)]
pub struct Status {
    pub connected: bool,
    /// The version in force. None before the first.
    pub version: Option<String>,
    /// The time of the last accepted response.
    pub acked_at: Option<SystemTime>,
    /// The last refused response.
    pub nack: Option<Nack>,
    pub refused: bool,
    /// Why there is no connection. None while there is one, and before the first attempt.
    pub trouble: Option<String>,
    pub connections: u64,
    /// Failed connections, and streams that ended.
    pub failures: u64,
    pub acks: u64,
    pub nacks: u64,
}

#[derive(Clone, Debug)]
pub struct Nack {
    pub version: String,
    pub reason: String,
    pub at: SystemTime,
}

/// The state of a subscription, shared.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Status>);

impl Watch {
    pub fn status(&self) -> Status {
        self.0.lock().clone()
    }

    /// Reads a part of the state without copying all of it.
    pub fn read<T>(&self, read: impl FnOnce(&Status) -> T) -> T {
        read(&self.0.lock())
    }

    pub(super) fn connected(&self) {
        let mut status = self.0.lock();
        status.connected = true;
        status.trouble = None;
        status.connections += 1;
    }

    pub(super) fn lost(&self, reason: &str) {
        let mut status = self.0.lock();
        status.connected = false;
        status.trouble = Some(shown(reason).to_owned());
        status.failures += 1;
    }

    pub(super) fn acked(&self, version: &str) {
        let mut status = self.0.lock();
        status.version = Some(version.to_owned());
        status.acked_at = Some(SystemTime::now());
        status.refused = false;
        status.acks += 1;
    }

    pub(super) fn nacked(&self, version: &str, reason: &str) {
        let mut status = self.0.lock();
        let (version, reason) = (shown(version).to_owned(), shown(reason).to_owned());
        status.nack = Some(Nack { version, reason, at: SystemTime::now() });
        status.refused = true;
        status.nacks += 1;
    }
}

/// The beginning of another program's text, at most 1 KiB.
pub fn shown(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
