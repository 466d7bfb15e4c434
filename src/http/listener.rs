//! A listener with a bound on its connections, none of which may be silent for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// The most connections of one listener at a time; more wait in the system's queue.
pub const CONNECTIONS_MAX: usize = 1_024;
/// How long a connection may be silent, between two requests or within one.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long a request may take from its first byte to the first of its answer: 10 s for its body, a minute for a store
/// that may take as long, and the rest for its head. A byte now and then would else hold a connection for ever.
const REQUEST_MAX: Duration = Duration::from_secs(90);

pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let Ok(place) = self.places.clone().acquire_owned().await else {
            unreachable!("nobody closes the semaphore");
        };
        // Waits and tries again where the system has no connection to give.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let silence = Box::pin(tokio::time::sleep(SILENCE_MAX));
        (Connection { stream, silence, answer_due: None, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    /// Until when something must be answered; none where nothing was asked since the last answer.
    answer_due: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let now = Instant::now();
            let answer_due = *self.answer_due.get_or_insert(now + REQUEST_MAX);
            if answer_due <= now {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.silence.as_mut().reset(answer_due.min(now + SILENCE_MAX));
            return Poll::Ready(read);
        }
        self.silence.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answer_due = None;
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
        self.answer_due = None;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn connection() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Bounded::new(listener).accept().await.0, caller)
    }

    #[tokio::test]
    async fn a_request_that_drips_in_is_cut_off_and_one_that_is_answered_is_not() {
        let (mut server, mut caller) = connection().await;
        assert_eq!(server.answer_due, None, "nothing was asked");
        caller.write_all(b"abc").await.unwrap();
        server.read_u8().await.unwrap();
        let due = server.answer_due.expect("something was asked");
        server.read_u8().await.unwrap();
        assert_eq!(server.answer_due, Some(due), "more of it gives no more time");
        assert!(server.silence.deadline() <= due);

        server.answer_due = Some(Instant::now());
        let cut_off = server.read_u8().await.expect_err("the time is over");
        assert_eq!(cut_off.kind(), io::ErrorKind::TimedOut);

        server.write_all(b"an answer").await.unwrap();
        caller.write_all(b"d").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'd');
        assert!(server.answer_due > Some(due), "the next request has its own time");
    }
}
