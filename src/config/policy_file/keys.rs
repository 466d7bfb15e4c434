//! The keys that policy files are made of: the tables that the reading goes by, and that docs/policies.md is held to.
//!
//! Not here: what the values mean (reader.rs, limit.rs).

/// A kind of mapping in a policy file.
#[derive(Debug)]
pub struct Kind {
    /// What it is called in messages.
    pub name: &'static str,
    /// The keys that it can have.
    pub keys: &'static [Key],
    /// Keys that are read and mean nothing, as to envoyproxy/ratelimit.
    pub ignored: &'static [&'static str],
}

/// A key of a mapping.
#[derive(Debug)]
pub struct Key {
    /// The key as it is written.
    pub name: &'static str,
    /// Which algorithms it is for; none if it is for all, or has nothing to do with them.
    pub only: Option<Only>,
}

/// Why a key is for some algorithms only.
#[derive(Debug)]
pub struct Only {
    /// The names of those that take it.
    pub algorithms: &'static [&'static str],
    /// Why the others refuse it, and what takes it: the end of a message.
    pub reason: &'static str,
}

impl Kind {
    /// Where a key is in the table.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name == name)
    }

    /// The names of all keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    /// Whether the key has a meaning here.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.position(name).is_some()
    }
}

const fn key(name: &'static str) -> Key {
    Key { name, only: None }
}

const fn key_of(name: &'static str, algorithms: &'static [&'static str], reason: &'static str) -> Key {
    Key { name, only: Some(Only { algorithms, reason }) }
}

/// The keys of envoyproxy/ratelimit. It accepts each of them in every mapping, and uses it where it has a meaning.
pub(super) const REFERENCE_KEYS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 4] = [&FILE, &DESCRIPTOR, &LIMIT, &REPLACED];

pub(super) const FILE: Kind = Kind {
    name: "a policy file",
    keys: &[key("domain"), key("charging"), key("on_error"), key("descriptors")],
    ignored: &["name"],
};

pub(super) const DESCRIPTOR: Kind = Kind {
    name: "a descriptor",
    keys: &[
        key("key"),
        key("value"),
        key("rate_limit"),
        key("rate_limits"),
        key("shadow_mode"),
        key("quota_mode"),
        key("on_error"),
        key("share_threshold"),
        key("detailed_metric"),
        key("value_to_metric"),
        key("metadata"),
        key("descriptors"),
    ],
    ignored: &[],
};

pub(super) const LIMIT: Kind = Kind {
    name: "a rate limit",
    keys: &[
        key("unit"),
        key("requests_per_unit"),
        key("window"),
        key("rate"),
        key("algorithm"),
        key_of(
            "burst",
            &["token_bucket", "leaky_bucket", "gcra"],
            "a window admits all of its hits at once, only token_bucket, leaky_bucket and gcra have a burst",
        ),
        key_of("refill", &["token_bucket"], "only token_bucket can be refilled by interval"),
        key_of("precision", &["sliding_window"], "only sliding_window counts in sub-buckets"),
        key_of("anchor", &["fixed_window"], "only the windows of fixed_window can begin with the first hit"),
        key_of("calendar", &["fixed_window"], "only the windows of fixed_window can follow a calendar"),
        key_of("timezone", &["fixed_window"], "only the windows of fixed_window can follow a calendar"),
        key("drain"),
        key_of(
            "post_paid",
            &["fixed_window", "sliding_window_counter", "sliding_window", "token_bucket", "leaky_bucket", "gcra"],
            "its log would grow with every report, without a bound, all other algorithms take it",
        ),
        key("unlimited"),
        key("name"),
        key("replaces"),
    ],
    ignored: &[],
};

pub(super) const REPLACED: Kind = Kind { name: "an entry of replaces", keys: &[key("name")], ignored: &[] };
