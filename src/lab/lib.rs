//! Tries policies without a server: simulations of traffic, comparisons of policies, and tests.

pub mod comparison;
pub mod message;
pub mod simulation;
pub mod testing;
pub mod world;
