//! Sentinel: which of several Redis servers is the master now.
//!
//! Not in here: watching for a failover. A failover shows itself where it matters: the old master answers
//! READONLY or is gone, the connection is given up, and the next dial asks here.
//!
//! Sentinels are asked in turn, first the one whose last answer was good, until one names a master; that
//! is dialled, and has to say itself that it is one: a sentinel can be behind, and a master that was
//! demoted accepts connections too. If it is none the dial fails, and the next dial begins with the next
//! sentinel.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, timeout};

use super::connection::{Connection, Unusable};
use super::endpoint::{Endpoint, EndpointError};
use super::pool::Observer;

/// The sentinels of one master.
#[derive(Debug)]
pub struct Sentinels {
    master: Box<str>,
    sentinels: Vec<Endpoint>,
    /// The login, database and TLS of the Redis servers; its place is not used.
    redis: Endpoint,
    /// The sentinel to begin with: shared by all who dial, and no more than a hint.
    first: AtomicUsize,
}

impl Sentinels {
    /// Sentinels (at least one) that know a master by the name `master`. The Redis servers that they name
    /// are dialled with the login, database and TLS of `redis`.
    ///
    /// # Panics
    ///
    /// Without a sentinel.
    #[must_use]
    pub fn new(master: &str, sentinels: Vec<Endpoint>, redis: Endpoint) -> Sentinels {
        assert!(!sentinels.is_empty(), "a master is found by at least one sentinel");
        Sentinels { master: master.into(), sentinels, redis, first: AtomicUsize::new(0) }
    }

    /// Reads every file that a dial would read.
    pub(super) fn check(&self) -> Result<(), EndpointError> {
        self.redis.check()?;
        self.sentinels.iter().try_for_each(Endpoint::check)
    }

    /// Finds the master and opens a connection to it, within about `within`: each sentinel gets an even
    /// part of the time that is left, and so does the master. The caller has the exact bound.
    pub(super) async fn open(&self, observer: &Arc<dyn Observer>, within: Duration) -> Result<Connection, Unusable> {
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
                    // Whoever dials next begins elsewhere, unless this one was right.
                    self.first.store((index + 1) % count, Ordering::Relaxed);
                    let connection = self.open_master(&master, sentinel, observer).await?;
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Err(problem)) => problems.push(format!("{sentinel}: {problem}")),
                Err(_) => problems.push(format!("{sentinel}: no answer within {part:?}")),
            }
        }
        Err(format!("no sentinel names it: {}", problems.join("; ")).into())
    }

    async fn ask(&self, sentinel: &Endpoint, observer: &Arc<dyn Observer>) -> Result<Endpoint, Unusable> {
        let mut connection = sentinel.open(observer).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&*self.master);
        match connection.ask(question).await? {
            Value::Nil => Err("it knows no master of this name".to_owned().into()),
            Value::Array(parts) => {
                let place = match &parts[..] {
                    [Value::BulkString(host), Value::BulkString(port)] => text(host).zip(text(port)),
                    _ => None,
                };
                let place = place.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
                let (host, port) = place.ok_or_else(|| NOT_A_SENTINEL.to_owned())?;
                Ok(self.redis.at(host, port))
            }
            _ => Err(NOT_A_SENTINEL.to_owned().into()),
        }
    }

    async fn open_master(
        &self,
        master: &Endpoint,
        sentinel: &Endpoint,
        observer: &Arc<dyn Observer>,
    ) -> Result<Connection, Unusable> {
        let named = |problem: Unusable| Unusable {
            kind: problem.kind,
            text: format!("{master}, which the sentinel at {sentinel} names: {problem}"),
        };
        let mut connection = master.open(observer).await.map_err(named)?;
        let answer = connection.ask(redis::cmd("ROLE")).await.map_err(named)?;
        let role = match &answer {
            Value::Array(parts) => match parts.first() {
                Some(Value::BulkString(role)) => text(role),
                _ => None,
            },
            _ => None,
        };
        match role {
            Some("master") => Ok(connection),
            Some(role) => Err(named(format!("it is no master, but a {role}").into())),
            None => Err(named("it does not tell its role".to_owned().into())),
        }
    }
}

const NOT_A_SENTINEL: &str = "it does not answer as a sentinel";

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (sentinels ", self.master)?;
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            sentinel.fmt(f)?;
        }
        f.write_str(")")
    }
}
