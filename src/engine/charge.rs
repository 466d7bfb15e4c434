//! A charge: one limit's part of a decision, with the hits that it consumes, refunds or reports. [dc-1]

use super::descriptor::Hits;
use super::limit::Limit;
use super::time::Bounds;

/// The most charges of one decision: 64 descriptors with 8 limits each. [dc-1]
pub const CHARGES_MAX: usize = 512;

/// What a charge does to the state. [dc-1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Consumes this many hits if they fit; 1 or more.
    Consume(Hits),
    /// Charges nothing, and returns the verdict for 1 hit.
    Peek,
    /// Gives this many hits back. A refund is never over.
    Refund(Hits),
    /// Charges this many hits with any verdict, because the usage has already happened.
    Report(Hits),
}

impl Operation {
    /// The hits that the verdict and the wait are for: 1 for a peek and a report, 0 for a refund. [dc-6] [dc-9]
    pub const fn asked(self) -> Hits {
        match self {
            Self::Consume(hits) => hits,
            Self::Peek | Self::Report(_) => 1,
            Self::Refund(_) => 0,
        }
    }
}

crate::named! {
    /// How a limit affects the decision when it is over. [dc-3]
    #[derive(Hash)]
    pub enum Role {
        Enforced = "enforced",
        /// It never denies.
        Shadow = "shadow",
        /// It denies if all limits of this role are over.
        Quota = "quota",
    }
}

impl Role {
    /// The role of a rule with these two settings. A rule in shadow mode denies nothing, even if it is a quota.
    pub const fn of(shadow_mode: bool, quota_mode: bool) -> Self {
        match (shadow_mode, quota_mode) {
            (true, _) => Self::Shadow,
            (false, true) => Self::Quota,
            (false, false) => Self::Enforced,
        }
    }
}

crate::named! {
    /// How the limits of one decision depend on each other. [dc-4]
    pub enum Mode {
        /// All or nothing: a denied decision charges no limit.
        Atomic = "atomic",
        /// Each limit by itself; fixed windows count denied hits too, as envoyproxy/ratelimit does.
        Independent = "independent",
    }
}

/// One limit's part of a decision.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// The key of the state; see [`super::key`].
    pub key: &'a str,
    pub limit: &'a Limit,
    pub operation: Operation,
    /// The descriptor of the request, by position.
    pub group: u16,
    pub role: Role,
    /// The id of the rule whose portion of a bounded store holds the state.
    pub owner: u32,
    /// The boundaries of a calendar window; None for every other limit.
    pub bounds: Option<Bounds>,
}

impl<'a> Charge<'a> {
    /// A charge that is the only one of its decision.
    pub const fn alone(key: &'a str, limit: &'a Limit, operation: Operation) -> Self {
        Self { key, limit, operation, group: 0, role: Role::Enforced, owner: 0, bounds: None }
    }
}
