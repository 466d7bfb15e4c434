//! The consequences of a failed call for a charge: whether it may have been made, its kind for metrics, and its text
//! for the caller.
//!
//! Not here: what a caller gets instead of a decision (the limiter).

use weir_engine::weight::TOO_HEAVY;

use crate::redis::base::error_class::RedisErrorClass;
use crate::redis::transport::error::{CallError, Reason};
use crate::{Failure, StoreError};

/// The store error of a failed call: whether the charge may have been made.
pub(super) fn store_error(error: CallError) -> StoreError {
    let message = text_for_caller(&error);
    match error {
        CallError::NotSent { reason } => StoreError::NotSent(Failure { kind: kind_of(&reason), message }),
        CallError::Unknown { reason } => StoreError::Unknown(Failure { kind: kind_of(&reason), message }),
        CallError::Refused(answer) => {
            let class = RedisErrorClass::of(&answer);
            let failure = Failure { kind: class.kind, message };
            if class.proves_nothing_ran(&answer) { StoreError::NotSent(failure) } else { StoreError::Unknown(failure) }
        }
    }
}

/// weir's own text for a caller. The log has the server's text and address.
fn text_for_caller(error: &CallError) -> String {
    match error {
        CallError::NotSent { reason: Reason::NoConnection { error, .. } } => {
            format!("not sent to redis: no connection ({})", error.kind)
        }
        CallError::Unknown { reason: Reason::Broken(_) } => {
            "sent to redis, outcome unknown: the connection broke".to_owned()
        }
        CallError::NotSent { reason: Reason::Broken(_) } => "not sent to redis: the connection broke".to_owned(),
        CallError::NotSent { .. } | CallError::Unknown { .. } | CallError::Refused(_) => error.to_string(),
    }
}

const fn kind_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::QueueFull { .. } => "queue_full",
        Reason::Deadline => "deadline",
        Reason::NoConnection { error, .. } => error.kind,
        Reason::Broken(_) => "broken",
        Reason::CircuitOpen => "circuit_open",
        Reason::NoNode { .. } => "no_node",
    }
}

/// The limiter splits charges by `Deciding::slot_of` first, so only a bug can cause this.
pub(super) fn several_slots(charges: usize) -> StoreError {
    let message = format!("the {charges} charges of one call are in several slots of the redis cluster");
    StoreError::NotSent(Failure { kind: "crossslot", message })
}

/// The kinds of failure without an answer of Redis. With the kinds of
/// [`ERROR_CLASSES`](crate::redis::error_class::ERROR_CLASSES), these are all kinds of a failed decision.
pub const KINDS: [&str; 10] = [
    "no_connection",
    "broken",
    "deadline",
    "queue_full",
    "circuit_open",
    "reply",
    "no_node",
    "stale_bounds",
    "stale_row",
    TOO_HEAVY,
];

pub(super) fn malformed_reply() -> StoreError {
    let message = "redis sent a reply with an unexpected form".into();
    StoreError::Unknown(Failure { kind: "reply", message })
}

pub(super) fn foreign_state(key: &str) -> StoreError {
    let message = format!("the value of the key {key:?} in redis was not written by this version");
    StoreError::NotSent(Failure { kind: "state", message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::base::dial_error::DialError;
    use crate::redis::base::error_class::ERROR_CLASSES;

    #[test]
    fn every_reason_has_a_kind_that_is_shown_before_it_happens() {
        let refused = || Reason::NoConnection { address: "a:1".into(), error: DialError::new("refused") };
        // A chain, so that the compiler requires a place for a new reason.
        let next = |reason: &Reason| match reason {
            Reason::QueueFull { .. } => Some(Reason::Deadline),
            Reason::Deadline => Some(refused()),
            Reason::NoConnection { .. } => Some(Reason::Broken("reset".into())),
            Reason::Broken(_) => Some(Reason::NoNode { slot: 0, why: "unknown".into() }),
            Reason::NoNode { .. } => Some(Reason::CircuitOpen),
            Reason::CircuitOpen => None,
        };
        let reasons = std::iter::successors(Some(Reason::QueueFull { max: 1 }), next);
        let mut kinds: Vec<&str> = reasons.map(|reason| kind_of(&reason)).collect();
        let StoreError::Unknown(reply) = malformed_reply() else { panic!("a script has run") };
        let stale = [StoreError::StaleBounds { now: 0 }, StoreError::StaleRow { found: Vec::new() }];
        kinds.extend(stale.iter().map(StoreError::kind).chain([reply.kind, TOO_HEAVY]));
        kinds.sort_unstable();
        let mut shown = KINDS;
        shown.sort_unstable();
        assert_eq!(kinds, shown);
        // Kinds that both weir and Redis can cause.
        let is_answer = |kind: &str| ERROR_CLASSES.iter().any(|row| row.kind == kind);
        let (StoreError::NotSent(slots), StoreError::NotSent(state)) = (several_slots(2), foreign_state("k")) else {
            panic!("nothing was charged");
        };
        assert!(is_answer(slots.kind) && is_answer(state.kind));
    }
}
