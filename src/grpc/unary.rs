//! One message in, one message out: the framing of a unary gRPC call, by hand.
//!
//! A general gRPC server reads and writes streams of messages, compressed or not, with several boxes and buffers for
//! each call. ShouldRateLimit is small and unary: its message is read in the buffer that received it, and its answer is
//! written into one buffer of its size. Not here: the messages (service.rs).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http_body::Frame;
use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, http};
use weir_http2::{Piece, Reservation};
use weir_lifecycle::give_way;
use weir_limiter::finishing::Untaken;

use super::other::Stream;
use super::status::no_room;
use super::wide::is_wide;

/// The header of a message: whether it is compressed, and its length in four bytes.
const HEAD_BYTES: usize = 5;
/// The first size of the buffer for a message in parts; less for a shorter message.
const BUFFER_BYTES_MIN: usize = 4 * 1_024;
/// The buffer doubles up to this size, and is then allocated for the whole message, because copying megabytes would
/// delay other requests.
const DOUBLED_BYTES_MAX: usize = 256 * 1_024;

/// A request whose message is complete.
#[derive(Debug)]
pub(super) struct Received {
    parts: Parts,
    /// When the request began to wait for its message or for its turn. None if it did not wait.
    pub(super) since: Option<Instant>,
}

impl Received {
    pub(super) fn message(&self) -> &[u8] {
        self.parts.whole().get(HEAD_BYTES..).unwrap_or_default()
    }

    /// The bytes of the message, to keep across an await. A message that arrived at once is copied: without a copy, its
    /// connection could not reuse the buffer.
    pub(super) fn into_message(self) -> Bytes {
        let Parts { first, several } = self.parts;
        if several.is_empty() {
            return Bytes::copy_from_slice(first.get(HEAD_BYTES..).unwrap_or_default());
        }
        let mut message = Bytes::from(several);
        message.advance(HEAD_BYTES.min(message.len()));
        message
    }
}

/// Reads the single message of a request, of at most `bytes_max`. A wide request waits for its turn. A message that does
/// not arrive at once, or that waits, counts to `reservation`; both together may take `timeout`.
/// Fails when there is not exactly one message, when it is too large or compressed, when it does not arrive or has no
/// turn in time, or when too much memory is reserved.
pub(super) async fn read<B>(
    mut body: B,
    bytes_max: usize,
    timeout: Duration,
    reservation: &mut Reservation,
) -> Result<Received, Status>
where
    B: HttpBody<Data = Bytes> + Unpin + Send,
{
    let mut parts = Parts::default();
    // Usually the whole message is available in one frame, and is not copied.
    let at_once = poll_fn(|context| Poll::Ready(parts.poll(&mut body, context, bytes_max, None))).await;
    let is_complete = at_once.is_ready();
    if let Poll::Ready(read) = at_once {
        read?;
    }
    let mut since = None;
    if !is_complete || parts.is_wide() {
        since = Some(Instant::now());
        // Boxed, so that the futures of requests that do not wait stay small.
        let rest = Box::pin(tokio::time::timeout(timeout, async {
            parts.keep(reservation)?;
            if !is_complete {
                poll_fn(|context| parts.poll(&mut body, context, bytes_max, Some(&mut *reservation))).await?;
            }
            if parts.is_wide() {
                reservation.turn().await;
            }
            Ok::<(), Status>(())
        }));
        let late = |_| {
            let text =
                format!("the request was not complete, or had no turn, within {timeout:?} (nothing was charged)");
            Err(Status::deadline_exceeded(text))
        };
        rest.await.unwrap_or_else(late)?;
    }
    let whole = parts.whole();
    match whole.split_first_chunk::<HEAD_BYTES>() {
        Some((head, message)) if message.len() == length(head) => {}
        _ => return Err(Status::invalid_argument(format!("{} bytes are not one whole message", whole.len()))),
    }
    reservation.received();
    Ok(Received { parts, since })
}

/// The parts of a message so far.
#[derive(Debug, Default)]
struct Parts {
    /// The first part, while it is the only one and no further part is waited for.
    first: Bytes,
    /// Otherwise all parts.
    several: Vec<u8>,
}

impl Parts {
    fn whole(&self) -> &[u8] {
        if self.several.is_empty() { &self.first } else { &self.several }
    }

    fn is_wide(&self) -> bool {
        self.whole().get(HEAD_BYTES..).is_some_and(is_wide)
    }

    /// Reads until the end of the body. The bytes count to `reservation`, if there is one.
    fn poll(
        &mut self,
        body: &mut (impl HttpBody<Data = Bytes> + Unpin),
        context: &mut Context<'_>,
        bytes_max: usize,
        mut reservation: Option<&mut Reservation>,
    ) -> Poll<Result<(), Status>> {
        while let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(context)) {
            let Ok(frame) = frame else {
                return Poll::Ready(Err(Status::cancelled("the request broke off")));
            };
            let Ok(part) = frame.into_data() else {
                continue;
            };
            if self.whole().is_empty() {
                self.first = part;
                if let Some(reservation) = &mut reservation {
                    self.keep(reservation)?;
                }
            } else {
                if self.several.is_empty() {
                    self.several.extend_from_slice(&self.first);
                }
                self.extend(&part, bytes_max, reservation.as_deref_mut())?;
            }
            check(self.whole(), bytes_max)?;
            if body.is_end_stream() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reserves memory for the received bytes, before waiting. Copies the first part: without a copy, its connection
    /// could not reuse the buffer.
    fn keep(&mut self, reservation: &mut Reservation) -> Result<(), Status> {
        let first = std::mem::take(&mut self.first);
        if self.several.is_empty() {
            self.several.extend_from_slice(&first);
        }
        reservation.grow(self.several.capacity()).map_err(no_room)
    }

    /// Appends a part. The buffer grows at most to the announced length.
    fn extend(&mut self, part: &[u8], bytes_max: usize, reservation: Option<&mut Reservation>) -> Result<(), Status> {
        let wanted = self.several.len() + part.len();
        let before = self.several.capacity();
        if wanted > before {
            let announced = self.several.first_chunk().map_or(0, length).min(bytes_max) + HEAD_BYTES;
            let doubled = if before < DOUBLED_BYTES_MAX { (2 * before).max(BUFFER_BYTES_MIN) } else { announced };
            let capacity = announced.min(doubled).max(wanted);
            if let Some(reservation) = reservation {
                reservation.grow(capacity - before).map_err(no_room)?;
            }
            self.several.reserve_exact(capacity - self.several.len());
        }
        self.several.extend_from_slice(part);
        give_way();
        Ok(())
    }
}

/// Refuses a message that need not be read any further.
fn check(begun: &[u8], bytes_max: usize) -> Result<(), Status> {
    let Some((head, message)) = begun.split_first_chunk::<HEAD_BYTES>() else {
        return Ok(());
    };
    if head[0] != 0 {
        return Err(Status::unimplemented("compressed requests are not supported"));
    }
    let sent = length(head).max(message.len());
    if sent > bytes_max {
        return Err(Status::invalid_argument(format!("request: {sent} bytes, at most {bytes_max}")));
    }
    Ok(())
}

fn length(head: &[u8; HEAD_BYTES]) -> usize {
    let [_, length @ ..] = *head;
    u32::from_be_bytes(length) as usize
}

/// Encodes a message, and appends encoded fields of it.
/// Fails when the message is too large.
pub(super) fn framed(message: &impl Message, fields: &[u8]) -> Result<Bytes, Status> {
    let length = message.encoded_len() + fields.len();
    let head = u32::try_from(length).map_err(|_| Status::internal("an answer of 4 GiB"))?;
    let mut framed = Vec::with_capacity(HEAD_BYTES + length);
    framed.push(0);
    framed.extend(head.to_be_bytes());
    message.encode_raw(&mut framed);
    framed.extend_from_slice(fields);
    Ok(framed.into())
}

/// The response with a framed message, or the error status. It counts to `reservation` until it has been sent.
pub(super) fn response(result: Result<(Bytes, Untaken), Status>, reservation: Reservation) -> http::Response<Sent> {
    let (framed, untaken) = match result {
        Ok(answered) => answered,
        Err(status) => {
            reservation.count_error();
            return refused(status);
        }
    };
    let mut response = http::Response::new(Sent::Message(Piece::new(framed, reservation), untaken));
    response.headers_mut().insert(http::header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
    response
}

/// A response with only a status.
pub(super) fn refused(status: Status) -> http::Response<Sent> {
    status.into_http()
}

#[derive(Default)]
pub(super) enum Sent {
    /// One framed message, and the status OK after it.
    Message(Piece, Untaken),
    Trailers,
    /// The body that another service sends.
    Body(Body, Box<Stream>),
    #[default]
    End,
}

impl HttpBody for Sent {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let frame = match std::mem::take(&mut *self) {
            Self::Message(message, untaken) => {
                untaken.taken();
                *self = Self::Trailers;
                Frame::data(message)
            }
            Self::Trailers => {
                let mut trailers = http::HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("0"));
                Frame::trailers(trailers)
            }
            Self::Body(mut body, stream) => {
                let polled = Pin::new(&mut body).poll_frame(context);
                let polled = polled.map_ok(|frame| frame.map_data(|bytes| Piece::part(bytes, &stream.reservation)));
                *self = Self::Body(body, stream);
                return polled;
            }
            Self::End => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Body(body, _) => body.is_end_stream(),
            Self::Message(..) | Self::Trailers => false,
            Self::End => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use tonic::Code;
    use weir_http2::{Bounds, Peer, STREAM_BYTES};
    use weir_rls::proto::RateLimitRequest;

    use super::*;

    struct Given {
        parts: VecDeque<Vec<u8>>,
        /// Whether each part is ready only at the second poll.
        waits: bool,
        is_due: bool,
    }

    impl HttpBody for Given {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.is_due = !self.is_due || !self.waits;
            if !self.is_due || !self.waits {
                return Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part.into()))));
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    fn framed(domain: &str) -> Vec<u8> {
        let message = RateLimitRequest { domain: domain.into(), ..RateLimitRequest::default() }.encode_to_vec();
        let mut framed = vec![0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        framed.extend(message);
        framed
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A connection that may reserve so many bytes.
    fn bounded(connection_bytes: usize) -> Arc<Peer> {
        Peer::alone(Bounds { streams: 8, connection_bytes, total_bytes: usize::MAX / 4, tables_bytes: usize::MAX })
    }

    /// A connection without bounds.
    fn peer() -> Arc<Peer> {
        bounded(usize::MAX / 4)
    }

    fn reservation(peer: &Arc<Peer>) -> Reservation {
        Reservation::new(peer, STREAM_BYTES).unwrap()
    }

    /// Reads the parts when all are available at once, and when each is waited for. The outcome must be the same.
    async fn read_parts(parts: &[&[u8]], bytes_max: usize) -> Result<String, Code> {
        let mut outcomes = Vec::new();
        for waits in [false, true] {
            let body = Given { parts: parts.iter().map(|part| part.to_vec()).collect(), waits, is_due: false };
            let peer = peer();
            let mut reservation = reservation(&peer);
            let received = read(body, bytes_max, TIMEOUT, &mut reservation).await;
            if let Ok(received) = &received {
                assert_eq!(received.since.is_some(), waits);
                assert_eq!(peer.bytes(), STREAM_BYTES, "the parts count no longer");
            }
            let domain = |received: Received| {
                let message = RateLimitRequest::decode(received.message()).unwrap();
                assert_eq!(received.into_message(), message.encode_to_vec());
                message.domain
            };
            outcomes.push(received.map(domain).map_err(|status| status.code()));
        }
        assert_eq!(outcomes[0], outcomes[1]);
        outcomes.remove(0)
    }

    #[tokio::test]
    async fn a_message_that_comes_in_parts_lets_other_threads_run_and_a_whole_one_does_not() {
        use weir_lifecycle::give_way::{GAVE_WAY, GIVE_WAY_AFTER};

        let whole = framed("shop");
        for cut in [None, Some(6)] {
            let parts = cut.map_or(vec![&whole[..]], |cut| vec![&whole[..cut], &whole[cut..]]);
            let is_due = Some(tokio::time::Instant::now() - GIVE_WAY_AFTER);
            GAVE_WAY.set(is_due);
            assert_eq!(read_parts(&parts, 1_024).await, Ok("shop".to_owned()));
            assert_eq!(GAVE_WAY.get() != is_due, cut.is_some());
        }
    }

    #[tokio::test]
    async fn a_message_is_read_however_it_was_cut() {
        let whole = framed("shop");
        for cut in 0..=whole.len() {
            let (one, other) = whole.split_at(cut);
            assert_eq!(read_parts(&[one, other], 6).await, Ok("shop".to_owned()), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(read_parts(&bytes, 6).await, Ok("shop".to_owned()));
    }

    #[tokio::test]
    async fn what_is_not_one_message_is_refused() {
        let whole = framed("shop");
        let twice = [&whole[..], &whole[..]].concat();
        let invalid = Err(Code::InvalidArgument);
        assert_eq!(read_parts(&[], 99).await, invalid);
        assert_eq!(read_parts(&[&whole[..4]], 99).await, invalid);
        assert_eq!(read_parts(&[&whole[..9]], 99).await, invalid);
        assert_eq!(read_parts(&[&twice], 99).await, invalid);
        assert_eq!(read_parts(&[&[1, 0, 0, 0, 0]], 99).await, Err(Code::Unimplemented), "compressed");
    }

    #[tokio::test]
    async fn too_much_is_refused_by_what_is_announced_and_by_what_comes() {
        let whole = framed("shop");
        assert_eq!(read_parts(&[&whole], 6).await, Ok("shop".to_owned()));
        assert_eq!(read_parts(&[&whole], 5).await, Err(Code::InvalidArgument));
        assert_eq!(read_parts(&[&whole[..5]], 5).await, Err(Code::InvalidArgument), "announced");
        let long = [&[0, 0, 0, 0, 1][..], &[0; 7][..]].concat();
        assert_eq!(read_parts(&[&long], 6).await, Err(Code::InvalidArgument), "sent");
    }

    #[tokio::test]
    async fn an_answer_is_a_message_and_a_status() {
        let message = RateLimitRequest { domain: "shop".into(), ..RateLimitRequest::default() };
        let framed_message = super::framed(&message, &[]).unwrap();
        let mut body = response(Ok((framed_message, Untaken::default())), reservation(&peer())).into_body();
        let mut next = async || poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let piece = next().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(prost::bytes::Buf::chunk(&piece), framed("shop"));
        let trailers = next().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert!(next().await.is_none());
        assert!(body.is_end_stream());
    }

    /// A body that has sent these bytes and nothing more.
    struct Unfinished(Option<Vec<u8>>);

    impl HttpBody for Unfinished {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0.take().map_or(Poll::Pending, |part| Poll::Ready(Some(Ok(Frame::data(part.into())))))
        }
    }

    #[tokio::test]
    async fn a_message_that_does_not_end_is_given_up_and_let_go() {
        let peer = peer();
        let mut reservation = reservation(&peer);
        let begun = Unfinished(Some(framed("shop")[..7].to_vec()));
        let read = read(begun, 1 << 20, Duration::from_millis(20), &mut reservation);
        assert_eq!(read.await.unwrap_err().code(), Code::DeadlineExceeded);
        drop(reservation);
        assert_eq!(peer.bytes(), 0);
    }

    /// Such a request had no bound on its time, and its caller's timeout began only with its turn.
    #[tokio::test]
    async fn the_wait_for_a_turn_counts_to_the_time_of_a_request() {
        let peer = peer();
        let mut message = vec![0x12; 1 << 14];
        message.splice(..0, [&[0][..], &(1_u32 << 14).to_be_bytes()].concat());
        let read = async |timeout| {
            let mut reservation = reservation(&peer);
            let body = Given { parts: [message.clone()].into(), waits: false, is_due: false };
            let began = Instant::now();
            let received = read(body, 1 << 20, timeout, &mut reservation).await?;
            let waited = received.since.expect("it has waited for its turn");
            assert!(waited >= began);
            Ok::<_, Status>(Piece::new(Bytes::from_static(b"response"), reservation))
        };
        let mut untaken = Vec::new();
        let refused = loop {
            match read(Duration::from_millis(20)).await {
                Ok(response) => untaken.push(response),
                Err(status) => break status,
            }
        };
        assert_eq!(refused.code(), Code::DeadlineExceeded);
        assert!(!untaken.is_empty());
        untaken.clear();
        read(TIMEOUT).await.expect("the responses are read or dropped");
        assert_eq!(peer.bytes(), 0);
    }

    #[tokio::test]
    async fn a_message_in_parts_is_refused_when_memory_is_used_up() {
        let peer = bounded(10_000);
        let mut reservation = reservation(&peer);
        let mut whole = vec![0, 0, 0, 0x40, 0];
        whole.resize(HEAD_BYTES + 0x4000, 0);
        let parts = whole.chunks(1_000).map(<[u8]>::to_vec).collect();
        let body = Given { parts, waits: true, is_due: false };
        let refused = read(body, 1 << 20, TIMEOUT, &mut reservation).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(peer.bytes() <= 10_000);
    }
}
