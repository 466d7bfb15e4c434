//! The scripts that run in Redis, as build.rs assembles them from lua/.
//!
//! Not here: their arguments (encode.rs) and replies (decode.rs).

use std::sync::LazyLock;

use weir_engine::StateKind;
use weir_engine::kind_table;

use crate::redis::transport::script::Script;

/// Declares a script. After the first use, Redis finds it by its hash.
macro_rules! script {
    ($name:literal) => {
        LazyLock::new(|| Script::new($name, include_str!(concat!(env!("OUT_DIR"), "/lua/", $name, ".lua"))))
    };
}

/// Declares a script of one charge for each kind of state.
macro_rules! scripts_of_kinds {
    ($($(#[$doc:meta])* $Kind:ident($Counting:ty, $name:literal, $number:literal),)*) => {
        mod kinds {
            use super::{LazyLock, Script};

            $($(#[$doc])* pub(super) static $Kind: LazyLock<Script> = script!($name);)*
        }

        /// The script that decides one charge on a state of this kind.
        pub(super) fn alone(kind: &StateKind) -> &'static Script {
            match kind {
                $(StateKind::$Kind(_) => &kinds::$Kind,)*
            }
        }

        fn of_kinds() -> impl Iterator<Item = &'static Script> {
            [$(&*kinds::$Kind),*].into_iter()
        }
    };
}

kind_table!(scripts_of_kinds);

/// Decides lists of charges on short states.
static DECIDE: LazyLock<Script> = script!("decide");
/// Decides lists of charges.
static DECIDE_LONG: LazyLock<Script> = script!("decide_long");
/// Takes back one charge of a log.
pub(super) static UNDO_LOG: LazyLock<Script> = script!("undo_log");
pub(super) static READ_OVERRIDES: LazyLock<Script> = script!("read_overrides");
pub(super) static WRITE_OVERRIDES: LazyLock<Script> = script!("write_overrides");
pub(super) static REMOVE_ROW: LazyLock<Script> = script!("remove_row");

/// The script that decides lists of charges.
pub(super) fn of_lists(has_long: bool) -> &'static Script {
    if has_long { &DECIDE_LONG } else { &DECIDE }
}

pub(crate) fn all() -> impl Iterator<Item = &'static Script> {
    of_kinds().chain([&*DECIDE, &*DECIDE_LONG, &*UNDO_LOG, &*READ_OVERRIDES, &*WRITE_OVERRIDES, &*REMOVE_ROW])
}

/// All scripts, for people.
#[must_use]
pub fn scripts() -> Vec<ScriptText> {
    all().map(|script| ScriptText { name: script.name, text: script.code, sha1: script.sha1() }).collect()
}

/// A script as Redis runs it.
#[derive(Clone, Copy, Debug)]
pub struct ScriptText {
    pub name: &'static str,
    pub text: &'static str,
    /// The SHA-1 of the text, by which Redis finds it.
    pub sha1: &'static str,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use weir_engine::algorithm::{Counting, ScriptNumbers as _};
    use weir_engine::rows::ENDED_ROW_KEPT_US;

    use super::*;

    /// The text after `--- NAME ` in a fragment.
    fn text_of<'a>(fragment: &'a str, name: &str) -> Option<&'a str> {
        fragment.lines().find_map(|line| line.strip_prefix("--- ")?.strip_prefix(name)?.strip_prefix(' '))
    }

    #[test]
    fn scripts_keep_an_ended_row_as_long_as_the_engine() {
        let test = format!("till + {ENDED_ROW_KEPT_US} <= now");
        for script in of_kinds().chain([&*DECIDE, &*DECIDE_LONG]) {
            assert!(script.code.contains(&test), "{}", script.name);
        }
    }

    fn numbers_of(fragment: &str) -> usize {
        text_of(fragment, "numbers").map_or(0, |names| names.split(", ").count())
    }

    fn replies_of(fragment: &str) -> usize {
        let count = |name| text_of(fragment, name).and_then(|text| text.split(' ').next()?.parse::<usize>().ok());
        count("finds").unwrap_or(0) + count("leaves").unwrap_or(0)
    }

    /// Name, number, number of arguments, and number of results.
    macro_rules! list {
        ($($(#[$doc:meta])* $Kind:ident($file:ident :: $Counting:ident, $name:literal, $number:literal),)*) => {
            [$({
                use weir_engine::algorithm::$file::$Counting as Own;
                ($name, $number, <Own as Counting>::Numbers::COUNT, <Own as Counting>::REPLY)
            }),*]
        };
    }

    #[test]
    fn fragments_have_as_many_numbers_as_the_engine_and_a_row_in_the_readme() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
        let readme = fs::read_to_string(folder.join("README.md")).expect("a readme");
        for (name, number, numbers, replies) in kind_table!(list) {
            let fragment = fs::read_to_string(folder.join(format!("algorithms/{name}.lua"))).expect("a fragment");
            assert_eq!(numbers_of(&fragment), numbers, "numbers of {name}");
            assert_eq!(replies_of(&fragment), replies, "numbers that {name} returns");
            let is_row =
                |line: &str| line.starts_with(&format!("| `{name}`")) && line.contains(&format!("| {number} |"));
            assert!(readme.lines().any(is_row), "lua/README.md has no row for {name} with the letter {number}");
        }
    }
}
