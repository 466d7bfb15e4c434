//! The files of results: where they go is checked before the simulation, and they are written whole or not at all.
//!
//! A file is written beside its place and renamed. What is no regular file, such as a device or a pipe, is written to in its place.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::SimulateError;
use crate::config::files::policy_files;

/// A place for results.
pub(super) struct Target {
    /// The path as it was typed.
    path: PathBuf,
    place: Place,
}

enum Place {
    /// A regular file, with symlinks followed, and the name beside it that is renamed.
    File { real: PathBuf, beside: PathBuf },
    /// A device or a pipe, kept open so that the reader of a pipe waits.
    Stream(#[expect(dead_code, reason = "only held")] File),
}

/// The places of these options, in their order; none where an option has no path. Each was tried.
///
/// # Errors
/// When two options name one file, when a file would replace one that is read, or when it cannot be written.
pub(super) fn targets<const N: usize>(
    options: [(&str, Option<&Path>); N],
    inputs: &Inputs,
) -> Result<[Option<Target>; N], SimulateError> {
    let mut found: [Option<Target>; N] = std::array::from_fn(|_| None);
    for (number, (option, path)) in options.into_iter().enumerate() {
        let Some(path) = path else { continue };
        let target = Target::of(path).map_err(|error| cannot_write(path, &error))?;
        if let Some(real) = target.real() {
            let is_same = |other: &&Option<Target>| other.as_ref().and_then(Target::real) == Some(real);
            if let Some(other) = found[..number].iter().position(|other| is_same(&other)) {
                let other = options[other].0;
                let message = format!("{other} and {option} name one file: give each a name of its own");
                return Err(SimulateError::Input(message));
            }
            if inputs.0.iter().any(|input| input == real) {
                let message = format!("{option} {}: the simulation reads this file: give another name", path.display());
                return Err(SimulateError::Input(message));
            }
        }
        target.try_out().map_err(|error| cannot_write(path, &error))?;
        found[number] = Some(target);
    }
    Ok(found)
}

/// The files that a simulation reads, with symlinks followed.
pub(super) struct Inputs(Vec<PathBuf>);

impl Inputs {
    pub(super) fn of(traffic: &Path, policies: &[PathBuf]) -> Self {
        // What cannot be read is an error of its own.
        let files = policies.iter().flat_map(|path| policy_files(path.as_path()).unwrap_or_default());
        let all = files.chain([traffic.to_owned()]);
        Self(all.filter_map(|path| fs::canonicalize(path).ok()).collect())
    }
}

/// Writes all of them: first beside their places, then each to its place.
///
/// # Errors
/// When one cannot be written. Then no file was replaced, unless a rename fails after another.
pub(super) fn write(files: &[(Target, String)]) -> Result<(), SimulateError> {
    let result = files.iter().try_for_each(|(target, text)| {
        let written = match &target.place {
            Place::File { beside, .. } => fs::write(beside, text),
            Place::Stream(_) => Ok(()),
        };
        written.map_err(|error| cannot_write(&target.path, &error))
    });
    let result = result.and_then(|()| {
        files.iter().try_for_each(|(target, text)| {
            let written = match &target.place {
                Place::File { real, beside } => fs::rename(beside, real),
                Place::Stream(_) => write_to_stream(&target.path, text),
            };
            written.map_err(|error| cannot_write(&target.path, &error))
        })
    });
    if result.is_err() {
        for (target, _) in files {
            target.clear();
        }
    }
    result
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        let real = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
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
        }
    }

    /// Whether it can be written, as far as that can be known before. Leaves nothing behind.
    fn try_out(&self) -> io::Result<()> {
        if let Place::File { beside, .. } = &self.place {
            File::create(beside)?;
            fs::remove_file(beside)?;
        }
        Ok(())
    }

    fn clear(&self) {
        if let Place::File { beside, .. } = &self.place {
            let _ = fs::remove_file(beside);
        }
    }
}

/// Where a file that is not there yet will be: a symlink to nowhere names it.
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

/// A reader that has gone has what it wanted.
fn write_to_stream(path: &Path, text: &str) -> io::Result<()> {
    match OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> SimulateError {
    SimulateError::Output(format!("{}: cannot write: {error}", path.display()))
}
