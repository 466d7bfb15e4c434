//! One call to Redis: a command, and what of it has to be known to send it, to merge it with others and to find its answer.
//!
//! Not here: when it is sent and what happens to its answer (queue.rs, worker.rs), and what its arguments mean (scripts).

use std::fmt;
use std::io::Write as _;

use redis::{Cmd, RedisWrite, ServerErrorKind, ToRedisArgs, Value};
use smallvec::SmallVec;

use super::options::MERGE_MAX;

/// One command that has one answer: no subscriptions, no transactions, and none that blocks. Shows
/// itself without its keys and arguments, which may be personal data.
pub struct Call {
    pub(crate) command: Cmd,
    pub(crate) script: Option<&'static Script>,
    /// ASKING is sent right before it.
    pub(crate) asking: bool,
    /// How it can be merged with others, if it can.
    pub(crate) mergeable: Option<Mergeable>,
    /// The most work that it can be for Redis; see src/engine/weight.rs.
    pub(crate) weight: u32,
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
        K: AsRef<str>,
        A: AsRef<[u8]>,
    {
        Self::script_on(script, "", keys.iter().map(AsRef::as_ref), args)
    }

    /// The same on keys that begin with `prefix`.
    pub fn script_on<'k, A>(
        script: &'static Script,
        prefix: &str,
        keys: impl ExactSizeIterator<Item = &'k str> + Clone,
        args: &[A],
    ) -> Call
    where
        A: AsRef<[u8]>,
    {
        const NAME: &str = "EVALSHA";
        const KEY_COUNT_DIGITS: usize = 4;
        let mut bytes = NAME.len() + script.sha1.len() + KEY_COUNT_DIGITS;
        for key in keys.clone() {
            bytes += prefix.len() + key.len();
        }
        for arg in args {
            bytes += arg.as_ref().len();
        }
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), bytes);
        command.arg(NAME).arg(&script.sha1).arg(keys.len());
        for key in keys {
            command.arg(Prefixed { prefix, key });
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        Call { command, script: Some(script), asking: false, mergeable: None, weight: 0 }
    }

    /// Any other command.
    ///
    /// # Panics
    ///
    /// When `command` has not even a name: Redis does not answer that.
    #[must_use]
    pub fn command(command: Cmd) -> Call {
        assert!(command.args_iter().len() > 0, "a command has a name");
        Call { command, script: None, asking: false, mergeable: None, weight: 0 }
    }

    /// The same call, which can be merged with others of its kind.
    pub(crate) fn mergeable(mut self, how: Option<Mergeable>) -> Call {
        self.mergeable = how;
        self
    }

    /// The same call with a weight.
    #[must_use]
    pub fn weighing(mut self, weight: u32) -> Call {
        self.weight = weight;
        self
    }

    /// The same call for a node of a cluster that is taking over the call's slot. The node serves it only if
    /// ASKING was the command before it on the same connection, so ASKING goes with the call each time.
    #[must_use]
    pub fn asking(mut self) -> Call {
        self.asking = true;
        self
    }

    /// Appends the command to a request, ASKING before it where that is due.
    pub(crate) fn add_to(&mut self, request: &mut redis::Pipeline) {
        if self.asking {
            request.cmd("ASKING");
        }
        request.add_command(std::mem::take(&mut self.command));
    }

    /// Takes the answer to this call, and its command, off the answers to the whole request and its commands.
    pub(crate) fn take_answer<'a>(
        &self,
        answers: &mut impl Iterator<Item = Value>,
        commands: &mut impl Iterator<Item = &'a Cmd>,
    ) -> Option<(Value, &'a Cmd)> {
        if !self.asking {
            return answers.next().zip(commands.next());
        }
        let (asking, _) = answers.next().zip(commands.next())?;
        let (answer, command) = answers.next().zip(commands.next())?;
        // Where Redis refused ASKING itself, the call is sent back to where it came from. The refusal says more.
        let sent_back = matches!(&answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::Moved));
        let refused = matches!(asking, Value::ServerError(_));
        Some((if sent_back && refused { asking } else { answer }, command))
    }
}

/// How a call can be merged with others into one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mergeable {
    /// What merges it. All calls that can be merged have the same one.
    pub(crate) merger: &'static dyn Merger,
    /// What the merger has to know of the call's kind.
    pub(crate) kind: u8,
    /// How many charges the call makes.
    pub(crate) charges: u16,
    /// How many of the numbers in the answer to the merged command are for this call.
    pub(crate) replies: usize,
}

/// Merges calls that wait together into one command, and splits its answer.
pub(crate) trait Merger: fmt::Debug + Send + Sync {
    /// How many of `calls`, from the first on and at most `max`, one command makes, and the command. None: the first goes
    /// alone.
    fn merge(&self, calls: &mut dyn Iterator<Item = &Call>, max: usize) -> Option<(usize, Cmd)>;

    /// The script that the command runs.
    fn script(&self) -> &'static Script;

    /// The answer of each call, in order, from the answer to the command. Nil if that has the wrong form.
    fn split(&self, calls: &mut dyn Iterator<Item = &Call>, answer: Vec<Value>) -> SmallVec<[Value; MERGE_MAX]>;
}

/// A Lua script, known to Redis by its SHA-1.
///
/// Meant for a `static`: `static DECIDE: LazyLock<Script> = LazyLock::new(|| Script::new("decide", CODE));`
#[derive(Debug)]
pub struct Script {
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    pub(crate) sha1: String,
}

impl Script {
    /// Computes the hash of the script, once.
    #[must_use]
    pub fn new(name: &'static str, code: &'static str) -> Script {
        Script { name, code, sha1: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The call that makes it known to Redis.
    pub(crate) fn load(&self) -> Call {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.code);
        Call::command(command)
    }

    /// The SHA-1 of the code, in 40 lower case hexadecimal digits.
    #[must_use]
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// A key as one argument.
struct Prefixed<'a> {
    prefix: &'a str,
    key: &'a str,
}

impl ToRedisArgs for Prefixed<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        let mut argument = out.writer_for_next_arg();
        for part in [self.prefix, self.key] {
            // A command is built in memory, which does not fail.
            let _ = argument.write_all(part.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_as_redis_names_it() {
        // `redis-cli script load "return 1"` answers this.
        let script = Script::new("one", "return 1");
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
