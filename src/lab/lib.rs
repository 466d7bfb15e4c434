//! Tries policies without a server: simulations of traffic, comparisons of policies, and tests.

pub mod comparison;
mod in_flight;
pub mod simulation;
pub mod testing;
