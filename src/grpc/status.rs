//! What an error is called on gRPC: the one place that knows.
//!
//! Never UNKNOWN: Envoy lets such a request pass. UNAVAILABLE only where nothing was charged for certain, since
//! clients try again on it and would be charged twice.

use std::fmt;

use tonic::Status;

use crate::limiter::StoreError;
use crate::rls::convert::Invalid;

/// Why a request got no decision.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// It was not a request that can be decided.
    Invalid(Invalid),
    /// The store gave none.
    Store(StoreError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// The status that a caller gets.
#[must_use]
pub fn status(refusal: &Refusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        Refusal::Invalid(_) => Status::invalid_argument(text),
        Refusal::Store(StoreError::NotSent(_) | StoreError::Rewindow { .. }) => Status::unavailable(text),
        Refusal::Store(StoreError::Unknown(_)) => Status::deadline_exceeded(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Failure;
    use tonic::Code;

    #[test]
    fn only_what_was_certainly_not_charged_is_unavailable() {
        let failure = || Failure { kind: "timeout", message: "no answer within 10 ms".into() };
        for (error, code, text) in [
            (StoreError::NotSent(failure()), Code::Unavailable, "no answer within 10 ms (nothing was charged)"),
            (StoreError::Unknown(failure()), Code::DeadlineExceeded, "no answer within 10 ms (the charge may stand)"),
            (StoreError::Rewindow { now: 5 }, Code::Unavailable, "no calendar window held the store's clock, 5 us"),
        ] {
            let status = status(&Refusal::Store(error));
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }
}
