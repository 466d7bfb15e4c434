//! One open connection to Redis: a batch of commands, and one reply for each.
//!
//! Not here: how the stream is opened (endpoint.rs), the login (handshake.rs), what a reply is (replies.rs), and when a
//! connection is used again (transport/pool.rs).
//!
//! No task of its own reads or writes: the task that waits for the replies polls the socket. That saves two switches of
//! tasks for each batch. And nothing moves on the socket while no task waits: a batch that is given up writes nothing more,
//! and dropping the connection closes it at once.
//!
//! Requests and replies are counted. A byte that no request waits for ends the connection, so that no later request can get
//! the answer to another.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use redis::{Cmd, ServerError, ServerErrorKind, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::command_buffer::CommandBuffer;
use super::generation::Generation;
use super::meter::Meter;
use super::replies::Replies;
use super::unusable::Unusable;

/// The most bytes that the answers to one batch may take. The largest honest answer (every call of a batch with the most
/// charges) stays below it. No Redis sends more to weir.
pub const REPLIES_BYTES_MAX: usize = 16 << 20;

/// The most bytes that the answers to one batch may take until the handshake is over: it has a few short lines.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// The bytes of a failed handshake in which an error of Redis is looked for: enough for a few.
const LAST_WORDS_BYTES_MAX: usize = 1024;

/// What a connection reads from and writes to: TCP or a Unix socket, through TLS or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Why a connection is of no more use, for people.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broken(Arc<str>);

impl Broken {
    fn new(reason: impl Into<Arc<str>>) -> Broken {
        Broken(reason.into())
    }

    /// The sentence.
    pub(crate) fn into_reason(self) -> Arc<str> {
        self.0
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::new(weir_tls::in_words(&error))
    }
}

/// One connection, used by one batch at a time.
pub struct Connection {
    stream: Box<dyn Stream>,
    meter: Meter,
    /// How many bytes of the batch in flight the stream has taken.
    sent: usize,
    /// The stream may hold bytes back.
    unflushed: bool,
    replies: Replies,
    /// The most bytes that the answers to one batch may take.
    replies_bytes_max: usize,
    /// The peer has closed the stream, or it failed.
    closed: bool,
    /// Something was sent whose answer was not read. Never used again.
    unanswered: bool,
    /// What the server sent that is no answer to a request.
    fault: Option<Broken>,
    /// Counts it among those that are open.
    counted: Option<Counted>,
    /// That of the server it goes to, where another one can take its place.
    generation: Option<Generation>,
    /// When another connection takes its place, to find out which certificate the server has.
    renew_at: Option<Instant>,
}

/// One of the connections that a count holds, until it is dropped.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// A connection on a stream that `meter` measures. Nothing is sent yet.
    pub(crate) fn new(stream: impl Stream + 'static, meter: Meter) -> Connection {
        Connection {
            stream: Box::new(stream),
            meter,
            sent: 0,
            unflushed: false,
            replies: Replies::default(),
            replies_bytes_max: HANDSHAKE_BYTES_MAX,
            closed: false,
            unanswered: false,
            fault: None,
            counted: None,
            generation: None,
            renew_at: None,
        }
    }

    /// The handshake is over: answers may be as large as [`REPLIES_BYTES_MAX`].
    pub(super) const fn greeted(mut self) -> Connection {
        self.replies_bytes_max = REPLIES_BYTES_MAX;
        self
    }

    /// Counts it in `open` until it is dropped.
    pub(crate) fn count_in(&mut self, open: &Arc<AtomicUsize>) {
        open.fetch_add(1, Ordering::Relaxed);
        self.counted = Some(Counted(open.clone()));
    }

    /// Sends one command and returns its answer.
    ///
    /// # Errors
    ///
    /// When there is none, or when it is an error of the server; for people.
    pub(crate) async fn ask(&mut self, command: &Cmd) -> Result<Value, Unusable> {
        let answers =
            self.exchange(&CommandBuffer::of(command)).await.map_err(|broken| Unusable::from(broken.to_string()))?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(Unusable::from(&error)),
            Some(answer) => Ok(answer),
            None => Err("no answer".to_owned().into()),
        }
    }

    /// Sends `request` (not empty) at once and returns one answer for each command, an answer
    /// that is an error of the server included. Nothing is sent twice.
    ///
    /// The connection cannot be used again from the first poll until all answers are in: so it is closed
    /// where this future fails or is dropped.
    ///
    /// # Errors
    ///
    /// When the connection breaks, answers what is no RESP or before it is asked, or answers more than
    /// [`REPLIES_BYTES_MAX`], [`REPLIES_VALUES_MAX`](super::replies::REPLIES_VALUES_MAX) or a bound of one reply.
    pub(crate) async fn exchange(&mut self, request: &CommandBuffer) -> Result<Vec<Value>, Broken> {
        self.unanswered = true;
        (self.sent, self.unflushed) = (0, true);
        let mut answers = Vec::with_capacity(request.commands());
        poll_fn(|context| self.poll_exchange(context, request, &mut answers)).await?;
        self.unanswered = false;
        Ok(answers)
    }

    /// Sends what is left of the request, and reads until there is an answer for each command.
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
            // The reason that the peer gave comes before the error that follows from it.
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
                    return Poll::Ready(Err(self.blame("a reply to a request that was not sent yet".to_owned())));
                }
                if let Some(surplus) = self.replies.finish() {
                    self.blame(surplus);
                }
                return Poll::Ready(Ok(()));
            }
            match ready!(self.poll_fill(context)) {
                Ok(0) => {
                    self.closed = true;
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
                }
                Ok(_) if self.replies.received().len() > self.replies_bytes_max => {
                    return Poll::Ready(Err(self.blame("the answers to one batch take too many bytes".to_owned())));
                }
                Ok(_) => {}
                Err(error) => {
                    self.closed = true;
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
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

    /// Notes what the peer did while no request waits: closed the connection, or sent something.
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

    /// What the server sent that is no answer to a request, for people. Such a connection is not
    /// [reusable](Self::is_reusable), even where the batch before was answered.
    pub(crate) const fn fault(&self) -> Option<&Broken> {
        self.fault.as_ref()
    }

    /// The last error of Redis among the bytes that were received for the batch that failed: why the server closed the
    /// connection, where it wrote that before.
    pub(super) fn last_words(&self) -> Option<ServerError> {
        let bytes = self.replies.received();
        let mut last = None;
        for line in bytes[..bytes.len().min(LAST_WORDS_BYTES_MAX)].split_inclusive(|&byte| byte == b'\n') {
            // A user without the rights for a handshake's commands can still be the right user.
            if let Ok(Value::ServerError(error)) = redis::parse_redis_value(line)
                && error.kind() != Some(ServerErrorKind::NoPerm)
            {
                last = Some(error);
            }
        }
        last
    }

    /// Bytes written to the socket so far. If the number is the same after a batch that failed as it was
    /// before, nothing of that batch has left this process.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.meter.bytes_written()
    }

    /// The same count, to be read during an exchange.
    pub(crate) fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// Closes the connection instead of giving it back: the server is a replica, say, or still loading.
    pub fn close_after_use(&mut self) {
        self.unanswered = true;
    }

    /// The connection is to be left when `generation` is over.
    pub(crate) fn set_generation(&mut self, generation: Generation) {
        self.generation = Some(generation);
    }

    /// The connection is to be left at this time.
    pub(crate) const fn renew_at(&mut self, at: Option<Instant>) {
        self.renew_at = at;
    }

    /// Another connection is to take the place of this one after its batch, although it works.
    pub(crate) fn is_due(&self) -> bool {
        self.renew_at.is_some_and(|at| at <= Instant::now())
    }

    /// Another server has taken the place of this one: the connection is to be left, although it may work.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.generation.as_ref().is_some_and(Generation::is_over)
    }

    /// It can be used for another batch.
    pub(crate) fn is_reusable(&self) -> bool {
        !self.closed && !self.unanswered && self.fault.is_none() && !self.is_superseded()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("closed", &self.closed)
            .field("unanswered", &self.unanswered)
            .finish_non_exhaustive()
    }
}
