//! The command line: arguments, and a module for each command.

pub mod admin;
pub mod args;
pub mod ask;
mod bar;
pub mod check;
pub mod client;
pub mod descriptor;
pub mod dialect;
pub mod diff;
pub mod explain;
pub mod lua;
mod numbers;
pub mod overridden;
pub mod overrides;
pub mod pipe;
pub mod program;
pub mod ratelimit;
pub mod rows;
mod runtime;
pub mod serve;
pub mod served;
mod shown;
pub mod simulate;
pub mod tap;
pub mod test;
pub mod token;
pub mod top;
