//! Every error of Redis that weir handles, and how weir handles it, in one table. docs/stores.md explains the table to
//! operators.
//!
//! Not here: network errors (transport/error.rs), and how the breaker counts (routing/breaker.rs).

use redis::ServerError;

/// The kind of the error about a key of another type.
pub(crate) const WRONG_TYPE: &str = "wrongtype";

/// A class of Redis errors, and its consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisErrorClass {
    /// The first word of the error. If that is the common `ERR`, the beginning of its text.
    pub code: &'static str,
    /// Its word in metrics.
    pub kind: &'static str,
    /// Whether the failed call may have charged.
    pub proof: Proof,
    pub connection: After,
    pub blame: Blame,
}

/// What an error proves about its call. [rd-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing was written. Redis raises such errors before a call runs; within a script, only while the script has not
    /// written yet.
    NothingRan,
    /// Nothing was written, if Redis refused the call itself. Within a script, the error may have come after a write.
    UnlessInScript,
    /// Nothing: the call may have written before it failed.
    Nothing,
}

/// What happens to a connection after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// weir uses it again.
    Keep,
    /// weir closes it and dials again: the name may resolve to another server now, and the password file may have
    /// another password.
    Redial,
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The server, for every key: the breaker counts it.
    Server,
    /// Only this call, or the values at its keys.
    Call,
    /// The location of the key. Routing finds the right node from it.
    Route,
}

const fn row(code: &'static str, kind: &'static str, proof: Proof, connection: After, blame: Blame) -> RedisErrorClass {
    RedisErrorClass { code, kind, proof, connection, blame }
}

/// All classes. The last but one is weir's own; its scripts raise it.
///
/// Why the first classes prove that nothing ran: Redis checks them before it runs a command. READONLY, OOM, MISCONF and
/// NOREPLICAS are checked at each command of a script, but not after the script has written. WRONGTYPE and STATE are
/// raised while a script reads, and weir's scripts read all keys before they write the first. NOPERM is different: a
/// user may lack the right to a script's second write.
pub const ERROR_CLASSES: [RedisErrorClass; 21] = {
    use {After::*, Blame::*, Proof::*};
    [
        row("READONLY", "readonly", NothingRan, Redial, Server),
        row("LOADING", "loading", NothingRan, Redial, Server),
        row("MASTERDOWN", "masterdown", NothingRan, Redial, Server),
        row("CLUSTERDOWN", "clusterdown", NothingRan, Keep, Server),
        row("MOVED", "moved", NothingRan, Keep, Route),
        row("ASK", "ask", NothingRan, Keep, Route),
        row("TRYAGAIN", "tryagain", NothingRan, Keep, Route),
        row("CROSSSLOT", "crossslot", NothingRan, Keep, Route),
        row("BUSY", "busy", NothingRan, Keep, Server),
        row("NOSCRIPT", "noscript", NothingRan, Keep, Call),
        row("OOM", "oom", NothingRan, Keep, Server),
        row("MISCONF", "misconf", NothingRan, Keep, Server),
        row("NOREPLICAS", "noreplicas", NothingRan, Keep, Server),
        row("NOAUTH", "noauth", NothingRan, Redial, Server),
        row("WRONGPASS", "wrongpass", NothingRan, Redial, Server),
        row("NOPERM", "noperm", UnlessInScript, Keep, Server),
        row("ERR max number of clients reached", "max_clients", NothingRan, Redial, Server),
        row("ERR unknown command", "unknown_command", NothingRan, Keep, Server),
        row("WRONGTYPE", WRONG_TYPE, NothingRan, Keep, Call),
        row("STATE", "state", NothingRan, Keep, Call),
        OTHER,
    ]
};

/// The class of all other errors.
pub const OTHER: RedisErrorClass = row("ERR", "refused", Proof::Nothing, After::Keep, Blame::Call);

/// The prefix of an error raised within a script, before Redis 7. The error itself follows later in the text.
const WRAPPED: &str = "Error running script";

/// The text of NOPERM within a script, in Redis up to 7.0 and in Valkey.
const LACKS_A_RIGHT: [&str; 2] = ["The user executing the script can't ", "ACL failure in script: "];

/// The error that the scripts of lua/ raise.
const NOT_OURS: &str = "STATE the value at the key was not written by weir";

/// The suffix of an error raised within a script, since Redis 7: `script: <sha1>, on @user_script:<line>.`
const IN_SCRIPT: &str = " script: ";

/// Redis repeats arguments after this text. They can be a password (without AUTH support) or a key (without EVALSHA
/// support).
const ARGUMENTS: &str = ", with args beginning with";

/// A server's text without the arguments of weir's commands, which the server may repeat. Safe to show.
pub fn without_arguments(text: &str) -> &str {
    text.find(ARGUMENTS).map_or(text, |end| &text[..end])
}

pub fn for_log(error: &ServerError) -> String {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    without_arguments(&text).trim_end().to_owned()
}

impl RedisErrorClass {
    pub fn of(error: &ServerError) -> &'static RedisErrorClass {
        Self::of_parts(error.code(), error.details().unwrap_or_default())
    }

    /// The class of an error by its first word and the rest of its text.
    pub fn of_parts(code: &str, text: &str) -> &'static RedisErrorClass {
        let code = match code {
            "ERR" if LACKS_A_RIGHT.iter().any(|words| text.contains(words)) => "NOPERM",
            "ERR" if text.contains(NOT_OURS) => "STATE",
            code => code,
        };
        for row in &ERROR_CLASSES {
            match row.code.split_once(' ') {
                None if row.code == code && code != OTHER.code => return row,
                Some((first, rest)) if first == code && text.starts_with(rest) => return row,
                _ => {}
            }
        }
        if code == OTHER.code && text.starts_with(WRAPPED) {
            for row in &ERROR_CLASSES {
                if !row.code.contains(' ') && row.code != OTHER.code && wraps(text, row.code) {
                    return row;
                }
            }
        }
        &OTHER
    }

    /// Whether the call certainly wrote nothing; `self` is the class of `error`.
    pub fn proves_nothing_ran(&self, error: &ServerError) -> bool {
        match self.proof {
            Proof::NothingRan => true,
            Proof::UnlessInScript => {
                let text = error.details().unwrap_or_default();
                !text.contains(IN_SCRIPT) && !text.starts_with(WRAPPED)
            }
            Proof::Nothing => false,
        }
    }
}

/// Whether a wrapped error has this code: `...: @user_script: 7: -CODE text`. The dash is optional.
fn wraps(text: &str, code: &str) -> bool {
    text.match_indices(code).any(|(at, _)| {
        let before = text[..at].trim_end_matches('-');
        before.ends_with(": ") && text[at + code.len()..].starts_with(' ')
    })
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn error(answer: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_is_known_by_its_beginning() {
        let check = |answer: &str, kind: &str| assert_eq!(RedisErrorClass::of(&error(answer)).kind, kind, "{answer}");
        check("READONLY You can't write against a read only replica.", "readonly");
        check("LOADING Redis is loading the dataset in memory", "loading");
        check("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "masterdown");
        check("MOVED 3999 127.0.0.1:6381", "moved");
        check("ASK 3999 127.0.0.1:6381", "ask");
        check("OOM command not allowed when used memory > 'maxmemory'. script: 5a, on @user_script:3.", "oom");
        check("ERR max number of clients reached", "max_clients");
        check("ERR unknown command 'EVALSHA', with args beginning with: ", "unknown_command");
        check("ERR value is not an integer or out of range", "refused");
        check("ERR", "refused");
        check("STATE the value at the key was not written by weir", "state");
        check("ERR user_script:55: STATE the value at the key was not written by weir script: 5a", "state");
        check("NEWS of an unknown kind", "refused");
    }

    /// The texts of Redis 6.2.
    #[test]
    fn an_error_within_a_script_is_known_inside_of_its_wrapping() {
        let check = |text: &str, kind: &str| {
            let sha1 = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
            let answer = format!("ERR Error running script (call to f_{sha1}): @user_script:3: {text}");
            assert_eq!(RedisErrorClass::of(&error(&answer)).kind, kind, "{answer}");
        };
        check("@user_script: 3: -READONLY You can't write against a read only replica. ", "readonly");
        check("-OOM command not allowed when used memory > 'maxmemory'. ", "oom");
        check("WRONGTYPE Operation against a key holding the wrong kind of value", "wrongtype");
        check("user_script:3: attempt to perform arithmetic on local 'stored' (a nil value)", "refused");
        check("ERR value is not an integer or out of range", "refused");
        check("user_script:55: STATE the value at the key was not written by weir", "state");
        check("a sentence about READONLY and -OOM that is neither", "refused");
    }

    #[test]
    fn a_right_that_a_script_lacks_may_have_been_missed_after_a_write() {
        let check = |answer: &str, expected: bool| {
            let error = error(answer);
            let row = RedisErrorClass::of(&error);
            assert_eq!(row.kind, "noperm", "{answer}");
            assert_eq!(row.proves_nothing_ran(&error), expected, "{answer}");
        };
        check("NOPERM User weir has no permissions to run the 'evalsha' command", true);
        check("NOPERM No permissions to access a key", true);
        check("NOPERM ACL failure in script: User weir has no permissions script: 5a, on @user_script:9.", false);
        check(
            "ERR ACL failure in script: User weir has no permissions to run the 'set' command script: 5a, on @user_script:9.",
            false,
        );
        check("ERR The user executing the script can't run this command script: 5a, on @user_script:9.", false);
        check(
            "ERR Error running script (call to f_5a): @user_script:9: The user executing the script can't run",
            false,
        );
    }

    #[test]
    fn what_redis_repeats_of_a_command_is_not_shown() {
        let check = |answer: &str, shown: &str| assert_eq!(for_log(&error(answer)), shown);
        check("ERR unknown command 'AUTH', with args beginning with: 'weir' 'secret' ", "ERR unknown command 'AUTH'");
        check("ERR unknown command `EVALSHA`, with args beginning with: `5a`, `1`, ", "ERR unknown command `EVALSHA`");
        check(
            "OOM command not allowed when used memory > 'maxmemory'.",
            "OOM command not allowed when used memory > 'maxmemory'.",
        );
        check("ERR", "ERR");
    }

    #[test]
    fn kinds_and_codes_stand_for_one_thing_each() {
        for (i, row) in ERROR_CLASSES.iter().enumerate() {
            for other in &ERROR_CLASSES[..i] {
                assert!(row.kind != other.kind && row.code != other.code, "{row:?}, {other:?}");
            }
            assert!(row.blame == Blame::Call || row.proof != Proof::Nothing, "{row:?}");
        }
        assert_eq!(ERROR_CLASSES[ERROR_CLASSES.len() - 1], OTHER);
    }
}
