//! The gRPC listener: one single-threaded runtime per core, each with its own server.
//!
//! One acceptor gives each connection to the runtime with the least work (balance.rs). Envoy opens few connections and
//! keeps them, so the kernel's hash alone would leave cores idle. Not here: the services (service.rs), error codes
//! (status.rs), and when to start and stop (app).

mod authority;
mod balance;
mod connection;
pub mod ended;
mod frames;
pub mod fuzz;
mod handshakes;
pub mod health;
mod lifetime;
mod listener;
mod memory;
mod other;
mod peers;
mod service;
pub mod status;
mod turns;
mod unary;
mod written;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor as HelloReader;
use tokio_rustls::server::TlsStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use weir_lifecycle::{Done, Heart, Life, Phase, Pulse, Supervisor, pulse};
use weir_limiter::Limiter;
use weir_rls::convert::{Bounds, Extras};
use weir_rls::proto::FILE_DESCRIPTOR_SET;
use weir_telemetry::complaint::Complaint;
use weir_telemetry::shed::{ShedCounts, ShedReason};
use weir_telemetry::traces::Tracer;
use weir_tls::server::{HandshakeFailure, ServerTls};

use self::balance::{Balance, LOOK_EVERY};
pub use self::connection::Load;
use self::connection::{Accepted, Connection, Counted, Socket};
use self::ended::CloseReason;
use self::handshakes::{Handshakes, PeerNetwork};
use self::health::Health;
pub use self::lifetime::MaxAge;
use self::lifetime::{Lifetime, Lifetimes};
use self::listener::Incoming;
pub use self::listener::{Listener, SocketFile};
pub use self::memory::{Bounds as MemoryBounds, Memory};
use self::memory::{Core, Peer};
use self::peers::{Peers, TICK};
use self::service::{Connected, Other, RateLimits, Services};
pub use self::service::{SERVICE_NAME, SHOULD_RATE_LIMIT};

/// The most open connections over all runtimes. Further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The most bytes of headers in one request.
const HEADER_BYTES_MAX: u32 = 16 * 1_024;
/// The most cancelled requests of one connection that wait to be processed. After a pause of 150 ms there are a few
/// hundred, if 64 callers cancel after 20 ms. The bound on frames (frames.rs) limits floods of them.
const PENDING_RESETS_MAX: usize = 2_048;
/// How many bytes of one response h2 buffers before its peer allows more.
const SEND_BUFFER_BYTES: usize = 64 * 1_024;
/// Connections that may wait for their runtime to accept them.
const HANDOVER_MAX: usize = 1_024;
/// The pause after accept failed because of the system, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two log lines about the same reason for not accepting connections.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Options {
    pub cores: NonZeroUsize,
    /// The largest request in bytes.
    pub request_bytes: usize,
    pub bounds: Bounds,
    pub extras: Extras,
    /// The key of the entry that returns a receipt.
    pub receipt_key: String,
    pub memory: MemoryBounds,
    /// TLS. None for cleartext.
    pub tls: Option<Arc<ServerTls>>,
    /// The maximum age of connections. None for no maximum.
    pub max_age: Option<MaxAge>,
    /// Starts the traces of decisions, if they are traced.
    pub tracer: Option<Arc<Tracer>>,
}

pub struct Serving {
    /// One for each thread, and one for the acceptor.
    pub done: Vec<Done>,
    pub loads: Vec<Load>,
    pub memory: Memory,
    /// Connections that were closed when they came.
    pub shed: Arc<ShedCounts>,
    /// One for each runtime: whether it still runs its tasks.
    pub pulses: Vec<Pulse>,
}

/// Starts the runtimes and the acceptor. Calls `limiter` on each runtime, with its number.
///
/// The threads stop accepting at [`Phase::Draining`], and end when their connections have ended, or at
/// [`Phase::Ending`].
///
/// # Errors
/// When the system cannot start a thread or a runtime.
pub fn start<F>(
    supervisor: &Supervisor,
    life: &Life,
    listener: Listener,
    options: &Options,
    health: &Health,
    limiter: F,
) -> io::Result<Serving>
where
    F: Fn(usize) -> Arc<Limiter> + Clone + Send + 'static,
{
    let mut serving = Serving {
        done: Vec::new(),
        loads: Vec::new(),
        memory: Memory::default(),
        shed: Arc::default(),
        pulses: Vec::new(),
    };
    let mut runtimes = Vec::new();
    for core in 0..options.cores.get() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, accepted) = mpsc::channel(HANDOVER_MAX);
        let load = Load::default();
        serving.loads.push(load.clone());
        let (pulse, heart) = pulse();
        serving.pulses.push(pulse);
        runtimes.push((load.clone(), sender));
        let (life, health, limiter) = (life.clone(), health.clone(), limiter.clone());
        let memory = Core::new(options.memory, serving.memory.0.clone());
        let options = options.clone();
        let done = supervisor.thread(&format!("grpc-{core}"), move || {
            let served = runtime.block_on(async {
                let limits = RateLimits {
                    limiter: limiter(core),
                    bounds: options.bounds,
                    extras: options.extras,
                    receipt_key: options.receipt_key,
                    request_bytes: options.request_bytes,
                    receive_timeout: options.memory.receive_timeout,
                    tracer: options.tracer,
                };
                let peers = Peers::new(memory.clone(), options.cores.get(), CONNECTIONS_MAX);
                let lifetimes = Lifetimes::new(options.max_age);
                let tls = options.tls.map(|tls| Secured { tls, handshakes: Handshakes::new(options.cores.get()) });
                let runtime = Runtime { load, memory, peers, lifetimes, tls, heart };
                serve(limits, runtime, &health, accepted, life).await
            });
            // Dropping it would wait for tasks that block on a name server or a disk.
            runtime.shutdown_background();
            served
        })?;
        serving.done.push(done);
    }
    let balance = Balance::new(serving.loads.clone());
    let shed = serving.shed.clone();
    let acceptor =
        Acceptor { incoming: listener.incoming(), runtimes, balance, shed, complaint: Complaint::new(COMPLAIN_EVERY) };
    serving.done.push(supervisor.task("grpc acceptor", acceptor.run(life.clone())));
    Ok(serving)
}

struct Runtime {
    load: Load,
    memory: Arc<Core>,
    peers: Peers,
    lifetimes: Lifetimes,
    tls: Option<Secured>,
    heart: Heart,
}

#[derive(Clone)]
struct Secured {
    tls: Arc<ServerTls>,
    handshakes: Arc<Handshakes>,
}

async fn serve(
    limits: RateLimits,
    runtime: Runtime,
    health: &Health,
    mut accepted: mpsc::Receiver<Accepted>,
    life: Life,
) -> Result<(), String> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let refused = |error: tonic_reflection::server::Error| format!("server reflection: {error}");
    let Runtime { load, memory, mut peers, lifetimes, tls, mut heart } = runtime;
    let limiter = limits.limiter.clone();
    let services = Arc::new(Services {
        limits: Arc::new(limits),
        load,
        health: health.service(),
        reflection_v1: other(reflection().build_v1().map_err(refused)?),
        reflection_v1alpha: other(reflection().build_v1alpha().map_err(refused)?),
    });
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        // No gRPC client reads it, and it would cost each response more than a decision in memory.
        .auto_date_header(false)
        .max_concurrent_streams(memory.bounds.streams)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    if let Some(Secured { handshakes, .. }) = &tls {
        tokio::spawn(handshakes.clone().begin());
    }
    let server = Server { http2, services, memory, lifetimes, tls };
    let mut ticks = tokio::time::interval(TICK);
    // Time in which this runtime did not run does not count against peers.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = life.reached(Phase::Draining) => break,
            reason = limiter.died() => return Err(reason),
            _ = ticks.tick() => {
                peers.look();
                continue;
            }
            () = heart.beat() => continue,
            accepted = accepted.recv() => accepted,
        };
        // The acceptor ends only to drain.
        let Some(accepted) = accepted else { break };
        if let Err(error) = server.take_over(accepted, &mut peers) {
            tracing::debug!(listener = "grpc", %error, "cannot take a connection over");
        }
    }
    // A connection without a handshake has no request to finish.
    peers.close_strangers();
    let mut shutdown = std::pin::pin!(server.lifetimes.drain());
    loop {
        tokio::select! {
            () = &mut shutdown => {
                limiter.leave().await;
                return Ok(());
            }
            reason = limiter.died() => return Err(reason),
            // The grace has ended: this runtime drops the rest.
            () = life.reached(Phase::Ending) => return Ok(()),
            _ = ticks.tick() => peers.look(),
            () = heart.beat() => {}
        }
    }
}

struct Server {
    http2: http2::Builder<TokioExecutor>,
    services: Arc<Services>,
    memory: Arc<Core>,
    lifetimes: Lifetimes,
    tls: Option<Secured>,
}

impl Server {
    fn take_over(&self, accepted: Accepted, peers: &mut Peers) -> io::Result<()> {
        let Accepted { socket, counted } = accepted;
        let address = match &socket {
            // A connection that its peer has closed has no address any more.
            Socket::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Socket::Unix(_) => None,
        };
        let peer = Peer::at(&self.memory, address);
        let task = match socket {
            Socket::Tcp(stream) => self.begin(TcpStream::from_std(stream)?, &peer, counted),
            Socket::Unix(stream) => self.begin(UnixStream::from_std(stream)?, &peer, counted),
        };
        peers.add(peer, task);
        Ok(())
    }

    /// Starts to serve a stream, with TLS if the listener has it. A connection whose TLS and HTTP/2 handshakes together
    /// take too long is closed (peers.rs).
    fn begin<S>(&self, stream: S, peer: &Arc<Peer>, counted: Counted) -> AbortHandle
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let session = Session {
            http2: self.http2.clone(),
            connected: Connected { services: self.services.clone(), peer: peer.clone() },
            lifetime: self.lifetimes.begin(),
        };
        let peer = peer.clone();
        let task = match self.tls.clone() {
            None => tokio::spawn(session.serve(Connection::new(stream, peer, counted))),
            Some(secured) => tokio::spawn(async move {
                // Boxed, so that an open connection does not reserve the memory for it.
                let handshake = Box::pin(secured.shake_hands(stream, PeerNetwork::of(peer.address()), &peer));
                if let Some(stream) = handshake.await {
                    session.serve(Connection::new(stream, peer, counted)).await;
                }
            }),
        };
        task.abort_handle()
    }
}

impl Secured {
    /// The decrypted stream. None if the handshake failed.
    async fn shake_hands<S>(&self, stream: S, network: PeerNetwork, peer: &Peer) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let shaken = match LazyConfigAcceptor::new(HelloReader::default(), stream).await {
            Ok(hello) => self.handshakes.run(network, async { hello.into_stream(self.tls.config()).await }).await,
            Err(error) => Ok(Err(error)),
        };
        let failure = match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(listener = "grpc", %error, "TLS handshake failed");
                HandshakeFailure::of(&error)
            }
            Err(too_many) => {
                peer.count_closed(CloseReason::Handshake);
                tracing::debug!(listener = "grpc", reason = <&str>::from(too_many), "TLS handshake aborted");
                too_many
            }
        };
        self.tls.handshake_failed(failure);
        None
    }
}

struct Session {
    http2: http2::Builder<TokioExecutor>,
    connected: Connected,
    lifetime: Lifetime,
}

impl Session {
    /// Serves a connection until it ends, or until its lifetime is over and its requests are answered.
    async fn serve<S>(self, mut connection: Connection<S>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        if let Err(error) = connection.open().await {
            tracing::debug!(listener = "grpc", %error, "connection failed before its first request");
            return;
        }
        let peer = self.connected.peer.clone();
        let connection = self.http2.serve_connection(TokioIo::new(connection), self.connected);
        let mut served = pin!(self.lifetime.serve(connection));
        let ended = poll_fn(|context| {
            peer.reading.begin();
            served.as_mut().poll(context)
        });
        if let Err(error) = ended.await {
            tracing::debug!(listener = "grpc", %error, "a connection broke");
        }
    }
}

/// Converts a generated service to a function.
fn other<S>(service: S) -> Other
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    Arc::new(move |request| Box::pin(service.clone().call(request)))
}

struct Acceptor {
    incoming: Incoming,
    runtimes: Vec<(Load, mpsc::Sender<Accepted>)>,
    balance: Balance,
    shed: Arc<ShedCounts>,
    complaint: Complaint,
}

impl Acceptor {
    /// Runs until draining begins, and then closes the listener.
    async fn run(mut self, life: Life) -> Result<(), String> {
        let mut draining = std::pin::pin!(life.reached(Phase::Draining));
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                () = &mut draining => return Ok(()),
                _ = looks.tick() => {
                    self.balance.look();
                    continue;
                }
                accepted = self.incoming.next() => accepted,
            };
            match accepted {
                Ok(socket) => self.hand_over(socket),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    self.complain(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn hand_over(&mut self, socket: Socket) {
        let open: usize = self.runtimes.iter().map(|(load, _)| load.connections()).sum();
        if open >= CONNECTIONS_MAX {
            self.shed.add(ShedReason::Full);
            self.complain(&format!("closed a connection: {open} are open, at most {CONNECTIONS_MAX}"));
            return;
        }
        let (chosen, count) = (self.balance.choose(), self.runtimes.len());
        let mut socket = socket;
        for (load, runtime) in (0..count).map(|i| &self.runtimes[(chosen + i) % count]) {
            match runtime.try_send(Accepted::new(socket, load)) {
                Ok(()) => return,
                Err(TrySendError::Full(refused) | TrySendError::Closed(refused)) => socket = refused.socket,
            }
        }
        // A runtime that accepts no connection is blocked, or has ended, which its supervisor reports.
        self.shed.add(ShedReason::Handover);
        self.complain("closed a connection: no runtime took it over");
    }

    fn complain(&mut self, what: &str) {
        if self.complaint.failed(1).is_some() {
            tracing::warn!(listener = "grpc", "{what}");
        }
    }
}

/// Whether accept failed because of this connection, and not because of the system.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_goes_to_another_core_where_the_queue_of_its_own_is_full() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (busy, mut of_busy) = mpsc::channel(1);
        let (idle, mut of_idle) = mpsc::channel(3);
        let loads = [Load::default(), Load::default()];
        let mut acceptor = Acceptor {
            incoming: Listener::Tcp(listener).incoming(),
            runtimes: loads.iter().cloned().zip([busy, idle]).collect(),
            balance: Balance::new(loads),
            shed: Arc::default(),
            complaint: Complaint::new(COMPLAIN_EVERY),
        };
        let mut peers = Vec::new();
        for _ in 0..5 {
            peers.push(TcpStream::connect(address).await.unwrap());
            let socket = acceptor.incoming.next().await.unwrap();
            acceptor.hand_over(socket);
        }
        drop(acceptor.runtimes);
        let mut taken = 0;
        while of_busy.recv().await.is_some() || of_idle.recv().await.is_some() {
            taken += 1;
        }
        assert_eq!((taken, acceptor.shed.count(ShedReason::Handover)), (4, 1));
    }
}
