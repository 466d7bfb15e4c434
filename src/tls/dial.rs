//! Opens connections by a URL: name, TCP, TLS.
//!
//! Not here: the protocols on them (telemetry/otlp.rs, telemetry/alerts/webhook.rs, cli/ask.rs), and connections to
//! Redis and to a control plane, which do not use HTTP URLs (store/redis/dial, xds/dial.rs).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::either::Either;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use super::files::FileError;
use super::validity::ClientStream;
use super::{Tls, tcp};

/// The timeout for opening a connection, including TLS.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
pub const USER_AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// The reason of the last failed connection.
pub type Trouble = Arc<Mutex<Option<String>>>;

/// Opens connections: name, TCP, TLS.
#[derive(Clone, Debug)]
pub struct Dial {
    /// TLS. None for cleartext.
    pub tls: Option<Arc<Tls>>,
    /// Receives the reason of a failure.
    pub trouble: Trouble,
    /// The most bytes that a server may send after each write: the answer, including each head of 100 Continue.
    pub answer_bytes_max: usize,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Bounded<Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move {
            let trouble = dial.trouble.clone();
            let opened = match timeout(CONNECT_MAX, dial.open(&uri)).await {
                Ok(opened) => opened,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("none within {CONNECT_MAX:?}"))),
            };
            opened.map(TokioIo::new).inspect_err(|error| *trouble.lock() = Some(error.to_string()))
        })
    }
}

impl Dial {
    /// Opens a connection. The caller sets the time limit.
    ///
    /// # Errors
    /// When the name is unknown, nothing listens, or TLS fails.
    pub async fn open(self, uri: &Uri) -> io::Result<Bounded<Stream>> {
        let bytes_max = Arc::new(AtomicUsize::new(self.answer_bytes_max));
        Ok(Bounded::new(self.connect(uri).await?, bytes_max))
    }

    async fn connect(self, uri: &Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = tcp::connect(host, port).await?;
        let Some(tls) = self.tls else { return Ok(Either::Left(stream)) };
        let refused = |error: &FileError| tracing::warn!("{error}; its last good content stays in use");
        let stream = tls.handshake(host, stream, refused).await.map_err(io::Error::other)?;
        Ok(Either::Right(Box::new(stream)))
    }
}

/// One connection, with or without TLS.
pub type Stream = Either<TcpStream, Box<ClientStream<TcpStream>>>;

/// A connection with a bound on the bytes that its server sends between two writes. Without the bound, a server that
/// sends 100 Continue endlessly would keep an HTTP client busy for the whole request timeout.
pub struct Bounded<S> {
    stream: S,
    bytes_max: Arc<AtomicUsize>,
    /// Bytes since the last write.
    read: usize,
}

impl<S> Bounded<S> {
    /// `bytes_max` is the most bytes after a write. The caller can change it later.
    pub const fn new(stream: S, bytes_max: Arc<AtomicUsize>) -> Self {
        Self { stream, bytes_max, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.read = self.read.saturating_add(buffer.filled().len() - before);
        let most = self.bytes_max.load(Relaxed);
        if self.read > most {
            let text = format!("the server has sent more than {most} bytes and no complete answer");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.read = 0;
        Poll::Ready(Ok(wrote))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connection for Bounded<Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
