//! Memory reserved for callers: bytes of requests and responses, for each connection and in total.
//!
//! One runtime serves a connection and all its streams. Only the totals of all runtimes have several writers. Not here:
//! closing connections (peers.rs).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hyper::body::{Buf, Bytes};
use weir_lifecycle::Turns;

use super::counts::{Count, Since, Size};
use super::ended::{CloseReason, Ended, LoggedPeer};
use super::tables::{self, Tables};
use super::turns;

/// Memory of a request without its message: its task, its stream, its headers.
pub const STREAM_BYTES: usize = 2 * 1_024;
/// Bytes that each connection may reserve, even if the total is used up: this much, or less if all connections together would take too
/// much of the memory of the process.
const SHARE_BYTES: usize = 32 * 1_024;
/// The least share: four requests.
const SHARE_BYTES_MIN: usize = 4 * STREAM_BYTES;
/// All connections together may exceed the total by this part of it, or of the bound on their tables, in equal shares.
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
    pub connection_bytes: usize,
    pub total_bytes: usize,
    /// What the buffers and tables of all connections may take.
    pub tables_bytes: usize,
}

/// What all connections of a listener hold.
#[derive(Debug)]
pub(super) struct Total {
    bounds: Bounds,
    bytes: AtomicUsize,
    connections: AtomicUsize,
    ended: Ended,
    tables: Tables,
}

/// The memory of a listener: its bounds, and what its connections hold.
#[derive(Clone, Debug)]
pub struct Memory(pub(super) Arc<Total>);

impl Memory {
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Total {
            bounds,
            bytes: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            ended: Ended::default(),
            tables: Tables::new(bounds.tables_bytes),
        }))
    }

    /// Bytes reserved for callers. The last 64 KiB of each runtime may be missing.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed) as u64
    }

    /// Bytes that the buffers and tables of connections take, as weir estimates them.
    pub fn tables_bytes(&self) -> u64 {
        self.0.tables.bytes() as u64
    }

    /// Closed connections, and refused and reset requests.
    pub fn ended(&self) -> &Ended {
        &self.0.ended
    }
}

/// What the connections of one runtime hold together, and its time.
#[derive(Debug)]
pub(super) struct Core {
    total: Arc<Total>,
    pub(super) bytes: Size,
    /// The part of `bytes` that is included in the total.
    posted: Size,
    /// Seconds that this runtime has been running.
    pub(super) tick: Count,
    /// Connections that have completed no request.
    pub(super) fresh: Size,
    turns: Turns,
    pub(super) new_turns: turns::NewTurns,
}

impl Core {
    pub(super) fn new(memory: &Memory) -> Arc<Self> {
        Arc::new(Self {
            total: memory.0.clone(),
            bytes: Size::default(),
            posted: Size::default(),
            tick: Count::default(),
            fresh: Size::default(),
            turns: Turns::default(),
            new_turns: turns::NewTurns::default(),
        })
    }

    pub(super) fn bounds(&self) -> &Bounds {
        &self.total.bounds
    }

    pub(super) fn ended(&self) -> &Ended {
        &self.total.ended
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.total.tables
    }

    fn total_bytes(&self) -> usize {
        // This runtime's own count is exact; others may lack what they have not added yet.
        let others = self.total.bytes.load(Relaxed).saturating_sub(self.posted.get());
        others + self.bytes.get()
    }

    pub(super) fn connections(&self) -> usize {
        self.total.connections.load(Relaxed)
    }

    /// Whether the total is used up.
    pub(super) fn is_full(&self) -> bool {
        self.total_bytes() >= self.bounds().total_bytes
    }

    /// Whether little is left: less than all connections can use before they check again.
    pub(super) fn is_nearly_full(&self) -> bool {
        let most = self.bounds().total_bytes;
        self.total_bytes() >= most - most / ROOM_PARTS
    }

    /// What each connection may reserve when the total is used up.
    pub(super) fn share(&self) -> usize {
        let connections = self.connections().max(1);
        let equal_part = |bytes: usize| bytes / SHARE_PARTS / connections;
        let least = equal_part(self.bounds().tables_bytes).clamp(SHARE_BYTES_MIN, SHARE_BYTES);
        equal_part(self.bounds().total_bytes).max(least)
    }

    /// Adds the change of the own bytes to the total, if it is large.
    fn post(&self) {
        let (bytes, posted) = (self.bytes.get(), self.posted.get());
        if bytes.abs_diff(posted) >= POST_BYTES {
            if bytes > posted {
                self.total.bytes.fetch_add(bytes - posted, Relaxed);
            } else {
                self.total.bytes.fetch_sub(posted - bytes, Relaxed);
            }
            self.posted.set(bytes);
        }
    }
}

/// The sender of the requests of one connection, and what it holds.
#[derive(Debug)]
pub struct Peer {
    core: Arc<Core>,
    /// The name of its listener.
    listener: Arc<str>,
    address: Option<IpAddr>,
    bytes: Size,
    /// Answered requests.
    answers: Count,
    /// Responses that the peer has not read, by the tick in which they were made.
    waiting: [Count; TICKS_KEPT],
    /// The tick of the last progress.
    progress: Count,
    /// The tick in which the connection began.
    born: u32,
    is_fresh: AtomicBool,
    has_shaken_hands: AtomicBool,
    /// Since when the headers of a request have been incomplete.
    headers: Since,
    /// Since when the peer has sent too many frames: its connection must be closed.
    condemned: Since,
    /// Since when the connection has been ending by a GOAWAY.
    retired: Since,
    turns: turns::OfPeer,
    /// While the connection is new.
    pub(super) new_turn: Arc<turns::NewTurn>,
    pub(super) reading: turns::BytesOfTurn,
    pub(super) table: tables::OfPeer,
}

/// Too much memory is reserved for callers, so a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// What the connection has reserved, and the bound on that.
    of_connection: (usize, usize),
    /// What all connections have reserved, and the bound on that.
    in_all: (usize, usize),
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of_connection: (own, own_max), in_all: (all, all_max) } = self;
        write!(
            f,
            "too much memory is reserved for callers: {own} bytes for this connection, at most {own_max}; {all} in all, at most {all_max}"
        )
    }
}

impl Peer {
    /// A peer of a listener with these bounds, for tests and fuzz targets.
    pub fn alone(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self::new(&Core::new(&Memory::new(bounds)), "grpc".into(), None))
    }

    /// A peer of this listener with this address. None if it has no IP address.
    fn new(core: &Arc<Core>, listener: Arc<str>, address: Option<IpAddr>) -> Self {
        Self {
            core: core.clone(),
            listener,
            address,
            bytes: Size::default(),
            answers: Count::default(),
            waiting: Default::default(),
            progress: Count::of(core.tick.get()),
            born: core.tick.get(),
            is_fresh: AtomicBool::new(true),
            has_shaken_hands: AtomicBool::new(false),
            headers: Since::default(),
            condemned: Since::default(),
            retired: Since::default(),
            turns: turns::OfPeer::default(),
            new_turn: Arc::default(),
            reading: turns::BytesOfTurn::default(),
            table: tables::OfPeer::of(address),
        }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    pub(super) fn listener(&self) -> &str {
        &self.listener
    }

    /// The address of the peer. None if it has no IP address.
    pub(super) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn of_log(&self) -> LoggedPeer<'_> {
        LoggedPeer { listener: &self.listener, address: self.address }
    }

    /// Counts a request that HTTP/2 resets with this code.
    pub(super) fn count_reset(&self, code: u32) {
        self.core.ended().count_reset(code, self.of_log());
    }

    /// Counts that the connection will be closed because of its peer.
    pub(super) fn count_closed(&self, reason: CloseReason) {
        self.core.ended().count_closed(reason, self.of_log());
    }

    /// Counts a request that is answered with an error, of which HTTP/2 sends no bytes that are counted here.
    pub fn count_error(&self) {
        self.table.refused.add(1);
    }

    /// Answered requests; it may wrap.
    pub(super) fn answers(&self) -> u32 {
        self.answers.get()
    }

    /// The bytes that are reserved for its requests and responses.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// For how many ticks the connection has been open.
    pub(super) fn age(&self) -> u32 {
        self.core.tick.get().wrapping_sub(self.born)
    }

    /// For how many ticks the peer read no response and completed no message.
    pub(super) fn stuck_for(&self) -> u32 {
        self.core.tick.get().wrapping_sub(self.progress.get())
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh.load(Relaxed)
    }

    /// Whether few requests of the connection have been answered.
    pub(super) fn is_new(&self) -> bool {
        self.is_fresh() || self.answers() < turns::NEW_ANSWERS
    }

    pub(super) fn count_answers(&self, count: u32) {
        self.answers.add(count);
        self.mature();
    }

    /// Marks that the connection has completed a request.
    pub(super) fn mature(&self) {
        if self.is_fresh() {
            self.is_fresh.store(false, Relaxed);
            self.core.fresh.subtract(1);
        }
    }

    pub(super) fn has_shaken_hands(&self) -> bool {
        self.has_shaken_hands.load(Relaxed)
    }

    /// Stores the state of the meter after the last read.
    pub(super) fn observe(&self, has_shaken_hands: bool, in_header_block: bool) {
        if has_shaken_hands != self.has_shaken_hands() {
            self.has_shaken_hands.store(has_shaken_hands, Relaxed);
            self.table.shake_hands(self.core.tables());
        }
        if in_header_block != self.headers.has_begun() {
            if in_header_block { self.headers.begin(self.core.tick.get()) } else { self.headers.end() }
        }
    }

    /// For how many ticks headers have been incomplete.
    pub(super) fn in_headers_for(&self) -> Option<u32> {
        self.headers.ticks(self.core.tick.get())
    }

    /// Marks that the peer has sent too many frames, so its connection must be closed.
    pub(super) fn condemn(&self) {
        self.condemned.begin(self.core.tick.get());
    }

    /// For how many ticks the connection has been waiting to be closed. None if it stays open.
    pub(super) fn condemned_for(&self) -> Option<u32> {
        self.condemned.ticks(self.core.tick.get())
    }

    /// Lets the connection end by a GOAWAY, after the requests that are open.
    pub(super) fn retire(&self) {
        self.retired.begin(self.core.tick.get());
        self.table.wake();
    }

    /// For how many ticks the connection has been retired. None if it is not.
    pub(super) fn retired_for(&self) -> Option<u32> {
        self.retired.ticks(self.core.tick.get())
    }

    /// Whether a response has been unread for longer than [`RESPONSE_TICKS_MAX`].
    pub(super) fn is_overdue(&self) -> bool {
        let now = self.core.tick.get() as usize;
        (RESPONSE_TICKS_MAX as usize..TICKS_KEPT).any(|age| self.waiting[now.wrapping_sub(age) % TICKS_KEPT].get() > 0)
    }

    /// Whether `more` bytes fit into the bound of the connection, and into the total or the connection's share of it.
    fn has_room(&self, more: usize) -> bool {
        let bytes = self.bytes() + more;
        let bounds = self.core.bounds();
        bytes <= bounds.connection_bytes
            && (self.core.total_bytes() + more <= bounds.total_bytes || bytes <= self.core.share())
    }

    /// Fails when there is no room.
    fn reserve(&self, bytes: usize) -> Result<(), NoRoom> {
        if self.has_room(bytes) {
            self.add(bytes);
            return Ok(());
        }
        self.core.ended().count_refused(self.of_log(), self.bytes());
        let Bounds { connection_bytes, total_bytes, .. } = *self.core.bounds();
        Err(NoRoom { of_connection: (self.bytes(), connection_bytes), in_all: (self.core.total_bytes(), total_bytes) })
    }

    fn add(&self, bytes: usize) {
        self.bytes.add(bytes);
        self.core.bytes.add(bytes);
        self.core.post();
    }

    fn remove(&self, bytes: usize) {
        self.bytes.subtract(bytes);
        self.core.bytes.subtract(bytes);
        self.core.post();
    }

    fn progressed(&self) {
        self.progress.set(self.core.tick.get());
    }
}

/// An open connection, until this is dropped: it counts, and it holds its part of the budget of all connections. Requests
/// in flight, and the list of connections (peers.rs), keep its [`Peer`] for longer.
#[derive(Debug)]
pub(super) struct Open(Arc<Peer>);

impl Open {
    /// A connection to this listener from this address. None if it has no IP address.
    pub(super) fn new(core: &Arc<Core>, listener: Arc<str>, address: Option<IpAddr>, has_tls: bool) -> Self {
        core.total.connections.fetch_add(1, Relaxed);
        core.fresh.add(1);
        let peer = Arc::new(Peer::new(core, listener, address));
        peer.table.open(core.tables(), has_tls);
        Self(peer)
    }

    pub(super) const fn peer(&self) -> &Arc<Peer> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Peer { core, table, new_turn, .. } = &*self.0;
        self.0.mature();
        core.total.connections.fetch_sub(1, Relaxed);
        table.release(core.tables());
        core.new_turns.leave(new_turn);
    }
}

/// The memory reserved for one request, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    peer: Arc<Peer>,
    bytes: usize,
    /// Whether the request has waited for the turn of a wide one.
    is_wide: bool,
}

impl Reservation {
    /// Reserves memory for a new request.
    ///
    /// # Errors
    /// When too much is reserved already.
    pub fn new(peer: &Arc<Peer>, bytes: usize) -> Result<Self, NoRoom> {
        peer.reserve(bytes)?;
        Ok(Self::of_reserved(peer, bytes))
    }

    fn of_reserved(peer: &Arc<Peer>, bytes: usize) -> Self {
        peer.table.open.add(1);
        Self { peer: peer.clone(), bytes, is_wide: false }
    }

    /// Reserves more, for received bytes of the request.
    ///
    /// # Errors
    /// When too much is reserved already.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        self.peer.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts that the request is answered with an error.
    pub fn count_error(&self) {
        self.peer.count_error();
    }

    /// Waits for the turn of a wide request.
    pub async fn turn(&mut self) {
        self.peer.turns.wait(&self.peer.core.turns).await;
        self.is_wide = true;
    }

    /// Frees the bytes of the message, which is complete and no longer needed.
    pub fn received(&mut self) {
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
        self.peer.table.open.subtract(1);
        self.peer.remove(self.bytes);
    }
}

/// A part of a response. It counts until h2 has written it or dropped it.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    reservation: Reservation,
    /// The tick in which it was made.
    tick: u32,
    is_part: bool,
}

impl Piece {
    /// The whole response to this request.
    pub fn new(bytes: Bytes, mut reservation: Reservation) -> Self {
        reservation.peer.add(bytes.len());
        reservation.bytes += bytes.len();
        if reservation.is_wide {
            reservation.peer.turns.respond();
        }
        let piece = Self { bytes, tick: reservation.peer.core.tick.get(), reservation, is_part: false };
        piece.waiting().add(1);
        piece
    }

    /// A part of the response to this request.
    pub fn part(bytes: Bytes, reservation: &Reservation) -> Self {
        let mut part = Self::new(bytes, Reservation::of_reserved(&reservation.peer, 0));
        part.is_part = true;
        part
    }

    fn waiting(&self) -> &Count {
        &self.reservation.peer.waiting[self.tick as usize % TICKS_KEPT]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.waiting().subtract(1);
        let peer = &self.reservation.peer;
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

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn bounds(connection_bytes: usize, total_bytes: usize) -> Bounds {
        Bounds { streams: 8, connection_bytes, total_bytes, tables_bytes: usize::MAX }
    }

    /// A connection without bounds.
    pub(crate) fn peer() -> Arc<Peer> {
        Peer::alone(bounds(usize::MAX / 4, usize::MAX / 4))
    }

    pub(crate) fn core(bounds: Bounds) -> Arc<Core> {
        Core::new(&Memory::new(bounds))
    }

    impl Open {
        pub(crate) fn on(core: &Arc<Core>) -> Self {
            Self::new(core, "grpc".into(), None, false)
        }

        /// A connection from this address that has shaken hands, and has had so many requests open at once.
        pub(crate) fn grown(core: &Arc<Core>, address: &str, requests: u32) -> Self {
            let open = Self::new(core, "grpc".into(), address.parse().ok(), false);
            open.0.observe(true, false);
            open.0.mature();
            open.0.table.grow(core.tables(), requests);
            open
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
        assert_eq!((peer.answers(), peer.is_fresh()), (1, false));
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
        let peer = Peer::alone(bounds(100_000, 1 << 30));
        let mut reservation = Reservation::new(&peer, 60_000).unwrap();
        reservation.grow(40_000).unwrap();
        reservation.grow(1).expect_err("more than the bound");
        let refused = Reservation::new(&peer, 1).unwrap_err().to_string();
        assert!(refused.contains("100000 bytes for this connection, at most 100000; 100000 in all"), "{refused}");
        assert_eq!(peer.core().ended().refused(), 2);
        drop(reservation);
        Reservation::new(&peer, 100_000).unwrap();
    }

    #[test]
    fn past_the_total_every_connection_keeps_its_share() {
        let memory = Memory::new(bounds(1 << 20, 1 << 20));
        let cores = [(); 2].map(|()| Core::new(&memory));
        let (greedy, modest) = (Open::on(&cores[0]), Open::on(&cores[1]));
        let _most = Reservation::new(greedy.peer(), 1 << 20).unwrap();
        assert!(cores[1].is_full());
        assert_eq!(cores[1].share(), 1 << 17);
        let mut reservation = Reservation::new(modest.peer(), 1 << 16).expect("below the share");
        reservation.grow(1 << 16).expect("the whole share");
        reservation.grow(1).expect_err("more than the share");
    }

    #[test]
    fn the_total_follows_all_runtimes() {
        let memory = Memory::new(bounds(1 << 30, 1 << 30));
        let open = [(); 3].map(|()| Open::on(&Core::new(&memory)));
        let reservations = open.each_ref().map(|open| Reservation::new(open.peer(), 1 << 20).unwrap());
        assert_eq!((memory.bytes(), memory.0.connections.load(Relaxed)), (3 << 20, 3));
        drop((reservations, open));
        assert_eq!((memory.bytes(), memory.0.connections.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_response_is_overdue_after_its_time_and_not_before() {
        for made_at in 0..40 {
            let peer = peer();
            peer.core().tick.set(made_at);
            let piece = Piece::new(Bytes::from_static(b"response"), Reservation::new(&peer, 0).unwrap());
            for _ in 0..RESPONSE_TICKS_MAX {
                assert!(!peer.is_overdue());
                peer.core().tick.add(1);
            }
            assert!(peer.is_overdue());
            drop(piece);
            assert!(!peer.is_overdue());
        }
    }
}
