//! The rows of all files of rows beside the policies.
//!
//! Which files these are is in files.rs, and the format of a line in row_file.rs. Whether rows fit policies is in limiter.

use std::fmt::Display;
use std::io::BufReader;
use std::path::PathBuf;

use weir_engine::rows::{Row, RowField};
use weir_tls::files;

use super::row_file::{RowLine, RowPlace, RowReader, SeenDescriptors};

/// Rows with their places.
#[derive(Debug, Default)]
pub struct RowsBeside {
    rows: Vec<Row>,
    places: PlacesBeside,
}

/// The places of these rows.
#[derive(Debug, Default)]
pub struct PlacesBeside {
    files: Vec<String>,
    /// The positions of the files, and the places in them.
    places: Vec<(u32, RowPlace)>,
}

impl RowsBeside {
    /// Reads files, at most `rows_max` rows.
    ///
    /// # Errors
    /// The first problems, at most `problems_max`: wrong lines, and files that cannot be read.
    pub fn read(paths: &[PathBuf], rows_max: usize, problems_max: usize) -> Result<Self, Vec<String>> {
        let (mut rows, mut problems, mut seen) = (Self::default(), Vec::new(), SeenDescriptors::default());
        for (file, path) in (0..).zip(paths) {
            let name = path.display().to_string();
            let opened = match files::open(path) {
                Ok((opened, _)) => opened,
                Err(error) => {
                    // The rows of the others are not complete without it.
                    problems.push(format!("{name}: {error}"));
                    return Err(problems);
                }
            };
            let mut reader = RowReader::after(seen, BufReader::new(opened));
            for line in reader.by_ref() {
                match line {
                    Ok(line) if rows.rows.len() == rows_max => {
                        problems.push(line.place.problem(&name, None, &format!("more than {rows_max} rows")));
                        return Err(problems);
                    }
                    Ok(RowLine { row, place, version: _ }) => {
                        rows.rows.push(row);
                        rows.places.places.push((file, place));
                    }
                    Err(error) => problems.push(error.in_file(&name)),
                }
                if problems.len() >= problems_max {
                    return Err(problems);
                }
            }
            seen = reader.into_seen(name.clone());
            rows.places.files.push(name);
        }
        if problems.is_empty() { Ok(rows) } else { Err(problems) }
    }

    /// The rows, and the places of each in the same order.
    pub fn into_parts(self) -> (Vec<Row>, PlacesBeside) {
        (self.rows, self.places)
    }
}

impl PlacesBeside {
    /// A message about the row at this position, from 0.
    /// Panics if there are fewer rows.
    pub fn problem(&self, position: usize, field: Option<RowField>, reason: &dyn Display) -> String {
        let (file, place) = &self.places[position];
        place.problem(&self.files[*file as usize], field, reason)
    }
}
