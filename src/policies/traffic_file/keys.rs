//! The keys of files of traffic: the tables that the reader uses and that docs/simulation.md and the schema must match.

use crate::keys::{Kind, key};
use crate::test_file::keys::{DESCRIPTOR, ENTRY};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 6] = [&FILE, &SOURCE, &DAILY, &ACCESS_LOG, &DESCRIPTOR, &ENTRY];

pub(super) const FILE: Kind = Kind {
    name: "a file of traffic",
    keys: &[
        key("duration"),
        key("start"),
        key("seed"),
        key("domain"),
        key("settings"),
        key("rows"),
        key("sources"),
        key("access_log"),
    ],
    ignored: &[],
};

pub(super) const SOURCE: Kind = Kind {
    name: "a source",
    keys: &[
        key("ask"),
        key("domain"),
        key("hits"),
        key("refund"),
        key("look"),
        key("limit"),
        key("rate"),
        key("arrivals"),
        key("burst"),
        key("lasts"),
        key("on"),
        key("off"),
        key("from"),
        key("until"),
        key("keys"),
        key("zipf"),
        key("daily"),
    ],
    ignored: &[],
};

pub(super) const DAILY: Kind =
    Kind { name: "a daily curve", keys: &[key("peak"), key("trough"), key("low")], ignored: &[] };

pub(super) const ACCESS_LOG: Kind = Kind {
    name: "an access log",
    keys: &[
        key("file"),
        key("time"),
        key("time_format"),
        key("domain"),
        key("ask"),
        key("hits"),
        key("refund"),
        key("look"),
        key("limit"),
    ],
    ignored: &[],
};
