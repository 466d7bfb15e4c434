//! The request, and the metadata of the limits that it passed, as the dynamic metadata of a response.
//!
//! The fields are those of envoyproxy/ratelimit, so filters that use them keep working. Not here: weir's own metadata
//! (detail.rs).

use std::collections::HashMap;
use std::sync::Arc;

use pbjson_types::value::Kind;
use pbjson_types::{ListValue, Struct, Value};
use weir_engine::metadata::{self, Fields};

use super::proto::RateLimitUnit;
use super::request::{Descriptor, Request};

/// The fields for a request that passed limits with this metadata, in the order of its descriptors. If several limits have a
/// field, the first is kept; mappings are merged.
pub(super) fn fields(request: &Request<'_>, passed: &[Arc<Fields>]) -> HashMap<String, Value> {
    let mut fields = HashMap::new();
    fields.insert("domain".to_owned(), text(request.domain));
    fields.insert("descriptors".to_owned(), list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend > 0 {
        fields.insert("hitsAddend".to_owned(), Kind::NumberValue(request.hits_addend.into()).into());
    }
    if let Some((first, rest)) = passed.split_first() {
        let merged = match rest {
            [] => mapping(first),
            _ => {
                let mut merged = Fields::clone(first);
                rest.iter().for_each(|more| metadata::merge(&mut merged, more));
                mapping(&merged)
            }
        };
        fields.insert("metadata".to_owned(), merged);
    }
    fields
}

fn descriptor(descriptor: &Descriptor<'_>) -> Value {
    let mut fields = HashMap::new();
    let entries = descriptor.entries.iter().map(|entry| text(&format!("{}={}", entry.key, entry.value)));
    fields.insert("entries".to_owned(), list(entries));
    if let Some(limit) = &descriptor.limit {
        let unit = RateLimitUnit::try_from(limit.unit).map_or("UNKNOWN", |unit| unit.as_str_name());
        // Protobuf's text form omits a field of 0.
        let mut shown = match limit.requests_per_unit {
            0 => format!("unit:{unit}"),
            requests => format!("requests_per_unit:{requests}  unit:{unit}"),
        };
        if let Some(count) = limit.unit_multiplier {
            shown.push_str(&format!("  unit_multiplier:{{value:{}}}", count.value));
        }
        fields.insert("limit".to_owned(), text(&shown));
    }
    if let Some(hits) = descriptor.hits_addend {
        // Bounded to 32 bits before, so a double is exact.
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        fields.insert("hitsAddend".to_owned(), Kind::NumberValue(hits.into()).into());
    }
    Kind::StructValue(Struct { fields }).into()
}

fn mapping(fields: &Fields) -> Value {
    let fields = fields.iter().map(|(name, value)| (String::from(&**name), value_of(value))).collect();
    Kind::StructValue(Struct { fields }).into()
}

fn value_of(value: &metadata::Value) -> Value {
    match value {
        metadata::Value::Null => Kind::NullValue(0).into(),
        metadata::Value::Bool(truth) => Kind::BoolValue(*truth).into(),
        // Other texts were refused when the policy was read.
        metadata::Value::Number(number) => Kind::NumberValue(number.parse().unwrap_or_default()).into(),
        metadata::Value::Text(value) => text(value),
        metadata::Value::List(values) => list(values.iter().map(value_of)),
        metadata::Value::Map(fields) => mapping(fields),
    }
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Kind::ListValue(ListValue { values: values.collect() }).into()
}

fn text(text: &str) -> Value {
    Kind::StringValue(text.to_owned()).into()
}
