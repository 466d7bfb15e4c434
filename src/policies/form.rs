//! The form of a key's value: its schema, and how it is read. [`mapping!`] declares the keys of a mapping, each once.
//!
//! ```text
//! mapping! {
//!     pub(crate) mod rows = "rows" {
//!         /// the name of the default plan
//!         DEFAULT: Option<String> = "default", PLAN_NAME, "required", "{default: free}";
//!     }
//! }
//! ```
//!
//! The comment of a key is its explanation on the page and in the schema. After the example a key of a limit can have what
//! it needs of an algorithm, and the reason. A key without a type is read by the key of that name of another mapping. Not
//! here: values with rules of their own (limit.rs, matches.rs).

use serde_json::Value;
use weir_engine::OnError;
use weir_text::yaml::NodeId;

use super::fields::Fields;
use super::keys::Named;
use super::schema::fragments;
use super::state::{FileReader, Reported};
use super::{NAME_BYTES_MAX, Position};

type Reading<T> = fn(&mut FileReader<'_>, &Fields, &'static str) -> Result<T, Reported>;

/// Reads a value, and reports its problem.
pub(crate) type Check = fn(&mut FileReader<'_>, &Fields) -> Result<(), Reported>;

/// A key whose value is read as a `T`.
pub(crate) struct Key<T> {
    pub(crate) name: &'static str,
    pub(crate) read: Reading<T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> Named for Key<T> {
    fn name(self) -> &'static str {
        self.name
    }
}

impl FileReader<'_> {
    /// The value of a key.
    pub(crate) fn read<T>(&mut self, fields: &Fields, key: Key<T>) -> Result<T, Reported> {
        (key.read)(self, fields, key.name)
    }
}

pub(crate) struct Form<T> {
    pub(crate) schema: fn() -> Value,
    pub(crate) read: Reading<T>,
}

pub(crate) const fn form<T>(schema: fn() -> Value, read: Reading<T>) -> Form<T> {
    Form { schema, read }
}

/// Reads a value by a method of the reader.
macro_rules! method {
    ($name:ident) => {
        |reader, fields, key| reader.$name(fields, key)
    };
}

/// A value that the reader of its mapping reads.
pub(crate) const fn node(schema: fn() -> Value) -> Form<Option<(Position, NodeId)>> {
    form(schema, |_, fields, key| Ok(fields.get(key)))
}

pub(crate) const fn list(schema: fn() -> Value) -> Form<Option<Vec<NodeId>>> {
    form(schema, method!(list))
}

pub(crate) const FLAG: Form<bool> = form(fragments::flag, method!(flag));
pub(crate) const NUMBER: Form<Option<u32>> =
    form(|| fragments::number(0, u32::MAX.into()), |reader, fields, key| reader.number(fields, key, 0));
/// A number whose 0 the reader of its mapping refuses, or accepts for a special case.
pub(crate) const POSITIVE: Form<Option<u32>> =
    form(|| fragments::number(0, u32::MAX.into()), |reader, fields, key| reader.number(fields, key, 1));
pub(crate) const ON_ERROR: Form<Option<OnError>> = form(
    || fragments::words(&OnError::NAMES),
    |reader, fields, key| Ok(reader.choice(fields, key, &OnError::NAMES)?.and_then(OnError::named)),
);
/// A text that the reader of its mapping parses.
pub(crate) const fn short_text(schema: fn() -> Value) -> Form<Option<String>> {
    form(schema, |reader, fields, key| reader.text(fields, key, NAME_BYTES_MAX))
}

macro_rules! mapping {
    ($visibility:vis mod $module:ident = $kind:literal $(ignores $ignored:literal)? {
        $($(#[doc = $about:literal])+
        $KEY:ident $(: $Type:ty)? = $name:literal, $form:expr, $default:literal, $example:literal $(, $needs:expr, $reason:expr)?;)+
    }) => {
        $visibility mod $module {
            use super::*;

            $($(pub(crate) const $KEY: $crate::form::Key<$Type> = $crate::form::Key { name: $name, read: $form.read };)?)+

            pub(crate) const KIND: $crate::Kind = $crate::Kind {
                name: $kind,
                keys: &[$($crate::Row {
                    name: $name,
                    about: concat!($($about),+).trim_ascii(),
                    schema: $form.schema,
                    default: $default,
                    example: $example,
                    only: only!($($needs, $reason)?),
                }),+],
                ignored: &[$($ignored)?],
            };

            /// Reads each value alone, in the order of the keys.
            #[allow(dead_code, reason = "most mappings are only read as a whole")]
            pub(crate) const CHECKS: &[$crate::form::Check] =
                &[$(|reader, fields| ($form.read)(reader, fields, $name).map(drop)),+];
        }
    };
}

macro_rules! only {
    () => {
        None
    };
    ($needs:expr, $reason:expr) => {
        Some($crate::Only { needs: $needs, reason: $reason })
    };
}
pub(crate) use {mapping, method, only};
