//! The rules of the repository: pages against code, generated code, and what the compiler cannot hold.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod api;
mod generated;
mod runbook;
mod size;
mod tidy;
#[allow(dead_code, unreachable_pub, reason = "a part of what the tests of programs share")]
#[path = "../support/tools.rs"]
mod tools;
mod version;
