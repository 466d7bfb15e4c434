//! The values under `metadata`. weir returns them and does not interpret them.
//!
//! Unquoted scalars are read as in envoyproxy/ratelimit: `y` is true and `010` is 8. Not here: their form in the engine
//! (metadata.rs there).

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_engine::metadata;
use weir_text::quoted;
use weir_text::yaml::{NodeId, Value};

use super::fields::{Fields, Read};
use super::scalar::{self, IsOdd, Plain};
use super::state::{FileReader, Reported};
use super::warning::Code;
use super::{METADATA_BYTES_MAX, METADATA_VALUES_MAX};

/// The size of the metadata read so far.
#[derive(Default)]
struct Size {
    values: usize,
    bytes: usize,
}

impl FileReader<'_> {
    /// The value of `metadata`. None if it is absent, null or empty.
    pub(super) fn metadata(&mut self, fields: &Fields, key: &'static str) -> Read<Arc<metadata::Fields>> {
        let (Some((at, node)), Some((_, id))) = (self.value(fields, key), fields.get(key)) else {
            return Ok(None);
        };
        if !matches!(node.value, Value::Mapping(_)) {
            let message = format!("metadata must be a mapping of keys and values, not {}", node.describe());
            return Err(self.report(at, message));
        }
        let mut size = Size::default();
        match self.metadata_value(id, &mut size)? {
            metadata::Value::Map(fields) if !fields.is_empty() => Ok(Some(Arc::new(fields))),
            _ => Ok(None),
        }
    }

    fn metadata_value(&mut self, id: NodeId, size: &mut Size) -> Result<metadata::Value, Reported> {
        let document = self.document;
        let node = document.node(id);
        size.values += 1;
        if size.values > METADATA_VALUES_MAX {
            return Err(self.report(node.position, format!("metadata has more than {METADATA_VALUES_MAX} values")));
        }
        match &node.value {
            Value::Scalar { text, plain } => {
                self.add_bytes(id, text, size)?;
                Ok(if *plain { self.plain_value(id, text) } else { metadata::Value::Text((**text).into()) })
            }
            Value::List(items) => {
                let items: Result<Vec<_>, Reported> =
                    items.iter().map(|&item| self.metadata_value(item, size)).collect();
                Ok(metadata::Value::List(items?.into()))
            }
            Value::Mapping(entries) => {
                let mut map = BTreeMap::new();
                for &(key, value) in entries {
                    let Value::Scalar { text, .. } = &document.node(key).value else {
                        continue;
                    };
                    self.add_bytes(key, text, size)?;
                    let value = self.metadata_value(value, size)?;
                    if map.insert((**text).into(), value).is_some() {
                        return Err(self.report(document.node(key).position, format!("{} appears twice", quoted(text))));
                    }
                }
                Ok(metadata::Value::Map(map))
            }
        }
    }

    fn add_bytes(&mut self, id: NodeId, text: &str, size: &mut Size) -> Result<(), Reported> {
        size.bytes += text.len();
        if size.bytes > METADATA_BYTES_MAX {
            let at = self.document.node(id).position;
            return Err(self.report(at, format!("metadata has more than {METADATA_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn plain_value(&mut self, id: NodeId, text: &str) -> metadata::Value {
        let at = self.document.node(id).position;
        match scalar::plain(text) {
            Plain::Null => metadata::Value::Null,
            Plain::Bool(truth) => {
                if !text.eq_ignore_ascii_case("true") && !text.eq_ignore_ascii_case("false") {
                    self.warn(at, Code::BareBoolean, format!("{text} means {truth}: quote it to get the text"));
                }
                metadata::Value::Bool(truth)
            }
            Plain::Whole(number, odd) => {
                if odd == IsOdd::Yes {
                    let message = format!("{} is the number {number}: quote it to get the text", quoted(text));
                    self.warn(at, Code::OddNumber, message);
                }
                metadata::Value::Number(number.to_string().into())
            }
            Plain::Float(number) => metadata::Value::Number(number.to_string().into()),
            Plain::Text => metadata::Value::Text(text.into()),
        }
    }
}
