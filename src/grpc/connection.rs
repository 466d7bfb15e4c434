//! One connection, counted for as long as it is open, and the requests that come on it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What a runtime has to do.
#[derive(Clone, Debug, Default)]
pub struct Load(Arc<Counts>);

/// On cache lines of their own: each runtime writes its requests all the time.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicU64,
}

impl Load {
    /// The connections that are open now, or handed over and not yet taken.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.connections.load(Relaxed)
    }

    /// The requests that came so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.requests.load(Relaxed)
    }

    /// One more request. To be called on the runtime whose load this is and nowhere else: one writer needs no locked
    /// addition.
    pub(super) fn count_request(&self) {
        self.0.requests.store(self.requests() + 1, Relaxed);
    }
}

/// One connection in the count.
#[derive(Debug)]
pub(super) struct Counted(Load);

impl Counted {
    pub(super) fn new(load: &Load) -> Self {
        load.0.connections.fetch_add(1, Relaxed);
        Self(load.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Relaxed);
    }
}

/// A connection on its way from the acceptor to a runtime; it belongs to none yet.
#[derive(Debug)]
pub(super) struct Accepted {
    stream: std::net::TcpStream,
    counted: Counted,
}

impl Accepted {
    /// Takes a connection away from the acceptor's runtime.
    pub(super) fn new(stream: TcpStream, load: &Load) -> io::Result<Self> {
        Ok(Self { stream: stream.into_std()?, counted: Counted::new(load) })
    }

    /// Gives the connection to the runtime that this is called on.
    pub(super) fn connect(self) -> io::Result<Connection> {
        Ok(Connection { stream: TcpStream::from_std(self.stream)?, _counted: self.counted })
    }
}

/// A connection that its runtime serves.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    _counted: Counted,
}

impl Connection {
    /// Waits until the peer has sent something, or has closed.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
