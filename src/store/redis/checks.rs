//! Checks of a server: whether it supports what weir needs, whether it may evict limits, and its clock.
//!
//! Not here: when the checks run, and the consequences (app).

pub(super) mod clock;
pub(super) mod commands;
pub(super) mod eviction;
