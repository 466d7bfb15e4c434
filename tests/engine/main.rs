//! The engine: examples of docs/semantics.md, and random properties. It needs the engine only.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod alerts;
mod examples;
mod matching;
mod properties;
mod support;
