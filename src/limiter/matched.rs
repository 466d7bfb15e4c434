//! The charges of a request before a store is called, and the answer to the request after that.
//!
//! Not here: calls to one store (stores.rs), several stores, and failed stores (split.rs).

use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;

use smallvec::{Array, SmallVec};
use weir_engine::decision::deny;
use weir_engine::observer::{LimitOf, Trace};
use weir_engine::plans::PlanLimits;
use weir_engine::policy::{Domain, Match};
use weir_engine::rows::ROW_ID;
use weir_engine::{
    Charge, Decision, Hits, Limit, Micros, OnError, Operation, Outcome, Overrides, Role, RowContent, Rule, Verdict, key,
};
use weir_store::{Clock, RowVersion};

use super::policies::InForce;
use super::rows::known::RowSource;
use super::{Answer, Detail, FitsAfter, LimitInfo, ListedLimit, Modes, Query, Status};

/// The initial capacity of the text with all keys: enough for a few charges.
const KEYS_BYTES: usize = 256;
/// The owner of states of limits of the request. No rule has this id.
const REQUEST_OWNER: u32 = u32::MAX;
/// The name, for clients, of a limit of the request.
const REQUEST_NAME: &str = "(request)";

/// The charges of a request, before the store is called.
pub(super) struct Matched<'p> {
    pub(super) domain: &'p Domain,
    pub(super) modes: Modes,
    has_terms: bool,
    /// Whether any limit is a hold that the request opens. Then post-paid limits wait for the settle. [hd-3]
    opens: bool,
    pub(super) has_leases: bool,
    /// Whether a quota of the request cannot be over, so the other quotas do not deny it. [dc-3]
    has_open_quota: bool,
    /// The match of each descriptor. Without a rule if the descriptor has a limit of the request, or if nothing
    /// matches.
    met: SmallVec<[Match<'p>; 4]>,
    /// The descriptors whose limits are not those of a rule. Usually empty.
    other_limits: Vec<(usize, OtherLimits<'p>)>,
    pub(super) origins: SmallVec<[Origin; 4]>,
    /// The rows that determine limits, in the order of the descriptors. [rw-2]
    pub(super) rows: Vec<MatchedRow>,
    /// How many descriptors matched no rule and have no limit of the request.
    pub(super) unmatched: u32,
    /// The text of all keys, one after the other.
    keys: String,
}

/// The limits of a descriptor that differ from its rule's as written.
enum OtherLimits<'p> {
    /// The limit of the request. [mt-6]
    Request(Limit),
    /// The limits of an override. [ov-1]
    Override(&'p [Limit]),
    /// The limits of the descriptor's row. [rw-1]
    Row(Cow<'p, PlanLimits>),
}

impl OtherLimits<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Request(_) => 1,
            Self::Override(limits) => limits.len(),
            Self::Row(limits) => limits.len(),
        }
    }

    /// The limit at this position. None if the descriptor's plan does not have it.
    fn at(&self, position: usize) -> Option<&Limit> {
        match self {
            Self::Request(limit) => Some(limit),
            Self::Override(limits) => Some(&limits[position]),
            Self::Row(limits) => limits[position].as_ref(),
        }
    }
}

pub(super) struct MatchedRow {
    pub(super) group: u16,
    key: (usize, usize),
    /// The version that the limits are from. None if it is unknown whether there is a row.
    version: Option<u64>,
    /// The content of the row, for people. None for the default plan.
    content: Option<Arc<RowContent>>,
    /// Whether the content does not fit the rule.
    pub(super) is_unfit: bool,
    /// Whether no limit applies to the descriptor.
    is_unlimited: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Origin {
    group: u16,
    /// The limit's position in its rule.
    limit: usize,
    key: (usize, usize),
    /// Whether it is the only limit of its rule, or the limit of the request.
    pub(super) is_single: bool,
    /// Whether the store of this process decided it, because no other store answered. [st-4]
    pub(super) is_local: bool,
    /// The role by the policies and settings, except `shadow_mode`.
    role: Role,
}

impl Origin {
    /// Its descriptor.
    pub(super) fn group(&self) -> usize {
        usize::from(self.group)
    }
}

/// The decided charges of a request, their origins, and their outcomes, each in the same order. A descriptor whose store
/// did not answer has no charges here.
#[derive(Default)]
pub(super) struct Decided<'a> {
    pub(super) charges: Selected<'a, [Charge<'a>; 2]>,
    pub(super) origins: Selected<'a, [Origin; 2]>,
    pub(super) decision: Decision,
    /// The descriptors that are denied because their store did not answer: one bit each.
    pub(super) denied_groups: u64,
    /// Whether some of the charges were made and then taken back.
    pub(super) is_taken_back: bool,
    /// The keys whose denial was known before a store was called.
    pub(super) known: SmallVec<[&'a str; 2]>,
    /// Whether leases admitted the request.
    pub(super) is_leased: bool,
}

/// All items of a request's list, or some of them.
pub(super) enum Selected<'a, A: Array> {
    All(&'a [A::Item]),
    Some(SmallVec<A>),
}

impl<A: Array> Default for Selected<'_, A> {
    fn default() -> Self {
        Self::All(&[])
    }
}

impl<A: Array> Deref for Selected<'_, A> {
    type Target = [A::Item];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::All(items) => items,
            Self::Some(items) => items,
        }
    }
}

impl<'a> Decided<'a> {
    /// The charges that have an outcome.
    pub(super) fn of_some(
        charges: &[Charge<'a>],
        origins: &[Origin],
        outcomes: impl IntoIterator<Item = Option<Outcome>>,
    ) -> Self {
        let mut decision = Decision::default();
        let (mut some_charges, mut some_origins) = (SmallVec::new(), SmallVec::new());
        for ((charge, origin), outcome) in charges.iter().zip(origins).zip(outcomes) {
            if let Some(outcome) = outcome {
                some_charges.push(charge.clone());
                some_origins.push(*origin);
                decision.outcomes.push(outcome);
            }
        }
        let (charges, origins) = (Selected::Some(some_charges), Selected::Some(some_origins));
        Self { charges, origins, decision, ..Self::default() }
    }

    #[cold]
    fn retain_applying(&mut self) {
        let outcomes = std::mem::take(&mut self.decision.outcomes);
        let applying = self.charges.iter().zip(outcomes);
        let outcomes = applying.map(|(charge, outcome)| charge.limit.applies_at(outcome.now).then_some(outcome));
        let kept = Self::of_some(&self.charges, &self.origins, outcomes);
        (self.charges, self.origins, self.decision.outcomes) = (kept.charges, kept.origins, kept.decision.outcomes);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Charge<'a>, &Origin, &Outcome)> {
        let charges = self.charges.iter().zip(&*self.origins).zip(&self.decision.outcomes);
        charges.map(|((charge, origin), outcome)| (charge, origin, outcome))
    }
}

impl<'p> Matched<'p> {
    pub(super) fn of(
        in_force: &'p InForce,
        domain: &'p Domain,
        modes: Modes,
        query: &Query<'_>,
        clock: &dyn Clock,
        rows: Option<&RowSource<'_>>,
    ) -> Self {
        let policies = &*in_force.policies;
        let overrides = in_force.overrides.as_deref();
        let mut matched = Self {
            domain,
            modes,
            has_terms: false,
            opens: false,
            has_leases: false,
            has_open_quota: false,
            met: SmallVec::new(),
            other_limits: Vec::new(),
            origins: SmallVec::new(),
            rows: Vec::new(),
            unmatched: 0,
            keys: String::with_capacity(KEYS_BYTES),
        };
        for (group, asked) in query.descriptors.iter().enumerate() {
            matched.met.push(match asked.limit {
                Some((requests, unit)) => {
                    matched.other_limits.push((group, OtherLimits::Request(Limit::per_unit(requests, unit))));
                    Match { rule: None, shared: Vec::new() }
                }
                None => {
                    let met = policies.find(domain, asked.entries);
                    matched.unmatched += u32::from(met.rule.is_none());
                    met
                }
            });
        }
        let replaced = replaced_names(&matched.met);
        for group in 0..query.descriptors.len() {
            let is_charged = matched.add_group(group, query, &replaced, overrides, clock, rows);
            // A descriptor without a limit is a quota that is never over, but only if the setting makes everything a
            // quota.
            matched.has_open_quota |= match matched.met[group].rule {
                Some(rule) if is_charged => (rule.is_quota || modes.quota) && rule.role == Role::Shadow,
                // A quota without a limit is never over.
                Some(rule) if matched.is_unlimited_by_row(group) => rule.is_quota || modes.quota,
                _ => modes.quota && !is_charged,
            };
        }
        matched
    }

    /// Adds the limits of one descriptor. Returns whether it has a limit that is not on trial.
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 descriptors")]
    fn add_group(
        &mut self,
        group: usize,
        query: &Query<'_>,
        replaced: &[&str],
        overrides: Option<&'p Overrides>,
        clock: &dyn Clock,
        rows: Option<&RowSource<'_>>,
    ) -> bool {
        let mut tag = overrides.and_then(|overrides| self.apply(overrides, group, query, clock));
        // An override has priority over a row. [rw-3]
        if let Some(rows) = rows.filter(|_| other_limits(&self.other_limits, group).is_none()) {
            tag = self.apply_row(rows, group, query, clock, tag);
        }
        let met = &self.met[group];
        let other = other_limits(&self.other_limits, group);
        let count = match (met.rule, other) {
            (_, Some(limits)) => limits.len(),
            (Some(rule), None) => rule.limits.len(),
            (None, None) => return false,
        };
        let is_single = count == 1;
        let settles = query.settle.as_ref().is_some_and(|settle| settle.has(group));
        let role = match met.rule.map_or(Role::Enforced, |rule| rule.role) {
            // A settle never denies. [hd-5]
            _ if settles => Role::Shadow,
            Role::Enforced if self.modes.quota => Role::Quota,
            role => role,
        };
        let mut is_charged = false;
        for i in 0..count {
            let Some(limit) = limit_at(met.rule, other, i) else { continue };
            if is_replaced(limit.name.as_deref(), replaced) {
                continue;
            }
            let start = self.keys.len();
            match tag.clone() {
                None => {
                    let entries = query.descriptors[group].entries.iter().copied();
                    key::write_tag(&mut self.keys, &self.domain.name, entries, &met.shared);
                    tag = Some(start..self.keys.len());
                }
                Some(tag) => self.keys.extend_from_within(tag),
            }
            self.keys.push_str(limit.id());
            let key = (start, self.keys.len());
            let role = if limit.shadow { Role::Shadow } else { role };
            is_charged |= !limit.shadow;
            self.has_terms |= limit.term.is_some();
            self.has_leases |= limit.lease.is_some();
            self.opens |= limit.hold && !settles;
            let group = group as u16;
            self.origins.push(Origin { group, limit: i, key, is_single, is_local: false, role });
        }
        is_charged
    }

    /// Uses the limits of an override in place of the rule's, if the descriptor has one. Returns the position of the
    /// tag of its keys, if it was written. [ov-1]
    fn apply(
        &mut self,
        overrides: &'p Overrides,
        group: usize,
        query: &Query<'_>,
        clock: &dyn Clock,
    ) -> Option<Range<usize>> {
        let Match { rule, shared } = &self.met[group];
        if !rule.is_some_and(|rule| overrides.concern(rule)) {
            return None;
        }
        let start = self.keys.len();
        let entries = query.descriptors[group].entries.iter().copied();
        key::write_tag(&mut self.keys, &self.domain.name, entries, shared);
        let tag = start..self.keys.len();
        let limits = overrides.limits(&self.keys[tag.clone()], || clock.now());
        self.other_limits.extend(limits.map(|limits| (group, OtherLimits::Override(limits))));
        Some(tag)
    }

    /// Uses the limits of the descriptor's row, if its rule has rows. Returns the position of the tag of its keys, if
    /// it was written. [rw-1]
    #[cold]
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 descriptors")]
    fn apply_row(
        &mut self,
        rows: &RowSource<'_>,
        group: usize,
        query: &Query<'_>,
        clock: &dyn Clock,
        tag: Option<Range<usize>>,
    ) -> Option<Range<usize>> {
        let Match { rule, shared } = &self.met[group];
        let Some(rule) = rule.filter(|rule| rule.rows.is_some()) else { return tag };
        let start = self.keys.len();
        match tag {
            Some(tag) => self.keys.extend_from_within(tag),
            None => {
                let entries = query.descriptors[group].entries.iter().copied();
                key::write_tag(&mut self.keys, &self.domain.name, entries, shared);
            }
        }
        let end_of_tag = self.keys.len();
        self.keys.push_str(ROW_ID);
        let key = (start, self.keys.len());
        let text = &self.keys[key.0..key.1];
        let known = rows.find(text, || clock.now());
        let version = known.as_ref().map(|known| known.version);
        let known = known.unwrap_or_default();
        let (limits, is_fit) = rows.limits(rule, &known);
        let is_unlimited = limits.iter().all(Option::is_none);
        let group_number = group as u16;
        self.rows.push(MatchedRow {
            group: group_number,
            key,
            version,
            content: known.content,
            is_unfit: !is_fit,
            is_unlimited,
        });
        self.other_limits.push((group, OtherLimits::Row(limits)));
        Some(start..end_of_tag)
    }

    fn is_unlimited_by_row(&self, group: usize) -> bool {
        self.rows.iter().any(|row| usize::from(row.group) == group && row.is_unlimited)
    }

    pub(super) fn row_content(&self, group: usize) -> Option<&Arc<RowContent>> {
        self.rows.iter().find(|row| usize::from(row.group) == group).and_then(|row| row.content.as_ref())
    }

    /// Whether the limits of a descriptor depend on a row.
    pub(super) fn has_row(&self, group: u16) -> bool {
        self.rows.iter().any(|row| row.group == group)
    }

    pub(super) fn unknown_rows(&self) -> impl Iterator<Item = &MatchedRow> {
        self.rows.iter().filter(|row| row.version.is_none())
    }

    fn row_key(&self, row: &MatchedRow) -> &str {
        &self.keys[row.key.0..row.key.1]
    }

    /// The version of a row, for the store.
    pub(super) fn row_version(&self, row: &MatchedRow) -> RowVersion<'_> {
        RowVersion { key: self.row_key(row), version: row.version.unwrap_or(0) }
    }

    fn limit(&self, origin: &Origin) -> &Limit {
        let group = usize::from(origin.group);
        let other = other_limits(&self.other_limits, group);
        limit_at(self.met[group].rule, other, origin.limit)
            .unwrap_or_else(|| unreachable!("a descriptor without limits is not charged"))
    }

    pub(super) fn charges<'a>(&'a self, query: &Query<'_>) -> SmallVec<[Charge<'a>; 2]> {
        let settles = |group| query.settle.as_ref().is_some_and(|settle| settle.has(group));
        let charge = |origin: &Origin| {
            let group = usize::from(origin.group);
            let limit = self.limit(origin);
            let rule = self.met[group].rule;
            Charge {
                key: &self.keys[origin.key.0..origin.key.1],
                limit,
                operation: match query.descriptors[group].operation {
                    // [dc-5]
                    Operation::Consume(hits) if limit.post_paid() => match self.opens && !settles(group) {
                        true => Operation::Peek,
                        false => Operation::Report(hits),
                    },
                    Operation::Consume(_) if settles(group) => Operation::Peek,
                    Operation::Consume(hits) => Operation::Consume(limit.consumed(hits)),
                    // A refund ends no request. [cc-3]
                    Operation::Refund(_) if limit.algorithm().counts_permits() => Operation::Refund(0),
                    operation => operation,
                },
                group: origin.group,
                role: match origin.role {
                    _ if self.modes.shadow => Role::Shadow,
                    Role::Quota if self.has_open_quota => Role::Shadow,
                    role => role,
                },
                owner: rule.map_or(REQUEST_OWNER, |rule| rule.id),
                bounds: None,
            }
        };
        self.origins.iter().map(charge).collect()
    }

    /// The owner of the charged limit.
    pub(super) fn charged(&self, origin: &Origin) -> LimitOf<'_> {
        match self.met[usize::from(origin.group)].rule {
            Some(rule) => LimitOf::Rule(rule, origin.limit),
            None => LimitOf::Request { domain: &self.domain.name },
        }
    }

    /// Whether a descriptor without charges can be denied because of a missing answer.
    pub(super) fn can_deny(&self, group: u16) -> bool {
        !self.modes.shadow && self.rule(usize::from(group)).is_some_and(|rule| rule.role != Role::Shadow)
    }

    pub(super) fn rule(&self, group: usize) -> Option<&Rule> {
        self.met[group].rule
    }

    /// Reports the matched rules to the trace of the request.
    #[cold]
    pub(super) fn tell(&self, trace: &dyn Trace, query: &Query<'_>) {
        for (asked, met) in query.descriptors.iter().zip(&self.met) {
            trace.matched(asked.entries, met.rule);
        }
        for content in self.rows.iter().filter_map(|row| row.content.as_deref()) {
            trace.row(content);
        }
    }

    /// What happens to a descriptor whose store does not answer, if a policy sets it. [st-4]
    pub(super) fn on_error(&self, group: u16) -> Option<OnError> {
        self.domain.on_error_of(self.met[usize::from(group)].rule).map(|(on_error, _)| on_error)
    }

    /// Removes the outcomes of limits that did not apply at that time. They are neither reported nor counted. [te-1]
    pub(super) fn leave_out_absent(&self, decided: &mut Decided<'_>) {
        if self.has_terms {
            decided.retain_applying();
        }
    }

    pub(super) fn answer(&self, query: &Query<'_>, decided: &Decided<'_>) -> Answer {
        let Decision { denied, ref outcomes, .. } = decided.decision;
        let wait = if self.modes.shadow { 0 } else { turn(decided) };
        let mut statuses = SmallVec::with_capacity(query.descriptors.len());
        let mut metadata = Vec::new();
        let (mut rest, mut origins, mut outcomes) = (&*decided.charges, &*decided.origins, &**outcomes);
        for group in 0..query.descriptors.len() {
            let count = rest.iter().take_while(|charge| usize::from(charge.group) == group).count();
            let status = match (self.met[group].rule, count) {
                (Some(rule), 0) if rule.unlimited => Status { remaining: Hits::MAX, ..Status::default() },
                (_, 0) if decided.denied_groups >> group & 1 == 1 => Status { over: true, ..Status::default() },
                (_, 0) if self.is_unlimited_by_row(group) => Status { remaining: Hits::MAX, ..Status::default() },
                (_, 0) => Status::default(),
                _ => status_of(&rest[..count], &origins[..count], &outcomes[..count], denied),
            };
            if let Some(fields) = self.met[group].rule.and_then(|rule| rule.metadata.as_ref())
                && self.modes.metadata
                && status.limit.is_some()
                && !status.over
            {
                metadata.push(Arc::clone(fields));
            }
            statuses.push(status);
            (rest, outcomes, origins) = (&rest[count..], &outcomes[count..], &origins[count..]);
        }
        let retry_after = if denied { retry_after(decided) } else { None };
        let limits = if self.modes.limits { self.listed(decided) } else { Vec::new() };
        Answer { denied, wait, retry_after, statuses, metadata, limits, holds: Vec::new() }
    }

    /// The limits that could deny the request. [dt-3]
    fn listed(&self, decided: &Decided<'_>) -> Vec<ListedLimit> {
        let mut listed = Vec::new();
        if self.modes.shadow {
            return listed;
        }
        for (charge, origin, outcome) in decided.iter() {
            if origin.role == Role::Shadow {
                continue;
            }
            listed.push(ListedLimit {
                name: self.name_of(charge.limit, origin),
                requests: charge.limit.requests(),
                window_s: whole_seconds(charge.limit),
                remaining: outcome.remaining,
                until_reset: match outcome.verdict {
                    Verdict::Over { retry_after } => retry_after,
                    Verdict::Within | Verdict::Never => outcome.reset_after,
                },
                over: outcome.verdict.is_over(),
            });
        }
        listed
    }

    /// The name of a limit for clients.
    fn name_of(&self, limit: &Limit, origin: &Origin) -> Box<str> {
        match (&limit.name, self.met[usize::from(origin.group)].rule) {
            (Some(name), _) => name.clone(),
            (None, Some(rule)) if rule.has_one_limit() => rule.path.clone(),
            (None, Some(rule)) => format!("{}:{}", rule.path, limit.id()).into(),
            (None, None) => REQUEST_NAME.into(),
        }
    }

    /// Whether a request that passes would be denied without the setting `shadow_mode`.
    pub(super) fn is_shadowed(&self, decided: &Decided<'_>) -> bool {
        if !self.modes.shadow {
            return false;
        }
        let counts = |role| role != Role::Quota || !self.has_open_quota;
        let limits = decided.iter().map(|(_, origin, outcome)| (origin.role, outcome.verdict.is_over()));
        deny(limits.filter(|(role, _)| counts(*role)))
    }
}

/// The limits of a descriptor, if they are not those of its rule.
fn other_limits<'o, 'p>(all: &'o [(usize, OtherLimits<'p>)], group: usize) -> Option<&'o OtherLimits<'p>> {
    all.iter().find(|(of, _)| *of == group).map(|(_, limits)| limits)
}

/// The limit of a descriptor at this position. None if it has none.
fn limit_at<'l>(rule: Option<&'l Rule>, other: Option<&'l OtherLimits<'_>>, position: usize) -> Option<&'l Limit> {
    match other {
        Some(limits) => limits.at(position),
        None => rule.map(|rule| &rule.limits[position]),
    }
}

/// The names that the rules of one request replace. [mt-5]
fn replaced_names<'p>(met: &[Match<'p>]) -> SmallVec<[&'p str; 4]> {
    let rules = met.iter().filter_map(|met| met.rule);
    rules.flat_map(|rule| rule.replaces.iter().map(|name| &**name)).collect()
}

fn is_replaced(name: Option<&str>, replaced: &[&str]) -> bool {
    name.is_some_and(|name| replaced.contains(&name))
}

/// The status of a descriptor. Over: of the limits that deny, the one with the longest wait. Within: the one with the
/// fewest remaining hits, and among equals the one that resets last. [dc-8] Excludes limits on trial. [tr-3]
fn status_of(charges: &[Charge<'_>], origins: &[Origin], outcomes: &[Outcome], denied: bool) -> Status {
    // The role by the policies: a quota that is over has that code even if the request passes.
    let denies = |origin: &Origin, outcome: &Outcome| origin.role != Role::Shadow && outcome.verdict.is_over();
    let wait = |outcome: &Outcome| match outcome.verdict {
        Verdict::Never => Micros::MAX,
        Verdict::Over { retry_after } => retry_after,
        Verdict::Within => 0,
    };
    let mut told: Option<(&Charge<'_>, &Origin, &Outcome)> = None;
    for ((charge, origin), outcome) in charges.iter().zip(origins).zip(outcomes) {
        if charge.limit.shadow {
            continue;
        }
        let better =
            told.is_none_or(|(_, best_origin, best)| match (denies(origin, outcome), denies(best_origin, best)) {
                (true, false) => true,
                (false, true) => false,
                (true, true) => wait(outcome) > wait(best),
                (false, false) => {
                    (outcome.remaining, std::cmp::Reverse(outcome.reset_after))
                        < (best.remaining, std::cmp::Reverse(best.reset_after))
                }
            });
        if better {
            told = Some((charge, origin, outcome));
        }
    }
    let Some((charge, origin, outcome)) = told else {
        return Status::default();
    };
    let over = denies(origin, outcome);
    let until_reset = match outcome.verdict {
        Verdict::Over { retry_after } if over => retry_after,
        _ => outcome.reset_after,
    };
    let told = || charges.iter().zip(outcomes).filter(|(charge, _)| !charge.limit.shadow);
    let detail = Detail {
        algorithm: charge.limit.algorithm().name(),
        fits_after: fits_after(told()),
        reset_after: outcome.reset_after,
        wait: if denied { 0 } else { told().map(|(_, outcome)| outcome.wait).max().unwrap_or(0) },
        charged: told().any(|(charge, outcome)| is_charged(charge, outcome)),
    };
    Status {
        over,
        limit: Some(LimitInfo::of(charge.limit)),
        remaining: outcome.remaining,
        until_reset: Some(until_reset),
        detail: Some(detail),
    }
}

/// When a denied request would be admitted without other requests: when it fits each enforced limit and, if quotas deny
/// it, one of the quotas. None if that never happens, or if no store gave a wait. [dt-2]
fn retry_after(decided: &Decided<'_>) -> Option<Micros> {
    let mut longest_enforced = None;
    let mut shortest_quota: Option<Micros> = None;
    for (charge, _, outcome) in decided.iter() {
        let wait = match outcome.verdict {
            Verdict::Within => continue,
            // A permit can be released at any time. [cc-4]
            Verdict::Over { .. } if charge.limit.algorithm().counts_permits() => Some(0),
            Verdict::Over { retry_after } => Some(retry_after),
            Verdict::Never => None,
        };
        match charge.role {
            Role::Enforced => longest_enforced = longest_enforced.max(Some(wait?)),
            Role::Quota => shortest_quota = shortest_quota.into_iter().chain(wait).min(),
            Role::Shadow => {}
        }
    }
    let limits = decided.iter().map(|(charge, _, outcome)| (charge.role, outcome.verdict.is_over()));
    if deny(limits.filter(|(role, _)| *role == Role::Quota)) {
        longest_enforced = longest_enforced.max(Some(shortest_quota?));
    }
    longest_enforced.filter(|wait| *wait > 0)
}

/// The length of a limit's windows, if all are equal and of whole seconds.
fn whole_seconds(limit: &Limit) -> Option<u64> {
    const MICROS_PER_SECOND: u64 = 1_000_000;
    let us = limit.window().us();
    (limit.calendar().is_none() && us.is_multiple_of(MICROS_PER_SECOND)).then_some(us / MICROS_PER_SECOND)
}

/// When the same hits would fit all of these limits again. None if one of them can never hold that many.
fn fits_after<'a>(all: impl Iterator<Item = (&'a Charge<'a>, &'a Outcome)>) -> Option<FitsAfter> {
    let (mut longest, mut longest_exact) = (0, 0);
    for (charge, outcome) in all {
        let wait = match outcome.verdict {
            Verdict::Over { retry_after } => retry_after,
            Verdict::Never => return None,
            Verdict::Within => {
                let own = charge.limit.kind().fits_after(&outcome.state, charge.operation.asked(), outcome.now);
                // A wait ends at the latest when the limit's term ends. [te-3]
                own.into_iter().chain(charge.limit.ends_after(outcome.now)).min()?
            }
        };
        longest = longest.max(wait);
        if !charge.limit.algorithm().counts_permits() {
            longest_exact = longest_exact.max(wait);
        }
    }
    Some(FitsAfter { us: longest, is_bound: longest > longest_exact })
}

/// Whether the hits of a charge are in the state of its limit. Always true for a report, even if the limit was used up
/// or the count has reached its bound. [dc-9]
fn is_charged(charge: &Charge<'_>, outcome: &Outcome) -> bool {
    matches!(charge.operation, Operation::Report(_)) || outcome.receipt.is_some()
}

/// How long an admitted request must be delayed until its turn. [lb-2] Peeks and refunds have no turn, and a rule in
/// shadow mode delays no request.
fn turn(decided: &Decided<'_>) -> Micros {
    let mut longest = 0;
    if decided.decision.denied {
        return longest;
    }
    for (charge, origin, outcome) in decided.iter() {
        let takes_a_place = matches!(charge.operation, Operation::Consume(_) | Operation::Report(_));
        if takes_a_place && origin.role != Role::Shadow {
            longest = longest.max(outcome.wait);
        }
    }
    longest
}
