//! What the way to Redis tells of itself to whoever counts and logs it, and the error that every waiting call gets.
//!
//! Not here: what becomes of it (app), and what limits say (the engine's observer).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::ServerError;

use super::breaker::Circuit;
use super::pipeline::Load;
use super::refusal::Refusal;
use crate::tls::files::FileError;

/// What the transport tells whoever counts. Every method is called on the runtime that serves
/// requests: it must return at once.
pub trait Observer: Send + Sync + 'static {
    /// Redis answered a batch of `calls` (at least one), `took` after it left the queue. Calls that are
    /// sent a second time, because Redis did not know their script, are a batch of their own.
    fn batch_answered(&self, calls: usize, took: Duration) {
        let _ = (calls, took);
    }

    /// A connection was made.
    fn connected(&self) {}

    /// No connection could be made.
    fn dial_failed(&self, error: &DialError) {
        let _ = error;
    }

    /// A file that is read at every dial cannot be used. What it held before stays in force.
    fn file_refused(&self, error: &FileError) {
        let _ = error;
    }

    /// A connection was given up, with the reason as a sentence for people.
    fn connection_dropped(&self, reason: &str) {
        let _ = reason;
    }

    /// A connection to the server at `address` broke under calls, with the reason: it was closed, or the answer was none
    /// that a Redis gives. [`Observer::connection_dropped`] tells of it too.
    fn connection_broke(&self, address: &str, reason: &str) {
        let _ = (address, reason);
    }

    /// A dial to `address` waits for so long, since too many were made lately.
    fn dial_held(&self, address: &str, wait: Duration) {
        let _ = (address, wait);
    }

    /// A script call was answered in a form that no script of ours has.
    fn strange_reply(&self) {}

    /// A pipeline to `address` begins; `load` can be read as long as it lasts.
    fn started(&self, address: &str, load: Load) {
        let _ = (address, load);
    }

    /// A pipeline to `address` that was told of by [`Observer::started`] is gone, and nothing more is told of it.
    fn ended(&self, address: &str) {
        let _ = address;
    }

    /// The server at `address` answered a call with an error, whose row of the table is `refusal`.
    fn refused(&self, address: &str, refusal: &Refusal, error: &ServerError) {
        let _ = (address, refusal, error);
    }

    /// One runtime's circuit breaker before the server at `address` has changed.
    fn circuit_changed(&self, address: &str, from: Circuit, to: Circuit) {
        let _ = (address, from, to);
    }

    /// One runtime asks the server at `address` no more, and its circuit, which was not closed, is gone: what that says
    /// of the server is nothing.
    fn circuit_gone(&self, address: &str, was: Circuit) {
        let _ = (address, was);
    }
}

/// Observes nothing.
impl Observer for () {}

/// A pipeline that its observer knows of, until this is dropped.
pub(super) struct Announced {
    address: Box<str>,
    observer: Arc<dyn Observer>,
}

impl Announced {
    pub(super) fn start(address: &str, load: Load, observer: Arc<dyn Observer>) -> Self {
        observer.started(address, load);
        Self { address: address.into(), observer }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.observer.ended(&self.address);
    }
}

impl fmt::Debug for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Announced({})", self.address)
    }
}

/// Why there is no connection. Cheap to clone: every call that waited gets one.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no connection to redis at {address}: {reason}")]
pub struct DialError {
    address: Arc<str>,
    kind: &'static str,
    reason: Arc<str>,
}

impl DialError {
    pub(super) const fn new(address: Arc<str>, kind: &'static str, reason: Arc<str>) -> Self {
        Self { address, kind, reason }
    }

    /// Its word in metrics: that of the error by which Redis refused us, or `no_connection`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }
}
