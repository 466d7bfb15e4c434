//! Where it goes that a rule is for more or fewer values: what their descriptors met before, and what they meet now.

use std::collections::HashSet;

use super::{Side, Tend, limits, samples};
use crate::engine::policy::Level;
use crate::engine::{Matcher, Rule};

/// For the values of one level that only one of the two rules is for.
pub(super) fn tend<'p>(
    (before, old): (&'p Rule, &Side<'p>),
    (after, new): (&'p Rule, &Side<'p>),
    number: usize,
) -> Tend {
    let (Some(one), Some(other)) = (before.levels.get(number), after.levels.get(number)) else { return Tend::Neither };
    let (were, are) = (values(one), values(other));
    let gone = were.difference(&are).map(|value| (before, value));
    let added = are.difference(&were).map(|value| (after, value));
    let mut tend = Tend::Neither;
    for (rule, value) in gone.chain(added) {
        let Some(sample) = samples::with_value(rule, number, value) else { continue };
        let (met, meets) = (sample.met(old.set, &before.domain), sample.met(new.set, &after.domain));
        tend = limits::effects(met, meets).iter().fold(tend, |tend, effect| tend.and(effect.tend));
        if tend == Tend::Both {
            break;
        }
    }
    tend
}

/// The values of a list, or the only one.
fn values(level: &Level) -> HashSet<String> {
    match &level.value {
        Some(Matcher::List(values)) => values.iter().map(ToString::to_string).collect(),
        Some(Matcher::Networks(networks)) => networks.iter().map(ToString::to_string).collect(),
        Some(one) => one.exact().map(str::to_owned).into_iter().collect(),
        None => HashSet::new(),
    }
}
