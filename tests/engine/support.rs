//! What these tests share with other programs, as far as it needs the engine only.

#![allow(dead_code, unreachable_pub, reason = "a module of several test programs, each of which uses a part of it")]

#[path = "../support/algorithms.rs"]
pub mod algorithms;
#[path = "../support/arbitrary.rs"]
pub mod arbitrary;
#[path = "../support/oracle.rs"]
pub mod oracle;
#[path = "../support/watched.rs"]
pub mod watched;
#[path = "../support/wildcards.rs"]
pub mod wildcards;
