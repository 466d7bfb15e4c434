//! The scripts that run in Redis, as build.rs assembles them from lua/.
//!
//! Not here: their arguments (encode.rs) and replies (decode.rs).

use std::sync::LazyLock;

use weir_engine::StateKind;

use crate::redis::transport::script::Script;

/// Declares a script. After the first use, Redis finds it by its hash.
macro_rules! script {
    ($name:literal) => {
        LazyLock::new(|| Script::new($name, include_str!(concat!(env!("OUT_DIR"), "/lua/", $name, ".lua"))))
    };
}

// Each decides one charge on a state of one kind.
static FIXED_WINDOW: LazyLock<Script> = script!("fixed_window");
static GCRA: LazyLock<Script> = script!("gcra");
static ANCHORED_WINDOW: LazyLock<Script> = script!("anchored_window");
static SLIDING_WINDOW_COUNTER: LazyLock<Script> = script!("sliding_window_counter");
static TOKEN_BUCKET: LazyLock<Script> = script!("token_bucket");
static SLIDING_WINDOW: LazyLock<Script> = script!("sliding_window");
static SLIDING_WINDOW_LOG: LazyLock<Script> = script!("sliding_window_log");

/// The script that decides one charge on a state of this kind.
pub(super) fn alone(kind: &StateKind) -> &'static Script {
    match kind {
        StateKind::FixedWindow(_) => &FIXED_WINDOW,
        StateKind::Pacing(_) => &GCRA,
        StateKind::AnchoredWindow(_) => &ANCHORED_WINDOW,
        StateKind::SlidingWindowCounter(_) => &SLIDING_WINDOW_COUNTER,
        StateKind::TokenBucket(_) => &TOKEN_BUCKET,
        StateKind::SlidingWindow(_) => &SLIDING_WINDOW,
        StateKind::SlidingWindowLog(_) => &SLIDING_WINDOW_LOG,
    }
}

/// Decides lists of charges on short states.
static DECIDE: LazyLock<Script> = script!("decide");
/// Decides lists of charges.
static DECIDE_LONG: LazyLock<Script> = script!("decide_long");
/// Takes back one charge of a log.
pub(super) static UNDO_LOG: LazyLock<Script> = script!("undo_log");
pub(super) static READ_OVERRIDES: LazyLock<Script> = script!("read_overrides");
pub(super) static WRITE_OVERRIDES: LazyLock<Script> = script!("write_overrides");
pub(super) static WRITE_ROW: LazyLock<Script> = script!("write_row");
pub(super) static REMOVE_ROW: LazyLock<Script> = script!("remove_row");

/// The script that decides lists of charges.
pub(super) fn of_lists(has_long: bool) -> &'static Script {
    if has_long { &DECIDE_LONG } else { &DECIDE }
}

pub(crate) fn all() -> impl Iterator<Item = &'static Script> {
    let all: [&'static LazyLock<Script>; 14] = [
        &FIXED_WINDOW,
        &GCRA,
        &ANCHORED_WINDOW,
        &SLIDING_WINDOW_COUNTER,
        &TOKEN_BUCKET,
        &SLIDING_WINDOW,
        &SLIDING_WINDOW_LOG,
        &DECIDE,
        &DECIDE_LONG,
        &UNDO_LOG,
        &READ_OVERRIDES,
        &WRITE_OVERRIDES,
        &WRITE_ROW,
        &REMOVE_ROW,
    ];
    all.into_iter().map(|script| &**script)
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
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use weir_engine::algorithm::parameters::Parameters;
    use weir_engine::rows::ENDED_ROW_KEPT_US;
    use weir_engine::{Algorithm, Anchor, Limit, Precision, Refill, Unit};

    use super::*;

    /// The text after `--- NAME ` in a fragment.
    fn text_of<'a>(fragment: &'a str, name: &str) -> Option<&'a str> {
        fragment.lines().find_map(|line| line.strip_prefix("--- ")?.strip_prefix(name)?.strip_prefix(' '))
    }

    #[test]
    fn scripts_keep_an_ended_row_as_long_as_the_engine() {
        let test = format!("till + {ENDED_ROW_KEPT_US} <= now");
        let alone = every_kind().into_iter().map(|kind| alone(&kind));
        for script in alone.chain([&*DECIDE, &*DECIDE_LONG]) {
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

    fn every_kind() -> Vec<StateKind> {
        let minute = Precision::new(Unit::Minute.window().us()).expect("not 0");
        let usual = Parameters { precision: minute, ..Parameters::LEAST };
        let unusual = Parameters { anchor: Anchor::FirstHit, refill: Refill::Interval, ..usual };
        let all = [Algorithm::all(&usual), Algorithm::all(&unusual)];
        let limits = all.concat().into_iter().map(|algorithm| Limit::new(1, Unit::Hour.window(), algorithm));
        limits.map(|limit| *limit.expect("a limit").kind()).collect()
    }

    #[test]
    fn fragments_have_as_many_numbers_as_the_engine_and_a_row_in_the_readme() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
        let readme = fs::read_to_string(folder.join("README.md")).expect("a readme");
        let mut names = BTreeSet::new();
        for kind in every_kind() {
            let (name, number) = (alone(&kind).name, kind.number());
            names.insert(name);
            assert!(DECIDE_LONG.code.contains(&format!("{number} {name}")), "{name} has the number {number}");
            let fragment = fs::read_to_string(folder.join(format!("algorithms/{name}.lua"))).expect("a fragment");
            assert_eq!(numbers_of(&fragment), kind.script_numbers(1).len(), "numbers of {name}");
            assert_eq!(replies_of(&fragment), kind.reply_count(), "numbers that {name} returns");
            let is_row =
                |line: &str| line.starts_with(&format!("| `{name}`")) && line.contains(&format!("| {number} |"));
            assert!(readme.lines().any(is_row), "lua/README.md has no row for {name} with the letter {number}");
        }
        assert_eq!(names.len(), 7, "{names:?}");
    }
}
