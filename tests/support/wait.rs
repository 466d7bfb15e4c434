//! Waiting for what another process does: asked again and again until a deadline, never slept
//! through.

use std::time::{Duration, Instant};

/// How long a step may take that is normally done in milliseconds. Generous, because the machine
/// may be busy with other tests; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Returns what `look` finds, as soon as it finds something; panics with `what` once `timeout` is
/// over.
pub fn until<T>(what: &str, timeout: Duration, look: impl FnMut() -> Option<T>) -> T {
    match within(timeout, look) {
        Some(found) => found,
        None => panic!("waited {timeout:?} in vain for {what}"),
    }
}

/// Returns what `look` finds, as soon as it finds something, or `None` once `timeout` is over. It
/// looks at least once, and once more at the very end.
pub fn within<T>(timeout: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + timeout;
    loop {
        let last = Instant::now() >= end;
        let found = look();
        if found.is_some() || last {
            return found;
        }
        delay(BETWEEN_LOOKS);
    }
}

/// Waits until `look` says yes, without blocking the runtime; panics with `what` once `timeout` is over.
pub async fn eventually(what: &str, timeout: Duration, mut look: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + timeout;
    while !look().await {
        assert!(Instant::now() < end, "waited {timeout:?} in vain for {what}");
        // Shorter than between two looks of a thread: the runtime has other work meanwhile.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the next request of an even load is due.
pub fn pace(due: Instant) {
    delay(due.saturating_duration_since(Instant::now()));
}

/// Does nothing for a while: between two looks, and where slowness itself is what a test is about.
#[allow(
    clippy::disallowed_methods,
    reason = "this is the one place that paces a wait which has a condition and a deadline"
)]
pub(super) fn delay(time: Duration) {
    std::thread::sleep(time);
}
