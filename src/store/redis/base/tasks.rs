//! Background tasks that end only by a panic.

use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// The tasks of one owner. Aborted when dropped.
pub(crate) struct Tasks {
    /// What one of them is, for people.
    name: &'static str,
    set: Mutex<JoinSet<()>>,
}

impl Tasks {
    pub(crate) fn new(name: &'static str, set: JoinSet<()>) -> Self {
        Self { name, set: Mutex::new(set) }
    }

    /// Returns the reason when a task has died. Otherwise never returns.
    pub(crate) async fn died(&self) -> String {
        match self.set.lock().await.join_next().await {
            Some(Err(error)) => format!("{} died: {error}", self.name),
            Some(Ok(())) | None => format!("{} ended", self.name),
        }
    }
}
