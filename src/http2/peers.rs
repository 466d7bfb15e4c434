//! The connections of one runtime, and which of them are closed because of their peers.
//!
//! They are checked once a second, and when one is added. Not here: the memory of each (memory.rs), and frames without
//! requests (connection.rs).

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use weir_lifecycle::ThreadMemory;

use super::ended::CloseReason;
use super::memory::{Core, Peer};
use super::tables::GROWN_ENTRIES;

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
/// While half of the budget of all connections is used, a connection whose table has grown is retired after this many ticks without a
/// request or a response.
const GROWN_TICKS_MAX: u32 = 5;
/// How long a retired connection may stay open, in ticks: its peer answers a GOAWAY in one round trip, and its requests have to end.
const RETIRED_TICKS_MAX: u32 = 10;
/// How many connections one runtime closes at once to make room: each can have hundreds of requests to drop.
const ROOM_CLOSED_MAX: usize = 4;
/// How many idle connections one runtime closes in one tick.
const IDLE_CLOSED_MAX: usize = 64;
/// Each runtime may have at least this many of them, for any number of runtimes.
const FRESH_OF_RUNTIME_MIN: usize = 64;
/// Ended connections are forgotten when there are this many entries, or twice as many as after the last time.
const CLEAN_MIN: usize = 64;

/// The connections of one runtime, oldest first.
pub(super) struct Peers {
    core: Arc<Core>,
    /// Those that are open, and some that have ended.
    open: Vec<(Arc<Peer>, AbortHandle)>,
    /// The number of entries at which those of ended connections are forgotten.
    clean_at: usize,
    /// How many were forgotten since the last tick.
    ended: usize,
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
        let (open, memory) = (Vec::new(), ThreadMemory::default());
        Self { core, open, clean_at: CLEAN_MIN, ended: 0, oldest_fresh: 0, fresh_max, connections_max, memory }
    }

    /// Adds a connection that `task` serves. Closes the oldest ones without a completed request, if there are too many.
    pub(super) fn add(&mut self, peer: Arc<Peer>, task: AbortHandle) {
        if self.open.len() >= self.clean_at {
            self.forget_ended();
        }
        self.open.push((peer, task));
        while self.core.fresh.get() > self.fresh_max
            && let Some((peer, task)) = self.open.get(self.oldest_fresh)
        {
            // One that has ended is not fresh.
            if peer.is_fresh() {
                Self::close(peer, task, CloseReason::Unused);
                peer.mature();
            }
            self.oldest_fresh += 1;
        }
    }

    fn forget_ended(&mut self) {
        let before = self.open.len();
        self.open.retain(|(_, task)| !task.is_finished());
        self.ended += before - self.open.len();
        self.clean_at = (2 * self.open.len()).max(CLEAN_MIN);
        self.oldest_fresh = 0;
    }

    /// Begins the next tick, and closes connections whose time has ended.
    pub(super) fn look(&mut self) {
        self.core.tick.add(1);
        self.forget_ended();
        self.memory.look(std::mem::take(&mut self.ended), self.core.bytes.get());
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
        if self.core.tables().is_half_used() {
            self.retire_grown();
        }
        self.make_room();
    }

    /// Retires idle connections whose tables have grown: HTTP/2 frees a table only when its connection ends.
    fn retire_grown(&self) {
        let is_grown = |peer: &Peer| {
            peer.table.entries() >= GROWN_ENTRIES
                && peer.table.open.get() == 0
                && peer.stuck_for() >= GROWN_TICKS_MAX
                && peer.retired_for().is_none()
        };
        for (peer, _) in self.open.iter().filter(|(peer, _)| is_grown(peer)).take(IDLE_CLOSED_MAX) {
            peer.count_closed(CloseReason::Retired);
            peer.retire();
        }
    }

    /// If the budget of all connections is short, closes connections of the address that holds most: idle ones first, the
    /// largest first. Then lets connections read again that wait for room.
    pub(super) fn make_room(&self) {
        let tables = self.core.tables();
        let mut excess = tables.excess();
        if excess > 0 {
            let mut of_networks: HashMap<_, Vec<_>> = HashMap::new();
            for (peer, task) in self.open.iter().filter(|(peer, _)| peer.table.bytes() > 0) {
                of_networks.entry(peer.table.network()).or_default().push((peer, task));
            }
            for connections in of_networks.values_mut() {
                connections.sort_by_key(|(peer, _)| (peer.table.open.get() == 0, peer.table.bytes()));
            }
            let mut heaviest: BinaryHeap<_> = tables.networks().into();
            let mut closed = 0;
            while excess > 0
                && let Some(mut most) = heaviest.peek_mut()
                // Otherwise they belong to other runtimes, which make room too.
                && let Some((peer, task)) = of_networks.get_mut(&most.1).and_then(Vec::pop)
            {
                let freed = peer.table.leave(tables);
                if freed > 0 {
                    Self::close(peer, task, CloseReason::Memory);
                    closed += 1;
                }
                most.0 = most.0.saturating_sub(freed);
                excess = excess.saturating_sub(freed);
                if closed == ROOM_CLOSED_MAX {
                    // The rest later: other tasks run first.
                    tables.ask_for_room();
                    break;
                }
            }
        }
        if !tables.is_short() {
            for (peer, _) in &self.open {
                peer.table.resume();
            }
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
        if peer.in_headers_for().is_some_and(|ticks| ticks >= HEADERS_TICKS_MAX) {
            return Some(CloseReason::Headers);
        }
        if peer.is_overdue() {
            return Some(CloseReason::Unread);
        }
        if peer.retired_for().is_some_and(|ticks| ticks >= RETIRED_TICKS_MAX) {
            return Some(CloseReason::Retired);
        }
        if is_full && peer.bytes() > share && peer.stuck_for() >= STUCK_TICKS_MAX {
            return Some(CloseReason::Held);
        }
        None
    }

    fn close(peer: &Peer, task: &AbortHandle, reason: CloseReason) {
        // A retired connection was counted when it was retired.
        if peer.retired_for().is_none() {
            peer.count_closed(reason);
        }
        task.abort();
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::super::memory::tests::{bounds, core};
    use super::super::memory::{Bounds, Open, Piece, RESPONSE_TICKS_MAX, Reservation};
    use super::*;

    struct Bench {
        core: Arc<Core>,
        peers: Peers,
    }

    impl Bench {
        fn new(total_bytes: usize) -> Self {
            let core = core(bounds(1 << 20, total_bytes));
            let peers = Peers::new(core.clone(), 1, usize::MAX);
            Self { core, peers }
        }

        /// Opens a connection, and returns the guard that shows whether it is open.
        fn open(&mut self) -> (Arc<Peer>, tokio::task::JoinHandle<()>) {
            let open = Open::on(&self.core);
            let peer = open.peer().clone();
            let task = tokio::spawn(async move {
                let _open = open;
                std::future::pending::<()>().await;
            });
            self.peers.add(peer.clone(), task.abort_handle());
            (peer, task)
        }

        /// Opens a connection that its peer closes at once.
        async fn open_and_close(&mut self) {
            let (_, task) = self.open();
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
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
        assert_eq!(bench.core.fresh.get(), FRESH_CONNECTIONS_MAX);
    }

    /// One process that opened and closed 5,000 connections a second closed 8 of 60 new connections of others.
    #[tokio::test]
    async fn short_connections_close_no_others() {
        const SHORT: usize = 50_000;
        let mut bench = Bench::new(1 << 30);
        let mut honest = Vec::new();
        for number in 0..SHORT {
            if number % 1_000 == 0 {
                honest.push(bench.open());
            }
            bench.open_and_close().await;
            assert!(bench.peers.open.len() <= 2 * honest.len() + CLEAN_MIN, "ended connections are forgotten");
        }
        assert_eq!(honest.iter().filter(|(_, task)| task.is_finished()).count(), 0);
        assert_eq!((bench.core.fresh.get(), bench.core.connections()), (honest.len(), honest.len()));
    }

    #[tokio::test]
    async fn the_oldest_that_is_open_is_closed_first_though_others_have_ended() {
        let mut bench = Bench::new(1 << 30);
        let mut open = Vec::new();
        for _ in 0..FRESH_CONNECTIONS_MAX {
            bench.open_and_close().await;
            open.push(bench.open().1);
        }
        for closed in 1..=3 {
            open.push(bench.open().1);
            bench.open_and_close().await;
            tokio::task::yield_now().await;
            let ended: Vec<bool> = open.iter().take(5).map(tokio::task::JoinHandle::is_finished).collect();
            // A short connection takes a place as long as it is open.
            assert_eq!(ended, [0, 1, 2, 3, 4].map(|at| at <= closed));
        }
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

    /// Connections of a listener whose budget has room for few tables of 256 requests, and their tasks.
    struct Shared {
        bench: Bench,
        open: Vec<(Arc<Peer>, Open, tokio::task::JoinHandle<()>)>,
    }

    impl Shared {
        fn new() -> Self {
            const BUDGET: usize = 10 << 20;
            let core = core(Bounds { tables_bytes: BUDGET, ..bounds(1 << 20, 1 << 30) });
            let peers = Peers::new(core.clone(), 1, usize::MAX);
            Self { bench: Bench { core, peers }, open: Vec::new() }
        }

        fn open(&mut self, address: &str, requests: u32) -> usize {
            let open = Open::grown(&self.bench.core, address, requests);
            let peer = open.peer().clone();
            let task = tokio::spawn(std::future::pending());
            self.bench.peers.add(peer.clone(), task.abort_handle());
            self.open.push((peer, open, task));
            self.open.len() - 1
        }

        /// The connections that were closed since the last call; they end.
        async fn closed(&mut self) -> Vec<usize> {
            self.bench.peers.make_room();
            tokio::task::yield_now().await;
            (0..self.open.len()).filter(|&n| self.open[n].2.is_finished()).collect()
        }
    }

    #[tokio::test]
    async fn the_address_that_holds_most_gives_way_its_idle_and_large_connections_first() {
        let mut shared = Shared::new();
        let honest = shared.open("10.0.0.1", 256);
        let busy = shared.open("10.0.0.2", 256);
        let _request = Reservation::new(&shared.open[busy].0, 100).unwrap();
        let small = shared.open("10.0.0.2", 1);
        while shared.bench.core.tables().excess() == 0 {
            assert!(shared.closed().await.is_empty(), "there is room");
            shared.open("10.0.0.2", 256);
        }
        let before = shared.bench.core.tables().excess();
        let closed = shared.closed().await;
        assert!(![honest, busy, small].iter().any(|kept| closed.contains(kept)), "{closed:?}");
        let freed: usize = closed.iter().map(|&n| shared.open[n].0.table.bytes()).sum();
        let largest = shared.open[honest].0.table.bytes();
        assert!((before..before + largest).contains(&freed), "{freed} bytes for {before}");
        assert_eq!(shared.closed().await, closed, "no more than needed, before these have ended");
        shared.open.retain(|(_, _, task)| !task.is_finished());
        assert!(!shared.bench.core.tables().is_short());
    }

    #[tokio::test]
    async fn where_each_address_has_one_connection_the_largest_gives_way() {
        let mut shared = Shared::new();
        let large = shared.open("10.9.9.9", 4_096);
        let mut number = 0;
        while shared.bench.core.tables().excess() == 0 {
            shared.open(&format!("10.0.{}.{}", number / 200, number % 200), 8);
            number += 1;
        }
        assert_eq!(shared.closed().await, [large]);
    }

    #[tokio::test]
    async fn a_grown_connection_is_retired_when_it_is_idle_and_closed_if_it_stays() {
        let mut shared = Shared::new();
        let idle = shared.open("10.0.0.1", 256);
        let small = shared.open("10.0.0.1", 8);
        let busy = shared.open("10.0.0.1", 256);
        let _request = Reservation::new(&shared.open[busy].0, 100).unwrap();
        shared.bench.ticks(2 * GROWN_TICKS_MAX).await;
        assert!(shared.open[idle].0.retired_for().is_none(), "less than half of the budget is used");
        while !shared.bench.core.tables().is_half_used() {
            let more = shared.open("10.0.0.3", 32);
            shared.open[more].0.mature();
        }
        shared.bench.ticks(1).await;
        let retired = |n: usize| shared.open[n].0.retired_for().is_some();
        assert_eq!([idle, small, busy].map(retired), [true, false, false]);
        shared.bench.ticks(RETIRED_TICKS_MAX - 1).await;
        assert!(!shared.open[idle].2.is_finished());
        shared.bench.ticks(1).await;
        assert!(shared.open[idle].2.is_finished() && !shared.open[busy].2.is_finished());
        let ended = shared.bench.core.ended();
        let closed = CloseReason::VARIANTS.iter().map(|reason| ended.closed(*reason)).sum::<u64>();
        assert_eq!((closed, ended.closed(CloseReason::Retired)), (1, 1), "counted once");
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
            hyper::body::Buf::advance(&mut piece, 8);
        }
        assert!(!task.is_finished());
    }
}
