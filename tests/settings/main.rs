//! Settings as texts: what is refused and why, and the page that lists them.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod all;
mod groups;
mod page;
mod xds;
