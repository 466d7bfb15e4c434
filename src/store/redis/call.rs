//! One call of Redis, and how it can fail.
//!
//! Not in here: how calls are sent (pipeline.rs), and what an error of Redis means (refusal.rs).

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, ServerError, ServerErrorKind, Value};

use super::pool::DialError;

/// A Lua script, known to Redis by its SHA-1.
///
/// Meant for a `static`: `static DECIDE: LazyLock<Script> = LazyLock::new(|| Script::new(CODE));`
#[derive(Debug)]
pub struct Script {
    pub(super) code: &'static str,
    pub(super) sha1: String,
}

impl Script {
    /// Computes the name of the script, once.
    #[must_use]
    pub fn new(code: &'static str) -> Script {
        Script { code, sha1: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The SHA-1 of the code, in 40 lower case hexadecimal digits.
    #[must_use]
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// One command that has one answer: no subscriptions, no transactions, and none that blocks. Shows
/// itself without its keys and arguments, which may be personal data.
pub struct Call {
    pub(super) command: Cmd,
    pub(super) script: Option<&'static Script>,
    /// ASKING goes right before it.
    pub(super) asking: bool,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("script", &self.script.map(Script::sha1)).finish_non_exhaustive()
    }
}

impl Call {
    /// A run of `script`, by EVALSHA.
    pub fn script<K, A>(script: &'static Script, keys: &[K], args: &[A]) -> Call
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        const NAME: &str = "EVALSHA";
        const KEY_COUNT_DIGITS: usize = 4;
        let mut bytes = NAME.len() + script.sha1.len() + KEY_COUNT_DIGITS;
        for key in keys {
            bytes += key.as_ref().len();
        }
        for arg in args {
            bytes += arg.as_ref().len();
        }
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), bytes);
        command.arg(NAME).arg(&script.sha1).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        Call { command, script: Some(script), asking: false }
    }

    /// Any other command.
    ///
    /// # Panics
    ///
    /// When `command` has not even a name: Redis does not answer that.
    #[must_use]
    pub fn command(command: Cmd) -> Call {
        assert!(command.args_iter().len() > 0, "a command has a name");
        Call { command, script: None, asking: false }
    }

    /// The same call for a node of a cluster that is taking the call's slot over. The node serves it only if
    /// ASKING was the command before it on the same connection, so that one travels with the call each time
    /// that it is sent.
    #[must_use]
    pub fn asking(mut self) -> Call {
        self.asking = true;
        self
    }

    /// Appends the command to a request, ASKING before it where that is due.
    pub(super) fn add_to(&mut self, request: &mut redis::Pipeline) {
        if self.asking {
            request.cmd("ASKING");
        }
        request.add_command(std::mem::take(&mut self.command));
    }

    /// Takes what this call was answered, and the command, off what the whole request was answered and sent.
    pub(super) fn take_answer<'a>(
        &self,
        answers: &mut impl Iterator<Item = Value>,
        commands: &mut impl Iterator<Item = &'a Cmd>,
    ) -> Option<(Value, &'a Cmd)> {
        if !self.asking {
            return answers.next().zip(commands.next());
        }
        let (asking, _) = answers.next().zip(commands.next())?;
        let (answer, command) = answers.next().zip(commands.next())?;
        // Where ASKING itself was refused the call is sent back to where it came from: the reason says more.
        let sent_back = matches!(&answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::Moved));
        let refused = matches!(asking, Value::ServerError(_));
        Some((if sent_back && refused { asking } else { answer }, command))
    }
}

/// Why a call has no answer that can be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// It was not run: nothing was written, or Redis said that it did not run. May be tried again.
    #[error("not sent to redis: {reason}")]
    NotSent {
        /// What stood in the way.
        reason: Reason,
    },
    /// It may have been written and no answer was read: it ran once or not at all. Never to be tried
    /// again.
    #[error("sent to redis, outcome unknown: {reason}")]
    Unknown {
        /// Why no answer was read.
        reason: Reason,
    },
    /// Redis answered with an error.
    #[error("refused by redis: {} {}", .0.code(), .0.details().unwrap_or_default())]
    Refused(ServerError),
}

/// What kept a call from its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Reason {
    /// As many calls wait as may wait.
    #[error("the queue is full ({max} calls)")]
    QueueFull {
        /// The bound.
        max: usize,
    },
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The deadline has passed, and there was no connection to send it on.
    #[error("{0}")]
    NoConnection(DialError),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// No node of the cluster is known to hold the key's slot.
    #[error("no node of the redis cluster is known to hold slot {slot}: {why}")]
    NoNode {
        /// The slot, below 16,384.
        slot: u16,
        /// What the cluster said last, or why it said nothing.
        why: Arc<str>,
    },
    /// Redis has failed too often lately, and is left alone until it answers again.
    #[error("the circuit breaker is open")]
    CircuitOpen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_as_redis_names_it() {
        // `redis-cli script load "return 1"` answers this.
        let script = Script::new("return 1");
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
