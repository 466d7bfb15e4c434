//! Sentinel: which of several Redis servers is the master now.
//!
//! Not here: when a connection is made, and when it is closed (transport/pool.rs, transport/worker.rs).
//!
//! A dial asks the sentinels in turn, starting with the one whose last answer was good. When a sentinel names a master,
//! the dial connects to it and requests its role: a sentinel can be outdated, and a demoted master accepts connections
//! too. If the server is not a master, the dial fails, and the next dial starts with the next sentinel.
//!
//! After a failover the old master answers READONLY or is gone, and the next dial asks the sentinels. But the old
//! master may accept writes for some seconds, and these writes are lost. So weir subscribes to the failovers of each
//! sentinel: when one orders a replica to be the master, weir asks that replica for its role until it is one. weir also
//! asks a sentinel every second, for sentinels that do not let it subscribe. When another master is found, every
//! connection to the old master is closed after its current batch.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Value, from_redis_value};
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::host_port::HostPort;
use crate::redis::base::dial_error::DialError;
use crate::redis::base::observer::RedisObserver;

/// How often a sentinel is asked for the current master, by all runtimes together.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How often a replica that becomes the master is asked for its role.
const ROLE_EVERY: Duration = Duration::from_millis(5);

/// When such a replica is dialled again after an error.
const REDIAL_EVERY: Duration = Duration::from_millis(20);

/// How long a promotion may take.
const PROMOTION_MAX: Duration = Duration::from_secs(10);

/// How long after a promotion sentinels may still name the old master. They tell each other every two seconds.
const STALE_MAX: Duration = Duration::from_secs(5);

/// When a subscription is replaced: its connection may have broken without a sign.
const SUBSCRIBED_MAX: Duration = Duration::from_secs(60);

/// When a subscription that failed is tried again.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(5);

/// The role of a master.
const MASTER: &str = "master";

/// The events of a failover: a replica was ordered to be the master, and the sentinel has another master.
const ORDERED: &str = "+failover-state-wait-promotion";
const SWITCHED: &str = "+switch-master";

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
    /// Locked by the runtime that subscribes for all.
    subscriber: tokio::sync::Mutex<()>,
}

/// The last known master.
#[derive(Debug)]
struct Epoch {
    /// None before the first dial. Dropped when another master is known: its connections end with it.
    master: Option<Arc<HostPort>>,
    /// When the next question is due.
    ask_at: Instant,
    promotion: Option<Promotion>,
}

/// A failover that was seen before all sentinels name the new master.
#[derive(Debug)]
struct Promotion {
    old: HostPort,
    new: HostPort,
    until: Instant,
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
            epoch: Mutex::new(Epoch { master: None, ask_at: Instant::now(), promotion: None }),
            subscriber: tokio::sync::Mutex::default(),
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

    /// Follows the master after the first dial, by events and by a question every second. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, observer: Arc<dyn RedisObserver>, within: Duration) {
        tokio::join!(self.keep_asking(&observer, within), self.keep_subscribing(&observer, within));
    }

    /// Subscribes to every sentinel, if no other runtime does.
    async fn keep_subscribing(&self, observer: &Arc<dyn RedisObserver>, within: Duration) {
        let _subscriber = self.subscriber.lock().await;
        let subscriptions = self.sentinels.iter().map(|sentinel| async move {
            loop {
                if let Err(error) = self.follow(sentinel, observer, within).await {
                    observer.subscription_failed(&sentinel.to_string(), &error);
                    tokio::time::sleep(SUBSCRIBE_AGAIN).await;
                }
            }
        });
        join_all(subscriptions).await;
    }

    /// Follows the failovers that one sentinel publishes, for [`SUBSCRIBED_MAX`].
    async fn follow(
        &self,
        sentinel: &Endpoint,
        observer: &Arc<dyn RedisObserver>,
        within: Duration,
    ) -> Result<(), DialError> {
        let no_answer = |_| DialError::new(format!("no answer within {within:?}"));
        let mut connection = timeout(within, sentinel.open(observer)).await.map_err(no_answer)??;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(ORDERED).arg(SWITCHED);
        timeout(within, connection.subscribe(&subscribe)).await.map_err(no_answer)??;
        let end = Instant::now() + SUBSCRIBED_MAX;
        loop {
            let Ok(message) = timeout_at(end, connection.message()).await else { return Ok(()) };
            let message = message?;
            let Some(new) = from_redis_value::<(String, String, String)>(message)
                .ok()
                .and_then(|(_, channel, text)| self.new_master(&channel, &text))
            else {
                continue;
            };
            // After that, the question every second finds the master, and a dial reports why it cannot be used.
            let _ = timeout(PROMOTION_MAX, self.await_promotion(new, observer)).await;
            // A sentinel that sends events without end does not keep weir busy.
            tokio::time::sleep(ROLE_EVERY).await;
        }
    }

    /// The new master of an event. None if it is about another master.
    fn new_master(&self, channel: &str, text: &str) -> Option<HostPort> {
        let words: Vec<&str> = text.split(' ').collect();
        let (host, port) = match (channel, &*words) {
            (SWITCHED, [name, _, _, host, port]) if **name == *self.master => (host, port),
            (ORDERED, ["slave", _, host, port, "@", name, ..]) if **name == *self.master => (host, port),
            _ => return None,
        };
        Some(HostPort { host: (*host).into(), port: port.parse().ok()? })
    }

    /// Waits until this server is a master. From then on it is the known one.
    async fn await_promotion(&self, new: HostPort, observer: &Arc<dyn RedisObserver>) {
        let known = self.epoch.lock().master.as_deref().cloned();
        let Some(old) = known.filter(|known| *known != new) else { return };
        // A sentinel closes the connections to the replica in the moment in which it promotes it.
        while self.await_master(&new, observer).await.is_err() {
            tokio::time::sleep(REDIAL_EVERY).await;
        }
        self.epoch.lock().promotion = Some(Promotion { old, new: new.clone(), until: Instant::now() + STALE_MAX });
        self.known_as(new, observer);
    }

    /// Asks a server for its role, on one connection, until it is a master.
    async fn await_master(&self, server: &HostPort, observer: &Arc<dyn RedisObserver>) -> Result<(), DialError> {
        let mut connection = self.redis.at(&server.host, server.port).open(observer).await?;
        while role(&mut connection).await? != MASTER {
            tokio::time::sleep(ROLE_EVERY).await;
        }
        Ok(())
    }

    /// The master that a sentinel names, or the one that was promoted since.
    fn promoted(&self, named: HostPort) -> HostPort {
        match &self.epoch.lock().promotion {
            Some(Promotion { old, new, until }) if *old == named && Instant::now() < *until => new.clone(),
            _ => named,
        }
    }

    /// Asks a sentinel every second for the current master.
    async fn keep_asking(&self, observer: &Arc<dyn RedisObserver>, within: Duration) {
        let mut kept = None;
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let Some(master) = self.master_to_check() else {
                continue;
            };
            let index = self.first.load(Ordering::Relaxed);
            match timeout(within, self.check_master(index, kept.take(), &master, observer)).await {
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
            Ok(Some((host, port))) => Ok(self.promoted(HostPort { host: host.into(), port })),
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
        let checked = async {
            let mut connection = master.open(observer).await?;
            match role(&mut connection).await? {
                role if role == MASTER => Ok(connection),
                role => Err(DialError::new(format!("it is not a master but a {role}"))),
            }
        };
        let mut connection = match checked.await {
            Ok(connection) => connection,
            Err(problem) => {
                // A promotion that was undone, or whose server is gone.
                self.epoch.lock().promotion.take_if(|promotion| promotion.new == address);
                return Err(named(problem));
            }
        };
        // Another server may have been promoted since the question.
        if self.promoted(address.clone()) != address {
            return Err(named(DialError::new("another server was promoted meanwhile")));
        }
        connection.set_master(self.known_as(address, observer));
        Ok(connection)
    }

    /// Stores the current master. If it is another one, the connections to the earlier one end.
    fn known_as(&self, address: HostPort, observer: &Arc<dyn RedisObserver>) -> Weak<HostPort> {
        let mut epoch = self.epoch.lock();
        match &epoch.master {
            Some(master) if **master == address => return Arc::downgrade(master),
            Some(_) => observer.master_changed(&address.to_string()),
            None => {}
        }
        Arc::downgrade(epoch.master.insert(Arc::new(address)))
    }
}

/// The role of a server.
async fn role(connection: &mut Connection) -> Result<String, DialError> {
    let role = match connection.ask(&redis::cmd("ROLE")).await? {
        Value::Array(parts) => parts.into_iter().next().and_then(|role| from_redis_value::<String>(role).ok()),
        _ => None,
    };
    role.ok_or_else(|| DialError::new("it does not report its role"))
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<String> = self.sentinels.iter().map(ToString::to_string).collect();
        write!(f, "{} (sentinels {})", self.master, sentinels.join(","))
    }
}
