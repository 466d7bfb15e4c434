//! One message in, one message out: gRPC's framing of a unary call, by hand.
//!
//! A general gRPC server reads and writes streams of messages, compressed or not, through several boxes and buffers a
//! call. The one call that matters here is small and unary: its message is decoded where it was received and its answer
//! written into one buffer of just its size. Not here: what the messages are (service.rs).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::Frame;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, http};

/// What is before each message: whether it is compressed, and its length in four bytes.
const HEAD_BYTES: usize = 5;

/// Reads the one message of a request, of at most `bytes_max`.
///
/// # Errors
/// When there is not exactly one message, when it is too large, compressed, or none of its type.
pub(super) async fn read<M, B>(mut body: B, bytes_max: usize) -> Result<M, Status>
where
    M: Message + Default,
    B: HttpBody<Data = Bytes> + Unpin,
{
    // Nearly always the first frame is all there is, and is not copied.
    let mut first = Bytes::new();
    let mut several = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Status::cancelled("the request broke off"))?;
        let Ok(part) = frame.into_data() else {
            continue;
        };
        if first.is_empty() {
            first = part;
            check(&first, bytes_max)?;
        } else {
            if several.is_empty() {
                several.extend_from_slice(&first);
            }
            several.extend_from_slice(&part);
            check(&several, bytes_max)?;
        }
        if body.is_end_stream() {
            break;
        }
    }
    let whole = if several.is_empty() { &first[..] } else { &several[..] };
    match whole.split_first_chunk::<HEAD_BYTES>() {
        Some((head, message)) if message.len() == length(head) => {
            M::decode(message).map_err(|error| Status::invalid_argument(error.to_string()))
        }
        _ => Err(Status::invalid_argument(format!("{} bytes are not one whole message", whole.len()))),
    }
}

/// Refuses what need not be read any further.
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

/// The response that holds a message, or the reason why there is none.
pub(super) fn response(result: Result<impl Message, Status>) -> http::Response<Sent> {
    let message = match result {
        Ok(message) => message,
        Err(status) => return status.into_http().map(Sent::Body),
    };
    let length = message.encoded_len();
    let Ok(head) = u32::try_from(length) else {
        return Status::internal("an answer of 4 GiB").into_http().map(Sent::Body);
    };
    let mut framed = Vec::with_capacity(HEAD_BYTES + length);
    framed.push(0);
    framed.extend(head.to_be_bytes());
    message.encode_raw(&mut framed);
    let mut response = http::Response::new(Sent::Message(framed.into()));
    response.headers_mut().insert(http::header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
    response
}

/// The body of a response.
pub(super) enum Sent {
    /// One framed message, and the status OK after it.
    Message(Bytes),
    /// That status.
    Trailers,
    /// Whatever another service sends.
    Body(Body),
    /// Nothing more.
    End,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let (next, frame) = match &mut *self {
            Self::Body(body) => return Pin::new(body).poll_frame(context),
            Self::Message(message) => (Self::Trailers, Frame::data(std::mem::take(message))),
            Self::Trailers => {
                let mut trailers = http::HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("0"));
                (Self::End, Frame::trailers(trailers))
            }
            Self::End => return Poll::Ready(None),
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Body(body) => body.is_end_stream(),
            Self::Message(_) | Self::Trailers => false,
            Self::End => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tonic::Code;

    use super::*;
    use crate::rls::proto::RateLimitRequest;

    /// A body of these parts.
    struct Parts(VecDeque<Vec<u8>>);

    impl HttpBody for Parts {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part.into()))))
        }
    }

    fn framed(domain: &str) -> Vec<u8> {
        let message = RateLimitRequest { domain: domain.into(), ..RateLimitRequest::default() }.encode_to_vec();
        let mut framed = vec![0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        framed.extend(message);
        framed
    }

    async fn read_parts(parts: &[&[u8]], bytes_max: usize) -> Result<String, Code> {
        let body = Parts(parts.iter().map(|part| part.to_vec()).collect());
        let request: Result<RateLimitRequest, _> = read(body, bytes_max).await;
        request.map(|request| request.domain).map_err(|status| status.code())
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
        assert_eq!(read_parts(&[&[0, 0, 0, 0, 1, 0xff]], 99).await, invalid, "no message of this type");
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
        let mut body = response(Ok(message)).into_body();
        let mut next = async || poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert_eq!(next().await.unwrap().unwrap().into_data().unwrap(), framed("shop"));
        let trailers = next().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert!(next().await.is_none());
        assert!(body.is_end_stream());
    }
}
