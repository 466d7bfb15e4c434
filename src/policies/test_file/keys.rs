//! The keys of files of tests: the tables that the reader uses. docs/testing.md and the schema must match them.

use crate::keys::{Kind, kind};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 7] = [&FILE, &CASE, &STEP, &DESCRIPTOR, &ENTRY, &EXPECT, &STATUS];

pub(super) const FILE: Kind = kind! { "a file of tests": policies domain settings rows cases };

pub(super) const CASE: Kind = kind! { "a case": name policies domain settings rows at steps };

pub(super) const STEP: Kind = kind! { "a step":
    ask domain hits refund look limit times callers every for lasts used expect wait at swap rows state
};

pub(crate) const DESCRIPTOR: Kind = kind! { "a descriptor": descriptor entries hits refund look limit };

pub(crate) const ENTRY: Kind = kind! { "an entry": key value };

pub(super) const EXPECT: Kind = kind! { "what is expected":
    answer error passed denied retry_after delay headers request_headers trial metadata rule limit name
    algorithm remaining reset statuses
};

pub(super) const STATUS: Kind = kind! { "a status": answer rule limit name algorithm remaining reset };

/// The keys of an expectation that apply to the status of a single descriptor.
pub(super) const OF_STATUS: [&str; 6] = ["rule", "limit", "name", "algorithm", "remaining", "reset"];
/// The keys that only a step with a request has.
pub(super) const OF_ASK: [&str; 11] =
    ["domain", "hits", "refund", "look", "limit", "times", "callers", "every", "for", "lasts", "used"];
