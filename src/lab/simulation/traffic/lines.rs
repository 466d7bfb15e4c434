//! The lines of a file of any size, each within a bound.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;

use super::{TrafficError, name_of};

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;
const BUFFER_BYTES: usize = 256 << 10;

pub(super) struct Lines {
    file: Arc<str>,
    reader: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    read: u64,
    size: Option<u64>,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, TrafficError> {
        let file = name_of(path);
        let failed = |error: std::io::Error| TrafficError::Read { file: file.clone(), reason: error.to_string() };
        let opened = File::open(path).map_err(failed)?;
        let metadata = opened.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(TrafficError::Read { file, reason: "a directory, not a file of traffic".to_owned() });
        }
        let size = metadata.is_file().then_some(metadata.len());
        let reader = BufReader::with_capacity(BUFFER_BYTES, opened);
        Ok(Self { file, reader, line: Vec::new(), number: 0, read: 0, size })
    }

    /// Advances to the next line that is not empty. False after the last one.
    pub(super) fn advance(&mut self) -> Result<bool, TrafficError> {
        loop {
            self.line.clear();
            let most = LINE_BYTES_MAX as u64 + 1;
            let read = (&mut self.reader).take(most).read_until(b'\n', &mut self.line);
            let read =
                read.map_err(|error| TrafficError::Read { file: self.file.clone(), reason: error.to_string() })?;
            if read == 0 {
                return Ok(false);
            }
            self.number += 1;
            self.read += read as u64;
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if self.line.len() > LINE_BYTES_MAX {
                return Err(self.error(LINE_BYTES_MAX, format!("a line of more than {} MiB", LINE_BYTES_MAX >> 20)));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn bytes(&self) -> Option<(u64, u64)> {
        self.size.map(|size| (self.read, size))
    }

    pub(super) fn error(&self, column: usize, message: String) -> TrafficError {
        self.error_at(self.number, column, message)
    }

    pub(super) fn error_at(&self, line: u64, column: usize, message: String) -> TrafficError {
        TrafficError::Line { file: self.file.clone(), line, column: column.max(1), message }
    }
}
