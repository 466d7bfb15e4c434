//! A row in Redis: one key beside the states of its descriptor. Its value is the version and the end in microseconds
//! (0: none), as little-endian doubles, and then the text. The script of decisions reads only the two numbers. [rw-2]

use redis::Value;

use super::decode::{self, NUMBERS_END};
use super::library;
use crate::redis::transport::call::Call;
use crate::{RowChange, RowRead, StoredRow};

/// The bytes before the text.
const HEAD_BYTES: usize = 2 * size_of::<f64>();

/// Reads the value at a key. MGET treats a key of another type as absent.
pub(crate) fn read_call(key: &str) -> Call {
    let mut command = redis::cmd("MGET");
    command.arg(key);
    Call::command(command)
}

pub(crate) fn change_call(key: &str, change: RowChange<'_>) -> Call {
    match change {
        RowChange::Write(row) => {
            let mut command = redis::cmd("SET");
            command.arg(key).arg(value(row));
            Call::command(command)
        }
        RowChange::Remove(row) => Call::script(&library::REMOVE_ROW, &[key], &[value(row)]),
    }
}

/// Whether the reply to [`change_call`] has the change done. None where it has another form.
pub(crate) fn change_reply(reply: &Value) -> Option<bool> {
    match reply {
        Value::Okay => Some(true),
        Value::Int(removed @ (0 | 1)) => Some(*removed == 1),
        _ => None,
    }
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
    let Value::Array(values) = reply else { return None };
    match values.as_slice() {
        [Value::Nil] => Some(RowRead::Absent),
        [Value::BulkString(value)] => Some(read_value(value)),
        _ => None,
    }
}

/// Decodes a value. The script of decisions decodes the first bytes in the same way.
fn read_value(value: &[u8]) -> RowRead {
    let Some((head, text)) = value.split_at_checked(HEAD_BYTES).filter(|(_, text)| !text.is_empty()) else {
        return RowRead::Foreign { version: 0 };
    };
    let Some([version, until]) = decode::doubles(head).and_then(|numbers| <[u64; 2]>::try_from(&*numbers).ok()) else {
        return RowRead::Foreign { version: version_alone(head) };
    };
    match std::str::from_utf8(text) {
        Ok(text) if version > 0 => {
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
        assert_eq!(read_value(b""), foreign(0));
        assert_eq!(read_value(&head(7.0, 0.0)), foreign(0), "no text");
        assert_eq!(read_value(&with_text(head(0.0, 0.0))), foreign(0));
        assert_eq!(read_value(&with_text(head(f64::NAN, 0.0))), foreign(0));
        assert_eq!(read_value(&with_text(head(1.5, 0.0))), foreign(0));
        assert_eq!(read_value(&with_text(head(7.0, 0.5))), foreign(7));
        assert_eq!(read_value(&[head(7.0, 0.0), vec![0xff]].concat()), foreign(7));
        assert_eq!(read_reply(&Value::Array(vec![Value::Nil])), Some(RowRead::Absent));
        assert_eq!(read_reply(&Value::Nil), None);
    }

    #[test]
    fn a_change_is_done_or_not_by_its_reply() {
        let done =
            [Value::Okay, Value::Int(1), Value::Int(0), Value::Int(2), Value::Nil].map(|reply| change_reply(&reply));
        assert_eq!(done, [Some(true), Some(true), Some(false), None, None]);
    }
}
