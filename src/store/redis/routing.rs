//! Which server a call goes to, and whether it may be sent now: nodes behind circuit breakers, and the slots of a
//! cluster.
//!
//! Not here: how calls are sent to one server (transport), and what a call means (scripts).

pub mod breaker;
pub(super) mod cluster;
pub mod node;
