//! Memory reserved for callers: bytes of requests and responses, for each connection and in total.
//!
//! One runtime serves a connection and all its streams. So every count except the total has one writer and needs no
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
/// Memory of a request without its message: its task, its stream, its headers.
pub(super) const STREAM_BYTES: usize = 2 * 1_024;
/// Bytes that each connection may reserve, even if the total is used up.
const SHARE_BYTES_MIN: usize = 32 * 1_024;
/// All connections together may exceed the total by this part of it, in equal shares.
const SHARE_PARTS: usize = 4;
/// When less than this part of the total is left, connections read little at once.
const ROOM_PARTS: usize = 8;
/// A runtime updates the total when its own count has changed by this much, so that runtimes rarely write the same memory.
const POST_BYTES: usize = 64 * 1_024;
/// How long a peer may leave a response unread, in ticks of a second.
pub(super) const RESPONSE_TICKS_MAX: u32 = 10;
/// Responses are counted by the tick in which they were made. More than [`RESPONSE_TICKS_MAX`].
const TICKS_KEPT: usize = 16;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests in flight on one connection.
    pub streams: u32,
    /// The time limit for the message of a request, after its headers.
    pub receive_timeout: Duration,
    pub connection_bytes: usize,
    pub total_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Total {
    bytes: AtomicUsize,
    connections: AtomicUsize,
    pub(super) ended: Ended,
    /// Requests of other services, by their kind.
    pub(super) streams: [AtomicUsize; KINDS],
}

#[derive(Clone, Debug, Default)]
pub struct Memory(pub(super) Arc<Total>);

impl Memory {
    /// Bytes reserved for callers. The last 64 KiB of each runtime may be missing.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed) as u64
    }

    /// Requests refused because too much was reserved.
    pub fn refused(&self) -> u64 {
        self.0.ended.refused()
    }

    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.0.ended.closed(reason)
    }

    /// Requests that HTTP/2 reset with the code at this index of [`CODES`](super::ended::CODES).
    pub fn reset(&self, code: usize) -> u64 {
        self.0.ended.reset(code)
    }
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) bounds: Bounds,
    total: Arc<Total>,
    bytes: AtomicUsize,
    /// The part of `bytes` that is included in the total.
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

    /// Begins the next second.
    pub(super) fn advance(&self) {
        self.tick.store(self.tick().wrapping_add(1), Relaxed);
    }

    pub(super) fn fresh(&self) -> usize {
        self.fresh.load(Relaxed)
    }

    pub(super) fn total(&self) -> &Total {
        &self.total
    }

    pub(super) fn own_bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn total_bytes(&self) -> usize {
        // This runtime's own count is exact; others may lack what they have not added yet.
        let others = self.total.bytes.load(Relaxed).saturating_sub(self.posted.load(Relaxed));
        others + self.own_bytes()
    }

    pub(super) fn connections(&self) -> usize {
        self.total.connections.load(Relaxed)
    }

    /// Whether the total is used up.
    pub(super) fn is_full(&self) -> bool {
        self.total_bytes() >= self.bounds.total_bytes
    }

    /// Whether little is left: less than all connections can use before they check again.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.total_bytes() >= self.bounds.total_bytes - self.bounds.total_bytes / ROOM_PARTS
    }

    /// What each connection may reserve when the total is used up. All shares are a quarter of the total.
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

#[derive(Debug)]
pub(super) struct Peer {
    core: Arc<Core>,
    address: Option<IpAddr>,
    bytes: AtomicUsize,
    /// Answered requests; it may wrap.
    answers: AtomicU32,
    /// Responses that the peer has not read, by the tick in which they were made.
    waiting: [AtomicU32; TICKS_KEPT],
    /// The tick of the last progress.
    progress: AtomicU32,
    /// The tick of the first byte, if any was read.
    born: u32,
    is_fresh: AtomicBool,
    has_shaken_hands: AtomicBool,
    /// The tick in which incomplete headers began, plus one; 0 if there are none.
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

    /// A connection whose peer has this address. None if it has no IP address.
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

    /// The address of the peer. None if it has no IP address.
    pub(super) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Counts that the connection will be closed because of its peer.
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

    /// For how many ticks the peer read no response and completed no message.
    pub(super) fn stuck_for(&self) -> u32 {
        self.core.tick().wrapping_sub(self.progress.load(Relaxed))
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh.load(Relaxed)
    }

    pub(super) fn count_answers(&self, count: u32) {
        self.answers.store(self.answers().wrapping_add(count), Relaxed);
        self.mature();
    }

    /// Marks that the connection has completed a request.
    pub(super) fn mature(&self) {
        if self.is_fresh() {
            self.is_fresh.store(false, Relaxed);
            self.core.fresh.store(self.core.fresh().saturating_sub(1), Relaxed);
        }
    }

    pub(super) fn has_shaken_hands(&self) -> bool {
        self.has_shaken_hands.load(Relaxed)
    }

    /// Stores the state of the meter after the last read.
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

    /// Marks that the peer has sent too many frames, so its connection must be closed.
    pub(super) fn condemn(&self) {
        self.condemned_since.store(self.core.tick().saturating_add(1), Relaxed);
    }

    /// For how many ticks the connection has been waiting to be closed. None if it stays open.
    pub(super) fn condemned_for(&self) -> Option<u32> {
        let since = self.condemned_since.load(Relaxed).checked_sub(1)?;
        Some(self.core.tick().saturating_sub(since))
    }

    /// Whether a response has been unread for longer than [`RESPONSE_TICKS_MAX`].
    pub(super) fn is_overdue(&self) -> bool {
        let now = self.core.tick() as usize;
        (RESPONSE_TICKS_MAX as usize..TICKS_KEPT)
            .any(|age| self.waiting[now.wrapping_sub(age) % TICKS_KEPT].load(Relaxed) > 0)
    }

    /// Whether `more` bytes fit into the bound of the connection, and into the total or the connection's share of it.
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
            "too much memory is reserved for callers: {} bytes for this connection, at most {connection_bytes}; {} in all, at most {total_bytes} \
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

/// The memory reserved for one request, until this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    peer: Arc<Peer>,
    bytes: usize,
    /// Whether the request has waited for the turn of a wide one.
    is_wide: bool,
}

impl Reservation {
    /// Reserves memory for a new request.
    /// Fails when too much is reserved already.
    pub(super) fn new(peer: &Arc<Peer>, bytes: usize) -> Result<Self, Status> {
        if !peer.has_room(bytes) {
            return Err(peer.refusal());
        }
        Ok(Self::forced(peer, bytes))
    }

    /// Counts memory that is already in use.
    fn forced(peer: &Arc<Peer>, bytes: usize) -> Self {
        peer.add(bytes);
        Self { peer: peer.clone(), bytes, is_wide: false }
    }

    /// Reserves more, for received bytes of the request.
    /// Fails when too much is reserved already.
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

    /// Frees the bytes of the message, which is complete and no longer needed.
    pub(super) fn received(&mut self) {
        let more = self.bytes.saturating_sub(STREAM_BYTES);
        if more > 0 {
            self.peer.remove(more);
            self.bytes -= more;
            self.peer.progressed();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.peer.remove(self.bytes);
    }
}

/// A part of a response. It counts until h2 has written it or dropped it.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    reservation: Reservation,
    slot: usize,
    is_part: bool,
}

impl Piece {
    /// The whole response to this request.
    pub(super) fn new(bytes: Bytes, mut reservation: Reservation) -> Self {
        reservation.peer.add(bytes.len());
        reservation.bytes += bytes.len();
        let slot = reservation.peer.core.tick() as usize % TICKS_KEPT;
        let waiting = &reservation.peer.waiting[slot];
        waiting.store(waiting.load(Relaxed) + 1, Relaxed);
        if reservation.is_wide {
            reservation.peer.turns.respond();
        }
        Self { bytes, reservation, slot, is_part: false }
    }

    pub(super) fn part(bytes: Bytes, reservation: &Reservation) -> Self {
        let mut part = Self::new(bytes, Reservation::forced(&reservation.peer, 0));
        part.is_part = true;
        part
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let peer = &self.reservation.peer;
        let waiting = &peer.waiting[self.slot];
        waiting.store(waiting.load(Relaxed).saturating_sub(1), Relaxed);
        if self.reservation.is_wide {
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

    /// A connection without bounds.
    pub(crate) fn peer() -> Arc<Peer> {
        Peer::new(&Core::new(bounds(usize::MAX / 4, usize::MAX / 4), Arc::default()))
    }

    impl Peer {
        /// Another connection of the same runtime.
        pub(crate) fn sibling(&self) -> Arc<Self> {
            Self::new(&self.core)
        }
    }

    impl Reservation {
        pub(crate) fn peer(&self) -> &Arc<Peer> {
            &self.peer
        }
    }

    #[test]
    fn memory_counts_until_it_is_freed() {
        let peer = peer();
        let mut reservation = Reservation::new(&peer, STREAM_BYTES).unwrap();
        reservation.grow(1_000).unwrap();
        assert_eq!(peer.bytes(), STREAM_BYTES + 1_000);
        reservation.received();
        assert_eq!(peer.bytes(), STREAM_BYTES);
        let mut piece = Piece::new(Bytes::from_static(b"response"), reservation);
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
        let reservation = Reservation::new(&peer, STREAM_BYTES).unwrap();
        drop(Piece::part(Bytes::from_static(b"given up"), &reservation));
        assert_eq!((peer.answers(), peer.is_fresh()), (0, true));
        let mut part = Piece::part(Bytes::from_static(b"taken"), &reservation);
        part.advance(5);
        drop(part);
        assert_eq!((peer.answers(), peer.is_fresh()), (1, false));
    }

    #[test]
    fn a_response_that_is_given_up_is_no_answer() {
        let peer = peer();
        let mut piece = Piece::new(Bytes::from_static(b"response"), Reservation::new(&peer, STREAM_BYTES).unwrap());
        piece.advance(3);
        drop(piece);
        assert_eq!((peer.bytes(), peer.answers(), peer.is_fresh()), (0, 0, true));
    }

    #[test]
    fn a_connection_may_reserve_its_bound_and_no_more() {
        let peer = Peer::new(&Core::new(bounds(100_000, 1 << 30), Arc::default()));
        let mut reservation = Reservation::new(&peer, 60_000).unwrap();
        reservation.grow(40_000).unwrap();
        assert_eq!(reservation.grow(1).unwrap_err().code(), tonic::Code::Unavailable);
        assert_eq!(Reservation::new(&peer, 1).unwrap_err().code(), tonic::Code::Unavailable);
        assert_eq!(peer.core().total.ended.refused(), 2);
        drop(reservation);
        Reservation::new(&peer, 100_000).unwrap();
    }

    #[test]
    fn past_the_total_every_connection_keeps_its_share() {
        let total = Arc::new(Total::default());
        let cores = [(); 2].map(|()| Core::new(bounds(1 << 20, 1 << 20), total.clone()));
        let (greedy, modest) = (Peer::new(&cores[0]), Peer::new(&cores[1]));
        let _most = Reservation::new(&greedy, 1 << 20).unwrap();
        assert!(cores[1].is_full());
        assert_eq!(cores[1].share(), 1 << 17);
        let mut reservation = Reservation::new(&modest, 1 << 16).expect("below the share");
        reservation.grow(1 << 16).expect("the whole share");
        reservation.grow(1).expect_err("more than the share");
    }

    #[test]
    fn the_total_follows_all_runtimes() {
        let total = Arc::new(Total::default());
        let cores = [(); 3].map(|()| Core::new(bounds(1 << 30, 1 << 30), total.clone()));
        let reservations: Vec<Reservation> =
            cores.iter().map(|core| Reservation::new(&Peer::new(core), 1 << 20).unwrap()).collect();
        assert_eq!(Memory(total.clone()).bytes(), 3 << 20);
        drop(reservations);
        assert_eq!(Memory(total.clone()).bytes(), 0);
        assert_eq!(total.connections.load(Relaxed), 0);
    }

    #[test]
    fn a_response_is_overdue_after_its_time_and_not_before() {
        for made_at in 0..40 {
            let peer = peer();
            (0..made_at).for_each(|_| peer.core().advance());
            let piece = Piece::new(Bytes::from_static(b"response"), Reservation::new(&peer, 0).unwrap());
            for _ in 0..RESPONSE_TICKS_MAX {
                assert!(!peer.is_overdue());
                peer.core().advance();
            }
            assert!(peer.is_overdue());
            drop(piece);
            assert!(!peer.is_overdue());
        }
    }
}
