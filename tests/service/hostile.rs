//! What a peer, a caller, a server, a log reader, a disk or a file can do to weir at worst, and what it costs: one file for
//! each way in.
//!
//! Every bound that is asserted is one of the table "What a caller can hold" in docs/bounds.md, or one of its section
//! on the memory store.

mod bare;
mod budget;
mod crowds;
mod doors;
mod doors_http;
mod logs;
mod policies;
mod redis;
mod scrapes;
mod states;
mod taps;
