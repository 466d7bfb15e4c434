//! What weir reports about itself: log, metrics, traces, alerts, and live requests for taps.

pub mod alerts;
pub mod complaint;
mod counts;
pub mod limited;
pub mod logging;
pub mod mapper;
pub mod metrics;
pub mod metrics_export;
pub mod otlp;
pub mod shed;
pub mod statistics;
pub mod statsd;
pub mod tap;
pub mod traces;
mod trouble;
