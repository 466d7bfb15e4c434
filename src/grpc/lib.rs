//! The gRPC listener: one single-threaded runtime per core, each with its own server.
//!
//! One acceptor gives each connection to the runtime with the least work (balance.rs). Envoy opens few connections and
//! keeps them, so the kernel's hash alone would leave cores idle. Not here: connections and their bounds (http2), the
//! services (service.rs), error codes (status.rs), and when to start and stop (app).

mod balance;
pub mod fuzz;
pub mod health;
mod listener;
mod load;
mod other;
mod service;
pub mod status;
mod unary;
mod wide;

use std::convert::Infallible;
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use weir_http2::{Connections, MaxAge, Memory};
use weir_lifecycle::{Done, Heart, Life, Phase, Pulse, Supervisor, pulse};
use weir_limiter::Limiter;
use weir_limiter::callers::{CallersInForce, Sender};
use weir_rls::proto::FILE_DESCRIPTOR_SET;
use weir_telemetry::complaint::Complaint;
use weir_telemetry::shed::{ShedCounts, ShedReason};
use weir_tls::server::ServerTls;

use self::balance::{Balance, LOOK_EVERY};
use self::health::Health;
use self::listener::AllIncoming;
pub use self::listener::{BACKLOG, Listener, NamedListener, SocketFile};
pub use self::load::Load;
use self::load::{Accepted, Origin, Socket};
use self::other::Streams;
use self::service::{Connected, Other, RateLimits, Services};
pub use self::service::{Messages, SERVICE_NAME, SHOULD_RATE_LIMIT};

/// The most open connections over all runtimes. Further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Connections that may wait for their runtime to accept them.
const HANDOVER_MAX: usize = 1_024;
/// While every runtime has that many, new connections wait in the system's queue. The first of them is closed after this
/// time.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a connection that waits is offered to the runtimes again.
const HANDOVER_PAUSE: Duration = Duration::from_millis(1);
/// How many connections a runtime takes over before it runs other tasks. It takes over this many for each 61 tasks that
/// it runs, and a connection that its peer closes at once needs two: so they do not pile up.
const TAKEN_OVER_AT_ONCE: u32 = 4;
/// The pause after accept failed because of the system, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two log lines about the same reason for not accepting connections.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Options {
    pub cores: NonZeroUsize,
    pub messages: Messages,
    /// What all connections may hold.
    pub bounds: weir_http2::Bounds,
    /// TLS. None for cleartext.
    pub tls: Option<Arc<ServerTls>>,
    /// The maximum age of connections. None for no maximum.
    pub max_age: Option<MaxAge>,
    /// The callers and their rights. None: everyone may do everything.
    pub callers: Option<Arc<CallersInForce>>,
    /// The runtime that decides requests with long messages.
    pub long: Handle,
}

pub struct Serving {
    /// One for each thread, and one for the acceptor.
    pub done: Vec<Done>,
    pub loads: Vec<Load>,
    pub memory: Memory,
    /// For each listener, by its name: connections that were closed when they came.
    pub shed: Vec<(Arc<str>, Arc<ShedCounts>)>,
    /// One for each runtime, and one for that of the acceptor: whether it still runs its tasks.
    pub pulses: Vec<Pulse>,
}

/// Starts the runtimes, and the acceptor on the runtime `accepting`. Calls `limiter` on each runtime, with its number.
///
/// The threads stop accepting at [`Phase::Draining`], and end when their connections have ended, or at
/// [`Phase::Ending`].
///
/// # Errors
/// When the system cannot start a thread or a runtime.
pub fn start<F>(
    supervisor: &Supervisor,
    life: &Life,
    accepting: &Handle,
    listeners: Vec<NamedListener>,
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
        memory: Memory::new(options.bounds),
        shed: Vec::new(),
        pulses: Vec::new(),
    };
    let streams = Streams::default();
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
        let (memory, streams, options) = (serving.memory.clone(), streams.clone(), options.clone());
        let done = supervisor.thread(&format!("grpc-{core}"), move || {
            let served = runtime.block_on(async {
                let limits = RateLimits { limiter: limiter(core), long: options.long, messages: options.messages };
                let reads_names = options.callers.is_some();
                let services = services(limits, load, &health, streams, options.callers)?;
                let options = weir_http2::Options {
                    runtimes: options.cores.get(),
                    connections_max: CONNECTIONS_MAX,
                    tls: options.tls,
                    max_age: options.max_age,
                    reads_names,
                };
                serve(services, Connections::new(options, &memory), accepted, life, heart).await
            });
            // Dropping it would wait for tasks that block on a name server or a disk.
            runtime.shutdown_background();
            served
        })?;
        serving.done.push(done);
    }
    let origins = listeners.into_iter().map(|NamedListener { name, transport, socket }| {
        (Arc::new(Origin { name: name.into(), transport, shed: Arc::default() }), socket)
    });
    let listeners: Vec<_> = origins.collect();
    serving.shed = listeners.iter().map(|(origin, _)| (origin.name.clone(), origin.shed.clone())).collect();
    let acceptor = Acceptor {
        runtimes,
        balance: Balance::new(serving.loads.clone()),
        waiting: None,
        complaint: Complaint::new(COMPLAIN_EVERY),
    };
    let (pulse, heart) = pulse();
    serving.pulses.push(pulse);
    serving.done.push(supervisor.task_on(accepting, "grpc acceptor", acceptor.run(listeners, life.clone(), heart)));
    Ok(serving)
}

fn services(
    limits: RateLimits,
    load: Load,
    health: &Health,
    streams: Streams,
    callers: Option<Arc<CallersInForce>>,
) -> Result<Arc<Services>, String> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let refused = |error: tonic_reflection::server::Error| format!("server reflection: {error}");
    Ok(Arc::new(Services {
        limits: Arc::new(limits),
        load,
        health: health.service(),
        reflection_v1: other(reflection().build_v1().map_err(refused)?),
        reflection_v1alpha: other(reflection().build_v1alpha().map_err(refused)?),
        streams,
        callers,
    }))
}

async fn serve(
    services: Arc<Services>,
    mut connections: Connections,
    mut accepted: mpsc::Receiver<Accepted>,
    life: Life,
    mut heart: Heart,
) -> Result<(), String> {
    let limiter = services.limits.limiter.clone();
    let mut taken_over = 0;
    loop {
        let accepted = tokio::select! {
            () = life.reached(Phase::Draining) => break,
            reason = limiter.died() => return Err(reason),
            never = connections.tend() => match never {},
            () = heart.beat() => continue,
            accepted = accepted.recv() => accepted,
        };
        // The acceptor ends only to drain.
        let Some(accepted) = accepted else { break };
        let listener = accepted.origin.name.clone();
        if let Err(error) = take_over(accepted, &services, &mut connections) {
            tracing::debug!(listener = &*listener, %error, "cannot take a connection over");
        }
        taken_over += 1;
        if taken_over == TAKEN_OVER_AT_ONCE {
            taken_over = 0;
            tokio::task::yield_now().await;
        }
    }
    let mut drained = pin!(connections.drain());
    loop {
        tokio::select! {
            () = &mut drained => {
                // The rest of the grace: a slow store has longer than for a decision.
                tokio::select! {
                    () = limiter.leave() => {}
                    () = life.reached(Phase::Ending) => {}
                }
                return Ok(());
            }
            reason = limiter.died() => return Err(reason),
            // The grace has ended: this runtime drops the rest.
            () = life.reached(Phase::Ending) => return Ok(()),
            () = heart.beat() => {}
        }
    }
}

fn take_over(accepted: Accepted, services: &Arc<Services>, connections: &mut Connections) -> io::Result<()> {
    let Accepted { socket, origin, counted } = accepted;
    let (services, from) = (services.clone(), (origin.name.clone(), origin.transport));
    let connected = move |peer: &_, names| Connected {
        sender: services.callers.clone().map(|callers| Arc::new(Sender::new(callers, origin.name.clone(), names))),
        services,
        peer: Arc::clone(peer),
        streams: Arc::default(),
        _counted: counted,
    };
    match socket {
        Socket::Tcp(stream) => {
            // A connection that its peer has closed has no address any more.
            let address = stream.peer_addr().ok().map(|address| address.ip());
            connections.serve(TcpStream::from_std(stream)?, address, from, connected);
        }
        Socket::Unix(stream) => connections.serve(UnixStream::from_std(stream)?, None, from, connected),
    }
    Ok(())
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
    runtimes: Vec<(Load, mpsc::Sender<Accepted>)>,
    balance: Balance,
    /// A connection for which no runtime had room.
    waiting: Option<Waiting>,
    complaint: Complaint,
}

struct Waiting {
    socket: Socket,
    origin: Arc<Origin>,
    since: Instant,
}

impl Acceptor {
    /// Runs until draining begins, and then closes the listeners.
    async fn run(
        mut self,
        listeners: Vec<(Arc<Origin>, Listener)>,
        life: Life,
        mut heart: Heart,
    ) -> Result<(), String> {
        let incoming = AllIncoming::new(listeners);
        let mut incoming = incoming.map_err(|error| format!("cannot accept connections: {error}"))?;
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
                () = heart.beat() => continue,
                () = tokio::time::sleep(HANDOVER_PAUSE), if self.waiting.is_some() => {
                    if let Some(Waiting { socket, origin, since }) = self.waiting.take() {
                        self.hand_over(socket, origin, since);
                    }
                    continue;
                }
                accepted = incoming.next(), if self.waiting.is_none() => accepted,
            };
            match accepted {
                (Ok(socket), origin) => self.hand_over(socket, origin, Instant::now()),
                (Err(error), _) if is_of_one_connection(&error) => {}
                (Err(error), origin) => {
                    self.complain(&origin, &format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Gives a connection, which has waited `since` then, to a runtime. If none has room, it waits.
    fn hand_over(&mut self, socket: Socket, origin: Arc<Origin>, since: Instant) {
        let open: usize = self.runtimes.iter().map(|(load, _)| load.connections()).sum();
        if open >= CONNECTIONS_MAX {
            origin.shed.add(ShedReason::Full);
            self.complain(&origin, &format!("closed a connection: {open} are open, at most {CONNECTIONS_MAX}"));
            return;
        }
        let has_room = self.runtimes.iter().any(|(_, runtime)| runtime.capacity() > 0);
        if !has_room && since.elapsed() < HANDOVER_TIMEOUT {
            self.waiting = Some(Waiting { socket, origin, since });
            return;
        }
        let (chosen, count) = (self.balance.choose(), self.runtimes.len());
        let mut socket = socket;
        for (load, runtime) in (0..count).map(|i| &self.runtimes[(chosen + i) % count]) {
            match runtime.try_send(Accepted::new(socket, origin.clone(), load)) {
                Ok(()) => return,
                Err(TrySendError::Full(refused) | TrySendError::Closed(refused)) => socket = refused.socket,
            }
        }
        // A runtime that accepts no connection is blocked, or has ended, which its supervisor reports.
        origin.shed.add(ShedReason::Handover);
        self.complain(&origin, "closed a connection: no runtime took it over");
    }

    fn complain(&mut self, origin: &Origin, what: &str) {
        if self.complaint.failed(1).is_some() {
            tracing::warn!(listener = &*origin.name, "{what}");
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
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let transport = weir_http2::Transport::Plain;
        let origin = Arc::new(Origin { name: "mesh".into(), transport, shed: Arc::default() });
        let mut incoming = AllIncoming::new(vec![(origin.clone(), Listener::Tcp(listener))]).unwrap();
        let (busy, mut of_busy) = mpsc::channel(1);
        let (idle, mut of_idle) = mpsc::channel(3);
        let loads = [Load::default(), Load::default()];
        let mut acceptor = Acceptor {
            runtimes: loads.iter().cloned().zip([busy, idle]).collect(),
            balance: Balance::new(loads),
            waiting: None,
            complaint: Complaint::new(COMPLAIN_EVERY),
        };
        let mut peers = Vec::new();
        for number in 0..5 {
            peers.push(TcpStream::connect(address).await.unwrap());
            let (socket, origin) = incoming.next().await;
            acceptor.hand_over(socket.unwrap(), origin, Instant::now());
            assert_eq!(acceptor.waiting.is_some(), number == 4, "both queues are full");
        }
        let Waiting { socket, origin: of_waiting, since } = acceptor.waiting.take().unwrap();
        assert!(of_busy.recv().await.is_some());
        acceptor.hand_over(socket, of_waiting, since);
        assert!(acceptor.waiting.is_none(), "a queue has room again");
        peers.push(TcpStream::connect(address).await.unwrap());
        let (socket, _) = incoming.next().await;
        acceptor.hand_over(socket.unwrap(), origin.clone(), Instant::now() - HANDOVER_TIMEOUT);
        assert!(acceptor.waiting.is_none(), "it has waited for too long");
        drop(acceptor.runtimes);
        let mut taken = 0;
        while of_busy.recv().await.is_some() || of_idle.recv().await.is_some() {
            taken += 1;
        }
        assert_eq!((taken, origin.shed.count(ShedReason::Handover)), (4, 1));
    }
}
