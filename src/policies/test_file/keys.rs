//! The keys of files of tests: the tables that the reader uses and that docs/testing.md and the schema must match.

use crate::keys::{Kind, key};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 7] = [&FILE, &CASE, &STEP, &DESCRIPTOR, &ENTRY, &EXPECT, &STATUS];

pub(super) const FILE: Kind = Kind {
    name: "a file of tests",
    keys: &[key("policies"), key("domain"), key("settings"), key("rows"), key("cases")],
    ignored: &[],
};

pub(super) const CASE: Kind = Kind {
    name: "a case",
    keys: &[key("name"), key("policies"), key("domain"), key("settings"), key("rows"), key("at"), key("steps")],
    ignored: &[],
};

pub(super) const STEP: Kind = Kind {
    name: "a step",
    keys: &[
        key("ask"),
        key("domain"),
        key("hits"),
        key("refund"),
        key("look"),
        key("limit"),
        key("times"),
        key("callers"),
        key("every"),
        key("for"),
        key("lasts"),
        key("used"),
        key("expect"),
        key("wait"),
        key("at"),
        key("swap"),
        key("rows"),
        key("state"),
    ],
    ignored: &[],
};

pub(crate) const DESCRIPTOR: Kind = Kind {
    name: "a descriptor",
    keys: &[key("descriptor"), key("entries"), key("hits"), key("refund"), key("look"), key("limit")],
    ignored: &[],
};

pub(crate) const ENTRY: Kind = Kind { name: "an entry", keys: &[key("key"), key("value")], ignored: &[] };

pub(super) const EXPECT: Kind = Kind {
    name: "what is expected",
    keys: &[
        key("answer"),
        key("error"),
        key("passed"),
        key("denied"),
        key("retry_after"),
        key("delay"),
        key("headers"),
        key("request_headers"),
        key("trial"),
        key("metadata"),
        key("rule"),
        key("limit"),
        key("name"),
        key("algorithm"),
        key("remaining"),
        key("reset"),
        key("statuses"),
    ],
    ignored: &[],
};

pub(super) const STATUS: Kind = Kind {
    name: "a status",
    keys: &[key("answer"), key("rule"), key("limit"), key("name"), key("algorithm"), key("remaining"), key("reset")],
    ignored: &[],
};

/// The keys of an expectation that apply to the status of the only descriptor.
pub(super) const OF_STATUS: [&str; 6] = ["rule", "limit", "name", "algorithm", "remaining", "reset"];
/// The keys of a step that only a request has.
pub(super) const OF_ASK: [&str; 11] =
    ["domain", "hits", "refund", "look", "limit", "times", "callers", "every", "for", "lasts", "used"];
