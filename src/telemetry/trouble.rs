//! Tells once that decisions begin to go by `on_error`, and once that a store answers again.
//!
//! Not here: how often that happens (metrics.rs), and which connection or server is at fault (app/redis_health.rs).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::OnError;

/// So long every call must have been answered before the trouble is over; else a store that fails half of its calls would
/// be told as often.
const QUIET: Duration = Duration::from_secs(1);

/// Whether stores answer, as far as this process has noticed.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Read on the request path, so that nothing is locked while all is well.
    is_on: AtomicBool,
    episode: Mutex<Option<Episode>>,
}

#[derive(Debug)]
struct Episode {
    began: Instant,
    last: Instant,
    /// How many descriptors went which way, in the order of [`OnError::ALL`].
    counts: [u64; OnError::ALL.len()],
}

impl Trouble {
    /// A descriptor was decided without its store.
    pub(super) fn fell_back(&self, action: OnError, kind: &str, now: Instant) {
        let mut episode = self.episode.lock();
        let is_new = episode.is_none();
        let episode = episode.get_or_insert(Episode { began: now, last: now, counts: Default::default() });
        episode.last = now;
        episode.counts[action as usize] += 1;
        if is_new {
            self.is_on.store(true, Relaxed);
            tracing::warn!(kind, on_error = action.name(), "a store does not answer: decisions go by on_error");
        }
    }

    /// A store has answered.
    pub(super) fn answered(&self, now: impl FnOnce() -> Instant) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        let now = now();
        let mut current = self.episode.lock();
        if let Some(Episode { began, last, counts }) = &*current
            && now.saturating_duration_since(*last) >= QUIET
        {
            let [error, allow, deny, local] = counts;
            let after = last.saturating_duration_since(*began);
            tracing::info!(?after, error, allow, deny, local, "stores answer again");
            *current = None;
            self.is_on.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_over_when_nothing_failed_for_a_while() {
        let trouble = Trouble::default();
        let start = Instant::now();
        trouble.fell_back(OnError::Local, "deadline", start);
        trouble.fell_back(OnError::Allow, "deadline", start + QUIET / 2);
        trouble.answered(|| start + QUIET);
        assert_eq!(trouble.episode.lock().as_ref().map(|episode| episode.counts), Some([0, 1, 0, 1]));
        trouble.answered(|| start + QUIET / 2 + QUIET);
        assert!(trouble.episode.lock().is_none() && !trouble.is_on.load(Relaxed));
    }

    #[test]
    fn actions_are_counted_in_their_order() {
        for (i, action) in OnError::ALL.into_iter().enumerate() {
            assert_eq!(action as usize, i, "{action:?}");
        }
    }
}
