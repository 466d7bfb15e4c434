//! One call to Redis: a command, and what of it has to be known to send it and to find its answer.
//!
//! Not here: when it is sent and what becomes of its answer (pipeline.rs), and what its arguments mean (wire.rs).

use std::fmt;
use std::io::Write as _;

use redis::{Cmd, RedisWrite, ServerErrorKind, ToRedisArgs, Value};

use super::merge::Mergeable;

/// One command that has one answer: no subscriptions, no transactions, and none that blocks. Shows
/// itself without its keys and arguments, which may be personal data.
pub struct Call {
    pub(super) command: Cmd,
    pub(super) script: Option<&'static Script>,
    /// ASKING goes right before it.
    pub(super) asking: bool,
    /// How it can be made together with others, if it can.
    pub(super) mergeable: Option<Mergeable>,
    /// What it can cost Redis at worst; see engine/weight.rs.
    pub(super) weight: u32,
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

    /// The same on keys that `prefix` goes before: they are put together where they are sent from.
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

    /// The same call, which others of its kind may be made together with.
    pub(super) fn mergeable(mut self, how: Option<Mergeable>) -> Call {
        self.mergeable = how;
        self
    }

    /// The same call, which can cost Redis so much.
    #[must_use]
    pub fn weighing(mut self, weight: u32) -> Call {
        self.weight = weight;
        self
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

    /// The call that makes it known to Redis.
    pub(super) fn load(&self) -> Call {
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
