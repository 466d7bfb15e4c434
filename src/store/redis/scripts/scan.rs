//! SCAN: the keys that begin with a text, in small steps, so that no step blocks Redis for long.

use redis::Value;

use super::decode;
use crate::redis::transport::call::Call;

/// About how many keys Redis reads in one step.
const STEP: u32 = 100;

/// One step from this cursor on; 0 is the start.
pub(crate) fn call(prefix: &str, cursor: u64) -> Call {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern(prefix)).arg("COUNT").arg(STEP);
    Call::command(command)
}

/// The cursor of the next step (0 after the last), and the keys of this step. weir did not write keys that are not
/// text.
pub(crate) fn read(reply: Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = reply else { return None };
    let [cursor, keys] = <[Value; 2]>::try_from(parts).ok()?;
    let (cursor, Value::Array(keys)) = (number(&cursor)?, keys) else { return None };
    let text = |key| match key {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    };
    Some((cursor, keys.into_iter().filter_map(text).collect()))
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        Value::SimpleString(text) => text.parse().ok(),
        other => decode::integer(other),
    }
}

/// A glob-style pattern that matches all keys with this prefix.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for char in prefix.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_patterns_is_escaped() {
        assert_eq!(pattern("weir:w1:{shop|user="), "weir:w1:{shop|user=*");
        assert_eq!(pattern("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\*");
    }

    #[test]
    fn an_answer_is_read_and_one_of_another_form_is_none() {
        let text = |text: &str| Value::BulkString(text.into());
        let keys = Value::Array(vec![text("a"), Value::BulkString(vec![0xff]), text("b")]);
        assert_eq!(read(Value::Array(vec![text("17"), keys.clone()])), Some((17, vec!["a".into(), "b".into()])));
        for other in [Value::Nil, Value::Array(vec![text("17")]), Value::Array(vec![text("x"), keys])] {
            assert_eq!(read(other), None);
        }
    }
}
