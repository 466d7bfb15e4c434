//! Detects changes of the policy files since the last load.
//!
//! Changes are detected by polling, not by inotify. A file that is written in place gets time to become complete
//! (docs/adr/0015-edits-in-place-rest.md). Nothing here reads a clock or a policy. The caller calls [`Watch::poll`]
//! every [`POLL_EVERY`], on a thread that may block on the file system, and loads the policies when a change has
//! settled.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::files::{self, Mark, PolicyFile, walk};
pub use super::files::{Source, policy_files};

/// The interval between calls of [`Watch::poll`].
pub const POLL_EVERY: Duration = Duration::from_millis(200);
/// How long a file that is written in place must be unchanged before it is loaded. If a writer pauses longer than this,
/// an incomplete file is loaded.
pub const REST: Duration = Duration::from_secs(2);
/// How many consecutive polls must find no change. Time alone could have passed while the machine was suspended.
const REST_POLLS: u32 = 5;
/// The time after which an unsettled change causes a warning, and the interval of repeated warnings.
pub const RESTLESS: Duration = Duration::from_secs(5);

/// Reports when a policy directory has changed and settled.
///
/// A change that replaces whole files settles when two consecutive polls find the same state: a symlink with a new
/// target, or a file renamed into place. A file that is written, made or removed in place settles after [`REST`]. A
/// file that keeps changing for [`RESTLESS`] delays only its own change.
///
/// Make it before the first load, so it finds changes during that load.
///
/// ```
/// use std::time::Instant;
/// use weir_policies::watch::{Change, REST, POLL_EVERY, Watch};
///
/// let dir = tempfile::tempdir().unwrap();
/// let mut watch = Watch::new(dir.path());
/// let mut now = Instant::now();
/// assert_eq!(watch.poll(now), None);
/// std::fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
/// let written = now;
/// let settled = loop {
///     now += POLL_EVERY;
///     if let Some(change) = watch.poll(now) {
///         break change;
///     }
/// };
/// assert_eq!(settled, Change::Settled);
/// assert!(now - written >= REST);
/// ```
#[derive(Debug)]
pub struct Watch {
    source: Source,
    /// The last settled state. At first, the state at the start.
    settled: Snapshot,
    last: Snapshot,
    /// How many consecutive polls found no change.
    same: u32,
    /// When a poll last found a change. None before the first change.
    changed: Option<Instant>,
    /// The start of the unsettled change, or the time of its last warning.
    unsettled: Option<Instant>,
    /// Whether files were written in place since the last settled change.
    in_place: bool,
    /// The files that have not settled, by path.
    moving: BTreeMap<PathBuf, Moving>,
    polls: u64,
    /// The settled state before the last reported change, until [`Watch::is_unchanged`].
    before: Option<Snapshot>,
}

/// A file that keeps changing.
#[derive(Clone, Copy, Debug)]
struct Moving {
    since: Instant,
    /// When a poll last found a change, and the number of that poll.
    changed: Instant,
    poll: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The directory has changed and settled: load it. If it has become unreadable, the load reports that.
    Settled,
    /// All changed files have settled except these, which have been changing for [`RESTLESS`]: load the others, and the
    /// last loaded texts of these.
    AtRest(BTreeSet<PathBuf>),
    /// Changes have not been loaded for another [`RESTLESS`], because they have not settled: log a warning. Contains
    /// the files that keep changing.
    Restless(BTreeSet<PathBuf>),
}

impl Watch {
    /// Watches a directory or one file from now on. It need not exist yet.
    pub fn new(source: impl Into<Source>) -> Self {
        let source = source.into();
        let seen = Snapshot::at(&source);
        Self {
            source,
            settled: seen.clone(),
            last: seen,
            same: 0,
            changed: None,
            unsettled: None,
            in_place: false,
            moving: BTreeMap::new(),
            polls: 0,
            before: None,
        }
    }

    /// Polls once. `now` must not go back. Blocks while the file system returns the metadata of each policy file.
    pub fn poll(&mut self, now: Instant) -> Option<Change> {
        let seen = Snapshot::at(&self.source);
        self.polls += 1;
        self.follow(&seen, now);
        if seen == self.last {
            self.same = self.same.saturating_add(1);
        } else {
            self.in_place |= !seen.replaces_whole_files_of(&self.last);
            self.last = seen;
            self.same = 0;
            self.changed = Some(now);
        }
        if self.last == self.settled {
            self.settle();
            return None;
        }
        let rested = self.changed.map_or(Duration::ZERO, |changed| now.saturating_duration_since(changed));
        let has_settled = if self.in_place { self.same >= REST_POLLS && rested >= REST } else { self.same >= 1 };
        if has_settled {
            self.before = Some(std::mem::replace(&mut self.settled, self.last.clone()));
            self.settle();
            return Some(Change::Settled);
        }
        let restless = self.restless(now);
        // Wait for files that began to change recently: they may belong to the same change.
        if !restless.is_empty()
            && restless.len() == self.moving.len()
            && let Some(at_rest) = self.last.except(&restless, &self.settled)
            && at_rest != self.settled
        {
            self.before = Some(std::mem::replace(&mut self.settled, at_rest));
            return Some(Change::AtRest(restless));
        }
        let unsettled = *self.unsettled.get_or_insert(now);
        if now.saturating_duration_since(unsettled) < RESTLESS {
            return None;
        }
        self.unsettled = Some(now);
        Some(Change::Restless(restless))
    }

    fn follow(&mut self, seen: &Snapshot, now: Instant) {
        let polls = self.polls;
        self.moving.retain(|_, file| {
            now.saturating_duration_since(file.changed) < REST || polls - file.poll < REST_POLLS.into()
        });
        for path in seen.changed_since(&self.last) {
            let file = self.moving.entry(path.to_owned()).or_insert(Moving { since: now, changed: now, poll: polls });
            (file.changed, file.poll) = (now, polls);
        }
    }

    /// The files that have kept changing for [`RESTLESS`].
    fn restless(&self, now: Instant) -> BTreeSet<PathBuf> {
        let is_restless = |file: &Moving| now.saturating_duration_since(file.since) >= RESTLESS;
        self.moving.iter().filter(|(_, file)| is_restless(file)).map(|(path, _)| path.clone()).collect()
    }

    /// Marks the current files as settled: the caller loads them even if they still change.
    pub fn settle_now(&mut self) {
        self.last = Snapshot::at(&self.source);
        self.settled = self.last.clone();
        self.before = None;
        self.same = 0;
        self.settle();
    }

    /// Whether the directory is as last reported, except for files that keep changing. If not, the load may have read
    /// part of the next change, so the next settled poll reports both.
    pub fn is_unchanged(&mut self, restless: &BTreeSet<PathBuf>) -> bool {
        let now = Snapshot::at(&self.source);
        let is_unchanged = now == self.settled || now.except(restless, &self.settled).as_ref() == Some(&self.settled);
        if let (Some(before), false) = (self.before.take(), is_unchanged) {
            self.settled = before;
        }
        is_unchanged
    }

    /// Whether the last poll found what was last reported as settled.
    pub fn is_settled(&self) -> bool {
        self.last == self.settled
    }

    fn settle(&mut self) {
        self.unsettled = None;
        self.in_place = false;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Snapshot {
    Files(Fingerprint),
    Unreadable(String),
}

impl Snapshot {
    fn at(source: &Source) -> Self {
        match Fingerprint::of(source) {
            Ok(fingerprint) => Self::Files(fingerprint),
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }

    /// The paths that differ. None if a directory cannot be read.
    fn changed_since<'s>(&'s self, before: &'s Self) -> Vec<&'s Path> {
        let (Self::Files(now), Self::Files(before)) = (self, before) else { return Vec::new() };
        if now == before {
            return Vec::new();
        }
        let [new, old] = [now, before].map(|state| state.files.iter().collect::<HashSet<_>>());
        new.symmetric_difference(&old).map(|file| &*file.path).collect()
    }

    /// This state with the earlier state of the files at these paths. None if the directory is a different one or
    /// cannot be read.
    fn except(&self, paths: &BTreeSet<PathBuf>, before: &Self) -> Option<Self> {
        let (Self::Files(now), Self::Files(before)) = (self, before) else { return None };
        if now.root != before.root {
            return None;
        }
        let others = now.files.iter().filter(|file| !paths.contains(&file.path));
        let these = before.files.iter().filter(|file| paths.contains(&file.path));
        let mut files: Vec<PolicyFile> = others.chain(these).cloned().collect();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Some(Self::Files(Fingerprint { root: now.root.clone(), files }))
    }

    /// Whether each difference is a complete file.
    fn replaces_whole_files_of(&self, before: &Self) -> bool {
        match (self, before) {
            // An unreadable directory cannot be incomplete.
            (Self::Unreadable(_), _) => true,
            (Self::Files(_), Self::Unreadable(_)) => false,
            (Self::Files(now), Self::Files(before)) => now.replaces_whole_files_of(before),
        }
    }
}

/// Identifies a state of a policy directory without reading its files: its real path, and the name, real path, device, inode,
/// size and times of each policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// None if the directory is missing and the source allows that.
    root: Option<PathBuf>,
    files: Vec<PolicyFile>,
}

impl Fingerprint {
    /// The state of the directory now.
    ///
    /// # Errors
    ///
    /// As [`policy_files`]. A file without readable metadata, such as a dangling symlink, is not an error.
    pub fn of(source: &Source) -> io::Result<Self> {
        let root = match std::fs::canonicalize(&source.directory) {
            Err(error) if source.allows(&error) => None,
            root => Some(root?),
        };
        let mut files = walk(source)?;
        files.extend(source.overlay.as_deref().map(files::beside));
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self { root, files })
    }

    fn replaces_whole_files_of(&self, before: &Self) -> bool {
        if let (Some(now), Some(before)) = (&self.root, &before.root)
            && now != before
        {
            return true;
        }
        let old: BTreeMap<&Path, &PolicyFile> = before.files.iter().map(|file| (&*file.path, file)).collect();
        let new: BTreeMap<&Path, &PolicyFile> = self.files.iter().map(|file| (&*file.path, file)).collect();
        let both = || new.iter().filter_map(|(path, file)| Some((*file, *old.get(path)?)));
        // The old and new directories of symlinks with a new target. Files that change with them are complete.
        let mut left = BTreeSet::new();
        let mut entered = BTreeSet::new();
        for (now, before) in both() {
            if let (Some(now), Some(before)) = (&now.real, &before.real)
                && now != before
            {
                left.insert(before.parent());
                entered.insert(now.parent());
            }
        }
        let is_in = |directories: &BTreeSet<Option<&Path>>, file: &PolicyFile| {
            file.real.as_ref().is_some_and(|real| directories.contains(&real.parent()))
        };
        let arrived_whole = |file: &PolicyFile| file.mark.as_ref().is_some_and(Mark::arrived_whole);
        for (now, before) in both() {
            let is_whole = match (&now.mark, &before.mark) {
                _ if now == before => true,
                (Some(_), Some(_)) if now.real != before.real => true,
                (Some(mark), Some(old)) if mark.is_same_file(old) => false,
                (Some(_), _) => arrived_whole(now),
                (None, _) => is_in(&left, before),
            };
            if !is_whole {
                return false;
            }
        }
        let come = new.values().filter(|file| !old.contains_key(&*file.path));
        let gone = old.values().filter(|file| !new.contains_key(&*file.path));
        come.clone().all(|file| is_in(&entered, file) || arrived_whole(file))
            && gone.clone().all(|file| is_in(&left, file) || file.mark.is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;
    use crate::files::tests::{directory, write};

    /// Renames a whole file into place. The clock of the file system ticks every few milliseconds: a rename in the tick of
    /// the last write cannot be distinguished from a write.
    fn rename_into_place(dir: &Path, name: &str, text: &str) {
        let (next, path) = (dir.join(".next"), dir.join(name));
        let deadline = Instant::now() + Duration::from_secs(20);
        fs::write(&next, text).unwrap();
        let written = fs::metadata(&next).unwrap();
        loop {
            let probe = dir.join(".probe");
            fs::write(&probe, "").unwrap();
            let now = fs::metadata(&probe).unwrap();
            if now.modified().unwrap() > written.modified().unwrap() {
                break;
            }
            assert!(Instant::now() < deadline, "the clock stands still");
        }
        fs::rename(&next, &path).unwrap();
    }

    struct Polled {
        watch: Watch,
        now: Instant,
    }

    impl Polled {
        fn new(source: impl Into<Source>) -> Self {
            Self { watch: Watch::new(source), now: Instant::now() }
        }

        fn poll(&mut self) -> Option<Change> {
            self.now += POLL_EVERY;
            self.watch.poll(self.now)
        }

        /// Expects no change for several times [`REST`].
        #[track_caller]
        fn assert_quiet(&mut self) {
            let end = self.now + 3 * REST;
            while self.now < end {
                assert_eq!(self.poll(), None);
            }
        }

        /// Expects one change, which settles at the second poll.
        #[track_caller]
        fn assert_settles_at_once(&mut self) {
            assert_eq!(self.poll(), None, "settled at the first look");
            assert_eq!(self.poll(), Some(Change::Settled));
            self.assert_quiet();
        }

        /// Expects one change, which settles after [`REST`].
        #[track_caller]
        fn assert_settles_after_a_rest(&mut self) {
            let first = self.now + POLL_EVERY;
            loop {
                match self.poll() {
                    None => assert!(self.now - first < REST + POLL_EVERY, "it never settles"),
                    Some(Change::Settled) => break,
                    Some(other) => panic!("{other:?}"),
                }
            }
            assert!(self.now - first >= REST, "settled after {:?}", self.now - first);
            self.assert_quiet();
        }
    }

    #[test]
    fn nothing_settles_while_nothing_changes() {
        let dir = directory(&[("a.yaml", "1")]);
        Polled::new(dir.path()).assert_quiet();
    }

    #[test]
    fn an_edit_in_place_rests() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        write(dir.path(), "a.yaml", "12");
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn an_edit_that_keeps_the_size_is_seen() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        let file = File::options().write(true).open(dir.path().join("a.yaml")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn an_edit_that_puts_size_and_time_back_is_seen() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = directory(&[("a.yaml", "1")]);
        let path = dir.path().join("a.yaml");
        let mut polled = Polled::new(dir.path());
        let before = fs::metadata(&path).unwrap();
        // The clock of the file system ticks every few milliseconds.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            fs::write(&path, "2").unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
            if fs::metadata(&path).unwrap().ctime_nsec() != before.ctime_nsec() {
                break;
            }
            assert!(Instant::now() < deadline, "the clock stands still");
        }
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn a_rename_of_a_whole_file_counts_at_once() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        rename_into_place(dir.path(), "a.yaml", "2");
        polled.assert_settles_at_once();
        rename_into_place(dir.path(), "b.yaml", "a new one");
        polled.assert_settles_at_once();
        // The file is written to afterwards.
        write(dir.path(), "b.yaml", "in place");
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn a_rename_beside_an_edit_in_place_waits_for_it() {
        let dir = directory(&[("a.yaml", "1"), ("b.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        write(dir.path(), "b.yaml", "half");
        assert_eq!(polled.poll(), None);
        rename_into_place(dir.path(), "a.yaml", "2");
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn a_file_that_is_made_or_removed_in_place_rests() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        write(dir.path(), "team/b.yml", "1");
        polled.assert_settles_after_a_rest();
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn a_config_map_swap_counts_at_once_with_keys_that_come_and_go() {
        let dir = directory(&[("..2026_01/a.yaml", "1"), ("..2026_01/old.yaml", "1")]);
        write(dir.path(), "..2026_02/a.yaml", "2");
        write(dir.path(), "..2026_02/new.yaml", "2");
        symlink("..2026_01", dir.path().join("..data")).unwrap();
        for name in ["a.yaml", "old.yaml"] {
            symlink(Path::new("..data").join(name), dir.path().join(name)).unwrap();
        }
        let mut polled = Polled::new(dir.path());
        symlink("..2026_02", dir.path().join("..data_tmp")).unwrap();
        polled.assert_quiet();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        symlink("..data/new.yaml", dir.path().join("new.yaml")).unwrap();
        fs::remove_file(dir.path().join("old.yaml")).unwrap();
        polled.assert_settles_at_once();
        let names: Vec<_> = policy_files(dir.path()).unwrap();
        assert_eq!(names, ["a.yaml", "new.yaml"].map(|name| dir.path().join(name)));
        fs::remove_dir_all(dir.path().join("..2026_01")).unwrap();
        polled.assert_quiet();
    }

    #[test]
    fn a_root_that_is_pointed_elsewhere_counts_at_once() {
        let dir = directory(&[("v1/a.yaml", "1"), ("v2/a.yaml", "1"), ("v2/b.yaml", "1")]);
        let root = dir.path().join("current");
        symlink("v1", &root).unwrap();
        let mut polled = Polled::new(root.as_path());
        let next = dir.path().join("next");
        symlink("v2", &next).unwrap();
        fs::rename(&next, &root).unwrap();
        polled.assert_settles_at_once();
    }

    /// A pause in the middle of a write can leave a valid file with fewer limits.
    #[test]
    fn a_file_that_is_written_with_pauses_settles_when_it_is_complete() {
        let dir = directory(&[("a.yaml", "")]);
        let mut polled = Polled::new(dir.path());
        for length in 1..10 {
            write(dir.path(), "a.yaml", &"x".repeat(length));
            for _ in 0..4 {
                assert_ne!(polled.poll(), Some(Change::Settled), "settled half-written");
            }
        }
        write(dir.path(), "a.yaml", "complete");
        let rested = polled.now + POLL_EVERY + REST;
        while polled.poll() != Some(Change::Settled) {
            assert!(polled.now < rested, "it never settles");
        }
    }

    #[test]
    fn a_stop_of_the_whole_machine_is_no_rest() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        write(dir.path(), "a.yaml", "half");
        assert_eq!(polled.poll(), None);
        polled.now += 100 * REST;
        assert_ne!(polled.poll(), Some(Change::Settled));
    }

    #[test]
    fn a_file_that_never_rests_holds_back_no_other_file() {
        let dir = directory(&[("a.yaml", ""), ("b.yaml", "1"), ("c.yaml", "1")]);
        let restless = BTreeSet::from([dir.path().join("a.yaml")]);
        let mut polled = Polled::new(dir.path());
        let mut length = 0;
        let mut poll = |polled: &mut Polled| {
            length += 1;
            write(dir.path(), "a.yaml", &"x".repeat(length));
            polled.poll()
        };
        for change in 2..5 {
            write(dir.path(), "b.yaml", &"1".repeat(change));
            let end = polled.now + 2 * RESTLESS;
            // Its last loaded text is in use.
            while poll(&mut polled) != Some(Change::AtRest(restless.clone())) {
                assert!(polled.now < end, "b.yaml is kept out");
            }
            // A load that has read part of the next change is repeated.
            write(dir.path(), "c.yaml", &"1".repeat(change));
            assert!(!polled.watch.is_unchanged(&restless));
            while poll(&mut polled) != Some(Change::AtRest(restless.clone())) {
                assert!(polled.now < end + 2 * RESTLESS, "c.yaml is kept out");
            }
            assert!(polled.watch.is_unchanged(&restless));
            for _ in 0..50 {
                assert!(!matches!(poll(&mut polled), Some(Change::AtRest(_) | Change::Settled)), "twice");
            }
        }
        // Its own change is reported after it settles.
        while polled.poll() != Some(Change::Settled) {}
        polled.assert_quiet();
    }

    #[test]
    fn files_that_are_written_one_after_the_other_are_one_change_however_long_it_takes() {
        let names: Vec<String> = (0..40).map(|number| format!("{number:02}.yaml")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
        let dir = directory(&files);
        let mut polled = Polled::new(dir.path());
        for name in &names {
            write(dir.path(), name, "22");
            for _ in 0..4 {
                let change = polled.poll();
                assert!(matches!(change, None | Some(Change::Restless(_))), "{name}: {change:?}");
            }
        }
        while polled.poll() != Some(Change::Settled) {}
        polled.assert_quiet();
    }

    #[test]
    fn a_directory_that_never_rests_is_warned_about() {
        let dir = directory(&[("a.yaml", "")]);
        let mut polled = Polled::new(dir.path());
        let (start, mut warnings) = (polled.now, 0);
        for length in 1.. {
            if polled.now > start + 2 * RESTLESS + REST {
                break;
            }
            write(dir.path(), "a.yaml", &"x".repeat(length));
            match polled.poll() {
                Some(Change::Restless(files)) => {
                    assert_eq!(files, [dir.path().join("a.yaml")].into());
                    warnings += 1;
                }
                Some(other) => panic!("{other:?} at poll {length}"),
                None => {}
            }
        }
        assert_eq!(warnings, 2);
        while polled.poll() != Some(Change::Settled) {
            assert!(polled.now < start + 4 * RESTLESS, "it never settles");
        }
    }

    #[test]
    fn a_directory_that_goes_and_comes_back_is_seen_each_time() {
        let dir = directory(&[("policies/a.yaml", "1")]);
        let (here, away) = (dir.path().join("policies"), dir.path().join("away"));
        let mut polled = Polled::new(here.as_path());
        fs::rename(&here, &away).unwrap();
        polled.assert_settles_at_once();
        fs::rename(&away, &here).unwrap();
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn a_symlink_that_loses_its_file_is_seen_and_still_listed() {
        let dir = directory(&[("..data/a.yaml", "1")]);
        symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
        let mut polled = Polled::new(dir.path());
        fs::remove_file(dir.path().join("..data/a.yaml")).unwrap();
        polled.assert_settles_after_a_rest();
        assert_eq!(policy_files(dir.path()).unwrap(), [dir.path().join("a.yaml")]);
    }

    #[test]
    fn what_is_no_policy_is_not_seen() {
        let dir = directory(&[("a.yaml", "")]);
        let mut polled = Polled::new(dir.path());
        for name in ["readme.md", ".hidden.yaml", "a.yaml~", ".git/d.yaml", "yaml"] {
            write(dir.path(), name, "x");
        }
        symlink("nowhere", dir.path().join("dangling.txt")).unwrap();
        polled.assert_quiet();
    }

    #[test]
    fn files_of_rows_are_watched_apart_from_policies() {
        let dir = directory(&[("a.yaml", ""), ("team/b.rows.csv", "1")]);
        let (mut policies, mut rows) = (Polled::new(dir.path()), Polled::new(Source::from(dir.path()).rows()));
        write(dir.path(), "team/b.rows.csv", "12");
        rows.assert_settles_after_a_rest();
        policies.assert_quiet();
        rename_into_place(dir.path(), "c.rows.csv", "1");
        rows.assert_settles_at_once();
        write(dir.path(), "a.yaml", "1");
        write(dir.path(), "readme.csv", "1");
        rows.assert_quiet();
        let names = ["c.rows.csv", "team/b.rows.csv"].map(|name| dir.path().join(name));
        assert_eq!(super::super::files::row_files(Source::from(dir.path())).unwrap(), names);
        assert!(super::super::files::row_files(Source::from(&dir.path().join("a.yaml"))).unwrap().is_empty());
    }

    #[test]
    fn a_single_file_is_watched_alone() {
        let dir = directory(&[("a.yaml", "1"), ("b.yaml", "1")]);
        let mut polled = Polled::new(dir.path().join("a.yaml").as_path());
        write(dir.path(), "b.yaml", "12");
        polled.assert_quiet();
        rename_into_place(dir.path(), "a.yaml", "2");
        polled.assert_settles_at_once();
    }

    fn source(directory: &Path) -> Source {
        Source { all_files: true, dot_files: true, beside: true, allow_empty: true, ..Source::from(directory) }
    }

    fn of_source(root: &Path, source: &Source) -> Vec<String> {
        let files = policy_files(source.clone()).unwrap();
        files.iter().map(|path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_source_may_take_every_file_and_those_beside_it() {
        let dir = directory(&[
            ("config/a.yaml", ""),
            ("config/b", ""),
            ("config/c.txt", ""),
            ("config/.d", ""),
            ("config/..e/f.yaml", ""),
            ("config/.git/g", ""),
            ("config.yaml", ""),
            ("config.d/h", ""),
            ("configure.yaml", ""),
            ("other/i.yaml", ""),
        ]);
        let all = source(&dir.path().join("config"));
        let inside = ["config/.d", "config/.git/g", "config/a.yaml", "config/b", "config/c.txt"];
        assert_eq!(of_source(dir.path(), &all), [&inside[..], &["config.d/h", "config.yaml"]].concat());
        let alone = Source { beside: false, ..all.clone() };
        assert_eq!(of_source(dir.path(), &alone), inside);
        let plain = Source { dot_files: false, ..alone };
        assert_eq!(of_source(dir.path(), &plain), ["config/a.yaml", "config/b", "config/c.txt"]);

        let mut polled = Polled::new(all);
        write(dir.path(), "configure.yaml", "1");
        polled.assert_quiet();
        write(dir.path(), "config.yaml", "1");
        polled.assert_settles_after_a_rest();
    }

    #[test]
    fn a_source_may_be_empty_or_missing_and_is_told_when_it_comes() {
        let dir = directory(&[]);
        let missing = source(&dir.path().join("root/config"));
        assert_eq!(of_source(dir.path(), &missing), Vec::<String>::new());
        let mut polled = Polled::new(missing.clone());
        polled.assert_quiet();
        write(dir.path(), "root/config/a", "1");
        polled.assert_settles_after_a_rest();
        let strict = Source { allow_empty: false, ..missing };
        assert_eq!(of_source(dir.path(), &strict), ["root/config/a"]);
        fs::remove_dir_all(dir.path().join("root")).unwrap();
        assert!(policy_files(strict).is_err());
    }

    #[test]
    fn an_order_to_load_settles_what_is_there() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut polled = Polled::new(dir.path());
        write(dir.path(), "a.yaml", "12");
        assert_eq!(polled.poll(), None);
        assert!(!polled.watch.is_unchanged(&BTreeSet::new()));
        polled.watch.settle_now();
        assert!(polled.watch.is_unchanged(&BTreeSet::new()));
        polled.assert_quiet();
        write(dir.path(), "a.yaml", "123");
        polled.assert_settles_after_a_rest();
    }
}
