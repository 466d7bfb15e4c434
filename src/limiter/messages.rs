//! A request as the limiter receives it, and its answer.
//!
//! Not here: reading them from the wire and writing them to it (rls).

use std::sync::Arc;

use smallvec::SmallVec;
use weir_engine::metadata;
use weir_engine::weigh::Unweighable;
use weir_engine::{Count, Denomination, Entry, Group, Hits, Limit, Micros, Operation, Window};

use super::holds::{HeldCharge, Settle};

/// One request, borrowed from its message, within the bounds on input.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The domain, not empty.
    pub domain: &'a str,
    /// The name of the caller, if callers have rights.
    pub caller: Option<&'a str>,
    /// The descriptors, at least one.
    pub descriptors: SmallVec<[DescriptorRequest<'a>; 2]>,
    /// What its descriptors settle, if any do. Their operations are the actual usage: they consume it, or peek if it is
    /// 0.
    pub settle: Option<Box<Settle>>,
}

impl Query<'_> {
    /// Its descriptors, each with its group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (Group, &DescriptorRequest<'_>)> {
        Group::all(self.descriptors.len()).zip(&self.descriptors)
    }

    pub(crate) fn descriptor(&self, group: Group) -> &DescriptorRequest<'_> {
        &self.descriptors[group.index()]
    }

    /// Whether this descriptor settles.
    pub(crate) fn settles(&self, group: Group) -> bool {
        self.settle.as_ref().is_some_and(|settle| settle.has(group))
    }
}

#[derive(Clone, Debug)]
pub struct DescriptorRequest<'a> {
    /// Keys and values, in the request's order. May be empty; then it matches nothing.
    pub entries: &'a [Entry<'a>],
    pub operation: Operation,
    /// A limit of the request, which replaces the limits of the rules. [mt-6]
    pub limit: Option<(u32, Window)>,
}

/// A descriptor of a request, by its index, whose hits cannot be weighed. Nothing is charged. [mt-15]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("descriptors[{descriptor}]: {why}")]
pub struct Unweighed {
    pub descriptor: usize,
    pub why: Unweighable,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub denied: bool,
    /// How long the caller must delay the request until its turn, in microseconds: the longest wait of its limits. 0 if
    /// it is denied, and if no limit is a `leaky_bucket`.
    pub wait: Micros,
    /// When a denied request would be admitted without other requests, in microseconds. None if it is not denied, if no
    /// wait helps, and if no store gave a wait. [dt-2]
    pub retry_after: Option<Micros>,
    /// One status for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
    /// The metadata of the rules whose limits were charged and passed, in the order of the descriptors. Empty unless
    /// [`Modes::metadata`](super::Modes::metadata) is set.
    pub metadata: Vec<Arc<metadata::Fields>>,
    /// Every limit that could deny the request, in the order of the descriptors and of their rules. Empty unless
    /// [`Modes::limits`](super::Modes::limits) is set.
    pub limits: Vec<ListedLimit>,
    /// The holds that the caller settles later, at most [`HOLDS_MAX`](super::HOLDS_MAX). Empty if the request is
    /// denied. [hd-4]
    pub holds: Vec<HeldCharge>,
}

/// One limit of a request, for its client. [dt-3]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLimit {
    /// The limit's name. Without a name: the path of its rule, followed by a colon and the limit's id if the rule has
    /// several. `(request)` for a limit of the request.
    pub name: Box<str>,
    /// Hits per window, or requests in flight.
    pub requests: Count,
    /// The unit in which people read the hits. [lm-9]
    pub amount: Option<Arc<Denomination>>,
    /// Whether the limit counts requests in flight. Then it has no window, and its reset is an upper bound. [cc-4]
    pub in_flight: bool,
    /// The window in seconds. None if it is not a whole number, for calendar windows, whose lengths differ, and for
    /// requests in flight.
    pub window_s: Option<u64>,
    /// The most hits that would be admitted now.
    pub remaining: Count,
    /// As in a [`Status`], in microseconds.
    pub until_reset: Micros,
    /// Whether the request does not fit.
    pub over: bool,
}

/// The status of one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether this descriptor is over a limit that denies.
    pub over: bool,
    /// Whether that limit is a quota, which alone does not deny the request. [dc-3]
    pub is_quota: bool,
    /// The limit that the rest describes. None if nothing matched.
    pub limit: Option<LimitInfo>,
    /// The most hits that would be admitted now.
    pub remaining: Count,
    /// Over: the wait until this request would fit. Within: the time until the state is empty. In microseconds.
    pub until_reset: Option<Micros>,
    /// Details without a field on the wire. None if nothing matched.
    pub detail: Option<Detail>,
}

/// Details beyond a status. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The name of the algorithm of the status' limit.
    pub algorithm: &'static str,
    /// When the same hits would fit all limits of the descriptor again, without other requests: 0 if they fit at once,
    /// None if they never fit.
    pub fits_after: Option<FitsAfter>,
    /// The time until the state of the status' limit equals an empty one.
    pub reset_after: Micros,
    /// The longest wait until an admitted request's turn, over all limits of the descriptor; 0 for all but
    /// `leaky_bucket`.
    pub wait: Micros,
    /// Whether the descriptor's hits were charged to one of its limits. Always true for a report to a post-paid limit.
    pub charged: bool,
    /// The factor of the descriptor's hits, if its rule weighs them. [mt-12]
    pub factor: Option<Hits>,
}

/// A wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitsAfter {
    /// Its length, in microseconds.
    pub us: Micros,
    /// Whether the wait is an upper bound: a permit can be released earlier. [cc-4]
    pub is_bound: bool,
}

/// A limit as callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitInfo {
    /// Hits per window, or requests in flight.
    pub requests: Count,
    /// The window, or the period of the rate. None for requests in flight, which have no rate.
    pub window: Option<Window>,
    pub name: Option<Box<str>>,
    /// The unit in which people read the hits. [lm-9]
    pub amount: Option<Arc<Denomination>>,
}

impl LimitInfo {
    pub(super) fn of(limit: &Limit) -> Self {
        let window = (!limit.algorithm().counts_permits()).then(|| limit.window());
        let (name, amount) = (limit.name.clone(), limit.amount.clone());
        Self { requests: limit.requests(), window, name, amount }
    }
}
