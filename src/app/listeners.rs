//! The sockets that weir listens on, and threads beside those of gRPC.

use std::io;
use std::net::{SocketAddr, TcpListener};

use tokio::net::TcpSocket;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use weir_http2::Transport;
use weir_lifecycle::Supervisor;
use weir_settings::{Endpoint, NamedEndpoint};

use super::AppError;

/// A thread with a runtime. It ends when this is dropped.
pub(super) struct RuntimeThread {
    pub(super) runtime: Handle,
    _until_dropped: oneshot::Sender<()>,
}

impl RuntimeThread {
    /// The thread that accepts the connections of all listeners, serves those of HTTP, and answers probes. Nothing else
    /// runs there, so new connections and probes do not wait for reloads and long answers.
    pub(super) fn listeners(supervisor: &Supervisor) -> io::Result<Self> {
        Self::start(supervisor, "listeners")
    }

    /// The thread that decides requests with long messages. So the system gives the processor to the threads of other
    /// requests between two of its instructions.
    pub(super) fn long(supervisor: &Supervisor) -> io::Result<Self> {
        Self::start(supervisor, "long")
    }

    /// Fails when the system cannot start a thread or a runtime.
    fn start(supervisor: &Supervisor, name: &str) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (until_dropped, dropped) = oneshot::channel();
        let started = Self { runtime: runtime.handle().clone(), _until_dropped: until_dropped };
        supervisor.thread(name, move || {
            // Ends with an error, since nothing is sent.
            let _ = runtime.block_on(dropped);
            // Dropping it would wait for tasks that block on a disk.
            runtime.shutdown_background();
            Ok(())
        })?;
        Ok(started)
    }
}

/// Bound listeners. Callers can connect, but wait until weir serves them.
#[derive(Debug)]
pub struct Listeners {
    pub(super) grpc: Vec<weir_grpc::NamedListener>,
    pub(super) http: TcpListener,
    pub(super) admin: TcpListener,
    pub(super) metrics: Option<TcpListener>,
    pub(super) addresses: Addresses,
}

/// The addresses of the listeners. The system has chosen the port if the setting is port 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// gRPC: decisions, health, reflection.
    pub grpc: Vec<NamedEndpoint>,
    /// HTTP: `/json`, health, `/metrics`.
    pub http: SocketAddr,
    /// The operator's paths.
    pub admin: SocketAddr,
    /// Metrics only. None if the settings have no address for them.
    pub metrics: Option<SocketAddr>,
}

impl Listeners {
    /// Binds all listeners.
    ///
    /// # Errors
    /// The first address that cannot be bound.
    pub async fn bind(listen: &weir_settings::Listen) -> Result<Self, AppError> {
        let (mut grpc, mut grpc_addresses) = (Vec::new(), Vec::new());
        for listener in &listen.grpc {
            let (socket, endpoint) = bind_grpc(listener, listen.socket_mode).await?;
            let transport = if listener.is_plain { Transport::Plain } else { Transport::Secured };
            grpc.push(weir_grpc::NamedListener { name: listener.name.clone(), transport, socket });
            grpc_addresses.push(NamedEndpoint { endpoint, ..listener.clone() });
        }
        let (http, http_address) = bind("http", listen.http)?;
        let (admin, admin_address) = bind("admin", listen.admin)?;
        let (metrics, metrics_address) = match listen.metrics {
            Some(address) => bind("metrics", address).map(|(bound, address)| (Some(bound), Some(address)))?,
            None => (None, None),
        };
        let addresses =
            Addresses { grpc: grpc_addresses, http: http_address, admin: admin_address, metrics: metrics_address };
        Ok(Self { grpc, http, admin, metrics, addresses })
    }

    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }
}

async fn bind_grpc(
    NamedEndpoint { name, endpoint, .. }: &NamedEndpoint,
    socket_mode: u32,
) -> Result<(weir_grpc::Listener, Endpoint), AppError> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let (listener, address) = bind(name, *address)?;
            Ok((weir_grpc::Listener::Tcp(listener), Endpoint::Tcp(address)))
        }
        Endpoint::Unix(path) => {
            let bound = weir_grpc::Listener::bind_unix(path, socket_mode).await;
            let listener = bound.map_err(|reason| refused(name, endpoint.clone(), reason))?;
            Ok((listener, endpoint.clone()))
        }
    }
}

fn bind(listener: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), AppError> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A restart can bind the address at once, though the system remembers connections of the process before.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(weir_grpc::BACKLOG)?.into_std()?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound().map_err(|reason| refused(listener, Endpoint::Tcp(address), reason))
}

fn refused(listener: &str, address: Endpoint, reason: io::Error) -> AppError {
    AppError::Bind { listener: listener.to_owned(), address, reason }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    /// After 129 connections, each new one took a second longer: the system dropped its SYN.
    #[tokio::test]
    async fn a_burst_of_connections_waits_in_the_queue_of_the_system() {
        const BURST: usize = 500;
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let burst = BURST.min(most.trim().parse().unwrap());
        let mut layer = weir_settings::Layer::default();
        for listener in ["grpc", "http", "admin", "metrics"] {
            layer.set(&format!("listen.{listener}=127.0.0.1:0"));
        }
        layer.set("policies.directory=.");
        let settings = weir_settings::Settings::load(&[layer]).unwrap();
        let bound = Listeners::bind(&settings.listen).await.unwrap();
        let Addresses { grpc, http, admin, metrics } = bound.addresses();
        for address in [grpc[0].endpoint.tcp().unwrap(), *http, *admin, metrics.unwrap()] {
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(900));
            let waiting = (0..burst).map(|_| connect()).collect::<io::Result<Vec<_>>>();
            assert_eq!(waiting.unwrap().len(), burst);
        }
    }
}
