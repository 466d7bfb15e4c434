//! The keys of policy files: the tables that the reader uses. docs/policies.md must match them.
//!
//! Not here: what the values mean (reader.rs, limit.rs).

use weir_engine::Algorithm;
use weir_engine::algorithm::parameters::Parameters;

#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    pub keys: &'static [Key],
    /// Keys that have no effect, as in envoyproxy/ratelimit.
    pub ignored: &'static [&'static str],
}

#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    /// The algorithms that accept the key. None: all of them.
    pub only: Option<Only>,
}

/// Why only some algorithms accept a key.
#[derive(Debug)]
pub struct Only {
    pub needs: Needs,
    /// Why other algorithms refuse the key, and which ones accept it: the end of a message.
    pub reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Parameter(&'static str),
    /// Support of `post_paid`.
    Reports,
    /// Charges that can be given back in part.
    Holds,
    /// Windows with a beginning and an end.
    Windows,
    /// Steps: within one, the time of a hit has no effect.
    Steps,
    /// Counts hits, not requests in flight.
    Hits,
}

impl Only {
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

    pub fn algorithms(&self) -> impl Iterator<Item = &'static str> {
        Algorithm::all(&Parameters::LEAST).into_iter().filter(|known| self.takes(*known)).map(Algorithm::name)
    }
}

impl Kind {
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    /// Whether the key has an effect here.
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

/// The keys of envoyproxy/ratelimit. It accepts each of them in every mapping, and ignores keys without an effect
/// there.
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

/// A limit on requests in flight has this in place of a rate.
const IN_FLIGHT: &str =
    "requests in flight have no rate, write requests_per_unit and window, the longest time that one may take";

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
            "a log would grow without a bound, and a permit is consumed before the request runs, all other \
             algorithms support it",
        ),
        key_of(
            "hold",
            Needs::Holds,
            "only counting windows can give back part of a charge, use sliding_window, sliding_window_counter or fixed_window \
             (concurrency always holds permits)",
        ),
        key_of(
            "alert_at",
            Needs::Windows,
            "only fixed_window has separate windows, each of which can cross a share once",
        ),
        key_of(
            "lease",
            Needs::Steps,
            "only fixed_window and sliding_window count in steps, so only they can charge hits ahead",
        ),
        key("plans"),
        key("unlimited"),
        key("name"),
        key("replaces"),
    ],
    ignored: &[],
};

pub(super) const REPLACED: Kind = kind! { "an entry of replaces": name };
