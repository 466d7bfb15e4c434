//! Files of rows: CSV with a header line. Each other line is a row. [rw-6]
//!
//! A column is `domain`, `descriptor`, `plan`, `limits`, `until` or `note`. Any other name is the key of an entry, and
//! the column has its values: `acme` in a column `tenant` is the same as `tenant=acme` in a column `descriptor`. Not
//! here: whether a row fits the policies.

use std::fmt;
use std::time::Duration;

use weir_engine::descriptor::{parse_entries, spell_pairs};
use weir_engine::overrides::{Entries, Numbers};
use weir_engine::rows::{Row, RowTerms};
use weir_text::{instant_text, parse_instant, quoted, spell};

use super::rate::parse_rate;

/// The most bytes of one line.
pub const ROW_LINE_BYTES_MAX: usize = 8 * 1_024;
/// The most columns.
pub const ROW_COLUMNS_MAX: usize = 64;
/// The suffix of row file names.
pub const ROW_FILE_ENDING: &str = ".rows.csv";
/// The header of a file that [`row_line`] writes.
pub const ROW_HEAD: &str = "domain,descriptor,plan,limits,until,note";

/// A mistake in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLineError {
    /// The byte position of the invalid field in its line, from 1.
    pub column: usize,
    /// The mistake.
    pub message: String,
}

impl fmt::Display for RowLineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

/// The content of a column.
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

/// The columns of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowHead(Vec<Column>);

/// One field of a line.
struct Field {
    column: usize,
    text: String,
}

impl RowHead {
    /// Reads the header line of a file.
    ///
    /// # Errors When a column appears twice or a required column is missing.
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
    /// # Errors When the line is not a row.
    pub fn row(&self, line: &str) -> Result<Row, RowLineError> {
        let fields = fields(line)?;
        if fields.len() != self.0.len() {
            let message = format!("{} fields, and the head has {} columns", fields.len(), self.0.len());
            return Err(RowLineError { column: 1, message });
        }
        let mut row = Row {
            domain: "".into(),
            entries: Box::new([]),
            terms: RowTerms::Own(Box::new([])),
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
                    row.entries = entries_of(&text).map_err(|reason| refuse(format!("descriptor: {reason}")))?;
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
        row.terms = match (plan, limits) {
            (Some(plan), None) => RowTerms::Plan(plan.into()),
            (None, Some(numbers)) => RowTerms::Own(numbers),
            (None, None) => return Err(RowLineError { column: 1, message: "no plan, and no limits".to_owned() }),
            (Some(_), Some(_)) => {
                return Err(RowLineError { column: 1, message: "a plan and limits: give one of them".to_owned() });
            }
        };
        Ok(row)
    }
}

fn entries_of(text: &str) -> Result<Entries, String> {
    Ok(parse_entries(text)?.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
}

/// The numbers of limits, such as `rpm=500/min burst 10; rpd=9000/day`. The only limit of a rule needs no name.
///
/// # Errors With the reason.
pub fn numbers(text: &str) -> Result<Box<[Numbers]>, String> {
    text.split(';').map(|one| number(one.trim())).collect()
}

fn number(text: &str) -> Result<Numbers, String> {
    let (rate, burst) = match text.split_once(" burst ") {
        None => (text, None),
        Some((rate, burst)) => {
            let burst = burst.trim().parse().map_err(|_| format!("{} is not a whole number", quoted(burst.trim())))?;
            (rate, Some(burst))
        }
    };
    // A rate contains no `=`, so the last `=` ends the name.
    let (name, rate) = match rate.rsplit_once('=') {
        Some(("", _)) => return Err(format!("{} has no name before the \"=\"", quoted(text))),
        Some((name, rate)) => (Some(name.into()), rate),
        None => (None, rate),
    };
    let (requests, window) = parse_rate(rate.trim())?;
    Ok(Numbers { name, requests, window, burst })
}

/// Formats numbers as [`numbers`] reads them.
#[must_use]
pub fn numbers_text(numbers: &[Numbers]) -> String {
    let one = |Numbers { name, requests, window, burst }: &Numbers| {
        let name = name.as_ref().map(|name| format!("{name}=")).unwrap_or_default();
        let length = || spell(Duration::from_micros(window.us()));
        let window = window.unit().map_or_else(length, |unit| unit.name().to_owned());
        let burst = burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
        format!("{name}{requests}/{window}{burst}")
    };
    numbers.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Formats a row as a line of a file with the header [`ROW_HEAD`].
#[must_use]
pub fn row_line(row: &Row) -> String {
    let pairs: Vec<(String, String)> =
        row.entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let (plan, limits) = match &row.terms {
        RowTerms::Plan(plan) => (plan.to_string(), String::new()),
        RowTerms::Own(numbers) => (String::new(), numbers_text(numbers)),
    };
    let until = row.until.map(instant_text).unwrap_or_default();
    let texts = [row.domain.to_string(), spell_pairs(&pairs), plan, limits, until, row.note.to_string()];
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

/// Reads the header and the other lines of a file of rows.
///
/// # Panics When a row changes after writing and reading it.
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let Some(Ok(head)) = lines.next().map(RowHead::parse) else { return };
    let own = RowHead::parse(ROW_HEAD).expect("the header that weir writes");
    for row in lines.filter_map(|line| head.row(line).ok()) {
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
        assert_eq!(by_keys.terms, RowTerms::Plan("gold".into()));
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
}
