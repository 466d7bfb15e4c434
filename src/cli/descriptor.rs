//! Descriptors in arguments.

use std::str::FromStr;

use weir_engine::descriptor::parse_entries;

/// A descriptor as typed: `path=/login,client=10.0.0.1`.
///
/// The key ends at the first `=`, so a value may contain `=`. A value may be empty, a key may not. `\,` is a comma and `\\` a
/// backslash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values, in the typed order.
    pub entries: Vec<(String, String)>,
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entries = parse_entries(text)?;
        Ok(Self { entries })
    }
}
