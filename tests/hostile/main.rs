//! What a hostile or broken surrounding may do to weir: no peer, log reader, disk or file takes it down or makes it hold
//! more than docs/operations.md allows. One module for each subject.

#![allow(unreachable_pub, reason = "the modules of one test binary share what they need")]

#[path = "../support/mod.rs"]
mod support;

mod bare;
mod logs;
mod policies;
