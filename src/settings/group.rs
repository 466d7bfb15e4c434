//! How a group of settings is declared: each setting once, as a field with its name, kind, default and explanation.
//!
//! ```text
//! settings! {
//!     /// The memory store.
//!     pub struct Memory {
//!         /// how many states the memory store keeps before it evicts
//!         max_keys: usize = "memory.max_keys", Kind::integer(64, 1_000_000_000, "keys"), Is("1000000");
//!     }
//! }
//! ```
//!
//! The comment of a setting is its explanation in `weir serve --help`. After the name, `in tests` allows the setting in
//! files of tests. A closure after the default parses the text, if
//! the type does not determine how. A field without a name, `breaker: Breaker;`, is a nested group.
//!
//! Not here: the groups (lib.rs and the files beside it), and how a text is parsed (value.rs).

use super::setting::{Kind, Preset, Setting};
use super::{Merged, Problem};

/// A setting, or a nested group of settings.
pub(super) enum Entry {
    Setting(Setting),
    Group(&'static [Entry]),
}

/// Settings that are parsed into one value.
pub(super) trait Group: Sized {
    /// The settings, in the order of the documentation.
    const ENTRIES: &'static [Entry];

    /// Each layer has checked its texts, so an error here means that the kind and the type of a setting disagree. The
    /// first load with defaults finds that.
    fn read(from: &Merged) -> Result<Self, Problem>;
}

/// Declares one group: the struct, its settings, and the reading of both.
macro_rules! settings {
    ($(#[$attribute:meta])* pub struct $Group:ident {
        $($(#[doc = $about:literal])+
        $field:ident: $Type:ty $(= $name:literal $(in $tests:tt)?, $kind:expr, $default:expr $(, $read:expr)?)?;)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Group {
            $($(#[doc = $about])+ pub $field: $Type,)+
        }

        impl $crate::group::Group for $Group {
            const ENTRIES: &'static [$crate::group::Entry] =
                &[$(entry!($Type, [$($about),+] $(, $name, [$($tests)?], $kind, $default)?)),+];

            fn read(
                from: &$crate::Merged,
            ) -> Result<Self, $crate::Problem> {
                Ok(Self { $($field: read!(from, $Type $(, $name $(, $read)?)?)),+ })
            }
        }
    };
}

/// Declares settings without fields, for a group that implements `read` itself.
macro_rules! entries {
    ($($(#[doc = $about:literal])+ $name:literal, $kind:expr, $default:expr;)+) => {
        &[$(entry!((), [$($about),+], $name, [], $kind, $default)),+]
    };
}

/// The entry of one field.
macro_rules! entry {
    ($Type:ty, [$($about:literal),+]) => {
        $crate::group::Entry::Group(
            <$Type as $crate::group::Group>::ENTRIES
        )
    };
    ($Type:ty, [$($about:literal),+], $name:literal, [$($tests:tt)?], $kind:expr, $default:expr) => {
        $crate::group::Entry::Setting($crate::Setting {
            name: $name,
            is_of_tests: is_of_tests!($($tests)?),
            kind: $kind,
            default: $default,
            about: concat!($($about),+).trim_ascii(),
        })
    };
}

/// Whether files of tests can set the setting.
macro_rules! is_of_tests {
    () => {
        false
    };
    (tests) => {
        true
    };
}

/// The value of one field.
macro_rules! read {
    ($from:ident, $Type:ty) => {
        <$Type as $crate::group::Group>::read($from)?
    };
    ($from:ident, $Type:ty, $name:literal) => {
        $from.read($name)?
    };
    ($from:ident, $Type:ty, $name:literal, $read:expr) => {
        $from.read_with($name, $read)?
    };
}

/// Declares an enum for a setting with a few words.
macro_rules! choice {
    ($(#[$attribute:meta])* pub enum $Choice:ident { $($words:tt)+ }) => {
        weir_engine::named! { $(#[$attribute])* pub enum $Choice { $($words)+ } }

        impl $Choice {
            const KIND: $crate::Kind = $crate::Kind::Choice(&Self::NAMES);
        }

        impl $crate::value::FromText for $Choice {
            fn from_text(text: &str) -> Result<Self, String> {
                Self::named(text).ok_or_else(|| "no such word".to_owned())
            }
        }
    };
}

/// The number of settings in a group, including nested groups.
pub(super) const fn count(entries: &[Entry]) -> usize {
    let (mut sum, mut index) = (0, 0);
    while index < entries.len() {
        sum += match entries[index] {
            Entry::Setting(_) => 1,
            Entry::Group(below) => count(below),
        };
        index += 1;
    }
    sum
}

/// All settings, in order.
pub(super) const fn flat<const N: usize>(entries: &[Entry]) -> [Setting; N] {
    let none = Setting { name: "", is_of_tests: false, kind: Kind::Switch, default: Preset::Unset, about: "" };
    let mut all = [none; N];
    let filled = fill(&mut all, 0, entries);
    assert!(filled == N, "every setting has a place");
    all
}

/// Writes settings from the index `next` on. Returns the index after them.
const fn fill(all: &mut [Setting], mut next: usize, entries: &[Entry]) -> usize {
    let mut index = 0;
    while index < entries.len() {
        match entries[index] {
            Entry::Setting(setting) => {
                all[next] = setting;
                next += 1;
            }
            Entry::Group(below) => next = fill(all, next, below),
        }
        index += 1;
    }
    next
}
