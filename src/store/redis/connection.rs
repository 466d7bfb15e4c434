//! One open connection to Redis: the greeting, a batch and its answers, and the meter that tells whether
//! anything of a batch has left this process.
//!
//! Not in here: how the stream below was opened (endpoint.rs), and when a connection is used again
//! (pool.rs).

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, ServerError, ServerErrorKind, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::refusal::{self, Refusal};
use super::tls;

/// The most bytes that the answers to one batch may take. The largest honest answer (every call of a
/// batch with the most charges) stays below it; a server that sends more is not one that we know.
pub const REPLIES_BYTES_MAX: usize = 16 << 20;

/// The name that a connection shows in `CLIENT LIST`.
const CLIENT_NAME: &str = "weir";

/// One connection, used by one batch at a time.
///
/// redis' multiplexed connection is two halves: one takes requests, the other, the driver, does the
/// reading and writing and is usually a task of its own. Here the driver is polled by whoever waits
/// for the answer. That saves two switches of task for each batch, and nothing moves on the socket
/// unless somebody waits: a batch that is given up writes nothing more, and dropping the connection
/// closes it on the spot.
pub struct Connection {
    requests: MultiplexedConnection,
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The driver has ended: the socket is closed or of no use.
    closed: bool,
    /// Something was sent whose answer was not read. Never used again.
    unanswered: bool,
    meter: Arc<Meter>,
}

impl Connection {
    /// Logs in on a stream whose bytes `meter` counts, and asks for a first answer: a server that accepts
    /// connections but is stopped, still loading, or wants a password is found here, before a call is sent
    /// to it.
    ///
    /// # Errors
    ///
    /// Why the server is not one to use.
    pub(super) async fn greet<S>(
        stream: S,
        meter: Arc<Meter>,
        login: &RedisConnectionInfo,
    ) -> Result<Connection, Problem>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = Attentive { stream, meter: meter.clone() };
        let greeted = Connection::log_in(stream, meter.clone(), login).await;
        let last_words = meter.stop_listening();
        greeted.map_err(|error| match last_words {
            // What Redis says first is why it closes: the rest is told in more words, or not at all.
            Some(refusal) if error.code().is_none() => Problem::told(&refusal.into()),
            _ => meter.problem(&error),
        })
    }

    async fn log_in<S>(
        stream: Attentive<S>,
        meter: Arc<Meter>,
        login: &RedisConnectionInfo,
    ) -> Result<Connection, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        meter.allow(REPLIES_BYTES_MAX);
        // Both timeouts are ours: the dial has a bound, and each call has a deadline.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let (requests, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        let mut connection = Connection { requests, driver: Box::pin(driver), closed: false, unanswered: false, meter };
        let mut greeting = redis::pipe();
        greeting.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
        greeting.cmd("PING");
        let answers = connection.exchange(&greeting).await?;
        // A user may be denied both commands and still be the right one.
        match answers.into_iter().nth(1) {
            Some(Value::ServerError(error)) if error.kind() != Some(ServerErrorKind::NoPerm) => Err(error.into()),
            _ => Ok(connection),
        }
    }

    /// Sends one command and returns its answer.
    ///
    /// # Errors
    ///
    /// When there is none, or when it is an error of the server.
    pub(super) async fn ask(&mut self, command: Cmd) -> Result<Value, Problem> {
        let mut batch = redis::pipe();
        batch.add_command(command);
        let answers = self.exchange(&batch).await.map_err(|error| self.meter.problem(&error))?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(Problem::told(&error.into())),
            Some(answer) => Ok(answer),
            None => Err(Problem::other("no answer")),
        }
    }

    /// Sends `batch` (not empty) as one pipeline and returns one answer for each command, an answer
    /// that is an error of the server included. Nothing is sent twice.
    ///
    /// The connection is unfit from the first poll until all answers are in: so it is not used again
    /// where this future fails or is dropped.
    ///
    /// # Errors
    ///
    /// When the connection breaks, answers what is no RESP, or answers more than
    /// [`REPLIES_BYTES_MAX`].
    pub async fn exchange(&mut self, batch: &redis::Pipeline) -> Result<Vec<Value>, RedisError> {
        self.unanswered = true;
        self.meter.allow(REPLIES_BYTES_MAX);
        let Connection { requests, driver, closed, .. } = self;
        let mut request = pin!(requests.send_packed_commands(batch, 0, batch.len()));
        let answers = poll_fn(|context| {
            // The request before the driver, so that the driver finds it; and again after, for the
            // answer that the driver may have read.
            if let Poll::Ready(answers) = request.as_mut().poll(context) {
                return Poll::Ready(answers);
            }
            if !*closed {
                *closed = driver.as_mut().poll(context).is_ready();
            }
            request.as_mut().poll(context)
        })
        .await;
        match answers {
            Ok(answers) if answers.len() == batch.len() => {
                self.unanswered = false;
                Ok(answers)
            }
            Ok(_) => Err((ErrorKind::Parse, "answers and calls differ in number").into()),
            Err(_) if self.meter.overrun() => {
                Err((ErrorKind::Parse, "the answers to one batch take too many bytes").into())
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes written to the socket so far. If it stands where it stood before a batch that failed,
    /// nothing of that batch has left this process.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.meter.written.load(Ordering::Relaxed)
    }

    /// Closes the connection instead of giving it back: it works, but not for us (a replica, or a
    /// server that is still loading).
    pub fn condemn(&mut self) {
        self.unanswered = true;
    }

    /// It can be used for another batch.
    pub(super) fn fit(&self) -> bool {
        !self.closed && !self.unanswered
    }

    /// Lets it notice that its peer has closed it.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        if !self.closed {
            self.closed = self.driver.as_mut().poll(context).is_ready();
        }
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

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct Problem {
    /// Its word in metrics.
    pub(super) kind: &'static str,
    /// A sentence for people, without secrets.
    pub(super) reason: String,
}

/// The word in metrics for what no server has answered.
pub(super) const NO_CONNECTION: &str = "no_connection";

impl Problem {
    /// One that has no word of its own.
    pub(super) fn other(reason: impl Into<String>) -> Problem {
        Problem { kind: NO_CONNECTION, reason: reason.into() }
    }

    /// The word and the sentence for an error. Redis' own errors hold no secrets.
    fn told(error: &RedisError) -> Problem {
        let Some(code) = error.code() else {
            return Problem::other(error.to_string());
        };
        let text = error.detail().unwrap_or_default();
        let said = || format!("{code} {text}").trim_end().to_owned();
        match Refusal::of_parts(code, text).kind {
            kind @ "wrongpass" => {
                Problem { kind, reason: format!("it does not accept the user or the password ({code})") }
            }
            kind if kind == refusal::OTHER.kind => Problem::other(said()),
            kind => Problem { kind, reason: said() },
        }
    }
}

/// What one connection has written, what it may still read for this batch, and what it heard first. Atomics
/// and a mutex only because the stream is owned by the driver; one task touches both.
#[derive(Debug, Default)]
pub(super) struct Meter {
    written: AtomicU64,
    readable: AtomicUsize,
    overrun: AtomicBool,
    greeted: AtomicBool,
    heard: Mutex<Vec<u8>>,
    /// What the stream said first when it failed: often before anybody waits for an answer who could be told.
    trouble: OnceLock<String>,
}

/// What is remembered of the answers to a greeting, in bytes: a few of Redis' errors.
const HEARD_BYTES_MAX: usize = 1024;

impl Meter {
    /// Remembers what is read, until the connection is greeted.
    fn listen(&self, bytes: &[u8]) {
        if !self.greeted.load(Ordering::Relaxed) {
            let mut heard = self.heard.lock();
            let room = HEARD_BYTES_MAX - heard.len();
            heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// Ends the greeting, and returns the last error that was read meanwhile.
    fn stop_listening(&self) -> Option<ServerError> {
        self.greeted.store(true, Ordering::Relaxed);
        let heard = std::mem::take(&mut *self.heard.lock());
        let mut last = None;
        for line in heard.split_inclusive(|&byte| byte == b'\n') {
            // A user may be denied what a greeting asks, and still be the right one.
            if let Ok(Value::ServerError(error)) = redis::parse_redis_value(line)
                && error.kind() != Some(ServerErrorKind::NoPerm)
            {
                last = Some(error);
            }
        }
        last
    }

    /// Keeps the first trouble: later ones follow from it.
    fn note(&self, error: &io::Error) {
        self.trouble.get_or_init(|| tls::in_words(error));
    }

    fn problem(&self, error: &RedisError) -> Problem {
        match self.trouble.get() {
            Some(trouble) if error.code().is_none() => Problem::other(trouble),
            _ => Problem::told(error),
        }
    }

    fn allow(&self, bytes: usize) {
        self.readable.store(bytes, Ordering::Relaxed);
    }

    fn overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    fn read(&self, bytes: usize) -> io::Result<()> {
        let readable = self.readable.load(Ordering::Relaxed);
        if bytes > readable {
            self.overrun.store(true, Ordering::Relaxed);
            // Of the kinds that redis takes for the end of the connection.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.readable.store(readable - bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// A stream whose bytes are counted as they pass, in both directions.
///
/// Under TLS this is the stream below it: what TLS keeps back has not left the process, and records that
/// carry no batch (a new key, an alert) can only make us believe that something was sent.
pub(super) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, meter: &Arc<Meter>) -> Metered<S> {
        meter.allow(REPLIES_BYTES_MAX);
        Metered { stream, meter: meter.clone() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = result {
            self.meter.read(buffer.filled().len() - before)?;
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = result {
            self.meter.written.fetch_add(written as u64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The stream that the protocol is spoken on, through TLS or not, which remembers why it failed.
///
/// A server often says why it closes, and then nobody reads it: one with too many clients says so before it was asked
/// anything, and one that does not like our certificate when the handshake is over for us.
struct Attentive<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S: AsyncRead + Unpin> Attentive<S> {
    /// Notes why writing failed, or what the server said before it closed.
    fn note_write(&mut self, context: &mut Context<'_>, error: &io::Error) {
        let mut last_words = [0; HEARD_BYTES_MAX];
        let mut buffer = ReadBuf::new(&mut last_words);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Ready(Err(said)) => self.meter.note(&said),
            Poll::Ready(Ok(())) => self.meter.listen(buffer.filled()),
            Poll::Pending => {}
        }
        self.meter.note(error);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Attentive<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &result {
            Poll::Ready(Ok(())) => self.meter.listen(&buffer.filled()[before..]),
            Poll::Ready(Err(error)) => self.meter.note(error),
            Poll::Pending => {}
        }
        result
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Attentive<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Err(error)) = &result {
            self.note_write(context, error);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Err(error)) = &result {
            self.note_write(context, error);
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
