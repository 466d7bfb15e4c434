//! The connections of one runtime, and which of them are closed because of their peers.
//!
//! They are checked once a second, and when one is added. Not here: the memory of each (memory.rs), and frames without
//! requests (connection.rs).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use weir_lifecycle::ThreadMemory;

use super::ended::CloseReason;
use super::memory::{Core, Peer};

/// How often connections are checked: the length of a tick.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// The time limit of the handshake: from the connection to the end of the peer's first SETTINGS frame, in ticks.
const HANDSHAKE_TICKS_MAX: u32 = 10;
/// How long a connection stays open, unread, after its peer sent too many frames, in ticks.
const CONDEMNED_TICKS: u32 = 2;
/// The time limit for the headers of a request, from their first frame to their last, in ticks.
const HEADERS_TICKS_MAX: u32 = 10;
/// When the total is used up, a connection above its share without progress for this many ticks is closed.
const STUCK_TICKS_MAX: u32 = 5;
/// The most connections without a completed request, over all runtimes. Beyond that the oldest of them are closed.
pub(super) const FRESH_CONNECTIONS_MAX: usize = 4_096;
/// When the listener is full, connections without a request or a response for this many ticks are closed, longest idle
/// first.
const IDLE_TICKS_MIN: u32 = 10;
/// How many idle connections one runtime closes in one tick.
const IDLE_CLOSED_MAX: usize = 64;
/// Each runtime may have at least this many of them, for any number of runtimes.
const FRESH_OF_RUNTIME_MIN: usize = 64;

/// The open connections of one runtime, oldest first.
pub(super) struct Peers {
    core: Arc<Core>,
    open: Vec<(Arc<Peer>, AbortHandle)>,
    /// Connections before this index have completed a request, or have ended.
    oldest_fresh: usize,
    fresh_max: usize,
    /// The most connections of the listener, over all runtimes.
    connections_max: usize,
    memory: ThreadMemory,
}

impl Peers {
    /// The peers of one of this many runtimes, for a listener with at most `connections_max` connections.
    pub(super) fn new(core: Arc<Core>, runtimes: usize, connections_max: usize) -> Self {
        let fresh_max = (FRESH_CONNECTIONS_MAX / runtimes).max(FRESH_OF_RUNTIME_MIN);
        Self { core, open: Vec::new(), oldest_fresh: 0, fresh_max, connections_max, memory: ThreadMemory::default() }
    }

    /// Adds a connection that `task` serves. Closes the oldest ones without a completed request, if there are too many.
    pub(super) fn add(&mut self, peer: Arc<Peer>, task: AbortHandle) {
        self.open.push((peer, task));
        while self.core.fresh() > self.fresh_max
            && let Some((peer, task)) = self.open.get(self.oldest_fresh)
        {
            if peer.is_fresh() && !task.is_finished() {
                Self::close(peer, task, CloseReason::Unused);
                peer.mature();
            }
            self.oldest_fresh += 1;
        }
    }

    /// Begins the next tick, and closes connections whose time has ended.
    pub(super) fn look(&mut self) {
        self.core.advance();
        let before = self.open.len();
        self.open.retain(|(_, task)| !task.is_finished());
        self.memory.look(before - self.open.len(), self.core.own_bytes());
        self.oldest_fresh = 0;
        let is_full = self.core.is_full();
        let share = self.core.share();
        for (peer, task) in &self.open {
            if let Some(reason) = self.overstays(peer, is_full, share) {
                Self::close(peer, task, reason);
            }
        }
        if self.core.connections() >= self.connections_max {
            self.close_idle();
        }
    }

    /// Closes idle connections for new callers: otherwise a full listener would refuse them while others keep idle
    /// connections.
    fn close_idle(&self) {
        let is_idle = |peer: &Peer| peer.bytes() == 0 && peer.stuck_for() >= IDLE_TICKS_MIN;
        let mut idle: Vec<_> = self.open.iter().filter(|(peer, _)| is_idle(peer)).collect();
        idle.sort_by_key(|(peer, _)| std::cmp::Reverse(peer.stuck_for()));
        for (peer, task) in idle.into_iter().take(IDLE_CLOSED_MAX) {
            Self::close(peer, task, CloseReason::Idle);
        }
    }

    /// Closes the connections without a completed handshake.
    pub(super) fn close_strangers(&self) {
        for (peer, task) in &self.open {
            if !peer.has_shaken_hands() {
                task.abort();
            }
        }
    }

    /// Why a connection must be closed. None if it need not.
    fn overstays(&self, peer: &Peer, is_full: bool, share: usize) -> Option<CloseReason> {
        if peer.condemned_for().is_some_and(|ticks| ticks >= CONDEMNED_TICKS) {
            return Some(CloseReason::Frames);
        }
        if !peer.has_shaken_hands() && peer.age() >= HANDSHAKE_TICKS_MAX {
            return Some(CloseReason::Handshake);
        }
        if peer.in_headers_for() >= HEADERS_TICKS_MAX {
            return Some(CloseReason::Headers);
        }
        if peer.is_overdue() {
            return Some(CloseReason::Unread);
        }
        if is_full && peer.bytes() > share && peer.stuck_for() >= STUCK_TICKS_MAX {
            return Some(CloseReason::Memory);
        }
        None
    }

    fn close(peer: &Peer, task: &AbortHandle, reason: CloseReason) {
        peer.count_closed(reason);
        task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::tests::bounds;
    use super::super::memory::{Piece, RESPONSE_TICKS_MAX, Reservation};
    use super::*;

    struct Bench {
        core: Arc<Core>,
        peers: Peers,
    }

    impl Bench {
        fn new(total_bytes: usize) -> Self {
            let core = Core::new(bounds(1 << 20, total_bytes), Arc::default());
            let peers = Peers::new(core.clone(), 1, usize::MAX);
            Self { core, peers }
        }

        /// Opens a connection, and returns the guard that shows whether it is open.
        fn open(&mut self) -> (Arc<Peer>, tokio::task::JoinHandle<()>) {
            let peer = Peer::new(&self.core);
            let task = tokio::spawn(std::future::pending());
            self.peers.add(peer.clone(), task.abort_handle());
            (peer, task)
        }

        async fn ticks(&mut self, ticks: u32) {
            for _ in 0..ticks {
                self.peers.look();
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn hands_are_to_be_shaken_in_time() {
        let mut bench = Bench::new(1 << 30);
        let (honest, open) = bench.open();
        honest.observe(true, false);
        let (_silent, closed) = bench.open();
        bench.ticks(HANDSHAKE_TICKS_MAX - 1).await;
        assert!(!closed.is_finished());
        bench.ticks(1).await;
        assert!(closed.is_finished() && !open.is_finished());
    }

    #[tokio::test]
    async fn headers_are_to_end_in_time() {
        let mut bench = Bench::new(1 << 30);
        let (peer, task) = bench.open();
        peer.observe(true, true);
        bench.ticks(HEADERS_TICKS_MAX - 1).await;
        assert!(!task.is_finished());
        bench.ticks(1).await;
        assert!(task.is_finished());
    }

    #[tokio::test]
    async fn who_sent_too_many_frames_waits_before_its_connection_is_closed() {
        let mut bench = Bench::new(1 << 30);
        let (peer, task) = bench.open();
        let (other, open) = bench.open();
        for peer in [&peer, &other] {
            peer.observe(true, false);
        }
        peer.condemn();
        bench.ticks(CONDEMNED_TICKS - 1).await;
        assert!(!task.is_finished());
        bench.ticks(1).await;
        assert!(task.is_finished() && !open.is_finished());
    }

    #[tokio::test]
    async fn a_response_is_to_be_taken_in_time() {
        let mut bench = Bench::new(1 << 30);
        let (peer, task) = bench.open();
        peer.observe(true, false);
        let _piece = Piece::new("response".into(), Reservation::new(&peer, 0).unwrap());
        bench.ticks(RESPONSE_TICKS_MAX - 1).await;
        assert!(!task.is_finished());
        bench.ticks(1).await;
        assert!(task.is_finished());
    }

    #[tokio::test]
    async fn the_oldest_without_a_request_are_closed_first() {
        let mut bench = Bench::new(1 << 30);
        let (_, first) = bench.open();
        let (served, served_task) = bench.open();
        served.mature();
        let (_second, second) = bench.open();
        let more: Vec<_> = (2..FRESH_CONNECTIONS_MAX).map(|_| bench.open()).collect();
        tokio::task::yield_now().await;
        assert!(!first.is_finished(), "there is room for all");
        let _newest = bench.open();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!second.is_finished());
        let _newest = bench.open();
        assert!(second.await.unwrap_err().is_cancelled());
        assert!(!served_task.is_finished() && !more[0].1.is_finished());
        assert_eq!(bench.core.fresh(), FRESH_CONNECTIONS_MAX);
    }

    #[tokio::test]
    async fn memory_is_given_back_when_much_is_let_go() {
        let mut bench = Bench::new(1 << 30);
        let (peer, _task) = bench.open();
        peer.observe(true, false);
        let reservation = Reservation::new(&peer, 1 << 20).unwrap();
        bench.ticks(1).await;
        assert!(!bench.peers.memory.gives_back());
        drop(reservation);
        bench.ticks(1).await;
        assert!(bench.peers.memory.gives_back());
    }

    #[tokio::test]
    async fn memory_is_given_back_when_many_connections_have_ended() {
        let mut bench = Bench::new(1 << 30);
        let open: Vec<_> = (0..200).map(|_| bench.open()).collect();
        bench.ticks(1).await;
        assert!(!bench.peers.memory.gives_back());
        for (_, task) in open {
            task.abort();
            let _ = task.await;
        }
        bench.ticks(1).await;
        assert!(bench.peers.memory.gives_back());
    }

    #[tokio::test]
    async fn only_who_holds_more_than_its_share_without_progress_is_closed() {
        let mut bench = Bench::new(1 << 20);
        let (greedy, greedy_task) = bench.open();
        let (modest, modest_task) = bench.open();
        for peer in [&greedy, &modest] {
            peer.observe(true, false);
        }
        let _reservation = Reservation::new(&greedy, 1 << 20).unwrap();
        let _modest = Reservation::new(&modest, 1 << 16).unwrap();
        bench.ticks(STUCK_TICKS_MAX - 1).await;
        assert!(!greedy_task.is_finished());
        bench.ticks(1).await;
        assert!(greedy_task.is_finished() && !modest_task.is_finished());
    }

    #[tokio::test]
    async fn a_full_listener_closes_idle_connections_and_no_others() {
        let mut bench = Bench::new(1 << 30);
        let (idle, closed) = bench.open();
        let (waiting, open) = bench.open();
        for peer in [&idle, &waiting] {
            peer.observe(true, false);
            peer.mature();
        }
        let _request = Reservation::new(&waiting, 100).unwrap();
        bench.ticks(2 * IDLE_TICKS_MIN).await;
        assert!(!closed.is_finished(), "there is room");
        bench.peers.connections_max = 3;
        let (newcomer, served) = bench.open();
        newcomer.observe(true, false);
        bench.ticks(1).await;
        assert!(closed.is_finished() && !open.is_finished() && !served.is_finished());
    }

    #[tokio::test]
    async fn a_connection_that_makes_progress_may_hold_its_bytes() {
        let mut bench = Bench::new(1 << 20);
        let (peer, task) = bench.open();
        peer.observe(true, false);
        let _reservation = Reservation::new(&peer, 1 << 20).unwrap();
        for _ in 0..3 * STUCK_TICKS_MAX {
            bench.ticks(1).await;
            let mut piece = Piece::part("response".into(), &_reservation);
            prost::bytes::Buf::advance(&mut piece, 8);
        }
        assert!(!task.is_finished());
    }
}
