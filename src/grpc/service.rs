//! ShouldRateLimit, and which service a request is for.
//!
//! Hand-written where tonic generates, so that a request that cannot be read is INVALID_ARGUMENT, and so that nothing
//! is looked up or boxed twice on the way to the limiter. Not here: what is asked and answered (rls), and deciding.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use prost::Message;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::metadata::MetadataMap;
use tonic::server::UnaryService;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

use super::status::{Refusal, status};
use crate::limiter::{Answer, Limiter, Query, StoreError};
use crate::rls::convert::{self, Bounds, Extras};
use crate::rls::proto::{RateLimitRequest, RateLimitResponse};

/// The service's full name.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its one method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION_V1: &str = "/grpc.reflection.v1.ServerReflection/";
const REFLECTION_V1ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";

/// Space for a request or response to start with, in bytes; they are small, and buffers grow.
const BUFFER_BYTES: usize = 512;
/// Responses are sent when so many bytes wait; more than any response, which is one message.
const YIELD_BYTES: usize = 32 * 1_024;

/// The time that an answer needs to get to its caller: we give up that much before the caller does, so that the reason
/// arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(1);

/// Any other service, as a function of the whole request.
pub(super) type Other = Arc<dyn Fn(http::Request<Body>) -> BoxFuture<http::Response<Body>, Infallible> + Send + Sync>;

/// Everything that one runtime serves. Cloned for every request, hence behind one count.
#[derive(Clone)]
pub(super) struct Services(Arc<Inner>);

struct Inner {
    limits: Arc<RateLimits>,
    health: HealthServer<HealthService>,
    reflection_v1: Other,
    reflection_v1alpha: Other,
}

impl Services {
    pub(super) fn new(
        limits: RateLimits,
        health: HealthServer<HealthService>,
        reflection_v1: Other,
        reflection_v1alpha: Other,
    ) -> Self {
        Self(Arc::new(Inner { limits: Arc::new(limits), health, reflection_v1, reflection_v1alpha }))
    }
}

/// What ShouldRateLimit needs.
pub(super) struct RateLimits {
    pub(super) limiter: Arc<Limiter>,
    pub(super) bounds: Bounds,
    pub(super) extras: Extras,
    /// The largest request, in bytes.
    pub(super) request_bytes: usize,
}

impl Service<http::Request<Body>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        if path == SHOULD_RATE_LIMIT {
            let limits = self.0.limits.clone();
            return Box::pin(async move {
                let mut grpc = tonic::server::Grpc::new(Protobuf).max_decoding_message_size(limits.request_bytes);
                let response = grpc.unary(ShouldRateLimit(limits.clone()), request).await;
                Ok(limits.with_our_code(response))
            });
        }
        if path.starts_with(HEALTH) {
            return self.0.health.clone().call(request);
        }
        if path.starts_with(REFLECTION_V1) {
            return (self.0.reflection_v1)(request);
        }
        if path.starts_with(REFLECTION_V1ALPHA) {
            return (self.0.reflection_v1alpha)(request);
        }
        let status = Status::unimplemented(format!("no method {path}; this server has {SHOULD_RATE_LIMIT}"));
        Box::pin(std::future::ready(Ok(status.into_http())))
    }
}

struct ShouldRateLimit(Arc<RateLimits>);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Answering;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Answering {
        let started = Instant::now();
        if self.0.limiter.is_immediate() {
            return Answering::AtOnce(Some(self.0.answer_now(request.get_ref(), started)));
        }
        let limits = self.0.clone();
        Answering::Later(Box::pin(async move { limits.answer(&request, started).await }))
    }
}

type Answered = Result<Response<RateLimitResponse>, Status>;

/// An answer that is there, or one that a store still has to make.
#[expect(clippy::large_enum_variant, reason = "a box is what an answer that is there does without")]
enum Answering {
    AtOnce(Option<Answered>),
    Later(BoxFuture<Response<RateLimitResponse>, Status>),
}

impl Future for Answering {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        match &mut *self {
            Self::AtOnce(answer) => match answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => unreachable!("nobody polls a future that has ended"),
            },
            Self::Later(answer) => answer.as_mut().poll(context),
        }
    }
}

impl RateLimits {
    /// A request that is too large is refused by tonic, whose code for it is not ours for bad input.
    fn with_our_code(&self, response: http::Response<Body>) -> http::Response<Body> {
        // Only a refusal has its code among the headers.
        if !response.headers().contains_key("grpc-status") {
            return response;
        }
        match Status::from_header_map(response.headers()) {
            Some(status) if status.code() == Code::OutOfRange => {
                self.limiter.refused(Instant::now());
                Status::invalid_argument(format!("request: {}", status.message())).into_http()
            }
            _ => response,
        }
    }

    fn query<'r>(&self, request: &'r RateLimitRequest, started: Instant) -> Result<Query<'r>, Status> {
        convert::query(request, &self.bounds).map_err(|invalid| {
            self.limiter.refused(started);
            status(&Refusal::Invalid(invalid))
        })
    }

    fn answer_now(&self, request: &RateLimitRequest, started: Instant) -> Answered {
        let query = self.query(request, started)?;
        self.answered(self.limiter.decide_now(&query, started))
    }

    async fn answer(&self, request: &Request<RateLimitRequest>, started: Instant) -> Answered {
        let deadline = deadline(request.metadata(), started);
        let query = self.query(request.get_ref(), started)?;
        self.answered(self.limiter.decide(&query, started, deadline).await)
    }

    fn answered(&self, decided: Result<Answer, StoreError>) -> Answered {
        match decided {
            Ok(answer) => Ok(Response::new(convert::response(answer, self.extras))),
            Err(error) => Err(status(&Refusal::Store(error))),
        }
    }
}

/// Until when the caller waits for the answer, less the time that it needs to get there.
fn deadline(metadata: &MetadataMap, started: Instant) -> Option<Instant> {
    let timeout = metadata.get("grpc-timeout")?.to_str().ok()?;
    let patience = timeout_of(timeout)?.saturating_sub(ANSWER_MARGIN);
    started.checked_add(patience)
}

/// Reads `grpc-timeout`: at most eight digits and a unit. What is not of that form is no timeout.
fn timeout_of(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Protobuf, with buffers of our size and a name for what cannot be read.
#[derive(Clone, Copy)]
struct Protobuf;

impl Codec for Protobuf {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        *self
    }

    fn decoder(&mut self) -> Self::Decoder {
        *self
    }
}

impl Encoder for Protobuf {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(&mut self, response: Self::Item, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        response.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

impl Decoder for Protobuf {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        match RateLimitRequest::decode(buffer) {
            Ok(request) => Ok(Some(request)),
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_leaves_time_for_the_answer() {
        let started = Instant::now();
        let mut metadata = MetadataMap::new();
        assert_eq!(deadline(&metadata, started), None);
        for (timeout, expected) in [("20m", Duration::from_millis(19)), ("500u", Duration::ZERO)] {
            metadata.insert("grpc-timeout", timeout.parse().unwrap());
            assert_eq!(deadline(&metadata, started), Some(started + expected), "{timeout}");
        }
    }

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        for (text, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("1S", Some(Duration::from_secs(1))),
            ("3M", Some(Duration::from_secs(180))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("500u", Some(Duration::from_micros(500))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("m", None),
            ("20", None),
            ("+2m", None),
            ("123456789m", None),
            ("5ms", None),
            ("5é", None),
        ] {
            assert_eq!(timeout_of(text), expected, "{text:?}");
        }
    }
}
