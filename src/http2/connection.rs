//! The bytes of one connection: what its peer sends is counted before HTTP/2 reads it, and read in turns.
//!
//! A connection is generic over its stream, so the same code serves TLS and Unix sockets. Not here: the memory of a
//! connection (memory.rs), and when it is closed (peers.rs).

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{HEAD_BYTES, Meter};
use super::memory::Peer;
use super::tables::FEW_REQUESTS;
use super::turns::{BYTES_AT_ONCE, FEW_BYTES_AT_ONCE, FEWEST_BYTES_AT_ONCE, UNANSWERED_BYTES_AT_ONCE, after_others};
use super::written::Written;

/// A GOAWAY frame: of connection 0, after the largest stream, ENHANCE_YOUR_CALM, and a text for people.
const GOAWAY: &[u8] = b"\0\0\x17\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0btoo_many_frames";

/// The first bytes of every connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The preface, and the header of the SETTINGS frame after it.
const OPENING_BYTES: usize = PREFACE.len() + 9;

#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: S,
    peer: Arc<Peer>,
    meter: Meter,
    written: Written,
    opening: Opening,
    /// Whether all bytes written so far are whole frames.
    is_flushed: bool,
}

/// The first bytes of a connection. They are read before HTTP/2 allocates buffers for it.
#[derive(Debug)]
struct Opening {
    bytes: [u8; OPENING_BYTES],
    /// How many were read from the peer.
    read: usize,
    /// How many of them HTTP/2 has read.
    taken: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Makes a connection of a stream that belongs to the current runtime.
    pub(super) fn new(stream: S, peer: Arc<Peer>) -> Self {
        let opening = Opening { bytes: [0; OPENING_BYTES], read: 0, taken: 0 };
        let meter = Meter::new(peer.core().bounds().streams);
        Self { stream, peer, meter, written: Written::default(), opening, is_flushed: true }
    }

    /// Reads the first bytes of the connection. Before a peer has sent them, HTTP/2 allocates no buffers for it.
    /// Fails when the peer closes the connection before that, or does not use HTTP/2.
    pub(super) async fn open(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_open(context)).await
    }

    /// Reads the frames that HTTP/2 has written.
    fn wrote(&mut self, bytes: &[u8]) {
        let answers = self.written.observe(bytes, &self.peer);
        if answers > 0 {
            self.peer.count_answers(answers);
        }
    }

    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.peer.table.set_task(context.waker());
        while self.opening.read < OPENING_BYTES {
            let Opening { mut bytes, read, .. } = self.opening;
            let mut buffer = ReadBuf::new(&mut bytes[read..]);
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let count = buffer.filled().len();
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            if !self.count(context, &mut bytes[read..read + count]) {
                return Poll::Pending;
            }
            self.opening = Opening { bytes, read: read + count, taken: 0 };
            let preface = &bytes[..PREFACE.len().min(read + count)];
            if !PREFACE.starts_with(preface) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2")));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The most of `most` bytes that may be read without more room for requests, while the budget of all connections is
    /// short. A connection that may read none reads again when there is room, or when some of its requests have ended.
    fn within_budget(&mut self, most: usize) -> usize {
        let (tables, is_fresh) = (self.peer.core().tables(), self.peer.is_fresh());
        if !(tables.is_short() || is_fresh && tables.is_short_for_fresh()) {
            return most;
        }
        let table = &self.peer.table;
        let open = table.open.get().saturating_add(self.meter.begun());
        let free = table.entries().max(FEW_REQUESTS).saturating_sub(open);
        if free == 0 {
            table.wait();
            if !is_fresh {
                tables.ask_for_room();
            }
        }
        // No request has fewer bytes.
        most.min(free as usize * HEAD_BYTES)
    }

    /// Counts the frames in the bytes that were just read. Returns false above the bound: then weir sends a GOAWAY if
    /// that does not block, and reads nothing more. The connection is closed a tick later (peers.rs). A peer whose
    /// connection is closed at once would immediately open another one, which costs more than the frames.
    fn count(&mut self, context: &mut Context<'_>, bytes: &mut [u8]) -> bool {
        let counted = self.meter.count(bytes, self.peer.core().tick.get(), self.peer.answers());
        self.peer.observe(self.meter.has_shaken_hands(), self.meter.is_in_header_block());
        let open = self.peer.table.open.get().saturating_add(self.meter.begun());
        if open > self.peer.table.entries() && self.meter.has_shaken_hands() {
            self.peer.table.grow(self.peer.core().tables(), open);
        }
        if counted.is_ok() {
            return true;
        }
        self.peer.condemn();
        if self.is_flushed {
            // Never waits for space in the socket's buffer, because the peer may not read.
            let _ = Pin::new(&mut self.stream).poll_write(context, GOAWAY);
        }
        false
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Opening { bytes, read, taken } = &mut self.opening;
        if *taken < *read {
            let count = buffer.remaining().min(*read - *taken);
            buffer.put_slice(&bytes[*taken..*taken + count]);
            *taken += count;
            return Poll::Ready(Ok(()));
        }
        if self.peer.condemned_for().is_some() {
            return Poll::Pending;
        }
        let is_new = self.peer.is_new();
        if is_new && !self.peer.core().new_turns.begin(&self.peer.new_turn, context) {
            return Poll::Pending;
        }
        let is_answered = self.meter.is_mostly_answered(self.peer.answers());
        let is_narrow = is_new || self.peer.core().is_nearly_full();
        let most = match (is_narrow, is_answered) {
            (false, true) => BYTES_AT_ONCE,
            (false, false) => UNANSWERED_BYTES_AT_ONCE,
            (true, true) => FEW_BYTES_AT_ONCE,
            (true, false) => FEWEST_BYTES_AT_ONCE,
        };
        if self.peer.reading.is_new() && self.is_flushed {
            let refused = self.peer.table.refused.get();
            self.peer.table.refused.set(0);
            self.meter.begin_turn(refused);
        }
        let most = self.within_budget(most);
        if most == 0 || !self.peer.reading.may_read(context, most) {
            return Poll::Pending;
        }
        let mut part = [MaybeUninit::uninit(); BYTES_AT_ONCE];
        let mut part = ReadBuf::uninit(&mut part[..buffer.remaining().min(most)]);
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        if is_new && self.peer.reading.is_new() {
            // The turn ends then.
            after_others(context);
        }
        self.peer.reading.add(part.filled().len());
        if !self.count(context, part.filled_mut()) {
            return Poll::Pending;
        }
        buffer.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_flushed = false;
        let count = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.wrote(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // h2 flushes when it has written all its frames.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.is_flushed |= flushed.is_ready();
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_flushed = false;
        let count = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        let mut left = count;
        for slice in slices {
            let part = &slice[..left.min(slice.len())];
            self.wrote(part);
            left -= part.len();
            if left == 0 {
                break;
            }
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::frames::IDLE_FRAMES_MAX;
    use crate::memory;
    use crate::turns::NEW_ANSWERS;

    #[tokio::test]
    async fn what_opens_a_connection_is_read_again() {
        let (here, mut there) = tokio::io::duplex(1 << 10);
        let mut connection = Connection::new(here, memory::tests::peer());
        let sent = [PREFACE, b"\0\0\0\x04\0\0\0\0\0", b"more"].concat();
        there.write_all(&sent[..10]).await.unwrap();
        {
            let mut open = std::pin::pin!(connection.open());
            let polled = poll_fn(|context| Poll::Ready(open.as_mut().poll(context))).await;
            assert!(polled.is_pending(), "ten bytes are not enough");
            there.write_all(&sent[10..]).await.unwrap();
            open.await.unwrap();
        }
        let mut read = vec![0; sent.len()];
        connection.read_exact(&mut read).await.unwrap();
        assert_eq!(read, sent);
    }

    #[tokio::test]
    async fn a_peer_that_does_not_speak_http2_is_refused_at_its_first_byte() {
        let (here, mut there) = tokio::io::duplex(1 << 10);
        let mut connection = Connection::new(here, memory::tests::peer());
        there.write_all(b"G").await.unwrap();
        assert_eq!(connection.open().await.unwrap_err().to_string(), "not HTTP/2");
    }

    #[tokio::test]
    async fn a_connection_that_sends_much_lets_others_go_first() {
        const SENT: usize = 8 * BYTES_AT_ONCE;
        let (here, mut there) = tokio::io::duplex(SENT);
        let peer = memory::tests::peer();
        peer.count_answers(NEW_ANSWERS);
        let mut connection = Connection::new(here, peer);
        // The rest is the payload of one DATA frame.
        let frame = [&u32::try_from(SENT).unwrap().to_be_bytes()[1..], &[0; 6]].concat();
        let mut sent = [PREFACE, b"\0\0\0\x04\0\0\0\0\0", &frame].concat();
        sent.resize(SENT, 0);
        there.write_all(&sent).await.unwrap();
        connection.open().await.unwrap();
        let mut read = 0;
        let mut turns = 0;
        poll_fn(|context| {
            turns += 1;
            connection.peer.reading.begin();
            let mut bytes = [0; 1_024];
            while read < SENT {
                let mut buffer = ReadBuf::new(&mut bytes);
                if Pin::new(&mut connection).poll_read(context, &mut buffer).is_pending() {
                    let again = Pin::new(&mut connection).poll_read(context, &mut buffer);
                    assert!(again.is_pending(), "HTTP/2 asks again for each request that it has read");
                    return Poll::Pending;
                }
                read += buffer.filled().len();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(turns, SENT / BYTES_AT_ONCE);
    }

    #[tokio::test]
    async fn a_connection_reads_little_before_its_first_answers_and_while_memory_is_nearly_used_up() {
        const TOTAL: usize = 1 << 20;
        let (here, mut there) = tokio::io::duplex(BYTES_AT_ONCE);
        let core = memory::tests::core(memory::tests::bounds(TOTAL, TOTAL));
        let open = memory::Open::on(&core);
        let peer = open.peer().clone();
        let mut connection = Connection::new(here, peer.clone());
        let frame = [&u32::try_from(BYTES_AT_ONCE).unwrap().to_be_bytes()[1..], &[0; 6]].concat();
        let mut sent = [PREFACE, b"\0\0\0\x04\0\0\0\0\0", &frame].concat();
        sent.resize(BYTES_AT_ONCE, 0);
        there.write_all(&sent).await.unwrap();
        connection.open().await.unwrap();
        let mut bytes = [0; BYTES_AT_ONCE];
        let mut read_at_once = async |connection: &mut Connection<_>| {
            let mut read = 0;
            poll_fn(|context| {
                connection.peer.reading.begin();
                let mut buffer = ReadBuf::new(&mut bytes);
                while Pin::new(&mut *connection).poll_read(context, &mut buffer).is_ready()
                    && buffer.filled().len() > read
                {
                    read = buffer.filled().len();
                }
                Poll::Ready(())
            })
            .await;
            read
        };
        // The bytes that opened the connection are read again, but not counted.
        let opening = PREFACE.len() + 9;
        assert_eq!(read_at_once(&mut connection).await, opening + FEW_BYTES_AT_ONCE);
        peer.count_answers(NEW_ANSWERS);
        let reservation = memory::Reservation::new(memory::Open::on(&core).peer(), TOTAL - TOTAL / 8).unwrap();
        assert_eq!(read_at_once(&mut connection).await, FEW_BYTES_AT_ONCE);
        drop(reservation);
        assert_eq!(read_at_once(&mut connection).await, BYTES_AT_ONCE - opening - 2 * FEW_BYTES_AT_ONCE);
    }

    /// Requests of which each has its headers only.
    fn unfinished(count: u32) -> Vec<u8> {
        let headers = |n: u32| [&[0, 0, 3, 1, 4][..], &(2 * n + 1).to_be_bytes(), &[0x83, 0x86, 0x84]].concat();
        (0..count).flat_map(headers).collect()
    }

    /// HTTP/2 had room for 200 requests of a connection without an answer, and kept it: 156 KB.
    #[tokio::test]
    async fn while_the_budget_is_short_a_connection_reads_few_requests_at_once_and_reads_on_when_they_have_ended() {
        const SENT: u32 = 200;
        let (here, mut there) = tokio::io::duplex(1 << 16);
        let bounds = memory::Bounds { tables_bytes: 1 << 20, ..memory::tests::bounds(1 << 30, 1 << 30) };
        let core = memory::tests::core(bounds);
        let open = memory::Open::on(&core);
        let peer = open.peer().clone();
        let mut connection = Connection::new(here, peer.clone());
        there.write_all(&[PREFACE, b"\0\0\0\x04\0\0\0\0\0", &unfinished(SENT)].concat()).await.unwrap();
        connection.open().await.unwrap();
        // Others use all but a little of the budget.
        let _others: Vec<_> = (0..8).map(|_| memory::Open::grown(&core, "10.0.0.1", 100)).collect();
        assert!(core.tables().is_short());
        let (mut open, mut accepted) = (Vec::new(), 0);
        for _ in 0..SENT {
            let before = accepted;
            poll_fn(|context| {
                connection.peer.reading.begin();
                let mut bytes = [0; 4_096];
                let mut buffer = ReadBuf::new(&mut bytes);
                while Pin::new(&mut connection).poll_read(context, &mut buffer).is_ready() {}
                Poll::Ready(())
            })
            .await;
            // HTTP/2 gives weir the requests that have been read.
            for _ in 0..connection.meter.begun() {
                open.push(memory::Reservation::new(&peer, 0).unwrap());
                accepted += 1;
            }
            assert!(open.len() <= FEW_REQUESTS as usize, "{} at once", open.len());
            if accepted == before {
                open.clear();
            }
            if accepted == SENT {
                break;
            }
        }
        assert_eq!(accepted, SENT);
        assert!(peer.table.entries() <= FEW_REQUESTS, "room for {}", peer.table.entries());
    }

    #[tokio::test]
    async fn too_many_frames_end_in_a_goaway_and_nothing_more_is_read() {
        let (here, mut there) = tokio::io::duplex(1 << 20);
        let peer = memory::tests::peer();
        let mut connection = Connection::new(here, peer.clone());
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for _ in 0..=IDLE_FRAMES_MAX {
            sent.extend(b"\0\0\x08\x06\x01\0\0\0\0unasked!");
        }
        there.write_all(&sent).await.unwrap();
        let mut bytes = [0; 1_024];
        poll_fn(|context| {
            peer.reading.begin();
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut connection).poll_read(context, &mut buffer) {
                Poll::Pending if peer.condemned_for().is_some() => Poll::Ready(()),
                polled => {
                    assert!(polled.is_pending() || !buffer.filled().is_empty(), "{polled:?}");
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
        .await;
        assert!(peer.has_shaken_hands());
        there.write_all(b"\0\0\x08\x06\x01\0\0\0\0unasked!").await.unwrap();
        peer.reading.begin();
        let read_on = poll_fn(|context| {
            let mut buffer = ReadBuf::new(&mut bytes);
            Poll::Ready(Pin::new(&mut connection).poll_read(context, &mut buffer).is_pending())
        });
        assert!(read_on.await, "what comes later is not read");
        drop(connection);
        let mut told = Vec::new();
        there.read_to_end(&mut told).await.unwrap();
        let length = usize::from(told[2]);
        assert_eq!((told[3], told[16], told.len()), (7, 0xb, 9 + length), "{told:?}");
    }
}
