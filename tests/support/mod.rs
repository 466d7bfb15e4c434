//! What the test programs share: other processes, clients and waiting; stores, charges and what they should give by independent reckoning.

#![allow(clippy::missing_errors_doc, reason = "each is an error of the operating system or of the server under test")]
#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

pub mod ads;
pub mod algorithms;
pub mod arbitrary;
pub mod authority;
pub mod cached;
pub mod cluster;
pub mod clustered;
pub mod envoy;
pub mod fake_node;
pub mod frames;
pub mod http;
pub mod listening;
pub mod load;
pub mod manual;
pub mod memory_limit;
pub mod oracle;
pub mod otlp;
pub mod process;
pub mod proxy;
pub mod python;
pub mod random;
pub mod redis;
pub mod rls;
pub mod secured;
pub mod seen;
pub mod sentinel;
pub mod served;
pub mod shop;
pub mod statsd;
pub mod stepped_clock;
pub mod stores;
pub mod terminal;
pub mod tools;
pub mod vectors;
pub mod wait;
pub mod watched;
pub mod webhook;
pub mod wildcards;
pub mod worlds;
