//! The paths of the public listener, for callers and load balancers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body::{Frame, SizeHint};
use tokio::runtime::Handle;
use weir_limiter::callers::{KnownCaller, Sender};
use weir_limiter::finishing::{Finishing, MustFinish, Untaken};
use weir_limiter::{HeldCharge, Undecided};
use weir_rls::json::JsonRequest;
use weir_rls::{client_headers, convert, detail, json, receipts};
use weir_telemetry::metrics::Protocol;
use weir_telemetry::traces::Trace;

use super::body::BodyError;
use super::{
    Access, Site, authorized, metrics, not_found, on_handlers, origin, public_readyz, query_problem, wrong_method,
};

/// Every path, for the response to an unknown one.
const PATHS: [&str; 5] = ["POST /json", "GET /healthcheck", "GET /healthz", "GET /metrics", "GET /readyz"];
/// The time without an answer after which a core counts as stuck. A probe that fails three times, every 10 s, then ends weir
/// about as fast as the watchdog of deploy/systemd.
const STUCK_AFTER: Duration = Duration::from_secs(10);

pub(super) fn router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/json", post(decide))
        .route("/metrics", authorized(get(metrics), Access::Metrics, site))
        .layer(middleware::from_fn_with_state(site.clone(), on_handlers))
        .route("/healthcheck", get(healthcheck))
        .route("/healthz", get(healthz))
        .route("/readyz", get(public_readyz))
        .fallback(async |uri: Uri| not_found(&uri, &PATHS))
        .method_not_allowed_fallback(wrong_method)
        .with_state(site.clone())
}

/// Whether the process lives. Only a restart helps against a core that does not run its tasks.
async fn healthz(State(site): State<Arc<Site>>) -> Response {
    liveness(site.report.stuck_for.get().and_then(|stuck_for| stuck_for()))
}

fn liveness(stuck_for: Option<Duration>) -> Response {
    match stuck_for.filter(|time| *time >= STUCK_AFTER) {
        None => "ok\n".into_response(),
        Some(time) => {
            refusal(StatusCode::SERVICE_UNAVAILABLE, &format!("a core has not run its tasks for {} s", time.as_secs()))
        }
    }
}

/// envoyproxy/ratelimit's own health endpoint.
async fn healthcheck(State(site): State<Arc<Site>>) -> Response {
    if site.is_healthy() {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not serving\n").into_response()
    }
}

/// Whether the caller of `/json` requests the detail of each status, for which Envoy's format has no field.
///
/// # Errors
/// The mistake in the parameters.
fn wants_detail(asked: Result<Query<Vec<(String, String)>>, QueryRejection>) -> Result<bool, String> {
    let Query(asked) = asked.map_err(|rejection| query_problem(&rejection.body_text()))?;
    let mut detail = None;
    for (name, value) in asked {
        if name != "detail" {
            return Err(format!("no parameter {name:?}, only detail"));
        }
        let wanted = value.parse().map_err(|_| format!("detail: {value:?} is not true or false"))?;
        if detail.replace(wanted).is_some() {
            return Err("detail: given twice".to_owned());
        }
    }
    Ok(detail.unwrap_or(false))
}

/// Decides a request in JSON. As in envoyproxy/ratelimit, the content type is ignored.
async fn decide(
    State(site): State<Arc<Site>>,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
) -> Response {
    let trace = site.json.tracer.as_ref().and_then(|tracer| tracer.begin(Protocol::Http, request.headers()));
    let must_finish = site.limiter.can_hold().then(MustFinish::default);
    let finish = must_finish.clone();
    let answering = async move {
        let response = answer(&site, asked, request, finish, trace.as_deref()).await;
        if let Some(trace) = trace {
            trace.end_http(response.status().as_u16());
        }
        response
    };
    match must_finish {
        None => answering.await,
        Some(must_finish) => Finishing::new(Box::pin(answering), must_finish).await,
    }
}

/// A request of a domain with holds sets `finish`. [hd-9]
async fn answer(
    site: &Arc<Site>,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
    finish: Option<MustFinish>,
    trace: Option<&Trace>,
) -> Response {
    if let Err(reason) = origin::check(&request, &site.allowed_origins) {
        return refusal(StatusCode::FORBIDDEN, &reason);
    }
    let wants_detail = match wants_detail(asked) {
        Ok(detail) => detail,
        Err(reason) => {
            site.limiter.unreadable(Instant::now());
            return refusal(StatusCode::BAD_REQUEST, &reason);
        }
    };
    let wants_problem = wants_problem(request.headers());
    let body = match site.shared.bodies.read(request.into_body(), site.json.request_bytes).await {
        Ok(body) => body,
        Err(error) => {
            if let BodyError::TooLarge { .. } = error {
                site.limiter.unreadable(Instant::now());
            }
            return refusal(error.status(), &error.to_string());
        }
    };
    let started = Instant::now();
    let refused = |reason: &dyn std::fmt::Display| {
        site.limiter.refused(started);
        refusal(StatusCode::BAD_REQUEST, &reason.to_string())
    };
    let parsed = match json::parse_request(&body) {
        Ok(request) => request,
        Err(error) => {
            site.limiter.unreadable(started);
            return refusal(StatusCode::BAD_REQUEST, &error.to_string());
        }
    };
    let mut request = parsed.view();
    let (sender, known) = (site.json.sender.as_ref(), site.json.sender.as_ref().map(Sender::known));
    let sender = sender.zip(known.as_deref());
    let named_trace = |domain: &str| {
        let trace = trace?;
        trace.domain(domain);
        trace.caller(known.as_deref().and_then(KnownCaller::name));
        Some(trace as &dyn weir_engine::observer::Trace)
    };
    // Before receipts are read, because the answer to a wrong one depends on the domain.
    let check_domain = |(sender, known)| {
        site.limiter.check_domain(sender, known, request.domain, started, named_trace(request.domain))
    };
    let caller = match sender.map(check_domain).transpose() {
        Ok(caller) => caller,
        Err(refused) => return refusal(StatusCode::FORBIDDEN, &refused.to_string()),
    };
    let finish = finish.filter(|_| site.limiter.has_holds(request.domain));
    let settle = match receipts::take(&mut request, &site.json.receipt_key, |_| finish.is_some()) {
        Ok(settle) => settle,
        Err(invalid) => return refused(&invalid),
    };
    if let Some(finish) = finish {
        finish.set();
    }
    let query = match convert::query(&request, &site.json.bounds) {
        Ok(query) => weir_limiter::Query { settle, caller: known.as_deref().and_then(KnownCaller::name), ..query },
        Err(invalid) => return refused(&invalid),
    };
    let trace = named_trace(query.domain);
    if let Some(caller) = caller
        && let Err(refused) = site.limiter.check(caller, &query, started, trace)
    {
        return refusal(StatusCode::FORBIDDEN, &refused.to_string());
    }
    let mut answer = match site.limiter.decide(&query, started, None, trace).await {
        Ok(answer) => answer,
        Err(error @ Undecided::Unweighed(_)) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
        Err(error) => return refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let status = if answer.denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let retry_after = client_headers::retry_after(&answer);
    let holds = std::mem::take(&mut answer.holds);
    let details = if wants_detail { detail::of(&answer) } else { Vec::new() };
    let mut response = convert::response(&request, answer, &site.json.extras);
    // `parsed` goes with the answer.
    drop(query);
    drop(request);
    if wants_problem && !response.raw_body.is_empty() {
        let kind = HeaderValue::from_static(client_headers::PROBLEM_TYPE);
        let body = std::mem::take(&mut response.raw_body);
        return with_retry_after((status, [(header::CONTENT_TYPE, kind)], body).into_response(), retry_after);
    }
    let body = json::render_response(&response);
    let body = if wants_detail { body.and_then(|body| detail::add_to_json(&body, details)) } else { body };
    match body {
        Ok(mut body) => {
            receipts::add_to_json(&mut body, &holds);
            let kind = HeaderValue::from_static("application/json");
            let body = if holds.is_empty() {
                Body::from(body)
            } else {
                Body::new(HeldAnswer(Some((body.into(), release_untaken(site.clone(), parsed, holds)))))
            };
            with_retry_after((status, [(header::CONTENT_TYPE, kind)], body).into_response(), retry_after)
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// The body of an answer with a receipt, until HTTP takes it.
struct HeldAnswer(Option<(Bytes, Untaken)>);

impl HttpBody for HeldAnswer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|(body, untaken)| {
            untaken.taken();
            Ok(Frame::data(body))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |(body, _)| body.len() as u64))
    }
}

/// Releases what a request has opened, if HTTP does not take its answer. [hd-9]
fn release_untaken(site: Arc<Site>, parsed: JsonRequest, holds: Vec<HeldCharge>) -> Untaken {
    // That of the handlers: the thread of the listeners drops the answer.
    let runtime = Handle::current();
    Untaken::then(move || {
        runtime.spawn(async move {
            let mut request = parsed.view();
            // Both were read without an error before.
            let _ = receipts::take(&mut request, &site.json.receipt_key, |_| true);
            let Ok(query) = convert::query(&request, &site.json.bounds) else { return };
            site.limiter.release(query, holds).await;
        });
    })
}

fn with_retry_after(mut response: Response, seconds: Option<u64>) -> Response {
    if let Some(seconds) = seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Whether the caller of `/json` accepts the type of the problem body.
fn wants_problem(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case(client_headers::PROBLEM_TYPE))
}

fn refusal(status: StatusCode, reason: &str) -> Response {
    (status, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_core_ends_liveness_and_a_slow_one_does_not() {
        let status = |stuck_for| liveness(stuck_for).status();
        assert_eq!(status(None), StatusCode::OK);
        assert_eq!(status(Some(Duration::from_millis(9_999))), StatusCode::OK);
        assert_eq!(status(Some(Duration::from_secs(10))), StatusCode::SERVICE_UNAVAILABLE);
    }
}
