//! Connections that a listener closed to stay within its own bounds, by reason.
//!
//! Not here: TLS handshakes that were given up (tls/server.rs), and connections that a bound on one of them closed (grpc).

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
    /// No core took it over in time.
    Handover,
}

/// The counts of one kind of listener.
#[derive(Debug, Default)]
pub struct ShedCounts([AtomicU64; ShedReason::VARIANTS.len()]);

impl ShedCounts {
    /// Counts one.
    pub fn add(&self, reason: ShedReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self, reason: ShedReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}
