//! Connections that weir opens by a URL: name, TCP, TLS.
//!
//! Not here: what is spoken over them (telemetry/otlp.rs, telemetry/alerts/webhook.rs, cli/ask.rs), and connections to Redis
//! and to a control plane, which have no URL of HTTP (store/redis/dial, xds/dial.rs).

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

use super::Tls;
use super::files::FileError;
use super::tcp;
use super::validity::ClientStream;

/// How long opening a connection may take, TLS included, where a whole request may take longer.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// What weir calls itself.
pub const USER_AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// Why there was no connection, the last time there was none.
pub type Trouble = Arc<Mutex<Option<String>>>;

/// Opens connections: name, TCP, TLS.
#[derive(Clone, Debug)]
pub struct Dial {
    /// By what TLS is spoken; none for a connection without it.
    pub tls: Option<Arc<Tls>>,
    /// Where the last failure is written.
    pub trouble: Trouble,
    /// The bytes that a server may send after the last byte that was sent to it: for an answer, with all heads of 100 Continue.
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
    /// Opens one connection. Bounding its time is up to the caller.
    ///
    /// # Errors
    /// When the name is not known, nothing listens there, or TLS fails.
    pub async fn open(self, uri: &Uri) -> io::Result<Bounded<Stream>> {
        let bytes_max = Arc::new(AtomicUsize::new(self.answer_bytes_max));
        Ok(Bounded::new(self.connect(uri).await?, bytes_max))
    }

    async fn connect(self, uri: &Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = tcp::connect(host, port).await?;
        let Some(tls) = self.tls else { return Ok(Either::Left(stream)) };
        let refused = |error: &FileError| tracing::warn!("{error}; its last good content stays in force");
        let stream = tls.handshake(host, stream, refused).await.map_err(io::Error::other)?;
        Ok(Either::Right(Box::new(stream)))
    }
}

/// One connection, without TLS or with it.
pub type Stream = Either<TcpStream, Box<ClientStream<TcpStream>>>;

/// A connection whose server may send only so much at a time. Without that, a server that sends 100 Continue without end keeps a
/// client of HTTP busy for as long as a request may take.
pub struct Bounded<S> {
    stream: S,
    bytes_max: Arc<AtomicUsize>,
    /// Since the last write.
    read: usize,
}

impl<S> Bounded<S> {
    /// `bytes_max` may come after the last byte that was written; the caller may change it.
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
