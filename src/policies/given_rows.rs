//! Reads the key `rows` in files of tests and of traffic: the path of a file of rows, or the lines themselves.
//!
//! The format of a line is in row_file.rs. Whether rows fit policies is in limiter.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use weir_engine::rows::RowField;
use weir_text::yaml::Value;
use weir_tls::files;

use super::fields::{Fields, Read};
use super::row_file::{RowLine, RowReader};
use super::state::{FileReader, Reported};
use super::test_file::keys::file;
use super::{Position, VALUE_BYTES_MAX};

/// The name of lines without a file, in messages.
const IN_PLACE: &str = "rows";

#[derive(Debug)]
pub struct GivenRows {
    pub position: Position,
    /// The path of their file as written, or `rows`.
    pub name: String,
    pub rows: Vec<RowLine>,
}

impl GivenRows {
    /// Returns a message about a row that does not fit, with its place.
    pub fn problem(&self, line: &RowLine, field: Option<RowField>, reason: &dyn Display) -> String {
        line.place.problem(&self.name, field, reason)
    }
}

impl FileReader<'_> {
    /// Reads the rows of a mapping, at most `most`. Paths are relative to `directory`.
    pub(super) fn given_rows(&mut self, fields: &Fields, directory: &Path, most: usize) -> Read<Arc<GivenRows>> {
        let Some((at, id)) = fields.get(file::ROWS) else { return Ok(None) };
        let node = self.document.node(id);
        match &node.value {
            Value::Scalar { text, .. } if text.contains('\n') => {
                self.rows_of(at, IN_PLACE.to_owned(), text.as_bytes(), most).map(Some)
            }
            Value::Mapping(_) | Value::List(_) => {
                let message = "rows must be the path of a file of rows, or its lines after a |".to_owned();
                Err(self.report_value(fields, file::ROWS, message))
            }
            _ => {
                let Some(name) = self.text(fields, file::ROWS.name, VALUE_BYTES_MAX)? else { return Ok(None) };
                match files::open(&directory.join(&name)) {
                    Ok((file, _)) => self.rows_of(at, name, BufReader::new(file), most).map(Some),
                    Err(error) => Err(self.report_value(fields, file::ROWS, format!("{name}: {error}"))),
                }
            }
        }
    }

    /// Reports only the first wrong line, because a wrong column makes all of them wrong.
    fn rows_of(
        &mut self,
        position: Position,
        name: String,
        reader: impl BufRead,
        most: usize,
    ) -> Result<Arc<GivenRows>, Reported> {
        let mut given = GivenRows { position, name, rows: Vec::new() };
        for row in RowReader::new(reader) {
            match row {
                Ok(row) if given.rows.len() < most => given.rows.push(row),
                Ok(line) => {
                    let message = given.problem(&line, None, &format!("more than {most} rows"));
                    return Err(self.report(position, message));
                }
                Err(error) => return Err(self.report(position, error.in_file(&given.name))),
            }
        }
        Ok(Arc::new(given))
    }
}
