//! Tries policies without a server: simulations of traffic, comparisons of policies, and tests.
//!
//! Not here: files of results, arguments and exit codes (cli).

pub mod comparison;
mod in_flight;
pub mod simulation;
pub mod testing;
