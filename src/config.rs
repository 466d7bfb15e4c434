//! What the operator wrote, read strictly: settings and the watch over the policy directory.
//!
//! Nothing here binds, connects or keeps time. Knows the engine only; the rest of the program is
//! built from what this module returns.

mod boolean;
pub mod envoy_ratelimit;
pub mod files;
pub mod instant;
mod nearest;
pub mod otel;
pub mod policy_file;
pub mod schema;
pub mod settings;
pub mod watch;
mod zone;

use boolean::boolean;
pub use instant::{INSTANT_US_MAX, instant_text, parse_instant};
pub use nearest::nearest;
