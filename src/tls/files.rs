//! Files that are read again, because they may be replaced while weir runs: passwords, certificates, keys and tokens.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// A file that cannot be used. The error does not quote its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

impl FileError {
    /// The error of the file at `path`.
    pub fn new(path: &Path, problem: impl Into<String>) -> FileError {
        FileError { path: path.to_owned(), problem: problem.into() }
    }

    /// The reason, without the path.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// The last good content of files.
pub struct Reread<T> {
    last: Mutex<Option<T>>,
}

impl<T> Default for Reread<T> {
    fn default() -> Reread<T> {
        Reread { last: Mutex::new(None) }
    }
}

impl<T: Clone> Reread<T> {
    /// Calls `read` with the last good content. If `read` fails and there is such content, that content stays in use
    /// and `refused` gets the reason.
    ///
    /// # Errors
    /// The error of `read`, if there is no good content.
    pub fn read(
        &self,
        refused: impl FnOnce(&FileError),
        read: impl FnOnce(Option<&T>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let last = self.last.lock().clone();
        match (read(last.as_ref()), last) {
            (Ok(read), _) => {
                *self.last.lock() = Some(read.clone());
                Ok(read)
            }
            (Err(error), Some(last)) => {
                refused(&error);
                Ok(last)
            }
            (Err(error), None) => Err(error),
        }
    }
}

/// Lets one task at a time read files off the runtime.
pub type OneAtATime = Arc<tokio::sync::Mutex<()>>;

/// Opens a regular file. Never waits for a pipe or a device.
///
/// # Errors
/// When the file cannot be opened, or is not regular.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // Without the flag, opening a pipe waits for another process to write.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(not_regular()) }
}

/// The error of a pipe, a device or a directory.
pub fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Reads a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// When it cannot be opened or read, is not regular, or is larger.
pub fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let (file, _) = open(path).map_err(|error| FileError::new(path, format!("cannot be opened: {error}")))?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| FileError::new(path, format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > bytes_max {
        return Err(FileError::new(path, format!("more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Reads files on a thread for blocking work, because a file system can be slow. A file system that never answers costs one
/// thread: later calls wait at the gate.
///
/// # Errors
/// The error of `read`.
pub async fn off_the_runtime<T: Send + 'static>(
    gate: &OneAtATime,
    read: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, String> {
    let guard = gate.clone().lock_owned().await;
    let reading = tokio::task::spawn_blocking(move || {
        let read = read();
        drop(guard);
        read
    });
    match reading.await {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(error) => Err(format!("reading its files failed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A password file that was a pipe waited for a writer, on a thread for each dial.
    #[test]
    fn a_pipe_is_refused_without_waiting_for_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&*pipe, Path::new("/dev/zero"), folder.path()] {
            let error = read_bounded(path, 9).unwrap_err().to_string();
            assert_eq!(error, format!("{}: cannot be opened: not a regular file", path.display()));
        }
        std::fs::write(folder.path().join("file"), "0123456789").unwrap();
        let file = folder.path().join("file");
        assert_eq!(read_bounded(&file, 10).unwrap(), b"0123456789");
        assert!(read_bounded(&file, 9).unwrap_err().to_string().ends_with("/file: more than 9 bytes"));
    }
}
