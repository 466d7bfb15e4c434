//! The bb8 pool of connections to one Redis: their number, the timeout of a dial, and when a connection may be reused.
//!
//! Not here: the address of Redis and how it is dialled (dial), and what is sent, in which batches and by which
//! deadline (worker.rs).
//!
//! bb8's own manager for redis sends a PING before every checkout and does not detect a broken connection. The manager
//! here does the opposite: a checkout costs no round trip, and a connection is reused only if every request on it was
//! answered and the peer has not closed it. docs/adr/0019 lists the duties of the pool.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bb8_redis::bb8;
use tokio::sync::watch;
use weir_tls::backoff::Pace;

use super::options::Options;
use crate::redis::base::dial_error::DialError;
use crate::redis::base::observer::RedisObserver;
use crate::redis::dial::connection::Connection;
use crate::redis::dial::target::RedisTarget;

/// The number of dials for each connection of a pool before dials are delayed: more than a worker makes while Redis
/// restarts.
const DIALS_AT_ONCE: u32 = 8;

/// The time between further dials for each connection. It limits the dials to a server whose connections end soon, for
/// any reason.
const DIAL_EVERY: Duration = Duration::from_millis(250);

/// Why a working connection is closed.
pub(super) const SUPERSEDED: &str = "the sentinels name another master";

/// A bounded number of connections to one Redis, made on demand and kept until they break.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: bb8::Pool<Manager>,
    /// Why the last dial failed. A checkout waits for the next failure.
    failed: watch::Sender<DialError>,
}

/// A connection on loan. When dropped, it returns to the pool, or is closed if it cannot be reused.
type Pooled<'a> = bb8::PooledConnection<'a, Manager>;

impl Pool {
    /// An empty pool of connections to the target of `options`, which is at `address`.
    ///
    /// # Panics
    ///
    /// When the number of connections or the timeout of a dial is zero.
    pub(super) fn new(options: &Options, address: Arc<str>) -> Pool {
        let Options { connections, connect_timeout, .. } = *options;
        let failed = watch::Sender::new(DialError::new("no connection was free"));
        let manager = Manager {
            target: options.target.clone(),
            address,
            connect_timeout,
            pace: Pace::new(DIAL_EVERY / connections.max(1), connections.saturating_mul(DIALS_AT_ONCE)),
            observer: options.observer.clone(),
        };
        let inner = bb8::Pool::builder()
            .max_size(connections)
            .min_idle(None)
            // The connection that was used last is the most likely to be alive.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            // This test reads the socket and costs no round trip.
            .test_on_check_out(true)
            // The worker gets the error of a failed dial at once and waits before the next one.
            .retry_connection(false)
            .error_sink(Box::new(Sink(failed.clone())))
            // The socket shows a dead connection; age alone is no reason to close one.
            .max_lifetime(None)
            .idle_timeout(None)
            // A fallback: the dial's own timeout is shorter.
            .connection_timeout(connect_timeout.saturating_mul(2).saturating_add(DIAL_EVERY * 2))
            .build_unchecked(manager);
        Pool { inner, failed }
    }

    /// How many connections are open, including those on loan.
    pub(super) fn open(&self) -> usize {
        self.inner.state().connections as usize
    }

    /// A connection from the pool, or a new one. Dials at most once. You may drop the future: a dial that succeeds
    /// later goes to the pool.
    ///
    /// # Errors
    ///
    /// When a dial failed during the wait.
    pub(super) async fn checkout(&self) -> Result<Pooled<'_>, DialError> {
        // Subscribes before the dial begins: on a multi-threaded runtime it may fail before this task runs again.
        let mut failed = self.failed.subscribe();
        tokio::select! {
            biased;
            got = self.inner.get() => got.map_err(|_| self.failed.borrow().clone()),
            _ = failed.changed() => Err(self.failed.borrow().clone()),
        }
    }
}

/// Receives the errors of bb8's tasks, after bb8 permits another dial.
#[derive(Debug)]
struct Sink(watch::Sender<DialError>);

impl bb8::ErrorSink<Option<DialError>> for Sink {
    fn sink(&self, failed: Option<DialError>) {
        if let Some(error) = failed {
            self.0.send_replace(error);
        }
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Option<DialError>>> {
        Box::new(Sink(self.0.clone()))
    }
}

/// Makes connections for bb8 and decides which ones are reused.
pub(crate) struct Manager {
    target: RedisTarget,
    address: Arc<str>,
    connect_timeout: Duration,
    pace: Pace,
    observer: Arc<dyn RedisObserver>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    /// Why a dial failed. None: an idle connection is not lent again. Both have been reported.
    type Error = Option<DialError>;

    async fn connect(&self) -> Result<Connection, Self::Error> {
        let wait = self.pace.wait(Instant::now());
        if !wait.is_zero() {
            self.observer.dial_held(&self.address, wait);
            tokio::time::sleep(wait).await;
        }
        let dial = self.target.open(&self.observer, self.connect_timeout);
        let error = match tokio::time::timeout(self.connect_timeout, dial).await {
            Ok(Ok(connection)) => {
                self.observer.connected();
                return Ok(connection);
            }
            Ok(Err(error)) => error,
            Err(_) => DialError::new(format!("no answer within {:?}", self.connect_timeout)),
        };
        self.observer.dial_failed(&self.address, &error);
        Err(Some(error))
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), Self::Error> {
        poll_fn(|context| {
            connection.notice(context);
            Poll::Ready(())
        })
        .await;
        if connection.is_reusable() {
            return Ok(());
        }
        if connection.is_superseded() {
            self.observer.connection_dropped(SUPERSEDED);
        } else if let Some(fault) = connection.fault() {
            let reason = fault.to_string();
            self.observer.connection_broke(&self.address, &reason);
            self.observer.connection_dropped(&reason);
        } else {
            self.observer.connection_dropped("redis closed the idle connection");
        }
        Err(None)
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        !connection.is_reusable() || connection.is_due()
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::bb8::ManageConnection as _;
    use parking_lot::Mutex;
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

    /// What an observer was told of broken connections.
    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl RedisObserver for Heard {
        fn connection_broke(&self, address: &str, reason: &str) {
            self.0.lock().push(format!("{address}: {reason}"));
        }
    }

    #[tokio::test]
    async fn an_idle_connection_on_which_a_reply_comes_is_not_lent_again() {
        let (client, mut server) = tokio::io::duplex(1 << 10);
        let login = Login::default();
        let greeting = greet(client, Meter::default(), &login);
        let (greeted, ()) = tokio::join!(greeting, answer(&mut server, b"+OK\r\n+PONG\r\n"));
        let mut connection = greeted.ok().unwrap();
        let heard = Arc::new(Heard::default());
        let manager = Manager {
            target: Endpoint::parse("redis://redis.internal:6379").unwrap().into(),
            address: "redis.internal:6379".into(),
            connect_timeout: Duration::from_secs(1),
            pace: Pace::new(DIAL_EVERY, DIALS_AT_ONCE),
            observer: heard.clone(),
        };
        let batch = CommandBuffer::of(&redis::cmd("DBSIZE"));
        let (answers, ()) = tokio::join!(connection.exchange(&batch), answer(&mut server, b":1\r\n"));
        assert_eq!(answers.unwrap(), [Value::Int(1)]);
        manager.is_valid(&mut connection).await.unwrap();

        server.write_all(b":666\r\n").await.unwrap();
        assert!(manager.is_valid(&mut connection).await.is_err());
        assert_eq!(*heard.0.lock(), [r#"redis.internal:6379: a reply without a request: ":666\r\n""#]);
        assert!(manager.has_broken(&mut connection));
        // Nothing of another batch is sent.
        let written = connection.bytes_written();
        assert!(connection.exchange(&batch).await.is_err());
        assert_eq!(connection.bytes_written(), written);
    }
}
