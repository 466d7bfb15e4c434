//! What is counted about Redis beside the decisions: circuit breakers and dials.
//!
//! Labels are addresses out of the settings or the map of a cluster, and kinds of failure: a small fixed set. Not here:
//! when something has happened (app), and the numbers that others keep ([`Metrics::gauge`]).

use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::families::FamilyKind;
use super::table::row_of;
use super::{Metrics, counters};

/// The metrics of all servers, shared by all runtimes. A healthy decision touches none of them.
pub struct RedisMetrics {
    open: IntGaugeVec,
    opened: IntCounterVec,
    dial_errors: IntCounterVec,
}

impl Metrics {
    /// Adds those of Redis, all failures of these kinds shown as 0 until there is one.
    ///
    /// # Errors
    /// They were added before.
    pub fn redis(&self, kinds: impl IntoIterator<Item = &'static str>) -> Result<RedisMetrics, prometheus::Error> {
        for kind in kinds {
            self.store_errors.with_label_values(&[kind]);
        }
        let open = row_of("weir_redis_circuit_open", FamilyKind::Gauge)?;
        let open = IntGaugeVec::new(Opts::new(open.name, open.help), open.labels)?;
        self.registry.register(Box::new(open.clone()))?;
        let opened = counters(&self.registry, "weir_redis_circuit_opened_total")?;
        let dial_errors = counters(&self.registry, "weir_redis_dial_errors_total")?;
        Ok(RedisMetrics { open, opened, dial_errors })
    }
}

impl RedisMetrics {
    /// There is a server at this address: its circuit is shown from now on.
    pub fn server(&self, address: &str) {
        self.open.with_label_values(&[address]);
        self.opened.with_label_values(&[address]);
    }

    /// The server at this address is used no more, and not shown any more.
    pub fn server_gone(&self, address: &str) {
        // An error is that it was not shown.
        let _ = self.open.remove_label_values(&[address]);
        let _ = self.opened.remove_label_values(&[address]);
    }

    /// One more runtime's circuit is open.
    pub fn circuit_opened(&self, address: &str) {
        self.open.with_label_values(&[address]).inc();
        self.opened.with_label_values(&[address]).inc();
    }

    /// One runtime's circuit is not open any more.
    pub fn circuit_not_open(&self, address: &str) {
        self.open.with_label_values(&[address]).dec();
    }

    /// No connection could be made.
    pub fn dial_failed(&self, kind: &str) {
        self.dial_errors.with_label_values(&[kind]).inc();
    }
}
