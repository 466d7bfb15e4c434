//! Connections that weir closes, requests that HTTP/2 resets before they are decided, and requests that weir refuses because too much
//! memory is reserved for their callers. Each is counted by its reason, and logged at most every 10 s.
//!
//! Not here: when a connection is closed (peers.rs, frames.rs), and how resets are detected (written.rs).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};
use weir_telemetry::complaint::Complaint;

/// How often one reason is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CloseReason {
    /// Too many frames without requests, or of cancelled requests.
    Frames,
    /// No handshake in time, or too many others.
    Handshake,
    /// The headers of a request did not end in time.
    Headers,
    /// The peer did not read a response in time.
    Unread,
    /// Too much memory was reserved for it, and it made no progress.
    Held,
    /// It was idle, and the listener was full.
    Idle,
    /// All connections together held too much memory, and those of its address the most.
    Memory,
    /// It was idle, and its table of requests had grown: weir sent a GOAWAY.
    Retired,
    /// It had completed no request, and too many others had not either.
    Unused,
    /// Its peer broke the rules of HTTP/2.
    Protocol,
}

/// The error codes of HTTP/2 (RFC 9113, section 7), and one for all others.
pub const CODES: [&str; 15] = [
    "no_error",
    "protocol_error",
    "internal_error",
    "flow_control_error",
    "settings_timeout",
    "stream_closed",
    "frame_size_error",
    "refused_stream",
    "cancel",
    "compression_error",
    "connect_error",
    "enhance_your_calm",
    "inadequate_security",
    "http_1_1_required",
    "other",
];
/// The codes of normal ends: the rest of a request is not needed, or its caller has cancelled it.
const HARMLESS: [usize; 2] = [0, 8];

/// The peer of a connection, for the log.
#[derive(Clone, Copy)]
pub(super) struct LoggedPeer<'p> {
    pub(super) listener: &'p str,
    pub(super) address: Option<IpAddr>,
}

/// The counts of all gRPC listeners.
#[derive(Debug)]
pub struct Ended {
    closed: [AtomicU64; CloseReason::VARIANTS.len()],
    reset: [AtomicU64; CODES.len()],
    refused: AtomicU64,
    /// One for each reason, then one for resets, and the last for refusals.
    complaints: Mutex<[Complaint; CloseReason::VARIANTS.len() + 2]>,
}

impl Default for Ended {
    fn default() -> Self {
        Self {
            closed: Default::default(),
            reset: Default::default(),
            refused: AtomicU64::new(0),
            complaints: Mutex::new([const { Complaint::new(LOG_EVERY) }; CloseReason::VARIANTS.len() + 2]),
        }
    }
}

impl Ended {
    /// Connections that weir has closed for this reason.
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.closed[reason as usize].load(Relaxed)
    }

    /// Requests that HTTP/2 reset with the code at this index of [`CODES`].
    pub fn reset(&self, code: usize) -> u64 {
        self.reset[code].load(Relaxed)
    }

    /// Requests that were refused because too much memory was reserved.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    pub(super) fn count_closed(&self, reason: CloseReason, of: LoggedPeer<'_>) {
        let closed = self.closed[reason as usize].fetch_add(1, Relaxed) + 1;
        if self.is_due(reason as usize) {
            let (listener, peer) = (of.listener, of.address.map(tracing::field::display));
            tracing::warn!(listener, reason = <&str>::from(reason), peer, closed, "closed a connection");
        }
    }

    /// Counts a request that is reset with this code of HTTP/2.
    pub(super) fn count_reset(&self, code: u32, of: LoggedPeer<'_>) {
        let code = usize::try_from(code).unwrap_or(usize::MAX).min(CODES.len() - 1);
        let reset = self.reset[code].fetch_add(1, Relaxed) + 1;
        if !HARMLESS.contains(&code) && self.is_due(CloseReason::VARIANTS.len()) {
            let (listener, peer) = (of.listener, of.address.map(tracing::field::display));
            tracing::warn!(listener, code = CODES[code], peer, reset, "HTTP/2 reset a request before it was decided");
        }
    }

    /// Counts a refused request of a connection with this many reserved bytes.
    pub(super) fn count_refused(&self, of: LoggedPeer<'_>, reserved: usize) {
        let refused = self.refused.fetch_add(1, Relaxed) + 1;
        if self.is_due(CloseReason::VARIANTS.len() + 1) {
            let (listener, peer) = (of.listener, of.address.map(tracing::field::display));
            tracing::warn!(
                listener,
                peer,
                reserved,
                refused,
                "refused a request: too much memory is reserved for its caller"
            );
        }
    }

    fn is_due(&self, what: usize) -> bool {
        self.complaints.lock()[what].failed(1).is_some()
    }
}
