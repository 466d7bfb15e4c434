//! Why a call has no answer, and whether it may have run.
//!
//! Not here: the consequences for a charge (failure.rs), and the errors of Redis itself (base/error_class.rs).

use std::sync::Arc;

use redis::ServerError;

use crate::redis::base::dial_error::DialError;
use crate::redis::base::error_class::RedisErrorClass;

/// Why a call has no usable answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// It did not run: nothing was written, or Redis answered that it did not run. It is safe to retry.
    #[error("not sent to redis: {reason}")]
    NotSent {
        /// What prevented the call.
        reason: Reason,
    },
    /// It may have been written, and no answer was read: it ran once or not at all. Never retry it.
    #[error("sent to redis, outcome unknown: {reason}")]
    Unknown {
        /// Why no answer was read.
        reason: Reason,
    },
    /// Redis answered with an error. The log shows its text; callers get only the code of its class.
    #[error("refused by redis: {}", RedisErrorClass::of(.0).code)]
    Refused(ServerError),
}

/// What prevented a call's answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Reason {
    #[error("the queue is full ({max} calls)")]
    QueueFull {
        /// The maximum number of calls.
        max: usize,
    },
    #[error("the deadline has passed")]
    Deadline,
    /// The deadline has passed without a connection to send the call on.
    #[error("no connection to redis at {address}: {error}")]
    NoConnection { address: Arc<str>, error: DialError },
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// No known node of the cluster has the key's slot.
    #[error("no node of the redis cluster is known to hold slot {slot}: {why}")]
    NoNode {
        /// The slot, below 16,384.
        slot: u16,
        /// The last answer of the cluster, or why there was none.
        why: Arc<str>,
    },
    /// Redis has failed too often recently. No call is sent until it answers again.
    #[error("the circuit breaker is open")]
    CircuitOpen,
}
