//! Why a call has no answer, and whether it can have run.
//!
//! Not here: what that means for a charge (failure.rs), and the errors of Redis itself (base/error_class.rs).

use std::sync::Arc;

use redis::ServerError;

use crate::redis::base::error_class::RedisErrorClass;
use crate::redis::base::observer::DialError;

/// Why a call has no answer that can be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// It did not run: nothing was written, or Redis answered that it did not run. You may try it again.
    #[error("not sent to redis: {reason}")]
    NotSent {
        /// What stood in the way.
        reason: Reason,
    },
    /// It may have been written, and no answer was read: it ran once or not at all. Never try it again.
    #[error("sent to redis, outcome unknown: {reason}")]
    Unknown {
        /// Why no answer was read.
        reason: Reason,
    },
    /// Redis answered with an error. The log shows its text; callers get only the code of its class.
    #[error("refused by redis: {}", RedisErrorClass::of(.0).code)]
    Refused(ServerError),
}

/// What kept a call from its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Reason {
    /// As many calls wait as the queue holds.
    #[error("the queue is full ({max} calls)")]
    QueueFull {
        /// The bound.
        max: usize,
    },
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The deadline has passed, and there was no connection to send it on.
    #[error("{0}")]
    NoConnection(DialError),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// No node of the cluster is known to hold the key's slot.
    #[error("no node of the redis cluster is known to hold slot {slot}: {why}")]
    NoNode {
        /// The slot, below 16,384.
        slot: u16,
        /// The last answer of the cluster, or why there was none.
        why: Arc<str>,
    },
    /// Redis has failed too often lately. No call goes there until it answers again.
    #[error("the circuit breaker is open")]
    CircuitOpen,
}
