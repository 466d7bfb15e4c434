//! Files that are read again when they change or an operator orders it.
//!
//! Not here: what changed (policies/watch.rs), and what a file means.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use weir_engine::words::printable;
use weir_lifecycle::{Life, Phase, Reloads};
use weir_policies::watch::{Change, POLL_EVERY, Source, Watch};

/// Why files are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Poll,
    /// An order of the operator. Loads the current files, even if they still change.
    Order,
}

/// Calls `look` with every poll and every order, on a thread: the file system may block, but the control runtime must not.
/// `ended` waits for that thread.
pub(super) async fn follow<T: Send + 'static, E: Future<Output = Result<T, String>>>(
    mut reader: T,
    look: impl Fn(&mut T, Cause) + Clone + Send + 'static,
    ended: impl Fn(JoinHandle<T>) -> E,
    mut reloads: Reloads,
    life: Life,
) -> Result<(), String> {
    let mut ticks = tokio::time::interval(POLL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let cause = tokio::select! {
            () = life.reached(Phase::Draining) => return Ok(()),
            () = reloads.next() => Cause::Order,
            _ = ticks.tick() => Cause::Poll,
        };
        let look = look.clone();
        let reading = tokio::task::spawn_blocking(move || {
            look(&mut reader, cause);
            reader
        });
        tokio::select! {
            () = life.reached(Phase::Draining) => return Ok(()),
            read = ended(reading) => reader = read?,
        }
    }
}

/// One file and its changes.
pub(super) struct WatchedFile {
    pub(super) path: PathBuf,
    /// What the file has, for the log.
    what: &'static str,
    watch: Watch,
}

impl WatchedFile {
    /// Read the file after this, so that no change is missed.
    pub(super) fn new(path: PathBuf, what: &'static str) -> Self {
        let watch = Watch::new(Source::from(&path));
        Self { path, what, watch }
    }

    /// Reads the file if it has changed and is at rest, or if an operator orders it.
    pub(super) fn read_again<T>(&mut self, cause: Cause, read: impl FnOnce(&Path) -> T) -> Option<T> {
        match cause {
            Cause::Order => self.watch.settle_now(),
            Cause::Poll => match self.watch.poll(Instant::now()) {
                Some(Change::Settled) => {}
                Some(Change::Restless(_)) => {
                    let file = printable(&self.path.display().to_string());
                    let remedy = "write a new file and rename it into place";
                    tracing::warn!(file, remedy, "the file of {} keeps changing and is not loaded", self.what);
                    return None;
                }
                // A single file never rests beside others.
                Some(Change::AtRest(_)) | None => return None,
            },
        }
        let content = read(&self.path);
        // The file may have been read while it changed again. The watch reports that when it settles.
        (cause == Cause::Order || self.watch.is_unchanged(&BTreeSet::new())).then_some(content)
    }
}
