//! The files of results. Their paths are checked before the simulation. They are written completely or not at all.
//!
//! A regular file is written beside its path and renamed. A device or a pipe is written directly. If a path is standard output,
//! such as `/dev/stdout`, the results go there and the report goes to standard error.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::SimulateError;

pub(super) struct Target {
    path: PathBuf,
    place: Place,
}

enum Place {
    /// A regular file, with symlinks followed, and the temporary file beside it.
    File { real: PathBuf, beside: PathBuf },
    /// A device or a pipe, kept open so the reader of a pipe waits.
    Stream(#[expect(dead_code, reason = "only held")] File),
    /// Standard output, with symlinks followed if it is a regular file.
    Stdout(Option<PathBuf>),
}

/// The targets of these options, in order. None for an option without a path. Each was checked.
/// Fails when two options name one file, when a file would replace an input, or when it cannot be written.
pub(super) fn targets<const N: usize>(
    options: [(&str, Option<&Path>); N],
    inputs: &Inputs,
) -> Result<[Option<Target>; N], SimulateError> {
    let mut found: [Option<Target>; N] = std::array::from_fn(|_| None);
    for (number, (option, path)) in options.into_iter().enumerate() {
        let Some(path) = path else { continue };
        let target = Target::of(path).map_err(|error| cannot_write(path, &error))?;
        let is_same = |other: &Option<Target>| other.as_ref().is_some_and(|other| other.is_same(&target));
        if let Some(other) = found[..number].iter().position(is_same) {
            let other = options[other].0;
            let message = format!("{other} and {option} name one file: give each its own name");
            return Err(SimulateError::Input(message));
        }
        if target.real().is_some_and(|real| inputs.0.iter().any(|input| input == real)) {
            let message = format!("{option} {}: the simulation reads this file: give another name", path.display());
            return Err(SimulateError::Input(message));
        }
        target.try_out().map_err(|error| cannot_write(path, &error))?;
        found[number] = Some(target);
    }
    Ok(found)
}

/// The files that a simulation reads, with symlinks followed.
pub(super) struct Inputs(Vec<PathBuf>);

impl Inputs {
    pub(super) fn of<'f>(files: impl Iterator<Item = &'f Path>) -> Self {
        Self(files.filter_map(|path| fs::canonicalize(path).ok()).collect())
    }
}

#[derive(Default)]
pub(super) struct Results(Vec<(Target, String)>);

impl Results {
    /// Adds results, if they have a target.
    ///
    /// # Errors
    /// Those of `text`.
    pub(super) fn add(
        &mut self,
        target: Option<Target>,
        text: impl FnOnce() -> Result<String, SimulateError>,
    ) -> Result<(), SimulateError> {
        if let Some(target) = target {
            self.0.push((target, text()?));
        }
        Ok(())
    }

    /// Writes the temporary files.
    /// Fails if one cannot be written; then none remains.
    pub(super) fn write_beside(&self) -> Result<(), SimulateError> {
        self.each(|place, text| match place {
            Place::File { beside, .. } => fs::write(beside, text),
            Place::Stream(_) | Place::Stdout(_) => Ok(()),
        })
    }

    /// Renames the temporary files to their paths.
    /// Fails if one cannot be renamed. The files before it were renamed.
    pub(super) fn put_in_place(&self) -> Result<(), SimulateError> {
        self.each(|place, _| match place {
            Place::File { real, beside } => fs::rename(beside, real),
            Place::Stream(_) | Place::Stdout(_) => Ok(()),
        })
    }

    fn each(&self, write: impl Fn(&Place, &str) -> io::Result<()>) -> Result<(), SimulateError> {
        let result = self.0.iter().try_for_each(|(target, text)| {
            write(&target.place, text).map_err(|error| cannot_write(&target.path, &error))
        });
        if result.is_err() {
            self.clear();
        }
        result
    }

    pub(super) fn clear(&self) {
        for (target, _) in &self.0 {
            if let Place::File { beside, .. } = &target.place {
                let _ = fs::remove_file(beside);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the results for devices and pipes.
    pub(super) fn take_streams(&mut self) -> Streams {
        Streams(self.0.extract_if(.., |(target, _)| matches!(target.place, Place::Stream(_))).collect())
    }

    /// Removes and returns the results for standard output.
    pub(super) fn take_stdout(&mut self) -> Option<String> {
        self.0.extract_if(.., |(target, _)| matches!(target.place, Place::Stdout(_))).map(|(_, text)| text).next()
    }
}

pub(super) struct Streams(Vec<(Target, String)>);

impl Streams {
    /// Writes them as fast as their readers read.
    /// Fails if one cannot be written. A closed pipe is not an error.
    pub(super) fn write(&self) -> Result<(), SimulateError> {
        self.0.iter().try_for_each(|(Target { path, .. }, text)| {
            let opened = OpenOptions::new().write(true).open(path);
            match opened.and_then(|mut stream| stream.write_all(text.as_bytes())) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(cannot_write(path, &error)),
                _ => Ok(()),
            }
        })
    }
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        let real = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(metadata) if is_stdout(&metadata) => {
                let real = fs::canonicalize(path).ok().filter(|_| metadata.is_file());
                return Ok(Self { path: path.to_owned(), place: Place::Stdout(real) });
            }
            Ok(metadata) if !metadata.is_file() => {
                // Without the flag, opening a pipe waits for a reader.
                let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
                let opened = opened.map_err(|error| match error.raw_os_error() {
                    Some(libc::ENXIO) => io::Error::other("no program reads from it"),
                    _ => error,
                })?;
                return Ok(Self { path: path.to_owned(), place: Place::Stream(opened) });
            }
            Ok(_) => fs::canonicalize(path)?,
            Err(error) if error.kind() == ErrorKind::NotFound => new_file(path)?,
            Err(error) => return Err(error),
        };
        let mut name = OsString::from(".");
        name.push(real.file_name().unwrap_or_default());
        name.push(format!(".{}.tmp", std::process::id()));
        let beside = real.with_file_name(name);
        Ok(Self { path: path.to_owned(), place: Place::File { real, beside } })
    }

    fn real(&self) -> Option<&Path> {
        match &self.place {
            Place::File { real, .. } => Some(real),
            Place::Stream(_) => None,
            Place::Stdout(real) => real.as_deref(),
        }
    }

    /// Whether one would replace the other, or both are standard output.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (Place::Stdout(_), Place::Stdout(_)) => true,
            _ => self.real().is_some() && self.real() == other.real(),
        }
    }

    /// Tries to write the target. Leaves no file behind.
    fn try_out(&self) -> io::Result<()> {
        if let Place::File { beside, .. } = &self.place {
            File::create(beside)?;
            fs::remove_file(beside)?;
        }
        Ok(())
    }
}

/// The path of a new file. A dangling symlink leads to it.
fn new_file(path: &Path) -> io::Result<PathBuf> {
    let directory = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let path = match fs::read_link(path) {
        Ok(link) => directory(path).join(link),
        Err(_) => path.to_owned(),
    };
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    Ok(fs::canonicalize(directory(&path))?.join(name))
}

/// Whether the metadata is of standard output, and it is a pipe or a regular file. A device can be opened twice without
/// loss.
fn is_stdout(metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return false;
    }
    let stdout = io::stdout().as_fd().try_clone_to_owned().and_then(|stdout| File::from(stdout).metadata());
    stdout.is_ok_and(|stdout| (stdout.dev(), stdout.ino()) == (metadata.dev(), metadata.ino()))
}

fn cannot_write(path: &Path, error: &io::Error) -> SimulateError {
    SimulateError::Output(format!("{}: cannot write: {error}", path.display()))
}
