//! Bounds on health and reflection requests: their number, their bytes, and how long they may be idle.
//!
//! Unlike decisions, their streams can stay open. Not here: the services themselves (tonic).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::Frame;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::codegen::{Body as HttpBody, Bytes};
use weir_http2::{Peer, Reservation, STREAM_BYTES};

use super::status::no_room;

/// A service whose streams can stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// grpc.health.v1: a `Watch` ends when its caller ends it.
    Health,
    /// Server reflection, in both versions.
    Reflection,
}

struct StreamBounds {
    name: &'static str,
    of_connection: u32,
    in_all: u32,
    /// Bytes that one stream may receive.
    request_bytes: usize,
    /// Bytes that one stream reserves.
    reserved_bytes: usize,
}

/// How long a reflection stream may wait for its next request.
const REFLECTION_IDLE_MAX: Duration = Duration::from_secs(15);

impl Kind {
    const fn bounds(self) -> StreamBounds {
        match self {
            Self::Health => StreamBounds {
                name: "health",
                of_connection: 16,
                in_all: 4_096,
                request_bytes: 4 * 1_024,
                reserved_bytes: 4 * STREAM_BYTES,
            },
            Self::Reflection => StreamBounds {
                name: "reflection",
                of_connection: 4,
                in_all: 32,
                request_bytes: 64 * 1_024,
                reserved_bytes: 64 * 1_024,
            },
        }
    }
}

/// The number of kinds.
const KINDS: usize = 2;

/// Open streams of each kind.
pub(super) type Streams = Arc<[AtomicU32; KINDS]>;

/// One of the streams of a kind, until this is dropped.
#[derive(Debug)]
struct StreamSlot {
    of_connection: Streams,
    in_all: Streams,
    kind: Kind,
}

impl StreamSlot {
    /// Fails when there are too many.
    fn take(of_connection: &Streams, in_all: &Streams, kind: Kind) -> Result<Self, Status> {
        let bounds = kind.bounds();
        let slot = Self { of_connection: of_connection.clone(), in_all: in_all.clone(), kind };
        let of_connection = of_connection[kind as usize].fetch_add(1, Relaxed);
        let in_all = in_all[kind as usize].fetch_add(1, Relaxed);
        if of_connection >= bounds.of_connection {
            let text = format!("{} requests on this connection, at most {}", bounds.name, bounds.of_connection);
            return Err(Status::resource_exhausted(text));
        }
        if in_all >= bounds.in_all {
            return Err(Status::resource_exhausted(format!(
                "{} requests in all, at most {}",
                bounds.name, bounds.in_all
            )));
        }
        Ok(slot)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.of_connection[self.kind as usize].fetch_sub(1, Relaxed);
        self.in_all[self.kind as usize].fetch_sub(1, Relaxed);
    }
}

/// The slot and the memory of a stream, until its response has ended.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) reservation: Reservation,
    _slot: StreamSlot,
}

impl Stream {
    /// A new stream.
    /// Fails when there are too many of its kind, or too much memory is reserved.
    pub(super) fn open(
        peer: &Arc<Peer>,
        of_connection: &Streams,
        in_all: &Streams,
        kind: Kind,
    ) -> Result<Box<Self>, Status> {
        let slot = StreamSlot::take(of_connection, in_all, kind)?;
        let reservation = Reservation::new(peer, kind.bounds().reserved_bytes).map_err(no_room)?;
        Ok(Box::new(Self { reservation, _slot: slot }))
    }
}

/// The body of a request, with bounds on its bytes and its duration.
pub(super) struct Request {
    body: Incoming,
    bytes_left: usize,
    kind: Kind,
    timer: Pin<Box<Sleep>>,
    timeout: Duration,
}

impl Request {
    /// `receive_timeout` applies to a request of one message.
    pub(super) fn new(body: Incoming, kind: Kind, receive_timeout: Duration) -> Self {
        let timeout = match kind {
            Kind::Health => receive_timeout,
            Kind::Reflection => REFLECTION_IDLE_MAX,
        };
        let timer = Box::pin(tokio::time::sleep(timeout));
        Self { body, bytes_left: kind.bounds().request_bytes, kind, timer, timeout }
    }
}

impl HttpBody for Request {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let bounds = self.kind.bounds();
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(_))) => {
                return Poll::Ready(Some(Err(Status::cancelled("the request broke off"))));
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                let timeout = self.timeout;
                return self.timer.as_mut().poll(context).map(|()| {
                    let text = format!("{}: no request within {timeout:?}", bounds.name);
                    Some(Err(Status::deadline_exceeded(text)))
                });
            }
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(left) = self.bytes_left.checked_sub(bytes) else {
            let text = format!("{}: more than {} bytes of requests on one stream", bounds.name, bounds.request_bytes);
            return Poll::Ready(Some(Err(Status::resource_exhausted(text))));
        };
        self.bytes_left = left;
        if self.kind == Kind::Reflection && bytes > 0 {
            let until = Instant::now() + self.timeout;
            self.timer.as_mut().reset(until);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use weir_http2::Bounds;

    use super::*;

    #[test]
    fn streams_are_bounded_for_a_connection_and_in_all() {
        let one = Streams::default();
        let in_all = Streams::default();
        let bounds = Bounds { streams: 8, connection_bytes: 1 << 30, total_bytes: 1 << 30, tables_bytes: 1 << 30 };
        let peer = Peer::alone(bounds);
        let bounds = Kind::Reflection.bounds();
        let open = |of_connection: &Streams| Stream::open(&peer, of_connection, &in_all, Kind::Reflection);
        let streams: Vec<_> = (0..bounds.of_connection).map(|_| open(&one).unwrap()).collect();
        assert_eq!(open(&one).unwrap_err().code(), Code::ResourceExhausted);
        Stream::open(&peer, &one, &in_all, Kind::Health).expect("another kind has its own bound");
        drop(streams);
        assert_eq!(peer.bytes(), 0);
        // Each on its own connection to the same server.
        let mut streams: Vec<_> = (0..bounds.in_all).map(|_| open(&Streams::default()).unwrap()).collect();
        assert_eq!(open(&Streams::default()).unwrap_err().code(), Code::ResourceExhausted);
        streams.pop();
        open(&Streams::default()).unwrap();
    }
}
