//! weir: a rate limit decision service for Envoy and for the owners of services.
//!
//! ARCHITECTURE.md says which module may use which; `tests/engine/tidy.rs` holds it.

pub mod app;
pub mod cli;
pub mod comparison;
pub mod config;
pub mod engine;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod grpc;
pub mod http;
pub mod lifecycle;
pub mod limiter;
pub mod protobuf;
pub mod rls;
pub mod simulation;
pub mod store;
pub mod telemetry;
pub mod testing;
pub mod tls;
pub mod xds;
