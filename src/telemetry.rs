//! What weir reports about itself: the log, the metrics and traces.

mod counts;
pub mod logging;
pub mod mapper;
pub mod metrics;
pub mod metrics_export;
pub mod otlp;
pub mod statistics;
pub mod statsd;
pub mod traces;
mod trouble;
