//! The command line: arguments, and a module for each command.

pub mod admin;
pub mod args;
pub mod ask;
mod bar;
pub mod check;
pub mod client;
pub mod diff;
pub mod explain;
pub mod lua;
pub mod manual;
pub mod overridden;
pub mod overrides;
pub mod pipe;
pub mod program;
pub mod ratelimit;
pub mod rows;
pub mod serve;
pub mod served;
mod shown;
mod signals;
pub mod simulate;
pub mod tap;
pub mod test;
pub mod token;
pub mod top;
