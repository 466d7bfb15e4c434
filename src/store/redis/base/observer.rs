//! The events that the Redis store reports to logs and metrics, and their types.
//!
//! Not here: what is logged and counted (app), and the events of limits (the engine's observer).

use std::sync::Weak;
use std::time::Duration;

use redis::ServerError;
use weir_tls::files::FileError;

use super::circuit::Circuit;
use super::dial_error::DialError;
use super::error_class::RedisErrorClass;

/// Receives the events of the Redis store. The runtime that serves requests calls every method, so a method must return
/// at once.
pub trait RedisObserver: Send + Sync + 'static {
    /// Redis answered a batch of `calls` (at least one), `took` after the batch left the queue. Calls that are sent
    /// again after NOSCRIPT form a separate batch.
    fn batch_answered(&self, _calls: usize, _took: Duration) {}

    fn connected(&self) {}

    /// A dial to `address` has failed.
    fn dial_failed(&self, _address: &str, _error: &DialError) {}

    /// A file that is read at every dial cannot be used. Its last good content stays in use.
    fn file_refused(&self, _error: &FileError) {}

    /// A connection was closed, with the reason as a sentence for people.
    fn connection_dropped(&self, _reason: &str) {}

    /// A connection to the server at `address` broke, with the reason: it closed while calls were in flight, the server
    /// sent bytes that are not RESP, or it sent a reply without a request. [`RedisObserver::connection_dropped`] is
    /// called too.
    fn connection_broke(&self, _address: &str, _reason: &str) {}

    /// The server at `address` is the master from now on, in the place of another one.
    fn master_changed(&self, _address: &str) {}

    /// A subscription to the failovers of the sentinel at `address` has failed or ended.
    fn subscription_failed(&self, _address: &str, _error: &DialError) {}

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

/// What a pipeline has to show.
pub(crate) trait Loaded: Send + Sync {
    /// How many calls wait to be sent.
    fn waiting(&self) -> usize;
    /// How many connections are open.
    fn connections(&self) -> usize;
}

/// The current load of a pipeline, for gauges. Each number is outdated at once. None after the pipeline has ended.
#[derive(Clone, Debug, Default)]
pub struct Load(Option<Weak<dyn Loaded>>);

impl Load {
    pub(crate) fn of(pipeline: Weak<dyn Loaded>) -> Self {
        Self(Some(pipeline))
    }

    /// Calls that wait to be sent.
    pub fn waiting(&self) -> Option<usize> {
        self.0.as_ref()?.upgrade().map(|pipeline| pipeline.waiting())
    }

    /// Connections that are open.
    pub fn connections(&self) -> Option<usize> {
        self.0.as_ref()?.upgrade().map(|pipeline| pipeline.connections())
    }
}
