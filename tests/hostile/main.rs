//! What callers, log readers, disks and heavy requests can do to weir, one file per subject: each test attacks and then
//! checks a bound. Not in here: what a decision is, and how fast it is made.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod states;
#[path = "../support/mod.rs"]
mod support;
