//! The scripts of lua/.
//!
//! Not here: what goes to them (encode.rs) and comes back (decode.rs).

use std::sync::LazyLock;

use crate::store::redis::transport::call::Script;

/// A script of lua/, which Redis knows by its hash once it was sent there.
macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("../../../../lua/", $file))));
    };
}

script!(FIXED_WINDOW, "fixed_window.lua");
script!(ANCHORED_WINDOW, "anchored_window.lua");
script!(SLIDING_WINDOW_COUNTER, "sliding_window_counter.lua");
script!(SLIDING_WINDOW, "sliding_window.lua");
script!(SLIDING_WINDOW_LOG, "sliding_window_log.lua");
script!(GCRA, "gcra.lua");
script!(TOKEN_BUCKET, "token_bucket.lua");
script!(DECIDE, "decide.lua");
script!(UNDO_LOG, "undo_log.lua");

/// All of them.
pub(crate) fn all() -> [&'static Script; 9] {
    [
        &FIXED_WINDOW,
        &ANCHORED_WINDOW,
        &SLIDING_WINDOW_COUNTER,
        &SLIDING_WINDOW,
        &SLIDING_WINDOW_LOG,
        &GCRA,
        &TOKEN_BUCKET,
        &DECIDE,
        &UNDO_LOG,
    ]
}
