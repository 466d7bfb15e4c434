//! Threads that let other threads of the machine run.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// How long a thread works for callers that bring no whole request before other threads of the machine may run.
pub const GIVE_WAY_AFTER: Duration = Duration::from_micros(25);

thread_local! {
    /// When this thread gave way last.
    pub static GAVE_WAY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets other threads run. Call it for work that a peer causes without a whole request: connections that open and close, and
/// requests that come in parts.
///
/// Otherwise much of such work holds a core until the next tick of the system: up to 4 ms on Linux at 250 Hz, at any priority
/// of the thread. Decisions wait meanwhile. A request that comes in one part does not give way, because a machine whose
/// cores are all busy would then answer few of them.
pub fn give_way() {
    let now = Instant::now();
    if GAVE_WAY.get().is_none_or(|gave| now.duration_since(gave) >= GIVE_WAY_AFTER) {
        std::thread::yield_now();
        // The time that others took is not this thread's work.
        GAVE_WAY.set(Some(Instant::now()));
    }
}
