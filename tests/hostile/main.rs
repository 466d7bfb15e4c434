//! What a peer, a caller or a server can do to weir at worst, and what it costs: one file for each way in.
//!
//! Every bound that is asserted is one of the table "What a caller can hold" in docs/operations.md, or one of its section
//! on the memory store.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

#[path = "../support/mod.rs"]
mod support;

mod doors;
mod doors_http;
mod redis;
mod states;
