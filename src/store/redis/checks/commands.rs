//! Which commands that weir needs are missing on a server: commands of Redis 6.2, which a proxy in between can refuse too.
//!
//! Not here: when a server is asked, and what follows (app).

use redis::{Cmd, Value};

use crate::redis::base::error_class::RedisErrorClass;
use crate::redis::transport::call::Call;
use crate::redis::transport::error::{CallError, Reason};

/// A script that does nothing, and its SHA-1.
const SCRIPT: &str = "return 1";
const SCRIPT_SHA1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// How often in a row a trial has to break its connection before that is the server's answer to the command: a restart or
/// a load balancer breaks connections too, but no three that have just been greeted.
pub(crate) const BREAKS: u32 = 3;

/// What is tried, with the words for it. `key` is one that the rights of weir's user reach.
pub(crate) fn trials(key: &str) -> [(&'static str, Cmd); 4] {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    let mut evaluate = redis::cmd("EVALSHA");
    evaluate.arg(SCRIPT_SHA1).arg(0);
    // It expires before it is there.
    let mut set = redis::cmd("SET");
    set.arg(key).arg("").arg("PXAT").arg(1);
    [("TIME", redis::cmd("TIME")), ("SCRIPT LOAD", load), ("EVALSHA", evaluate), ("PXAT, an option of SET", set)]
}

/// The call of one trial.
pub(crate) fn call(command: &Cmd) -> Call {
    Call::command(command.clone())
}

/// Whether the connection broke before the answer.
pub(crate) const fn is_broken(answer: &Result<Value, CallError>) -> bool {
    matches!(answer, Err(CallError::Unknown { reason: Reason::Broken(_) }))
}

/// Whether the last answer, of [`BREAKS`] where the connection broke, shows that the server cannot do what was tried. What
/// it may not do, or cannot do now, is no lack.
pub(crate) fn is_lack(answer: &Result<Value, CallError>) -> bool {
    match answer {
        Err(CallError::Refused(error)) => {
            let text = error.details().unwrap_or_default();
            RedisErrorClass::of(error).kind == "unknown_command" || text.starts_with("syntax error")
        }
        // twemproxy closes the connection on what it does not know.
        answer => is_broken(answer),
    }
}

/// The error, for people.
pub(crate) fn sentence(address: &str, lacks: &[&str]) -> String {
    format!(
        "redis at {address} lacks {}: weir needs Redis 6.2 or later with TIME, SCRIPT LOAD, EVALSHA and the option PXAT of SET, \
         and no proxy such as twemproxy before it",
        lacks.join(", ")
    )
}
