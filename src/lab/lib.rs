//! What operators learn about policies before these are in force: results of traffic, what a change of policies changes, and tests.
//!
//! Nothing here is part of the server. Not here: files of results, and arguments and exit codes (cli).

pub mod comparison;
mod in_flight;
pub mod simulation;
pub mod testing;
