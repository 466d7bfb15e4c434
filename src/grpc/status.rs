//! The gRPC codes of errors. Only this file chooses them.
//!
//! Never UNKNOWN, because Envoy lets such a request pass. UNAVAILABLE only if certainly nothing was charged, because
//! clients retry it and would be charged twice.

use std::fmt;

use tonic::Status;
use weir_http2::NoRoom;
use weir_limiter::Undecided;
use weir_limiter::callers::NotAllowed;
use weir_rls::convert::Invalid;
use weir_store::StoreError;

#[derive(Clone, Debug)]
pub enum RequestError {
    Invalid(Invalid),
    /// The caller lacks a right.
    NotAllowed(NotAllowed),
    /// There are no policies yet, or the store gave no decision.
    Undecided(Undecided),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::NotAllowed(refused) => refused.fmt(f),
            Self::Undecided(undecided) => undecided.fmt(f),
        }
    }
}

pub fn status(error: &RequestError) -> Status {
    let text = error.to_string();
    match error {
        RequestError::Invalid(_) | RequestError::Undecided(Undecided::Unweighed(_)) => Status::invalid_argument(text),
        RequestError::NotAllowed(_) => Status::permission_denied(text),
        RequestError::Undecided(Undecided::NoPolicies) => Status::unavailable(text),
        RequestError::Undecided(Undecided::Store(error)) => match error {
            StoreError::NotSent(_) | StoreError::StaleBounds { .. } | StoreError::StaleRow { .. } => {
                Status::unavailable(text)
            }
            StoreError::Unknown(_) => Status::deadline_exceeded(text),
        },
    }
}

/// A request for which there is no memory.
pub(super) fn no_room(refused: NoRoom) -> Status {
    Status::unavailable(format!("{refused} (nothing was charged)"))
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use weir_engine::weigh::Unweighable;
    use weir_limiter::Unweighed;
    use weir_store::Failure;

    use super::*;

    #[test]
    fn only_what_was_certainly_not_charged_is_unavailable() {
        let failure = || Failure { kind: "timeout", message: "no answer within 10 ms".into() };
        for (error, code, text) in [
            (StoreError::NotSent(failure()), Code::Unavailable, "no answer within 10 ms (nothing was charged)"),
            (
                StoreError::Unknown(failure()),
                Code::DeadlineExceeded,
                "no answer within 10 ms (it may have been charged)",
            ),
            (
                StoreError::StaleBounds { now: 5 },
                Code::Unavailable,
                "the store's clock, 5 us, is outside of the calendar windows sent",
            ),
            (StoreError::StaleRow { found: vec![7] }, Code::Unavailable, "a row has changed (nothing was charged)"),
        ] {
            let status = status(&RequestError::Undecided(error.into()));
            assert_eq!((status.code(), status.message()), (code, text));
        }
        let unweighed = Unweighed { descriptor: 1, why: Unweighable::TooMany { hits: 3_000_000_000, factor: 30 } };
        let refused = status(&RequestError::Undecided(unweighed.into()));
        let text = "descriptors[1]: 3000000000 hits times 30 are too many, at most 4294967295";
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
        let status = status(&RequestError::Undecided(Undecided::NoPolicies));
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "no rate limit configuration loaded"));
    }
}
