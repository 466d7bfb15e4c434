//! What the Redis store reports to logs and metrics, and the types that it reports.
//!
//! Not here: what is logged and counted (app), and what limits report (the engine's observer).

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::ServerError;
use weir_tls::files::FileError;

use super::circuit::Circuit;
use super::error_class::RedisErrorClass;

/// Gets the reports of the Redis store. Every method is called on the runtime that serves requests: it must return at
/// once.
pub trait RedisObserver: Send + Sync + 'static {
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

    /// A file that is read at every dial cannot be used. Its last good content stays in force.
    fn file_refused(&self, error: &FileError) {
        let _ = error;
    }

    /// A connection was closed, with the reason as a sentence for people.
    fn connection_dropped(&self, reason: &str) {
        let _ = reason;
    }

    /// A connection to the server at `address` broke, with the reason: it was closed under calls, or the server sent what is
    /// not RESP, or a reply that no request waits for. [`RedisObserver::connection_dropped`] reports it too.
    fn connection_broke(&self, address: &str, reason: &str) {
        let _ = (address, reason);
    }

    /// A dial to `address` waits for `wait`, since too many were made lately.
    fn dial_held(&self, address: &str, wait: Duration) {
        let _ = (address, wait);
    }

    /// The answer to a script call has a form that no script of weir returns.
    fn strange_reply(&self) {}

    /// A pipeline to `address` begins. `load` has values as long as it lasts.
    fn started(&self, address: &str, load: Load) {
        let _ = (address, load);
    }

    /// A pipeline to `address` that [`RedisObserver::started`] reported is gone.
    fn ended(&self, address: &str) {
        let _ = address;
    }

    /// The server at `address` answered a call with an error of the class `class`.
    fn refused(&self, address: &str, class: &RedisErrorClass, error: &ServerError) {
        let _ = (address, class, error);
    }

    /// One runtime's circuit breaker in front of the server at `address` has changed.
    fn circuit_changed(&self, address: &str, from: Circuit, to: Circuit) {
        let _ = (address, from, to);
    }

    /// One runtime has no circuit for the server at `address` any more. It was not closed. That says nothing about the
    /// server.
    fn circuit_gone(&self, address: &str, was: Circuit) {
        let _ = (address, was);
    }
}

/// Observes nothing.
impl RedisObserver for () {}

/// The calls that wait in one pipeline.
pub(crate) trait Backlog: fmt::Debug + Send + Sync {
    /// How many calls wait to be sent.
    fn waiting(&self) -> usize;
}

/// What a pipeline holds at this moment, for gauges. Each number is out of date at once. There is none once the pipeline
/// is gone.
#[derive(Clone, Debug, Default)]
pub struct Load {
    backlog: Option<Weak<dyn Backlog>>,
    open: Weak<AtomicUsize>,
}

impl Load {
    pub(crate) fn new(backlog: Weak<dyn Backlog>, open: &Arc<AtomicUsize>) -> Self {
        Self { backlog: Some(backlog), open: Arc::downgrade(open) }
    }

    /// Calls that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> Option<usize> {
        self.backlog.as_ref()?.upgrade().map(|backlog| backlog.waiting())
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> Option<usize> {
        self.open.upgrade().map(|open| open.load(Ordering::Relaxed))
    }
}

/// Reports a pipeline to its observer, and its end when this is dropped.
pub(crate) struct Announced {
    address: Box<str>,
    observer: Arc<dyn RedisObserver>,
}

impl Announced {
    pub(crate) fn start(address: &str, load: Load, observer: Arc<dyn RedisObserver>) -> Self {
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

/// The word in metrics where no Redis has answered.
pub(crate) const NO_CONNECTION: &str = "no_connection";

/// Why there is no connection. Cheap to clone: every call that waited gets one.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no connection to redis at {address}: {reason}")]
pub struct DialError {
    address: Arc<str>,
    kind: &'static str,
    reason: Arc<str>,
    is_refused: bool,
}

impl DialError {
    pub(crate) const fn new(address: Arc<str>, kind: &'static str, reason: Arc<str>) -> Self {
        Self { address, kind, reason, is_refused: false }
    }

    /// The same where nothing listens at the address.
    pub(crate) fn refused(self, is_refused: bool) -> Self {
        Self { is_refused, ..self }
    }

    /// Whether nothing listens at the address, or there is no such address.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Its label in metrics: the class of the error by which Redis refused the connection, or `no_connection`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }
}
