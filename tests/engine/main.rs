//! What needs neither a server nor a socket: the engine, limits on policies and settings as texts, pages, and the rules of
//! the repository.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

#[path = "../support/mod.rs"]
mod support;

mod alerts;
mod comparison;
mod differences;
mod examples;
mod generated;
mod lint;
mod matching;
mod modes;
mod policies;
mod properties;
mod runbook;
mod schemas;
mod settings;
mod settings_groups;
mod settings_xds;
mod tidy;
mod trials;
