//! Calls to one server: a bounded queue, batches that share round trips, deadlines, and the pool of connections.
//!
//! Not here: which server a call goes to (routing), and what a call means (scripts).

pub(super) mod call;
pub(super) mod charge_list;
pub(super) mod error;
pub(super) mod heavy;
pub(super) mod options;
pub mod pipeline;
pub(super) mod pool;
pub(super) mod queue;
pub(super) mod script;
pub mod turns;
pub(super) mod worker;
