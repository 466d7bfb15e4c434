//! The rules that descriptors meet before and now: walks both trees of each domain together, by classes of values.
//!
//! Finds each pair of an old and a new rule of some descriptor once, with an example. Parts that are the same on both sides are
//! skipped. Parts past the budget are reported as unknown. Not here: the differences of two rules (limits.rs), and effects of
//! descriptors on each other (together.rs).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use weir_classes::{Budget, Class, GivenUp, Values, classes, classes_of_other_keys, keys};
use weir_engine::descriptor::{as_entries, spell_pairs};
use weir_engine::policy::{Lead, Level, Place};
use weir_engine::{Domain, Entry, PolicySet, Rule};

use super::{CouldNotTell, limits};

/// Descriptors that met one rule and meet another one.
#[derive(Debug)]
pub(super) struct Transition<'p> {
    pub(super) old: Option<&'p Rule>,
    pub(super) new: Option<&'p Rule>,
    pub(super) example: String,
    /// The descriptor has an entry by which one of the rules weighs. Its states are those of the descriptor without the entry.
    pub(super) is_weighed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Observed<'p> {
    /// Each pair of rules once. Pairs of equal rules are included only in domains in which rules affect each other.
    pub(super) transitions: Vec<Transition<'p>>,
    pub(super) unknown: Vec<CouldNotTell<'p>>,
}

type Places<'p> = [Option<Place<'p>>; 2];

pub(super) fn observe<'p>(old: &'p PolicySet, new: &'p PolicySet) -> Observed<'p> {
    let works_on_others = |rule: &&Rule| rule.is_quota || !rule.replaces.is_empty();
    let whole: HashSet<&str> =
        old.rules().iter().chain(new.rules()).filter(works_on_others).map(|rule| &*rule.domain).collect();
    let mut names: Vec<&'p str> = old.domains().chain(new.domains()).map(|domain| &*domain.name).collect();
    names.sort_unstable();
    names.dedup();
    let mut budget = Budget::default();
    let mut observed = Observed::default();
    for name in names {
        let mut walk = Walk {
            sides: [old, new],
            domain: name,
            whole: whole.contains(name),
            budget: &mut budget,
            same: HashMap::new(),
            same_levels: HashMap::new(),
            walked: HashSet::new(),
            known: HashSet::new(),
            met: HashSet::new(),
            perhaps: Vec::new(),
            entries: Vec::new(),
            is_over: false,
            observed: &mut observed,
        };
        walk.pair([old.domain(name).map(Domain::top), new.domain(name).map(Domain::top)]);
        walk.note_unknown();
    }
    observed
}

struct Walk<'w, 'p> {
    sides: [&'p PolicySet; 2],
    domain: &'p str,
    /// Whether pairs of equal rules are included.
    whole: bool,
    budget: &'w mut Budget,
    /// For pairs of places: whether everything below them is the same.
    same: HashMap<(usize, usize), bool>,
    /// For pairs of levels, by address: whether they are equal.
    same_levels: HashMap<(usize, usize), bool>,
    walked: HashSet<[Option<usize>; 2]>,
    /// Pairs of rules at the places that were found.
    known: HashSet<[Option<u32>; 2]>,
    /// Pairs of rules that a descriptor meets.
    met: HashSet<[Option<u32>; 2]>,
    /// Pairs of places that possibly no value reaches, and the path to them.
    perhaps: Vec<(Places<'p>, String)>,
    /// The descriptor of the current place.
    entries: Vec<(String, String)>,
    /// The budget is used up, and the rest of the domain is skipped.
    is_over: bool,
    observed: &'w mut Observed<'p>,
}

impl<'p> Walk<'_, 'p> {
    fn pair(&mut self, places: Places<'p>) {
        if self.is_over || !self.walked.insert(addresses(&places)) {
            return;
        }
        let is_same = match places {
            [Some(old), Some(new)] => self.is_same(old, new),
            _ => false,
        };
        // In an unchanged domain, rules affect each other as before.
        if is_same && (!self.whole || self.entries.is_empty()) {
            return;
        }
        self.note(&places);
        for key in keys(&places) {
            let is_same = is_same || matches!(places, [Some(old), Some(new)] if self.is_same_key(old, new, key));
            if is_same && !self.whole && !has_key_patterns(&places) {
                continue;
            }
            let found = self.classes(&places, key, is_same);
            self.descend(&places, found, Some(key));
        }
        let found = classes_of_other_keys(&places, self.budget);
        self.descend(&places, found, None);
    }

    /// The classes of a key. If both sides are the same, the classes of one side are used for both.
    fn classes(&mut self, places: &Places<'p>, key: &str, is_same: bool) -> Result<Vec<Class<'p, 2>>, GivenUp> {
        let &[Some(old), Some(new)] = places else { return classes(Values::All, places, key, self.budget) };
        if !is_same || has_key_patterns(places) {
            return classes(Values::All, places, key, self.budget);
        }
        let both = |class: Class<'p, 1>| {
            let Class { key, witness, kind, met: [met] } = class;
            let now = new.child(Entry { key: &key, value: witness.as_deref()? });
            Some(Class { key, witness, kind, met: [met, now] })
        };
        Ok(classes(Values::All, &[Some(old)], key, self.budget)?.into_iter().filter_map(both).collect())
    }

    fn descend(&mut self, places: &Places<'p>, found: Result<Vec<Class<'p, 2>>, GivenUp>, key: Option<&'p str>) {
        let found = match found {
            Ok(found) => found,
            Err(given_up) => return self.give_up(places, key, given_up),
        };
        for Class { key, witness, met, .. } in found {
            let Some(witness) = witness else {
                let why = format!(
                    "whether a value of {key:?} that is written as an address meets these rules cannot be told from \
                     networks beside patterns"
                );
                self.perhaps.push((met, why));
                continue;
            };
            self.entries.push((key, witness));
            self.pair(met);
            self.entries.pop();
        }
    }

    /// Notes the rules of a descriptor that ends at these places.
    fn note(&mut self, places: &Places<'p>) {
        let rules = places.map(|place| place.and_then(Place::rule));
        if rules == [None, None] || !self.known.insert(rules) {
            return;
        }
        let entries = std::mem::take(&mut self.entries);
        let found = self.sides.map(|set| Some(set.find(set.domain(self.domain)?, &as_entries(&entries)).rule?.id));
        if found == rules {
            self.meet(&entries, false);
            self.meet_weighed(rules, &entries);
        } else {
            let why = format!("the walk through both policies and the engine differ for {}", spell_pairs(&entries));
            let [old, new] = self.rules(rules);
            self.observed.unknown.push(CouldNotTell { domain: self.domain, old, new, why });
        }
        self.entries = entries;
    }

    /// Adds the rules that a descriptor meets on both sides.
    fn meet(&mut self, entries: &[(String, String)], is_weighed: bool) {
        let sent = as_entries(entries);
        let rules = self.sides.map(|set| Some(set.weigh(set.domain(self.domain)?, &sent).ok()?.met.rule?.id));
        if rules != [None, None] && self.met.insert(rules) {
            let [old, new] = self.rules(rules);
            self.observed.transitions.push(Transition { old, new, example: spell_pairs(entries), is_weighed });
        }
    }

    /// The same for the descriptor with an entry by which only one of its rules weighs: the other side can have no rule for it. [mt-13]
    fn meet_weighed(&mut self, rules: [Option<u32>; 2], entries: &[(String, String)]) {
        for weigh in self.rules(rules).into_iter().flatten().filter_map(|rule| rule.weigh.as_deref()) {
            if entries.iter().any(|(key, _)| **key == *weigh.entry) {
                continue;
            }
            // A value with a factor, and one without: descriptors as long as this one can name the first.
            for value in weigh.values().min().into_iter().chain(["x"]) {
                for at in (0..=entries.len()).rev() {
                    let mut entries = entries.to_vec();
                    entries.insert(at, (weigh.entry.to_string(), value.to_owned()));
                    self.meet(&entries, true);
                }
            }
        }
    }

    fn rules(&self, ids: [Option<u32>; 2]) -> [Option<&'p Rule>; 2] {
        let [old, new] = self.sides;
        [ids[0].map(|id| &old.rules()[id as usize]), ids[1].map(|id| &new.rules()[id as usize])]
    }

    fn give_up(&mut self, places: &Places<'p>, key: Option<&str>, given_up: GivenUp) {
        if self.is_over {
            return;
        }
        self.is_over = given_up == GivenUp::Steps;
        let first = |place: &Option<Place<'p>>| {
            let all = place.iter().flat_map(|place| place.keys().map(|key| (*place, key)));
            all.filter(|(_, own)| key.is_none_or(|key| key == *own))
                .flat_map(|(place, own)| place.written(own))
                .filter_map(|(_, place)| first_rule(place))
                .min()
        };
        let [old, new] = self.rules([first(&places[0]), first(&places[1])]);
        let mut at = spell_pairs(&self.entries);
        if !at.is_empty() {
            at.push_str(": ");
        }
        let key = key.map_or_else(|| "keys that are patterns".to_owned(), |key| format!("key {key:?}"));
        let why = format!("{at}{key}: {given_up}");
        self.observed.unknown.push(CouldNotTell { domain: self.domain, old, new, why });
    }

    /// Notes the pairs of places that no known value reached.
    fn note_unknown(&mut self) {
        for (places, why) in std::mem::take(&mut self.perhaps) {
            if !self.may_differ(places) || !self.walked.insert(addresses(&places)) {
                continue;
            }
            let rules = places.map(|place| place.and_then(first_rule));
            let [old, new] = self.rules(rules);
            self.observed.unknown.push(CouldNotTell { domain: self.domain, old, new, why });
        }
    }

    /// Whether descriptors of these places may get another answer.
    fn may_differ(&mut self, places: Places<'p>) -> bool {
        let is_same = matches!(places, [Some(old), Some(new)] if self.is_same(old, new));
        let is_leaf = places.iter().flatten().all(|place| place.keys().next().is_none());
        let rules = places.map(|place| place.and_then(Place::rule));
        let [old, new] = self.rules(rules);
        let is_known = self.known.contains(&rules) || (!self.whole && limits::effects(old, new).is_empty());
        !(is_same || is_leaf && is_known)
    }

    /// Whether two places are equal, with all descriptors below them.
    fn is_same(&mut self, old: Place<'p>, new: Place<'p>) -> bool {
        let pair = (old.address(), new.address());
        if let Some(known) = self.same.get(&pair) {
            return *known;
        }
        let [before, now] = self.rules([old.rule(), new.rule()]);
        let is_same = match (before, now) {
            (Some(before), Some(now)) => {
                before.path == now.path && before.spec == now.spec && self.are_same_levels(before, now)
            }
            (None, None) => true,
            _ => false,
        };
        // The order of patterns in keys matters, so such levels are walked.
        let both = |place: Place<'p>| place.keys().collect::<BTreeSet<&str>>();
        let is_same = is_same && !has_key_patterns(&[Some(old), Some(new)]) && {
            let keys = both(old);
            keys == both(new) && keys.into_iter().all(|key| self.is_same_key(old, new, key))
        };
        self.same.insert(pair, is_same);
        is_same
    }

    /// Whether two rules have the same descriptors, as written.
    fn are_same_levels(&mut self, old: &'p Rule, new: &'p Rule) -> bool {
        let mut is_same = |(old, new): (&'p Arc<Level>, &'p Arc<Level>)| {
            // Cached: lists can be long, and many rules can be below one.
            let pair = (Arc::as_ptr(old).addr(), Arc::as_ptr(new).addr());
            *self.same_levels.entry(pair).or_insert_with(|| old == new)
        };
        old.levels.len() == new.levels.len() && old.levels.iter().zip(&new.levels).all(&mut is_same)
    }

    fn is_same_key(&mut self, old: Place<'p>, new: Place<'p>, key: &str) -> bool {
        let (before, now) = (old.written(key), new.written(key));
        // Only the order of patterns matters.
        let is_pattern = |(lead, _): &(Lead<'p>, Place<'p>)| matches!(lead, Lead::Pattern(_));
        let (patterns, others): (Vec<_>, Vec<_>) = before.into_iter().partition(is_pattern);
        let (patterns_now, others_now): (Vec<_>, Vec<_>) = now.into_iter().partition(is_pattern);
        if patterns.len() != patterns_now.len() || others.len() != others_now.len() {
            return false;
        }
        let others_now: HashMap<String, Place<'p>> =
            others_now.iter().map(|(lead, place)| (unordered(lead), *place)).collect();
        patterns.iter().zip(&patterns_now).all(|(one, other)| one.0 == other.0 && self.is_same(one.1, other.1))
            && others
                .iter()
                .all(|(lead, old)| others_now.get(&unordered(lead)).is_some_and(|new| self.is_same(*old, *new)))
    }
}

/// The identity of a lead whose order does not matter.
fn unordered(lead: &Lead<'_>) -> String {
    match lead {
        Lead::Text(text) => format!("={text}"),
        Lead::Network(network) => format!("/{network}"),
        Lead::Pattern(matcher) => format!("~{}", matcher.name()),
        Lead::KeyAlone => String::new(),
    }
}

fn addresses(places: &Places<'_>) -> [Option<usize>; 2] {
    places.map(|place| place.map(Place::address))
}

fn has_key_patterns(places: &Places<'_>) -> bool {
    places.iter().flatten().any(|place| !place.key_patterns().is_empty())
}

fn first_rule(place: Place<'_>) -> Option<u32> {
    let below = place.keys().flat_map(|key| place.written(key)).filter_map(|(_, child)| first_rule(child));
    place.rule().into_iter().chain(below).min()
}
