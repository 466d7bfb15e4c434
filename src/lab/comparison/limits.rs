//! Compares two rules and their limits, and finds which of them admits more.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use weir_engine::plans::Plans;
use weir_engine::policy::Level;
use weir_engine::request_limit::RequestLimit;
use weir_engine::weigh::Weigh;
use weir_engine::{KeyValue, Limit, Role, Rule};
use weir_text::{instant_text, spell};

use super::amounts::{self, of_terms};
use super::{Direction, Effect, Subject};

/// Whether other descriptors of a request can have quotas, on each side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OtherQuotas {
    pub(super) before: bool,
    pub(super) now: bool,
}

/// The effect of a rule on the answer of a request. [dc-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleEffect {
    /// None.
    None,
    Enforced,
    /// Its limits deny together with all other quotas.
    Quota,
    /// It prevents quotas from denying.
    OpenQuota,
}

impl RuleEffect {
    fn of(rule: Option<&Rule>) -> Self {
        let is_charged = charged(rule).iter().any(|limit| !limit.shadow);
        match rule {
            Some(rule) if is_charged => match rule.role {
                Role::Enforced => Self::Enforced,
                Role::Quota => Self::Quota,
                Role::Shadow if rule.is_quota => Self::OpenQuota,
                Role::Shadow => Self::None,
            },
            _ => Self::None,
        }
    }
}

/// The differences for a descriptor that met the old rule and meets the new one, if it is the only descriptor of its
/// request.
pub(super) fn effects<'p>(old: Option<&'p Rule>, new: Option<&'p Rule>) -> Vec<Effect<'p>> {
    effects_beside(old, new, OtherQuotas::default())
}

/// The same as [`effects`], for requests that may have other quotas.
pub(super) fn effects_beside<'p>(old: Option<&'p Rule>, new: Option<&'p Rule>, others: OtherQuotas) -> Vec<Effect<'p>> {
    let mut effects = Vec::new();
    // A rule that never denies admits everything, with any limits.
    let is_felt = is_felt(old) || is_felt(new);
    let parts = (RuleEffect::of(old), RuleEffect::of(new));
    let mut add = |plan: Option<&'p str>, (before, after), is_whole_quota: bool| {
        let Some(direction) = of_limits(before, after) else { return };
        let direction = match (is_felt, parts) {
            (false, _) => Direction::Neither,
            (true, (RuleEffect::Quota, RuleEffect::Quota)) if !is_whole_quota => of_quotas(before, after, direction),
            (true, _) => direction,
        };
        let subject = match plan {
            None => Subject::Limit(before, after),
            Some(plan) => Subject::Plan(plan, before, after),
        };
        effects.push(Effect { direction, subject });
    };
    let of_default = paired(&charged(old), &charged(new));
    of_default.iter().for_each(|pair| add(None, *pair, false));
    for plan in plans(old, new) {
        let (before, after) = (charged_under(old, Some(plan)), charged_under(new, Some(plan)));
        // A quota without a limit is never over.
        let is_whole = before.is_empty() != after.is_empty();
        paired(&before, &after).into_iter().filter(|pair| !of_default.contains(pair)).for_each(|pair| {
            add(Some(plan), pair, is_whole);
        });
    }
    add_rows(old, new, &mut effects);
    add_roles(old, new, &mut effects);
    add_factors(old, new, is_felt, &mut effects);
    let direction = match parts {
        (RuleEffect::Enforced, RuleEffect::Quota) => Direction::Looser,
        (RuleEffect::Quota, RuleEffect::Enforced) => Direction::Stricter,
        (RuleEffect::None, RuleEffect::Quota | RuleEffect::OpenQuota) if others.before => Direction::Looser,
        (RuleEffect::Quota | RuleEffect::OpenQuota, RuleEffect::None) if others.now => Direction::Stricter,
        _ => Direction::Neither,
    };
    let is_quota = |rule: Option<&Rule>| rule.is_some_and(|rule| rule.is_quota);
    let is_both = old.is_some() && new.is_some();
    if direction != Direction::Neither || is_both && is_quota(old) != is_quota(new) {
        let said = |rule: Option<&Rule>| rule.map_or_else(|| "no rule".to_owned(), |rule| rule.is_quota.to_string());
        effects.push(Effect { direction, subject: Subject::Key("quota_mode", said(old), said(new)) });
    }
    effects
}

/// The limits of a rule without those that the rule itself replaces. [mt-5]
pub(super) fn charged(rule: Option<&Rule>) -> Vec<&Limit> {
    charged_under(rule, None)
}

/// [`charged`] under a plan.
fn charged_under<'p>(rule: Option<&'p Rule>, plan: Option<&str>) -> Vec<&'p Limit> {
    let is_replaced = |limit: &&Limit| {
        let replaces = rule.map_or(&[][..], |rule| &rule.replaces);
        limit.name.as_ref().is_some_and(|name| replaces.contains(name))
    };
    under(rule, plan).into_iter().filter(|limit| !is_replaced(limit)).collect()
}

/// The limits of descriptors whose row names this plan. If the rule has no such plan, or no rows, these are the limits
/// of the rule. [rw-1] [rw-3]
pub(super) fn under<'p>(rule: Option<&'p Rule>, plan: Option<&str>) -> Vec<&'p Limit> {
    let Some(rule) = rule else { return Vec::new() };
    match rule.rows.as_deref().and_then(|plans| plans.limits(plan?)) {
        Some(limits) => limits.iter().flatten().collect(),
        None => rule.limits.iter().collect(),
    }
}

pub(super) fn plans<'p>(old: Option<&'p Rule>, new: Option<&'p Rule>) -> BTreeSet<&'p str> {
    [old, new].into_iter().flatten().filter_map(|rule| rule.rows.as_deref()).flat_map(Plans::names).collect()
}

/// Adds that descriptors have rows on one side only, another default plan, or limits that rows can no longer name. Rows with numbers of
/// their own can be stricter or looser than the rule, so their end can be both.
fn add_rows(old: Option<&Rule>, new: Option<&Rule>, effects: &mut Vec<Effect<'_>>) {
    let (Some(old), Some(new)) = (old, new) else { return };
    let spelled = |rule: &Rule| {
        rule.rows.as_ref().map_or_else(|| "none".to_owned(), |plans| format!("default {}", plans.default_plan()))
    };
    let (before, after) = (spelled(old), spelled(new));
    let of_end = of_lost_rows(Some(old), Some(new));
    if before != after {
        let direction = if old.rows.is_some() && new.rows.is_none() { of_end } else { Direction::Neither };
        effects.push(Effect { direction, subject: Subject::Key("rows", before, after) });
    }
    if old.rows.is_some() && new.rows.is_some() {
        let (before, after) = (names(old), names(new));
        if !before.is_subset(&after) {
            let subject = Subject::Key("names in rows", spelled_names(&before), spelled_names(&after));
            effects.push(Effect { direction: of_end, subject });
        }
    }
}

/// Adds other factors of hits.
fn add_factors(old: Option<&Rule>, new: Option<&Rule>, is_felt: bool, effects: &mut Vec<Effect<'_>>) {
    let (Some(old), Some(new)) = (old, new) else { return };
    let spelled = |rule: &Rule| rule.weigh.as_ref().map_or_else(|| "none".to_owned(), |weigh| weigh.text().to_owned());
    if old.weigh != new.weigh {
        let direction =
            if is_felt { of_factors(old.weigh.as_deref(), new.weigh.as_deref()) } else { Direction::Neither };
        effects.push(Effect { direction, subject: Subject::Key("weigh", spelled(old), spelled(new)) });
    }
}

/// The direction of other factors, for requests of one value of the entry. All values share the state, so a first or last `weigh` adds
/// or removes requests of it.
fn of_factors(old: Option<&Weigh>, new: Option<&Weigh>) -> Direction {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) if old.entry == new.entry => (old, new),
        (Some(_), Some(_)) => return Direction::Both,
        (Some(_), None) => return Direction::Looser,
        (None, Some(_)) => return Direction::Stricter,
        (None, None) => return Direction::Neither,
    };
    let values = old.values().chain(new.values()).map(Some).chain([None]);
    let factor = |weigh: &Weigh, value: Option<&str>| {
        value.and_then(|value| weigh.factor_of(value)).unwrap_or_else(|| weigh.default_factor())
    };
    let orders: HashSet<Ordering> = values.map(|value| factor(new, value).cmp(&factor(old, value))).collect();
    match (orders.contains(&Ordering::Greater), orders.contains(&Ordering::Less)) {
        (true, true) => Direction::Both,
        (true, false) => Direction::Stricter,
        (false, true) => Direction::Looser,
        (false, false) => Direction::Neither,
    }
}

/// The direction if rows with an effect under the old rule have none under the new one.
pub(super) fn of_lost_rows(old: Option<&Rule>, new: Option<&Rule>) -> Direction {
    // Without limits, everything passes. If only one side is in shadow mode, the rows do not matter.
    let limits = new.is_some_and(|new| !new.unlimited);
    if limits && is_felt(old) && is_felt(new) { Direction::Both } else { Direction::Neither }
}

/// The names by which rows have numbers for limits. The only limit of a rule needs none: the empty text. [rw-1]
fn names(rule: &Rule) -> BTreeSet<&str> {
    let is_only = rule.limits.len() == 1;
    let named = rule.limits.iter().filter_map(|limit| match &limit.name {
        // The id of an only limit is not written in rows.
        None => (!is_only).then(|| limit.id()),
        Some(name) => Some(name),
    });
    named.chain(is_only.then_some("")).collect()
}

fn spelled_names(names: &BTreeSet<&str>) -> String {
    let named: Vec<&str> = names.iter().map(|name| if name.is_empty() { "none" } else { name }).collect();
    named.join(", ")
}

/// Whether a rule can deny.
pub(super) fn is_felt(rule: Option<&Rule>) -> bool {
    rule.is_some_and(|rule| rule.role != Role::Shadow && !rule.unlimited)
}

/// The direction of a changed quota among quotas of the same rule, which deny only together.
fn of_quotas(before: Option<&Limit>, after: Option<&Limit>, direction: Direction) -> Direction {
    let (before, after) = (before.filter(|limit| !limit.shadow), after.filter(|limit| !limit.shadow));
    match (before, after) {
        (None, Some(_)) => Direction::Looser,
        (Some(_), None) => Direction::Stricter,
        // Outside of its term a limit is no quota.
        (Some(before), Some(after)) if of_terms(before, after) != Direction::Neither => Direction::Both,
        _ => direction,
    }
}

/// Keys whose direction `effects_beside` finds.
const WITH_DIRECTION: [&str; 6] = ["unlimited", "shadow_mode", "quota_mode", "rows", "share_threshold", "weigh"];

/// Adds differences of all other keys besides limits and values. They do not change how much is admitted.
pub(super) fn add_marks<'p>(old: &'p Rule, new: &'p Rule, effects: &mut Vec<Effect<'p>>) {
    let mut add = |key, before, after| {
        effects.push(Effect { direction: Direction::Neither, subject: Subject::Key(key, before, after) });
    };
    let mut compare = |before: &[(&'static str, KeyValue<'_>)], after: &[(&'static str, KeyValue<'_>)]| {
        for ((key, before), (_, after)) in before.iter().zip(after) {
            if before != after && !WITH_DIRECTION.contains(key) {
                let (before, after) = (spelled(key, *before), spelled(key, *after));
                let after = if before == after { "other".to_owned() } else { after };
                add(key, before, after);
            }
        }
    };
    compare(&old.keys(), &new.keys());
    for (before, after) in old.levels.iter().zip(&new.levels) {
        let of_key = |level| [("key", KeyValue::Text(Some(level)))];
        compare(&of_key(&before.key), &of_key(&after.key));
        compare(&before.keys(), &after.keys());
    }
}

fn spelled(key: &str, value: KeyValue<'_>) -> String {
    let text = match value {
        KeyValue::Flag(is_on) => Some(is_on.to_string()),
        KeyValue::Length(us) => us.map(|us| spell(Duration::from_micros(us))),
        KeyValue::Instant(us) => us.map(instant_text),
        KeyValue::Number(number) => number.map(|number| number.to_string()),
        KeyValue::Percents(shares) => Some(shares.iter().map(|share| share.to_string()).collect::<Vec<_>>().join(", ")),
        KeyValue::Text(None) if key == "on_error" => Some("the domain's".to_owned()),
        KeyValue::Text(None) if key == "request_limit" => Some(RequestLimit::NAMES[0].to_owned()),
        KeyValue::Text(text) => text.map(str::to_owned),
        KeyValue::Word(word) => Some(word.to_owned()),
        KeyValue::Spans(during) => during.map(ToString::to_string),
        KeyValue::Names(names) => Some(names.join(", ")),
        KeyValue::Amount(amount) => amount.map(|amount| format!("{} of {}", amount.unit(), amount.scale())),
        KeyValue::Metadata(metadata) => metadata.map(|_| "some".to_owned()),
    };
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "none".to_owned())
}

fn add_roles(old: Option<&Rule>, new: Option<&Rule>, effects: &mut Vec<Effect<'_>>) {
    let unlimited = |rule: Option<&Rule>| rule.is_some_and(|rule| rule.unlimited);
    if unlimited(old) != unlimited(new) {
        // The added or removed limits have the direction.
        let is_unlimited = |rule| unlimited(rule).to_string();
        effects.push(Effect {
            direction: Direction::Neither,
            subject: Subject::Key("unlimited", is_unlimited(old), is_unlimited(new)),
        });
    }
    let (Some(old), Some(new)) = (old, new) else { return };
    if old.unlimited || new.unlimited {
        return;
    }
    let shadow = |rule: &Rule| rule.role == Role::Shadow;
    if shadow(old) != shadow(new) {
        let direction = if shadow(new) { Direction::Looser } else { Direction::Stricter };
        // In shadow mode nothing is denied, so limits do not matter.
        effects.iter_mut().for_each(|effect| effect.direction = Direction::Neither);
        effects.push(Effect {
            direction,
            subject: Subject::Key("shadow_mode", shadow(old).to_string(), shadow(new).to_string()),
        });
    }
    for (before, after) in old.levels.iter().zip(&new.levels) {
        let (before, after) = (shared_by(before), shared_by(after));
        if before == after {
            continue;
        }
        let direction = match (shadow(old) && shadow(new), &before, &after) {
            (true, ..) => Direction::Neither,
            (_, None, _) => Direction::Stricter,
            (_, _, None) => Direction::Looser,
            // Now more or fewer values share the limit.
            _ => Direction::Both,
        };
        // The name matters only if values share a state on both sides.
        let told = |name: &Option<String>, other: &Option<String>| match (name, other) {
            (Some(name), Some(_)) => name.clone(),
            (name, _) => name.is_some().to_string(),
        };
        let subject = Subject::Key("share_threshold", told(&before, &after), told(&after, &before));
        effects.push(Effect { direction, subject });
    }
}

/// The name of the shared state of a level's values.
fn shared_by(level: &Level) -> Option<String> {
    let is_key_pattern = level.key.contains('*') && level.value.as_ref().is_none_or(|value| value.exact().is_some());
    let matcher = level.value.as_ref().filter(|matcher| matcher.is_of_many());
    let name =
        matcher.map(|matcher| matcher.name().into_owned()).or_else(|| is_key_pattern.then(|| level.key.to_string()));
    name.filter(|_| level.share_threshold)
}

/// Pairs the limits of two lists: first by shape, then by algorithm and window, then by either of the two, then by order.
pub(super) fn paired<'p>(old: &[&'p Limit], new: &[&'p Limit]) -> Vec<(Option<&'p Limit>, Option<&'p Limit>)> {
    let kind = |one: &Limit, other: &Limit| one.algorithm().name() == other.algorithm().name();
    let window = |one: &Limit, other: &Limit| one.window() == other.window();
    let steps: [fn(bool, bool, bool) -> bool; 4] = [
        |same_shape, _, _| same_shape,
        |_, same_kind, same_window| same_kind && same_window,
        |_, same_kind, same_window| same_kind || same_window,
        |_, _, _| true,
    ];
    let mut left: Vec<&'p Limit> = new.to_vec();
    let mut partners: Vec<Option<&'p Limit>> = vec![None; old.len()];
    for step in steps {
        for (&limit, partner) in old.iter().zip(&mut partners).filter(|(_, partner)| partner.is_none()) {
            *partner = left
                .iter()
                .position(|other| step(limit.id() == other.id(), kind(limit, other), window(limit, other)))
                .map(|at| left.remove(at));
        }
    }
    let old = old.iter().zip(partners).map(|(limit, partner)| (Some(*limit), partner));
    old.chain(left.into_iter().map(|limit| (None, Some(limit)))).collect()
}

/// The direction of a changed limit. `None` if the limits are equal.
fn of_limits(old: Option<&Limit>, new: Option<&Limit>) -> Option<Direction> {
    if old == new {
        return None;
    }
    // A limit on trial denies nothing.
    let (old, new) = (old.filter(|limit| !limit.shadow), new.filter(|limit| !limit.shadow));
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, Some(_)) => return Some(Direction::Stricter),
        (Some(_), None) => return Some(Direction::Looser),
        (None, None) => return Some(Direction::Neither),
    };
    Some(amounts::direction(old, new))
}
