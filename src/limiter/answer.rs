//! The answer to a request whose plan is decided.

use std::cmp::Reverse;
use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::SmallVec;
use weir_engine::decision::deny;
use weir_engine::{Charge, Count, Group, Hits, Limit, Micros, Operation, Outcome, Role, Verdict};

use super::plan::Plan;
use super::{Answer, Detail, FitsAfter, LimitInfo, ListedLimit, Query, Status};

/// The name, for clients, of a limit of the request.
const REQUEST_NAME: &str = "(request)";
/// What remains of a rule without a limit. [mt-4]
const UNLIMITED: Count = Hits::MAX as Count;

impl Plan<'_, '_> {
    pub(super) fn answer(&self, query: &Query<'_>) -> Answer {
        let (matched, denied) = (self.matched, self.decision.denied);
        let mut statuses = SmallVec::with_capacity(query.descriptors.len());
        let mut metadata = Vec::new();
        let mut rest = self.decided();
        for group in Group::all(query.descriptors.len()) {
            let of_descriptor = rest.clone().take_while(|(charge, _)| charge.origin.group == group);
            let count = of_descriptor.clone().count();
            let rule = matched.rule(group);
            let status = match count {
                0 if rule.is_some_and(|rule| rule.unlimited) => Status { remaining: UNLIMITED, ..Status::default() },
                0 if self.denied_groups & group.bit() != 0 => Status { over: true, ..Status::default() },
                // A row that no store has confirmed. [st-4]
                0 if self.unanswered & group.bit() != 0 => Status::default(),
                0 if matched.is_unlimited_by_row(group) => Status { remaining: UNLIMITED, ..Status::default() },
                0 => Status::default(),
                _ => status_of(of_descriptor, denied, matched.factor(group)),
            };
            if let Some(fields) = rule.and_then(|rule| rule.metadata.as_ref())
                && matched.modes.metadata
                && status.limit.is_some()
                && !status.over
            {
                metadata.push(Arc::clone(fields));
            }
            statuses.push(status);
            rest.by_ref().take(count).for_each(drop);
        }
        let wait = if denied || matched.modes.shadow { 0 } else { self.turn() };
        let retry_after = if denied { self.retry_after() } else { None };
        let limits = if matched.modes.limits { self.listed() } else { Vec::new() };
        Answer { denied, wait, retry_after, statuses, metadata, limits, holds: Vec::new() }
    }

    /// The limits that could deny the request. [dt-3]
    fn listed(&self) -> Vec<ListedLimit> {
        let mut listed = Vec::new();
        if self.matched.modes.shadow {
            return listed;
        }
        for (charge, outcome) in self.decided() {
            if charge.origin.role == Role::Shadow {
                continue;
            }
            listed.push(ListedLimit {
                name: self.name_of(charge),
                requests: charge.limit.requests(),
                amount: charge.limit.amount.clone(),
                in_flight: charge.limit.algorithm().counts_permits(),
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
    fn name_of(&self, charge: &Charge<'_>) -> Box<str> {
        match (&charge.limit.name, self.matched.rule(charge.origin.group)) {
            (Some(name), _) => name.clone(),
            (None, Some(rule)) if rule.has_one_limit() => rule.path.clone(),
            (None, Some(rule)) => format!("{}:{}", rule.path, charge.limit.id()).into(),
            (None, None) => REQUEST_NAME.into(),
        }
    }

    /// Whether a request that passes would be denied without the setting `shadow_mode`.
    pub(super) fn is_shadowed(&self) -> bool {
        if !self.matched.modes.shadow {
            return false;
        }
        let counts = |role| role != Role::Quota || !self.matched.has_open_quota;
        let limits = self.decided().map(|(charge, outcome)| (charge.origin.role, outcome.verdict.is_over()));
        deny(limits.filter(|(role, _)| counts(*role)))
    }

    /// When a denied request would be admitted without other requests: when it fits each enforced limit and, if quotas deny
    /// it, one of the quotas. None if that never happens, or if no store gave a wait. [dt-2]
    fn retry_after(&self) -> Option<Micros> {
        let mut longest_enforced = None;
        let mut shortest_quota: Option<Micros> = None;
        for (charge, outcome) in self.decided() {
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
        let limits = self.decided().map(|(charge, outcome)| (charge.role, outcome.verdict.is_over()));
        if deny(limits.filter(|(role, _)| *role == Role::Quota)) {
            longest_enforced = longest_enforced.max(Some(shortest_quota?));
        }
        longest_enforced.filter(|wait| *wait > 0)
    }

    /// How long an admitted request must be delayed until its turn. [lb-2] Peeks and refunds have no turn, and a rule in
    /// shadow mode delays no request.
    fn turn(&self) -> Micros {
        let mut longest = 0;
        for (charge, outcome) in self.decided() {
            if charge.operation.adds() && charge.origin.role != Role::Shadow {
                longest = longest.max(outcome.wait);
            }
        }
        longest
    }
}

/// The status of a descriptor. Over: of the limits that deny, the one with the longest wait. Within: the one with the
/// fewest remaining hits, and among equals the one that resets last. [dc-8] Excludes limits on trial. [tr-3]
fn status_of<'a>(
    decided: impl Iterator<Item = (&'a Charge<'a>, &'a Outcome)> + Clone,
    denied: bool,
    factor: Option<Hits>,
) -> Status {
    // The role by the policies: a quota that is over has that code even if the request passes.
    let denies =
        |charge: &Charge<'_>, outcome: &Outcome| charge.origin.role != Role::Shadow && outcome.verdict.is_over();
    let wait = |outcome: &Outcome| match outcome.verdict {
        Verdict::Never => Micros::MAX,
        Verdict::Over { retry_after } => retry_after,
        Verdict::Within => 0,
    };
    let decided = decided.filter(|(charge, _)| !charge.limit.shadow);
    let mut shown: Option<(&Charge<'_>, &Outcome)> = None;
    for (charge, outcome) in decided.clone() {
        let is_better =
            shown.is_none_or(|(best_charge, best)| match (denies(charge, outcome), denies(best_charge, best)) {
                (true, false) => true,
                (false, true) => false,
                (true, true) => wait(outcome) > wait(best),
                (false, false) => {
                    (outcome.remaining, Reverse(outcome.reset_after)) < (best.remaining, Reverse(best.reset_after))
                }
            });
        if is_better {
            shown = Some((charge, outcome));
        }
    }
    let Some((charge, outcome)) = shown else {
        return Status::default();
    };
    let over = denies(charge, outcome);
    let until_reset = match outcome.verdict {
        Verdict::Over { retry_after } if over => retry_after,
        _ => outcome.reset_after,
    };
    let detail = Detail {
        algorithm: charge.limit.algorithm().name(),
        fits_after: fits_after(decided.clone()),
        reset_after: outcome.reset_after,
        wait: if denied { 0 } else { decided.clone().map(|(_, outcome)| outcome.wait).max().unwrap_or(0) },
        charged: decided.clone().any(|(charge, outcome)| is_charged(charge, outcome)),
        factor,
    };
    Status {
        over,
        is_quota: charge.origin.role == Role::Quota,
        limit: Some(LimitInfo::of(charge.limit)),
        remaining: outcome.remaining,
        until_reset: Some(until_reset),
        detail: Some(detail),
    }
}

/// The length of a limit's windows, if all are equal and of whole seconds. Requests in flight have no windows.
fn whole_seconds(limit: &Limit) -> Option<u64> {
    const MICROS_PER_SECOND: u64 = 1_000_000;
    let us = limit.window().us();
    let is_rate = limit.calendar().is_none() && !limit.algorithm().counts_permits();
    (is_rate && us.is_multiple_of(MICROS_PER_SECOND)).then_some(us / MICROS_PER_SECOND)
}

/// When the same hits would fit all of these limits again. None if one of them can never hold that many.
fn fits_after<'a>(decided: impl Iterator<Item = (&'a Charge<'a>, &'a Outcome)>) -> Option<FitsAfter> {
    // Without limits whose charged hits can come back at any time: permits, and estimates. [cc-4] [hd-5]
    let (mut longest, mut longest_exact) = (0, 0);
    for (charge, outcome) in decided {
        let wait = match outcome.verdict {
            Verdict::Over { retry_after } => retry_after,
            Verdict::Never => return None,
            Verdict::Within => {
                let own = charge.limit.kind().fits_after(&outcome.state, charge.operation.asked(), outcome.now);
                // A wait ends at the latest when the limit's term ends. [te-3]
                own.into_iter().chain(charge.origin.ends_after.map(NonZeroU64::get)).min()?
            }
        };
        longest = longest.max(wait);
        if !charge.limit.hold {
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
