//! The two stores and what stands before them: memory and Redis decide alike, memory is bounded, denials are cached, a
//! request over several stores is charged as a whole.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

extern crate weir_testkit as support;

mod allocations;
mod budgets;
mod calendar;
mod comparison;
mod concurrency;
mod conformance;
mod deny_cache;
mod differential;
mod eviction;
mod expiry;
mod holds;
mod members;
mod overrides;
mod permits;
mod policy_tests;
mod request_limits;
mod requests;
mod rows;
mod simulation;
mod split;
mod terms;
mod trials;
mod upgrade;
mod weighed;
