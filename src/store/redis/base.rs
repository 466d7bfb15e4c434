//! The base of all other folders of the Redis store: reports to logs and metrics, the meaning of each error of Redis,
//! the states of a circuit, and pauses between attempts.
//!
//! Not here: connections, calls, scripts.
pub(super) mod circuit;
pub(super) mod dial_error;
pub mod error_class;
pub(super) mod observer;
pub(super) mod tasks;
