//! ShouldRateLimit, and which service a request is for.
//!
//! Hand-written where tonic generates, so that a request that cannot be read is INVALID_ARGUMENT, and so that nothing
//! is looked up, cloned or boxed twice on the way to the limiter. Not here: framing (unary.rs), what is asked and
//! answered (rls), and deciding.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use tokio::runtime::Handle;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Bytes, Service, http};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;
use weir_limiter::{Answer, HeldCharge, Limiter, Query, Settle, Undecided};
use weir_rls::convert::{self, Bounds, Extras, Invalid};
use weir_rls::proto::RateLimitResponse;
use weir_rls::request::Request;
use weir_rls::{lenient, receipts};
use weir_telemetry::traces::{Trace, Tracer, Way};

use super::connection::Load;
use super::finishing::{Finishing, MustFinish};
use super::held::{Hold, Peer, STREAM_BYTES};
use super::other::{self, Kind, Stream};
use super::status::{RequestError, status};
use super::unary::{self, Sent, Untaken};

/// The service's full name.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its one method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION_V1: &str = "/grpc.reflection.v1.ServerReflection/";
const REFLECTION_V1ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";

/// The time that an answer needs to get to its caller: we give up that much before the caller does, so that the reason
/// arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(1);

/// How long a caller waits. A name that is parsed once, and not for each request.
static GRPC_TIMEOUT: http::HeaderName = http::HeaderName::from_static("grpc-timeout");

/// Any other service, as a function of the whole request.
pub(super) type Other = Arc<dyn Fn(http::Request<Body>) -> BoxFuture<http::Response<Body>, Infallible> + Send + Sync>;

/// Everything that one runtime serves.
pub(super) struct Services {
    pub(super) limits: Arc<RateLimits>,
    /// Of this runtime.
    pub(super) load: Load,
    pub(super) health: HealthServer<HealthService>,
    pub(super) reflection_v1: Other,
    pub(super) reflection_v1alpha: Other,
}

/// What ShouldRateLimit needs.
pub(super) struct RateLimits {
    pub(super) limiter: Arc<Limiter>,
    pub(super) bounds: Bounds,
    pub(super) extras: Extras,
    /// The largest request, in bytes.
    pub(super) request_bytes: usize,
    /// How long a request may take to arrive after its headers.
    pub(super) receive_timeout: Duration,
    /// Begins the traces of decisions, where they are traced.
    pub(super) tracer: Option<Arc<Tracer>>,
}

/// What one connection is served by.
pub(super) struct Connected {
    /// What all connections of its runtime are served by.
    pub(super) services: Arc<Services>,
    /// Whose requests these are.
    pub(super) peer: Arc<Peer>,
}

/// An answer, and what happens to its holds if HTTP/2 never takes it.
type Answered = (RateLimitResponse, Untaken);
/// A response on its way.
type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Sent>, Infallible>> + Send>>;

impl hyper::service::Service<http::Request<Incoming>> for Connected {
    type Response = http::Response<Sent>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let services = &self.services;
        services.load.count_request();
        let path = request.uri().path();
        if path == SHOULD_RATE_LIMIT {
            return match Hold::new(&self.peer, STREAM_BYTES) {
                Ok(hold) => services.should_rate_limit(request, hold),
                Err(status) => at_once(status),
            };
        }
        let kind = if path.starts_with(HEALTH) { Kind::Health } else { Kind::Reflection };
        let other: &dyn Fn(http::Request<Body>) -> BoxFuture<http::Response<Body>, Infallible> = match path {
            _ if path.starts_with(HEALTH) => &|request| services.health.clone().call(request),
            _ if path.starts_with(REFLECTION_V1) => &*services.reflection_v1,
            _ if path.starts_with(REFLECTION_V1ALPHA) => &*services.reflection_v1alpha,
            _ => {
                let text = format!("no method {path}; this server has {SHOULD_RATE_LIMIT}");
                return at_once(Status::unimplemented(text));
            }
        };
        let stream = match Stream::open(&self.peer, kind) {
            Ok(stream) => stream,
            Err(status) => return at_once(status),
        };
        let receive_timeout = services.limits.receive_timeout;
        let response = other(request.map(|body| Body::new(other::Request::new(body, kind, receive_timeout))));
        Box::pin(async move { Ok(response.await?.map(|body| Sent::Body(body, stream))) })
    }
}

/// A response that needs nothing more.
fn at_once(status: Status) -> Answering {
    Box::pin(std::future::ready(Ok(unary::refused(status))))
}

impl Services {
    /// A request on its way lives in one box, which is copied when it is made. So it holds no headers, which have been
    /// read, and no room for waiting on a store where no store is waited for.
    fn should_rate_limit(&self, request: http::Request<Incoming>, mut hold: Hold) -> Answering {
        let limits = self.limits.clone();
        let trace = limits.tracer.as_ref().and_then(|tracer| tracer.begin(Way::Grpc, request.headers()));
        if limits.limiter.is_immediate() {
            let body = request.into_body();
            return Box::pin(async move {
                let decided = limits.decide_now(body, &mut hold, trace.as_deref()).await;
                end(trace, &decided);
                Ok(unary::response(decided, hold))
            });
        }
        let (head, body) = request.into_parts();
        let caller_timeout = caller_timeout(&head.headers);
        let must_finish = limits.limiter.can_hold().then(MustFinish::default);
        let finish = must_finish.clone();
        let answering: Answering = Box::pin(async move {
            let decided = limits.decide(body, caller_timeout, finish, &mut hold, trace.as_deref()).await;
            end(trace, &decided);
            Ok(unary::response(decided, hold))
        });
        match must_finish {
            None => answering,
            Some(must_finish) => Box::pin(Finishing::new(answering, must_finish)),
        }
    }
}

/// Ends the trace of a request, if it has one. What broke off has none to answer, and ends as given up.
fn end(trace: Option<Box<Trace>>, decided: &Result<Answered, Status>) {
    let Some(trace) = trace else { return };
    match decided {
        Err(status) if status.code() == Code::Cancelled => {}
        Err(status) => trace.end_grpc(status.code() as i32),
        Ok(_) => trace.end_grpc(Code::Ok as i32),
    }
}

/// The trace as the limiter takes it.
fn as_told<'a>(trace: Option<&'a Trace>, query: &Query<'_>) -> Option<&'a dyn weir_engine::observer::Trace> {
    let trace = trace?;
    trace.domain(query.domain);
    Some(trace)
}

impl RateLimits {
    /// For a limiter that is immediate: it need not know how long its caller waits.
    async fn decide_now(
        self: &Arc<Self>,
        body: Incoming,
        hold: &mut Hold,
        trace: Option<&Trace>,
    ) -> Result<Answered, Status> {
        let read = unary::read(body, self.request_bytes, self.receive_timeout, hold).await;
        let started = Instant::now();
        let received = self.read(read, started)?;
        let mut texts = Vec::new();
        let mut request = self.decoded(received.message(), &mut texts, started)?;
        let settle = self.settle(&mut request, started)?;
        let query = self.query(&request, settle, started)?;
        let decided = self.limiter.decide_now(&query, started, as_told(trace, &query));
        self.response(&request, decided, || Bytes::copy_from_slice(received.message()))
    }

    /// The caller's time begins with the headers of its request. A request of a domain with holds sets `finish`, and then has
    /// the store's whole time. [hd-9]
    async fn decide(
        self: &Arc<Self>,
        body: Incoming,
        caller_timeout: Option<Duration>,
        finish: Option<MustFinish>,
        hold: &mut Hold,
        trace: Option<&Trace>,
    ) -> Result<Answered, Status> {
        let timeout =
            caller_timeout.map_or(self.receive_timeout, |caller_timeout| caller_timeout.min(self.receive_timeout));
        let read = unary::read(body, self.request_bytes, timeout, hold).await;
        let started = Instant::now();
        let received = self.read(read, started)?;
        let deadline =
            caller_timeout.and_then(|caller_timeout| received.since.unwrap_or(started).checked_add(caller_timeout));
        let bytes = received.into_message();
        let mut texts = Vec::new();
        let mut request = self.decoded(&bytes, &mut texts, started)?;
        let settle = self.settle(&mut request, started)?;
        let query = self.query(&request, settle, started)?;
        let finish = finish.filter(|_| self.limiter.has_holds(query.domain));
        let deadline = deadline.filter(|_| finish.is_none());
        if let Some(finish) = finish {
            finish.set();
        }
        let decided = self.limiter.decide(&query, started, deadline, as_told(trace, &query)).await;
        self.response(&request, decided, || bytes.clone())
    }

    /// A request that could not be read counts too.
    fn read<M>(&self, read: Result<M, Status>, started: Instant) -> Result<M, Status> {
        read.inspect_err(|_| self.limiter.unreadable(started))
    }

    fn decoded<'a>(&self, bytes: &'a [u8], texts: &'a mut Vec<u8>, started: Instant) -> Result<Request<'a>, Status> {
        let decoded = lenient::decode(bytes, texts).map_err(|error| Status::invalid_argument(error.to_string()));
        self.read(decoded, started)
    }

    /// What the request settles; only one of a domain with holds can settle.
    fn settle(&self, request: &mut Request<'_>, started: Instant) -> Result<Option<Box<Settle>>, Status> {
        if !self.limiter.has_holds(request.domain) {
            return Ok(None);
        }
        receipts::take(request).map_err(|invalid| self.refused(invalid, started))
    }

    fn query<'q>(
        &self,
        request: &'q Request<'_>,
        settle: Option<Box<Settle>>,
        started: Instant,
    ) -> Result<Query<'q>, Status> {
        let query = convert::query(request, &self.bounds).map_err(|invalid| self.refused(invalid, started))?;
        Ok(Query { settle, ..query })
    }

    fn refused(&self, invalid: Invalid, started: Instant) -> Status {
        self.limiter.refused(started);
        status(&RequestError::Invalid(invalid))
    }

    /// `message` gives the bytes of the request, if it has opened holds.
    fn response(
        self: &Arc<Self>,
        request: &Request<'_>,
        decided: Result<Answer, Undecided>,
        message: impl FnOnce() -> Bytes,
    ) -> Result<Answered, Status> {
        match decided {
            Ok(mut answer) => {
                let holds = std::mem::take(&mut answer.holds);
                let mut response = convert::response(request, answer, &self.extras);
                receipts::add_to_metadata(&mut response, request.domain, &holds);
                let untaken =
                    if holds.is_empty() { Untaken::default() } else { self.release_untaken(message(), holds) };
                Ok((response, untaken))
            }
            Err(undecided) => Err(status(&RequestError::Undecided(undecided))),
        }
    }
}

impl RateLimits {
    /// Releases what a request has opened, if HTTP/2 does not take its answer. [hd-9]
    fn release_untaken(self: &Arc<Self>, message: Bytes, holds: Vec<HeldCharge>) -> Untaken {
        let limits = self.clone();
        Untaken::then(move || {
            // Without a runtime the process ends, and no store could be asked.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move { limits.release(&message, holds).await });
            }
        })
    }

    async fn release(&self, message: &[u8], holds: Vec<HeldCharge>) {
        let mut texts = Vec::new();
        // Both were read without an error before.
        let Ok(mut request) = lenient::decode(message, &mut texts) else { return };
        let _ = receipts::take(&mut request);
        let Ok(query) = convert::query(&request, &self.bounds) else { return };
        self.limiter.release(query, holds).await;
    }
}

/// How long the caller waits for the answer, less the time that it needs to get there.
fn caller_timeout(headers: &http::HeaderMap) -> Option<Duration> {
    let timeout = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
    Some(timeout_of(timeout)?.saturating_sub(ANSWER_MARGIN))
}

/// Reads `grpc-timeout`: at most eight digits and a unit. Any other text counts as no timeout.
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

#[cfg(test)]
mod tests {
    use super::*;

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
