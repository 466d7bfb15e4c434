//! Which commands that weir needs are missing on a server. They are commands of Redis 6.2, which a proxy may refuse
//! too.
//!
//! Not here: when the check runs, and the consequences (app).

use redis::{Cmd, Value};

use crate::redis::base::error_class::RedisErrorClass;
use crate::redis::transport::error::{CallError, Reason};

/// A script that does nothing, and its SHA-1.
const SCRIPT: &str = "return 1";
const SCRIPT_SHA1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// How many attempts in a row must break their connection to count as the server's answer. A restart or a load balancer
/// also breaks connections, but not three in a row just after their handshake.
pub(crate) const BREAKS: u32 = 3;

/// The commands to try, each with its name in the error. weir's user has rights to `key`.
pub(crate) fn trials(key: &str) -> [(&'static str, Cmd); 4] {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    let mut evaluate = redis::cmd("EVALSHA");
    evaluate.arg(SCRIPT_SHA1).arg(0);
    // The key has expired before it is set.
    let mut set = redis::cmd("SET");
    set.arg(key).arg("").arg("PXAT").arg(1);
    [("TIME", redis::cmd("TIME")), ("SCRIPT LOAD", load), ("EVALSHA", evaluate), ("PXAT, an option of SET", set)]
}

/// A script with two keys in different slots, as most requests of several descriptors have them. It needs no slots: the
/// script is that of [`trials`], which comes first.
pub(crate) fn two_slots(keys: [&str; 2]) -> Cmd {
    let mut evaluate = redis::cmd("EVALSHA");
    evaluate.arg(SCRIPT_SHA1).arg(keys.len()).arg(&keys);
    evaluate
}

/// The error message if the server refuses [`two_slots`]. None if it does not.
pub(crate) fn slots_sentence(address: &str, answer: &Result<Value, CallError>) -> Option<String> {
    let Err(CallError::Refused(error)) = answer else { return None };
    (RedisErrorClass::of(error).kind == "crossslot").then(|| {
        format!(
            "redis at {address} refuses a script with keys of two slots (CROSSSLOT), so every request with two descriptors would fail: if it is \
             a node of a cluster, set redis.topology to cluster; if it is a proxy or a serverless Redis, set it to proxy"
        )
    })
}

/// Whether the connection broke before the answer.
pub(crate) const fn is_broken(answer: &Result<Value, CallError>) -> bool {
    matches!(answer, Err(CallError::Unknown { reason: Reason::Broken(_) }))
}

/// Whether the last answer, after [`BREAKS`] attempts if the connection broke, shows that the server lacks the command.
/// A missing right or a temporary error is not a lack.
pub(crate) fn is_lack(answer: &Result<Value, CallError>) -> bool {
    match answer {
        Err(CallError::Refused(error)) => {
            let text = error.details().unwrap_or_default();
            RedisErrorClass::of(error).kind == "unknown_command" || text.starts_with("syntax error")
        }
        // twemproxy closes the connection on an unknown command.
        answer => is_broken(answer),
    }
}

/// The error message.
pub(crate) fn sentence(address: &str, lacks: &[&str]) -> String {
    format!(
        "redis at {address} lacks {}: weir needs Redis 6.2 or later with TIME, SCRIPT LOAD, EVALSHA and the option PXAT of SET, \
         without a proxy such as twemproxy",
        lacks.join(", ")
    )
}
