//! Redis: states that replicas share and that outlive a process, until they expire. [rd-1] [rd-2]
//!
//! Each decision is one call of one script, so that it is atomic and costs one round trip, which it shares with the
//! other decisions in flight. Not here: connections (redis/pool.rs), batching and deadlines (redis/pipeline.rs), when a
//! failing Redis is left alone (redis/node.rs), what its errors mean (redis/refusal.rs), and the format of calls and
//! replies (redis/wire.rs).

pub mod breaker;
mod connection;
mod endpoint;
mod files;
pub mod node;
pub mod pipeline;
pub mod pool;
pub mod refusal;
mod sentinel;
mod tls;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use redis::{Cmd, Value};

use self::node::Node;
use self::pipeline::{Call, CallError, Options, Reason};
use self::refusal::Refusal;
use super::{Failure, Peeked, Reply, Store, StoreError, Undo};
use crate::engine::{Charge, Decision, Limit, Micros, Mode, decision};

/// States in one Redis: one of these for each runtime that decides.
pub struct Redis {
    node: Node,
    key_prefix: Box<str>,
    /// Stands for the server's clock in tests.
    now: Option<Micros>,
}

impl Redis {
    /// Starts its tasks on the current runtime. Nothing is dialled before the first call.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and when one of the numbers in `options` is out of its bounds.
    #[must_use]
    pub fn start(options: Options, key_prefix: &str) -> Self {
        Self { node: Node::start(options), key_prefix: key_prefix.into(), now: None }
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

    async fn command(&self, command: Cmd, deadline: Instant) -> Result<Value, StoreError> {
        self.node.call(Call::command(command), deadline).await.map_err(store_error)
    }
}

impl Store for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], mode: Mode, deadline: Instant) -> Reply<'a, Decision> {
        Reply::Pending(Box::pin(async move {
            let (slots, firsts) = decision::slots(charges);
            let call = wire::decide_call(&self.key_prefix, charges, &slots, &firsts, mode, self.now);
            let reply = self.node.call(call, deadline).await.map_err(store_error)?;
            match wire::read_decision(&reply, charges).ok_or_else(strange_reply)? {
                wire::Reply::Found(now, found) => Ok(decision::settle(charges, &slots, &found, mode, now)),
                wire::Reply::Rewindow(now) => Err(StoreError::Rewindow { now }),
            }
        }))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()> {
        if charges.is_empty() {
            return Reply::Ready(Ok(()));
        }
        Reply::Pending(Box::pin(async move {
            for call in wire::undo_calls(&self.key_prefix, charges, self.now) {
                self.node.call(call, deadline).await.map_err(store_error)?;
            }
            Ok(())
        }))
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64> {
        if keys.is_empty() {
            return Reply::Ready(Ok(0));
        }
        Reply::Pending(Box::pin(async move {
            let mut command = redis::cmd("DEL");
            for key in keys {
                command.arg(format!("{}{key}", self.key_prefix));
            }
            let reply = self.command(command, deadline).await?;
            wire::integer(&reply).ok_or_else(strange_reply)
        }))
    }

    fn peek<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, Peeked> {
        Reply::Pending(Box::pin(async move {
            let now = match self.now {
                Some(now) => now,
                None => self.time(deadline).await?,
            };
            let mut states = Vec::with_capacity(keys.len());
            for (key, limit) in keys {
                let command = wire::peek_command(limit, &format!("{}{key}", self.key_prefix));
                let value = self.command(command, deadline).await?;
                states.push(wire::read_stored(limit, &value).map_err(|wire::NotOurs| strange_state(key))?);
            }
            Ok(Peeked { now, states })
        }))
    }

    fn ping(&self, deadline: Instant) -> Reply<'_, ()> {
        Reply::Pending(Box::pin(async move { self.node.ping(deadline).await.map_err(store_error) }))
    }

    fn supports(&self, _limit: &Limit) -> Result<(), String> {
        Ok(())
    }

    fn died(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(self.node.died())
    }
}

impl Redis {
    async fn time(&self, deadline: Instant) -> Result<Micros, StoreError> {
        let reply = self.command(redis::cmd("TIME"), deadline).await?;
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

/// What a failed call means for a charge: whether it can have been made.
fn store_error(error: CallError) -> StoreError {
    let message = error.to_string();
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

const fn kind_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::QueueFull { .. } => "queue_full",
        Reason::Deadline => "deadline",
        Reason::NoConnection(error) => error.kind(),
        Reason::Broken(_) => "broken",
        Reason::CircuitOpen => "circuit_open",
    }
}

fn strange_reply() -> StoreError {
    let message = "redis answered in a form that no script of ours has".into();
    StoreError::Unknown(Failure { kind: "reply", message })
}

fn strange_state(key: &str) -> StoreError {
    let message = format!("the value of the key {key:?} in redis was not written by this version");
    StoreError::NotSent(Failure { kind: "state", message })
}
