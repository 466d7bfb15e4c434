//! Which files are policies, and whether they changed since they were last loaded.
//!
//! Changes are found by polling, not by inotify (docs/adr/0002-policies-are-polled.md). Nothing here
//! keeps time or reads a policy: the caller calls [`Watch::poll`] every [`POLL_EVERY`], on a thread
//! that may block on the file system, and loads when told.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often to call [`Watch::poll`]. A change is told at the second poll that sees it, so within
/// two of these: far below the second that a reload may take.
pub const POLL_EVERY: Duration = Duration::from_millis(200);

/// The most policy files in one directory, its subdirectories included.
pub const FILES_MAX: usize = 10_000;
/// The most names looked at to find them, so that a directory given by mistake costs little.
pub const NAMES_MAX: usize = 100_000;
/// How deep subdirectories may nest below the policy directory.
pub const DEPTH_MAX: usize = 8;
/// After how many polls in a row that each saw something new the caller is told that nothing can
/// be loaded; five seconds at [`POLL_EVERY`].
pub const RESTLESS_POLLS: u32 = 25;

/// Which files are policies: a directory, and which names in it. A path alone is a directory of `*.yaml` and `*.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The directory.
    pub directory: PathBuf,
    /// Every file is a policy, whatever its name ends in.
    pub all_files: bool,
    /// Names that begin with one dot are read too. Those that begin with two never are: in a Kubernetes volume they hold
    /// every file a second time.
    pub dot_files: bool,
    /// What lies beside the directory and has its name, a dot and an ending belongs to it: `config.yaml` to `config`.
    pub beside: bool,
    /// There may be no policy file, nor the directory.
    pub allow_empty: bool,
}

impl From<&Path> for Source {
    fn from(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self { directory, all_files: false, dot_files: false, beside: false, allow_empty: false }
    }
}

impl From<&PathBuf> for Source {
    fn from(directory: &PathBuf) -> Self {
        Self::from(directory.as_path())
    }
}

impl Source {
    /// Whether this name is passed over, with all that is below it.
    fn hides(&self, name: &[u8]) -> bool {
        name.starts_with(b"..") || (name.starts_with(b".") && !self.dot_files)
    }

    /// Whether a file of this name is a policy.
    fn takes(&self, path: &Path) -> bool {
        self.all_files || path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
    }

    /// Whether this is no error here, since the directory may be missing.
    fn allows(&self, error: &io::Error) -> bool {
        self.allow_empty && error.kind() == io::ErrorKind::NotFound
    }
}

/// Tells when a policy directory changed and has come to rest.
///
/// Make it before the first load: what changes while that load runs is then told. A load that runs
/// while files are being replaced may see old and new ones together; the next change corrects it.
///
/// ```
/// use weir::config::watch::{Change, Watch};
///
/// let dir = tempfile::tempdir().unwrap();
/// let mut watch = Watch::new(dir.path());
/// assert_eq!(watch.poll(), None);
/// std::fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
/// assert_eq!(watch.poll(), None); // may be half-written
/// assert_eq!(watch.poll(), Some(Change::Settled));
/// assert_eq!(watch.poll(), None);
/// ```
#[derive(Debug)]
pub struct Watch {
    source: Source,
    /// What the caller was last told about, or what stood when the watch was made.
    told: Seen,
    /// What the last poll saw.
    last: Seen,
    /// How many polls in a row saw something new.
    restless: u32,
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The directory differs from what was told before and was the same at two polls: load it. It
    /// may also have become unreadable, which the load then reports.
    Settled,
    /// The directory keeps changing, and therefore was not loaded, for another [`RESTLESS_POLLS`]:
    /// worth a warning.
    Restless,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Files(Fingerprint),
    Unreadable(String),
}

impl Watch {
    /// Watches a directory from now on; it need not exist yet.
    #[must_use]
    pub fn new(source: impl Into<Source>) -> Self {
        let source = source.into();
        Self { told: Seen::at(&source), last: Seen::at(&source), restless: 0, source }
    }

    /// Looks once. Blocks for as long as the file system takes to describe each policy file.
    pub fn poll(&mut self) -> Option<Change> {
        let now = Seen::at(&self.source);
        if now != self.last {
            self.last = now;
            self.restless += 1;
            if self.restless < RESTLESS_POLLS {
                return None;
            }
            self.restless = 0;
            return Some(Change::Restless);
        }
        self.restless = 0;
        if now == self.told {
            return None;
        }
        self.told = now;
        Some(Change::Settled)
    }
}

impl Seen {
    fn at(source: &Source) -> Self {
        match Fingerprint::of(source) {
            Ok(fingerprint) => Self::Files(fingerprint),
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }
}

/// What tells one state of a policy directory from another without reading a file: where it really
/// is, and of each policy file its name, device, inode, size and times, symlinks followed.
///
/// The time of the last change to the inode is part of it: nobody can set it, so an edit that keeps
/// the size and puts the modification time back is still seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    root: PathBuf,
    files: Vec<(PathBuf, Option<Mark>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    /// The state of the directory now.
    ///
    /// # Errors
    ///
    /// Those of [`policy_files`]. A single file that cannot be described, such as a symlink that
    /// leads nowhere, is part of the fingerprint instead.
    pub fn of(source: &Source) -> io::Result<Self> {
        let root = match fs::canonicalize(&source.directory) {
            Err(error) if source.allows(&error) => source.directory.clone(),
            root => root?,
        };
        let files = walk(source)?;
        Ok(Self { root, files })
    }
}

impl Mark {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The policy files of a source, sorted by path: of a directory every `*.yaml` and `*.yml` in it and in its
/// subdirectories, symlinks followed.
///
/// Names that start with a dot are passed over, unless the source has them. In a Kubernetes ConfigMap those are the generations
/// (`..2024_...`, `..data`); the visible files are symlinks through them. A policy that is a symlink
/// to nowhere is listed, so that reading it fails loudly instead of a policy silently going missing.
///
/// # Errors
///
/// A directory that cannot be listed, a bound that is passed, a symlink that leads back to a
/// directory around it, or a policy name on something that is no file.
pub fn policy_files(source: impl Into<Source>) -> io::Result<Vec<PathBuf>> {
    let files = walk(&source.into())?;
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// The policy files by path, each with what tells it from its other states; none where the file
/// cannot be described.
fn walk(source: &Source) -> io::Result<Vec<(PathBuf, Option<Mark>)>> {
    let mut walk = Walk { source, files: Vec::new(), names: 0, around: Vec::new() };
    match fs::metadata(&source.directory) {
        Err(error) if source.allows(&error) => {}
        _ => walk.enter(&source.directory)?,
    }
    if source.beside {
        walk.beside()?;
    }
    walk.files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(walk.files)
}

struct Walk<'a> {
    source: &'a Source,
    files: Vec<(PathBuf, Option<Mark>)>,
    names: usize,
    /// Device and inode of the directory being listed and of those around it.
    around: Vec<(u64, u64)>,
}

impl Walk<'_> {
    /// Visits what lies beside the directory and belongs to it.
    fn beside(&mut self) -> io::Result<()> {
        let directory = &self.source.directory;
        let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else { return Ok(()) };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let entries = match fs::read_dir(parent) {
            Err(error) if self.source.allows(&error) => return Ok(()),
            entries => entries.map_err(|error| at(parent, &error))?,
        };
        let mut prefix = name.as_encoded_bytes().to_vec();
        prefix.push(b'.');
        for entry in entries {
            let entry = entry.map_err(|error| at(parent, &error))?;
            self.count()?;
            if entry.file_name().as_encoded_bytes().starts_with(&prefix) {
                self.visit(entry.path())?;
            }
        }
        Ok(())
    }

    /// One more name was looked at.
    fn count(&mut self) -> io::Result<()> {
        self.names += 1;
        if self.names > NAMES_MAX {
            return Err(refuse(&self.source.directory, &format!("more than {NAMES_MAX} names")));
        }
        Ok(())
    }

    fn enter(&mut self, directory: &Path) -> io::Result<()> {
        let metadata = fs::metadata(directory).map_err(|error| at(directory, &error))?;
        let identity = (metadata.dev(), metadata.ino());
        if self.around.contains(&identity) {
            return Err(refuse(directory, "a symlink leads back to a directory around it"));
        }
        if self.around.len() > DEPTH_MAX {
            return Err(refuse(directory, &format!("nested deeper than {DEPTH_MAX} directories")));
        }
        self.around.push(identity);
        for entry in fs::read_dir(directory).map_err(|error| at(directory, &error))? {
            let entry = entry.map_err(|error| at(directory, &error))?;
            self.count()?;
            if !self.source.hides(entry.file_name().as_encoded_bytes()) {
                self.visit(entry.path())?;
            }
        }
        self.around.pop();
        Ok(())
    }

    fn visit(&mut self, path: PathBuf) -> io::Result<()> {
        let named_policy = self.source.takes(&path);
        let mark = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => return self.enter(&path),
            _ if !named_policy => return Ok(()),
            // Opening a pipe would wait for somebody to write to it.
            Ok(metadata) if !metadata.is_file() => return Err(refuse(&path, "not a file")),
            Ok(metadata) => Some(Mark::of(&metadata)),
            Err(_) => None,
        };
        if self.files.len() == FILES_MAX {
            return Err(refuse(&path, &format!("more than {FILES_MAX} policy files")));
        }
        self.files.push((path, mark));
        Ok(())
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn refuse(path: &Path, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::time::{Instant, SystemTime};
    use tempfile::TempDir;

    fn directory(files: &[(&str, &str)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            write(dir.path(), name, text);
        }
        dir
    }

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names = Vec::new();
        for path in policy_files(dir).unwrap() {
            let relative = path.strip_prefix(dir).unwrap();
            names.push(relative.to_str().unwrap().to_owned());
        }
        names
    }

    /// One change, told once and only after it has rested for a poll.
    #[track_caller]
    fn assert_told_once(watch: &mut Watch) {
        assert_eq!(watch.poll(), None, "told before it rested");
        assert_eq!(watch.poll(), Some(Change::Settled));
        assert_eq!(watch.poll(), None, "told twice");
    }

    #[track_caller]
    fn assert_quiet(watch: &mut Watch) {
        for _ in 0..3 {
            assert_eq!(watch.poll(), None);
        }
    }

    #[test]
    fn nothing_is_told_while_nothing_changes() {
        let dir = directory(&[("a.yaml", "1")]);
        assert_quiet(&mut Watch::new(dir.path()));
    }

    #[test]
    fn an_edit_in_place_is_told() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut watch = Watch::new(dir.path());
        write(dir.path(), "a.yaml", "12");
        assert_told_once(&mut watch);
    }

    #[test]
    fn an_edit_that_keeps_the_size_is_told() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut watch = Watch::new(dir.path());
        let file = File::options().write(true).open(dir.path().join("a.yaml")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_told_once(&mut watch);
    }

    #[test]
    fn an_edit_that_puts_size_and_time_back_is_told() {
        let dir = directory(&[("a.yaml", "1")]);
        let path = dir.path().join("a.yaml");
        let mut watch = Watch::new(dir.path());
        let before = fs::metadata(&path).unwrap();
        // The clock of the file system ticks every few milliseconds.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            fs::write(&path, "2").unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
            if fs::metadata(&path).unwrap().ctime_nsec() != before.ctime_nsec() {
                break;
            }
            assert!(Instant::now() < deadline, "the clock stands still");
        }
        assert_told_once(&mut watch);
    }

    #[test]
    fn an_atomic_rename_is_told() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut watch = Watch::new(dir.path());
        write(dir.path(), ".a.yaml.new", "2");
        assert_quiet(&mut watch);
        fs::rename(dir.path().join(".a.yaml.new"), dir.path().join("a.yaml")).unwrap();
        assert_told_once(&mut watch);
    }

    #[test]
    fn a_new_and_a_removed_file_are_told() {
        let dir = directory(&[("a.yaml", "1")]);
        let mut watch = Watch::new(dir.path());
        write(dir.path(), "team/b.yml", "1");
        assert_told_once(&mut watch);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        assert_told_once(&mut watch);
    }

    #[test]
    fn a_config_map_swap_is_told() {
        let dir = directory(&[("..2026_01/a.yaml", "1"), ("..2026_02/a.yaml", "1")]);
        symlink("..2026_01", dir.path().join("..data")).unwrap();
        symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
        assert_eq!(names(dir.path()), ["a.yaml"]);
        let mut watch = Watch::new(dir.path());
        symlink("..2026_02", dir.path().join("..data_tmp")).unwrap();
        assert_quiet(&mut watch);
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        assert_told_once(&mut watch);
        fs::remove_dir_all(dir.path().join("..2026_01")).unwrap();
        assert_quiet(&mut watch);
    }

    #[test]
    fn a_root_that_is_pointed_elsewhere_is_told() {
        let dir = directory(&[("v1/a.yaml", "1"), ("v2/a.yaml", "1")]);
        let root = dir.path().join("current");
        symlink("v1", &root).unwrap();
        let mut watch = Watch::new(&root);
        let next = dir.path().join("next");
        symlink("v2", &next).unwrap();
        fs::rename(&next, &root).unwrap();
        assert_told_once(&mut watch);
    }

    #[test]
    fn a_file_being_written_is_told_only_when_it_rests() {
        let dir = directory(&[("a.yaml", "")]);
        let mut watch = Watch::new(dir.path());
        for length in 1..10 {
            write(dir.path(), "a.yaml", &"x".repeat(length));
            assert_eq!(watch.poll(), None, "told a half-written file");
        }
        assert_eq!(watch.poll(), Some(Change::Settled));
    }

    #[test]
    fn a_directory_that_never_rests_is_warned_about() {
        let dir = directory(&[("a.yaml", "")]);
        let mut watch = Watch::new(dir.path());
        let mut warnings = 0;
        for length in 1..=2 * RESTLESS_POLLS as usize {
            write(dir.path(), "a.yaml", &"x".repeat(length));
            match watch.poll() {
                Some(Change::Restless) => warnings += 1,
                Some(Change::Settled) => panic!("told at poll {length}"),
                None => {}
            }
        }
        assert_eq!(warnings, 2);
        assert_eq!(watch.poll(), Some(Change::Settled));
    }

    #[test]
    fn a_directory_that_goes_and_comes_back_is_told_each_time() {
        let dir = directory(&[("policies/a.yaml", "1")]);
        let (here, away) = (dir.path().join("policies"), dir.path().join("away"));
        let mut watch = Watch::new(&here);
        fs::rename(&here, &away).unwrap();
        assert_told_once(&mut watch);
        fs::rename(&away, &here).unwrap();
        assert_told_once(&mut watch);
    }

    #[test]
    fn a_symlink_that_loses_its_file_is_told_and_still_listed() {
        let dir = directory(&[("..data/a.yaml", "1")]);
        symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
        let mut watch = Watch::new(dir.path());
        fs::remove_file(dir.path().join("..data/a.yaml")).unwrap();
        assert_told_once(&mut watch);
        assert_eq!(names(dir.path()), ["a.yaml"]);
    }

    #[test]
    fn what_is_no_policy_is_neither_listed_nor_told() {
        let dir = directory(&[("b.yml", ""), ("a.yaml", ""), ("team/c.yaml", "")]);
        let mut watch = Watch::new(dir.path());
        for name in ["readme.md", ".hidden.yaml", "a.yaml~", ".git/d.yaml", "yaml"] {
            write(dir.path(), name, "x");
        }
        symlink("nowhere", dir.path().join("dangling.txt")).unwrap();
        assert_quiet(&mut watch);
        assert_eq!(names(dir.path()), ["a.yaml", "b.yml", "team/c.yaml"]);
    }

    #[test]
    fn a_directory_may_be_named_like_a_policy() {
        let dir = directory(&[("team.yaml/a.yaml", "")]);
        assert_eq!(names(dir.path()), ["team.yaml/a.yaml"]);
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

        let mut watch = Watch::new(all);
        write(dir.path(), "configure.yaml", "1");
        assert_quiet(&mut watch);
        write(dir.path(), "config.yaml", "1");
        assert_told_once(&mut watch);
    }

    #[test]
    fn a_source_may_be_empty_or_missing_and_is_told_when_it_comes() {
        let dir = directory(&[]);
        let missing = source(&dir.path().join("root/config"));
        assert_eq!(of_source(dir.path(), &missing), Vec::<String>::new());
        let mut watch = Watch::new(missing.clone());
        assert_quiet(&mut watch);
        write(dir.path(), "root/config/a", "1");
        assert_told_once(&mut watch);
        let strict = Source { allow_empty: false, ..missing };
        assert_eq!(of_source(dir.path(), &strict), ["root/config/a"]);
        fs::remove_dir_all(dir.path().join("root")).unwrap();
        assert!(policy_files(strict).is_err());
    }

    #[test]
    fn loops_depth_and_things_that_are_no_files_are_refused() {
        let reason = |dir: &Path| policy_files(dir).unwrap_err().to_string();

        let dir = directory(&[("a/b.yaml", "")]);
        symlink("..", dir.path().join("a/again")).unwrap();
        assert!(reason(dir.path()).ends_with("a/again: a symlink leads back to a directory around it"));

        let deepest = "d/".repeat(DEPTH_MAX);
        let dir = directory(&[(&format!("{deepest}a.yaml"), "")]);
        assert_eq!(names(dir.path()).len(), 1);
        write(dir.path(), &format!("{deepest}d/a.yaml"), "");
        assert!(reason(dir.path()).ends_with("nested deeper than 8 directories"));

        let dir = directory(&[]);
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s.yaml")).unwrap();
        assert!(reason(dir.path()).ends_with("s.yaml: not a file"));

        assert!(reason(&dir.path().join("missing")).contains("missing: "));
    }

    #[test]
    fn more_files_than_the_bound_are_refused() {
        let dir = directory(&[]);
        for number in 0..FILES_MAX {
            File::create(dir.path().join(format!("{number}.yaml"))).unwrap();
        }
        assert_eq!(policy_files(dir.path()).unwrap().len(), FILES_MAX);
        write(dir.path(), "one-more.yaml", "");
        let error = policy_files(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("more than 10000 policy files"), "{error}");
    }
}
