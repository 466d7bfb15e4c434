//! Lets other threads of the machine run.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// How long a thread works on incomplete requests before it lets other threads run.
pub const GIVE_WAY_AFTER: Duration = Duration::from_micros(25);

thread_local! {
    /// When this thread last let others run.
    pub static GAVE_WAY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets other threads run. Call it for work that a peer causes without a complete request: connections that open and
/// close, and requests that arrive in parts.
///
/// Without this, such work can occupy a core until the next tick of the system: up to 4 ms on Linux at 250 Hz, at any
/// priority of the thread. Decisions wait during that time. A request that arrives in one part does not yield, because
/// a machine whose cores are all busy would then answer few of them.
pub fn give_way() {
    let now = Instant::now();
    if GAVE_WAY.get().is_none_or(|gave| now.duration_since(gave) >= GIVE_WAY_AFTER) {
        std::thread::yield_now();
        // Read again, so the time of other threads does not count.
        GAVE_WAY.set(Some(Instant::now()));
    }
}
