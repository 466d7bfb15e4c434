//! Connections to one Redis, and the bb8 pool that keeps them: where Redis is, how it is dialled, and
//! when a connection may be used again.
//!
//! Not in here: what is sent, in what batches and by which deadline (pipeline.rs), and what a limit is
//! (the store above).
//!
//! bb8's own manager for redis sends a PING before every checkout and cannot tell that a connection is
//! broken. The manager here does the opposite: a checkout costs no round trip, and a connection is
//! used again only if every request on it was answered and its peer has not closed it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bb8_redis::bb8;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError, ServerError, ServerErrorKind, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use super::breaker::Circuit;
use super::refusal::{self, Refusal};

/// The most bytes that the answers to one batch may take. The largest honest answer (every call of a
/// batch with the most charges) stays below it; a server that sends more is not one that we know.
pub const REPLIES_BYTES_MAX: usize = 16 << 20;

/// How long a TCP connection may be silent before the kernel asks the peer whether it is still there.
/// Finds peers that vanished without a word while a connection waits in the pool.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);

/// The time between two such questions, of which the system's default number (nine on Linux) may stay
/// unanswered.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// The name that a connection shows in `CLIENT LIST`.
const CLIENT_NAME: &str = "weir";

/// What the transport tells whoever counts. Every method is called on the runtime that serves
/// requests: it must return at once.
pub trait Observer: Send + Sync + 'static {
    /// Redis answered a batch of `calls` (at least one), `took` after it left the queue. Calls that are
    /// sent a second time, because Redis did not know their script, are a batch of their own.
    fn batch_answered(&self, calls: usize, took: Duration) {
        let _ = (calls, took);
    }

    /// No connection could be made.
    fn dial_failed(&self, error: &DialError) {
        let _ = error;
    }

    /// A connection was given up, with the reason as a sentence for people.
    fn connection_dropped(&self, reason: &str) {
        let _ = reason;
    }

    /// The server at `address` answered a call with an error, whose row of the table is `refusal`.
    fn refused(&self, address: &str, refusal: &Refusal, error: &ServerError) {
        let _ = (address, refusal, error);
    }

    /// One runtime's circuit breaker before the server at `address` has changed.
    fn circuit_changed(&self, address: &str, from: Circuit, to: Circuit) {
        let _ = (address, from, to);
    }
}

/// Observes nothing.
impl Observer for () {}

/// Where Redis is and who we are there. Shows itself without user and password.
#[derive(Clone)]
pub struct Endpoint {
    address: ConnectionAddr,
    login: RedisConnectionInfo,
}

impl Endpoint {
    /// Reads `redis://[user:password@]host[:port][/db]`, `redis+unix:///path` or `unix:///path` (with
    /// `?db=`, `?user=` and `?pass=`). User and password are percent-encoded there.
    ///
    /// # Errors
    ///
    /// When the URL is none of these. The error never shows the URL, since it may hold a password.
    pub fn parse(url: &str) -> Result<Endpoint, EndpointError> {
        if url.starts_with("rediss:") || url.starts_with("valkeys:") {
            return Err(EndpointError("tls is not supported".into()));
        }
        // Only the fixed part of redis' error is shown: what follows it may quote the URL.
        let info = url.into_connection_info().map_err(|error| {
            let text = error.to_string().to_ascii_lowercase();
            EndpointError(text.split(" - ").next().unwrap_or_default().into())
        })?;
        let login = info.redis_settings().clone();
        Ok(Endpoint {
            address: info.addr().clone(),
            login: login.set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name(),
        })
    }

    /// Another place, over TCP, with the same login.
    #[must_use]
    pub fn at(&self, host: &str, port: u16) -> Endpoint {
        Endpoint { address: ConnectionAddr::Tcp(host.to_owned(), port), login: self.login.clone() }
    }

    /// The host and port of a place that is reached over TCP.
    #[must_use]
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match &self.address {
            ConnectionAddr::Tcp(host, port) => Some((host, *port)),
            _ => None,
        }
    }

    /// The same place under another name: each part that is given replaces what the URL said.
    #[must_use]
    pub fn with_login(mut self, username: Option<&str>, password: Option<&str>) -> Endpoint {
        if let Some(username) = username {
            self.login = self.login.set_username(username);
        }
        if let Some(password) = password {
            self.login = self.login.set_password(password);
        }
        self
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.address)
    }
}

/// A redis URL that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot use this redis url: {0} (known: redis://[user:password@]host[:port][/db], redis+unix:///path)")]
pub struct EndpointError(Box<str>);

/// Why there is no connection. Cheap to clone: every call that waited gets one.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no connection to redis at {address}: {reason}")]
pub struct DialError {
    address: Arc<str>,
    kind: &'static str,
    reason: Arc<str>,
}

impl DialError {
    /// Its word in metrics: that of the error by which Redis refused us, or `no_connection`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }
}

/// The word in metrics for what no server has answered.
const NO_CONNECTION: &str = "no_connection";

/// At most `connections` connections to one Redis, made when they are needed and kept until they
/// break.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: bb8::Pool<Manager>,
    failures: Arc<Failures>,
}

/// A connection on loan. It goes back to the pool when dropped, or is closed where it is not fit for
/// another batch.
pub type Pooled<'a> = bb8::PooledConnection<'a, Manager>;

impl Pool {
    /// An empty pool. A dial, from the address to the answered handshake, takes at most
    /// `connect_timeout`.
    ///
    /// # Panics
    ///
    /// When `connections` or `connect_timeout` is zero.
    #[must_use]
    pub fn new(endpoint: Endpoint, connections: u32, connect_timeout: Duration, observer: Arc<dyn Observer>) -> Pool {
        let address: Arc<str> = endpoint.to_string().into();
        let failures = Arc::new(Failures {
            last: Mutex::new(DialError {
                address: address.clone(),
                kind: NO_CONNECTION,
                reason: "none was free".into(),
            }),
            happened: Notify::new(),
            observer,
        });
        let manager = Manager { endpoint, address, connect_timeout };
        let inner = bb8::Pool::builder()
            .max_size(connections)
            .min_idle(None)
            // The one used last is the one that is most surely alive.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            // Our test is a look at the socket and no round trip.
            .test_on_check_out(true)
            // Whoever needs the connection hears of a failed dial at once and paces the next one.
            .retry_connection(false)
            .error_sink(Box::new(Sink(failures.clone())))
            // A dead connection is found by its socket; age alone is no reason to close one.
            .max_lifetime(None)
            .idle_timeout(None)
            // Only for what should not happen: the dial's own bound comes first.
            .connection_timeout(connect_timeout.saturating_mul(2))
            .build_unchecked(manager);
        Pool { inner, failures }
    }

    /// A connection that waits in the pool, or a new one. Dials at most once. Whoever drops the future
    /// loses nothing: a dial that succeeds later goes to the pool.
    ///
    /// # Errors
    ///
    /// When a dial failed meanwhile, with its reason.
    pub async fn checkout(&self) -> Result<Pooled<'_>, DialError> {
        let mut failed = pin!(self.failures.happened.notified());
        // Listen before the dial begins: on a runtime of several threads it may fail before this task
        // looks again.
        failed.as_mut().enable();
        tokio::select! {
            biased;
            got = self.inner.get() => got.map_err(|_| self.failures.last.lock().clone()),
            () = failed => Err(self.failures.last.lock().clone()),
        }
    }
}

/// What dials failed with; shared by the pool, which waits for it, and bb8's sink, which learns it.
struct Failures {
    last: Mutex<DialError>,
    happened: Notify,
    observer: Arc<dyn Observer>,
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failures({})", self.last.lock())
    }
}

/// bb8 hands here what goes wrong in its background tasks.
#[derive(Debug)]
struct Sink(Arc<Failures>);

impl bb8::ErrorSink<Fault> for Sink {
    fn sink(&self, fault: Fault) {
        match fault {
            Fault::Dial(error) => {
                self.0.observer.dial_failed(&error);
                *self.0.last.lock() = error;
                self.0.happened.notify_waiters();
            }
            Fault::Closed => self.0.observer.connection_dropped("redis closed it while it was idle"),
        }
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Fault>> {
        Box::new(Sink(self.0.clone()))
    }
}

/// What the manager reports to bb8.
#[derive(Debug)]
pub enum Fault {
    /// There is no connection.
    Dial(DialError),
    /// An idle connection turned out to be closed; bb8 takes the next one, or dials.
    Closed,
}

/// Makes connections for bb8 and tells which ones may stay.
#[derive(Debug)]
pub struct Manager {
    endpoint: Endpoint,
    address: Arc<str>,
    connect_timeout: Duration,
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    type Error = Fault;

    async fn connect(&self) -> Result<Connection, Fault> {
        let (kind, reason) = match tokio::time::timeout(self.connect_timeout, self.dial()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => told(&error),
            Err(_) => (NO_CONNECTION, format!("no answer within {:?}", self.connect_timeout)),
        };
        Err(Fault::Dial(DialError { address: self.address.clone(), kind, reason: reason.into() }))
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), Fault> {
        poll_fn(|context| {
            connection.drive(context);
            Poll::Ready(())
        })
        .await;
        if connection.fit() { Ok(()) } else { Err(Fault::Closed) }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        !connection.fit()
    }
}

impl Manager {
    async fn dial(&self) -> Result<Connection, RedisError> {
        match &self.endpoint.address {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                self.greet(stream).await
            }
            ConnectionAddr::Unix(path) => self.greet(UnixStream::connect(path).await?).await,
            _ => Err((ErrorKind::InvalidClientConfig, "tls is not supported").into()),
        }
    }

    /// Logs in, and asks for a first answer: a server that accepts connections but is stopped, still
    /// loading, or wants a password is found here, before a call is sent to it.
    async fn greet<S>(&self, stream: S) -> Result<Connection, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let meter = Arc::new(Meter::default());
        let greeted = self.log_in(Metered { stream, meter: meter.clone() }, meter.clone()).await;
        let last_words = meter.stop_listening();
        match greeted {
            // What Redis says first is why it closes: the rest is told in more words, or not at all.
            Err(error) if error.code().is_none() => Err(last_words.map_or(error, RedisError::from)),
            greeted => greeted,
        }
    }

    async fn log_in<S>(&self, stream: Metered<S>, meter: Arc<Meter>) -> Result<Connection, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        meter.allow(REPLIES_BYTES_MAX);
        // Both timeouts are ours: the dial's is around this function, and each call has a deadline.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let (requests, driver) = MultiplexedConnection::new_with_config(&self.endpoint.login, stream, config).await?;
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
}

/// The word and the sentence for a dial that failed. Redis' own errors hold no secrets.
fn told(error: &RedisError) -> (&'static str, String) {
    let Some(code) = error.code() else {
        return (NO_CONNECTION, error.to_string());
    };
    let text = error.detail().unwrap_or_default();
    match Refusal::of_parts(code, text).kind {
        "wrongpass" => ("wrongpass", format!("it does not accept the user or the password ({code})")),
        kind if kind == refusal::OTHER.kind => (NO_CONNECTION, format!("{code} {text}").trim_end().to_owned()),
        kind => (kind, format!("{code} {text}").trim_end().to_owned()),
    }
}

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

    fn fit(&self) -> bool {
        !self.closed && !self.unanswered
    }

    fn drive(&mut self, context: &mut Context<'_>) {
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

/// What one connection has written, what it may still read for this batch, and what it read first. Atomics
/// and a mutex only because the stream is owned by the driver; one task touches both.
#[derive(Debug, Default)]
struct Meter {
    written: AtomicU64,
    readable: AtomicUsize,
    overrun: AtomicBool,
    greeted: AtomicBool,
    heard: Mutex<Vec<u8>>,
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

struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
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
            self.meter.listen(&buffer.filled()[before..]);
        }
        result
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = result {
            self.meter.written.fetch_add(written as u64, Ordering::Relaxed);
        }
        if let Poll::Ready(Err(_)) = result {
            // A server that has closed may have said why, and nobody reads it any more.
            let mut last_words = [0; HEARD_BYTES_MAX];
            let mut buffer = ReadBuf::new(&mut last_words);
            if Pin::new(&mut self.stream).poll_read(context, &mut buffer).is_ready() {
                self.meter.listen(buffer.filled());
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_shows_where_and_never_who() {
        let check = |url: &str, expected: &str| {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!(endpoint.to_string(), expected, "{url}");
            assert_eq!(format!("{endpoint:?}"), format!("Endpoint({expected})"));
        };
        check("redis://cache", "cache:6379");
        check("redis://:secret@127.0.0.1:7000/3", "127.0.0.1:7000");
        check("redis://weir:secret@cache:7000", "cache:7000");
        check("redis+unix:///run/redis.sock", "/run/redis.sock");
        check("unix:///run/redis.sock?pass=secret", "/run/redis.sock");
    }

    #[test]
    fn a_login_of_its_own_replaces_the_one_in_the_url() {
        let endpoint = Endpoint::parse("redis://weir:secret@cache").unwrap();
        assert_eq!(endpoint.login.username(), Some("weir"));
        let endpoint = endpoint.with_login(None, Some("other"));
        assert_eq!(endpoint.login.username(), Some("weir"));
        assert_eq!(endpoint.login.password(), Some("other"));
        assert_eq!(endpoint.with_login(Some("ops"), None).login.username(), Some("ops"));
    }

    #[test]
    fn what_is_no_redis_url_is_refused_without_showing_it() {
        let check = |url: &str, expected: &str| {
            let error = Endpoint::parse(url).map(drop).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        };
        check("", "url: redis url did not parse (");
        check("cache:6379", "url: redis url did not parse (");
        check("http://:secret@cache", "url: redis url did not parse (");
        check("redis://:secret@", "url: redis url did not parse (");
        check("redis://:secret@cache/secret", "url: invalid database number (");
        check("redis://:secret@cache?protocol=secret", "url: invalid protocol version (");
        check("rediss://:secret@cache", "url: tls is not supported (");
        check("redis+unix://secret", "url: missing path (");
    }
}
