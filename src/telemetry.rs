//! telemetry

pub mod logging;
