//! A charge: one limit's part of a decision, with the hits that it consumes, refunds or reports. [dc-1]

use std::num::NonZeroU64;

use super::algorithm::StateKind;
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
    /// Gives this many hits back, or none. A refund is never over.
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

    pub const fn is_refund(self) -> bool {
        matches!(self, Self::Refund(_))
    }

    /// Whether it adds hits to the state.
    pub const fn adds(self) -> bool {
        matches!(self, Self::Consume(_) | Self::Report(_))
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
    pub role: Role,
    /// The id of the rule whose portion of a bounded store holds the state.
    pub owner: u32,
    /// The boundaries of a calendar window; None for every other limit.
    pub bounds: Option<Bounds>,
    pub origin: Origin,
}

/// A descriptor of a request, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(u8);

impl Group {
    /// The groups of a request with this many descriptors, at most 64.
    pub fn all(descriptors: usize) -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self).take(descriptors)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// A set of groups has one bit for each.
    pub const fn bit(self) -> u64 {
        1 << self.0
    }
}

/// Where a charge comes from. Its caller counts and answers by it. No decision depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The descriptor of the request.
    pub group: Group,
    /// The limit's position in its rule.
    pub position: u8,
    /// The role by the policies, and by the settings except `shadow_mode`. In a settle: shadow.
    pub role: Role,
    /// The role that people see: by the policies and all settings. Settles and open quotas do not change it.
    pub shown_role: Role,
    /// Whether it is the only limit of its rule, or the limit of the request, and the rule of the descriptor has no rows.
    pub is_single: bool,
    /// Whether a row sets the limits of the descriptor. [rw-2]
    pub has_row: bool,
    /// Whether its limit does not apply now: a settle gives back on its key, and does nothing else. [te-4]
    pub is_outside_term: bool,
    /// Whether the cache of denials had a denial of its key. [dn-1]
    pub is_known: bool,
    /// Whether the store of this process decided it, because no other store answered. [st-4]
    pub is_local: bool,
    /// How long the limit applies from the reading of weir's clock on, at least 1. None if it never ends. [te-3]
    pub ends_after: Option<NonZeroU64>,
}

impl Origin {
    /// Of a charge that is made from no request.
    pub const NONE: Self = Self {
        group: Group(0),
        position: 0,
        role: Role::Enforced,
        shown_role: Role::Enforced,
        is_single: false,
        has_row: false,
        is_outside_term: false,
        is_known: false,
        is_local: false,
        ends_after: None,
    };
}

impl<'a> Charge<'a> {
    /// A charge that is the only one of its decision.
    pub const fn alone(key: &'a str, limit: &'a Limit, operation: Operation) -> Self {
        Self { key, limit, operation, role: Role::Enforced, owner: 0, bounds: None, origin: Origin::NONE }
    }
    /// What the charge counts with: its limit, within the boundaries of a calendar's windows.
    pub fn kind(&self) -> StateKind {
        self.limit.kind().within(self.bounds)
    }
}
