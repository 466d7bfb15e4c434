//! What taps on live requests show, and for how long.
//!
//! Not here: taps (telemetry/tap.rs).

use std::time::Duration;

use weir_text::duration;

use super::value::integer;
use super::{Merged, Problem};

/// What taps on live requests show, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Whether values that no policy names are shown as they are.
    pub shows_values: bool,
    /// How many records all taps together get in a second.
    pub records_per_second: u32,
    /// How long one lasts at most.
    pub max_duration: Duration,
}

impl Tap {
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        Ok(Self {
            shows_values: from.value("tap.values", |text| Ok(text == "shown"))?,
            records_per_second: from.value("tap.records_per_second", integer)?,
            max_duration: from.value("tap.max_duration", duration)?,
        })
    }
}
