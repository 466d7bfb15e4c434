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

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, ServerError, ServerErrorKind, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
    /// Logs in on a stream that `meter` measures, and asks for a first answer: a server that accepts
    /// connections but is stopped, still loading, or wants a password is found here, before a call is sent
    /// to it.
    ///
    /// # Errors
    ///
    /// Why the server is not one to use, for people.
    pub(super) async fn greet<S>(
        stream: S,
        meter: Arc<Meter>,
        login: &RedisConnectionInfo,
    ) -> Result<Connection, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        meter.allow(REPLIES_BYTES_MAX);
        // Both timeouts are ours: the dial has a bound, and each call has a deadline.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (requests, driver) = opened.map_err(|error| meter.in_words(&error))?;
        let mut connection = Connection { requests, driver: Box::pin(driver), closed: false, unanswered: false, meter };
        let mut greeting = redis::pipe();
        greeting.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
        greeting.cmd("PING");
        let answers = connection.exchange(&greeting).await;
        let answers = answers.map_err(|error| connection.meter.in_words(&error))?;
        // A user may be denied both commands and still be the right one.
        match answers.into_iter().nth(1) {
            Some(Value::ServerError(error)) if error.kind() != Some(ServerErrorKind::NoPerm) => Err(refusal(&error)),
            _ => Ok(connection),
        }
    }

    /// Sends one command and returns its answer.
    ///
    /// # Errors
    ///
    /// When there is none, or when it is an error of the server; for people.
    pub(super) async fn ask(&mut self, command: Cmd) -> Result<Value, String> {
        let mut batch = redis::pipe();
        batch.add_command(command);
        let answers = self.exchange(&batch).await.map_err(|error| self.meter.in_words(&error))?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(refusal(&error)),
            Some(answer) => Ok(answer),
            None => Err("no answer".to_owned()),
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

fn refusal(error: &ServerError) -> String {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    text.trim_end().to_owned()
}

/// What one connection has written, and what it may still read for this batch. Atomics only because
/// the stream is owned by the driver; one task touches both.
#[derive(Debug, Default)]
pub(super) struct Meter {
    written: AtomicU64,
    readable: AtomicUsize,
    overrun: AtomicBool,
    /// What TLS said first when it failed: often before anybody waits for an answer who could be told.
    trouble: OnceLock<String>,
}

impl Meter {
    /// Keeps the first trouble.
    pub(super) fn note(&self, trouble: String) {
        // A later one follows from the first.
        let _ = self.trouble.set(trouble);
    }

    fn in_words(&self, error: &RedisError) -> String {
        match self.trouble.get() {
            Some(trouble) => trouble.clone(),
            None if error.kind() == ErrorKind::AuthenticationFailed => {
                "it does not accept the user or the password".to_owned()
            }
            None => error.to_string(),
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
