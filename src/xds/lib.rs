//! Policies by xDS: a client of a control plane's aggregated discovery service, state of the world.
//!
//! ```text
//! dial -> stream -> request with no version and no nonce
//!                   response -> resources to policies -> sink -> ACK, or NACK with the reason
//!                   ...
//! stream ends -> pause -> dial
//! ```
//!
//! Each response has all resources. The sink applies all of them, or none. Without a connection, the last policies stay
//! in force.

mod codec;
mod conversation;
mod dial;
mod pause;
pub mod proto;
pub mod resource;
mod scan;
mod status;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use weir_telemetry::complaint::Complaint;
use weir_tls::Tls;

pub use self::codec::{RESOURCES_MAX, Resource, VERSION_BYTES_MAX, discovery};
pub use self::pause::Pauses;
pub use self::scan::{MEMORY_MIN, MEMORY_PER_BYTE, MEMORY_PER_BYTE_MAX, UnknownFields};
pub use self::status::{Nack, Status, Watch, shown};

pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The shortest time between two warnings in the log about the same problem of the server.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

pub struct Options {
    /// The server's name or IP.
    pub host: String,
    pub port: u16,
    pub tls: Option<Arc<Tls>>,
    /// The name of this client at the control plane.
    pub node_id: String,
    /// Keys and values from which the control plane may choose a configuration.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream: names and values, which may be secret.
    pub headers: Vec<(String, String)>,
    /// How long opening a connection may take, TLS included.
    pub connect_timeout: Duration,
    /// How long to wait before the next attempt.
    pub pauses: Pauses,
    /// The largest response, in bytes.
    pub message_bytes_max: usize,
    /// How long a connection may be idle before an HTTP/2 PING tests it.
    pub keepalive_interval: Duration,
    /// How long the answer to that PING may take.
    pub keepalive_timeout: Duration,
}

/// Receives all resources of a response. Applies them, or returns every problem and keeps the policies in force. Called
/// on a thread for blocking work, never twice at once.
pub type Sink = Arc<dyn Fn(&[Resource]) -> Result<(), Vec<String>> + Send + Sync>;

/// Whether a resource is small enough in memory to be decoded.
pub fn is_within_memory(config: &[u8]) -> bool {
    scan::check([config], 32 << 20).is_ok()
}

pub struct Subscription {
    options: Options,
    sink: Sink,
    watch: Arc<Watch>,
}

#[derive(Debug)]
struct StreamEnd {
    reason: String,
    /// Its progress before the end.
    got: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// There was a connection, but no response.
    Connection,
    Response,
}

impl Subscription {
    /// Makes a subscription that reports its state to `watch`. Does not connect yet.
    pub fn new(options: Options, sink: Sink, watch: Arc<Watch>) -> Self {
        Self { options, sink, watch }
    }

    /// Runs the subscription and retries after failures. Never returns; drop it to close the connection.
    pub async fn follow(self) -> Infallible {
        let server = format!("{}:{}", self.options.host, self.options.port);
        let mut failures: u32 = 0;
        let (mut complaint, mut logged) = (Complaint::new(COMPLAIN_EVERY), String::new());
        loop {
            let ended = self.attempt(&server).await;
            let paused_after = if ended.got == Progress::Response { 0 } else { failures };
            let pause = match ended.got {
                Progress::Nothing => self.options.pauses.after_dial(paused_after),
                Progress::Connection | Progress::Response => self.options.pauses.after_stream(paused_after),
            };
            failures = paused_after.saturating_add(1);
            self.watch.lost(&ended.reason);

            if ended.got == Progress::Response || ended.reason != logged {
                complaint.ended();
            }
            if complaint.failed(1).is_some() {
                if self.watch.read(|status| status.version.is_some()) {
                    tracing::warn!(server, reason = ended.reason, retry_in = ?pause, "policy stream failed: the current policies stay in force");
                } else {
                    tracing::warn!(server, reason = ended.reason, retry_in = ?pause, "policy stream failed: no policies are in force yet");
                }
                logged = ended.reason;
            } else {
                tracing::debug!(server, reason = ended.reason, retry_in = ?pause, "policy stream ended");
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Opens one connection and runs it to its end.
    async fn attempt(&self, server: &str) -> StreamEnd {
        let dialled = match dial::dial(&self.options).await {
            Ok(dialled) => dialled,
            Err(reason) => return StreamEnd { reason, got: Progress::Nothing },
        };
        self.watch.connected();
        tracing::info!(server, "connected to the server of policies");
        conversation::hold(dialled, &self.options, &self.sink, &self.watch).await
    }
}
