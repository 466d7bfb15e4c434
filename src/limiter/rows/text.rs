//! Converts a row to and from the text in the store: a JSON object. Its hash is the version of the row, so the same row
//! always has the same text. [rw-2]

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use weir_api::numbers::{JsonNumbers, json_numbers, numbers_of};
use weir_engine::Micros;
use weir_engine::descriptor::ENTRIES_MAX;
use weir_engine::policy::LIMITS_PER_RULE_MAX;
use weir_engine::rows::{NOTE_BYTES_MAX, Row, RowContent, key_of, version};
use weir_engine::time::MICROS_MAX;
use weir_store::{ROW_TEXT_BYTES_MAX, StoredRow};

/// The most bytes of the name of a plan.
const PLAN_BYTES_MAX: usize = 256;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    domain: Box<str>,
    descriptor: Vec<(Box<str>, Box<str>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", serialize_with = "without_nulls")]
    limits: Vec<JsonNumbers>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until_us: Option<Micros>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    note: Box<str>,
}

/// Saves bytes in a million rows.
struct WithoutNulls<'n>(&'n JsonNumbers);

fn without_nulls<S: Serializer>(limits: &[JsonNumbers], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(limits.iter().map(WithoutNulls))
}

impl Serialize for WithoutNulls<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let JsonNumbers { name, requests, window_us, burst } = self.0;
        let mut map = to.serialize_map(None)?;
        name.as_ref().map_or(Ok(()), |name| map.serialize_entry("name", name))?;
        map.serialize_entry("requests", requests)?;
        map.serialize_entry("window_us", window_us)?;
        burst.map_or(Ok(()), |burst| map.serialize_entry("burst", &burst))?;
        map.end()
    }
}

/// Returns the row at a key. `None` if the text is no row, or the row of another descriptor, which somebody has copied.
pub(super) fn row_at(key: &str, text: &str) -> Option<Row> {
    read(text).ok().filter(|row| key_of(&row.domain, &row.descriptor()) == key)
}

/// Reads a text.
///
/// # Errors
/// The reason why the text is no row. The reason does not quote the text.
fn read(text: &str) -> Result<Row, String> {
    if text.len() > ROW_TEXT_BYTES_MAX {
        return Err(format!("more than {ROW_TEXT_BYTES_MAX} bytes"));
    }
    // serde's own error would quote the text.
    let Text { domain, descriptor, plan, limits, until_us, note } =
        serde_json::from_str(text).map_err(|error| format!("not a row: column {}", error.column()))?;
    let numbers = numbers_of(limits)?;
    let content = match (plan, numbers.len()) {
        (Some(plan), 0) if (1..=PLAN_BYTES_MAX).contains(&plan.len()) => RowContent::Plan(plan),
        (None, 1..=LIMITS_PER_RULE_MAX) => RowContent::Own(numbers),
        _ => return Err("neither a plan nor limits of its own".to_owned()),
    };
    if descriptor.is_empty() || descriptor.len() > ENTRIES_MAX {
        return Err(format!("a descriptor has 1 to {ENTRIES_MAX} entries"));
    }
    if note.len() > NOTE_BYTES_MAX {
        return Err(format!("a note has at most {NOTE_BYTES_MAX} bytes"));
    }
    if until_us.is_some_and(|until| !(1..=MICROS_MAX).contains(&until)) {
        return Err("the end is out of bounds".to_owned());
    }
    Ok(Row { domain, entries: descriptor.into(), content, until: until_us, note })
}

/// The text of a row for the store.
///
/// # Errors
/// The reason why the row does not fit into a text.
pub(super) fn stored(row: &Row) -> Result<StoredRow, String> {
    // A file of rows has a row in each line.
    let has_break = |text: &str| text.contains(['\n', '\r']);
    if has_break(&row.note) {
        return Err("note: has a line break".to_owned());
    }
    if let Some((key, _)) = row.entries.iter().find(|(key, value)| has_break(key) || has_break(value)) {
        return Err(format!("the entry {key:?}: has a line break"));
    }
    let Row { domain, entries, content, until, note } = row;
    let (plan, limits) = match content {
        RowContent::Plan(plan) => (Some(plan.clone()), Vec::new()),
        RowContent::Own(numbers) => (None, json_numbers(numbers)),
    };
    let text = Text {
        domain: domain.clone(),
        descriptor: entries.to_vec(),
        plan,
        limits,
        until_us: *until,
        note: note.clone(),
    };
    // Texts and numbers can always be written.
    let text = serde_json::to_string(&text).unwrap_or_default();
    read(&text)?;
    Ok(StoredRow { version: version(&text), until: row.until, text: text.into() })
}

/// Fuzz target: a text that a store may have at the key of a row.
/// Panics if a row is not the same after it was written and read again, or two texts of one row have two versions.
pub fn fuzz(data: &[u8]) {
    let Ok(row) = read(&String::from_utf8_lossy(data)) else { return };
    let written = stored(&row).expect("a row that was read can be written");
    let again = read(&written.text).expect("a row that was written can be read");
    assert_eq!(again, row);
    assert_eq!(stored(&again), Ok(written));
}

#[cfg(test)]
mod tests {
    use weir_engine::Unit;
    use weir_engine::overrides::Numbers;

    use super::*;

    /// Another text has another version: replicas would read all rows again, and an import would write all of them.
    #[test]
    fn the_text_of_a_row_does_not_change() {
        let numbers = |name: Option<&str>, burst| Numbers {
            name: name.map(Into::into),
            requests: 5,
            window: Unit::Hour.window(),
            burst,
        };
        let own = RowContent::Own([numbers(None, None), numbers(Some("n"), Some(7))].into());
        let row = |content, until, note: &str| Row {
            domain: "api".into(),
            entries: [("tenant".into(), "a,b".into())].into(),
            content,
            until,
            note: note.into(),
        };
        let begin = r#"{"domain":"api","descriptor":[["tenant","a,b"]],"#;
        let limits = r#""limits":[{"requests":5,"window_us":3600000000},{"name":"n","requests":5,"window_us":3600000000,"burst":7}]"#;
        for (row, text) in [
            (row(RowContent::Plan("gold".into()), None, ""), format!(r#"{begin}"plan":"gold"}}"#)),
            (row(own, Some(2_000_000), "x"), format!(r#"{begin}{limits},"until_us":2000000,"note":"x"}}"#)),
        ] {
            assert_eq!(&*stored(&row).unwrap().text, text);
            assert_eq!(read(&text), Ok(row));
        }
    }
}
