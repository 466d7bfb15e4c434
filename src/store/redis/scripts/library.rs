//! The scripts that run in Redis, as build.rs assembled them out of lua/.
//!
//! Not here: what goes to them (encode.rs) and comes back (decode.rs).

use std::sync::LazyLock;

use crate::store::redis::transport::call::Script;

/// Declares the scripts, each of which Redis knows by its hash once it was sent there, and lists them.
macro_rules! scripts {
    ($($name:ident = $file:literal,)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!(env!("OUT_DIR"), "/lua/", $file, ".lua"))));)*

        /// All of them.
        pub(crate) fn all() -> impl Iterator<Item = &'static Script> {
            [$(&*$name),*].into_iter()
        }

        /// The same, for people.
        #[must_use]
        pub fn scripts() -> Vec<ScriptText> {
            vec![$(ScriptText { name: $file, text: $name.code, sha1: $name.sha1() }),*]
        }
    };
}

/// A script as Redis runs it.
#[derive(Clone, Copy, Debug)]
pub struct ScriptText {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// The SHA-1 of the text, by which Redis knows it.
    pub sha1: &'static str,
}

scripts! {
    FIXED_WINDOW = "fixed_window",
    ANCHORED_WINDOW = "anchored_window",
    SLIDING_WINDOW_COUNTER = "sliding_window_counter",
    SLIDING_WINDOW = "sliding_window",
    SLIDING_WINDOW_LOG = "sliding_window_log",
    GCRA = "gcra",
    TOKEN_BUCKET = "token_bucket",
    DECIDE = "decide",
    DECIDE_LONG = "decide_long",
    UNDO_LOG = "undo_log",
}
