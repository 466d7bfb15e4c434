//! Fuzz targets for the bytes of callers on a connection. Compiled only for tests and cargo-fuzz.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::Frame;
use prost::Message as _;
use tonic::codegen::{Body, Bytes};
use tonic::{Code, Status};
use weir_protobuf::FIELDS_MAX;
use weir_rls::proto::RateLimitRequest;
use weir_rls::request::Request;
use weir_rls::{lenient, spelling};

use super::frames::Meter;
use super::memory::{Bounds, Core, Peer, Reservation, STREAM_BYTES};
use super::unary;

const MESSAGE_BYTES_MAX: usize = 1_024;

/// Counts HTTP/2 frames as a whole and in pieces. The first byte is the length of a piece.
/// Panics when the counts differ, or the bytes that h2 reads.
pub fn frames(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else { return };
    let count = |size: usize| {
        let (mut meter, mut bytes) = (Meter::new(1), bytes.to_vec());
        let counted = bytes.chunks_mut(size).try_for_each(|piece| meter.count(piece, 0, 0));
        counted.map(|()| (meter.has_shaken_hands(), meter.is_in_header_block(), bytes))
    };
    assert_eq!(count(usize::from(size).max(1)), count(bytes.len().max(1)));
}

/// Receives the message of a call as a whole and in pieces, which arrive at once or one by one. The first byte is the
/// length of a piece.
/// Panics when the outcomes differ, or when the generated decoder reads a different request.
pub fn message(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let read = |size: usize, waits: bool| {
        let pieces = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        runtime.block_on(receive(Pieces { pieces, waits, is_due: false }))
    };
    let whole = read(bytes.len().max(1), false);
    for waits in [false, true] {
        assert_eq!(read(usize::from(size).max(1), waits), whole, "waits: {waits}");
    }
    let Ok(bytes) = whole else { return };
    let mut texts = Vec::new();
    let read = lenient::decode(&bytes, &mut texts);
    match (RateLimitRequest::decode(&*bytes), read) {
        (Ok(mut generated), read) => {
            let entries = generated.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
            let texts = entries.flat_map(|entry| [&mut entry.key, &mut entry.value]);
            for text in texts.chain([&mut generated.domain]) {
                *text = spelling::respelt(std::mem::take(text));
            }
            let view = Request::of(&generated);
            let Ok(read) = read else {
                // A field has two bytes at least.
                assert!(bytes.len() > 2 * FIELDS_MAX, "a message is read");
                return;
            };
            let is_whole =
                |kept: usize, left_out: u32, sent: usize| if left_out == 0 { kept == sent } else { kept < sent };
            assert!(is_whole(read.descriptors.len(), read.descriptors_left_out, view.descriptors.len()));
            for (read, generated) in read.descriptors.iter().zip(&view.descriptors) {
                assert!(is_whole(read.entries.len(), read.entries_left_out, generated.entries.len()));
                assert!(generated.entries.starts_with(&read.entries));
                // Nothing after the first omitted part is read.
                if read.entries_left_out == 0 {
                    let but_entries = (read.limit, read.hits_addend, read.is_negative_hits);
                    assert_eq!(but_entries, (generated.limit, generated.hits_addend, generated.is_negative_hits));
                }
            }
            if read.descriptors_left_out == 0 {
                assert_eq!((read.domain, read.hits_addend), (view.domain, view.hits_addend));
            }
        }
        // Texts that are not UTF-8 are replaced, which gives a message. Omitted parts are not compared.
        (Err(_), Ok(read)) => {
            let again = read.message();
            assert_eq!(RateLimitRequest::decode(&*again.encode_to_vec()), Ok(again));
        }
        (Err(_), Err(_)) => {}
    }
}

async fn receive(body: Pieces) -> Result<Vec<u8>, Code> {
    let timeout = Duration::from_secs(60);
    let bounds = Bounds { streams: 8, receive_timeout: timeout, connection_bytes: 1 << 20, total_bytes: 1 << 20 };
    let peer = Peer::new(&Core::new(bounds, Arc::default()));
    let mut reservation = Reservation::new(&peer, STREAM_BYTES).map_err(|status| status.code())?;
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
