//! What Prometheus gets of weir: the names and the page about them, the formats, the bound on series, and the dashboard.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![allow(unreachable_pub, reason = "the modules of one test binary share what they need")]

#[path = "../support/mod.rs"]
mod support;

mod dashboard;
mod otlp;
mod page;
mod prometheus;
mod scrape;
mod series;
