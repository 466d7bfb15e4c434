//! A control plane: an aggregated discovery service that keeps one snapshot and sends it to every stream, by messages and a
//! service that are not weir's (the crate `envoy-types`).
//!
//! Not in here: what weir should make of it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use super::authority::{Authority, Issued};
use super::wait::{PATIENCE, until};

/// The type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct AdsRequest {
    /// The stream, from 0.
    pub stream: usize,
    /// The request.
    pub request: DiscoveryRequest,
    /// The headers of the stream, those of text.
    pub headers: BTreeMap<String, String>,
    /// The certificate that the client showed.
    pub certificate: Option<Vec<u8>>,
}

impl AdsRequest {
    /// The reason of a NACK.
    pub fn error(&self) -> Option<&str> {
        self.request.error_detail.as_ref().map(|status| status.message.as_str())
    }

    /// Whether it accepts this version.
    pub fn accepts(&self, version: &str) -> bool {
        self.error().is_none() && self.request.version_info == version && !self.request.response_nonce.is_empty()
    }
}

/// A running control plane.
pub struct Ads {
    /// Where it listens.
    pub address: SocketAddr,
    plane: Plane,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Default)]
struct Plane(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    current: Option<DiscoveryResponse>,
    /// Send the current version again as an answer to each NACK, as some control planes do.
    insists: bool,
    streams: Vec<mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>>,
    seen: Vec<AdsRequest>,
    nonces: usize,
}

impl Ads {
    /// One on a port of its own, without a snapshot.
    pub fn start() -> Ads {
        Ads::start_with(any_port(), None)
    }

    /// One at an address, where perhaps another was before, and perhaps with TLS.
    pub fn start_with(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> Ads {
        let plane = Plane::default();
        let (stop, stopped) = oneshot::channel();
        let (sender, bound) = std::sync::mpsc::channel();
        let served = plane.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.expect("the address is free");
                sender.send(listener.local_addr().expect("an address")).expect("the test waits");
                let (accepted, incoming) = mpsc::unbounded_channel();
                tokio::spawn(accept(listener, tls, accepted));
                let service = AggregatedDiscoveryServiceServer::new(served);
                let serving = Server::builder().serve_with_incoming(service, UnboundedReceiverStream::new(incoming));
                tokio::select! {
                    ended = serving => ended.expect("it serves until it is stopped"),
                    _ = stopped => {}
                }
            });
            // Connections end with their tasks.
            runtime.shutdown_background();
        });
        let address = bound.recv_timeout(PATIENCE).expect("the control plane listens");
        Ads { address, plane, stop: Some(stop), thread: Some(thread) }
    }

    /// `HOST:PORT`.
    pub fn server(&self) -> String {
        self.address.to_string()
    }

    /// Has these resources sent to every stream, those to come too.
    pub fn set(&self, version: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryResponse::default()
        };
        let mut state = self.plane.lock();
        state.current = Some(response.clone());
        state.send(response);
    }

    /// Sends a response to the streams of now, as it is where it has a nonce.
    pub fn send(&self, response: DiscoveryResponse) {
        self.plane.lock().send(response);
    }

    /// From now on a NACK is answered by the same version again.
    pub fn insist(&self) {
        self.plane.lock().insists = true;
    }

    /// Ends all streams with this status, or with none.
    pub fn end_streams(&self, status: Option<&Status>) {
        for stream in self.plane.lock().streams.drain(..) {
            if let Some(status) = status {
                let _ = stream.send(Err(status.clone()));
            }
        }
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<AdsRequest> {
        self.plane.lock().seen.clone()
    }

    /// Waits for a request of this kind, and returns the first.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&AdsRequest) -> bool) -> AdsRequest {
        until(what, PATIENCE, || self.plane.lock().seen.iter().find(|seen| wanted(seen)).cloned())
    }

    /// Waits until a version is accepted.
    pub fn wait_for_ack(&self, version: &str) -> AdsRequest {
        self.wait_for(&format!("an ACK of version {version}"), |seen| seen.accepts(version))
    }

    /// Waits until a NACK says this.
    pub fn wait_for_nack(&self, reason: &str) -> AdsRequest {
        self.wait_for(&format!("a NACK with {reason:?}"), |seen| {
            seen.error().is_some_and(|error| error.contains(reason))
        })
    }

    /// Ends it, and returns where it was.
    pub fn stop(mut self) -> SocketAddr {
        self.end();
        self.address
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the control plane panicked");
        }
    }
}

impl Drop for Ads {
    fn drop(&mut self) {
        self.end();
    }
}

impl Plane {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no stream panics")
    }
}

impl State {
    fn send(&mut self, response: DiscoveryResponse) {
        if self.streams.is_empty() {
            return;
        }
        let response = self.numbered(response);
        self.streams.retain(|stream| stream.send(Ok(response.clone())).is_ok());
    }

    fn numbered(&mut self, mut response: DiscoveryResponse) -> DiscoveryResponse {
        if response.nonce.is_empty() {
            self.nonces += 1;
            response.nonce = format!("nonce-{}", self.nonces);
        }
        response
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Plane {
    type StreamAggregatedResourcesStream = UnboundedReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = UnboundedReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let certificate = request.extensions().get::<Certificate>().and_then(|certificate| certificate.0.clone());
        let mut headers = BTreeMap::new();
        for (name, value) in &request.metadata().clone().into_headers() {
            headers.insert(name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned());
        }
        let (sender, responses) = mpsc::unbounded_channel();
        let stream = {
            let mut state = self.lock();
            let first = state.seen.iter().map(|seen| seen.stream + 1).max().unwrap_or(0);
            state.streams.push(sender.clone());
            first
        };
        // The stream ends when the plane lets go of it.
        let sender = sender.downgrade();
        let plane = self.clone();
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let mut is_first = true;
            while let Ok(Some(request)) = requests.message().await {
                let mut state = plane.lock();
                let is_nack = request.error_detail.is_some();
                let (headers, certificate) = (headers.clone(), certificate.clone());
                state.seen.push(AdsRequest { stream, request, headers, certificate });
                let current = state.current.clone().filter(|_| is_first || (is_nack && state.insists));
                if let (Some(response), Some(sender)) = (current, sender.upgrade()) {
                    let response = state.numbered(response);
                    let _ = sender.send(Ok(response));
                }
                is_first = false;
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(responses)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

/// Takes connections, and TLS on each where there is a configuration of it.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    accepted: mpsc::UnboundedSender<io::Result<Incoming>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, accepted) = (tls.clone(), accepted.clone());
        tokio::spawn(async move {
            let incoming = match tls {
                None => Incoming::Plain(stream),
                Some(config) => match TlsAcceptor::from(config).accept(stream).await {
                    Ok(stream) => Incoming::Tls(Box::new(stream)),
                    Err(_) => return,
                },
            };
            let _ = accepted.send(Ok(incoming));
        });
    }
}

/// A connection of a client.
pub(super) enum Incoming {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What a connection knows of its client.
#[derive(Clone)]
pub(super) struct Certificate(Option<Vec<u8>>);

impl Connected for Incoming {
    type ConnectInfo = Certificate;

    fn connect_info(&self) -> Certificate {
        Certificate(match self {
            Incoming::Plain(_) => None,
            Incoming::Tls(stream) => {
                let (_, session) = stream.get_ref();
                session.peer_certificates().and_then(|chain| chain.first()).map(|certificate| certificate.to_vec())
            }
        })
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Incoming::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Incoming::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Incoming::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Incoming::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Incoming::Plain(stream) => Pin::new(stream).poll_flush(context),
            Incoming::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Incoming::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Incoming::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// TLS 1.3 with this certificate, for clients with a certificate of `clients` where that is given.
pub fn secured(server: &Issued, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&tokio_rustls::rustls::version::TLS13])
        .expect("TLS 1.3");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(authority.file()).expect("PEM")).expect("an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    let chain = vec![CertificateDer::from_pem_file(&server.certificate).expect("PEM")];
    let key = PrivateKeyDer::from_pem_file(&server.key).expect("a key");
    let mut config = builder.with_single_cert(chain, key).expect("a certificate and its key");
    // As servers of gRPC do: a client that does not offer it is refused.
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Any free port of loopback.
pub fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A resource of one domain, named as its domain.
pub fn config(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> Any {
    let config = RateLimitConfig { name: format!("rules-of-{domain}"), domain: domain.to_owned(), descriptors };
    Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
}

/// A descriptor of a key alone, with a limit per year: its window does not turn while a test runs.
pub fn limited(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    let unit = RateLimitUnit::Year.into();
    let policy = RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() };
    RateLimitDescriptor { key: key.to_owned(), rate_limit: Some(policy), ..RateLimitDescriptor::default() }
}

/// The domain `shop` with a limit for each value of the key `user`.
pub fn shop(requests_per_unit: u32) -> Any {
    config("shop", vec![limited("user", requests_per_unit)])
}
