//! From the settings to one HTTP/2 connection: name, TCP, TLS.
//!
//! Not here: when to dial again (xds.rs), and the messages on the connection (conversation.rs).

use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use weir_tls::causes::in_full;
use weir_tls::files::FileError;
use weir_tls::in_words;

use super::Options;

/// The most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;
/// How much later each further address is tried, where those before it have neither answered nor failed.
const ADDRESS_EVERY: Duration = Duration::from_millis(250);
/// When TCP first tests an idle connection, and how often it does again. Costs no server a policy on HTTP/2 PINGs.
const TCP_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// The most bytes of headers that a server may send.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// A connection that is ready for a stream.
pub(super) struct Dialled {
    pub(super) channel: Channel,
    /// What broke the socket or TLS, once something has: in words that gRPC does not have.
    pub(super) trouble: Trouble,
}

/// The first error below HTTP/2.
pub(super) type Trouble = Arc<OnceLock<String>>;

/// Opens a connection within the time that the options give it.
///
/// # Errors
/// Why there is none, for people.
pub(super) async fn dial(options: &Options) -> Result<Dialled, String> {
    let timeout = options.connect_timeout;
    match tokio::time::timeout(timeout, open(options)).await {
        Ok(dialled) => dialled,
        Err(_) => Err(format!("no connection within {timeout:?}")),
    }
}

async fn open(options: &Options) -> Result<Dialled, String> {
    let stream = connect(&options.host, options.port).await?;
    let trouble = Trouble::default();
    let (scheme, stream): (_, Box<dyn Stream>) = match &options.tls {
        None => ("http", Box::new(stream)),
        Some(tls) => {
            let refused = |error: &FileError| tracing::warn!("{error}; its last good content stays in force");
            ("https", Box::new(tls.clone().handshake(&options.host, stream, refused).await?))
        }
    };
    let host = if options.host.contains(':') { format!("[{}]", options.host) } else { options.host.clone() };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{}", options.port))
        .and_then(|endpoint| endpoint.user_agent(concat!("weir/", env!("CARGO_PKG_VERSION"))))
        .map_err(|error| in_full(&error))?
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .http2_max_header_list_size(HEADER_BYTES_MAX);
    let once = Once(Some(Noted { stream, trouble: trouble.clone() }));
    let channel = endpoint.connect_with_connector(once).await;
    let channel = channel.map_err(|error| trouble.get().cloned().unwrap_or_else(|| in_full(&error)))?;
    Ok(Dialled { channel, trouble })
}

/// Connects to the first address that answers. Each gets a head start before the next.
async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| format!("{host} has no address: {error}"))?;
    let mut attempts: FuturesUnordered<_> = (0..)
        .zip(found.take(ADDRESSES_MAX))
        .map(|(place, address)| connect_later(ADDRESS_EVERY * place, address))
        .collect();
    let mut reasons = Vec::new();
    while let Some((address, attempt)) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => reasons.push(format!("{address}: {error}")),
        }
    }
    if reasons.is_empty() { Err(format!("{host} has no address")) } else { Err(reasons.join("; ")) }
}

async fn connect_later(after: Duration, address: SocketAddr) -> (SocketAddr, io::Result<TcpStream>) {
    tokio::time::sleep(after).await;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE.0).with_interval(TCP_KEEPALIVE.1);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(stream)
    };
    (address, connecting.await)
}

/// Bytes in both directions.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A stream that keeps its first error.
struct Noted {
    stream: Box<dyn Stream>,
    trouble: Trouble,
}

impl Noted {
    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            self.trouble.get_or_init(|| in_words(error));
        }
        polled
    }
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(polled)
    }
}

impl AsyncWrite for Noted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.note(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Hands the one stream to the channel. A channel that has lost it gets no other: the next attempt dials anew, with files
/// read again.
struct Once(Option<Noted>);

impl Service<Uri> for Once {
    type Response = TokioIo<Noted>;
    type Error = io::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let stream = self.0.take().map(TokioIo::new);
        ready(stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the connection is gone")))
    }
}
