//! Redis itself: each way to reach it, what its errors mean, and what happens while it or the network fails.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

extern crate weir_testkit as support;

mod acl;
mod breaker;
mod buckets;
mod cluster;
mod errors;
mod faults;
mod health;
mod leases;
mod merge;
mod pipeline;
mod rows;
mod sentinel;
mod topologies;
