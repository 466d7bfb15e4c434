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
use weir_policies::Problems;
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
    watch: Watch,
    /// Whether the last result was that the file keeps changing. Then the log has it.
    pub(super) is_restless: bool,
}

impl WatchedFile {
    /// Read the file after this, so that no change is missed.
    pub(super) fn new(path: PathBuf) -> Self {
        let watch = Watch::new(Source::from(&path));
        Self { path, watch, is_restless: false }
    }

    /// Reads the file if it has changed and is at rest, or if an operator orders it. A file that keeps changing is a problem, but no
    /// refused load: it is logged as policy files are that keep changing.
    pub(super) fn read_again<T>(
        &mut self,
        cause: Cause,
        read: impl FnOnce(&Path) -> Result<T, Problems>,
    ) -> Option<Result<T, Problems>> {
        match cause {
            Cause::Order => self.watch.settle_now(),
            Cause::Poll => match self.watch.poll(Instant::now()) {
                Some(Change::Settled) => {}
                Some(Change::Restless(_)) => {
                    self.is_restless = true;
                    let file = printable(&self.path.display().to_string());
                    tracing::warn!(file, "a file keeps changing and is not loaded");
                    return Some(Err(Problems::of_restless(&self.path)));
                }
                // It has become again what it was.
                None if self.is_restless && self.watch.is_settled() => {}
                // A single file never rests beside others.
                Some(Change::AtRest(_)) | None => return None,
            },
        }
        let content = read(&self.path);
        // The file may have been read while it changed again. The watch reports that when it settles.
        if cause == Cause::Poll && !self.watch.is_unchanged(&BTreeSet::new()) {
            return None;
        }
        self.is_restless = false;
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread::park_timeout;
    use std::time::Duration;

    use weir_policies::watch::RESTLESS;

    use super::*;

    /// A file of callers that was renamed every 150 ms was not loaded, and no gauge showed it.
    #[test]
    fn a_file_that_keeps_changing_is_a_problem_until_it_rests() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "0").unwrap();
        let mut file = WatchedFile::new(path.clone());
        let mut look = |number: Option<u32>| {
            if let Some(number) = number {
                fs::write(path.with_extension("next"), number.to_string()).unwrap();
                fs::rename(path.with_extension("next"), &path).unwrap();
            }
            park_timeout(Duration::from_millis(20));
            file.read_again(Cause::Poll, |path| Ok(fs::read_to_string(path).unwrap()))
        };
        let began = Instant::now();
        let refused = (1..).find_map(|number| look(Some(number))).unwrap().unwrap_err();
        assert!(began.elapsed() >= RESTLESS);
        assert!(refused.to_string().contains("file: keeps changing and is not loaded: "), "{refused}");
        look(Some(7));
        let read = std::iter::repeat_with(|| look(None)).find_map(|read| read);
        assert_eq!(read.unwrap().unwrap(), "7");
    }
}
