//! The keys of files of traffic: the tables that the reader uses. docs/simulation.md and the schema must match them.

use crate::keys::{Kind, kind};
use crate::test_file::keys::{DESCRIPTOR, ENTRY};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 5] = [&FILE, &SOURCE, &ACCESS_LOG, &DESCRIPTOR, &ENTRY];

pub(super) const FILE: Kind = kind! { "a file of traffic":
    duration start seed domain settings rows sources access_log
};

pub(super) const SOURCE: Kind = kind! { "a source":
    ask domain hits refund look limit rate arrivals burst lasts from until keys
};

pub(super) const ACCESS_LOG: Kind = kind! { "an access log":
    file time time_format domain ask hits refund look limit
};
