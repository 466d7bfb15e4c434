//! Why there is no connection to a server: the word for metrics, and the text for people.
//!
//! Not here: which server, and what a call without a connection returns (transport/error.rs).

use std::io;
use std::sync::Arc;

use redis::ServerError;

use super::error_class::{OTHER, RedisErrorClass, for_log};

/// The word in metrics when no Redis answered.
pub(crate) const NO_CONNECTION: &str = "no_connection";

/// Why a dial has failed. Cheap to clone: every waiting call gets a clone.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct DialError {
    /// The label in metrics: the class of the error by which Redis refused the connection, or `no_connection`.
    pub kind: &'static str,
    /// Whether nothing listens at the address, or the address does not exist.
    pub is_refused: bool,
    /// A sentence for the operator, without secrets. It may be the server's own text.
    reason: Arc<str>,
}

impl DialError {
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { kind: NO_CONNECTION, is_refused: false, reason: reason.into() }
    }

    /// The same error without the password of the login. A server may repeat what it received, in any form: if the text
    /// contains the password, the text is replaced.
    pub(crate) fn without_password(self, password: Option<&str>) -> Self {
        let repeats = password.is_some_and(|password| self.reason.contains(password));
        // The text of this kind is weir's own.
        if repeats && self.kind != "wrongpass" {
            return self.with_reason("its answer is hidden because it repeats the password");
        }
        self
    }

    /// The same error with another text.
    pub(crate) fn with_reason(self, reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), ..self }
    }
}

impl From<String> for DialError {
    fn from(reason: String) -> Self {
        Self::new(reason)
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        let is_refused = matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
        Self { is_refused, ..Self::new(error.to_string()) }
    }
}

impl From<&ServerError> for DialError {
    fn from(error: &ServerError) -> Self {
        match RedisErrorClass::of(error).kind {
            kind @ "wrongpass" => {
                let text = format!("it does not accept the user or the password ({})", error.code());
                Self { kind, ..Self::new(text) }
            }
            kind if kind == OTHER.kind => Self::new(for_log(error)),
            kind => Self { kind, ..Self::new(for_log(error)) },
        }
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
                let error = DialError::from(&error).without_password(Some("password"));
                (error.kind, error.to_string())
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
