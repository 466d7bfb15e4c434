//! What callers make weir hold: bytes of requests and responses, for each connection and in all.
//!
//! One runtime serves a connection and all its streams, so that every count but the total has one writer and needs no
//! locked addition. Not here: closing connections (peers.rs).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tonic::Status;
use tonic::codegen::Bytes;

use super::ended::{CloseReason, Ended};
use super::turns;

/// Kinds of requests of other services, by which their streams are counted (other.rs).
pub(super) const KINDS: usize = 2;
/// What a request costs beside the bytes of its messages: its task, its stream, its headers.
pub(super) const STREAM_BYTES: usize = 2 * 1_024;
/// The bytes that every connection may hold, even if the total is used up.
const SHARE_BYTES_MIN: usize = 32 * 1_024;
/// All connections together may hold this part of the total beyond it, in equal shares.
const SHARE_PARTS: usize = 4;
/// When less than this part of the total is left, connections read little at once.
const ROOM_PARTS: usize = 8;
/// A runtime adds to the total when its own count has moved this far, so that the runtimes rarely write the same memory.
const POST_BYTES: usize = 64 * 1_024;
/// How long a response may wait until its peer has taken it, in ticks of a second.
pub(super) const RESPONSE_TICKS_MAX: u32 = 10;
/// Responses are counted by the tick they were made in; a connection has at most [`RESPONSE_TICKS_MAX`] such counts.
const TICKS_KEPT: usize = 16;

/// The bounds, from the settings.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests in flight on one connection.
    pub streams: u32,
    /// How long the message of a request may take to arrive after its headers.
    pub receive_timeout: Duration,
    /// Bytes held for one connection.
    pub connection_bytes: usize,
    /// Bytes held for all connections.
    pub total_bytes: usize,
}

/// What all runtimes hold together.
#[derive(Debug, Default)]
pub(super) struct Total {
    bytes: AtomicUsize,
    connections: AtomicUsize,
    pub(super) ended: Ended,
    /// Requests of other services, by their kind.
    pub(super) streams: [AtomicUsize; KINDS],
}

/// Reads the totals, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Held(pub(super) Arc<Total>);

impl Held {
    /// Bytes held for callers, as accounted; a runtime's last 64 KiB may be missing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed) as u64
    }

    /// Requests refused because too much was held.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.ended.refused()
    }

    /// Connections that weir closed for this reason.
    #[must_use]
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.0.ended.closed(reason)
    }

    /// Requests that HTTP/2 reset with this one of [`CODES`](super::ended::CODES).
    #[must_use]
    pub fn reset(&self, code: usize) -> u64 {
        self.0.ended.reset(code)
    }
}

/// What one runtime holds.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) bounds: Bounds,
    total: Arc<Total>,
    bytes: AtomicUsize,
    /// The part of `bytes` that is in the total.
    posted: AtomicUsize,
    /// Seconds that this runtime has been running.
    tick: AtomicU32,
    /// Connections that have completed no request.
    fresh: AtomicUsize,
    turns: turns::OfCore,
}

impl Core {
    pub(super) fn new(bounds: Bounds, total: Arc<Total>) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            total,
            bytes: AtomicUsize::new(0),
            posted: AtomicUsize::new(0),
            tick: AtomicU32::new(0),
            fresh: AtomicUsize::new(0),
            turns: turns::OfCore::default(),
        })
    }

    pub(super) fn tick(&self) -> u32 {
        self.tick.load(Relaxed)
    }

    /// One more second has passed.
    pub(super) fn advance(&self) {
        self.tick.store(self.tick().wrapping_add(1), Relaxed);
    }

    pub(super) fn fresh(&self) -> usize {
        self.fresh.load(Relaxed)
    }

    pub(super) fn total(&self) -> &Total {
        &self.total
    }

    /// What this runtime holds.
    pub(super) fn own_bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn total_bytes(&self) -> usize {
        // This runtime's own count is exact; others may lack what they have not posted.
        let others = self.total.bytes.load(Relaxed).saturating_sub(self.posted.load(Relaxed));
        others + self.own_bytes()
    }

    /// The connections of all runtimes.
    pub(super) fn connections(&self) -> usize {
        self.total.connections.load(Relaxed)
    }

    /// Whether all connections together hold as much as they may.
    pub(super) fn is_full(&self) -> bool {
        self.total_bytes() >= self.bounds.total_bytes
    }

    /// Whether little room is left: less than what all connections can fill before they look again.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.total_bytes() >= self.bounds.total_bytes - self.bounds.total_bytes / ROOM_PARTS
    }

    /// What each connection may hold where the total is used up: all of them together a quarter of it more.
    pub(super) fn share(&self) -> usize {
        let connections = self.connections().max(1);
        (self.bounds.total_bytes / SHARE_PARTS / connections).max(SHARE_BYTES_MIN)
    }

    fn set(&self, bytes: usize) {
        self.bytes.store(bytes, Relaxed);
        let posted = self.posted.load(Relaxed);
        if bytes.abs_diff(posted) >= POST_BYTES {
            if bytes > posted {
                self.total.bytes.fetch_add(bytes - posted, Relaxed);
            } else {
                self.total.bytes.fetch_sub(posted - bytes, Relaxed);
            }
            self.posted.store(bytes, Relaxed);
        }
    }
}

/// One connection, and what is held for it.
#[derive(Debug)]
pub(super) struct Peer {
    core: Arc<Core>,
    address: Option<IpAddr>,
    bytes: AtomicUsize,
    /// Answered requests; it may wrap.
    answers: AtomicU32,
    /// Responses that wait to be taken, by the tick in which they were made.
    waiting: [AtomicU32; TICKS_KEPT],
    /// The tick of the last progress.
    progress: AtomicU32,
    /// The tick of the first byte, if any was read.
    born: u32,
    is_fresh: AtomicBool,
    has_shaken_hands: AtomicBool,
    /// The tick in which headers began that have not ended, plus one; 0 if there are none.
    headers_since: AtomicU32,
    /// The tick in which the peer sent too many frames, plus one; 0 if it did not.
    condemned_since: AtomicU32,
    /// Requests of other services, by their kind.
    pub(super) streams: [AtomicU32; KINDS],
    turns: turns::OfPeer,
    pub(super) reading: turns::BytesOfTurn,
}

impl Peer {
    pub(super) fn new(core: &Arc<Core>) -> Arc<Self> {
        Self::at(core, None)
    }

    /// One whose peer has this address; none if it has no IP address.
    pub(super) fn at(core: &Arc<Core>, address: Option<IpAddr>) -> Arc<Self> {
        core.total.connections.fetch_add(1, Relaxed);
        core.fresh.store(core.fresh() + 1, Relaxed);
        Arc::new(Self {
            core: core.clone(),
            address,
            bytes: AtomicUsize::new(0),
            answers: AtomicU32::new(0),
            waiting: Default::default(),
            progress: AtomicU32::new(core.tick()),
            born: core.tick(),
            is_fresh: AtomicBool::new(true),
            has_shaken_hands: AtomicBool::new(false),
            headers_since: AtomicU32::new(0),
            condemned_since: AtomicU32::new(0),
            streams: Default::default(),
            turns: turns::OfPeer::default(),
            reading: turns::BytesOfTurn::default(),
        })
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// The address of the peer, if it has an IP address.
    pub(super) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The connection is about to be closed because of its peer.
    pub(super) fn count_closed(&self, reason: CloseReason) {
        self.core.total.ended.count_closed(reason, self.address);
    }

    pub(super) fn answers(&self) -> u32 {
        self.answers.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// For how many ticks the connection has been open.
    pub(super) fn age(&self) -> u32 {
        self.core.tick().wrapping_sub(self.born)
    }

    /// For how many ticks no response was taken and no message completed.
    pub(super) fn stuck_for(&self) -> u32 {
        self.core.tick().wrapping_sub(self.progress.load(Relaxed))
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh.load(Relaxed)
    }

    /// So many requests have been answered.
    pub(super) fn count_answers(&self, count: u32) {
        self.answers.store(self.answers().wrapping_add(count), Relaxed);
        self.mature();
    }

    /// The connection no longer counts as one without a request.
    pub(super) fn mature(&self) {
        if self.is_fresh() {
            self.is_fresh.store(false, Relaxed);
            self.core.fresh.store(self.core.fresh().saturating_sub(1), Relaxed);
        }
    }

    pub(super) fn has_shaken_hands(&self) -> bool {
        self.has_shaken_hands.load(Relaxed)
    }

    /// What the meter has seen after the last read.
    pub(super) fn observe(&self, has_shaken_hands: bool, in_header_block: bool) {
        if has_shaken_hands != self.has_shaken_hands() {
            self.has_shaken_hands.store(has_shaken_hands, Relaxed);
        }
        let since = self.headers_since.load(Relaxed);
        if in_header_block != (since != 0) {
            let since = if in_header_block { self.core.tick().saturating_add(1) } else { 0 };
            self.headers_since.store(since, Relaxed);
        }
    }

    /// For how many ticks headers have been incomplete.
    pub(super) fn in_headers_for(&self) -> u32 {
        match self.headers_since.load(Relaxed) {
            0 => 0,
            since => self.core.tick().saturating_sub(since - 1),
        }
    }

    /// The peer has sent too many frames: its connection is to be closed.
    pub(super) fn condemn(&self) {
        self.condemned_since.store(self.core.tick().saturating_add(1), Relaxed);
    }

    /// For how many ticks the connection has been waiting to be closed; none if it is not to be.
    pub(super) fn condemned_for(&self) -> Option<u32> {
        let since = self.condemned_since.load(Relaxed).checked_sub(1)?;
        Some(self.core.tick().saturating_sub(since))
    }

    /// Whether a response has waited for longer than [`RESPONSE_TICKS_MAX`].
    pub(super) fn is_overdue(&self) -> bool {
        let now = self.core.tick() as usize;
        (RESPONSE_TICKS_MAX as usize..TICKS_KEPT)
            .any(|age| self.waiting[now.wrapping_sub(age) % TICKS_KEPT].load(Relaxed) > 0)
    }

    /// Whether `more` bytes fit: into what the connection may hold, and into the total or the connection's share of it.
    fn has_room(&self, more: usize) -> bool {
        let bytes = self.bytes() + more;
        bytes <= self.core.bounds.connection_bytes
            && (self.core.total_bytes() + more <= self.core.bounds.total_bytes || bytes <= self.core.share())
    }

    fn add(&self, bytes: usize) {
        self.bytes.store(self.bytes() + bytes, Relaxed);
        self.core.set(self.core.bytes.load(Relaxed) + bytes);
    }

    fn remove(&self, bytes: usize) {
        self.bytes.store(self.bytes().saturating_sub(bytes), Relaxed);
        self.core.set(self.core.bytes.load(Relaxed).saturating_sub(bytes));
    }

    fn refusal(&self) -> Status {
        self.core.total.ended.count_refused(self.address, self.bytes());
        let Bounds { connection_bytes, total_bytes, .. } = self.core.bounds;
        Status::unavailable(format!(
            "too much is held for callers: {} bytes for this connection, at most {connection_bytes}; {} in all, at most {total_bytes} \
             (nothing was charged)",
            self.bytes(),
            self.core.total_bytes(),
        ))
    }

    fn progressed(&self) {
        self.progress.store(self.core.tick(), Relaxed);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.mature();
        self.core.total.connections.fetch_sub(1, Relaxed);
    }
}

/// One request, and the bytes that are held for it until this is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    peer: Arc<Peer>,
    bytes: usize,
    /// Whether the request has waited for the turn of a wide one.
    is_wide: bool,
}

impl Hold {
    /// A new request.
    ///
    /// # Errors
    /// Too much is held already.
    pub(super) fn new(peer: &Arc<Peer>, bytes: usize) -> Result<Self, Status> {
        if !peer.has_room(bytes) {
            return Err(peer.refusal());
        }
        Ok(Self::forced(peer, bytes))
    }

    /// What is held already and only accounted for.
    fn forced(peer: &Arc<Peer>, bytes: usize) -> Self {
        peer.add(bytes);
        Self { peer: peer.clone(), bytes, is_wide: false }
    }

    /// More bytes of the request have come.
    ///
    /// # Errors
    /// Too much is held already.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        if !self.peer.has_room(bytes) {
            return Err(self.peer.refusal());
        }
        self.peer.add(bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// Waits for the turn of a wide request.
    pub(super) async fn turn(&mut self) {
        self.peer.turns.wait(&self.peer.core.turns).await;
        self.is_wide = true;
    }

    /// The message of the request is complete, and has been let go.
    pub(super) fn received(&mut self) {
        let more = self.bytes.saturating_sub(STREAM_BYTES);
        if more > 0 {
            self.peer.remove(more);
            self.bytes -= more;
            self.peer.progressed();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.peer.remove(self.bytes);
    }
}

/// A part of a response, accounted for until h2 has written it, or given it up.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    hold: Hold,
    slot: usize,
    is_part: bool,
}

impl Piece {
    /// The whole response to this request.
    pub(super) fn new(bytes: Bytes, mut hold: Hold) -> Self {
        hold.peer.add(bytes.len());
        hold.bytes += bytes.len();
        let slot = hold.peer.core.tick() as usize % TICKS_KEPT;
        let waiting = &hold.peer.waiting[slot];
        waiting.store(waiting.load(Relaxed) + 1, Relaxed);
        if hold.is_wide {
            hold.peer.turns.respond();
        }
        Self { bytes, hold, slot, is_part: false }
    }

    /// One of several parts.
    pub(super) fn part(bytes: Bytes, hold: &Hold) -> Self {
        let mut part = Self::new(bytes, Hold::forced(&hold.peer, 0));
        part.is_part = true;
        part
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let peer = &self.hold.peer;
        let waiting = &peer.waiting[self.slot];
        waiting.store(waiting.load(Relaxed).saturating_sub(1), Relaxed);
        if self.hold.is_wide {
            peer.turns.take();
        }
        if self.bytes.is_empty() {
            peer.progressed();
            // A whole response counts when its end has been written (connection.rs). The stream of a part may never end.
            if self.is_part {
                peer.count_answers(1);
            }
        }
    }
}

impl prost::bytes::Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        prost::bytes::Buf::advance(&mut self.bytes, count);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use prost::bytes::Buf as _;

    use super::*;

    pub(crate) fn bounds(connection_bytes: usize, total_bytes: usize) -> Bounds {
        Bounds { streams: 8, receive_timeout: Duration::from_secs(60), connection_bytes, total_bytes }
    }

    /// A connection that may hold anything.
    pub(crate) fn peer() -> Arc<Peer> {
        Peer::new(&Core::new(bounds(usize::MAX / 4, usize::MAX / 4), Arc::default()))
    }

    impl Peer {
        /// Another connection of the same runtime.
        pub(crate) fn sibling(&self) -> Arc<Self> {
            Self::new(&self.core)
        }
    }

    impl Hold {
        /// Its connection.
        pub(crate) fn peer(&self) -> &Arc<Peer> {
            &self.peer
        }
    }

    #[test]
    fn what_is_held_is_counted_until_it_is_let_go() {
        let peer = peer();
        let mut hold = Hold::new(&peer, STREAM_BYTES).unwrap();
        hold.grow(1_000).unwrap();
        assert_eq!(peer.bytes(), STREAM_BYTES + 1_000);
        hold.received();
        assert_eq!(peer.bytes(), STREAM_BYTES);
        let mut piece = Piece::new(Bytes::from_static(b"response"), hold);
        assert_eq!(peer.bytes(), STREAM_BYTES + 8);
        piece.advance(8);
        assert_eq!((peer.answers(), peer.is_fresh()), (0, true));
        drop(piece);
        assert_eq!((peer.bytes(), peer.answers()), (0, 0), "its end is to come");
        peer.count_answers(1);
        assert_eq!((peer.answers(), peer.is_fresh(), peer.core().fresh()), (1, false, 0));
    }

    #[test]
    fn a_part_of_a_response_is_an_answer_once_it_is_taken() {
        let peer = peer();
        let hold = Hold::new(&peer, STREAM_BYTES).unwrap();
        drop(Piece::part(Bytes::from_static(b"given up"), &hold));
        assert_eq!((peer.answers(), peer.is_fresh()), (0, true));
        let mut part = Piece::part(Bytes::from_static(b"taken"), &hold);
        part.advance(5);
        drop(part);
        assert_eq!((peer.answers(), peer.is_fresh()), (1, false));
    }

    #[test]
    fn a_response_that_is_given_up_is_no_answer() {
        let peer = peer();
        let mut piece = Piece::new(Bytes::from_static(b"response"), Hold::new(&peer, STREAM_BYTES).unwrap());
        piece.advance(3);
        drop(piece);
        assert_eq!((peer.bytes(), peer.answers(), peer.is_fresh()), (0, 0, true));
    }

    #[test]
    fn a_connection_may_hold_its_bound_and_no_more() {
        let peer = Peer::new(&Core::new(bounds(100_000, 1 << 30), Arc::default()));
        let mut hold = Hold::new(&peer, 60_000).unwrap();
        hold.grow(40_000).unwrap();
        assert_eq!(hold.grow(1).unwrap_err().code(), tonic::Code::Unavailable);
        assert_eq!(Hold::new(&peer, 1).unwrap_err().code(), tonic::Code::Unavailable);
        assert_eq!(peer.core().total.ended.refused(), 2);
        drop(hold);
        Hold::new(&peer, 100_000).unwrap();
    }

    #[test]
    fn past_the_total_every_connection_keeps_its_share() {
        let total = Arc::new(Total::default());
        let cores = [(); 2].map(|()| Core::new(bounds(1 << 20, 1 << 20), total.clone()));
        let (greedy, modest) = (Peer::new(&cores[0]), Peer::new(&cores[1]));
        let _most = Hold::new(&greedy, 1 << 20).unwrap();
        assert!(cores[1].is_full());
        assert_eq!(cores[1].share(), 1 << 17);
        let mut hold = Hold::new(&modest, 1 << 16).expect("below the share");
        hold.grow(1 << 16).expect("the whole share");
        hold.grow(1).expect_err("more than the share");
    }

    #[test]
    fn the_total_follows_all_runtimes() {
        let total = Arc::new(Total::default());
        let cores = [(); 3].map(|()| Core::new(bounds(1 << 30, 1 << 30), total.clone()));
        let holds: Vec<Hold> = cores.iter().map(|core| Hold::new(&Peer::new(core), 1 << 20).unwrap()).collect();
        assert_eq!(Held(total.clone()).bytes(), 3 << 20);
        drop(holds);
        assert_eq!(Held(total.clone()).bytes(), 0);
        assert_eq!(total.connections.load(Relaxed), 0);
    }

    #[test]
    fn a_response_is_overdue_after_its_time_and_not_before() {
        for made_at in 0..40 {
            let peer = peer();
            (0..made_at).for_each(|_| peer.core().advance());
            let piece = Piece::new(Bytes::from_static(b"response"), Hold::new(&peer, 0).unwrap());
            for _ in 0..RESPONSE_TICKS_MAX {
                assert!(!peer.is_overdue());
                peer.core().advance();
            }
            assert!(peer.is_overdue());
            drop(piece);
            assert!(!peer.is_overdue());
        }
    }

    #[test]
    fn headers_that_do_not_end_are_timed() {
        let peer = peer();
        peer.observe(true, true);
        for _ in 0..3 {
            peer.core().advance();
            peer.observe(true, true);
        }
        assert_eq!(peer.in_headers_for(), 3);
        peer.observe(true, false);
        assert_eq!(peer.in_headers_for(), 0);
    }
}
