//! Which files are policies, and how a file is read.
//!
//! Only regular files are read: a pipe or a device could block forever. Bounds limit the cost of a wrong directory. Not
//! here: when files are read (watch.rs), and their content (lib.rs).

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use weir_engine::words::printable;
use weir_tls::files::{not_regular, open};

use super::Limits;
use super::row_file::ROW_FILE_ENDING;

/// The most policy files in one directory, including its subdirectories.
pub const FILES_MAX: usize = 10_000;
/// The most directory entries that are read.
pub const NAMES_MAX: usize = 100_000;
/// The deepest nesting of subdirectories below the policy directory.
pub const DEPTH_MAX: usize = 8;

/// What the files of a source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Policies,
    /// Files of rows beside the policies: `*.rows.csv`.
    Rows,
}

/// A directory, and which of its files are policies. From a path: `*.yaml` and `*.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub directory: PathBuf,
    pub kind: FileKind,
    /// Every file is a policy, with any extension.
    pub all_files: bool,
    /// Whether names that begin with one dot are read too. Names that begin with two dots are never read: in a
    /// Kubernetes volume they contain every file a second time.
    pub dot_files: bool,
    /// Adds the files beside the directory that have its name and an extension: `config.yaml` beside `config`.
    pub beside: bool,
    /// Whether the directory and its policy files may be missing.
    pub allow_empty: bool,
    /// The file of overlays.
    pub overlay: Option<PathBuf>,
    /// The bounds on the policy files.
    pub limits: Limits,
}

impl From<&Path> for Source {
    fn from(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self {
            directory,
            kind: FileKind::Policies,
            all_files: false,
            dot_files: false,
            beside: false,
            allow_empty: false,
            overlay: None,
            limits: Limits::default(),
        }
    }
}

impl From<&PathBuf> for Source {
    fn from(directory: &PathBuf) -> Self {
        Self::from(directory.as_path())
    }
}

impl Source {
    /// Whether this name is skipped, including everything below it.
    fn hides(&self, name: &[u8]) -> bool {
        name.starts_with(b"..") || (name.starts_with(b".") && !self.dot_files)
    }

    /// The files of rows beside these policies.
    #[must_use]
    pub fn rows(self) -> Self {
        Self { kind: FileKind::Rows, overlay: None, ..self }
    }

    fn takes(&self, path: &Path) -> bool {
        match self.kind {
            FileKind::Policies if self.overlay.as_deref() == Some(path) => false,
            FileKind::Policies => {
                let is_other = || [is_test, is_traffic, is_overlay, is_callers].iter().any(|is_other| is_other(path));
                self.all_files || (is_yaml(path) && !is_other())
            }
            FileKind::Rows => path.as_os_str().as_encoded_bytes().ends_with(ROW_FILE_ENDING.as_bytes()),
        }
    }

    /// Whether the error means that the directory is missing, and the source allows that.
    pub(super) fn allows(&self, error: &io::Error) -> bool {
        self.allow_empty && error.kind() == io::ErrorKind::NotFound
    }
}

/// Whether a file holds tests of policies, by its name: `*.test.yaml` or `*.test.yml`.
pub fn is_test(path: &Path) -> bool {
    is_yaml_called(path, b".test")
}

/// Whether a file describes traffic, by its name: `*.traffic.yaml` or `*.traffic.yml`.
pub fn is_traffic(path: &Path) -> bool {
    is_yaml_called(path, b".traffic")
}

/// Whether a file holds overlays, by its name: `*.overlay.yaml` or `*.overlay.yml`.
pub fn is_overlay(path: &Path) -> bool {
    is_yaml_called(path, b".overlay")
}

/// Whether a file holds callers, by its name: `*.callers.yaml` or `*.callers.yml`.
pub fn is_callers(path: &Path) -> bool {
    is_yaml_called(path, b".callers")
}

fn is_yaml_called(path: &Path, ending: &[u8]) -> bool {
    is_yaml(path) && path.file_stem().is_some_and(|stem| stem.as_encoded_bytes().ends_with(ending))
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The policy files of a source, sorted by path: every `*.yaml` and `*.yml` of a directory and its subdirectories, except
/// [tests](is_test), [traffic](is_traffic), [overlays](is_overlay) and [callers](is_callers). Symlinks are followed. The
/// path of a file is that file alone, with any other name.
///
/// Names that start with a dot are skipped unless the source includes them. In a Kubernetes ConfigMap they are the
/// generations (`..2024_...`, `..data`), and the visible files are symlinks through them. A dangling symlink is listed,
/// so reading it fails and the missing policy is reported.
///
/// # Errors
/// A directory that cannot be listed, an exceeded bound, a symlink to a parent directory, a policy name on
/// something other than a regular file, or a single file whose name marks it as tests or traffic.
pub fn policy_files(source: impl Into<Source>) -> io::Result<Vec<PathBuf>> {
    let source = source.into();
    if !source.all_files {
        must_not_be(&source.directory, is_test, "tests, not of policies: weir test runs it")?;
        must_not_be(&source.directory, is_traffic, "traffic, not of policies: weir simulate sends it")?;
        must_not_be(&source.directory, is_overlay, "overlays, not of policies: policies.overlay names it")?;
        must_not_be(&source.directory, is_callers, "callers, not of policies: callers.file names it")?;
    }
    let files = walk(&source)?;
    Ok(files.into_iter().map(|file| file.path).collect())
}

/// The files of rows beside the policies of a source, sorted by path. A single file of policies has none.
///
/// # Errors
/// As [`policy_files`].
pub fn row_files(policies: Source) -> io::Result<Vec<PathBuf>> {
    let files = walk(&policies.rows())?;
    Ok(files.into_iter().map(|file| file.path).collect())
}

/// The files of tests in a directory and its subdirectories, sorted by path. The path of a file is that file alone, with any
/// name.
///
/// # Errors
/// As [`policy_files`].
pub fn test_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    must_not_be(path, is_traffic, "traffic, not of tests: weir simulate sends it")?;
    let files = walk_for(&Source::from(path), |_, path| is_test(path))?;
    Ok(files.into_iter().map(|file| file.path).collect())
}

pub(super) fn has_tests_or_traffic(directory: &Path) -> bool {
    let files = walk_for(&Source::from(directory), |_, path| is_test(path) || is_traffic(path));
    files.is_ok_and(|files| !files.is_empty())
}

/// Refuses a file whose name marks it as another kind.
fn must_not_be(path: &Path, is_other: fn(&Path) -> bool, what: &str) -> io::Result<()> {
    if is_other(path) && path.is_file() {
        Err(refuse(path, &format!("its name marks it as a file of {what}")))
    } else {
        Ok(())
    }
}

/// The bytes of a regular file, up to one more than `bytes_max`.
///
/// # Errors
/// As [`open`], and a file that cannot be read.
pub fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    let most = bytes_max as u64 + 1;
    // A growing vector would need three times the memory for a moment.
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(most)).unwrap_or_default());
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PolicyFile {
    /// The path below the given directory.
    pub(super) path: PathBuf,
    /// The path after following symlinks. None for a dangling symlink.
    pub(super) real: Option<PathBuf>,
    /// Identifies this state of the file. None if its metadata cannot be read.
    pub(super) mark: Option<Mark>,
}

/// Identifies one state of a file without reading it.
///
/// It includes the time of the inode's last change, which no program can set. So it detects an edit that keeps the size
/// and resets the modification time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
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

    /// Whether both are states of one file.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether the last change was not a write: it was a rename, or a copy that sets the times at its end.
    pub(super) fn arrived_whole(&self) -> bool {
        self.modified < self.changed
    }
}

/// A file that is watched beside the policies, also if it is missing.
pub(super) fn beside(path: &Path) -> PolicyFile {
    let mark = fs::metadata(path).ok().map(|metadata| Mark::of(&metadata));
    PolicyFile { path: path.to_owned(), real: fs::canonicalize(path).ok(), mark }
}

pub(super) fn walk(source: &Source) -> io::Result<Vec<PolicyFile>> {
    let mut files = walk_for(source, Source::takes)?;
    // The path of the overlays can have another spelling than that of the directory.
    if let Some(overlay) = source.overlay.as_deref().and_then(|path| fs::canonicalize(path).ok()) {
        files.retain(|file| file.path == source.directory || file.real.as_ref() != Some(&overlay));
    }
    Ok(files)
}

/// The files that `takes` accepts, sorted by path.
fn walk_for(source: &Source, takes: fn(&Source, &Path) -> bool) -> io::Result<Vec<PolicyFile>> {
    let directory = &*source.directory;
    let mut walk = Walk { source, takes, files: Vec::new(), names: 0, around: Vec::new() };
    match fs::metadata(directory) {
        Err(error) if source.allows(&error) => {}
        Err(error) => return Err(at(directory, &error)),
        Ok(metadata) => {
            let real = fs::canonicalize(directory).map_err(|error| at(directory, &error))?;
            if metadata.is_file() && source.kind == FileKind::Rows {
                return Ok(Vec::new());
            }
            if metadata.is_file() {
                let mark = Some(Mark::of(&metadata));
                return Ok(vec![PolicyFile { path: directory.to_owned(), real: Some(real), mark }]);
            }
            if !metadata.is_dir() {
                return Err(refuse(directory, "neither a directory nor a regular file"));
            }
            walk.enter(directory, &real)?;
        }
    }
    if source.beside {
        walk.beside()?;
    }
    walk.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(walk.files)
}

struct Walk<'a> {
    source: &'a Source,
    takes: fn(&Source, &Path) -> bool,
    files: Vec<PolicyFile>,
    names: usize,
    /// Device and inode of the listed directory and of its parents.
    around: Vec<(u64, u64)>,
}

impl Walk<'_> {
    /// Visits the files beside the directory that have its name.
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
                let path = entry.path();
                let real = fs::canonicalize(&path).ok();
                self.visit(path, real)?;
            }
        }
        Ok(())
    }

    fn count(&mut self) -> io::Result<()> {
        self.names += 1;
        if self.names > NAMES_MAX {
            return Err(refuse(&self.source.directory, &format!("more than {NAMES_MAX} names")));
        }
        Ok(())
    }

    fn enter(&mut self, directory: &Path, real: &Path) -> io::Result<()> {
        let metadata = fs::metadata(directory).map_err(|error| at(directory, &error))?;
        let identity = (metadata.dev(), metadata.ino());
        if self.around.contains(&identity) {
            return Err(refuse(directory, "a symlink points to one of its parent directories"));
        }
        if self.around.len() > DEPTH_MAX {
            return Err(refuse(directory, &format!("nested deeper than {DEPTH_MAX} directories")));
        }
        self.around.push(identity);
        for entry in fs::read_dir(directory).map_err(|error| at(directory, &error))? {
            let entry = entry.map_err(|error| at(directory, &error))?;
            self.count()?;
            if self.source.hides(entry.file_name().as_encoded_bytes()) {
                continue;
            }
            let path = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let real = if is_link { fs::canonicalize(&path).ok() } else { Some(real.join(entry.file_name())) };
            self.visit(path, real)?;
        }
        self.around.pop();
        Ok(())
    }

    fn visit(&mut self, path: PathBuf, real: Option<PathBuf>) -> io::Result<()> {
        let named_policy = (self.takes)(self.source, &path);
        let mark = match (fs::metadata(&path), &real) {
            (Ok(metadata), Some(real)) if metadata.is_dir() => return self.enter(&path, real),
            _ if !named_policy => return Ok(()),
            (Ok(metadata), _) if !metadata.is_file() => return Err(at(&path, &not_regular())),
            (Ok(metadata), _) => Some(Mark::of(&metadata)),
            (Err(_), _) => None,
        };
        if self.files.len() == FILES_MAX {
            return Err(refuse(&path, &format!("more than {FILES_MAX} files")));
        }
        self.files.push(PolicyFile { path, real, mark });
        Ok(())
    }
}

pub(super) fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}

fn refuse(path: &Path, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {reason}", shown(path)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    pub(crate) fn directory(files: &[(&str, &str)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            write(dir.path(), name, text);
        }
        dir
    }

    pub(crate) fn write(dir: &Path, name: &str, text: &str) {
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

    #[test]
    fn a_huge_file_takes_no_more_memory_than_its_bound() {
        const BYTES_MAX: usize = 1 << 20;
        let dir = directory(&[]);
        let path = dir.path().join("huge.yaml");
        // A sparse file: large, but it uses no disk space.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let bytes = read(&path, BYTES_MAX).unwrap();
        assert_eq!(bytes.len(), BYTES_MAX + 1);
        assert!(bytes.capacity() < BYTES_MAX + BYTES_MAX / 8, "{}", bytes.capacity());
    }

    #[test]
    fn what_is_no_policy_is_not_listed() {
        let dir = directory(&[("b.yml", ""), ("a.yaml", ""), ("team/c.yaml", "")]);
        for name in ["readme.md", ".hidden.yaml", "a.yaml~", ".git/d.yaml", "yaml", "a.test.yaml", "team/c.test.yml"] {
            write(dir.path(), name, "x");
        }
        symlink("nowhere", dir.path().join("dangling.txt")).unwrap();
        assert_eq!(names(dir.path()), ["a.yaml", "b.yml", "team/c.yaml"]);
        let tests = test_files(dir.path()).unwrap();
        assert_eq!(tests, ["a.test.yaml", "team/c.test.yml"].map(|name| dir.path().join(name)));
    }

    #[test]
    fn a_directory_may_be_named_like_a_policy() {
        let dir = directory(&[("team.yaml/a.yaml", "")]);
        assert_eq!(names(dir.path()), ["team.yaml/a.yaml"]);
    }

    #[test]
    fn a_file_is_itself_alone() {
        let dir = directory(&[("a.yaml", "1"), ("one.txt", "2")]);
        let file = dir.path().join("one.txt");
        assert_eq!(policy_files(file.as_path()).unwrap(), [file]);
    }

    #[test]
    fn loops_depth_and_things_that_are_no_files_are_refused() {
        let reason = |dir: &Path| policy_files(dir).unwrap_err().to_string();

        let dir = directory(&[("a/b.yaml", "")]);
        symlink("..", dir.path().join("a/again")).unwrap();
        assert!(reason(dir.path()).ends_with("a/again: a symlink points to one of its parent directories"));

        let deepest = "d/".repeat(DEPTH_MAX);
        let dir = directory(&[(&format!("{deepest}a.yaml"), "")]);
        assert_eq!(names(dir.path()).len(), 1);
        write(dir.path(), &format!("{deepest}d/a.yaml"), "");
        assert!(reason(dir.path()).ends_with("nested deeper than 8 directories"));

        let dir = directory(&[]);
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s.yaml")).unwrap();
        assert!(reason(dir.path()).ends_with("s.yaml: not a regular file"));

        assert!(reason(&dir.path().join("missing")).contains("missing: "));
        assert_eq!(reason(Path::new("/dev/null")), "/dev/null: neither a directory nor a regular file");
        let dir = directory(&[("a.test.yaml", ""), ("a.traffic.yaml", "")]);
        let (tests, traffic) = (dir.path().join("a.test.yaml"), dir.path().join("a.traffic.yaml"));
        assert!(reason(&tests).ends_with("its name marks it as a file of tests, not of policies: weir test runs it"));
        assert!(
            reason(&traffic)
                .ends_with("its name marks it as a file of traffic, not of policies: weir simulate sends it")
        );
        assert!(
            test_files(&traffic).unwrap_err().to_string().ends_with("traffic, not of tests: weir simulate sends it")
        );
        let all = Source { all_files: true, ..Source::from(&tests) };
        assert_eq!(policy_files(all).unwrap(), [tests]);
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
        assert!(error.ends_with("more than 10000 files"), "{error}");
    }

    #[test]
    fn only_regular_files_are_read_and_nothing_is_waited_for() {
        let dir = directory(&[("a.yaml", "12345")]);
        assert_eq!(read(&dir.path().join("a.yaml"), 3).unwrap(), b"1234");
        let pipe = dir.path().join("pipe.yaml");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("/dev/zero", dir.path().join("zero")).unwrap();
        for name in ["pipe.yaml", "zero"] {
            assert_eq!(read(&dir.path().join(name), 3).unwrap_err().to_string(), "not a regular file", "{name}");
        }
        let error = policy_files(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("pipe.yaml: not a regular file"), "{error}");
    }

    #[test]
    fn a_name_with_control_characters_is_shown_without_them() {
        let dir = directory(&[]);
        let name = "a\u{1b}[31m\n.yaml";
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join(name)).unwrap();
        let error = policy_files(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("/a\\u{1b}[31m\\n.yaml: not a regular file"), "{error:?}");
    }
}
