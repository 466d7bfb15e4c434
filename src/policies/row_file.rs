//! Files of rows: CSV with a header line. Each other line is a row. [rw-6]
//!
//! A column is `domain`, `descriptor`, `plan`, `limits`, `until` or `note`, or, beside `descriptor`, `version`. Any other name
//! is the key of an entry, and the column has its values: `acme` in a column `tenant` is the same as `tenant=acme` in a column
//! `descriptor`. Not here: whether a row fits the policies, and what a version means.

mod seen;

use std::fmt;
use std::io::{self, BufRead};
use std::sync::Arc;

pub use seen::{FILE_ROWS_MAX, SeenDescriptors};
use weir_engine::descriptor::{entries_of, spell_pairs};
use weir_engine::overrides::{Numbers, numbers_text};
use weir_engine::rows::{NOTE_BYTES_MAX, Row, RowContent, RowField};
use weir_text::{instant_text, parse_instant, quoted};

use super::rate::parse_named_rate;

pub const ROW_LINE_BYTES_MAX: usize = 8 * 1_024;
pub const ROW_COLUMNS_MAX: usize = 64;
pub const ROW_FILE_ENDING: &str = ".rows.csv";
/// The header of a file that [`row_line`] writes.
pub const ROW_HEAD: &str = "domain,descriptor,plan,limits,until,note";
/// A column beside those of [`ROW_HEAD`]: the version of the row that a line may replace.
pub const VERSION_COLUMN: &str = "version";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLineError {
    /// The byte position of the invalid field in its line, from 1.
    pub column: usize,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    Domain,
    Descriptor,
    Plan,
    Limits,
    Until,
    Note,
    /// Of a file with a column `descriptor`, which has no keys as columns.
    Version,
    /// The values of an entry with this key.
    Key(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowHead(Vec<Column>);

struct Field {
    column: usize,
    text: String,
}

/// Where the parts of a row are in its line: byte positions from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Columns {
    domain: u16,
    descriptor: u16,
    content: u16,
    /// The columns of several entries, with their names.
    entries: Box<[(u16, Arc<str>)]>,
}

/// A line with a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLine {
    pub row: Row,
    pub place: RowPlace,
    /// The version of the row that it may replace.
    pub version: Option<u64>,
}

/// The place of a row in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// The number of the line, from 1.
    pub line: usize,
    columns: Columns,
}

impl RowPlace {
    /// A message about this line of a file. `field` is the wrong one, if only one is wrong.
    pub fn problem(&self, name: &dyn fmt::Display, field: Option<RowField>, reason: &dyn fmt::Display) -> String {
        let Columns { domain, descriptor, content, entries } = &self.columns;
        let mut message = reason.to_string();
        let column = match field {
            None => 1,
            Some(RowField::Domain) => *domain,
            Some(RowField::Content) => *content,
            Some(RowField::Descriptor) => *descriptor,
            Some(RowField::Entry(position)) => match entries.get(position) {
                Some((column, name)) => {
                    // A column of this name that a file needs for something else is the usual mistake.
                    message.push_str(&format!(": the column {}", quoted(name)));
                    *column
                }
                None => *descriptor,
            },
        };
        RowFileError::Line(self.line, RowLineError { column: column.into(), message }).in_file(name)
    }
}

impl RowHead {
    /// Reads the header line of a file.
    ///
    /// # Errors
    /// When a column appears twice or a required column is missing.
    pub fn parse(line: &str) -> Result<Self, RowLineError> {
        let mut columns = Vec::new();
        for Field { column, text } in fields(line)? {
            let refuse = |message: String| Err(RowLineError { column, message });
            let kind = match text.trim() {
                "" => return refuse("a column without a name".to_owned()),
                "domain" => Column::Domain,
                "descriptor" => Column::Descriptor,
                "plan" => Column::Plan,
                "limits" => Column::Limits,
                "until" => Column::Until,
                "note" => Column::Note,
                // A descriptor written as one text cannot have such a key.
                key if key.contains('=') => return refuse(format!("the key {} has a \"=\"", quoted(key))),
                key => Column::Key(key.into()),
            };
            if columns.contains(&kind) {
                return refuse(format!("the column {} appears twice", quoted(text.trim())));
            }
            columns.push(kind);
        }
        if columns.contains(&Column::Descriptor)
            && let Some(version) = columns.iter_mut().find(|column| **column == Column::Key(VERSION_COLUMN.into()))
        {
            *version = Column::Version;
        }
        let has = |column: &Column| columns.contains(column);
        let has_key = columns.iter().any(|column| matches!(column, Column::Key(_)));
        let missing = |message: &str| Err(RowLineError { column: 1, message: message.to_owned() });
        if !has(&Column::Domain) {
            return missing("no column domain");
        }
        if has(&Column::Descriptor) == has_key {
            return missing("either a column descriptor, or columns with the keys of entries");
        }
        if !has(&Column::Plan) && !has(&Column::Limits) {
            return missing("no column plan, and no column limits");
        }
        Ok(Self(columns))
    }

    /// Reads a line.
    /// Fails when the line is not a row.
    fn row(&self, line: &str) -> Result<(Row, Columns, Option<u64>), RowLineError> {
        let fields = fields(line)?;
        if fields.len() != self.0.len() {
            let column = fields.get(self.0.len()).map_or(line.trim_end().len() + 1, |surplus| surplus.column);
            let message = format!("{} fields, and the head has {} columns", fields.len(), self.0.len());
            return Err(RowLineError { column, message });
        }
        let mut columns = Columns { domain: 1, descriptor: 1, content: 1, entries: Box::new([]) };
        let mut has_content = false;
        let mut entry_columns = Vec::new();
        let mut row = Row {
            domain: "".into(),
            entries: Box::new([]),
            content: RowContent::Own(Box::new([])),
            until: None,
            note: "".into(),
        };
        let mut entries: Vec<(Box<str>, Box<str>)> = Vec::new();
        let (mut plan, mut limits, mut version) = (None, None, None);
        for (kind, Field { column, text }) in self.0.iter().zip(fields) {
            let refuse = |message: String| RowLineError { column, message };
            // A line has fewer bytes.
            let position = u16::try_from(column).unwrap_or(u16::MAX);
            match kind {
                Column::Domain => columns.domain = position,
                Column::Descriptor => columns.descriptor = position,
                Column::Key(_) if entry_columns.is_empty() => columns.descriptor = position,
                Column::Plan | Column::Limits if !has_content || !text.is_empty() => {
                    (columns.content, has_content) = (position, true);
                }
                _ => {}
            }
            if text.is_empty() && *kind != Column::Domain {
                continue;
            }
            match kind {
                Column::Domain if text.is_empty() => return Err(refuse("no domain".to_owned())),
                Column::Domain => row.domain = text.into(),
                Column::Descriptor => {
                    row.entries = entries_of(&text).map_err(refuse)?;
                }
                Column::Plan => plan = Some(text),
                Column::Limits => limits = Some(numbers(&text).map_err(|reason| refuse(format!("limits: {reason}")))?),
                Column::Until => {
                    row.until = Some(parse_instant(&text).map_err(|reason| refuse(format!("until: {reason}")))?);
                }
                Column::Note if text.len() > NOTE_BYTES_MAX => {
                    return Err(refuse(format!("note: has more than {NOTE_BYTES_MAX} bytes")));
                }
                Column::Note => row.note = text.into(),
                Column::Version => {
                    let wrong = |_| refuse(format!("version: {} is not a whole number", quoted(&text)));
                    version = Some(text.parse().map_err(wrong)?);
                }
                Column::Key(key) => {
                    entry_columns.push((position, key.clone()));
                    entries.push(((&**key).into(), text.into()));
                }
            }
        }
        if !entries.is_empty() {
            row.entries = entries.into();
            columns.entries = if entry_columns.len() > 1 { entry_columns.into() } else { Box::new([]) };
        }
        if row.entries.is_empty() {
            return Err(RowLineError { column: columns.descriptor.into(), message: "no descriptor".to_owned() });
        }
        let column = columns.content.into();
        row.content = match (plan, limits) {
            (Some(plan), None) => RowContent::Plan(plan.into()),
            (None, Some(numbers)) => RowContent::Own(numbers),
            (None, None) => return Err(RowLineError { column, message: "no plan, and no limits".to_owned() }),
            (Some(_), Some(_)) => {
                return Err(RowLineError { column, message: "a plan and limits: give one of them".to_owned() });
            }
        };
        Ok((row, columns, version))
    }
}

/// The numbers of limits, such as `rpm=500/min burst 10; rpd=9000/day`. The only limit of a rule needs no name.
///
/// # Errors
/// With the reason.
pub fn numbers(text: &str) -> Result<Box<[Numbers]>, String> {
    text.split(';').map(|one| number(one.trim())).collect()
}

fn number(text: &str) -> Result<Numbers, String> {
    let Some((rate, burst)) = text.split_once(" burst ") else { return parse_named_rate(text) };
    let burst = burst.trim().parse().map_err(|_| format!("{} is not a whole number", quoted(burst.trim())))?;
    Ok(Numbers { burst: Some(burst), ..parse_named_rate(rate.trim())? })
}

/// Formats a row as a line of a file with the header [`ROW_HEAD`].
pub fn row_line(Row { domain, entries, content, until, note }: &Row) -> String {
    let (plan, limits) = match content {
        RowContent::Plan(plan) => (plan.to_string(), String::new()),
        RowContent::Own(numbers) => (String::new(), numbers_text(numbers)),
    };
    let until = until.map(instant_text).unwrap_or_default();
    let texts = [domain.to_string(), spell_pairs(entries), plan, limits, until, note.to_string()];
    texts.map(|text| quoted_field(&text)).join(",")
}

fn quoted_field(text: &str) -> String {
    let is_plain = !text.contains(['"', ',', '\n', '\r']) && text.trim() == text;
    if is_plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// The fields of a line, separated by commas. A field with a comma or a quote is in double quotes. A quote in it is
/// doubled.
fn fields(line: &str) -> Result<Vec<Field>, RowLineError> {
    let refuse = |at: usize, message: &str| RowLineError { column: at + 1, message: message.to_owned() };
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.len() > ROW_LINE_BYTES_MAX {
        return Err(RowLineError { column: 1, message: format!("a line has at most {ROW_LINE_BYTES_MAX} bytes") });
    }
    let (mut fields, mut at) = (Vec::new(), 0);
    loop {
        let begin = at;
        let mut text = String::new();
        if line[at..].starts_with('"') {
            at += 1;
            loop {
                let Some(length) = line[at..].find('"') else {
                    return Err(refuse(begin, "a quote without an end in its line"));
                };
                text.push_str(&line[at..at + length]);
                at += length + 1;
                if !line[at..].starts_with('"') {
                    break;
                }
                text.push('"');
                at += 1;
            }
            if at < line.len() && !line[at..].starts_with(',') {
                return Err(refuse(at, "text after a quoted field"));
            }
        } else {
            let length = line[at..].find(',').unwrap_or(line.len() - at);
            text.push_str(line[at..at + length].trim());
            at += length;
            if text.contains('"') {
                return Err(refuse(begin, "a quote inside a field that does not begin with one"));
            }
        }
        if fields.len() == ROW_COLUMNS_MAX {
            return Err(RowLineError { column: begin + 1, message: format!("more than {ROW_COLUMNS_MAX} fields") });
        }
        fields.push(Field { column: begin + 1, text });
        if at >= line.len() {
            return Ok(fields);
        }
        at += 1;
    }
}

#[derive(Debug)]
pub enum RowFileError {
    Read(io::Error),
    /// A line is wrong. It has the number of the line, from 1.
    Line(usize, RowLineError),
}

impl RowFileError {
    pub fn in_file(&self, name: &dyn fmt::Display) -> String {
        match self {
            Self::Read(error) => format!("{name}: {error}"),
            Self::Line(line, RowLineError { column, message }) => format!("{name}:{line}:{column}: {message}"),
        }
    }
}

/// Reads the rows of a file, and its wrong lines, such as a second line for one descriptor. Stores at most one line at a
/// time, and a hash of each descriptor. Ends after a wrong first line, and after [`FILE_ROWS_MAX`] rows.
pub struct RowReader<R> {
    reader: R,
    seen: SeenDescriptors,
    head: Option<RowHead>,
    line: usize,
    bytes: u64,
    buffer: Vec<u8>,
    is_at_end: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TextEnd {
    Line,
    File,
    /// It was longer than the bound, and is not whole.
    TooLong,
}

impl<R: BufRead> RowReader<R> {
    pub fn new(reader: R) -> Self {
        Self::after(SeenDescriptors::default(), reader)
    }

    /// Reads a file after others. A descriptor that another file has is wrong too.
    pub fn after(seen: SeenDescriptors, reader: R) -> Self {
        Self { reader, seen, head: None, line: 0, bytes: 0, buffer: Vec::new(), is_at_end: false }
    }

    /// The number of the last line that was read; 0 before the first.
    pub fn line(&self) -> usize {
        self.line
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The descriptors of this file and of those before it. `name` is the name of this file.
    pub fn into_seen(mut self, name: String) -> SeenDescriptors {
        self.seen.end_file(name);
        self.seen
    }

    /// Reads a line without its end, at most [`ROW_LINE_BYTES_MAX`] bytes of it.
    fn read_line(&mut self) -> io::Result<TextEnd> {
        self.buffer.clear();
        let mut is_too_long = false;
        loop {
            let available = self.reader.fill_buf()?;
            if available.is_empty() {
                return Ok(if is_too_long { TextEnd::TooLong } else { TextEnd::File });
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            let room = ROW_LINE_BYTES_MAX - self.buffer.len();
            is_too_long |= part.len() > room;
            self.buffer.extend_from_slice(&part[..part.len().min(room)]);
            let used = end.map_or(part.len(), |end| end + 1);
            self.reader.consume(used);
            self.bytes += used as u64;
            if end.is_some() {
                return Ok(if is_too_long { TextEnd::TooLong } else { TextEnd::Line });
            }
        }
    }
}

impl<R: BufRead> Iterator for RowReader<R> {
    type Item = Result<RowLine, RowFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_at_end {
            let end = match self.read_line() {
                Ok(end) => end,
                Err(error) => {
                    self.is_at_end = true;
                    return Some(Err(RowFileError::Read(error)));
                }
            };
            let wrong =
                |line, column, message: String| Some(Err(RowFileError::Line(line, RowLineError { column, message })));
            if self.buffer.is_empty() && end == TextEnd::File {
                self.is_at_end = true;
                let has_head = self.head.is_some();
                let message = "empty: the first line has the names of the columns".to_owned();
                return if has_head { None } else { wrong(1, 1, message) };
            }
            self.line += 1;
            let line = self.line;
            let text = match (end, std::str::from_utf8(&self.buffer)) {
                (TextEnd::TooLong, _) => Err((1, format!("a line has at most {ROW_LINE_BYTES_MAX} bytes"))),
                (_, Ok(text)) => Ok(text),
                (_, Err(error)) => Err((error.valid_up_to() + 1, "not UTF-8".to_owned())),
            };
            // Without columns no line has a meaning.
            self.is_at_end = self.head.is_none() && text.is_err();
            let text = match text {
                Ok(text) => text,
                Err((column, message)) => return wrong(line, column, message),
            };
            match &self.head {
                None => match RowHead::parse(text.trim_start_matches('\u{feff}')) {
                    Ok(head) => self.head = Some(head),
                    Err(error) => {
                        self.is_at_end = true;
                        return Some(Err(RowFileError::Line(line, error)));
                    }
                },
                Some(_) if text.trim().is_empty() => {}
                Some(head) => {
                    let (row, columns, version) = match head.row(text) {
                        Ok(read) => read,
                        Err(error) => return Some(Err(RowFileError::Line(line, error))),
                    };
                    if self.seen.is_full() {
                        self.is_at_end = true;
                        return wrong(line, 1, format!("more than {FILE_ROWS_MAX} rows: split the file"));
                    }
                    return match self.seen.insert(&row, line) {
                        Ok(()) => Some(Ok(RowLine { row, place: RowPlace { line, columns }, version })),
                        Err(first) => {
                            wrong(line, columns.descriptor.into(), format!("the descriptor of {first} once more"))
                        }
                    };
                }
            }
        }
        None
    }
}

/// The bytes of a file of rows.
/// Panics when a row changes after writing and reading it.
pub fn fuzz(data: &[u8]) {
    let own = RowHead::parse(ROW_HEAD).expect("the head that weir writes");
    for RowLine { row, .. } in RowReader::new(data).flatten() {
        let line = row_line(&row);
        if line.len() <= ROW_LINE_BYTES_MAX && !line.contains(['\n', '\r']) {
            assert_eq!(own.row(&line).map(|(row, ..)| row).as_ref(), Ok(&row), "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str, line: &str) -> Result<Row, String> {
        let row = RowHead::parse(head).and_then(|head| head.row(line));
        row.map(|(row, ..)| row).map_err(|error| format!("column {}: {}", error.column, error.message))
    }

    #[test]
    fn a_line_is_a_row_by_columns_of_keys_or_by_a_descriptor() {
        let by_keys = read("domain,tenant,plan,until,note", "api, acme ,gold,2027-01-01,\"a, \"\"b\"\"\"").unwrap();
        let by_descriptor =
            read("plan,domain,descriptor,until,note", "gold,api,tenant=acme,2027-01-01T00:00:00Z,\"a, \"\"b\"\"\"");
        assert_eq!(Ok(by_keys.clone()), by_descriptor);
        assert_eq!(row_line(&by_keys), "api,tenant=acme,gold,,2027-01-01T00:00:00Z,\"a, \"\"b\"\"\"");
        assert_eq!(by_keys.content, RowContent::Plan("gold".into()));
        let own = read("domain,tenant,user,limits", "api,acme,,rpm=500/min burst 10; rpd=9000/day").unwrap();
        assert_eq!(own.entries.len(), 1, "an empty field is no entry");
        assert_eq!(row_line(&own), "api,tenant=acme,,rpm=500/minute burst 10; rpd=9000/day,,");
        assert_eq!(read(ROW_HEAD, &row_line(&own)), Ok(own));
    }

    #[test]
    fn a_version_stands_beside_a_descriptor_and_is_a_key_among_keys() {
        let read =
            |text: &str| RowReader::new(text.as_bytes()).next().unwrap().unwrap_or_else(|error| panic!("{error:?}"));
        let line = read("domain,version,descriptor,plan\nd,17,a=x,p\n");
        assert_eq!((line.version, spell_pairs(&line.row.entries)), (Some(17), "a=x".to_owned()));
        assert_eq!(read("domain,version,descriptor,plan\nd,,a=x,p\n").version, None);
        let line = read("domain,version,plan\nd,17,p\n");
        assert_eq!((line.version, spell_pairs(&line.row.entries)), (None, "version=17".to_owned()));
    }

    #[test]
    fn a_wrong_line_names_its_column() {
        for (head, line, refused) in [
            ("tenant,plan", "", "column 1: no column domain"),
            ("domain,plan", "", "column 1: either a column descriptor, or columns with the keys of entries"),
            ("domain,tenant", "", "column 1: no column plan, and no column limits"),
            ("domain,tenant,plan,tenant", "", "column 20: the column \"tenant\" appears twice"),
            ("domain,a=b,plan", "", "column 8: the key \"a=b\" has a \"=\""),
            ("domain,tenant,plan", "api,acme", "column 9: 2 fields, and the head has 3 columns"),
            ("domain,tenant,plan", "api,acme,gold,more", "column 15: 4 fields, and the head has 3 columns"),
            ("domain,tenant,plan", "api,acme,", "column 10: no plan, and no limits"),
            (
                "domain,descriptor,plan,version",
                "api,tenant=acme,gold,one",
                "column 22: version: \"one\" is not a whole number",
            ),
            ("domain,tenant,plan,limits", "api,acme,gold,5/s", "column 15: a plan and limits: give one of them"),
            ("domain,tenant,plan", ",acme,gold", "column 1: no domain"),
            ("domain,tenant,plan", "api,,gold", "column 5: no descriptor"),
            ("domain,tenant,plan", "api,a\"b,gold", "column 5: a quote inside a field that does not begin with one"),
            ("domain,tenant,plan", "api,\"acme,gold", "column 5: a quote without an end in its line"),
            ("domain,tenant,plan", "api,\"a\"b,gold", "column 8: text after a quoted field"),
        ] {
            assert_eq!(read(head, line), Err(refused.to_owned()), "{head} {line}");
        }
        let refused = read("domain,tenant,limits", "api,acme,rpm=many").unwrap_err();
        assert!(refused.starts_with("column 10: limits: "), "{refused}");
        let refused = read("domain,tenant,plan,until", "api,acme,gold,soon").unwrap_err();
        assert!(refused.starts_with("column 15: until: "), "{refused}");
        let refused = read("domain,tenant,plan,note", &format!("api,acme,gold,{}", "x".repeat(257))).unwrap_err();
        assert_eq!(refused, "column 15: note: has more than 256 bytes");
    }

    #[test]
    fn a_file_is_read_with_the_memory_of_one_line() {
        /// Bytes without end, and without a line break unless it is one of them.
        struct Endless<'b>(&'b [u8]);
        impl io::Read for Endless<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let length = into.len() / self.0.len() * self.0.len();
                into[..length].chunks_exact_mut(self.0.len()).for_each(|part| part.copy_from_slice(self.0));
                Ok(length)
            }
        }
        const BYTES: u64 = 4 * 1_024 * 1_024;
        let head = "domain,tenant,plan\n";
        // The second row and all further ones are wrong: they have the descriptor of the first.
        for (endless, lines) in [("x", 1), ("a,b,c\n", BYTES / 6), ("\"\n", BYTES / 2), ("\n", 0)] {
            let bytes = io::Read::take(Endless(endless.as_bytes()), BYTES);
            let mut rows = RowReader::new(io::BufReader::new(io::Read::chain(head.as_bytes(), bytes)));
            let read = rows.by_ref().count() as u64;
            let unit = endless.len() as u64;
            assert_eq!((read, rows.bytes()), (lines, BYTES / unit * unit + head.len() as u64), "{endless:?}");
            assert!(rows.buffer.capacity() <= 2 * ROW_LINE_BYTES_MAX, "{endless:?}: {}", rows.buffer.capacity());
        }
    }

    #[test]
    fn a_file_without_columns_ends_at_once_and_others_go_on_after_wrong_lines() {
        let read = |bytes: &[u8]| -> Vec<String> {
            let shown = |line: Result<RowLine, RowFileError>| match line {
                Ok(RowLine { row, place, .. }) => format!("{} {}", place.line, row.content),
                Err(error) => error.in_file(&"f"),
            };
            RowReader::new(bytes).map(shown).collect()
        };
        assert_eq!(read(b""), ["f:1:1: empty: the first line has the names of the columns"]);
        assert_eq!(read(b"tenant\na\n"), ["f:1:1: no column domain"]);
        assert_eq!(read(b"a\xff\na\n"), ["f:1:2: not UTF-8"]);
        let long = format!("d,{},p", "x".repeat(ROW_LINE_BYTES_MAX));
        let bytes = [b"\xef\xbb\xbfdomain,k,plan\r\nd,a,p\r\n\nd,\xff\n", long.as_bytes(), b"\nd,b,q"].concat();
        assert_eq!(read(&bytes), ["2 plan p", "f:4:3: not UTF-8", "f:5:1: a line has at most 8192 bytes", "6 plan q"]);
    }

    #[test]
    fn a_misfit_names_the_column_of_its_field() {
        let problem = |head: &str, line: &str, field| {
            let text = format!("{head}\n{line}\n");
            let row = RowReader::new(text.as_bytes())
                .next()
                .unwrap()
                .unwrap_or_else(|error| panic!("{}", error.in_file(&"f")));
            row.place.problem(&"f", field, &"wrong")
        };
        let columns = "note,domain,tenant,email,plan,limits";
        let line = "x,api,acme,a@b,,5/s";
        for (field, wanted) in [
            (None, "f:2:1: wrong"),
            (Some(RowField::Domain), "f:2:3: wrong"),
            (Some(RowField::Descriptor), "f:2:7: wrong"),
            (Some(RowField::Entry(1)), "f:2:12: wrong: the column \"email\""),
            // The descriptor is too short.
            (Some(RowField::Entry(2)), "f:2:7: wrong"),
            (Some(RowField::Content), "f:2:17: wrong"),
        ] {
            assert_eq!(problem(columns, line, field), wanted, "{field:?}");
        }
        assert_eq!(problem(columns, "x,api,acme,,gold,", Some(RowField::Content)), "f:2:13: wrong");
        let one = "plan,domain,descriptor";
        assert_eq!(problem(one, "gold,api,\"tenant=a,email=b\"", Some(RowField::Entry(1))), "f:2:10: wrong");
        assert_eq!(problem(one, "gold,api,tenant=a", Some(RowField::Content)), "f:2:1: wrong");
        assert_eq!(problem("plan,limits,domain,tenant", "gold,,api,a", Some(RowField::Content)), "f:2:1: wrong");
    }

    #[test]
    fn a_second_line_for_one_descriptor_is_wrong_in_one_file_and_in_several() {
        let first = "domain,tenant,plan\nd,a,p\nd,b,p\nd,a,q\nd,b,p\ne,a,p\n";
        let mut reader = RowReader::new(first.as_bytes());
        let wrong = |reader: &mut RowReader<&[u8]>| -> Vec<String> {
            reader.filter_map(|line| line.err().map(|error| error.in_file(&"f"))).collect()
        };
        assert_eq!(
            wrong(&mut reader),
            ["f:4:3: the descriptor of line 2 once more", "f:5:3: the descriptor of line 3 once more"]
        );
        let second = "plan,domain,descriptor\np,d,tenant=c\np,d,tenant=a\np,d,tenant=c\np,d,\"tenant=a,x=y\"\n";
        let mut reader = RowReader::after(reader.into_seen("first.rows.csv".to_owned()), second.as_bytes());
        assert_eq!(
            wrong(&mut reader),
            ["f:3:5: the descriptor of first.rows.csv:2 once more", "f:4:5: the descriptor of line 2 once more"]
        );
    }
}
