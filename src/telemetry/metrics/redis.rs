//! The metrics of Redis except those of decisions: circuit breakers and dials.
//!
//! Labels are addresses from the settings or the map of a cluster, and kinds of failure: a small fixed set. Not here:
//! when the events happen (app), and numbers that are stored elsewhere ([`Metrics::gauge`]).

use super::Metrics;
use super::families::FamilyKind;
use super::registry::Numbers;

/// The metrics of all servers, shared by all runtimes. A healthy decision uses none of them.
pub struct RedisMetrics {
    open: Numbers,
    opened: Numbers,
    dial_errors: Numbers,
}

impl Metrics {
    /// Adds the metrics of Redis. Failures of these kinds are shown as 0 at first.
    pub fn redis(&self, kinds: impl IntoIterator<Item = &'static str>) -> RedisMetrics {
        for kind in kinds {
            self.store_errors.of(kind);
        }
        let numbers = |kind, name, label| Numbers::new(&self.registry, kind, name, label);
        RedisMetrics {
            open: numbers(FamilyKind::Gauge, "weir_redis_circuit_open", "address"),
            opened: numbers(FamilyKind::Counter, "weir_redis_circuit_opened_total", "address"),
            dial_errors: numbers(FamilyKind::Counter, "weir_redis_dial_errors_total", "kind"),
        }
    }
}

impl RedisMetrics {
    /// Shows the circuit of this server from now on.
    pub fn server(&self, address: &str) {
        self.open.of(address);
        self.opened.of(address);
    }

    pub fn server_gone(&self, address: &str) {
        self.open.remove(address);
        self.opened.remove(address);
    }

    pub fn circuit_opened(&self, address: &str) {
        self.open.of(address).add(1);
        self.opened.of(address).add(1);
    }

    pub fn circuit_not_open(&self, address: &str) {
        self.open.of(address).take_one();
    }

    pub fn dial_failed(&self, kind: &str) {
        self.dial_errors.of(kind).add(1);
    }
}
