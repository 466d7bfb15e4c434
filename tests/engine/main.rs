//! The engine: examples of docs/semantics.md, and random properties. It needs the engine only.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![allow(clippy::disallowed_methods, reason = "tests read their number of cases from the environment")]

mod alerts;
mod examples;
mod holds;
mod matching;
mod properties;
mod support;
