//! Where it goes that a rule is for more or fewer values: what their descriptors met before, and what they meet now.

use std::collections::HashSet;

use super::{Effect, Side, Tend, What, limits, samples};
use crate::engine::policy::Level;
use crate::engine::{Matcher, Rule};

/// The most values of a list in a report; it counts the rest.
const VALUES_MAX: usize = 20;

/// Adds which values a rule is for that it was not for before, and the reverse.
pub(super) fn add_values<'p>(
    (before, old): (&'p Rule, &Side<'p>),
    (after, new): (&'p Rule, &Side<'p>),
    effects: &mut Vec<Effect<'p>>,
) {
    for (number, levels) in before.levels.iter().zip(&after.levels).enumerate() {
        if let Some(change) = Change::of(levels.0, levels.1) {
            let tend = change.tend((before, old), (after, new), number);
            effects.push(Effect { tend, what: change.told() });
        }
    }
}

/// What a level is for.
#[derive(PartialEq, Eq, Hash)]
struct Value {
    text: String,
    /// It is one value. Otherwise the text stands for any value, or for those of a pattern or a regular expression.
    is_one: bool,
}

/// The values of one level that only the new rule is for, and those that only the old one is for.
struct Change {
    added: Vec<Value>,
    gone: Vec<Value>,
}

impl Change {
    /// None if there are no such values: the order of a list means nothing but for its name.
    fn of(before: &Level, after: &Level) -> Option<Self> {
        if before.value == after.value {
            return None;
        }
        let (mut gone, mut added) = (values(before), values(after));
        let common: HashSet<Value> = {
            let before: HashSet<&Value> = gone.iter().collect();
            added.extract_if(.., |value| before.contains(value)).collect()
        };
        gone.retain(|value| !common.contains(value));
        (!added.is_empty() || !gone.is_empty()).then_some(Self { added, gone })
    }

    /// The values in the order of their lists, the first of many.
    fn told(&self) -> What<'static> {
        let first = |values: &[Value]| {
            let mut told: Vec<String> = values.iter().take(VALUES_MAX).map(|value| value.text.clone()).collect();
            let more = values.len() - told.len();
            if more > 0 {
                told.push(format!("and {more} more"));
            }
            told
        };
        What::Values(first(&self.added), first(&self.gone))
    }

    /// Where it goes: what the descriptors of the level with this number met before, and what they meet now.
    fn tend<'p>(
        &self,
        (before, old): (&'p Rule, &Side<'p>),
        (after, new): (&'p Rule, &Side<'p>),
        number: usize,
    ) -> Tend {
        let gone = self.gone.iter().map(|value| (before, value));
        let added = self.added.iter().map(|value| (after, value));
        let mut tend = Tend::Neither;
        for (rule, value) in gone.chain(added).filter(|(_, value)| value.is_one) {
            let Some(sample) = samples::with_value(rule, number, &value.text) else { continue };
            let (met, meets) = (sample.met(old.set, &before.domain), sample.met(new.set, &after.domain));
            tend = limits::effects(met, meets).iter().fold(tend, |tend, effect| tend.and(effect.tend));
            if tend == Tend::Both {
                break;
            }
        }
        tend
    }
}

/// In the order of the policy.
fn values(level: &Level) -> Vec<Value> {
    let one = |text: String| Value { text, is_one: true };
    match &level.value {
        None => vec![Value { text: "any".to_owned(), is_one: false }],
        Some(Matcher::List(values)) => values.iter().map(|value| one(value.to_string())).collect(),
        Some(Matcher::Networks(networks)) => networks.iter().map(|network| one(network.to_string())).collect(),
        Some(other) => vec![Value { text: other.name().into_owned(), is_one: other.exact().is_some() }],
    }
}
