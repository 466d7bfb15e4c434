//! Pairs old and new rules.
//!
//! Rules with the same path and domain form a pair. Two other rules form a pair if only one renaming is possible: their
//! domains have the same content, they differ only in a key, or their lists share values.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_engine::policy::path_below;
use weir_engine::{Matcher, Rule};

use super::Side;

pub(super) type Pair<'p> = (Option<&'p Rule>, Option<&'p Rule>);

/// The rules of both sides, and the names of domains.
pub(super) struct Pairs<'p> {
    pub(super) rules: Vec<Pair<'p>>,
    /// The old names of domains by the new ones.
    pub(super) renamed: BTreeMap<&'p str, &'p str>,
}

pub(super) fn pairs<'p>(old: &Side<'p>, new: &Side<'p>) -> Pairs<'p> {
    let renamed = renamed_domains(old, new);
    let mut rules: Vec<Pair<'p>> = Vec::with_capacity(new.set.rules().len());
    let mut left = Left::default();
    for rule in new.set.rules() {
        let was = renamed.get(&*rule.domain).copied().unwrap_or(&rule.domain);
        match old.by_path.get(&(was, &*rule.path)) {
            Some(before) => rules.push((Some(*before), Some(rule))),
            None => left.new.push(rule),
        }
    }
    let new_names: HashMap<&str, &str> = renamed.iter().map(|(name, was)| (*was, *name)).collect();
    for rule in old.set.rules() {
        let name = new_names.get(&*rule.domain).copied().unwrap_or(&rule.domain);
        if !new.by_path.contains_key(&(name, &*rule.path)) {
            left.old.push(rule);
        }
    }
    rules.extend(left.take_by(other_keys));
    rules.extend(left.take_by(same_values));
    rules.extend(left.old.into_iter().map(|rule| (Some(rule), None)));
    rules.extend(left.new.into_iter().map(|rule| (None, Some(rule))));
    Pairs { rules, renamed }
}

/// Rules that have no partner yet.
#[derive(Default)]
struct Left<'p> {
    old: Vec<&'p Rule>,
    new: Vec<&'p Rule>,
}

impl<'p> Left<'p> {
    /// Removes and returns pairs with a common sign that no other rule of their side has.
    fn take_by(&mut self, signs: fn(&Rule) -> Vec<String>) -> Vec<Pair<'p>> {
        if self.old.is_empty() || self.new.is_empty() {
            return Vec::new();
        }
        let unique = |rules: &[&'p Rule]| {
            let mut by_sign: HashMap<String, Option<usize>> = HashMap::new();
            for (number, rule) in rules.iter().enumerate() {
                for sign in signs(rule) {
                    by_sign.entry(sign).and_modify(|known| *known = None).or_insert(Some(number));
                }
            }
            by_sign
        };
        let (old, new) = (unique(&self.old), unique(&self.new));
        let mut partners: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (sign, number) in &new {
            if let (Some(number), Some(Some(before))) = (number, old.get(sign)) {
                partners.entry(*number).or_default().insert(*before);
            }
        }
        let mut taken = BTreeSet::new();
        let mut pairs = BTreeMap::new();
        for (number, before) in partners {
            if let Some(before) = before.into_iter().find(|before| taken.insert(*before)) {
                pairs.insert(number, before);
            }
        }
        let found = pairs.iter().map(|(number, before)| (Some(self.old[*before]), Some(self.new[*number]))).collect();
        self.old = kept(&self.old, |number| !taken.contains(&number));
        self.new = kept(&self.new, |number| !pairs.contains_key(&number));
        found
    }
}

fn kept<'p>(rules: &[&'p Rule], is_kept: impl Fn(usize) -> bool) -> Vec<&'p Rule> {
    rules.iter().enumerate().filter(|(number, _)| is_kept(*number)).map(|(_, rule)| *rule).collect()
}

/// Returns, for each key of a rule, the rule without that key.
fn other_keys(rule: &Rule) -> Vec<String> {
    let content = content(rule);
    (0..rule.levels.len())
        .map(|without| format!("{}|{without}|{}|{content}", rule.domain, path(rule, without, false)))
        .collect()
}

/// Returns, for each value of each list, the rule with that value in place of the list.
fn same_values(rule: &Rule) -> Vec<String> {
    let mut signs = Vec::new();
    for (number, level) in rule.levels.iter().enumerate() {
        let values: Vec<String> = match &level.value {
            Some(Matcher::List(values)) => values.iter().map(ToString::to_string).collect(),
            Some(Matcher::Networks(networks)) => networks.iter().map(ToString::to_string).collect(),
            Some(one @ Matcher::Text(_)) if one.exact().is_some() => vec![one.name().into_owned()],
            _ => continue,
        };
        let path = path(rule, number, true);
        signs.extend(values.into_iter().map(|value| format!("{}|{number}|{path}|{value}", rule.domain)));
    }
    signs
}

/// The path of a rule without the value, or without the key, of one level.
fn path(rule: &Rule, without: usize, has_key: bool) -> String {
    let mut path = String::new();
    for (number, level) in rule.levels.iter().enumerate() {
        path = match (number == without, has_key) {
            (false, _) => path_below(&path, &level.key, level.value.as_ref()),
            (true, true) => path_below(&path, &level.key, None),
            (true, false) => path_below(&path, "", level.value.as_ref()),
        };
    }
    path
}

/// The content of a rule without its descriptors.
fn content(rule: &Rule) -> String {
    // A rule whose statistics have other names is paired all the same.
    let shared: Vec<bool> = rule.levels.iter().map(|level| level.share_threshold).collect();
    format!("{:?}{:?}{:?}{shared:?}", rule.keys(), rule.limits, rule.rows)
}

/// Finds renamed domains, as the old name for each new name. Both domains have the same content, and no other domain
/// has it.
fn renamed_domains<'p>(old: &Side<'p>, new: &Side<'p>) -> BTreeMap<&'p str, &'p str> {
    let (gone, added) = (contents(old, new), contents(new, old));
    let single = |(content, names): (String, Vec<&'p str>)| (names.len() == 1).then(|| (content, names[0]));
    let gone: HashMap<String, &str> = gone.into_iter().filter_map(single).collect();
    added.into_iter().filter_map(single).filter_map(|(content, name)| Some((name, *gone.get(&content)?))).collect()
}

/// Returns the domains that only one side has, by their rules.
fn contents<'p>(of: &Side<'p>, other: &Side<'p>) -> HashMap<String, Vec<&'p str>> {
    let mut rules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for rule in of.set.rules().iter().filter(|rule| other.set.domain(&rule.domain).is_none()) {
        rules.entry(&rule.domain).or_default().push(format!("{}|{}", rule.path, content(rule)));
    }
    let mut contents: HashMap<String, Vec<&str>> = HashMap::new();
    for (name, mut rules) in rules {
        rules.sort_unstable();
        contents.entry(rules.join("\n")).or_default().push(name);
    }
    contents
}
