//! Sentinel: which of several Redis servers is the master now.
//!
//! Not here: when a connection is made, and when it is closed (transport/pool.rs, transport/worker.rs).
//!
//! A dial asks the sentinels in turn, starting with the one whose last answer was good. When a sentinel names a master,
//! the dial connects to it and requests its role: a sentinel can be outdated, and a demoted master accepts connections
//! too. If the server is not a master, the dial fails, and the next dial starts with the next sentinel.
//!
//! After a failover the old master answers READONLY or is gone, and the next dial asks the sentinels. But the old
//! master may accept writes for some seconds, and these writes are lost. So weir also asks a sentinel every second.
//! When that question or a dial finds another master, every connection to the old master is closed after its current
//! batch.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Value, from_redis_value};
use tokio::time::{Instant, timeout};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::host_port::HostPort;
use crate::redis::base::dial_error::DialError;
use crate::redis::base::observer::RedisObserver;

/// How often a sentinel is asked for the current master, by all runtimes together.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The sentinels of one master. Shared by all runtimes.
#[derive(Debug)]
pub struct Sentinels {
    master: Box<str>,
    sentinels: Vec<Endpoint>,
    /// The login, database and TLS of the Redis servers. Its address is not used.
    redis: Endpoint,
    /// The sentinel for the next question. Only a hint, which all dials share.
    first: AtomicUsize,
    epoch: Mutex<Epoch>,
}

/// The last known master.
#[derive(Debug)]
struct Epoch {
    /// None before the first dial. Dropped when another master is known: its connections end with it.
    master: Option<Arc<HostPort>>,
    /// When the next question is due.
    ask_at: Instant,
}

impl Sentinels {
    /// Sentinels (at least one) of the master with the name `master`. The Redis servers that they name are dialled with
    /// the login, database and TLS of `redis`.
    ///
    /// # Panics
    ///
    /// Without a sentinel.
    pub fn new(master: &str, sentinels: Vec<Endpoint>, redis: Endpoint) -> Sentinels {
        assert!(!sentinels.is_empty(), "at least one sentinel is needed to find a master");
        Sentinels {
            master: master.into(),
            sentinels,
            redis,
            first: AtomicUsize::new(0),
            epoch: Mutex::new(Epoch { master: None, ask_at: Instant::now() }),
        }
    }

    /// Finds the master and opens a connection to it, within about `within`: each sentinel gets an equal part of the
    /// remaining time, and so does the master. The caller enforces the exact limit.
    pub(crate) async fn open(
        &self,
        observer: &Arc<dyn RedisObserver>,
        within: Duration,
    ) -> Result<Connection, DialError> {
        let end = Instant::now() + within;
        let count = self.sentinels.len();
        let first = self.first.load(Ordering::Relaxed);
        let mut problems = Vec::with_capacity(count);
        for turn in 0..count {
            let index = (first + turn) % count;
            let sentinel = &self.sentinels[index];
            let left = end.saturating_duration_since(Instant::now());
            let others = u32::try_from(count - turn).unwrap_or(u32::MAX);
            let part = left / others.saturating_add(1);
            match timeout(part, self.ask(sentinel, observer)).await {
                Ok(Ok(master)) => {
                    // The next dial starts with another sentinel, unless this one succeeds.
                    self.first.store((index + 1) % count, Ordering::Relaxed);
                    let connection = self.open_master(master, sentinel, observer).await?;
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Err(problem)) => problems.push(format!("{sentinel}: {problem}")),
                Err(_) => problems.push(format!("{sentinel}: no answer within {part:?}")),
            }
        }
        Err(DialError::new(format!("no sentinel returned its address: {}", problems.join("; "))))
    }

    /// Asks a sentinel every second for the current master, after the first dial. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, observer: Arc<dyn RedisObserver>, within: Duration) {
        let mut kept = None;
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let Some(master) = self.master_to_check() else {
                continue;
            };
            let index = self.first.load(Ordering::Relaxed);
            match timeout(within, self.check_master(index, kept.take(), &master, &observer)).await {
                Ok(Ok(connection)) => kept = Some(connection),
                // A dial reports the error. Until then, the next question goes to another sentinel.
                Ok(Err(_)) | Err(_) => self.first.store((index + 1) % self.sentinels.len(), Ordering::Relaxed),
            }
        }
    }

    /// The known master, if a question is due and no other runtime asks it.
    fn master_to_check(&self) -> Option<HostPort> {
        let now = Instant::now();
        let mut epoch = self.epoch.lock();
        let master = HostPort::clone(epoch.master.as_ref()?);
        if now < epoch.ask_at {
            return None;
        }
        epoch.ask_at = now + ASK_EVERY;
        Some(master)
    }

    /// Asks one sentinel, on the kept connection or on a new one, and returns the connection. If the sentinel names
    /// another master than `known`, dials that server. If the server is a master, it is the known one from now on.
    async fn check_master(
        &self,
        index: usize,
        kept: Option<(usize, Connection)>,
        known: &HostPort,
        observer: &Arc<dyn RedisObserver>,
    ) -> Result<(usize, Connection), DialError> {
        let sentinel = &self.sentinels[index];
        let mut connection = match kept {
            Some((of, connection)) if of == index && connection.is_reusable() => connection,
            _ => sentinel.open(observer).await?,
        };
        let named = self.ask_on(&mut connection).await?;
        if named != *known {
            self.open_master(named, sentinel, observer).await?;
        }
        Ok((index, connection))
    }

    async fn ask(&self, sentinel: &Endpoint, observer: &Arc<dyn RedisObserver>) -> Result<HostPort, DialError> {
        let mut connection = sentinel.open(observer).await?;
        self.ask_on(&mut connection).await
    }

    async fn ask_on(&self, connection: &mut Connection) -> Result<HostPort, DialError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&*self.master);
        match from_redis_value::<Option<(String, u16)>>(connection.ask(&question).await?) {
            Ok(Some((host, port))) => Ok(HostPort { host: host.into(), port }),
            Ok(None) => Err(DialError::new("it has no master with this name")),
            Err(_) => Err(DialError::new("its answer is not a sentinel answer")),
        }
    }

    async fn open_master(
        &self,
        address: HostPort,
        sentinel: &Endpoint,
        observer: &Arc<dyn RedisObserver>,
    ) -> Result<Connection, DialError> {
        let master = self.redis.at(&address.host, address.port);
        let named = |problem: DialError| {
            let text = format!("{master}, named by the sentinel at {sentinel}: {problem}");
            problem.with_reason(text)
        };
        let mut connection = master.open(observer).await.map_err(named)?;
        let answer = connection.ask(&redis::cmd("ROLE")).await.map_err(named)?;
        let role = match answer {
            Value::Array(parts) => parts.into_iter().next().and_then(|role| from_redis_value::<String>(role).ok()),
            _ => None,
        };
        match role {
            Some(role) if role == "master" => {
                connection.set_master(self.known_as(address));
                Ok(connection)
            }
            Some(role) => Err(named(DialError::new(format!("it is not a master but a {role}")))),
            None => Err(named(DialError::new("it does not report its role"))),
        }
    }

    /// Stores the current master. If it is another one, the connections to the earlier one end.
    fn known_as(&self, address: HostPort) -> Weak<HostPort> {
        let mut epoch = self.epoch.lock();
        match &epoch.master {
            Some(master) if **master == address => Arc::downgrade(master),
            _ => Arc::downgrade(epoch.master.insert(Arc::new(address))),
        }
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<String> = self.sentinels.iter().map(ToString::to_string).collect();
        write!(f, "{} (sentinels {})", self.master, sentinels.join(","))
    }
}
