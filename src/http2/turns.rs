//! Connections take turns, so that a burst on one connection delays the requests of others only a little.
//!
//! A connection reads a few kilobytes in one turn of its task. It reads much less before [`NEW_ANSWERS`] of its requests
//! have been answered, while its peer cancels most of its requests, and while the memory for callers is nearly used up.
//! Between two turns the runtime polls for new bytes of other callers.
//!
//! Of new connections, only one reads between two such polls: a hundred that send at once, each a little, delay others no longer
//! than one.
//!
//! Wide requests have their own turns. A runtime decides a request without interruption. A caller can send thousands of
//! wide requests at once, and without turns all of them would be decided before the next narrow request. So a wide
//! request waits: first for the earlier wide ones of its own connection, then for one of each other connection. One is
//! decided each time the runtime polls for new bytes. While a peer does not read the responses to its wide requests,
//! the next ones wait.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Waker};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use weir_lifecycle::Turns as WideTurns;

use super::counts::{Count, Size};

/// A connection is new until so many of its requests have been answered. Many new connections can send at once, and each
/// then holds the runtime for a short time only. The number of answers wraps, so a connection can be new once more.
pub(super) const NEW_ANSWERS: u32 = 32;
/// The most bytes that a connection reads in one turn of its task: about thirty requests. Most callers send fewer at
/// once.
pub(super) const BYTES_AT_ONCE: usize = 4 * 1_024;
/// The maximum while the peer sends many unanswered requests: about ten requests.
pub(super) const UNANSWERED_BYTES_AT_ONCE: usize = 1_024;
/// The maximum before [`NEW_ANSWERS`] requests of the connection have been answered, and while memory is nearly used up:
/// about five requests. These and the five before them fit into the share of a connection, and are answered before more are read.
/// HTTP/2 keeps a table for the most requests that were ever open at once on the connection. Small reads keep it small.
pub(super) const FEW_BYTES_AT_ONCE: usize = 512;
/// The maximum while both conditions hold: about one request.
pub(super) const FEWEST_BYTES_AT_ONCE: usize = 128;

/// How many unread responses to wide requests a peer may have before its next wide request waits. Together they are
/// about as long as the first HTTP/2 window of a connection.
const UNTAKEN_MAX: u32 = 8;

/// The turns of the new connections of one runtime.
#[derive(Debug, Default)]
pub(super) struct NewTurns(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    held: Option<HeldTurn>,
    /// Those that wait for a turn, in their order. Each can be woken.
    waiting: VecDeque<(Arc<NewTurn>, Waker)>,
}

#[derive(Debug)]
struct HeldTurn {
    by: Arc<NewTurn>,
    /// Whether the task of the connection has run since it got the turn.
    has_begun: bool,
}

/// One connection: whether it has the turn or waits for it. A turn lasts until its task runs again.
#[derive(Debug, Default)]
pub(super) struct NewTurn(AtomicBool);

impl NewTurns {
    /// Whether it is the turn of this connection, or becomes it now. Otherwise its task is woken at its turn. A connection that then
    /// reads something calls [`after_others`].
    pub(super) fn begin(&self, turn: &Arc<NewTurn>, context: &mut Context<'_>) -> bool {
        let turns = &mut *self.0.lock();
        if turns.held.as_ref().is_some_and(|held| !Arc::ptr_eq(&held.by, turn)) {
            if !turn.0.swap(true, Relaxed) {
                turns.waiting.push_back((turn.clone(), context.waker().clone()));
            }
            return false;
        }
        turn.0.store(true, Relaxed);
        turns.held = Some(HeldTurn { by: turn.clone(), has_begun: true });
        true
    }

    /// Ends a turn that an earlier run of the task began.
    pub(super) fn end_earlier(&self, turn: &Arc<NewTurn>) {
        self.end_if(turn, |has_begun| has_begun);
    }

    /// Ends a turn of which the task makes no use.
    pub(super) fn end_unused(&self, turn: &Arc<NewTurn>, has_read: bool) {
        self.end_if(turn, |has_begun| !(has_begun && has_read));
    }

    /// Ends the turn of a connection, or its waiting for one.
    pub(super) fn leave(&self, turn: &Arc<NewTurn>) {
        self.end_if(turn, |_| true);
        if turn.0.load(Relaxed) {
            self.0.lock().waiting.retain(|(waiting, _)| !Arc::ptr_eq(waiting, turn));
        }
    }

    /// Ends the turn of a connection if it has it, and gives the turn to the next one.
    fn end_if(&self, turn: &Arc<NewTurn>, is_over: impl FnOnce(bool) -> bool) {
        if !turn.0.load(Relaxed) {
            return;
        }
        let turns = &mut *self.0.lock();
        if turns.held.as_ref().is_some_and(|held| Arc::ptr_eq(&held.by, turn) && is_over(held.has_begun)) {
            turn.0.store(false, Relaxed);
            turns.held = turns.waiting.pop_front().map(|(by, waker)| {
                waker.wake();
                HeldTurn { by, has_begun: false }
            });
        }
    }
}

/// Schedules the current task again, after the others have run and the runtime has polled for new bytes.
pub(super) fn after_others(context: &mut Context<'_>) {
    // The first poll schedules it.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

#[derive(Debug)]
pub(super) struct OfPeer {
    one: Semaphore,
    /// Responses to wide requests that the peer has not read.
    untaken: Count,
    /// Notified when the peer has read one.
    taken: Notify,
}

impl Default for OfPeer {
    fn default() -> Self {
        Self { one: Semaphore::new(1), untaken: Count::default(), taken: Notify::new() }
    }
}

impl OfPeer {
    /// Waits for the turn of one wide request. The caller must then decide it without awaiting anything else.
    pub(super) async fn wait(&self, core: &WideTurns) {
        // It is fair, and is never closed.
        let _of_peer = self.one.acquire().await;
        while self.untaken.get() >= UNTAKEN_MAX {
            self.taken.notified().await;
        }
        drop(core.next().await);
    }

    /// Counts a response to a wide request.
    pub(super) fn respond(&self) {
        self.untaken.add(1);
    }

    /// The peer has read a response to a wide request, or the response was dropped.
    pub(super) fn take(&self) {
        self.untaken.subtract(1);
        // Only one waits at a time.
        self.taken.notify_one();
    }
}

/// The bytes that a connection has read at the current turn of its task.
#[derive(Debug, Default)]
pub(super) struct BytesOfTurn(Size);

impl BytesOfTurn {
    /// Begins a turn: the task of the connection runs.
    pub(super) fn begin(&self) {
        self.0.set(0);
    }

    /// Whether the connection has read nothing at this turn.
    pub(super) fn is_new(&self) -> bool {
        self.0.get() == 0
    }

    /// Whether the connection has read fewer than `most` bytes at this turn. If not, its task runs again when the others have
    /// run and the runtime has polled for new bytes.
    pub(super) fn may_read(&self, context: &mut Context<'_>, most: usize) -> bool {
        let bytes = self.0.get();
        if (most..usize::MAX).contains(&bytes) {
            // Yields once in a turn: HTTP/2 tries to read again after each request.
            self.0.set(usize::MAX);
            after_others(context);
        }
        bytes < most
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// How many wide requests a runtime decides between two polls for new bytes.
    const TURNS: usize = 1;

    struct Leaves(Arc<NewTurns>, Arc<NewTurn>);

    impl Drop for Leaves {
        fn drop(&mut self) {
            self.0.leave(&self.1);
        }
    }

    /// A hundred connections that send at once delay a request that comes then by one of their turns.
    #[tokio::test]
    async fn of_new_connections_one_reads_between_two_polls_for_new_bytes_in_their_order() {
        const CONNECTIONS: usize = 100;
        let (turns, read) = (Arc::new(NewTurns::default()), Arc::new(Mutex::new(Vec::new())));
        let connection = |number: usize, rounds: usize| {
            let (read, leaves, mut left) = (read.clone(), Leaves(turns.clone(), Arc::default()), rounds);
            std::future::poll_fn(move |context| {
                let Leaves(turns, turn) = &leaves;
                turns.end_earlier(turn);
                if left == 0 {
                    return Poll::Ready(());
                }
                let reads = turns.begin(turn, context);
                if reads {
                    read.lock().push(number);
                    left -= 1;
                    after_others(context);
                }
                turns.end_unused(turn, reads);
                Poll::Pending
            })
        };
        let mut tasks: Vec<_> = (0..CONNECTIONS).map(|number| tokio::spawn(connection(number, 2))).collect();
        // One of them is closed while it waits. The others still get their turns.
        tokio::task::yield_now().await;
        tasks.remove(CONNECTIONS / 2).abort();
        let mut most = 0;
        loop {
            let before = read.lock().len();
            tokio::task::yield_now().await;
            let after = read.lock().len();
            most = most.max(after - before);
            if tasks.iter().all(tokio::task::JoinHandle::is_finished) {
                break;
            }
        }
        assert!(most <= 2, "{most} read between two polls for new bytes");
        let read = read.lock();
        assert_eq!(read.len(), 2 * (CONNECTIONS - 1));
        assert!(read[..CONNECTIONS - 1].is_sorted() && read[CONNECTIONS - 1..].is_sorted(), "{read:?}");
    }

    #[tokio::test]
    async fn a_narrow_request_passes_a_burst_of_wide_ones_and_connections_take_turns() {
        const BURST: usize = 1_000;
        let core = std::sync::Arc::new(WideTurns::default());
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
        let (core, peer) = (std::sync::Arc::new(WideTurns::default()), std::sync::Arc::new(OfPeer::default()));
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
