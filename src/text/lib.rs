//! Strict parsers of texts that operators write: YAML, lengths of time, instants, time zones, true and false, JSON of
//! rows; the probable correction of a misspelled word; and limits in words.

mod amount;
mod boolean;
mod duration;
mod instant;
pub mod json;
mod nearest;
mod quoted;
pub mod yaml;
pub mod zone;

pub use amount::amount;
pub use boolean::boolean;
pub use duration::{duration, duration_units, spell};
pub use instant::{INSTANT_US_MAX, instant_text, parse_instant};
pub use nearest::nearest;
pub use quoted::{escaped, quoted};
