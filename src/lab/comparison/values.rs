//! The values that a rule matches on one side only.

use std::collections::HashSet;

use weir_engine::policy::Level;
use weir_engine::{Matcher, Rule};

use super::{Direction, Effect, Subject};

/// The most values of a list in a report. The report only counts the others.
const VALUES_MAX: usize = 20;

/// Whether both rules have the same values, as written.
pub(super) fn are_same(before: &Rule, after: &Rule) -> bool {
    let values = |rule: &Rule| rule.levels.iter().map(|level| level.value.clone()).collect::<Vec<_>>();
    before.levels.len() == after.levels.len() && values(before) == values(after)
}

/// Adds the values that only one of the rules has. The rules that these values meet decide their direction.
pub(super) fn add_values<'p>(before: &'p Rule, after: &'p Rule, effects: &mut Vec<Effect<'p>>) {
    let levels = before.levels.iter().zip(&after.levels);
    let changed = levels.filter_map(|(before, after)| changed(before, after));
    effects.extend(changed.map(|subject| Effect { direction: Direction::Neither, subject }));
}

/// Returns `None` if there are no such values. The order of a list affects only its name.
fn changed(before: &Level, after: &Level) -> Option<Subject<'static>> {
    if before.value == after.value {
        return None;
    }
    let (before, after) = (values(before), values(after));
    let only = |values: &[String], others: &[String]| {
        let others: HashSet<&String> = others.iter().collect();
        values.iter().filter(|value| !others.contains(value)).cloned().collect::<Vec<_>>()
    };
    let (added, gone) = (only(&after, &before), only(&before, &after));
    (!added.is_empty() || !gone.is_empty()).then(|| Subject::Values(first(added), first(gone)))
}

fn first(mut values: Vec<String>) -> Vec<String> {
    let more = values.len().saturating_sub(VALUES_MAX);
    if more > 0 {
        values.truncate(VALUES_MAX);
        values.push(format!("and {more} more"));
    }
    values
}

/// In the order of the policy.
fn values(level: &Level) -> Vec<String> {
    match &level.value {
        None => vec!["any".to_owned()],
        Some(Matcher::List(values)) => values.iter().map(ToString::to_string).collect(),
        Some(Matcher::Networks(networks)) => networks.iter().map(ToString::to_string).collect(),
        Some(other) => vec![other.name().into_owned()],
    }
}
