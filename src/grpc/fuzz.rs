//! A part of a fuzz target: how the message of a call is received. Compiled only for tests and cargo-fuzz.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::Frame;
use tonic::codegen::{Body, Bytes};
use tonic::{Code, Status};
use weir_http2::{Bounds, Peer, Reservation, STREAM_BYTES};

use super::unary;

const MESSAGE_BYTES_MAX: usize = 1_024;

/// Receives the message of a call as a whole and in pieces, which arrive at once or one by one. The first byte is the
/// length of a piece.
/// Returns the message, if it is one. Panics when the outcomes differ.
pub fn received(data: &[u8]) -> Option<Vec<u8>> {
    let (&size, bytes) = data.split_first()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let read = |size: usize, waits: bool| {
        let pieces = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        runtime.block_on(receive(Pieces { pieces, waits, is_due: false }))
    };
    let whole = read(bytes.len().max(1), false);
    for waits in [false, true] {
        assert_eq!(read(usize::from(size).max(1), waits), whole, "waits: {waits}");
    }
    whole.ok()
}

async fn receive(body: Pieces) -> Result<Vec<u8>, Code> {
    let timeout = Duration::from_secs(60);
    let bounds = Bounds { streams: 8, connection_bytes: 1 << 20, total_bytes: 1 << 20, tables_bytes: 1 << 20 };
    let peer = Peer::alone(bounds);
    let mut reservation = Reservation::new(&peer, STREAM_BYTES).expect("the first request");
    let received = unary::read(body, MESSAGE_BYTES_MAX, timeout, &mut reservation).await;
    drop(reservation);
    assert_eq!(peer.bytes(), 0, "memory is reserved after a request has ended");
    received.map(|received| received.message().to_vec()).map_err(|status| status.code())
}

struct Pieces {
    pieces: VecDeque<Bytes>,
    /// Whether each piece is ready only at the second poll.
    waits: bool,
    is_due: bool,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.is_due = !self.is_due;
        if self.waits && self.is_due {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.pieces.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}
