//! The file of `--record`. Each line is written at once, so an interruption cuts off at most the last line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::TapError;

/// Only the owner can read the file, because it has requests of others.
const MODE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
#[error("{}: already exists: give another name, or --force to replace it", .0.display())]
pub struct Exists(PathBuf);

/// # Errors
/// When the file exists.
pub(super) fn must_be_new(path: &Path) -> Result<(), Exists> {
    if path.symlink_metadata().is_ok() { Err(Exists(path.to_owned())) } else { Ok(()) }
}

pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
    /// A line and its end, written together.
    line: Vec<u8>,
}

impl RecordFile {
    /// A file that begins with the header.
    /// Fails when it exists and may not be replaced, or cannot be written.
    pub(super) fn create(path: &Path, replaces: bool, header: &str) -> Result<Self, TapError> {
        let mut options = OpenOptions::new();
        options.write(true).mode(MODE);
        if replaces {
            options.create(true).truncate(true);
        } else {
            options.create_new(true);
        }
        let file = options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => TapError::Exists(Exists(path.to_owned())),
            _ => TapError::File(path.display().to_string(), error),
        })?;
        let mut file = Self { file, path: path.to_owned(), line: Vec::new() };
        file.put(header)?;
        Ok(file)
    }

    /// Writes a line.
    /// Fails if it cannot be written.
    pub(super) fn put(&mut self, line: &str) -> Result<(), TapError> {
        self.line.clear();
        self.line.extend_from_slice(line.as_bytes());
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(|error| TapError::File(self.path.display().to_string(), error))
    }
}
