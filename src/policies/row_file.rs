//! Files of rows: CSV with a header line. Each other line is a row. [rw-6]
//!
//! A column is `domain`, `descriptor`, `plan`, `limits`, `until` or `note`. Any other name is the key of an entry, and
//! the column has its values: `acme` in a column `tenant` is the same as `tenant=acme` in a column `descriptor`. Not
//! here: whether a row fits the policies.

use std::fmt;
use std::io::{self, BufRead};

use weir_engine::descriptor::{entries_of, spell_pairs};
use weir_engine::overrides::{Numbers, numbers_text};
use weir_engine::rows::{Row, RowContent};
use weir_text::{instant_text, parse_instant, quoted};

use super::rate::parse_named_rate;

pub const ROW_LINE_BYTES_MAX: usize = 8 * 1_024;
pub const ROW_COLUMNS_MAX: usize = 64;
pub const ROW_FILE_ENDING: &str = ".rows.csv";
/// The header of a file that [`row_line`] writes.
pub const ROW_HEAD: &str = "domain,descriptor,plan,limits,until,note";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLineError {
    /// The byte position of the invalid field in its line, from 1.
    pub column: usize,
    pub message: String,
}

impl fmt::Display for RowLineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    Domain,
    Descriptor,
    Plan,
    Limits,
    Until,
    Note,
    /// The values of an entry with this key.
    Key(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowHead(Vec<Column>);

struct Field {
    column: usize,
    text: String,
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
    ///
    /// # Errors
    /// When the line is not a row.
    pub fn row(&self, line: &str) -> Result<Row, RowLineError> {
        let fields = fields(line)?;
        if fields.len() != self.0.len() {
            let message = format!("{} fields, and the head has {} columns", fields.len(), self.0.len());
            return Err(RowLineError { column: 1, message });
        }
        let mut row = Row {
            domain: "".into(),
            entries: Box::new([]),
            content: RowContent::Own(Box::new([])),
            until: None,
            note: "".into(),
        };
        let mut entries: Vec<(Box<str>, Box<str>)> = Vec::new();
        let (mut plan, mut limits) = (None, None);
        for (kind, Field { column, text }) in self.0.iter().zip(fields) {
            let refuse = |message: String| RowLineError { column, message };
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
                Column::Note => row.note = text.into(),
                Column::Key(key) => entries.push((key.clone(), text.into())),
            }
        }
        if !entries.is_empty() {
            row.entries = entries.into();
        }
        if row.entries.is_empty() {
            return Err(RowLineError { column: 1, message: "no descriptor".to_owned() });
        }
        row.content = match (plan, limits) {
            (Some(plan), None) => RowContent::Plan(plan.into()),
            (None, Some(numbers)) => RowContent::Own(numbers),
            (None, None) => return Err(RowLineError { column: 1, message: "no plan, and no limits".to_owned() }),
            (Some(_), Some(_)) => {
                return Err(RowLineError { column: 1, message: "a plan and limits: give one of them".to_owned() });
            }
        };
        Ok(row)
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

/// The message about a row that its line does not show to be wrong.
pub fn line_problem(name: &dyn fmt::Display, line: usize, reason: &dyn fmt::Display) -> String {
    RowFileError::Line(line, RowLineError { column: 1, message: reason.to_string() }).in_file(name)
}

impl RowFileError {
    pub fn in_file(&self, name: &dyn fmt::Display) -> String {
        match self {
            Self::Read(error) => format!("{name}: {error}"),
            Self::Line(line, error) => format!("{name}:{line}: {error}"),
        }
    }
}

/// Reads the rows of a file with their line numbers, and its wrong lines. Stores at most one line at a time. Ends after a wrong first
/// line.
pub struct RowReader<R> {
    reader: R,
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
        Self { reader, head: None, line: 0, bytes: 0, buffer: Vec::new(), is_at_end: false }
    }

    /// The number of the last line that was read; 0 before the first.
    pub fn line(&self) -> usize {
        self.line
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
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
    type Item = Result<(usize, Row), RowFileError>;

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
                    let row = head.row(text).map_err(|error| RowFileError::Line(line, error));
                    return Some(row.map(|row| (line, row)));
                }
            }
        }
        None
    }
}

/// The bytes of a file of rows.
///
/// # Panics
/// When a row changes after writing and reading it.
pub fn fuzz(data: &[u8]) {
    let own = RowHead::parse(ROW_HEAD).expect("the head that weir writes");
    for (_, row) in RowReader::new(data).flatten() {
        let line = row_line(&row);
        if line.len() <= ROW_LINE_BYTES_MAX && !line.contains(['\n', '\r']) {
            assert_eq!(own.row(&line).as_ref(), Ok(&row), "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str, line: &str) -> Result<Row, String> {
        RowHead::parse(head).and_then(|head| head.row(line)).map_err(|error| error.to_string())
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
    fn a_wrong_line_names_its_column() {
        for (head, line, refused) in [
            ("tenant,plan", "", "column 1: no column domain"),
            ("domain,plan", "", "column 1: either a column descriptor, or columns with the keys of entries"),
            ("domain,tenant", "", "column 1: no column plan, and no column limits"),
            ("domain,tenant,plan,tenant", "", "column 20: the column \"tenant\" appears twice"),
            ("domain,a=b,plan", "", "column 8: the key \"a=b\" has a \"=\""),
            ("domain,tenant,plan", "api,acme", "column 1: 2 fields, and the head has 3 columns"),
            ("domain,tenant,plan", "api,acme,", "column 1: no plan, and no limits"),
            ("domain,tenant,plan", ",acme,gold", "column 1: no domain"),
            ("domain,tenant,plan", "api,,gold", "column 1: no descriptor"),
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
            let shown = |line: Result<(usize, Row), RowFileError>| match line {
                Ok((line, row)) => format!("{line} {}", row.content),
                Err(error) => error.in_file(&"f"),
            };
            RowReader::new(bytes).map(shown).collect()
        };
        assert_eq!(read(b""), ["f:1: column 1: empty: the first line has the names of the columns"]);
        assert_eq!(read(b"tenant\na\n"), ["f:1: column 1: no column domain"]);
        assert_eq!(read(b"a\xff\na\n"), ["f:1: column 2: not UTF-8"]);
        let long = format!("d,{},p", "x".repeat(ROW_LINE_BYTES_MAX));
        let bytes = [b"\xef\xbb\xbfdomain,k,plan\r\nd,a,p\r\n\nd,\xff\n", long.as_bytes(), b"\nd,b,q"].concat();
        assert_eq!(
            read(&bytes),
            ["2 plan p", "f:4: column 3: not UTF-8", "f:5: column 1: a line has at most 8192 bytes", "6 plan q"]
        );
    }
}
