//! The rules of the repository: pages against code, generated code, and what the compiler cannot hold.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod generated;
mod runbook;
mod tidy;
mod version;
