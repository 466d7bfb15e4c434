//! JSON lists of which only a bounded part is kept.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, SeqAccess, Unexpected, Visitor};

/// The longest text of a body that an error quotes, in bytes.
pub(super) const QUOTED_BYTES_MAX: usize = 320;

/// The first `KEPT_MAX` elements of a list. Further elements are counted without allocating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const KEPT_MAX: usize> {
    pub kept: Vec<T>,
    /// The number of further elements.
    pub left_out: u32,
}

impl<T, const KEPT_MAX: usize> List<T, KEPT_MAX> {
    /// All elements.
    ///
    /// # Errors
    /// If there are more than `KEPT_MAX`.
    pub fn whole(self, name: &str) -> Result<Vec<T>, String> {
        match self.left_out {
            0 => Ok(self.kept),
            left_out => Err(format!("{name}: {} of them, at most {KEPT_MAX}", self.kept.len() + left_out as usize)),
        }
    }
}

impl<'de, T: Deserialize<'de>, const KEPT_MAX: usize> Deserialize<'de> for List<T, KEPT_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error of `deserialize_seq` would quote a whole text.
        deserializer.deserialize_any(Self { kept: Vec::new(), left_out: 0 })
    }
}

impl<'de, T: Deserialize<'de>, const KEPT_MAX: usize> Visitor<'de> for List<T, KEPT_MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<Self, A::Error> {
        while self.kept.len() < KEPT_MAX {
            let Some(element) = elements.next_element()? else { return Ok(self) };
            self.kept.push(element);
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {
            self.left_out += 1;
        }
        Ok(self)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self, E> {
        Err(E::invalid_type(quoted(text), &self))
    }
}

/// The beginning of a text, for an error. serde_json writes an error several times, and each control character as six
/// bytes.
pub(super) fn quoted(text: &str) -> Unexpected<'_> {
    Unexpected::Str(beginning(text))
}

pub(super) fn beginning(text: &str) -> &str {
    let mut end = text.len().min(QUOTED_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
