//! The settings of taps on live requests.

use std::time::Duration;

use super::setting::Preset::Is;
use super::setting::{Kind, secs};

settings! {
    /// What taps on live requests show, and for how long.
    #[derive(Copy)]
    pub struct Tap {
        /// how weir tap shows values that no policy names: as a hash that changes when weir restarts, or in plain text
        shows_values: bool = "tap.values", Kind::Choice(&["hidden", "shown"]), Is("hidden"), |text| Ok(text == "shown");
        /// how many requests a second all taps together get; more are counted as lost
        records_per_second: u32 = "tap.records_per_second", Kind::integer(1, 1_000_000, "records"), Is("1000");
        /// the longest time of one tap
        max_duration: Duration = "tap.max_duration", Kind::duration(secs(1), secs(86_400)), Is("1h");
    }
}
