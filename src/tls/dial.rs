//! Opens connections: name, TCP, TLS. Sends single HTTP/1 requests on them.
//!
//! Not here: other protocols on them (telemetry/otlp.rs, cli/ask.rs, xds/dial.rs), and connections to Redis, which count
//! their bytes (store/redis/dial).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Request, Response};
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

/// The largest buffer of an HTTP/1 connection, in bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1_024;

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
    type Response = TokioIo<Bounded>;
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
    async fn open(self, uri: &Uri) -> io::Result<Bounded> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let bytes_max = Arc::new(AtomicUsize::new(self.answer_bytes_max));
        Ok(Bounded { stream: connect(host, port, self.tls).await?, bytes_max, read: 0 })
    }

    /// Sends an HTTP/1 request, whose URL has no host, on a connection of its own. Follows no redirect. `answer_bytes_max`
    /// bounds the head of the answer, and what is read with it. The caller sets the time limit.
    ///
    /// # Errors
    /// [`NoResponse`].
    pub async fn send(self, uri: &Uri, mut request: Request<String>) -> Result<Answered, NoResponse> {
        let host = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        // The host is the first header.
        let mut headers: HeaderMap = host.map(|host| (HOST, host)).into_iter().collect();
        headers.extend(std::mem::take(request.headers_mut()));
        *request.headers_mut() = headers;
        let buffer = self.answer_bytes_max.min(BUFFER_BYTES_MAX);
        let stream = self.open(uri).await.map_err(NoResponse::Connect)?;
        let bytes_max = stream.bytes_max.clone();
        let shaken = http1::Builder::new().max_buf_size(buffer).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(NoResponse::Broken)?;
        let connection = AbortOnDrop(tokio::spawn(connection));
        let response = sender.send_request(request).await.map_err(NoResponse::Broken)?;
        // The reader of the body applies its own bound.
        bytes_max.store(usize::MAX, Relaxed);
        Ok(Answered { response, connection })
    }
}

/// Opens a connection, with TLS if it is given. The caller sets the time limit.
///
/// # Errors
/// When the name is unknown, nothing listens, or TLS fails.
pub async fn connect(host: &str, port: u16, tls: Option<Arc<Tls>>) -> io::Result<Stream> {
    let stream = tcp::connect(host, port).await?;
    let Some(tls) = tls else { return Ok(Either::Left(stream)) };
    let refused = |error: &FileError| tracing::warn!("{error}; its last good content stays in use");
    let stream = tls.handshake(host, stream, refused).await.map_err(io::Error::other)?;
    Ok(Either::Right(Box::new(stream)))
}

/// Why there is no response.
#[derive(Debug)]
pub enum NoResponse {
    Connect(io::Error),
    /// The connection broke, or the answer is not HTTP.
    Broken(hyper::Error),
}

pub struct Answered {
    pub response: Response<Incoming>,
    pub connection: AbortOnDrop,
}

/// The connection of a response, which ends when this is dropped.
pub struct AbortOnDrop(tokio::task::JoinHandle<Result<(), hyper::Error>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One connection, with or without TLS.
pub type Stream = Either<TcpStream, Box<ClientStream<TcpStream>>>;

/// A connection with a bound on the bytes that its server sends between two writes. Without the bound, a server that
/// sends 100 Continue endlessly would keep an HTTP client busy for the whole request timeout.
pub struct Bounded {
    stream: Stream,
    bytes_max: Arc<AtomicUsize>,
    /// Bytes since the last write.
    read: usize,
}

impl AsyncRead for Bounded {
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

impl AsyncWrite for Bounded {
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

impl Connection for Bounded {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
