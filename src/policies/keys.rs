//! The keys of policy files: the tables that the reader uses and that docs/policies.md must match.
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
    /// Keys that have no effect, as in envoyproxy/ratelimit.
    pub ignored: &'static [&'static str],
}

/// A key of a mapping.
#[derive(Debug)]
pub struct Key {
    /// The key as it is written.
    pub name: &'static str,
    /// The algorithms that it is for; none if any algorithm may be beside it.
    pub only: Option<Only>,
}

/// Why a key is for some algorithms only.
#[derive(Debug)]
pub struct Only {
    /// What an algorithm must have to accept the key.
    pub needs: Needs,
    /// Why other algorithms refuse it, and which accept it: the end of a message.
    pub reason: &'static str,
}

/// What an algorithm must have to accept a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// This parameter.
    Parameter(&'static str),
    /// Support of `post_paid`.
    Reports,
    /// Charges that can be given back in part.
    Holds,
    /// Windows with a beginning and an end.
    Windows,
    /// Steps, within which it makes no difference when a hit is charged.
    Steps,
    /// Hits that it counts, and not requests in flight.
    Hits,
}

impl Only {
    /// Whether this algorithm accepts the key.
    fn takes(&self, algorithm: Algorithm) -> bool {
        match self.needs {
            Needs::Parameter(name) => algorithm.parameter_names().contains(&name),
            Needs::Reports => algorithm.takes_reports(),
            Needs::Holds => algorithm.takes_holds(),
            Needs::Windows => algorithm.has_windows(),
            Needs::Steps => algorithm.has_steps(),
            Needs::Hits => !algorithm.counts_permits(),
        }
    }

    /// The names of the algorithms that accept the key.
    pub fn algorithms(&self) -> impl Iterator<Item = &'static str> {
        Algorithm::all(&Parameters::LEAST).into_iter().filter(|known| self.takes(*known)).map(Algorithm::name)
    }
}

impl Kind {
    /// The index of a key in the table.
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

/// A kind of mapping whose keys may all be beside any algorithm, and that ignores no key.
macro_rules! kind {
    ($about:literal: $($name:ident)+) => {
        Kind { name: $about, keys: &[$($crate::keys::key(stringify!($name))),+], ignored: &[] }
    };
}
pub(super) use kind;

pub(super) const fn key(name: &'static str) -> Key {
    Key { name, only: None }
}

const fn key_of(name: &'static str, needs: Needs, reason: &'static str) -> Key {
    Key { name, only: Some(Only { needs, reason }) }
}

/// The keys of envoyproxy/ratelimit, which accepts each of them in every mapping and ignores it if it has no meaning there.
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
pub const KINDS: [&Kind; 5] = [&FILE, &DESCRIPTOR, &LIMIT, &REPLACED, &ROWS];

pub(super) const FILE: Kind =
    Kind { ignored: &["name"], ..kind! { "a policy file": domain charging on_error allow_warnings descriptors } };

pub(super) const DESCRIPTOR: Kind = kind! { "a descriptor":
    key value values cidr regex rate_limit rate_limits shadow_mode quota_mode on_error share_threshold
    detailed_metric value_to_metric metadata rows allow_warnings descriptors
};

pub(super) const ROWS: Kind = kind! { "rows": default };

/// What a limit on requests in flight has in place of a rate.
const IN_FLIGHT: &str =
    "requests in flight are no rate, write requests_per_unit and window, the longest time that one may take";

pub(super) const LIMIT: Kind = Kind {
    name: "a rate limit",
    keys: &[
        key_of("unit", Needs::Hits, IN_FLIGHT),
        key("requests_per_unit"),
        key("window"),
        key_of("rate", Needs::Hits, IN_FLIGHT),
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
        key_of("drain", Needs::Hits, "a denied request does not run, so it holds no permit"),
        key_of(
            "post_paid",
            Needs::Reports,
            "a log would grow with every report, without a bound, and a request holds its permit from its start, all other \
             algorithms take it",
        ),
        key_of(
            "hold",
            Needs::Holds,
            "only windows that count can give back a part of a charge, take sliding_window, sliding_window_counter or fixed_window \
             (concurrency holds a permit without it)",
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
        key("plans"),
        key("unlimited"),
        key("name"),
        key("replaces"),
    ],
    ignored: &[],
};

pub(super) const REPLACED: Kind = kind! { "an entry of replaces": name };
