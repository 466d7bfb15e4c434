//! Determines which states of the old limits the new limits keep.
//!
//! A state belongs to a domain, a descriptor and the shape of a limit [ky-1]. A new limit keeps the state of an old one if these
//! three are the same, even if their rules differ.

use weir_engine::pattern::Pattern;
use weir_engine::policy::Level;
use weir_engine::{Limit, Matcher, ParameterValue, Rule, StateKind};

use super::limits::{paired, plans, under};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Used hits count under the new limit.
    Kept,
    /// Used hits count under the new limit, and drain at the new rate.
    Rescaled,
    /// As kept or rescaled if limits per second have no store of their own. Else the limit begins empty, in the other store.
    /// [st-3] [rw-5]
    Moved,
    /// No limit uses them any more. They expire; until then, a change back restores them.
    Forgotten(Vec<Cause>),
    /// The limit is new, or its states have another key. It begins empty.
    Empty,
}

impl Fate {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Rescaled => "rescaled",
            Self::Moved => "moved",
            Self::Forgotten(_) => "forgotten",
            Self::Empty => "empty",
        }
    }
}

weir_engine::named! {
    /// The part of a state's key that differs.
    pub enum Cause {
        Domain = "domain",
        Key = "key",
        /// Values share a state on one side only, or under another name.
        Shared = "share_threshold",
        /// The descriptor meets no rule, or an unlimited one.
        NoRule = "no rule",
        NoLimit = "no such limit",
        Algorithm = "algorithm",
        Window = "window",
        /// Another parameter of the algorithm: `precision`, `anchor`, `calendar` or `refill`.
        Parameter = "parameter",
        TimeZone = "timezone",
        /// Hits on one side, requests on the other.
        Counts = "counts",
        /// Another name, which is in the keys of limits with the same shape.
        Name = "name",
    }
}

#[derive(Debug)]
pub struct StateChange<'p> {
    /// The old limit of the states, or a new limit without states.
    pub limit: &'p Limit,
    /// The states are those of descriptors whose row names this plan.
    pub plan: Option<&'p str>,
    pub fate: Fate,
}

/// The fate of the states of descriptors that met the old rule and meet the new one. A limit of 0 has no states.
pub(super) fn changes<'p>(old: Option<&'p Rule>, new: Option<&'p Rule>) -> Vec<StateChange<'p>> {
    let tag = match (old, new) {
        (Some(old), Some(new)) => tag_causes(old, new),
        _ => Vec::new(),
    };
    let moves = old.zip(new).is_some_and(|(old, new)| old.is_single() != new.is_single());
    let mut changes = Vec::new();
    let pairs = |plan: Option<&'p str>| paired(&under(old, plan), &under(new, plan));
    let of_default = pairs(None);
    let mut add = |plan: Option<&'p str>, (before, after): (Option<&'p Limit>, Option<&'p Limit>)| {
        if let Some(limit) = before.filter(|limit| limit.requests() > 0) {
            let fate = match after {
                Some(after) => match fate(limit, after, &tag) {
                    Fate::Kept | Fate::Rescaled if moves && limit.is_per_second() => Fate::Moved,
                    fate => fate,
                },
                None if under(new, None).is_empty() => Fate::Forgotten(vec![Cause::NoRule]),
                None => Fate::Forgotten(vec![Cause::NoLimit]),
            };
            changes.push(StateChange { limit, plan, fate });
        }
        let finds =
            |before: &Limit, after: &Limit| before.requests() > 0 && before.id() == after.id() && tag.is_empty();
        if let Some(limit) =
            after.filter(|after| after.requests() > 0 && !before.is_some_and(|before| finds(before, after)))
        {
            changes.push(StateChange { limit, plan, fate: Fate::Empty });
        }
    };
    of_default.iter().for_each(|pair| add(None, *pair));
    for plan in plans(old, new) {
        // A plan whose limits are the same on both sides needs no line: its states have the fate of those of the default plan.
        let of_plan = pairs(Some(plan)).into_iter();
        of_plan.filter(|pair| pair.0 != pair.1 && !of_default.contains(pair)).for_each(|pair| add(Some(plan), pair));
    }
    changes
}

fn fate(old: &Limit, new: &Limit, tag: &[Cause]) -> Fate {
    if tag.is_empty() && old.id() == new.id() {
        // The debt of a pace is a time, so it is another number of hits at another rate.
        let is_time = match new.kind() {
            StateKind::Pacing(_) => true,
            StateKind::FixedWindow(_)
            | StateKind::AnchoredWindow(_)
            | StateKind::SlidingWindowCounter(_)
            | StateKind::TokenBucket(_)
            | StateKind::SlidingWindow(_)
            | StateKind::SlidingWindowLog(_) => false,
        };
        return if is_time && old.requests() != new.requests() { Fate::Rescaled } else { Fate::Kept };
    }
    let mut causes = tag.to_vec();
    causes.extend(id_causes(old, new));
    Fate::Forgotten(causes)
}

/// Which parts of the id of a limit differ. [ky-4]
fn id_causes(old: &Limit, new: &Limit) -> Vec<Cause> {
    let is_other_algorithm = old.algorithm().name() != new.algorithm().name();
    // The burst is no part of a key.
    let shaping = |limit: &Limit| -> Vec<ParameterValue> {
        let parameters = limit.algorithm().parameters();
        parameters.iter().filter(|parameter| parameter.name != "burst").map(|parameter| parameter.value).collect()
    };
    let causes = [
        (Cause::Algorithm, is_other_algorithm),
        (Cause::Window, old.window() != new.window()),
        (Cause::Parameter, !is_other_algorithm && shaping(old) != shaping(new)),
        (Cause::TimeZone, old.zone() != new.zone()),
        (Cause::Counts, old.counts_requests() != new.counts_requests()),
    ];
    let mut found: Vec<Cause> = causes.into_iter().filter(|(_, is_other)| *is_other).map(|(cause, _)| cause).collect();
    if found.is_empty() && old.id() != new.id() {
        found.push(Cause::Name);
    }
    found
}

/// Which parts of the tag of a descriptor's keys differ. [ky-1] [ky-2]
fn tag_causes(old: &Rule, new: &Rule) -> Vec<Cause> {
    let mut causes = Vec::new();
    if old.domain != new.domain {
        causes.push(Cause::Domain);
    }
    let levels = || old.levels.iter().zip(&new.levels);
    let is_pattern = |level: &Level| level.key.contains('*');
    // In a compatible dialect a key with a star is a pattern, and the tag has the key of the request.
    if levels().any(|(old, new)| old.key != new.key && !is_pattern(old) && !is_pattern(new)) {
        causes.push(Cause::Key);
    }
    if levels().any(|(old, new)| shared_by(old) != shared_by(new)) {
        causes.push(Cause::Shared);
    }
    causes
}

/// The name of the shared state of a level's values in a key, and whether it is a wildcard.
fn shared_by(level: &Level) -> Option<(String, bool)> {
    if !level.share_threshold {
        return None;
    }
    let matcher = level.value.as_ref();
    if level.key.contains('*') && matcher.is_none_or(|matcher| matches!(matcher, Matcher::Text(_))) {
        let value = matcher.map(|matcher| format!("_{}", matcher.name())).unwrap_or_default();
        return Some((format!("{}{value}", level.key), true));
    }
    let matcher = matcher.filter(|matcher| matcher.is_of_many())?;
    let name = matcher.name().into_owned();
    let is_wildcard = matches!(matcher, Matcher::Text(_)) && Pattern::new(&name).is_some();
    Some((name, is_wildcard))
}
