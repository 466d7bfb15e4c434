//! The sockets that weir listens on.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use weir_settings::Endpoint;

use super::AppError;

/// Bound listeners. Callers can connect, but wait until weir serves them.
#[derive(Debug)]
pub struct Listeners {
    pub(super) grpc: weir_grpc::Listener,
    pub(super) http: TcpListener,
    pub(super) admin: TcpListener,
    pub(super) metrics: Option<TcpListener>,
    pub(super) addresses: Addresses,
}

/// The addresses of the listeners. The system has chosen the port if the setting is port 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// gRPC: decisions, health, reflection.
    pub grpc: Endpoint,
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
        let (grpc, grpc_address) = bind_grpc(listen).await?;
        let (http, http_address) = bind("http", listen.http).await?;
        let (admin, admin_address) = bind("admin", listen.admin).await?;
        let (metrics, metrics_address) = match listen.metrics {
            Some(address) => bind("metrics", address).await.map(|(bound, address)| (Some(bound), Some(address)))?,
            None => (None, None),
        };
        let addresses =
            Addresses { grpc: grpc_address, http: http_address, admin: admin_address, metrics: metrics_address };
        Ok(Self { grpc, http, admin, metrics, addresses })
    }

    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }
}

async fn bind_grpc(listen: &weir_settings::Listen) -> Result<(weir_grpc::Listener, Endpoint), AppError> {
    match &listen.grpc {
        Endpoint::Tcp(address) => {
            let (listener, address) = bind("grpc", *address).await?;
            Ok((weir_grpc::Listener::Tcp(listener), Endpoint::Tcp(address)))
        }
        Endpoint::Unix(path) => {
            let bound = weir_grpc::Listener::bind_unix(path, listen.socket_mode).await;
            let listener = bound.map_err(|reason| refused("grpc", listen.grpc.clone(), reason))?;
            Ok((listener, listen.grpc.clone()))
        }
    }
}

async fn bind(listener: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), AppError> {
    let refused = |reason| refused(listener, Endpoint::Tcp(address), reason);
    let bound = TcpListener::bind(address).await.map_err(refused)?;
    let address = bound.local_addr().map_err(refused)?;
    Ok((bound, address))
}

fn refused(listener: &'static str, address: Endpoint, reason: io::Error) -> AppError {
    AppError::Bind { listener, address, reason }
}
