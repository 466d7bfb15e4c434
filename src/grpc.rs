//! The gRPC listener: one single-threaded runtime per core, each with a server of its own.
//!
//! One acceptor hands every connection to the runtime with the least to do (balance.rs): Envoy opens few connections and
//! keeps them, so that the kernel's hash alone would leave cores idle. Not here: which service does what (service.rs), what
//! an error is called (status.rs), and when to start and to stop (app).

mod balance;
mod connection;
mod frames;
pub mod health;
mod held;
mod other;
mod peers;
mod service;
pub mod status;
mod unary;

use std::convert::Infallible;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;

use self::balance::{Balance, LOOK_EVERY};
pub use self::connection::Load;
use self::connection::{Accepted, Connection, Socket};
use self::health::Health;
pub use self::held::{Bounds as HeldBounds, Held};
use self::held::{Core, Peer};
use self::peers::{Peers, TICK};
use self::service::{Connected, Other, RateLimits, Services};
pub use self::service::{SERVICE_NAME, SHOULD_RATE_LIMIT};
use crate::lifecycle::{Done, Life, Phase, Supervisor};
use crate::limiter::Limiter;
use crate::rls::convert::{Bounds, Extras};
use crate::rls::proto::FILE_DESCRIPTOR_SET;

/// The most connections at a time, over all runtimes; more are closed as they come.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The most bytes of headers in one request.
const HEADER_BYTES_MAX: u32 = 16 * 1_024;
/// How long a connection may be silent before the kernel asks for a sign of life, so that peers that vanished go. HTTP/2
/// pings would find the same peers and read the clock for every frame.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// How long the kernel waits for that sign before it asks again.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// How often it asks; then the connection is closed.
const KEEPALIVE_TIMES: u32 = 3;
/// Cancelled requests of one connection that may wait to be looked at. A weir that was stopped for 150 ms finds some
/// hundreds, where 64 callers give up after 20 ms. Floods of them meet the bound on frames (frames.rs).
const PENDING_RESETS_MAX: usize = 2_048;
/// How much h2 takes of the parts of one response before its peer makes room for them.
const SEND_BUFFER_BYTES: usize = 64 * 1_024;
/// Connections that may wait for their runtime to take them over.
const HANDOVER_MAX: usize = 1_024;
/// How long to wait after the system had no connection to give, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often, at most, a reason for not taking connections is logged.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// How gRPC is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many runtimes.
    pub cores: NonZeroUsize,
    /// The largest request in bytes.
    pub request_bytes: usize,
    /// What a request may hold.
    pub bounds: Bounds,
    /// What responses have beyond the statuses.
    pub extras: Extras,
    /// What callers may make weir hold.
    pub held: HeldBounds,
}

/// What is running.
pub struct Serving {
    /// Ends of all threads and of the acceptor.
    pub done: Vec<Done>,
    /// How many connections each runtime has, and what it had to do.
    pub loads: Vec<Load>,
    /// What is held for callers.
    pub held: Held,
}

/// Starts the runtimes and the acceptor. `limiter` is called on each runtime, with its number.
///
/// The threads stop accepting at [`Phase::Draining`] and end when their connections have, or at [`Phase::Ending`].
///
/// # Errors
/// When the system gives no thread, or no runtime.
pub fn start<F>(
    supervisor: &Supervisor,
    life: &Life,
    listener: TcpListener,
    options: Options,
    health: &Health,
    limiter: F,
) -> io::Result<Serving>
where
    F: Fn(usize) -> Arc<Limiter> + Clone + Send + 'static,
{
    let mut serving = Serving { done: Vec::new(), loads: Vec::new(), held: Held::default() };
    let mut runtimes = Vec::new();
    for core in 0..options.cores.get() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, accepted) = mpsc::channel(HANDOVER_MAX);
        let load = Load::default();
        serving.loads.push(load.clone());
        runtimes.push((load.clone(), sender));
        let (life, health, limiter) = (life.clone(), health.clone(), limiter.clone());
        let held = Core::new(options.held, serving.held.0.clone());
        let options = options.clone();
        let done = supervisor.thread(&format!("grpc-{core}"), move || {
            let served = runtime.block_on(async {
                let limits = RateLimits {
                    limiter: limiter(core),
                    bounds: options.bounds,
                    extras: options.extras,
                    request_bytes: options.request_bytes,
                    receive_timeout: options.held.receive_timeout,
                };
                let peers = Peers::new(held.clone(), options.cores.get());
                let runtime = Runtime { load, held, peers };
                serve(limits, runtime, &health, accepted, life).await
            });
            // Not by dropping it, which would wait for whoever waits for a name server or a dead disk.
            runtime.shutdown_background();
            served
        })?;
        serving.done.push(done);
    }
    let incoming = TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(KEEPALIVE_AFTER))
        .with_keepalive_interval(Some(KEEPALIVE_EVERY))
        .with_keepalive_retries(Some(KEEPALIVE_TIMES));
    let balance = Balance::new(serving.loads.clone());
    let acceptor = Acceptor { incoming, runtimes, balance, complained: None };
    serving.done.push(supervisor.task("grpc acceptor", acceptor.run(life.clone())));
    Ok(serving)
}

/// What one runtime has of its own.
struct Runtime {
    load: Load,
    held: Arc<Core>,
    peers: Peers,
}

/// Serves the connections of one runtime.
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
    let Runtime { load, held, mut peers } = runtime;
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
        .max_concurrent_streams(held.bounds.streams)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    let server = Server { http2, services, held, open: GracefulShutdown::new() };
    let mut ticks = tokio::time::interval(TICK);
    // Time in which this runtime did not run is nobody's fault.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = life.reached(Phase::Draining) => break,
            reason = limiter.died() => return Err(reason),
            _ = ticks.tick() => {
                peers.look();
                continue;
            }
            accepted = accepted.recv() => accepted,
        };
        // The acceptor ends only to drain.
        let Some(accepted) = accepted else { break };
        if let Err(error) = server.take_over(accepted, &mut peers) {
            tracing::debug!(listener = "grpc", %error, "a connection was not taken over");
        }
    }
    // A connection without a handshake has no request that could be waited for.
    peers.close_strangers();
    let mut shutdown = std::pin::pin!(server.open.shutdown());
    loop {
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            reason = limiter.died() => return Err(reason),
            // The grace is over: what is still on its way is dropped with this runtime.
            () = life.reached(Phase::Ending) => return Ok(()),
            _ = ticks.tick() => peers.look(),
        }
    }
}

/// What the connections of one runtime are served with.
struct Server {
    http2: http2::Builder<TokioExecutor>,
    services: Arc<Services>,
    held: Arc<Core>,
    open: GracefulShutdown,
}

impl Server {
    /// Serves a connection on this runtime, as one of its peers.
    fn take_over(&self, accepted: Accepted, peers: &mut Peers) -> io::Result<()> {
        let peer = Peer::new(&self.held);
        let Accepted { socket, counted } = accepted;
        let task = match socket {
            Socket::Tcp(stream) => {
                let connection = Connection::new(TcpStream::from_std(stream)?, peer.clone(), counted);
                tokio::spawn(self.serve(connection, peer.clone()))
            }
        };
        peers.add(peer, task.abort_handle());
        Ok(())
    }

    /// Serves a connection until it ends, or until a drain has finished its requests.
    fn serve<S>(&self, connection: Connection<S>, peer: Arc<Peer>) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connected = Connected { services: self.services.clone(), peer };
        let served = self.open.watcher().watch(self.http2.serve_connection(TokioIo::new(connection), connected));
        async move {
            if let Err(error) = served.await {
                tracing::debug!(listener = "grpc", %error, "a connection broke");
            }
        }
    }
}

/// A generated service, as a function.
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

/// Takes connections and hands each to a runtime.
struct Acceptor {
    incoming: TcpIncoming,
    runtimes: Vec<(Load, mpsc::Sender<Accepted>)>,
    balance: Balance,
    /// When something was last logged.
    complained: Option<Instant>,
}

impl Acceptor {
    /// Until draining begins; then the listener is closed.
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
                None => return Err("there are no more connections".to_owned()),
                Some(Ok(stream)) => self.hand_over(stream),
                Some(Err(error)) if is_of_one_connection(&error) => {}
                Some(Err(error)) => {
                    self.complain(&format!("cannot accept: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn hand_over(&mut self, stream: TcpStream) {
        let open: usize = self.runtimes.iter().map(|(load, _)| load.connections()).sum();
        if open >= CONNECTIONS_MAX {
            self.complain(&format!("closed a connection: {open} are open, at most {CONNECTIONS_MAX}"));
            return;
        }
        let (load, runtime) = &self.runtimes[self.balance.choose()];
        match Accepted::new(stream, load) {
            // A runtime that takes nothing over is stuck, or gone, which its supervisor tells.
            Ok(accepted) => {
                if runtime.try_send(accepted).is_err() {
                    self.complain("closed a connection: its runtime took none over");
                }
            }
            Err(error) => self.complain(&format!("cannot set up a connection: {error}")),
        }
    }

    fn complain(&mut self, what: &str) {
        if self.complained.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            tracing::warn!(listener = "grpc", "{what}");
        }
    }
}

/// Whether accept failed for a reason that lies in the one connection that was to be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
