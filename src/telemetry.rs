//! What weir tells about itself: the log and the metrics.

pub mod logging;
pub mod metrics;
mod trouble;
