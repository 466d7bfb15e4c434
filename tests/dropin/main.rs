//! weir in the place of envoyproxy/ratelimit: started by its name, with its environment variables, and asked as it is
//! asked.
//!
//! Recorded answers of envoyproxy/ratelimit are in recorded.rs, what each variable does in environment.rs,
//! and Envoy Gateway's way of running it in gateway.rs.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

#[path = "../support/mod.rs"]
mod support;

mod environment;
mod gateway;
mod recorded;
mod started;
