//! Redis: states that replicas share and that outlive a process, until they expire. [rd-1] [rd-2]
//!
//! Each decision is one call of one script, so that it is atomic and costs one round trip, which it shares with the
//! other decisions in flight. Not here: connections (redis/pool.rs), what they tell (redis/observer.rs), what a call is
//! (redis/call.rs), batching and deadlines (redis/pipeline.rs), how heavy calls travel (redis/heavy.rs), when a failing Redis is left alone (redis/node.rs), what
//! its errors mean (redis/refusal.rs), which node of a cluster a call goes to (redis/cluster.rs), and the format of calls
//! and replies (redis/wire.rs).

mod advice;
pub mod breaker;
mod call;
mod cluster;
mod connection;
mod dial;
mod endpoint;
mod heavy;
mod lacks;
pub mod merge;
pub mod node;
mod observer;
mod pause;
pub mod pipeline;
pub mod pool;
pub mod refusal;
mod sentinel;
pub mod turns;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use redis::Value;

use self::cluster::{Cluster, slot};
pub use self::endpoint::{Endpoint, EndpointError, PASSWORD_FILE_BYTES_MAX, Target};
use self::node::Node;
pub use self::observer::{DialError, Observer};
use self::pipeline::{Call, CallError, Options, Reason};
use self::refusal::Refusal;
pub use self::sentinel::Sentinels;
use super::{Failure, Peeked, Reply, Store, StoreError, Undo};
use crate::engine::weight::TOO_HEAVY;
use crate::engine::{Algorithm, Charge, Decision, Limit, Micros, Mode, State, decision};
pub use crate::tls::files::FileError;
pub use crate::tls::{Identity, TLS_FILE_BYTES_MAX, TlsFiles};

/// States in one Redis, or in the nodes of one Redis Cluster: one of these for each runtime that decides.
pub struct Redis {
    link: Link,
    key_prefix: Box<str>,
    observer: Arc<dyn Observer>,
    /// Stands for the server's clock in tests.
    now: Option<Micros>,
}

/// What the calls go through.
enum Link {
    One(Node),
    Cluster(Cluster),
}

impl Redis {
    /// Starts its tasks on the current runtime. Nothing is dialled before the first call.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and when one of the numbers in `options` is out of its bounds.
    #[must_use]
    pub fn start(options: Options, key_prefix: &str) -> Self {
        let observer = options.observer.clone();
        Self { link: Link::One(Node::start(options)), key_prefix: key_prefix.into(), observer, now: None }
    }

    /// The same for a Redis Cluster that is found by way of any of the `seeds`, which share their login. Each node that
    /// holds slots has a pipeline of these `options` (whose target does not count), made when it is first heard of.
    ///
    /// # Panics
    /// As [`Redis::start`], and without seeds.
    #[must_use]
    pub fn start_cluster(seeds: Vec<Endpoint>, options: Options, key_prefix: &str) -> Self {
        let observer = options.observer.clone();
        Self { link: Link::Cluster(Cluster::start(seeds, options)), key_prefix: key_prefix.into(), observer, now: None }
    }

    /// The same store at a time that the caller sets: for tests, with a time in the future, so that no key expires.
    #[must_use]
    pub fn at(mut self, now: Micros) -> Self {
        self.now = Some(now);
        self
    }

    /// Moves the time that [`Redis::at`] set.
    pub fn set_now(&mut self, now: Micros) {
        self.now = Some(now);
    }

    /// Has the call run that `call` makes, where `key` lies. It may be made more than once, and runs at most once.
    async fn call(&self, key: &str, call: impl Fn() -> Call, deadline: Instant) -> Result<Value, StoreError> {
        let answer = match &self.link {
            Link::One(node) => node.call(call(), deadline).await,
            Link::Cluster(cluster) => cluster.call(slot::of(&self.key_prefix, key), call, deadline).await,
        };
        answer.map_err(store_error)
    }

    /// A key as it stands in Redis.
    fn prefixed(&self, key: &str) -> String {
        format!("{}{key}", self.key_prefix)
    }

    /// Has each server know our scripts, before a call needs one. Where that fails, as for a user who may not load any,
    /// nothing is lost: a call whose script is missing brings it along.
    async fn load_scripts(&self, deadline: Instant) {
        let loads = wire::scripts().map(|script| async {
            match &self.link {
                Link::One(node) => drop(node.ask(script.load(), deadline).await),
                Link::Cluster(cluster) => drop(cluster.ask_all(|| script.load(), deadline).await),
            }
        });
        join_all(loads).await;
    }

    async fn delete(&self, keys: &[&str], deadline: Instant) -> Result<u64, StoreError> {
        let delete = || {
            let mut command = redis::cmd("DEL");
            for key in keys {
                command.arg(self.prefixed(key));
            }
            Call::command(command)
        };
        let reply = self.call(keys.first().unwrap_or(&""), delete, deadline).await?;
        wire::integer(&reply).ok_or_else(strange_reply)
    }

    /// Takes back the charges of one key, one after the other: a receipt may count on those before it. One that fails
    /// is no reason to let the others stand.
    async fn undo_of_key(&self, undos: &[Undo<'_>], deadline: Instant) -> Result<(), StoreError> {
        let mut ends = Vec::with_capacity(undos.len());
        for undo in undos {
            let one = std::slice::from_ref(undo);
            // One charge takes one call.
            let call = || wire::undo_calls(&self.key_prefix, one, self.now).swap_remove(0);
            ends.push(self.call(undo.key, call, deadline).await.and_then(|reply| undone(&reply, one)));
        }
        worst(ends)
    }

    async fn state(&self, key: &str, limit: &Limit, deadline: Instant) -> Result<Option<State>, StoreError> {
        let read = || Call::command(wire::peek_command(limit, &self.prefixed(key)));
        let value = self.call(key, read, deadline).await?;
        wire::read_stored(limit, &value).map_err(|wire::NotOurs| strange_state(key))
    }

    /// The clock of the Redis where `key` lies.
    async fn time(&self, key: &str, deadline: Instant) -> Result<Micros, StoreError> {
        let reply = self.call(key, || Call::command(redis::cmd("TIME")), deadline).await?;
        let parts = match &reply {
            Value::Array(parts) => &parts[..],
            _ => &[],
        };
        let [seconds, micros] = parts else {
            return Err(strange_reply());
        };
        let (seconds, micros) = wire::integer(seconds).zip(wire::integer(micros)).ok_or_else(strange_reply)?;
        Ok(seconds * 1_000_000 + micros)
    }
}

impl Store for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode, deadline: Instant) -> Reply<'a, Decision> {
        Reply::Pending(Box::pin(async move {
            let first = charges.first().map_or("", |charge| charge.key);
            if charges.len() > 1 {
                let part = self.part_of(first);
                if charges.iter().any(|charge| self.part_of(charge.key) != part) {
                    return Err(several_slots(charges.len()));
                }
            }
            let (places, firsts) = decision::places(charges);
            let call = || wire::decide_call(&self.key_prefix, charges, &places, &firsts, mode, self.now);
            let reply = self.call(first, call, deadline).await?;
            let Some(reply) = wire::read_decision(&reply, charges) else {
                self.observer.strange_reply();
                return Err(strange_reply());
            };
            match reply {
                wire::Reply::Found(now, found) => Ok(decision::settle(charges, &places, &found, mode, now)),
                wire::Reply::Rewindow(now) => Err(StoreError::Rewindow { now }),
            }
        }))
    }

    fn part_of(&self, key: &str) -> u16 {
        match self.link {
            Link::One(_) => 0,
            Link::Cluster(_) => slot::of(&self.key_prefix, key),
        }
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()> {
        if charges.is_empty() {
            return Reply::Ready(Ok(()));
        }
        Reply::Pending(Box::pin(async move {
            match &self.link {
                // One call for each log and for each calendar window, whose boundaries may not hold the clock, and one for
                // all others: they share round trips.
                Link::One(node) => {
                    let is_log = |undo: &Undo<'_>| matches!(undo.limit.algorithm(), Algorithm::SlidingWindowLog);
                    let (logs, others): (Vec<_>, Vec<_>) = charges.iter().copied().partition(is_log);
                    let (calendars, others): (Vec<_>, Vec<_>) =
                        others.into_iter().partition(|undo| undo.bounds.is_some());
                    let mut parts = by_key(&logs);
                    parts.extend(calendars.into_iter().map(|undo| vec![undo]));
                    parts.push(others);
                    let undone = parts.iter().map(async |undos| {
                        let mut ends = Vec::new();
                        for call in wire::undo_calls(&self.key_prefix, undos, self.now) {
                            let reply = node.call(call, deadline).await.map_err(store_error);
                            ends.push(reply.and_then(|reply| undone(&reply, undos)));
                        }
                        worst(ends)
                    });
                    worst(join_all(undone).await)
                }
                // By key and not by slot: while a slot is on the move, a call on several of its keys may be refused.
                Link::Cluster(_) => {
                    let keys = by_key(charges);
                    worst(join_all(keys.iter().map(|undos| self.undo_of_key(undos, deadline))).await)
                }
            }
        }))
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64> {
        if keys.is_empty() {
            return Reply::Ready(Ok(0));
        }
        Reply::Pending(Box::pin(async move {
            match &self.link {
                Link::One(_) => self.delete(keys, deadline).await,
                Link::Cluster(_) => {
                    let mut gone = 0;
                    for deleted in join_all(keys.chunks(1).map(|key| self.delete(key, deadline))).await {
                        gone += deleted?;
                    }
                    Ok(gone)
                }
            }
        }))
    }

    /// Of a cluster, the clock is that of the first key's node.
    fn peek<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, Peeked> {
        Reply::Pending(Box::pin(async move {
            let now = match self.now {
                Some(now) => now,
                None => self.time(keys.first().map_or("", |(key, _)| key), deadline).await?,
            };
            let mut states = Vec::with_capacity(keys.len());
            for state in join_all(keys.iter().map(|(key, limit)| self.state(key, limit, deadline))).await {
                states.push(state?);
            }
            Ok(Peeked { now, states })
        }))
    }

    /// A cluster answers when every slot has a master and every master answers.
    fn ping(&self, deadline: Instant) -> Reply<'_, ()> {
        Reply::Pending(Box::pin(async move {
            match &self.link {
                Link::One(node) => node.ping(deadline).await,
                Link::Cluster(cluster) => cluster.ping(deadline).await,
            }
            .map_err(store_error)
        }))
    }

    /// Afterwards there is a connection to each server, and each knows our scripts: the first decision costs one round
    /// trip, as those after it.
    fn prepare(&self, deadline: Instant) -> Reply<'_, ()> {
        Reply::Pending(Box::pin(async move {
            self.ping(deadline).get().await?;
            self.load_scripts(deadline).await;
            Ok(())
        }))
    }

    fn advice(&self, deadline: Instant) -> Reply<'_, Vec<String>> {
        Reply::Pending(Box::pin(async move {
            let told = match &self.link {
                Link::One(node) => vec![(node.address().to_owned(), node.ask(advice::question(), deadline).await)],
                Link::Cluster(cluster) => cluster.ask_all(advice::question, deadline).await,
            };
            let mut sentences = Vec::new();
            for (address, answer) in told {
                match answer {
                    Ok(Value::BulkString(info)) => {
                        sentences.extend(advice::warning(&address, &String::from_utf8_lossy(&info)));
                    }
                    // Whoever may not ask is told nothing, and that is no error.
                    Ok(_) | Err(CallError::Refused(_)) => {}
                    Err(error) => return Err(store_error(error)),
                }
            }
            Ok(sentences)
        }))
    }

    fn lacks(&self, deadline: Instant) -> Reply<'_, Option<String>> {
        Reply::Pending(Box::pin(async move {
            let key = self.prefixed("w1:{weir}start");
            let mut missing: Vec<(String, Vec<&'static str>)> = Vec::new();
            for (name, command) in lacks::trials(&key) {
                let answers = match &self.link {
                    Link::One(node) => {
                        vec![(node.address().to_owned(), node.ask(lacks::call(&command), deadline).await)]
                    }
                    Link::Cluster(cluster) => cluster.ask_all(|| lacks::call(&command), deadline).await,
                };
                for (address, answer) in answers {
                    if lacks::is_lack(&answer) {
                        match missing.iter_mut().find(|(known, _)| *known == address) {
                            Some((_, names)) => names.push(name),
                            None => missing.push((address, vec![name])),
                        }
                    }
                }
            }
            Ok(missing.first().map(|(address, names)| lacks::sentence(address, names)))
        }))
    }

    fn supports(&self, _limit: &Limit) -> Result<(), String> {
        Ok(())
    }

    fn died(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        match &self.link {
            Link::One(node) => Box::pin(node.died()),
            Link::Cluster(cluster) => Box::pin(cluster.died()),
        }
    }
}

/// The charges of each key, in their order.
fn by_key<'a>(charges: &[Undo<'a>]) -> Vec<Vec<Undo<'a>>> {
    let mut keys: Vec<Vec<Undo<'a>>> = Vec::new();
    for charge in charges {
        match keys.iter_mut().find(|undos| undos[0].key == charge.key) {
            Some(undos) => undos.push(*charge),
            None => keys.push(vec![*charge]),
        }
    }
    keys
}

/// How a call that takes charges back ended.
fn undone(reply: &Value, undos: &[Undo<'_>]) -> Result<(), StoreError> {
    wire::undo_rewindow(reply, undos).map_or(Ok(()), |now| Err(StoreError::Rewindow { now }))
}

/// How several calls ended together: one whose outcome is unknown says more than one that charged nothing.
fn worst(ends: Vec<Result<(), StoreError>>) -> Result<(), StoreError> {
    let mut worst = Ok(());
    for end in ends {
        let says_more = matches!((&worst, &end), (Err(error), Err(StoreError::Unknown(_))) if !matches!(error, StoreError::Unknown(_)));
        if worst.is_ok() || says_more {
            worst = end;
        }
    }
    worst
}

/// What a failed call means for a charge: whether it can have been made.
fn store_error(error: CallError) -> StoreError {
    let message = told(&error);
    match error {
        CallError::NotSent { reason } => StoreError::NotSent(Failure { kind: kind_of(&reason), message }),
        CallError::Unknown { reason } => StoreError::Unknown(Failure { kind: kind_of(&reason), message }),
        CallError::Refused(answer) => {
            let refusal = Refusal::of(&answer);
            let failure = Failure { kind: refusal.kind, message };
            if refusal.proves_nothing_ran(&answer) {
                StoreError::NotSent(failure)
            } else {
                StoreError::Unknown(failure)
            }
        }
    }
}

/// What a caller of weir is told: a sentence of ours. What the server said, and where it is, is for the log.
fn told(error: &CallError) -> String {
    match error {
        CallError::NotSent { reason: Reason::NoConnection(error) } => {
            format!("not sent to redis: no connection ({})", error.kind())
        }
        CallError::Unknown { reason: Reason::Broken(_) } => {
            "sent to redis, outcome unknown: the connection broke".to_owned()
        }
        CallError::NotSent { reason: Reason::Broken(_) } => "not sent to redis: the connection broke".to_owned(),
        CallError::NotSent { .. } | CallError::Unknown { .. } | CallError::Refused(_) => error.to_string(),
    }
}

const fn kind_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::QueueFull { .. } => "queue_full",
        Reason::Deadline => "deadline",
        Reason::NoConnection(error) => error.kind(),
        Reason::Broken(_) => "broken",
        Reason::CircuitOpen => "circuit_open",
        Reason::NoNode { .. } => "no_node",
    }
}

/// Whoever decides splits the charges by [`Store::part_of`] first.
fn several_slots(charges: usize) -> StoreError {
    let message = format!("the {charges} charges of one call lie in several slots of the redis cluster");
    StoreError::NotSent(Failure { kind: "crossslot", message })
}

/// The kinds of failure that are no answers of Redis: with those of [`refusal::REFUSALS`] all that a decision can end with.
pub const KINDS: [&str; 9] =
    ["no_connection", "broken", "deadline", "queue_full", "circuit_open", "reply", "no_node", "rewindow", TOO_HEAVY];

fn strange_reply() -> StoreError {
    let message = "redis answered in a form that no script of ours has".into();
    StoreError::Unknown(Failure { kind: "reply", message })
}

fn strange_state(key: &str) -> StoreError {
    let message = format!("the value of the key {key:?} in redis was not written by this version");
    StoreError::NotSent(Failure { kind: "state", message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_kind_that_is_shown_before_it_happens() {
        let refused = || DialError::new("a:1".into(), connection::NO_CONNECTION, "refused".into());
        // One after the other: the compiler asks for the place of a new one.
        let next = |reason: &Reason| match reason {
            Reason::QueueFull { .. } => Some(Reason::Deadline),
            Reason::Deadline => Some(Reason::NoConnection(refused())),
            Reason::NoConnection(_) => Some(Reason::Broken("reset".into())),
            Reason::Broken(_) => Some(Reason::NoNode { slot: 0, why: "unknown".into() }),
            Reason::NoNode { .. } => Some(Reason::CircuitOpen),
            Reason::CircuitOpen => None,
        };
        let reasons = std::iter::successors(Some(Reason::QueueFull { max: 1 }), next);
        let mut kinds: Vec<&str> = reasons.map(|reason| kind_of(&reason)).collect();
        let StoreError::Unknown(reply) = strange_reply() else { panic!("a script has run") };
        kinds.extend([reply.kind, StoreError::Rewindow { now: 0 }.kind(), TOO_HEAVY]);
        kinds.sort_unstable();
        let mut shown = KINDS;
        shown.sort_unstable();
        assert_eq!(kinds, shown);
        // What is ours to say, though Redis says it too.
        let is_answer = |kind: &str| refusal::REFUSALS.iter().any(|row| row.kind == kind);
        let (StoreError::NotSent(slots), StoreError::NotSent(state)) = (several_slots(2), strange_state("k")) else {
            panic!("nothing was charged");
        };
        assert!(is_answer(slots.kind) && is_answer(state.kind));
    }
}
