//! The rules of the repository: pages against code, generated code, and what the compiler cannot hold.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod api;
mod generated;
mod runbook;
mod size;
mod steps;
mod tidy;
mod version;
