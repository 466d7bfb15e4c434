//! The load of a runtime, and a connection on its way from the acceptor to a runtime.
//!
//! Not here: which runtime gets a connection (balance.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use weir_http2::Transport;
use weir_telemetry::shed::ShedCounts;

#[derive(Clone, Debug, Default)]
pub struct Load(Arc<Counts>);

/// On separate cache lines, because each runtime writes its requests all the time.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicU64,
}

impl Load {
    /// The open connections, including those handed over and not yet accepted by their runtime.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.0.requests.load(Relaxed)
    }

    /// Counts a request. Call it only on the runtime of this load: a single writer needs no locked addition.
    pub(super) fn count_request(&self) {
        self.0.requests.store(self.requests() + 1, Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Counted(Load);

impl Counted {
    pub(super) fn new(load: &Load) -> Self {
        load.0.connections.fetch_add(1, Relaxed);
        Self(load.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Relaxed);
    }
}

/// A socket between the acceptor and a runtime. It belongs to no runtime yet.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// The listener of a connection.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) name: Arc<str>,
    pub(super) transport: Transport,
    /// Connections that were closed when they came.
    pub(super) shed: Arc<ShedCounts>,
}

/// A connection between the acceptor and a runtime.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: Socket,
    pub(super) origin: Arc<Origin>,
    pub(super) counted: Counted,
}

impl Accepted {
    /// Counts a socket, which belongs to no runtime yet, for a runtime.
    pub(super) fn new(socket: Socket, origin: Arc<Origin>, load: &Load) -> Self {
        Self { socket, origin, counted: Counted::new(load) }
    }
}
