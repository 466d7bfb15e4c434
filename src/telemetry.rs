//! What weir reports about itself: the log, the metrics and traces.

pub mod alerts;
mod counts;
mod dial;
pub mod limited;
pub mod logging;
pub mod mapper;
pub mod metrics;
pub mod metrics_export;
pub mod otlp;
pub mod statistics;
pub mod statsd;
pub mod traces;
mod trouble;
