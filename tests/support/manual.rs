//! What tests of stores need: a clock that they set, answers at hand, and charges in a line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_engine::{Charge, Limit, Micros, Operation};
use weir_store::{Clock, Reply};

use super::arbitrary::START_US;

/// A clock that stands where the test put it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// One that stands at [`START_US`].
    pub fn in_2041() -> Self {
        Self(AtomicU64::new(START_US))
    }

    /// Puts it there.
    pub fn set(&self, now: Micros) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        self.0.load(Ordering::SeqCst)
    }
}

/// The answer of a store that computes it at once.
pub fn answer<T>(reply: Reply<'_, T>) -> T {
    match reply {
        Reply::Ready(answer) => answer.expect("the memory store always answers"),
        Reply::Pending(_) => panic!("the memory store answers at once"),
    }
}

/// A deadline that nobody is near.
pub fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// An enforced charge for the first rule.
pub fn charge<'a>(key: &'a str, limit: &'a Limit, operation: Operation) -> Charge<'a> {
    Charge::alone(key, limit, operation)
}
