//! Connections that a listener closed to keep its bounds, by reason.
//!
//! Not here: TLS handshakes that were given up (tls/server.rs), and connections past a bound on a single connection (grpc).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use strum::{IntoStaticStr, VariantArray};

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ShedReason {
    /// The listener had as many connections as it may.
    Full,
    /// Its address had as many connections as it may.
    Peer,
    /// No core took it over.
    Handover,
}

/// The counts of one kind of listener.
#[derive(Debug, Default)]
pub struct ShedCounts([AtomicU64; ShedReason::VARIANTS.len()]);

impl ShedCounts {
    /// Counts a connection.
    pub fn add(&self, reason: ShedReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// How many connections were closed for this reason.
    #[must_use]
    pub fn count(&self, reason: ShedReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}
