//! Sentinel: which of several Redis servers is the master now.
//!
//! Not in here: when a connection is made, and when it is given up (pool.rs, pipeline.rs).
//!
//! Sentinels are asked in turn, first the one whose last answer was good, until one names a master; that
//! is dialled, and has to say itself that it is one: a sentinel can be behind, and a master that was
//! demoted accepts connections too. If it is none the dial fails, and the next dial begins with the next
//! sentinel.
//!
//! A failover shows itself where it hurts: the old master answers READONLY or is gone, and the next dial
//! asks here. But for some seconds the old master may go on as if nothing had happened, and what is
//! written to it then is lost. So a sentinel is also asked every second, and as soon as another master is
//! found, by that or by a dial, all connections to the one before are left, between two batches.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;
use tokio::time::{Instant, timeout};

use super::connection::{Connection, Unusable};
use super::endpoint::{Endpoint, EndpointError};
use super::observer::Observer;

/// How often a sentinel is asked whether the master is still the same, by all runtimes together.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The sentinels of one master. Shared by all runtimes.
#[derive(Debug)]
pub struct Sentinels {
    master: Box<str>,
    sentinels: Vec<Endpoint>,
    /// The login, database and TLS of the Redis servers; its place is not used.
    redis: Endpoint,
    /// The sentinel to begin with: shared by all who dial, and no more than a hint.
    first: AtomicUsize,
    office: Mutex<Office>,
    /// The number of the master in office. Also in the connections to it, and in those to the ones before.
    term: Arc<AtomicU64>,
}

/// Who is master, as far as we know.
#[derive(Debug)]
struct Office {
    /// None before the first dial.
    holder: Option<Place>,
    /// When somebody has to look next.
    look_at: Instant,
}

/// Host and port of a server.
type Place = (Box<str>, u16);

/// The time in office of one master, as a connection to it knows it.
#[derive(Debug)]
pub(super) struct Term {
    own: u64,
    current: Arc<AtomicU64>,
}

impl Term {
    /// Another master was found since.
    pub(super) fn is_over(&self) -> bool {
        self.own != self.current.load(Ordering::Relaxed)
    }
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
        Sentinels {
            master: master.into(),
            sentinels,
            redis,
            first: AtomicUsize::new(0),
            office: Mutex::new(Office { holder: None, look_at: Instant::now() }),
            term: Arc::default(),
        }
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
                    let connection = self.open_master(master, sentinel, observer).await?;
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Err(problem)) => problems.push(format!("{sentinel}: {problem}")),
                Err(_) => problems.push(format!("{sentinel}: no answer within {part:?}")),
            }
        }
        Err(format!("no sentinel names it: {}", problems.join("; ")).into())
    }

    async fn ask(&self, sentinel: &Endpoint, observer: &Arc<dyn Observer>) -> Result<Place, Unusable> {
        let mut connection = sentinel.open(observer).await?;
        self.ask_on(&mut connection).await
    }

    async fn ask_on(&self, connection: &mut Connection) -> Result<Place, Unusable> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&*self.master);
        match connection.ask(question).await? {
            Value::Nil => Err("it knows no master of this name".to_owned().into()),
            Value::Array(parts) => {
                let place = match &parts[..] {
                    [Value::BulkString(host), Value::BulkString(port)] => text(host).zip(text(port)),
                    _ => None,
                };
                let place = place.and_then(|(host, port)| Some((host.into(), port.parse::<u16>().ok()?)));
                Ok(place.ok_or_else(|| NOT_A_SENTINEL.to_owned())?)
            }
            _ => Err(NOT_A_SENTINEL.to_owned().into()),
        }
    }

    async fn open_master(
        &self,
        place: Place,
        sentinel: &Endpoint,
        observer: &Arc<dyn Observer>,
    ) -> Result<Connection, Unusable> {
        let master = self.redis.at(&place.0, place.1);
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
            Some("master") => {
                connection.set_term(self.take_office(place));
                Ok(connection)
            }
            Some(role) => Err(named(format!("it is no master, but a {role}").into())),
            None => Err(named("it does not tell its role".to_owned().into())),
        }
    }
}

impl Sentinels {
    /// Notes who is master. If that is another one than before, the terms of all connections to that one are over.
    fn take_office(&self, place: Place) -> Term {
        let mut office = self.office.lock();
        if office.holder.as_ref() != Some(&place) {
            office.holder = Some(place);
            self.term.fetch_add(1, Ordering::Relaxed);
        }
        Term { own: self.term.load(Ordering::Relaxed), current: self.term.clone() }
    }

    /// The master of now, if it is time to ask about him and nobody else does.
    fn in_question(&self) -> Option<Place> {
        let now = Instant::now();
        let mut office = self.office.lock();
        let holder = office.holder.clone()?;
        if now < office.look_at {
            return None;
        }
        office.look_at = now + LOOK_EVERY;
        Some(holder)
    }

    /// Looks every second whether another server is master, once any was dialled. Never ends.
    pub(super) async fn watch(self: Arc<Self>, observer: Arc<dyn Observer>, within: Duration) {
        let mut kept = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(holder) = self.in_question() else {
                continue;
            };
            let index = self.first.load(Ordering::Relaxed);
            match timeout(within, self.look(index, kept.take(), &holder, &observer)).await {
                Ok(Ok(connection)) => kept = Some(connection),
                // What is wrong is told when somebody dials. Until then, another sentinel.
                Ok(Err(_)) | Err(_) => self.first.store((index + 1) % self.sentinels.len(), Ordering::Relaxed),
            }
        }
    }

    /// Asks one sentinel, on the connection that was kept or on a new one, and returns it. A master that is not the
    /// one in office is dialled, which puts it there if it says that it is one.
    async fn look(
        &self,
        index: usize,
        kept: Option<(usize, Connection)>,
        holder: &Place,
        observer: &Arc<dyn Observer>,
    ) -> Result<(usize, Connection), Unusable> {
        let sentinel = &self.sentinels[index];
        let mut connection = match kept {
            Some((of, connection)) if of == index && connection.fit() => connection,
            _ => sentinel.open(observer).await?,
        };
        let place = self.ask_on(&mut connection).await?;
        if place != *holder {
            self.open_master(place, sentinel, observer).await?;
        }
        Ok((index, connection))
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
