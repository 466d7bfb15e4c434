//! A collector of OpenTelemetry that keeps what it gets: OTLP by gRPC or HTTP, with or without TLS, on a port of its own. It
//! decodes by the messages of `opentelemetry-proto`.
//!
//! Not in here: what weir should send.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use axum::body::{Body, Bytes};
use axum::http::{Request as HttpRequest, Response as HttpResponse};
use futures_util::StreamExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::rustls::ServerConfig;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::ads;
use super::wait::{PATIENCE, until};

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// gRPC.
    Grpc,
    /// HTTP with protobuf.
    Http,
}

impl By {
    /// The value of `tracing.otlp.protocol`.
    pub fn setting(self) -> &'static str {
        match self {
            By::Grpc => "grpc",
            By::Http => "http/protobuf",
        }
    }
}

/// What a collector does with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Does {
    /// Takes it.
    #[default]
    Take,
    /// Takes metrics but for one series; spans as a whole.
    TakePart,
    /// Refuses it for good: INVALID_ARGUMENT, or 400.
    Refuse,
    /// Never answers.
    Nothing,
}

/// A span as it came.
#[derive(Clone, Debug)]
pub struct ReceivedSpan {
    /// The ids in hex, the parent's empty where there is none.
    pub trace: String,
    /// Its own.
    pub id: String,
    /// The parent's.
    pub parent: String,
    /// `tracestate`.
    pub state: String,
    /// The name.
    pub name: String,
    /// The number of its kind: 2 for a server, 3 for a client.
    pub kind: i32,
    /// The code of its status: 2 for an error.
    pub status: i32,
    /// The attributes.
    pub attributes: BTreeMap<String, Value>,
    /// Those of the resource.
    pub resource: BTreeMap<String, Value>,
    /// When it began and ended, in nanoseconds since the epoch.
    pub times: (u64, u64),
}

impl ReceivedSpan {
    /// An attribute; null where there is none.
    pub fn attribute(&self, key: &str) -> Value {
        self.attributes.get(key).cloned().unwrap_or(Value::Null)
    }
}

/// A request with metrics as it came.
#[derive(Clone, Debug)]
pub struct SeenMetrics {
    /// The attributes of the resource.
    pub resource: BTreeMap<String, Value>,
    /// The metrics.
    pub metrics: Vec<Metric>,
}

#[derive(Debug, Default)]
struct State {
    does: Does,
    spans: Vec<ReceivedSpan>,
    metrics: Vec<SeenMetrics>,
    /// The paths and headers of the requests.
    requests: Vec<(String, BTreeMap<String, String>)>,
}

#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<State>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with it")
    }
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    /// Where it listens.
    pub address: SocketAddr,
    kept: Kept,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// One on a port of its own.
    pub fn start(by: By) -> Collector {
        Collector::start_with(by, None)
    }

    /// The same with TLS. The configuration must offer the protocol that is spoken.
    pub fn start_with(by: By, tls: Option<Arc<ServerConfig>>) -> Collector {
        let kept = Kept::default();
        let (stop, stopped) = oneshot::channel();
        let (sender, bound) = std::sync::mpsc::channel();
        let of = kept.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(ads::any_port()).await.expect("a port");
                sender.send(listener.local_addr().expect("an address")).expect("the test waits");
                let (accepted, incoming) = mpsc::unbounded_channel();
                tokio::spawn(ads::accept(listener, tls, accepted));
                let serving = async {
                    match by {
                        By::Grpc => serve_grpc(of, incoming).await,
                        By::Http => serve_http(of, incoming).await,
                    }
                };
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        let address = bound.recv_timeout(PATIENCE).expect("the collector listens");
        Collector { address, kept, stop: Some(stop), thread: Some(thread) }
    }

    /// Its URL, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it does this.
    pub fn does(&self, does: Does) {
        self.kept.lock().does = does;
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.kept.lock().spans.clone()
    }

    /// All requests with metrics so far.
    pub fn metrics(&self) -> Vec<SeenMetrics> {
        self.kept.lock().metrics.clone()
    }

    /// The paths and headers of all requests so far, also of those that it did not take.
    pub fn requests(&self) -> Vec<(String, BTreeMap<String, String>)> {
        self.kept.lock().requests.clone()
    }

    /// Waits for so many spans at least, and returns all.
    pub fn wait_for(&self, count: usize) -> Vec<ReceivedSpan> {
        until(&format!("{count} spans"), PATIENCE, || {
            let spans = self.spans();
            (spans.len() >= count).then_some(spans)
        })
    }

    /// Waits for the spans of this trace, so many.
    pub fn wait_for_trace(&self, trace: &str, count: usize) -> Vec<ReceivedSpan> {
        until(&format!("{count} spans of {trace}"), PATIENCE, || {
            let spans: Vec<ReceivedSpan> = self.spans().into_iter().filter(|span| span.trace == trace).collect();
            (spans.len() >= count).then_some(spans)
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the collector panicked");
        }
    }
}

type Connections = mpsc::UnboundedReceiver<std::io::Result<ads::Incoming>>;

async fn serve_grpc(kept: Kept, incoming: Connections) {
    let service = Services {
        traces: TraceServiceServer::new(kept.clone()).accept_compressed(CompressionEncoding::Gzip),
        metrics: MetricsServiceServer::new(kept).accept_compressed(CompressionEncoding::Gzip),
    };
    let serving = Server::builder().serve_with_incoming(service, UnboundedReceiverStream::new(incoming));
    serving.await.expect("it serves until it is stopped");
}

/// Both services on one connection.
#[derive(Clone)]
struct Services {
    traces: TraceServiceServer<Kept>,
    metrics: MetricsServiceServer<Kept>,
}

impl Service<HttpRequest<tonic::body::Body>> for Services {
    type Response = HttpResponse<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<tonic::body::Body>) -> Self::Future {
        if request.uri().path().contains(".metrics.") { self.metrics.call(request) } else { self.traces.call(request) }
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let request = self.grpc_request(request).await?;
        self.take(request);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let request = self.grpc_request(request).await?;
        self.take_metrics(request);
        Ok(Response::new(self.metrics_response()))
    }
}

async fn serve_http(kept: Kept, mut incoming: Connections) {
    while let Some(Ok(connection)) = incoming.recv().await {
        let kept = kept.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: HttpRequest<hyper::body::Incoming>| {
                let kept = kept.clone();
                async move { Ok::<_, Infallible>(answer_http(&kept, request).await) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
        });
    }
}

async fn answer_http(kept: &Kept, request: HttpRequest<hyper::body::Incoming>) -> HttpResponse<Body> {
    let headers: BTreeMap<String, String> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let path = request.uri().path().to_owned();
    let gzip = headers.get("content-encoding").is_some_and(|coding| coding == "gzip");
    assert_eq!(headers.get("content-type").map(String::as_str), Some("application/x-protobuf"));
    let mut parts = Body::new(request.into_body()).into_data_stream();
    let mut body = Vec::new();
    while let Some(part) = parts.next().await {
        body.extend_from_slice(&part.expect("the whole body"));
    }
    if gzip {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).expect("gzip");
        body = plain;
    }
    let status = match kept.request(path.clone(), headers) {
        Does::Take | Does::TakePart if path.ends_with("/v1/metrics") => {
            kept.take_metrics(ExportMetricsServiceRequest::decode(&body[..]).expect("a request for metrics"));
            200
        }
        Does::Take | Does::TakePart => {
            kept.take(ExportTraceServiceRequest::decode(&body[..]).expect("a request for spans"));
            200
        }
        Does::Refuse => 400,
        Does::Nothing => std::future::pending().await,
    };
    let body = if path.ends_with("/v1/metrics") {
        kept.metrics_response().encode_to_vec()
    } else {
        ExportTraceServiceResponse::default().encode_to_vec()
    };
    let body = Bytes::from(body);
    HttpResponse::builder().status(status).body(Body::from(body)).expect("a response")
}

impl Kept {
    fn request(&self, path: String, headers: BTreeMap<String, String>) -> Does {
        let mut state = self.lock();
        state.requests.push((path, headers));
        state.does
    }

    /// The message of a request that is to be taken.
    async fn grpc_request<T>(&self, request: Request<T>) -> Result<T, Status> {
        let headers = request.metadata().clone().into_headers();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        match self.request("grpc".to_owned(), headers.collect()) {
            Does::Take | Does::TakePart => Ok(request.into_inner()),
            Does::Refuse => Err(Status::invalid_argument("not these")),
            Does::Nothing => std::future::pending().await,
        }
    }

    fn metrics_response(&self) -> ExportMetricsServiceResponse {
        let part = (self.lock().does == Does::TakePart)
            .then(|| ExportMetricsPartialSuccess { rejected_data_points: 1, error_message: "one too many".to_owned() });
        ExportMetricsServiceResponse { partial_success: part }
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let mut state = self.lock();
        for of in request.resource_metrics {
            let resource = attributes(&of.resource.expect("a resource").attributes);
            for scope in of.scope_metrics {
                assert_eq!(scope.scope.expect("a scope").name, "weir");
                state.metrics.push(SeenMetrics { resource: resource.clone(), metrics: scope.metrics });
            }
        }
    }

    fn take(&self, request: ExportTraceServiceRequest) {
        let mut state = self.lock();
        for spans in request.resource_spans {
            let resource = attributes(&spans.resource.expect("a resource").attributes);
            for scope in spans.scope_spans {
                assert_eq!(scope.scope.expect("a scope").name, "weir");
                state.spans.extend(scope.spans.iter().map(|span| seen(span, &resource)));
            }
        }
    }
}

fn seen(span: &Span, resource: &BTreeMap<String, Value>) -> ReceivedSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    ReceivedSpan {
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        state: span.trace_state.clone(),
        name: span.name.clone(),
        kind: span.kind,
        status: span.status.as_ref().map_or(0, |status| status.code),
        attributes: attributes(&span.attributes),
        resource: resource.clone(),
        times: (span.start_time_unix_nano, span.end_time_unix_nano),
    }
}

/// Attributes by their keys.
pub fn attributes(list: &[KeyValue]) -> BTreeMap<String, Value> {
    let of = |pair: &KeyValue| pair.value.as_ref().and_then(|value| value.value.as_ref()).map_or(Value::Null, value);
    let map: BTreeMap<String, Value> = list.iter().map(|pair| (pair.key.clone(), of(pair))).collect();
    assert_eq!(map.len(), list.len(), "each key once: {list:?}");
    map
}

fn value(value_of: &any_value::Value) -> Value {
    match value_of {
        any_value::Value::StringValue(text) => json!(text),
        any_value::Value::IntValue(number) => json!(number),
        any_value::Value::BoolValue(flag) => json!(flag),
        any_value::Value::ArrayValue(list) => {
            list.values.iter().map(|item| item.value.as_ref().map_or(Value::Null, value)).collect()
        }
        other => panic!("no attribute of weir's is a {other:?}"),
    }
}
