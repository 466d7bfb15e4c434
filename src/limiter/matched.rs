//! The rules and rows that a request matches, and its charges.
//!
//! Not here: the outcomes of the charges (plan.rs), and the answer (answer.rs).

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use weir_engine::charge::Origin;
use weir_engine::observer::LimitOf;
use weir_engine::overrides::FittedOverride;
use weir_engine::policy::{Domain, Match};
use weir_engine::request_limit::{RequestLimit, UnusedLimit, with_request_numbers};
use weir_engine::rows::ROW_ID;
use weir_engine::{
    Charge, Group, Hits, Limit, OnError, Operation, Overrides, Property, Role, RowContent, Rule, Unit, Window, key,
};
use weir_store::RowVersion;

use super::request::Request;
use super::rows::known::{KnownRows, RowLimits};
use super::{DescriptorRequest, Modes, Query};

/// The initial capacity of the text with all keys: enough for a few charges.
const KEYS_BYTES: usize = 256;
/// The owner of states of limits of the request. No rule has this id.
const REQUEST_OWNER: u32 = u32::MAX;

/// What a request has matched. Its plan borrows from it.
pub(super) struct Matched<'p> {
    pub(super) domain: &'p Domain,
    pub(super) modes: Modes,
    /// Whether the request consumes hits of a hold. Then post-paid limits wait for the settle. [hd-3]
    opens: bool,
    /// Whether a descriptor that settles meets a hold, and whether one meets a hold for which post-paid limits did not wait:
    /// on trial, or outside of its term. [hd-3]
    settles_hold: bool,
    settles_idle_hold: bool,
    pub(super) has_leases: bool,
    /// Whether a quota of the request cannot be over, so the other quotas do not deny it. [dc-3]
    pub(super) has_open_quota: bool,
    /// The match of each descriptor. Without a rule if a limit of the request replaces it, or if nothing matches.
    met: SmallVec<[Match<'p>; 4]>,
    /// The descriptors whose limits are not those of a rule. Usually empty.
    other_limits: Vec<(Group, OtherLimits<'p>)>,
    /// One for each charge, in the order of the descriptors.
    drafts: SmallVec<[Draft; 4]>,
    /// The rows that determine limits, in the order of the descriptors. [rw-2]
    pub(super) rows: Vec<MatchedRow>,
    /// How many descriptors matched no rule and have no limit of the request.
    pub(super) unmatched: u32,
    /// Why limits of the request have no effect. [mt-11]
    pub(super) unused_limits: Vec<UnusedLimit>,
    /// The text of all keys, one after the other.
    keys: String,
}

/// What a descriptor adds to a request, without limits on trial.
#[derive(Clone, Copy)]
enum Added {
    Nothing,
    /// Only limits that are no quotas: never [hd-1] [cc-7], or not now [te-2].
    NoQuotas,
    Limits,
}

/// The limits of a descriptor that differ from its rule's as written.
enum OtherLimits<'p> {
    /// The limit of the request, and whether the policies have a rule with rows for its descriptor. [mt-6] [rw-5]
    Request(Limit, bool),
    /// The limits of an override. [ov-1]
    Override(&'p [Limit]),
    /// The limits of the descriptor's row. [rw-1]
    Row(RowLimits<'p>),
    /// The limit of the rule that has the numbers of the request, and the others. [mt-10]
    Numbers(Box<RequestNumbers<'p>>),
}

struct RequestNumbers<'p> {
    rule: &'p Rule,
    at: usize,
    limit: Limit,
    /// Where the other limits are from, if not from the rule.
    others: Option<OtherLimits<'p>>,
}

impl OtherLimits<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Request(..) => 1,
            Self::Override(limits) => limits.len(),
            Self::Row(limits) => limits.len(),
            Self::Numbers(numbers) => numbers.rule.limits.len(),
        }
    }

    /// The limit at this position. None if the descriptor's plan does not have it.
    fn at(&self, position: usize) -> Option<&Limit> {
        match self {
            Self::Request(limit, _) => Some(limit),
            Self::Override(limits) => Some(&limits[position]),
            Self::Row(limits) => limits[position].as_ref(),
            Self::Numbers(numbers) if numbers.at == position => Some(&numbers.limit),
            // A limit with the same state does not apply.
            Self::Numbers(numbers) => limit_at(Some(numbers.rule), numbers.others.as_ref(), position)
                .filter(|other| other.id() != numbers.limit.id()),
        }
    }
}

pub(super) struct MatchedRow {
    pub(super) group: Group,
    key: Range<usize>,
    /// The version that the limits are from. None if it is unknown whether there is a row.
    version: Option<u64>,
    /// The content of the row, for people. None for the default plan.
    content: Option<Arc<RowContent>>,
    /// Whether the content does not fit the rule.
    pub(super) is_unfit: bool,
    /// Whether no limit applies to the descriptor.
    is_unlimited: bool,
}

/// A charge before the request is known as a whole: its key is a range of the text of all keys.
struct Draft {
    origin: Origin,
    key: Range<usize>,
}

impl<'p> Matched<'p> {
    pub(super) fn of(request: &Request<'p, '_>, modes: Modes, rows: Option<&KnownRows>) -> Self {
        let Request { in_force, domain, query, .. } = *request;
        let policies = &*in_force.policies;
        let mut matched = Self {
            domain,
            modes,
            opens: false,
            settles_hold: false,
            settles_idle_hold: false,
            has_leases: false,
            has_open_quota: false,
            met: SmallVec::new(),
            other_limits: Vec::new(),
            drafts: SmallVec::new(),
            rows: Vec::new(),
            unmatched: 0,
            unused_limits: Vec::new(),
            keys: String::with_capacity(KEYS_BYTES),
        };
        let find = |group: Group, entries| match request.found.get(group.index()) {
            Some(found) => found.clone(),
            None => policies.find(domain, entries),
        };
        for (group, asked) in query.groups() {
            matched.met.push(match asked.limit {
                Some((requests, window)) => {
                    // Only a limit per second can be in a second store.
                    let needs_rule = domain.keeps_rules || domain.has_rows && window.unit() == Some(Unit::Second);
                    match needs_rule.then(|| find(group, asked.entries)) {
                        Some(met) if met.rule.is_some_and(|rule| rule.request_limit != RequestLimit::Replaces) => met,
                        met => {
                            let has_rows = met.and_then(|met| met.rule).is_some_and(|rule| rule.rows.is_some());
                            let limit = OtherLimits::Request(Limit::per_window(requests, window), has_rows);
                            matched.other_limits.push((group, limit));
                            Match { rule: None, shared: Vec::new(), factor: None }
                        }
                    }
                }
                None => {
                    let met = find(group, asked.entries);
                    matched.unmatched += u32::from(met.rule.is_none());
                    met
                }
            });
        }
        let replaced = replaced_names(&matched.met);
        for (group, _) in query.groups() {
            let added = matched.add_group(group, request, &replaced, rows);
            // A descriptor without a limit is a quota that is never over, but only if the setting makes everything a
            // quota.
            matched.has_open_quota |= match (added, matched.rule(group)) {
                (Added::Limits, Some(rule)) => (rule.is_quota || modes.quota) && rule.role == Role::Shadow,
                (Added::NoQuotas, _) | (Added::Limits, None) => false,
                // A quota without a limit is never over.
                (Added::Nothing, Some(rule)) if matched.is_unlimited_by_row(group) => rule.is_quota || modes.quota,
                (Added::Nothing, _) => modes.quota,
            };
        }
        matched
    }

    /// Adds the limits of one descriptor. Leaves out those that do not apply [te-1], except those whose holds it settles.
    #[expect(clippy::cast_possible_truncation, reason = "at most 8 limits")]
    fn add_group(
        &mut self,
        group: Group,
        request: &Request<'p, '_>,
        replaced: &[&str],
        rows: Option<&KnownRows>,
    ) -> Added {
        let Request { query, reading, .. } = *request;
        let asked = query.descriptor(group);
        let mut tag = None;
        let overridden = match &request.in_force.overrides {
            Some(overrides) => self.find_override(overrides, group, request, &mut tag),
            None => None,
        };
        // An override of all limits leaves nothing to the row. [rw-3]
        match (rows, overridden) {
            (Some(rows), None) => self.apply_row(rows, None, group, request, &mut tag),
            (Some(rows), Some(some)) if self.has_rows(group) && !some.names_all() => {
                self.apply_row(rows, overridden, group, request, &mut tag);
            }
            (_, Some(overridden)) => self.other_limits.push((group, OtherLimits::Override(overridden.limits()))),
            (None, None) => {}
        }
        if let (Some(numbers), Some(rule)) = (asked.limit, self.rule(group)) {
            self.apply_request_limit(group, rule, numbers, request, replaced);
        }
        let met = &self.met[group.index()];
        let other = other_limits(&self.other_limits, group);
        let count = match (met.rule, other) {
            (_, Some(limits)) => limits.len(),
            (Some(rule), None) => rule.limits.len(),
            (None, None) => return Added::Nothing,
        };
        let is_single = match (met.rule, other) {
            (_, Some(OtherLimits::Request(_, has_rows))) => !has_rows,
            (rule, _) => rule.is_some_and(Rule::is_single),
        };
        let has_row = matches!(other, Some(OtherLimits::Row(_)));
        let consumes = matches!(asked.operation, Operation::Consume(_));
        let settles = query.settles(group);
        let role_of_rule = met.rule.map_or(Role::Enforced, |rule| rule.role);
        let mut added = Added::Nothing;
        for i in 0..count {
            let Some(limit) = limit_at(met.rule, other, i) else { continue };
            if is_replaced(limit.name.as_deref(), replaced) {
                continue;
            }
            let phase = reading.phase(limit);
            added = match added {
                _ if limit.shadow => added,
                Added::Nothing | Added::NoQuotas if !phase.applies || limit.overrules(Property::QuotaMode) => {
                    Added::NoQuotas
                }
                _ => Added::Limits,
            };
            self.has_leases |= limit.lease.is_some();
            let is_outside_term = !phase.applies;
            if limit.hold {
                // A receipt shows that the hold was in its term when the request was opened.
                let has_applied = phase.applies || query.settle.as_ref().is_some_and(|settle| !settle.holds.is_empty());
                self.settles_hold |= !limit.shadow && has_applied && settles;
                self.settles_idle_hold |= (limit.shadow || !has_applied) && settles;
                self.opens |= !limit.shadow && phase.applies && consumes && !settles;
            }
            if is_outside_term && !(limit.hold && settles) {
                continue;
            }
            let start = begin_key(&mut self.keys, &mut tag, self.domain, asked, met);
            self.keys.push_str(limit.id());
            let key = start..self.keys.len();
            let own_role = match self.modes.quota {
                _ if limit.shadow => Role::Shadow,
                true => limit.role_as_quota(role_of_rule),
                false => role_of_rule,
            };
            // A settle never denies. [hd-5]
            let role = if settles { Role::Shadow } else { own_role };
            let shown_role = if self.modes.shadow { Role::Shadow } else { own_role };
            let ends_after = limit.term.as_ref().and_then(|_| phase.ends_after(reading.now()));
            let position = i as u8;
            let origin = Origin {
                group,
                position,
                role,
                shown_role,
                is_single,
                has_row,
                is_outside_term,
                ends_after,
                ..Origin::NONE
            };
            self.drafts.push(Draft { origin, key });
        }
        added
    }

    /// The override in force of a descriptor. Writes the tag of its keys if a rule with overrides is matched. [ov-1]
    fn find_override(
        &mut self,
        overrides: &'p Overrides,
        group: Group,
        request: &Request<'_, '_>,
        tag: &mut Option<Range<usize>>,
    ) -> Option<&'p FittedOverride> {
        let met = &self.met[group.index()];
        if !met.rule.is_some_and(|rule| overrides.concern(rule)) {
            return None;
        }
        let start = begin_key(&mut self.keys, tag, self.domain, request.query.descriptor(group), met);
        overrides.limits(&self.keys[start..], || request.reading.now())
    }

    /// Whether a descriptor meets a rule with rows.
    fn has_rows(&self, group: Group) -> bool {
        self.rule(group).is_some_and(|rule| rule.rows.is_some())
    }

    /// Uses the limits of the descriptor's row, if its rule has rows, except those that the override names. [rw-1]
    #[cold]
    fn apply_row(
        &mut self,
        rows: &KnownRows,
        overridden: Option<&FittedOverride>,
        group: Group,
        request: &Request<'_, '_>,
        tag: &mut Option<Range<usize>>,
    ) {
        let met = &self.met[group.index()];
        let Some(rule) = met.rule.filter(|rule| rule.rows.is_some()) else { return };
        let start = begin_key(&mut self.keys, tag, self.domain, request.query.descriptor(group), met);
        self.keys.push_str(ROW_ID);
        let key = start..self.keys.len();
        let known = rows.find(&self.keys[key.clone()], || request.reading.now());
        let version = known.as_ref().map(|known| known.version);
        let known = known.unwrap_or_default();
        let (limits, is_fit) = rows.limits(rule, &known, overridden);
        let is_unlimited = limits.iter().all(Option::is_none);
        let (content, is_unfit) = (known.content, !is_fit);
        self.rows.push(MatchedRow { group, key, version, content, is_unfit, is_unlimited });
        self.other_limits.push((group, OtherLimits::Row(limits)));
    }

    /// Uses the numbers of the request for a limit of the rule, before those of an override and of a row. [mt-10]
    #[cold]
    fn apply_request_limit(
        &mut self,
        group: Group,
        rule: &'p Rule,
        numbers: (u32, Window),
        Request { query, reading, .. }: &Request<'_, '_>,
        replaced: &[&str],
    ) {
        let RequestLimit::Numbers { at: named, .. } = rule.request_limit else {
            self.unused_limits.push(UnusedLimit::Ignored);
            return;
        };
        let at = usize::from(named);
        let settle = query.settle.as_deref().filter(|settle| settle.has(group));
        let is_met = |limit: &Limit| {
            !is_replaced(limit.name.as_deref(), replaced)
                && (reading.phase(limit).applies || limit.hold && settle.is_some())
        };
        if rule.limits.get(at).is_some_and(|limit| !is_met(limit)) {
            self.unused_limits.push(UnusedLimit::NotInForce);
            return;
        }
        // Another limit with this state did not apply to the opening: the receipt has no hold of it.
        let is_opened = settle.is_some_and(|settle| settle.has_overridden(named, numbers.1));
        let place = self.other_limits.iter().position(|(of, _)| *of == group);
        let others = place.map(|place| self.other_limits.swap_remove(place).1);
        let in_force = (0..rule.limits.len()).filter(|position| *position != at);
        let in_force = in_force.filter_map(|position| limit_at(Some(rule), others.as_ref(), position));
        let in_force = in_force.filter(|limit| is_met(limit) && (!is_opened || reading.phase(limit).applies));
        match with_request_numbers(&rule.limits, at, numbers, in_force) {
            Ok(limit) => {
                self.rows.iter_mut().filter(|row| row.group == group).for_each(|row| row.is_unlimited = false);
                let numbers = RequestNumbers { rule, at, limit, others };
                self.other_limits.push((group, OtherLimits::Numbers(Box::new(numbers))));
            }
            Err(unused) => {
                self.unused_limits.push(unused);
                self.other_limits.extend(others.map(|others| (group, others)));
            }
        }
    }

    pub(super) fn is_unlimited_by_row(&self, group: Group) -> bool {
        self.rows.iter().any(|row| row.group == group && row.is_unlimited)
    }

    pub(super) fn row_content(&self, group: Group) -> Option<&Arc<RowContent>> {
        self.rows.iter().find(|row| row.group == group).and_then(|row| row.content.as_ref())
    }

    pub(super) fn unknown_rows(&self) -> impl Iterator<Item = &MatchedRow> {
        self.rows.iter().filter(|row| row.version.is_none())
    }

    /// The version of a row, for the store.
    pub(super) fn row_version(&self, row: &MatchedRow) -> RowVersion<'_> {
        RowVersion { key: &self.keys[row.key.clone()], version: row.version.unwrap_or(0) }
    }

    /// The limit as the rule has it, without overrides and rows. None for a limit of the request.
    pub(super) fn limit_of_rule(&self, origin: Origin) -> Option<&Limit> {
        self.rule(origin.group).map(|rule| &rule.limits[usize::from(origin.position)])
    }

    /// A charge for each limit, also for those that do not apply.
    pub(super) fn charges<'a>(&'a self, query: &Query<'_>) -> SmallVec<[Charge<'a>; 2]> {
        let charge = |Draft { origin, key }: &Draft| {
            let group = origin.group;
            let settles = query.settles(group);
            let rule = self.rule(group);
            let other = other_limits(&self.other_limits, group);
            let limit = limit_at(rule, other, origin.position.into())
                .unwrap_or_else(|| unreachable!("a descriptor without limits is not charged"));
            Charge {
                key: &self.keys[key.clone()],
                limit,
                operation: self.operation(query.descriptor(group).operation, limit, settles),
                role: match origin.role {
                    _ if self.modes.shadow => Role::Shadow,
                    Role::Quota if self.has_open_quota => Role::Shadow,
                    role => role,
                },
                owner: rule.map_or(REQUEST_OWNER, |rule| rule.id),
                bounds: None,
                origin: *origin,
            }
        };
        self.drafts.iter().map(charge).collect()
    }

    /// What a limit of a descriptor is charged.
    fn operation(&self, asked: Operation, limit: &Limit, settles: bool) -> Operation {
        match asked {
            // [dc-5]
            Operation::Consume(_) if limit.post_paid() && self.only_looks_at_post_paid(settles) => Operation::Peek,
            Operation::Consume(hits) if limit.post_paid() => Operation::Report(limit.counted(hits)),
            Operation::Consume(_) if settles => Operation::Peek,
            Operation::Consume(hits) => Operation::Consume(limit.consumed(hits)),
            // A refund ends no request. [cc-3]
            Operation::Refund(_) if limit.algorithm().counts_permits() => Operation::Refund(0),
            Operation::Refund(hits) => Operation::Refund(limit.counted(hits)),
            Operation::Peek | Operation::Report(_) => asked,
        }
    }

    /// Whether post-paid limits of a descriptor are not charged: the opening leaves them to the settle. Without a hold that is
    /// enforced and in its term, the opening charges them, and the settle does not. [hd-3]
    fn only_looks_at_post_paid(&self, settles: bool) -> bool {
        if settles { self.settles_idle_hold && !self.settles_hold } else { self.opens }
    }

    /// The owner of the charged limit.
    pub(super) fn charged(&self, origin: Origin) -> LimitOf<'_> {
        match self.rule(origin.group) {
            Some(rule) => LimitOf::Rule(rule, origin.position.into()),
            None => LimitOf::Request { domain: &self.domain.name },
        }
    }

    /// Whether a charge can deny the request: by its store, or by `on_error`, which no open quota prevents. [st-4]
    pub(super) fn charge_can_deny(&self, charge: &Charge<'_>) -> bool {
        self.can_deny(charge.origin.role, charge.operation)
    }

    /// Whether `on_error` can deny a descriptor whose row has no limit, so that it has no charge. [st-4]
    pub(super) fn row_can_deny(&self, row: &MatchedRow, query: &Query<'_>) -> bool {
        let denies = |rule: &Rule| self.can_deny(rule.role, query.descriptor(row.group).operation);
        !query.settles(row.group) && self.rule(row.group).is_some_and(denies)
    }

    fn can_deny(&self, role: Role, operation: Operation) -> bool {
        !self.modes.shadow && role != Role::Shadow && !operation.is_refund()
    }

    pub(super) fn rule(&self, group: Group) -> Option<&'p Rule> {
        self.met[group.index()].rule
    }

    /// The factor of a descriptor's hits, if its rule weighs them. [mt-12]
    pub(super) fn factor(&self, group: Group) -> Option<Hits> {
        self.met[group.index()].factor
    }

    /// What happens to a descriptor whose store does not answer, if a policy sets it. [st-4]
    pub(super) fn on_error(&self, group: Group) -> Option<OnError> {
        self.domain.on_error_of(self.rule(group)).map(|(on_error, _)| on_error)
    }
}

/// Begins a key at the end of the text of all keys: with the tag of its descriptor. Returns the start.
fn begin_key(
    keys: &mut String,
    tag: &mut Option<Range<usize>>,
    domain: &Domain,
    asked: &DescriptorRequest<'_>,
    met: &Match<'_>,
) -> usize {
    let start = keys.len();
    match tag.clone() {
        Some(tag) => keys.extend_from_within(tag),
        None => {
            key::write_tag(keys, &domain.name, asked.entries.iter().copied(), &met.shared);
            *tag = Some(start..keys.len());
        }
    }
    start
}

/// The limits of a descriptor, if they are not those of its rule.
fn other_limits<'o, 'p>(all: &'o [(Group, OtherLimits<'p>)], group: Group) -> Option<&'o OtherLimits<'p>> {
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
