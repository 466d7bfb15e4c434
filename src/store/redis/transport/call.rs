//! One call to Redis: a command or charges, and what is needed to send it and to find its answer.
//!
//! Not here: when it is sent, and what happens to its answer (queue.rs, worker.rs), how charges are written
//! (charge_list.rs), and what they mean (scripts).

use redis::{Cmd, ServerErrorKind, Value};

use super::charge_list::ChargeList;
use super::script::Script;
use crate::redis::dial::command_buffer::CommandBuffer;

/// One command with one answer: no subscription, no transaction, no blocking command. It has no `Debug`: its keys and
/// arguments may be personal data.
pub struct Call {
    body: Body,
    /// Whether ASKING is sent just before the command.
    asking: bool,
    /// The most work that Redis can need for it; see src/engine/weight.rs.
    pub(crate) weight: u32,
}

enum Body {
    Command { command: Cmd, script: Option<&'static Script> },
    Charges(ChargeList),
}

impl Call {
    /// A run of `script`, by EVALSHA.
    pub fn script<K, A>(script: &'static Script, keys: &[K], args: &[A]) -> Call
    where
        K: AsRef<str>,
        A: AsRef<[u8]>,
    {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script.sha1).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        Call { body: Body::Command { command, script: Some(script) }, asking: false, weight: 0 }
    }

    /// Any other command.
    ///
    /// # Panics
    ///
    /// When `command` has no name: Redis does not answer it.
    pub fn command(command: Cmd) -> Call {
        assert!(command.args_iter().len() > 0, "a command has a name");
        Call { body: Body::Command { command, script: None }, asking: false, weight: 0 }
    }

    pub(crate) fn charges(list: ChargeList) -> Call {
        let weight = list.weight();
        Call { body: Body::Charges(list), asking: false, weight }
    }

    pub fn weighing(mut self, weight: u32) -> Call {
        self.weight = weight;
        self
    }

    /// The same call for a cluster node that is importing the call's slot. The node serves it only if ASKING was the
    /// command before it on the same connection, so ASKING is sent with the call each time.
    pub fn asking(mut self) -> Call {
        self.asking = true;
        self
    }

    /// Its charges, if they may share a command with the charges of other calls.
    pub(crate) fn mergeable(&self) -> Option<&ChargeList> {
        match &self.body {
            Body::Charges(list) if list.is_mergeable() && !self.asking => Some(list),
            Body::Charges(_) | Body::Command { .. } => None,
        }
    }

    /// The script that Redis needs for it.
    pub(super) fn needed_script(&self) -> Option<&'static Script> {
        match &self.body {
            Body::Command { script, .. } => *script,
            Body::Charges(list) => Some(list.script_alone()),
        }
    }

    /// Appends the command to a request, after ASKING if needed.
    pub(super) fn add_to(&self, request: &mut CommandBuffer) {
        if self.asking {
            request.add(&redis::cmd("ASKING"));
        }
        match &self.body {
            Body::Command { command, .. } => request.add(command),
            Body::Charges(list) => list.add_to(request),
        }
    }

    /// Removes the answer to this call from the answers to the whole request.
    pub(super) fn take_answer(&self, answers: &mut impl Iterator<Item = Value>) -> Option<Value> {
        if !self.asking {
            return answers.next();
        }
        let (asking, answer) = (answers.next()?, answers.next()?);
        // If Redis refused ASKING itself, the call is redirected to its origin. The refusal explains more.
        let sent_back = matches!(&answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::Moved));
        let refused = matches!(asking, Value::ServerError(_));
        Some(if sent_back && refused { asking } else { answer })
    }
}
