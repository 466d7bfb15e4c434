//! Asynchronous work of a command, on this thread.

use std::io;

/// # Errors
/// If this process cannot start a runtime.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    // Does not wait for a name server without an answer.
    runtime.shutdown_background();
    Ok(result)
}
