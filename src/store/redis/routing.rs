//! Which server a call goes to, and whether it may go there now: nodes behind circuit breakers, and the slots of a
//! cluster.
//!
//! Not here: how calls travel to one server (transport), and what a call means (scripts).

pub mod breaker;
pub(super) mod cluster;
pub mod node;
