//! The keys that policy files are made of: the tables that the reading goes by, and that docs/policies.md is held to.
//!
//! Not here: what the values mean (reader.rs, limit.rs).

use weir_engine::Algorithm;
use weir_engine::algorithm::parameters::Parameters;

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
    /// What an algorithm has that takes it.
    pub needs: Needs,
    /// Why the others refuse it, and what takes it: the end of a message.
    pub reason: &'static str,
}

/// What an algorithm has that takes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// This parameter.
    Parameter(&'static str),
    /// A use for reports.
    Reports,
    /// Windows with a beginning and an end.
    Windows,
    /// Steps, within which it makes no difference when a hit is charged.
    Steps,
}

impl Only {
    /// Whether this algorithm takes the key.
    fn takes(&self, algorithm: Algorithm) -> bool {
        match self.needs {
            Needs::Parameter(name) => algorithm.parameter_names().contains(&name),
            Needs::Reports => algorithm.takes_reports(),
            Needs::Windows => algorithm.has_windows(),
            Needs::Steps => algorithm.has_steps(),
        }
    }

    /// The names of the algorithms that take the key.
    pub fn algorithms(&self) -> impl Iterator<Item = &'static str> {
        Algorithm::all(&Parameters::LEAST).into_iter().filter(|known| self.takes(*known)).map(Algorithm::name)
    }
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

pub(super) const fn key(name: &'static str) -> Key {
    Key { name, only: None }
}

const fn key_of(name: &'static str, needs: Needs, reason: &'static str) -> Key {
    Key { name, only: Some(Only { needs, reason }) }
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
    keys: &[key("domain"), key("charging"), key("on_error"), key("allow_warnings"), key("descriptors")],
    ignored: &["name"],
};

pub(super) const DESCRIPTOR: Kind = Kind {
    name: "a descriptor",
    keys: &[
        key("key"),
        key("value"),
        key("values"),
        key("cidr"),
        key("regex"),
        key("rate_limit"),
        key("rate_limits"),
        key("shadow_mode"),
        key("quota_mode"),
        key("on_error"),
        key("share_threshold"),
        key("detailed_metric"),
        key("value_to_metric"),
        key("metadata"),
        key("allow_warnings"),
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
            Needs::Parameter("burst"),
            "a window admits all of its hits at once, only token_bucket, leaky_bucket and gcra have a burst",
        ),
        key_of("refill", Needs::Parameter("refill"), "only token_bucket can be refilled by interval"),
        key_of("precision", Needs::Parameter("precision"), "only sliding_window counts in sub-buckets"),
        key_of("anchor", Needs::Parameter("anchor"), "only the windows of fixed_window can begin with the first hit"),
        key_of("calendar", Needs::Parameter("anchor"), "only the windows of fixed_window can follow a calendar"),
        key_of("timezone", Needs::Parameter("anchor"), "only the windows of fixed_window can follow a calendar"),
        key("shadow"),
        key("from"),
        key("until"),
        key("drain"),
        key_of(
            "post_paid",
            Needs::Reports,
            "its log would grow with every report, without a bound, all other algorithms take it",
        ),
        key_of(
            "alert_at",
            Needs::Windows,
            "only fixed_window has windows with a beginning and an end, in which a share is crossed once",
        ),
        key_of(
            "lease",
            Needs::Steps,
            "only fixed_window and sliding_window count in steps, within which a hit can be charged ahead",
        ),
        key("unlimited"),
        key("name"),
        key("replaces"),
    ],
    ignored: &[],
};

pub(super) const REPLACED: Kind = Kind { name: "an entry of replaces", keys: &[key("name")], ignored: &[] };
