//! Finds the effects of descriptors on each other in one request, when one replaces limits of another.
//!
//! The names in `replaces` of all rules of a request decide which limits are replaced. Requests of two descriptors
//! therefore show each change of larger requests. Quotas are in limits.rs.

use std::collections::BTreeMap;

use weir_engine::{Limit, Role, Rule};

use super::limits::{charged, is_felt, paired};
use super::walk::Transition;
use super::{Direction, Effect, Subject};

/// The most pairs of descriptors to compare.
pub(super) const PAIRS_MAX: usize = 5_000_000;

/// More than [`PAIRS_MAX`] pairs.
pub(super) struct TooMany;

/// Finds changes that appear only when two descriptors are in one request, by the transition that causes them.
pub(super) fn effects<'p>(transitions: &[Transition<'p>]) -> Result<BTreeMap<usize, Vec<Effect<'p>>>, TooMany> {
    let mut effects: BTreeMap<usize, Vec<Effect<'p>>> = BTreeMap::new();
    let mut pairs = 0;
    for by in replacing(transitions) {
        let [before, now] = replaced(&transitions[by]);
        let domain = domain(&transitions[by]);
        for (number, of) in transitions.iter().enumerate() {
            pairs += 1;
            if pairs > PAIRS_MAX {
                return Err(TooMany);
            }
            if self::domain(of) != domain || number == by {
                continue;
            }
            for (old, new) in paired(&charged(of.old), &charged(of.new)) {
                let has = |names: &[Box<str>], limit: Option<&Limit>| {
                    limit.is_some_and(|limit| limit.name.as_ref().is_some_and(|name| names.contains(name)))
                };
                let (was, is) = (has(before, old), has(now, new));
                // If the limit itself is new or removed, the change of its rule shows that.
                let (limit, is_replaced_now) = match (was, is, old, new) {
                    (true, false, _, Some(limit)) => (limit, false),
                    (false, true, Some(limit), _) => (limit, true),
                    _ => continue,
                };
                let rule = if is_replaced_now { of.old } else { of.new };
                let direction = direction(rule, limit, is_replaced_now);
                let example = format!("{} and {}", transitions[by].example, of.example);
                // The change of the rule that differs.
                let place = if before == now { number } else { by };
                let subject = Subject::Together { example, limit, is_replaced_now };
                effects.entry(place).or_default().push(Effect { direction, subject });
            }
        }
    }
    Ok(effects)
}

/// The transitions of rules that replace limits, one of each kind.
fn replacing(transitions: &[Transition<'_>]) -> Vec<usize> {
    let mut kinds = BTreeMap::new();
    for (number, transition) in transitions.iter().enumerate() {
        let [before, now] = replaced(transition);
        if before.is_empty() && now.is_empty() {
            continue;
        }
        // Rules that differ have their own rows in the report.
        let own = if before == now { None } else { Some(number) };
        kinds.entry((domain(transition), before, now, own)).or_insert(number);
    }
    kinds.into_values().collect()
}

fn replaced<'p>(transition: &Transition<'p>) -> [&'p [Box<str>]; 2] {
    [transition.old, transition.new].map(|rule| rule.map_or(&[][..], |rule| &rule.replaces))
}

fn domain<'p>(transition: &Transition<'p>) -> Option<&'p str> {
    transition.new.or(transition.old).map(|rule| &*rule.domain)
}

fn direction(rule: Option<&Rule>, limit: &Limit, is_replaced_now: bool) -> Direction {
    let Some(rule) = rule.filter(|rule| !limit.shadow && (is_felt(Some(rule)) || rule.is_quota)) else {
        return Direction::Neither;
    };
    match (rule.role, is_replaced_now) {
        // If the limit is replaced, only other quotas deny.
        (Role::Quota, _) => Direction::Both,
        (Role::Shadow, true) | (Role::Enforced, false) => Direction::Stricter,
        (Role::Shadow, false) | (Role::Enforced, true) => Direction::Looser,
    }
}
