//! The turns of heavy calls: one call at a time on each server, over all runtimes of the process.
//!
//! Redis runs one script at a time, so two heavy calls would only delay light ones twice as long. Not here: which calls
//! are heavy (engine/weight.rs), and how they are sent (heavy.rs).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most heavy calls that may wait for one server. Each takes a few milliseconds, so more could not be made in time.
pub const HEAVY_WAITING_MAX: usize = 64;

/// The turns of all servers. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Turns by address. Adding an entry drops the entries of unused servers.
    servers: Arc<Mutex<HashMap<Box<str>, Weak<Turn>>>>,
}

/// The turns of one server.
#[derive(Debug)]
pub(crate) struct Turn {
    /// One permit for the running call, and one for each waiting call.
    places: Semaphore,
    running: Semaphore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// [`HEAVY_WAITING_MAX`] calls are waiting.
    Full,
    Deadline,
}

impl Turns {
    /// The turns of the server at `address`.
    pub(crate) fn of(&self, address: &str) -> Arc<Turn> {
        let mut servers = self.servers.lock();
        if let Some(turn) = servers.get(address).and_then(Weak::upgrade) {
            return turn;
        }
        servers.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn { places: Semaphore::new(1 + HEAVY_WAITING_MAX), running: Semaphore::new(1) });
        servers.insert(address.into(), Arc::downgrade(&turn));
        turn
    }
}

/// The permission to make one heavy call, returned when dropped.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    _running: SemaphorePermit<'a>,
    _place: SemaphorePermit<'a>,
}

impl Turn {
    /// Waits for the turn, in the order of arrival, until `deadline`.
    pub(crate) async fn take(&self, deadline: Instant) -> Result<Running<'_>, NoTurn> {
        let place = self.places.try_acquire().map_err(|_| NoTurn::Full)?;
        match tokio::time::timeout_at(deadline.into(), self.running.acquire()).await {
            Ok(Ok(running)) => Ok(Running { _running: running, _place: place }),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(NoTurn::Deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Whether the future is still pending after one poll.
    async fn is_pending(future: impl Future) -> bool {
        tokio::select! {
            biased;
            _ = future => false,
            () = std::future::ready(()) => true,
        }
    }

    #[tokio::test]
    async fn one_runs_and_a_bounded_number_waits() {
        let turns = Turns::default();
        let turn = turns.of("a:1");
        let late = Instant::now() + Duration::from_secs(60);
        let first = turns.clone().of("a:1").places.available_permits();
        assert_eq!(first, 1 + HEAVY_WAITING_MAX, "clones share the turn of a server");
        let running = turn.take(late).await.unwrap();
        assert_eq!(turn.take(Instant::now()).await.unwrap_err(), NoTurn::Deadline);
        let mut waiting: Vec<_> = (0..HEAVY_WAITING_MAX).map(|_| Box::pin(turn.take(late))).collect();
        for one in &mut waiting {
            assert!(is_pending(one.as_mut()).await);
        }
        assert_eq!(turn.take(late).await.unwrap_err(), NoTurn::Full);
        assert!(turns.of("b:2").take(late).await.is_ok(), "another server has a turn of its own");
        drop(running);
        assert!(!is_pending(waiting[0].as_mut()).await);
    }

    #[test]
    fn a_server_that_is_gone_leaves_nothing() {
        let turns = Turns::default();
        drop(turns.of("a:1"));
        let _kept = turns.of("b:2");
        assert_eq!(turns.servers.lock().len(), 1);
    }
}
