//! Checks of a server, once at the start: whether it supports what weir needs, and whether it may evict limits.
//!
//! Not here: when the checks run, and the consequences (app).

pub(super) mod commands;
pub(super) mod eviction;
