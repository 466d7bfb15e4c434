//! Redis: states that replicas share. They outlive a process until they expire. [rd-1] [rd-2]
//!
//! Each decision is one call of one script: it is atomic, and costs one round trip, which it shares with the other
//! decisions in flight. This file implements only `Store` and its parts. Each of its folders uses only those after it: checks,
//! routing and scripts (independent of each other), transport, dial, base.

mod base;
mod checks;
mod dial;
mod failure;
mod routing;
mod scripts;
mod transport;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use redis::{Value, from_redis_value};
use weir_engine::{Charge, Decision, Limit, Micros, Mode, State, decision};

pub use self::base::dial_error::DialError;
pub use self::base::error_class;
use self::base::error_class::WRONG_TYPE;
pub use self::base::observer::RedisObserver;
use self::checks::{clock, commands, eviction};
pub use self::dial::connection::REPLIES_BYTES_MAX;
pub use self::dial::endpoint::{Endpoint, EndpointError, PASSWORD_FILE_BYTES_MAX};
pub use self::dial::fuzz::replies;
pub use self::dial::sentinel::Sentinels;
pub use self::dial::target::RedisTarget;
pub use self::failure::KINDS;
use self::failure::{foreign_state, malformed_reply, several_slots, store_error};
pub use self::routing::cluster::fuzz::map;
use self::routing::cluster::{Cluster, slot};
use self::routing::node::Node;
pub use self::routing::{breaker, node};
use self::scripts::decode::{self, DecisionReply, FoundStates};
pub use self::scripts::library::{ScriptText, scripts};
use self::scripts::{encode, library, overrides, rows, scan};
use self::transport::call::Call;
use self::transport::error::CallError;
pub use self::transport::options::MERGE_MAX;
use self::transport::options::Options;
use self::transport::script::Script;
pub use self::transport::{pipeline, turns};
use super::{
    Before, Deciding, Findings, Inspected, Reply, RowChange, RowChanged, RowRead, ScanPosition, Scanned, StatesRead,
    Store, StoreError, StoredOverrides, Texts, Undo, key_indices,
};

/// States in one Redis, or in the nodes of one Redis Cluster. Each runtime that decides has its own.
pub struct Redis {
    link: Link,
    /// Whether a call can use the keys of one slot only.
    is_by_slot: bool,
    key_prefix: Box<str>,
    observer: Arc<dyn RedisObserver>,
    /// Replaces the server's clock in tests of weir and of policies; 0: the server's clock.
    now: AtomicU64,
}

/// The path of the calls.
enum Link {
    One(Node),
    Cluster(Cluster),
}

impl Link {
    /// Asks each server the same question, and returns each address with its answer. Bypasses the circuit breakers,
    /// because no decision waits for the answers.
    async fn ask_all(&self, question: impl Fn() -> Call, deadline: Instant) -> Vec<(String, Result<Value, CallError>)> {
        match self {
            Self::One(node) => vec![(node.address().to_owned(), node.ask(question(), deadline).await)],
            Self::Cluster(cluster) => cluster.ask_all(question, deadline).await,
        }
    }
}

impl Redis {
    /// Starts the store's tasks on the current runtime. Dials nothing before the first call.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and when one of the numbers in `options` is out of its bounds.
    #[must_use]
    pub fn start(options: Options, key_prefix: &str) -> Self {
        let observer = options.observer.clone();
        Self::of(Link::One(Node::start(options)), false, key_prefix, observer)
    }

    /// As [`Redis::start`], for one address in front of a cluster: each call has keys of one slot, so calls are not merged.
    #[must_use]
    pub fn start_proxy(options: Options, key_prefix: &str) -> Self {
        let observer = options.observer.clone();
        Self::of(Link::One(Node::start(Options { merge_max: 0, ..options })), true, key_prefix, observer)
    }

    /// As [`Redis::start`], for a Redis Cluster. Any of the `seeds` can return the map; they share their login. Each
    /// node with slots has a pipeline with these `options` (except the target), made when the map first has the node.
    /// Panics as [`Redis::start`], and without seeds.
    #[must_use]
    pub fn start_cluster(seeds: Vec<Endpoint>, options: Options, key_prefix: &str) -> Self {
        let observer = options.observer.clone();
        Self::of(Link::Cluster(Cluster::start(seeds, options)), true, key_prefix, observer)
    }

    fn of(link: Link, is_by_slot: bool, key_prefix: &str, observer: Arc<dyn RedisObserver>) -> Self {
        Self { link, is_by_slot, key_prefix: key_prefix.into(), observer, now: AtomicU64::new(0) }
    }

    /// The same store with a time that the caller sets. Tests use a time in the future, so no key expires.
    #[must_use]
    pub fn at(self, now: Micros) -> Self {
        self.set_now(now);
        self
    }

    /// Moves the time that [`Redis::at`] set.
    pub fn set_now(&self, now: Micros) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// The time that the caller has set; None: the server's clock.
    fn now(&self) -> Option<Micros> {
        Some(self.now.load(Ordering::Relaxed)).filter(|now| *now > 0)
    }

    /// Runs the call that `call` makes, on the server of `key`. May make it several times, but runs it at most once.
    async fn call(&self, key: &str, call: impl Fn() -> Call, deadline: Instant) -> Result<Value, StoreError> {
        let answer = match &self.link {
            Link::One(node) => node.call(call(), deadline).await,
            Link::Cluster(cluster) => cluster.call(slot::of(&self.key_prefix, key), call, deadline).await,
        };
        answer.map_err(store_error)
    }

    /// Reads the answer to a decision's call.
    fn decision(
        &self,
        answer: Result<Value, CallError>,
        before: Before<'_>,
        charges: &[Charge<'_>],
        places: &[u16],
        mode: Mode,
    ) -> Result<Decision, StoreError> {
        let reply = answer.map_err(store_error)?;
        let (mut found, mut given_back) = (FoundStates::new(), Vec::new());
        match decode::read_decision(&reply, before, charges, &mut found, &mut given_back) {
            Some(DecisionReply::Found(now)) => {
                let mut decision = decision::evaluate(charges, places, &found, mode, now);
                decision.given_back = given_back;
                Ok(decision)
            }
            Some(DecisionReply::StaleBounds(now)) => Err(StoreError::StaleBounds { now }),
            Some(DecisionReply::StaleRow(found)) => Err(StoreError::StaleRow { found }),
            None => {
                self.observer.strange_reply();
                Err(malformed_reply())
            }
        }
    }

    /// Runs a call about overrides. The circuit breaker of one server is bypassed, because no decision waits for the
    /// call.
    async fn question(&self, call: impl Fn() -> Call, deadline: Instant) -> Result<Value, StoreError> {
        match &self.link {
            Link::One(node) => node.ask(call(), deadline).await.map_err(store_error),
            Link::Cluster(_) => self.call(overrides::VERSION_KEY, call, deadline).await,
        }
    }

    /// A key with the operator's prefix, as in Redis.
    fn prefixed(&self, key: &str) -> String {
        format!("{}{key}", self.key_prefix)
    }

    /// Loads the scripts on each server, before a call needs one. A failure, for example of a user without the right,
    /// does not matter: a call whose script is missing sends it.
    async fn load_scripts(&self, deadline: Instant) {
        let load = |script: &'static Script| self.link.ask_all(|| Call::command(script.load()), deadline);
        join_all(library::all().map(load)).await;
    }

    /// Sends the command to each server, and returns each answer. A connection can break for any reason, so a broken
    /// one is retried, up to [`commands::BREAKS`] attempts in total.
    async fn tried(&self, command: &redis::Cmd, deadline: Instant) -> Vec<(String, Result<Value, CallError>)> {
        let mut answers = Vec::new();
        for _ in 0..commands::BREAKS {
            answers = self.link.ask_all(|| Call::command(command.clone()), deadline).await;
            if !answers.iter().any(|(_, answer)| commands::is_broken(answer)) {
                break;
            }
        }
        answers
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
        decode::integer(&reply).ok_or_else(malformed_reply)
    }

    /// Takes back charges of one server, in their order. A charge of a log needs a separate call, one after the other,
    /// because a receipt may depend on the undos before it. If one fails, the others are still taken back.
    async fn undo_part(&self, undos: &[Undo<'_>], deadline: Instant) -> Result<(), StoreError> {
        let is_log = undos.iter().any(|undo| encode::is_undone_alone(undo.limit));
        let mut ends = Vec::new();
        for undos in undos.chunks(if is_log { 1 } else { undos.len() }) {
            let call = || encode::undo_call(&self.key_prefix, undos, self.now());
            let before = Before { undos, ..Before::default() };
            ends.push(self.call(undos[0].key, call, deadline).await.and_then(|reply| {
                match decode::read_decision(&reply, before, &[], &mut FoundStates::new(), &mut Vec::new()) {
                    Some(DecisionReply::StaleBounds(now)) => Err(StoreError::StaleBounds { now }),
                    // The undo of a log has a different reply.
                    _ => Ok(()),
                }
            }));
        }
        worst(ends)
    }

    async fn state(&self, key: &str, limit: &Limit, deadline: Instant) -> Result<Option<State>, StoreError> {
        let read = || Call::command(encode::peek_command(limit, &self.prefixed(key)));
        let mut value = self.call(key, read, deadline).await?;
        if matches!(&value, Value::BulkString(text) if text.is_empty()) {
            // A part of a text is empty if there is no text, too.
            value = self.call(key, || Call::command(redis::Cmd::get(self.prefixed(key))), deadline).await?;
        }
        decode::read_stored(limit, &value).map_err(|decode::ForeignValue| foreign_state(key))
    }

    /// The clock of the Redis that has `key`.
    async fn time(&self, key: &str, deadline: Instant) -> Result<Micros, StoreError> {
        let reply = self.call(key, || Call::command(redis::cmd("TIME")), deadline).await?;
        let (seconds, micros): (u64, u64) = from_redis_value(reply).map_err(|_| malformed_reply())?;
        let time = seconds.checked_mul(1_000_000).and_then(|time| time.checked_add(micros));
        time.filter(|time| *time < decode::NUMBERS_END).ok_or_else(malformed_reply)
    }
}

impl Store for Redis {
    fn texts(&self) -> Option<&dyn Texts> {
        Some(self)
    }
}

impl Deciding for Redis {
    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        deadline: Instant,
    ) -> Reply<'a, Decision> {
        let (places, firsts) = key_indices(charges, before.undos);
        let call = move |places: &[u16]| {
            encode::decide_call(&self.key_prefix, before, charges, places, &firsts, mode, self.now())
        };
        let row_keys = before.row_versions.iter().map(|row| row.key);
        let undo_keys = before.undos.iter().map(|undo| undo.key);
        let keys = charges.iter().map(|charge| charge.key).chain(undo_keys).chain(row_keys);
        let mut slots = keys.map(|key| self.slot_of(key));
        let slot = slots.next().unwrap_or_default();
        if self.is_by_slot && slots.any(|other| other != slot) {
            return Reply::Ready(Err(several_slots(charges.len())));
        }
        match &self.link {
            // The call is queued here, so that the future does not hold it.
            Link::One(node) => {
                let answer = node.call(call(&places), deadline);
                Reply::Pending(Box::pin(
                    answer.map(move |answer| self.decision(answer, before, charges, &places, mode)),
                ))
            }
            Link::Cluster(cluster) => Reply::Pending(Box::pin(async move {
                let answer = cluster.call(slot, || call(&places), deadline).await;
                self.decision(answer, before, charges, &places, mode)
            })),
        }
    }

    fn slot_of(&self, key: &str) -> u16 {
        if self.is_by_slot { slot::of(&self.key_prefix, key) } else { 0 }
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()> {
        if charges.is_empty() {
            return Reply::Ready(Ok(()));
        }
        Reply::Pending(Box::pin(async move {
            // One call for each key and not for each slot: while a slot is migrating, a call with several of its keys may
            // be refused.
            let has_own_call = |undo: &Undo<'_>| encode::is_undone_alone(undo.limit) || self.is_by_slot;
            let (alone, together): (Vec<_>, Vec<_>) = charges.iter().copied().partition(has_own_call);
            let mut parts = by_key(&alone);
            if !together.is_empty() {
                parts.push(together);
            }
            worst(join_all(parts.iter().map(|undos| self.undo_part(undos, deadline))).await)
        }))
    }
}

impl Texts for Redis {
    fn read_rows<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, Vec<RowRead>> {
        Reply::Pending(Box::pin(async move {
            let read = async |key: &&str| match self.call(key, || rows::read_call(&self.prefixed(key)), deadline).await
            {
                Ok(reply) => rows::read_reply(&reply).ok_or_else(malformed_reply),
                Err(error) if error.kind() == WRONG_TYPE => Ok(RowRead::Foreign { version: 0 }),
                Err(error) => Err(error),
            };
            join_all(keys.iter().map(read)).await.into_iter().collect()
        }))
    }

    fn change_rows<'a>(
        &'a self,
        changes: &'a [(&'a str, RowChange<'a>)],
        deadline: Instant,
    ) -> Reply<'a, Vec<Result<RowChanged, StoreError>>> {
        Reply::Pending(Box::pin(async move {
            let change = async |(key, change): &(&str, RowChange<'_>)| match self
                .call(key, || rows::change_call(&self.prefixed(key), *change), deadline)
                .await
            {
                Ok(reply) => rows::change_reply(&reply).ok_or_else(malformed_reply),
                Err(error) if error.kind() == WRONG_TYPE => Ok(RowChanged::Kept),
                Err(error) => Err(error),
            };
            Ok(join_all(changes.iter().map(change)).await)
        }))
    }

    fn read_overrides<'a>(&'a self, known: &'a str, deadline: Instant) -> Reply<'a, Option<StoredOverrides>> {
        Reply::Pending(Box::pin(async move {
            let reply = self.question(|| overrides::read_call(&self.key_prefix, known), deadline).await?;
            overrides::read_reply(reply).ok_or_else(malformed_reply)
        }))
    }

    fn write_overrides<'a>(&'a self, known: &'a str, with: &'a StoredOverrides, deadline: Instant) -> Reply<'a, bool> {
        Reply::Pending(Box::pin(async move {
            let reply = self.question(|| overrides::write_call(&self.key_prefix, known, with), deadline).await?;
            overrides::write_reply(&reply).ok_or_else(malformed_reply)
        }))
    }
}

impl Inspected for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn place(&self) -> Option<&str> {
        match &self.link {
            Link::One(node) => Some(node.address()),
            Link::Cluster(_) => None,
        }
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64> {
        if keys.is_empty() {
            return Reply::Ready(Ok(0));
        }
        Reply::Pending(Box::pin(async move {
            let in_one_call = if self.is_by_slot { 1 } else { keys.len() };
            let mut gone = 0;
            for deleted in join_all(keys.chunks(in_one_call).map(|keys| self.delete(keys, deadline))).await {
                gone += deleted?;
            }
            Ok(gone)
        }))
    }

    /// On a cluster, the clock is that of the first key's node.
    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, StatesRead> {
        Reply::Pending(Box::pin(async move {
            let now = match self.now() {
                Some(now) => now,
                None => self.time(keys.first().map_or("", |(key, _)| key), deadline).await?,
            };
            let mut states = Vec::with_capacity(keys.len());
            for state in join_all(keys.iter().map(|(key, limit)| self.state(key, limit, deadline))).await {
                states.push(state?);
            }
            Ok(StatesRead { now, states })
        }))
    }

    /// The shards are the nodes of a cluster. The circuit breaker is bypassed, because no caller of weir waits for this
    /// call.
    fn scan<'a>(&'a self, prefix: &'a str, from: ScanPosition, deadline: Instant) -> Reply<'a, Scanned> {
        Reply::Pending(Box::pin(async move {
            let step = || scan::call(&self.prefixed(prefix), from.at);
            let answer = match &self.link {
                Link::One(node) => node.ask(step(), deadline).await,
                Link::Cluster(cluster) => match cluster.ask_one(from.shard as usize, step, deadline).await {
                    Some(answer) => answer,
                    None => return Ok(Scanned::default()),
                },
            };
            let (cursor, keys) = scan::read(answer.map_err(store_error)?).ok_or_else(malformed_reply)?;
            let without_prefix = |key: String| key.strip_prefix(&*self.key_prefix).map(str::to_owned);
            let next = match (cursor, &self.link) {
                (0, Link::One(_)) => None,
                (0, Link::Cluster(_)) => Some(ScanPosition { shard: from.shard + 1, at: 0 }),
                (at, _) => Some(ScanPosition { shard: from.shard, at }),
            };
            Ok(Scanned { keys: keys.into_iter().filter_map(without_prefix).collect(), next })
        }))
    }

    /// A cluster answers if every slot has a master and every master answers.
    fn ping(&self, deadline: Instant) -> Reply<'_, ()> {
        Reply::Pending(Box::pin(async move {
            match &self.link {
                Link::One(node) => node.ping(deadline).await,
                Link::Cluster(cluster) => cluster.ping(deadline).await,
            }
            .map_err(store_error)
        }))
    }

    /// Afterwards each server has a connection and the scripts. So the first decision costs one round trip, like later
    /// ones.
    fn prepare(&self, deadline: Instant) -> Reply<'_, ()> {
        Reply::Pending(Box::pin(async move {
            self.ping(deadline).get().await?;
            self.load_scripts(deadline).await;
            Ok(())
        }))
    }

    fn findings(&self, deadline: Instant) -> Reply<'_, Findings> {
        Reply::Pending(Box::pin(async move {
            let mut found = Findings::default();
            // A server without an answer hides nothing about the others.
            let (mut has_answer, mut silent) = (false, None);
            for (address, answer) in self.link.ask_all(eviction::question, deadline).await {
                match permitted(answer) {
                    Ok(Value::BulkString(info)) => {
                        has_answer = true;
                        found.evicting.extend(eviction::warning(&address, &String::from_utf8_lossy(&info)));
                    }
                    Ok(_) => has_answer = true,
                    Err(error) => silent = Some(error),
                }
            }
            if let Some(error) = silent.filter(|_| !has_answer) {
                return Err(error);
            }
            let asked = SystemTime::now();
            let answers = self.link.ask_all(clock::question, deadline).await;
            let answered = SystemTime::now();
            for (address, answer) in answers {
                let Some(theirs) = answer.ok().and_then(|answer| clock::read(&answer)) else { continue };
                let difference = clock::difference(theirs, asked, answered);
                found.clock_difference = found.clock_difference.max(difference);
                found.clocks.extend(clock::warning(&address, theirs, answered, difference));
            }
            Ok(found)
        }))
    }

    fn lacks(&self, deadline: Instant) -> Reply<'_, Option<String>> {
        Reply::Pending(Box::pin(async move {
            let key = self.prefixed("w1:{weir}start");
            let mut missing: Vec<(String, Vec<&'static str>)> = Vec::new();
            for (name, command) in commands::trials(&key) {
                for (address, answer) in self.tried(&command, deadline).await {
                    match answer {
                        answer if commands::is_lack(&answer) => {
                            match missing.iter_mut().find(|(known, _)| *known == address) {
                                Some((_, names)) => names.push(name),
                                None => missing.push((address, vec![name])),
                            }
                        }
                        Ok(_) | Err(CallError::Refused(_)) => {}
                        Err(error) => return Err(store_error(error)),
                    }
                }
            }
            if let Some((address, names)) = missing.first() {
                return Ok(Some(commands::sentence(address, names)));
            }
            let Link::One(node) = &self.link else { return Ok(None) };
            if self.is_by_slot {
                return Ok(None);
            }
            let other = self.prefixed("w1:{start}weir");
            let answer = node.ask(Call::command(commands::two_slots([&key, &other])), deadline).await;
            Ok(commands::slots_sentence(node.address(), &answer))
        }))
    }

    fn died(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        match &self.link {
            Link::One(node) => Box::pin(node.died()),
            Link::Cluster(cluster) => Box::pin(cluster.died()),
        }
    }
}

/// The answer, or none if weir's user has no right to the command, which is not an error.
fn permitted(answer: Result<Value, CallError>) -> Result<Value, StoreError> {
    match answer {
        Err(CallError::Refused(_)) => Ok(Value::Nil),
        answer => answer.map_err(store_error),
    }
}

/// The charges of each key, in their order.
fn by_key<'a>(charges: &[Undo<'a>]) -> Vec<Vec<Undo<'a>>> {
    let (places, firsts) = decision::indices_of(charges.len(), |i| charges[i].key);
    let mut keys = vec![Vec::new(); firsts.len()];
    for (charge, place) in charges.iter().zip(places) {
        keys[usize::from(place)].push(*charge);
    }
    keys
}

/// The combined result of several calls. An unknown outcome outranks a call that charged nothing.
fn worst(ends: Vec<Result<(), StoreError>>) -> Result<(), StoreError> {
    let mut worst: Result<(), StoreError> = Ok(());
    for end in ends {
        let says_more = matches!((&worst, &end), (Err(error), Err(other)) if other.is_unknown() && !error.is_unknown());
        if worst.is_ok() || says_more {
            worst = end;
        }
    }
    worst
}
