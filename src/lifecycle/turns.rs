//! Turns for work that takes long, so that other tasks of the runtime run between two parts of it.

use tokio::sync::{Mutex, MutexGuard};
use tokio::task::yield_now;

/// The turns of one kind of work on one runtime.
#[derive(Debug, Default)]
pub struct Turns(Mutex<()>);

impl Turns {
    /// Waits for the next turn. Between two polls of the runtime for new bytes, one of the callers has its turn, in the order in
    /// which they came. The caller works without awaiting anything else, and then drops the turn.
    pub async fn next(&self) -> MutexGuard<'_, ()> {
        // It is fair.
        let turn = self.0.lock().await;
        yield_now().await;
        turn
    }
}
