//! A request as the limiter takes it, and its answer.
//!
//! Not here: how they are read from and written to the wire (rls).

use std::sync::Arc;

use smallvec::SmallVec;
use weir_engine::metadata;
use weir_engine::{Entry, Hits, Limit, Micros, Operation, Unit};

use super::holds::{HeldCharge, Settle};

/// One request, borrowed from its message; already within the bounds on input.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The domain, not empty.
    pub domain: &'a str,
    /// The descriptors, at least one.
    pub descriptors: SmallVec<[DescriptorRequest<'a>; 2]>,
    /// What some of them settle, if any do. Their operations are what was used: they consume it, or peek.
    pub settle: Option<Box<Settle>>,
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct DescriptorRequest<'a> {
    /// Keys and values, in the request's order. May be empty, which matches nothing.
    pub entries: &'a [Entry<'a>],
    /// What to charge.
    pub operation: Operation,
    /// A limit in the request, in place of what the rules say. [mt-6]
    pub limit: Option<(u32, Unit)>,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may not pass.
    pub denied: bool,
    /// How long the request has to be held until its turn, in microseconds: the longest wait of all limits in which it
    /// took a place. 0 if it may not pass, and where no limit is a `leaky_bucket`.
    pub wait: Micros,
    /// When a denied request would be admitted if no other came, in microseconds. None if it is not denied, where no
    /// wait helps, and where no store gave a wait. [dt-2]
    pub retry_after: Option<Micros>,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
    /// What the rules give along whose limits were charged and passed, in the order of the descriptors. Empty unless
    /// [`Modes::metadata`](super::Modes::metadata) asks for it.
    pub metadata: Vec<Arc<metadata::Fields>>,
    /// Every limit that could deny the request, in the order of the descriptors and of their rules. Empty unless
    /// [`Modes::limits`](super::Modes::limits) asks for it.
    pub limits: Vec<ListedLimit>,
    /// What the caller settles later, at most [`HOLDS_MAX`](super::HOLDS_MAX); none if the request may not pass. [hd-4]
    pub holds: Vec<HeldCharge>,
}

/// One limit of a request, for its client. [dt-3]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLimit {
    /// The limit's name. Without one the path of its rule, and behind a colon the limit's id where the rule has several;
    /// `(request)` for a limit in the request.
    pub name: Box<str>,
    /// Hits per window.
    pub requests: u32,
    /// The window in seconds. None if that is not a whole number, and for calendar windows, whose lengths differ.
    pub window_s: Option<u64>,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
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
    /// The limit that the rest speaks of; none if nothing matched.
    pub limit: Option<LimitInfo>,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
    /// Over: the wait until this request would fit. Within: the time until the state is empty. In microseconds.
    pub until_reset: Option<Micros>,
    /// What the wire has no field for; none if nothing matched.
    pub detail: Option<Detail>,
}

/// What is known beyond a status, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The name of the algorithm of the limit that the status speaks of.
    pub algorithm: &'static str,
    /// When the same hits would fit all limits of the descriptor again, all else equal: 0 if they would at once,
    /// nothing if they never will.
    pub fits_after: Option<FitsAfter>,
    /// The time until the state of the limit that the status speaks of equals an empty one.
    pub reset_after: Micros,
    /// The longest wait until an admitted request's turn, of all limits of the descriptor; 0 for all but `leaky_bucket`.
    pub wait: Micros,
    /// Whether the descriptor's hits were charged to one of its limits: true for every report to a post-paid limit.
    pub charged: bool,
}

/// A wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitsAfter {
    /// Its length, in microseconds.
    pub us: Micros,
    /// It can be shorter: a permit can come back before. [cc-4]
    pub is_bound: bool,
}

/// A limit as callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitInfo {
    /// Hits per window.
    pub requests: u32,
    /// The window's unit, where it is exactly one.
    pub unit: Option<Unit>,
    /// The limit's name; the window's length where it has neither name nor unit.
    pub name: Option<Box<str>>,
}

impl LimitInfo {
    pub(super) fn of(limit: &Limit) -> Self {
        let unit = limit.window().unit();
        let name = match &limit.name {
            Some(name) => Some(name.clone()),
            None if unit.is_none() => Some(limit.window().to_string().into()),
            None => None,
        };
        Self { requests: limit.requests(), unit, name }
    }
}
