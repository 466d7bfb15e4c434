//! Connections that a listener closed to stay within its bounds, by reason.
//!
//! Not here: TLS handshakes that were aborted (tls/server.rs), and bounds on a single connection (grpc).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use strum::{IntoStaticStr, VariantArray};

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ShedReason {
    /// The listener had its maximum of connections.
    Full,
    /// The address had its maximum of connections.
    Peer,
    /// No core accepted it in time.
    Handover,
}

#[derive(Debug, Default)]
pub struct ShedCounts([AtomicU64; ShedReason::VARIANTS.len()]);

impl ShedCounts {
    pub fn add(&self, reason: ShedReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    pub fn count(&self, reason: ShedReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}
