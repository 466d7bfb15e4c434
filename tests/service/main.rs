//! weir as callers and operators meet it: its listeners, its process, policies that change, and Envoy in front of it.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![allow(unreachable_pub, reason = "the modules of one test binary share what they need")]

extern crate weir_testkit as support;

mod callers;
mod clients;
mod concurrency;
mod dropin;
mod envoy;
mod grpc;
mod holds;
mod hostile;
mod http;
mod input_limits;
mod lifecycle;
mod metrics;
mod operator;
mod reload;
mod reports;
mod simulated;
mod traces;
mod xds;
