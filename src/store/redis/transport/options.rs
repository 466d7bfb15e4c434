//! How a pipeline to one server is built: its bounds, and the defaults.
//!
//! Not here: the settings that an operator writes (package settings), and how they become these (app).

use std::sync::Arc;
use std::time::Duration;

use super::turns::Turns;
use crate::redis::base::circuit::BreakerSettings;
use crate::redis::base::observer::RedisObserver;
use crate::redis::dial::target::RedisTarget;

/// Calls that may wait in one pipeline by default. With answers in 10 ms this is 100,000 calls a second
/// on one core: more cannot be served in time, so they are refused at once.
const QUEUE_MAX: usize = 1024;

/// Calls in one batch by default. Redis' cost per call hardly falls beyond 32, and the first call of a
/// batch waits for the last.
pub(crate) const BATCH_MAX: usize = 64;

/// Connections of one pipeline by default.
const CONNECTIONS: u32 = 2;

/// How long a dial may take by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls that are merged into one command by default. Redis serves no other client meanwhile: at most about 100 us, which
/// the merger bounds. More than 16 save hardly anything.
pub const MERGE_MAX: usize = 16;

/// How a pipeline to one server, and the node around it, is built. Start from [`Options::new`].
#[derive(Clone)]
pub struct Options {
    /// Where Redis is.
    pub target: RedisTarget,
    /// Connections, each with a worker; at least 1. Fewer make larger batches.
    pub connections: u32,
    /// The bound for a dial, from the address to the answered handshake; more than zero.
    pub connect_timeout: Duration,
    /// Calls that may wait; at least 1.
    pub queue_max: usize,
    /// Calls in one batch; at least 1.
    pub batch_max: usize,
    /// Calls of a batch that are merged into one command at most; below 2 none are.
    pub merge_max: usize,
    /// When the circuit breaker in front of a pipeline opens (routing/node.rs). The pipeline uses only `timeout`: the
    /// time that a connection may be silent follows from it.
    pub breaker: BreakerSettings,
    /// The turns in which heavy calls are made (heavy.rs).
    pub turns: Turns,
    /// Gets reports of batches, failed dials and dropped connections.
    pub observer: Arc<dyn RedisObserver>,
}

impl Options {
    /// The defaults, without an observer.
    #[must_use]
    pub fn new(target: impl Into<RedisTarget>) -> Options {
        Options {
            target: target.into(),
            connections: CONNECTIONS,
            connect_timeout: CONNECT_TIMEOUT,
            queue_max: QUEUE_MAX,
            batch_max: BATCH_MAX,
            merge_max: MERGE_MAX,
            breaker: BreakerSettings::default(),
            turns: Turns::default(),
            observer: Arc::new(()),
        }
    }
}
