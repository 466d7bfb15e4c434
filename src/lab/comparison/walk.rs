//! The rules that descriptors meet before and now: walks both trees of each domain together, by classes of values.
//!
//! Finds each pair of an old and a new rule of some descriptor once, with an example. Parts that are the same on both sides are
//! skipped. Parts past the budget are reported as unknown. Not here: the differences of two rules (limits.rs), and effects of
//! descriptors on each other (together.rs).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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
    let mut weighing: HashMap<&str, BTreeMap<&str, Option<&str>>> = HashMap::new();
    for rule in old.rules().iter().chain(new.rules()) {
        if let Some(weigh) = &rule.weigh {
            let value = weighing.entry(&rule.domain).or_default().entry(&weigh.entry).or_default();
            *value = value.iter().copied().chain(weigh.values()).min();
        }
    }
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
            weighing: weighing.remove(name).unwrap_or_default(),
            leads_to_weigh: HashMap::new(),
            walked_weighed: HashSet::new(),
            doubtful: BTreeMap::new(),
            is_over: false,
            observed: &mut observed,
        };
        let tops = [old.domain(name).map(Domain::top), new.domain(name).map(Domain::top)];
        walk.pair(tops);
        // Each rule of a domain that only one side has was met.
        if tops.iter().all(Option::is_some) {
            for key in walk.weighing.clone().into_keys() {
                walk.weighed(key, tops, tops, false);
            }
        }
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
    /// For pairs of places: whether everything below them is the same, or what weighs by this entry.
    same: HashMap<(usize, usize, Option<&'p str>), bool>,
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
    /// The keys by which rules weigh, with a value that has a factor of its own.
    weighing: BTreeMap<&'p str, Option<&'p str>>,
    /// For each place and entry: whether a rule at the place or below it weighs by the entry.
    leads_to_weigh: HashMap<(usize, &'p str), bool>,
    walked_weighed: HashSet<(&'p str, bool, [Option<usize>; 4])>,
    /// Pairs of rules that descriptors with entries of several such keys meet, with an example.
    doubtful: BTreeMap<[Option<u32>; 2], String>,
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
            [Some(old), Some(new)] => self.is_same(old, new, None),
            _ => false,
        };
        // In an unchanged domain, rules affect each other as before.
        if is_same && (!self.whole || self.entries.is_empty()) {
            return;
        }
        self.note(&places);
        for key in keys(&places) {
            let is_same = is_same || matches!(places, [Some(old), Some(new)] if self.is_same_key(old, new, key, None));
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
                self.perhaps.push((met, no_value(&key)));
                continue;
            };
            self.entries.push((key, witness));
            self.pair(met);
            self.entries.pop();
        }
    }

    /// Walks the descriptors with one entry of this key, by which rules weigh. Each side meets the rule without the entry if that one
    /// weighs by it, and otherwise the rule of the whole descriptor. Where the same rules weigh on both sides, both sides choose alike. [mt-13]
    fn weighed(&mut self, key: &'p str, whole: Places<'p>, without: Places<'p>, has_entry: bool) {
        let all = [whole[0], whole[1], without[0], without[1]];
        let is_same = match without {
            [Some(old), Some(new)] => self.is_same(old, new, Some(key)),
            [old, new] => old.is_none() && new.is_none(),
        };
        let state = (key, has_entry, all.map(|place| place.map(Place::address)));
        if self.is_over || is_same || !self.walked_weighed.insert(state) {
            return;
        }
        if has_entry {
            self.note_weighed(key);
        }
        if ![0, 1].into_iter().any(|side| without[side].is_some_and(|place| self.leads_to_weigh(side, place, key))) {
            return;
        }
        let split = |[a, b, c, d]: [Option<Place<'p>>; 4]| ([a, b], [c, d], has_entry);
        for other in keys(&all).into_iter().filter(|other| *other != key) {
            let is_same_key = matches!(without, [Some(old), Some(new)] if self.is_same_key(old, new, other, Some(key)));
            if !is_same_key || has_key_patterns(&without) {
                let found = classes(Values::All, &all, other, self.budget);
                self.descend_weighed(key, &without, found, split, Some(other));
            }
        }
        let found = classes_of_other_keys(&all, self.budget);
        self.descend_weighed(key, &without, found, split, None);
        if has_entry {
            return;
        }
        // Some of these values can meet no rule. Classes have no such values.
        for value in self.weighing[key].into_iter().chain(["x", "0", "-"]) {
            self.entries.push((key.to_owned(), value.to_owned()));
            self.weighed(key, whole.map(|place| place?.child(Entry { key, value })), without, true);
            self.entries.pop();
        }
        let found = classes(Values::All, &whole, key, self.budget);
        self.descend_weighed(key, &without, found, |met| (met, without, true), Some(key));
    }

    fn descend_weighed<const N: usize>(
        &mut self,
        weighing: &'p str,
        without: &Places<'p>,
        found: Result<Vec<Class<'p, N>>, GivenUp>,
        places: impl Fn([Option<Place<'p>>; N]) -> (Places<'p>, Places<'p>, bool),
        key: Option<&'p str>,
    ) {
        let found = match found {
            Ok(found) => found,
            Err(given_up) => return self.give_up(without, key, given_up),
        };
        for Class { key, witness, met, .. } in found {
            let (whole, without, has_entry) = places(met);
            let Some(witness) = witness else {
                self.perhaps.extend([whole, without].map(|places| (places, no_value(&key))));
                continue;
            };
            self.entries.push((key, witness));
            self.weighed(weighing, whole, without, has_entry);
            self.entries.pop();
        }
    }

    /// Notes the rules of a descriptor with one entry of this key. With entries of several such keys, one descriptor does not represent
    /// all of these places.
    fn note_weighed(&mut self, key: &str) {
        let entries = std::mem::take(&mut self.entries);
        let rules = self.meet(&entries);
        if rules != [None, None] && entries.iter().any(|(own, _)| own != key && self.weighing.contains_key(&**own)) {
            self.doubtful.entry(rules).or_insert_with(|| spell_pairs(&entries));
        }
        self.entries = entries;
    }

    fn weighs_by(&self, side: usize, place: Place<'p>, key: &str) -> bool {
        let weigh = place.rule().and_then(|id| self.sides[side].rules()[id as usize].weigh.as_ref());
        weigh.is_some_and(|weigh| *weigh.entry == *key)
    }

    fn leads_to_weigh(&mut self, side: usize, place: Place<'p>, key: &'p str) -> bool {
        if let Some(known) = self.leads_to_weigh.get(&(place.address(), key)) {
            return *known;
        }
        let leads = self.weighs_by(side, place, key)
            || !place.key_patterns().is_empty()
            || place
                .keys()
                .any(|own| place.written(own).into_iter().any(|(_, place)| self.leads_to_weigh(side, place, key)));
        self.leads_to_weigh.insert((place.address(), key), leads);
        leads
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
            self.meet(&entries);
        } else {
            let why = format!("the walk through both policies and the engine differ for {}", spell_pairs(&entries));
            let [old, new] = self.rules(rules);
            self.observed.unknown.push(CouldNotTell { domain: self.domain, old, new, why });
        }
        self.entries = entries;
    }

    /// Adds the rules that a descriptor meets on both sides, and returns them.
    fn meet(&mut self, entries: &[(String, String)]) -> [Option<u32>; 2] {
        let sent = as_entries(entries);
        let weighed = self.sides.map(|set| set.weigh(set.domain(self.domain)?, &sent, None).ok());
        let is_weighed = weighed.iter().flatten().any(|weighed| weighed.entry.is_some());
        let rules = weighed.map(|weighed| Some(weighed?.met.rule?.id));
        if rules != [None, None] && self.met.insert(rules) {
            let [old, new] = self.rules(rules);
            self.observed.transitions.push(Transition { old, new, example: spell_pairs(entries), is_weighed });
        }
        rules
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

    /// Notes the pairs of places that no known value reached, and the descriptors that no example represents.
    fn note_unknown(&mut self) {
        for (rules, example) in std::mem::take(&mut self.doubtful) {
            let [old, new] = self.rules(rules);
            let why = format!("rules weigh by several entries of descriptors such as {example}");
            self.observed.unknown.push(CouldNotTell { domain: self.domain, old, new, why });
        }
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
        let is_same = matches!(places, [Some(old), Some(new)] if self.is_same(old, new, None));
        let is_leaf = places.iter().flatten().all(|place| place.keys().next().is_none());
        let rules = places.map(|place| place.and_then(Place::rule));
        let [old, new] = self.rules(rules);
        let is_known = self.known.contains(&rules) || (!self.whole && limits::effects(old, new).is_empty());
        !(is_same || is_leaf && is_known)
    }

    /// Whether two places are equal, with all descriptors below them. With an entry, rules are equal if both or none weigh by it.
    fn is_same(&mut self, old: Place<'p>, new: Place<'p>, by: Option<&'p str>) -> bool {
        let pair = (old.address(), new.address(), by);
        if let Some(known) = self.same.get(&pair) {
            return *known;
        }
        let [before, now] = self.rules([old.rule(), new.rule()]);
        let is_same = match (by, before, now) {
            (Some(by), ..) => self.weighs_by(0, old, by) == self.weighs_by(1, new, by),
            (None, Some(before), Some(now)) => {
                before.path == now.path && before.spec == now.spec && self.are_same_levels(before, now)
            }
            (None, None, None) => true,
            _ => false,
        };
        // The order of patterns in keys matters, so such levels are walked.
        let both = |place: Place<'p>| place.keys().collect::<BTreeSet<&str>>();
        let is_same = is_same && !has_key_patterns(&[Some(old), Some(new)]) && {
            let keys = both(old);
            keys == both(new) && keys.into_iter().all(|key| self.is_same_key(old, new, key, by))
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

    fn is_same_key(&mut self, old: Place<'p>, new: Place<'p>, key: &str, by: Option<&'p str>) -> bool {
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
        patterns.iter().zip(&patterns_now).all(|(one, other)| one.0 == other.0 && self.is_same(one.1, other.1, by))
            && others
                .iter()
                .all(|(lead, old)| others_now.get(&unordered(lead)).is_some_and(|new| self.is_same(*old, *new, by)))
    }
}

fn no_value(key: &str) -> String {
    format!(
        "whether a value of {key:?} that is written as an address meets these rules cannot be told from networks beside patterns"
    )
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
