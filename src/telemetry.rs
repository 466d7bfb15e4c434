//! What weir tells about itself: the log and the metrics.

mod counts;
pub mod logging;
pub mod mapper;
pub mod metrics;
pub mod statistics;
pub mod statsd;
mod trouble;
