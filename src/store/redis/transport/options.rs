//! The bounds of a pipeline to one server, and their defaults.
//!
//! Not here: the settings of an operator (package settings), and how they become these options (app).

use std::sync::Arc;
use std::time::Duration;

use super::turns::Turns;
use crate::redis::base::circuit::BreakerSettings;
use crate::redis::base::observer::RedisObserver;
use crate::redis::dial::target::RedisTarget;

/// The default maximum of calls that wait in one pipeline. With answers in 10 ms this is 100,000 calls a second on one
/// core. More could not be served in time, so they are refused at once.
const QUEUE_MAX: usize = 1024;

/// The default maximum of calls in one batch. Redis' cost per call hardly falls beyond 32, and the first call of a
/// batch waits for the last.
pub(crate) const BATCH_MAX: usize = 64;

/// The default number of connections of one pipeline.
const CONNECTIONS: u32 = 2;

/// The default timeout of a dial.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The default maximum of calls that are merged into one command. During the command Redis serves no other client: at
/// most for about 100 us, which the merger bounds. More than 16 save hardly anything.
pub const MERGE_MAX: usize = 16;

/// The options of a pipeline to one server, and of its node. Start with [`Options::new`].
#[derive(Clone)]
pub struct Options {
    pub target: RedisTarget,
    /// The number of connections, each with a worker; at least 1. Fewer connections give larger batches.
    pub connections: u32,
    /// The timeout of a dial, including the handshake; more than zero.
    pub connect_timeout: Duration,
    /// The most calls that may wait; at least 1.
    pub queue_max: usize,
    /// The most calls in one batch; at least 1.
    pub batch_max: usize,
    /// The most calls of a batch that are merged into one command; below 2, none are merged.
    pub merge_max: usize,
    /// When the circuit breaker of a node opens (routing/node.rs). The pipeline uses only `timeout`, which determines
    /// how long a connection may be silent.
    pub breaker: BreakerSettings,
    /// The turns of heavy calls (heavy.rs).
    pub turns: Turns,
    /// Receives reports of batches, failed dials and dropped connections.
    pub observer: Arc<dyn RedisObserver>,
}

impl Options {
    /// The defaults, without an observer.
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
