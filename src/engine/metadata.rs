//! Metadata of a policy for the answer. weir passes its values on and does not interpret them.
//!
//! The shape is that of a `google.protobuf.Struct`. Not here: reading it from a policy, and writing it to the wire.

use std::collections::BTreeMap;

pub type Fields = BTreeMap<Box<str>, Value>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Bool(bool),
    /// A number in decimal notation, such as `-1.5e3`: the engine has no floats.
    Number(Box<str>),
    Text(Box<str>),
    List(Box<[Value]>),
    Map(Fields),
}

/// Adds fields to others. If both have a field, the first value stays, except that two mappings are merged in the same
/// way.
pub fn merge(into: &mut Fields, from: &Fields) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => {
                into.insert(name.clone(), value.clone());
            }
            (Some(Value::Map(inner)), Value::Map(more)) => merge(inner, more),
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    fn map(fields: &[(&str, Value)]) -> Fields {
        fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect()
    }

    #[test]
    fn the_first_value_stays_and_mappings_are_merged() {
        let mut all = map(&[("plan", Value::Map(map(&[("name", text("gold"))]))), ("tags", Value::List([].into()))]);
        let plan = map(&[("name", text("other")), ("region", text("eu"))]);
        merge(&mut all, &map(&[("plan", Value::Map(plan)), ("tags", text("x")), ("flag", Value::Bool(true))]));
        let plan = map(&[("name", text("gold")), ("region", text("eu"))]);
        let expected =
            map(&[("plan", Value::Map(plan)), ("tags", Value::List([].into())), ("flag", Value::Bool(true))]);
        assert_eq!(all, expected);
    }
}
