//! Connections take turns, so that a burst on one connection delays the requests of others only a little.
//!
//! A connection reads a few kilobytes in one turn of its task. It reads much less before its first request has been
//! answered, while its peer cancels most of its requests, and while the memory for callers is nearly used up. Between
//! two turns the runtime polls for new bytes of other callers.
//!
//! Wide requests have their own turns. A runtime decides a request without interruption. A caller can send thousands of
//! wide requests at once, and without turns all of them would be decided before the next narrow request. So a wide
//! request waits: first for the earlier wide ones of its own connection, then for one of each other connection. One is
//! decided each time the runtime polls for new bytes. While a peer does not read the responses to its wide requests,
//! the next ones wait.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::task::Context;

use tokio::sync::{Notify, Semaphore};
use weir_protobuf::field;

/// The most bytes that a connection reads in one turn of its task: about thirty requests. Most callers send fewer at
/// once.
pub(super) const BYTES_AT_ONCE: usize = 4 * 1_024;
/// The maximum while the peer sends many unanswered requests: about ten requests.
pub(super) const UNANSWERED_BYTES_AT_ONCE: usize = 1_024;
/// The maximum before a request of the connection has been answered, and while memory is nearly used up: about five
/// requests. These and the five before them fit into the share of a connection, and are answered before more are read.
/// HTTP/2 keeps a table for the most requests that were ever open at once on the connection. Small reads keep it small.
pub(super) const FEW_BYTES_AT_ONCE: usize = 512;
/// The maximum while both conditions hold: about one request.
pub(super) const FEWEST_BYTES_AT_ONCE: usize = 128;

/// A request with more descriptors is wide.
const DESCRIPTORS_MAX: usize = 8;
/// A request with a longer message is wide.
const MESSAGE_BYTES_MAX: usize = 8 * 1_024;
/// No shorter message has more than [`DESCRIPTORS_MAX`] descriptors of at least one entry with a key.
const MESSAGE_BYTES_MIN: usize = (DESCRIPTORS_MAX + 1) * 7;
/// How many wide requests a runtime decides between two polls for new bytes.
const TURNS: usize = 1;

/// How many unread responses to wide requests a peer may have before its next wide request waits. Together they are
/// about as long as the first HTTP/2 window of a connection.
const UNTAKEN_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct OfCore(Semaphore);

#[derive(Debug)]
pub(super) struct OfPeer {
    one: Semaphore,
    /// Responses to wide requests that the peer has not read. One runtime counts them.
    untaken: AtomicU32,
    /// Notified when the peer has read one.
    taken: Notify,
}

impl Default for OfCore {
    fn default() -> Self {
        Self(Semaphore::new(TURNS))
    }
}

impl Default for OfPeer {
    fn default() -> Self {
        Self { one: Semaphore::new(1), untaken: AtomicU32::new(0), taken: Notify::new() }
    }
}

impl OfPeer {
    /// Waits for the turn of one wide request. The caller must then decide it without awaiting anything else.
    pub(super) async fn wait(&self, core: &OfCore) {
        // Both are fair, and are never closed.
        let _of_peer = self.one.acquire().await;
        while self.untaken.load(Relaxed) >= UNTAKEN_MAX {
            self.taken.notified().await;
        }
        let _of_core = core.0.acquire().await;
        tokio::task::yield_now().await;
    }

    /// Counts a response to a wide request.
    pub(super) fn respond(&self) {
        self.untaken.store(self.untaken.load(Relaxed) + 1, Relaxed);
    }

    /// The peer has read a response to a wide request, or the response was dropped.
    pub(super) fn take(&self) {
        self.untaken.store(self.untaken.load(Relaxed).saturating_sub(1), Relaxed);
        // Only one waits at a time.
        self.taken.notify_one();
    }
}

/// The bytes that a connection has read at the current turn of its task.
#[derive(Debug, Default)]
pub(super) struct BytesOfTurn(AtomicUsize);

impl BytesOfTurn {
    /// Begins a turn: the task of the connection runs.
    pub(super) fn begin(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether the connection has read fewer than `most` bytes at this turn. If not, its task runs again when the others have
    /// run and the runtime has polled for new bytes.
    pub(super) fn may_read(&self, context: &mut Context<'_>, most: usize) -> bool {
        let bytes = self.0.load(Relaxed);
        if (most..usize::MAX).contains(&bytes) {
            // Yields once in a turn: HTTP/2 tries to read again after each request.
            self.0.store(usize::MAX, Relaxed);
            // The first poll schedules the task again.
            let _ = pin!(tokio::task::yield_now()).poll(context);
        }
        bytes < most
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.store(self.0.load(Relaxed).saturating_add(bytes), Relaxed);
    }
}

/// Whether a `RateLimitRequest` is wide. Reads only the heads of its fields.
pub(super) fn is_wide(message: &[u8]) -> bool {
    match message.len() {
        ..MESSAGE_BYTES_MIN => false,
        MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX => has_many_fields(message),
        _ => true,
    }
}

/// Whether there are more fields than in a narrow request: the domain, the hits, and the descriptors. An unreadable
/// field ends the count, and decoding refuses the request.
fn has_many_fields(mut message: &[u8]) -> bool {
    (0..DESCRIPTORS_MAX + 2).all(|_| !message.is_empty() && field(&mut message).is_some()) && !message.is_empty()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use weir_rls::proto::rate_limit_descriptor::Entry;
    use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest};

    use super::*;

    fn message(descriptors: usize, key: &str) -> Vec<u8> {
        let entry = Entry { key: key.to_owned(), value: String::new() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor; descriptors], hits_addend: 3 }
            .encode_to_vec()
    }

    #[test]
    fn a_request_is_wide_by_its_descriptors_or_its_bytes() {
        for key in ["k", "a key that is rather long", &"k".repeat(300)] {
            assert!(!is_wide(&message(1, key)));
            assert!(!is_wide(&message(DESCRIPTORS_MAX, key)));
            assert!(is_wide(&message(DESCRIPTORS_MAX + 1, key)), "{key}");
        }
        assert!(is_wide(&message(1, &"k".repeat(MESSAGE_BYTES_MAX))));
    }

    #[test]
    fn what_is_no_message_is_not_wide() {
        assert!(!is_wide(&[]));
        assert!(!is_wide(&[0xff; MESSAGE_BYTES_MIN]));
        assert!(!is_wide(&[0x07; MESSAGE_BYTES_MIN]), "a wire type that there is not");
        let mut cut = message(DESCRIPTORS_MAX - 1, "key");
        cut.extend([0x12, 0xff, 0x01]);
        assert!(!is_wide(&cut), "longer than the rest");
    }

    /// The order of decisions when two connections had wide requests waiting and a narrow one came last.
    #[tokio::test]
    async fn a_narrow_request_passes_a_burst_of_wide_ones_and_connections_take_turns() {
        const BURST: usize = 1_000;
        let core = std::sync::Arc::new(OfCore::default());
        let decided = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (name, burst) in [("greedy", BURST), ("modest", 1)] {
            let peer = std::sync::Arc::new(OfPeer::default());
            for _ in 0..burst {
                let (core, peer, decided) = (core.clone(), peer.clone(), decided.clone());
                tasks.push(tokio::spawn(async move {
                    peer.wait(&core).await;
                    decided.lock().push(name);
                }));
            }
        }
        let narrow = decided.clone();
        tasks.push(tokio::spawn(async move { narrow.lock().push("narrow") }));
        for task in tasks {
            task.await.unwrap();
        }
        let decided = decided.lock();
        let position = |name: &str| decided.iter().position(|decided| *decided == name).unwrap();
        assert_eq!(decided.len(), BURST + 2);
        assert!(position("narrow") <= TURNS, "{}", position("narrow"));
        assert!(position("modest") <= 2 * TURNS, "{}", position("modest"));
    }

    #[tokio::test]
    async fn wide_requests_wait_while_their_peer_takes_no_responses() {
        let (core, peer) = (std::sync::Arc::new(OfCore::default()), std::sync::Arc::new(OfPeer::default()));
        for _ in 0..UNTAKEN_MAX {
            peer.wait(&core).await;
            peer.respond();
        }
        let next = tokio::spawn({
            let (core, peer) = (core.clone(), peer.clone());
            async move { peer.wait(&core).await }
        });
        // Others are decided meanwhile.
        for _ in 0..8 {
            OfPeer::default().wait(&core).await;
        }
        assert!(!next.is_finished());
        peer.take();
        next.await.unwrap();
    }
}
