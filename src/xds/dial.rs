//! Opens an HTTP/2 connection to the server of the settings.
//!
//! Not here: when to dial again (xds.rs), and the messages on the connection (conversation.rs).

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use weir_tls::causes::in_full;
use weir_tls::dial::{Stream, connect};
use weir_tls::in_words;

use super::Options;

/// The most bytes of headers that a server may send.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// A connection that is ready for a stream.
pub(super) struct Dialled {
    pub(super) channel: Channel,
    /// The error that broke the socket or TLS, which gRPC does not report.
    pub(super) trouble: Trouble,
}

/// The first error below HTTP/2.
pub(super) type Trouble = Arc<OnceLock<String>>;

/// Opens a connection within the time of the options.
/// Fails when there is no connection; the error has the reason.
pub(super) async fn dial(options: &Options) -> Result<Dialled, String> {
    let timeout = options.connect_timeout;
    match tokio::time::timeout(timeout, open(options)).await {
        Ok(dialled) => dialled,
        Err(_) => Err(format!("no connection within {timeout:?}")),
    }
}

async fn open(options: &Options) -> Result<Dialled, String> {
    let (host, port) = (options.host.as_str(), options.port);
    let stream = connect(host, port, options.tls.clone()).await.map_err(|error| format!("{host}:{port}: {error}"))?;
    let trouble = Trouble::default();
    let scheme = if options.tls.is_some() { "https" } else { "http" };
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

/// A stream that stores its first error.
struct Noted {
    stream: Stream,
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

/// Gives the channel its only stream. After that one breaks, the next attempt dials again and reads files again.
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
