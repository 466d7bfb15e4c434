//! A gRPC client that connects by TLS or through a Unix socket, and counts its connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion, crypto};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint, Error};

use super::authority::{Authority, Issued};

/// How long a call may take before the client gives up.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A client that trusts one authority, has a certificate or none, and offers HTTP/2.
pub fn config(trusted: &Authority, identity: Option<&Issued>) -> ClientConfig {
    config_of_pem(trusted.pem().as_bytes(), identity)
}

/// The same by these versions of TLS.
pub fn config_of(
    versions: &[&'static SupportedProtocolVersion],
    trusted: &Authority,
    identity: Option<&Issued>,
) -> ClientConfig {
    with_versions(versions, trusted.pem().as_bytes(), identity)
}

/// The same for an authority of which there is only the certificate.
pub fn config_of_pem(trusted: &[u8], identity: Option<&Issued>) -> ClientConfig {
    with_versions(DEFAULT_VERSIONS, trusted, identity)
}

fn with_versions(
    versions: &[&'static SupportedProtocolVersion],
    trusted: &[u8],
    identity: Option<&Issued>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(trusted).expect("a certificate");
    roots.add(ca).expect("an authority");
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("known versions")
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_file(&identity.certificate).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
            config.with_client_auth_cert(chain, key).expect("an identity")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Shakes hands with a listener, by the name `localhost`.
pub async fn handshake(address: SocketAddr, config: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Where a client connects.
#[derive(Clone)]
pub enum Address {
    /// TCP, with TLS.
    Tls(SocketAddr, Arc<ClientConfig>),
    /// TCP, without.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Connects to a place, again and again where connections end.
#[derive(Clone)]
pub struct Connector {
    place: Address,
    /// How often it has connected.
    pub connected: Arc<AtomicUsize>,
}

impl Connector {
    /// To this place.
    pub fn new(place: Address) -> Connector {
        Connector { place, connected: Arc::default() }
    }

    /// A channel that has connected.
    pub async fn channel(&self) -> Result<Channel, Error> {
        let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CALL_TIMEOUT).timeout(CALL_TIMEOUT);
        endpoint.connect_with_connector(self.clone()).await
    }

    /// How often it has connected.
    pub fn count(&self) -> usize {
        self.connected.load(Ordering::SeqCst)
    }
}

/// Any stream.
pub trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for S {}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Connector { place, connected } = self.clone();
        Box::pin(async move {
            let stream: Box<dyn Stream> = match place {
                Address::Tls(address, config) => Box::new(handshake(address, (*config).clone()).await?),
                Address::Tcp(address) => Box::new(TcpStream::connect(address).await?),
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            };
            connected.fetch_add(1, Ordering::SeqCst);
            Ok(TokioIo::new(stream))
        })
    }
}
