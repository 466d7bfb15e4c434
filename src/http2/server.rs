//! The connections of one runtime: their handshakes, their service, and their end.
//!
//! Not here: accepting them (grpc), and when one is closed because of its peer (peers.rs).

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor as HelloReader;
use tokio_rustls::server::TlsStream;
use weir_telemetry::complaint::Complaints;
use weir_tls::server::{CertificateNames, FailedHandshake, HandshakeFailure, ServerTls, names_of};
use weir_tls::validity::Expiry;

use super::connection::Connection;
use super::ended::CloseReason;
use super::handshakes::{Handshakes, PeerNetwork};
use super::lifetime::{Lifetime, Lifetimes, MaxAge};
use super::memory::{Core, Memory, Open, Peer};
use super::peers::{Peers, TICK};

/// The most bytes of headers in one request.
const HEADER_BYTES_MAX: u32 = 16 * 1_024;
/// The most cancelled requests of one connection that wait to be processed. After a pause of 150 ms there are a few
/// hundred, if 64 callers cancel after 20 ms. The bound on frames (frames.rs) limits floods of them.
const PENDING_RESETS_MAX: usize = 2_048;
/// How many bytes of one response h2 buffers before its peer allows more.
const SEND_BUFFER_BYTES: usize = 64 * 1_024;
/// The shortest time between two log lines of a runtime about one kind of failed handshake of a listener.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Options {
    /// The runtimes of the listener, each with its own [`Connections`].
    pub runtimes: usize,
    /// The most connections of the listener, over all runtimes.
    pub connections_max: usize,
    /// TLS. None for cleartext.
    pub tls: Option<Arc<ServerTls>>,
    /// The maximum age of connections. None for no maximum.
    pub max_age: Option<MaxAge>,
    /// Whether services need the names of clients' certificates.
    pub reads_names: bool,
}

/// How the bytes of a connection arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By TLS, if the listener has it.
    Secured,
    Plain,
}

/// The connections of one runtime.
pub struct Connections {
    http2: http2::Builder<TokioExecutor>,
    core: Arc<Core>,
    peers: Peers,
    lifetimes: Lifetimes,
    tls: Option<Secured>,
    reads_names: bool,
    ticks: Interval,
    /// Changes when connections are to make room, or may read again.
    budget: watch::Receiver<()>,
}

#[derive(Clone)]
struct Secured {
    tls: Arc<ServerTls>,
    handshakes: Arc<Handshakes>,
    /// By kind of failure and listener.
    complaints: Arc<Mutex<Complaints>>,
}

impl Connections {
    /// None yet, on the current runtime. `memory` is that of all runtimes.
    pub fn new(options: Options, memory: &Memory) -> Self {
        let Options { runtimes, connections_max, tls, max_age, reads_names } = options;
        let core = Core::new(memory);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            // No gRPC client reads it, and it would cost each response more than a decision in memory.
            .auto_date_header(false)
            .max_concurrent_streams(core.bounds().streams)
            .max_header_list_size(HEADER_BYTES_MAX)
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_send_buf_size(SEND_BUFFER_BYTES);
        let tls = tls.map(|tls| Secured {
            tls,
            handshakes: Handshakes::new(runtimes),
            complaints: Arc::new(Mutex::new(Complaints::new(COMPLAIN_EVERY))),
        });
        if let Some(Secured { handshakes, .. }) = &tls {
            tokio::spawn(handshakes.clone().begin());
        }
        let mut ticks = tokio::time::interval(TICK);
        // Time in which this runtime did not run does not count against peers.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            http2,
            peers: Peers::new(core.clone(), runtimes, connections_max),
            lifetimes: Lifetimes::new(max_age),
            tls,
            reads_names,
            ticks,
            budget: core.tables().changes(),
            core,
        }
    }

    /// Starts to serve a stream of a listener. A connection whose TLS and HTTP/2 handshakes together take too long is closed
    /// (peers.rs). The service is made after the TLS handshake, with the names of the client's certificate, and dropped
    /// when the connection has ended.
    pub fn serve<I, S, B>(
        &mut self,
        stream: I,
        address: Option<IpAddr>,
        (listener, transport): (Arc<str>, Transport),
        service: impl FnOnce(&Arc<Peer>, CertificateNames) -> S + Send + 'static,
    ) where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let tls = self.tls.clone().filter(|_| transport == Transport::Secured);
        let open = Open::new(&self.core, listener, address, tls.is_some());
        let peer = open.peer().clone();
        let (http2, lifetime, reads_names) = (self.http2.clone(), self.lifetimes.begin(), self.reads_names);
        let task = match tls {
            None => {
                let service = service(&peer, Some(Box::default()));
                tokio::spawn(Session { http2, service, lifetime, open }.serve(stream, None))
            }
            Some(secured) => tokio::spawn(async move {
                // Boxed, so that an open connection does not reserve the memory for it.
                let handshake = Box::pin(secured.shake_hands(stream, open.peer()));
                if let Some(stream) = handshake.await {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let expiry = shown.and_then(Expiry::of);
                    let names = shown.filter(|_| reads_names).map_or_else(|| Some(Box::default()), names_of);
                    let service = service(open.peer(), names);
                    Session { http2, service, lifetime, open }.serve(stream, expiry).await;
                }
            }),
        };
        self.peers.add(peer, task.abort_handle());
    }

    /// Closes connections whose time has ended, and makes room. Never returns.
    pub async fn tend(&mut self) -> Infallible {
        let Self { peers, ticks, budget, .. } = self;
        tend(peers, ticks, budget).await
    }

    /// Sends GOAWAY to all clients, and waits until their connections have ended. Closes connections without a
    /// completed handshake: they have no request to finish.
    pub async fn drain(&mut self) {
        let Self { peers, lifetimes, ticks, budget, .. } = self;
        peers.close_strangers();
        tokio::select! {
            () = lifetimes.drain() => {}
            never = tend(peers, ticks, budget) => match never {},
        }
    }
}

async fn tend(peers: &mut Peers, ticks: &mut Interval, budget: &mut watch::Receiver<()>) -> Infallible {
    loop {
        tokio::select! {
            _ = ticks.tick() => peers.look(),
            Ok(()) = budget.changed() => {
                peers.make_room();
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Secured {
    /// The decrypted stream. None if the handshake failed.
    async fn shake_hands<S>(&self, stream: S, peer: &Peer) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let network = PeerNetwork::of(peer.address());
        let shaken = match LazyConfigAcceptor::new(HelloReader::default(), stream).await {
            Ok(hello) => self.handshakes.run(network, async { hello.into_stream(self.tls.config()).await }).await,
            Err(error) => Ok(Err(error)),
        };
        let failure = match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => self.tls.describe(&error),
            Err(kind) => {
                peer.count_closed(CloseReason::Handshake);
                FailedHandshake { kind, reason: "the oldest of too many unfinished ones".to_owned(), names: None }
            }
        };
        self.report(&failure, peer);
        self.tls.handshake_failed(failure.kind);
        None
    }

    /// Logs a failed handshake. Probes of load balancers close their connections, so these lines are only for debugging.
    fn report(&self, FailedHandshake { kind: failure, reason: error, names }: &FailedHandshake, peer: &Peer) {
        let (kind, listener) = (<&str>::from(failure), peer.listener());
        let peer = peer.address().map(tracing::field::display);
        if *failure == HandshakeFailure::Closed {
            tracing::debug!(listener, kind, peer, error, "TLS handshake failed");
            return;
        }
        // Only a known authority has signed such names, so a client cannot invent them.
        let signed = names.as_deref().filter(|_| *failure == HandshakeFailure::Name);
        if let Some(count) = self.complaints.lock().failed((failure, listener, signed)) {
            tracing::info!(listener, kind, peer, names, count, error, "TLS handshake failed");
        }
    }
}

struct Session<S> {
    http2: http2::Builder<TokioExecutor>,
    service: S,
    lifetime: Lifetime,
    open: Open,
}

impl<S, B> Session<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    /// Serves a connection until it ends, or until its lifetime is over and its requests are answered. `expiry` is that of
    /// the certificate that its client showed.
    async fn serve<I>(self, stream: I, expiry: Option<Expiry>)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let peer = self.open.peer();
        let mut connection = Connection::new(stream, peer.clone());
        if let Err(error) = connection.open().await {
            tracing::debug!(listener = peer.listener(), %error, "connection failed before its first request");
            return;
        }
        let connection = self.http2.serve_connection(TokioIo::new(connection), self.service);
        let is_retired = || peer.retired_for().is_some();
        let mut served = pin!(self.lifetime.serve(connection, expiry, is_retired, peer.listener()));
        let ended = poll_fn(|context| {
            let turns = &peer.core().new_turns;
            peer.reading.begin();
            turns.end_earlier(&peer.new_turn);
            let polled = served.as_mut().poll(context);
            turns.end_unused(&peer.new_turn, !peer.reading.is_new());
            polled
        });
        if let Err(error) = ended.await {
            tracing::debug!(listener = peer.listener(), %error, "a connection broke");
        }
    }
}
