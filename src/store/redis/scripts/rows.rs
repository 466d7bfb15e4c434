//! A row in Redis: one key beside the states of its descriptor. Its value is the version and the end in microseconds
//! (0: none), as little-endian doubles, and then the text. The script of decisions reads only the two numbers. [rw-2]

use redis::Value;

use super::decode::{self, NUMBERS_END};
use super::library;
use crate::redis::transport::call::Call;
use crate::{ROW_TEXT_BYTES_MAX, RowChange, RowChanged, RowRead, StoredRow};

/// The bytes before the text.
const HEAD_BYTES: usize = 2 * size_of::<f64>();
/// The index of the last byte of a value that is read: one byte more than a row has, which shows that the value is none.
const LAST_BYTE: usize = HEAD_BYTES + ROW_TEXT_BYTES_MAX;

/// Reads the value at a key. Redis returns an empty text for no value, and an error for a value of another type.
pub(crate) fn read_call(key: &str) -> Call {
    let mut command = redis::cmd("GETRANGE");
    command.arg(key).arg(0).arg(LAST_BYTE);
    Call::command(command)
}

pub(crate) fn change_call(key: &str, change: RowChange<'_>) -> Call {
    match change {
        RowChange::Write(row) => Call::script(&library::WRITE_ROW, &[key], &[value(row), last_byte()]),
        RowChange::Replace { row, over } => {
            Call::script(&library::WRITE_ROW, &[key], &[value(row), last_byte(), value(over)])
        }
        RowChange::Remove(row) => Call::script(&library::REMOVE_ROW, &[key], &[value(row)]),
    }
}

/// Decodes the reply to [`change_call`]. None if the form is wrong.
pub(crate) fn change_reply(reply: &Value) -> Option<RowChanged> {
    match reply {
        Value::BulkString(value) => Some(RowChanged::Written { before: read_value(value) }),
        Value::Int(1) => Some(RowChanged::Removed),
        Value::Int(0) => Some(RowChanged::Kept),
        _ => None,
    }
}

fn last_byte() -> Vec<u8> {
    LAST_BYTE.to_string().into_bytes()
}

fn value(row: &StoredRow) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD_BYTES + row.text.len());
    for number in [row.version, row.until.unwrap_or(0)] {
        value.extend_from_slice(&(number as f64).to_le_bytes());
    }
    value.extend_from_slice(row.text.as_bytes());
    value
}

/// Decodes the reply to [`read_call`]. None if the form is wrong.
pub(crate) fn read_reply(reply: &Value) -> Option<RowRead> {
    match reply {
        Value::BulkString(value) => Some(read_value(value)),
        _ => None,
    }
}

/// Decodes a value. The script of decisions decodes the first bytes in the same way.
fn read_value(value: &[u8]) -> RowRead {
    if value.is_empty() {
        return RowRead::Absent;
    }
    let Some((head, text)) = value.split_at_checked(HEAD_BYTES).filter(|(_, text)| !text.is_empty()) else {
        return RowRead::Foreign { version: 0 };
    };
    let Some([version, until]) = decode::doubles(head).and_then(|numbers| <[u64; 2]>::try_from(&*numbers).ok()) else {
        return RowRead::Foreign { version: version_alone(head) };
    };
    match std::str::from_utf8(text) {
        Ok(text) if version > 0 && text.len() <= ROW_TEXT_BYTES_MAX => {
            RowRead::Row(StoredRow { version, until: Some(until).filter(|until| *until > 0), text: text.into() })
        }
        _ => RowRead::Foreign { version },
    }
}

/// The version of a value whose end is not a whole number: the script uses the version as it is.
fn version_alone(head: &[u8]) -> u64 {
    let numbers = decode::doubles(&head[..HEAD_BYTES / 2]);
    numbers.and_then(|numbers| numbers.first().copied()).filter(|version| *version < NUMBERS_END).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_anything_else_is_foreign() {
        let row = |until| StoredRow { version: 7, until, text: "{}".into() };
        for row in [row(None), row(Some(5))] {
            assert_eq!(read_value(&value(&row)), RowRead::Row(row));
        }
        let foreign = |version| RowRead::Foreign { version };
        let head = |version: f64, until: f64| [version.to_le_bytes(), until.to_le_bytes()].concat();
        let with_text = |head: Vec<u8>| [head, b"x".to_vec()].concat();
        assert_eq!(read_value(b""), RowRead::Absent);
        assert_eq!(read_value(b"x"), foreign(0));
        assert_eq!(read_value(&head(7.0, 0.0)), foreign(0), "no text");
        assert_eq!(read_value(&with_text(head(0.0, 0.0))), foreign(0));
        assert_eq!(read_value(&with_text(head(f64::NAN, 0.0))), foreign(0));
        assert_eq!(read_value(&with_text(head(1.5, 0.0))), foreign(0));
        assert_eq!(read_value(&with_text(head(7.0, 0.5))), foreign(7));
        assert_eq!(read_value(&[head(7.0, 0.0), vec![0xff]].concat()), foreign(7));
        assert_eq!(read_reply(&Value::Nil), None);
    }

    #[test]
    fn a_value_that_redis_has_cut_is_foreign_and_the_longest_row_is_not() {
        let row = |bytes| StoredRow { version: 7, until: None, text: "x".repeat(bytes).into() };
        let longest = row(ROW_TEXT_BYTES_MAX);
        assert_eq!(value(&longest).len(), LAST_BYTE, "a cut value has one byte more");
        assert_eq!(read_value(&value(&longest)), RowRead::Row(longest));
        assert_eq!(read_value(&value(&row(ROW_TEXT_BYTES_MAX + 1))), RowRead::Foreign { version: 7 });
    }

    #[test]
    fn a_change_is_read_from_its_reply() {
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.into());
        let row = StoredRow { version: 7, until: None, text: "{}".into() };
        let written = |before| Some(RowChanged::Written { before });
        assert_eq!(change_reply(&bulk(b"")), written(RowRead::Absent));
        assert_eq!(change_reply(&bulk(&value(&row))), written(RowRead::Row(row)));
        assert_eq!(change_reply(&bulk(b"x")), written(RowRead::Foreign { version: 0 }));
        assert_eq!(
            [Value::Int(1), Value::Int(0)].map(|reply| change_reply(&reply)),
            [Some(RowChanged::Removed), Some(RowChanged::Kept)]
        );
        assert_eq!([Value::Int(2), Value::Nil, Value::Okay].map(|reply| change_reply(&reply)), [None, None, None]);
    }
}
