//! One open connection to Redis: sends a batch of commands, and reads one reply for each.
//!
//! Not here: how the stream is opened (endpoint.rs), the login (handshake.rs), the form of a reply (replies.rs), and
//! when a connection is reused (transport/pool.rs).
//!
//! The connection has no task of its own: the task that waits for the replies polls the socket. That saves two task
//! switches for each batch. Without a waiting task, nothing moves on the socket: an abandoned batch writes nothing
//! more, and dropping the connection closes it at once.
//!
//! Requests and replies are counted. A byte without a pending request ends the connection, so no later request can get
//! the answer to an earlier one.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use redis::{Cmd, ServerError, ServerErrorKind, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::command_buffer::CommandBuffer;
use super::host_port::HostPort;
use super::meter::Meter;
use super::replies::Replies;
use crate::redis::base::dial_error::DialError;

/// The most bytes in the answers to one batch. The largest valid answer (every call of a batch with the most charges)
/// is smaller. No Redis sends more to weir.
pub const REPLIES_BYTES_MAX: usize = 16 << 20;

/// The most bytes in the answers during the handshake, which has only a few short lines.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// How many bytes of a failed handshake are searched for a Redis error: enough for a few errors.
const LAST_WORDS_BYTES_MAX: usize = 1024;

/// The stream of a connection: TCP or a Unix socket, with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Why a connection can no longer be used, for people.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broken(Arc<str>);

impl Broken {
    pub(super) fn new(reason: impl Into<Arc<str>>) -> Broken {
        Broken(reason.into())
    }

    /// The reason as a sentence.
    pub(crate) fn into_reason(self) -> Arc<str> {
        self.0
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::new(weir_tls::in_words(&error))
    }
}

impl From<Broken> for DialError {
    fn from(broken: Broken) -> DialError {
        DialError::new(broken.0)
    }
}

/// One connection. One batch at a time uses it.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    meter: Meter,
    /// How many bytes of the current batch were written to the stream.
    sent: usize,
    /// Whether the stream may have unflushed bytes.
    unflushed: bool,
    replies: Replies,
    /// The most bytes in the answers to one batch.
    replies_bytes_max: usize,
    /// Whether the peer has closed the stream, or the stream failed.
    closed: bool,
    /// Whether a sent command has an unread answer. Then the connection is never reused.
    unanswered: bool,
    /// The error, if the server sent bytes that do not answer a request.
    fault: Option<Broken>,
    /// The master that sentinels have named, as long as they name no other one. None for a fixed address.
    master: Option<Weak<HostPort>>,
    /// When to replace the connection by a new one, to check the server's certificate again.
    renew_at: Option<Instant>,
}

impl Connection {
    /// A connection on a stream that `meter` measures. Sends nothing.
    pub(crate) fn new(stream: impl Stream + 'static, meter: Meter) -> Connection {
        Connection {
            stream: Box::new(stream),
            meter,
            sent: 0,
            unflushed: false,
            replies: Replies::of_process(),
            replies_bytes_max: HANDSHAKE_BYTES_MAX,
            closed: false,
            unanswered: false,
            fault: None,
            master: None,
            renew_at: None,
        }
    }

    /// Ends the handshake: answers may now have [`REPLIES_BYTES_MAX`].
    pub(super) const fn greeted(mut self) -> Connection {
        self.replies_bytes_max = REPLIES_BYTES_MAX;
        self
    }

    /// Sends one command and returns its answer.
    ///
    /// # Errors
    ///
    /// When there is no answer, or the answer is an error of the server; for people.
    pub(crate) async fn ask(&mut self, command: &Cmd) -> Result<Value, DialError> {
        match self.exchange(&CommandBuffer::of(command)).await?.pop() {
            Some(Value::ServerError(error)) => Err(DialError::from(&error)),
            Some(answer) => Ok(answer),
            None => Err(DialError::new("no answer")),
        }
    }

    /// Sends `request` (not empty) at once and returns one answer for each command. An answer may be an error of the
    /// server. Sends nothing twice.
    ///
    /// From the first poll until all answers have arrived, the connection is not reusable. If this future fails or is
    /// dropped, the connection is closed.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or the server sends bytes that are not RESP, an answer before its request, or more
    /// than [`REPLIES_BYTES_MAX`], [`REPLIES_VALUES_MAX`](super::replies::REPLIES_VALUES_MAX) or a bound of one reply.
    pub(crate) async fn exchange(&mut self, request: &CommandBuffer) -> Result<Vec<Value>, Broken> {
        self.unanswered = true;
        (self.sent, self.unflushed) = (0, true);
        let mut answers = Vec::with_capacity(request.commands());
        poll_fn(|context| self.poll_exchange(context, request, &mut answers)).await?;
        self.unanswered = false;
        Ok(answers)
    }

    /// Sends the rest of the request, and reads until each command has an answer.
    fn poll_exchange(
        &mut self,
        context: &mut Context<'_>,
        request: &CommandBuffer,
        answers: &mut Vec<Value>,
    ) -> Poll<Result<(), Broken>> {
        if self.sent == 0 {
            self.notice(context);
            if let Some(fault) = &self.fault {
                return Poll::Ready(Err(fault.clone()));
            }
            if self.closed {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
        let count = request.commands();
        if let Poll::Ready(Err(error)) = self.poll_send(context, request.as_bytes()) {
            self.closed = true;
            // The peer's own reason is better than the error that follows from it.
            return Poll::Ready(Err(match self.poll_fill(context) {
                Poll::Ready(Err(reason)) => reason.into(),
                Poll::Ready(Ok(_)) | Poll::Pending => error.into(),
            }));
        }
        loop {
            while answers.len() < count {
                match self.replies.next() {
                    Ok(Some(answer)) => answers.push(answer),
                    Ok(None) => break,
                    Err(error) => return Poll::Ready(Err(self.blame(error.to_string()))),
                }
            }
            if answers.len() == count {
                if self.unflushed {
                    return Poll::Ready(Err(self.blame("a reply before its request was sent".to_owned())));
                }
                if let Some(surplus) = self.replies.finish() {
                    self.blame(surplus);
                }
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_more(context))?;
        }
    }

    /// Reads more bytes of answers.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(match ready!(self.poll_fill(context)) {
            Ok(0) => {
                self.closed = true;
                Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
            }
            Ok(_) if self.replies.received().len() > self.replies_bytes_max => {
                Err(self.blame("the answers to one batch have too many bytes".to_owned()))
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.closed = true;
                Err(error.into())
            }
        })
    }

    /// Subscribes to channels. The answers are the first of the messages.
    ///
    /// # Errors
    ///
    /// When the server refuses, or the connection breaks.
    pub(super) async fn subscribe(&mut self, command: &Cmd) -> Result<(), DialError> {
        let request = CommandBuffer::of(command);
        (self.sent, self.unflushed, self.unanswered) = (0, true, true);
        poll_fn(|context| self.poll_send(context, request.as_bytes())).await.map_err(Broken::from)?;
        match self.message().await? {
            Value::ServerError(error) => Err(DialError::from(&error)),
            _ => Ok(()),
        }
    }

    /// Waits for the next message on a connection that has subscribed to channels. Such a connection is not reusable.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub(super) async fn message(&mut self) -> Result<Value, Broken> {
        self.unanswered = true;
        poll_fn(|context| {
            loop {
                if let Some(fault) = &self.fault {
                    return Poll::Ready(Err(fault.clone()));
                }
                match self.replies.next() {
                    Ok(Some(message)) => {
                        self.replies.forget_returned();
                        return Poll::Ready(Ok(message));
                    }
                    Ok(None) => ready!(self.poll_more(context))?,
                    Err(error) => return Poll::Ready(Err(self.blame(error.to_string()))),
                }
            }
        })
        .await
    }

    fn poll_send(&mut self, context: &mut Context<'_>, request: &[u8]) -> Poll<io::Result<()>> {
        while self.sent < request.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &request[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        pin!(self.stream.read_buf(self.replies.room())).poll(context)
    }

    /// Handles what the peer did while no request was pending: it closed the connection, or sent bytes.
    pub(crate) fn notice(&mut self, context: &mut Context<'_>) {
        if self.closed || self.fault.is_some() {
            return;
        }
        match self.poll_fill(context) {
            Poll::Pending => {}
            Poll::Ready(Ok(0) | Err(_)) => self.closed = true,
            Poll::Ready(Ok(_)) => drop(self.blame(self.replies.surplus())),
        }
    }

    #[cold]
    fn blame(&mut self, fault: String) -> Broken {
        self.fault.get_or_insert_with(|| Broken::new(fault)).clone()
    }

    /// The error, if the server sent bytes that do not answer a request, for people. Such a connection is not
    /// [reusable](Self::is_reusable), even if the batch before was answered.
    pub(crate) const fn fault(&self) -> Option<&Broken> {
        self.fault.as_ref()
    }

    /// The last Redis error in the bytes received for the failed batch: the server may write the reason before it
    /// closes the connection.
    pub(super) fn last_words(&self) -> Option<ServerError> {
        let bytes = self.replies.received();
        let mut last = None;
        for line in bytes[..bytes.len().min(LAST_WORDS_BYTES_MAX)].split_inclusive(|&byte| byte == b'\n') {
            // A user without the rights to the handshake's commands is acceptable.
            if let Ok(Value::ServerError(error)) = redis::parse_redis_value(line)
                && error.kind() != Some(ServerErrorKind::NoPerm)
            {
                last = Some(error);
            }
        }
        last
    }

    /// Bytes written to the socket so far. If a failed batch has not changed the number, nothing of the batch has left
    /// this process.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.meter.bytes_written()
    }

    /// The same counter, readable during an exchange.
    pub(crate) fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// Closes the connection after the current batch, for example because the server is a replica or still loading.
    pub(crate) fn close_after_use(&mut self) {
        self.unanswered = true;
    }

    /// Closes the connection after its batch when `master` is dropped.
    pub(super) fn set_master(&mut self, master: Weak<HostPort>) {
        self.master = Some(master);
    }

    /// Replaces the connection at this time.
    pub(super) const fn renew_at(&mut self, at: Option<Instant>) {
        self.renew_at = at;
    }

    /// Whether a new connection must replace this one after its batch, although it works.
    pub(crate) fn is_due(&self) -> bool {
        self.renew_at.is_some_and(|at| at <= Instant::now())
    }

    /// Whether another server has replaced this one. The connection must not be reused, although it may work.
    pub(crate) fn is_superseded(&self) -> bool {
        self.master.as_ref().is_some_and(|master| master.strong_count() == 0)
    }

    /// Whether another batch can use the connection.
    pub(crate) fn is_reusable(&self) -> bool {
        !self.closed && !self.unanswered && self.fault.is_none() && !self.is_superseded()
    }
}
