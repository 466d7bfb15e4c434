//! Texts that operators write, read strictly: lengths of time, instants, time zones, true and false; and the known word that a
//! misspelled one was meant to be.
//!
//! Not here: files, and where in them a text is (policies, settings).

mod boolean;
mod duration;
mod instant;
mod nearest;
pub mod zone;

pub use boolean::boolean;
pub use duration::{duration, duration_units, spell};
pub use instant::{INSTANT_US_MAX, instant_text, parse_instant};
pub use nearest::nearest;
