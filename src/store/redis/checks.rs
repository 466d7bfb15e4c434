//! What a server is asked once, at the start: whether it can do what weir needs, and whether it may lose limits.
//!
//! Not here: when it is asked, and what follows from the answer (app).

pub(super) mod commands;
pub(super) mod eviction;
