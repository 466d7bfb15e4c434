//! Descriptors that no value matches, because other descriptors of the level match all of their values first.
//!
//! Classes of values give an exact answer. A value that equals the text of a wildcard, including stars, always matches
//! that wildcard; this file ignores such values. Not here: limits that are hidden one level below (below.rs).

use std::collections::{BTreeMap, HashSet};

use weir_classes::{Class, ClassKind, Values, classes, classes_of_other_keys};
use weir_engine::Matcher;
use weir_engine::automaton::PATTERNS_MAX;
use weir_engine::descriptor::Entry;
use weir_engine::pattern::Pattern;
use weir_engine::policy::Place;

use super::super::{Code, Outline};
use super::{Findings, kind};

/// The most descriptors that a warning names.
const NAMED_MAX: usize = 3;

/// The places that some values lead to, by address.
type Met = HashSet<usize>;

impl<'l> Findings<'l> {
    pub(super) fn never_met(&mut self, level: &[&Outline], place: Place<'l>) {
        let mut by_key: BTreeMap<&str, Vec<&Outline>> = BTreeMap::new();
        for outline in level {
            by_key.entry(&outline.key).or_default().push(outline);
        }
        let has_key_patterns = !place.key_patterns().is_empty();
        let is_key_pattern = |key: &str| has_key_patterns && key.contains('*');
        for (key, of_key) in by_key.iter().filter(|(key, _)| !is_key_pattern(key)) {
            let patterns = of_key.iter().filter(|outline| is_pattern(outline)).count();
            if patterns > 0 || has_key_patterns {
                self.never_met_of_key(key, of_key, level, place, patterns);
            }
        }
        if has_key_patterns {
            let keys = by_key.keys().copied().filter(|key| !is_key_pattern(key)).collect();
            self.key_patterns_never_met(keys, level, place);
        }
    }

    fn never_met_of_key(
        &mut self,
        key: &str,
        of_key: &[&Outline],
        level: &[&Outline],
        place: Place<'l>,
        patterns: usize,
    ) {
        // Texts are looked up first, so a descriptor of texts is always met.
        let candidates = of_key.iter().filter(|outline| outline.value.is_none() || is_pattern(outline));
        let candidates: Vec<(&Outline, usize)> =
            candidates.filter_map(|outline| Some((*outline, address(place, outline)?))).collect();
        let printable = if patterns > PATTERNS_MAX { None } else { self.met(Values::Printable, key, place) };
        let Some(printable) = printable else {
            self.hidden_by_one_wildcard(of_key);
            return;
        };
        let unmet: Vec<&Outline> =
            candidates.iter().filter(|(_, at)| !printable.contains(at)).map(|(outline, _)| *outline).collect();
        if unmet.is_empty() {
            return;
        }
        let Some(all) = self.met(Values::All, key, place) else { return };
        for outline in unmet {
            let Some((hiders, is_empty)) = self.hiders(outline, of_key, level, place) else { continue };
            if is_empty {
                self.add(&outline.note.place(), Code::MatchesNothing, || {
                    "no value matches the regular expression".to_owned()
                });
                continue;
            }
            let is_met = address(place, outline).is_some_and(|at| all.contains(&at));
            if is_met && hiders.is_empty() {
                // All of its values have control characters, so no example can be printed.
                continue;
            }
            let never = if is_met { "only values with control characters match it" } else { "never met" };
            self.add(&outline.note.place(), Code::NeverMet, || {
                format!("{never}, because {}", taking(outline, &hiders))
            });
        }
    }

    /// The places that the values of a key lead to. None if the budget is used up.
    fn met(&mut self, values: Values, key: &str, place: Place<'l>) -> Option<Met> {
        let classes = self.within(|budget| classes(values, &[Some(place)], key, budget))?;
        Some(addresses(&classes))
    }

    /// Which descriptors match the values of another one first, and whether it matches no value at all. None if the
    /// budget is used up.
    fn hiders<'o>(
        &mut self,
        outline: &'o Outline,
        of_key: &[&'o Outline],
        level: &[&'o Outline],
        place: Place<'l>,
    ) -> Option<(Vec<&'o Outline>, bool)> {
        let any = Matcher::from("*");
        let others = of_key.iter().filter(|other| !std::ptr::eq(**other, outline) && other.value.is_some());
        let others: Vec<&Outline> = others.copied().collect();
        // In file order.
        let before = others.iter().take_while(|other| comes_before(other, outline, of_key)).count();
        let mut matchers: Vec<&Matcher> = others.iter().filter_map(|other| other.value.as_ref()).collect();
        let which = if outline.value.is_none() { matchers.len() } else { before };
        matchers.insert(which, outline.value.as_ref().unwrap_or(&any));
        let taken = self.taken(&matchers, which)?;
        // A later descriptor matches only the other's own wildcard text.
        let by = taken.by.iter().filter(|(at, value)| *at < which || !value.contains('*'));
        let by = by.filter_map(|(at, _)| others.get(if *at > which { at - 1 } else { *at }).copied());
        let mut hiders: Vec<&Outline> = by.collect();
        // A key with a star can match the remaining values.
        let met = taken.own.as_ref().and_then(|value| place.child(Entry { key: &outline.key, value }));
        let by_key = met.and_then(|met| level.iter().find(|other| address(place, other) == Some(met.address())));
        hiders.extend(by_key.filter(|other| !std::ptr::eq(**other, outline)).copied());
        let is_empty = taken.own.is_none() && hiders.is_empty();
        Some((hiders, is_empty))
    }

    fn key_patterns_never_met(&mut self, keys: Vec<&str>, level: &[&Outline], place: Place<'l>) {
        if place.key_patterns().len() > PATTERNS_MAX {
            self.is_whole = false;
            return;
        }
        let Some(others) = self.within(|budget| classes_of_other_keys(&[Some(place)], budget)) else { return };
        let mut met = addresses(&others);
        for key in keys {
            let Some(of_key) = self.met(Values::All, key, place) else { return };
            met.extend(of_key);
        }
        let patterns: Vec<&Outline> = level.iter().filter(|outline| outline.key.contains('*')).copied().collect();
        let joined: Vec<Matcher> = patterns.iter().map(|outline| Matcher::from(&*joined(outline))).collect();
        let joined: Vec<&Matcher> = joined.iter().collect();
        for (which, outline) in patterns.iter().enumerate() {
            if address(place, outline).is_none_or(|at| met.contains(&at)) {
                continue;
            }
            let Some(taken) = self.taken(&joined, which) else { return };
            let hiders: Vec<&Outline> = taken.by.iter().filter_map(|(at, _)| patterns.get(*at).copied()).collect();
            self.add(&outline.note.place(), Code::NeverMet, || {
                format!("never met, because {}", taking(outline, &hiders))
            });
        }
    }

    /// For patterns beyond the bound of classes: finds wildcards that a single earlier wildcard hides.
    fn hidden_by_one_wildcard(&mut self, of_key: &[&Outline]) {
        self.is_whole = false;
        let mut earlier: Vec<(Pattern, &Outline)> = Vec::new();
        for outline in of_key {
            let Some(Matcher::Text(text)) = &outline.value else { continue };
            let Some(pattern) = Pattern::new(text) else { continue };
            if !self.compare(earlier.len()) {
                return;
            }
            // A wildcard that matches the text of another one matches all of its values.
            if let Some((_, by)) = earlier.iter().find(|(other, _)| other.matches(text)) {
                let by = [*by];
                self.add(&outline.note.place(), Code::NeverMet, || {
                    format!("never met, because {}", taking(outline, &by))
                });
            }
            earlier.push((pattern, *outline));
        }
    }
}

fn is_pattern(outline: &Outline) -> bool {
    match &outline.value {
        Some(Matcher::Text(text)) => text.contains('*'),
        Some(Matcher::Regex(_)) => true,
        _ => false,
    }
}

/// Whether a descriptor is tried before another one.
fn comes_before(one: &Outline, other: &Outline, all: &[&Outline]) -> bool {
    all.iter().find(|it| std::ptr::eq(**it, one) || std::ptr::eq(**it, other)).is_some_and(|it| std::ptr::eq(*it, one))
}

fn address(place: Place<'_>, outline: &Outline) -> Option<usize> {
    place.descriptor(&outline.key, outline.value.as_ref()).map(Place::address)
}

/// The places that values lead to, except values that are the text of a wildcard.
fn addresses(classes: &[Class<'_, 1>]) -> Met {
    let is_text_of_wildcard = |class: &&Class<'_, 1>| {
        class.kind == ClassKind::Text && class.witness.as_ref().is_some_and(|text| text.contains('*'))
    };
    let classes = classes.iter().filter(|class| !is_text_of_wildcard(class));
    classes.flat_map(|class| class.met).flatten().map(Place::address).collect()
}

/// The pattern of a descriptor with a star in its key.
fn joined(outline: &Outline) -> String {
    match &outline.value {
        Some(Matcher::Text(value)) => format!("{}_{value}", outline.key),
        _ => outline.key.clone(),
    }
}

/// Names the descriptors that match the values of another one first.
fn taking(outline: &Outline, hiders: &[&Outline]) -> String {
    let named = hiders.iter().take(NAMED_MAX).map(|other| format!("the {} at {}", kind(other), other.note.place()));
    let mut named: Vec<String> = named.collect();
    if hiders.is_empty() || hiders.len() > NAMED_MAX {
        named.push("others".to_owned());
    }
    let values = if outline.value.is_none() && !outline.key.contains('*') {
        "all values before the key alone"
    } else {
        "all of its values"
    };
    match (&named[..], hiders) {
        ([one], [by])
            if outline.value.is_none() && !outline.key.contains('*') || !is_pattern(by) && !by.key.contains('*') =>
        {
            let (take, them) = (if kind(by) == "networks" { "take" } else { "takes" }, values);
            format!("{one} {take} {them}")
        }
        ([one], [_]) => format!("{one} comes before it and matches {values}"),
        _ => {
            let last = named.pop().unwrap_or_default();
            let comma = if named.is_empty() { "" } else { " and " };
            format!("{}{comma}{last} take {values}", named.join(", "))
        }
    }
}
