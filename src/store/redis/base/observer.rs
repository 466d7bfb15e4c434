//! The events that the Redis store reports to logs and metrics, and their types.
//!
//! Not here: what is logged and counted (app), and the events of limits (the engine's observer).

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::ServerError;
use weir_tls::files::FileError;

use super::circuit::Circuit;
use super::error_class::RedisErrorClass;

/// Receives the events of the Redis store. The runtime that serves requests calls every method, so a method must return
/// at once.
pub trait RedisObserver: Send + Sync + 'static {
    /// Redis answered a batch of `calls` (at least one), `took` after the batch left the queue. Calls that are sent
    /// again after NOSCRIPT form a separate batch.
    fn batch_answered(&self, _calls: usize, _took: Duration) {}

    fn connected(&self) {}

    fn dial_failed(&self, _error: &DialError) {}

    /// A file that is read at every dial cannot be used. Its last good content stays in use.
    fn file_refused(&self, _error: &FileError) {}

    /// A connection was closed, with the reason as a sentence for people.
    fn connection_dropped(&self, _reason: &str) {}

    /// A connection to the server at `address` broke, with the reason: it closed while calls were in flight, the server
    /// sent bytes that are not RESP, or it sent a reply without a request. [`RedisObserver::connection_dropped`] is
    /// called too.
    fn connection_broke(&self, _address: &str, _reason: &str) {}

    /// A dial to `address` waits for `wait`, because there were too many recently.
    fn dial_held(&self, _address: &str, _wait: Duration) {}

    /// The reply to a script call has a form that no script of weir returns.
    fn strange_reply(&self) {}

    /// A pipeline to `address` starts. `load` has values until the pipeline ends.
    fn started(&self, _address: &str, _load: Load) {}

    /// A pipeline to `address` has ended, after [`RedisObserver::started`].
    fn ended(&self, _address: &str) {}

    /// The server at `address` answered a call with an error of this class.
    fn refused(&self, _address: &str, _class: &RedisErrorClass, _error: &ServerError) {}

    /// One runtime's circuit breaker in front of the server at `address` has changed.
    fn circuit_changed(&self, _address: &str, _from: Circuit, _to: Circuit) {}

    /// One runtime has removed its circuit for the server at `address`, which was open or half open. This does not
    /// describe the server's state.
    fn circuit_gone(&self, _address: &str, _was: Circuit) {}
}

impl RedisObserver for () {}

/// The calls that wait in one pipeline.
pub(crate) trait Backlog: fmt::Debug + Send + Sync {
    /// How many calls wait to be sent.
    fn waiting(&self) -> usize;
}

/// The current load of a pipeline, for gauges. Each number is outdated at once. None after the pipeline has ended.
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
    pub fn waiting(&self) -> Option<usize> {
        self.backlog.as_ref()?.upgrade().map(|backlog| backlog.waiting())
    }

    /// Connections that are open.
    pub fn connections(&self) -> Option<usize> {
        self.open.upgrade().map(|open| open.load(Ordering::Relaxed))
    }
}

/// Reports a pipeline to its observer, and the pipeline's end when dropped.
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

/// The word in metrics when no Redis answered.
pub(crate) const NO_CONNECTION: &str = "no_connection";

/// Why there is no connection. Cheap to clone: every waiting call gets a clone.
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

    /// The same error, with a flag whether nothing listens at the address.
    pub(crate) fn refused(self, is_refused: bool) -> Self {
        Self { is_refused, ..self }
    }

    /// Whether nothing listens at the address, or the address does not exist.
    pub const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Its label in metrics: the class of the error by which Redis refused the connection, or `no_connection`.
    pub const fn kind(&self) -> &'static str {
        self.kind
    }
}
