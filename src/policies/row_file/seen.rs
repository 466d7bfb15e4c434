//! Finds a second line for one descriptor: in a file it would replace the first line, at some time during an import.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher as _;

use weir_engine::rows::Row;

/// The most rows of one file, or of all files beside the policies. Their descriptors take 20 to 60 bytes each.
pub const FILE_ROWS_MAX: usize = 10_000_000;

/// The descriptors of the rows that were read, as hashes of 8 bytes.
///
/// Different descriptors have the same hash in one of 30 million files with a million rows. Each process has a random key
/// of the hash, so the author of a file cannot choose descriptors with the same hash.
#[derive(Default)]
pub struct SeenDescriptors {
    hasher: RandomState,
    places: HashMap<u64, Place>,
    /// The names of the files before this one.
    files: Vec<String>,
}

#[derive(Clone, Copy)]
struct Place {
    file: u32,
    line: u32,
}

impl SeenDescriptors {
    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= FILE_ROWS_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn end_file(&mut self, name: String) {
        self.files.push(name);
    }

    /// Remembers the descriptor of a row. Ignores it if there are [`FILE_ROWS_MAX`].
    ///
    /// # Errors
    /// The place of the row with this descriptor, in words.
    pub fn insert(&mut self, row: &Row, line: usize) -> Result<(), String> {
        let is_full = self.is_full();
        let now = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        match self.places.entry(self.hasher.hash_one((&row.domain, &row.entries))) {
            Entry::Occupied(first) => {
                let Place { file, line } = *first.get();
                Err(match self.files.get(file as usize) {
                    Some(name) => format!("{name}:{line}"),
                    None => format!("line {line}"),
                })
            }
            Entry::Vacant(_) if is_full => Ok(()),
            Entry::Vacant(vacant) => {
                vacant.insert(Place { file: now, line: u32::try_from(line).unwrap_or(u32::MAX) });
                Ok(())
            }
        }
    }
}
