//! Work that may block, or that takes milliseconds, off the runtime.

use std::future::pending;
use std::panic::resume_unwind;

/// Runs `work` on a thread for blocking work, so the runtime's other tasks continue. A panic propagates to the caller.
pub async fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down, and will drop this task.
            Err(_) => pending().await,
        },
    }
}
