//! The bb8 pool of connections to one Redis: their number, the timeout of a dial, and when a connection may be reused.
//!
//! Not here: the address of Redis and how it is dialled (dial), and what is sent, in which batches and by which
//! deadline (worker.rs).
//!
//! bb8's own manager for redis sends a PING before every checkout and does not detect a broken connection. The manager
//! here does the opposite: a checkout costs no round trip, and a connection is reused only if every request on it was
//! answered and the peer has not closed it. docs/adr/0019 lists the duties of the pool.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::{Duration, Instant};

use bb8_redis::bb8;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_tls::backoff::Pace;

use crate::redis::base::observer::{DialError, NO_CONNECTION, RedisObserver};
pub use crate::redis::dial::connection::{Connection, REPLIES_BYTES_MAX};
use crate::redis::dial::target::RedisTarget;
use crate::redis::dial::unusable::Unusable;

/// The number of dials for each connection of a pool before dials are delayed: more than a worker makes while Redis
/// restarts.
const DIALS_AT_ONCE: u32 = 8;

/// The time between further dials for each connection. It limits the dials to a server whose connections end soon, for
/// any reason.
const DIAL_EVERY: Duration = Duration::from_millis(250);

/// At most `connections` connections to one Redis, made on demand and kept until they break.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: bb8::Pool<Manager>,
    failures: Arc<Failures>,
    open: Arc<AtomicUsize>,
    address: Arc<str>,
}

/// A connection on loan. When dropped, it returns to the pool, or is closed if it cannot be reused.
pub type Pooled<'a> = bb8::PooledConnection<'a, Manager>;

impl Pool {
    /// An empty pool. `connect_timeout` limits a dial, including the handshake.
    ///
    /// # Panics
    ///
    /// When `connections` or `connect_timeout` is zero.
    pub fn new(
        target: RedisTarget,
        connections: u32,
        connect_timeout: Duration,
        observer: Arc<dyn RedisObserver>,
    ) -> Pool {
        let address: Arc<str> = target.to_string().into();
        let failures = Arc::new(Failures {
            last: Mutex::new(DialError::new(address.clone(), NO_CONNECTION, "no connection was free".into())),
            happened: Notify::new(),
            observer: observer.clone(),
        });
        let open = Arc::new(AtomicUsize::new(0));
        let pace = Pace::new(DIAL_EVERY / connections.max(1), connections.saturating_mul(DIALS_AT_ONCE));
        let manager = Manager { target, address: address.clone(), connect_timeout, pace, observer, open: open.clone() };
        let inner = bb8::Pool::builder()
            .max_size(connections)
            .min_idle(None)
            // The connection that was used last is the most likely to be alive.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            // This test reads the socket and costs no round trip.
            .test_on_check_out(true)
            // The worker gets the error of a failed dial at once and waits before the next one.
            .retry_connection(false)
            .error_sink(Box::new(Sink(failures.clone())))
            // The socket shows a dead connection; age alone is no reason to close one.
            .max_lifetime(None)
            .idle_timeout(None)
            // A fallback: the dial's own timeout is shorter.
            .connection_timeout(connect_timeout.saturating_mul(2).saturating_add(DIAL_EVERY * 2))
            .build_unchecked(manager);
        Pool { inner, failures, open, address }
    }

    /// The address that the pool dials, for people.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// How many connections are open, including those on loan.
    pub(crate) const fn open(&self) -> &Arc<AtomicUsize> {
        &self.open
    }

    /// A connection from the pool, or a new one. Dials at most once. You may drop the future: a dial that succeeds
    /// later goes to the pool.
    ///
    /// # Errors
    ///
    /// When a dial failed during the wait; the error has the reason.
    pub async fn checkout(&self) -> Result<Pooled<'_>, DialError> {
        let mut failed = pin!(self.failures.happened.notified());
        // Subscribe before the dial begins: on a multi-threaded runtime it may fail before this task runs again.
        failed.as_mut().enable();
        tokio::select! {
            biased;
            got = self.inner.get() => got.map_err(|_| self.failures.last.lock().clone()),
            () = failed => Err(self.failures.last.lock().clone()),
        }
    }
}

/// Why a working connection is closed.
pub const SUPERSEDED: &str = "the sentinels name another master";

/// The error of the last failed dial. bb8's error sink writes it, and checkouts wait for it.
struct Failures {
    last: Mutex<DialError>,
    happened: Notify,
    observer: Arc<dyn RedisObserver>,
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failures({})", self.last.lock())
    }
}

/// Receives the errors of bb8's background tasks.
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
            Fault::Closed => self.0.observer.connection_dropped("redis closed the idle connection"),
            Fault::Unrequested { address, reason } => {
                self.0.observer.connection_broke(&address, &reason);
                self.0.observer.connection_dropped(&reason);
            }
            Fault::Superseded => self.0.observer.connection_dropped(SUPERSEDED),
        }
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Fault>> {
        Box::new(Sink(self.0.clone()))
    }
}

/// The errors that the manager returns to bb8.
#[derive(Debug)]
pub enum Fault {
    Dial(DialError),
    /// The server closed an idle connection. bb8 tries the next one, or dials.
    Closed,
    /// The server sent bytes on an idle connection.
    Unrequested {
        /// The address, for people.
        address: Arc<str>,
        /// The reason, for people.
        reason: String,
    },
    /// An idle connection leads to a server that is no longer the master.
    Superseded,
}

/// Makes connections for bb8 and decides which ones are reused.
pub struct Manager {
    target: RedisTarget,
    address: Arc<str>,
    connect_timeout: Duration,
    pace: Pace,
    observer: Arc<dyn RedisObserver>,
    open: Arc<AtomicUsize>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    type Error = Fault;

    async fn connect(&self) -> Result<Connection, Fault> {
        let wait = self.pace.wait(Instant::now());
        if !wait.is_zero() {
            self.observer.dial_held(&self.address, wait);
            tokio::time::sleep(wait).await;
        }
        let unusable =
            match tokio::time::timeout(self.connect_timeout, self.target.open(&self.observer, self.connect_timeout))
                .await
            {
                Ok(Ok(mut connection)) => {
                    connection.count_in(&self.open);
                    self.observer.connected();
                    return Ok(connection);
                }
                Ok(Err(unusable)) => unusable,
                Err(_) => Unusable::from(format!("no answer within {:?}", self.connect_timeout)),
            };
        let error = DialError::new(self.address.clone(), unusable.kind, unusable.text.into());
        Err(Fault::Dial(error.refused(unusable.is_refused)))
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), Fault> {
        poll_fn(|context| {
            connection.notice(context);
            Poll::Ready(())
        })
        .await;
        match connection {
            connection if connection.is_reusable() => Ok(()),
            connection if connection.is_superseded() => Err(Fault::Superseded),
            connection => Err(match connection.fault() {
                Some(fault) => Fault::Unrequested { address: self.address.clone(), reason: fault.to_string() },
                None => Fault::Closed,
            }),
        }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        !connection.is_reusable() || connection.is_due()
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager({})", self.address)
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::bb8::ManageConnection as _;
    use redis::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::redis::dial::command_buffer::CommandBuffer;
    use crate::redis::dial::credentials::Login;
    use crate::redis::dial::endpoint::Endpoint;
    use crate::redis::dial::handshake::greet;
    use crate::redis::dial::meter::Meter;

    /// Answers the next call, of any kind.
    async fn answer(server: &mut DuplexStream, answer: &[u8]) {
        assert!(server.read(&mut [0; 256]).await.unwrap() > 0);
        server.write_all(answer).await.unwrap();
    }

    #[tokio::test]
    async fn an_idle_connection_on_which_a_reply_comes_is_not_lent_again() {
        let (client, mut server) = tokio::io::duplex(1 << 10);
        let login = Login::default();
        let greeting = greet(client, Meter::default(), &login);
        let (greeted, ()) = tokio::join!(greeting, answer(&mut server, b"+OK\r\n+PONG\r\n"));
        let mut connection = greeted.unwrap();
        let manager = Manager {
            target: Endpoint::parse("redis://redis.internal:6379").unwrap().into(),
            address: "redis.internal:6379".into(),
            connect_timeout: Duration::from_secs(1),
            pace: Pace::new(DIAL_EVERY, DIALS_AT_ONCE),
            observer: Arc::new(()),
            open: Arc::default(),
        };
        let batch = CommandBuffer::of(&redis::cmd("DBSIZE"));
        let (answers, ()) = tokio::join!(connection.exchange(&batch), answer(&mut server, b":1\r\n"));
        assert_eq!(answers.unwrap(), [Value::Int(1)]);
        manager.is_valid(&mut connection).await.unwrap();

        server.write_all(b":666\r\n").await.unwrap();
        let fault = manager.is_valid(&mut connection).await.unwrap_err();
        let Fault::Unrequested { address, reason } = fault else { panic!("{fault:?}") };
        assert_eq!((&*address, &*reason), ("redis.internal:6379", r#"a reply without a request: ":666\r\n""#));
        assert!(manager.has_broken(&mut connection));
        // Nothing of another batch is sent.
        let written = connection.bytes_written();
        assert!(connection.exchange(&batch).await.is_err());
        assert_eq!(connection.bytes_written(), written);
    }
}
