//! What every other folder of the Redis store uses: how it reports to logs and metrics, what each error of Redis means,
//! whether a circuit is open, and how long to wait before another try.
//!
//! Not here: connections, calls, scripts.
pub(super) mod circuit;
pub mod error_class;
pub(super) mod observer;
