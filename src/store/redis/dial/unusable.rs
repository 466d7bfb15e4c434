//! Why a server cannot be used: the word for metrics, and the text for people.

use std::{fmt, io};

use redis::ServerError;

use crate::redis::base::error_class::{OTHER, RedisErrorClass, for_log};
use crate::redis::base::observer::NO_CONNECTION;

/// Why a server cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct Unusable {
    /// The label in metrics: the class of the error of Redis, or [`NO_CONNECTION`].
    pub(crate) kind: &'static str,
    /// A sentence for the operator, without secrets. It may be the server's own text.
    pub(crate) text: String,
    /// Whether nothing listens at the address, or the address does not exist.
    pub(crate) is_refused: bool,
}

impl Unusable {
    /// The same error without the password of the login. A server may repeat what it received, in any form: if the text
    /// contains the password, the text is replaced.
    pub(crate) fn without_password(mut self, password: Option<&str>) -> Unusable {
        let repeats = password.is_some_and(|password| self.text.contains(password));
        // The text of this kind is weir's own.
        if repeats && self.kind != "wrongpass" {
            "its answer is hidden because it repeats the password".clone_into(&mut self.text);
        }
        self
    }
}

impl From<String> for Unusable {
    fn from(text: String) -> Unusable {
        Unusable { kind: NO_CONNECTION, text, is_refused: false }
    }
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Unusable {
        let is_refused = matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
        Unusable { is_refused, ..Unusable::from(error.to_string()) }
    }
}

impl From<&ServerError> for Unusable {
    fn from(error: &ServerError) -> Unusable {
        match RedisErrorClass::of(error).kind {
            kind @ "wrongpass" => {
                let text = format!("it does not accept the user or the password ({})", error.code());
                Unusable { kind, ..Unusable::from(text) }
            }
            kind if kind == OTHER.kind => Unusable::from(for_log(error)),
            kind => Unusable { kind, ..Unusable::from(for_log(error)) },
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn what_a_server_answers_to_a_login_never_shows_its_password() {
        let shown = |answer: &str| match redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => {
                let unusable = Unusable::from(&error).without_password(Some("password"));
                (unusable.kind, unusable.text)
            }
            other => panic!("{other:?}"),
        };
        let check = |answer: &str, kind: &'static str, text: &str| assert_eq!(shown(answer), (kind, text.to_owned()));
        let hidden = "its answer is hidden because it repeats the password";
        check(
            "ERR unknown command 'AUTH', with args beginning with: 'weir' 'password' ",
            "unknown_command",
            "ERR unknown command 'AUTH'",
        );
        check("ERR a proxy knows no AUTH weir password", NO_CONNECTION, hidden);
        check("password", NO_CONNECTION, hidden);
        check(
            "WRONGPASS invalid username-password pair",
            "wrongpass",
            "it does not accept the user or the password (WRONGPASS)",
        );
        check(
            "LOADING Redis is loading the dataset in memory",
            "loading",
            "LOADING Redis is loading the dataset in memory",
        );
    }
}
