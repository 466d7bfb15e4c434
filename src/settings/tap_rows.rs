//! The rows of the settings' table that begin with `tap`.
//!
//! Not here: what they become (tap.rs).

use std::time::Duration;

use super::row::{Kind, Preset, Setting};

/// The rows of the table that begin with `tap`.
pub(super) const ROWS: &[Setting] = &[
    Setting {
        name: "tap.values",
        kind: Kind::Choice(&["hidden", "shown"]),
        default: Preset::Is("hidden"),
        about: "how weir tap shows values that no policy names: as a hash that changes when weir restarts, or as they are",
    },
    Setting {
        name: "tap.records_per_second",
        kind: Kind::Integer { min: 1, max: 1_000_000, unit: "records" },
        default: Preset::Is("1000"),
        about: "how many requests a second all taps together get; more are counted as lost",
    },
    Setting {
        name: "tap.max_duration",
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) },
        default: Preset::Is("1h"),
        about: "how long one tap lasts at most",
    },
];
