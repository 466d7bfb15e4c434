//! The overrides in Redis: two keys in one slot, a version and a text. Two scripts read and replace them. [ov-3]

use redis::Value;

use super::{decode, library};
use crate::redis::transport::call::Call;
use crate::{OVERRIDES_BYTES_MAX, StoredOverrides};

/// The key of the version. The key of the text is in the same slot.
pub(crate) const VERSION_KEY: &str = "w1:{weir}overrides-version";
const TEXT_KEY: &str = "w1:{weir}overrides";

/// Reads the overrides if their version is not `known`.
pub(crate) fn read_call(prefix: &str, known: &str) -> Call {
    let arguments = [known, &OVERRIDES_BYTES_MAX.to_string()];
    Call::script(&library::READ_OVERRIDES, &keys(prefix), &arguments)
}

/// Replaces the overrides if their version is `known`.
pub(crate) fn write_call(prefix: &str, known: &str, with: &StoredOverrides) -> Call {
    let arguments = [known, &with.version, with.text.as_deref().unwrap_or_default()];
    Call::script(&library::WRITE_OVERRIDES, &keys(prefix), &arguments)
}

fn keys(prefix: &str) -> [String; 2] {
    [VERSION_KEY, TEXT_KEY].map(|key| format!("{prefix}{key}"))
}

/// The overrides that were read. The inner None: unchanged. The outer None: the reply has the wrong form.
pub(crate) fn read_reply(reply: Value) -> Option<Option<StoredOverrides>> {
    let Value::Array(parts) = reply else { return None };
    let text = |value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8(bytes).ok()),
        _ => None,
    };
    let mut parts = parts.into_iter();
    let Some(version) = parts.next() else { return Some(None) };
    // weir did not write a version that is not text.
    let version = text(version)?.unwrap_or_else(|| "strange".to_owned());
    let text = match parts.next() {
        Some(value) => text(value)?.filter(|text| text.len() <= OVERRIDES_BYTES_MAX),
        None => None,
    };
    parts.next().is_none().then_some(Some(StoredOverrides { version, text }))
}

/// Whether the overrides were replaced.
pub(crate) fn write_reply(reply: &Value) -> Option<bool> {
    decode::integer(reply).map(|replaced| replaced == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_and_one_of_another_form_is_none() {
        let bulk = |text: &[u8]| Value::BulkString(text.to_vec());
        let stored = |version: &str, text: Option<&str>| {
            Some(Some(StoredOverrides { version: version.to_owned(), text: text.map(str::to_owned) }))
        };
        assert_eq!(read_reply(Value::Array(vec![])), Some(None));
        assert_eq!(read_reply(Value::Array(vec![bulk(b"7"), bulk(b"x")])), stored("7", Some("x")));
        assert_eq!(read_reply(Value::Array(vec![bulk(b"7")])), stored("7", None));
        assert_eq!(read_reply(Value::Array(vec![bulk(b"\xff"), bulk(b"\xff")])), stored("strange", None));
        let large = vec![b'x'; OVERRIDES_BYTES_MAX + 1];
        assert_eq!(read_reply(Value::Array(vec![bulk(b"7"), bulk(&large)])), stored("7", None));
        for strange in [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![bulk(b"7"), Value::Nil]),
            Value::Array(vec![bulk(b"7"), bulk(b"x"), bulk(b"y")]),
        ] {
            assert_eq!(read_reply(strange), None);
        }
    }
}
