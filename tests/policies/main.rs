//! Policies as texts: what is read and refused, warnings, schemas, what a change of policies changes, and modes of the limiter.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

extern crate weir_testkit as support;

mod amounts;
mod callers;
mod comparison;
mod differences;
mod generated;
mod long;
mod matches;
mod modes;
mod overlays;
mod pairs;
mod permits;
mod policies;
mod schemas;
mod trials;
mod warnings;
mod weighing;
