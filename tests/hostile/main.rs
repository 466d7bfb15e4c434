//! What a peer, a caller, a server, a log reader, a disk or a file can do to weir at worst, and what it costs: one file for
//! each way in.
//!
//! Every bound that is asserted is one of the table "What a caller can hold" in docs/operations.md, or one of its section
//! on the memory store.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![allow(unreachable_pub, reason = "the modules of one test binary share what they need")]

#[path = "../support/mod.rs"]
mod support;

mod bare;
mod doors;
mod doors_http;
mod logs;
mod policies;
mod redis;
mod scrapes;
mod states;
