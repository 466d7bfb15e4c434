//! What connections hold as long as they are open: their buffers, and the tables in which HTTP/2 keeps their requests.
//!
//! HTTP/2 keeps room for the most requests that were ever open at once on a connection until the connection ends. weir
//! cannot see that room, so it counts requests and estimates it. All connections share one budget. When it is short, the
//! address whose connections hold most gives way first: a bound for each address would hit one Envoy, a proxy or a NAT.
//! Not here: closing connections (peers.rs), reading less (connection.rs), and bytes of requests and responses (memory.rs).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::counts::{Count, Size};
use super::handshakes::PeerNetwork;

/// A connection before its handshake: its task and its socket.
const OPENED_BYTES: usize = 6 * 1_024;
/// What TLS adds, from the handshake on: its keys and the buffers of both directions.
const TLS_BYTES: usize = 20 * 1_024;
/// A connection after its handshake: the buffers of HTTP/2.
const SHAKEN_BYTES: usize = 26 * 1_024;
/// The room for one request: its stream, its headers, its response.
const ENTRY_BYTES: usize = 800;
/// The first room for requests. It doubles when it is full.
const ENTRIES_MIN: u32 = 8;
/// Requests that every connection may have open, however short the budget is.
pub(super) const FEW_REQUESTS: u32 = 32;
/// A table with room for this many requests has grown: its connection is retired when it is idle and the budget is half used.
pub(super) const GROWN_ENTRIES: u32 = 64;
/// The budget is short when less than this part of it is left.
const SHORT_PARTS: usize = 16;
/// The last part of the budget is for connections of which a request has been completed.
const SHORT_FOR_FRESH_PARTS: usize = 4;
/// Making room goes on until this part of the budget is free, so that it is made rarely.
const ROOM_PARTS: usize = 8;

/// The budget of all connections.
#[derive(Debug)]
pub(super) struct Tables {
    most: usize,
    bytes: AtomicUsize,
    /// The part of `bytes` of connections that are being closed.
    leaving: AtomicUsize,
    /// What the connections of each address hold, without those that are being closed.
    networks: Mutex<HashMap<PeerNetwork, usize>>,
    changed: watch::Sender<()>,
}

impl Tables {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            bytes: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            networks: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The bytes of the budget without one of so many parts of it.
    const fn without_part(&self, parts: usize) -> usize {
        self.most - self.most / parts
    }

    /// Whether connections without a completed request may not grow.
    pub(super) fn is_short_for_fresh(&self) -> bool {
        self.bytes() >= self.without_part(SHORT_FOR_FRESH_PARTS)
    }

    /// Whether no connection may grow.
    pub(super) fn is_short(&self) -> bool {
        self.bytes() >= self.without_part(SHORT_PARTS)
    }

    pub(super) fn is_half_used(&self) -> bool {
        self.bytes() >= self.most / 2
    }

    /// The bytes to free so that there is room again. 0 if the budget is not short, or will not be when the connections
    /// that are being closed have ended.
    pub(super) fn excess(&self) -> usize {
        let staying = self.bytes().saturating_sub(self.leaving.load(Relaxed));
        if staying < self.without_part(SHORT_PARTS) { 0 } else { staying - self.without_part(ROOM_PARTS) }
    }

    /// The runtimes wait on it, and then make room, or let connections read again.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Asks all runtimes to make room.
    pub(super) fn ask_for_room(&self) {
        self.changed.send_replace(());
    }

    /// What the connections of each address hold.
    pub(super) fn networks(&self) -> Vec<(usize, PeerNetwork)> {
        self.networks.lock().iter().map(|(network, bytes)| (*bytes, *network)).collect()
    }

    fn add(&self, network: PeerNetwork, bytes: usize) {
        *self.networks.lock().entry(network).or_default() += bytes;
        self.bytes.fetch_add(bytes, Relaxed);
        if self.is_short() {
            self.ask_for_room();
        }
    }

    fn remove_network(&self, network: PeerNetwork, bytes: usize) {
        let mut networks = self.networks.lock();
        if let Some(held) = networks.get_mut(&network) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                networks.remove(&network);
            }
        }
    }
}

/// What one connection holds.
#[derive(Debug)]
pub(super) struct OfPeer {
    network: PeerNetwork,
    bytes: Size,
    /// The part of `bytes` that TLS takes.
    tls_bytes: Size,
    /// Requests that have been accepted and not answered.
    pub(super) open: Count,
    /// Requests that have been answered with an error since the last turn: HTTP/2 has them until it has sent that.
    pub(super) refused: Count,
    /// The room for requests.
    entries: Count,
    is_leaving: AtomicBool,
    /// Whether the connection does not read until there is room.
    waits: AtomicBool,
    task: OnceLock<Waker>,
}

impl OfPeer {
    pub(super) fn of(address: Option<IpAddr>) -> Self {
        Self {
            network: PeerNetwork::of(address),
            bytes: Size::default(),
            tls_bytes: Size::default(),
            open: Count::default(),
            refused: Count::default(),
            entries: Count::default(),
            is_leaving: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            task: OnceLock::new(),
        }
    }

    pub(super) const fn network(&self) -> PeerNetwork {
        self.network
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries.get()
    }

    /// The connection has begun.
    pub(super) fn open(&self, tables: &Tables, has_tls: bool) {
        self.tls_bytes.set(if has_tls { TLS_BYTES } else { 0 });
        self.hold(tables, OPENED_BYTES);
    }

    /// The connection has shaken hands.
    pub(super) fn shake_hands(&self, tables: &Tables) {
        self.grow(tables, ENTRIES_MIN);
    }

    /// The connection has had this many requests open at once.
    #[cold]
    pub(super) fn grow(&self, tables: &Tables, requests: u32) {
        let entries = requests.next_power_of_two().max(ENTRIES_MIN);
        self.entries.set(entries);
        self.hold(tables, SHAKEN_BYTES + entries as usize * ENTRY_BYTES);
    }

    /// Holds this many bytes and those of TLS, if it held fewer.
    fn hold(&self, tables: &Tables, bytes: usize) {
        let before = self.bytes();
        let bytes = bytes + self.tls_bytes.get();
        if bytes > before && !self.is_leaving.load(Relaxed) {
            self.bytes.set(bytes);
            tables.add(self.network, bytes - before);
        }
    }

    /// The connection has ended.
    pub(super) fn release(&self, tables: &Tables) {
        let bytes = self.bytes();
        self.bytes.set(0);
        let was_short = tables.is_short();
        tables.bytes.fetch_sub(bytes, Relaxed);
        if self.is_leaving.load(Relaxed) {
            tables.leaving.fetch_sub(bytes, Relaxed);
        } else {
            tables.remove_network(self.network, bytes);
        }
        if was_short {
            // Connections that wait may read again.
            tables.ask_for_room();
        }
    }

    /// The connection is being closed to make room. Returns how many bytes that will free.
    pub(super) fn leave(&self, tables: &Tables) -> usize {
        let bytes = self.bytes();
        if bytes == 0 || self.is_leaving.swap(true, Relaxed) {
            return 0;
        }
        tables.leaving.fetch_add(bytes, Relaxed);
        tables.remove_network(self.network, bytes);
        bytes
    }

    /// Sets what wakes the task of the connection.
    pub(super) fn set_task(&self, task: &Waker) {
        self.task.get_or_init(|| task.clone());
    }

    pub(super) fn wake(&self) {
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }

    /// The connection waits for room.
    pub(super) fn wait(&self) {
        self.waits.store(true, Relaxed);
    }

    /// Lets the connection read on, if it waits.
    pub(super) fn resume(&self) {
        if self.waits.load(Relaxed) {
            self.waits.store(false, Relaxed);
            self.wake();
        }
    }
}
