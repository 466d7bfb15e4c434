//! Strict parsers of texts that operators write: YAML, lengths of time, instants, spans of the week, time zones, true and
//! false, bounded numbers; the probable correction of a misspelled word; limits in words; bytes as digits and percent codes.

mod amount;
mod boolean;
mod bytes;
mod duration;
mod during;
mod go_duration;
mod instant;
mod nearest;
mod number;
mod phase;
mod quoted;
pub mod yaml;
pub mod zone;

pub use amount::{amount, parameters};
pub use boolean::boolean;
pub use bytes::{hex, percent_decoded, percent_encoded};
pub use duration::{duration, duration_units, spell};
pub use during::parse_span;
pub use go_duration::go_duration;
pub use instant::{INSTANT_US_MAX, instant_text, parse_instant};
pub use nearest::{nearest, nearest_within};
pub use number::number;
pub use phase::{next_begin, phase};
pub use quoted::{escaped, quoted};
