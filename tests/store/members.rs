//! The names of the members of JSON: in a document, and in its form on a page.

use serde_json::Value;

/// The name of every member, of the document and of all below, as often as it is there.
pub(crate) fn members(value: &Value, names: &mut impl Extend<String>) {
    match value {
        Value::Object(of) => {
            names.extend(of.keys().cloned());
            of.values().for_each(|value| members(value, names));
        }
        Value::Array(items) => items.iter().for_each(|item| members(item, names)),
        _ => {}
    }
}

/// What stands in quotes in the form of a document.
pub(crate) fn members_of_form(form: &str) -> impl Iterator<Item = &str> {
    form.split('"').skip(1).step_by(2)
}
